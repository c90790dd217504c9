//! The series of classes and services: made when there is room, hidden when idle, shown again when requests return.
//!
//! A class without series of its own (no room, or hidden) counts in the series `service_name="_other",
//! request_class="_other"`. That series only grows, and what was counted there stays there. A hidden class keeps its own
//! values ([`foldable`](super::foldable)); when it has requests again, the next sweep shows them again and they continue, so
//! no counter ever goes back. CPU of services without requests counts under `service_name="_no_requests"`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracer_model::{ClassId, ClassInfo, Cost, Names, Nanos, Outcome, ProtocolId, ServiceId, Side, Span, SpanId};

use super::class_histograms::{Observation, SeriesSlot};
use super::duration_families::{ClassDurations, DurationFamilies};
use super::durations::OTHER;
use super::foldable::{Series, SeriesVec, Visibility};
use super::histograms::Exemplar;
use super::request_time::RequestTime;
use super::series_budget::SeriesBudget;

/// Value of `service_name` for the CPU of services that have no requests.
pub(super) const NO_REQUESTS: &str = "_no_requests";
/// Series of a server class besides its histograms: outcomes, and components of time.
const OUTCOMES: usize = 4;
const COMPONENTS: usize = 8;
/// Series of a service: CPU by kind, classes, merged classes.
const OF_SERVICE: usize = 4;
/// What a class needs at least for a histogram.
const FIRST_HISTOGRAM: usize = 23;

/// Families by service and class.
#[derive(Debug)]
pub(super) struct ClassFamilies {
    pub(super) durations: DurationFamilies,
    pub(super) work: SeriesVec,
    pub(super) time: RequestTime<SeriesVec>,
    pub(super) service_cpu: SeriesVec,
    pub(super) classes: SeriesVec,
    pub(super) merged: SeriesVec,
}

/// Spans by outcome.
#[derive(Debug)]
struct OutcomeSeries {
    ok: Series,
    failed: Series,
    aborted: Series,
    unfinished: Series,
}

impl OutcomeSeries {
    fn count(&self, span: &Span, times: u64) {
        let series = match span.outcome {
            Outcome::Aborted => &self.aborted,
            _ if span.error => &self.failed,
            Outcome::Unfinished => &self.unfinished,
            _ => &self.ok,
        };
        series.inc_by(times as f64);
    }
}

/// Series of one class, or of everything folded of one protocol and side.
#[derive(Debug, Default)]
struct ClassSeries {
    durations: ClassDurations,
    work: Option<OutcomeSeries>,
    time: Option<RequestTime<Series>>,
    /// Samples while it is shown.
    size: usize,
}

impl ClassSeries {
    /// The outcomes; a class of calls serves no requests and has none.
    fn work(&mut self, families: &ClassFamilies, labels: [&str; 3], visibility: Option<&Visibility>) -> &OutcomeSeries {
        let [service, name, protocol] = labels;
        self.work.get_or_insert_with(|| {
            let of = |status: &str| families.work.series(&[service, name, protocol, status], visibility);
            OutcomeSeries { ok: of("ok"), failed: of("error"), aborted: of("aborted"), unfinished: of("unfinished") }
        })
    }
}

#[derive(Debug)]
struct Class {
    service: ServiceId,
    visibility: Visibility,
    /// None while there was no room for it.
    series: Option<ClassSeries>,
    /// Last request or charge.
    last: Nanos,
}

impl Class {
    fn shown(&self) -> bool {
        self.series.is_some() && self.visibility.shown()
    }
}

#[derive(Debug)]
struct ServiceSeries {
    requests: Series,
    overhead: Series,
    classes: Series,
    merged: Series,
}

#[derive(Debug)]
struct Service {
    visibility: Visibility,
    /// None while it has no class with series.
    series: Option<ServiceSeries>,
    /// Has had a request or a call.
    requests: bool,
    /// Its classes were merged so often when last counted.
    merged: u64,
    last: Nanos,
}

impl Service {
    fn shown(&self) -> Option<&ServiceSeries> {
        self.series.as_ref().filter(|_| self.visibility.shown())
    }
}

/// Classes and services without series of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    /// Classes that found no room.
    pub(super) classes_limit: u64,
    /// Classes that had no requests for too long.
    pub(super) classes_idle: u64,
    /// Services all of whose classes found no room.
    pub(super) services_limit: u64,
    /// Services that had no requests for too long.
    pub(super) services_idle: u64,
    /// Services that have had none at all.
    pub(super) services_no_requests: u64,
}

/// Where a request was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// In series of its class.
    Own,
    /// In the class's series for what has too many label combinations, or no room.
    Common,
    /// In the series of everything folded: there was no room for the class.
    Folded,
    /// In the same, until the next sweep: the class was idle.
    Returning,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Classes {
    pub(super) families: ClassFamilies,
    pub(super) budget: SeriesBudget,
    classes: Vec<Option<Class>>,
    services: Vec<Option<Service>>,
    /// By protocol and side.
    folded: HashMap<(ProtocolId, Side), ClassSeries>,
    /// Time of the last change of what is hidden, seconds since the epoch.
    stamp: Arc<AtomicU64>,
    /// Held by scrapes, so that none sees half a sweep.
    gate: Arc<Mutex<()>>,
    wall_offset: i64,
    now: Nanos,
    swept: Nanos,
    /// Classes and services that left so far.
    pub(super) expired: u64,
}

impl Classes {
    pub(super) fn new(families: ClassFamilies, budget: SeriesBudget) -> Self {
        Self {
            families,
            budget,
            classes: Vec::new(),
            services: Vec::new(),
            folded: HashMap::new(),
            stamp: Arc::default(),
            gate: Arc::default(),
            wall_offset: 0,
            now: 0,
            swept: 0,
            expired: 0,
        }
    }

    /// Held while a scrape gathers.
    pub(super) fn gate(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.gate)
    }

    /// Wall clock minus `CLOCK_MONOTONIC`, nanoseconds.
    pub(super) fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
    }

    fn wall(&self, at: Nanos) -> f64 {
        (at as i64).saturating_add(self.wall_offset) as f64 / 1e9
    }

    fn service(&mut self, id: ServiceId) -> Option<&mut Service> {
        let index = id.0 as usize;
        if self.services.len() <= index {
            self.services.resize_with(index + 1, || None);
        }
        let stamp = &self.stamp;
        let made = || Service { visibility: Visibility::new(stamp), series: None, requests: false, merged: 0, last: 0 };
        Some(self.services.get_mut(index)?.get_or_insert_with(made))
    }

    /// Makes sure that the class is known, and gives it series if there is room.
    fn admit(&mut self, info: &ClassInfo, id: ClassId) {
        let now = self.now;
        let index = id.0 as usize;
        if self.classes.len() <= index {
            self.classes.resize_with(index + 1, || None);
        }
        if let Some(service) = self.service(info.service) {
            service.requests = true;
            service.last = now;
        }
        let stamp = &self.stamp;
        let Some(entry) = self.classes.get_mut(index) else { return };
        let class = entry.get_or_insert_with(|| Class {
            service: info.service,
            visibility: Visibility::new(stamp),
            series: None,
            last: now,
        });
        class.last = now;
        if class.series.is_some() {
            return;
        }
        let counters = if info.side == Side::Server { OUTCOMES + COMPONENTS } else { 0 };
        let Some(Some(service)) = self.services.get_mut(info.service.0 as usize) else { return };
        let of_service = if service.series.is_none() { OF_SERVICE } else { 0 };
        let first = counters + of_service + FIRST_HISTOGRAM;
        if !self.budget.take(first) {
            return;
        }
        self.budget.give(FIRST_HISTOGRAM);
        let families = &self.families;
        if service.series.is_none() {
            let name = &*info.service_name;
            let visibility = Some(&service.visibility);
            service.series = Some(ServiceSeries {
                requests: families.service_cpu.series(&[name, "requests"], visibility),
                overhead: families.service_cpu.series(&[name, "overhead"], visibility),
                classes: families.classes.series(&[name], visibility),
                merged: families.merged.series(&[name], visibility),
            });
        }
        let mut series = ClassSeries { size: counters, ..ClassSeries::default() };
        let labels = [&*info.service_name, &*info.name, info.protocol.name()];
        if info.side == Side::Server {
            series.work(families, labels, Some(&class.visibility));
            series.time = Some(families.time.series(labels, Some(&class.visibility)));
        }
        class.series = Some(series);
    }

    /// Counts so many finished spans that are alike.
    pub(super) fn spans(&mut self, names: &Names, span: &Span, times: u64) -> Option<Counted> {
        let info = names.class(span.class)?;
        self.now = self.now.max(span.end);
        self.admit(info, span.class);
        let seconds = span.duration() as f64 / 1e9;
        // A span without an id stands for several, of which none can be shown.
        let exemplar = (span.id != SpanId(0)).then(|| Exemplar {
            trace: span.trace,
            span: span.id,
            value: seconds,
            at: self.wall(span.end),
        });
        let class = self.classes.get_mut(span.class.0 as usize)?.as_mut()?;
        let had_series = class.series.is_some();
        let shown = class.shown();
        let visibility = &class.visibility;
        let mut counted = if had_series { Counted::Returning } else { Counted::Folded };
        if let Some(series) = class.series.as_mut().filter(|_| shown) {
            let observation = Observation {
                seconds,
                times,
                exemplar,
                visibility: Some(visibility),
                budget: &mut self.budget,
                size: &mut series.size,
            };
            let labels = [&*info.service_name, &*info.name];
            let slot = series.durations.observe(&self.families.durations, labels, info, span, observation);
            if let Some(work) = &series.work {
                work.count(span, times);
                if let Some(time) = &series.time {
                    time.waits(span, times);
                }
            }
            match slot {
                SeriesSlot::Own => return Some(Counted::Own),
                SeriesSlot::Common => return Some(Counted::Common),
                // The duration goes to the series of everything folded; the rest is counted.
                SeriesSlot::Refused => counted = Counted::Common,
            }
        }
        let folded = self.folded.entry((info.protocol, info.side)).or_default();
        let observation =
            Observation { seconds, times, exemplar, visibility: None, budget: &mut self.budget, size: &mut 0 };
        folded.durations.observe(&self.families.durations, [OTHER, OTHER], info, span, observation);
        if counted != Counted::Common && info.side == Side::Server {
            let labels = [OTHER, OTHER, info.protocol.name()];
            folded.work(&self.families, labels, None).count(span, times);
            folded.time.get_or_insert_with(|| self.families.time.series(labels, None)).waits(span, times);
        }
        Some(counted)
    }

    /// Counts what was charged to a class.
    pub(super) fn class_cost(&mut self, names: &Names, id: ClassId, cost: Cost) {
        let Some(info) = names.class(id) else { return };
        self.admit(info, id);
        let cpu = cost.cpu as f64 / 1e9;
        match self.services.get(info.service.0 as usize).and_then(Option::as_ref).and_then(Service::shown) {
            Some(series) => series.requests.inc_by(cpu),
            None => self.families.service_cpu.series(&[OTHER, "requests"], None).inc_by(cpu),
        }
        let families = &self.families;
        let Some(Some(class)) = self.classes.get_mut(id.0 as usize) else { return };
        if class.shown()
            && let Some(series) = &mut class.series
        {
            // A class of calls has these series only if something is charged to it.
            if series.time.is_none() && self.budget.take(COMPONENTS) {
                let labels = [&*info.service_name, &*info.name, info.protocol.name()];
                series.time = Some(families.time.series(labels, Some(&class.visibility)));
                series.size += COMPONENTS;
            }
            if let Some(time) = &series.time {
                time.cost(cost);
                return;
            }
        }
        let folded = self.folded.entry((info.protocol, info.side)).or_default();
        let labels = [OTHER, OTHER, info.protocol.name()];
        folded.time.get_or_insert_with(|| families.time.series(labels, None)).cost(cost);
    }

    /// Counts what was charged to a service outside any request.
    pub(super) fn overhead(&mut self, id: ServiceId, cost: Cost) {
        let cpu = cost.cpu as f64 / 1e9;
        let Some(service) = self.service(id) else { return };
        let refused = service.requests && service.series.is_none();
        if let Some(series) = service.shown() {
            series.overhead.inc_by(cpu);
        } else {
            let name = if refused { OTHER } else { NO_REQUESTS };
            self.families.service_cpu.series(&[name, "overhead"], None).inc_by(cpu);
        }
    }

    /// Classes and merges of every service that has classes.
    pub(super) fn set_classes(&mut self, services: impl Iterator<Item = (ServiceId, usize, u64)>) {
        let (mut others, mut any) = (0.0, false);
        for (id, classes, merged) in services.filter(|(_, classes, _)| *classes > 0) {
            let Some(service) = self.service(id) else { continue };
            let more = merged.saturating_sub(service.merged) as f64;
            service.merged = merged;
            if let Some(series) = service.shown() {
                series.classes.set(classes as f64);
                series.merged.inc_by(more);
                continue;
            }
            any = true;
            others += classes as f64;
            self.families.merged.series(&[OTHER], None).inc_by(more);
        }
        if any {
            self.families.classes.series(&[OTHER], None).set(others);
        }
    }

    /// Called about once a second; sweeps when it is time to.
    pub(super) fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        let due = self.now.saturating_sub(self.swept) >= self.budget.interval() || self.budget.excess() > 0;
        if !due {
            return;
        }
        let gate = Arc::clone(&self.gate);
        // A scrape gathers: the next tick tries again, the pipeline never waits.
        let Ok(_held) = gate.try_lock() else { return };
        self.swept = self.now;
        if self.sweep() {
            let wall = self.wall(self.now).max(0.0) as u64;
            // The name of the sum of what is hidden changes whenever the sum does.
            self.stamp.store(wall.max(self.stamp.load(Ordering::Relaxed) + 1), Ordering::Relaxed);
        }
    }

    /// Hides what is idle or too much, and shows what has requests again. True if anything changed.
    fn sweep(&mut self) -> bool {
        let now = self.now;
        let mut changed = false;
        let mut oldest: Vec<(Nanos, usize)> = Vec::new();
        for (index, class) in self.classes.iter_mut().enumerate() {
            let Some(class) = class.as_mut().filter(|class| class.shown()) else { continue };
            if self.budget.is_idle(class.last, now) {
                Self::hide(class, &mut self.budget, &mut self.expired);
                changed = true;
            } else {
                oldest.push((class.last, index));
            }
        }
        oldest.sort_unstable();
        let mut over = oldest.into_iter();
        while self.budget.excess() > 0 {
            let Some((_, index)) = over.next() else { break };
            if let Some(Some(class)) = self.classes.get_mut(index) {
                Self::hide(class, &mut self.budget, &mut self.expired);
                changed = true;
            }
        }
        for class in self.classes.iter_mut().flatten() {
            let Some(series) = class.series.as_ref().filter(|_| !class.visibility.shown()) else { continue };
            if !self.budget.is_idle(class.last, now) && self.budget.take(series.size) {
                class.visibility.show(true);
                changed = true;
            }
        }
        self.sweep_services() || changed
    }

    fn hide(class: &Class, budget: &mut SeriesBudget, expired: &mut u64) {
        let Some(series) = &class.series else { return };
        class.visibility.show(false);
        series.durations.forget_exemplars();
        budget.give(series.size);
        *expired += 1;
    }

    /// A service is shown as long as one of its classes is.
    fn sweep_services(&mut self) -> bool {
        let mut wanted = vec![false; self.services.len()];
        for class in self.classes.iter().flatten().filter(|class| class.shown()) {
            if let Some(service) = wanted.get_mut(class.service.0 as usize) {
                *service = true;
            }
        }
        let mut changed = false;
        for (service, wanted) in self.services.iter().zip(wanted) {
            let Some(service) = service.as_ref().filter(|service| service.series.is_some()) else { continue };
            if service.visibility.shown() == wanted {
                continue;
            }
            if wanted && !self.budget.take(OF_SERVICE) {
                continue;
            }
            if !wanted {
                self.budget.give(OF_SERVICE);
                self.expired += 1;
            }
            service.visibility.show(wanted);
            changed = true;
        }
        changed
    }

    /// What has no series of its own now.
    pub(super) fn folded(&self) -> Folded {
        let mut folded = Folded::default();
        for class in self.classes.iter().flatten().filter(|class| !class.shown()) {
            if class.series.is_none() && !self.budget.is_idle(class.last, self.now) {
                folded.classes_limit += 1;
            } else {
                folded.classes_idle += 1;
            }
        }
        for service in self.services.iter().flatten().filter(|service| service.shown().is_none()) {
            let idle = self.budget.is_idle(service.last, self.now);
            match (service.requests, service.series.is_none() && !idle) {
                (false, _) => folded.services_no_requests += 1,
                (true, true) => folded.services_limit += 1,
                (true, false) => folded.services_idle += 1,
            }
        }
        folded
    }
}
