//! What a class costs: its reference, the variance around it, and what that lets expect of a window.

use super::super::detector::Settings;
use super::{Cell, Class, Column, Expected, Reference, STRATA, Series, TINY, median};

impl Series {
    /// Takes the windows before `hi` as the reference: means, dispersion, autocorrelation; then the expectation of
    /// every window that is kept.
    pub(in super::super) fn learn(&mut self, hi: usize, s: &Settings) {
        self.hi = hi;
        let m = self.classes.len();
        let mut sums = vec![([0.0; STRATA], [0.0; STRATA]); m];
        for (i, (count, cpu)) in sums.iter_mut().enumerate() {
            for column in self.reference_windows(i) {
                for k in 0..STRATA {
                    count[k] += column.cells[i].count[k];
                    cpu[k] += column.cells[i].cpu[k];
                }
            }
        }
        // What a stratum costs beside the class's mean, over all classes.
        let mean = |i: usize| sums[i].1.iter().sum::<f64>() / sums[i].0.iter().sum::<f64>().max(1.0);
        let pooled: [f64; STRATA] = std::array::from_fn(|k| {
            let cpu: f64 = sums.iter().map(|(_, cpu)| cpu[k]).sum();
            let expected: f64 = sums.iter().enumerate().map(|(i, (count, _))| count[k] * mean(i)).sum();
            if expected > TINY { cpu / expected } else { 1.0 }
        });
        for i in 0..m {
            let (count, cpu) = sums[i];
            let n: f64 = count.iter().sum();
            let d = mean(i);
            let mut demand: [f64; STRATA] =
                std::array::from_fn(|k| (cpu[k] + 20.0 * d * pooled[k]) / (count[k] + 20.0));
            let model: f64 = (0..STRATA).map(|k| demand[k] * count[k]).sum();
            let scale = if model > TINY { cpu.iter().sum::<f64>() / model } else { 1.0 };
            for d in &mut demand {
                *d *= scale;
            }
            let known = n >= s.least_reference;
            let own = self.reference_windows(i).map(|column| column.cells[i].own()).sum::<f64>() / n.max(1.0);
            let mut per = [0.0; 4];
            for (k, per) in per.iter_mut().enumerate() {
                let (mut cost, mut basis) = (0.0, 0.0);
                for column in self.reference_windows(i) {
                    let cell = &column.cells[i];
                    cost += cell.observed[k + 1];
                    basis += basis_of(k, cell, column.wait, &demand);
                }
                *per = cost / basis.max(TINY);
            }
            let class = &mut self.classes[i];
            (class.known, class.known_time) = (known, n >= 2.0 * s.least_reference);
            class.reference = Reference { demand, per, own, ..Reference::default() };
        }
        self.learn_variances();
        let mut columns = std::mem::take(&mut self.columns);
        for column in &mut columns {
            self.expect(column, s);
        }
        self.columns = columns;
        let (count, bias) =
            self.windows(self.base, hi).fold((0.0, 0.0), |(n, sum), column| (n + 1.0, sum + column.bias));
        self.mean_bias = if count > 0.0 { bias / count } else { 0.0 };
    }

    /// The variance of each cost: sampling by sums of squares, what remains is noise of the process, correlated in
    /// time.
    fn learn_variances(&mut self) {
        let m = self.classes.len();
        // CPU.
        let requests =
            |series: &Self, i: usize| series.reference_windows(i).map(|c| c.cells[i].requests()).sum::<f64>();
        let n: Vec<f64> = (0..m).map(|i| requests(self, i)).collect();
        let cv2: Vec<f64> = (0..m)
            .map(|i| {
                let demand = self.classes[i].reference.demand;
                let (mut squares, mut model) = (0.0, 0.0);
                for column in self.reference_windows(i) {
                    squares += column.cells[i].cpu_squared;
                    model += (0..STRATA).map(|k| column.cells[i].count[k] * demand[k] * demand[k]).sum::<f64>();
                }
                squares / model.max(1e-18) - 1.0
            })
            .collect();
        let known: Vec<usize> = (0..m).filter(|i| self.classes[*i].known).collect();
        let pool = median(known.iter().map(|i| cv2[*i]).collect()).unwrap_or(1.0);
        let mut sharp = vec![false; m];
        for i in 0..m {
            let shrunk = (n[i] * cv2[i].max(0.05) + 30.0 * pool) / (n[i] + 30.0);
            let demand = self.classes[i].reference.demand;
            let (mut noise, mut sampling, mut squares, mut error) = (0.0, 0.0, 0.0, 0.0);
            for column in self.reference_windows(i) {
                let cell = &column.cells[i];
                let cost = expected_cpu(cell, &demand);
                let e = cell.observed[0] - cost;
                let samp = sampling_variance(cell, &demand, shrunk);
                noise += e * e - samp;
                (sampling, squares, error) = (sampling + samp, squares + cost * cost, error + e * e);
            }
            sharp[i] = self.classes[i].known && sampling < 0.5 * error;
            let reference = &mut self.classes[i].reference;
            reference.cv2 = shrunk;
            reference.tau2 = (noise / squares.max(TINY * TINY)).max(0.01 * 0.01);
        }
        let mut taus: Vec<f64> = (0..m).filter(|i| sharp[*i]).map(|i| self.classes[i].reference.tau2).collect();
        taus.sort_by(f64::total_cmp);
        let usual = taus.get(taus.len() * 3 / 4).copied().unwrap_or(0.0).max(0.03 * 0.03);
        for (class, _) in self.classes.iter_mut().zip(&sharp).filter(|(_, sharp)| !**sharp) {
            class.reference.tau2 = usual;
        }
        // The others.
        for k in 0..4 {
            let mut rel = vec![0.0; m];
            let mut seen = vec![0.0; m];
            let mut scale_mean = vec![0.0; m];
            for i in 0..m {
                let Class { reference, .. } = &self.classes[i];
                let (mut x_sum, mut all, mut ratio) = (0.0, 0.0, 0.0);
                for column in self.reference_windows(i) {
                    let cell = &column.cells[i];
                    let (cost, x) = wait_of(k, cell, column.wait, reference);
                    all += 1.0;
                    x_sum += x;
                    if x > TINY {
                        let e = cell.observed[k + 1] - cost;
                        ratio += e * e / x;
                        seen[i] += 1.0;
                    }
                }
                let d = mean_demand(reference, n[i], self.reference_windows(i), i);
                rel[i] = ratio / f64::max(seen[i] - 1.0, 1.0) / d.max(TINY);
                scale_mean[i] = x_sum / f64::max(all, 1.0);
            }
            let pool = median(known.iter().map(|i| rel[*i]).collect()).unwrap_or(1.0);
            for i in 0..m {
                let d = mean_demand(&self.classes[i].reference, n[i], self.reference_windows(i), i);
                let shrunk = (rel[i] * seen[i] + pool * 20.0) / (seen[i] + 20.0);
                let reference = &mut self.classes[i].reference;
                reference.dispersion[k] = shrunk.max(0.3 * pool) * d;
                reference.mean_scale[k] = scale_mean[i];
            }
        }
        self.learn_correlation(&sharp, &known);
    }

    /// Windows that follow each other resemble each other: sums vary by `(1+ρ)/(1−ρ)` more.
    fn learn_correlation(&mut self, sharp: &[bool], known: &[usize]) {
        let m = self.classes.len();
        let rho: Vec<[f64; 5]> = (0..m)
            .map(|i| {
                let reference = &self.classes[i].reference;
                let mut product = [0.0; 5];
                let mut square = [0.0; 5];
                let mut last = [0.0; 5];
                for column in self.windows(self.classes[i].lo, self.hi) {
                    for k in 0..5 {
                        let cell = &column.cells[i];
                        let plain = plain_variance(k, cell, column.wait, reference);
                        let cost = cost_of(k, cell, column.wait, reference);
                        let z = if column.skip { 0.0 } else { (cell.observed[k] - cost) / plain.max(1e-24).sqrt() };
                        product[k] += z * last[k];
                        square[k] += z * z;
                        last[k] = z;
                    }
                }
                std::array::from_fn(|k| product[k] / square[k].max(1e-9))
            })
            .collect();
        for k in 0..5 {
            let counts = |i: usize| if k == 0 { sharp[i] } else { known.contains(&i) };
            let pooled = median((0..m).filter(|i| counts(*i)).map(|i| rho[i][k]).collect()).unwrap_or(0.4);
            for i in 0..m {
                let own = if counts(i) { f64::max(pooled, 0.7 * rho[i][k]) } else { pooled }.clamp(0.0, 0.8);
                let a = (1.0 + own) / (1.0 - own);
                let windows = self.reference_windows(i).count() as f64;
                let reference = &mut self.classes[i].reference;
                reference.inflation[k] = a;
                reference.freedom[k] = f64::max(windows / if counts(i) { a } else { 1.0 }, 4.0);
            }
        }
    }

    /// Fills in what the reference expects of a window.
    pub(super) fn expect(&self, column: &mut Column, s: &Settings) {
        for (cell, Class { reference, .. }) in column.cells.iter_mut().zip(&self.classes) {
            for k in 0..5 {
                let cost = cost_of(k, cell, column.wait, reference);
                let (scale, variance) = if k == 0 {
                    let sampling = sampling_variance(cell, &reference.demand, reference.cv2);
                    (cost, sampling + reference.inflation[0] * reference.tau2 * cost * cost)
                } else {
                    let (_, x) = wait_of(k - 1, cell, column.wait, reference);
                    (x, reference.inflation[k] * wait_variance(k - 1, x, reference))
                };
                let bound = s.clip * variance.max(0.0).sqrt();
                let clipped = (cell.observed[k] - cost).clamp(-bound, bound);
                cell.expected[k] = Expected { cost, scale, variance, clipped };
            }
        }
    }
}

fn expected_cpu(cell: &Cell, demand: &[f64; STRATA]) -> f64 {
    cell.count.iter().zip(demand).map(|(n, d)| n * d).sum()
}

fn sampling_variance(cell: &Cell, demand: &[f64; STRATA], cv2: f64) -> f64 {
    cell.count.iter().zip(demand).map(|(n, d)| n * d * d).sum::<f64>() * cv2
}

/// What a wait is expected to grow with: requests, calls for the time of calls, CPU and utilisation for queues.
fn basis_of(k: usize, cell: &Cell, wait: f64, demand: &[f64; STRATA]) -> f64 {
    match k {
        2 => cell.observed[2],
        3 => expected_cpu(cell, demand) * wait,
        _ => cell.requests(),
    }
}

/// Expectation and scale of blocked time, calls, their time, and queueing (`k` 0 to 3).
fn wait_of(k: usize, cell: &Cell, wait: f64, reference: &Reference) -> (f64, f64) {
    let cost = basis_of(k, cell, wait, &reference.demand) * reference.per[k];
    let scale = match k {
        1 => cost,
        2 => cost + cell.requests() * reference.own * 0.1,
        _ => cell.requests() * reference.own,
    };
    (cost, scale)
}

fn wait_variance(k: usize, x: f64, reference: &Reference) -> f64 {
    let x = x.max(TINY);
    let more = if reference.mean_scale[k] > TINY { (x / reference.mean_scale[k]).max(1.0) } else { 1.0 };
    reference.dispersion[k] * x * more + (0.01 * x).powi(2)
}

fn cost_of(k: usize, cell: &Cell, wait: f64, reference: &Reference) -> f64 {
    if k == 0 { expected_cpu(cell, &reference.demand) } else { wait_of(k - 1, cell, wait, reference).0 }
}

/// The variance of one window by itself.
fn plain_variance(k: usize, cell: &Cell, wait: f64, reference: &Reference) -> f64 {
    if k == 0 {
        let cost = expected_cpu(cell, &reference.demand);
        sampling_variance(cell, &reference.demand, reference.cv2) + reference.tau2 * cost * cost
    } else {
        wait_variance(k - 1, wait_of(k - 1, cell, wait, reference).1, reference)
    }
}

/// CPU per request over the reference.
fn mean_demand<'a>(reference: &Reference, n: f64, windows: impl Iterator<Item = &'a Column>, i: usize) -> f64 {
    windows.map(|column| expected_cpu(&column.cells[i], &reference.demand)).sum::<f64>() / n.max(1.0)
}
