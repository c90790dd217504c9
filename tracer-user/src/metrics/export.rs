//! Prometheus families. Names follow OpenTelemetry's semantic conventions where they exist.
//!
//! `tracer_work_*` counts work that services answer for: server units only. Calls they make have
//! `http_client_request_duration_seconds`, `rpc_client_call_duration_seconds` and
//! `db_client_operation_duration_seconds`, so a sum over `tracer_work_total` counts no request twice on its way through
//! one service. Its `status` is `ok`, `error` (failed by its status, or its end was not seen) or `aborted` (the
//! connection ended before the reply did).

use std::collections::HashMap;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
    TextEncoder,
};
use tracer_common::lost::Lost;

use super::calls::{self, Calls};
use super::durations::{CLIENT_LABELS, Durations, OTHER, SERVER_LABELS, Went};
use super::messages::{self, Messages};
use super::operations::{self, Operations};
use super::own::Own;
use super::process::Process;
use super::simple::{LOOKUP_LABELS, Simple, TURN_LABELS};
use super::tasks::Tasks;
use crate::guard::fill::scaled;
use crate::model::{ClassId, ClassInfo, Cost, Grade, Names, Outcome, Owner, Side, Sink, Unit};
use crate::protocols::{Conventions, conventions};

/// Bounds of request durations, seconds (OpenTelemetry semantic conventions for HTTP).
const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
/// Most classes, of all services together, that get series of their own; what comes later shares those of
/// `service_name="_other", request_class="_other"`, visibly.
const CLASSES: usize = 10_000;
/// Most histograms of durations, of all classes together, at the default ceiling of memory; beyond it a class's
/// requests share one.
const SERIES: usize = 40_000;

/// The families, and handles of series already used.
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
    /// Lookups of names: served, made; turns: the same.
    lookups: [HistogramVec; 2],
    turns: [HistogramVec; 2],
    work: IntCounterVec,
    work_time: [CounterVec; 8],
    service_cpu: CounterVec,
    host_cpu: Seconds,
    host_busy: Counter,
    host_unreported: Gauge,
    capture: Gauge,
    attribution: Vec<IntCounter>,
    events: Totals,
    lost: Totals,
    classes: GaugeVec,
    merged: Totals,
    hertz: Gauge,
    bpf_seconds: Seconds,
    bpf_runs: Totals,
    bpf_missed: Totals,
    own: Own,
    pub(super) tasks: Tasks,
    own_cpu: Counter,
    own_rss: Gauge,
    /// Requests that had no series of their own: their class was one too many, or a combination of labels was.
    folded_classes: IntCounter,
    folded_series: IntCounter,
    per_class: Vec<Option<Class>>,
    /// Classes with series of their own.
    classes_named: usize,
    /// Histograms of durations, and most there can be.
    series: usize,
    series_most: usize,
    per_service: HashMap<u32, Counter>,
    per_service_requests: HashMap<u32, Counter>,
}

/// Counters whose absolute value comes from elsewhere.
#[derive(Debug)]
pub(super) struct Totals(pub(super) IntCounterVec);

impl Totals {
    pub(super) fn set(&self, label: &str, total: u64) {
        let counter = self.0.with_label_values(&[label]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}

/// The same for seconds.
#[derive(Debug)]
struct Seconds(CounterVec);

impl Seconds {
    fn set(&self, label: &str, total: f64) {
        raise(&self.0.with_label_values(&[label]), total);
    }
}

/// Brings a counter up to `total`; a total that falls (or is not a number) changes nothing.
fn raise(counter: &Counter, total: f64) {
    let more = total - counter.get();
    if more > 0.0 && more.is_finite() {
        counter.inc_by(more);
    }
}

/// Handles of one class.
#[derive(Debug)]
struct Class {
    durations: Durations,
    operations: Operations,
    messages: Messages,
    calls: Calls,
    simple: Simple,
    folded: bool,
    work: Option<Work>,
    /// CPU, run queue, blocked, queue, downstream, accept queue, socket queue, pool queue.
    time: [Counter; 8],
}

const ACCEPT_QUEUE: &str = "Of the queue time, what requests waited for their connections to be accepted. What neither this nor \
    the socket's queue has is where the kernel does not show when that was.";

const POOL_QUEUE: &str = "Of the duration, what jobs of requests are certain to have waited for threads of pools.";

/// Units by outcome.
#[derive(Debug)]
struct Work {
    ok: IntCounter,
    failed: IntCounter,
    aborted: IntCounter,
}

pub(super) fn vec<T: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<T>) -> T {
    match made {
        Ok(family) => {
            if let Err(error) = registry.register(Box::new(family.clone())) {
                log::error!("a metric family was refused: {error}");
            }
            family
        }
        // Names and labels are constants of this file and a test makes them all.
        Err(error) => unreachable!("a metric family is malformed: {error}"),
    }
}

impl Metrics {
    /// All families, empty.
    pub fn new() -> Self {
        let registry = Registry::new();
        let r = &registry;
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(BOUNDS.to_vec()), labels)
        };
        let operations = |name: &str, help: &str, labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(operations::BOUNDS.to_vec()), labels)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| CounterVec::new(Opts::new(name, help), labels);
        let int = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let work_labels = &["service_name", "request_class", "protocol"];
        let work_time = [
            ("tracer_work_cpu_seconds_total", "CPU charged to requests of the class, work after the reply included."),
            ("tracer_work_runqueue_seconds_total", "Time requests of the class waited for a CPU."),
            ("tracer_work_blocked_seconds_total", "Time threads that held a request of the class were blocked."),
            ("tracer_work_queue_seconds_total", "Time requests of the class had arrived and were not yet read."),
            ("tracer_work_downstream_seconds_total", "Time requests of the class had a downstream call open."),
            ("tracer_work_accept_queue_seconds_total", ACCEPT_QUEUE),
            (
                "tracer_work_socket_queue_seconds_total",
                "Of the queue time, what requests waited in accepted connections.",
            ),
            ("tracer_work_pool_queue_seconds_total", POOL_QUEUE),
        ]
        .map(|(name, help)| vec(r, counter(name, help, work_labels)));
        let attribution =
            vec(r, int("tracer_attribution_total", "Calls by how sure it is which request caused them.", &["grade"]));
        let lost = Totals(vec(r, int("tracer_events_lost_total", "What was lost, by where and why.", &["reason"])));
        for reason in Lost::ALL {
            lost.set(reason.name(), 0);
        }
        let build = vec(r, GaugeVec::new(Opts::new("tracer_build_info", "Version of the agent."), &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let folded = vec(
            r,
            int(
                "tracer_metrics_folded_total",
                "Requests counted in series that several share, because there were too many classes or too many combinations of labels in one.",
                &["what"],
            ),
        );
        if let Err(error) = Process::new().and_then(|process| registry.register(Box::new(process))) {
            log::error!("the metrics of the agent's own process were refused: {error}");
        }
        Self {
            server: vec(
                r,
                histogram(
                    "http_server_request_duration_seconds",
                    "Duration of requests served: first byte read to last byte sent.",
                    &SERVER_LABELS,
                ),
            ),
            client: vec(
                r,
                histogram(
                    "http_client_request_duration_seconds",
                    "Duration of requests made: first byte sent to last byte read.",
                    &CLIENT_LABELS,
                ),
            ),
            rpc_server: vec(
                r,
                histogram(
                    "rpc_server_call_duration_seconds",
                    "Duration of remote procedure calls served: first byte read to last byte sent.",
                    &calls::SERVER_LABELS,
                ),
            ),
            rpc_client: vec(
                r,
                histogram(
                    "rpc_client_call_duration_seconds",
                    "Duration of remote procedure calls made: first byte sent to last byte read.",
                    &calls::CLIENT_LABELS,
                ),
            ),
            db_server: vec(
                r,
                operations(
                    "db_server_operation_duration_seconds",
                    "Duration of database operations served: first byte read to last byte sent.",
                    &operations::SERVER_LABELS,
                ),
            ),
            messaging_client: vec(
                r,
                operations(
                    "messaging_client_operation_duration_seconds",
                    "Duration of messaging operations of producers and consumers: sent to confirmed or answered, where it is.",
                    &messages::CLIENT_LABELS,
                ),
            ),
            messaging_process: vec(
                r,
                operations(
                    "messaging_process_duration_seconds",
                    "Duration of a consumer's work on a message: read to acknowledged or answered, where it is.",
                    &messages::LABELS,
                ),
            ),
            messaging_server: vec(
                r,
                operations(
                    "messaging_server_operation_duration_seconds",
                    "Duration of messaging operations as the broker saw them.",
                    &messages::LABELS,
                ),
            ),
            db_client: vec(
                r,
                operations(
                    "db_client_operation_duration_seconds",
                    "Duration of database operations called: first byte sent to last byte read.",
                    &operations::CLIENT_LABELS,
                ),
            ),
            lookups: [
                (
                    "dns_server_lookup_duration_seconds",
                    "Duration of lookups of names served: question read to answer sent.",
                ),
                ("dns_lookup_duration_seconds", "Duration of lookups of names: question first sent to answer read."),
            ]
            .map(|(name, help)| vec(r, operations(name, help, &LOOKUP_LABELS))),
            turns: [
                ("tracer_server_turn_duration_seconds", "Duration of turns answered on connections that are not read."),
                ("tracer_client_turn_duration_seconds", "Duration of turns asked on connections that are not read."),
            ]
            .map(|(name, help)| vec(r, operations(name, help, &TURN_LABELS))),
            work: vec(
                r,
                int(
                    "tracer_work_total",
                    "Units of work finished, by outcome (ok, error, aborted).",
                    &["service_name", "request_class", "protocol", "status"],
                ),
            ),
            work_time,
            service_cpu: vec(
                r,
                counter(
                    "tracer_service_cpu_seconds_total",
                    "CPU of a service: for requests, and overhead.",
                    &["service_name", "kind"],
                ),
            ),
            host_cpu: Seconds(vec(
                r,
                counter(
                    "tracer_host_cpu_seconds_total",
                    "CPU of the host since tracing began, by whom it was charged to.",
                    &["kind"],
                ),
            )),
            host_busy: vec(
                r,
                Counter::new(
                    "tracer_host_cpu_busy_seconds_total",
                    "CPU of the host since tracing began that the system says was used.",
                ),
            ),
            host_unreported: vec(
                r,
                Gauge::new(
                    "tracer_host_cpu_unreported_seconds",
                    "CPU that was counted and whose thread has not reported yet.",
                ),
            ),
            capture: vec(r, Gauge::new("tracer_capture_ratio", "CPU attributed / CPU the system says was used.")),
            attribution: Grade::ALL.iter().map(|grade| attribution.with_label_values(&[grade.name()])).collect(),
            events: Totals(vec(r, int("tracer_events_total", "Records taken from the kernel.", &["kind"]))),
            lost,
            classes: vec(
                r,
                GaugeVec::new(Opts::new("tracer_classes", "Request classes of a service."), &["service_name"]),
            ),
            merged: Totals(vec(
                r,
                int(
                    "tracer_classes_merged_total",
                    "New classes merged into their parent because there were too many.",
                    &["service_name"],
                ),
            )),
            hertz: vec(r, Gauge::new("tracer_sampling_hertz", "Stack samples per second and CPU.")),
            bpf_seconds: Seconds(vec(
                r,
                counter(
                    "tracer_bpf_run_seconds_total",
                    "Run time of a BPF program (0 while kernel.bpf_stats_enabled is 0).",
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
                    "Runs of a BPF program skipped by the kernel because it was already running there.",
                    &["program"],
                ),
            )),
            own: Own::new(r),
            tasks: Tasks::new(r),
            own_cpu: vec(r, Counter::new("process_cpu_seconds_total", "CPU of the agent.")),
            own_rss: vec(r, Gauge::new("process_resident_memory_bytes", "Memory of the agent.")),
            folded_classes: folded.with_label_values(&["class"]),
            folded_series: folded.with_label_values(&["series"]),
            per_class: Vec::new(),
            classes_named: 0,
            series: 0,
            series_most: SERIES,
            per_service: HashMap::new(),
            per_service_requests: HashMap::new(),
            registry,
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
            let labels = [service, name, info.protocol];
            let work = |status: &str| self.work.with_label_values(&[service, name, info.protocol, status]);
            let made = Class {
                durations: Durations::default(),
                operations: Operations::default(),
                messages: Messages::default(),
                calls: Calls::default(),
                simple: Simple::default(),
                folded,
                // A class of calls has no work of its own; its series appear only if something is charged to it.
                work: (info.side == Side::Server).then(|| Work {
                    ok: work("ok"),
                    failed: work("error"),
                    aborted: work("aborted"),
                }),
                time: self.work_time.each_ref().map(|family| family.with_label_values(&labels)),
            };
            self.classes_named += usize::from(!folded);
            if let Some(entry) = self.per_class.get_mut(index) {
                *entry = Some(made);
            }
        }
        self.per_class.get_mut(index)?.as_mut()
    }

    /// The same with bounds for an agent that may take `memory` bytes.
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
    fn unit(&mut self, names: &Names, unit: &Unit) {
        if unit.side == Side::Client {
            let index = Grade::ALL.iter().position(|grade| *grade == unit.grade).unwrap_or(0);
            if let Some(counter) = self.attribution.get(index) {
                counter.inc();
            }
        }
        let Some(info) = names.class(unit.class) else { return };
        if self.class(names, unit.class).is_none() {
            return;
        }
        let Some(Some(class)) = self.per_class.get_mut(unit.class.0 as usize) else { return };
        if class.folded {
            self.folded_classes.inc();
        }
        match conventions(unit.protocol) {
            Conventions::Http => {
                let family = if unit.side == Side::Server { &self.server } else { &self.client };
                let room = self.series < self.series_most;
                match class.durations.observe(family, class_labels(info, class.folded), info, unit, room) {
                    Went::Own => {}
                    Went::New => self.series += 1,
                    Went::Common => self.folded_series.inc(),
                }
            }
            Conventions::Rpc => {
                let family = if unit.side == Side::Server { &self.rpc_server } else { &self.rpc_client };
                if class.calls.observe(family, class_labels(info, class.folded), unit) {
                    self.folded_series.inc();
                }
            }
            Conventions::Database => {
                let family = if unit.side == Side::Server { &self.db_server } else { &self.db_client };
                if class.operations.observe(family, class_labels(info, class.folded), unit) {
                    self.folded_series.inc();
                }
            }
            Conventions::Messaging => {
                let family = match messages::Family::of(unit) {
                    messages::Family::Client => &self.messaging_client,
                    messages::Family::Process => &self.messaging_process,
                    messages::Family::Server => &self.messaging_server,
                };
                if class.messages.observe(family, class_labels(info, class.folded), info, unit) {
                    self.folded_series.inc();
                }
            }
            simple @ (Conventions::Names | Conventions::Turns) => {
                let families = if simple == Conventions::Names { &self.lookups } else { &self.turns };
                let family = &families[usize::from(unit.side == Side::Client)];
                if class.simple.observe(family, class_labels(info, class.folded), unit, simple) {
                    self.folded_series.inc();
                }
            }
            Conventions::Session => {}
        }
        let Some(work) = &class.work else { return };
        match unit.outcome {
            Outcome::Aborted => work.aborted.inc(),
            _ if unit.error => work.failed.inc(),
            _ => work.ok.inc(),
        }
        class.time[3].inc_by(unit.queue() as f64 / 1e9);
        class.time[4].inc_by(unit.downstream as f64 / 1e9);
        let queues = unit.queues().unwrap_or_default();
        class.time[5].inc_by(queues.accept as f64 / 1e9);
        class.time[6].inc_by(queues.socket as f64 / 1e9);
        class.time[7].inc_by(unit.pool_queue.unwrap_or_default() as f64 / 1e9);
    }

    fn cost(&mut self, names: &Names, owner: Owner, cost: Cost) {
        let cpu = cost.cpu as f64 / 1e9;
        match owner {
            Owner::Class(id) => {
                if let Some(class) = self.class(names, id) {
                    class.time[0].inc_by(cpu);
                    class.time[1].inc_by(cost.runq as f64 / 1e9);
                    class.time[2].inc_by(cost.blocked as f64 / 1e9);
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

/// The exposition text of a registry.
pub fn text(registry: &Registry) -> prometheus::Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

#[path = "export_figures.rs"]
mod figures;

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
