//! A minimal BTF parser: offsets of struct members, and which tracepoints exist.
//!
//! Format: `Documentation/bpf/btf.rst`. The parser is total: any bytes give types or an error, never a panic.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_POINTER: u32 = 2;
const KIND_FUNCTION: u32 = 12;
const KIND_PROTOTYPE: u32 = 13;
/// Longest chain of nested anonymous members and modifiers that is followed; real kernels need fewer than ten.
const DEPTH: u32 = 32;
/// Most members visited for one path; the largest structs of a kernel have some hundreds.
const STEPS: u32 = 100_000;

/// Why BTF is unusable.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file is missing: the kernel was built without `CONFIG_DEBUG_INFO_BTF`.
    #[error(
        "{path} cannot be read ({source}): this kernel offers no BTF; one built with CONFIG_DEBUG_INFO_BTF=y is needed"
    )]
    Unreadable {
        /// File tried.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The bytes are not BTF.
    #[error("BTF is malformed at byte {at}: expected {expected}")]
    Malformed {
        /// Offset in the data.
        at: usize,
        /// What was expected there.
        expected: &'static str,
    },
}

/// Parsed type information.
#[derive(Debug)]
pub struct Btf {
    data: Vec<u8>,
    /// Byte offset of each type, by id; id 0 is void.
    types: Vec<usize>,
    strings: usize,
    /// Structs, enumerations, typedefs and functions by kind and name.
    named: HashMap<(u32, Vec<u8>), usize>,
}

impl Btf {
    /// The running kernel's types.
    pub fn of_kernel() -> Result<Self, BtfError> {
        let path = "/sys/kernel/btf/vmlinux";
        let data = std::fs::read(path).map_err(|source| BtfError::Unreadable { path: path.into(), source })?;
        Self::parse(data)
    }

    /// Parses raw BTF in this machine's byte order.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        let malformed = |at, expected| BtfError::Malformed { at, expected };
        let word = |at: usize| -> Result<u32, BtfError> {
            data.get(at..)
                .and_then(|rest| rest.first_chunk())
                .map(|bytes| u32::from_ne_bytes(*bytes))
                .ok_or(malformed(at, "four more bytes"))
        };
        if word(0)? as u16 != MAGIC {
            return Err(malformed(0, "the BTF magic number 0xeb9f in this machine's byte order"));
        }
        let header = word(4)? as usize;
        let start = header.saturating_add(word(8)? as usize);
        let end = start.saturating_add(word(12)? as usize);
        let strings = header.saturating_add(word(16)? as usize);
        if end > data.len() || strings > data.len() {
            return Err(malformed(8, "sections inside the file"));
        }
        let mut types = vec![0];
        let mut names = Vec::new();
        let mut at = start;
        while at + 12 <= end {
            let info = word(at + 4)?;
            let count = (info & 0xffff) as usize;
            let kind = (info >> 24) & 31;
            if matches!(kind, KIND_STRUCT | KIND_ENUM | KIND_TYPEDEF | KIND_FUNCTION) {
                names.push((kind, word(at)?, types.len()));
            }
            types.push(at);
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    4 | 5 | 15 | 19 => 12 * count,
                    6 | 13 => 8 * count,
                    0 | 2 | 7..=12 | 16 | 18 => 0,
                    _ => return Err(malformed(at + 4, "a type kind up to 19")),
                };
        }
        let mut btf = Self { data, types, strings, named: HashMap::new() };
        for (kind, name, id) in names {
            let name = btf.string(name).to_vec();
            btf.named.entry((kind, name)).or_insert(id);
        }
        Ok(btf)
    }

    fn word(&self, at: usize) -> u32 {
        self.data.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn string(&self, offset: u32) -> &[u8] {
        let rest = self.data.get(self.strings.saturating_add(offset as usize)..).unwrap_or_default();
        rest.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn find(&self, kind: u32, name: &str) -> Option<usize> {
        self.named.get(&(kind, name.as_bytes().to_vec())).copied()
    }

    /// Resolves typedefs and qualifiers.
    fn strip(&self, mut id: usize) -> Option<usize> {
        for _ in 0..DEPTH {
            let at = *self.types.get(id)?;
            match (self.word(at + 4) >> 24) & 31 {
                8 | 9 | 10 | 11 | 18 => id = self.word(at + 8) as usize,
                _ => return Some(id),
            }
        }
        None
    }

    /// Bit offset and type of member `name` of struct or union `id`, looking through anonymous members.
    fn member(&self, id: usize, name: &[u8], depth: u32, steps: &mut u32) -> Option<(u64, usize)> {
        let at = *self.types.get(self.strip(id)?)?;
        let info = self.word(at + 4);
        if depth == 0 || !matches!((info >> 24) & 31, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for i in 0..(info & 0xffff) as usize {
            // Anonymous members that contain each other would multiply.
            *steps = steps.checked_sub(1)?;
            let entry = at + 12 + 12 * i;
            let member_name = self.string(self.word(entry));
            let member_type = self.word(entry + 4) as usize;
            let mut bits = self.word(entry + 8);
            if info >> 31 == 1 {
                bits &= 0x00ff_ffff;
            }
            if member_name == name {
                return Some((u64::from(bits), member_type));
            }
            if member_name.is_empty()
                && let Some((inner, found)) = self.member(member_type, name, depth - 1, steps)
            {
                return Some((u64::from(bits) + inner, found));
            }
        }
        None
    }

    /// Byte offset of `path` (members separated by dots) in struct `of`; `None` if this kernel has no such member.
    pub fn offset(&self, of: &str, path: &str) -> Option<u64> {
        let mut id = self.find(KIND_STRUCT, of)?;
        let mut bits = 0;
        let mut steps = STEPS;
        for name in path.split('.') {
            let (more, next) = self.member(id, name.as_bytes(), DEPTH, &mut steps)?;
            bits += more;
            id = next;
        }
        Some(bits / 8)
    }

    /// Value of the enumerator `name` of enumeration `of`; `None` if this kernel has none.
    pub fn enumerator(&self, of: &str, name: &str) -> Option<u32> {
        let at = *self.types.get(self.find(KIND_ENUM, of)?)?;
        let entries = (0..(self.word(at + 4) & 0xffff) as usize).map(|i| at + 12 + 8 * i);
        let mut named = entries.filter(|entry| self.string(self.word(*entry)) == name.as_bytes());
        named.next().map(|entry| self.word(entry + 4))
    }

    /// Whether the kernel has the tracepoint `name` (a typedef `btf_trace_<name>`).
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.find(KIND_TYPEDEF, &format!("btf_trace_{name}")).is_some()
    }

    /// Number of arguments that programs on the tracepoint `name` get.
    pub fn tracepoint_arguments(&self, name: &str) -> Option<u32> {
        let at = |id: usize| self.types.get(id).copied();
        let kind = |at: usize| (self.word(at + 4) >> 24) & 31;
        let mut at_type = at(self.find(KIND_TYPEDEF, &format!("btf_trace_{name}"))?)?;
        for expected in [KIND_POINTER, KIND_PROTOTYPE] {
            at_type = at(self.word(at_type + 8) as usize)?;
            if kind(at_type) != expected {
                return None;
            }
        }
        // The first one is the tracepoint's private data.
        (self.word(at_type + 4) & 0xffff).checked_sub(1)
    }

    /// Whether the kernel has a type of this name.
    pub fn has_typedef(&self, name: &str) -> bool {
        self.find(KIND_TYPEDEF, name).is_some()
    }

    /// Whether the kernel has a function of this name that programs can attach to.
    pub fn has_function(&self, name: &str) -> bool {
        self.find(KIND_FUNCTION, name).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct outer { int a; union { int b; struct { int c; } d; }; }`, encoded by hand.
    fn sample() -> Vec<u8> {
        let mut strings = vec![0u8];
        let mut name = |text: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let (int, outer, a, b, c, d, trace, numbers) = (
            name("int"),
            name("outer"),
            name("a"),
            name("b"),
            name("c"),
            name("d"),
            name("btf_trace_x"),
            name("numbers"),
        );
        let mut types: Vec<u32> = Vec::new();
        types.extend([int, 1 << 24, 4, 32]); // 1: int
        types.extend([0, 4 << 24 | 1, 4, c, 1, 0]); // 2: struct { int c }
        types.extend([0, 5 << 24 | 2, 4, b, 1, 0, d, 2, 0]); // 3: union { b; d }
        types.extend([outer, 4 << 24 | 2, 8, a, 1, 0, 0, 3, 32]); // 4: struct outer
        types.extend([trace, 8 << 24, 4]); // 5: typedef
        types.extend([numbers, 6 << 24 | 2, 4, a, 0, b, 23]); // 6: enum numbers { a, b = 23 }
        let body: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut out = Vec::new();
        out.extend(u32::from(MAGIC).to_ne_bytes());
        for word in [24u32, 0, body.len() as u32, body.len() as u32, strings.len() as u32] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(body);
        out.extend(strings);
        out
    }

    #[test]
    fn members_are_found_through_anonymous_ones() {
        let btf = Btf::parse(sample()).unwrap();
        for (path, expected) in
            [("a", Some(0)), ("b", Some(4)), ("d", Some(4)), ("d.c", Some(4)), ("c", None), ("a.c", None)]
        {
            assert_eq!(btf.offset("outer", path), expected, "{path}");
        }
        assert!(btf.has_tracepoint("x"));
        assert!(!btf.has_tracepoint("y"));
        assert_eq!(btf.offset("absent", "a"), None);
        assert_eq!(btf.enumerator("numbers", "b"), Some(23));
        assert_eq!((btf.enumerator("numbers", "c"), btf.enumerator("outer", "a")), (None, None));
    }

    #[test]
    fn anonymous_members_that_hold_each_other_end() {
        let mut types: Vec<u32> = vec![1, 4 << 24 | 0x3c, 4];
        // 60 anonymous members, each of the struct's own type.
        types.extend((0..60).flat_map(|_| [0, 1, 0]));
        let body: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = u32::from(MAGIC).to_ne_bytes().to_vec();
        for word in [24u32, 0, body.len() as u32, body.len() as u32, 3] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes.extend(b"\0s\0");
        assert_eq!(Btf::parse(bytes).unwrap().offset("s", "absent"), None);
    }

    #[test]
    fn refusals_say_where() {
        let text = Btf::parse(b"ELF!".to_vec()).unwrap_err().to_string();
        assert!(text.contains("byte 0") && text.contains("0xeb9f"), "{text}");
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_input(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), real in any::<bool>()) {
            if real {
                let mut good = sample();
                for (i, byte) in bytes.iter().enumerate().take(good.len() / 4) {
                    let at = (i * 7 + usize::from(*byte)) % good.len();
                    good[at] = *byte;
                }
                bytes = good;
            }
            if let Ok(btf) = Btf::parse(bytes) {
                let _ = btf.offset("outer", "d.c");
                let _ = btf.has_tracepoint("x");
            }
        }
    }
}
