//! The request that a line of a log belongs to, as far as the thread or task that wrote it shows.

use super::slot::Slot;

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
