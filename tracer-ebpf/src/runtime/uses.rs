//! On whose behalf a thread sends by a descriptor, where the writing task is not the one that made the request: a
//! connection's own goroutine, or a loop at the end of a turn.

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

/// On whose behalf the next request is sent by a descriptor, and since when that is known.
#[repr(C)]
#[derive(Clone, Copy)]
struct Use {
    entity: u64,
    since: u64,
    /// The descriptor's socket, if it was looked up; else 0.
    cookie: u64,
}

/// Requests that are about to be sent, by descriptor. The least recently used go first: an entry lasts only until its
/// request is written.
#[map]
static USES: LruHashMap<Descriptor, Use> = LruHashMap::with_max_entries(USES_MAX, 0);

/// The task on whose behalf the current thread sends by a descriptor, if noted; else `own`. A note older than the
/// connection belongs to a previous one.
#[inline(always)]
pub(super) fn sends(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    // The first argument of every system call that sends.
    let key = Descriptor { tgid, fd: Regs::of(task).arg0() as u32 };
    // SAFETY: copied out at once.
    let Some(found) = (unsafe { USES.get(&key) }).copied() else { return own };
    let _ = USES.remove(&key);
    if found.since < established { own } else { found.entity }
}

/// The same before the send is reported: the note stays.
#[inline(always)]
pub(super) fn sender(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    let key = Descriptor { tgid, fd: Regs::of(task).arg0() as u32 };
    // SAFETY: read at once.
    let found = unsafe { USES.get(&key) }.filter(|found| found.since >= established);
    found.map_or(own, |found| found.entity)
}

/// As [`sends`], before the send: of a descriptor whose socket is `cookie`.
#[inline(always)]
pub(super) fn writes(tgid: u32, fd: u32, own: u64, cookie: u64) -> u64 {
    let key = Descriptor { tgid, fd };
    // SAFETY: copied out at once.
    let Some(found) = (unsafe { USES.get(&key) }).copied() else { return own };
    if found.cookie != cookie {
        return own;
    }
    let _ = USES.remove(&key);
    found.entity
}

/// Notes that the next send by a descriptor, whose socket is `cookie` if that was looked up, is on behalf of `entity`.
#[inline(always)]
pub(super) fn note(tgid: u32, fd: u32, entity: u64, cookie: u64) {
    // SAFETY: no argument.
    let found = Use { entity, since: unsafe { bpf_ktime_get_ns() }, cookie };
    let _ = USES.insert(&Descriptor { tgid, fd }, &found, 0);
}

/// The same, where several tasks may write before anything is sent: then it belongs to `unknown`.
#[inline(always)]
pub(super) fn note_shared(tgid: u32, fd: u32, entity: u64, unknown: u64) {
    // SAFETY: read at once.
    let other = unsafe { USES.get(&Descriptor { tgid, fd }) }.is_some_and(|found| found.entity != entity);
    note(tgid, fd, if other { unknown } else { entity }, 0);
}
