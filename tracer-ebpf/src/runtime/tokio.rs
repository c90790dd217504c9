//! tokio: a thread-local value holds a task's number while the task is polled; tokio never reuses numbers.
//!
//! `Runtime::at`: the offset of that value in thread-local data; whether wake-ups between tasks are reported
//! ([`tracer_common::runtime::TOKIO_WATCHED`], [`tracer_common::runtime::TOKIO_WATCHABLE`]), or 0.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{map, uprobe},
    maps::LruHashMap,
    programs::ProbeContext,
};
use tracer_common::{
    event::{Header, Kind, TASK_EDGE_CLOSURE, TASK_EDGE_CREATED, TASK_EDGE_WOKE, WAKE_TASK, Wake},
    limits::WOKEN_MAX,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_TOKIO, Runtime, TOKIO_WATCHABLE, TOKIO_WATCHED, UserProbe, tokio_number_at},
};

use super::{hit, named, of, task_edge};
use crate::{
    emit,
    kernel::task::Task,
    sched::{counters_of_seen, used},
    socket::user,
    storage::THREADS,
};

/// In a task's data (`runtime::task::core::Cell`, since 1.22; `repr(C)`): its number, behind the header and the
/// scheduler.
const NUMBER: u64 = 0x28;
/// In a task's header: its table of functions. In that, behind seven of these: where the rest of the task's data is
/// ([`tokio_number_at`]).
const TABLE: u64 = 0x10;
const PLACES: u64 = 0x38;
/// In [`Runtime::at`], written here: when a wake-up was seen last, nanoseconds, give or take an eighth of how long that counts.
const WOKE_AT: usize = 2;
const WATCHED_FOR: u64 = 10_000_000_000;
/// Numbers count from 1 and never get this far; addresses are beyond.
const NUMBERS_END: u64 = 1 << 40;

/// A task.
#[repr(C)]
#[derive(Clone, Copy)]
struct TokioTaskKey {
    tgid: u64,
    number: u64,
}

/// Tasks that were spawned or woken. Between tasks a worker has a number of its own, under which it wakes every task
/// that bytes or timers unblocked; that number is never woken, so it never gets here. The least recently used go first:
/// a wake-up by an evicted task is not reported.
#[map]
static WOKEN: LruHashMap<TokioTaskKey, u8> = LruHashMap::with_max_entries(WOKEN_MAX, 0);

/// Whether the number is a task's.
#[inline(always)]
fn is_task(key: &TokioTaskKey) -> bool {
    // SAFETY: only presence is checked.
    unsafe { WOKEN.get(key) }.is_some()
}

#[inline(always)]
fn remember(key: &TokioTaskKey) {
    if !is_task(key) {
        let _ = WOKEN.insert(key, &1, 0);
    }
}

/// Whether wake-ups are watched now: always, or one was seen lately. Otherwise nothing asks which numbers are those of tasks, and a
/// task that was spawned meanwhile is remembered when it is woken.
#[inline(always)]
fn is_watched(runtime: &'static Runtime) -> bool {
    match runtime.at[1] {
        TOKIO_WATCHED => true,
        // SAFETY: no argument; one word of map memory, which other threads write.
        TOKIO_WATCHABLE => unsafe {
            bpf_ktime_get_ns().saturating_sub((&raw const runtime.at[WOKE_AT]).read_volatile()) < WATCHED_FOR
        },
        _ => false,
    }
}

/// Notes that a wake-up was seen.
#[inline(always)]
fn watched(runtime: &'static Runtime) {
    // SAFETY: no argument; one word of map memory. Not at each wake-up: all threads of the process read that cache line.
    unsafe {
        let (at, now) = ((&raw const runtime.at[WOKE_AT]).cast_mut(), bpf_ktime_get_ns());
        if now.saturating_sub(at.read_volatile()) > WATCHED_FOR / 8 {
            at.write_volatile(now);
        }
    }
}

/// The task the current thread polls; 0: none.
#[inline(always)]
fn polled(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    if own == 0 { 0 } else { user(own.wrapping_add(runtime.at[0])) }
}

/// The polled task as an entity; 0: the thread runs no tasks.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    let number = polled(task, runtime);
    if number == 0 {
        return 0;
    }
    if number >= NUMBERS_END {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, number)
}

/// hook: uprobe `tokio::runtime::task::list::OwnedTasks::bind_inner`. Emits [`tracer_common::event::TaskEdge`].
#[uprobe]
pub(crate) fn tokio_spawned(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::TokioSpawned);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of_tokio(tgid) else { return 0 };
    let parent = polled(task, runtime);
    let header: u64 = ctx.arg(1).unwrap_or(0);
    let child: u64 = user(header.wrapping_add(NUMBER));
    if is_watched(runtime) && child < NUMBERS_END {
        remember(&TokioTaskKey { tgid: tgid as u64, number: child });
    }
    if parent == 0 {
        // Spawned outside of any task.
        return 0;
    }
    made(task, tgid, runtime, TASK_EDGE_CREATED, child, parent);
    0
}

/// The runtime of a process, if it is tokio and where its tasks are is known.
#[inline(always)]
fn of_tokio(tgid: u32) -> Option<&'static Runtime> {
    of(tgid).filter(|runtime| runtime.kind == KIND_TOKIO && runtime.at[0] != AT_UNKNOWN)
}

/// Reports that `parent` made `child`, if these can be numbers of a task and of an older one.
#[inline(always)]
fn made(task: Task, tgid: u32, runtime: &'static Runtime, relation: u8, child: u64, parent: u64) {
    if child >= NUMBERS_END || child <= parent {
        emit::count(Lost::Runtime);
        return;
    }
    task_edge(task, tgid, runtime, relation, named(runtime, child), named(runtime, parent));
}

/// hook: uprobe `tokio::runtime::blocking::pool::Spawner::spawn_task`. Emits [`tracer_common::event::TaskEdge`].
///
/// Such a closure is a task of its own while a thread of the pool runs it. It is not remembered as one: the workers of a runtime are
/// closures, too, and have its number when they wake tasks for their sockets and timers.
#[uprobe]
pub(crate) fn tokio_closure(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::TokioClosure);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of_tokio(tgid) else { return 0 };
    let parent = polled(task, runtime);
    if parent == 0 {
        return 0;
    }
    let header: u64 = ctx.arg(1).unwrap_or(0);
    let table: u64 = user(header.wrapping_add(TABLE));
    let child: u64 = match tokio_number_at(user(table.wrapping_add(PLACES))) {
        Some(at) => user(header.wrapping_add(at)),
        None => 0,
    };
    made(task, tgid, runtime, TASK_EDGE_CLOSURE, child, parent);
    0
}

/// hook: uprobes in `tokio::runtime::task::waker::wake_by_val` and `wake_by_ref`. Emits
/// [`tracer_common::event::TaskEdge`] or [`Wake`].
#[uprobe]
pub(crate) fn tokio_woken(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::TokioWoken);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_TOKIO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    watched(runtime);
    let header: u64 = ctx.arg(0).unwrap_or(0);
    let child: u64 = user(header.wrapping_add(NUMBER));
    let parent = polled(task, runtime);
    if child == 0 || child >= NUMBERS_END || parent >= NUMBERS_END {
        emit::count(Lost::Runtime);
        return 0;
    }
    if parent == 0 {
        // First, as the verifier walks what follows once for each way to remember.
        woken_from_outside(task, tgid, named(runtime, child));
    }
    remember(&TokioTaskKey { tgid: tgid as u64, number: child });
    // Woken by itself, or by a worker that handled its sockets and timers.
    if parent == 0 || parent == child || !is_task(&TokioTaskKey { tgid: tgid as u64, number: parent }) {
        return 0;
    }
    task_edge(task, tgid, runtime, TASK_EDGE_WOKE, named(runtime, child), named(runtime, parent));
    0
}

/// A thread that runs no task woke one: what it did before was mostly for that one (`spawn_blocking`, a pool of threads). Threads that
/// hold a request run tasks, and wake others for their sockets.
#[inline(always)]
fn woken_from_outside(waker: Task, tgid: u32, entity: u64) {
    let thread = THREADS.get(waker.0, false);
    if thread.is_null() {
        return;
    }
    // SAFETY: not null; the current thread's own.
    let thread = unsafe { &mut *thread };
    // It has not left a CPU yet: nothing is known of it.
    if thread.holds != 0 || thread.base_at == 0 {
        return;
    }
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let record = Wake {
        header: Header {
            kind: Kind::Wake as u8,
            flags: WAKE_TASK,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Wake>() as u32,
            nanos: now,
            tgid,
            tid: waker.tid(),
        },
        wakee: 0,
        nth: 0,
        address: entity,
        slept_at: 0,
        given_at: 0,
        given_by: 0,
        reserved: 0,
        counters: counters_of_seen(waker, thread, used(waker, now), now),
    };
    emit::event(&record, Lost::RingThread);
}
