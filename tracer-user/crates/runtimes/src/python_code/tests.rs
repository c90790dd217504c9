//! Line tables as the compilers of five versions wrote them, against what `code.co_lines` said; and memory that lies.

use proptest::prelude::*;
use tracer_common::interpreter::{FRAME_VERSION_SHIFT, PYTHON_INDEX};

use super::*;

/// Tables of one function, and the line from each offset on, as the interpreter itself says.
const TABLE_3_9: &[u8] = &[0, 1, 6, 1, 2, 255, 6, 2, 4, 1, 2, 1, 2, 1, 2, 1, 2, 254, 4, 4, 8, 252, 2, 4, 10, 1];
const LINES_3_9: &[(u32, u32)] = &[
    (0, 2),
    (6, 3),
    (8, 2),
    (14, 4),
    (18, 5),
    (20, 6),
    (22, 7),
    (24, 8),
    (26, 6),
    (30, 10),
    (38, 6),
    (40, 10),
    (50, 11),
];
const TABLE_3_10: &[u8] = &[6, 1, 2, 1, 6, 255, 4, 2, 2, 1, 2, 1, 2, 1, 2, 1, 4, 254, 20, 4, 4, 1];
const LINES_3_10: &[(u32, u32)] =
    &[(0, 2), (6, 3), (8, 2), (14, 4), (18, 5), (20, 6), (22, 7), (24, 8), (26, 6), (30, 10), (50, 11)];
const TABLE_3_11: &[u8] = &[
    128, 0, 240, 2, 1, 9, 21, 240, 0, 1, 9, 21, 216, 18, 19, 240, 3, 1, 9, 21, 241, 0, 1, 9, 21, 244, 0, 1, 9, 21, 128,
    65, 224, 7, 8, 240, 0, 6, 5, 22, 240, 2, 5, 9, 22, 221, 19, 20, 216, 16, 17, 216, 16, 17, 241, 5, 2, 20, 19, 244,
    0, 2, 20, 19, 240, 8, 0, 13, 14, 143, 71, 138, 71, 137, 73, 140, 73, 136, 73, 136, 73, 248, 136, 65, 143, 71, 138,
    71, 137, 73, 140, 73, 136, 73, 136, 73, 248, 248, 248, 216, 11, 15, 136, 52,
];
const LINES_3_11: &[(u32, u32)] = &[
    (0, 1),
    (2, 2),
    (6, 3),
    (8, 2),
    (26, 4),
    (30, 5),
    (32, 6),
    (44, 7),
    (46, 8),
    (48, 6),
    (62, 10),
    (104, 0),
    (106, 10),
    (148, 0),
    (154, 11),
];
const TABLE_3_13: &[u8] = &[
    128, 0, 225, 18, 19, 243, 3, 1, 9, 21, 217, 18, 19, 136, 81, 243, 3, 0, 10, 11, 217, 18, 19, 240, 3, 0, 5, 6, 240,
    0, 1, 9, 21, 230, 7, 8, 240, 2, 5, 9, 22, 220, 19, 20, 216, 16, 17, 216, 16, 17, 243, 5, 2, 20, 19, 240, 8, 0, 13,
    14, 143, 71, 137, 71, 141, 73, 216, 11, 15, 249, 242, 19, 1, 9, 21, 248, 240, 16, 0, 13, 14, 143, 71, 137, 71, 141,
    73, 250,
];
const LINES_3_13: &[(u32, u32)] = &[
    (0, 1),
    (2, 3),
    (6, 2),
    (14, 3),
    (20, 2),
    (28, 3),
    (32, 2),
    (36, 4),
    (50, 5),
    (52, 6),
    (62, 7),
    (64, 8),
    (66, 6),
    (74, 10),
    (108, 11),
    (110, 0),
    (114, 2),
    (120, 0),
    (122, 10),
    (156, 0),
];

fn code(table: &[u8]) -> Code {
    Code { name: "f".into(), file: "t.py".into(), first: 1, table: table.to_vec() }
}

fn frame(minor: u32, at: u32) -> InterpretedFrame {
    let index = if minor < QUALIFIED { PYTHON_INDEX } else { 0 };
    InterpretedFrame { code: 0x1000, cookie: 0, at, flags: minor << FRAME_VERSION_SHIFT | index }
}

#[test]
fn lines_are_those_the_interpreter_says() {
    for (minor, table, lines) in [
        (9, TABLE_3_9, LINES_3_9),
        (10, TABLE_3_10, LINES_3_10),
        (11, TABLE_3_11, LINES_3_11),
        (13, TABLE_3_13, LINES_3_13),
    ] {
        let code = code(table);
        let ends = lines.iter().skip(1).map(|(from, _)| *from).chain([lines.last().unwrap().0 + 2]);
        for ((from, expected), end) in lines.iter().zip(ends) {
            for offset in (*from..end).step_by(2) {
                let at = match minor {
                    9 => offset,
                    10 => offset / 2,
                    11 => offset + 184,
                    _ => offset + 200,
                };
                let expected = (*expected != 0).then_some(*expected);
                assert_eq!(line(&frame(minor, at), &code), expected, "3.{minor} at {offset}");
            }
        }
        // Before the first instruction: the frame is being made.
        let before = if minor < QUALIFIED { u32::MAX } else { 0 };
        assert_eq!(line(&frame(minor, before), &code), Some(1), "3.{minor}");
    }
    assert_eq!(line(&frame(8, 0), &code(&[])), None, "an unknown version");
}

const CODE_TYPE: u64 = 0x40_0000;
const CODE_NAME: u64 = 0x50_0000;

/// Memory with pieces at some addresses.
#[derive(Default)]
struct Pieces(Vec<(u64, Vec<u8>)>);

impl ProcessMemory for Pieces {
    fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        self.0.iter().any(|(from, bytes)| {
            let Some(begin) = at.checked_sub(*from).and_then(|begin| usize::try_from(begin).ok()) else { return false };
            let found = begin.checked_add(into.len()).and_then(|end| bytes.get(begin..end));
            found.inspect(|found| into.copy_from_slice(found)).is_some()
        })
    }
}

impl Pieces {
    /// A string object of 3.11.
    fn string(&mut self, at: u64, text: &str) {
        let width = if text.chars().all(|c| (c as u32) < 256) { 1 } else { 2 };
        let ascii = u32::from(text.is_ascii());
        let mut bytes = vec![0; 72];
        bytes[16..24].copy_from_slice(&(text.chars().count() as u64).to_ne_bytes());
        bytes[32..36].copy_from_slice(&(width << 2 | 1 << 5 | ascii << 6).to_ne_bytes());
        if ascii == 1 {
            bytes.truncate(48);
        }
        for c in text.chars() {
            bytes.extend_from_slice(&(c as u32).to_ne_bytes()[..width as usize]);
        }
        self.0.push((at, bytes));
    }

    /// A code object of 3.11 and its frame.
    fn code(&mut self, at: u64, words: [u64; 4], first: u32) -> InterpretedFrame {
        let mut kind = vec![0; 32];
        kind[24..].copy_from_slice(&CODE_NAME.to_ne_bytes());
        self.0.extend([(CODE_TYPE, kind), (CODE_NAME, b"code\0".to_vec())]);
        let mut bytes = vec![0; 192];
        bytes[0] = 2;
        bytes[8..16].copy_from_slice(&CODE_TYPE.to_ne_bytes());
        bytes[72..76].copy_from_slice(&first.to_ne_bytes());
        for (place, word) in (112..).step_by(8).zip(words) {
            bytes[place..place + 8].copy_from_slice(&word.to_ne_bytes());
        }
        self.0.push((at, bytes));
        InterpretedFrame { code: at, cookie: fold(&words), at: 184, flags: 11 << FRAME_VERSION_SHIFT }
    }

    fn bytes(&mut self, at: u64, length: u64, data: &[u8]) {
        let mut bytes = vec![0; 32];
        bytes[16..24].copy_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(data);
        self.0.push((at, bytes));
    }
}

#[test]
fn a_code_object_says_what_it_is() {
    let mut memory = Pieces::default();
    memory.string(0x10_0000, "/srv/shop/views.py");
    memory.string(0x20_0000, "View.größe.<locals>.→");
    memory.bytes(0x30_0000, 3, &[128, 0, 216]);
    let frame = memory.code(0x1000, [0x10_0000, 7, 0x20_0000, 0x30_0000], 42);
    let found = read(&mut memory, &frame, true).unwrap();
    assert_eq!((&*found.name, &*found.file, found.first), ("View.größe.<locals>.→", "/srv/shop/views.py", 42));
    assert_eq!((&*found.table, line(&frame, &found)), (&[128, 0, 216][..], Some(42)));
    assert!(read(&mut memory, &frame, false).unwrap().table.is_empty());
    // Freed, and used for another.
    assert_eq!(read(&mut memory, &InterpretedFrame { cookie: 1, ..frame }, false), None);
    // A version that is not known.
    assert_eq!(read(&mut memory, &InterpretedFrame { flags: 99 << FRAME_VERSION_SHIFT, ..frame }, false), None);
    assert_eq!(read(&mut memory, &InterpretedFrame { code: u64::MAX - 50, ..frame }, false), None);
}

#[test]
fn a_code_object_without_an_owner_says_nothing() {
    let object = |references: u64, kind: u64| {
        let mut memory = Pieces::default();
        memory.string(0x10_0000, "secret of another");
        memory.bytes(0x30_0000, 0, &[]);
        let frame = memory.code(0x1000, [0x10_0000, 7, 0x10_0000, 0x30_0000], 42);
        let (_, bytes) = memory.0.iter_mut().find(|(at, _)| *at == 0x1000).unwrap();
        bytes[..8].copy_from_slice(&references.to_ne_bytes());
        bytes[8..16].copy_from_slice(&kind.to_ne_bytes());
        read(&mut memory, &frame, false).map(|code| code.first)
    };
    // In use; and never freed: 3.11, and later.
    for references in [1, 70_000, 999_999_999, 1_000_000_000, u64::from(u32::MAX)] {
        assert_eq!(object(references, CODE_TYPE), Some(42), "{references}");
    }
    // Freed: the last of its size, with another one behind it near the program or far from it.
    for references in [0, 0x42_0010, 0x5555_5a5a_1230, 0x7f12_3456_7890] {
        assert_eq!(object(references, CODE_TYPE), None, "{references:x}");
    }
    // Of another type, or none.
    for kind in [0, 0x10_0000, u64::MAX] {
        assert_eq!(object(1, kind), None, "{kind:x}");
    }
}

#[test]
fn long_strings_are_cut_and_impossible_ones_refused() {
    let mut memory = Pieces::default();
    let path = format!("/{}/views.py", "directory/".repeat(200));
    memory.string(0x10_0000, &path);
    memory.string(0x20_0000, &"n".repeat(2000));
    memory.bytes(0x30_0000, 1 << 40, &[]);
    let frame = memory.code(0x1000, [0x10_0000, 7, 0x20_0000, 0x30_0000], 1);
    let found = read(&mut memory, &frame, false).unwrap();
    assert_eq!((found.name.len(), found.file.len()), (NAME, NAME));
    assert!(path.ends_with(&found.file));
    assert_eq!(read(&mut memory, &frame, true), None, "a table of a terabyte");
    let mut strings = vec![0; 4096];
    strings[16..24].copy_from_slice(&u64::MAX.to_ne_bytes());
    for state in [0, u32::MAX, 1 << 5, 1 << 5 | 1 << 2, 1 << 5 | 3 << 2] {
        strings[32..36].copy_from_slice(&state.to_ne_bytes());
        let mut memory = Pieces(vec![(0x10_0000, strings.clone())]);
        let frame = memory.code(0x1000, [0x10_0000; 4], 1);
        assert_eq!(read(&mut memory, &frame, true), None, "{state:x}");
    }
}

proptest! {
    #[test]
    fn any_table_is_read_to_an_end(table in proptest::collection::vec(any::<u8>(), 0..200), at: u32, minor in 9..15u32, first: u32) {
        let code = Code { first, ..code(&table) };
        let _ = line(&frame(minor, at), &code);
    }
}
