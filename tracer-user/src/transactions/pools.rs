//! What the jobs of a process are like, as far as it was seen: what decides how much a wake-up says there.

use std::ops::ControlFlow;

use tracer_common::event::Wake;

use super::locks::Locks;
use super::thread::Thread;
use crate::model::Nanos;

/// A process whose threads share requests reads more than one in so many by such a thread.
const SHARED: u32 = 8;
/// How long a process counts as one that has jobs nobody waits for, after the last of them.
const REMEMBERED: Nanos = 60_000_000_000;
/// Jobs counted of a process before the counts are halved.
const JOBS: u32 = 8192;
/// At most one hand-back in so many may be another's: the share of jobs nobody waits for, times that of jobs without
/// calls.
const MIXED: u64 = 2500;
/// Jobs that made as many calls as most do, before that says anything.
const USUAL: u32 = 50;
/// Jobs of another number of calls, and jobs nobody waits for, are at most one in so many where the number is usual.
const UNUSUAL: u32 = 20;

/// Jobs that end in one way.
#[derive(Clone, Copy, Debug, Default)]
struct Jobs {
    /// Lately: those nobody waited for, those that were waited for and made no call, and all.
    alone: u32,
    bare: u32,
    all: u32,
    /// How many calls most of them make, how many did, and how many others made more or fewer.
    usual: usize,
    same: u32,
    other: u32,
}

impl Jobs {
    fn job(&mut self, alone: bool, bare: bool) {
        if self.all >= JOBS {
            (self.alone, self.bare, self.all) = (self.alone / 2, self.bare / 2, self.all / 2);
        }
        self.alone += u32::from(alone);
        self.bare += u32::from(bare);
        self.all += 1;
    }

    fn returned(&mut self, calls: usize) {
        self.job(false, false);
        if self.same.max(self.other) >= JOBS {
            (self.same, self.other) = (self.same / 2, self.other / 2);
        }
        if self.same > 0 && calls == self.usual {
            self.same += 1;
            return;
        }
        self.other += 1;
        if self.other > self.same {
            (self.usual, self.same, self.other) = (calls, 1, 0);
        }
    }

    fn is_usual(&self, calls: usize) -> bool {
        let few = |count: u32, of: u32| count.saturating_mul(UNUSUAL) <= of;
        calls == self.usual && self.same >= USUAL && few(self.other, self.same) && few(self.alone, self.all)
    }

    fn mixed(&self) -> bool {
        let [alone, bare, all] = [self.alone, self.bare, self.all].map(u64::from);
        alone * bare * MIXED > all * all
    }
}

/// How a job ends that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its thread wakes who waits for its result.
    HandedBack,
    /// Its thread writes the answer itself.
    Answered,
}

/// What the jobs of a process are like.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// When a call was seen for whose thread nobody had waited when it was given other work; 0 never.
    unreturned: Nanos,
    handed: Jobs,
    answered: Jobs,
    /// Requests read by threads that run one at a time, and by others, since it was looked at.
    single: u32,
    shared: u32,
    locks: Locks,
}

impl Pools {
    /// A process of which nothing is known but whether its requests move between threads.
    pub(super) fn new(shared: bool) -> Self {
        Self { shared: u32::from(shared), ..Self::default() }
    }

    fn of(&mut self, end: End) -> &mut Jobs {
        match end {
            End::HandedBack => &mut self.handed,
            End::Answered => &mut self.answered,
        }
    }

    fn jobs(&self, end: End) -> &Jobs {
        match end {
            End::HandedBack => &self.handed,
            End::Answered => &self.answered,
        }
    }

    /// Nobody waited for a job with calls; `given`: its thread was woken by one that held a request, perhaps for a lock.
    /// Otherwise it did something else, and answered nothing either.
    pub(super) fn unreturned(&mut self, given: bool, now: Nanos) {
        if given {
            self.unreturned = now;
        } else {
            self.answered.job(true, false);
        }
        self.handed.job(true, false);
    }

    /// So many jobs that ended so made no call.
    pub(super) fn bare(&mut self, end: End, jobs: u32) {
        (0..jobs.min(JOBS)).for_each(|_| self.of(end).job(false, true));
    }

    /// A job that ended so made `calls`.
    pub(super) fn returned(&mut self, end: End, calls: usize) {
        self.of(end).returned(calls);
    }

    /// Whether `calls` are what one of its jobs makes, and not the last of a job nobody waited for together with those of
    /// the next: nearly all jobs make as many. Were some of them two jobs, others would have shown fewer.
    pub(super) fn is_usual(&self, end: End, calls: usize) -> bool {
        self.jobs(end).is_usual(calls)
    }

    /// Whether a job nobody waited for was seen lately.
    pub(super) fn is_unreturned(&self, now: Nanos) -> bool {
        self.unreturned != 0 && now.saturating_sub(self.unreturned) < REMEMBERED
    }

    /// Whether it has both, jobs with calls that nobody waits for and jobs without that somebody does: the one before the
    /// other on the same thread looks like a job with a call.
    pub(super) fn mixed(&self, end: End) -> bool {
        self.jobs(end).mixed()
    }

    /// A thread that holds a request was woken; whether it waited for a lock there, as far as is known by now.
    pub(super) fn woken(&mut self, wake: &Wake) -> bool {
        self.locks.woken(wake)
    }

    /// Whether who is woken at this futex is known to wait for a lock.
    pub(super) fn is_lock(&self, address: u64) -> bool {
        self.locks.holds(address)
    }

    /// A request was read, by a thread that runs several at once or not.
    pub(super) fn read(&mut self, shared: bool) {
        let count = if shared { &mut self.shared } else { &mut self.single };
        *count = count.saturating_add(1);
    }

    /// Whether requests of the process move between its threads (goroutines, tasks): then a thread that is woken, or
    /// answers, does not stand for one.
    pub(super) fn shares_threads(&self) -> bool {
        self.shared.saturating_mul(SHARED) > self.single
    }
}

/// What a thread has done in its life, as far as it tells what kind it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    /// It made a call while it held no request.
    called: bool,
    /// Jobs without a call that somebody waited for, before that. A virtual machine's own threads make no calls, and wake
    /// others for reasons of their own; a pool's thread makes some sooner or later.
    bare: u32,
    /// It made a call while it waited for the reply of another, or another thread read a reply for it: what it does next
    /// need not be for whom it did the last.
    pub(super) juggles: bool,
    /// It read requests while others it had read were unanswered, and made calls or answered some: it runs several at once.
    /// One that only reads them leaves them to others, each of which may run one at a time.
    pub(super) acts: bool,
}

impl Kind {
    /// It made a call while it held no request: what it did before for others counts, too.
    pub(super) fn calls(&mut self) -> ControlFlow<u32> {
        if std::mem::replace(&mut self.called, true) {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(std::mem::take(&mut self.bare))
    }

    /// It did a job without a call; whether that counts by now.
    pub(super) fn bare(&mut self) -> bool {
        self.bare = if self.called { 0 } else { self.bare.saturating_add(1) };
        self.called
    }
}

impl Thread {
    /// Whether it stands for no request by what it was seen to do: it reads several, and works for them.
    pub(super) fn shares(&self) -> bool {
        self.multiplexer && self.kind.acts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: End = End::HandedBack;

    fn jobs(calls: &[usize], times: usize) -> Pools {
        let mut pools = Pools::new(false);
        (0..times).for_each(|_| calls.iter().for_each(|calls| pools.returned(BACK, *calls)));
        pools
    }

    #[test]
    fn a_number_of_calls_is_usual_where_nearly_all_jobs_make_as_many() {
        assert!(jobs(&[2], 60).is_usual(BACK, 2));
        assert!(!jobs(&[2], 60).is_usual(BACK, 3), "that is more than one makes");
        assert!(!jobs(&[2], 49).is_usual(BACK, 2), "too few were seen");
        // One in two is two jobs, of which nobody waited for the first.
        assert!(![1, 2].iter().any(|calls| jobs(&[1, 2], 500).is_usual(BACK, *calls)));
        let mut left = jobs(&[2], 600);
        assert!(left.is_usual(BACK, 2));
        (0..60).for_each(|_| left.unreturned(false, 1));
        assert!(!left.is_usual(BACK, 2), "nobody waits for one in eleven");
    }

    #[test]
    fn jobs_without_calls_count_once_their_thread_makes_one() {
        let mut kind = Kind::default();
        assert!(!kind.bare() && !kind.bare());
        assert_eq!(kind.calls(), ControlFlow::Break(2));
        assert_eq!(kind.calls(), ControlFlow::Continue(()));
        assert!(kind.bare());
    }
}
