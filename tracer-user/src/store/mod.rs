//! Recent transactions in bounded memory: the slowest, the failed and a fair sample of every class, and the newest.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::model::{ClassId, Names, Nanos, Side, Sink, TraceId, Unit};

/// Units kept of one transaction.
const UNITS: usize = 256;
/// Slowest kept of each class.
const SLOWEST: usize = 10;
/// Failed kept of each class.
const FAILED: usize = 10;
/// Sample of the others kept of each class.
const SAMPLE: usize = 10;

/// Which transactions are wanted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Service with a unit in it.
    pub service: Option<String>,
    /// Request class of that unit.
    pub class: Option<String>,
    /// At least this long, milliseconds.
    pub min_ms: Option<f64>,
    /// `error`, `ok` or a status code.
    pub status: Option<String>,
    /// At most this many.
    pub limit: usize,
}

/// A transaction in a list.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its id.
    pub trace_id: String,
    /// Service of the unit that fits (the first one).
    pub service_name: String,
    /// Its class.
    pub request_class: String,
    /// Nanoseconds since the epoch.
    pub start_ns: i64,
    /// Seconds.
    pub duration_s: f64,
    /// Status code.
    pub status: Option<u16>,
    /// Whether it failed.
    pub error: bool,
    /// Units kept of it.
    pub units: usize,
}

/// A unit of work as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct UnitView {
    /// Its transaction.
    pub trace_id: String,
    /// Its id.
    pub unit_id: String,
    /// Its parent.
    pub parent_id: Option<String>,
    /// Service.
    pub service_name: String,
    /// Class.
    pub request_class: String,
    /// Protocol.
    pub protocol: &'static str,
    /// `server` or `client`.
    pub side: &'static str,
    /// Host.
    pub host: String,
    /// Process.
    pub pid: u32,
    /// Nanoseconds since the epoch.
    pub start_ns: i64,
    /// Seconds.
    pub duration_s: f64,
    /// Seconds.
    pub queue_s: f64,
    /// Seconds.
    pub cpu_s: f64,
    /// Seconds.
    pub runqueue_s: f64,
    /// Seconds.
    pub blocked_s: f64,
    /// Seconds.
    pub downstream_s: f64,
    /// Context switches.
    pub switches: u64,
    /// Status code.
    pub status: Option<u16>,
    /// Whether it failed.
    pub error: bool,
    /// How sure its place is.
    pub grade: &'static str,
    /// Why.
    pub evidence: &'static str,
    /// OpenTelemetry attributes.
    pub attributes: Map<String, Value>,
}

/// Why a transaction is kept.
#[derive(Debug, Default)]
struct Kept {
    units: Vec<Unit>,
    /// How many lists hold it.
    holders: u32,
}

#[derive(Debug, Default)]
struct Class {
    slowest: Vec<(u64, TraceId)>,
    failed: VecDeque<TraceId>,
    sample: Vec<TraceId>,
    seen: u64,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    traces: FxHashMap<TraceId, Kept>,
    recent: VecDeque<TraceId>,
    classes: FxHashMap<ClassId, Class>,
    keep: usize,
    wall_offset: i64,
    host: String,
    /// State of the sampler's generator (xorshift): fairness, not secrecy.
    random: u64,
    /// Units not kept because their transaction had too many.
    pub units_dropped: u64,
}

impl Store {
    /// An empty store of about `keep` transactions; `wall_offset` is wall clock minus monotonic, nanoseconds.
    pub fn new(wall_offset: i64, host: &str, keep: usize) -> Self {
        Self {
            traces: FxHashMap::default(),
            recent: VecDeque::new(),
            classes: FxHashMap::default(),
            keep,
            wall_offset,
            host: host.into(),
            random: 0x9e37_79b9_7f4a_7c15,
            units_dropped: 0,
        }
    }

    /// Transactions kept.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    fn hold(&mut self, trace: TraceId) {
        self.traces.entry(trace).or_default().holders += 1;
    }

    fn release(&mut self, trace: TraceId) {
        if let Some(kept) = self.traces.get_mut(&trace) {
            kept.holders = kept.holders.saturating_sub(1);
            if kept.holders == 0 {
                self.traces.remove(&trace);
            }
        }
    }

    fn rank(&mut self, unit: &Unit) {
        // Classes' lists take at most half of the room; what is left is for the newest.
        if self.traces.len() > self.keep / 2 && !self.classes.contains_key(&unit.class) && self.classes.len() * 30 > self.keep {
            return;
        }
        let class = self.classes.entry(unit.class).or_default();
        let mut released = Vec::new();
        let mut held = 0;
        let trace = unit.trace;
        let duration = unit.duration();
        class.seen += 1;
        if unit.error {
            class.failed.push_back(trace);
            held += 1;
            if class.failed.len() > FAILED {
                released.extend(class.failed.pop_front());
            }
        }
        if class.slowest.len() < SLOWEST || class.slowest.last().is_some_and(|(least, _)| duration > *least) {
            let at = class.slowest.partition_point(|(longer, _)| *longer >= duration);
            class.slowest.insert(at, (duration, trace));
            held += 1;
            if class.slowest.len() > SLOWEST {
                released.extend(class.slowest.pop().map(|(_, trace)| trace));
            }
        }
        // Reservoir sampling (Vitter's algorithm R).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let index = (self.random % class.seen) as usize;
        if class.sample.len() < SAMPLE {
            class.sample.push(trace);
            held += 1;
        } else if let Some(entry) = class.sample.get_mut(index) {
            released.push(std::mem::replace(entry, trace));
            held += 1;
        }
        for _ in 0..held {
            self.hold(trace);
        }
        for trace in released {
            self.release(trace);
        }
    }

    /// Transactions that fit, newest first.
    pub fn transactions(&self, names: &Names, filter: &Filter) -> Vec<Summary> {
        let fits = |unit: &Unit| {
            let class = names.class(unit.class);
            filter.service.as_ref().is_none_or(|want| *names.service(unit.service) == **want)
                && filter.class.as_ref().is_none_or(|want| class.is_some_and(|class| *class.name == **want))
                && filter.min_ms.is_none_or(|min| unit.duration() as f64 / 1e6 >= min)
                && match filter.status.as_deref() {
                    None => true,
                    Some("error") => unit.error,
                    Some("ok") => !unit.error,
                    Some(code) => unit.status.is_some_and(|status| status.to_string() == code),
                }
        };
        let mut found: Vec<(&Unit, usize)> = self
            .traces
            .values()
            .filter_map(|kept| {
                // The request a user made, before the calls it caused.
                let unit = kept
                    .units
                    .iter()
                    .filter(|unit| fits(unit))
                    .min_by_key(|unit| (unit.side == Side::Client, unit.parent.is_some(), unit.start))?;
                Some((unit, kept.units.len()))
            })
            .collect();
        found.sort_by_key(|(unit, _)| std::cmp::Reverse(unit.start));
        found.truncate(filter.limit);
        found
            .into_iter()
            .map(|(unit, units)| Summary {
                trace_id: unit.trace.to_string(),
                service_name: names.service(unit.service).to_string(),
                request_class: names.class(unit.class).map(|class| class.name.to_string()).unwrap_or_default(),
                start_ns: self.wall(unit.start),
                duration_s: unit.duration() as f64 / 1e9,
                status: unit.status,
                error: unit.error,
                units,
            })
            .collect()
    }

    /// The units of a transaction by start; `None` when it is not kept.
    pub fn transaction(&self, names: &Names, trace: TraceId) -> Option<Vec<UnitView>> {
        let kept = self.traces.get(&trace)?;
        let mut units: Vec<&Unit> = kept.units.iter().collect();
        units.sort_by_key(|unit| (unit.start, unit.side == Side::Client));
        Some(units.into_iter().map(|unit| self.show(names, unit)).collect())
    }

    fn wall(&self, nanos: Nanos) -> i64 {
        (nanos as i64).saturating_add(self.wall_offset)
    }

    /// A unit as the API shows it.
    pub fn show(&self, names: &Names, unit: &Unit) -> UnitView {
        show(names, unit, self.wall_offset, &self.host)
    }
}

/// A unit as the API and the transactions file show it.
pub fn show(names: &Names, unit: &Unit, wall_offset: i64, host: &str) -> UnitView {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let class = names.class(unit.class);
    let mut attributes = Map::new();
    let mut set = |key: &str, value: Value| attributes.insert(key.into(), value);
    set("http.request.method", json!(&*unit.method));
    set("url.path", json!(&*unit.path));
    set("network.protocol.version", json!(unit.version));
    set("http.request.size", json!(unit.request_bytes));
    set("http.response.size", json!(unit.reply_bytes));
    set("http.response.body.size", json!(unit.reply_body_bytes));
    set("tracer.outcome", json!(unit.outcome.name()));
    if let Some(class) = class.filter(|class| !class.route.is_empty()) {
        set("http.route", json!(&*class.route));
    }
    if let Some(status) = unit.status {
        set("http.response.status_code", json!(status));
    }
    if unit.first_reply != 0 {
        set("tracer.first_reply_s", json!(seconds(unit.first_reply.saturating_sub(unit.start))));
    }
    let port = if unit.side == Side::Server { unit.local_port } else { unit.peer_port };
    if port != 0 {
        set("server.port", json!(port));
    }
    if !unit.peer.is_empty() {
        set("network.peer.address", json!(&*unit.peer));
        set("network.peer.port", json!(unit.peer_port));
    }
    if let Some(id) = &unit.request_id {
        set("http.request.header.x-request-id", json!(&**id));
    }
    UnitView {
        trace_id: unit.trace.to_string(),
        unit_id: unit.id.to_string(),
        parent_id: unit.parent.map(|parent| parent.to_string()),
        service_name: names.service(unit.service).to_string(),
        request_class: class.map(|class| class.name.to_string()).unwrap_or_default(),
        protocol: unit.protocol,
        side: unit.side.name(),
        host: host.into(),
        pid: unit.pid,
        start_ns: (unit.start as i64).saturating_add(wall_offset),
        duration_s: seconds(unit.duration()),
        queue_s: seconds(unit.queue()),
        cpu_s: seconds(unit.cost.cpu),
        runqueue_s: seconds(unit.cost.runq),
        blocked_s: seconds(unit.cost.blocked),
        downstream_s: seconds(unit.downstream),
        switches: unit.cost.switches,
        status: unit.status,
        error: unit.error,
        grade: unit.grade.name(),
        evidence: unit.evidence,
        attributes,
    }
}

impl Sink for Store {
    fn unit(&mut self, _: &Names, unit: &Unit) {
        self.rank(unit);
        if !self.traces.contains_key(&unit.trace) || self.recent.back() != Some(&unit.trace) {
            self.hold(unit.trace);
            self.recent.push_back(unit.trace);
        }
        if let Some(kept) = self.traces.get_mut(&unit.trace) {
            if kept.units.len() < UNITS {
                kept.units.push(unit.clone());
            } else {
                self.units_dropped += 1;
            }
        }
        while self.recent.len() > self.keep / 2 || self.traces.len() > self.keep && !self.recent.is_empty() {
            if let Some(oldest) = self.recent.pop_front() {
                self.release(oldest);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::{Cost, Grade, Outcome, ServiceId, UnitId};
    use std::sync::Arc;

    pub(crate) fn unit(trace: u128, start: u64, duration: u64, error: bool) -> Unit {
        Unit {
            id: UnitId(start + 1),
            trace: TraceId(trace),
            parent: None,
            side: Side::Server,
            protocol: "http",
            service: ServiceId(0),
            class: ClassId(0),
            pid: 1,
            tid: 1,
            cookie: 1,
            method: Arc::from("GET"),
            path: Arc::from("/a"),
            version: "1.1",
            local_port: 80,
            peer: Arc::from("127.0.0.1"),
            peer_port: 5,
            arrived: 0,
            start,
            first_reply: start,
            end: start + duration,
            request_bytes: 1,
            reply_bytes: 1,
            reply_body_bytes: 0,
            status: Some(if error { 500 } else { 200 }),
            error,
            outcome: Outcome::Complete,
            cost: Cost::default(),
            downstream: 0,
            grade: Grade::Certain,
            evidence: "",
            request_id: None,
        }
    }

    #[test]
    fn the_slow_and_the_failed_outlive_the_many() {
        let (names, mut store) = (Names::default(), Store::new(0, "h", 200));
        store.unit(&names, &unit(1, 0, 1_000_000, false));
        store.unit(&names, &unit(2, 1, 5, true));
        for i in 0..10_000u64 {
            store.unit(&names, &unit(u128::from(i) + 10, i + 2, 10, false));
        }
        assert!(store.len() <= 200, "{}", store.len());
        let all = Filter { limit: 10_000, ..Filter::default() };
        let found = store.transactions(&names, &all);
        assert!(found.iter().any(|summary| summary.duration_s == 0.001));
        let failed = store.transactions(&names, &Filter { status: Some("error".into()), ..all.clone() });
        assert_eq!(failed.len(), 1);
        assert_eq!(store.transactions(&names, &Filter { min_ms: Some(0.5), ..all }).len(), 1);
    }

    #[test]
    fn units_of_a_transaction_come_together() {
        let (names, mut store) = (Names::default(), Store::new(1000, "h", 200));
        for i in 0..300 {
            store.unit(&names, &unit(7, i, 1, false));
        }
        let units = store.transaction(&names, TraceId(7)).unwrap();
        assert_eq!((units.len(), store.units_dropped), (UNITS, 300 - UNITS as u64));
        assert_eq!(units[0].start_ns, 1000);
        assert!(store.transaction(&names, TraceId(8)).is_none());
    }
}
