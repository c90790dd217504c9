//! A histogram of durations with steps of 9 %, for quantiles of one window.

use super::duration_counts::DurationCounts;
use super::rows::DurationHistogram;

/// Steps per doubling.
const STEPS: u32 = 8;
/// The shortest duration distinguished, as a power of two of nanoseconds: 1.02 µs.
const LOWEST: u32 = 10;
/// Doublings covered: up to 73 minutes.
const DOUBLINGS: u32 = 32;
const BUCKETS: usize = (STEPS * DOUBLINGS) as usize;

/// Counts by duration.
#[derive(Clone, Debug)]
pub(super) struct Durations(Box<[u32; BUCKETS]>);

impl Default for Durations {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Durations {
    /// Counts a duration in nanoseconds.
    pub(super) fn add(&mut self, nanos: u64, times: u32) {
        let place = (nanos.max(1) as f64).log2() - f64::from(LOWEST);
        let bucket = (place * f64::from(STEPS)).clamp(0.0, (BUCKETS - 1) as f64) as usize;
        self.0[bucket] = self.0[bucket].saturating_add(times);
    }

    /// The same in the coarser steps that files have.
    pub(super) fn histogram(&self) -> DurationHistogram {
        let mut histogram = DurationHistogram::default();
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            histogram.add(middle(bucket) as u64, *count);
        }
        histogram
    }

    /// The same in steps twice as wide, as charts show them.
    pub(super) fn counts(&self) -> DurationCounts {
        let pairs = self.0.chunks_exact(2).map(|pair| pair.iter().fold(0_u32, |sum, count| sum.saturating_add(*count)));
        DurationCounts::new(pairs.enumerate())
    }

    /// The duration, seconds, that `share` of them do not exceed: the middle of its step. 0 without any.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return middle(bucket) / 1e9;
            }
        }
        0.0
    }
}

/// The middle of a step, nanoseconds.
fn middle(bucket: usize) -> f64 {
    ((bucket as f64 + 0.5) / f64::from(STEPS) + f64::from(LOWEST)).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_step() {
        let mut durations = Durations::default();
        assert!(durations.quantile(0.5).abs() < 1e-12);
        for millis in 1..=1000u64 {
            durations.add(millis * 1_000_000, 1);
        }
        for (share, expected) in [(0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (0.0, 0.001)] {
            let found = durations.quantile(share);
            assert!((found / expected - 1.0).abs() < 0.06, "{share}: {found}");
        }
        durations.add(u64::MAX, 1);
        durations.add(0, 1);
    }
}
