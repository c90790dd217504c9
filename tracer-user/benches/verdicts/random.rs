//! Random numbers by seed: the same scenario and seed give the same windows.

/// A generator (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    /// Every seed gives its own sequence.
    pub(crate) fn new(seed: u64) -> Self {
        let mut own = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2c | 1);
        // Seeds that resemble each other begin alike.
        for _ in 0..8 {
            own.uniform();
        }
        own
    }

    /// From 0 to 1, without 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `low` to `high`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// One of `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// Mean 0, deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        let (u, angle) = (1.0 - self.uniform(), std::f64::consts::TAU * self.uniform());
        (-2.0 * u.ln()).sqrt() * angle.cos()
    }

    /// Gamma with this mean and coefficient of variation (Marsaglia and Tsang).
    pub(crate) fn gamma(&mut self, mean: f64, cv: f64) -> f64 {
        let shape = 1.0 / (cv * cv).max(1e-6);
        let boost = if shape < 1.0 { (1.0 - self.uniform()).powf(1.0 / shape) } else { 1.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.uniform()).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v * boost * mean / shape;
            }
        }
    }

    /// A count with this mean.
    pub(crate) fn poisson(&mut self, mean: f64) -> usize {
        if mean > 60.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0) as usize;
        }
        let (limit, mut product, mut n) = ((-mean).exp(), self.uniform(), 0);
        while product > limit {
            product *= self.uniform();
            n += 1;
        }
        n
    }

    /// A whole number with this mean that is next to it.
    pub(crate) fn whole(&mut self, mean: f64) -> usize {
        (mean + self.uniform()) as usize
    }

    /// `n` numbers that resemble their neighbours: mean 0, deviation `sd`, correlation `phi`.
    pub(crate) fn correlated(&mut self, n: usize, sd: f64, phi: f64) -> Vec<f64> {
        let mut x = self.normal();
        (0..n)
            .map(|_| {
                let now = x;
                x = phi * x + (1.0 - phi * phi).sqrt() * self.normal();
                now * sd
            })
            .collect()
    }
}
