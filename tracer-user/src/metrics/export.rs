//! Prometheus families. Names follow OpenTelemetry's semantic conventions where they exist.
//!
//! `tracer_request_*` covers server spans only. Calls that services make have `http_client_request_duration_seconds`,
//! `rpc_client_call_duration_seconds` and `db_client_operation_duration_seconds`, so a sum over `tracer_requests_total`
//! never counts a request twice in one service. Its `status` is `ok`, `error` (failed by its status), `aborted` (the
//! connection ended before the reply did) or `unfinished` (the agent saw neither the end nor a status of failure: not
//! an application error).

use std::sync::Arc;

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};

use self::profiler::ProfilerMetrics;
use super::class_series::{ClassFamilies, Classes, Counted};
use super::duration_families::DurationFamilies;
use super::exposition::Exposition;
use super::families::{Families, vec};
use super::foldable::SeriesVec;
use super::histograms::HistogramVec;
use super::loss_account::LossAccount;
use super::process::Process;
use super::request_time::RequestTime;
use super::self_metrics::Own;
use super::series_budget::{SeriesBudget, SeriesLimits};
use super::series_metrics::SeriesMetrics;
use super::service_classes::ServiceClassFamilies;
use super::tasks::Tasks;
use crate::model::{Cost, Grade, Names, Nanos, Owner, Side, Sink, Span};

/// The families and the handles of series in use.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    classes: Classes,
    series: SeriesMetrics,
    host_cpu: Seconds,
    host_busy: Counter,
    host_unreported: Gauge,
    capture: Gauge,
    attribution: Vec<IntCounter>,
    events: Totals,
    lost: LossAccount,
    profiler: ProfilerMetrics,
    bpf_seconds: Seconds,
    bpf_runs: Totals,
    bpf_missed: Totals,
    own: Own,
    pub(super) tasks: Tasks,
    pub(super) service_classes: ServiceClassFamilies,
    own_cpu: Counter,
    own_rss: Gauge,
    /// Requests in shared series: there were too many classes, too many label combinations, or the class had been idle.
    folded_classes: IntCounter,
    folded_series: IntCounter,
    folded_idle: IntCounter,
    histograms: Arc<[HistogramVec]>,
}

/// Counters that follow an absolute total counted elsewhere.
#[derive(Debug)]
pub(super) struct Totals(pub(super) IntCounterVec);

impl Totals {
    pub(super) fn set(&self, label: &str, total: u64) {
        let counter = self.0.with_label_values(&[label]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}

/// Like [`Totals`], in seconds.
#[derive(Debug)]
struct Seconds(CounterVec);

impl Seconds {
    fn set(&self, label: &str, total: f64) {
        raise(&self.0.with_label_values(&[label]), total);
    }
}

/// Raises a counter to `total`; a total that falls (or is not a number) changes nothing.
pub(super) fn raise(counter: &Counter, total: f64) {
    let more = total - counter.get();
    if more > 0.0 && more.is_finite() {
        counter.inc_by(more);
    }
}

impl Metrics {
    /// All families, empty.
    pub fn new() -> Self {
        Self::with(&Families::default())
    }

    pub(super) fn with(r: &Families) -> Self {
        let counter = |name: &str, help: &str, labels: &[&str]| CounterVec::new(Opts::new(name, help), labels);
        let int = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let attribution = vec(r, int("tracer_attribution_total", "Calls by the grade of their parent.", &["grade"]));
        let build = vec(
            r,
            GaugeVec::new(
                Opts::new("tracer_build_info", "Version of the agent as a label; the value is always 1."),
                &["version"],
            ),
        );
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let folded = vec(
            r,
            int(
                "tracer_metrics_folded_total",
                "Requests counted in a shared series because there were too many classes (class) or too many label \
                 combinations (series), or, until the next sweep, because their class had been idle (idle).",
                &["what"],
            ),
        );
        vec(r, Process::new());
        let families = ClassFamilies {
            durations: DurationFamilies::new(r),
            work: vec(
                r,
                SeriesVec::counters(
                    "tracer_requests_total",
                    "Finished server spans by outcome: ok, error, aborted, unfinished (the agent did not see the end).",
                    &["service_name", "request_class", "protocol", "status"],
                ),
            ),
            time: RequestTime::new(r),
            service_cpu: vec(
                r,
                SeriesVec::counters(
                    "tracer_service_cpu_seconds_total",
                    "CPU seconds of a service, by kind: requests, overhead. Services without requests share \
                     _no_requests.",
                    &["service_name", "kind"],
                ),
            ),
            classes: vec(r, SeriesVec::gauges("tracer_classes", "Request classes of the service.", &["service_name"])),
            merged: vec(
                r,
                SeriesVec::counters(
                    "tracer_classes_merged_total",
                    "New request classes merged into their parents because the service had too many.",
                    &["service_name"],
                ),
            ),
        };
        Self {
            classes: Classes::new(families, SeriesBudget::new(SeriesLimits::default())),
            series: SeriesMetrics::new(r),
            host_cpu: Seconds(vec(
                r,
                counter(
                    "tracer_host_cpu_seconds_total",
                    "CPU seconds of the host since tracing began, by what they were charged to.",
                    &["kind"],
                ),
            )),
            host_busy: vec(
                r,
                Counter::new(
                    "tracer_host_cpu_busy_seconds_total",
                    "CPU seconds of the host since tracing began that the system reports as used.",
                ),
            ),
            host_unreported: vec(
                r,
                Gauge::new(
                    "tracer_host_cpu_unreported_seconds",
                    "CPU seconds that were counted but that their threads have not reported yet.",
                ),
            ),
            capture: vec(
                r,
                Gauge::new(
                    "tracer_capture_ratio",
                    "Attributed CPU divided by the CPU that the system reports as used.",
                ),
            ),
            attribution: Grade::ALL.iter().map(|grade| attribution.with_label_values(&[grade.name()])).collect(),
            events: Totals(vec(r, int("tracer_events_total", "Records received from the kernel, by kind.", &["kind"]))),
            lost: LossAccount::new(r),
            profiler: ProfilerMetrics::new(r),
            bpf_seconds: Seconds(vec(
                r,
                counter(
                    "tracer_bpf_run_seconds_total",
                    "Seconds that a BPF program ran (0 while kernel.bpf_stats_enabled is 0).",
                    &["program"],
                ),
            )),
            bpf_runs: Totals(vec(
                r,
                int(
                    "tracer_bpf_runs_total",
                    "Runs of a BPF program (counted while kernel.bpf_stats_enabled is 1).",
                    &["program"],
                ),
            )),
            bpf_missed: Totals(vec(
                r,
                int(
                    "tracer_bpf_missed_total",
                    "Runs of a BPF program that the kernel skipped because the program was already running on that \
                     CPU.",
                    &["program"],
                ),
            )),
            own: Own::new(r),
            tasks: Tasks::new(r),
            service_classes: ServiceClassFamilies::new(r),
            own_cpu: vec(r, Counter::new("process_cpu_seconds_total", "CPU seconds that the agent used.")),
            own_rss: vec(r, Gauge::new("process_resident_memory_bytes", "Resident memory of the agent in bytes.")),
            folded_classes: folded.with_label_values(&["class"]),
            folded_series: folded.with_label_values(&["series"]),
            folded_idle: folded.with_label_values(&["idle"]),
            histograms: r.histograms(),
            registry: r.registry(),
        }
    }

    /// What `/metrics` gathers from.
    pub fn exposition(&self) -> Exposition {
        Exposition {
            registry: self.registry.clone(),
            histograms: Arc::clone(&self.histograms),
            gate: self.classes.gate(),
            used: self.classes.budget.used(),
            fixed: self.classes.budget.fixed(),
            seconds: self.series.seconds.clone(),
        }
    }

    /// Scales the limits to an agent with a memory limit of `memory` bytes.
    #[must_use]
    pub fn for_memory(mut self, memory: u64) -> Self {
        self.classes.budget.for_memory(memory);
        self
    }

    /// Another number of series, or another time after which idle ones leave.
    #[must_use]
    pub fn with_series(mut self, limits: SeriesLimits) -> Self {
        self.classes.budget.set_limits(limits);
        self
    }

    /// With a wall clock: `wall_offset` is wall clock minus `CLOCK_MONOTONIC`, nanoseconds.
    #[must_use]
    pub fn at(mut self, wall_offset: i64) -> Self {
        self.clock(wall_offset);
        self
    }

    /// Wall clock minus `CLOCK_MONOTONIC`, nanoseconds, from now on.
    pub fn clock(&mut self, wall_offset: i64) {
        self.classes.clock(wall_offset);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Metrics {
    fn span(&mut self, names: &Names, span: &Span) {
        if span.side == Side::Client {
            let index = Grade::ALL.iter().position(|grade| *grade == span.grade).unwrap_or(0);
            if let Some(counter) = self.attribution.get(index) {
                counter.inc();
            }
        }
        match self.classes.span(names, span) {
            Some(Counted::Own) | None => {}
            Some(Counted::Common) => self.folded_series.inc(),
            Some(Counted::Folded) => self.folded_classes.inc(),
            Some(Counted::Returning) => self.folded_idle.inc(),
        }
    }

    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        match owner {
            Owner::Class(id) => self.classes.class_cost(names, id, cost),
            Owner::Overhead(service) => self.classes.overhead(service, cost),
            Owner::Kernel => {}
        }
    }

    fn tick(&mut self, now: Nanos) {
        self.classes.tick(now);
        self.series.set(&self.classes);
    }
}

mod figures;
mod profiler;

#[cfg(test)]
mod tests;
