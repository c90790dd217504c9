//! Tasks of runtimes that run many requests on few threads: finds the request each task works for by which task wrote
//! the answer and which task spawned which.
//!
//! A task's time is divided into *intervals*: an interval ends with the request that the task answered, and the next
//! one begins. Calls a task sends in an interval belong to the request that the interval answers; a spawned task works
//! for the request that its parent's interval at the time of the spawn turns out to answer. Only later evidence
//! decides, so calls wait for it.
//!
//! Names of tasks are reused (they are addresses of contexts). The kernel side reports and counts every creation; once
//! one is missing, everything known of the process's tasks is void and only what follows counts. Goroutines are created
//! on several processors at once and reported in another order than they are counted in; but their names are never
//! reused, and a goroutine whose creation is missing is known only by the requests it answers itself.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{Fork, Op, TASK_EDGE_CLOSURE, TASK_EDGE_CREATED, TaskEdge};
use tracer_common::runtime::KIND_TOKIO;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::Nanos;

use super::evidence::{Doubt, Evidence};
use super::slot::{Slot, SpanRef};
use super::task_identity::{is_named, is_python, is_unique, kind};

/// How long an interval is remembered, nanoseconds: longer than calls wait for evidence.
const REMEMBERED: Nanos = 15_000_000_000;
/// Spawning tasks followed from a call to the task that answers.
const DEPTH: usize = 64;
/// Calls, and spawned intervals, that one interval remembers as waiting for its answer.
const WAITING: usize = 1024;

/// Number of an interval; 0: none.
pub type Id = u64;

/// What is known of a task.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    /// Its current interval; may be evicted.
    now: Id,
    /// The interval in which it was spawned; 0: unknown, or it has answered a request of its own since.
    maker: Id,
    /// Sequence number of the edge that reported its creation.
    edge_seq: u32,
    /// Loss count of its process when it was noted.
    losses: u32,
    /// It has answered several requests at once: it represents none.
    mixed: bool,
    /// Time and connection of its last answer.
    last: (Nanos, u64),
    /// The connection it last read a request from; 0: none.
    reads: u64,
    /// It is a closure that a thread of a pool runs from beginning to end.
    is_closure: bool,
}

/// Other requests that the thread of an answering task had read and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherRequests {
    /// None that this task may have read.
    None,
    /// Requests read before tasks were told apart: any task may have read them.
    Unnamed,
    /// Requests that this task read, too.
    Own,
}

/// The request answered in an interval.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest {
    /// The request.
    pub request: Slot,
    /// What remains of it once it is reported.
    pub kept: SpanRef,
    /// When it was read.
    pub start: Nanos,
}

/// An interval of a task's time.
#[derive(Clone, Debug)]
struct Interval {
    /// Its task.
    entity: u64,
    began: Nanos,
    maker: Id,
    losses: u32,
    tgid: u32,
    /// Its task may have been spawned to serve a connection rather than the spawning request.
    provisional_parent: bool,
    answer: Option<AnsweredRequest>,
    doubt: Option<Doubt>,
    calls: SmallVec<[Slot; 2]>,
    made: SmallVec<[Id; 2]>,
}

/// What is known of a process's tasks.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    /// Sequence number of the newest task edge.
    edge_seq: u32,
    /// Whether there was any.
    known: bool,
    /// Number of losses, and when the last one was noticed.
    losses: u32,
    lost_at: Nanos,
}

/// The request a task works for.
#[derive(Clone, Copy, Debug)]
pub enum Works {
    /// This request, as far as known; and why it is doubtful, if so.
    For(AnsweredRequest, Option<Doubt>),
    /// Unknown yet: the current interval.
    Undecided(Id),
    /// Cannot be determined.
    Unknown(Evidence),
}

/// All tasks.
#[derive(Debug, Default)]
pub struct TaskTable {
    tasks: FxHashMap<(u32, u64), Task>,
    processes: FxHashMap<u32, Process>,
    intervals: VecDeque<Interval>,
    /// Number of evicted intervals; the first remembered id is one more.
    forgotten: u64,
    limit: usize,
    /// Times all tasks were forgotten because there were too many.
    pub tasks_reached: u64,
    /// Intervals evicted early.
    pub intervals_reached: u64,
    /// Missing task edges.
    pub lost: u64,
}

impl TaskTable {
    /// A table for at most `limit` tasks and as many intervals.
    pub fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Number of tasks and of intervals.
    pub fn len(&self) -> (usize, usize) {
        (self.tasks.len(), self.intervals.len())
    }

    fn interval(&self, id: Id) -> Option<&Interval> {
        self.intervals.get(usize::try_from(id.checked_sub(self.forgotten + 1)?).ok()?)
    }

    fn interval_mut(&mut self, id: Id) -> Option<&mut Interval> {
        self.intervals.get_mut(usize::try_from(id.checked_sub(self.forgotten + 1)?).ok()?)
    }

    fn losses(&self, tgid: u32) -> u32 {
        self.processes.get(&tgid).map_or(0, |process| process.losses)
    }

    /// Records of the process are missing: everything known of its tasks is void.
    pub fn lose(&mut self, tgid: u32, now: Nanos) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.losses = process.losses.wrapping_add(1);
            process.lost_at = process.lost_at.max(now);
        }
    }

    /// Whether the process creates tasks of Python: its threads may run several in turn.
    pub(super) fn makes_tasks(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.edge_seq != 0)
    }

    /// The process has exited or runs another program.
    pub fn forget(&mut self, tgid: u32) {
        // Its tasks stay until they age out: a new process with this id starts with another loss count.
        self.lose(tgid, 0);
    }

    /// Takes the process's edge count as of an event of `entity`, to detect missing edges.
    fn follow(&mut self, tgid: u32, entity: u64, edge_seq: u32, now: Nanos) {
        let process = self.processes.entry(tgid).or_default();
        if is_unique(entity) {
            return;
        }
        let ahead = edge_seq.wrapping_sub(process.edge_seq);
        if !std::mem::replace(&mut process.known, true) {
            process.edge_seq = edge_seq;
        } else if ahead != 0 && ahead <= u32::MAX / 2 {
            process.edge_seq = edge_seq;
            process.losses = process.losses.wrapping_add(1);
            process.lost_at = process.lost_at.max(now);
            self.lost += u64::from(ahead);
        }
    }

    /// A task edge was reported.
    pub fn task_edge(&mut self, task_edge: &TaskEdge, now: Nanos, over: impl Fn(Slot) -> bool) {
        let tgid = task_edge.header.tgid;
        let known = self.processes.get(&tgid).copied().unwrap_or_default();
        let ahead = task_edge.nth.wrapping_sub(known.edge_seq);
        let unique = is_unique(task_edge.child);
        if !unique && known.known && (ahead == 0 || ahead > u32::MAX / 2) {
            // Duplicate or too late: it was counted as lost.
            return;
        }
        self.follow(tgid, task_edge.child, task_edge.nth.wrapping_sub(1), task_edge.header.nanos);
        if let Some(process) = self.processes.get_mut(&tgid).filter(|_| !unique) {
            process.edge_seq = task_edge.nth;
        }
        let is_closure = task_edge.relation == TASK_EDGE_CLOSURE;
        if !(is_closure || task_edge.relation == TASK_EDGE_CREATED) || !is_named(task_edge.child) {
            return;
        }
        if unique && self.tasks.get(&(tgid, task_edge.child)).is_some_and(|task| task.losses == self.losses(tgid)) {
            // Duplicate, or too late because the task was already seen at work.
            return;
        }
        let mut maker = if is_named(task_edge.parent) { self.current(tgid, task_edge.parent, now, &over) } else { 0 };
        if self.interval(maker).is_some_and(|interval| interval.began > task_edge.header.nanos) {
            // The spawning task has moved on to another interval since.
            maker = 0;
        }
        self.make_room();
        let task = Task { maker, edge_seq: task_edge.nth, losses: self.losses(tgid), is_closure, ..Task::default() };
        self.tasks.insert((tgid, task_edge.child), task);
    }

    fn make_room(&mut self) {
        if self.tasks.len() >= self.limit {
            self.tasks_reached += 1;
            self.tasks.retain(|_, task| task.mixed);
            if self.tasks.len() > self.limit / 2 {
                self.tasks.clear();
            }
        }
    }

    /// The current interval of a task, created if necessary.
    pub(super) fn current(&mut self, tgid: u32, entity: u64, now: Nanos, over: &impl Fn(Slot) -> bool) -> Id {
        let losses = self.losses(tgid);
        let key = (tgid, entity);
        let task = self.task(tgid, entity);
        if let Some(interval) = self.interval(task.now)
            && interval.answer.is_none_or(|answer| !over(answer.request))
        {
            return task.now;
        }
        let maker = if self.interval(task.maker).is_some() { task.maker } else { 0 };
        if self.intervals.len() >= self.limit {
            self.intervals_reached += 1;
            self.forget_first();
        }
        let id = self.forgotten + self.intervals.len() as u64 + 1;
        let (calls, made) = (SmallVec::new(), SmallVec::new());
        let (provisional_parent, answer, doubt) = (kind(entity) == KIND_TOKIO && maker != 0, None, None);
        self.intervals.push_back(Interval {
            entity,
            began: now,
            maker,
            losses,
            tgid,
            provisional_parent,
            answer,
            doubt,
            calls,
            made,
        });
        if let Some(interval) = self.interval_mut(maker)
            && interval.made.len() < WAITING
        {
            interval.made.push(id);
        }
        if !self.tasks.contains_key(&key) {
            self.make_room();
        }
        self.tasks.insert(key, Task { now: id, ..task });
        id
    }

    fn forget_first(&mut self) {
        if self.intervals.pop_front().is_some() {
            self.forgotten += 1;
        }
    }

    /// The request that the task of an operation works for.
    pub fn works(&mut self, op: &Op, over: impl Fn(Slot) -> bool) -> Works {
        let (tgid, entity) = (op.header.tgid, op.entity);
        if !is_named(entity) {
            return Works::Unknown(Evidence::TaskOfRuntimeUnknown);
        }
        self.follow(tgid, entity, op.edge_seq, op.header.nanos);
        if self.is_late(op) {
            return Works::Unknown(Evidence::TaskMadeAnew);
        }
        if self.task(tgid, entity).mixed {
            return Works::Unknown(Evidence::Doubtful(Doubt::SeveralOfTask));
        }
        let own = self.current(tgid, entity, op.header.nanos, &over);
        self.works_in(own, &over)
    }

    /// The interval in which a task forks a process: 0 if the task is not known, or has begun the answer of its request.
    pub(super) fn forks(&mut self, fork: &Fork, over: impl Fn(Slot) -> bool) -> Id {
        let op = Op { header: fork.header, entity: fork.entity, edge_seq: fork.edge_seq, ..Op::default() };
        if let Works::Undecided(id) = self.works(&op, over) { id } else { 0 }
    }

    /// The request that an interval belongs to.
    pub(super) fn works_in(&self, own: Id, over: &impl Fn(Slot) -> bool) -> Works {
        let mut id = own;
        let mut provisional_parent = false;
        for _ in 0..DEPTH {
            let Some(interval) = self.interval(id).filter(|interval| interval.losses == self.losses(interval.tgid))
            else {
                break;
            };
            if let Some(answer) = interval.answer {
                let doubt = over(answer.request).then_some(Doubt::MakerAnswered);
                let provisional_parent = provisional_parent.then_some(Doubt::SharedConnection);
                if let (Some(late), Some(_)) = (doubt, provisional_parent) {
                    // Most such tasks were spawned for a connection and now send for others.
                    return Works::Unknown(Evidence::Doubtful(late));
                }
                return Works::For(answer, interval.doubt.or(doubt).or(provisional_parent));
            }
            provisional_parent |= interval.provisional_parent;
            id = interval.maker;
        }
        Works::Undecided(own)
    }

    /// Whether a task reads requests.
    pub(super) fn serves(&self, tgid: u32, entity: u64) -> bool {
        self.task(tgid, entity).reads != 0
    }

    /// The current interval of a task that reads requests, and when that began; 0: none.
    pub(super) fn serving_since(&self, tgid: u32, entity: u64) -> (Id, Nanos) {
        let task = self.task(tgid, entity);
        self.interval(task.now).filter(|_| task.reads != 0).map_or((0, 0), |interval| (task.now, interval.began))
    }

    /// The task that reads the requests this one works for, itself or one that spawned it, and from which connection; `None`: unknown,
    /// or what it was spawned for is answered.
    pub(super) fn reader(&self, tgid: u32, entity: u64, over: &impl Fn(Slot) -> bool) -> Option<(u64, u64)> {
        let task = self.task(tgid, entity);
        if task.reads != 0 {
            return (!task.mixed).then_some((entity, task.reads));
        }
        let mut id = task.maker;
        for _ in 0..DEPTH {
            let interval = self.interval(id).filter(|interval| interval.losses == self.losses(tgid))?;
            let maker = self.task(tgid, interval.entity);
            if maker.reads != 0 {
                let is_open = maker.now == id && interval.answer.is_none_or(|answer| !over(answer.request));
                return (is_open && !maker.mixed).then_some((interval.entity, maker.reads));
            }
            id = interval.maker;
        }
        None
    }

    /// Whether a task reads requests or was spawned by a known task.
    pub(super) fn works_for_somebody(&self, tgid: u32, entity: u64) -> bool {
        let task = self.task(tgid, entity);
        task.reads != 0 || self.interval(task.maker).is_some()
    }

    /// Whether a task was spawned in interval `ancestor`, directly or through other tasks.
    pub(super) fn is_made_in(&self, tgid: u32, entity: u64, ancestor: Id) -> bool {
        let mut id = self.task(tgid, entity).maker;
        for _ in 0..DEPTH {
            if id == ancestor {
                return id != 0;
            }
            let Some(interval) = self.interval(id) else { break };
            id = interval.maker;
        }
        false
    }

    /// Whether this is a closure that a known task gave to a pool of threads.
    pub(super) fn is_closure(&self, tgid: u32, entity: u64) -> bool {
        self.task(tgid, entity).is_closure
    }

    /// A closure is over, and `taker` was woken with its result: if that works for what it was when the closure was spawned, directly or
    /// through others, the closure served no other.
    pub(super) fn took(&mut self, tgid: u32, closure: u64, taker: u64) {
        let (closed, taken_in) = (self.task(tgid, closure), self.task(tgid, taker).now);
        if closed.is_closure
            && self.is_made_in(tgid, closure, taken_in)
            && let Some(interval) = self.interval_mut(closed.now)
        {
            interval.provisional_parent = false;
        }
    }

    /// Whether a known task spawned this one.
    pub(super) fn is_made_by_any(&self, tgid: u32, entity: u64) -> bool {
        self.interval(self.task(tgid, entity).maker).is_some()
    }

    /// Whether a task was spawned, directly or through others, for a request that is still open, or by a task that
    /// answers none.
    pub(super) fn is_made_for_open(&self, tgid: u32, entity: u64, over: &impl Fn(Slot) -> bool) -> bool {
        let mut id = self.task(tgid, entity).maker;
        for _ in 0..DEPTH {
            let Some(interval) = self.interval(id) else { return false };
            if interval.maker == 0 {
                return interval.answer.is_none_or(|answer| !over(answer.request));
            }
            id = interval.maker;
        }
        true
    }

    /// Whether two intervals serve the same request, whichever that is: one was spawned in the other, or both in a
    /// third.
    pub(super) fn is_same(&self, one: Id, other: Id) -> bool {
        self.first(one) == self.first(other)
    }

    /// Whether a spawned task works for the same request as the other task.
    pub(super) fn is_kin(&self, tgid: u32, made: u64, other: u64) -> bool {
        let (maker, other) = (self.task(tgid, made).maker, self.task(tgid, other));
        self.is_same(maker, if self.interval(other.maker).is_some() { other.maker } else { other.now })
    }

    /// The oldest known ancestor of an interval.
    fn first(&self, mut id: Id) -> Id {
        for _ in 0..DEPTH {
            match self.interval(id).filter(|interval| interval.maker != 0) {
                Some(interval) => id = interval.maker,
                None => break,
            }
        }
        id
    }

    /// A call no longer waits for the interval's request.
    pub(super) fn waits_no_more(&mut self, id: Id, call: Slot) {
        if let Some(interval) = self.interval_mut(id) {
            interval.calls.retain(|other| *other != call);
        }
    }

    /// Whether the task's name has been reused since the operation.
    fn is_late(&self, op: &Op) -> bool {
        let task = self.tasks.get(&(op.header.tgid, op.entity));
        task.is_some_and(|task| {
            let behind = task.edge_seq.wrapping_sub(op.edge_seq);
            !is_unique(op.entity) && task.edge_seq != 0 && behind != 0 && behind <= u32::MAX / 2
        })
    }

    /// Whether a known task spawned the task of an interval.
    pub fn is_made(&self, id: Id) -> bool {
        self.interval(id).is_some_and(|interval| interval.maker != 0)
    }

    /// The task of an operation read a request from connection `cookie`. A task that reads several connections is a
    /// loop, or a context shared by all callbacks: it represents no request. Returns the calls this puts in doubt, each
    /// with the reason.
    pub fn reads(&mut self, op: &Op, cookie: u64) -> Vec<(Slot, Option<Doubt>)> {
        let (tgid, entity) = (op.header.tgid, op.entity);
        let mut decided = Vec::new();
        if !is_named(entity) {
            return decided;
        }
        self.follow(tgid, entity, op.edge_seq, op.header.nanos);
        if self.is_late(op) {
            return decided;
        }
        let mut task = self.task(tgid, entity);
        let several = task.reads != 0 && task.reads != cookie;
        task.reads = cookie;
        if several && !task.mixed {
            task.mixed = true;
            let doubt = Some(Doubt::SeveralOfTask);
            if let Some(interval) = self.interval_mut(task.now) {
                interval.doubt = doubt;
            }
            self.spread(task.now, doubt, &mut decided);
        }
        if !self.tasks.contains_key(&(tgid, entity)) {
            self.make_room();
        }
        self.tasks.insert((tgid, entity), task);
        decided
    }

    /// What is known of a task. After a loss its name may be reused; that it represented no request is kept even then.
    fn task(&self, tgid: u32, entity: u64) -> Task {
        let losses = self.losses(tgid);
        match self.tasks.get(&(tgid, entity)) {
            Some(task) if task.losses == losses => *task,
            Some(task) => Task { losses, mixed: task.mixed, reads: task.reads, ..Task::default() },
            None => Task { losses, ..Task::default() },
        }
    }

    /// A call waits for the interval's request.
    pub fn waits(&mut self, id: Id, call: Slot) -> bool {
        let Some(interval) = self.interval_mut(id).filter(|interval| interval.calls.len() < WAITING) else {
            return false;
        };
        interval.calls.push(call);
        true
    }

    /// The task of an operation begins the answer of a request read from connection `cookie`; `alone`: requests on it
    /// are answered one after the other; `others`: what else is open on its thread. Returns the calls this decides, each with the reason for doubt, if any.
    pub fn answers(
        &mut self,
        op: &Op,
        answer: AnsweredRequest,
        (cookie, alone, others): (u64, bool, OtherRequests),
        over: impl Fn(Slot) -> bool,
    ) -> Vec<(Slot, Option<Doubt>)> {
        let (tgid, entity, now) = (op.header.tgid, op.entity, op.header.nanos);
        if !is_named(entity) {
            return Vec::new();
        }
        self.follow(tgid, entity, op.edge_seq, op.header.nanos);
        if self.is_late(op) {
            return Vec::new();
        }
        let before = self.tasks.get(&(tgid, entity)).copied().filter(|task| task.losses == self.losses(tgid));
        let id = self.current(tgid, entity, now, &over);
        let Some(task) = self.tasks.get_mut(&(tgid, entity)) else { return Vec::new() };
        let (at, of) = task.last;
        let again = before.is_some_and(|before| before.now == id);
        task.last = (now, cookie);
        // The task has a request of its own now: its parent's interval proves nothing about what follows.
        task.maker = 0;
        // One context for a whole loop (Twisted) answers requests while others that it read are open.
        let several = (at > answer.start && !(alone && of == cookie)) || others == OtherRequests::Own;
        task.mixed |= several;
        let previous = before.map_or(0, |before| before.now);
        let mixed = task.mixed.then_some(Doubt::SeveralOfTask);
        // The task may have read other requests meanwhile, and sent its calls for them.
        let unseen =
            is_python(entity) && self.processes.get(&tgid).is_some_and(|process| answer.start <= process.lost_at);
        let mixed = mixed.or((others == OtherRequests::Unnamed).then_some(Doubt::SeveralOfTask));
        let doubt = mixed.or(unseen.then_some(Doubt::ProcessUnseen));
        let mut decided = Vec::new();
        if several && !again {
            self.spread(previous, doubt, &mut decided);
        }
        let Some(interval) = self.interval_mut(id) else { return decided };
        interval.doubt = interval.doubt.or(doubt);
        if interval.answer.is_none_or(|known| known.request == answer.request) {
            interval.answer = Some(answer);
        } else {
            // The previous request is still open.
            interval.doubt = Some(Doubt::SeveralOfTask);
        }
        let doubt = interval.doubt;
        self.spread(id, doubt, &mut decided);
        decided
    }

    /// Collects the calls of an interval and of all intervals spawned in it, except those that answer requests of their
    /// own.
    fn spread(&mut self, id: Id, doubt: Option<Doubt>, decided: &mut Vec<(Slot, Option<Doubt>)>) {
        let mut todo: SmallVec<[(Id, usize); 8]> = SmallVec::from_slice(&[(id, 0)]);
        while let Some((next, depth)) = todo.pop() {
            let Some(losses) = self.interval(next).map(|interval| self.losses(interval.tgid)) else { continue };
            let Some(interval) = self.interval_mut(next) else { continue };
            if interval.losses != losses || depth > DEPTH || (next != id && interval.answer.is_some()) {
                continue;
            }
            let provisional_parent = (next != id && interval.provisional_parent).then_some(Doubt::SharedConnection);
            let doubt = doubt.or(interval.doubt).or(provisional_parent);
            decided.extend(interval.calls.iter().map(|call| (*call, doubt)));
            todo.extend(interval.made.iter().map(|made| (*made, depth + 1)));
        }
    }

    /// About once a second: evicts old entries.
    pub fn tick(&mut self, now: Nanos) {
        while self.intervals.front().is_some_and(|first| now.saturating_sub(first.began) > REMEMBERED) {
            self.forget_first();
        }
        let oldest = self.forgotten;
        self.tasks.retain(|_, task| task.mixed || task.now > oldest || task.maker > oldest);
        if self.processes.len() > self.limit {
            // Loss counts restart from 0: no older note may pass as current.
            self.processes.clear();
            self.tasks.clear();
            self.forgotten += self.intervals.len() as u64;
            self.intervals.clear();
        }
        self.tasks.shrink_excess();
        self.intervals.shrink_excess();
        self.processes.shrink_excess();
    }
}
