//! Transactions and spans as the API, the console and the transactions file show them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::attributes::Attributes;
use crate::model::{Names, Nanos, Opening, Span, SpanId, TraceId};

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
    /// If its process died before it answered: the signal, or `exit_code_N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_end: Option<&'static str>,
    /// Spans kept of the transaction.
    pub spans: usize,
    /// How many of them failed, even if the transaction as a whole succeeded.
    pub failed_spans: usize,
}

/// A span as the API shows it; `A` holds its attributes.
#[derive(Clone, Debug, Serialize)]
pub struct SpanView<A = Map<String, Value>> {
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
    /// When its connection was opened for it, nanoseconds since the epoch; absent if it is not the first call there, or that
    /// was not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_start_ns: Option<i64>,
    /// When its connection's TLS handshake began; absent likewise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_start_ns: Option<i64>,
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
    /// How many spans this one stands for, in files of which not all are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adjusted_count: Option<f64>,
    /// How certain its parent is.
    pub grade: &'static str,
    /// The evidence for it.
    pub evidence: &'static str,
    /// OpenTelemetry attributes. Never a query string or a body.
    pub attributes: A,
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

/// A span as the API shows it; `wall_offset` is wall clock minus monotonic clock, nanoseconds.
pub fn show(names: &Names, span: &Span, wall_offset: i64, host: &str) -> SpanView {
    let class = names.class(span.class);
    view(names, span, wall_offset, host, Attributes { class, span }.to_map())
}

/// The same, to be written only.
pub fn show_to_write<'a>(names: &'a Names, span: &'a Span, wall_offset: i64, host: &str) -> SpanView<Attributes<'a>> {
    let class = names.class(span.class);
    view(names, span, wall_offset, host, Attributes { class, span })
}

fn view<A>(names: &Names, span: &Span, wall_offset: i64, host: &str, attributes: A) -> SpanView<A> {
    let class = names.class(span.class);
    let opened = |at: fn(&Opening) -> Nanos| {
        let at = span.opening.as_deref().map(at).filter(|at| *at != 0)?;
        Some((at as i64).saturating_add(wall_offset))
    };
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
        connect_start_ns: opened(|opening| opening.connect),
        tls_start_ns: opened(|opening| opening.hello),
        socket_queue_s: span.queues().map(|queues| seconds(queues.socket)),
        cpu_s: seconds(span.cost.cpu),
        runqueue_s: seconds(span.cost.runq),
        blocked_s: seconds(span.cost.blocked),
        downstream_s: seconds(span.downstream),
        switches: span.cost.switches,
        status: span.status,
        failure: span.failure,
        error: span.error,
        adjusted_count: span.kept.map(|kept| kept.threshold.adjusted_count()),
        grade: span.grade.name(),
        evidence: span.evidence,
        attributes,
    }
}
