//! Greenlets (`CPython`): threads keep the one that runs in a thread-local value of the module, which lives as long as its thread.
//!
//! `Runtime::at`: where in a thread's vector of modules (`dtv`) the module is, where in its thread-local data the thread's state is
//! pointed to, and the address of the type of greenlets, which every thread's first one has.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use tracer_common::{
    event::KIN_CREATED,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_GREENLET, Runtime, UserProbe},
};

use super::{hit, kin, named, of};
use crate::{emit, kernel::task::Task, socket::user};

/// Of a thread's own data (`tcbhead_t`, glibc): its vector of modules.
const VECTOR: u64 = 8;
/// Of an object of Python: its type.
const TYPE: u64 = 8;

/// The greenlet the current thread runs; 0: a thread that has none.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    if own == 0 {
        return named(runtime, 0);
    }
    let vector: u64 = user(own + VECTOR);
    let module: u64 = user(vector + runtime.at[0]);
    let state: u64 = user(module.wrapping_add(runtime.at[1]));
    // The first greenlet of the thread, and the one that runs. What cannot be read is 0.
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

/// hook: uprobe `greenlet::UserGreenlet::UserGreenlet`, and `MainGreenlet`'s. Emits [`tracer_common::event::Kin`].
#[uprobe]
pub(crate) fn python_greenlet(ctx: ProbeContext) -> u32 {
    hit(UserProbe::PythonGreenlet);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    let made: u64 = ctx.arg(1).unwrap_or(0);
    if runtime.kind != KIND_GREENLET || runtime.at[0] == AT_UNKNOWN || made == 0 {
        return 0;
    }
    kin(task, tgid, KIN_CREATED, named(runtime, made), entity(task, runtime));
    0
}
