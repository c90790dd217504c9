//! Clocks of threads that work for slow requests: a few at once, within the overhead budget, until the request ends.

use std::collections::VecDeque;

use tracer_host::guard::shed::Level;
use tracer_kernel::loader::monotonic;
use tracer_model::{Nanos, SpanId};

use super::agent::Agent;
use crate::pipeline::{Pipeline, SlowThread};

/// Threads with a clock of their own at the same time.
const CLOCKS: usize = 8;
/// Highest rate of one, samples per second of the thread's CPU time.
const HERTZ: u32 = 997;
/// It must sample this many times as often as the clocks of the CPUs, which sample the thread anyway.
const GAIN: u32 = 2;
/// Longest time that a request's thread has one, nanoseconds: requests that hang must not keep them from others.
const LONGEST: Nanos = 10_000_000_000;
/// Requests remembered so that each gets a clock once.
const REMEMBERED: usize = 64;

/// A running clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    thread: SlowThread,
    hertz: u32,
    until: Nanos,
}

/// What became of the threads of slow requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    opened: u64,
    over_budget: u64,
    too_many: u64,
    refused: u64,
}

/// The rate of a clock for one more thread, samples per second: `most` is what all may take, `given` what others have, `hertz` the
/// rate of the CPUs' clocks. `None`: it would not be worth it.
fn rate(most: u32, given: u32, hertz: u32) -> Option<u32> {
    let rate = most.saturating_sub(given).min(HERTZ);
    (hertz > 0 && rate >= hertz.saturating_mul(GAIN)).then_some(rate)
}

/// Clocks of threads.
#[derive(Debug, Default)]
pub(super) struct ThreadClocks {
    clocks: Vec<Clock>,
    /// Threads of requests that had their turn, newest last.
    had: VecDeque<(u32, SpanId)>,
    counts: Counts,
}

impl ThreadClocks {
    /// Whether any is.
    pub(super) fn are_running(&self) -> bool {
        !self.clocks.is_empty()
    }

    /// Takes out the clocks that are over: their time, or `is_slow_still` says so.
    fn take_over(&mut self, now: Nanos, is_slow_still: impl Fn(SlowThread) -> bool) -> Vec<u32> {
        let over = |clock: &mut Clock| clock.until <= now || !is_slow_still(clock.thread);
        self.clocks.extract_if(.., over).map(|clock| clock.thread.tid).collect()
    }

    /// The rate of a clock for this thread, if it is to have one now. Each thread of a request is decided once.
    fn decide(&mut self, thread: SlowThread, most: u32, hertz: u32) -> Option<u32> {
        let key = (thread.tid, thread.span);
        if self.had.contains(&key) || self.clocks.iter().any(|clock| clock.thread.tid == thread.tid) {
            return None;
        }
        if self.had.len() >= REMEMBERED {
            self.had.pop_front();
        }
        self.had.push_back(key);
        if self.clocks.len() >= CLOCKS {
            self.counts.too_many += 1;
            return None;
        }
        let given = self.clocks.iter().map(|clock| clock.hertz).sum();
        let rate = rate(most, given, hertz);
        self.counts.over_budget += u64::from(rate.is_none());
        rate
    }

    /// Outcomes by label value.
    pub(super) fn outcomes(&self) -> [(&'static str, u64); 4] {
        let Counts { opened, over_budget, too_many, refused } = self.counts;
        [("opened", opened), ("over_budget", over_budget), ("too_many", too_many), ("refused", refused)]
    }
}

impl Agent {
    /// Gives threads of slow requests clocks of their own, and takes them away when the requests have ended.
    pub(super) fn follow_slow_requests(&mut self, pipeline: &mut Pipeline) {
        let slow = pipeline.take_slow_threads();
        if slow.is_empty() && self.profiling.thread_clocks.clocks.is_empty() {
            return;
        }
        let now = monotonic();
        let shedding = self.health.level >= Level::Sampling;
        for tid in self.profiling.thread_clocks.take_over(now, |thread| !shedding && pipeline.is_slow_still(thread)) {
            self.kernel.sampler.leave_thread(tid);
        }
        if shedding {
            return;
        }
        let most = self.profiling.sampling.ad_hoc();
        for thread in slow {
            // It may have ended since it was sampled: records of that time were read only now.
            if !pipeline.is_slow_still(thread) {
                continue;
            }
            let Some(hertz) = self.profiling.thread_clocks.decide(thread, most, self.kernel.sampler.hertz()) else {
                continue;
            };
            match self.kernel.sampler.sample_thread(thread.tid, hertz) {
                Ok(()) => {
                    self.profiling.thread_clocks.counts.opened += 1;
                    self.profiling.thread_clocks.clocks.push(Clock { thread, hertz, until: now + LONGEST });
                }
                Err(error) => {
                    self.profiling.thread_clocks.counts.refused += 1;
                    log::debug!("a slow request is not sampled more densely: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32, span: u64) -> SlowThread {
        SlowThread { tid, span: SpanId(span) }
    }

    fn open(clocks: &mut ThreadClocks, thread: SlowThread, hertz: u32, until: Nanos) {
        clocks.clocks.push(Clock { thread, hertz, until });
    }

    #[test]
    fn a_clock_must_be_worth_it() {
        assert_eq!(rate(5000, 0, 99), Some(HERTZ));
        assert_eq!(rate(500, 200, 99), Some(300));
        assert_eq!(rate(500, 303, 99), None, "hardly more often than the others");
        assert_eq!(rate(5000, 0, 0), None, "sampling is off");
        assert_eq!(rate(0, 10, 99), None);
    }

    #[test]
    fn each_thread_of_a_request_has_one_turn_and_few_have_it_at_once() {
        let mut clocks = ThreadClocks::default();
        assert_eq!(clocks.decide(thread(1, 1), 1000, 99), Some(HERTZ));
        open(&mut clocks, thread(1, 1), 400, 50);
        assert_eq!(clocks.decide(thread(1, 1), 1000, 99), None);
        assert_eq!(clocks.decide(thread(2, 2), 1000, 99), Some(600));
        assert_eq!(clocks.decide(thread(3, 3), 500, 99), None);
        assert_eq!(clocks.counts, Counts { over_budget: 1, ..Counts::default() });
        // Its time is over, and it has no second turn.
        assert_eq!(clocks.take_over(49, |_| true), Vec::<u32>::new());
        assert_eq!(clocks.take_over(50, |_| true), [1]);
        assert_eq!(clocks.decide(thread(1, 1), 1000, 99), None);
        // The next request of the same thread has one.
        assert_eq!(clocks.decide(thread(1, 9), 1000, 99), Some(HERTZ));
        for tid in 10..10 + CLOCKS as u32 {
            open(&mut clocks, thread(tid, 100), 1, 1000);
        }
        assert_eq!(clocks.decide(thread(30, 300), 1000, 99), None);
        assert_eq!(clocks.counts.too_many, 1);
        assert_eq!(clocks.take_over(0, |thread| thread.tid > 11), [10, 11]);
        for tid in 0..1000 {
            clocks.decide(thread(tid, 5), 0, 99);
        }
        assert!(clocks.had.len() <= REMEMBERED);
    }
}
