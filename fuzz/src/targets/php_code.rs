//! Any bytes as the memory of a PHP process: functions, classes and strings.
use crate::process_memory::Bytes;
use tracer_common::interpreter::{FRAME_PHP, FRAME_VERSION_SHIFT, InterpretedFrame, fold};
use tracer_runtimes::php_code::read;
use tracer_runtimes::process_memory::ProcessMemory;

impl Bytes<'_> {
    fn word(&mut self, at: u64) -> u64 {
        let mut raw = [0; 8];
        if ProcessMemory::read(self, at, &mut raw) { u64::from_ne_bytes(raw) } else { 0 }
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<4>() else { return };
    let code = u64::from(u32::from_ne_bytes(*head));
    for (minor, file) in [(0, 144), (1, 144), (2, 152), (3, 144), (4, 168), (5, 0)] {
        let mut memory = Bytes { bytes, read: 0 };
        // The words as they are there, so that it goes on.
        let hash = |memory: &mut Bytes<'_>, at| {
            let string = memory.word(at);
            if string == 0 { 0 } else { memory.word(string.wrapping_add(8)) }
        };
        let own = memory.word(code) & 0xff == 1;
        let (name, scope) = (hash(&mut memory, code + 8), memory.word(code + 16));
        let (path, lines) = if own { (0, 0) } else { (hash(&mut memory, code + file), memory.word(code + file + 8)) };
        let flags = FRAME_PHP | minor << FRAME_VERSION_SHIFT;
        let frame = InterpretedFrame { code, cookie: fold(&[name, scope, path, lines]), at: 0, flags };
        memory.read = 0;
        if let Some(code) = read(&mut memory, &frame) {
            // Of bytes that are no text each may become three.
            assert!(code.name.len() <= 2 * 3 * 512 + 2 && code.file.len() <= 3 * 512);
        }
        assert!(memory.read <= 4096, "{} bytes read for one function", memory.read);
    }
}
