//! What the engine tells its consumer.

use tracer_model::{Grade, ServiceId, SpanId, StackSample, TraceId};

use super::evidence::Reason;
use super::finished_call::FinishedCall;
use super::open_span::OpenSpan;
use super::slot::Slot;

/// Output of the engine.
#[derive(Debug)]
pub enum Output {
    /// A request began; `Engine::classify` wants its class.
    Begun(Slot),
    /// A span is finished; it is out of the engine.
    Finished(Box<OpenSpan>, Verdicts),
    /// A stack and its owner.
    Sample(StackSample),
    /// A declared function returned.
    Declared(Box<FinishedCall>),
    /// A stack sampled in a call of a declared function.
    DeclaredSample {
        /// Index of the declared transaction.
        declared: usize,
        /// The service of its process.
        service: ServiceId,
        /// The stack; its owner is not set.
        sample: StackSample,
    },
    /// The transaction of a call to another host is known (`Engine::context` returns it), or the context of a request
    /// from another host.
    Settled(Slot),
    /// A request from another host has ended; `Engine::answer` returns it.
    Answered(Slot),
    /// Spans were reported with a trace id that turned out to belong to another transaction.
    Renamed {
        /// The trace id as reported.
        was: TraceId,
        /// The trace id of the transaction.
        trace: TraceId,
    },
    /// A reported request turned out to have a parent on another host.
    Late {
        /// The request.
        span: SpanId,
        /// Its trace id as reported.
        was: TraceId,
        /// Its parent.
        parent: SpanId,
        /// Its trace id now.
        trace: TraceId,
    },
}

/// Decisions made when a span is reported.
#[derive(Clone, Copy, Debug)]
pub struct Verdicts {
    /// Its trace id.
    pub trace: TraceId,
    /// Its parent.
    pub parent: Option<SpanId>,
    /// How sure the parent is.
    pub grade: Grade,
    /// Why it has that parent and grade.
    pub reason: Reason,
}
