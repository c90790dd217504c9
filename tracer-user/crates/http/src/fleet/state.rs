//! What the console of a fleet shows: figures of every host's classes, and its findings. Everything is read from the history
//! and can be read again; hosts, classes and points have limits.

mod edges;

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::{Value, json};
use tracer_model::HostCpu;
use tracer_results::analysis::detector::Settings;
use tracer_results::analysis::evidence::Evidence;
use tracer_results::analysis::finding::Finding;
use tracer_results::analysis::runs::DetectorRuns;
use tracer_results::history::rows::{ClassRow, DURATION_BOUNDS_NS, DurationHistogram, EdgeRow, HostRow};
use tracer_results::history::windows::ReadWindow;

use self::edges::{EDGES, EdgeName, HostEdges};
use crate::range::Range;

/// Hosts shown; those beyond it are counted.
const HOSTS: usize = 500;
/// Classes of all hosts together; those beyond it are counted.
const CLASSES: usize = 3000;
/// A point of a series: two minutes. A day of them is kept.
const STEP_S: u64 = 120;
const POINTS: usize = 720;
/// Bits of a finding's number that its detector gives; the others say whose it is. Together they are exact in JSON.
const OWN_BITS: u32 = 20;

/// Sums over requests; seconds.
#[derive(Clone, Debug, Default)]
struct Sums {
    count: u64,
    errors: u64,
    duration_s: f64,
    cpu_s: f64,
    runqueue_s: f64,
    /// Other than for calls.
    blocked_s: f64,
    queue_s: f64,
    downstream_s: f64,
    durations: DurationHistogram,
}

impl Sums {
    fn add(&mut self, row: &ClassRow) {
        self.count += row.count;
        self.errors += row.errors;
        self.duration_s += row.duration_s;
        self.cpu_s += row.cpu_s;
        self.runqueue_s += row.runqueue_s;
        self.blocked_s += row.blocked_s;
        self.queue_s += row.queue_s;
        self.downstream_s += row.downstream_s;
        for (sum, more) in self.durations.0.iter_mut().zip(row.duration_histogram.0) {
            *sum = sum.saturating_add(more);
        }
    }

    /// The fields that classes and points share: means per request, and quantiles. The API counts waiting for calls among
    /// blocked time.
    fn means(&self) -> [(&'static str, f64); 9] {
        let each = |sum: f64| sum / (self.count as f64).max(1.0);
        [
            ("mean_s", each(self.duration_s)),
            ("p50_s", quantile(&self.durations, 0.5)),
            ("p95_s", quantile(&self.durations, 0.95)),
            ("p99_s", quantile(&self.durations, 0.99)),
            ("cpu_s", each(self.cpu_s)),
            ("queue_s", each(self.queue_s)),
            ("runqueue_s", each(self.runqueue_s)),
            ("blocked_s", each(self.blocked_s + self.downstream_s)),
            ("downstream_s", each(self.downstream_s)),
        ]
    }
}

/// The middle of the bucket in which that share of the requests lies, seconds.
fn quantile(durations: &DurationHistogram, share: f64) -> f64 {
    let total: u64 = durations.0.iter().map(|count| u64::from(*count)).sum();
    let rank = ((total as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    for (bucket, count) in durations.0.iter().enumerate() {
        seen += u64::from(*count);
        if seen >= rank {
            let last = DURATION_BOUNDS_NS.len() - 1;
            let above = DURATION_BOUNDS_NS[bucket.min(last)] as f64;
            // A bucket reaches from its bound ÷ √2 to its bound; the last has no end.
            return if bucket > last { above } else { above / 2f64.powf(0.25) } / 1e9;
        }
    }
    0.0
}

/// A class of a host: service, class, side, protocol.
type ClassKey = (String, String, String, String);

#[derive(Debug, Default)]
struct ClassState {
    all: Sums,
    /// Number of the step that is added up, and its sums.
    step: u64,
    sums: Sums,
    /// Steps that are over: number, rate, share of errors and [`Sums::means`].
    points: VecDeque<(u64, [f32; 11])>,
}

impl ClassState {
    fn add(&mut self, row: &ClassRow) {
        let step = row.start_ns / 1_000_000_000 / STEP_S;
        if step != self.step {
            self.close();
            self.step = step;
        }
        self.all.add(row);
        self.sums.add(row);
    }

    fn close(&mut self) {
        if self.sums.count > 0 {
            if self.points.len() >= POINTS {
                self.points.pop_front();
            }
            self.points.push_back(self.point());
            self.sums = Sums::default();
        }
    }

    fn point(&self) -> (u64, [f32; 11]) {
        let rate = |count: u64| (count as f64 / STEP_S as f64) as f32;
        let mut values = [rate(self.sums.count), rate(self.sums.errors), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        for (value, (_, mean)) in values.iter_mut().skip(2).zip(self.sums.means()) {
            *value = mean as f32;
        }
        (self.step, values)
    }
}

/// CPU of a host's windows, seconds.
#[derive(Clone, Debug, Default)]
struct FleetCpu {
    requests: f64,
    overhead: f64,
    kernel: f64,
    idle: f64,
    busy: f64,
    /// Attributed to any of these, or measured and not yet reported by thread.
    attributed: f64,
}

impl FleetCpu {
    fn add(&mut self, row: &HostRow) {
        self.join(&Self {
            requests: row.requests_s,
            overhead: row.overhead_s + row.foreign_s,
            kernel: row.kernel_s,
            idle: row.idle_s,
            busy: row.busy_s,
            attributed: row.capture_ratio * row.busy_s,
        });
    }

    fn join(&mut self, more: &Self) {
        self.requests += more.requests;
        self.overhead += more.overhead;
        self.kernel += more.kernel;
        self.idle += more.idle;
        self.busy += more.busy;
        self.attributed += more.attributed;
    }

    /// Its [`HostCpu::capture_ratio`] is the mean of the windows' ratios, weighted by the CPU that was used.
    fn host_cpu(&self) -> HostCpu {
        let Self { requests, overhead, kernel, idle, busy, attributed } = *self;
        let unreported = attributed - requests - overhead - kernel;
        HostCpu { requests, overhead, kernel, unreported, idle, system_busy: busy, ..HostCpu::default() }
    }
}

#[derive(Debug)]
struct HostState {
    runs: DetectorRuns,
    windows: u64,
    /// Start and end of the newest window, nanoseconds since the epoch.
    newest_ns: u64,
    until_ns: u64,
    last: HostRow,
    cpu: FleetCpu,
    /// Records that were lost in all windows.
    events_lost: u64,
    overhead_s: HashMap<String, f64>,
    /// Length of all windows, seconds.
    length_s: f64,
    classes: BTreeMap<ClassKey, ClassState>,
    edges: HostEdges,
}

/// All hosts.
#[derive(Debug, Default)]
pub struct FleetState {
    hosts: BTreeMap<String, HostState>,
    classes: usize,
    refused_hosts: u64,
    refused_classes: u64,
    edges: usize,
    refused_edges: u64,
    /// When the history was read last, nanoseconds since the epoch; and why it could not be read.
    pub read_ns: u64,
    /// See `read_ns`.
    pub problem: Option<String>,
    /// Files that could not be read.
    pub ignored: u64,
}

/// New windows of a host.
#[derive(Debug, Default)]
pub struct NewWindows {
    /// By time.
    pub windows: Vec<ReadWindow>,
    /// Rows of their classes.
    pub classes: Vec<ClassRow>,
    /// Rows of their edges.
    pub edges: Vec<EdgeRow>,
    /// The newest row of the host.
    pub last: Option<HostRow>,
}

impl FleetState {
    /// Start of the newest window known of a host; 0: none.
    pub fn newest_ns(&self, host: &str) -> u64 {
        self.hosts.get(host).map_or(0, |state| state.newest_ns)
    }

    /// Adds windows that are newer than those known. Parts of windows end it: the rest of them comes later, unless they are
    /// older than `patience_ns` (an instant).
    pub fn add(&mut self, host: &str, new: NewWindows, settings: &dyn Fn(f64) -> Settings, patience_ns: u64) {
        let after = self.newest_ns(host);
        let fresh = |read: &&ReadWindow| read.window.start_ns > after || after == 0;
        let mut windows: Vec<&ReadWindow> = new.windows.iter().filter(fresh).collect();
        let end = windows.iter().position(|read| !read.whole && read.window.start_ns >= patience_ns);
        windows.truncate(end.unwrap_or(windows.len()));
        windows.retain(|read| read.whole);
        let Some(newest) = windows.last().map(|read| &read.window) else { return };
        if !self.hosts.contains_key(host) {
            if self.hosts.len() >= HOSTS {
                self.refused_hosts += 1;
                return;
            }
            let state = HostState {
                runs: DetectorRuns::new(settings(newest.length_s)),
                windows: 0,
                newest_ns: 0,
                until_ns: 0,
                last: HostRow::default(),
                cpu: FleetCpu::default(),
                events_lost: 0,
                overhead_s: HashMap::new(),
                length_s: 0.0,
                classes: BTreeMap::new(),
                edges: HostEdges::new(),
            };
            self.hosts.insert(host.to_owned(), state);
        }
        let Some(state) = self.hosts.get_mut(host) else { return };
        for read in &windows {
            state.runs.push(read.host.run_ns, &read.window);
            state.cpu.add(&read.host);
            state.events_lost += read.host.events_lost;
            state.windows += 1;
            state.length_s += read.window.length_s;
            for service in &read.window.services {
                if state.overhead_s.len() < CLASSES || state.overhead_s.contains_key(&service.service_name) {
                    *state.overhead_s.entry(service.service_name.clone()).or_default() += service.overhead_s;
                }
            }
        }
        let until = newest.start_ns;
        (state.newest_ns, state.until_ns) = (until, until.saturating_add((newest.length_s.max(0.0) * 1e9) as u64));
        if let Some(last) = new.last {
            state.last = last;
        }
        let mut rows: Vec<&ClassRow> =
            new.classes.iter().filter(|row| row.start_ns <= until && (row.start_ns > after || after == 0)).collect();
        rows.sort_by_key(|row| row.start_ns);
        for row in rows {
            let key = (
                row.service_name.to_string(),
                row.request_class.to_string(),
                row.side.to_string(),
                row.protocol.to_string(),
            );
            if !state.classes.contains_key(&key) {
                if self.classes >= CLASSES {
                    self.refused_classes += 1;
                    continue;
                }
                self.classes += 1;
            }
            state.classes.entry(key).or_default().add(row);
        }
        let mut rows: Vec<&EdgeRow> =
            new.edges.iter().filter(|row| row.start_ns <= until && (row.start_ns > after || after == 0)).collect();
        rows.sort_by_key(|row| row.start_ns);
        for row in rows {
            let Some(name) = EdgeName::of(host, row) else { continue };
            if !state.edges.contains_key(&name) {
                if self.edges >= EDGES {
                    self.refused_edges += 1;
                    continue;
                }
                self.edges += 1;
            }
            state.edges.entry(name).or_default().add(row);
        }
    }

    /// Forgets hosts of which nothing came since an instant.
    pub fn forget(&mut self, before_ns: u64) {
        self.hosts.retain(|_, state| state.until_ns >= before_ns);
        self.classes = self.hosts.values().map(|state| state.classes.len()).sum();
        self.edges = self.hosts.values().map(|state| state.edges.len()).sum();
    }

    /// `GET /api/v1/hosts`.
    pub(super) fn hosts(&self) -> Value {
        let hosts = self.hosts.iter().map(|(name, state)| {
            let HostRow { cores, busy_s, length_s, .. } = state.last;
            let services: std::collections::BTreeSet<&String> =
                state.classes.keys().filter(|key| key.2 == "server").map(|key| &key.0).collect();
            json!({
                "host": name, "windows": state.windows, "until_ns": state.until_ns, "cores": cores,
                "utilisation": if cores * length_s > 0.0 { busy_s / cores / length_s } else { 0.0 },
                "capture_ratio": state.cpu.host_cpu().capture_ratio(), "events_lost": state.events_lost,
                "services": services.len(), "classes": state.classes.len(),
                "open_findings": state.runs.findings().filter(|one| one.until_ns.is_none()).count(),
            })
        });
        json!({
            "hosts": hosts.collect::<Vec<_>>(), "read_ns": self.read_ns, "problem": self.problem,
            "files_ignored": self.ignored, "hosts_refused": self.refused_hosts, "classes_refused": self.refused_classes,
            "edges_refused": self.refused_edges,
        })
    }

    fn each_class(&self) -> impl Iterator<Item = (String, &HostState, &ClassKey, &ClassState)> {
        self.hosts.iter().flat_map(|(host, state)| {
            state.classes.iter().map(move |(key, class)| (format!("{host}/{}", key.0), state, key, class))
        })
    }

    /// `GET /api/v1/classes`. A service's name has its host before it.
    pub(super) fn classes(&self, service: Option<&str>) -> Value {
        let own = self.each_class().filter(|(name, ..)| service.is_none_or(|service| name == service));
        let mut rows: Vec<(f64, Value)> =
            own.map(|(name, _, key, class)| (class.all.cpu_s, class_json(&name, key, class))).collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        json!({ "classes": rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>() })
    }

    /// `GET /api/v1/edges`.
    pub(super) fn edges(&self, service: Option<&str>) -> Value {
        let step = |state: &HostState| state.newest_ns / 1_000_000_000 / STEP_S;
        edges::edges(self.hosts.values().map(|state| (&state.edges, step(state))), service)
    }

    /// `GET /api/v1/services`.
    pub(super) fn services(&self) -> Value {
        #[derive(Default)]
        struct Service {
            classes: usize,
            count: u64,
            errors: u64,
            rate_per_s: f64,
            cpu_s: f64,
            overhead_s: f64,
            length_s: f64,
        }
        let mut all: BTreeMap<String, Service> = BTreeMap::new();
        for (name, state, key, class) in self.each_class().filter(|(_, _, key, _)| key.2 == "server") {
            let row = all.entry(name).or_default();
            let newest = class.points.back().map(|point| point.1);
            row.classes += 1;
            row.count += class.all.count;
            row.errors += class.all.errors;
            row.rate_per_s += newest.map_or(0.0, |values| f64::from(values[0]));
            row.cpu_s += class.all.cpu_s;
            row.overhead_s = state.overhead_s.get(&key.0).copied().unwrap_or_default();
            row.length_s = state.length_s;
        }
        let rows = all.into_iter().map(|(name, service)| {
            let Service { classes, count, errors, rate_per_s, cpu_s, overhead_s, length_s } = service;
            json!({
                "service_name": name, "classes": classes, "count": count, "errors": errors, "unfinished": null,
                "rate_per_s": rate_per_s, "error_rate_per_s": errors as f64 / length_s.max(1e-9),
                "cpu_requests_s": cpu_s, "cpu_overhead_s": overhead_s,
                "cpu_requests_cores": cpu_s / length_s.max(1e-9), "cpu_overhead_cores": overhead_s / length_s.max(1e-9),
                "runtimes": null, "containers": null,
            })
        });
        json!({ "services": rows.collect::<Vec<_>>() })
    }

    /// `GET /api/v1/series`.
    pub(super) fn series(&self, service: Option<&str>, class: Option<&str>, range: Range) -> Value {
        let own = self.each_class().filter(|(name, _, key, _)| {
            service.is_none_or(|service| name == service) && class.is_none_or(|class| key.1 == class)
        });
        let series = own.map(|(name, _, key, state)| {
            let open = (state.sums.count > 0).then(|| state.point());
            let points = state.points.iter().copied().chain(open);
            let begin = |step: u64| step * STEP_S * 1_000_000_000;
            let points: Vec<_> =
                points.filter(|(step, _)| begin(step + 1) > range.from && begin(*step) < range.to).collect();
            let mut one = json!({
                "service_name": name, "request_class": key.1, "side": key.2, "protocol": key.3,
                "t": points.iter().map(|(step, _)| step * STEP_S).collect::<Vec<_>>(),
            });
            let names =
                ["rate_per_s", "error_rate_per_s"].into_iter().chain(Sums::default().means().map(|(name, _)| name));
            for (at, name) in names.enumerate() {
                one[name] = json!(points.iter().map(|(_, values)| values[at]).collect::<Vec<_>>());
            }
            one
        });
        json!({ "window_s": STEP_S, "series": series.collect::<Vec<_>>() })
    }

    /// `GET /api/v1/findings`, the newest first.
    pub(super) fn findings(&self, service: Option<&str>, class: Option<&str>, range: Range) -> Value {
        let mut rows: Vec<(u64, Value)> = Vec::new();
        for (host, state) in &self.hosts {
            let of = |one: &&Finding| {
                let whole = one.service_name.is_empty();
                let named = |service: &str| {
                    service
                        .strip_prefix(host.as_str())
                        .and_then(|rest| rest.strip_prefix('/'))
                        .is_some_and(|name| whole || name == one.service_name)
                };
                let has =
                    |class: &str| one.request_classes.is_empty() || one.request_classes.iter().any(|own| own == class);
                let lasted = one.until_ns.is_none_or(|until| until >= range.from) && one.since_ns < range.to;
                service.is_none_or(named) && class.is_none_or(has) && lasted
            };
            rows.extend(state.runs.findings().filter(of).map(|one| (one.since_ns, finding_json(host, one.to_json()))));
        }
        rows.sort_by_key(|(since, _)| std::cmp::Reverse(*since));
        json!({ "findings": rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>() })
    }

    /// What a finding rests on, and its host.
    pub(super) fn evidence(&self, id: u64) -> Option<(String, Evidence)> {
        let (host, state) = self.hosts.iter().find(|(host, _)| mark(host) == id >> OWN_BITS)?;
        Some((host.clone(), state.runs.detector.evidence(id & ((1 << OWN_BITS) - 1))?))
    }

    /// CPU of all hosts together in the windows that were read.
    pub(super) fn cpu(&self) -> HostCpu {
        let mut all = FleetCpu::default();
        for state in self.hosts.values() {
            all.join(&state.cpu);
        }
        all.host_cpu()
    }

    /// Records that all hosts lost in the windows that were read.
    pub(super) fn events_lost(&self) -> u64 {
        self.hosts.values().map(|state| state.events_lost).sum()
    }

    /// How many hosts there are.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }
}

fn class_json(name: &str, key: &ClassKey, class: &ClassState) -> Value {
    let newest = class.points.back().map_or_else(|| class.point().1, |point| point.1);
    // The history does not distinguish the two queues, nor spans whose end was not seen: null is "not known".
    let mut row = json!({
        "service_name": name, "request_class": key.1, "side": key.2, "protocol": key.3,
        "count": class.all.count, "errors": class.all.errors, "unfinished": null,
        "rate_per_s": newest[0], "error_rate_per_s": newest[1],
        "accept_queue_s": null, "socket_queue_s": null, "cpu_total_s": class.all.cpu_s,
    });
    for (name, value) in class.all.means() {
        row[name] = json!(value);
    }
    row
}

/// A finding as the API gives it, with its host in the names and in the number.
pub(super) fn finding_json(host: &str, mut one: Value) -> Value {
    let id = one["id"].as_u64().unwrap_or(0) & ((1 << OWN_BITS) - 1);
    one["id"] = json!((mark(host) << OWN_BITS) | id);
    one["host"] = json!(host);
    let name = one["service_name"].as_str().unwrap_or_default();
    if !name.is_empty() {
        one["service_name"] = json!(format!("{host}/{name}"));
    }
    one["summary"] = json!(format!("{host}: {}", one["summary"].as_str().unwrap_or_default()));
    one
}

/// A host's part of the numbers of its findings, the same each time: 32 bits of FNV-1a, so that there are 52 in all.
fn mark(host: &str) -> u64 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    u64::from(host.bytes().fold(0x811c_9dc5, step))
}

#[cfg(test)]
mod tests;
