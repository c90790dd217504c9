//! tokio: a task's number is in a thread-local value while the task is polled; numbers are never used again.
//!
//! `Runtime::at`: where that value is, from the thread's own data on; not 0 where it is told who wakes whom.

use aya_ebpf::{
    macros::{map, uprobe},
    maps::LruHashMap,
    programs::ProbeContext,
};
use tracer_common::{
    event::{KIN_CREATED, KIN_WOKE},
    limits::WOKEN_MAX,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_TOKIO, Runtime, UserProbe},
};

use super::{hit, kin, named, of};
use crate::{emit, kernel::task::Task, socket::user};

/// Of a task's own data (`runtime::task::core::Cell`, since 1.22; `repr(C)`): its number, behind the header and what
/// schedules it.
const NUMBER: u64 = 0x28;
/// They are counted from 1: none gets there, and addresses are beyond.
const NUMBERS_END: u64 = 1 << 40;

/// A task.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    tgid: u64,
    number: u64,
}

/// Tasks that were spawned or woken. Between tasks a worker has a number of its own, under which it wakes whatever can go on
/// because bytes came or time passed; that number is never woken, so it never gets here. Least recently used ones go first:
/// what one of them wakes next is not told.
#[map]
static WOKEN: LruHashMap<Key, u8> = LruHashMap::with_max_entries(WOKEN_MAX, 0);

/// Whether it is a task.
#[inline(always)]
fn is_task(key: &Key) -> bool {
    // SAFETY: not looked into.
    unsafe { WOKEN.get(key) }.is_some()
}

#[inline(always)]
fn remember(key: &Key) {
    if !is_task(key) {
        let _ = WOKEN.insert(key, &1, 0);
    }
}

/// The task the current thread polls; 0: none.
#[inline(always)]
fn polled(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    if own == 0 { 0 } else { user(own.wrapping_add(runtime.at[0])) }
}

/// The same as an entity; 0: a thread that runs no tasks.
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

/// hook: uprobe `tokio::runtime::task::list::OwnedTasks::bind_inner`. Emits [`tracer_common::event::Kin`].
#[uprobe]
pub(crate) fn tokio_spawned(ctx: ProbeContext) -> u32 {
    hit(UserProbe::TokioSpawned);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_TOKIO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let parent = polled(task, runtime);
    let made: u64 = ctx.arg(1).unwrap_or(0);
    let child: u64 = user(made.wrapping_add(NUMBER));
    if runtime.at[1] != 0 && child < NUMBERS_END {
        remember(&Key { tgid: tgid as u64, number: child });
    }
    if parent == 0 {
        // Nobody's.
        return 0;
    }
    // Whoever makes a task is older than it.
    if child >= NUMBERS_END || child <= parent {
        emit::count(Lost::Runtime);
        return 0;
    }
    kin(task, tgid, KIN_CREATED, named(runtime, child), named(runtime, parent));
    0
}

/// hook: uprobes in `tokio::runtime::task::waker::wake_by_val` and `wake_by_ref`. Emits [`tracer_common::event::Kin`].
#[uprobe]
pub(crate) fn tokio_woken(ctx: ProbeContext) -> u32 {
    hit(UserProbe::TokioWoken);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_TOKIO || runtime.at[0] == AT_UNKNOWN {
        return 0;
    }
    let header: u64 = ctx.arg(0).unwrap_or(0);
    let child: u64 = user(header.wrapping_add(NUMBER));
    let parent = polled(task, runtime);
    if child == 0 || child >= NUMBERS_END || parent >= NUMBERS_END {
        emit::count(Lost::Runtime);
        return 0;
    }
    remember(&Key { tgid: tgid as u64, number: child });
    // Outside of tasks, by itself, or by a worker that looked after its sockets and timers.
    if parent == 0 || parent == child || !is_task(&Key { tgid: tgid as u64, number: parent }) {
        return 0;
    }
    kin(task, tgid, KIN_WOKE, named(runtime, child), named(runtime, parent));
    0
}
