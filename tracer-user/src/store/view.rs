//! Transactions and units of work as the API, the console and the transactions file show them.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::model::{ClassInfo, Names, Outcome, Side, TraceId, Unit, UnitId};
use crate::protocols::tls::Tls;
use crate::protocols::{Conventions, Protocol as _, conventions, grpc, messaging};

/// A transaction in a list. The row describes the topmost unit that fits the filter.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its id.
    pub trace_id: String,
    /// Service of that unit.
    pub service_name: String,
    /// Its class.
    pub request_class: String,
    /// Nanoseconds since the epoch.
    pub start_ns: i64,
    /// Seconds.
    pub duration_s: f64,
    /// Status code.
    pub status: Option<u16>,
    /// Kind of failure, where the protocol says it by a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<&'static str>,
    /// Whether it failed.
    pub error: bool,
    /// Units kept of the transaction.
    pub units: usize,
    /// How many of them failed: also of a transaction that ended well.
    pub failed_units: usize,
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
    /// Producers of the messages that are consumed or moved here, where they say so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// More of them, that are not kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub links_dropped: u32,
    /// Messages that are known of and were not looked into for links.
    #[serde(skip_serializing_if = "is_zero")]
    pub messages_unread: u32,
    /// What named the parent: `traceparent`, `b3`, or `connection` (the call at its other end was seen) or `relay` (another
    /// host's agent saw it); a call's parent
    /// has a grade and evidence.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub parent_from: &'static str,
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
    /// Seconds from the arrival of the first byte until it was read.
    pub queue_s: f64,
    /// Seconds of these before the connection was accepted; `null` when not known.
    pub accept_queue_s: Option<f64>,
    /// Seconds of these after that; `null` when not known.
    pub socket_queue_s: Option<f64>,
    /// Seconds its jobs waited for threads of pools, within its duration; absent when it had none or it is not certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_queue_s: Option<f64>,
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
    /// Kind of failure, where the protocol says it by a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<&'static str>,
    /// Whether it failed.
    pub error: bool,
    /// How sure its place is.
    pub grade: &'static str,
    /// Why.
    pub evidence: &'static str,
    /// OpenTelemetry attributes. Never a query string or a body.
    pub attributes: Map<String, Value>,
}

/// A unit of another transaction that this one came of.
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    /// Its transaction.
    pub trace_id: String,
    /// Its id.
    pub span_id: String,
}

fn link((trace, unit): &(TraceId, UnitId)) -> Link {
    Link { trace_id: trace.to_string(), span_id: unit.to_string() }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Seconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A unit as the API and the transactions file show it; `wall_offset` is wall clock minus monotonic, nanoseconds.
pub fn show(names: &Names, unit: &Unit, wall_offset: i64, host: &str) -> UnitView {
    let class = names.class(unit.class);
    UnitView {
        trace_id: unit.trace.to_string(),
        unit_id: unit.id.to_string(),
        parent_id: unit.parent.map(|parent| parent.to_string()),
        links: unit.linked.iter().flat_map(|linked| &linked.to).map(link).collect(),
        links_dropped: unit.linked.as_ref().map_or(0, |linked| linked.dropped),
        messages_unread: unit.linked.as_ref().map_or(0, |linked| linked.unread),
        parent_from: unit.carrier,
        service_name: names.service(unit.service).to_string(),
        request_class: class.map(|class| class.name.to_string()).unwrap_or_default(),
        protocol: unit.protocol,
        side: unit.side.name(),
        host: host.into(),
        pid: unit.pid,
        start_ns: (unit.start as i64).saturating_add(wall_offset),
        duration_s: seconds(unit.duration()),
        queue_s: seconds(unit.queue()),
        accept_queue_s: unit.queues().map(|queues| seconds(queues.accept)),
        pool_queue_s: unit.pool_queue.map(seconds),
        socket_queue_s: unit.queues().map(|queues| seconds(queues.socket)),
        cpu_s: seconds(unit.cost.cpu),
        runqueue_s: seconds(unit.cost.runq),
        blocked_s: seconds(unit.cost.blocked),
        downstream_s: seconds(unit.downstream),
        switches: unit.cost.switches,
        status: unit.status,
        failure: unit.failure,
        error: unit.error,
        grade: unit.grade.name(),
        evidence: unit.evidence,
        attributes: attributes(class, unit),
    }
}

/// What OpenTelemetry's conventions have a name for, and `tracer.…` where they have none. Never a query string or a body.
pub fn attributes(class: Option<&ClassInfo>, unit: &Unit) -> Map<String, Value> {
    let mut attributes = Map::new();
    let mut set = |key: &str, value: Value| attributes.insert(key.into(), value);
    let conventions = conventions(unit.protocol);
    if conventions == Conventions::Database {
        set("db.system.name", json!(unit.protocol));
        set("db.operation.name", json!(&*unit.method));
        if !unit.path.is_empty() {
            set("db.query.summary", json!(&*unit.path));
        }
        if let Some(collection) = unit.collection() {
            set("db.collection.name", json!(collection));
        }
        set("tracer.request.size", json!(unit.request_bytes));
        set("tracer.response.size", json!(unit.reply_bytes));
        if let Some(failure) = unit.failure {
            set("db.response.status_code", json!(failure));
        }
    } else if conventions == Conventions::Messaging {
        set("messaging.system", json!(messaging::system(unit.protocol)));
        set("messaging.operation.name", json!(&*unit.method));
        let kind = messaging::operation_type(&unit.method);
        if !kind.is_empty() {
            set("messaging.operation.type", json!(kind));
        }
        if !unit.path.is_empty() {
            set("messaging.destination.name", json!(&*unit.path));
        }
        if let Some(class) = class.filter(|class| !class.route.is_empty()) {
            set("messaging.destination.template", json!(&*class.route));
        }
        set("tracer.request.size", json!(unit.request_bytes));
        set("tracer.response.size", json!(unit.reply_bytes));
    } else if matches!(conventions, Conventions::Names | Conventions::Turns) {
        if conventions == Conventions::Names {
            set("dns.question.type", json!(&*unit.method));
            if let Some(name) = unit.collection() {
                set("dns.question.name", json!(name));
            }
        } else if unit.protocol == Tls.name() {
            if let Some(name) = unit.collection() {
                set("tls.client.server_name", json!(name));
            }
            if !unit.version.is_empty() {
                set("tracer.tls.offered_protocols", json!(unit.version));
            }
        }
        set("tracer.request.size", json!(unit.request_bytes));
        set("tracer.response.size", json!(unit.reply_bytes));
    } else if conventions == Conventions::Rpc {
        set("rpc.system.name", json!(grpc::NAME));
        set("rpc.method", json!(grpc::method(&unit.path)));
        if let Some(word) = unit.status.and_then(grpc::word) {
            set("rpc.response.status_code", json!(word));
        }
        set("tracer.request.size", json!(unit.request_bytes));
        set("tracer.response.size", json!(unit.reply_bytes));
    } else {
        set("http.request.method", json!(&*unit.method));
        set("url.path", json!(&*unit.path));
        set("network.protocol.version", json!(unit.version));
        set("http.request.size", json!(unit.request_bytes));
        set("http.response.size", json!(unit.reply_bytes));
        if let Some(bytes) = unit.reply_body_bytes {
            set("http.response.body.size", json!(bytes));
        }
    }
    set("network.protocol.name", json!(unit.protocol));
    set("thread.id", json!(unit.tid));
    set("tracer.outcome", json!(unit.outcome.name()));
    let is_http = matches!(conventions, Conventions::Http | Conventions::Session);
    if let Some(class) = class.filter(|class| is_http && !class.route.is_empty()) {
        set("http.route", json!(&*class.route));
    }
    if let Some(status) = unit.status.filter(|_| unit.protocol != grpc::NAME) {
        set("http.response.status_code", json!(status));
    }
    match (unit.error, unit.outcome, unit.status) {
        (false, ..) => None,
        _ if unit.protocol == grpc::NAME => set("error.type", json!(grpc::error_type(unit))),
        _ if conventions == Conventions::Names => set("error.type", json!(unit.failure.unwrap_or(unit.outcome.name()))),
        (true, Outcome::Aborted | Outcome::Unfinished, _) => set("error.type", json!(unit.outcome.name())),
        (true, _, Some(status)) => set("error.type", json!(status.to_string())),
        (true, _, None) => set("error.type", json!(unit.failure.unwrap_or(unit.outcome.name()))),
    };
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
        if unit.side == Side::Client {
            set("server.address", json!(&*unit.peer));
        }
    }
    if let Some(sampled) = unit.sampled {
        set("tracer.parent.sampled", json!(sampled));
    }
    if let Some(carried) = unit.carried.as_ref().filter(|carried| !carried.service_class.is_empty()) {
        set("tracer.service_class", json!(&*carried.service_class));
    }
    for (name, value) in unit.carried.iter().flat_map(|carried| &carried.baggage) {
        set(&format!("baggage.{name}"), json!(value));
    }
    if let Some(far) = &unit.far {
        set("tracer.far.host", json!(&*far.host));
        if !far.service.is_empty() {
            set("tracer.caller.service", json!(&*far.service));
            set("tracer.caller.class", json!(&*far.class));
        }
        if let Some(end) = &far.end {
            set("tracer.far.unit_id", json!(end.unit.to_string()));
            set("tracer.far.duration_s", json!(seconds(end.duration)));
            set("tracer.far.queue_s", json!(seconds(end.queue)));
            set("tracer.far.cpu_s", json!(seconds(end.cpu)));
            set("tracer.network_s", json!(seconds(end.network)));
        }
    }
    if let Some(id) = &unit.request_id {
        set("http.request.header.x-request-id", json!(&**id));
    }
    attributes
}
