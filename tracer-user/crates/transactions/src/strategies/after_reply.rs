//! Work after the reply (`fastcgi_finish_request`, hooks and deferred functions that run once a response is sent): a
//! worker that serves one request at a time keeps working for that request until it waits for the next one or reads it.
//!
//! What a thread does after a wait shows whether it waited for the next request. It still works for the same request if
//! it reads the reply of a call it made for that request, or uses a connection it opened for it. Any other wait ends
//! the work, except a sleep of a process's first thread, which takes no jobs from a pool's queue. Any read of an
//! accepted connection ends it too, and any unreported receive: it may have been a request. Event loops have their own
//! evidence, or none.

use tracer_common::event::{OP_EOF, Op, State, ThreadCounters};
use tracer_model::{Direction, Nanos, Side};

use crate::after_reply::Answered;
use crate::cause::{Cause, ShownBy};
use crate::evidence::Evidence;
use crate::open_span::OpenSpan;
use crate::slot::{Slot, SpanRef};
use crate::task_identity::{is_looped, is_unique};
use crate::thread::Target;
use crate::world::World;

/// The thread of `op` reads request `exchange` of the connection.
pub(crate) fn read(world: &mut World, op: &Op, exchange: u64) {
    let Some(thread) = world.threads.get_mut(&op.header.tid) else { return };
    thread.after_reply = None;
    let before = std::mem::replace(&mut thread.serving.cookie, op.cookie);
    thread.serving.returns |= exchange > 0 && before != op.cookie;
}

/// The reply of `request` ends with `op`: returns the state to keep if the thread goes on working for the request.
pub(crate) fn goes_on_after(world: &World, request: Slot, op: &Op) -> Option<Answered> {
    let live = world.spans.get(request)?;
    let thread = world.threads.get(&op.header.tid)?;
    let alone = live.side == Side::Server && live.alone && !live.multiplexed && !live.batch;
    let serves = alone && thread.holder() == Some(request) && thread.open.len() == 1 && !thread.serving.is_loop();
    (serves && !has_own_evidence(world, op)).then(|| Answered::new(request, live.kept(), op))
}

/// Whether the runtime moves tasks between threads, or may do so.
fn has_own_evidence(world: &World, op: &Op) -> bool {
    is_looped(op) || is_unique(op.entity) || (op.entity == 0 && world.is_tasked(op))
}

/// Returns the request the thread answered last if `op` shows that it still works for it. `awaited`: the span whose
/// reply `op` carries; `continues`: `op` carries the rest of a known request.
pub(crate) fn still_after(
    world: &mut World,
    op: &Op,
    dir: Direction,
    awaited: Option<Slot>,
    continues: bool,
) -> Option<Slot> {
    let tasked = has_own_evidence(world, op);
    let connection = world.connections.get(&op.cookie);
    let used = connection.is_some_and(|connection| connection.used);
    let dialled = connection.is_some_and(|connection| connection.talk.dialled_or_asks());
    let calls_for = awaited.and_then(|slot| world.spans.get(slot)).filter(|live| live.side == Side::Client);
    let calls_for = calls_for.and_then(|call| call.client.cause.request());
    let thread = world.threads.get_mut(&op.header.tid)?;
    if dir == Direction::Rx && !dialled {
        thread.serving.polls |= thread.counters.polls != op.counters.polls;
    }
    let mut after = thread.after_reply.take()?;
    let own = after.connections.contains(&op.cookie);
    let first = op.header.tid == op.header.tgid;
    let goes_on = match dir {
        _ if tasked => false,
        Direction::Rx if op.cookie == after.cookie => {
            (continues || op.header.flags & OP_EOF != 0) && op.counters.reads.wrapping_sub(after.reads) <= 1
        }
        // Servers that speak first greet a client that has just connected.
        Direction::Rx if awaited.is_some() => dialled && calls_for == Some(after.request),
        Direction::Rx => dialled && (own || (op.pos == 0 && !used)),
        Direction::Tx if op.cookie == after.cookie => true,
        Direction::Tx if op.entity != after.entity => false,
        Direction::Tx => dialled && ((own && !used) || after.goes_on(&op.counters, first)),
    };
    if !goes_on {
        return None;
    }
    after.see(&op.counters);
    let request = after.request;
    if op.cookie != after.cookie {
        after.uses(op.cookie);
        if let Some(live) = world.spans.get_mut(request) {
            live.server.after_reply_until = op.header.nanos;
        }
    }
    thread.after_reply = Some(after);
    Some(request)
}

/// A thread connects: returns the request it answered last if it still works for it.
pub(crate) fn connects_after(world: &mut World, state: &State) -> Option<Slot> {
    let tid = state.header.tid;
    let after = world.threads.get_mut(&tid)?.after_reply.as_mut()?;
    if !after.goes_on(&state.counters, tid == state.header.tgid) {
        return None;
    }
    after.uses(state.cookie);
    Some(after.request)
}

/// The request that a thread answered last, if it still works for it by its `counters`. `first`: it is its process's first thread.
pub(crate) fn still_worked_for(world: &World, tid: u32, first: bool, counters: &ThreadCounters) -> Option<Slot> {
    let after = world.threads.get(&tid)?.after_reply.as_ref()?;
    after.goes_on(counters, first).then_some(after.request)
}

/// What the thread works for after a reply, as of its latest operation.
pub(crate) fn target_after(world: &World, tid: u32) -> Option<Target> {
    let after = world.threads.get(&tid)?.after_reply.as_ref()?;
    let (_, _, service, class) = after.kept;
    Some(match world.spans.get(after.request) {
        Some(live) => Target::Span { slot: after.request, class: live.class, service },
        None => Target::Span { slot: after.request, class, service },
    })
}

/// Like [`target_after`], at a counter report without an operation, which may show that the thread waits
/// for the next request.
pub(crate) fn target_after_tick(world: &mut World, tid: u32, first: bool, counters: &ThreadCounters) -> Option<Target> {
    let target = target_after(world, tid);
    let thread = world.threads.get_mut(&tid)?;
    if !thread.after_reply.as_ref()?.goes_on(counters, first) {
        thread.after_reply = None;
        return None;
    }
    target
}

/// The cause of a call sent by `op`: `request`, if the thread has answered it and still works for it.
pub(crate) fn cause(world: &World, op: &Op, request: Slot) -> Option<Cause> {
    let after = world.threads.get(&op.header.tid)?.after_reply.as_ref().filter(|after| after.request == request)?;
    let kept = world.spans.get(request).map_or(after.kept, OpenSpan::kept);
    let shown_by = if world.is_tasked(op) { ShownBy::Task } else { ShownBy::Thread };
    Some(Cause { shown_by, ..Cause::of(request, kept, Evidence::AfterReply) })
}

/// The request is reported: later work of its thread for it refers to the reported ids.
pub(crate) fn reported(world: &mut World, tid: u32, request: Slot, kept: SpanRef) {
    let after = world.threads.get_mut(&tid).and_then(|thread| thread.after_reply.as_mut());
    if let Some(after) = after.filter(|after| after.request == request) {
        after.kept = kept;
    }
}

/// Whether a thread worked for the request after its reply, within the last grace period.
pub(crate) fn is_worked_for(world: &World, slot: Slot, now: Nanos) -> bool {
    world.spans.get(slot).is_some_and(|live| {
        live.server.after_reply_until != 0 && live.server.after_reply_until.saturating_add(world.limits.grace) > now
    })
}
