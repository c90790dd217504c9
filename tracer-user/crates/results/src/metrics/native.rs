//! Buckets of Prometheus' native histograms: their bounds grow by a constant factor, so a quantile is off by 5 % at most,
//! whatever the durations are, and only buckets with observations are sent.
//!
//! Schema 3: eight buckets for each doubling. The range is bounded: below a microsecond everything is zero, above 4096 s it is
//! in one bucket. Eight buckets are made at once when one of them is first needed.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::foldable::add;

/// Resolution: 2 to the power of this many buckets for each doubling.
pub(super) const SCHEMA: i32 = 3;
/// Buckets for each doubling.
const STEPS: i32 = 1 << SCHEMA;
/// Durations up to this one are zero, seconds: 2 to the power of -20.
pub(super) const ZERO: f64 = 1.0 / 1_048_576.0;
/// First bucket above zero, and the last one: above 4096 s.
const FIRST: i32 = -20 * STEPS + 1;
const LAST: i32 = 12 * STEPS + 1;
/// Groups of buckets that are made together.
const GROUPS: usize = ((LAST - FIRST) / STEPS + 1) as usize;

/// Bounds within a doubling, from one half: powers of the eighth root of two.
const BOUNDS: [f64; STEPS as usize] = [
    0.5,
    0.545_253_866_332_628_8,
    0.594_603_557_501_360_5,
    0.648_419_777_325_504_8,
    0.707_106_781_186_547_5,
    0.771_105_412_703_970_4,
    0.840_896_415_253_714_4,
    0.917_004_043_204_671_1,
];

type Group = Box<[AtomicU64; STEPS as usize]>;

/// The buckets of one series.
#[derive(Debug)]
pub(super) struct NativeBuckets {
    zero: AtomicU64,
    groups: [OnceLock<Group>; GROUPS],
}

impl Default for NativeBuckets {
    fn default() -> Self {
        Self { zero: AtomicU64::new(0), groups: [const { OnceLock::new() }; GROUPS] }
    }
}

impl NativeBuckets {
    /// Counts an observation.
    pub(super) fn observe(&self, seconds: f64, times: u64) {
        let Some(index) = index(seconds) else {
            add(&self.zero, times);
            return;
        };
        let place = (index - FIRST) as usize;
        let (group, step) = (place / STEPS as usize, place % STEPS as usize);
        if let Some(group) = self.groups.get(group) {
            let group = group.get_or_init(|| Box::new([const { AtomicU64::new(0) }; STEPS as usize]));
            if let Some(count) = group.get(step) {
                add(count, times);
            }
        }
    }

    /// What was counted.
    pub(super) fn counts(&self) -> NativeCounts {
        let mut buckets = BTreeMap::new();
        for (first, group) in (FIRST..).step_by(STEPS as usize).zip(&self.groups) {
            for (index, count) in (first..).zip(group.get().into_iter().flat_map(|group| group.iter())) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    buckets.insert(index, count);
                }
            }
        }
        NativeCounts { zero: self.zero.load(Ordering::Relaxed), buckets }
    }
}

/// Counts of one series, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NativeCounts {
    /// Observations up to [`ZERO`].
    pub(super) zero: u64,
    /// Others, by bucket; none of them is 0.
    buckets: BTreeMap<i32, u64>,
}

impl NativeCounts {
    /// Adds another series.
    pub(super) fn add(&mut self, other: &Self) {
        self.zero += other.zero;
        for (index, count) in &other.buckets {
            *self.buckets.entry(*index).or_default() += count;
        }
    }

    /// All observations.
    pub(super) fn total(&self) -> u64 {
        self.zero + self.buckets.values().sum::<u64>()
    }

    /// Buckets as the format has them: runs of neighbours, each with its distance from the one before (the first: from bucket
    /// 0) and its length; and for each bucket the difference to the one before.
    pub(super) fn spans(&self) -> (Vec<(i32, u32)>, Vec<i64>) {
        let (mut spans, mut deltas) = (Vec::<(i32, u32)>::new(), Vec::new());
        let (mut next, mut before) = (0, 0);
        for (index, count) in &self.buckets {
            match spans.last_mut() {
                Some((_, length)) if *index == next => *length += 1,
                _ => spans.push((index - next, 1)),
            }
            deltas.push(*count as i64 - before);
            (next, before) = (index + 1, *count as i64);
        }
        (spans, deltas)
    }
}

/// The bucket of a duration: its upper bound is 2 to the power of a 2^[`SCHEMA`]th of it. `None`: zero.
fn index(seconds: f64) -> Option<i32> {
    // Also what is no number.
    if seconds.is_nan() || seconds <= ZERO {
        return None;
    }
    let bits = seconds.min(8192.0).to_bits();
    // Larger than ZERO: neither a denormal number nor negative. The fraction is in [0.5, 1).
    let exponent = ((bits >> 52) & 0x7ff) as i32 - 1022;
    let fraction = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52));
    let step = BOUNDS.partition_point(|bound| *bound < fraction) as i32;
    Some(((exponent - 1) * STEPS + step).clamp(FIRST, LAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds of a bucket.
    fn bounds(index: i32) -> [f64; 2] {
        [index - 1, index].map(|index| (f64::from(index) / f64::from(STEPS)).exp2())
    }

    proptest::proptest! {
        #[test]
        fn a_duration_is_within_its_bucket(exponent in -19.9_f64..11.9) {
            let seconds = exponent.exp2();
            let [lower, upper] = bounds(index(seconds).unwrap());
            let slack = 1.0 + 1e-12;
            proptest::prop_assert!(lower / slack < seconds && seconds <= upper * slack, "{} {} {}", lower, seconds, upper);
        }

        #[test]
        fn spans_and_differences_give_the_counts_again(seconds in proptest::collection::vec(0.0_f64..10.0, 0..200)) {
            let buckets = NativeBuckets::default();
            for seconds in &seconds {
                buckets.observe(*seconds, 1);
            }
            let counts = buckets.counts();
            let (spans, deltas) = counts.spans();
            let (mut again, mut next, mut count, mut deltas) = (BTreeMap::new(), 0, 0, deltas.into_iter());
            for (offset, length) in spans {
                next += offset;
                for _ in 0..length {
                    count += deltas.next().unwrap();
                    again.insert(next, count as u64);
                    next += 1;
                }
            }
            proptest::prop_assert_eq!(&again, &counts.buckets);
            proptest::prop_assert_eq!(counts.total(), seconds.len() as u64);
            proptest::prop_assert_eq!(deltas.next(), None);
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        for (seconds, expected) in [
            (0.0, None),
            (-1.0, None),
            (f64::NAN, None),
            (ZERO, None),
            (ZERO * 1.001, Some(FIRST)),
            (1.0, Some(0)),
            (1.001, Some(1)),
            (2.0, Some(8)),
            (4096.0, Some(LAST - 1)),
            (4096.1, Some(LAST)),
            (1e9, Some(LAST)),
            (f64::INFINITY, Some(LAST)),
        ] {
            assert_eq!(index(seconds), expected, "{seconds}");
        }
        let buckets = NativeBuckets::default();
        for seconds in [ZERO * 1.001, f64::INFINITY] {
            buckets.observe(seconds, 1);
        }
        assert_eq!(buckets.counts().total(), 2);
    }
}
