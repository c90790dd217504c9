//! Counts by duration of one window, in few bytes: what a latency heatmap shows, and quantiles over several windows.
//!
//! Steps are a quarter of a doubling (19 %). Most windows fill a dozen of them, so only filled steps are stored.

use smallvec::SmallVec;

/// Steps per doubling.
const STEPS: u32 = 4;
/// Lower bound of the first step, as a power of two of nanoseconds: 1.02 µs.
const LOWEST: u32 = 10;
/// Number of steps: durations up to 73 minutes; the last holds longer ones, too.
pub const DURATION_STEPS: usize = 128;

/// Lower bound of a step, seconds. Each step ends where the next begins.
pub fn lower_bound_s(step: usize) -> f64 {
    (step as f64 / f64::from(STEPS) + f64::from(LOWEST)).exp2() / 1e9
}

/// Counts of the filled steps: for each the distance from the one before it, and its count as a variable-length number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationCounts(SmallVec<[u8; 16]>);

impl DurationCounts {
    /// From counts by step, in ascending order of steps; empty steps are left out.
    pub(super) fn new(counts: impl Iterator<Item = (usize, u32)>) -> Self {
        let (mut bytes, mut last) = (SmallVec::new(), 0);
        for (step, mut count) in counts.filter(|(step, count)| *count > 0 && *step < DURATION_STEPS) {
            bytes.push((step - last) as u8);
            last = step;
            while count >= 0x80 {
                bytes.push(count as u8 | 0x80);
                count >>= 7;
            }
            bytes.push(count as u8);
        }
        bytes.shrink_to_fit();
        Self(bytes)
    }

    /// Filled steps and their counts, ascending.
    pub fn steps(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let (mut bytes, mut step) = (self.0.iter(), 0);
        std::iter::from_fn(move || {
            step += usize::from(*bytes.next()?);
            let mut count = 0;
            for shift in (0..32).step_by(7) {
                let byte = *bytes.next()?;
                count |= u32::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            Some((step, count))
        })
    }
}

/// The counts of several windows together.
#[derive(Clone, Debug)]
pub struct DurationSum([u64; DURATION_STEPS]);

impl Default for DurationSum {
    fn default() -> Self {
        Self([0; DURATION_STEPS])
    }
}

impl DurationSum {
    /// Adds a window.
    pub fn add(&mut self, counts: &DurationCounts) {
        for (step, count) in counts.steps() {
            if let Some(sum) = self.0.get_mut(step) {
                *sum += u64::from(count);
            }
        }
    }

    /// All requests.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The duration, seconds, that `share` of them do not exceed: interpolated within its step. 0 without any.
    pub fn quantile_s(&self, share: f64) -> f64 {
        let rank = self.count() as f64 * share;
        let mut below = 0.0;
        for (step, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if below + count >= rank {
                let within = ((rank - below) / count).clamp(0.0, 1.0);
                return lower_bound_s(step) * (within / f64::from(STEPS)).exp2();
            }
            below += count;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_several_windows_are_within_a_step() {
        let step = |seconds: f64| (0..DURATION_STEPS).rev().find(|step| lower_bound_s(*step) <= seconds).unwrap();
        let mut sum = DurationSum::default();
        assert!(sum.quantile_s(0.5).abs() < 1e-12);
        for half in [1..=500_u32, 501..=1000] {
            let mut counts = [0; DURATION_STEPS];
            half.for_each(|millis| counts[step(f64::from(millis) / 1e3)] += 1);
            sum.add(&DurationCounts::new(counts.into_iter().enumerate()));
        }
        assert_eq!(sum.count(), 1000);
        for share in [0.5, 0.95, 0.99] {
            let found = sum.quantile_s(share);
            assert!((found / share - 1.0).abs() < 0.1, "{share}: {found}");
        }
    }

    proptest! {
        #[test]
        fn counts_are_read_as_written(filled in proptest::collection::btree_map(0..DURATION_STEPS, 1..=u32::MAX, 0..40)) {
            let written = DurationCounts::new(filled.clone().into_iter());
            prop_assert_eq!(written.steps().collect::<Vec<_>>(), filled.into_iter().collect::<Vec<_>>());
        }
    }
}
