//! Statistics of a process's jobs: they decide how much a wake-up proves there.

use std::ops::ControlFlow;

use tracer_common::event::Wake;
use tracer_model::Nanos;

use super::locks::Locks;

/// Threads of a process share requests if more than one in this many is read by a thread that runs several.
const SHARED: u32 = 8;
/// How long after the last fire-and-forget job a process counts as having such jobs.
const REMEMBERED: Nanos = 60_000_000_000;
/// Jobs counted per process before the counts are halved.
const JOBS: u32 = 8192;
/// At most one hand-back in this many may belong to another job: the share of fire-and-forget jobs times the share of
/// jobs without calls.
const MIXED: u64 = 2500;
/// Jobs with the most frequent number of calls needed before that number proves anything.
const USUAL: u32 = 50;
/// A number of calls is usual while jobs with other numbers, and fire-and-forget jobs, are each at most one in this
/// many.
const UNUSUAL: u32 = 20;

/// Statistics of jobs with the same kind of end.
#[derive(Clone, Copy, Debug, Default)]
struct Jobs {
    /// Recent jobs: those without a waiter, those with a waiter but no call, and all.
    alone: u32,
    bare: u32,
    all: u32,
    /// The most frequent number of calls, how many jobs made as many, and how many made more or fewer.
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

/// How a job ends that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// Its thread wakes the thread that waits for the result.
    HandedBack,
    /// Its thread sends the answer itself.
    Answered,
}

/// Statistics of a process's jobs.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// When a thread got new work without handing back the result of its call; 0: never.
    unreturned: Nanos,
    handed: Jobs,
    answered: Jobs,
    /// Requests read by threads that run one at a time, and by others, since tracking began.
    single: u32,
    shared: u32,
    locks: Locks,
}

impl Pools {
    /// A process of which nothing is known except whether its requests move between threads.
    pub(super) fn new(shared: bool) -> Self {
        Self { shared: u32::from(shared), ..Self::default() }
    }

    fn of(&mut self, end: JobEnd) -> &mut Jobs {
        match end {
            JobEnd::HandedBack => &mut self.handed,
            JobEnd::Answered => &mut self.answered,
        }
    }

    fn jobs(&self, end: JobEnd) -> &Jobs {
        match end {
            JobEnd::HandedBack => &self.handed,
            JobEnd::Answered => &self.answered,
        }
    }

    /// A job with calls had no waiter. `given`: a thread that held a request woke its thread, perhaps for a lock;
    /// otherwise its thread turned to other work without answering a request.
    pub(super) fn unreturned(&mut self, given: bool, now: Nanos) {
        if given {
            self.unreturned = now;
        } else {
            self.answered.job(true, false);
        }
        self.handed.job(true, false);
    }

    /// Counts jobs with this end that made no call.
    pub(super) fn bare(&mut self, end: JobEnd, jobs: u32) {
        (0..jobs.min(JOBS)).for_each(|_| self.of(end).job(false, true));
    }

    /// Counts a job with this end that made `calls` calls.
    pub(super) fn returned(&mut self, end: JobEnd, calls: usize) {
        self.of(end).returned(calls);
    }

    /// Whether `calls` is what one job makes, rather than the sum of a fire-and-forget job and the next one: nearly all
    /// jobs make as many. If some of them were two jobs, others would have shown fewer calls.
    pub(super) fn is_usual(&self, end: JobEnd, calls: usize) -> bool {
        self.jobs(end).is_usual(calls)
    }

    /// Whether a fire-and-forget job was seen recently.
    pub(super) fn is_unreturned(&self, now: Nanos) -> bool {
        self.unreturned != 0 && now.saturating_sub(self.unreturned) < REMEMBERED
    }

    /// Whether it has both fire-and-forget jobs with calls and awaited jobs without: one of each in a row on a thread
    /// looks like an awaited job with a call.
    pub(super) fn mixed(&self, end: JobEnd) -> bool {
        self.jobs(end).mixed()
    }

    /// A thread that holds a request was woken: returns whether it waited for a lock, as far as known by now.
    pub(super) fn woken(&mut self, wake: &Wake) -> bool {
        self.locks.woken(wake)
    }

    /// Whether a wake-up at this futex is known to release a lock.
    pub(super) fn is_lock(&self, address: u64) -> bool {
        self.locks.holds(address)
    }

    /// A request was read; `shared`: by a thread that runs several at once.
    pub(super) fn read(&mut self, shared: bool) {
        let count = if shared { &mut self.shared } else { &mut self.single };
        *count = count.saturating_add(1);
    }

    /// Whether requests move between threads of the process (goroutines, tasks): a thread that is woken or answers then
    /// does not stand for one request.
    pub(super) fn shares_threads(&self) -> bool {
        self.shared.saturating_mul(SHARED) > self.single
    }
}

/// The thread's past behaviour, as far as it shows what kind of thread it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThreadKind {
    /// It made a call while it held no request.
    called: bool,
    /// Awaited jobs without a call before its first call. A virtual machine's internal threads make no calls and wake
    /// others for their own reasons; a pool thread makes a call sooner or later.
    bare: u32,
    /// It made a call while it waited for the reply of another, or another thread read a reply for it: its next work
    /// may not be for the same request as its last.
    pub(super) juggles: bool,
    /// It answered a request that another thread had read: it does not work for the threads that it wakes.
    pub(super) answers: bool,
    /// It read requests while others it had read were unanswered, and sent calls or answers: it runs several at once. A
    /// thread that only reads them leaves them to others, each of which may run one at a time.
    pub(super) acts: bool,
}

impl ThreadKind {
    /// It made a call while it held no request: returns its earlier jobs without a call, which count from now on.
    pub(super) fn calls(&mut self) -> ControlFlow<u32> {
        if std::mem::replace(&mut self.called, true) {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(std::mem::take(&mut self.bare))
    }

    /// It did a job without a call: returns whether that counts by now.
    pub(super) fn bare(&mut self) -> bool {
        self.bare = if self.called { 0 } else { self.bare.saturating_add(1) };
        self.called
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK: JobEnd = JobEnd::HandedBack;

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
        // Every other count covers two jobs, the first of them without a waiter.
        assert!(![1, 2].iter().any(|calls| jobs(&[1, 2], 500).is_usual(BACK, *calls)));
        let mut left = jobs(&[2], 600);
        assert!(left.is_usual(BACK, 2));
        (0..60).for_each(|_| left.unreturned(false, 1));
        assert!(!left.is_usual(BACK, 2), "one in eleven has no waiter");
    }

    #[test]
    fn jobs_without_calls_count_once_their_thread_makes_one() {
        let mut kind = ThreadKind::default();
        assert!(!kind.bare() && !kind.bare());
        assert_eq!(kind.calls(), ControlFlow::Break(2));
        assert_eq!(kind.calls(), ControlFlow::Continue(()));
        assert!(kind.bare());
    }
}
