//! The newest windows of every request class, in memory: what charts over time show.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tracer_model::ClassId;

use super::duration_counts::DurationCounts;

/// Windows kept per class: two hours of ten seconds.
pub const WINDOWS: usize = 720;
/// Bytes that the counts by duration of a wide distribution take beside the point, about.
const COUNTS: usize = 24;
/// Classes kept; those that come when it is full are counted, until an idle one is forgotten.
pub const CLASSES: usize = 400;
/// Services whose programs are remembered, and how many programs of each: the newest.
const SERVICES: usize = 1024;
const BUILDS: usize = 16;

/// One class in one window. Seconds; times are means per request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// Start of the window, nanoseconds since the epoch.
    pub start_ns: u64,
    /// Requests that finished, per second, and how many of them failed.
    pub rate_per_s: f32,
    /// See `rate_per_s`.
    pub error_rate_per_s: f32,
    /// Quantiles and mean of their duration.
    pub p50_s: f32,
    /// See `p50_s`.
    pub p95_s: f32,
    /// See `p50_s`.
    pub p99_s: f32,
    /// See `p50_s`.
    pub mean_s: f32,
    /// On CPU.
    pub cpu_s: f32,
    /// In the socket's queue.
    pub queue_s: f32,
    /// In the run queue.
    pub runqueue_s: f32,
    /// Blocked, waits for calls included.
    pub blocked_s: f32,
    /// Waiting for calls.
    pub downstream_s: f32,
    /// Length of the window, seconds.
    pub length_s: f32,
    /// Requests by duration.
    pub durations: DurationCounts,
}

/// Series of points by class.
#[derive(Debug)]
pub struct Recent {
    /// Most classes.
    classes: usize,
    series: HashMap<ClassId, VecDeque<Point>>,
    /// Start and length of the windows in memory, nanoseconds, oldest first; also of those without requests.
    windows: VecDeque<(u64, u64)>,
    /// What services ran, oldest first.
    builds: HashMap<Arc<str>, Vec<Build>>,
    refused: u64,
}

/// A time in which a service ran the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    /// Tells programs apart by their files and command line; not comparable across starts of the agent.
    pub identity: u64,
    /// Start of its first window, nanoseconds since the epoch.
    pub from_ns: u64,
    /// End of its last window.
    pub to_ns: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { classes: CLASSES, series: HashMap::new(), windows: VecDeque::new(), builds: HashMap::new(), refused: 0 }
    }
}

impl Recent {
    /// As many classes as fit into a sixteenth of `memory` bytes, [`CLASSES`] at most.
    pub(super) fn for_memory(memory: u64) -> Self {
        let series = (WINDOWS * (size_of::<Point>() + COUNTS)) as u64;
        Self { classes: (memory / 16 / series).clamp(20, CLASSES as u64) as usize, ..Self::default() }
    }

    /// Adds a point.
    pub(super) fn add(&mut self, class: ClassId, point: Point) {
        if !self.series.contains_key(&class) && self.series.len() >= self.classes {
            self.refused += 1;
            return;
        }
        let series = self.series.entry(class).or_default();
        if series.len() >= WINDOWS {
            series.pop_front();
        }
        series.push_back(point);
    }

    /// A window ended: every one is noted, with requests or without.
    pub(super) fn window(&mut self, start_ns: u64, length_ns: u64) {
        if self.windows.len() >= WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back((start_ns, length_ns));
    }

    /// A service ran the program `identity` from `from_ns` to `to_ns`, the ends of a window.
    pub(super) fn build(&mut self, service: &str, identity: u64, (from_ns, to_ns): (u64, u64)) {
        if self.builds.len() >= SERVICES && !self.builds.contains_key(service) {
            return;
        }
        let builds = self.builds.entry(service.into()).or_default();
        match builds.last_mut() {
            Some(last) if last.identity == identity => last.to_ns = to_ns,
            _ => {
                if builds.len() >= BUILDS {
                    builds.remove(0);
                }
                builds.push(Build { identity, from_ns, to_ns });
            }
        }
    }

    /// Forgets what is older than `before`, or newer than `now` because the clock was set back; nanoseconds since the
    /// epoch.
    pub(super) fn forget(&mut self, before: u64, now: u64) {
        for series in self.series.values_mut() {
            series.retain(|point| (before..=now).contains(&point.start_ns));
        }
        self.series.retain(|_, series| !series.is_empty());
        self.windows.retain(|(start, _)| (before..=now).contains(start));
        for builds in self.builds.values_mut() {
            builds.retain(|build| build.to_ns >= before && build.from_ns <= now);
        }
        self.builds.retain(|_, builds| !builds.is_empty());
    }

    /// Classes and their points, oldest first. A window without requests has no point.
    pub fn series(&self) -> impl Iterator<Item = (ClassId, &VecDeque<Point>)> {
        self.series.iter().map(|(class, series)| (*class, series))
    }

    /// Windows in memory that begin within a range of instants: start of the first, end of the last, and how long they are
    /// together, seconds; `None`: there are none.
    pub fn covered(&self, (from, to): (u64, u64)) -> Option<(u64, u64, f64)> {
        let mut within = self.windows.iter().filter(|(start, _)| (from..to).contains(start));
        let first = *within.next()?;
        let (mut last, mut sum) = (first, first.1);
        for window in within {
            last = *window;
            sum += window.1;
        }
        Some((first.0, last.0 + last.1, sum as f64 / 1e9))
    }

    /// Programs of each service in memory.
    pub fn builds(&self) -> impl Iterator<Item = (&Arc<str>, &[Build])> {
        self.builds.iter().map(|(service, builds)| (service, builds.as_slice()))
    }

    /// Points of classes that found no room.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_times_of_one_program() {
        let mut recent = Recent::default();
        for (at, identity) in [(0, 7), (10, 7), (20, 8), (30, 8), (40, 7)] {
            recent.window(at, 10);
            recent.build("shop", identity, (at, at + 10));
        }
        let builds = |recent: &Recent| recent.builds().flat_map(|(_, builds)| builds).copied().collect::<Vec<_>>();
        let build = |identity, from_ns, to_ns| Build { identity, from_ns, to_ns };
        assert_eq!(builds(&recent), [build(7, 0, 20), build(8, 20, 40), build(7, 40, 50)]);
        assert_eq!(recent.covered((5, 35)), Some((10, 40, 3e-8)));
        assert_eq!(recent.covered((50, 90)), None);
        recent.forget(25, 100);
        assert_eq!(builds(&recent), [build(8, 20, 40), build(7, 40, 50)]);
        assert_eq!(recent.covered((0, 90)).map(|(from, ..)| from), Some(30));
        for identity in 0..100 {
            recent.build("shop", identity, (50, 60));
        }
        assert_eq!(builds(&recent).len(), BUILDS);
    }

    #[test]
    fn windows_and_classes_are_bounded() {
        let mut recent = Recent::default();
        for n in 0..2 * WINDOWS as u64 {
            recent.add(ClassId(1), Point { start_ns: n, ..Point::default() });
        }
        for class in 0..2 * CLASSES as u32 {
            recent.add(ClassId(class), Point { start_ns: 5, ..Point::default() });
        }
        assert_eq!(recent.series().count(), CLASSES);
        assert_eq!(recent.refused(), CLASSES as u64);
        let (_, series) = recent.series().find(|(class, _)| *class == ClassId(1)).unwrap();
        assert_eq!(series.len(), WINDOWS);
        recent.forget(1000, 1200);
        assert_eq!(recent.series().count(), 1, "the points of the others are older");
        recent.forget(0, 900);
        assert_eq!(recent.series().count(), 0, "the clock was set back");
    }
}
