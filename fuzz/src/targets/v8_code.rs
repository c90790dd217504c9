//! Any bytes as the memory of a process with V8: functions, scopes, scripts and strings.
use crate::process_memory::Bytes;
use tracer_common::interpreter::{FRAME_V8, InterpretedFrame, fold};
use tracer_runtimes::process_memory::ProcessMemory;
use tracer_runtimes::v8_code::{ScriptLines, read};
use tracer_runtimes::v8_constants::V8Constants;

impl Bytes<'_> {
    fn word_of_v8(&mut self, at: u64) -> u64 {
        let mut raw = [0; 8];
        if ProcessMemory::read(self, at, &mut raw) { u64::from_le_bytes(raw) } else { 0 }
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<4>() else { return };
    // Kinds that few bytes are enough for.
    let constants =
        V8Constants { kind_shared: 130, kind_scope: 131, kind_script: 132, kind_array: 133, ..V8Constants::SAMPLE };
    let shared = u64::from(u32::from_ne_bytes(*head)) | 1;
    let mut memory = Bytes { bytes, read: 0 };
    // The words as they are there, so that it goes on.
    let words = [0, 16, 32].map(|offset| memory.word_of_v8(shared - 1 + offset));
    let cookie = fold(&[words[0], words[1], words[2], 0]);
    memory.read = 0;
    let frame = InterpretedFrame { code: shared, cookie, at: 0, flags: FRAME_V8 };
    if let Some(code) = read(&mut memory, &constants, &frame, &mut ScriptLines::default()) {
        // Of characters that are no text each becomes three bytes.
        assert!(code.name.len() <= 3 * 512 && code.file.len() <= 3 * 512);
    }
    // At most one source is read, of two bytes a character, in parts that are looked at one by one.
    assert!(memory.read <= (32 << 20) + (1 << 20), "{} bytes read for one function", memory.read);
}
