//! `CPython`: detects the version, where a thread's state is, and where contexts are created.
//!
//! The interpreter keeps in `_PyRuntime` the key of the thread-local value that points to the thread's state; the
//! offset of that value in glibc's thread descriptor is the same in every glibc for x86-64 since 2.4.

use tracer_common::runtime::{KIND_PYTHON, NUMBERS, Runtime, UserProbe};

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

/// Offsets of one minor version: of the key in `_PyRuntime` (`gilstate.autoTSSkey._key`, since 3.12 `autoTSSkey._key`),
/// and of the context and the thread's id in a thread's state (`PyThreadState`). From the headers of each version.
pub(super) struct Layout {
    pub(super) minor: u8,
    pub(super) key: u64,
    context: u64,
    pub(super) thread_id: u64,
}

/// By version.
pub(super) const KEYS: &[Layout] = &[
    Layout { minor: 9, key: 588, context: 240, thread_id: 176 },
    Layout { minor: 10, key: 588, context: 240, thread_id: 176 },
    Layout { minor: 11, key: 596, context: 224, thread_id: 152 },
    Layout { minor: 12, key: 1548, context: 208, thread_id: 136 },
    Layout { minor: 13, key: 2164, context: 208, thread_id: 152 },
    Layout { minor: 14, key: 2340, context: 208, thread_id: 152 },
];

/// The symbol of the interpreter's own state.
pub(super) const RUNTIME: &str = "_PyRuntime";
const COPY: &str = "PyContext_CopyCurrent";
const ADD: &str = "PySet_Add";

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
    let version = minor.map_or_else(String::new, |minor| format!("3.{minor}"));
    let bare = Runtime { kind: KIND_PYTHON, ..Runtime::default() };
    let found = Found::known(NAME, version, bare);
    let less = |state| Some(found.clone().without(state));
    if !cfg!(target_arch = "x86_64") || maps.named(|name| name.starts_with("ld-musl")).is_some() {
        return less(DetectionState::Unsupported);
    }
    let Some(layout) = minor.and_then(|minor| KEYS.iter().find(|layout| layout.minor == minor)) else {
        return less(DetectionState::UnknownVersion);
    };
    let file = maps.open_by(path);
    let Some(program) = Program::read(&file, &[RUNTIME, COPY, ADD]) else { return less(DetectionState::Unreadable) };
    let (Some(runtime), Some(copy)) = (program.address(RUNTIME), program.address(COPY)) else {
        return less(DetectionState::NoSymbols);
    };
    let (Some(bias), Some(offset)) = (program.bias(maps.of(path)), program.offset(copy)) else {
        return less(DetectionState::Unreadable);
    };
    let mut places = vec![Place { probe: UserProbe::PythonContext, file: file.clone(), offset }];
    // uvloop may buffer writes and send them at the end of a loop iteration, in whatever context runs then. A probe
    // where it queues the stream shows which context wrote.
    let uvloop = maps.files.iter().any(|mapping| is_uvloop(&mapping.path));
    if uvloop {
        let Some(add) = program.address(ADD) else { return less(DetectionState::NoSymbols) };
        let Some(offset) = program.offset(add) else { return less(DetectionState::Unreadable) };
        places.push(Place { probe: UserProbe::PythonWrites, file, offset });
    }
    // `Py_tss_t`: whether it is in use, then the key.
    let tss = bias.wrapping_add(runtime).wrapping_add(layout.key - 4);
    let Some(key) = maps.memory::<8>(tss).and_then(key) else { return less(DetectionState::Unreadable) };
    let mut at = [0; NUMBERS];
    at[0] = value(key);
    at[1] = layout.context;
    at[2] = layout.thread_id;
    at[3] = u64::from(uvloop);
    Some(Found { runtime: Runtime { at, ..bare }, places, ..found })
}

/// Whether a file is uvloop's extension module.
fn is_uvloop(path: &str) -> bool {
    let folder = path.strip_suffix(name(path)).unwrap_or_default();
    folder.ends_with("/uvloop/") && name(path).starts_with("loop.")
}

/// Where the value of a key is, from a thread's own thread-local data.
pub(super) fn value(key: u32) -> u64 {
    VALUES + EACH * u64::from(key)
}

/// The key in a `Py_tss_t` that is in use.
pub(super) fn key(bytes: [u8; 8]) -> Option<u32> {
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
    fn uvloop_is_known_by_its_extension() {
        let packages = "/usr/lib/python3/dist-packages";
        assert!(is_uvloop(&format!("{packages}/uvloop/loop.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is_uvloop(&format!("{packages}/aiohttp/loop.so")) && !is_uvloop("/uvloop/other.so") && !is_uvloop(""));
    }

    #[test]
    fn a_key_is_in_use_and_small() {
        let bytes = |used: u32, key: u32| [used.to_ne_bytes(), key.to_ne_bytes()].concat().try_into().expect("8 bytes");
        assert_eq!(key(bytes(1, 3)), Some(3));
        assert_eq!(key(bytes(0, 3)), None);
        assert_eq!(key(bytes(1, 32)), None);
    }

    #[test]
    fn what_is_no_python_is_none() {
        let pid = std::process::id();
        let maps = Maps::read(pid).expect("this process");
        assert_eq!(recognise(pid, &maps), None);
    }
}
