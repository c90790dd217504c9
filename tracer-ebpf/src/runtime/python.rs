//! `CPython`: a task is a context (`contextvars`); every task of an event loop runs in its own.
//!
//! The interpreter lock is released while a thread is in a system call, so the state of the thread is found by the thread:
//! its own data hold what `pthread_getspecific` would give. `Runtime::at`: where in a thread's own data the thread's state
//! is pointed to; where in that state the context is; where in it the thread's id; not 0 where uvloop is, which sends at the end of
//! a turn what was written during it.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    event::KIN_CREATED,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_PYTHON, Runtime, UserProbe},
};

use super::{hit, kin, named, of, uses};
use crate::{emit, kernel::task::Task, socket::user};

/// Of uvloop's streams (`UVHandle`, since 0.1): libuv's handle, behind an object's head and its table of functions.
const HANDLE: u64 = 24;
/// Of libuv's streams (version 1, public, on 64 bits): whose they are is their first word; their kind, and their descriptor.
const HANDLE_KIND: u64 = 16;
const HANDLE_DESCRIPTOR: u64 = 184;
/// `UV_NAMED_PIPE`, `UV_TCP`.
const STREAMS: [u32; 2] = [7, 12];

/// Whether it is noted who asks for what is sent.
#[inline(always)]
pub(super) fn is_noted(runtime: &Runtime) -> bool {
    runtime.at[3] != 0
}

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

/// hook: uprobe `PySet_Add`: uvloop's stream goes among those that are to be written to, in the context of who wrote.
#[uprobe]
pub(crate) fn python_writes(ctx: ProbeContext) -> u32 {
    hit(UserProbe::PythonWrites);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_PYTHON || runtime.at[0] == AT_UNKNOWN || !is_noted(runtime) {
        return 0;
    }
    let stream: u64 = ctx.arg(1).unwrap_or(0);
    let handle: u64 = user(stream.wrapping_add(HANDLE));
    // Any object may go into any set: libuv's handle says whose it is.
    if stream == 0 || user::<u64>(handle) != stream || !STREAMS.contains(&user(handle.wrapping_add(HANDLE_KIND))) {
        return 0;
    }
    let fd: u32 = user(handle.wrapping_add(HANDLE_DESCRIPTOR));
    uses::note_shared(tgid, fd, entity(task, runtime), named(runtime, 0));
    0
}
