//! Converts spans to OTLP. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use tracer_host::container_names::NamesCache;
use tracer_host::instance::Instance;
use tracer_model::text::printable;
use tracer_model::{ClassInfo, ProtocolId, Queues, Side, Span, SpanId, Threshold, TraceFlags, TraceId};
use tracer_policies::tail_sampling::with_threshold;
use tracer_protocols::{Conventions, messaging};
use tracer_results::store::{AttributeValue, Attributes};

use super::instance::{HostFacts, process_resource};
use super::proto::{
    Code, KeyValue, Link, OtlpSpan, REMOTE, REMOTE_KNOWN, Request, ResourceSpans, Scope, ScopeSpans, SpanKind, Status,
    Value,
};

/// The version of OpenTelemetry's semantic conventions whose names spans, metrics, logs and profiles use: the first without
/// `network.protocol.name` on calls. `conventions.txt` has its names; a test compares them with those that are sent.
pub(super) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.40.0";
/// Longest attribute text, bytes.
const TEXT: usize = 1024;

/// A queued span with what its conversion needs.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    pub(super) span: Span,
    pub(super) service: Arc<str>,
    pub(super) class: Option<ClassInfo>,
    /// Its process; none if it could not be inspected.
    pub(super) instance: Option<Arc<Instance>>,
    /// Wall clock minus `CLOCK_MONOTONIC`, nanoseconds.
    pub(super) wall_offset: i64,
    /// The threshold by which it was chosen, if not all are exported.
    pub(super) threshold: Option<Threshold>,
}

/// A request with these spans, grouped by service and process.
pub(super) fn request(spans: &[Finished], host: &HostFacts, names: &NamesCache, more: &[(String, String)]) -> Request {
    let mut services: BTreeMap<(&str, Cow<'_, Instance>), Vec<OtlpSpan>> = BTreeMap::new();
    for span in spans {
        let unknown = || Cow::Owned(Instance::unknown(span.span.pid));
        let instance = span.instance.as_deref().map_or_else(unknown, Cow::Borrowed);
        services.entry((&span.service, instance)).or_default().push(to_otlp(span, host));
    }
    let resource_spans = services.into_iter().map(|((service, instance), spans)| {
        let names = instance.container.as_ref().and_then(|container| names.get(container));
        let scope = Scope { name: "tracer".into(), version: env!("CARGO_PKG_VERSION").into() };
        ResourceSpans {
            resource: Some(process_resource(&instance, service, host, names, more)),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            schema_url: SCHEMA.into(),
        }
    });
    Request { resource_spans: resource_spans.collect() }
}

fn to_otlp(finished: &Finished, host: &HostFacts) -> OtlpSpan {
    let Finished { span, class, wall_offset, .. } = finished;
    let wall = |nanos: u64| u64::try_from((nanos as i64).saturating_add(*wall_offset)).unwrap_or(0);
    let seconds = |nanos: u64| Value::Double(nanos as f64 / 1e9);
    let name = class.as_ref().map_or_else(|| span.method.to_string(), |class| class.name.to_string());
    let mut all: Vec<KeyValue> = Vec::new();
    Attributes { class: class.as_ref(), span }.each(&mut |name, value| all.push(attribute(name, value)));
    // The name a client used is not kept, so a server's address is its host's name.
    let is_http = matches!(span.protocol.conventions(), Conventions::Http | Conventions::Rpc);
    if span.side == Side::Server && is_http && span.local_port != 0 {
        all.push(KeyValue::text("server.address", &*host.name));
    }
    all.push(KeyValue::text("tracer.request_class", &*name));
    all.push(KeyValue::text("tracer.grade", span.grade.name()));
    all.push(KeyValue::text("tracer.evidence", span.evidence));
    if !span.carrier.is_empty() {
        all.push(KeyValue::text("tracer.parent.carrier", span.carrier));
    }
    all.push(KeyValue::of("tracer.context_switches", Value::Int(span.cost.switches as i64)));
    for (key, nanos) in [
        ("tracer.queue.time", span.queue()),
        ("tracer.cpu.time", span.cost.cpu),
        ("tracer.runqueue.time", span.cost.runq),
        ("tracer.blocked.time", span.cost.blocked),
        ("tracer.downstream.time", span.downstream),
    ] {
        all.push(KeyValue::of(key, seconds(nanos)));
    }
    // If the split between the two queues is unknown, only the sum is exported.
    if let Some(Queues { accept, socket }) = span.queues() {
        all.push(KeyValue::of("tracer.accept_queue.time", seconds(accept)));
        all.push(KeyValue::of("tracer.socket_queue.time", seconds(socket)));
    }
    if let Some(waited) = span.pool_queue {
        all.push(KeyValue::of("tracer.pool_queue.time", seconds(waited)));
    }
    if let Some(after) = span.after_reply {
        all.push(KeyValue::of("tracer.after_reply.time", seconds(after.time)));
        all.push(KeyValue::of("tracer.after_reply.cpu.time", seconds(after.cpu)));
    }
    OtlpSpan {
        trace_id: span.trace.0.to_be_bytes().to_vec(),
        span_id: span.id.0.to_be_bytes().to_vec(),
        trace_state: trace_state(finished),
        parent_span_id: span.parent.map(|parent| parent.0.to_be_bytes().to_vec()).unwrap_or_default(),
        name,
        kind: kind(span) as i32,
        start_time_unix_nano: wall(span.start),
        end_time_unix_nano: wall(span.end.max(span.start)),
        attributes: all,
        links: span.linked.iter().flat_map(|linked| &linked.to).map(link).collect(),
        dropped_links_count: span.linked.as_ref().map_or(0, |linked| linked.dropped),
        status: span.error.then(|| Status { message: message(span), code: Code::Error as i32 }),
        flags: flags(span),
    }
}

/// What its transaction propagates, with the threshold of this span in the place of its caller's: whether the caller was sampled
/// did not decide about it.
fn trace_state(finished: &Finished) -> String {
    let state = finished.span.carried.as_ref().map(|carried| printable(&carried.state)).unwrap_or_default();
    match finished.threshold {
        Some(threshold) => with_threshold(&state, threshold),
        None => state.into_owned(),
    }
}

/// What is known of a failure beyond its type.
fn message(span: &Span) -> String {
    let ended = span.process_end.map(|end| end.to_string());
    ended.unwrap_or_else(|| span.failure.unwrap_or_default().to_owned())
}

fn kind(span: &Span) -> SpanKind {
    if span.protocol.conventions() == Conventions::Messaging && messaging::is_of_client(span) {
        match messaging::operation_type(&span.method) {
            "send" => return SpanKind::Producer,
            "process" => return SpanKind::Consumer,
            _ => {}
        }
    }
    if span.protocol == ProtocolId::Declared {
        return SpanKind::Internal;
    }
    if span.side == Side::Server { SpanKind::Server } else { SpanKind::Client }
}

fn link((trace, span): &(TraceId, SpanId)) -> Link {
    Link { trace_id: trace.0.to_be_bytes().to_vec(), span_id: span.0.to_be_bytes().to_vec() }
}

/// The trace flags are those propagated with the transaction, if any; the export share is decided by trace id instead.
fn flags(span: &Span) -> u32 {
    let remote = if span.side == Side::Server && span.parent.is_some() { REMOTE } else { 0 };
    u32::from(span.trace_flags.unwrap_or(TraceFlags::DRAWN).bits()) | REMOTE_KNOWN | remote
}

fn attribute(name: &str, value: AttributeValue<'_>) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::Text(bounded(text)),
        AttributeValue::Count(count) => i64::try_from(count).map_or(Value::Double(count as f64), Value::Int),
        AttributeValue::Int(number) => Value::Int(number),
        AttributeValue::Seconds(seconds) => Value::Double(seconds),
        AttributeValue::Bool(flag) => Value::Bool(flag),
    };
    KeyValue::of(name, value)
}

pub(super) fn bounded(text: &str) -> String {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tracer_model::{Accepted, AfterReply, ClassId, Cost, Grade, Linked, Outcome, PropagatedContext, ServiceId};

    pub(in crate::otlp) fn finished(service: &str, id: u64) -> Finished {
        let span = Span {
            id: SpanId(id),
            trace: TraceId(0x1122 << 64 | u128::from(id)),
            parent: (id > 1).then_some(SpanId(id - 1)),
            linked: None,
            carrier: "",
            trace_flags: None,
            carried: None,
            side: if id > 1 { Side::Client } else { Side::Server },
            protocol: ProtocolId::Http,
            service: ServiceId(0),
            class: ClassId(0),
            pid: 7,
            tid: 8,
            cookie: 9,
            method: "GET".into(),
            path: "/users/17".into(),
            version: "1.1",
            local_port: 80,
            peer: "10.0.0.1".into(),
            peer_port: 4321,
            encrypted: false,
            arrived: 900,
            accepted: Accepted::At(960),
            pool_queue: Some(70),
            after_reply: Some(AfterReply { time: 80, cpu: 90 }),
            start: 1_000,
            first_reply: 2_000,
            end: 5_000,
            request_bytes: 100,
            reply_bytes: 200,
            reply_body_bytes: Some(150),
            status: Some(503),
            failure: None,
            error: true,
            outcome: Outcome::Complete,
            cost: Cost { cpu: 500, runq: 20, blocked: 30, switches: 2 },
            downstream: 40,
            calls: 0,
            grade: Grade::Certain,
            evidence: "its own thread",
            network: None,
            opening: None,
            callee: None,
            remote: None,
            process_end: None,
            exception: None,
            thrown_at: None,
            log_lines: None,
            called_from: None,
            kept: None,
            request_id: None,
            namespace: None,
            declared: None,
        };
        let class = ClassInfo {
            service: ServiceId(0),
            service_name: service.into(),
            protocol: ProtocolId::Http,
            side: span.side,
            name: "GET /users/{id}".into(),
            route: "/users/{id}".into(),
        };
        Finished {
            span,
            service: service.into(),
            class: Some(class),
            instance: None,
            wall_offset: 1_000_000,
            threshold: None,
        }
    }

    fn host() -> HostFacts {
        HostFacts { name: "host1".into(), machine: Some("0123456789abcdef0123456789abcdef".into()) }
    }

    fn text(span: &OtlpSpan, key: &str) -> String {
        let found = span.attributes.iter().find(|pair| pair.key == key).expect(key);
        match found.value.as_ref().and_then(|value| value.value.clone()).expect("a value") {
            Value::Text(text) => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_unit_is_a_span_of_its_service() {
        let spans = [finished("b", 1), finished("a", 2), finished("b", 3)];
        let more = [("service.name".into(), "mine".into()), ("zone".into(), "z1".into())];
        let request = request(&spans, &host(), &NamesCache::default(), &more);
        let names: Vec<String> = request
            .resource_spans
            .iter()
            .map(|of| {
                format!(
                    "{:?}",
                    of.resource.as_ref().expect("one").attributes.iter().map(|a| &a.key).collect::<Vec<_>>()
                )
            })
            .collect();
        assert_eq!(request.resource_spans.len(), 2);
        assert!(names[0].matches("service.name").count() == 1 && names[0].contains("zone"), "{names:?}");
        let spans = &request.resource_spans[1].scope_spans[0].spans;
        assert_eq!(spans.len(), 2);
        let span = &spans[0];
        assert_eq!(span.trace_id, (0x1122u128 << 64 | 1).to_be_bytes());
        assert_eq!((span.span_id.as_slice(), span.parent_span_id.as_slice()), (&1u64.to_be_bytes()[..], &[][..]));
        assert_eq!((span.name.as_str(), span.kind), ("GET /users/{id}", SpanKind::Server as i32));
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1_001_000, 1_005_000));
        assert_eq!(span.status.as_ref().map(|status| status.code), Some(Code::Error as i32));
        for (key, expected) in [
            ("http.route", "/users/{id}"),
            ("url.path", "/users/17"),
            ("url.scheme", "http"),
            ("server.address", "host1"),
            ("http.response.status_code", "Int(503)"),
            ("error.type", "503"),
            ("tracer.cpu.time", "Double(5e-7)"),
            ("tracer.queue.time", "Double(1e-7)"),
            ("tracer.accept_queue.time", "Double(6e-8)"),
            ("tracer.socket_queue.time", "Double(4e-8)"),
            ("tracer.pool_queue.time", "Double(7e-8)"),
            ("tracer.after_reply.time", "Double(8e-8)"),
            ("tracer.after_reply.cpu.time", "Double(9e-8)"),
        ] {
            assert_eq!(text(span, key), expected, "{key}");
        }
    }

    #[test]
    fn a_message_is_linked_to_whoever_produced_it() {
        let mut one = finished("a", 1);
        one.span = Span { protocol: ProtocolId::Nats, method: "deliver".into(), path: "a.17".into(), ..one.span };
        let to = vec![(TraceId(5), SpanId(6)), (TraceId(7), SpanId(8))];
        one.span.linked = Some(Box::new(Linked { to, dropped: 3, unread: 4 }));
        let mut other = finished("a", 2);
        other.span = Span { protocol: ProtocolId::Nats, method: "publish".into(), path: "a.17".into(), ..other.span };
        let request = request(&[one, other], &host(), &NamesCache::default(), &[]);
        let spans = &request.resource_spans[0].scope_spans[0].spans;
        assert_eq!((spans[0].links.len(), spans[0].dropped_links_count), (2, 3));
        let link = &spans[0].links[0];
        assert_eq!(
            (link.trace_id.as_slice(), link.span_id.as_slice()),
            (&5u128.to_be_bytes()[..], &6u64.to_be_bytes()[..])
        );
        assert_eq!((spans[0].kind, spans[1].kind), (SpanKind::Consumer as i32, SpanKind::Producer as i32));
        assert!(spans[1].links.is_empty());
        for (key, expected) in [
            ("messaging.system", "nats"),
            ("messaging.operation.name", "deliver"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", "a.17"),
        ] {
            assert_eq!(text(&spans[0], key), expected, "{key}");
        }
    }

    #[test]
    fn a_process_is_a_resource() {
        let facts = |pid, start_time| tracer_host::process::ProcessFacts {
            pid,
            start_time,
            exe: "/usr/sbin/nginx".into(),
            cgroup: format!("/kubepods/pod2b801b7a-5266-4386-864e-45ed71136371/{}", "0a".repeat(32)),
            ..Default::default()
        };
        let of = |pid, start| {
            let mut one = finished("shop", start);
            one.span.pid = pid;
            one.instance = Some(Arc::new(Instance::new(pid, &facts(pid, start))));
            one
        };
        // Two processes, one of them with two spans; the first one's id is used again later.
        let request = request(&[of(7, 100), of(8, 101), of(7, 100), of(7, 900)], &host(), &NamesCache::default(), &[]);
        let counts: Vec<usize> = request.resource_spans.iter().map(|of| of.scope_spans[0].spans.len()).collect();
        assert_eq!(counts, [2, 1, 1]);
        let value = |index: usize, key: &str| -> Option<String> {
            let resource = request.resource_spans[index].resource.as_ref()?;
            let found = resource.attributes.iter().find(|pair| pair.key == key)?;
            match found.value.as_ref()?.value.clone()? {
                Value::Text(text) => Some(text),
                other => Some(format!("{other:?}")),
            }
        };
        let ids: std::collections::BTreeSet<_> = (0..3).map(|index| value(index, "service.instance.id")).collect();
        assert!(ids.len() == 3 && !ids.contains(&None), "{ids:?}");
        for (key, expected) in [
            ("service.name", Some("shop")),
            ("process.pid", Some("Int(7)")),
            ("process.executable.name", Some("nginx")),
            ("host.name", Some("host1")),
            ("host.id", Some("0123456789abcdef0123456789abcdef")),
            ("k8s.pod.uid", Some("2b801b7a-5266-4386-864e-45ed71136371")),
            ("container.id", Some(&*"0a".repeat(32))),
            ("telemetry.sdk.name", Some("tracer")),
            ("telemetry.sdk.language", None),
        ] {
            assert_eq!(value(0, key).as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn a_client_has_the_address_it_asked_for() {
        let mut call = finished("shop", 1);
        call.span.side = Side::Client;
        call.span.peer_port = 8443;
        call.span.encrypted = true;
        let request = request(&[call], &host(), &NamesCache::default(), &[]);
        let span = &request.resource_spans[0].scope_spans[0].spans[0];
        for (key, expected) in [
            ("url.full", "https://10.0.0.1:8443/users/17"),
            ("url.scheme", "https"),
            ("url.template", "/users/{id}"),
            ("server.address", "10.0.0.1"),
            ("tracer.cpu.time", "Double(5e-7)"),
        ] {
            assert_eq!(text(span, key), expected, "{key}");
        }
        assert!(span.attributes.iter().all(|pair| pair.key != "http.route"));
    }

    #[test]
    fn flags_say_whether_the_trace_id_is_random() {
        let flags = |of: Option<u8>| {
            let mut one = finished("shop", 1);
            one.span.trace_flags = of.map(TraceFlags::new);
            request(&[one], &host(), &NamesCache::default(), &[]).resource_spans[0].scope_spans[0].spans[0].flags & 0xff
        };
        // Drawn by an agent; from a header of level 1, of level 2, not sampled; with bits that are not defined.
        let found = [None, Some(1), Some(3), Some(2), Some(0), Some(0xfd)].map(flags);
        assert_eq!(found, [3, 1, 3, 2, 0, 1]);
    }

    #[test]
    fn a_threshold_takes_the_place_of_the_callers() {
        let state = |threshold| {
            let mut one = finished("shop", 1);
            let state = "vendor=a,ot=th:8;x:1".into();
            one.span.carried = Some(Arc::new(PropagatedContext { state, ..Default::default() }));
            one.threshold = threshold;
            let request = request(&[one], &host(), &NamesCache::default(), &[]);
            request.resource_spans[0].scope_spans[0].spans[0].trace_state.clone()
        };
        assert_eq!(state(None), "vendor=a,ot=th:8;x:1");
        assert_eq!(state(Some(Threshold::of_share(0.1))), "ot=th:e666;x:1,vendor=a");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(bounded(&"ä".repeat(TEXT)).len(), TEXT);
        assert_eq!(bounded(&format!("x{}", "ä".repeat(TEXT))).len(), TEXT - 1);
    }
}
