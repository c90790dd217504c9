//! Greenlets (`CPython` with gevent or eventlet): finds where a thread keeps its current greenlet, and the functions
//! that create greenlets.
//!
//! The extension has one thread-local value that points to the thread's state: the thread's first greenlet, then the
//! current one (greenlet 2 and 3; version 1 kept it in Python's own data). The version of Python does not matter.

use tracer_common::runtime::{KIND_GREENLET, NUMBERS, Runtime, UserProbe};

use super::cheap_places::{CODE, place};
use super::elf::Program;
use super::maps::{Maps, name};
use super::{DetectionState, Found, Place, python};

/// The runtime's name.
const NAME: &str = "greenlet";

const TYPE: &str = "PyGreenlet_Type";
const USER: &str =
    "_ZN8greenlet12UserGreenletC1EP9_greenletNS_4refs17_BorrowedGreenletIS1_XadL_ZNS3_15GreenletCheckerEPvEEEE";
const MAIN: &str = "_ZN8greenlet12MainGreenletC1EP9_greenletPNS_11ThreadStateE";

/// The extension's thread-local storage: whether the state was created, and where it is.
const LOCAL: u64 = 16;
const LOCAL_STATE: u64 = 8;
/// `dtv_t` (glibc): size of an element of a thread's dynamic thread vector.
const EACH: u64 = 16;
/// Most modules with thread-local storage in a process; a larger number is invalid.
const MODULES: u64 = 4096;

/// Detects greenlets in a Python process; `None` if there are none, or if the process does not serve requests with
/// them.
pub(super) fn recognise(_pid: u32, maps: &Maps) -> Option<Found> {
    let extension = maps.files.iter().map(|mapping| mapping.path.as_str()).find(|path| is_greenlet(path))?;
    python::program(maps)?;
    // Without gevent, a process with asyncio uses greenlets as a tool beside an event loop whose contexts tell its
    // tasks apart.
    let serves = |path: &str| path.contains("/gevent/");
    if !maps.files.iter().any(|mapping| serves(&mapping.path))
        && maps.named(|name| name.starts_with("_asyncio.")).is_some()
    {
        return None;
    }
    let bare = Runtime { kind: KIND_GREENLET, ..Runtime::default() };
    let found = Found::known(NAME, String::new(), bare);
    let less = |state| Some(found.clone().without(state));
    if !cfg!(target_arch = "x86_64") || maps.named(|name| name.starts_with("ld-musl")).is_some() {
        return less(DetectionState::Unsupported);
    }
    let file = maps.open_by(extension);
    let Some(program) = Program::read(&file, &[TYPE, USER, MAIN]) else { return less(DetectionState::Unreadable) };
    let (Some(kind), Some(user), Some(main)) = (program.address(TYPE), program.address(USER), program.address(MAIN))
    else {
        return less(DetectionState::NoSymbols);
    };
    let Some((LOCAL, module)) = program.thread_local() else { return less(DetectionState::UnknownVersion) };
    let Some(bias) = program.bias(maps.of(extension)) else { return less(DetectionState::Unreadable) };
    let module = maps.memory::<8>(bias.wrapping_add(module)).map(u64::from_ne_bytes);
    let Some(module) = module.filter(|module| (1..MODULES).contains(module)) else {
        return less(DetectionState::Unreadable);
    };
    let mut places = Vec::new();
    for address in [user, main] {
        let Some(offset) = program.offset(address) else { return less(DetectionState::Unreadable) };
        // The program reads the second argument.
        let code = maps.memory::<CODE>(bias.wrapping_add(address)).unwrap_or([0; CODE]);
        let cheap = place(&code, 2).map_or(0, |(at, _)| at as u64);
        places.push(Place { probe: UserProbe::PythonGreenlet, file: file.clone(), offset: offset + cheap });
    }
    let mut at = [0; NUMBERS];
    at[0] = EACH * module;
    at[1] = LOCAL_STATE;
    at[2] = bias.wrapping_add(kind);
    Some(Found { runtime: Runtime { at, ..bare }, places, ..found })
}

/// Whether a file is greenlet's extension module.
fn is_greenlet(path: &str) -> bool {
    let folder = path.strip_suffix(name(path)).unwrap_or_default();
    folder.ends_with("/greenlet/") && name(path).starts_with("_greenlet.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greenlets_are_known_by_their_extension() {
        let packages = "/usr/lib/python3/dist-packages";
        assert!(is_greenlet(&format!("{packages}/greenlet/_greenlet.cpython-311-x86_64-linux-gnu.so")));
        assert!(!is_greenlet(&format!("{packages}/greenlet/tests/_test_extension.so")) && !is_greenlet("_greenlet.so"));
    }

    #[test]
    fn what_has_none_is_none() {
        let pid = std::process::id();
        let maps = Maps::read(pid).expect("this process");
        assert_eq!(recognise(pid, &maps), None);
    }
}
