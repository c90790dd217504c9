//! Observed and expected cost of one service's classes, window by window: references, variances, and the test of a
//! change. Notation and formulas: `docs/verdicts.md`.

use std::collections::VecDeque;

use super::detector::Settings;
use super::queueing::slowdown;
use super::window::{STRATA, ServiceWindow, Window};

mod reference;

/// The costs that are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stat {
    Cpu,
    Blocked,
    Calls,
    Downstream,
    Queue,
}

impl Stat {
    pub(super) const ALL: [Self; 5] = [Self::Cpu, Self::Blocked, Self::Calls, Self::Downstream, Self::Queue];

    pub(super) const fn resource(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Blocked => "blocked",
            Self::Calls | Self::Downstream => "downstream",
            Self::Queue => "queue",
        }
    }
}

/// A number that no sum divides by.
const TINY: f64 = 1e-12;

/// Expectation of one cost of one class in one window.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    /// Expected, the scale of an effect, and the variance of the difference.
    cost: f64,
    scale: f64,
    variance: f64,
    /// Observed less expected, within so many standard deviations.
    clipped: f64,
}

/// One class in one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    count: [f64; STRATA],
    cpu: [f64; STRATA],
    cpu_squared: f64,
    observed: [f64; 5],
    expected: [Expected; 5],
}

impl Cell {
    fn requests(&self) -> f64 {
        self.count.iter().sum()
    }

    /// Requests, and what they cost: observed and expected.
    pub(super) fn of(&self, stat: Stat) -> (f64, f64, f64) {
        (self.requests(), self.observed[stat as usize], self.expected[stat as usize].cost)
    }

    /// Time of its own: downstream excluded.
    fn own(&self) -> f64 {
        self.observed[0] + self.observed[1] + self.observed[4]
    }
}

/// One window of the service.
#[derive(Clone, Debug, Default)]
struct Column {
    cells: Vec<Cell>,
    overhead: f64,
    utilisation: f64,
    /// How much longer CPU takes at that utilisation, less 1.
    wait: f64,
    /// How far a ratio may be off by losses and ambiguity.
    bias: f64,
    /// Of the first windows after a start: not learnt.
    skip: bool,
}

/// What the reference says of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Reference {
    demand: [f64; STRATA],
    /// Cost per basis of the other four costs.
    per: [f64; 4],
    own: f64,
    cv2: f64,
    tau2: f64,
    /// How much more sums vary because windows resemble their neighbours.
    inflation: [f64; 5],
    dispersion: [f64; 4],
    mean_scale: [f64; 4],
    freedom: [f64; 5],
}

/// A class.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) name: String,
    reference: Reference,
    /// Its reference begins here; no suffix reaches before `floor`.
    pub(super) lo: usize,
    pub(super) floor: usize,
    /// The open finding it is part of.
    pub(super) held: Option<u64>,
    /// Enough requests in the reference to judge CPU, and waits.
    pub(super) known: bool,
    pub(super) known_time: bool,
}

/// Deviation of one cost of one class over some windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deviation {
    /// In standard deviations, with its sign.
    pub(super) z: f64,
    /// Share of the scale.
    pub(super) effect: f64,
    pub(super) count: f64,
}

/// One cost of one class, added up over windows.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    windows: f64,
    clipped: f64,
    scale: f64,
    variance: f64,
    raw: f64,
    requests: f64,
    /// What losses and ambiguity exceed those of the reference by.
    bias: f64,
}

impl Sums {
    fn add(&mut self, column: &Column, stat: Stat, class: usize, mean_bias: f64) {
        let cell = &column.cells[class];
        let expected = cell.expected[stat as usize];
        self.windows += 1.0;
        self.clipped += expected.clipped;
        self.scale += expected.scale;
        self.variance += expected.variance;
        self.raw += cell.observed[stat as usize] - expected.cost;
        self.requests += cell.requests();
        self.bias += (column.bias - mean_bias).max(0.0);
    }

    fn remove(&mut self, column: &Column, stat: Stat, class: usize) {
        let cell = &column.cells[class];
        let expected = cell.expected[stat as usize];
        self.windows -= 1.0;
        self.clipped -= expected.clipped;
        self.scale -= expected.scale;
        self.variance -= expected.variance;
        self.raw -= cell.observed[stat as usize] - expected.cost;
    }
}

/// What the part of a reference before a possible change deviates by from the whole: a change that is found late is in
/// the reference, too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// Share of the scale, of clipped and of raw differences.
    clipped: f64,
    pub(super) effect: f64,
    /// Of that share.
    variance: f64,
}

/// The windows of one service.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) service: String,
    pub(super) entry: bool,
    /// Services of this host that it calls.
    pub(super) callees: Vec<String>,
    pub(super) classes: Vec<Class>,
    /// Windows from number `base`.
    columns: VecDeque<Column>,
    pub(super) base: usize,
    /// The reference ends before this window.
    pub(super) hi: usize,
    /// The window of the last start of its program, and its identity since and before.
    pub(super) started: usize,
    pub(super) identity: u64,
    pub(super) before: u64,
    /// Window of the last hit of the test.
    pub(super) alarm_at: Option<usize>,
    /// Window of the last deviation that may become one.
    pub(super) suspected_at: Option<usize>,
    mean_bias: f64,
    cores: f64,
    length: f64,
}

impl Series {
    pub(super) fn new(service: &ServiceWindow, t: usize) -> Self {
        Self {
            service: service.service_name.clone(),
            entry: service.entry,
            callees: Vec::new(),
            classes: Vec::new(),
            columns: VecDeque::new(),
            base: t,
            hi: t,
            started: t,
            identity: service.identity,
            before: service.identity,
            alarm_at: None,
            suspected_at: None,
            mean_bias: 0.0,
            cores: 1.0,
            length: 1.0,
        }
    }

    /// Number of the window after the last one.
    pub(super) fn end(&self) -> usize {
        self.base + self.columns.len()
    }

    /// Adds the next window; `None`: the service did nothing. Returns how many classes found no room.
    pub(super) fn push(&mut self, window: &Window, service: Option<&ServiceWindow>, room: usize, s: &Settings) -> u64 {
        let t = self.end();
        let mut refused = 0;
        (self.cores, self.length) = (sane(window.cores).max(1.0), sane(window.length_s).max(0.001));
        let share = |seconds: f64| sane(seconds) / self.length / self.cores;
        let utilisation = share(window.busy_s).clamp(0.0, 0.97);
        let steal = share(window.steal_s);
        let mut column = Column {
            utilisation,
            wait: slowdown((utilisation + steal).clamp(0.0, 0.97), self.cores) - 1.0,
            bias: sane(window.loss) + service.map_or(0.0, |service| sane(service.ambiguous)),
            overhead: service.map_or(0.0, |service| sane(service.overhead_s)),
            ..Column::default()
        };
        if let Some(service) = service {
            // A service of short-lived processes starts all the time: only the first start of a while counts.
            let again = service.starts > 0 && t - self.started > s.deployed;
            if service.identity != self.identity || again {
                (self.before, self.identity, self.started) = (self.identity, service.identity, t);
            }
            self.entry = service.entry;
            if !service.callees.is_empty() {
                self.callees = service.callees.iter().take(super::detector::SERVICES).cloned().collect();
            }
            for class in &service.classes {
                let index = self.classes.iter().position(|known| known.name == class.request_class);
                let Some(index) = index.or_else(|| self.add(&class.request_class, room, t)) else {
                    refused += 1;
                    continue;
                };
                if column.cells.len() <= index {
                    column.cells.resize(index + 1, Cell::default());
                }
                let cpu = class.cpu_s.map(sane);
                let waits = [class.blocked_s, class.calls, class.downstream_s, class.queue_s].map(sane);
                column.cells[index] = Cell {
                    count: class.count.map(sane),
                    cpu,
                    cpu_squared: sane(class.cpu_s_squared),
                    observed: [cpu.iter().sum(), waits[0], waits[1], waits[2], waits[3]],
                    expected: [Expected::default(); 5],
                };
            }
        }
        column.cells.resize(self.classes.len(), Cell::default());
        column.skip = t - self.started < s.hold_off && self.started > self.base || window.loss > 0.1;
        self.expect(&mut column, s);
        self.columns.push_back(column);
        while self.columns.len() > s.kept() {
            self.columns.pop_front();
            self.base += 1;
        }
        refused
    }

    fn add(&mut self, name: &str, room: usize, t: usize) -> Option<usize> {
        if room == 0 || self.classes.len() >= super::detector::CLASSES_PER_SERVICE {
            return None;
        }
        let (lo, reference) = (t, Reference::default());
        self.classes.push(Class {
            name: name.to_owned(),
            reference,
            lo,
            floor: t,
            held: None,
            known: false,
            known_time: false,
        });
        for column in &mut self.columns {
            column.cells.push(Cell::default());
        }
        Some(self.classes.len() - 1)
    }

    pub(super) fn skip(&mut self, t: usize) {
        if let Some(column) = self.columns.get_mut(t - self.base) {
            column.skip = true;
        }
    }

    /// Windows `from` to `to`, without `to`.
    fn windows(&self, from: usize, to: usize) -> impl DoubleEndedIterator<Item = &Column> + Clone {
        let from = from.max(self.base) - self.base;
        let to = to.clamp(self.base + from, self.end()) - self.base;
        self.columns.range(from..to)
    }

    fn reference_windows(&self, class: usize) -> impl Iterator<Item = &Column> + Clone {
        self.windows(self.classes[class].lo, self.hi).filter(|column| !column.skip)
    }

    /// Sums of one cost of the classes `which` over windows `from` to `to`, without `to`: clipped difference, scale,
    /// variance, raw difference.
    pub(super) fn sums(&self, stat: Stat, from: usize, to: usize, which: impl Fn(usize) -> bool) -> [f64; 4] {
        let mut sums = [0.0; 4];
        for column in self.windows(from, to) {
            for (_, cell) in column.cells.iter().enumerate().filter(|(i, _)| which(*i)) {
                let expected = cell.expected[stat as usize];
                sums[0] += expected.clipped;
                sums[1] += expected.scale;
                sums[2] += expected.variance;
                sums[3] += cell.observed[stat as usize] - expected.cost;
            }
        }
        sums
    }

    /// How far one cost of a class deviates over windows `since` to `t`, both included, from the reference before them.
    pub(super) fn deviation(&self, stat: Stat, class: usize, since: usize, t: usize) -> Deviation {
        let mut sums = Sums::default();
        for column in self.windows(since, t + 1) {
            sums.add(column, stat, class, self.mean_bias);
        }
        match self.before(stat, class, since) {
            Some(before) => self.judge(stat, class, &sums, before),
            None => Deviation { count: sums.requests, ..Deviation::default() },
        }
    }

    /// What the reference before `since` deviates by. None: too little of it is before.
    pub(super) fn before(&self, stat: Stat, class: usize, since: usize) -> Option<Before> {
        let mut sums = Sums::default();
        let whole = self.reference_windows(class).count();
        let to = self.hi.min(since);
        for column in self.windows(self.classes[class].lo, to).filter(|column| !column.skip) {
            sums.add(column, stat, class, self.mean_bias);
        }
        before(&sums, whole)
    }

    /// What the classes `which` together deviate by in the reference before `since`: of no change, 0.
    pub(super) fn level_before(&self, stat: Stat, since: usize, which: &[usize]) -> f64 {
        let (mut raw, mut scale) = (0.0, 0.0);
        for class in which {
            let windows = self.windows(self.classes[*class].lo, self.hi.min(since));
            for cell in windows.filter(|column| !column.skip).map(|column| &column.cells[*class]) {
                let expected = cell.expected[stat as usize];
                raw += cell.observed[stat as usize] - expected.cost;
                scale += expected.scale;
            }
        }
        if scale > TINY { raw / scale } else { 0.0 }
    }

    /// The same as [`Series::deviation`] for the newest windows up to `t`, as many as each of `lengths` (ascending) says,
    /// back to `floor`.
    pub(super) fn suffixes(
        &self,
        stat: Stat,
        class: usize,
        (floor, t): (usize, usize),
        lengths: &[usize],
    ) -> Vec<(usize, Deviation)> {
        let (mut sums, mut reference) = (Sums::default(), Sums::default());
        for column in self.reference_windows(class) {
            reference.add(column, stat, class, self.mean_bias);
        }
        let (lo, whole, mut out) = (self.classes[class].lo, reference.windows as usize, Vec::new());
        let mut lengths = lengths.iter();
        let mut next = lengths.next();
        let mut at = self.end().min(t + 1);
        for column in self.windows(floor, t + 1).rev() {
            at -= 1;
            sums.add(column, stat, class, self.mean_bias);
            if (lo..self.hi).contains(&at) && !column.skip {
                reference.remove(column, stat, class);
            }
            if next.is_some_and(|length| sums.windows as usize == *length) {
                let Some(before) = before(&reference, whole) else { break };
                out.push((sums.windows as usize, self.judge(stat, class, &sums, before)));
                next = lengths.next();
            }
        }
        out
    }

    fn judge(&self, stat: Stat, class: usize, sums: &Sums, before: Before) -> Deviation {
        let reference = &self.classes[class].reference;
        let bias = sums.bias / sums.windows.max(1.0);
        let x = sums.scale.max(TINY);
        let spread = (sums.variance + before.variance * x * x).max(1e-24).sqrt();
        let clipped = sums.clipped - before.clipped * x;
        let z = (clipped.abs() - bias * x).max(0.0) / spread;
        // Costs are skewed: sums of few requests are large more often than a normal variable is (Wilson and Hilferty).
        let z = if clipped > 0.0 {
            let shape = (x / spread).powi(2);
            z.min(3.0 * shape.sqrt() * ((1.0 + z * spread / x).cbrt() - 1.0 + 1.0 / (9.0 * shape.max(1.0))))
        } else {
            z
        };
        // The variance was learnt from few windows: t to normal.
        let d = reference.freedom[stat as usize].max(4.0);
        let z = (d * (z * z / d).ln_1p()).sqrt() * clipped.signum();
        // A share of what it was before; of waits the scale does not move with them.
        let was = if matches!(stat, Stat::Cpu | Stat::Calls) { (1.0 + before.effect).max(0.1) } else { 1.0 };
        Deviation { z, effect: (sums.raw / x - before.effect) / was, count: sums.requests }
    }

    /// The most likely start of a step in one cost of the classes `which`, which a test of class `lead` over `length` windows
    /// found. Each may step by a factor of its own: the start is where their likelihoods together are greatest.
    pub(super) fn change_point(&self, stat: Stat, lead: usize, which: &[usize], t: usize, length: usize) -> usize {
        let lo = self.classes[lead].floor.max((t + 1).saturating_sub(length + length / 2 + 8)).max(self.base);
        let last = t.saturating_sub(2);
        let mut likelihoods = vec![0.0; (t + 1).saturating_sub(lo)];
        for class in which {
            let level = self.before(stat, *class, (t + 1).saturating_sub(length)).unwrap_or_default().clipped;
            let (mut e, mut v) = (0.0, 0.0);
            for at in (lo..=t).rev() {
                let [de, dx, dv, _] = self.sums(stat, at, at + 1, |i| i == *class);
                (e, v) = (e + de - level * dx, v + dv);
                likelihoods[at - lo] += e * e / f64::max(v, 1e-18);
            }
        }
        let starts = likelihoods.iter().enumerate().map(|(at, likelihood)| (lo + at, likelihood));
        let best = starts.filter(|(at, _)| *at < last).max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(last, |(at, _)| at)
    }

    /// Expected CPU of each class over windows `from` to `to`, without `to`, and their number.
    pub(super) fn expected(&self, from: usize, to: usize) -> (Vec<f64>, f64) {
        let mut sums = vec![0.0; self.classes.len()];
        let mut n = 0.0;
        for column in self.windows(from, to) {
            n += 1.0;
            for (sum, cell) in sums.iter_mut().zip(&column.cells) {
                *sum += cell.expected[0].cost;
            }
        }
        (sums, n)
    }

    /// Requests of each class.
    pub(super) fn requests(&self, from: usize, to: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.classes.len()];
        for column in self.windows(from, to) {
            sums.iter_mut().zip(&column.cells).for_each(|(sum, cell)| *sum += cell.requests());
        }
        sums
    }

    /// Observed CPU of each class.
    pub(super) fn observed_cpu(&self, from: usize, to: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.classes.len()];
        for column in self.windows(from, to) {
            sums.iter_mut().zip(&column.cells).for_each(|(sum, cell)| *sum += cell.observed[0]);
        }
        sums
    }

    /// Overhead, expected CPU, observed CPU and bias by window; `learnt`: only windows that count for references.
    pub(super) fn totals(&self, from: usize, to: usize, learnt: bool) -> Vec<[f64; 4]> {
        self.windows(from, to)
            .filter(|column| !learnt || !column.skip)
            .map(|column| {
                let expected = column.cells.iter().map(|cell| cell.expected[0].cost).sum();
                let observed = column.cells.iter().map(|cell| cell.observed[0]).sum();
                [column.overhead, expected, observed, (column.bias - self.mean_bias).max(0.0)]
            })
            .collect()
    }

    /// The classes in one window.
    pub(super) fn cells(&self, window: usize) -> &[Cell] {
        window.checked_sub(self.base).and_then(|at| self.columns.get(at)).map_or(&[], |column| &column.cells)
    }

    /// CPU of the service outside any request in one window.
    pub(super) fn overhead(&self, window: usize) -> f64 {
        window.checked_sub(self.base).and_then(|at| self.columns.get(at)).map_or(0.0, |column| column.overhead)
    }

    /// CPU of the service in one window, in requests and outside.
    pub(super) fn cpu(&self, window: usize) -> f64 {
        let column = window.checked_sub(self.base).and_then(|at| self.columns.get(at));
        column.map_or(0.0, |column| column.overhead + column.cells.iter().map(|cell| cell.observed[0]).sum::<f64>())
    }

    /// Mean utilisation of the host.
    pub(super) fn utilisation(&self, from: usize, to: usize) -> f64 {
        let (n, sum) = self.windows(from, to).fold((0.0, 0.0), |(n, sum), column| (n + 1.0, sum + column.utilisation));
        if n > 0.0 { sum / n } else { 0.0 }
    }

    /// How many seconds more (`sign` 1) or fewer (−1) requests took in windows `since` to `t` than those of the reference,
    /// summed over the classes of which that is so. All of their time, whatever load and payload let expect: callers wait
    /// for just that.
    pub(super) fn slower(&self, since: usize, t: usize, sign: f64) -> f64 {
        let of = |cell: &Cell| cell.observed[0] + cell.observed[1] + cell.observed[3] + cell.observed[4];
        let mut more = 0.0;
        for i in 0..self.classes.len() {
            let add =
                |(n, time): (f64, f64), column: &Column| (n + column.cells[i].requests(), time + of(&column.cells[i]));
            let (n0, time0) = self.reference_windows(i).fold((0.0, 0.0), add);
            let (n, time) = self.windows(since, t + 1).fold((0.0, 0.0), add);
            if n0 > 0.0 {
                more += (sign * (time - n * time0 / n0)).max(0.0);
            }
        }
        more
    }

    /// One per cent of what the host's CPUs can do in a window, seconds.
    pub(super) fn one_percent(&self) -> f64 {
        0.01 * self.cores * self.length
    }
}

/// See [`Series::before`]; `whole`: windows of the reference. A tenth of it says too little.
fn before(sums: &Sums, whole: usize) -> Option<Before> {
    if sums.windows < 12.0 || sums.windows < 0.1 * whole as f64 {
        return None;
    }
    let x = sums.scale.max(TINY);
    Some(Before { clipped: sums.clipped / x, effect: sums.raw / x, variance: sums.variance.max(0.0) / (x * x) })
}

/// Sums of seconds and counts are neither negative nor endless; what is counts as nothing.
fn sane(value: f64) -> f64 {
    if (0.0..1e15).contains(&value) { value } else { 0.0 }
}

/// The median; `None` of nothing.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}
