//! Tasks of runtimes that run many requests on few threads: for which request each works, by who wrote the answer and who
//! made whom.
//!
//! A task's time is divided into *intervals*: one ends when the request is over that the task answered, and the next
//! begins. What a task asks for in an interval, it asks for the sake of the request that the interval answers; a task that
//! was made by another works for what the maker's interval, at that moment, turns out to be for. Only later evidence
//! decides, so calls wait for it.
//!
//! Names of tasks are used again (addresses of contexts). Every making of one is told by the kernel and counted; from the
//! first that is missing on nothing is known of the process's tasks but what is seen after it. Goroutines are made on
//! several processors at once and told of in another order than they are counted in; but their names are never used
//! again, and of one whose making is missing nothing is known but what it answers itself.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{ENTITY_BITS, KIN_CREATED, Kin, Op};
use tracer_common::runtime::{KIND_GO, KIND_GREENLET, KIND_NODE, KIND_PYTHON, KIND_TOKIO};

use super::live::{Kept, Slot};
use crate::guard::room::Room;
use crate::model::Nanos;

/// How long an interval is remembered, nanoseconds: calls wait for evidence for less.
const REMEMBERED: Nanos = 15_000_000_000;
/// Makers followed from a call to the task that answers.
const DEPTH: usize = 64;
/// Calls, and tasks it made, that one interval knows to wait for its answer.
const WAITING: usize = 1024;

/// Why a task says nothing.
const SEVERAL: &str = "its task runs several requests at once";
/// Why the maker of a task says nothing any more.
const LATE: &str = "the request of its task's maker was answered before";
/// Why the maker of a task says nothing yet: clients spawn a task for each connection, that sends for all who use it.
pub const LENT: &str = "its task may send for all that use its connection";

/// Which interval; none is 0.
pub type Id = u64;

/// What is known of a task, by its name.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    /// The interval it is in; it may be forgotten.
    now: Id,
    /// The interval in which it was made; 0 = not known, or it has answered a request of its own since.
    maker: Id,
    /// Which relation of its process told of its making.
    told: u32,
    /// Losses of its process when it was noted.
    losses: u32,
    /// It has answered several requests at once: it stands for none.
    mixed: bool,
    /// What it answered last: when, and by which connection.
    last: (Nanos, u64),
    /// The connection it read a request from last, 0 none.
    reads: u64,
}

/// Who was answered in an interval.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The request.
    pub request: Slot,
    /// What is remembered of it.
    pub kept: Kept,
    /// When it was read.
    pub start: Nanos,
}

/// A stretch of a task's time.
#[derive(Clone, Debug)]
struct Interval {
    began: Nanos,
    maker: Id,
    losses: u32,
    tgid: u32,
    /// Its task may be one that its maker made for a connection, not for itself.
    lent: bool,
    answer: Option<Answer>,
    doubt: Option<&'static str>,
    calls: SmallVec<[Slot; 2]>,
    made: SmallVec<[Id; 2]>,
}

/// What is known of a process's tasks.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    /// The newest relation taken, by its number.
    kins: u32,
    /// Whether there was one.
    known: bool,
    /// Times something was lost, and when that was noticed last.
    losses: u32,
    lost_at: Nanos,
}

/// For whom a task works.
#[derive(Clone, Copy, Debug)]
pub enum Works {
    /// For this request, as far as it was seen.
    For(Answer, Option<&'static str>),
    /// That is not known yet: the interval it is in.
    Undecided(Id),
    /// That cannot be known.
    Unknown(&'static str),
}

/// All tasks.
#[derive(Debug, Default)]
pub struct Entities {
    tasks: FxHashMap<(u32, u64), Task>,
    processes: FxHashMap<u32, Process>,
    intervals: VecDeque<Interval>,
    /// Intervals forgotten so far: the first that is remembered is one more.
    forgotten: u64,
    limit: usize,
    /// Times all tasks were forgotten because there were too many.
    pub tasks_reached: u64,
    /// Intervals forgotten before their time.
    pub intervals_reached: u64,
    /// Relations that were missing.
    pub lost: u64,
}

/// Whether `entity` names a task; what stands there for Node.js are ids of other things.
pub fn is_named(entity: u64) -> bool {
    entity << (64 - ENTITY_BITS) != 0 && kind(entity) != KIND_NODE
}

/// The kind of runtime an entity is of, 0 none.
pub fn kind(entity: u64) -> u32 {
    (entity >> ENTITY_BITS) as u32
}

/// Whether the name is nobody else's as long as its process lives.
pub fn is_unique(entity: u64) -> bool {
    matches!(kind(entity), KIND_GO | KIND_TOKIO)
}

/// Whether it is a task of Python: a context or a greenlet.
pub fn is_python(entity: u64) -> bool {
    matches!(kind(entity), KIND_PYTHON | KIND_GREENLET)
}

impl Entities {
    /// At most this many tasks, and as many intervals.
    pub fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Tasks, and intervals.
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

    /// Something of the process was not seen: what is known of its tasks is void.
    pub fn lose(&mut self, tgid: u32, now: Nanos) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.losses = process.losses.wrapping_add(1);
            process.lost_at = process.lost_at.max(now);
        }
    }

    /// The process is gone, or runs another program.
    pub fn forget(&mut self, tgid: u32) {
        // Its tasks stay until they are old: another process of this id begins with another number of losses.
        self.lose(tgid, 0);
    }

    /// Takes the number of relations its process had told of when something happened to `entity`.
    fn follow(&mut self, tgid: u32, entity: u64, kins: u32, now: Nanos) {
        let process = self.processes.entry(tgid).or_default();
        if is_unique(entity) {
            return;
        }
        let ahead = kins.wrapping_sub(process.kins);
        if !std::mem::replace(&mut process.known, true) {
            process.kins = kins;
        } else if ahead != 0 && ahead <= u32::MAX / 2 {
            process.kins = kins;
            process.losses = process.losses.wrapping_add(1);
            process.lost_at = process.lost_at.max(now);
            self.lost += u64::from(ahead);
        }
    }

    /// Two tasks have to do with each other.
    pub fn kin(&mut self, kin: &Kin, now: Nanos, over: impl Fn(Slot) -> bool) {
        let tgid = kin.header.tgid;
        let known = self.processes.get(&tgid).copied().unwrap_or_default();
        let ahead = kin.nth.wrapping_sub(known.kins);
        let unique = is_unique(kin.child);
        if !unique && known.known && (ahead == 0 || ahead > u32::MAX / 2) {
            // Told before, or too late: what it says was taken for lost.
            return;
        }
        self.follow(tgid, kin.child, kin.nth.wrapping_sub(1), kin.header.nanos);
        if let Some(process) = self.processes.get_mut(&tgid).filter(|_| !unique) {
            process.kins = kin.nth;
        }
        if kin.relation != KIN_CREATED || !is_named(kin.child) {
            return;
        }
        if unique && self.tasks.get(&(tgid, kin.child)).is_some_and(|task| task.losses == self.losses(tgid)) {
            // Told before, or it was seen at work before: too late.
            return;
        }
        let mut maker = if is_named(kin.parent) { self.current(tgid, kin.parent, now, &over) } else { 0 };
        if self.interval(maker).is_some_and(|interval| interval.began > kin.header.nanos) {
            // Its maker has gone on to something else since.
            maker = 0;
        }
        self.make_room();
        let task = Task { maker, told: kin.nth, losses: self.losses(tgid), ..Task::default() };
        self.tasks.insert((tgid, kin.child), task);
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

    /// The interval a task is in, begun if it must be.
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
        let (lent, answer, doubt) = (kind(entity) == KIND_TOKIO && maker != 0, None, None);
        self.intervals.push_back(Interval { began: now, maker, losses, tgid, lent, answer, doubt, calls, made });
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

    /// For whom the task of an operation works.
    pub fn works(&mut self, op: &Op, over: impl Fn(Slot) -> bool) -> Works {
        let (tgid, entity) = (op.header.tgid, op.entity);
        if !is_named(entity) {
            return Works::Unknown("which task of its runtime it was is not known");
        }
        self.follow(tgid, entity, op.kins, op.header.nanos);
        if self.is_late(op) {
            return Works::Unknown("its task was made anew since");
        }
        if self.task(tgid, entity).mixed {
            return Works::Unknown(SEVERAL);
        }
        let own = self.current(tgid, entity, op.header.nanos, &over);
        self.works_in(own, &over)
    }

    /// For whom an interval is.
    pub(super) fn works_in(&self, own: Id, over: &impl Fn(Slot) -> bool) -> Works {
        let mut id = own;
        let mut lent = false;
        for _ in 0..DEPTH {
            let Some(interval) = self.interval(id).filter(|interval| interval.losses == self.losses(interval.tgid))
            else {
                break;
            };
            if let Some(answer) = interval.answer {
                let doubt = over(answer.request).then_some(LATE);
                let lent = lent.then_some(LENT);
                if let (Some(late), Some(_)) = (doubt, lent) {
                    // Most such tasks were made for a connection, and send for others now.
                    return Works::Unknown(late);
                }
                return Works::For(answer, interval.doubt.or(doubt).or(lent));
            }
            lent |= interval.lent;
            id = interval.maker;
        }
        Works::Undecided(own)
    }

    /// Whether a task reads requests.
    pub(super) fn serves(&self, tgid: u32, entity: u64) -> bool {
        self.task(tgid, entity).reads != 0
    }

    /// Whether a task reads requests, or was made by one that is known.
    pub(super) fn works_for_somebody(&self, tgid: u32, entity: u64) -> bool {
        let task = self.task(tgid, entity);
        task.reads != 0 || self.interval(task.maker).is_some()
    }

    /// Whether a task was made in an interval, or by one that was, and so on.
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

    /// Whether a task was made by one that is known.
    pub(super) fn is_made_by_any(&self, tgid: u32, entity: u64) -> bool {
        self.interval(self.task(tgid, entity).maker).is_some()
    }

    /// Whether a task was made, maybe by way of others, for a request that is not over, or by one that answers none.
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

    /// Whether two intervals are for the same request, whichever that is: the one was made in the other, or both in a third.
    pub(super) fn is_same(&self, one: Id, other: Id) -> bool {
        self.first(one) == self.first(other)
    }

    /// Whether a task that was made works for the request that the other one is at.
    pub(super) fn is_kin(&self, tgid: u32, made: u64, other: u64) -> bool {
        let (maker, other) = (self.task(tgid, made).maker, self.task(tgid, other));
        self.is_same(maker, if self.interval(other.maker).is_some() { other.maker } else { other.now })
    }

    /// The interval in which the first was made of those that made this one's task.
    fn first(&self, mut id: Id) -> Id {
        for _ in 0..DEPTH {
            match self.interval(id).filter(|interval| interval.maker != 0) {
                Some(interval) => id = interval.maker,
                None => break,
            }
        }
        id
    }

    /// A call does not wait any more for what an interval turns out to be for.
    pub(super) fn waits_no_more(&mut self, id: Id, call: Slot) {
        if let Some(interval) = self.interval_mut(id) {
            interval.calls.retain(|other| *other != call);
        }
    }

    /// Whether its task's name was given to another one since.
    fn is_late(&self, op: &Op) -> bool {
        let task = self.tasks.get(&(op.header.tgid, op.entity));
        task.is_some_and(|task| {
            let behind = task.told.wrapping_sub(op.kins);
            !is_unique(op.entity) && task.told != 0 && behind != 0 && behind <= u32::MAX / 2
        })
    }

    /// Whether the task of an interval was made by another one that is known.
    pub fn is_made(&self, id: Id) -> bool {
        self.interval(id).is_some_and(|interval| interval.maker != 0)
    }

    /// The task of an operation read a request from the connection `cookie`. One that reads of several connections is a loop,
    /// or what all its callbacks share: it stands for no request. Gives the calls that are in doubt by that, each with why.
    pub fn reads(&mut self, op: &Op, cookie: u64) -> Vec<(Slot, Option<&'static str>)> {
        let (tgid, entity) = (op.header.tgid, op.entity);
        let mut decided = Vec::new();
        if !is_named(entity) {
            return decided;
        }
        self.follow(tgid, entity, op.kins, op.header.nanos);
        if self.is_late(op) {
            return decided;
        }
        let mut task = self.task(tgid, entity);
        let several = task.reads != 0 && task.reads != cookie;
        task.reads = cookie;
        if several && !task.mixed {
            task.mixed = true;
            let doubt = Some(SEVERAL);
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

    /// What is known of a task. After a loss its name may be another's; that it stood for none is believed even then.
    fn task(&self, tgid: u32, entity: u64) -> Task {
        let losses = self.losses(tgid);
        match self.tasks.get(&(tgid, entity)) {
            Some(task) if task.losses == losses => *task,
            Some(task) => Task { losses, mixed: task.mixed, reads: task.reads, ..Task::default() },
            None => Task { losses, ..Task::default() },
        }
    }

    /// A call waits for what its interval turns out to be for.
    pub fn waits(&mut self, id: Id, call: Slot) -> bool {
        let Some(interval) = self.interval_mut(id).filter(|interval| interval.calls.len() < WAITING) else {
            return false;
        };
        interval.calls.push(call);
        true
    }

    /// The task of an operation begins the answer of a request, read from the connection `cookie`; `alone`: whose requests
    /// are answered one after the other. Gives the calls that are decided by it, each with what makes that doubtful.
    pub fn answers(
        &mut self,
        op: &Op,
        answer: Answer,
        (cookie, alone): (u64, bool),
        over: impl Fn(Slot) -> bool,
    ) -> Vec<(Slot, Option<&'static str>)> {
        let (tgid, entity, now) = (op.header.tgid, op.entity, op.header.nanos);
        if !is_named(entity) {
            return Vec::new();
        }
        self.follow(tgid, entity, op.kins, op.header.nanos);
        if self.is_late(op) {
            return Vec::new();
        }
        let before = self.tasks.get(&(tgid, entity)).copied().filter(|task| task.losses == self.losses(tgid));
        let id = self.current(tgid, entity, now, &over);
        let Some(task) = self.tasks.get_mut(&(tgid, entity)) else { return Vec::new() };
        let (at, of) = task.last;
        let again = before.is_some_and(|before| before.now == id);
        task.last = (now, cookie);
        // It has one of its own now: what its maker's was for says nothing of what follows.
        task.maker = 0;
        let several = at > answer.start && !(alone && of == cookie);
        task.mixed |= several;
        let previous = before.map_or(0, |before| before.now);
        let mixed = task.mixed.then_some(SEVERAL);
        // Others may have been read meanwhile, by the same task, and what it asked for may have been for them.
        let unseen =
            is_python(entity) && self.processes.get(&tgid).is_some_and(|process| answer.start <= process.lost_at);
        let doubt = mixed.or(unseen.then_some("something of its process was not seen while the request was open"));
        let mut decided = Vec::new();
        if several && !again {
            self.spread(previous, doubt, &mut decided);
        }
        let Some(interval) = self.interval_mut(id) else { return decided };
        interval.doubt = interval.doubt.or(doubt);
        if interval.answer.is_none_or(|known| known.request == answer.request) {
            interval.answer = Some(answer);
        } else {
            // The one before is not over yet.
            interval.doubt = Some(SEVERAL);
        }
        let doubt = interval.doubt;
        self.spread(id, doubt, &mut decided);
        decided
    }

    /// The calls of an interval and of all that were made in it, but for those that answer requests of their own.
    fn spread(&mut self, id: Id, doubt: Option<&'static str>, decided: &mut Vec<(Slot, Option<&'static str>)>) {
        let mut todo: SmallVec<[(Id, usize); 8]> = SmallVec::from_slice(&[(id, 0)]);
        while let Some((next, depth)) = todo.pop() {
            let Some(losses) = self.interval(next).map(|interval| self.losses(interval.tgid)) else { continue };
            let Some(interval) = self.interval_mut(next) else { continue };
            if interval.losses != losses || depth > DEPTH || (next != id && interval.answer.is_some()) {
                continue;
            }
            let lent = (next != id && interval.lent).then_some(LENT);
            let doubt = doubt.or(interval.doubt).or(lent);
            decided.extend(interval.calls.iter().map(|call| (*call, doubt)));
            todo.extend(interval.made.iter().map(|made| (*made, depth + 1)));
        }
    }

    /// About once a second: forgets what is old.
    pub fn tick(&mut self, now: Nanos) {
        while self.intervals.front().is_some_and(|first| now.saturating_sub(first.began) > REMEMBERED) {
            self.forget_first();
        }
        let oldest = self.forgotten;
        self.tasks.retain(|_, task| task.mixed || task.now > oldest || task.maker > oldest);
        if self.processes.len() > self.limit {
            // Losses are counted from 0 again: nothing that was noted before may seem to be of now.
            self.processes.clear();
            self.tasks.clear();
            self.forgotten += self.intervals.len() as u64;
            self.intervals.clear();
        }
        self.tasks.give_back();
        self.intervals.give_back();
        self.processes.give_back();
    }
}
