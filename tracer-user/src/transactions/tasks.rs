//! Applies the evidence of runtime tasks to calls: [`super::task_table`] decides, this module carries it out.

use tracer_common::event::{Op, TASK_EDGE_WATCHED, TaskEdge};
use tracer_common::runtime::{KIND_JAVA, KIND_TOKIO};

use super::begin::During;
use super::cause::{CallState, Candidate, Cause, Passed, ShownBy};
use super::combine::Vote;
use super::engine::Engine;
use super::evidence::{Doubt, Evidence};
use super::open_span::{CallTime, OpenSpan, Slot};
use super::task_table::{AnsweredRequest, Id, OtherRequests, Works, is_named, is_python, is_unique, kind};
use super::thread::Thread;
use crate::model::{Nanos, Side};

/// Times the report of a call is deferred until its task's request is known.
const PATIENCE: u8 = 40;
/// The same, if the only open question is whether its task serves a connection.
const LENT_PATIENCE: u8 = 8;
/// How long after a process's first request its runtime may be unknown, nanoseconds: detection inspects the program's
/// file.
const LOOKED_AT: Nanos = 250_000_000;
/// Open requests of a thread that are looked at when one is answered, the oldest first.
const OTHERS: usize = 256;

impl Engine {
    /// The process runs loops or tasks that interleave requests: one callback may serve several.
    pub fn has_loops(&mut self, tgid: u32) {
        if self.world.processes.interleaving.len() < self.world.limits.processes {
            self.world.processes.interleaving.insert(tgid);
        }
    }

    /// Number of missing task edges.
    pub fn kins_lost(&self) -> u64 {
        self.task_table.lost
    }

    /// Processes that began to serve requests since last taken.
    pub fn take_serving(&mut self) -> std::vec::Drain<'_, u32> {
        self.world.processes.served.drain(..)
    }

    pub(super) fn task_edge(&mut self, task_edge: &TaskEdge) {
        self.world.now = self.world.now.max(task_edge.header.nanos);
        let spans = &self.world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        self.task_table.task_edge(task_edge, task_edge.header.nanos, over);
        if task_edge.header.flags & TASK_EDGE_WATCHED != 0 {
            self.wakers.watch(task_edge.header.tgid);
        }
    }

    /// Marks the process as task-based on its first I/O with a task id.
    pub(super) fn note_task(&mut self, op: &Op) {
        if !is_unique(op.entity) {
            return;
        }
        let kind = kind(op.entity);
        // A process of Java may have threads of the system beside, which run no virtual ones.
        if kind != KIND_JAVA && !self.world.processes.interleaving.contains(&op.header.tgid) {
            self.has_loops(op.header.tgid);
        }
        if matches!(kind, KIND_TOKIO | KIND_JAVA)
            && let Some(thread) = self.world.thread(op.header.tid, op.header.tgid, op.header.nanos)
        {
            // The next task it polls may belong to any request.
            thread.multiplexer = true;
        }
    }

    /// Whether the call's process may still turn out to be task-based; evidence of its threads is trusted only after
    /// that is settled.
    pub(super) fn may_be_tasked(&self, live: &OpenSpan, now: Nanos) -> bool {
        let may_matter = match live.side {
            Side::Client => live.cause.shown_by == ShownBy::Thread && live.cause.candidate.is_some(),
            // A request waits for the calls it may have caused: they carry its trace id.
            Side::Server => !live.calls.is_empty(),
        };
        let since = self.world.processes.serving.get(&live.pid).filter(|_| may_matter);
        since.is_some_and(|since| now < since.saturating_add(LOOKED_AT) && !self.world.processes.interleaving.contains(&live.pid))
    }

    /// Why a call is doubtful that was made before the process was known to be task-based.
    pub(super) fn doubt_of_task(&self, live: &OpenSpan) -> Option<Doubt> {
        let by_thread = live.cause.shown_by == ShownBy::Thread;
        let early = live.side == Side::Client && by_thread && live.cause.candidate.is_some();
        (early && self.world.processes.interleaving.contains(&live.pid)).then_some(Doubt::BeforeTasks)
    }

    /// Whether only the task shows which request an operation belongs to.
    pub(super) fn is_tasked(&self, op: &Op) -> bool {
        is_unique(op.entity) || is_python(op.entity) || (op.entity == 0 && self.world.processes.interleaving.contains(&op.header.tgid))
    }

    /// Cause of a call that is being sent.
    pub(super) fn cause_of(&self, opener: Option<(Slot, Option<u32>)>, op: Option<During<'_>>) -> Cause {
        if let Some(cause) = op.and_then(|during| self.cause_after(during.op, during.after?)) {
            return cause;
        }
        if let Some(cause) = op.and_then(|during| self.cause_of_child(during.op)) {
            return cause;
        }
        let Some(during) = op.filter(|during| self.is_tasked(during.op)) else { return self.cause(opener, op) };
        if kind(during.op.entity) == KIND_TOKIO {
            let cause = self.cause(opener, op);
            let unknown = cause.candidate.is_none() && !cause.is_certain();
            let evidence = if unknown { Evidence::TaskUnknown } else { cause.evidence };
            return Cause { shown_by: ShownBy::TaskOrGroup, evidence, ..cause };
        }
        // A goroutine can continue on any thread; and a loop may run a task whose request was missed or not understood
        // while the only known request waits for its turn. The thread's evidence counts only for the task that read the
        // known request.
        let of_reader = |slot: Slot| self.world.spans.get(slot).is_some_and(|live| live.read_as == during.op.entity);
        let known = during.holder.or(opener.map(|(slot, _)| slot));
        let several = is_unique(during.op.entity)
            || (is_named(during.op.entity) && !known.is_none_or(of_reader))
            || self.world.threads.get(&during.op.header.tid).is_some_and(Thread::several);
        let cause = if several {
            // The thread's earlier work proves nothing.
            self.cause(None, Some(During { group: None, holder: None, ..during }))
        } else {
            self.cause(opener, op)
        };
        let evidence = if several && !cause.is_certain() { Evidence::TaskUnknown } else { cause.evidence };
        Cause { shown_by: ShownBy::Task, evidence, ..cause }
    }

    /// A call was sent: finds the request its task works for. Returns whether another task spawned that task.
    pub(super) fn sent_by_task(&mut self, slot: Slot, op: &Op) -> bool {
        let Some(live) = self.world.spans.get(slot).filter(|live| live.cause.is_tasked()) else { return false };
        if live.cause.is_certain() && live.cause.candidate.is_none() {
            // Its process serves no requests.
            return false;
        }
        if live.cause.evidence == Evidence::AfterReply {
            // The task has answered that request and will answer others: answers divide its time.
            return false;
        }
        let spans = &self.world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        let works = self.task_table.works(op, over);
        let waits: Id = if let Works::Undecided(id) = works { id } else { 0 };
        self.asked_by_task(slot, op, waits);
        match works {
            Works::For(answer, doubt) => {
                self.decide_by_task(slot, &answer, doubt);
                return true;
            }
            Works::Undecided(id) => {
                if self.task_table.waits(id, slot)
                    && let Some(live) = self.world.spans.get_mut(slot)
                    && !live.cause.is_certain()
                {
                    live.cause.state = CallState::AwaitsTask;
                    live.cause.evidence = Evidence::TaskWithoutRequest;
                }
                return self.task_table.is_made(id);
            }
            Works::Unknown(why) => {
                if let Some(live) = self.world.spans.get_mut(slot)
                    && live.cause.candidate.is_none()
                {
                    live.cause.evidence = why;
                }
            }
        }
        false
    }

    /// The task of an operation read a request.
    pub(super) fn read_by_task(&mut self, cookie: u64, op: &Op) {
        for (call, doubt) in self.task_table.reads(op, cookie) {
            let Some(live) = self.world.spans.get_mut(call) else { continue };
            match live.cause.state {
                CallState::DecidedByTask => live.cause.doubt = doubt,
                CallState::AwaitsTask => {
                    live.cause.state = CallState::Settled;
                    live.cause.evidence = doubt.map_or(Evidence::TaskWithoutRequest, Evidence::Doubtful);
                }
                _ => {}
            }
        }
    }

    /// The task of an operation begins the answer of a request.
    pub(super) fn answered_by_task(&mut self, slot: Slot, op: &Op) {
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        if is_unique(op.entity) {
            live.alone = false;
            if live.multiplexed {
                // One goroutine sends the answers of all streams of a connection, whatever goroutines work on them.
                return;
            }
        }
        let answer = AnsweredRequest { request: slot, kept: live.kept(), start: live.start };
        let (cookie, alone) = (live.cookie, !live.multiplexed);
        let of = (cookie, alone, self.other_requests(cookie, op));
        let spans = &self.world.spans;
        let over = |slot: Slot| spans.get(slot).is_none_or(|live| live.end != 0);
        for (call, doubt) in self.task_table.answers(op, answer, of, over) {
            self.decide_by_task(call, &answer, doubt);
        }
    }

    /// Requests of other connections that the thread of `op`, which answers one of connection `cookie`, has not answered.
    fn other_requests(&self, cookie: u64, op: &Op) -> OtherRequests {
        let Some(thread) = self.world.threads.get(&op.header.tid).filter(|_| is_python(op.entity)) else {
            return OtherRequests::None;
        };
        let open = thread.open.iter().take(OTHERS).filter_map(|slot| self.world.spans.get(*slot));
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

    /// The task's evidence: the call was made for the request of `answer`.
    pub(super) fn decide_by_task(&mut self, call: Slot, answer: &AnsweredRequest, doubt: Option<Doubt>) {
        let Some(live) = self.world.spans.get_mut(call).filter(|live| live.side == Side::Client) else { return };
        let is_decided = live.cause.state == CallState::DecidedByTask;
        let several = (live.cause.passed == Passed::ToSeveral).then_some(Doubt::SeveralTasks);
        let mut doubt = several.or(doubt);
        if doubt == Some(Doubt::SharedConnection) && !is_decided && !live.cause.is_certain() {
            if !live.passed_on {
                live.provisional_parent = Some(Box::new(*answer));
                live.cause.state = CallState::AwaitsTask;
                return;
            }
            doubt = None;
        }
        if is_decided {
            // Only a doubt can still change the decision.
            live.cause.doubt = doubt.or(live.cause.doubt);
            return;
        }
        if live.cause.is_certain() {
            // The thread's evidence stands unless the task's contradicts it.
            if live.cause.request() != Some(answer.request) {
                (live.cause.evidence, live.cause.vote) = (Evidence::Contradicted, Vote::Split);
            }
            return;
        }
        if live.start < answer.start {
            (live.cause.evidence, live.cause.state) = (Evidence::SentBeforeTask, CallState::Settled);
            return;
        }
        let is_passed = live.cause.passed != Passed::No;
        live.cause.state = CallState::DecidedByTask;
        live.cause.candidate = Some(Candidate { slot: answer.request, kept: answer.kept });
        live.cause.evidence = if is_passed { Evidence::TaskPassed } else { Evidence::TaskAnswered };
        (live.cause.doubt, live.cause.vote) = (doubt, Vote::For(answer.request));
        live.cause.taken = None;
        let time = CallTime { call: Some(call), start: live.start, end: live.end };
        if time.end != 0
            && let Some(request) = self.world.spans.get_mut(answer.request)
        {
            request.add_call(time);
        }
    }

    /// A task sends a call on a connection. If another task sent on it before, that one does not serve the connection:
    /// otherwise it alone would have gone on sending.
    pub(super) fn passed_on(&mut self, cookie: u64, call: Slot, entity: u64) {
        if kind(entity) != KIND_TOKIO || !is_named(entity) {
            return;
        }
        let Some(connection) = self.world.connections.get_mut(&cookie) else { return };
        for before in connection.sends(entity, call) {
            let Some(live) = self.world.spans.get_mut(before) else { continue };
            live.passed_on = true;
            if let Some(answer) = live.provisional_parent.take() {
                self.decide_by_task(before, &answer, Some(Doubt::SharedConnection));
            }
        }
    }

    /// Whether a call still waits for its task's request; if not, ends the wait.
    pub(super) fn still_waits(&mut self, slot: Slot, now: Nanos) -> bool {
        // Under pressure, calls of tasks that answer no request must not crowd out other spans.
        let crowded = self.world.spans.len() > self.world.limits.spans / 2;
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.cause.state == CallState::AwaitsTask) else {
            return false;
        };
        let patience = if live.provisional_parent.is_some() { LENT_PATIENCE } else { PATIENCE };
        let seen = live.cause.shown_by == ShownBy::TaskOrGroup
            && matches!(live.cause.vote, Vote::For(slot) if live.cause.request() == Some(slot));
        if now != Nanos::MAX && !crowded && live.deferred < patience && !seen {
            return true;
        }
        live.cause.state = CallState::AwaitsResult;
        let (tgid, task, passed) = (live.pid, live.cause.task, live.cause.passed != Passed::No);
        // A task that sends for others would have shown for which request by now.
        if task != 0
            && live.first_reply != 0
            && self.wakers.is_own(tgid, task, passed)
            && let Some(answer) = live.provisional_parent.take()
        {
            live.passed_on = true;
            self.decide_by_task(slot, &answer, Some(Doubt::SharedConnection));
        }
        false
    }
}
