//! Quantile sketch of durations with bounded relative error and little memory.
//!
//! Bucket bounds grow by the constant factor γ = 1.04 (the idea of DDSketch, Masson et al. 2019), so a value is off by
//! at most (γ−1)/(γ+1) = 2 %.

const GAMMA: f64 = 1.04;
/// Smallest distinguished value, nanoseconds.
const FLOOR: f64 = 1_000.0;
/// Buckets: up to 1 µs · 1.04^599 ≈ 4½ hours; longer durations count as that. Only used buckets are stored, 8 bytes
/// each: a class with a few requests takes tens of bytes (there may be thousands of those), and none more than 4.8 KiB.
const BUCKETS: usize = 600;

/// A distribution of durations.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    /// Non-empty buckets in ascending order, with their counts.
    counts: Vec<(u16, u32)>,
    total: u64,
}

impl Quantiles {
    /// Adds a duration in nanoseconds.
    pub fn add(&mut self, nanos: u64, times: u64) {
        let ratio = (nanos as f64 / FLOOR).max(1.0);
        let index = ((ratio.ln() / GAMMA.ln()).ceil() as usize).min(BUCKETS - 1);
        self.add_to(index as u16, u32::try_from(times).unwrap_or(u32::MAX));
        self.total += times;
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            self.add_to(*bucket, *count);
        }
        self.total += other.total;
    }

    fn add_to(&mut self, bucket: u16, count: u32) {
        match self.counts.binary_search_by_key(&bucket, |(known, _)| *known) {
            Ok(at) => {
                if let Some((_, sum)) = self.counts.get_mut(at) {
                    *sum = sum.saturating_add(count);
                }
            }
            Err(at) => {
                if self.counts.len() == self.counts.capacity() {
                    // Grows by a quarter instead of doubling.
                    self.counts.reserve_exact(self.counts.len() / 4 + 1);
                }
                self.counts.insert(at, (bucket, count));
            }
        }
    }

    /// The `q`-quantile in seconds; `None` without durations.
    pub fn at(&self, q: f64) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let rank = (q * (self.total - 1) as f64).round() as u64;
        let mut seen = 0;
        for (bucket, count) in &self.counts {
            seen += u64::from(*count);
            if seen > rank {
                // The bucket's midpoint with respect to relative error.
                return Some(FLOOR * GAMMA.powi(i32::from(*bucket)) * 2.0 / (1.0 + GAMMA) / 1e9);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_within_two_and_a_half_percent(mut values in proptest::collection::vec(1_000u64..10_000_000_000_000, 1..300), q in 0.0f64..1.0) {
            let mut sketch = Quantiles::default();
            for value in &values {
                sketch.add(*value, 1);
            }
            values.sort_unstable();
            let rank = (q * (values.len() - 1) as f64).round() as usize;
            let truth = values[rank] as f64 / 1e9;
            let got = sketch.at(q).unwrap();
            prop_assert!((got - truth).abs() / truth <= 0.025, "{} {}", got, truth);
        }
    }

    #[test]
    fn two_together_are_as_if_they_had_been_one() {
        let (mut both, mut one, mut other) = (Quantiles::default(), Quantiles::default(), Quantiles::default());
        for n in 0..5000u64 {
            let value = n * n * 977 % 3_000_000_000;
            both.add(value, 1);
            if n % 3 == 0 { one.add(value, 1) } else { other.add(value, 1) }
        }
        one.merge(&other);
        assert!(one.counts.is_sorted() && one.counts == both.counts && one.total == both.total);
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Quantiles::default().at(0.5), None);
    }
}
