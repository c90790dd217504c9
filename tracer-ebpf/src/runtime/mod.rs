//! Which task of its runtime a thread runs: read out of the process's memory and registers, by what user space says of it.
//!
//! A process without a runtime costs one look at its thread's record.

mod go;
mod greenlet;
mod node;
mod python;
mod tokio;
mod uses;

use core::arch::asm;

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::map,
    maps::{HashMap, PerCpuArray},
};
use tracer_common::{
    event::{ENTITY_BITS, Header, KIN_WATCHED, Kin, Kind},
    limits::RUNTIMES_MAX,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_GO, KIND_GREENLET, KIND_NODE, KIND_PYTHON, KIND_TOKIO, Runtime, UserProbe},
};

use crate::{
    emit,
    kernel::task::Task,
    storage::{SOCK_PASSIVE, Sock, Thread},
};

/// What runs in which process, by process id.
#[map]
static RUNTIMES: HashMap<u32, Runtime> = HashMap::with_max_entries(RUNTIMES_MAX, 0);

/// Hits of each probe in user space.
#[map]
static HITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(UserProbe::ALL.len() as u32, 0);

/// Counts a hit.
#[inline(always)]
fn hit(probe: UserProbe) {
    if let Some(counter) = HITS.get_ptr_mut(probe as u32) {
        // SAFETY: a per-CPU element; whoever interrupts can lose a count, no more.
        unsafe { *counter += 1 };
    }
}

/// The runtime of a process; the record stays where it is while the process is in the map.
#[inline(always)]
fn of(tgid: u32) -> Option<&'static Runtime> {
    // SAFETY: user space replaces it as a whole, and only when the program was replaced.
    unsafe { RUNTIMES.get_ptr(tgid).map(|runtime| &*runtime) }
}

/// Looks up what kind of runtime the thread's process has: its policy has changed.
#[inline(always)]
pub(crate) fn refresh(thread: &mut Thread, tgid: u32) {
    thread.runtime = of(tgid).map_or(0, |runtime| runtime.kind);
    thread.entity = 0;
    thread.kins = 0;
}

/// Notes with the thread how many relations its process told of. Before the time of what it does is read, and theirs is read
/// before they are counted: by time, none that is counted here comes after it.
#[inline(always)]
pub(crate) fn counted(thread: &mut Thread, tgid: u32) {
    if thread.runtime != 0
        && let Some(runtime) = of(tgid)
    {
        thread.kins = kins(runtime) as u32;
    }
}

/// Notes with the thread which task it runs, or sends for. Nothing else of the largest programs depends on what comes of it: the
/// verifier need not walk them once for each.
#[inline(always)]
pub(crate) fn note<const TX: bool>(task: Task, thread: &mut Thread, tgid: u32, sock: &Sock) {
    if thread.runtime == 0 {
        return;
    }
    let Some(runtime) = of(tgid) else {
        thread.entity = 0;
        return;
    };
    let own = entity::<TX>(task, thread, runtime);
    let noted = match runtime.kind {
        KIND_GO => sock.flags & SOCK_PASSIVE == 0,
        KIND_PYTHON => python::is_noted(runtime),
        _ => false,
    };
    thread.entity = if TX && noted { uses::sends(task, tgid, own, sock.established) } else { own };
}

/// The task that runs on the current thread, as `tracer_common::event::Op::entity`.
#[inline(always)]
fn entity<const TX: bool>(task: Task, thread: &mut Thread, runtime: &Runtime) -> u64 {
    if runtime.at[0] == AT_UNKNOWN {
        return named(runtime, 0);
    }
    match runtime.kind {
        KIND_PYTHON => python::entity(task, runtime),
        KIND_GO => go::entity(task, runtime),
        KIND_NODE => node::entity::<TX>(task, thread, runtime),
        KIND_TOKIO => tokio::entity(task, runtime),
        KIND_GREENLET => greenlet::entity(task, runtime),
        _ => 0,
    }
}

/// The task `name` of a runtime, as `tracer_common::event::Op::entity`; 0: not known which.
#[inline(always)]
fn named(runtime: &Runtime, name: u64) -> u64 {
    ((runtime.kind as u64) << ENTITY_BITS) | (name & ((1 << ENTITY_BITS) - 1))
}

#[inline(always)]
fn kins(runtime: &Runtime) -> u64 {
    // SAFETY: one word of map memory, which others count up.
    unsafe { (&raw const runtime.kins).read_volatile() }
}

/// Reports that `child` and `parent` have `relation`; both as `tracer_common::event::Op::entity`.
#[inline(always)]
fn kin(task: Task, tgid: u32, relation: u8, child: u64, parent: u64) {
    let Some(runtime) = RUNTIMES.get_ptr_mut(tgid) else { return };
    // Before it is counted: whoever counts it sees a later time.
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: one word of map memory.
    let nth = unsafe { next(&raw mut (*runtime).kins) } as u32;
    // SAFETY: user space replaces it as a whole, and only when the program was replaced.
    let watched = unsafe { (*runtime).kind == KIND_TOKIO && (*runtime).at[1] != 0 };
    let record = Kin {
        header: Header {
            kind: Kind::Kin as u8,
            flags: watched as u8 * KIN_WATCHED,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Kin>() as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        child,
        parent,
        nth,
        relation,
        reserved: [0; 3],
    };
    emit::event(&record, Lost::RingKin);
}

/// Counts up; gives the new count.
///
/// # Safety
/// `counter` is a word of map memory.
#[inline(always)]
unsafe fn next(counter: *mut u64) -> u64 {
    let mut count = 1u64;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "{count} = atomic_fetch_add((u64 *)({counter} + 0), {count})",
            counter = in(reg) counter,
            count = inout(reg) count,
            options(nostack)
        );
    }
    count.wrapping_add(1)
}
