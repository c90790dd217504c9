//! Whether a process's requests stay on the threads that read them.
//!
//! "Same thread, one request at a time" makes a call certain only if the thread works for the request it holds and for no
//! other. Runtimes that schedule requests themselves (Erlang, Java's virtual threads, Asio, .NET) let any thread go on
//! with any request: one thread reads a request, another sends its call, a third answers. There, a thread that holds one
//! request sends the calls of others. So this is a property of the process: once a thread that makes calls for the request
//! it holds is seen to share requests with other threads, no thread of its process stands for a request any more.
//!
//! A thread *crosses* if another thread answers a request that it read, if it answers one that another thread read while it
//! holds one itself, or if a call it sent and the reply of that call are handled by two threads. Threads that only read
//! requests and leave them to a pool (a reactor, a selector) cross as well, but make no calls for what they hold; threads
//! that only read replies send nothing. Neither makes a process doubtful.
//!
//! Where records are missing, a thread may share less than it seems. A verdict of such a time holds until nothing has been
//! missing for a while; then the process is judged again, and many more requests must stay than of a process that is new.
//!
//! Only requests that are open at the same time can be mixed up. A call sent while other threads of its process hold
//! requests waits until enough such requests were seen to stay on their threads, or for a while.

use smallvec::SmallVec;
use tracer_common::event::Op;
use tracer_model::{Nanos, Side};

use crate::cause::{Cause, ShownBy};
use crate::evidence::{Doubt, Evidence};
use crate::open_span::OpenSpan;
use crate::request_mobility::{PATIENCE, is_unknown};
use crate::slot::Slot;
use crate::task_identity::{is_looped, is_unique};
use crate::world::World;

/// Requests remembered per process as perhaps open; with more, every call may be another request's.
const REMEMBERED: usize = 64;

/// Requests of the process move between threads.
pub(crate) fn requests_move(world: &mut World, tgid: u32) {
    // Its calls so far are judged when they are reported.
    if world.processes.affinity.processes.len() < world.limits.processes
        || world.processes.affinity.processes.contains_key(&tgid)
    {
        let process = world.processes.affinity.processes.entry(tgid).or_default();
        (process.moves, process.seen_to_move, process.provisional) = (true, 0, false);
        process.open = SmallVec::new();
    } else {
        world.processes.affinity.reached += 1;
    }
}

/// Before an operation is handled: a thread of a process whose requests move stands for no request.
pub(crate) fn note(world: &mut World, op: &Op) {
    let header = &op.header;
    if world.processes.affinity.moves(header.tgid)
        && let Some(thread) = world.thread(header.tid, header.tgid, header.nanos)
    {
        thread.multiplexer = true;
    }
}

/// A thread read a request.
pub(crate) fn read(world: &mut World, slot: Slot, tgid: u32) {
    // Calls of a process without an entry are never sure while others of its requests are open.
    if world.processes.affinity.processes.len() >= world.limits.processes
        && !world.processes.affinity.processes.contains_key(&tgid)
    {
        world.processes.affinity.reached += 1;
        return;
    }
    let missing = are_missing(world);
    let process = world.processes.affinity.processes.entry(tgid).or_default();
    if let Some(live) = world.spans.get(slot) {
        process.works(live.tid);
    }
    if process.provisional && !missing {
        // It only seemed to move: calls are in doubt until enough requests stayed.
        process.withdraw(world.now);
        for (_, thread) in world.threads.iter_mut().filter(|(_, thread)| thread.tgid == tgid) {
            (thread.requests.crosses, thread.requests.collects) = (false, false);
        }
    }
    if process.is_known() {
        return;
    }
    let spans = &world.spans;
    if process.open.len() >= REMEMBERED {
        process.open.retain(|slot| spans.get(*slot).is_some_and(|live| live.end == 0));
    }
    if process.open.len() < REMEMBERED {
        process.open.push(slot);
    }
}

/// A call was sent. If its thread is the evidence for its parent, notes whether it may be another request's.
pub(crate) fn sent(world: &mut World, slot: Slot, op: &Op) {
    if has_own_identity(op) {
        return;
    }
    let (tid, tgid) = (op.header.tid, op.header.tgid);
    let Some(cause) = world.spans.get(slot).map(|live| live.client.cause) else { return };
    let claims = is_by_thread(&cause);
    let Some(thread) = world.threads.get_mut(&tid) else { return };
    thread.requests.calls |= cause.candidate.is_some();
    if thread.requests.sent() {
        crosses(world, tid, tgid);
    }
    if let Some(process) = world.processes.affinity.processes.get_mut(&tgid) {
        process.works(tid);
    }
    if !claims {
        return;
    }
    let others = may_be_of_others(world, tid, tgid);
    if let Some(live) = world.spans.get_mut(slot) {
        live.client.cause.others_open = others;
    }
}

/// Whether what a thread does for the request it holds may be for one that it does not hold: it is not known yet
/// whether the process's requests stay on their threads.
fn may_be_of_others(world: &World, tid: u32, tgid: u32) -> bool {
    // Where records are missing, a thread may work for a request that it no longer seems to hold.
    let holds = |slot: &Slot| world.threads.get(&tid).is_some_and(|thread| thread.open.contains(slot));
    let held = |slot: &Slot| world.spans.get(*slot).is_some_and(|live| live.end == 0) && !holds(slot);
    world.processes.affinity.processes.get(&tgid).is_none_or(|process| {
        !process.is_known()
            && (process.others_open || process.open.len() >= REMEMBERED || process.open.iter().any(held))
    })
}

/// A thread forked a process for the request it holds. Returns whether it may have been for another thread's.
pub(crate) fn forked(world: &mut World, tid: u32, tgid: u32) -> bool {
    if world.threads.get_mut(&tid).is_some_and(|thread| thread.requests.works()) {
        crosses(world, tid, tgid);
    }
    may_be_of_others(world, tid, tgid)
}

/// Thread `by` began the answer of a request.
pub(crate) fn answered(world: &mut World, slot: Slot, by: u32, op: &Op) {
    let Some(live) = world.spans.get(slot).filter(|live| !live.multiplexed && live.pid == op.header.tgid) else {
        return;
    };
    if has_own_identity(op) {
        return;
    }
    let (reader, tgid, since) = (live.tid, live.pid, live.start);
    let others_open = |slot: Option<Slot>| {
        let call = slot.and_then(|slot| world.spans.get(slot));
        call.is_some_and(|call| call.client.cause.is_certain() && call.client.cause.others_open)
    };
    let stays = reader == by && (live.server.forks || live.server.calls.iter().any(|time| others_open(time.call)));
    if world.threads.get_mut(&by).is_some_and(|thread| thread.requests.sent()) {
        crosses(world, by, tgid);
    }
    if reader == by {
        if stays
            && !has_gap(world, by, since)
            && let Some(process) = world.processes.affinity.processes.get_mut(&tgid)
        {
            process.stays();
        }
        return;
    }
    if is_unsure(world, tgid, [reader, by], since) {
        return;
    }
    crosses(world, reader, tgid);
    if world.threads.get(&by).is_some_and(|thread| !thread.open.is_empty()) {
        crosses(world, by, tgid);
    }
}

/// Thread `by` read the first byte of a call's reply.
pub(crate) fn collected(world: &mut World, slot: Slot, by: u32, op: &Op) {
    let of_one = |live: &&OpenSpan| {
        !live.multiplexed && !live.request.expected.timed && live.pid == op.header.tgid && live.tid != by
    };
    let Some(live) = world.spans.get(slot).filter(of_one) else { return };
    let (sender, tgid, since) = (live.tid, live.pid, live.start);
    if has_own_identity(op) || is_unsure(world, tgid, [sender, by], since) {
        return;
    }
    let Some(thread) = world.threads.get_mut(&by) else { return };
    if !thread.requests.sends {
        thread.requests.collects = true;
        return;
    }
    if let Some(process) = world.processes.affinity.processes.get_mut(&tgid) {
        process.calls_move = true;
    }
    crosses(world, sender, tgid);
    crosses(world, by, tgid);
}

/// Whether records of the threads are missing since `since`, so that they may share less than it seems: enough for a
/// doubt about calls of that time, and not for a verdict about the process.
fn is_unsure(world: &mut World, tgid: u32, threads: [u32; 2], since: Nanos) -> bool {
    let unsure = threads.into_iter().any(|tid| has_gap(world, tid, since));
    let has_lost = |tid| world.threads.get(tid).is_some_and(|thread| thread.lost_at >= since);
    let lost = threads.iter().any(has_lost);
    if unsure && let Some(process) = world.processes.affinity.processes.get_mut(&tgid) {
        // A thread that is gone, or has no room, is a weaker doubt than missing records.
        process.crossed = true;
        if lost {
            process.is_doubtful(world.now);
        }
    }
    unsure
}

/// Whether records of the thread are missing since `since`, as far as is known.
fn has_gap(world: &World, tid: u32, since: Nanos) -> bool {
    world.threads.get(&tid).is_none_or(|thread| thread.lost_at >= since)
}

fn crosses(world: &mut World, tid: u32, tgid: u32) {
    if let Some(process) = world.processes.affinity.processes.get_mut(&tgid) {
        process.crossed = true;
    }
    let Some(thread) = world.threads.get_mut(&tid).filter(|thread| thread.tgid == tgid) else { return };
    thread.requests.crosses = true;
    if thread.requests.moves() && !world.processes.affinity.moves(tgid) {
        requests_move(world, tgid);
        let missing = are_missing(world);
        if let Some(process) = world.processes.affinity.processes.get_mut(&tgid) {
            (process.seen_to_move, process.provisional) = (world.now, missing);
        }
    }
}

/// Whether records were lost so lately that what is missing may mislead.
fn are_missing(world: &World) -> bool {
    world.losses.cover(world.now) == Some(Evidence::EventsLost)
}

/// Whether it may still turn out that the request held by a call's thread is not the call's.
pub(crate) fn may_be_moved(world: &World, live: &OpenSpan) -> bool {
    if live.side == Side::Server {
        // A request waits for the calls it may have caused.
        let call = |slot: Slot| world.spans.get(slot).is_some_and(|call| call_may_be_moved(world, call));
        return live.server.calls.iter().filter_map(|time| time.call).any(call);
    }
    call_may_be_moved(world, live)
}

fn call_may_be_moved(world: &World, live: &OpenSpan) -> bool {
    let claims = live.side == Side::Client && is_by_thread(&live.client.cause);
    let unseen = || live.client.cause.others_open || world.losses.cover(live.start).is_some();
    !world.finishing && claims && live.deferred < PATIENCE && unseen() && is_unknown(world, live.pid)
}

/// Why the thread that sent the call does not show its request.
pub(crate) fn doubt(world: &World, live: &OpenSpan) -> Option<Doubt> {
    if live.side != Side::Client || !is_by_thread(&live.client.cause) {
        return None;
    }
    if world.processes.affinity.moves(live.pid) {
        return Some(Doubt::Moves);
    }
    let lost = world.losses.cover(live.start);
    if !is_unknown(world, live.pid) || !(live.client.cause.others_open || lost.is_some()) {
        return None;
    }
    // What is missing may have shown that they move.
    let unseen = lost == Some(Evidence::EventsLost)
        || world.threads.get(&live.tid).is_some_and(|thread| thread.lost_at >= live.start);
    let crossed = world.processes.affinity.processes.get(&live.pid).is_none_or(|process| process.crossed);
    (crossed || (live.client.cause.others_open && unseen)).then_some(Doubt::MayMove)
}

/// Whether the thread that sent a call is the evidence for its parent.
fn is_by_thread(cause: &Cause) -> bool {
    cause.is_certain() && cause.candidate.is_some() && cause.shown_by != ShownBy::Process
}

/// Whether the runtime names its tasks or callbacks: they show the request, whatever thread runs them.
fn has_own_identity(op: &Op) -> bool {
    is_looped(op) || is_unique(op.entity)
}
