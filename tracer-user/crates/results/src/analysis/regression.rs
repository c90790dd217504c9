//! CPU demand by regression, as if it could not be measured per request: the cross-check of what is measured. A window's
//! CPU is `D_0 + Σ N_i·D_i` with N_i requests of class i and no negative demand. One model per segment of time; where one
//! model fits two segments, only the workload differed. `docs/verdicts.md` says what it is good for.

/// Most columns of a model, `D_0` and the rest of the classes included; a table of sums has a row more.
pub const COLUMNS: usize = 16;

/// F of a class that enters the model: about 5 %.
const ENTER: f64 = 4.0;
/// Windows between two places where a segment may begin, and most such places.
const STEP: usize = 6;
const PLACES: usize = 61;
/// Windows of the shortest segment that is no anomaly.
const SHORT: usize = 20;
/// What a further segment must save, in variances of the error.
const PENALTY: f64 = 60.0;
/// F above which one model does not fit two segments.
const APART: f64 = 5.0;

/// One window: requests by column, and CPU in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Requests of each class.
    pub requests: Vec<f64>,
    /// CPU of the service.
    pub cpu_s: f64,
}

/// Sums of products of `[1 N U]` over windows: all that a fit needs.
#[derive(Clone, Debug)]
struct Gram {
    size: usize,
    sums: Vec<f64>,
    windows: f64,
}

impl Gram {
    fn new(columns: usize) -> Self {
        let size = columns + 2;
        Self { size, sums: vec![0.0; size * size], windows: 0.0 }
    }

    fn add(&mut self, sample: &Sample, sign: f64) {
        let row: Vec<f64> =
            std::iter::once(1.0).chain(sample.requests.iter().copied()).chain(std::iter::once(sample.cpu_s)).collect();
        for (i, a) in row.iter().enumerate().take(self.size) {
            for (j, b) in row.iter().enumerate().take(self.size) {
                self.sums[i * self.size + j] += sign * a * b;
            }
        }
        self.windows += sign;
    }

    fn of(samples: &[Sample], columns: usize) -> Self {
        let mut all = Self::new(columns);
        for sample in samples {
            all.add(sample, 1.0);
        }
        all
    }

    /// `self` less `other`: the windows between two prefixes.
    fn less(&self, other: &Self) -> Self {
        let sums = self.sums.iter().zip(&other.sums).map(|(a, b)| a - b).collect();
        Self { size: self.size, sums, windows: self.windows - other.windows }
    }

    fn plus(&self, other: &Self) -> Self {
        let sums = self.sums.iter().zip(&other.sums).map(|(a, b)| a + b).collect();
        Self { size: self.size, sums, windows: self.windows + other.windows }
    }

    fn at(&self, i: usize, j: usize) -> f64 {
        self.sums[i * self.size + j]
    }

    /// Demands of `columns`, none negative, and the squared error. Coordinates in turn (Gauss and Seidel, cut at zero).
    fn fit(&self, columns: &[usize]) -> (Vec<f64>, f64) {
        let last = self.size - 1;
        let mut demand = vec![0.0; columns.len()];
        for _ in 0..400 {
            let mut moved = 0.0f64;
            for (at, &i) in columns.iter().enumerate() {
                let square = self.at(i, i);
                if square <= 1e-12 {
                    continue;
                }
                let others: f64 = columns.iter().zip(&demand).map(|(&j, d)| self.at(i, j) * d).sum();
                let next = (demand[at] + (self.at(i, last) - others) / square).max(0.0);
                moved = moved.max((next - demand[at]).abs() * square.sqrt());
                demand[at] = next;
            }
            if moved < 1e-9 * self.at(last, last).max(1e-18).sqrt() {
                break;
            }
        }
        let linear: f64 = columns.iter().zip(&demand).map(|(&i, d)| d * self.at(i, last)).sum();
        let mut square = 0.0;
        for (&i, a) in columns.iter().zip(&demand) {
            square += columns.iter().zip(&demand).map(|(&j, b)| a * b * self.at(i, j)).sum::<f64>();
        }
        (demand, (self.at(last, last) - 2.0 * linear + square).max(0.0))
    }

    /// `D_0` and the classes that an F-test lets in, one by one; the squared error.
    fn stepwise(&self) -> (Vec<usize>, Vec<f64>, f64) {
        let mut chosen = vec![0];
        let (mut demand, mut error) = self.fit(&chosen);
        let mut left: Vec<usize> = (1..self.size - 1).collect();
        while !left.is_empty() {
            let tried = left.iter().map(|i| {
                let with: Vec<usize> = chosen.iter().copied().chain([*i]).collect();
                let (demand, error) = self.fit(&with);
                (error, *i, demand)
            });
            let Some((less, i, with)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            let freedom = (self.windows - chosen.len() as f64 - 1.0).max(1.0);
            if (error - less) / (less / freedom).max(1e-15) < ENTER {
                break;
            }
            chosen.push(i);
            left.retain(|other| *other != i);
            (demand, error) = (with, less);
        }
        (chosen, demand, error)
    }

    /// The diagonal of the inverse over `columns`: variances of demands by that of the error. `None`: they cannot be
    /// distinguished, because they always came together.
    fn inverse_diagonal(&self, columns: &[usize]) -> Option<Vec<f64>> {
        let n = columns.len();
        let mut rows: Vec<Vec<f64>> = columns
            .iter()
            .enumerate()
            .map(|(at, &i)| {
                let unit = (0..n).map(|k| if k == at { 1.0 } else { 0.0 });
                columns.iter().map(|&j| self.at(i, j)).chain(unit).collect()
            })
            .collect();
        let scale: Vec<f64> = (0..n).map(|i| rows[i][i].max(1e-300)).collect();
        for i in 0..n {
            let pivot = (i..n).max_by(|a, b| rows[*a][i].abs().total_cmp(&rows[*b][i].abs()))?;
            rows.swap(i, pivot);
            let by = rows[i][i];
            if by.abs() < 1e-10 * scale[i] {
                return None;
            }
            rows[i].iter_mut().for_each(|value| *value /= by);
            let own = rows[i].clone();
            for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != i) {
                let factor = row[i];
                row.iter_mut().zip(&own).for_each(|(value, own)| *value -= factor * own);
            }
        }
        Some((0..n).map(|i| rows[i][n + i]).collect())
    }
}

/// One model.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// CPU a window that no request explains, seconds.
    pub base_s: f64,
    /// Demand of each class, seconds a request; `None`: it did not enter the model.
    pub demand_s: Vec<Option<f64>>,
    /// Standard errors of `demand_s`; `None` also where classes always came together.
    pub error_s: Vec<Option<f64>>,
    /// Standard deviation of a window's CPU around the prediction, seconds.
    pub deviation_s: f64,
}

impl Model {
    /// Predicted CPU of a window, seconds.
    pub fn predict(&self, sample: &Sample) -> f64 {
        let classes = sample.requests.iter().zip(&self.demand_s);
        self.base_s + classes.map(|(n, demand)| n * demand.unwrap_or(0.0)).sum::<f64>()
    }
}

/// Fits a model to `samples`, which have at least `columns` classes each. `None`: too few windows.
pub fn fit(samples: &[Sample], columns: usize) -> Option<Model> {
    let columns = columns.min(COLUMNS - 2);
    if samples.len() < columns + 3 || samples.iter().any(|sample| sample.requests.len() != columns) {
        return None;
    }
    Some(model(&Gram::of(samples, columns), columns, correlation(samples, columns)))
}

/// Fits a model with every class in it: for what measurement left over, where a class left out would give its part to another.
pub fn fit_all(samples: &[Sample], columns: usize) -> Option<Model> {
    let columns = columns.min(COLUMNS - 2);
    if samples.len() < columns + 3 || samples.iter().any(|sample| sample.requests.len() != columns) {
        return None;
    }
    let gram = Gram::of(samples, columns);
    let every: Vec<usize> = (0..=columns).collect();
    let (demand, error) = gram.fit(&every);
    let variance = error / (gram.windows - columns as f64 - 1.0).max(1.0) * correlation(samples, columns);
    let diagonal = gram.inverse_diagonal(&every);
    let error_of = |at: usize| diagonal.as_ref().map(|diagonal| (variance * diagonal[at].max(0.0)).sqrt());
    Some(Model {
        base_s: demand[0],
        demand_s: demand[1..].iter().copied().map(Some).collect(),
        error_s: (1..=columns).map(error_of).collect(),
        deviation_s: variance.sqrt(),
    })
}

/// How much more sums of the error vary than independent ones: windows that follow each other resemble each other.
fn correlation(samples: &[Sample], columns: usize) -> f64 {
    let plain = model(&Gram::of(samples, columns), columns, 1.0);
    let rest: Vec<f64> = samples.iter().map(|sample| sample.cpu_s - plain.predict(sample)).collect();
    let product: f64 = rest.iter().zip(rest.iter().skip(1)).map(|(a, b)| a * b).sum();
    let square: f64 = rest.iter().map(|a| a * a).sum();
    let rho = (product / square.max(1e-18)).clamp(0.0, 0.8);
    (1.0 + rho) / (1.0 - rho)
}

fn model(gram: &Gram, columns: usize, more: f64) -> Model {
    let (chosen, demand, error) = gram.stepwise();
    let variance = error / (gram.windows - chosen.len() as f64).max(1.0);
    let diagonal = gram.inverse_diagonal(&chosen);
    let (mut demand_s, mut error_s) = (vec![None; columns], vec![None; columns]);
    for (at, i) in chosen.iter().enumerate().filter(|(_, i)| **i > 0) {
        demand_s[i - 1] = Some(demand[at]);
        error_s[i - 1] = diagonal.as_ref().map(|diagonal| (variance * more * diagonal[at].max(0.0)).sqrt());
    }
    Model { base_s: demand.first().copied().unwrap_or(0.0), demand_s, error_s, deviation_s: variance.sqrt() }
}

/// What regression alone would say of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentVerdict {
    /// The first one, or like the one before.
    Nothing,
    /// Too short, or with CPU that no request explains.
    Anomaly,
    /// One model fits this segment and the one before.
    WorkloadChange,
    /// None does.
    ApplicationChange,
}

/// A time with one model: windows `from` to `to`, without `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Its first window.
    pub from: usize,
    /// The window after its last.
    pub to: usize,
    /// What regression says of it.
    pub verdict: SegmentVerdict,
    /// Its model.
    pub model: Model,
}

/// Divides time where models change: the least squared error in units of its variance, plus a price for each segment. At
/// most 360 windows (the newest) are looked at; it takes milliseconds, so not on a thread that others wait for.
pub fn segments(samples: &[Sample], columns: usize) -> Vec<Segment> {
    let columns = columns.min(COLUMNS - 2);
    let skipped = samples.len().saturating_sub(STEP * (PLACES - 1));
    let samples = &samples[skipped..];
    if samples.len() < SHORT || samples.iter().any(|sample| sample.requests.len() != columns) {
        return Vec::new();
    }
    let mut places: Vec<usize> = (0..samples.len()).step_by(STEP).collect();
    places.push(samples.len());
    let mut prefix = vec![Gram::new(columns)];
    let mut sums = Gram::new(columns);
    for pair in places.windows(2) {
        samples[pair[0]..pair[1]].iter().for_each(|sample| sums.add(sample, 1.0));
        prefix.push(sums.clone());
    }
    let every: Vec<usize> = (0..=columns).collect();
    let between = |i: usize, j: usize| prefix[j].less(&prefix[i]);
    // The error's variance in short stretches, which hold no change.
    let short: Vec<f64> = (0..places.len().saturating_sub(5))
        .step_by(5)
        .map(|i| between(i, i + 5).fit(&every).1 / f64::max(5.0 * STEP as f64 - columns as f64 - 1.0, 5.0))
        .collect();
    let variance = super::series::median(short).unwrap_or(0.0).max(1e-12);
    let mut cost = vec![f64::INFINITY; places.len()];
    let mut back = vec![0; places.len()];
    cost[0] = 0.0;
    for j in 1..places.len() {
        for i in 0..j {
            let price = cost[i] + between(i, j).fit(&every).1 / variance + PENALTY;
            if price < cost[j] {
                (cost[j], back[j]) = (price, i);
            }
        }
    }
    let (mut cuts, mut j) = (Vec::new(), places.len() - 1);
    while j > 0 {
        cuts.push((back[j], j));
        j = back[j];
    }
    cuts.reverse();
    let mut out = Vec::new();
    let mut last: Option<(Gram, f64)> = None;
    for (i, j) in cuts {
        let own = between(i, j);
        let model = model(&own, columns, 1.0);
        let mean = own.at(0, own.size - 1) / own.windows.max(1.0);
        let unexplained = last.as_ref().is_some_and(|(_, base)| model.base_s > base + 0.25 * mean);
        let verdict = if last.is_some() && (places[j] - places[i] < SHORT || unexplained) {
            SegmentVerdict::Anomaly
        } else if let Some((before, _)) = &last {
            let apart = before.fit(&every).1 + own.fit(&every).1;
            let both = before.plus(&own);
            let freedom = (both.windows - 2.0 * (columns as f64 + 1.0)).max(1.0);
            let f = (both.fit(&every).1 - apart) / (columns as f64 + 1.0) / (apart / freedom).max(1e-15);
            if f < APART { SegmentVerdict::WorkloadChange } else { SegmentVerdict::ApplicationChange }
        } else {
            SegmentVerdict::Nothing
        };
        if verdict != SegmentVerdict::Anomaly {
            last = Some((own, model.base_s));
        }
        out.push(Segment { from: skipped + places[i], to: skipped + places[j], verdict, model });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of three classes, the first of which costs `first` a request.
    fn samples(windows: usize, at: usize, first: [f64; 2], base: [f64; 2]) -> Vec<Sample> {
        let mut state = 7u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..windows)
            .map(|t| {
                let after = usize::from(t >= at);
                let requests = vec![100.0 + 80.0 * uniform(), 40.0 + 60.0 * uniform(), 10.0 + 20.0 * uniform()];
                let cost = requests[0] * first[after] + requests[1] * 0.002 + requests[2] * 0.02;
                Sample { cpu_s: (base[after] + cost) * (1.0 + 0.01 * (uniform() - 0.5)), requests }
            })
            .collect()
    }

    #[test]
    fn demands_come_out_and_none_is_negative() {
        let model = fit(&samples(200, 200, [0.004; 2], [0.1; 2]), 3).unwrap();
        for (found, true_) in model.demand_s.iter().zip([0.004, 0.002, 0.02]) {
            let found = found.unwrap();
            assert!((found / true_ - 1.0).abs() < 0.05, "{found} for {true_}");
        }
        assert!((model.base_s - 0.1).abs() < 0.02, "{}", model.base_s);
        assert!(model.error_s.iter().all(|error| error.is_some_and(|error| error > 0.0 && error < 1e-3)));
        // A class that costs nothing stays out.
        let mut free = samples(200, 200, [0.0; 2], [0.1; 2]);
        for sample in &mut free {
            sample.cpu_s -= 0.002 * sample.requests[1];
        }
        let model = fit(&free, 3).unwrap();
        assert!(model.demand_s.iter().flatten().all(|demand| *demand >= 0.0));
        assert!(model.demand_s[0].is_none_or(|demand| demand < 1e-4), "{model:?}");
    }

    #[test]
    fn classes_that_always_come_together_have_no_error_to_trust() {
        let mut together = samples(100, 100, [0.004; 2], [0.1; 2]);
        for sample in &mut together {
            sample.requests[1] = 2.0 * sample.requests[0];
        }
        let model = fit(&together, 3).unwrap();
        assert!(model.error_s[0].is_none() || model.demand_s[1].is_none(), "{model:?}");
    }

    #[test]
    fn time_is_divided_where_the_model_changes() {
        let found = segments(&samples(240, 120, [0.004, 0.006], [0.1; 2]), 3);
        let verdict: Vec<(usize, SegmentVerdict)> = found.iter().map(|one| (one.from, one.verdict)).collect();
        assert_eq!(verdict, [(0, SegmentVerdict::Nothing), (120, SegmentVerdict::ApplicationChange)]);
        let burnt = segments(&samples(240, 120, [0.004; 2], [0.1, 1.5]), 3);
        assert_eq!(burnt.last().map(|one| one.verdict), Some(SegmentVerdict::Anomaly), "{burnt:?}");
        let quiet = segments(&samples(240, 240, [0.004; 2], [0.1; 2]), 3);
        assert!(quiet.iter().all(|one| one.verdict != SegmentVerdict::ApplicationChange), "{quiet:?}");
    }

    #[test]
    fn absurd_input_has_an_answer() {
        assert_eq!(fit(&[], 3), None);
        let odd = |value: f64| Sample { requests: vec![value; 3], cpu_s: value };
        let same: Vec<Sample> = (0..50).map(|_| odd(0.0)).collect();
        assert!(fit(&same, 3).is_some());
        assert!(fit(&same, 2).is_none(), "another number of columns");
        let huge: Vec<Sample> = (0..50).map(|t| odd(1e15 * f64::from(t))).collect();
        assert!(fit(&huge, 3).is_some() && !segments(&huge, 3).is_empty());
        assert!(segments(&same, 3).iter().all(|one| one.model.base_s.is_finite()));
    }
}
