//! The request that a line of a log belongs to, as far as the thread or task that wrote it shows.

use tracer_common::event::{Header, ThreadCounters};
use tracer_common::log_write::LogWrite;

use super::slot::Slot;

/// What a thread did that may be for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occurrence {
    /// The thread, and when.
    pub(crate) header: Header,
    /// Its task, as operations have it.
    pub(crate) entity: u64,
    /// The thread's counters.
    pub(crate) counters: ThreadCounters,
}

impl From<&LogWrite> for Occurrence {
    fn from(write: &LogWrite) -> Self {
        Self { header: write.header, entity: write.entity, counters: write.counters }
    }
}

/// The request that a line belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLineOwner {
    /// For this request: its thread, or its task, holds no other.
    Request(Slot),
    /// Its thread holds requests, and nothing shows for which of them, or whether for one of them.
    Ambiguous,
    /// Its thread or task is not known to hold a request.
    NoRequest,
}
