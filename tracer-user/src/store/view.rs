//! Transactions and spans as the API, the console and the transactions file show them.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::model::{ClassInfo, DeclaredValue, Names, Outcome, ProtocolId, Side, Span, SpanId, TraceId};
use crate::protocols::{Conventions, grpc, http1, messaging};
use crate::text::{is_unsafe, printable};

/// A transaction in a list, described by its topmost span that matches the filter.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Trace id.
    pub trace_id: String,
    /// Service of the topmost matching span.
    pub service_name: String,
    /// Request class of that span.
    pub request_class: String,
    /// Start, nanoseconds since the epoch.
    pub start_ns: i64,
    /// Duration, seconds.
    pub duration_s: f64,
    /// Status code.
    pub status: Option<u16>,
    /// Kind of failure, for protocols that name it by a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<&'static str>,
    /// Whether it failed.
    pub error: bool,
    /// How it ended: `complete`, `aborted`, `upgraded`, or `unfinished` (the agent did not see the end).
    pub outcome: &'static str,
    /// Spans kept of the transaction.
    pub spans: usize,
    /// How many of them failed, even if the transaction as a whole succeeded.
    pub failed_spans: usize,
}

/// A span as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SpanView {
    /// Trace id.
    pub trace_id: String,
    /// Span id.
    pub span_id: String,
    /// Id of the parent span.
    pub parent_span_id: Option<String>,
    /// Producers of the messages that are consumed or moved here, if the messages name them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Number of further links that are not kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub links_dropped: u32,
    /// Number of messages that were seen but not searched for links.
    #[serde(skip_serializing_if = "is_zero")]
    pub messages_unread: u32,
    /// Source of the parent: `traceparent`, `b3`, `connection` (the agent saw the call at the other end) or `relay`
    /// (another host's agent saw it). A call's parent has a grade and evidence instead.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub parent_from: &'static str,
    /// Service name.
    pub service_name: String,
    /// Request class.
    pub request_class: String,
    /// Protocol.
    pub protocol: &'static str,
    /// `server` or `client`.
    pub side: &'static str,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Start, nanoseconds since the epoch.
    pub start_ns: i64,
    /// Duration, seconds.
    pub duration_s: f64,
    /// Seconds from the arrival of the first byte until it was read.
    pub queue_s: f64,
    /// Part of `queue_s` before the connection was accepted; `null` if not known.
    pub accept_queue_s: Option<f64>,
    /// Part of `queue_s` after that; `null` if not known.
    pub socket_queue_s: Option<f64>,
    /// Seconds its jobs provably waited for pool threads, within its duration; absent if it had none or that is not
    /// certain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_queue_s: Option<f64>,
    /// Seconds from its end to the last work its worker did for it after the reply; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_reply_s: Option<f64>,
    /// Part of `cpu_s` used after the reply; absent if negligible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_reply_cpu_s: Option<f64>,
    /// CPU time, seconds.
    pub cpu_s: f64,
    /// Time waiting for a CPU, seconds.
    pub runqueue_s: f64,
    /// Time blocked, seconds.
    pub blocked_s: f64,
    /// Time waiting for downstream calls, seconds.
    pub downstream_s: f64,
    /// Context switches.
    pub switches: u64,
    /// Status code.
    pub status: Option<u16>,
    /// Kind of failure, for protocols that name it by a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<&'static str>,
    /// Whether it failed.
    pub error: bool,
    /// How certain its parent is.
    pub grade: &'static str,
    /// The evidence for it.
    pub evidence: &'static str,
    /// OpenTelemetry attributes. Never a query string or a body.
    pub attributes: Map<String, Value>,
}

/// A link to a span of another transaction that caused this one.
#[derive(Clone, Debug, Serialize)]
pub struct Link {
    /// Trace id of the linked span.
    pub trace_id: String,
    /// Id of the linked span.
    pub span_id: String,
}

fn link((trace, span): &(TraceId, SpanId)) -> Link {
    Link { trace_id: trace.to_string(), span_id: span.to_string() }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Nanoseconds as seconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// A span as the API and the transactions file show it; `wall_offset` is wall clock minus monotonic clock, nanoseconds.
pub fn show(names: &Names, span: &Span, wall_offset: i64, host: &str) -> SpanView {
    let class = names.class(span.class);
    SpanView {
        trace_id: span.trace.to_string(),
        span_id: span.id.to_string(),
        parent_span_id: span.parent.map(|parent| parent.to_string()),
        links: span.linked.iter().flat_map(|linked| &linked.to).map(link).collect(),
        links_dropped: span.linked.as_ref().map_or(0, |linked| linked.dropped),
        messages_unread: span.linked.as_ref().map_or(0, |linked| linked.unread),
        parent_from: span.carrier,
        service_name: names.service(span.service).to_string(),
        request_class: class.map(|class| class.name.to_string()).unwrap_or_default(),
        protocol: span.protocol.name(),
        side: span.side.name(),
        host: host.into(),
        pid: span.pid,
        start_ns: (span.start as i64).saturating_add(wall_offset),
        duration_s: seconds(span.duration()),
        queue_s: seconds(span.queue()),
        accept_queue_s: span.queues().map(|queues| seconds(queues.accept)),
        pool_queue_s: span.pool_queue.map(seconds),
        after_reply_s: span.after_reply.map(|after| seconds(after.time)),
        after_reply_cpu_s: span.after_reply.map(|after| seconds(after.cpu)),
        socket_queue_s: span.queues().map(|queues| seconds(queues.socket)),
        cpu_s: seconds(span.cost.cpu),
        runqueue_s: seconds(span.cost.runq),
        blocked_s: seconds(span.cost.blocked),
        downstream_s: seconds(span.downstream),
        switches: span.cost.switches,
        status: span.status,
        failure: span.failure,
        error: span.error,
        grade: span.grade.name(),
        evidence: span.evidence,
        attributes: attributes(class, span),
    }
}

/// A value made safe to display.
fn shown(value: Value) -> Value {
    match value {
        Value::String(text) if text.chars().any(is_unsafe) => Value::String(printable(&text).into_owned()),
        value => value,
    }
}

fn scheme(span: &Span) -> &'static str {
    if span.encrypted { "https" } else { "http" }
}

/// The address a client asked for, without query: what it named the server is not kept, so its numeric address stands for
/// it. `None` for servers, and where there is no address.
fn full_url(span: &Span) -> Option<String> {
    if span.side == Side::Server || span.peer_port == 0 || !span.path.starts_with('/') {
        return None;
    }
    let address: std::net::IpAddr = span.peer.parse().ok()?;
    let address = std::net::SocketAddr::new(address, span.peer_port);
    Some(format!("{}://{address}{}", scheme(span), span.path))
}

/// Attributes by OpenTelemetry's conventions, else `tracer.…`. Never a query string or a body.
pub fn attributes(class: Option<&ClassInfo>, span: &Span) -> Map<String, Value> {
    let mut attributes = Map::new();
    let mut set = |key: &str, value: Value| attributes.insert(printable(key).into_owned(), shown(value));
    let conventions = span.protocol.conventions();
    if conventions == Conventions::Database {
        set("db.system.name", json!(span.protocol));
        set("db.operation.name", json!(&*span.method));
        if !span.path.is_empty() {
            set("db.query.summary", json!(&*span.path));
        }
        if let Some(collection) = span.collection() {
            set("db.collection.name", json!(collection));
        }
        set("tracer.request.size", json!(span.request_bytes));
        set("tracer.response.size", json!(span.reply_bytes));
        if let Some(failure) = span.failure {
            set("db.response.status_code", json!(failure));
        }
    } else if conventions == Conventions::Messaging {
        set("messaging.system", json!(messaging::system(span.protocol)));
        set("messaging.operation.name", json!(&*span.method));
        let kind = messaging::operation_type(&span.method);
        if !kind.is_empty() {
            set("messaging.operation.type", json!(kind));
        }
        if !span.path.is_empty() {
            set("messaging.destination.name", json!(&*span.path));
        }
        if let Some(class) = class.filter(|class| !class.route.is_empty()) {
            set("messaging.destination.template", json!(&*class.route));
        }
        set("tracer.request.size", json!(span.request_bytes));
        set("tracer.response.size", json!(span.reply_bytes));
    } else if matches!(conventions, Conventions::Names | Conventions::Turns) {
        if conventions == Conventions::Names {
            set("dns.question.type", json!(&*span.method));
            if let Some(name) = span.collection() {
                set("dns.question.name", json!(name));
            }
        } else if span.protocol == ProtocolId::Tls {
            if let Some(name) = span.collection() {
                set("tls.client.server_name", json!(name));
            }
            if !span.version.is_empty() {
                set("tracer.tls.offered_protocols", json!(span.version));
            }
        }
        set("tracer.request.size", json!(span.request_bytes));
        set("tracer.response.size", json!(span.reply_bytes));
    } else if conventions == Conventions::Function {
        set("code.function.name", json!(&*span.method));
    } else if conventions == Conventions::Rpc {
        set("rpc.system.name", json!(grpc::NAME));
        set("rpc.method", json!(grpc::method(&span.path)));
        if let Some(word) = span.status.and_then(grpc::word) {
            set("rpc.response.status_code", json!(word));
        }
        set("tracer.request.size", json!(span.request_bytes));
        set("tracer.response.size", json!(span.reply_bytes));
    } else {
        let method = http1::conventional_method(&span.method);
        set("http.request.method", json!(method));
        if *method != *span.method {
            set("http.request.method_original", json!(&*span.method));
        }
        set("url.path", json!(&*span.path));
        set("url.scheme", json!(scheme(span)));
        if let Some(url) = full_url(span) {
            set("url.full", json!(url));
        }
        set("network.protocol.version", json!(span.version));
        set("http.request.size", json!(span.request_bytes));
        set("http.response.size", json!(span.reply_bytes));
        if let Some(bytes) = span.reply_body_bytes {
            set("http.response.body.size", json!(bytes));
        }
    }
    set("network.protocol.name", json!(span.protocol));
    set("thread.id", json!(span.tid));
    set("tracer.outcome", json!(span.outcome.name()));
    let is_http = matches!(conventions, Conventions::Http | Conventions::Session);
    if let Some(class) = class.filter(|class| is_http && !class.route.is_empty()) {
        // A route is the server's; what a client knows is a template of the address it asked for.
        set(if span.side == Side::Server { "http.route" } else { "url.template" }, json!(&*class.route));
    }
    if let Some(status) = span.status.filter(|_| span.protocol != ProtocolId::Grpc) {
        set("http.response.status_code", json!(status));
    }
    match (span.error, span.outcome, span.status) {
        (false, ..) => None,
        _ if span.protocol == ProtocolId::Grpc => set("error.type", json!(grpc::error_type(span))),
        _ if conventions == Conventions::Names => set("error.type", json!(span.failure.unwrap_or(span.outcome.name()))),
        (true, Outcome::Aborted, _) => set("error.type", json!(span.outcome.name())),
        (true, _, Some(status)) => set("error.type", json!(status.to_string())),
        (true, _, None) => set("error.type", json!(span.failure.unwrap_or(span.outcome.name()))),
    };
    if span.first_reply != 0 {
        set("tracer.first_reply.time", json!(seconds(span.first_reply.saturating_sub(span.start))));
    }
    let port = if span.side == Side::Server { span.local_port } else { span.peer_port };
    if port != 0 {
        set("server.port", json!(port));
    }
    if !span.peer.is_empty() {
        set("network.peer.address", json!(&*span.peer));
        set("network.peer.port", json!(span.peer_port));
        if span.side == Side::Client {
            set("server.address", json!(&*span.peer));
        } else if matches!(conventions, Conventions::Http | Conventions::Rpc) {
            set("client.address", json!(&*span.peer));
        }
    }
    if let Some(sampled) = span.sampled {
        set("tracer.parent.sampled", json!(sampled));
    }
    if let Some(carried) = span.carried.as_ref().filter(|carried| !carried.service_class.is_empty()) {
        set("tracer.service_class", json!(&*carried.service_class));
    }
    for (name, value) in span.carried.iter().flat_map(|carried| &carried.baggage) {
        set(&format!("baggage.{name}"), json!(value));
    }
    if let Some(far) = &span.far {
        set("tracer.remote.host", json!(&*far.host));
        if !far.service.is_empty() {
            set("tracer.caller.service", json!(&*far.service));
            set("tracer.caller.class", json!(&*far.class));
        }
        if let Some(end) = &far.end {
            set("tracer.remote.span_id", json!(end.span.to_string()));
            set("tracer.remote.time", json!(seconds(end.duration)));
            set("tracer.remote.queue.time", json!(seconds(end.queue)));
            set("tracer.remote.cpu.time", json!(seconds(end.cpu)));
            set("tracer.network.time", json!(seconds(end.network)));
        }
    }
    if let Some(id) = &span.request_id {
        set("http.request.header.x-request-id", json!(&**id));
    }
    if let Some(facts) = &span.declared {
        if let Some(user) = &facts.user {
            set("enduser.id", json!(&**user));
        }
        for (name, value) in &facts.metrics {
            let value = match value {
                // What 64 bits do not hold cannot come from a register.
                DeclaredValue::Number(number) => {
                    i64::try_from(*number).map_or_else(|_| json!(number.to_string()), Value::from)
                }
                DeclaredValue::Text(text) => json!(&**text),
            };
            set(&format!("tracer.metric.{name}"), value);
        }
    }
    attributes
}
