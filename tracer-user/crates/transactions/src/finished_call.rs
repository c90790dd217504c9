//! A finished call of a declared function.

use tracer_common::event::DeclaredValues;
use tracer_model::{Cost, Nanos, ServiceId, SpanId, TraceId};
use tracer_runtimes::declared::CallPairing;

use super::slot::Slot;

/// A finished call.
#[derive(Clone, Debug)]
pub struct FinishedCall {
    /// Index of the declared transaction.
    pub declared: usize,
    /// Its span.
    pub span: SpanId,
    /// Trace id of the transaction it begins, if no request is around it.
    pub trace: TraceId,
    /// The span around it.
    pub parent: Option<SpanId>,
    /// The request it ran in.
    pub request: Option<Slot>,
    /// The service of its process.
    pub service: ServiceId,
    /// Process and thread that returned.
    pub pid: u32,
    /// See `pid`.
    pub tid: u32,
    /// Entry and return.
    pub start: Nanos,
    /// See `start`.
    pub end: Nanos,
    /// What its thread used in between; `None` if its goroutine moved to another thread.
    pub cost: Option<Cost>,
    /// The result register.
    pub value: u64,
    /// Whether it ran on a goroutine.
    pub go: bool,
    /// How its end was found.
    pub pairing: CallPairing,
    /// Registers and texts at its entry, if values of it are declared.
    pub entry: Option<Box<DeclaredValues>>,
    /// Likewise at its return.
    pub exit: Option<Box<DeclaredValues>>,
}
