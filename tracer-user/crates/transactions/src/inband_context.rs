//! The ids that a request brought in the TCP option of its first segment.

use tracer_model::{SpanId, TraceId};

/// Socket, direction, sequence number.
pub(super) type Place = (u64, bool, u32);

/// The in-band ids of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InbandIds {
    /// The transaction.
    pub trace: TraceId,
    /// Server side: the call. `None`: no context arrived, and `trace` is the trace id sent with the calls this request
    /// causes.
    pub parent: Option<SpanId>,
    /// Client side: the kernel side took the trace id from the request its thread held. It is not yet certain that this
    /// request caused the call.
    pub held: bool,
    /// Trace flags.
    pub flags: u8,
}

/// Outcomes of in-band contexts: `tracer_inband_total{outcome}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sent with a request.
    pub sent: u64,
    /// Received with a request.
    pub received: u64,
    /// Named the parent of its request.
    pub matched: u64,
    /// No request began at the context's position.
    pub unmatched: u64,
    /// The request named its parent in a header.
    pub header: u64,
    /// Another carrier named a different parent.
    pub contradicted: u64,
    /// The call turned out to belong to another transaction than its context says.
    pub renamed: u64,
    /// Refused by the kernel, or without ids.
    pub refused: u64,
    /// Evicted while waiting, the oldest first.
    pub dropped: u64,
}

impl Outcomes {
    /// All counters with their exported names.
    pub fn all(&self) -> [(&'static str, u64); 9] {
        let Self { sent, received, matched, unmatched, header, contradicted, renamed, refused, dropped } = *self;
        [
            ("sent", sent),
            ("received", received),
            ("matched", matched),
            ("unmatched", unmatched),
            ("header", header),
            ("contradicted", contradicted),
            ("renamed", renamed),
            ("refused", refused),
            ("dropped", dropped),
        ]
    }
}
