//! `CPython`: detects the version, where a thread's state is, and where contexts are created.
//!
//! The interpreter keeps in `_PyRuntime` the key of the thread-local value that points to the thread's state; the
//! offset of that value in glibc's thread descriptor is the same in every glibc for x86-64 since 2.4. From 3.15 on, a
//! thread-local variable points to it, whose place the code of the function that reads it shows.

use std::path::Path;

use tracer_common::runtime::{KIND_PYTHON, NUMBERS, Runtime, UserProbe};

use super::cheap_places::{CODE, place, return_place};
use super::elf::Program;
use super::maps::{Maps, name};
use super::{DetectionState, Found, Place};

/// The runtime's name.
const NAME: &str = "python";
/// `struct pthread`, `specific_1stblock[0].data` (glibc, x86-64): offset of a thread's first value, and the distance to
/// the next.
const VALUES: u64 = 0x310 + 8;
const EACH: u64 = 16;
/// Number of values in a thread's first block.
const BLOCK: u32 = 32;

/// Where a thread has the pointer to its state, even while it waits for the interpreter's lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatePointer {
    /// In the value of a key, which is at this offset in `_PyRuntime` (`gilstate.autoTSSkey._key`, since 3.12
    /// `autoTSSkey._key`).
    Key(u64),
    /// In a thread-local variable, which [`STATE`] returns.
    Variable,
}

/// Offsets of one minor version: of the pointer to a thread's state (`PyThreadState`), and of the context and the thread's
/// id in it. From the headers of each version.
pub(super) struct Layout {
    pub(super) minor: u8,
    state: StatePointer,
    context: u64,
    pub(super) thread_id: u64,
}

/// By version.
pub(super) const KEYS: &[Layout] = &[
    Layout { minor: 9, state: StatePointer::Key(588), context: 240, thread_id: 176 },
    Layout { minor: 10, state: StatePointer::Key(588), context: 240, thread_id: 176 },
    Layout { minor: 11, state: StatePointer::Key(596), context: 224, thread_id: 152 },
    Layout { minor: 12, state: StatePointer::Key(1548), context: 208, thread_id: 136 },
    Layout { minor: 13, state: StatePointer::Key(2164), context: 208, thread_id: 152 },
    Layout { minor: 14, state: StatePointer::Key(2340), context: 208, thread_id: 152 },
    Layout { minor: 15, state: StatePointer::Variable, context: 232, thread_id: 176 },
];

/// The symbol of the interpreter's own state.
pub(super) const RUNTIME: &str = "_PyRuntime";
const COPY: &str = "PyContext_CopyCurrent";
const ADD: &str = "PySet_Add";
/// The type of contexts. From 3.15 on, a server of asyncio makes the context of each connection it accepts by the type's method `copy`.
const CONTEXT: &str = "PyContext_Type";
const COPIES_BY_METHOD: u8 = 15;
/// `PyTypeObject.tp_methods` in every version; a method's description has the addresses of its name and its code first. Most methods that
/// are looked at: contexts have seven.
const METHODS: u64 = 232;
const METHOD: u64 = 32;
const METHODS_MAX: u64 = 32;
/// The function that returns the state of the thread that calls it.
pub(super) const STATE: &str = "PyGILState_GetThisThreadState";
/// Bytes of its code that are looked at.
const STATE_CODE: usize = 24;

/// The mapped file that contains the interpreter.
pub(super) fn program(maps: &Maps) -> Option<&str> {
    match maps.named(|name| name.starts_with("libpython") && name.contains(".so")) {
        Some(mapping) => Some(mapping.path.as_str()),
        None => name(&maps.exe).starts_with("python").then_some(maps.exe.as_str()),
    }
}

/// Detects Python in a process; `None` if there is none.
pub fn recognise(pid: u32, maps: &Maps) -> Option<Found> {
    let path = program(maps)?;
    log::debug!("process {pid} runs Python: {path}");
    let minor = minor(name(path)).or_else(|| minor(name(&maps.exe)));
    let version = match minor {
        Some(minor) => format!("3.{minor}"),
        None => other_build(name(path)).or_else(|| other_build(name(&maps.exe))).unwrap_or_default(),
    };
    let bare = Runtime { kind: KIND_PYTHON, ..Runtime::default() };
    let found = Found::known(NAME, version, bare);
    let less = |state| Some(found.clone().without(state));
    if !cfg!(target_arch = "x86_64") || maps.named(|name| name.starts_with("ld-musl")).is_some() {
        return less(DetectionState::Unsupported);
    }
    if maps.files.iter().any(|mapping| is_native_server(&mapping.path)) {
        return less(DetectionState::ServedByAnother);
    }
    let Some(layout) = minor.and_then(|minor| KEYS.iter().find(|layout| layout.minor == minor)) else {
        return less(DetectionState::UnknownVersion);
    };
    let file = maps.open_by(path);
    let Some(program) = Program::read(&file, &[RUNTIME, COPY, ADD, STATE, CONTEXT]) else {
        return less(DetectionState::Unreadable);
    };
    let (Some(runtime), Some(copy)) = (program.address(RUNTIME), program.address(COPY)) else {
        return less(DetectionState::NoSymbols);
    };
    let (Some(bias), Some(offset)) = (program.bias(maps.of(path)), program.offset(copy)) else {
        return less(DetectionState::Unreadable);
    };
    let code = |address: u64| maps.memory::<CODE>(bias.wrapping_add(address)).unwrap_or([0; CODE]);
    let at_return = |address: u64| return_place(&code(address)) as u64;
    let mut places =
        vec![Place { probe: UserProbe::PythonContext, file: file.clone(), offset: offset + at_return(copy) }];
    if layout.minor >= COPIES_BY_METHOD {
        let kind = program.address(CONTEXT).map(|at| bias.wrapping_add(at));
        let copies = kind.and_then(|kind| method(kind, b"copy\0", |at| maps.memory(at), |at| maps.memory(at)));
        let method = copies.map(|at| at.wrapping_sub(bias));
        let Some((address, offset)) = method.and_then(|address| Some((address, program.offset(address)?))) else {
            return less(DetectionState::Unreadable);
        };
        let offset = offset + at_return(address);
        places.push(Place { probe: UserProbe::PythonContext, file: file.clone(), offset });
    }
    // uvloop may buffer writes and send them at the end of a loop iteration, in whatever context runs then. A probe
    // where it queues the stream shows which context wrote.
    let uvloop = maps.files.iter().any(|mapping| is_uvloop(&mapping.path));
    if uvloop {
        let Some(add) = program.address(ADD) else { return less(DetectionState::NoSymbols) };
        let Some(offset) = program.offset(add) else { return less(DetectionState::Unreadable) };
        // It reads the second argument.
        let cheap = place(&code(add), 2).map_or(0, |(at, _)| at as u64);
        places.push(Place { probe: UserProbe::PythonWrites, file, offset: offset + cheap });
    }
    let Some(state) = layout.state_pointer(maps, &program, bias, runtime) else {
        return less(if layout.is_variable() { DetectionState::Unsupported } else { DetectionState::Unreadable });
    };
    let mut at = [0; NUMBERS];
    at[0] = state;
    at[1] = layout.context;
    at[2] = layout.thread_id;
    at[3] = u64::from(uvloop);
    Some(Found { runtime: Runtime { at, ..bare }, places, ..found })
}

impl Layout {
    /// Whether a thread-local variable points to a thread's state. Only programs show its place, libraries do not.
    pub(super) fn is_variable(&self) -> bool {
        matches!(self.state, StatePointer::Variable)
    }

    /// Where a thread has the pointer to its state, from its own thread-local data; `None` if that is not known, or not yet.
    pub(super) fn state_pointer(&self, maps: &Maps, program: &Program, bias: u64, runtime: u64) -> Option<u64> {
        match self.state {
            StatePointer::Key(at) => {
                // `Py_tss_t`: whether it is in use, then the key.
                let tss = bias.wrapping_add(runtime).wrapping_add(at - 4);
                maps.memory::<8>(tss).and_then(key).map(value)
            }
            StatePointer::Variable => {
                let code = maps.memory::<STATE_CODE>(bias.wrapping_add(program.address(STATE)?))?;
                variable(&code)
            }
        }
    }
}

/// The place of the thread-local variable that a function of a program returns, which does nothing else. Libraries ask their
/// loader for the place.
fn variable(code: &[u8]) -> Option<u64> {
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // `push %rbp; mov %rsp,%rbp` and back, where it is built with frame pointers.
    const FRAME: [u8; 4] = [0x55, 0x48, 0x89, 0xe5];
    // `mov %fs:…,%rax`
    const LOAD: [u8; 5] = [0x64, 0x48, 0x8b, 0x04, 0x25];
    let code = code.strip_prefix(&ENDBR).unwrap_or(code);
    let (code, end) = code.strip_prefix(&FRAME).map_or((code, &[0xc3][..]), |code| (code, &[0x5d, 0xc3]));
    let (offset, rest) = code.strip_prefix(&LOAD)?.split_first_chunk()?;
    rest.starts_with(end).then(|| i64::from(i32::from_le_bytes(*offset)) as u64)
}

/// The address of the code of a type's method, whose name ends with a zero.
fn method<const N: usize>(
    kind: u64,
    name: &[u8; N],
    word: impl Fn(u64) -> Option<[u8; 8]>,
    text: impl Fn(u64) -> Option<[u8; N]>,
) -> Option<u64> {
    let word = |at| word(at).map(u64::from_ne_bytes);
    let methods = word(kind.wrapping_add(METHODS))?;
    for number in 0..METHODS_MAX {
        let at = methods.wrapping_add(number * METHOD);
        let named = word(at).filter(|named| *named != 0)?;
        if text(named).as_ref() == Some(name) {
            return word(at.wrapping_add(8));
        }
    }
    None
}

/// Whether a file is uvloop's extension module.
fn is_uvloop(path: &str) -> bool {
    let folder = path.strip_suffix(name(path)).unwrap_or_default();
    folder.ends_with("/uvloop/") && name(path).starts_with("loop.")
}

/// Whether a file is the extension module of a server whose own threads, of another runtime, read requests and hand them to Python.
fn is_native_server(path: &str) -> bool {
    let is_library = Path::new(path).extension().is_some_and(|extension| extension == "so");
    is_library && ["_granian.", "robyn."].into_iter().any(|begin| name(path).starts_with(begin))
}

/// Where the value of a key is, from a thread's own thread-local data.
fn value(key: u32) -> u64 {
    VALUES + EACH * u64::from(key)
}

/// The key in a `Py_tss_t` that is in use.
fn key(bytes: [u8; 8]) -> Option<u32> {
    let (used, key) = (bytes.first_chunk()?, bytes.last_chunk()?);
    let key = u32::from_ne_bytes(*key);
    (u32::from_ne_bytes(*used) == 1 && key < BLOCK).then_some(key)
}

/// The minor version in a file's name: `python3.11`, `libpython3.13.so.1.0`; `libpython3.13t.so` is another build and
/// gives none.
pub(super) fn minor(name: &str) -> Option<u8> {
    let (_, rest) = name.split_once("python3.")?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = rest.split_at(digits);
    // Free-threaded builds ("t") and debug builds ("d") have other layouts.
    (rest.is_empty() || rest.starts_with(".so")).then(|| number.parse().ok())?
}

/// The version in the name of a build with another layout: `3.14t`.
fn other_build(name: &str) -> Option<String> {
    let (_, rest) = name.split_once("python3.")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
    let (digits, rest) = rest.split_at(end);
    let kind = rest.chars().next().filter(|kind| "td".contains(*kind))?;
    Some(format!("3.{digits}{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_names() {
        for (name, expected) in [
            ("python3.11", Some(11)),
            ("libpython3.13.so.1.0", Some(13)),
            ("libpython3.13t.so.1.0", None),
            ("python3.11d", None),
            ("python3", None),
            ("python3.", None),
            ("python3.999", None),
            ("nginx", None),
        ] {
            assert_eq!(minor(name), expected, "{name}");
        }
    }

    #[test]
    fn builds_with_another_layout_are_named() {
        for (name, expected) in [
            ("python3.14t", Some("3.14t")),
            ("libpython3.14t.so.1.0", Some("3.14t")),
            ("python3.13d", Some("3.13d")),
            ("python3.14", None),
            ("python3.t", None),
            ("python3", None),
        ] {
            assert_eq!(other_build(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn uvloop_is_known_by_its_extension() {
        let packages = "/usr/lib/python3/dist-packages";
        assert!(is_uvloop(&format!("{packages}/uvloop/loop.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is_uvloop(&format!("{packages}/aiohttp/loop.so")) && !is_uvloop("/uvloop/other.so") && !is_uvloop(""));
    }

    #[test]
    fn servers_of_another_runtime_are_known_by_their_extension() {
        let packages = "/srv/venv/lib/python3.13/site-packages";
        assert!(is_native_server(&format!("{packages}/granian/_granian.cpython-313-x86_64-linux-gnu.so")));
        assert!(is_native_server(&format!("{packages}/robyn/robyn.cpython-313-x86_64-linux-gnu.so")));
        for other in ["/uvloop/loop.cpython-313-x86_64-linux-gnu.so", "/granian/_granian.pyi", ""] {
            assert!(!is_native_server(&format!("{packages}{other}")), "{other}");
        }
    }

    #[test]
    fn a_key_is_in_use_and_small() {
        let bytes = |used: u32, key: u32| [used.to_ne_bytes(), key.to_ne_bytes()].concat().try_into().expect("8 bytes");
        assert_eq!(key(bytes(1, 3)), Some(3));
        assert_eq!(key(bytes(0, 3)), None);
        assert_eq!(key(bytes(1, 32)), None);
    }

    #[test]
    fn a_thread_local_variable_is_where_the_code_says() {
        // As Debian's 3.15 has it, and with a frame pointer.
        let load = [0x64, 0x48, 0x8b, 0x04, 0x25, 0xd8, 0xff, 0xff, 0xff];
        let code = [&[0xf3, 0x0f, 0x1e, 0xfa][..], &load, &[0xc3, 0x90]].concat();
        assert_eq!(variable(&code), Some(-40_i64 as u64));
        assert_eq!(variable(&[&[0x55, 0x48, 0x89, 0xe5][..], &load, &[0x5d, 0xc3]].concat()), Some(-40_i64 as u64));
        for end in 0..code.len() - 1 {
            assert_eq!(variable(&code[..end]), None);
        }
        // What does more with it.
        assert_eq!(variable(&[&load[..], &[0x48, 0x85, 0xc0, 0xc3]].concat()), None);
    }

    #[test]
    fn a_method_is_found_by_its_name() {
        // A type at 1000, its methods at 2000, their names at 3000.
        let word = |at: u64| {
            let words = [(1232, 2000), (2000, 3000), (2008, 77), (2032, 3005), (2040, 88)];
            let word = words.iter().find(|(place, _)| *place == at).map(|(_, word)| *word);
            (1000..4000).contains(&at).then_some(word.unwrap_or(0_u64).to_ne_bytes())
        };
        let text =
            |at: u64| b"run\0\0copy\0".get(usize::try_from(at).ok()?.checked_sub(3000)?..)?.first_chunk().copied();
        assert_eq!(method(1000, b"copy\0", word, text), Some(88));
        let text =
            |at: u64| b"run\0\0copy\0".get(usize::try_from(at).ok()?.checked_sub(3000)?..)?.first_chunk().copied();
        assert_eq!(method(1000, b"cop\0", word, text), None);
        assert_eq!(method(1000, b"copy\0", |_| Some([1; 8]), |_| None), None, "any memory");
        assert_eq!(method(u64::MAX, b"copy\0", |_| None, |_| None), None);
    }

    #[test]
    fn what_is_no_python_is_none() {
        let pid = std::process::id();
        let maps = Maps::read(pid).expect("this process");
        assert_eq!(recognise(pid, &maps), None);
    }
}
