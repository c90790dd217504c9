//! How well service classes reach their goals, per service: response times of the last minute against the goal.
//!
//! The response time is what the caller waits for this service: from the arrival of the request in the socket (where
//! that is known) to the last byte of the reply. A request that waits because its thread gets no CPU waits there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tracer_host::guard::tables::TableUse;
use tracer_model::{Names, Nanos, Outcome, ProtocolId, ServiceId, Side, Sink, Span};
use tracer_policies::service_classes::feedback::GoalReading;
use tracer_policies::service_classes::{Goal, ServiceClasses};

use super::goal_windows::{GoalKey, GoalSums, GoalWindow};
use super::lateness::{Parts, Taker, TimeShares, Times, Trend, WaitsFor, takers};

/// Length of one slice, nanoseconds, and number of slices: a minute in all.
const SLICE: Nanos = 10_000_000_000;
const SLICES: usize = 6;
/// Most pairs of service class and service.
const ROWS: usize = 1024;

#[derive(Debug, Default)]
struct Slice {
    number: u64,
    times: Times,
    parts: Parts,
    /// CPU of all, of unfinished ones too.
    cpu: u64,
}

#[derive(Debug, Default)]
struct Sums {
    slices: VecDeque<Slice>,
    count: u64,
    errors: u64,
    cpu: u64,
}

/// One service class of one service.
#[derive(Clone, Debug, PartialEq)]
pub struct AttainmentRow {
    /// Index of the service class.
    pub class: usize,
    /// The service.
    pub service: ServiceId,
    /// Requests since the start.
    pub count: u64,
    /// Failed ones since the start.
    pub errors: u64,
    /// CPU charged to them when they were reported, seconds since the start.
    pub cpu_s: f64,
    /// Requests of the last minute, which the times below are of.
    pub recent: u64,
    /// Median response time, seconds; 0 without requests.
    pub p50_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Mean.
    pub mean_s: f64,
    /// What the goal is about; without a goal the mean.
    pub actual_s: f64,
    /// How that changed, from one half minute to the next.
    pub trend: Option<Trend>,
    /// What the response time went for.
    pub shares: TimeShares,
    /// Whether the goal was reached; `None` without a goal or without requests.
    pub attained: Option<bool>,
}

/// Attainment of all service classes.
#[derive(Debug)]
pub struct Attainment {
    classes: Arc<ServiceClasses>,
    rows: HashMap<(usize, ServiceId), Sums>,
    /// CPU of requests without a service class, by slice.
    others: VecDeque<(u64, Nanos)>,
    now: Nanos,
    refused: u64,
    /// Requests whose context names a service class that is not declared here.
    unknown: u64,
    /// The window of the history that is open, if there is a history.
    window: Option<GoalWindow>,
}

impl Attainment {
    /// Of these classes.
    pub fn new(classes: &Arc<ServiceClasses>) -> Self {
        Self {
            classes: Arc::clone(classes),
            rows: HashMap::new(),
            others: VecDeque::new(),
            now: 0,
            refused: 0,
            unknown: 0,
            window: None,
        }
    }

    /// From here on there are windows; see [`Attainment::take_window`].
    pub fn collect_windows(&mut self) {
        self.window = Some(GoalWindow::default());
    }

    /// Ends a window of the history: what was reached since the last one.
    pub fn take_window(&mut self) -> Vec<(GoalKey, GoalSums)> {
        self.window.as_mut().map(GoalWindow::take).unwrap_or_default()
    }

    /// Other classes are declared. Those of the same name go on, those that are gone are forgotten.
    pub fn replace(&mut self, classes: &Arc<ServiceClasses>) {
        let old = std::mem::replace(&mut self.classes, Arc::clone(classes));
        let rows = std::mem::take(&mut self.rows).into_iter();
        let index = |class: usize| classes.index(&old.classes.get(class)?.name);
        self.rows = rows.filter_map(|((class, service), sums)| Some(((index(class)?, service), sums))).collect();
    }

    /// CPU of a request without a service class.
    fn without_class(&mut self, span: &Span) {
        self.now = self.now.max(span.end);
        let number = self.now / SLICE;
        if self.others.back().is_none_or(|(newest, _)| *newest < number) {
            if self.others.len() >= SLICES {
                self.others.pop_front();
            }
            self.others.push_back((number, 0));
        }
        if let Some((_, cpu)) = self.others.back_mut() {
            *cpu += span.cost.cpu;
        }
    }

    /// Pairs of service class and service.
    pub fn table_use(&self) -> TableUse {
        let of_window = self.window.as_ref().map_or(0, |window| window.refused);
        TableUse::new(self.rows.len(), ROWS, self.refused + of_window)
    }

    /// The classes.
    pub fn classes(&self) -> &ServiceClasses {
        &self.classes
    }

    /// Requests whose context names a service class that is not declared here.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Every pair that had requests, by importance, then class, then service.
    pub fn rows(&self) -> Vec<AttainmentRow> {
        let mut rows: Vec<AttainmentRow> =
            self.rows.iter().map(|((class, service), sums)| self.row(*class, *service, sums)).collect();
        let importance = |row: &AttainmentRow| self.classes.classes.get(row.class).map(|class| class.importance);
        rows.sort_by_key(|row| (importance(row), row.class, row.service));
        rows
    }

    fn row(&self, class: usize, service: ServiceId, sums: &Sums) -> AttainmentRow {
        let oldest = self.oldest();
        let middle = oldest + SLICES as u64 / 2;
        let (mut all, mut now, mut before) = (Times::default(), Times::default(), Times::default());
        let mut parts = Parts::default();
        for slice in sums.slices.iter().filter(|slice| slice.number >= oldest) {
            let half = if slice.number >= middle { &mut now } else { &mut before };
            for times in [&mut all, half] {
                times.times.merge(&slice.times.times);
                times.sum += slice.times.sum;
                times.count += slice.times.count;
            }
            parts.add(&slice.parts);
        }
        let quantile = |q| all.times.at(q).unwrap_or(0.0);
        let goal = self.classes.classes.get(class).map_or(Goal::Discretionary, |class| class.goal);
        let actual_s = all.actual(goal);
        AttainmentRow {
            class,
            service,
            count: sums.count,
            errors: sums.errors,
            cpu_s: sums.cpu as f64 / 1e9,
            recent: all.count,
            p50_s: quantile(0.5),
            p95_s: quantile(0.95),
            p99_s: quantile(0.99),
            mean_s: all.actual(Goal::Discretionary),
            actual_s,
            trend: now.trend(&before, goal),
            shares: parts.shares(),
            attained: goal.time().filter(|_| all.count > 0).map(|goal| actual_s <= goal.as_secs_f64()),
        }
    }

    /// The number of the last slice that has ended.
    pub fn ended(&self) -> u64 {
        (self.now / SLICE).saturating_sub(1)
    }

    /// What each class reached in slice `number`, in the service that is furthest from its goal; `None` without a goal or
    /// with less than `least` requests.
    pub fn readings(&self, number: u64, least: u64) -> Vec<Option<GoalReading>> {
        let mut all: Vec<Option<GoalReading>> = vec![None; self.classes.classes.len()];
        for ((class, _), sums) in &self.rows {
            let goal = self.classes.classes.get(*class).map(|class| class.goal);
            let Some((goal, time)) = goal.and_then(|goal| Some((goal, goal.time()?.as_secs_f64()))) else { continue };
            let slice = sums.slices.iter().find(|slice| slice.number == number && slice.times.count >= least);
            let (Some(slice), Some(place)) = (slice, all.get_mut(*class)) else { continue };
            let ratio = slice.times.actual(goal) / time;
            if place.is_none_or(|other| other.ratio < ratio) {
                *place = Some(GoalReading { ratio, waits_for_cpu: slice.parts.shares().waits_for() == WaitsFor::Cpu });
            }
        }
        all
    }

    /// The number of the oldest slice of the last minute.
    fn oldest(&self) -> u64 {
        (self.now / SLICE + 1).saturating_sub(SLICES as u64)
    }

    /// Who took how much of the CPU of requests over the last minute, most first.
    pub fn takers(&self) -> Vec<Taker> {
        let oldest = self.oldest();
        let mut by_class: BTreeMap<Option<usize>, Nanos> = BTreeMap::new();
        for ((class, _), sums) in &self.rows {
            let recent = sums.slices.iter().filter(|slice| slice.number >= oldest);
            *by_class.entry(Some(*class)).or_default() += recent.map(|slice| slice.cpu).sum::<Nanos>();
        }
        let others = self.others.iter().filter(|(number, _)| *number >= oldest);
        by_class.insert(None, others.map(|(_, cpu)| cpu).sum());
        takers(by_class)
    }
}

impl Sink for Attainment {
    fn span(&mut self, _: &Names, span: &Span) {
        if span.side != Side::Server || self.classes.is_empty() {
            return;
        }
        let Some(carried) = span.carried.as_ref().filter(|carried| !carried.service_class.is_empty()) else {
            // A declared call within a request: its CPU is the request's.
            if span.protocol != ProtocolId::Declared || span.parent.is_none() {
                self.without_class(span);
            }
            return;
        };
        let Some(class) = self.classes.index(&carried.service_class) else {
            self.unknown += 1;
            return;
        };
        self.now = self.now.max(span.end);
        let key = (class, span.service);
        if self.rows.len() >= ROWS && !self.rows.contains_key(&key) {
            self.refused += 1;
            return;
        }
        let time = span.queue() + span.duration();
        if let (Some(window), Some(class)) = (&mut self.window, self.classes.classes.get(class)) {
            window.add(class, span, time);
        }
        let number = self.now / SLICE;
        let sums = self.rows.entry(key).or_default();
        sums.count += 1;
        sums.errors += u64::from(span.error);
        sums.cpu += span.cost.cpu;
        if sums.slices.back().is_none_or(|slice| slice.number < number) {
            if sums.slices.len() >= SLICES {
                sums.slices.pop_front();
            }
            sums.slices.push_back(Slice { number, ..Slice::default() });
        }
        let Some(slice) = sums.slices.back_mut() else { return };
        slice.cpu += span.cost.cpu;
        if span.outcome == Outcome::Unfinished {
            // Its end was not seen: its time means nothing.
            return;
        }
        slice.times.times.add(time, 1);
        slice.times.sum += time;
        slice.times.count += 1;
        slice.parts.add(&Parts { time, queue: span.queue(), cost: span.cost });
    }

    fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tracer_model::sample_span::span;
    use tracer_model::{Cost, PropagatedContext};
    use tracer_policies::service_classes::limits::RequestLimits;
    use tracer_policies::service_classes::{Priority, ServiceClass};

    const MILLI: Nanos = 1_000_000;

    fn attainment(goal: Goal) -> Attainment {
        let class = |name: &str, importance, goal| ServiceClass {
            name: name.into(),
            importance,
            goal,
            cpu: Priority::Normal,
            auto: false,
            network: Priority::Normal,
            limits: RequestLimits::default(),
            place: "t:1".into(),
        };
        let classes = vec![class("bronze", 3, Goal::Discretionary), class("gold", 1, goal)];
        Attainment::new(&Arc::new(ServiceClasses { classes, rules: Vec::new() }))
    }

    /// A request that arrived `queue` before it was read and took `time` in all.
    fn request(attainment: &mut Attainment, name: &str, end: Nanos, queue: Nanos, time: Nanos) {
        let carried = PropagatedContext { service_class: name.into(), ..PropagatedContext::default() };
        let start = end + queue - time;
        let span = Span {
            carried: Some(Arc::new(carried)),
            side: Side::Server,
            arrived: start - queue,
            start,
            end,
            outcome: Outcome::Complete,
            error: false,
            ..span(1, start, 0, false)
        };
        attainment.span(&Names::default(), &span);
    }

    #[test]
    fn the_goal_is_judged_by_what_callers_wait_for() {
        for (goal, attained) in [
            (Goal::P99(Duration::from_millis(50)), false),
            (Goal::P99(Duration::from_millis(70)), true),
            (Goal::P95(Duration::from_millis(25)), true),
            (Goal::Mean(Duration::from_millis(21)), true),
            (Goal::Mean(Duration::from_millis(19)), false),
        ] {
            let mut all = attainment(goal);
            for n in 0..100u64 {
                // Two of a hundred waited 40 ms for a CPU before they were read.
                let queue = if n % 50 == 0 { 40 * MILLI } else { 0 };
                request(&mut all, "gold", (1000 + n) * MILLI, queue, queue + 20 * MILLI);
                request(&mut all, "bronze", (1000 + n) * MILLI, 0, 900 * MILLI);
            }
            let rows = all.rows();
            assert_eq!((rows[0].class, rows[0].count, rows[0].recent), (1, 100, 100));
            assert_eq!((rows[0].attained, rows[1].attained), (Some(attained), None), "{goal:?} {rows:?}");
            assert!((rows[0].mean_s - 0.0208).abs() < 1e-6 && (rows[0].p99_s - 0.06).abs() < 0.002, "{rows:?}");
        }
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut all = attainment(Goal::P99(Duration::from_millis(50)));
        for second in 0..30 {
            request(&mut all, "gold", second * 1000 * MILLI + 1_000_000_000, 0, 400 * MILLI);
        }
        assert_eq!(all.rows()[0].attained, Some(false));
        all.tick(200 * 1000 * MILLI);
        let row = &all.rows()[0];
        assert_eq!((row.count, row.recent, row.attained), (30, 0, None));
        request(&mut all, "gold", 201 * 1000 * MILLI, 0, 10 * MILLI);
        assert_eq!(all.rows()[0].attained, Some(true));
        request(&mut all, "silver", 201 * 1000 * MILLI, 0, 10 * MILLI);
        assert_eq!((all.unknown(), all.rows().len()), (1, 1));
    }

    #[test]
    fn who_took_the_cpu_while_a_class_got_slower() {
        let mut all = attainment(Goal::P99(Duration::from_millis(50)));
        for n in 0..60 {
            // From the half minute on it waits for a CPU.
            let queue = if n < 30 { 0 } else { 60 * MILLI };
            request(&mut all, "gold", (60 + n) * 1000 * MILLI, queue, queue + 20 * MILLI);
            if n >= 30 {
                request(&mut all, "bronze", (60 + n) * 1000 * MILLI, 0, 500 * MILLI);
            }
        }
        let rows = all.rows();
        let gold = &rows[0];
        assert_eq!((gold.attained, gold.trend), (Some(false), Some(Trend::Rising)), "{gold:?}");
        assert!((gold.shares.queue - 0.6).abs() < 1e-9 && (gold.actual_s - gold.p99_s).abs() < 1e-9, "{gold:?}");
        // The spans of these tests say nothing of CPU; those without a class do.
        assert!(all.takers().is_empty());
        let span = Span {
            side: Side::Server,
            cost: Cost { cpu: 7 * MILLI, ..Cost::default() },
            end: 119_000 * MILLI,
            ..span(1, 0, 0, false)
        };
        all.span(&Names::default(), &span);
        assert_eq!(all.takers().iter().map(|taker| (taker.class, taker.share)).collect::<Vec<_>>(), [(None, 1.0)]);
        all.tick(600_000 * MILLI);
        assert!(all.takers().is_empty() && all.rows()[0].trend.is_none());
    }

    #[test]
    fn readings_are_of_one_slice() {
        let mut all = attainment(Goal::Mean(Duration::from_millis(50)));
        for n in 0..20 {
            request(&mut all, "gold", (11_000 + 100 * n) * MILLI, 80 * MILLI, 100 * MILLI);
            request(&mut all, "bronze", (11_000 + 100 * n) * MILLI, 0, 100 * MILLI);
        }
        request(&mut all, "gold", 21_000 * MILLI, 0, 20 * MILLI);
        assert_eq!(all.ended(), 1);
        assert_eq!(all.readings(1, 20), [None, Some(GoalReading { ratio: 2.0, waits_for_cpu: true })]);
        assert_eq!((all.readings(1, 21), all.readings(2, 2)), (vec![None, None], vec![None, None]));
    }

    #[test]
    fn classes_of_the_same_name_go_on() {
        let mut all = attainment(Goal::P99(Duration::from_millis(50)));
        for name in ["gold", "bronze"] {
            request(&mut all, name, 1000 * MILLI, 0, 20 * MILLI);
        }
        let gold = ServiceClass { goal: Goal::P99(Duration::from_millis(10)), ..all.classes().classes[1].clone() };
        all.replace(&Arc::new(ServiceClasses { classes: vec![gold], rules: Vec::new() }));
        let rows = all.rows();
        assert_eq!((rows.len(), rows[0].class, rows[0].count, rows[0].attained), (1, 0, 1, Some(false)));
    }
}
