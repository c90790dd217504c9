//! For whom a thread sends by a descriptor, where what writes is not who asked for it: a goroutine of the connection, or a loop at
//! the end of a turn.

use aya_ebpf::{helpers::generated::bpf_ktime_get_ns, macros::map, maps::LruHashMap};
use tracer_common::limits::USES_MAX;

use crate::kernel::{regs::Regs, task::Task};

/// A descriptor of a process.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    tgid: u32,
    fd: u32,
}

/// For whom the next request is sent by a descriptor, and since when that is known.
#[repr(C)]
#[derive(Clone, Copy)]
struct Use {
    entity: u64,
    since: u64,
}

/// What tasks do for others by which descriptor. Least recently used ones go first: none is used later than it takes
/// to write a request.
#[map]
static USES: LruHashMap<Descriptor, Use> = LruHashMap::with_max_entries(USES_MAX, 0);

/// For whom the current thread sends by a descriptor, if that was noted; else `own`. What was known before the connection
/// was there was of another.
#[inline(always)]
pub(super) fn sends(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    // The first argument of every system call that sends.
    let key = Descriptor { tgid, fd: Regs::of(task).arg0() as u32 };
    // SAFETY: copied out at once.
    let Some(found) = (unsafe { USES.get(&key) }).copied() else { return own };
    let _ = USES.remove(&key);
    if found.since < established { own } else { found.entity }
}

/// What is sent next by a descriptor is for `entity`.
#[inline(always)]
pub(super) fn note(tgid: u32, fd: u32, entity: u64) {
    // SAFETY: no argument.
    let found = Use { entity, since: unsafe { bpf_ktime_get_ns() } };
    let _ = USES.insert(&Descriptor { tgid, fd }, &found, 0);
}

/// The same, where several may ask before anything is sent: then it is for `nobody`.
#[inline(always)]
pub(super) fn note_shared(tgid: u32, fd: u32, entity: u64, nobody: u64) {
    // SAFETY: looked at at once.
    let other = unsafe { USES.get(&Descriptor { tgid, fd }) }.is_some_and(|found| found.entity != entity);
    note(tgid, fd, if other { nobody } else { entity });
}
