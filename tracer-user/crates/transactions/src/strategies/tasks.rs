//! Applies the evidence of runtime tasks to calls: [`crate::task_table`] decides, this module carries it out.

mod decision;
pub(crate) mod wakers;

use tracer_common::event::{Header, Op, TASK_EDGE_WATCHED, TaskEdge, Wake};
use tracer_common::runtime::{KIND_JAVA, KIND_TOKIO};
use tracer_model::{Nanos, Side};

use crate::cause::{CallState, Passed, ShownBy};
use crate::combine::Vote;
use crate::evidence::{Doubt, Evidence};
use crate::open_span::OpenSpan;
use crate::slot::Slot;
use crate::strategies::tasks::decision::decide_by_task;
use crate::strategies::tasks::wakers::Wakers;
use crate::task_identity::{is_named, is_python, is_unique, kind};
use crate::task_table::{AnsweredRequest, Id, OtherRequests, TaskTable, Works};
use crate::thread::Target;
use crate::world::World;

/// Times the report of a call is deferred until its task's request is known.
const PATIENCE: u8 = 40;
/// The same, if the only open question is whether its task serves a connection.
const LENT_PATIENCE: u8 = 8;
/// How long after a process's first request its runtime may be unknown, nanoseconds: detection inspects the program's
/// file.
const LOOKED_AT: Nanos = 250_000_000;
/// Open requests of a thread that are looked at when one is answered, the oldest first.
const OTHERS: usize = 256;

/// Tasks of all processes, and the wake-ups between them.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// Which task works for which request.
    pub(crate) table: TaskTable,
    /// Wake-ups between tasks, in processes where they are traced.
    pub(crate) wakers: Wakers,
}

impl Tasks {
    /// Tables for at most `limit` tasks each.
    pub(crate) fn within(limit: usize) -> Self {
        Self { table: TaskTable::within(limit), wakers: Wakers::within(limit) }
    }

    /// The process has exited.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.table.forget(tgid);
        self.wakers.forget(tgid);
    }

    /// Records of the process are missing.
    pub(crate) fn lose(&mut self, tgid: u32, now: Nanos) {
        self.table.lose(tgid, now);
        self.wakers.lose(tgid);
    }

    /// A task woke another one.
    pub(crate) fn woken(&mut self, world: &mut World, task_edge: &TaskEdge) {
        self.wakers.woken(world, &mut self.table, task_edge);
    }
}

/// Marks the process as task-based on its first I/O with a task id.
pub(crate) fn note(world: &mut World, op: &Op) {
    if !is_unique(op.entity) {
        return;
    }
    let kind = kind(op.entity);
    // A process of Java may have threads of the system beside, which run no virtual ones.
    if kind != KIND_JAVA && !world.processes.interleaving.contains(&op.header.tgid) {
        world.interleaves(op.header.tgid);
    }
    if matches!(kind, KIND_TOKIO | KIND_JAVA)
        && let Some(thread) = world.thread(op.header.tid, op.header.tgid, op.header.nanos)
    {
        // The next task it polls may belong to any request.
        thread.multiplexer = true;
    }
}

/// Whether the call's process may still turn out to be task-based; evidence of its threads is trusted only after
/// that is settled.
pub(crate) fn may_be_tasked(world: &World, live: &OpenSpan, now: Nanos) -> bool {
    let may_matter = match live.side {
        Side::Client => live.client.cause.shown_by == ShownBy::Thread && live.client.cause.candidate.is_some(),
        // A request waits for the calls it may have caused: they carry its trace id.
        Side::Server => !live.server.calls.is_empty(),
    };
    let since = world.processes.serving.get(&live.pid).filter(|_| may_matter);
    since
        .is_some_and(|since| now < since.saturating_add(LOOKED_AT) && !world.processes.interleaving.contains(&live.pid))
}

/// Why a call is doubtful that was made before the process was known to be task-based.
pub(crate) fn doubt(world: &World, live: &OpenSpan) -> Option<Doubt> {
    let by_thread = live.client.cause.shown_by == ShownBy::Thread;
    let early = live.side == Side::Client && by_thread && live.client.cause.candidate.is_some();
    (early && world.processes.interleaving.contains(&live.pid)).then_some(Doubt::BeforeTasks)
}

/// Requests of other connections that the thread of `op`, which answers one of connection `cookie`, has not answered.
fn other_requests(world: &World, cookie: u64, op: &Op) -> OtherRequests {
    let Some(thread) = world.threads.get(&op.header.tid).filter(|_| is_python(op.entity)) else {
        return OtherRequests::None;
    };
    let open = thread.open.iter().take(OTHERS).filter_map(|slot| world.spans.get(*slot));
    let others = open.filter(|live| live.cookie != cookie && live.end == 0 && live.first_reply == 0);
    let mut unnamed = false;
    for live in others {
        if live.read_as == op.entity {
            return OtherRequests::Own;
        }
        unnamed |= live.read_as == 0;
    }
    if unnamed { OtherRequests::Unnamed } else { OtherRequests::None }
}

/// A task sends a call on a connection. If another task sent on it before, that one does not serve the connection:
/// otherwise it alone would have gone on sending.
pub(crate) fn passed_on(world: &mut World, cookie: u64, call: Slot, entity: u64) {
    if kind(entity) != KIND_TOKIO || !is_named(entity) {
        return;
    }
    let Some(connection) = world.connections.get_mut(&cookie) else { return };
    for before in connection.sends(entity, call) {
        let Some(live) = world.spans.get_mut(before) else { continue };
        live.client.passed_on = true;
        if let Some(answer) = live.client.provisional_parent.take() {
            decide_by_task(world, before, &answer, Some(Doubt::SharedConnection));
        }
    }
}

impl Tasks {
    pub(crate) fn task_edge(&mut self, world: &mut World, task_edge: &TaskEdge) {
        world.advance(task_edge.header.nanos);
        let spans = &world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        self.table.task_edge(task_edge, task_edge.header.nanos, over);
        if task_edge.header.flags & TASK_EDGE_WATCHED != 0 {
            self.wakers.watch(task_edge.header.tgid);
        }
    }

    /// A call was sent: finds the request its task works for. Returns whether another task spawned that task.
    pub(crate) fn sent(&mut self, world: &mut World, slot: Slot, op: &Op) -> bool {
        let Some(live) = world.spans.get(slot).filter(|live| live.client.cause.is_tasked()) else { return false };
        if live.client.cause.is_certain() && live.client.cause.candidate.is_none() {
            // Its process serves no requests.
            return false;
        }
        if live.client.cause.evidence == Evidence::AfterReply {
            // The task has answered that request and will answer others: answers divide its time.
            return false;
        }
        if self.table.is_closure(op.header.tgid, op.entity)
            && let Some(thread) = world.thread(op.header.tid, op.header.tgid, op.header.nanos)
        {
            thread.closure = op.entity;
        }
        let spans = &world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        let works = self.table.works(op, over);
        let waits: Id = if let Works::Undecided(id) = works { id } else { 0 };
        self.wakers.asked(world, &self.table, slot, op, waits);
        match works {
            Works::For(answer, doubt) => {
                decide_by_task(world, slot, &answer, doubt);
                return true;
            }
            Works::Undecided(id) => {
                if self.table.waits(id, slot)
                    && let Some(live) = world.spans.get_mut(slot)
                    && !live.client.cause.is_certain()
                {
                    live.client.cause.state = CallState::AwaitsTask;
                    live.client.cause.evidence = Evidence::TaskWithoutRequest;
                }
                return self.table.is_made(id);
            }
            Works::Unknown(why) => {
                if let Some(live) = world.spans.get_mut(slot)
                    && live.client.cause.candidate.is_none()
                {
                    live.client.cause.evidence = why;
                }
            }
        }
        false
    }

    /// The task of an operation read a request.
    pub(crate) fn read(&mut self, world: &mut World, cookie: u64, op: &Op) {
        if kind(op.entity) == KIND_TOKIO
            && let Some(thread) = world.thread(op.header.tid, op.header.tgid, op.header.nanos)
        {
            thread.serves_tasks = true;
        }
        for (call, doubt) in self.table.reads(op, cookie) {
            let Some(live) = world.spans.get_mut(call) else { continue };
            match live.client.cause.state {
                CallState::DecidedByTask => live.client.cause.doubt = doubt,
                CallState::AwaitsTask => {
                    live.client.cause.state = CallState::Settled;
                    live.client.cause.evidence = doubt.map_or(Evidence::TaskWithoutRequest, Evidence::Doubtful);
                }
                _ => {}
            }
        }
    }

    /// A thread that runs no task woke one: the closure that it made its last call in is over. Its end wakes the task that waits for its
    /// result, so that it served no other task shows there; a closure that serves many ends when none waits for it.
    pub(crate) fn closure_ended(&mut self, world: &mut World, wake: &Wake) {
        let Header { tgid, tid, nanos, .. } = wake.header;
        let Some(thread) = world.thread(tid, tgid, nanos) else { return };
        let closure = std::mem::take(&mut thread.closure);
        if closure != 0 && is_named(wake.address) {
            self.table.took(tgid, closure, wake.address);
        }
    }

    /// A thread that runs no task woke one: the request that its work since then belongs to, if that is to be charged now. It is the only
    /// one that the task, or the one that spawned it, has read and not answered.
    pub(crate) fn worked_for(&self, world: &mut World, wake: &Wake) -> Option<Target> {
        let Header { tgid, tid, nanos, .. } = wake.header;
        if !is_named(wake.address) {
            return None;
        }
        // A runtime on one thread wakes tasks for their sockets between them.
        let thread = world.thread(tid, tgid, nanos)?;
        if thread.serves_tasks {
            return None;
        }
        let spans = &world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        let request = self.table.reader(tgid, wake.address, &over).and_then(|(reader, cookie)| {
            let of_reader = |live: &OpenSpan| live.side == Side::Server && live.read_as == reader && live.end == 0;
            let connection = world.connections.get(&cookie)?;
            let mut open = connection.spans().filter(|slot| spans.get(*slot).is_some_and(of_reader));
            let first = open.next()?;
            (open.next().is_none() && spans.get(first).is_some_and(|live| !live.multiplexed)).then_some(first)
        });
        Some(request.map_or(Target::Overhead, |slot| Target::of(spans, slot)))
    }

    /// The task of an operation begins the answer of a request.
    pub(crate) fn answered(&mut self, world: &mut World, slot: Slot, op: &Op) {
        let Some(live) = world.spans.get_mut(slot) else { return };
        if is_unique(op.entity) {
            live.alone = false;
            if live.multiplexed {
                // One goroutine sends the answers of all streams of a connection, whatever goroutines work on them.
                return;
            }
        }
        let answer = AnsweredRequest { request: slot, kept: live.kept(), start: live.start };
        let (cookie, alone) = (live.cookie, !live.multiplexed);
        let of = (cookie, alone, other_requests(world, cookie, op));
        let spans = &world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        for (call, doubt) in self.table.answers(op, answer, of, over) {
            decide_by_task(world, call, &answer, doubt);
        }
    }

    /// Whether a call still waits for its task's request; if not, ends the wait.
    pub(crate) fn still_waits(&mut self, world: &mut World, slot: Slot, now: Nanos) -> bool {
        // Under pressure, calls of tasks that answer no request must not crowd out other spans.
        let crowded = world.spans.len() > world.limits.spans / 2;
        let Some(live) = world.spans.get_mut(slot).filter(|live| live.client.cause.state == CallState::AwaitsTask)
        else {
            return false;
        };
        let patience = if live.client.provisional_parent.is_some() { LENT_PATIENCE } else { PATIENCE };
        let seen = live.client.cause.shown_by == ShownBy::TaskOrGroup
            && matches!(live.client.cause.vote, Vote::For(slot) if live.client.cause.request() == Some(slot));
        if now != Nanos::MAX && !crowded && live.deferred < patience && !seen {
            return true;
        }
        live.client.cause.state = CallState::AwaitsResult;
        let (tgid, task, passed) = (live.pid, live.client.cause.task, live.client.cause.passed != Passed::No);
        // A task that sends for others would have shown for which request by now.
        if task != 0
            && live.first_reply != 0
            && self.wakers.is_own(tgid, task, passed)
            && let Some(answer) = live.client.provisional_parent.take()
        {
            live.client.passed_on = true;
            decide_by_task(world, slot, &answer, Some(Doubt::SharedConnection));
        }
        false
    }
}
