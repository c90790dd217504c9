//! Which requests are slow, and which threads work for them now.

use rustc_hash::FxHashMap;
use tracer_common::event::Sample;
use tracer_model::{ClassId, Nanos, SpanId};
use tracer_results::metrics::ClassStats;
use tracer_results::profiles::SlowRequests;

use super::Pipeline;

/// How long the tail of a class counts before it is asked for again, nanoseconds.
const FRESH: Nanos = 1_000_000_000;
/// Most threads that wait to be taken; the next sample of another asks again.
const THREADS: usize = 64;

/// A thread that works for a slow request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowThread {
    /// The thread.
    pub tid: u32,
    /// The request's span.
    pub span: SpanId,
}

/// Thresholds, and what is slow now.
#[derive(Debug, Default)]
pub(super) struct Slow {
    settings: SlowRequests,
    /// By class, of which there is a limit: when it was asked for, and the threshold.
    thresholds: FxHashMap<ClassId, (Nanos, Option<Nanos>)>,
    threads: Vec<SlowThread>,
}

impl Slow {
    pub(super) fn new(settings: SlowRequests) -> Self {
        Self { settings, ..Self::default() }
    }

    /// From what duration on a request of the class is slow.
    pub(super) fn threshold(&mut self, stats: &ClassStats, class: ClassId, now: Nanos) -> Option<Nanos> {
        if self.settings.is_off() {
            return None;
        }
        let known = self.thresholds.get(&class).filter(|(at, _)| now.saturating_sub(*at) < FRESH);
        if let Some((_, threshold)) = known {
            return *threshold;
        }
        let (recent, p99) = stats.tail(class);
        let threshold = self.settings.threshold(recent, p99);
        self.thresholds.insert(class, (now, threshold));
        threshold
    }
}

impl Pipeline {
    /// A sample was taken: its thread may work for a request that is slow already.
    pub(super) fn notice_slow(&mut self, sample: &Sample) {
        let header = &sample.header;
        if header.flags != 0 || self.slow.settings.is_off() || self.slow.threads.len() >= THREADS {
            return;
        }
        let Some(held) = self.engine.held_by(header.tid) else { return };
        let Some(class) = held.class else { return };
        let threshold = self.slow.threshold(&self.stats, class, header.nanos);
        if threshold.is_some_and(|threshold| header.nanos.saturating_sub(held.start) > threshold) {
            self.slow.threads.push(SlowThread { tid: header.tid, span: held.span });
        }
    }

    /// Threads that worked for slow requests when they were sampled, since last taken.
    pub fn take_slow_threads(&mut self) -> Vec<SlowThread> {
        std::mem::take(&mut self.slow.threads)
    }

    /// Whether the thread still works for that request.
    pub fn is_slow_still(&self, thread: SlowThread) -> bool {
        self.engine.held_by(thread.tid).is_some_and(|held| held.span == thread.span)
    }
}
