//! Virtual threads of Java: where the machine keeps which one is mounted on a thread.
//!
//! From Java 24 on, a thread's description (`JavaThread`) has the number of the virtual thread that is mounted on it, and
//! `gHotSpotVMStructs` says where. Before, it only refers to an object, which the collector moves.

use tracer_common::runtime::{KIND_JAVA, NUMBERS, Runtime};

use super::layout::{Described, SYMBOLS};
use super::{LIBRARY, located};
use crate::runtimes::maps::Maps;
use crate::runtimes::process_memory::{MemoryFile, ProcessMemory, word};
use crate::runtimes::{DetectionState, Found};

/// The runtime's name.
const NAME: &str = "java";

/// Detects a machine in a process; `None` if there is none that describes itself.
pub fn recognise(pid: u32, maps: &Maps) -> Option<Found> {
    maps.named(|name| name == LIBRARY)?;
    let program = located(maps, &SYMBOLS)?;
    let mut memory = MemoryFile::open(pid).ok()?;
    let described = Described::read(&mut memory, |name| program.address(name))?;
    let version = version(&mut memory, &described);
    let found = Found::known(NAME, version, Runtime::default());
    let Some(offsets) = offsets(&described).filter(|_| cfg!(target_arch = "x86_64")) else {
        return Some(found.without(DetectionState::ThreadsOnly));
    };
    let mut at = [0; NUMBERS];
    (at[0], at[1]) = offsets;
    Some(Found { runtime: Runtime { kind: KIND_JAVA, at, ..Runtime::default() }, ..found })
}

/// The offsets as the kernel side takes them, sixteen bits each.
fn offsets(described: &Described) -> Option<(u64, u64)> {
    let packed = |offsets: &[u64]| offsets.iter().rev().fold(0, |packed, offset| packed << 16 | offset);
    let of_thread = |name| described.offset(&["JavaThread", "Thread"], name);
    let found =
        [of_thread("_osthread")?, described.offset(&["OSThread"], "_pthread_id")?, of_thread("_monitor_owner_id")?];
    Some((packed(&found), packed(&[of_thread("_threadObj")?, of_thread("_vthread")?])))
}

/// Its version, `25`; empty if it does not say.
fn version(memory: &mut impl ProcessMemory, described: &Described) -> String {
    let major = described.member("Abstract_VM_Version", "_vm_major_version").and_then(|at| word(memory, at));
    major
        .map(|major| major as u32)
        .filter(|major| (9..1000).contains(major))
        .map_or_else(String::new, |major| major.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_packed() {
        let mut described = Described::default();
        // As of Java 25.
        for (of, name, at) in [
            ("Thread", "_osthread", 1016),
            ("OSThread", "_pthread_id", 16),
            ("JavaThread", "_threadObj", 1120),
            ("JavaThread", "_vthread", 1128),
            ("JavaThread", "_monitor_owner_id", 1312),
        ] {
            assert_eq!(offsets(&described), None, "{of}::{name} is not described yet");
            described.describe(of, name, at);
        }
        assert_eq!(offsets(&described), Some((0x0520_0010_03f8, 0x0468_0460)));
        described.describe("JavaThread", "_vthread", 1 << 16);
        assert_eq!(offsets(&described), None, "too far");
    }

    #[test]
    fn other_programs_have_none() {
        let maps = Maps::read(std::process::id()).expect("this process");
        assert!(recognise(std::process::id(), &maps).is_none());
    }
}
