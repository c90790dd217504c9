//! Lines of what programs write to logs: cut out of writes, without secrets, and the requests that they belong to. Pure.

mod redaction;
mod streams;

pub use redaction::redacted;
pub use streams::{FoundLine, LogStreams, STREAMS};

/// Bytes of texts that are kept, at the default memory limit.
pub const TEXT_BYTES: usize = 8 << 20;
/// Most bytes of a line's text.
pub const LINE_BYTES: usize = 512;

/// Which services' lines are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// By name; none: no lines are looked at.
    pub services: Vec<String>,
    /// Most writes to logs that are looked at, of a process, in a second.
    pub max_rate: u32,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { services: Vec::new(), max_rate: 1000 }
    }
}

impl LogSettings {
    /// Whether lines are looked at.
    pub fn is_on(&self) -> bool {
        !self.services.is_empty()
    }
}
