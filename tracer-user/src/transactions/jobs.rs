//! Jobs: what a worker does from the reply that gave it one until it asks for the next. A job is a span of a consumer,
//! linked to the request that put it into the queue.
//!
//! The thread (or the task, where a runtime names tasks) that asks, reads a job and asks again works for that job
//! meanwhile. It holds the job like a request, and its next question for one of the queues it takes jobs from is the
//! answer. A question for another queue is a call of the job: it may wait for the result of another one.
//!
//! A thread that does something else meanwhile shows it: it reads from a connection on which it sent nothing for the job,
//! or it waits in a poller and then sends something that nothing it read caused. From then on its calls are not certainly
//! the job's. Workers that hand their jobs to a pool (Celery), and event loops, hold none: their jobs end where they begin,
//! and only their number, queue and name are known.
//!
//! Both ends of a queue are known by the element: the same bytes go in and come out. Equal elements at the same time prove
//! nothing.

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tracer_common::event::Op;

use super::begin::{Begun, During};
use super::engine::{Engine, Output};
use super::event_loop::is_looped;
use super::open_span::{Cause, OpenSpan, Slot};
use super::report::DEFERRALS;
use super::task_table::{is_named, is_unique};
use super::thread::Thread;
use crate::guard::shrink::ShrinkExcess;
use crate::guard::tables::{TableUse, scaled};
use crate::model::{Direction, Linked, Nanos, Outcome, ProtocolId, Side, SpanId, TraceId};
use crate::protocols::jobs::{JobEvent, LISTED, TakenJob, joined};
use crate::protocols::messaging::PROCESS;
use crate::protocols::{ExpectedReply, NOWHERE, Request, Stamp};

/// Evidence for a call that asks a queue for a job.
pub(super) const ASKS: &str = "it asks a queue for the next job";
/// Evidence for a call of a thread that holds a job.
const ONE_JOB: &str = "same thread, one job at a time";
/// Reasons why it is not the job's for sure.
const WAITED: &str = "its thread holds a job, but waited for something else before";
const MEANWHILE: &str = "its thread holds a job, but does other work meanwhile";
/// Evidence for a job whose worker may do several at a time.
pub(super) const HANDED_OVER: &str = "its worker hands it over: only that it was taken is seen";

/// Evidence for a job whose thread does something else, too.
pub(super) const SEVERAL_JOBS: &str = "its worker may do other work at the same time";

/// Numbers of jobs among the exchanges of the connection that they were read from.
const EXCHANGES: u64 = 1 << 63;
/// Most elements that wait to be taken, and whose request is remembered.
const PUSHED: usize = 32_768;
/// Most queues known to be asked for jobs.
const QUEUES: usize = 4096;

/// A thread (its id and 0) or a task (its process and its name).
type WorkerId = (u32, u64);

/// Queue and element.
type JobKey = (u64, u64);

/// What takes jobs.
#[derive(Debug, Default)]
struct Worker {
    tgid: u32,
    /// The queues that it asks for its next job.
    asks: SmallVec<[u64; 4]>,
    job: Option<HeldJob>,
}

/// The job that a worker works for.
#[derive(Clone, Copy, Debug)]
struct HeldJob {
    slot: Slot,
    key: JobKey,
}

/// The request that put an element into a queue.
#[derive(Clone, Copy, Debug)]
struct Push {
    /// `None`: several put an equal one in.
    by: Option<Producer>,
    /// How many equal ones wait.
    waiting: u32,
}

/// The call that put an element into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Producer {
    slot: Slot,
    id: SpanId,
    /// As it was reported; `None`: it was not yet.
    trace: Option<TraceId>,
}

/// What a span has to do with jobs.
#[derive(Debug, Default)]
pub struct JobTies {
    /// It asks for a job, and is itself part of none.
    asks: bool,
    /// It put these into queues.
    pushes: SmallVec<[JobKey; 1]>,
    /// A job: who put it into its queue.
    pushed_by: Option<Producer>,
}

/// Workers and the elements of queues.
#[derive(Debug)]
pub struct Jobs {
    workers: FxHashMap<WorkerId, Worker>,
    refused: u64,
    /// Elements in two generations: when the younger one is full, the older one is dropped.
    young: FxHashMap<JobKey, Push>,
    old: FxHashMap<JobKey, Push>,
    limit: usize,
    dropped: u64,
    /// Queues that workers ask.
    queues: FxHashSet<u64>,
    /// The request that begins next asks for a job.
    asking: bool,
    /// The job that the current operation began, or ended.
    begun: Option<Slot>,
    ended: Option<Slot>,
}

impl Jobs {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            workers: FxHashMap::default(),
            refused: 0,
            young: FxHashMap::default(),
            old: FxHashMap::default(),
            limit: scaled(PUSHED, memory),
            dropped: 0,
            queues: FxHashSet::default(),
            asking: false,
            begun: None,
            ended: None,
        }
    }

    /// Use of the tables of workers and of elements.
    pub(super) fn table_use(&self, threads: usize) -> [TableUse; 2] {
        let elements = self.young.len() + self.old.len();
        [TableUse::new(self.workers.len(), threads, self.refused), TableUse::new(elements, self.limit, self.dropped)]
    }

    pub(super) fn shrink(&mut self) {
        self.workers.shrink_excess();
        self.young.shrink_excess();
        self.old.shrink_excess();
    }

    /// The job that the current operation began or ended, and whether it ended it.
    pub(super) fn take_touched(&mut self) -> (Option<Slot>, bool) {
        let ended = self.ended.take();
        (self.begun.take().or(ended), ended.is_some())
    }

    /// Whether the request that begins asks for a job outside of one.
    pub(super) fn take_asking(&mut self) -> bool {
        std::mem::take(&mut self.asking)
    }

    fn push(&mut self, key: JobKey, by: Producer) {
        if let Some(known) = self.young.get_mut(&key).or_else(|| self.old.get_mut(&key)) {
            known.waiting = known.waiting.saturating_add(1);
            known.by = None;
            return;
        }
        if self.young.len() >= self.limit / 2 {
            let old = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            // Lists that no worker asks are none of ours.
            self.dropped += old.keys().filter(|(queue, _)| self.queues.contains(queue)).count() as u64;
        }
        self.young.insert(key, Push { by: Some(by), waiting: 1 });
    }

    /// An element was taken: who put it in, if that is known.
    fn pop(&mut self, key: JobKey) -> Option<Producer> {
        for map in [&mut self.young, &mut self.old] {
            let Some(push) = map.get_mut(&key) else { continue };
            let by = push.by;
            push.waiting = push.waiting.saturating_sub(1);
            if push.waiting == 0 {
                map.remove(&key);
            }
            return by;
        }
        None
    }
}

impl Engine {
    /// A message of a client shows something of jobs.
    pub(super) fn on_job(
        &mut self,
        (cookie, exchange): (u64, u64),
        job: JobEvent,
        during: Option<During<'_>>,
        out: &mut Vec<Output>,
    ) {
        let Some(during) = during else { return };
        let Some(connection) = self.connections.get(&cookie).filter(|known| known.side() == Some(Side::Client)) else {
            return;
        };
        let call = connection.span(exchange);
        match job {
            JobEvent::Asks(queues) => self.asks_for_job(during.op, &queues),
            JobEvent::Pushed { queue, elements } => {
                let Some(slot) = call else { return };
                let Some(live) = self.spans.get_mut(slot) else { return };
                let by = Producer { slot, id: live.id, trace: None };
                let ties = live.job.get_or_insert_default();
                ties.pushes = elements.iter().map(|element| (queue, *element)).collect();
                for element in elements {
                    self.jobs.push((queue, element), by);
                }
            }
            JobEvent::Taken(job) => {
                let call = call.and_then(|slot| self.spans.get(slot));
                let asked = call.filter(|call| call.job.as_ref().is_some_and(|ties| ties.asks)).map(|call| call.tid);
                if let Some(asked) = asked {
                    self.job_taken((cookie, exchange), &job, (during, asked), out);
                }
            }
            JobEvent::Named { element, name } => {
                let worker = self.jobs.workers.get(&self.worker(during.op));
                let held = worker.and_then(|worker| worker.job).filter(|held| held.key.1 == element);
                let Some(HeldJob { slot, .. }) = held else { return };
                if let Some(live) = self.spans.get_mut(slot).filter(|live| !live.request.path.contains(' ')) {
                    live.request.path = joined(&live.request.path, Some(&name));
                    out.push(Output::Begun(slot));
                }
            }
        }
    }

    /// The worker that an operation is of.
    fn worker(&self, op: &Op) -> WorkerId {
        let of_task = is_unique(op.entity) || (is_named(op.entity) && self.task_table.makes_tasks(op.header.tgid));
        if of_task { (op.header.tgid, op.entity) } else { (op.header.tid, 0) }
    }

    /// A process asks these queues for a job: that ends the one before, if there was one, unless it is part of that.
    fn asks_for_job(&mut self, op: &Op, queues: &[u64]) {
        let (id, tgid) = (self.worker(op), op.header.tgid);
        let serves = self.serving_all || self.serving.contains_key(&tgid);
        if serves && !self.queue_workers.contains(tgid) {
            return;
        }
        if !self.jobs.workers.contains_key(&id) && self.jobs.workers.len() >= self.limits.threads {
            self.jobs.workers.retain(|_, worker| worker.job.is_some());
            self.jobs.refused += 1;
            if self.jobs.workers.len() >= self.limits.threads {
                return;
            }
        }
        let worker = self.jobs.workers.entry(id).or_default();
        if worker.tgid != tgid {
            // Another thread with the same id.
            *worker = Worker { tgid, ..Worker::default() };
        }
        if let Some(held) = worker.job {
            if !queues.iter().any(|queue| *queue == held.key.0 || worker.asks.contains(queue)) {
                return;
            }
            worker.job = None;
            self.job_answered(held.slot, op);
        }
        let thread = self.threads.get(&op.header.tid);
        let is_request = |slot: &Slot| self.spans.get(*slot).is_some_and(|live| live.protocol != ProtocolId::Job);
        let of_request = thread.is_some_and(|thread| thread.open.iter().any(is_request))
            || self.cause_of_child(op).is_some_and(|cause| cause.candidate.is_some());
        if of_request || !self.add_queue_worker(tgid) {
            return;
        }
        let Some(worker) = self.jobs.workers.get_mut(&id) else { return };
        for queue in queues {
            if worker.asks.len() < LISTED && !worker.asks.contains(queue) {
                worker.asks.push(*queue);
            }
            if self.jobs.queues.len() < QUEUES {
                self.jobs.queues.insert(*queue);
            }
        }
        self.jobs.asking = true;
    }

    /// A call that asks for a job begins.
    pub(super) fn asking(call: &mut OpenSpan) {
        call.job.get_or_insert_default().asks = true;
    }

    /// Thread `asked` asked for a job, and `during` reads it.
    fn job_taken(
        &mut self,
        (cookie, exchange): (u64, u64),
        job: &TakenJob,
        (during, asked): (During<'_>, u32),
        out: &mut Vec<Output>,
    ) {
        let op = during.op;
        let key = (job.queue, job.element);
        let pushed_by = self.jobs.pop(key);
        let id = self.worker(op);
        let held = !job.handed_over && !is_looped(op) && (id.1 != 0 || asked == op.header.tid);
        let expected = ExpectedReply { silent: !held, ..ExpectedReply::default() };
        let request = Request::named(self.settings.method(PROCESS), job.name.clone(), expected);
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
        if let Some(live) = self.spans.get_mut(slot) {
            live.job.get_or_insert_default().pushed_by = pushed_by;
            live.alone &= held;
        }
        self.jobs.begun = Some(slot);
        if !held {
            self.ended(slot, Outcome::Complete, nanos);
        } else if let Some(worker) = self.jobs.workers.get_mut(&id) {
            worker.job = Some(HeldJob { slot, key });
        }
    }

    /// The worker of a job asks for the next.
    fn job_answered(&mut self, slot: Slot, op: &Op) {
        let (nanos, tid) = (op.header.nanos, op.header.tid);
        let Some(live) = self.spans.get_mut(slot).filter(|live| live.end == 0) else { return };
        (live.first_reply, live.answered_by) = (nanos, tid);
        self.answered_by_thread(slot, tid, op);
        if is_named(op.entity) {
            self.answered_by_task(slot, op);
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
            self.job_unfinished(slot, 0, self.now);
        }
    }

    /// Tracing ends.
    pub(super) fn end_jobs(&mut self) {
        let held: Vec<HeldJob> = self.jobs.workers.drain().filter_map(|(_, worker)| worker.job).collect();
        for HeldJob { slot, .. } in held {
            self.job_unfinished(slot, 0, self.now);
        }
    }

    fn job_unfinished(&mut self, slot: Slot, tid: u32, nanos: Nanos) {
        let Some(live) = self.spans.get_mut(slot).filter(|live| live.end == 0) else { return };
        live.answered_by = tid;
        self.ended(slot, Outcome::Unfinished, nanos);
    }

    /// The cause of a call that a thread with a job sends; `opener`: of the call's connection, if it is the first on it.
    pub(super) fn cause_in_job(
        &self,
        slot: Slot,
        op: &Op,
        opener: Option<(Slot, Option<u32>)>,
    ) -> Option<(bool, &'static str)> {
        let live = self.spans.get(slot).filter(|live| live.protocol == ProtocolId::Job)?;
        let polled = self.threads.get(&op.header.tid).is_none_or(|thread| thread.polls_at_op != op.counters.polls);
        // Waiting for the connection is part of the call.
        let connected = opener == Some((slot, Some(op.header.tid)));
        Some(match (live.alone, polled && !connected) {
            (true, false) => (true, ONE_JOB),
            (true, true) => (false, WAITED),
            (false, _) => (false, MEANWHILE),
        })
    }

    /// The thread that opens a connection, if that shows for which request it does: after a wait in a poller, a job's
    /// thread may do so for something else.
    pub(super) fn opens_for(&self, slot: Slot, tid: u32, polls: u32) -> Option<u32> {
        let is_job = self.spans.get(slot).is_some_and(|live| live.protocol == ProtocolId::Job);
        let polled = || self.threads.get(&tid).is_none_or(|thread| thread.polls_at_op != polls);
        (!is_job || !polled()).then_some(tid)
    }

    /// Before an operation is charged: a thread with a job that reads where nothing was sent for it does other work.
    pub(super) fn reads_in_job(&mut self, op: &Op, dir: Direction, before: Nanos) {
        if dir != Direction::Rx || self.jobs.workers.is_empty() {
            return;
        }
        let Some(slot) = self.threads.get(&op.header.tid).and_then(Thread::holder) else { return };
        if let Some(live) = self.spans.get_mut(slot)
            && live.protocol == ProtocolId::Job
            && before < live.start
        {
            live.alone = false;
        }
    }

    /// Whether the trace id of the request that a job is linked to is still to come.
    pub(super) fn awaits_producer(&self, live: &OpenSpan) -> bool {
        let producer = live.job.as_ref().and_then(|ties| ties.pushed_by).filter(|producer| producer.trace.is_none());
        live.deferred < DEFERRALS && producer.is_some_and(|producer| self.spans.get(producer.slot).is_some())
    }

    /// A job is reported: links it.
    pub(super) fn link_job(&mut self, slot: Slot) {
        let producer = self.spans.get(slot).and_then(|live| live.job.as_ref()?.pushed_by);
        let Some(Producer { slot: call, id, trace }) = producer else { return };
        let so_far = || self.spans.get(call).map(|live| self.trace_so_far(live));
        let Some(trace) = trace.or_else(|| self.reported.get(call)).or_else(so_far) else { return };
        if let Some(live) = self.spans.get_mut(slot) {
            let mut linked = Linked::default();
            linked.add((trace, id));
            live.linked = Some(Box::new(linked));
        }
    }

    /// A span was reported with `trace`: jobs that it put into queues may be taken later.
    pub(super) fn producer_reported(&mut self, slot: Slot, live: &OpenSpan, trace: TraceId) {
        let Some(ties) = &live.job else { return };
        let Jobs { young, old, .. } = &mut self.jobs;
        for key in &ties.pushes {
            let push = young.get_mut(key).or_else(|| old.get_mut(key));
            if let Some(by) = push.and_then(|push| push.by.as_mut()).filter(|by| by.slot == slot) {
                by.trace = Some(trace);
            }
        }
    }
}

/// The cause of a call that asks for a job.
pub(super) fn asks() -> Cause {
    Cause { alone: true, ..Cause::none(ASKS) }
}
