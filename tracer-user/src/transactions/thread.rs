//! What is known of a thread: its books, the requests it holds, its callback group, and whom its last work was for.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tracer_common::event::Books;

use super::handover::Errands;
use super::live::Slot;
use super::loops::Loop;
use super::pools::Kind;
use crate::model::{ClassId, Cost, Nanos, ServiceId};

/// Samples kept per thread until it is known whom its work was for.
pub const PENDING_SAMPLES: usize = 128;
/// Requests a thread must answer one at a time, after something of it was not seen, before its identity counts again.
const PROBATION: u8 = 16;
/// Charges remembered per thread for samples that come late: one that interrupts a CPU which then stands still (a virtual one
/// that is not run) holds up those of the other CPUs behind it.
const HISTORY: usize = 32;

/// Whom work is for. A unit that was reported in the meantime is known by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Nobody: overhead of the service.
    Nobody,
    /// A unit of work.
    Unit {
        /// Which.
        slot: Slot,
        /// Its class when last looked at.
        class: Option<ClassId>,
        /// Its service.
        service: ServiceId,
    },
}

/// What a read began on a multiplexing thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entity {
    /// A request was read.
    Request(Slot),
    /// The reply of a call was read.
    Call(Slot),
}

/// A callback group: from one read to the next read or poll.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    /// What was read.
    pub entity: Option<Entity>,
    /// The thread's count of reads at that read.
    reads: u32,
    /// Its count of polls.
    polls: u32,
}

impl Group {
    /// The group a read begins.
    pub fn begin(entity: Option<Entity>, books: &Books) -> Self {
        Self { entity, reads: books.reads, polls: books.polls }
    }

    /// What was read, if nothing else was since and the thread has not polled.
    pub fn current(&self, books: &Books) -> Option<Entity> {
        if self.reads == books.reads && self.polls == books.polls { self.entity } else { None }
    }
}

/// A stretch of a thread's work and whom it was for.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Its end.
    pub until: Nanos,
    /// For whom.
    pub target: Target,
}

/// A stack that waits for its owner.
#[derive(Clone, Debug)]
pub struct Pending {
    /// When.
    pub nanos: Nanos,
    /// What it stands for, nanoseconds.
    pub weight: u64,
    /// User frames.
    pub user: Vec<u64>,
    /// Kernel frames.
    pub kernel: Vec<u64>,
}

/// One thread.
#[derive(Debug)]
pub struct Thread {
    /// Its process.
    pub tgid: u32,
    /// Books up to which work was charged.
    pub books: Books,
    /// Whether `books` is from a record of this thread (not the zero it starts with).
    pub known: bool,
    /// When it was last charged, and when it last did I/O (0 never).
    pub charged_at: Nanos,
    /// Last socket operation.
    pub last_op: Nanos,
    /// Requests it read that are not answered, oldest first.
    pub open: SmallVec<[Slot; 2]>,
    /// It runs several requests at once.
    pub multiplexer: bool,
    /// Number of its last operation.
    nth: u32,
    /// Nothing is missing between that and the one before.
    pub whole: bool,
    /// When it was last noticed that something of it was not seen, 0 never.
    pub lost_at: Nanos,
    /// Requests it has yet to answer one at a time before its identity counts: something of it was not seen.
    doubt: u8,
    /// When it ended, 0 while it lives.
    pub died: Nanos,
    /// Its callback group.
    pub group: Group,
    /// What it is at, where it runs a loop whose callbacks are told apart.
    pub lap: Option<Box<Loop>>,
    /// Calls it made while it held no request.
    pub errands: Errands,
    /// One of those was for somebody who waited for its result: it works for others.
    pub works: bool,
    /// What kind of thread it is, by what it did so far.
    pub kind: Kind,
    /// Whom its work since the last operation is for, until something says otherwise.
    pub last: Target,
    /// Recent stretches, newest last.
    history: VecDeque<Stretch>,
    /// What was done up to here is no longer remembered.
    forgotten: Nanos,
    /// Stacks without an owner yet.
    pending: Vec<Pending>,
    /// When the first of them was taken.
    pending_from: Nanos,
}

impl Thread {
    /// A thread seen for the first time.
    pub fn new(tgid: u32) -> Self {
        Self {
            tgid,
            books: Books::default(),
            known: false,
            charged_at: 0,
            last_op: 0,
            open: SmallVec::new(),
            multiplexer: false,
            nth: 0,
            whole: true,
            lost_at: 0,
            doubt: 0,
            died: 0,
            group: Group::default(),
            lap: None,
            errands: Errands::default(),
            works: false,
            kind: Kind::default(),
            last: Target::Nobody,
            history: VecDeque::new(),
            forgotten: 0,
            pending: Vec::new(),
            pending_from: Nanos::MAX,
        }
    }

    /// Takes over `books`; what passed since the last ones. The books of a running slice can be ahead of what the
    /// scheduler says when it ends: what was charged once is not charged again.
    pub fn advance(&mut self, books: &Books) -> Delta {
        if books.switches.wrapping_sub(self.books.switches) > u32::MAX / 2 {
            // Older than what is known: a record that was overtaken.
            return Delta::default();
        }
        let delta = Delta::between(&self.books, books);
        let old = &self.books;
        let (cpu, runq, blocked) = (books.cpu.max(old.cpu), books.runq.max(old.runq), books.blocked.max(old.blocked));
        self.books = Books { cpu, runq, blocked, ..*books };
        delta
    }

    /// Stacks without an owner yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// This one has no owner yet.
    pub fn put_off(&mut self, sample: Pending) {
        self.pending_from = self.pending_from.min(sample.nanos);
        self.pending.push(sample);
    }

    /// Those that were taken up to `until` have one now. Most operations find none, or none of that time: samples arrive by
    /// a ring of their own, at times before the operations they belong to.
    pub fn due(&mut self, until: Nanos) -> Vec<Pending> {
        if self.pending_from > until {
            return Vec::new();
        }
        let (due, rest) = std::mem::take(&mut self.pending).into_iter().partition(|sample| sample.nanos <= until);
        self.pending = rest;
        self.pending_from = self.pending.iter().map(|sample| sample.nanos).min().unwrap_or(Nanos::MAX);
        due
    }

    /// Takes the number of an operation; gives the requests that can no longer be said to be its only ones, because
    /// records between this operation and the last are missing: one of them may have answered these, or read another.
    pub fn follow(&mut self, nth: u32) -> Option<SmallVec<[Slot; 2]>> {
        let ahead = nth.wrapping_sub(self.nth);
        if ahead <= u32::MAX / 2 {
            self.nth = nth;
        }
        self.whole = ahead == 1;
        (!self.whole).then(|| self.lose())
    }

    /// Something of it was not seen; gives the requests that can no longer be said to be its only ones.
    pub fn lose(&mut self) -> SmallVec<[Slot; 2]> {
        self.doubt = PROBATION;
        self.group = Group::default();
        self.lose_loop();
        std::mem::take(&mut self.open)
    }

    /// A request it read is over; `answered`: by its answer. Otherwise (the client has gone, the end was not seen) it
    /// may go on with it, unseen, while it reads others.
    pub fn over(&mut self, slot: Slot, answered: bool) {
        let held = self.open.len();
        self.open.retain(|other| *other != slot);
        if !answered && self.open.len() < held {
            self.doubt = PROBATION;
        } else if held == 1 && self.open.is_empty() {
            self.doubt = self.doubt.saturating_sub(1);
        }
    }

    /// It was decided whose calls it made; whether that is in doubt because something of it was not seen.
    pub fn settled(&mut self) -> bool {
        let doubted = self.doubt > 0;
        self.doubt = self.doubt.saturating_sub(1);
        doubted
    }

    /// Whether its identity says nothing: it runs several requests at once, or may do so unseen.
    pub fn several(&self) -> bool {
        self.multiplexer || self.doubt > 0
    }

    /// The one request this thread holds, when it runs one at a time.
    pub fn holder(&self) -> Option<Slot> {
        if self.several() { None } else { self.open.first().copied() }
    }

    /// Remembers that its work up to `until` was for `target`.
    pub fn remember(&mut self, until: Nanos, target: Target) {
        if let Some(last) = self.history.back_mut()
            && last.target == target
        {
            last.until = until;
            return;
        }
        if self.history.len() == HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.forgotten = oldest.until;
        }
        self.history.push_back(Stretch { until, target });
    }

    /// Whom the work at `nanos`, already charged, was for; `None` when that is no longer remembered.
    pub fn at(&self, nanos: Nanos) -> Option<Target> {
        if nanos <= self.forgotten {
            return None;
        }
        self.history.iter().find(|stretch| nanos <= stretch.until).map(|stretch| stretch.target)
    }
}

/// What happened between two books of one thread, split at the wait for work in between, if there was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Before the wait; everything when there was none.
    pub before: Cost,
    /// After it.
    pub after: Cost,
    /// Whether there was a wait.
    pub waited: bool,
    /// When it ended.
    pub wait_end: Nanos,
}

impl Delta {
    /// From `old` to `new` books.
    pub fn between(old: &Books, new: &Books) -> Self {
        let cpu = new.cpu.saturating_sub(old.cpu);
        let runq = new.runq.saturating_sub(old.runq);
        let blocked = new.blocked.saturating_sub(old.blocked);
        let switches = u64::from(new.switches.wrapping_sub(old.switches));
        let waited = new.idles != old.idles;
        if !waited {
            return Self { before: Cost { cpu, runq, blocked, switches }, ..Self::default() };
        }
        let before = new.idle_cpu.saturating_sub(old.cpu).min(cpu);
        // Waiting for a CPU mostly follows the wake-up; switches other than the wait's are not told apart.
        Self {
            before: Cost { cpu: before, ..Cost::default() },
            after: Cost { cpu: cpu - before, runq, blocked, switches },
            waited: true,
            wait_end: new.idle_end,
        }
    }

    /// Both parts together.
    pub fn whole(&self) -> Cost {
        let mut sum = self.before;
        sum.add(self.after);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_splits_cpu() {
        let old = Books { cpu: 100, ..Books::default() };
        for (new, before, after, waited) in [
            (Books { cpu: 150, ..old }, 50, 0, false),
            (Books { cpu: 150, idles: 1, idle_cpu: 120, ..old }, 20, 30, true),
            (Books { cpu: 150, idles: 1, idle_cpu: 90, ..old }, 0, 50, true),
            (Books { cpu: 150, idles: 1, idle_cpu: 900, ..old }, 50, 0, true),
            (Books { cpu: 50, ..old }, 0, 0, false),
        ] {
            let delta = Delta::between(&old, &new);
            assert_eq!((delta.before.cpu, delta.after.cpu, delta.waited), (before, after, waited), "{new:?}");
        }
    }

    #[test]
    fn whom_work_was_for_is_not_guessed_once_it_is_forgotten() {
        let mut thread = Thread::new(1);
        let target = |n: u64| Target::Unit { slot: Slot::numbered(n as u32), class: None, service: ServiceId(0) };
        for n in 1..=100 {
            thread.remember(10 * n, target(n));
        }
        let kept = HISTORY as u64;
        let first = 100 - kept + 1;
        for n in first..=100 {
            assert_eq!((thread.at(10 * n - 9), thread.at(10 * n)), (Some(target(n)), Some(target(n))), "{n}");
        }
        assert_eq!((thread.at(10 * (first - 1)), thread.at(1), thread.at(1001)), (None, None, None));
    }

    #[test]
    fn a_group_ends_at_the_next_read_or_poll() {
        let at = Books { reads: 4, polls: 2, ..Books::default() };
        let slot = super::super::live::Slab::default().slots().next();
        assert!(slot.is_none());
        let group = Group::begin(None, &at);
        assert_eq!(group.current(&at), None);
        assert_eq!(group.current(&Books { reads: 5, ..at }), None);
    }
}
