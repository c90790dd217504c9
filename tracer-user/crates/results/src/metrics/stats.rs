//! Rolling statistics per class and service for the API and the console.

use std::collections::VecDeque;

use tracer_model::{ClassId, Cost, Names, Nanos, Outcome, Owner, Queues, ServiceId, Sink, Span};

use super::quantile::Quantiles;

/// Length of one window, nanoseconds, and number of windows: times cover the last five minutes.
const WINDOW: Nanos = 60_000_000_000;
const WINDOWS: usize = 5;
/// Length of one slice, nanoseconds, and number of slices: rates cover the last minute.
const SLICE: Nanos = 10_000_000_000;
const SLICES: usize = 7;

/// Sums of one window.
#[derive(Clone, Debug, Default)]
struct Window {
    started: Nanos,
    count: u64,
    durations: Quantiles,
    queue: u64,
    queues: Queues,
    downstream: u64,
    duration: u64,
    cost: Cost,
}

impl Window {
    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.queue += other.queue;
        self.queues.add(other.queues);
        self.downstream += other.downstream;
        self.duration += other.duration;
        self.cost.add(other.cost);
        self.durations.merge(&other.durations);
    }
}

/// An amount per second over the last minute.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    /// Number of the newest slice.
    newest: u64,
    sums: [u64; SLICES],
}

impl Rate {
    fn add(&mut self, now: Nanos, amount: u64) {
        let slice = now / SLICE;
        // Clears the slices that got nothing.
        for skipped in (self.newest + 1..=slice).rev().take(SLICES) {
            self.sums[skipped as usize % SLICES] = 0;
        }
        self.newest = self.newest.max(slice);
        self.sums[slice as usize % SLICES] += amount;
    }

    /// Amount per second; `begun` is the earliest possible start of counting.
    fn per_second(&self, now: Nanos, begun: Nanos) -> f64 {
        let slice = now / SLICE;
        let oldest = (slice + 1).saturating_sub(SLICES as u64);
        let known = (self.newest + 1).saturating_sub(SLICES as u64)..=self.newest;
        let sum: u64 = known.filter(|slice| *slice >= oldest).map(|slice| self.sums[slice as usize % SLICES]).sum();
        // At least one second: the very first request makes no rate yet.
        let span = now.saturating_sub((oldest * SLICE).max(begun)).max(1_000_000_000);
        sum as f64 * 1e9 / span as f64
    }
}

/// Figures of a class: counts since the start, rates over the last minute, times over the last five minutes (when the
/// class has been quiet for longer, over its last minutes with requests). Times are seconds per request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ClassFigures {
    /// Requests since the start.
    pub count: u64,
    /// Failed requests since the start.
    pub errors: u64,
    /// Requests since the start of which the agent saw neither the end nor a status of failure; not errors.
    pub unfinished: u64,
    /// Requests per second.
    pub rate_per_s: f64,
    /// Failed requests per second.
    pub error_rate_per_s: f64,
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
    /// Part of the queue time before the connection was accepted, where the accept time is known.
    pub accept_queue_s: f64,
    /// Part of the queue time after the connection was accepted, where the accept time is known.
    pub socket_queue_s: f64,
    /// On CPU.
    pub cpu_s: f64,
    /// Runnable, waiting for a CPU.
    pub runqueue_s: f64,
    /// Blocked while holding the request.
    pub blocked_s: f64,
    /// Waiting for at least one downstream call.
    pub downstream_s: f64,
    /// CPU since the start, total seconds.
    pub cpu_total_s: f64,
}

/// CPU of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServiceFigures {
    /// For its requests, seconds since the start.
    pub requests_s: f64,
    /// For no request, seconds since the start.
    pub overhead_s: f64,
    /// For its requests, cores over the last minute.
    pub requests_cores: f64,
    /// For no request, cores over the last minute.
    pub overhead_cores: f64,
}

#[derive(Debug, Default)]
struct Class {
    count: u64,
    errors: u64,
    unfinished: u64,
    cpu: u64,
    rate: Rate,
    error_rate: Rate,
    windows: VecDeque<Window>,
}

impl Class {
    /// The window of `now`; starts one if needed.
    fn window(&mut self, now: Nanos) -> Option<&mut Window> {
        if self.windows.back().is_none_or(|window| now.saturating_sub(window.started) >= WINDOW) {
            if self.windows.len() == WINDOWS {
                self.windows.pop_front();
            }
            self.windows.push_back(Window { started: now / WINDOW * WINDOW, ..Window::default() });
        }
        self.windows.back_mut()
    }
}

fn is_recent(window: &Window, now: Nanos) -> bool {
    now.saturating_sub(window.started) < WINDOW * WINDOWS as u64
}

#[derive(Debug, Default)]
struct Service {
    requests: u64,
    overhead: u64,
    requests_rate: Rate,
    overhead_rate: Rate,
}

/// Figures of every class, and CPU per service. A class takes some 200 bytes and, while it has requests, up to 5 KiB
/// (usually less than one) for each of five minutes; a quiet class keeps one such sum.
#[derive(Debug, Default)]
pub struct ClassStats {
    classes: Vec<Class>,
    services: Vec<Service>,
    now: Nanos,
    begun: Nanos,
    /// Start of the window of the last sweep for quiet classes.
    swept: Nanos,
}

impl ClassStats {
    /// No classes yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn class(&mut self, class: ClassId) -> Option<&mut Class> {
        let index = class.0 as usize;
        if self.classes.len() <= index {
            self.classes.resize_with(index + 1, Class::default);
        }
        self.classes.get_mut(index)
    }

    fn service(&mut self, service: ServiceId) -> Option<&mut Service> {
        let index = service.0 as usize;
        if self.services.len() <= index {
            self.services.resize_with(index + 1, Service::default);
        }
        self.services.get_mut(index)
    }

    fn see(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        if self.begun == 0 {
            self.begun = now;
        }
    }

    /// CPU charged to a service for no request, seconds since the start.
    pub fn overhead_s(&self, service: ServiceId) -> f64 {
        self.service_figures(service).overhead_s
    }

    /// CPU of a service.
    pub fn service_figures(&self, service: ServiceId) -> ServiceFigures {
        let Some(service) = self.services.get(service.0 as usize) else { return ServiceFigures::default() };
        let cores = |rate: &Rate| rate.per_second(self.now, self.begun) / 1e9;
        ServiceFigures {
            requests_s: service.requests as f64 / 1e9,
            overhead_s: service.overhead as f64 / 1e9,
            requests_cores: cores(&service.requests_rate),
            overhead_cores: cores(&service.overhead_rate),
        }
    }

    /// Requests of a class in the last five minutes, and their 99th percentile, nanoseconds.
    pub fn tail(&self, class: ClassId) -> (u64, Nanos) {
        let mut sum = Window::default();
        let windows = self.classes.get(class.0 as usize).into_iter().flat_map(|class| &class.windows);
        for window in windows.filter(|window| is_recent(window, self.now)) {
            sum.count += window.count;
            sum.durations.merge(&window.durations);
        }
        // `as` saturates.
        (sum.count, (sum.durations.at(0.99).unwrap_or(0.0) * 1e9) as Nanos)
    }

    /// Figures of a class.
    pub fn figures(&self, class: ClassId) -> ClassFigures {
        let Some(class) = self.classes.get(class.0 as usize) else { return ClassFigures::default() };
        let quiet = !class.windows.iter().any(|window| window.count > 0 && is_recent(window, self.now));
        let mut sum = Window::default();
        for window in class.windows.iter().filter(|window| quiet || is_recent(window, self.now)) {
            sum.merge(window);
        }
        let each = |nanos: u64| if sum.count == 0 { 0.0 } else { nanos as f64 / 1e9 / sum.count as f64 };
        let quantile = |q| sum.durations.at(q).unwrap_or(0.0);
        ClassFigures {
            count: class.count,
            errors: class.errors,
            unfinished: class.unfinished,
            rate_per_s: class.rate.per_second(self.now, self.begun),
            error_rate_per_s: class.error_rate.per_second(self.now, self.begun),
            p50_s: quantile(0.50),
            p95_s: quantile(0.95),
            p99_s: quantile(0.99),
            mean_s: each(sum.duration),
            queue_s: each(sum.queue),
            accept_queue_s: each(sum.queues.accept),
            socket_queue_s: each(sum.queues.socket),
            cpu_s: each(sum.cost.cpu),
            runqueue_s: each(sum.cost.runq),
            blocked_s: each(sum.cost.blocked),
            downstream_s: each(sum.downstream),
            cpu_total_s: class.cpu as f64 / 1e9,
        }
    }
}

impl Sink for ClassStats {
    fn span(&mut self, names: &Names, span: &Span) {
        self.spans(names, span, 1);
    }

    fn spans(&mut self, _: &Names, span: &Span, times: u64) {
        if self.begun == 0 {
            self.begun = span.start.max(1);
        }
        self.see(span.end);
        let now = self.now;
        let Some(class) = self.class(span.class) else { return };
        class.count += times;
        class.rate.add(now, times);
        if span.error {
            class.errors += times;
            class.error_rate.add(now, times);
        } else if span.outcome == Outcome::Unfinished {
            class.unfinished += times;
        }
        let Some(window) = class.window(now) else { return };
        window.count += times;
        window.durations.add(span.duration(), times);
        window.duration += span.duration() * times;
        window.queue += span.queue() * times;
        let Queues { accept, socket } = span.queues().unwrap_or_default();
        window.queues.add(Queues { accept: accept * times, socket: socket * times });
        window.downstream += span.downstream * times;
    }

    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        let now = self.now;
        match owner {
            Owner::Class(id) => {
                if let Some(class) = self.class(id) {
                    class.cpu += cost.cpu;
                    if let Some(window) = class.window(now) {
                        window.cost.add(cost);
                    }
                }
                if let Some(service) = names.class(id).and_then(|info| self.service(info.service)) {
                    service.requests += cost.cpu;
                    service.requests_rate.add(now, cost.cpu);
                }
            }
            Owner::Overhead(service) => {
                if let Some(service) = self.service(service) {
                    service.overhead += cost.cpu;
                    service.overhead_rate.add(now, cost.cpu);
                }
            }
            Owner::Kernel => {}
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.see(now);
        let window = self.now / WINDOW * WINDOW;
        if window == self.swept {
            return;
        }
        self.swept = window;
        let now = self.now;
        for class in &mut self.classes {
            // Once all windows are old, merges them into one to free their memory.
            if class.windows.len() > 1 && class.windows.back().is_some_and(|newest| !is_recent(newest, now)) {
                let mut sum = Window { started: class.windows.back().map_or(0, |w| w.started), ..Window::default() };
                class.windows.drain(..).for_each(|window| sum.merge(&window));
                class.windows.push_back(sum);
                class.windows.shrink_to_fit();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracer_model::ProtocolId;
    use tracer_model::sample_span::span;
    use tracer_model::{ClassInfo, Side};

    const SECOND: Nanos = 1_000_000_000;

    fn names() -> Names {
        let class = ClassInfo {
            service: ServiceId(0),
            service_name: Arc::from("shop"),
            protocol: ProtocolId::Http,
            side: Side::Server,
            name: Arc::from("GET /"),
            route: Arc::from("/"),
        };
        Names { services: vec![Arc::from("shop")], classes: vec![class] }
    }

    /// One request of 2 ms and 1 ms of CPU every 100 ms from second `from` to second `to`.
    fn load(stats: &mut ClassStats, from: u64, to: u64) {
        let names = names();
        for step in from * 10..to * 10 {
            let start = step * SECOND / 10;
            stats.span(&names, &span(1, start, 2_000_000, step % 10 == 0));
            let cost = Cost { cpu: 1_000_000, ..Cost::default() };
            stats.cost(&names, Owner::Class(ClassId(0)), cost);
            stats.cost(&names, Owner::Overhead(ServiceId(0)), cost);
        }
        stats.tick(to * SECOND);
    }

    #[track_caller]
    fn near(got: f64, want: f64) {
        assert!((got - want).abs() <= want * 0.03, "{got}, not about {want}");
    }

    #[test]
    fn rates_are_right_soon_and_follow() {
        for seconds in [5, 30, 65, 200, 1000] {
            let mut stats = ClassStats::new();
            load(&mut stats, 100, 100 + seconds);
            let (class, service) = (stats.figures(ClassId(0)), stats.service_figures(ServiceId(0)));
            assert_eq!((class.count, class.errors), (seconds * 10, seconds));
            near(class.rate_per_s, 10.0);
            near(class.error_rate_per_s, 1.0);
            near(service.requests_cores, 0.01);
            near(service.overhead_cores, 0.01);
            near(class.p50_s, 0.002);
            near(class.cpu_s, 0.001);
            near(service.requests_s, class.cpu_total_s);
        }
    }

    #[test]
    fn one_request_in_a_quiet_hour_is_a_low_rate() {
        let mut stats = ClassStats::new();
        stats.tick(SECOND);
        stats.span(&names(), &span(1, 3600 * SECOND, 1, false));
        stats.tick(3601 * SECOND);
        assert!(stats.figures(ClassId(0)).rate_per_s < 0.02);
    }

    #[test]
    fn a_quiet_class_keeps_its_times_and_loses_its_rate() {
        let mut stats = ClassStats::new();
        load(&mut stats, 100, 600);
        for second in (600..4000).step_by(7) {
            stats.tick(second * SECOND);
        }
        let class = stats.figures(ClassId(0));
        assert_eq!((class.count, class.rate_per_s), (5000, 0.0));
        near(class.p50_s, 0.002);
        near(class.cpu_s, 0.001);
        assert_eq!(stats.classes[0].windows.len(), 1);
    }

    #[test]
    fn what_is_not_known_is_zero() {
        let stats = ClassStats::new();
        assert_eq!(stats.figures(ClassId(7)), ClassFigures::default());
        assert_eq!(stats.service_figures(ServiceId(7)), ServiceFigures::default());
    }
}
