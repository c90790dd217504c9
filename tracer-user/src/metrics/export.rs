//! Prometheus families. Names follow OpenTelemetry's semantic conventions where they exist.
//!
//! `tracer_request_*` covers server spans only. Calls that services make have `http_client_request_duration_seconds`,
//! `rpc_client_call_duration_seconds` and `db_client_operation_duration_seconds`, so a sum over `tracer_requests_total`
//! never counts a request twice in one service. Its `status` is `ok`, `error` (failed by its status), `aborted` (the
//! connection ended before the reply did) or `unfinished` (the agent saw neither the end nor a status of failure: not
//! an application error).

use std::collections::HashMap;

use prometheus::{
    Counter, CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};

use self::attribution::Attribution;
use self::host_cpu::HostCpuFamilies;
use self::output::Output;
use self::own_limits::OwnLimits;
use self::own_use::OwnUse;
use self::profiler::ProfilerMetrics;
use self::request_time::RequestTime;
use self::several_hosts::SeveralHosts;
use self::stacks::Stacks;
use self::table_use::TableFamilies;
use super::calls::{self, Calls};
use super::durations::{CLIENT_LABELS, Durations, OTHER, SERVER_LABELS, SeriesSlot};
use super::families::{Families, vec};
use super::loss_account::LossAccount;
use super::low_cardinality::{FUNCTION_LABELS, LOOKUP_LABELS, LowCardinality, TURN_LABELS};
use super::messages::{self, Messages};
use super::operations::{self, Operations};
use super::process::Process;
use super::service_classes::ServiceClassFamilies;
use super::tasks::Tasks;
use super::totals::Totals;
use crate::guard::tables::scaled;
use crate::model::{ClassId, ClassInfo, Cost, Names, Outcome, Owner, Side, Sink, Span};
use crate::protocols::Conventions;

/// Bounds of request durations, seconds: those of OpenTelemetry's semantic conventions for HTTP, and finer ones below, because
/// many services answer in less than the smallest of those, 5 ms.
const BOUNDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0,
];
/// Maximum number of classes, over all services, with their own series. Later classes share the series
/// `service_name="_other", request_class="_other"` and count in `tracer_metrics_folded_total`.
const CLASSES: usize = 10_000;
/// Maximum number of duration histograms, over all classes, at the default memory limit; beyond it the remaining
/// requests of a class share one.
const SERIES: usize = 40_000;

/// The families and the handles of series in use.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    server: HistogramVec,
    client: HistogramVec,
    rpc_server: HistogramVec,
    rpc_client: HistogramVec,
    db_server: HistogramVec,
    db_client: HistogramVec,
    messaging_client: HistogramVec,
    messaging_process: HistogramVec,
    messaging_server: HistogramVec,
    /// DNS lookups, and below round trips: server side, client side.
    lookups: [HistogramVec; 2],
    turns: [HistogramVec; 2],
    /// Calls of declared functions.
    functions: HistogramVec,
    work: IntCounterVec,
    request_time: RequestTime<CounterVec>,
    service_cpu: CounterVec,
    host_cpu: HostCpuFamilies,
    attribution: Attribution,
    events: Totals,
    lost: LossAccount,
    classes: GaugeVec,
    merged: Totals,
    profiler: ProfilerMetrics,
    stacks: Stacks,
    tables: TableFamilies,
    own_limits: OwnLimits,
    own_use: OwnUse,
    output: Output,
    several_hosts: SeveralHosts,
    pub(super) tasks: Tasks,
    pub(super) service_classes: ServiceClassFamilies,
    /// Requests in shared series: there were too many classes, or too many label combinations.
    folded_classes: IntCounter,
    folded_series: IntCounter,
    per_class: Vec<Option<Class>>,
    /// Classes with series of their own.
    classes_named: usize,
    /// Number of duration histograms, and its limit.
    series: usize,
    series_most: usize,
    per_service: HashMap<u32, Counter>,
    per_service_requests: HashMap<u32, Counter>,
}

/// Handles of one class.
#[derive(Debug)]
struct Class {
    durations: Durations,
    operations: Operations,
    messages: Messages,
    calls: Calls,
    simple: LowCardinality,
    folded: bool,
    work: Option<Work>,
    time: RequestTime<Counter>,
}

/// Spans by outcome.
#[derive(Debug)]
struct Work {
    ok: IntCounter,
    failed: IntCounter,
    aborted: IntCounter,
    unfinished: IntCounter,
}

impl Metrics {
    /// All families, empty.
    pub fn new() -> Self {
        Self::with(&Families::default())
    }

    pub(super) fn with(r: &Families) -> Self {
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(BOUNDS.to_vec()), labels)
        };
        let operations = |name: &str, help: &str, labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(operations::BOUNDS.to_vec()), labels)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| CounterVec::new(Opts::new(name, help), labels);
        let int = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let request_time = RequestTime::new(r);
        let folded = vec(
            r,
            int(
                "tracer_metrics_folded_total",
                "Requests counted in a shared series because there were too many classes (class) or too many label \
                 combinations (series).",
                &["what"],
            ),
        );
        vec(r, Process::new());
        Self {
            server: vec(
                r,
                histogram(
                    "http_server_request_duration_seconds",
                    "Seconds from the first byte of a request read to the last byte of its response sent, on the \
                     server.",
                    &SERVER_LABELS,
                ),
            ),
            client: vec(
                r,
                histogram(
                    "http_client_request_duration_seconds",
                    "Seconds from the first byte of a request sent to the last byte of its response read, on the \
                     client.",
                    &CLIENT_LABELS,
                ),
            ),
            rpc_server: vec(
                r,
                histogram(
                    "rpc_server_call_duration_seconds",
                    "Seconds from the first byte of a remote procedure call read to the last byte of its response \
                     sent, on the server.",
                    &calls::SERVER_LABELS,
                ),
            ),
            rpc_client: vec(
                r,
                histogram(
                    "rpc_client_call_duration_seconds",
                    "Seconds from the first byte of a remote procedure call sent to the last byte of its response \
                     read, on the client.",
                    &calls::CLIENT_LABELS,
                ),
            ),
            db_server: vec(
                r,
                operations(
                    "db_server_operation_duration_seconds",
                    "Seconds from the first byte of a database operation read to the last byte of its result sent, on \
                     the server.",
                    &operations::SERVER_LABELS,
                ),
            ),
            messaging_client: vec(
                r,
                operations(
                    "messaging_client_operation_duration_seconds",
                    "Seconds from a producer's or consumer's messaging operation sent to its confirmation or answer, \
                     if it has one.",
                    &messages::CLIENT_LABELS,
                ),
            ),
            messaging_process: vec(
                r,
                operations(
                    "messaging_process_duration_seconds",
                    "Seconds from a message read to the consumer's acknowledgement or answer, if it has one.",
                    &messages::LABELS,
                ),
            ),
            messaging_server: vec(
                r,
                operations(
                    "messaging_server_operation_duration_seconds",
                    "Seconds that messaging operations took, as the broker observed them.",
                    &messages::LABELS,
                ),
            ),
            db_client: vec(
                r,
                operations(
                    "db_client_operation_duration_seconds",
                    "Seconds from the first byte of a database operation sent to the last byte of its result read, on \
                     the client.",
                    &operations::CLIENT_LABELS,
                ),
            ),
            lookups: [
                (
                    "dns_server_lookup_duration_seconds",
                    "Seconds from a DNS query read to its answer sent, on the server.",
                ),
                (
                    "dns_lookup_duration_seconds",
                    "Seconds from the first transmission of a DNS query to its answer read, on the client.",
                ),
            ]
            .map(|(name, help)| vec(r, operations(name, help, &LOOKUP_LABELS))),
            turns: [
                (
                    "tracer_server_round_trip_duration_seconds",
                    "Seconds that round trips took on connections whose protocol is not decoded, on the server.",
                ),
                (
                    "tracer_client_round_trip_duration_seconds",
                    "Seconds that round trips took on connections whose protocol is not decoded, on the client.",
                ),
            ]
            .map(|(name, help)| vec(r, operations(name, help, &TURN_LABELS))),
            functions: vec(
                r,
                operations(
                    "tracer_declared_duration_seconds",
                    "Seconds that calls of declared functions took, from entry to return.",
                    &FUNCTION_LABELS,
                ),
            ),
            work: vec(
                r,
                int(
                    "tracer_requests_total",
                    "Finished server spans by outcome: ok, error, aborted, unfinished (the agent did not see the end).",
                    &["service_name", "request_class", "protocol", "status"],
                ),
            ),
            request_time,
            service_cpu: vec(
                r,
                counter(
                    "tracer_service_cpu_seconds_total",
                    "CPU seconds of a service, by kind: requests, overhead.",
                    &["service_name", "kind"],
                ),
            ),
            host_cpu: HostCpuFamilies::new(r),
            attribution: Attribution::new(r),
            events: Totals(vec(r, int("tracer_events_total", "Records received from the kernel, by kind.", &["kind"]))),
            lost: LossAccount::new(r),
            classes: vec(
                r,
                GaugeVec::new(Opts::new("tracer_classes", "Request classes of the service."), &["service_name"]),
            ),
            merged: Totals(vec(
                r,
                int(
                    "tracer_classes_merged_total",
                    "New request classes merged into their parents because the service had too many.",
                    &["service_name"],
                ),
            )),
            profiler: ProfilerMetrics::new(r),
            stacks: Stacks::new(r),
            tables: TableFamilies::new(r),
            own_limits: OwnLimits::new(r),
            own_use: OwnUse::new(r),
            output: Output::new(r),
            several_hosts: SeveralHosts::new(r),
            tasks: Tasks::new(r),
            service_classes: ServiceClassFamilies::new(r),
            folded_classes: folded.with_label_values(&["class"]),
            folded_series: folded.with_label_values(&["series"]),
            per_class: Vec::new(),
            classes_named: 0,
            series: 0,
            series_most: SERIES,
            per_service: HashMap::new(),
            per_service_requests: HashMap::new(),
            registry: r.registry(),
        }
    }

    /// What `/metrics` gathers from; cheap to clone, usable from any thread.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    fn class(&mut self, names: &Names, id: ClassId) -> Option<&mut Class> {
        let index = id.0 as usize;
        if self.per_class.len() <= index {
            self.per_class.resize_with(index + 1, || None);
        }
        if self.per_class.get(index).is_some_and(Option::is_none) {
            let info = names.class(id)?;
            let folded = self.classes_named >= CLASSES;
            let [service, name] = class_labels(info, folded);
            let work = |status: &str| self.work.with_label_values(&[service, name, info.protocol.name(), status]);
            let made = Class {
                durations: Durations::default(),
                operations: Operations::default(),
                messages: Messages::default(),
                calls: Calls::default(),
                simple: LowCardinality::default(),
                folded,
                // A class of calls serves no requests; its series appear only if something is charged to it.
                work: (info.side == Side::Server).then(|| Work {
                    ok: work("ok"),
                    failed: work("error"),
                    aborted: work("aborted"),
                    unfinished: work("unfinished"),
                }),
                time: self.request_time.series([service, name, info.protocol.name()]),
            };
            self.classes_named += usize::from(!folded);
            if let Some(entry) = self.per_class.get_mut(index) {
                *entry = Some(made);
            }
        }
        self.per_class.get_mut(index)?.as_mut()
    }

    /// Scales the limits to an agent with a memory limit of `memory` bytes.
    #[must_use]
    pub fn for_memory(self, memory: u64) -> Self {
        Self { series_most: scaled(SERIES, memory), ..self }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// Values of `service_name` and `request_class`.
fn class_labels(info: &ClassInfo, folded: bool) -> [&str; 2] {
    if folded { [OTHER, OTHER] } else { [&*info.service_name, &*info.name] }
}

impl Sink for Metrics {
    fn span(&mut self, names: &Names, span: &Span) {
        self.attribution.span(span);
        let Some(info) = names.class(span.class) else { return };
        if self.class(names, span.class).is_none() {
            return;
        }
        let Some(Some(class)) = self.per_class.get_mut(span.class.0 as usize) else { return };
        if class.folded {
            self.folded_classes.inc();
        }
        match span.protocol.conventions() {
            Conventions::Http => {
                let family = if span.side == Side::Server { &self.server } else { &self.client };
                let room = self.series < self.series_most;
                match class.durations.observe(family, class_labels(info, class.folded), info, span, room) {
                    SeriesSlot::Own => {}
                    SeriesSlot::New => self.series += 1,
                    SeriesSlot::Common => self.folded_series.inc(),
                }
            }
            Conventions::Rpc => {
                let family = if span.side == Side::Server { &self.rpc_server } else { &self.rpc_client };
                if class.calls.observe(family, class_labels(info, class.folded), span) {
                    self.folded_series.inc();
                }
            }
            Conventions::Database => {
                let family = if span.side == Side::Server { &self.db_server } else { &self.db_client };
                if class.operations.observe(family, class_labels(info, class.folded), span) {
                    self.folded_series.inc();
                }
            }
            Conventions::Messaging => {
                let family = match messages::Family::of(span) {
                    messages::Family::Client => &self.messaging_client,
                    messages::Family::Process => &self.messaging_process,
                    messages::Family::Server => &self.messaging_server,
                };
                if class.messages.observe(family, class_labels(info, class.folded), info, span) {
                    self.folded_series.inc();
                }
            }
            simple @ (Conventions::Names | Conventions::Turns) => {
                let families = if simple == Conventions::Names { &self.lookups } else { &self.turns };
                let family = &families[usize::from(span.side == Side::Client)];
                if class.simple.observe(family, class_labels(info, class.folded), span, simple) {
                    self.folded_series.inc();
                }
            }
            Conventions::Function => {
                class.simple.observe(&self.functions, class_labels(info, class.folded), span, Conventions::Function);
            }
            Conventions::Session => {}
        }
        let Some(work) = &class.work else { return };
        match span.outcome {
            Outcome::Aborted => work.aborted.inc(),
            _ if span.error => work.failed.inc(),
            Outcome::Unfinished => work.unfinished.inc(),
            _ => work.ok.inc(),
        }
        class.time.waits(span);
    }

    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        let cpu = cost.cpu as f64 / 1e9;
        match owner {
            Owner::Class(id) => {
                if let Some(class) = self.class(names, id) {
                    class.time.cost(cost);
                }
                if let Some(info) = names.class(id) {
                    let family = &self.service_cpu;
                    self.per_service_requests
                        .entry(info.service.0)
                        .or_insert_with(|| family.with_label_values(&[&*info.service_name, "requests"]))
                        .inc_by(cpu);
                }
            }
            Owner::Overhead(service) => {
                let family = &self.service_cpu;
                self.per_service
                    .entry(service.0)
                    .or_insert_with(|| family.with_label_values(&[&*names.service(service), "overhead"]))
                    .inc_by(cpu);
            }
            Owner::Kernel => {}
        }
    }
}

/// The exposition text of a registry. Label values come from outside: unsafe characters in them are escaped.
pub fn text(registry: &Registry) -> prometheus::Result<String> {
    let text = TextEncoder::new().encode_to_string(&registry.gather())?;
    let clean = text.bytes().all(|byte| byte == b'\n' || (byte >= b' ' && byte != 0x7f && byte < 0xc2));
    if clean || !text.chars().any(|c| c != '\n' && crate::text::is_unsafe(c)) {
        return Ok(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_terminator('\n') {
        // A backslash in a label's value is written as two.
        out.push_str(&crate::text::written_with("\\\\u", line));
        out.push('\n');
    }
    Ok(out)
}

mod attribution;
mod figures;
mod header_injection;
mod host_cpu;
mod output;
mod own_limits;
mod own_use;
mod profiler;
mod request_time;
mod several_hosts;
mod stacks;
mod table_use;

#[cfg(test)]
mod tests;
