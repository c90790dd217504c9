//! What the spans of a connection share.

use std::sync::Arc;

use tracer_model::{Accepted, Nanos};

/// The two ends of a connection, and when it was accepted.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Local port.
    pub local_port: u16,
    /// Remote address as text.
    pub peer: Arc<str>,
    /// Remote port.
    pub peer_port: u16,
    /// Bytes that arrived before this time arrived before the accept: the accept time, if seen, else the first
    /// operation's.
    pub(super) queued_until: Nanos,
    /// Whether the accept itself was seen.
    pub(super) accept_seen: bool,
}

impl Endpoints {
    /// Whether the connection was accepted by the time a request's first byte `arrived`.
    pub fn accepted(&self, arrived: Nanos) -> Accepted {
        match (arrived < self.queued_until, self.accept_seen) {
            (false, _) => Accepted::Before,
            (true, true) => Accepted::At(self.queued_until),
            (true, false) => Accepted::Unseen,
        }
    }
}
