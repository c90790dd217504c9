//! Windows added up by the hour and by the day, so that they can be kept longer: rows with the columns of windows.
//!
//! Sums add up to those of the windows. What is no sum is a mean: of CPUs and lost operations over the time, of the capture
//! ratio over the CPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::rows::{ClassRow, EdgeRow, GoalRow, HistoryRow, HostRow, Identity};

/// Seconds of the two periods.
pub(super) const HOUR_S: u64 = 3600;
/// See [`HOUR_S`].
pub(super) const DAY_S: u64 = 24 * HOUR_S;
/// Rows of a summary: a day of 2000 classes. What exceeds it counts in [`OTHER`].
const ROWS_MAX: usize = 50_000;
/// Class of the requests that find no room.
const OTHER: &str = "_other";

/// A row that can be added to others.
pub trait Sum: HistoryRow + Clone {
    /// Names of the tables of hours and of days: the value of the partition `kind`. They do not begin with that of windows,
    /// so that whoever reads `kind=classes…` counts nothing twice.
    const HOURLY: &'static str;
    /// See [`Sum::HOURLY`].
    const DAILY: &'static str;
    /// What rows must have in common.
    type Key: Ord;
    /// Its own.
    fn key(&self) -> Self::Key;
    /// The same for what finds no room.
    #[must_use]
    fn other(self) -> Self;
    /// Start of the window or period, and its length.
    fn time(&mut self) -> (&mut u64, &mut f64);
    /// Adds everything but the time and the length.
    fn add(&mut self, more: &Self);
}

impl Sum for ClassRow {
    const HOURLY: &'static str = "hourly_classes";
    const DAILY: &'static str = "daily_classes";
    type Key = (Arc<str>, Arc<str>, Arc<str>, Arc<str>, Arc<str>, u64);

    fn key(&self) -> Self::Key {
        let text = Arc::clone;
        let names = (text(&self.service_name), text(&self.request_class), text(&self.side));
        (names.0, names.1, names.2, text(&self.protocol), text(&self.instance), self.identity.0)
    }

    fn other(self) -> Self {
        let (none, other): (Arc<str>, Arc<str>) = ("".into(), OTHER.into());
        Self {
            service_name: Arc::clone(&other),
            request_class: other,
            protocol: Arc::clone(&none),
            instance: none,
            identity: Identity(0),
            ..self
        }
    }

    fn time(&mut self) -> (&mut u64, &mut f64) {
        (&mut self.start_ns, &mut self.length_s)
    }

    fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.errors += more.errors;
        self.duration_s += more.duration_s;
        for (sum, count) in self.duration_histogram.0.iter_mut().zip(more.duration_histogram.0) {
            *sum = sum.saturating_add(count);
        }
        self.cpu_s += more.cpu_s;
        self.cpu_s_squared += more.cpu_s_squared;
        self.runqueue_s += more.runqueue_s;
        self.blocked_s += more.blocked_s;
        self.queue_s += more.queue_s;
        self.downstream_s += more.downstream_s;
        self.calls += more.calls;
        for k in 0..self.count_by_size.len() {
            self.count_by_size[k] += more.count_by_size[k];
            self.cpu_s_by_size[k] += more.cpu_s_by_size[k];
        }
    }
}

impl Sum for HostRow {
    const HOURLY: &'static str = "hourly_hosts";
    const DAILY: &'static str = "daily_hosts";
    type Key = ();

    fn key(&self) -> Self::Key {}

    fn other(self) -> Self {
        self
    }

    fn time(&mut self) -> (&mut u64, &mut f64) {
        (&mut self.start_ns, &mut self.length_s)
    }

    fn add(&mut self, more: &Self) {
        let mean = |a: f64, b: f64, (of_a, of_b): (f64, f64)| {
            if of_a + of_b > 0.0 { (a * of_a + b * of_b) / (of_a + of_b) } else { a }
        };
        let lengths = (self.length_s, more.length_s);
        self.cores = mean(self.cores, more.cores, lengths);
        self.loss = mean(self.loss, more.loss, lengths);
        self.capture_ratio = mean(self.capture_ratio, more.capture_ratio, (self.busy_s, more.busy_s));
        self.length_s += more.length_s;
        self.busy_s += more.busy_s;
        self.requests_s += more.requests_s;
        self.overhead_s += more.overhead_s;
        self.kernel_s += more.kernel_s;
        self.foreign_s += more.foreign_s;
        self.steal_s += more.steal_s;
        self.idle_s += more.idle_s;
        self.events_lost += more.events_lost;
        self.class_rows += more.class_rows;
        self.service_rows += more.service_rows;
        self.edge_rows += more.edge_rows;
        self.goal_rows += more.goal_rows;
        self.run_ns = self.run_ns.max(more.run_ns);
        self.last = 0;
    }
}

impl Sum for EdgeRow {
    const HOURLY: &'static str = "hourly_edges";
    const DAILY: &'static str = "daily_edges";
    type Key = [Arc<str>; 12];

    fn key(&self) -> Self::Key {
        let whose = [&self.service_name, &self.request_class, &self.side, &self.protocol];
        let ends = [&self.caller_service, &self.caller_class, &self.callee_service, &self.peer_host, &self.peer];
        let root = [&self.root, &self.root_service, &self.root_class];
        let mut all = whose.into_iter().chain(ends).chain(root);
        std::array::from_fn(|_| all.next().map(Arc::clone).unwrap_or_default())
    }

    fn other(self) -> Self {
        let (none, other): (Arc<str>, Arc<str>) = (Arc::default(), OTHER.into());
        Self {
            service_name: Arc::clone(&other),
            request_class: Arc::clone(&other),
            protocol: Arc::clone(&none),
            caller_service: other,
            caller_class: Arc::clone(&none),
            callee_service: Arc::clone(&none),
            peer_host: Arc::clone(&none),
            peer: Arc::clone(&none),
            root: "other".into(),
            root_service: Arc::clone(&none),
            root_class: none,
            ..self
        }
    }

    fn time(&mut self) -> (&mut u64, &mut f64) {
        (&mut self.start_ns, &mut self.length_s)
    }

    fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.root_count += more.root_count;
        self.errors += more.errors;
        self.duration_s.0 += more.duration_s.0;
        self.queue_s.0 += more.queue_s.0;
        self.cpu_s.0 += more.cpu_s.0;
        self.runqueue_s.0 += more.runqueue_s.0;
        self.blocked_s.0 += more.blocked_s.0;
        self.downstream_s.0 += more.downstream_s.0;
    }
}

impl Sum for GoalRow {
    const HOURLY: &'static str = "hourly_goals";
    const DAILY: &'static str = "daily_goals";
    /// With the goal itself: another one's attainment is not added to it.
    type Key = (Arc<str>, Arc<str>, u64, Arc<str>, u64);

    fn key(&self) -> Self::Key {
        let text = Arc::clone;
        let names = (text(&self.service_class), text(&self.service_name));
        (names.0, names.1, self.importance, text(&self.goal), self.goal_s.to_bits())
    }

    fn other(self) -> Self {
        let other: Arc<str> = OTHER.into();
        Self { service_name: Arc::clone(&other), service_class: other, importance: 0, ..self }
    }

    fn time(&mut self) -> (&mut u64, &mut f64) {
        (&mut self.start_ns, &mut self.length_s)
    }

    fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.errors += more.errors;
        self.unfinished += more.unfinished;
        self.attained += more.attained;
        self.missed += more.missed;
        self.response_s += more.response_s;
        self.cpu_s += more.cpu_s;
        self.windows_attained += more.windows_attained;
        self.windows_missed += more.windows_missed;
    }
}

/// Rows added up by periods.
#[derive(Debug)]
pub(super) struct Summary<R: Sum> {
    period_ns: u64,
    rows: BTreeMap<(u64, R::Key), R>,
}

impl<R: Sum> Summary<R> {
    /// An empty one with periods of so many seconds.
    pub(super) fn new(period_s: u64) -> Self {
        Self { period_ns: period_s * 1_000_000_000, rows: BTreeMap::new() }
    }

    /// Adds a row of a window or of a shorter period.
    pub(super) fn add(&mut self, row: &R) {
        let mut row = row.clone();
        let start = *row.time().0 / self.period_ns * self.period_ns;
        *row.time().0 = start;
        let mut key = (start, row.key());
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            row = row.other();
            key.1 = row.key();
        }
        match self.rows.get_mut(&key) {
            Some(sum) => sum.add(&row),
            None => drop(self.rows.insert(key, row)),
        }
    }

    /// Rows by time.
    pub(super) fn rows(&self) -> impl Iterator<Item = &R> {
        self.rows.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Gives every row the time that its host was watched: a class without requests in a window has no row for it.
    pub(super) fn set_lengths(&mut self, lengths: &BTreeMap<u64, f64>) {
        for row in self.rows.values_mut() {
            let (start_ns, length_s) = row.time();
            *length_s = lengths.get(start_ns).copied().unwrap_or(*length_s);
        }
    }
}

impl Summary<HostRow> {
    /// How long the host was watched in each period.
    pub(super) fn lengths(&self) -> BTreeMap<u64, f64> {
        self.rows.values().map(|row| (row.start_ns, row.length_s)).collect()
    }
}

impl Summary<ClassRow> {
    pub(super) fn requests(&self) -> u64 {
        self.rows.values().map(|row| row.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn class(start_s: u64, name: &str, count: u64) -> ClassRow {
        ClassRow {
            start_ns: start_s * S,
            length_s: 10.0,
            request_class: name.into(),
            count,
            cpu_s: 0.5,
            count_by_size: [count, 0, 0],
            ..ClassRow::default()
        }
    }

    #[test]
    fn rows_of_a_period_are_added_up() {
        let mut hours = Summary::new(HOUR_S);
        for start_s in [0, 10, 3590, 3600, 7199] {
            hours.add(&class(start_s, "a", 2));
            hours.add(&class(start_s, "b", 3));
        }
        let rows: Vec<(u64, u64, f64, [u64; 3])> =
            hours.rows().map(|row| (row.start_ns / S, row.count, row.cpu_s, row.count_by_size)).collect();
        assert_eq!(
            rows,
            [(0, 6, 1.5, [6, 0, 0]), (0, 9, 1.5, [9, 0, 0]), (3600, 4, 1.0, [4, 0, 0]), (3600, 6, 1.0, [6, 0, 0])]
        );
        let mut days = Summary::new(DAY_S);
        hours.rows().for_each(|row| days.add(row));
        days.set_lengths(&[(0, 50.0)].into());
        let rows: Vec<(u64, f64)> = days.rows().map(|row| (row.count, row.length_s)).collect();
        assert_eq!(rows, [(10, 50.0), (15, 50.0)]);
    }

    #[test]
    fn utilisation_of_a_period_is_that_of_its_windows() {
        let host = |start_s: u64, length_s, cores, busy_s, capture_ratio| HostRow {
            start_ns: start_s * S,
            length_s,
            cores,
            busy_s,
            capture_ratio,
            last: 1,
            ..HostRow::default()
        };
        let mut hours = Summary::new(HOUR_S);
        hours.add(&host(0, 10.0, 2.0, 4.0, 1.0));
        hours.add(&host(10, 30.0, 4.0, 12.0, 0.9));
        let row = hours.rows().next().unwrap();
        assert!((row.cores * row.length_s - 140.0).abs() < 1e-9 && (row.busy_s - 16.0).abs() < 1e-9, "{row:?}");
        assert!((row.capture_ratio - 14.8 / 16.0).abs() < 1e-9 && row.last == 0, "{row:?}");
        assert_eq!(hours.lengths(), [(0, 40.0)].into());
    }

    #[test]
    fn classes_are_bounded_and_nothing_is_lost() {
        let mut hours = Summary::new(HOUR_S);
        for n in 0..ROWS_MAX + 10 {
            hours.add(&class(0, &n.to_string(), 1));
        }
        assert_eq!(hours.rows().count(), ROWS_MAX + 1);
        assert_eq!(hours.requests(), (ROWS_MAX + 10) as u64);
        assert_eq!(hours.rows().find(|row| &*row.request_class == OTHER).map(|row| row.count), Some(10));
    }
}
