//! Any bytes as the memory of a Python process: code objects, strings and line tables.
use crate::process_memory::Bytes;
use tracer_common::interpreter::{FRAME_VERSION_SHIFT, InterpretedFrame, PYTHON_INDEX, fold};
use tracer_runtimes::process_memory::ProcessMemory;
use tracer_runtimes::python_code::{Code, line, read};

pub(crate) fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<8>() else { return };
    for minor in 8..15u32 {
        let flags = minor << FRAME_VERSION_SHIFT | if minor < 11 { PYTHON_INDEX } else { 0 };
        let at = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let code = u64::from(u32::from_ne_bytes([head[4], head[5], head[6], head[7]]));
        // The words as they are there, so that it goes on.
        let mut words = [0u64; 4];
        let names = if minor < 11 { 104 } else { 112 };
        let mut memory = Bytes { bytes, read: 0 };
        for (place, word) in words.iter_mut().enumerate() {
            let mut raw = [0; 8];
            memory.read(code + names + 8 * place as u64, &mut raw);
            *word = u64::from_ne_bytes(raw);
        }
        let frame = InterpretedFrame { code, cookie: fold(&words), at, flags };
        memory.read = 0;
        if let Some(code) = read(&mut memory, &frame, true) {
            assert!(
                code.name.chars().count() <= 512 && code.file.chars().count() <= 512 && code.table.len() <= 64 << 10
            );
            let _ = line(&frame, &code);
        }
        assert!(memory.read <= (64 << 10) + 8192, "{} bytes read for one function", memory.read);
        let code = Code { name: String::new(), file: String::new(), first: at, table: bytes.to_vec() };
        let _ = line(&frame, &code);
    }
}
