//! Which task of its runtime a thread runs: read from the process's memory and registers, at the places user space
//! found.
//!
//! A process without a runtime costs one look at its thread's record.

pub(crate) mod go;
mod greenlet;
mod java;
mod node;
mod python;
mod tokio;
mod uses;

use core::arch::asm;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::map,
    maps::{HashMap, PerCpuArray},
};
use tracer_common::{
    event::{ENTITY_BITS, Header, Kind, TASK_EDGE_WATCHED, TaskEdge},
    limits::RUNTIMES_MAX,
    lost::Lost,
    runtime::{
        AT_UNKNOWN, KIND_GO, KIND_GREENLET, KIND_JAVA, KIND_NODE, KIND_PYTHON, KIND_TOKIO, Runtime, TOKIO_WATCHED,
        UserProbe,
    },
};

use crate::{
    emit,
    kernel::task::Task,
    own_stack,
    storage::{SOCK_PASSIVE, Sock, Thread},
    tls::FRAMES_TEXT,
};

/// Runtimes by process id.
#[map]
static RUNTIMES: HashMap<u32, Runtime> = HashMap::with_max_entries(RUNTIMES_MAX, 0);

/// Hits of each user-space probe.
#[map]
static HITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(UserProbe::ALL.len() as u32, 0);

/// Begins a program at a uprobe: counts the hit, and keeps the program off private stacks.
#[inline(always)]
pub(crate) fn hit(ctx: &impl EbpfContext, probe: UserProbe) {
    own_stack::keep(ctx, &FRAMES_TEXT);
    if let Some(counter) = HITS.get_ptr_mut(probe as u32) {
        // SAFETY: an element of the map.
        unsafe { emit::increment(counter) };
    }
}

/// The runtime of a process; the record stays in place while the process is in the map.
#[inline(always)]
fn of(tgid: u32) -> Option<&'static Runtime> {
    // SAFETY: user space replaces it as a whole, and only when the program was replaced.
    unsafe { RUNTIMES.get_ptr(tgid).map(|runtime| &*runtime) }
}

/// Looks up the kind of runtime of the thread's process, whose policy has changed.
#[inline(always)]
pub(crate) fn refresh(thread: &mut Thread, tgid: u32) {
    thread.runtime = of(tgid).map_or(0, |runtime| runtime.kind);
    thread.entity = 0;
    thread.edge_seq = 0;
}

/// Stores in the thread's record how many task edges its process reported. Call this before reading the operation's
/// time, as edges read theirs before they are counted: no edge counted here is later than the operation.
#[inline(always)]
pub(crate) fn counted(thread: &mut Thread, tgid: u32) {
    if thread.runtime != 0
        && let Some(runtime) = of(tgid)
    {
        thread.edge_seq = edge_seq(runtime) as u32;
    }
}

/// Stores in the thread's record which task it runs, or sends for. Nothing else in the largest programs depends on the
/// result, so the verifier need not walk them once per runtime.
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
        KIND_JAVA => java::entity(task, runtime),
        _ => 0,
    }
}

/// The task the current thread works for, if that is certain: `Some(0)` means the thread itself, in a process without
/// tasks or outside of them; `None`: unknown, or a task whose name may be that of an earlier one.
#[inline(always)]
pub(crate) fn holder(task: Task, tgid: u32) -> Option<u64> {
    let Some(runtime) = of(tgid) else { return Some(0) };
    if runtime.at[0] == AT_UNKNOWN {
        return None;
    }
    let entity = match runtime.kind {
        KIND_PYTHON => python::entity(task, runtime),
        KIND_GO => go::entity(task, runtime),
        KIND_TOKIO => tokio::entity(task, runtime),
        KIND_GREENLET => greenlet::entity(task, runtime),
        KIND_JAVA => java::entity(task, runtime),
        _ => return None,
    };
    let is_named = entity & ((1 << ENTITY_BITS) - 1) != 0;
    match runtime.kind {
        KIND_GO | KIND_TOKIO | KIND_JAVA if is_named => Some(entity),
        KIND_JAVA => (entity == 0).then_some(0),
        KIND_PYTHON | KIND_GREENLET if !is_named => Some(0),
        _ => None,
    }
}

/// The task of the current thread, which creates a process, as `tracer_common::event::Op::entity`, and how many task edges its
/// process reported. Node.js' callbacks are not told apart here.
#[inline(always)]
pub(crate) fn forking(task: Task, tgid: u32) -> (u64, u32) {
    let Some(runtime) = of(tgid) else { return (0, 0) };
    let edges = edge_seq(runtime) as u32;
    if runtime.at[0] == AT_UNKNOWN {
        return (named(runtime, 0), edges);
    }
    let entity = match runtime.kind {
        KIND_PYTHON => python::entity(task, runtime),
        KIND_GO => go::entity(task, runtime),
        KIND_TOKIO => tokio::entity(task, runtime),
        KIND_GREENLET => greenlet::entity(task, runtime),
        KIND_JAVA => java::entity(task, runtime),
        _ => 0,
    };
    (entity, edges)
}

/// The state of the current thread of a process that runs Python; 0: it is not known.
#[inline(always)]
pub(crate) fn python_state(task: Task) -> u64 {
    match of(task.tgid()) {
        Some(runtime) if runtime.kind == KIND_PYTHON && runtime.at[0] != AT_UNKNOWN => python::state(task, runtime),
        _ => 0,
    }
}

/// The task of the current thread, which writes to a log, as `tracer_common::event::Op::entity`. Callbacks of Node.js cannot
/// be distinguished: unknown.
#[inline(always)]
pub(crate) fn writing(task: Task, tgid: u32) -> u64 {
    match of(tgid) {
        Some(runtime) if runtime.kind == KIND_NODE => named(runtime, 0),
        _ => forking(task, tgid).0,
    }
}

/// The task on whose behalf the current thread sends by a descriptor it connected: `own`, unless another was noted.
#[inline(always)]
pub(crate) fn sender(task: Task, tgid: u32, own: u64, established: u64) -> u64 {
    match of(tgid) {
        Some(runtime) if runtime.kind == KIND_GO => uses::sender(task, tgid, own, established),
        _ => own,
    }
}

/// The task that the current thread runs, for text that it reads or writes (`TX`) by a TLS library. `write`: it writes by
/// this descriptor, whose socket is this.
#[inline(always)]
pub(crate) fn note_text<const TX: bool>(task: Task, thread: &mut Thread, tgid: u32, write: Option<(u32, u64)>) {
    thread.entity = match of(tgid) {
        Some(runtime) if thread.runtime != 0 => {
            let own = entity::<TX>(task, thread, runtime);
            match write {
                Some((fd, cookie)) => uses::writes(tgid, fd, own, cookie),
                None => own,
            }
        }
        _ => 0,
    };
}

/// The goroutine at `at` of a Go process, as `tracer_common::event::Op::entity`; 0 if its runtime is not known.
#[inline(always)]
pub(crate) fn goroutine(tgid: u32, at: u64) -> u64 {
    match of(tgid) {
        Some(runtime) if runtime.kind == KIND_GO && runtime.at[0] != AT_UNKNOWN => go::goroutine(runtime, at),
        _ => 0,
    }
}

/// The task `name` of a runtime, as `tracer_common::event::Op::entity`; 0: unknown task.
#[inline(always)]
fn named(runtime: &Runtime, name: u64) -> u64 {
    ((runtime.kind as u64) << ENTITY_BITS) | (name & ((1 << ENTITY_BITS) - 1))
}

#[inline(always)]
fn edge_seq(runtime: &Runtime) -> u64 {
    // SAFETY: one word of map memory, which others increment.
    unsafe { (&raw const runtime.edge_seq).read_volatile() }
}

/// Reports that `child` and `parent` of a process with this `runtime` have `relation`; both as `tracer_common::event::Op::entity`.
#[inline(always)]
fn task_edge(task: Task, tgid: u32, runtime: &'static Runtime, relation: u8, child: u64, parent: u64) {
    // Read the time before counting: anyone who sees the count sees a later time.
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: one word of map memory.
    let nth = unsafe { next((&raw const runtime.edge_seq).cast_mut()) } as u32;
    let watched = runtime.kind == KIND_TOKIO && runtime.at[1] == TOKIO_WATCHED;
    let record = TaskEdge {
        header: Header {
            kind: Kind::TaskEdge as u8,
            flags: watched as u8 * TASK_EDGE_WATCHED,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<TaskEdge>() as u32,
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

/// Increments; returns the new count.
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
