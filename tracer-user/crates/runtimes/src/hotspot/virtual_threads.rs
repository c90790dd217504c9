//! Virtual threads of Java: where the machine keeps which one is mounted on a thread.
//!
//! A thread's description (`JavaThread`) has the number of the virtual thread that is mounted on it, and `gHotSpotVMStructs` says where,
//! from Java 24 on. Before, it only refers to the virtual thread's object, which has the number. The collector moves objects while the
//! whole machine stands still, which a counter shows; the collectors that move them at any other time are not followed there.

use tracer_common::runtime::{KIND_JAVA, NUMBERS, Runtime};

use super::layout::{Described, SYMBOLS};
use super::{LIBRARY, LocatedLibrary, located};
use crate::maps::Maps;
use crate::process_memory::{MemoryFile, ProcessMemory, number, word};
use crate::{DetectionState, Found};

/// The runtime's name.
const NAME: &str = "java";

/// Variables that nothing describes: the offset of a thread's number in its object, the counter that is odd while the machine stands
/// still, and the collectors that move objects at any time.
const NUMBER_OFFSET: &str = "_ZN16java_lang_Thread11_tid_offsetE";
const STANDSTILLS: &str = "_ZN20SafepointSynchronize18_safepoint_counterE";
const CONCURRENT_COLLECTORS: [&str; 2] = ["UseZGC", "UseShenandoahGC"];

/// Detects a machine in a process; `None` if there is none that describes itself.
pub fn recognise(pid: u32, maps: &Maps) -> Option<Found> {
    maps.named(|name| name == LIBRARY)?;
    let more = [NUMBER_OFFSET, STANDSTILLS];
    let program = located(maps, &[&SYMBOLS[..], &more, &CONCURRENT_COLLECTORS].concat())?;
    let mut memory = MemoryFile::open(pid).ok()?;
    let described = Described::read(&mut memory, |name| program.address(name))?;
    let version = version(&mut memory, &described);
    let found = Found::known(NAME, version, Runtime::default());
    let at = numbers(&described, || object_number(&mut memory, &program)).filter(|_| cfg!(target_arch = "x86_64"));
    let Some(at) = at else { return Some(found.without(DetectionState::ThreadsOnly)) };
    Some(Found { runtime: Runtime { kind: KIND_JAVA, at, ..Runtime::default() }, ..found })
}

/// How the kernel side finds the number. `in_object`: the counter's address, and the offset of the number in an object.
fn numbers(described: &Described, in_object: impl FnOnce() -> Option<(u64, u64)>) -> Option<[u64; NUMBERS]> {
    let packed = |offsets: &[u64]| offsets.iter().rev().fold(0, |packed, offset| packed << 16 | offset);
    let of_thread = |name| described.offset(&["JavaThread", "Thread"], name);
    let (counter, number) = match of_thread("_monitor_owner_id") {
        Some(number) => (0, number),
        None => in_object()?,
    };
    let mut at = [0; NUMBERS];
    at[0] = packed(&[of_thread("_osthread")?, described.offset(&["OSThread"], "_pthread_id")?, number]);
    at[1] = packed(&[of_thread("_threadObj")?, of_thread("_vthread")?]);
    at[2] = counter;
    Some(at)
}

/// The counter's address, and the offset of the number in an object; `None` where the collector moves objects at any time, or where the
/// library has no symbols.
fn object_number(memory: &mut impl ProcessMemory, library: &LocatedLibrary) -> Option<(u64, u64)> {
    let counter = library.address(STANDSTILLS)?;
    // A build without such a collector does not have the variable.
    let mut used = |name| library.address(name).is_some_and(|at| number::<1>(memory, at) != Some(0));
    if CONCURRENT_COLLECTORS.into_iter().any(&mut used) {
        return None;
    }
    let offset = number::<4>(memory, library.address(NUMBER_OFFSET)?)?;
    (8..1 << 10).contains(&offset).then_some((counter, offset))
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
        let nowhere = || None;
        // As of Java 25.
        for (of, name, at) in [
            ("Thread", "_osthread", 1016),
            ("OSThread", "_pthread_id", 16),
            ("JavaThread", "_threadObj", 1120),
            ("JavaThread", "_vthread", 1128),
            ("JavaThread", "_monitor_owner_id", 1312),
        ] {
            assert_eq!(numbers(&described, nowhere), None, "{of}::{name} is not described yet");
            described.describe(of, name, at);
        }
        assert_eq!(numbers(&described, nowhere), Some([0x0520_0010_03f8, 0x0468_0460, 0, 0, 0, 0, 0, 0]));
        described.describe("JavaThread", "_vthread", 1 << 16);
        assert_eq!(numbers(&described, nowhere), None, "too far");
    }

    #[test]
    fn before_24_the_number_is_in_an_object() {
        let mut described = Described::default();
        // As of Java 21.
        for (of, name, at) in [
            ("JavaThread", "_osthread", 792),
            ("OSThread", "_pthread_id", 8),
            ("JavaThread", "_threadObj", 896),
            ("JavaThread", "_vthread", 904),
        ] {
            described.describe(of, name, at);
        }
        assert_eq!(numbers(&described, || None), None);
        let found = numbers(&described, || Some((0x7f00_0000_1000, 24)));
        assert_eq!(found, Some([0x0018_0008_0318, 0x0388_0380, 0x7f00_0000_1000, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn other_programs_have_none() {
        let maps = Maps::read(std::process::id()).expect("this process");
        assert!(recognise(std::process::id(), &maps).is_none());
    }
}
