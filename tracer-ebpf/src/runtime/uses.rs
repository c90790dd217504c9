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

/// On whose behalf the next request is sent by a descriptor, and since when that is known. An entry stays when its request is sent,
/// and the next one is written into it: the requests of a connection follow each other, and making an entry takes longer than the rest.
#[repr(C)]
#[derive(Clone, Copy)]
struct Use {
    /// 0: the request was sent.
    entity: u64,
    since: u64,
    /// The descriptor's socket, if it was looked up; else 0.
    cookie: u64,
}

/// Requests that are about to be sent, by descriptor. The least recently used go first.
#[map]
static USES: LruHashMap<Descriptor, Use> = LruHashMap::with_max_entries(USES_MAX, 0);

/// The entry of a descriptor, if its request is still to be sent, and a copy of it.
#[inline(always)]
fn waiting(tgid: u32, fd: u32) -> Option<(*mut Use, Use)> {
    let found = USES.get_ptr_mut(&Descriptor { tgid, fd })?;
    // SAFETY: an element of the map; that of another request at worst, if the map was full.
    let copy = unsafe { found.read_volatile() };
    (copy.entity != 0).then_some((found, copy))
}

/// The request is sent.
#[inline(always)]
fn sent(found: *mut Use) {
    // SAFETY: one word of the map.
    unsafe { (&raw mut (*found).entity).write_volatile(0) };
}

/// The task on whose behalf the current thread sends by a descriptor, if noted; else `own`. A note older than the
/// connection belongs to a previous one.
#[inline(always)]
pub(super) fn sends(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    // The first argument of every system call that sends.
    let Some((found, noted)) = waiting(tgid, Regs::of(task).arg0() as u32) else { return own };
    sent(found);
    if noted.since < established { own } else { noted.entity }
}

/// The same before the send is reported: the note stays.
#[inline(always)]
pub(super) fn sender(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    let noted = waiting(tgid, Regs::of(task).arg0() as u32).filter(|(_, noted)| noted.since >= established);
    noted.map_or(own, |(_, noted)| noted.entity)
}

/// As [`sends`], before the send: of a descriptor whose socket is `cookie`.
#[inline(always)]
pub(super) fn writes(tgid: u32, fd: u32, own: u64, cookie: u64) -> u64 {
    match waiting(tgid, fd) {
        Some((found, noted)) if noted.cookie == cookie => {
            sent(found);
            noted.entity
        }
        _ => own,
    }
}

/// Notes that the next send by a descriptor, whose socket is `cookie` if that was looked up, is on behalf of `entity`.
#[inline(always)]
pub(super) fn note(tgid: u32, fd: u32, entity: u64, cookie: u64) {
    let key = Descriptor { tgid, fd };
    // SAFETY: no argument.
    let since = unsafe { bpf_ktime_get_ns() };
    let Some(known) = USES.get_ptr_mut(&key) else {
        let _ = USES.insert(&key, &Use { entity, since, cookie }, 0);
        return;
    };
    // SAFETY: words of the map. The task last: whoever sees it sees the rest.
    unsafe {
        (&raw mut (*known).since).write_volatile(since);
        (&raw mut (*known).cookie).write_volatile(cookie);
        (&raw mut (*known).entity).write_volatile(entity);
    }
}

/// The same, where several tasks may write before anything is sent: then it belongs to `unknown`.
#[inline(always)]
pub(super) fn note_shared(tgid: u32, fd: u32, entity: u64, unknown: u64) {
    let other = waiting(tgid, fd).is_some_and(|(_, noted)| noted.entity != entity);
    note(tgid, fd, if other { unknown } else { entity }, 0);
}
