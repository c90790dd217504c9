//! The newest windows of every request class, in memory: what charts over time show.

use std::collections::{HashMap, VecDeque};

use crate::model::ClassId;

/// Windows kept per class: two hours of ten seconds.
pub const WINDOWS: usize = 720;
/// Classes kept; those that come when it is full are counted, until an idle one is forgotten.
pub const CLASSES: usize = 400;

/// One class in one window. Seconds; times are means per request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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
}

/// Series of points by class.
#[derive(Debug)]
pub struct Recent {
    /// Most classes.
    classes: usize,
    series: HashMap<ClassId, VecDeque<Point>>,
    refused: u64,
}

impl Default for Recent {
    fn default() -> Self {
        Self { classes: CLASSES, series: HashMap::new(), refused: 0 }
    }
}

impl Recent {
    /// As many classes as fit into a sixteenth of `memory` bytes, [`CLASSES`] at most.
    pub(super) fn for_memory(memory: u64) -> Self {
        let series = (WINDOWS * size_of::<Point>()) as u64;
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

    /// Forgets what is older than `before`, or newer than `now` because the clock was set back; nanoseconds since the
    /// epoch.
    pub(super) fn forget(&mut self, before: u64, now: u64) {
        for series in self.series.values_mut() {
            series.retain(|point| (before..=now).contains(&point.start_ns));
        }
        self.series.retain(|_, series| !series.is_empty());
    }

    /// Classes and their points, oldest first. A window without requests has no point.
    pub fn series(&self) -> impl Iterator<Item = (ClassId, &VecDeque<Point>)> {
        self.series.iter().map(|(class, series)| (*class, series))
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
