//! Jobs: what a worker does from the reply that gave it one until it asks for the next. A job is a span of a consumer,
//! linked to the request that put it into the queue.
//!
//! The thread (or the task, where a runtime names tasks) that asks, reads a job and asks again works for that job
//! meanwhile. It holds the job like a request, and its next question for one of the queues it takes jobs from is the
//! answer. A question for another queue is a call of the job: it may wait for the result of another one.
//!
//! A thread that does something else meanwhile shows it: it reads from a connection on which it sent nothing for the job,
//! or it waits in a poller and then sends something that nothing it read caused. From then on its calls are not certainly
//! the job's. Nor are they before the worker has asked its queue again: a thread may take one element, the result of another
//! program, and go on with something else. Workers that hand their jobs to a pool (Celery), and event loops, hold none: their jobs end where they begin,
//! and only their number, queue and name are known.
//!
//! Both ends of a queue are known by the server's address and the element: the same bytes go in and come out. Equal elements
//! at the same time prove nothing.

use std::hash::{Hash as _, Hasher as _};

use rustc_hash::FxHasher;
use tracer_common::event::Op;
use tracer_model::{Cost, Direction, Linked, Nanos, Outcome, ProtocolId, Side, TraceId};
use tracer_protocols::jobs::{JobEvent, LISTED, TakenJob, joined};
use tracer_protocols::messaging::PROCESS;
use tracer_protocols::{ExpectedReply, NOWHERE, Request, Stamp};

use crate::engine::Engine;
use crate::engine::begin::Begun;
use crate::engine::report::DEFERRALS;
use crate::evidence::Evidence;
use crate::jobs::{AskedQueue, EXCHANGES, HeldJob, Jobs, Producer, QUEUES, Worker, WorkerId};
use crate::open_span::OpenSpan;
use crate::operation_context::OperationContext;
use crate::output::Output;
use crate::slot::Slot;
use crate::strategies::thread_affinity;
use crate::task_identity::{is_looped, is_named, is_unique};
use crate::thread::Thread;

impl Engine {
    /// A message of a client shows something of jobs.
    pub(super) fn on_job(
        &mut self,
        (cookie, exchange): (u64, u64),
        job: JobEvent,
        during: Option<OperationContext<'_>>,
        out: &mut Vec<Output>,
    ) {
        let Some(during) = during else { return };
        let Some(connection) = self.world.connections.get(&cookie).filter(|known| known.side() == Some(Side::Client))
        else {
            return;
        };
        let (call, server) = (connection.span(exchange), connection.callee_address());
        // Lists of different servers have equal names.
        let of_server = |queue: u64| {
            let mut hasher = FxHasher::default();
            (queue, &server).hash(&mut hasher);
            hasher.finish()
        };
        match job {
            JobEvent::Asks(queues) => {
                if self.asks_for_job(during.op, &queues, (cookie, exchange)) {
                    let room = QUEUES.saturating_sub(self.jobs.queues.len());
                    self.jobs.queues.extend(queues.iter().map(|queue| of_server(*queue)).take(room));
                }
            }
            JobEvent::TakesOther => self.takes_other(self.worker(during.op), cookie),
            JobEvent::Pushed { queue, elements } => {
                let queue = of_server(queue);
                let Some(slot) = call.filter(|_| self.jobs.may_be_asked(queue)) else { return };
                let Some(live) = self.world.spans.get_mut(slot) else { return };
                let by = Producer { slot, id: live.id, trace: None };
                let ties = live.rare.job.get_or_insert_default();
                ties.pushes = elements.iter().map(|element| (queue, *element)).collect();
                for element in elements {
                    self.jobs.push((queue, element), by);
                }
            }
            JobEvent::Taken(job) => {
                let call = call.and_then(|slot| self.world.spans.get(slot));
                let asked =
                    call.filter(|call| call.rare.job.as_ref().is_some_and(|ties| ties.asks)).map(|call| call.tid);
                if let Some(asked) = asked {
                    let pushed_by = self.jobs.pop((of_server(job.queue), job.element));
                    self.job_taken((cookie, exchange), (&job, pushed_by), (during, asked), out);
                }
            }
            JobEvent::Named { element, name } => {
                let worker = self.jobs.workers.get(&self.worker(during.op));
                let held = worker.and_then(|worker| worker.job).filter(|held| held.element == element);
                let Some(HeldJob { slot, .. }) = held else { return };
                if let Some(live) = self.world.spans.get_mut(slot).filter(|live| !live.request.path.contains(' ')) {
                    live.request.path = joined(&live.request.path, Some(&name));
                    out.push(Output::Begun(slot));
                }
            }
        }
    }

    /// The worker that an operation is of.
    fn worker(&self, op: &Op) -> WorkerId {
        let of_task = is_unique(op.entity) || (is_named(op.entity) && self.tasks.table.makes_tasks(op.header.tgid));
        if of_task { (op.header.tgid, op.entity) } else { (op.header.tid, 0) }
    }

    /// A worker takes something else, where it asks for jobs: it may work for that from now on.
    fn takes_other(&mut self, id: WorkerId, cookie: u64) {
        let held = self.jobs.workers.get(&id).and_then(|worker| worker.job).filter(|held| held.cookie == cookie);
        if let Some(live) = held.and_then(|held| self.world.spans.get_mut(held.slot)) {
            live.alone = false;
        }
    }

    /// A process asks these queues for a job: that ends the one before, if there was one, unless it is part of that. Returns
    /// whether it is part of none.
    fn asks_for_job(&mut self, op: &Op, queues: &[u64], (cookie, exchange): (u64, u64)) -> bool {
        let (id, tgid) = (self.worker(op), op.header.tgid);
        let serves = self.world.processes.serving_all || self.world.processes.serving.contains_key(&tgid);
        if serves && !self.world.processes.queue_workers.contains(tgid) {
            return false;
        }
        if !self.jobs.workers.contains_key(&id) && self.jobs.workers.len() >= self.world.limits.threads {
            let spans = &self.world.spans;
            let is_open = |held: HeldJob| spans.get(held.slot).is_some_and(|live| live.end == 0);
            self.jobs.workers.retain(|_, worker| worker.job.is_some_and(is_open));
            self.jobs.refused += 1;
            if self.jobs.workers.len() >= self.world.limits.threads {
                return false;
            }
        }
        let worker = self.jobs.workers.entry(id).or_default();
        if worker.tgid != tgid {
            // Another thread with the same id.
            *worker = Worker { tgid, ..Worker::default() };
        }
        if let Some(held) = worker.job {
            if !queues.iter().any(|queue| *queue == held.queue || worker.asked(*queue).is_some()) {
                self.takes_other(id, cookie);
                return false;
            }
            worker.job = None;
            self.job_answered(held.slot, op);
        }
        let thread = self.world.threads.get(&op.header.tid);
        let is_request = |slot: &Slot| self.world.spans.get(*slot).is_some_and(|live| live.protocol != ProtocolId::Job);
        let of_request = thread.is_some_and(|thread| thread.open.iter().any(is_request))
            || self.child_processes.cause(&self.world, op).is_some_and(|cause| cause.candidate.is_some());
        if of_request || !self.world.processes.queue_workers.add(tgid, self.world.limits.processes) {
            return false;
        }
        let Some(worker) = self.jobs.workers.get_mut(&id) else { return false };
        for queue in queues.iter().copied() {
            if let Some(asked) = worker.asks.iter_mut().find(|asked| asked.queue == queue) {
                asked.again = true;
            } else if worker.asks.len() < LISTED {
                worker.asks.push(AskedQueue { queue, again: false });
            }
        }
        self.jobs.asking = Some((cookie, exchange));
        true
    }

    /// A call that asks for a job begins.
    pub(super) fn asking(call: &mut OpenSpan) {
        call.rare.job.get_or_insert_default().asks = true;
    }

    /// Thread `asked` asked for a job, and `during` reads it.
    fn job_taken(
        &mut self,
        (cookie, exchange): (u64, u64),
        (job, pushed_by): (&TakenJob, Option<Producer>),
        (during, asked): (OperationContext<'_>, u32),
        out: &mut Vec<Output>,
    ) {
        let op = during.op;
        let id = self.worker(op);
        let asked_queue = self.jobs.workers.get(&id).and_then(|worker| worker.asked(job.queue));
        let again = asked_queue.is_some_and(|asked| asked.again);
        let held = !job.handed_over && !is_looped(op) && (id.1 != 0 || asked == op.header.tid);
        let expected = ExpectedReply { silent: !held, ..ExpectedReply::default() };
        let request = Request::named(self.world.settings.method(PROCESS), job.name.clone(), expected);
        let (nanos, pid, tid) = (op.header.nanos, op.header.tgid, op.header.tid);
        let first = Stamp { nanos, pid, tid, reads: op.counters.reads };
        let begun = Begun {
            exchange: exchange | EXCHANGES,
            request,
            first,
            arrived: op.arrived,
            head_at: first,
            pos: NOWHERE,
            side: Side::Server,
            protocol: ProtocolId::Job,
        };
        self.begun(cookie, begun, Some(during), out);
        let Some(Output::Begun(slot)) = out.last() else { return };
        let slot = *slot;
        if let Some(live) = self.world.spans.get_mut(slot) {
            let ties = live.rare.job.get_or_insert_default();
            (ties.pushed_by, ties.once) = (pushed_by, !again);
            live.alone &= held && again;
        }
        self.jobs.begun = Some(slot);
        if !held {
            self.ended(slot, Outcome::Complete, nanos);
        } else if let Some(worker) = self.jobs.workers.get_mut(&id) {
            let (queue, element) = (job.queue, job.element);
            worker.job = Some(HeldJob { slot, queue, element, cookie, cost: Cost::default(), seen: nanos });
        }
    }

    /// The worker of a job asks for the next.
    fn job_answered(&mut self, slot: Slot, op: &Op) {
        let (nanos, tid) = (op.header.nanos, op.header.tid);
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.end == 0) else { return };
        (live.first_reply, live.answered_by) = (nanos, tid);
        thread_affinity::answered(&mut self.world, slot, tid, op);
        if is_named(op.entity) {
            self.tasks.answered(&mut self.world, slot, op);
        }
        self.ended(slot, Outcome::Complete, nanos);
        self.jobs.ended = Some(slot);
    }

    /// A thread ended: whether its job was done is not known.
    pub(super) fn worker_ended(&mut self, tid: u32, nanos: Nanos) {
        let held = self.jobs.workers.remove(&(tid, 0)).and_then(|worker| worker.job);
        if let Some(held) = held {
            self.job_unfinished(held.slot, tid, nanos);
        }
    }

    /// A process ended.
    pub(super) fn workers_ended(&mut self, tgid: u32) {
        if self.jobs.workers.is_empty() {
            return;
        }
        let workers = self.jobs.workers.extract_if(|_, worker| worker.tgid == tgid);
        let held: Vec<HeldJob> = workers.filter_map(|(_, worker)| worker.job).collect();
        for HeldJob { slot, .. } in held {
            self.job_unfinished(slot, 0, self.world.now);
        }
    }

    /// Tracing ends.
    pub(super) fn end_jobs(&mut self) {
        let held: Vec<HeldJob> = self.jobs.workers.drain().filter_map(|(_, worker)| worker.job).collect();
        for HeldJob { slot, .. } in held {
            self.job_unfinished(slot, 0, self.world.now);
        }
    }

    /// A task may end, and a thread do something else for ever, without asking for another job: ends the jobs that show no
    /// work for as long as an unused connection is kept.
    pub(super) fn expire_jobs(&mut self) {
        let (now, idle) = (self.world.now, self.world.limits.idle);
        let mut over = Vec::new();
        for worker in self.jobs.workers.values_mut() {
            let Some(held) = &mut worker.job else { continue };
            match self.world.spans.get(held.slot).filter(|live| live.end == 0) {
                Some(live) if live.cost != held.cost => (held.cost, held.seen) = (live.cost, now),
                Some(_) if now.saturating_sub(held.seen) <= idle => {}
                found => {
                    over.extend(found.map(|_| held.slot));
                    worker.job = None;
                }
            }
        }
        for slot in over {
            self.job_unfinished(slot, 0, now);
        }
    }

    fn job_unfinished(&mut self, slot: Slot, tid: u32, nanos: Nanos) {
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.end == 0) else { return };
        live.answered_by = tid;
        self.ended(slot, Outcome::Unfinished, nanos);
    }

    /// The cause of a call that a thread with a job sends; `opener`: of the call's connection, if it is the first on it.
    pub(super) fn cause_in_job(&self, slot: Slot, op: &Op, opener: Option<(Slot, Option<u32>)>) -> Option<Evidence> {
        let live = self.world.spans.get(slot).filter(|live| live.protocol == ProtocolId::Job)?;
        let polled =
            self.world.threads.get(&op.header.tid).is_none_or(|thread| thread.polls_at_op != op.counters.polls);
        // Waiting for the connection is part of the call.
        let connected = opener == Some((slot, Some(op.header.tid)));
        Some(match (live.alone, polled && !connected) {
            (true, false) => Evidence::OneJob,
            (true, true) => Evidence::JobAfterWait,
            (false, _) if live.rare.job.as_ref().is_some_and(|ties| ties.once) => Evidence::JobOnce,
            (false, _) => Evidence::JobMeanwhile,
        })
    }

    /// The thread that opens a connection, if that shows for which request it does: after a wait in a poller, a job's
    /// thread may do so for something else.
    pub(super) fn opens_for(&self, slot: Slot, tid: u32, polls: u32) -> Option<u32> {
        let is_job = self.world.spans.get(slot).is_some_and(|live| live.protocol == ProtocolId::Job);
        let polled = || self.world.threads.get(&tid).is_none_or(|thread| thread.polls_at_op != polls);
        (!is_job || !polled()).then_some(tid)
    }

    /// Before an operation is charged: a thread with a job that reads where nothing was sent for it does other work.
    pub(super) fn reads_in_job(&mut self, op: &Op, dir: Direction, before: Nanos) {
        if dir != Direction::Rx || self.jobs.workers.is_empty() {
            return;
        }
        let Some(slot) = self.world.threads.get(&op.header.tid).and_then(Thread::holder) else { return };
        if let Some(live) = self.world.spans.get_mut(slot)
            && live.protocol == ProtocolId::Job
            && before < live.start
        {
            live.alone = false;
        }
    }

    /// Whether the trace id of the request that a job is linked to is still to come.
    pub(super) fn awaits_producer(&self, live: &OpenSpan) -> bool {
        let producer =
            live.rare.job.as_ref().and_then(|ties| ties.pushed_by).filter(|producer| producer.trace.is_none());
        live.deferred < DEFERRALS && producer.is_some_and(|producer| self.world.spans.get(producer.slot).is_some())
    }

    /// A job is reported: links it.
    pub(super) fn link_job(&mut self, slot: Slot) {
        let producer = self.world.spans.get(slot).and_then(|live| live.rare.job.as_ref()?.pushed_by);
        let Some(Producer { slot: call, id, trace }) = producer else { return };
        // A trace id that is not decided yet may name no transaction.
        let Some(trace) = trace.or_else(|| self.reported.get(call)) else { return };
        if let Some(live) = self.world.spans.get_mut(slot) {
            let mut linked = Linked::default();
            linked.add((trace, id));
            live.rare.linked = Some(Box::new(linked));
        }
    }

    /// A span was reported with `trace`: jobs that it put into queues may be taken later.
    pub(super) fn producer_reported(&mut self, slot: Slot, live: &OpenSpan, trace: TraceId) {
        let Some(ties) = &live.rare.job else { return };
        let Jobs { young, old, .. } = &mut self.jobs;
        for key in &ties.pushes {
            let push = young.get_mut(key).or_else(|| old.get_mut(key));
            if let Some(by) = push.and_then(|push| push.by.as_mut()).filter(|by| by.slot == slot) {
                by.trace = Some(trace);
            }
        }
    }
}
