//! Prometheus families. Names follow OpenTelemetry's semantic conventions where they exist.
//!
//! `tracer_request_*` covers server spans only. Calls that services make have `http_client_request_duration_seconds`,
//! `rpc_client_call_duration_seconds` and `db_client_operation_duration_seconds`, so a sum over `tracer_requests_total`
//! never counts a request twice in one service. Its `status` is `ok`, `error` (failed by its status), `aborted` (the
//! connection ended before the reply did) or `unfinished` (the agent saw neither the end nor a status of failure: not
//! an application error).

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracer_model::{Cost, Names, Nanos, Owner, Sink, Span};

use self::attribution::Attribution;
use self::host_cpu::HostCpuFamilies;
use self::output::Output;
use self::own_limits::OwnLimits;
use self::own_use::OwnUse;
use self::profiler::ProfilerMetrics;
use self::several_hosts::SeveralHosts;
use self::stacks::Stacks;
use self::table_use::TableFamilies;
use super::certificates::Certificates;
use super::class_series::{ClassFamilies, Classes, Counted};
use super::configuration::ConfigurationFamilies;
use super::duration_families::DurationFamilies;
use super::exceptions::ExceptionFamilies;
use super::exposition::Exposition;
use super::families::{Families, vec};
use super::foldable::SeriesVec;
use super::histograms::HistogramVec;
use super::instrumentation::InstrumentationFamilies;
use super::log_lines::LogFamilies;
use super::loss_account::LossAccount;
use super::network::NetworkFamilies;
use super::process::Process;
use super::request_time::RequestTime;
use super::series_budget::{SeriesBudget, SeriesLimits};
use super::series_metrics::SeriesMetrics;
use super::service_classes::ServiceClassFamilies;
use super::tasks::Tasks;
use super::totals::Totals;
use super::workloads::WorkloadFamilies;

/// The families and the handles of series in use.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(super) classes: Classes,
    series: SeriesMetrics,
    host_cpu: HostCpuFamilies,
    attribution: Attribution,
    events: Totals,
    lost: LossAccount,
    profiler: ProfilerMetrics,
    stacks: Stacks,
    tables: TableFamilies,
    own_limits: OwnLimits,
    own_use: OwnUse,
    output: Output,
    several_hosts: SeveralHosts,
    pub(super) tasks: Tasks,
    pub(super) certificates: Certificates,
    pub(super) configuration: ConfigurationFamilies,
    pub(super) service_classes: ServiceClassFamilies,
    pub(super) instrumentation: InstrumentationFamilies,
    pub(super) workloads: WorkloadFamilies,
    pub(super) network: NetworkFamilies,
    pub(super) exceptions: ExceptionFamilies,
    pub(super) logs: LogFamilies,
    /// Requests in shared series: there were too many classes, too many label combinations, or the class had been idle.
    folded_classes: IntCounter,
    folded_series: IntCounter,
    folded_idle: IntCounter,
    histograms: Arc<[HistogramVec]>,
}

impl Metrics {
    /// All families, empty.
    pub fn new() -> Self {
        Self::with(&Families::default())
    }

    pub(super) fn with(r: &Families) -> Self {
        let int = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let folded = vec(
            r,
            int(
                "tracer_metrics_folded_total",
                "Requests counted in a shared series because there were too many classes (class) or too many label \
                 combinations (series), or, until the next sweep, because their class had been idle (idle).",
                &["reason"],
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
            host_cpu: HostCpuFamilies::new(r),
            attribution: Attribution::new(r),
            events: Totals(vec(r, int("tracer_events_total", "Records received from the kernel, by kind.", &["kind"]))),
            lost: LossAccount::new(r),
            profiler: ProfilerMetrics::new(r),
            stacks: Stacks::new(r),
            tables: TableFamilies::new(r),
            own_limits: OwnLimits::new(r),
            own_use: OwnUse::new(r),
            output: Output::new(r),
            several_hosts: SeveralHosts::new(r),
            tasks: Tasks::new(r),
            certificates: Certificates::new(r),
            configuration: ConfigurationFamilies::new(r),
            service_classes: ServiceClassFamilies::new(r),
            instrumentation: InstrumentationFamilies::new(r),
            workloads: WorkloadFamilies::new(r),
            network: NetworkFamilies::new(r),
            exceptions: ExceptionFamilies::new(r),
            logs: LogFamilies::new(r),
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

impl Metrics {
    fn count(&mut self, names: &Names, span: &Span, times: u64) {
        match self.classes.spans(names, span, times) {
            Some(Counted::Own) | None => {}
            Some(Counted::Common) => self.folded_series.inc_by(times),
            Some(Counted::Folded) => self.folded_classes.inc_by(times),
            Some(Counted::Returning) => self.folded_idle.inc_by(times),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Sink for Metrics {
    fn span(&mut self, names: &Names, span: &Span) {
        self.attribution.span(span);
        self.network.span(names, span, &mut self.classes.budget);
        self.exceptions.span(names, span, &mut self.classes.budget);
        self.count(names, span, 1);
    }

    fn spans(&mut self, names: &Names, span: &Span, count: u64) {
        self.count(names, span, count);
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
        self.network.tick();
        self.series.set(&self.classes);
    }
}

mod attribution;
mod figures;
mod header_injection;
mod host_cpu;
mod output;
mod own_limits;
mod own_use;
mod profiler;
mod several_hosts;
mod stacks;
mod table_use;

#[cfg(test)]
mod tests;
