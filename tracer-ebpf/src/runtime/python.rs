//! `CPython`: a task is a context (`contextvars`); every task of an event loop runs in its own.
//!
//! The interpreter lock is released while a thread is in a system call, so the state of the thread is found by the thread:
//! its own data hold what `pthread_getspecific` would give. `Runtime::at`: where in a thread's own data the thread's state
//! is pointed to; where in that state the context is; where in it the thread's id.

use aya_ebpf::{macros::uretprobe, programs::RetProbeContext};
use tracer_common::{
    event::KIN_CREATED,
    lost::Lost,
    runtime::{KIND_PYTHON, Runtime, UserProbe},
};

use super::{hit, kin, named, of};
use crate::{emit, kernel::task::Task, socket::user};

/// The context the current thread runs in.
#[inline(always)]
pub(super) fn entity(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    if own == 0 {
        return named(runtime, 0);
    }
    let state: u64 = user(own + runtime.at[0]);
    if state == 0 {
        // No thread of the interpreter: a library's own.
        return 0;
    }
    let id: u64 = user(state + runtime.at[2]);
    if id != own {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, user::<u64>(state + runtime.at[1]))
}

/// hook: uretprobe `PyContext_CopyCurrent`. Emits [`tracer_common::event::Kin`].
#[uretprobe]
pub(crate) fn python_context(ctx: RetProbeContext) -> u32 {
    hit(UserProbe::PythonContext);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    let made: u64 = ctx.ret();
    if runtime.kind != KIND_PYTHON || made == 0 {
        return 0;
    }
    kin(task, tgid, KIN_CREATED, named(runtime, made), entity(task, runtime));
    0
}
