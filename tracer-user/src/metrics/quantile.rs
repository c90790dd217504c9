//! Quantiles of durations with a bounded relative error, in little memory.
//!
//! Buckets grow by a constant factor γ = 1.04 (the idea of DDSketch, Masson et al. 2019): a value is off by at most
//! (γ−1)/(γ+1) = 2 %.

const GAMMA: f64 = 1.04;
/// Smallest value told apart, nanoseconds.
const FLOOR: f64 = 1_000.0;
/// Buckets: up to 1 µs · 1.04^599 ≈ 4½ hours; longer ones count as that. At most 2.4 KiB, and only up to the longest
/// duration seen.
const BUCKETS: usize = 600;

/// A distribution of durations.
#[derive(Clone, Debug, Default)]
pub struct Quantiles {
    /// Allocated at the first value, up to the largest bucket used.
    counts: Vec<u32>,
    total: u64,
}

impl Quantiles {
    /// Adds a duration in nanoseconds.
    pub fn add(&mut self, nanos: u64) {
        let ratio = (nanos as f64 / FLOOR).max(1.0);
        let index = ((ratio.ln() / GAMMA.ln()).ceil() as usize).min(BUCKETS - 1);
        if self.counts.len() <= index {
            self.counts.reserve_exact(index + 1 - self.counts.len());
            self.counts.resize(index + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(index) {
            *count = count.saturating_add(1);
            self.total += 1;
        }
    }

    /// Adds another distribution.
    pub fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (own, count) in self.counts.iter_mut().zip(&other.counts) {
            *own = own.saturating_add(*count);
        }
        self.total += other.total;
    }

    /// The duration below which the share `q` lies, seconds; `None` when there are none.
    pub fn at(&self, q: f64) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let rank = (q * (self.total - 1) as f64).round() as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u64::from(*count);
            if seen > rank {
                // The middle of the bucket, in the sense of relative error.
                return Some(FLOOR * GAMMA.powi(index as i32) * 2.0 / (1.0 + GAMMA) / 1e9);
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
                sketch.add(*value);
            }
            values.sort_unstable();
            let rank = (q * (values.len() - 1) as f64).round() as usize;
            let truth = values[rank] as f64 / 1e9;
            let got = sketch.at(q).unwrap();
            prop_assert!((got - truth).abs() / truth <= 0.025, "{} {}", got, truth);
        }
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Quantiles::default().at(0.5), None);
    }
}
