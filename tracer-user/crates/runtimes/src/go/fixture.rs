//! The smallest file that parses as a Go program, for tests and as the fuzz target's seed.

/// Address it is mapped at.
pub(crate) const BASE: u64 = 0x40_0000;
/// Offset of its code; as long as the C code that may precede Go's.
pub(crate) const TEXT: u64 = 0x1000;

/// A function's name and code, its flags, and where its frame's sizes stand in [`HEIGHTS`].
type Function<'a> = (&'a str, &'a [u8], u8, u32);

/// `newproc.func1`: a stack check, a frame, a call to 64 bytes after its start.
const CREATES: &[u8] = &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x20, 0x55, 0x48, 0x89, 0xe5, 0xe8, 49, 0, 0, 0, 0xc3];
/// A stack check and a frame.
const SMALL: &[u8] = &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x20, 0x55, 0x48, 0x89, 0xe5, 0xc3];
const FUNCTIONS: [Function<'_>; 7] = [
    ("runtime.newproc.func1", CREATES, 0, 1),
    ("runtime.runqput", SMALL, 0, 0),
    ("net/http.(*persistConn).roundTrip", SMALL, 0, 9),
    ("net/http.(*Transport).dialConn.gowrap1", SMALL, 0, 0),
    ("runtime.goexit", &[0x90], 5, 0),
    ("runtime.sigreturn__sigaction", &[0x0f, 5], 4, 0),
    ("runtime.systemstack", &[0x55, 0x48, 0x89, 0xe5], 6, 9),
];
/// From -1: 0 for 7 bytes, 8 for 3, 40 for 54, end; 0 for 1, 8 for 63.
const HEIGHTS: &[u8] = &[0, 2, 7, 16, 3, 64, 54, 0, 0, 2, 1, 16, 63, 0];

/// The function table, with functions of 64 bytes each and `text` as the start of the code.
fn table(text: u64) -> Vec<u8> {
    let mut names = Vec::new();
    let mut entries = Vec::new();
    let mut records = Vec::new();
    let first = FUNCTIONS.len() * 8 + 4;
    for (n, (name, _, flags, heights)) in FUNCTIONS.iter().enumerate() {
        entries.extend((n as u32 * 64).to_le_bytes());
        entries.extend(((first + records.len()) as u32).to_le_bytes());
        records.extend((n as u32 * 64).to_le_bytes());
        records.extend((names.len() as u32).to_le_bytes());
        records.extend([0; 8]);
        records.extend(heights.to_le_bytes());
        records.extend([0; 21]);
        records.extend([*flags, 0, 0]);
        names.extend(name.as_bytes());
        names.push(0);
    }
    entries.extend((FUNCTIONS.len() as u32 * 64).to_le_bytes());
    let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    let by_instruction = 72 + names.len() as u64;
    for word in [FUNCTIONS.len() as u64, 0, text, 72, 0, 0, by_instruction, by_instruction + HEIGHTS.len() as u64] {
        table.extend(word.to_le_bytes());
    }
    [&table, &names, HEIGHTS, &entries, &records].concat()
}

/// The file: built by `version`, with Go's code `ahead` bytes after the start of its section.
pub(super) fn program(version: &str, text: u64, ahead: usize) -> Vec<u8> {
    let mut information = b"\xff Go buildinf:\x08\x02".to_vec();
    information.resize(32, 0);
    information.push(version.len() as u8);
    information.extend(version.as_bytes());
    let mut code = vec![0xcc; ahead];
    for (_, function, ..) in FUNCTIONS {
        code.extend(function);
        code.resize(code.len().next_multiple_of(64), 0xcc);
    }
    file(&[(".text", &code), (".go.buildinfo", &information), (".gopclntab", &table(text))])
}

/// A file with these sections, all mapped at [`BASE`]; the first is at [`TEXT`].
pub(crate) fn file(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut file = vec![0; TEXT as usize];
    let mut sections = vec![0; 64];
    let mut names = vec![0];
    let own = [".shstrtab"];
    for name in parts.iter().map(|(name, _)| *name).chain(own) {
        names.extend(name.as_bytes());
        names.push(0);
    }
    let mut name = 1u32;
    let last = (own[0], names.as_slice());
    for (title, bytes) in parts.iter().copied().chain([last]) {
        let offset = file.len().next_multiple_of(64);
        file.resize(offset, 0);
        file.extend(bytes);
        let mut section = [name.to_le_bytes(), 1u32.to_le_bytes()].concat();
        for word in [0, BASE + offset as u64, offset as u64, bytes.len() as u64, 0, 0, 0] {
            section.extend(word.to_le_bytes());
        }
        section.resize(64, 0);
        sections.extend(section);
        name += title.len() as u32 + 1;
    }
    let table = file.len().next_multiple_of(64);
    file.resize(table, 0);
    file.extend(sections);
    let size = file.len() as u64;
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = file.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, b"\x7fELF\x02\x01\x01");
    put(18, &62u16.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(40, &(table as u64).to_le_bytes());
    let count = parts.len() as u16 + 2;
    for (at, number) in [(52, 64u16), (54, 56), (56, 1), (58, 64), (60, count), (62, count - 1)] {
        put(at, &number.to_le_bytes());
    }
    // One segment.
    put(64, &1u32.to_le_bytes());
    for (at, word) in [(72, 0), (80, BASE), (88, BASE), (96, size), (104, size)] {
        put(at, &u64::to_le_bytes(word));
    }
    file
}

/// Inspects a program with each byte of its headers and tables changed, and truncated anywhere: it must not panic.
/// Writes the program to the path in `TRACER_WRITE_SEED`, as a seed for a fuzz target.
pub(crate) fn survives(whole: &[u8], look: impl Fn(&[u8])) {
    if let Some(path) = std::env::var_os("TRACER_WRITE_SEED") {
        std::fs::write(path, whole).expect("writable");
    }
    for at in (0..whole.len()).filter(|at| *at < 128 || *at > TEXT as usize) {
        look(&whole[..at]);
        for byte in [0, 1, 0x40, 0x7f, 0x80, 0xff] {
            let mut other = whole.to_vec();
            other[at] = byte;
            look(&other);
        }
    }
}
