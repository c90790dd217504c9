//! For whom a line of a log was written, as far as its thread or task shows.

use super::slot::Slot;

/// For whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWriter {
    /// For this request: its thread, or its task, holds no other.
    Request(Slot),
    /// Its thread holds requests, and nothing shows for which of them, or whether for one of them.
    Ambiguous,
    /// Its thread or task is not known to hold a request.
    NoRequest,
}
