//! The type of an exception, from what a probe read of it: bounded, and written so that it is safe to show.
//!
//! The kernel side reads what is in memory. What is not there yet, because the program has never looked at it, or is longer, is
//! read of the process, where types stay: in C++, Go and Python. PHP's classes go with their request, and others take their place. What
//! cannot be read has no name: nothing is guessed.

use std::fmt::Write as _;
use std::sync::Arc;

use cpp_demangle::{DemangleOptions, DemangleWrite, Symbol};
use tracer_common::event::{DECLARED_TEXT, DeclaredValues, TEXT_NONE, TEXT_UNREAD};
use tracer_model::text;

use super::ThrowingRuntime;
use crate::process_memory::{ProcessMemory, number, word};

/// In `std::type_info`: the pointer to the mangled name.
pub(super) const CPP_NAME: u64 = 8;
/// Bytes that the kernel side reads of a name at once; a zero is behind them.
pub(super) const PART: u64 = DECLARED_TEXT as u64 - 1;
/// In `abi.Type`: flags of the type, and the offset of its name.
pub(super) const GO_FLAGS: u64 = 20;
/// See [`GO_FLAGS`].
pub(super) const GO_NAME: u64 = 40;
/// Bytes before a name of at most 127 bytes: flags and length.
pub(super) const GO_NAME_HEAD: u64 = 2;
/// `abi.TFlagExtraStar`: a star before the name is not part of it.
const GO_EXTRA_STAR: u64 = 1 << 1;
/// In `zend_object`: its class.
pub(super) const PHP_CLASS: u64 = 16;
/// In `zend_class_entry`: its name.
pub(super) const PHP_NAME: u64 = 8;
/// In `zend_string`: its bytes.
pub(super) const PHP_BYTES: u64 = 24;

/// Most bytes of a name that are read. What is longer is cut, or has no name where a part says nothing.
const RAW_MAX: usize = 256;
/// Most characters of a name that is shown.
pub const TYPE_NAME_MAX: usize = 128;
/// Depth of a mangled name.
const RECURSION: u32 = 64;
/// Bytes read of memory at once: no more than are on one page.
const PAGE: u64 = 4096;

/// A type's name as its program has it. It becomes text only where a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTypeName {
    runtime: ThrowingRuntime,
    bytes: Box<[u8]>,
    is_cut: bool,
}

/// The type of an exception; `None`: it cannot be read. `memory`: that of the process, if it is needed and can be read.
pub fn raw<M: ProcessMemory>(
    runtime: ThrowingRuntime,
    values: &DeclaredValues,
    memory: impl FnOnce() -> Option<M>,
) -> Option<RawTypeName> {
    let read = match runtime {
        ThrowingRuntime::Cpp | ThrowingRuntime::Php | ThrowingRuntime::Python => two_parts(values),
        ThrowingRuntime::Go => go(values),
    };
    match read {
        Some((bytes, false)) => Some(RawTypeName { runtime, bytes: bytes.into(), is_cut: false }),
        cut => {
            let whole = memory().and_then(|mut memory| from_memory(runtime, values, &mut memory));
            // A part of a mangled name is none.
            let part = cut.filter(|_| runtime != ThrowingRuntime::Cpp);
            let (bytes, is_cut) = whole.or(part)?;
            Some(RawTypeName { runtime, bytes: bytes.into(), is_cut })
        }
    }
}

/// Exceptions of Python by which generators and loops end: never why a request failed.
const ENDS: [&[u8]; 3] = [b"GeneratorExit", b"StopIteration", b"StopAsyncIteration"];

impl RawTypeName {
    /// Whether generators or loops end by it.
    pub fn ends_an_iteration(&self) -> bool {
        self.runtime == ThrowingRuntime::Python && ENDS.contains(&&*self.bytes)
    }

    /// The bytes as the program has them.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, in a module of Python.
    pub(super) fn in_module(mut self, module: &str) -> Self {
        self.bytes = [module.as_bytes(), b".", &self.bytes].concat().into();
        self
    }
}

/// Bytes of a name, and whether there are more.
type Name = (Vec<u8>, bool);

fn bytes(words: &[u64; DECLARED_TEXT / 8], len: u32) -> Option<Vec<u8>> {
    if len == TEXT_NONE || len == TEXT_UNREAD {
        return None;
    }
    let all: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Some(all.get(..len as usize)?.to_vec())
}

fn not_empty(name: Name) -> Option<Name> {
    (!name.0.is_empty()).then_some(name)
}

/// A name that a zero ends.
fn two_parts(values: &DeclaredValues) -> Option<Name> {
    let mut name = bytes(&values.first, values.first_len)?;
    if name.len() < PART as usize {
        return not_empty((name, false));
    }
    let rest = bytes(&values.second, values.second_len);
    let is_cut = rest.as_ref().is_none_or(|rest| rest.len() >= PART as usize);
    name.extend(rest.unwrap_or_default());
    Some((name, is_cut))
}

fn go(values: &DeclaredValues) -> Option<Name> {
    let [_, _, _, len, flags, ..] = values.registers;
    let mut name = bytes(&values.first, values.first_len)?;
    let is_cut = len > name.len() as u64;
    if len > 0x7f {
        // Its length takes two bytes, the second of which was read as part of the name.
        name.drain(..1.min(name.len()));
    }
    strip_star(&mut name, flags);
    not_empty((name, is_cut))
}

fn strip_star(name: &mut Vec<u8>, flags: u64) {
    if flags & GO_EXTRA_STAR != 0 && name.first() == Some(&b'*') {
        name.remove(0);
    }
}

/// The bytes at `at` up to a zero.
fn string(memory: &mut impl ProcessMemory, mut at: u64) -> Option<Name> {
    let mut name = Vec::new();
    while name.len() < RAW_MAX {
        let mut piece = [0; DECLARED_TEXT];
        let len = (PAGE - at % PAGE).min(DECLARED_TEXT as u64);
        let piece = piece.get_mut(..len as usize)?;
        if !memory.read(at, piece) {
            return None;
        }
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            name.extend_from_slice(piece.get(..end)?);
            return not_empty((name, false));
        }
        name.extend_from_slice(piece);
        at = at.checked_add(len)?;
    }
    Some((name, true))
}

fn from_memory(runtime: ThrowingRuntime, values: &DeclaredValues, memory: &mut impl ProcessMemory) -> Option<Name> {
    let [begin, offset, name, ..] = values.registers;
    match runtime {
        ThrowingRuntime::Cpp => {
            let at = word(memory, begin.checked_add(CPP_NAME)?)?;
            string(memory, at).filter(|(_, is_cut)| !is_cut)
        }
        ThrowingRuntime::Python => string(memory, offset),
        // It may be gone by now.
        ThrowingRuntime::Php => None,
        ThrowingRuntime::Go => {
            // Where the types are is not known.
            let types = name.checked_sub(GO_NAME_HEAD)?.checked_sub(offset)?;
            let at = types.checked_add(number::<4>(memory, begin.checked_add(GO_NAME)?)?)?;
            let (low, high) = (number::<1>(memory, at.checked_add(1)?)?, number::<1>(memory, at.checked_add(2)?)?);
            let (len, head) = if low < 0x80 { (low, 2) } else { (low & 0x7f | (high & 0x7f) << 7, 3) };
            let kept = len.min(RAW_MAX as u64);
            let mut bytes = vec![0; kept as usize];
            let read = memory.read(at.checked_add(head)?, &mut bytes);
            strip_star(&mut bytes, number::<1>(memory, begin.checked_add(GO_FLAGS)?)?);
            read.then_some((bytes, len > kept)).and_then(not_empty)
        }
    }
}

/// Text of at most so many bytes: a mangled name can stand for any length.
struct Bounded(String);

impl DemangleWrite for Bounded {
    fn write_string(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > 4 * TYPE_NAME_MAX {
            return Err(std::fmt::Error);
        }
        self.0.write_str(text)
    }
}

/// A type as it is written in C++; `None`: it is none, or too long.
fn demangled(name: &str) -> Option<String> {
    let limits = cpp_demangle::ParseOptions::default().recursion_limit(RECURSION);
    let symbol = Symbol::new_with_options(format!("_ZTI{name}"), &limits).ok()?;
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &DemangleOptions::new().recursion_limit(RECURSION)).ok()?;
    text.0.strip_prefix("typeinfo for ").map(str::to_owned)
}

impl RawTypeName {
    /// Its name for people: in C++ as in the source, else as the program has it.
    pub fn name(&self) -> Arc<str> {
        let text = String::from_utf8_lossy(&self.bytes);
        let text = match self.runtime {
            ThrowingRuntime::Cpp => {
                // A star says that equal names are no equal types.
                let name = text.strip_prefix('*').unwrap_or(&text);
                demangled(name).unwrap_or_else(|| name.to_owned())
            }
            ThrowingRuntime::Go | ThrowingRuntime::Php | ThrowingRuntime::Python => text.into_owned(),
        };
        let text = text::printable(&text);
        let mut shown: String = text.chars().take(TYPE_NAME_MAX).collect();
        if self.is_cut || shown.len() < text.len() {
            shown.push('…');
        }
        shown.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake_memory::FakeMemory;
    use super::*;
    use ThrowingRuntime::{Cpp, Go, Php, Python};

    fn words(text: &[u8]) -> ([u64; 8], u32) {
        let mut all = [0u8; DECLARED_TEXT];
        all[..text.len()].copy_from_slice(text);
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(all.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight"));
        }
        (words, text.len() as u32)
    }

    fn values(registers: &[u64], first: Option<&[u8]>, second: Option<&[u8]>) -> DeclaredValues {
        let of = |text: Option<&[u8]>| text.map_or(([0; 8], TEXT_UNREAD), words);
        let ((first, first_len), (second, second_len)) = (of(first), of(second));
        let mut all = [0; 9];
        all[..registers.len()].copy_from_slice(registers);
        DeclaredValues { registers: all, first_len, second_len, first, second }
    }

    fn name(runtime: ThrowingRuntime, values: &DeclaredValues, memory: Option<FakeMemory>) -> Option<String> {
        raw(runtime, values, || memory).map(|raw| raw.name().to_string())
    }

    fn cpp_name(mangled: &str) -> Option<String> {
        let (first, rest) = mangled.as_bytes().split_at(mangled.len().min(63));
        name(Cpp, &values(&[1], Some(first), Some(&rest[..rest.len().min(63)])), None)
    }

    #[test]
    fn types_of_cpp_are_written_as_in_the_source() {
        for (mangled, expected) in [
            ("St13runtime_error", "std::runtime_error"),
            ("N4shop7TimeoutE", "shop::Timeout"),
            ("*N12_GLOBAL__N_15LocalE", "(anonymous namespace)::Local"),
            ("i", "int"),
            ("PKc", "char const*"),
            (
                "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
                "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
            ),
            // No mangled name.
            ("4Boo", "4Boo"),
            ("a\u{1b}[2J\"\n", "a\\u{1b}[2J\"\\u{a}"),
        ] {
            assert_eq!(cpp_name(mangled).as_deref(), Some(expected), "{mangled}");
        }
        let long = format!("N4shop90{}E", "x".repeat(90));
        assert_eq!(cpp_name(&long), Some(format!("shop::{}", "x".repeat(90))), "two parts");
        assert_eq!(cpp_name(""), None);
    }

    #[test]
    fn what_is_not_in_memory_is_read_of_the_process() {
        let unread = values(&[0x1000], None, None);
        assert_eq!(name(Cpp, &unread, None), None);
        let mut memory = FakeMemory::default();
        memory.put(0x1008, &0x2ff0_u64.to_le_bytes());
        // Over the end of a page, and too long for the kernel side.
        let long = format!("N4shop150{}E\0", "y".repeat(150));
        memory.put(0x2ff0, long.as_bytes());
        memory.put(0x3090, &[0; 64]);
        assert_eq!(name(Cpp, &unread, Some(memory)), Some(format!("shop::{}…", "y".repeat(122))));
        // Without an end it has no name.
        let mut memory = FakeMemory::default();
        memory.put(0x1008, &0x2000_u64.to_le_bytes());
        memory.put(0x2000, &[b'a'; 1000]);
        assert_eq!(name(Cpp, &unread, Some(memory)), None);
        assert_eq!(name(Cpp, &unread, Some(FakeMemory::default())), None);
    }

    #[test]
    fn types_of_go_are_as_go_prints_them() {
        let read = |text: &str, flags| {
            name(Go, &values(&[1, 2, 3, text.len() as u64, flags], Some(text.as_bytes()), None), None)
        };
        assert_eq!(read("*runtime.boundsError", 2).as_deref(), Some("runtime.boundsError"));
        assert_eq!(read("*errors.errorString", 0).as_deref(), Some("*errors.errorString"));
        assert_eq!(read("*", 2), None);
        // A length of two bytes: 0x85 0x01 is 133.
        let mut bytes = vec![1];
        bytes.extend([b'z'; 63]);
        let cut = name(Go, &values(&[1, 2, 3, 0x85, 0], Some(&bytes), None), None);
        assert_eq!(cut, Some(format!("{}…", "z".repeat(63))));
        // From memory: types at 0x5000, the name at 0x20 behind.
        let mut memory = FakeMemory::default();
        memory.put(0x6000 + GO_NAME, &0x20_u32.to_le_bytes());
        memory.put(0x6000 + GO_FLAGS, &[2]);
        memory.put(0x5020, b"\x01\x0a*main.Boom");
        assert_eq!(name(Go, &values(&[0x6000, 0, 0x5002], None, None), Some(memory)).as_deref(), Some("main.Boom"));
        // A stripped program.
        assert_eq!(name(Go, &values(&[0x6000], None, None), Some(FakeMemory::default())), None);
    }

    #[test]
    fn types_of_php_are_their_classes() {
        let read = |text: &str| name(Php, &values(&[1], Some(text.as_bytes()), None), None);
        assert_eq!(read("App\\Exceptions\\NoStock").as_deref(), Some("App\\Exceptions\\NoStock"));
        let part = "a".repeat(63);
        let long = |second: Option<&[u8]>| {
            let mut memory = FakeMemory::default();
            memory.put(0, &[b'x'; 0x4000]);
            name(Php, &values(&[0x1000], Some(part.as_bytes()), second), Some(memory))
        };
        assert_eq!(long(Some(b"bc")), Some(format!("{part}bc")));
        // Another class may be there by now.
        assert_eq!(long(None), Some(format!("{part}…")));
        assert_eq!(long(Some(part.as_bytes())), Some(format!("{part}{part}…")));
        assert_eq!(name(Php, &values(&[0x1000], None, None), Some(FakeMemory::default())), None);
    }

    #[test]
    fn types_of_python_are_their_classes() {
        let of = |text: &str| {
            raw(Python, &values(&[0x1000, 0x2000, 11], Some(text.as_bytes()), None), || None::<FakeMemory>)
                .expect("a name")
        };
        let stock = of("NoStock");
        assert_eq!((&*stock.name(), stock.ends_an_iteration()), ("NoStock", false));
        assert_eq!(&*stock.in_module("shop.errors").name(), "shop.errors.NoStock");
        assert!(of("GeneratorExit").ends_an_iteration());
        let mut memory = FakeMemory::default();
        memory.put(0x2000, b"KeyError\0");
        memory.put(0x2009, &[0; 64]);
        let unread = values(&[0x1000, 0x2000, 11], None, None);
        assert_eq!(name(Python, &unread, Some(memory)).as_deref(), Some("KeyError"));
    }

    #[test]
    fn a_name_that_stands_for_a_longer_one_is_bounded() {
        // Each level doubles the one before.
        let mut bomb = String::from("1AI1BS_E");
        for level in 0..20 {
            bomb = format!("1AI{bomb}S{level}_S{level}_E");
        }
        let bomb = bomb.get(..bomb.len().min(126)).expect("ASCII");
        assert!(cpp_name(bomb).is_none_or(|name| name.chars().count() <= TYPE_NAME_MAX + 1));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_bounded_name(
            first in proptest::collection::vec(any::<u8>(), 0..=64),
            second in proptest::collection::vec(any::<u8>(), 0..=64),
            registers in proptest::array::uniform5(any::<u64>()),
            which in 0..4_usize,
        ) {
            let values = values(&registers, Some(&first), Some(&second));
            if let Some(name) = name(ThrowingRuntime::ALL[which], &values, Some(FakeMemory::default())) {
                prop_assert!(!name.is_empty() && name.chars().count() <= TYPE_NAME_MAX + 1);
                prop_assert!(!name.chars().any(char::is_control));
            }
        }

        #[test]
        fn any_mangled_name_has_an_end(name in "[A-Za-z0-9_]{1,125}") {
            prop_assert!(cpp_name(&name).is_some());
        }
    }
}
