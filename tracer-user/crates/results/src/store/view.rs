//! Transactions and spans as the API, the console and the transactions file show them.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tracer_model::{ClassInfo, Names, Nanos, Opening, Span, SpanId, TraceId};

use super::attributes::Attributes;

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
    /// If it failed and an exception was thrown for it: the type of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exception_type: Option<String>,
    /// Spans kept of the transaction.
    pub spans: usize,
    /// How many of them failed, even if the transaction as a whole succeeded.
    pub failed_spans: usize,
}

/// A finished span as the API, the console and files show it: the span itself, and what its form there needs besides.
/// Serializing it makes that form (`http/openapi/answers.rs` has its shape), without one in memory. Never a query string or
/// a body.
#[derive(Clone, Debug)]
pub struct SpanView<'a> {
    /// The span.
    pub span: Cow<'a, Span>,
    /// Name of its service.
    pub service_name: Arc<str>,
    /// Its class, if known.
    class: Option<Cow<'a, ClassInfo>>,
    /// Name of the host.
    host: Cow<'a, str>,
    /// Wall clock minus monotonic clock, nanoseconds.
    wall_offset: i64,
}

impl<'a> SpanView<'a> {
    /// The view of `span`; `wall_offset` is wall clock minus monotonic clock, nanoseconds.
    pub fn of(names: &'a Names, span: &'a Span, wall_offset: i64, host: &'a str) -> Self {
        Self {
            span: Cow::Borrowed(span),
            service_name: names.service(span.service),
            class: names.class(span.class).map(Cow::Borrowed),
            host: Cow::Borrowed(host),
            wall_offset,
        }
    }

    /// The same with a copy of everything.
    pub fn into_owned(self) -> SpanView<'static> {
        SpanView {
            span: Cow::Owned(self.span.into_owned()),
            service_name: self.service_name,
            class: self.class.map(|class| Cow::Owned(class.into_owned())),
            host: Cow::Owned(self.host.into_owned()),
            wall_offset: self.wall_offset,
        }
    }

    /// Its request class.
    pub fn request_class(&self) -> &str {
        self.class.as_ref().map_or("", |class| &class.name)
    }

    /// Start, nanoseconds since the epoch.
    pub fn start_ns(&self) -> i64 {
        self.wall(self.span.start)
    }

    /// End, nanoseconds since the epoch.
    pub fn end_ns(&self) -> i64 {
        self.start_ns().saturating_add_unsigned(self.span.duration())
    }

    /// OpenTelemetry attributes.
    pub fn attributes(&self) -> Attributes<'_> {
        Attributes { class: self.class.as_deref(), span: &self.span }
    }

    fn wall(&self, at: Nanos) -> i64 {
        (at as i64).saturating_add(self.wall_offset)
    }

    /// When its connection was opened, if that was for it and seen.
    fn opened(&self, at: fn(&Opening) -> Nanos) -> Option<i64> {
        let at = self.span.opening.as_deref().map(at).filter(|at| *at != 0)?;
        Some(self.wall(at))
    }
}

/// An id, serialized as its text.
struct Id<T>(T);

impl<T: Display> Serialize for Id<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A link to a span of another transaction that caused this one.
#[derive(Serialize)]
struct Link {
    trace_id: Id<TraceId>,
    span_id: Id<SpanId>,
}

/// Adds an entry, if there is a value.
fn add<M: SerializeMap>(map: &mut M, name: &'static str, value: Option<impl Serialize>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

impl Serialize for SpanView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (span, queues) = (&*self.span, self.span.queues());
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("trace_id", &Id(span.trace))?;
        map.serialize_entry("span_id", &Id(span.id))?;
        map.serialize_entry("parent_span_id", &span.parent.map(Id))?;
        if let Some(linked) = &span.linked {
            let links = linked.to.iter().map(|(trace, span)| Link { trace_id: Id(*trace), span_id: Id(*span) });
            let links: Vec<Link> = links.collect();
            add(&mut map, "links", (!links.is_empty()).then_some(links))?;
            add(&mut map, "links_dropped", (linked.dropped != 0).then_some(linked.dropped))?;
            add(&mut map, "messages_unread", (linked.unread != 0).then_some(linked.unread))?;
        }
        add(&mut map, "parent_from", (!span.carrier.is_empty()).then_some(span.carrier))?;
        map.serialize_entry("service_name", &*self.service_name)?;
        map.serialize_entry("request_class", self.request_class())?;
        map.serialize_entry("protocol", span.protocol.name())?;
        map.serialize_entry("side", span.side.name())?;
        map.serialize_entry("host", &*self.host)?;
        map.serialize_entry("pid", &span.pid)?;
        map.serialize_entry("start_ns", &self.start_ns())?;
        map.serialize_entry("duration_s", &seconds(span.duration()))?;
        map.serialize_entry("queue_s", &seconds(span.queue()))?;
        map.serialize_entry("accept_queue_s", &queues.map(|queues| seconds(queues.accept)))?;
        map.serialize_entry("socket_queue_s", &queues.map(|queues| seconds(queues.socket)))?;
        add(&mut map, "pool_queue_s", span.pool_queue.map(seconds))?;
        add(&mut map, "after_reply_s", span.after_reply.map(|after| seconds(after.time)))?;
        add(&mut map, "after_reply_cpu_s", span.after_reply.map(|after| seconds(after.cpu)))?;
        add(&mut map, "connect_start_ns", self.opened(|opening| opening.connect))?;
        add(&mut map, "tls_start_ns", self.opened(|opening| opening.hello))?;
        map.serialize_entry("cpu_s", &seconds(span.cost.cpu))?;
        map.serialize_entry("runqueue_s", &seconds(span.cost.runq))?;
        map.serialize_entry("blocked_s", &seconds(span.cost.blocked))?;
        map.serialize_entry("downstream_s", &seconds(span.downstream))?;
        map.serialize_entry("switches", &span.cost.switches)?;
        map.serialize_entry("status", &span.status)?;
        add(&mut map, "failure", span.failure)?;
        map.serialize_entry("error", &span.error)?;
        add(&mut map, "adjusted_count", span.kept.map(|kept| kept.threshold.adjusted_count()))?;
        map.serialize_entry("grade", span.grade.name())?;
        map.serialize_entry("evidence", span.evidence)?;
        map.serialize_entry("attributes", &self.attributes())?;
        map.end()
    }
}

/// Nanoseconds as seconds.
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
