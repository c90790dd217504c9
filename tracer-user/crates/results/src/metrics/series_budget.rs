//! How many series `/metrics` may have: room for new ones, and what leaves.
//!
//! The agent's own series and those that everything folded shares are few, but their number depends on the host; each scrape
//! counts them. The rest of the limit is for classes and services.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tracer_host::guard::tables::scaled;
use tracer_model::Nanos;

/// Settings of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesLimits {
    /// Maximum number of series of one scrape.
    pub max_series: usize,
    /// A class or service without requests for this long leaves.
    pub idle: Duration,
}

impl SeriesLimits {
    /// Smallest `max_series`: the agent's own series take about a thousand.
    pub const LEAST: usize = 2_000;
}

impl Default for SeriesLimits {
    fn default() -> Self {
        Self { max_series: 10_000, idle: Duration::from_secs(900) }
    }
}

/// Series that are not of a class or service, at least: an early scrape does not have them all.
const FIXED: usize = 1_000;
/// Part of the limit that new classes leave free, per cent: shared series appear later.
const SPARE: usize = 3;
/// Maximum number of duration histograms in memory, shown or not, at the default memory limit.
const HISTOGRAMS: usize = 40_000;

/// The account.
#[derive(Debug)]
pub(super) struct SeriesBudget {
    limits: SeriesLimits,
    /// Shown series of classes and services; read by scrapes.
    used: Arc<AtomicUsize>,
    /// Other series of the last scrape, which writes it.
    fixed: Arc<AtomicUsize>,
    histograms: usize,
    histograms_most: usize,
}

impl SeriesBudget {
    pub(super) fn new(limits: SeriesLimits) -> Self {
        Self { limits, used: Arc::default(), fixed: Arc::default(), histograms: 0, histograms_most: HISTOGRAMS }
    }

    /// Scales the bound of memory to a limit of `memory` bytes.
    pub(super) fn for_memory(&mut self, memory: u64) {
        self.histograms_most = scaled(HISTOGRAMS, memory);
    }

    /// Other limits.
    pub(super) fn set_limits(&mut self, limits: SeriesLimits) {
        self.limits = limits;
    }

    pub(super) fn limits(&self) -> SeriesLimits {
        self.limits
    }

    /// Where scrapes read how many shown series belong to classes and services.
    pub(super) fn used(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.used)
    }

    /// Where scrapes write how many series they had.
    pub(super) fn fixed(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.fixed)
    }

    /// What classes and services may have together.
    fn most(&self) -> usize {
        let limit = self.limits.max_series;
        let fixed = self.fixed.load(Ordering::Relaxed).max(FIXED);
        limit.saturating_sub(fixed).saturating_sub(limit * SPARE / 100)
    }

    /// Takes room for so many series, if there is.
    pub(super) fn take(&mut self, series: usize) -> bool {
        let used = self.used.load(Ordering::Relaxed) + series;
        let room = used <= self.most();
        if room {
            self.used.store(used, Ordering::Relaxed);
        }
        room
    }

    /// Takes room for a new histogram of so many samples, if there is.
    pub(super) fn take_histogram(&mut self, samples: usize) -> bool {
        let room = self.histograms < self.histograms_most && self.take(samples);
        self.histograms += usize::from(room);
        room
    }

    /// Gives room back: these series are no longer shown.
    pub(super) fn give(&mut self, series: usize) {
        let used = self.used.load(Ordering::Relaxed);
        self.used.store(used.saturating_sub(series), Ordering::Relaxed);
    }

    /// Series that must leave for the limit to hold.
    pub(super) fn excess(&self) -> usize {
        self.used.load(Ordering::Relaxed).saturating_sub(self.most())
    }

    /// Duration histograms in memory, and their limit.
    pub(super) fn histograms(&self) -> (usize, usize) {
        (self.histograms, self.histograms_most)
    }

    /// Whether so long without requests is too long.
    pub(super) fn is_idle(&self, last: Nanos, now: Nanos) -> bool {
        u128::from(now.saturating_sub(last)) >= self.limits.idle.as_nanos()
    }

    /// Time between sweeps, nanoseconds.
    pub(super) fn interval(&self) -> Nanos {
        (self.limits.idle / 4).clamp(Duration::from_secs(1), Duration::from_secs(300)).as_nanos() as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_the_limit_leaves() {
        let mut budget = SeriesBudget::new(SeriesLimits { max_series: 2_000, ..SeriesLimits::default() });
        let most = 2_000 - FIXED - 60;
        assert!(budget.take(most - 10));
        assert!(!budget.take(11));
        assert!(budget.take_histogram(10));
        assert!(!budget.take_histogram(1));
        assert_eq!((budget.excess(), budget.histograms().0), (0, 1));
        // A scrape found more of the others.
        budget.fixed().store(FIXED + 100, Ordering::Relaxed);
        assert_eq!(budget.excess(), 100);
        budget.give(100);
        assert_eq!(budget.excess(), 0);
        // More than everything.
        budget.fixed().store(usize::MAX, Ordering::Relaxed);
        assert!(!budget.take(1));
    }
}
