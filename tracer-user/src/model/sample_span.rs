//! A span for tests.

use std::sync::Arc;

use crate::model::{Accepted, ClassId, Cost, Grade, Outcome, ProtocolId, ServiceId, Side, Span, SpanId, TraceId};

/// A server's span of `GET /a` that begins at `start` and takes `duration` nanoseconds.
pub(crate) fn span(trace: u128, start: u64, duration: u64, error: bool) -> Span {
    Span {
        id: SpanId(start + 1),
        trace: TraceId(trace),
        parent: None,
        linked: None,
        carrier: "",
        trace_flags: None,
        carried: None,
        side: Side::Server,
        protocol: ProtocolId::Http,
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
        encrypted: false,
        arrived: 0,
        accepted: Accepted::Before,
        pool_queue: None,
        after_reply: None,
        start,
        first_reply: start,
        end: start + duration,
        request_bytes: 1,
        reply_bytes: 1,
        reply_body_bytes: Some(0),
        status: Some(if error { 500 } else { 200 }),
        failure: None,
        error,
        outcome: Outcome::Complete,
        cost: Cost::default(),
        downstream: 0,
        calls: 0,
        grade: Grade::Certain,
        evidence: "",
        network: None,
        opening: None,
        callee: None,
        remote: None,
        called_from: None,
        request_id: None,
        namespace: None,
        declared: None,
    }
}
