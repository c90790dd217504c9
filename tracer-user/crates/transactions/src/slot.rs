//! The name of an open span, and what remains of a span.

use tracer_model::{ClassId, ServiceId, SpanId, TraceId};

/// Names an open span; goes stale, detectably, when the span is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Slot {
    /// A slot that names no span, for the tests of every crate.
    pub fn numbered(index: u32) -> Self {
        Self { index, generation: u32::MAX }
    }
}

/// What remains of a span once it is reported: span id, trace id, service and class.
pub type SpanRef = (SpanId, TraceId, ServiceId, Option<ClassId>);
