//! Mean, variance and percentiles of values that come one by one, in little memory.

/// Buckets, each 2^¼ times as wide as the one before; the first begins at [`LEAST`], the last ends at 4295.
const BUCKETS: usize = 128;
/// Smaller values are in the first bucket: a microsecond, or a request in 12 days.
const LEAST: f64 = 1e-6;

/// What is known of a series of values, none negative.
#[derive(Clone, Debug)]
pub struct Sketch {
    count: u64,
    mean: f64,
    /// Sum of squared deviations from the mean.
    squares: f64,
    zeros: u32,
    buckets: [u16; BUCKETS],
    least: f64,
    most: f64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { count: 0, mean: 0.0, squares: 0.0, zeros: 0, buckets: [0; BUCKETS], least: f64::MAX, most: 0.0 }
    }
}

/// Where bucket `index` begins.
fn bound(index: usize) -> f64 {
    LEAST * 2f64.powf(index as f64 / 4.0)
}

impl Sketch {
    /// Adds a value; one that is no number, or negative, changes nothing.
    pub fn add(&mut self, value: f64) {
        if !(value >= 0.0 && value.is_finite()) {
            return;
        }
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
        self.most = self.most.max(value);
        if value == 0.0 {
            self.zeros = self.zeros.saturating_add(1);
            return;
        }
        self.least = self.least.min(value);
        let index = ((value / LEAST).log2() * 4.0).floor().clamp(0.0, (BUCKETS - 1) as f64) as usize;
        if self.buckets.get(index).is_some_and(|count| *count == u16::MAX) {
            // Shares stay, the oldest values fade.
            self.zeros /= 2;
            self.buckets.iter_mut().for_each(|count| *count /= 2);
        }
        if let Some(count) = self.buckets.get_mut(index) {
            *count += 1;
        }
    }

    /// Values so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Their variance; 0 for fewer than two.
    pub fn variance(&self) -> f64 {
        if self.count < 2 { 0.0 } else { self.squares / (self.count - 1) as f64 }
    }

    /// The value that a `share` of them, 0 to 1, does not exceed; interpolated within a bucket, so up to a
    /// tenth off.
    pub fn quantile(&self, share: f64) -> f64 {
        let kept = u64::from(self.zeros) + self.buckets.iter().map(|count| u64::from(*count)).sum::<u64>();
        let wanted = share.clamp(0.0, 1.0) * kept as f64;
        let mut below = f64::from(self.zeros);
        if wanted <= below {
            return 0.0;
        }
        for (index, count) in self.buckets.iter().enumerate() {
            let here = f64::from(*count);
            if here > 0.0 && wanted <= below + here {
                let (from, to) = (bound(index), bound(index + 1));
                let value = from + (to - from) * (wanted - below) / here;
                return value.max(self.least).min(self.most);
            }
            below += here;
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn moments_are_exact_and_percentiles_near() {
        let mut sketch = Sketch::default();
        for n in 1..=1000 {
            sketch.add(f64::from(n) / 1000.0);
        }
        assert!((sketch.mean() - 0.5005).abs() < 1e-9);
        assert!((sketch.variance() - 0.083_416_666).abs() < 1e-6, "{}", sketch.variance());
        for share in [0.05, 0.5, 0.95, 0.99] {
            let found = sketch.quantile(share);
            assert!((found / share - 1.0).abs() < 0.05, "{share}: {found}");
        }
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            sketch.add(bad);
        }
        assert_eq!(sketch.count(), 1000);
        (0..2000).for_each(|_| sketch.add(0.0));
        assert!(sketch.quantile(0.5).abs() < 1e-12 && sketch.quantile(0.95) > 0.5);
        assert!(Sketch::default().quantile(0.5).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn percentiles_are_in_order(values in proptest::collection::vec(0.0f64..1e7, 1..300)) {
            let mut sketch = Sketch::default();
            for value in &values {
                sketch.add(*value);
            }
            let found: Vec<f64> = [0.0, 0.1, 0.5, 0.9, 1.0].map(|share| sketch.quantile(share)).to_vec();
            prop_assert!(found.windows(2).all(|pair| pair[0] <= pair[1]), "{found:?}");
            prop_assert!(sketch.variance() >= 0.0);
        }

        #[test]
        fn full_buckets_fade(extra in 0u32..70_000) {
            let mut sketch = Sketch::default();
            (0..60_000 + extra).for_each(|_| sketch.add(1.0));
            (0..60_000).for_each(|_| sketch.add(4.0));
            prop_assert!(sketch.quantile(0.9) >= 2.0);
        }
    }
}
