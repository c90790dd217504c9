//! Node.js: where an event loop's callbacks end, and its async ids.
//!
//! `Runtime::at`: not 0 if the probes see every end of a callback; the address, in the main thread's environment, of
//! the four numbers that name the current async resource (doubles: execution, trigger, counter, default trigger), 0 =
//! not known.

use aya_ebpf::{macros::uprobe, programs::ProbeContext};
use tracer_common::{
    event::TASK_EDGE_TURNED,
    runtime::{NODE_ID_BITS, NODE_SURE, Runtime, UserProbe},
};

use super::{hit, named, of, task_edge};
use crate::{
    kernel::task::Task,
    socket::user,
    storage::{THREADS, Thread},
};

/// What the current thread does, in the form of `tracer_common::runtime::NODE_SURE`.
#[inline(always)]
pub(super) fn entity<const TX: bool>(task: Task, thread: &mut Thread, runtime: &Runtime) -> u64 {
    if !TX {
        // The next turn ends this receive's callback.
        thread.received = 1;
    }
    let [execution, trigger, counter, _] = ids(task, runtime);
    let ids = ((execution & IDS) << NODE_ID_BITS) | (trigger & IDS);
    named(runtime, NODE_SURE | if TX { ids } else { counter & (NODE_SURE - 1) })
}

const IDS: u64 = (1 << NODE_ID_BITS) - 1;

/// The four numbers, for the main thread only: workers have their own.
#[inline(always)]
fn ids(task: Task, runtime: &Runtime) -> [u64; 4] {
    if runtime.at[1] == 0 || task.tid() != task.tgid() {
        return [0; 4];
    }
    let [execution, trigger, counter, default] = user::<[u64; 4]>(runtime.at[1]);
    [whole(execution), whole(trigger), whole(counter), default]
}

/// Bits of a double's fraction; the bias of its exponent.
const FRACTION: u64 = 52;
const BIAS: u64 = 1023;

/// The whole number a double (IEEE 754) represents; 0 if it is no whole number or less than 1.
#[inline(always)]
fn whole(bits: u64) -> u64 {
    let exponent = bits >> FRACTION;
    // Excludes negative ones, too.
    if !(BIAS..=BIAS + FRACTION).contains(&exponent) {
        return 0;
    }
    let fraction = (bits & ((1 << FRACTION) - 1)) | (1 << FRACTION);
    fraction >> ((BIAS + FRACTION - exponent) & 63)
}

/// The current thread's loop turns to something else.
#[inline(always)]
fn turned(ctx: &ProbeContext, probe: UserProbe) {
    hit(ctx, probe);
    let task = Task::current();
    let thread = THREADS.get(task.0, false);
    if thread.is_null() {
        return;
    }
    // SAFETY: not null, and the current thread's own.
    let thread = unsafe { &mut *thread };
    // From now on it runs another callback, even if the record is lost.
    thread.polls = thread.polls.wrapping_add(1);
    if thread.received == 0 {
        return;
    }
    thread.received = 0;
    let tgid = task.tgid();
    let Some(runtime) = of(tgid) else { return };
    let [_, _, counter, _] = ids(task, runtime);
    let counter = named(runtime, NODE_SURE | (counter & (NODE_SURE - 1)));
    task_edge(task, tgid, runtime, TASK_EDGE_TURNED, counter, named(runtime, 0));
}

/// hook: uprobe `node::Environment::RunTimers`.
#[uprobe]
pub(crate) fn node_timers(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodeTimers);
    0
}

/// hook: uprobe `node::Environment::CheckImmediate`.
#[uprobe]
pub(crate) fn node_immediates(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodeImmediates);
    0
}

/// hook: uprobe libuv's `uv__async_io`.
#[uprobe]
pub(crate) fn node_messages(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodeMessages);
    0
}

/// hook: uprobe libuv's `uv__server_io`.
#[uprobe]
pub(crate) fn node_accepts(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodeAccepts);
    0
}

/// hook: uprobe `node::ConnectionWrap<node::TCPWrap, uv_tcp_s>::AfterConnect`.
#[uprobe]
pub(crate) fn node_connects(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodeConnects);
    0
}

/// hook: uprobe `node::ConnectionWrap<node::PipeWrap, uv_pipe_s>::AfterConnect`.
#[uprobe]
pub(crate) fn node_pipes(ctx: ProbeContext) -> u32 {
    turned(&ctx, UserProbe::NodePipes);
    0
}
