//! Greenlets (`CPython`): the module keeps a thread's current greenlet in a thread-local value that lives as long as
//! the thread.
//!
//! `Runtime::at`: the module's offset in a thread's vector of modules (`dtv`), the offset of the pointer to the
//! thread's state in its thread-local data, and the address of the greenlet type that every thread's first greenlet
//! has.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use tracer_common::{
    event::TASK_EDGE_CREATED,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_GREENLET, Runtime, UserProbe},
};

use super::{hit, named, of, task_edge};
use crate::{emit, kernel::task::Task, socket::user};

/// In a thread's control block (`tcbhead_t`, glibc): its vector of modules.
const VECTOR: u64 = 8;
/// In a Python object: its type.
const TYPE: u64 = 8;

/// The greenlet the current thread runs; 0: the thread has none.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    if own == 0 {
        return named(runtime, 0);
    }
    let vector: u64 = user(own + VECTOR);
    let module: u64 = user(vector + runtime.at[0]);
    let state: u64 = user(module.wrapping_add(runtime.at[1]));
    // The thread's first greenlet, and its current one. Unreadable values are 0.
    let [first, current]: [u64; 2] = user(state);
    if first == 0 || current == 0 {
        return 0;
    }
    if user::<u64>(first.wrapping_add(TYPE)) != runtime.at[2] {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, current)
}

/// hook: uprobe `greenlet::UserGreenlet::UserGreenlet`, and `MainGreenlet`'s. Emits [`tracer_common::event::TaskEdge`].
#[uprobe]
pub(crate) fn python_greenlet(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::PythonGreenlet);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    let made: u64 = ctx.arg(1).unwrap_or(0);
    if runtime.kind != KIND_GREENLET || runtime.at[0] == AT_UNKNOWN || made == 0 {
        return 0;
    }
    task_edge(task, tgid, runtime, TASK_EDGE_CREATED, named(runtime, made), entity(task, runtime));
    0
}
