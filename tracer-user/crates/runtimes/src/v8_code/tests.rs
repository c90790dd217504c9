//! Functions, strings and lines in a heap that is made for the test.

use tracer_common::interpreter::{FRAME_V8, InterpretedFrame, fold};

use super::*;

const KNOWN: V8Constants = V8Constants::SAMPLE;

/// Memory from `BASE` on, in which objects are made one behind the other.
struct Memory {
    bytes: Vec<u8>,
    end: u64,
}

const BASE: u64 = 0x10_0000;

impl ProcessMemory for Memory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        let from = at.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let found = from.and_then(|from| self.bytes.get(from..from.checked_add(into.len())?));
        found.inspect(|found| into.copy_from_slice(found)).is_some()
    }
}

fn number(value: u32) -> u64 {
    u64::from(value) << 32
}

impl Memory {
    fn new() -> Self {
        Self { bytes: vec![0; 1 << 17], end: BASE }
    }

    fn put(&mut self, object: u64, offset: u64, bytes: &[u8]) {
        let at = (object - 1 + offset - BASE) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, object: u64, offset: u64, word: u64) {
        self.put(object, offset, &word.to_le_bytes());
    }

    /// An object of a kind, with these words behind its map.
    fn object(&mut self, kind: u16, words: &[u64]) -> u64 {
        let (map, object) = (self.end + 1, self.end + 33);
        self.end += 32 + 8 * (2 + words.len() as u64).next_multiple_of(8);
        self.put(map, 12, &kind.to_le_bytes());
        self.word(object, 0, map);
        for (at, word) in words.iter().enumerate() {
            self.word(object, 8 + 8 * at as u64, *word);
        }
        object
    }

    fn string(&mut self, text: &str) -> u64 {
        let object = self.object(8, &vec![0; 1 + text.len().div_ceil(8)]);
        self.put(object, 12, &(text.len() as u32).to_le_bytes());
        self.put(object, 16, text.as_bytes());
        object
    }

    fn string_of(&mut self, kind: u16, length: u32, words: [u64; 2]) -> u64 {
        let object = self.object(kind, &[0, words[0], words[1]]);
        self.put(object, 12, &length.to_le_bytes());
        object
    }

    fn script(&mut self, source: u64, name: u64, ends: u64) -> u64 {
        self.object(167, &[source, name, 0, 0, 0, 0, ends, 0])
    }

    fn shared(&mut self, name: u64, script: u64) -> u64 {
        self.object(262, &[0, name, 0, script, 0])
    }

    fn frame(&mut self, shared: u64) -> InterpretedFrame {
        let mut heap = Heap { memory: self, constants: &KNOWN };
        let mut word = |offset| heap.word(shared, offset).unwrap_or(0);
        let cookie = fold(&[word(0), word(16), word(32), 0]);
        InterpretedFrame { code: shared, cookie, at: 0, flags: FRAME_V8 }
    }

    fn code(&mut self, shared: u64) -> Option<Code> {
        let frame = self.frame(shared);
        read(self, &KNOWN, &frame, &mut ScriptLines::default())
    }
}

fn shown(code: Option<Code>) -> Option<(String, String, u32)> {
    code.map(|code| (code.name, code.file, code.first))
}

fn expected(name: &str, file: &str, line: u32) -> (String, String, u32) {
    (name.into(), file.into(), line)
}

const SOURCE_TEXT: &str = "// one\r\n// two\n// three\nfunction work() {}\n";
const WORK: u32 = 33;

#[test]
fn functions_have_names_files_and_lines() {
    let mut memory = Memory::new();
    let (source, file, name) = (memory.string(SOURCE_TEXT), memory.string("/srv/shop/work.js"), memory.string("work"));
    let ends = [7, 14, 23, 42].map(number);
    let ends = memory.object(175, &[&[number(4)][..], &ends].concat());
    let outside = memory.object(261, &[]);
    for table in [ends, number(0)] {
        let script = memory.script(source, file, table);
        // Flags, parameters, two variables with names and what they are; name, index, begin, end, outside.
        let variable = memory.string("variable");
        let scope = [number(1), 0, number(2), variable, variable, number(7), number(8)];
        let behind = [name, number(u32::MAX), number(WORK), number(WORK + 5), outside];
        let scope = memory.object(261, &[&scope[..], &behind].concat());
        let shared = memory.shared(scope, script);
        assert_eq!(shown(memory.code(shared)), Some(expected("work", "/srv/shop/work.js", 4)));
        // A name that was inferred stands apart from the numbers.
        let behind = [name, number(3), name, number(2), number(9), outside];
        let scope = memory.object(261, &[&[number(1), 0, 0][..], &behind].concat());
        let shared = memory.shared(scope, script);
        assert_eq!(shown(memory.code(shared)), Some(expected("work", "/srv/shop/work.js", 1)));
    }
    // Not compiled yet, without a name, and V8's own.
    let script = memory.script(source, number(0), number(0));
    let shared = memory.shared(name, script);
    assert_eq!(shown(memory.code(shared)), Some(expected("work", ANONYMOUS, 0)));
    let shared = memory.shared(number(0), script);
    assert_eq!(shown(memory.code(shared)), Some(expected(ANONYMOUS, ANONYMOUS, 0)));
    let shared = memory.shared(name, outside);
    assert_eq!(shown(memory.code(shared)), Some(expected("work", "", 0)));
}

#[test]
fn where_a_function_begins_may_stand_before_its_variables() {
    // As of Node.js 24 and 26.
    let constants = V8Constants { scope_first: 5, ..KNOWN };
    let mut memory = Memory::new();
    let (source, file, name) = (memory.string(SOURCE_TEXT), memory.string("/srv/shop/work.js"), memory.string("work"));
    let script = memory.script(source, file, number(0));
    let mut line = |begin, end| {
        let variable = memory.string("variable");
        let scope = [number(1), 0, number(1), begin, end, variable, number(7), name, number(3), number(9)];
        let scope = memory.object(261, &scope);
        let shared = memory.shared(scope, script);
        let frame = memory.frame(shared);
        shown(read(&mut memory, &constants, &frame, &mut ScriptLines::default()))
    };
    assert_eq!(line(number(WORK), number(WORK + 5)), Some(expected("work", "/srv/shop/work.js", 4)));
    // No place, or none that can be one: no line, rather than another one.
    for (begin, end) in [(number(9), number(8)), (name, number(8)), (number(9), name)] {
        assert_eq!(line(begin, end), Some(expected("work", "/srv/shop/work.js", 0)));
    }
}

#[test]
fn strings_of_all_kinds_are_read() {
    let mut memory = Memory::new();
    let (left, right) = (memory.string("some "), memory.string("words"));
    let cons = memory.string_of(9, 10, [left, right]);
    let thin = memory.string_of(13, 10, [cons, 0]);
    let sliced = memory.string_of(11, 4, [cons, number(3)]);
    let two = memory.object(0, &[0, 0x0030_00e9_0061, 0]);
    memory.put(two, 12, &3u32.to_le_bytes());
    let outside = memory.string_of(10, 5, [0, right - 1 + 16]);
    let of = |memory: &mut Memory, string| Heap { memory, constants: &KNOWN }.name(string);
    for (string, text) in
        [(cons, "some words"), (thin, "some words"), (sliced, "e wo"), (two, "a\u{e9}0"), (outside, "words")]
    {
        assert_eq!(of(&mut memory, string).as_deref(), Some(text));
    }
    // Only what owns it knows where it is.
    let uncached = memory.string_of(26, 5, [0, right]);
    assert_eq!(of(&mut memory, uncached), None);
    let long = memory.string(&"x".repeat(2000));
    assert_eq!(of(&mut memory, long).map(|text| text.len()), Some(512));
}

#[test]
fn memory_that_lies_is_not_believed() {
    let mut memory = Memory::new();
    let (name, file) = (memory.string("work"), memory.string("/srv/work.js"));
    // Strings that lead to themselves, once and twice over; one longer than it says.
    let thin = memory.string_of(13, 4, [0, 0]);
    memory.word(thin, 16, thin);
    let cons = memory.string_of(9, 8, [0, 0]);
    memory.word(cons, 16, cons);
    memory.word(cons, 24, cons);
    let short = memory.string_of(11, 500, [name, number(2)]);
    for string in [thin, cons, short] {
        assert_eq!(Heap { memory: &mut memory, constants: &KNOWN }.name(string), None);
        assert_eq!(Heap { memory: &mut memory, constants: &KNOWN }.ends(string), None);
        let script = memory.script(string, file, number(0));
        let shared = memory.shared(string, script);
        assert_eq!(memory.code(shared), None);
    }
    // A source of four gigabytes, a table of lines as long.
    let huge = memory.string_of(8, u32::MAX, [0, 0]);
    let ends = memory.object(175, &[number(u32::MAX)]);
    for ends in [number(0), ends] {
        let script = memory.script(huge, file, ends);
        let scope = memory.object(261, &[0, 0, 0, name, 0, number(1), number(2), name]);
        let shared = memory.shared(scope, script);
        assert_eq!(shown(memory.code(shared)).map(|(name, _, line)| (name, line)), Some(("work".into(), 0)));
    }
    let scope = memory.object(261, &[0, 0, number(u32::MAX), name]);
    let shared = memory.shared(scope, name);
    assert_eq!(memory.code(shared), None);
}

#[test]
fn what_moved_is_not_taken_for_it() {
    let mut memory = Memory::new();
    let (name, other) = (memory.string("work"), memory.string("other"));
    let shared = memory.shared(name, number(0));
    let frame = memory.frame(shared);
    memory.word(shared, 16, other);
    assert_eq!(read(&mut memory, &KNOWN, &frame, &mut ScriptLines::default()), None);
    // Of another kind.
    let object = memory.object(175, &[0, name, 0, 0, 0]);
    assert_eq!(memory.code(object), None);
    let nowhere = InterpretedFrame { code: 7, ..frame };
    assert_eq!(read(&mut memory, &KNOWN, &nowhere, &mut ScriptLines::default()), None);
}

#[test]
fn ends_of_lines_are_kept_within_bounds() {
    let mut memory = Memory::new();
    let sources: Vec<u64> = (0..8).map(|_| memory.string(SOURCE_TEXT)).collect();
    let mut lines = ScriptLines::default();
    for source in &sources {
        let script = memory.script(*source, number(0), number(0));
        let mut heap = Heap { memory: &mut memory, constants: &KNOWN };
        assert_eq!((heap.line(script, 0, &mut lines), heap.line(script, WORK, &mut lines)), (Some(1), Some(4)));
    }
    assert_eq!((lines.scripts.len(), lines.ends), (8, 32));
    lines.ends = ENDS - 1;
    lines.keep((0, 0), vec![1, 2]);
    assert_eq!((lines.scripts.len(), lines.ends), (1, 2));
}
