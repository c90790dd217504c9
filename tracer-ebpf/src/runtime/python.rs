//! `CPython`: a task is a context (`contextvars`); every task of an event loop runs in its own.
//!
//! A thread in a system call has released the interpreter lock, so the thread's state must be found through the thread:
//! its thread-local data holds what `pthread_getspecific` would return. `Runtime::at`: the offset of the pointer to the
//! thread's state in its thread-local data; the offset of the context in that state; the offset of the thread's id in
//! it; not 0 if uvloop is loaded, which sends at the end of a turn what was written during it.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    event::TASK_EDGE_CREATED,
    lost::Lost,
    runtime::{AT_UNKNOWN, KIND_PYTHON, Runtime, UserProbe},
};

use super::{hit, named, of, task_edge, uses};
use crate::{emit, kernel::task::Task, socket::user};

/// In uvloop's streams (`UVHandle`, since 0.1): libuv's handle, behind the object's header and its method table.
const HANDLE: u64 = 24;
/// In libuv's streams (version 1, public, on 64 bits): the first word points to the owner; then the kind and the
/// descriptor.
const HANDLE_KIND: u64 = 16;
const HANDLE_DESCRIPTOR: u64 = 184;
/// `UV_NAMED_PIPE`, `UV_TCP`.
const STREAMS: [u32; 2] = [7, 12];

/// Whether the kernel side notes which task caused each send.
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
    let state: u64 = user(own.wrapping_add(runtime.at[0]));
    if state == 0 {
        // Not an interpreter thread: a library's own.
        return 0;
    }
    let id: u64 = user(state + runtime.at[2]);
    if id != own {
        emit::count(Lost::Runtime);
        return named(runtime, 0);
    }
    named(runtime, user::<u64>(state + runtime.at[1]))
}

/// The state of the current thread; 0: it has none.
#[inline(always)]
pub(super) fn state(task: Task, runtime: &Runtime) -> u64 {
    let own = task.fsbase();
    let state: u64 = user(own.wrapping_add(runtime.at[0]));
    if own == 0 || user::<u64>(state.wrapping_add(runtime.at[2])) != own { 0 } else { state }
}

/// hook: uretprobe `PyContext_CopyCurrent`. Emits [`tracer_common::event::TaskEdge`].
#[uretprobe]
pub(crate) fn python_context(ctx: RetProbeContext) -> u32 {
    hit(&ctx, UserProbe::PythonContext);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    let made: u64 = ctx.ret();
    if runtime.kind != KIND_PYTHON || made == 0 {
        return 0;
    }
    task_edge(task, tgid, runtime, TASK_EDGE_CREATED, named(runtime, made), entity(task, runtime));
    0
}

/// hook: uprobe `PySet_Add`: uvloop adds a stream to the set to be written, in the context of the writing task.
#[uprobe]
pub(crate) fn python_writes(ctx: ProbeContext) -> u32 {
    hit(&ctx, UserProbe::PythonWrites);
    let task = Task::current();
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return 0 };
    if runtime.kind != KIND_PYTHON || runtime.at[0] == AT_UNKNOWN || !is_noted(runtime) {
        return 0;
    }
    let stream: u64 = ctx.arg(1).unwrap_or(0);
    let handle: u64 = user(stream.wrapping_add(HANDLE));
    // Any object may be added to any set: libuv's handle confirms its owner.
    if stream == 0 || user::<u64>(handle) != stream || !STREAMS.contains(&user(handle.wrapping_add(HANDLE_KIND))) {
        return 0;
    }
    let fd: u32 = user(handle.wrapping_add(HANDLE_DESCRIPTOR));
    uses::note_shared(tgid, fd, entity(task, runtime), named(runtime, 0));
    0
}
