//! The request that a thread or its task holds when it writes a line of a log, or throws an exception.

use tracer_common::event::{Header, ThreadCounters};
use tracer_common::log_write::LogWrite;

use super::slot::Slot;

/// What a thread did that may be for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadEvent {
    /// The thread, and when.
    pub(crate) header: Header,
    /// Its task, as operations have it.
    pub(crate) entity: u64,
    /// The thread's counters.
    pub(crate) counters: ThreadCounters,
}

impl From<&LogWrite> for ThreadEvent {
    fn from(write: &LogWrite) -> Self {
        Self { header: write.header, entity: write.entity, counters: write.counters }
    }
}

/// The request that a thread or its task holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldRequest {
    /// This one and no other.
    Request(Slot),
    /// The thread holds several, or may hold one: nothing shows which.
    Ambiguous,
    /// None is known.
    NoRequest,
}
