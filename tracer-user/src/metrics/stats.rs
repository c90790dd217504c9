//! Rolling figures per class for the API and the console.

use std::collections::VecDeque;

use super::quantile::Quantiles;
use crate::model::{ClassId, Cost, Nanos, Names, Owner, ServiceId, Sink, Unit};

/// Length of one window, nanoseconds, and how many are kept: figures are of the last five minutes.
const WINDOW: Nanos = 60_000_000_000;
const WINDOWS: usize = 5;

/// Sums of one window.
#[derive(Clone, Debug, Default)]
struct Window {
    started: Nanos,
    count: u64,
    errors: u64,
    durations: Quantiles,
    queue: u64,
    downstream: u64,
    duration: u64,
    cost: Cost,
}

/// What is shown of a class: counts since the start, the rest over the last minutes. Times in seconds per request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassFigures {
    /// Requests since the start.
    pub count: u64,
    /// Failed ones since the start.
    pub errors: u64,
    /// Requests per second.
    pub rate_per_s: f64,
    /// Median duration.
    pub p50_s: f64,
    /// 95th percentile.
    pub p95_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Mean duration.
    pub mean_s: f64,
    /// Arrived, not yet read.
    pub queue_s: f64,
    /// On CPU.
    pub cpu_s: f64,
    /// Runnable, waiting for a CPU.
    pub runqueue_s: f64,
    /// Blocked while holding the request.
    pub blocked_s: f64,
    /// Waiting for at least one downstream call.
    pub downstream_s: f64,
    /// CPU since the start, seconds in all.
    pub cpu_total_s: f64,
}

#[derive(Debug, Default)]
struct Class {
    count: u64,
    errors: u64,
    cpu: u64,
    windows: VecDeque<Window>,
}

/// Figures of every class, and CPU per service.
#[derive(Debug, Default)]
pub struct ClassStats {
    classes: Vec<Class>,
    overhead: Vec<u64>,
    now: Nanos,
    begun: Nanos,
}

impl ClassStats {
    /// Without classes.
    pub fn new() -> Self {
        Self::default()
    }

    fn window(&mut self, class: ClassId) -> Option<(&mut Class, Nanos)> {
        let index = class.0 as usize;
        if self.classes.len() <= index {
            self.classes.resize_with(index + 1, Class::default);
        }
        let now = self.now;
        let class = self.classes.get_mut(index)?;
        if class.windows.back().is_none_or(|window| now.saturating_sub(window.started) >= WINDOW) {
            if class.windows.len() == WINDOWS {
                class.windows.pop_front();
            }
            class.windows.push_back(Window { started: now / WINDOW * WINDOW, ..Window::default() });
        }
        Some((class, now))
    }

    /// CPU charged to a service for no request, seconds since the start.
    pub fn overhead_s(&self, service: ServiceId) -> f64 {
        self.overhead.get(service.0 as usize).map_or(0.0, |nanos| *nanos as f64 / 1e9)
    }

    /// Figures of a class.
    pub fn figures(&self, class: ClassId) -> ClassFigures {
        let Some(class) = self.classes.get(class.0 as usize) else { return ClassFigures::default() };
        let mut sum = Window::default();
        let mut oldest = self.now;
        let recent = |window: &&Window| self.now.saturating_sub(window.started) < WINDOW * WINDOWS as u64;
        for window in class.windows.iter().filter(recent) {
            oldest = oldest.min(window.started);
            sum.count += window.count;
            sum.errors += window.errors;
            sum.queue += window.queue;
            sum.downstream += window.downstream;
            sum.duration += window.duration;
            sum.cost.add(window.cost);
            sum.durations.merge(&window.durations);
        }
        let span = self.now.saturating_sub(oldest.max(self.begun)).max(1_000_000_000) as f64 / 1e9;
        let each = |nanos: u64| if sum.count == 0 { 0.0 } else { nanos as f64 / 1e9 / sum.count as f64 };
        let quantile = |q| sum.durations.at(q).unwrap_or(0.0);
        ClassFigures {
            count: class.count,
            errors: class.errors,
            rate_per_s: sum.count as f64 / span,
            p50_s: quantile(0.50),
            p95_s: quantile(0.95),
            p99_s: quantile(0.99),
            mean_s: each(sum.duration),
            queue_s: each(sum.queue),
            cpu_s: each(sum.cost.cpu),
            runqueue_s: each(sum.cost.runq),
            blocked_s: each(sum.cost.blocked),
            downstream_s: each(sum.downstream),
            cpu_total_s: class.cpu as f64 / 1e9,
        }
    }
}

impl Sink for ClassStats {
    fn unit(&mut self, _: &Names, unit: &Unit) {
        self.now = self.now.max(unit.end);
        if self.begun == 0 {
            self.begun = unit.start;
        }
        let Some((class, _)) = self.window(unit.class) else { return };
        class.count += 1;
        class.errors += u64::from(unit.error);
        let Some(window) = class.windows.back_mut() else { return };
        window.count += 1;
        window.errors += u64::from(unit.error);
        window.durations.add(unit.duration());
        window.duration += unit.duration();
        window.queue += unit.queue();
        window.downstream += unit.downstream;
    }

    fn cost(&mut self, _: &Names, owner: Owner, cost: Cost) {
        match owner {
            Owner::Class(class) => {
                if let Some((class, _)) = self.window(class) {
                    class.cpu += cost.cpu;
                    if let Some(window) = class.windows.back_mut() {
                        window.cost.add(cost);
                    }
                }
            }
            Owner::Overhead(service) => {
                let index = service.0 as usize;
                if self.overhead.len() <= index {
                    self.overhead.resize(index + 1, 0);
                }
                if let Some(sum) = self.overhead.get_mut(index) {
                    *sum += cost.cpu;
                }
            }
            Owner::Kernel => {}
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }
}
