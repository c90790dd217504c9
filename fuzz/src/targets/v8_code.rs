//! Any bytes as the memory of a process with V8: functions, scopes, scripts and strings.
use crate::process_memory::Bytes;
use tracer_common::interpreter::{FRAME_V8, InterpretedFrame, fold};
use tracer_user::runtimes::python_code::ProcessMemory;
use tracer_user::runtimes::v8_code::{Lines, read};
use tracer_user::runtimes::v8_constants::V8Constants;

impl Bytes<'_> {
    fn word_of_v8(&mut self, at: u64) -> u64 {
        let mut raw = [0; 8];
        if ProcessMemory::read(self, at, &mut raw) { u64::from_le_bytes(raw) } else { 0 }
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<4>() else { return };
    // Kinds that few bytes are enough for.
    let constants = V8Constants {
        map_kind: 12,
        function_shared: 24,
        shared_name: 16,
        shared_script: 32,
        script_source: 8,
        script_name: 16,
        script_line_ends: 56,
        string_length: 12,
        string_one_byte: 16,
        string_two_byte: 16,
        cons_first: 16,
        cons_second: 24,
        thin_actual: 16,
        sliced_parent: 16,
        sliced_offset: 24,
        external_resource: 16,
        array_length: 8,
        array_data: 16,
        kind_shared: 130,
        kind_scope: 131,
        kind_script: 132,
        kind_array: 133,
        first_no_string: 128,
        scope_locals: 2,
        scope_first: 3,
    };
    let shared = u64::from(u32::from_ne_bytes(*head)) | 1;
    let mut memory = Bytes { bytes, read: 0 };
    // The words as they are there, so that it goes on.
    let words = [0, 16, 32].map(|offset| memory.word_of_v8(shared - 1 + offset));
    let cookie = fold(&[words[0], words[1], words[2], 0]);
    memory.read = 0;
    let frame = InterpretedFrame { code: shared, cookie, at: 0, flags: FRAME_V8 };
    if let Some(code) = read(&mut memory, &constants, &frame, &mut Lines::default()) {
        // Of characters that are no text each becomes three bytes.
        assert!(code.name.len() <= 3 * 512 && code.file.len() <= 3 * 512);
    }
    // At most one source is read, of two bytes a character, in parts that are looked at one by one.
    assert!(memory.read <= (32 << 20) + (1 << 20), "{} bytes read for one function", memory.read);
}
