//! What a thread is known to do after it answered a request, and how it finds the next.

use smallvec::SmallVec;
use tracer_common::event::{Op, ThreadCounters};

use super::slot::{Slot, SpanRef};

/// Connections remembered per request after its reply; beyond that the oldest is forgotten.
pub(super) const CONNECTIONS: usize = 8;

/// The request a thread answered last, while the thread still works for it.
#[derive(Clone, Debug)]
pub struct Answered {
    pub(super) request: Slot,
    /// What remains of the request once it is reported.
    pub(super) kept: SpanRef,
    /// The request's connection.
    pub(super) cookie: u64,
    /// The task that answered it, if the runtime has tasks.
    pub(super) entity: u64,
    /// The thread's counters at its last operation.
    pub(super) idles: u32,
    pub(super) polls: u32,
    pub(super) reads: u32,
    /// Connections opened or used for the request since it was answered.
    pub(super) connections: SmallVec<[u64; 2]>,
}

impl Answered {
    pub(super) fn new(request: Slot, kept: SpanRef, op: &Op) -> Self {
        let ThreadCounters { idles, polls, reads, .. } = op.counters;
        let (cookie, entity) = (op.cookie, op.entity);
        Self { request, kept, cookie, entity, idles, polls, reads, connections: SmallVec::new() }
    }

    pub(super) fn see(&mut self, counters: &ThreadCounters) {
        (self.idles, self.polls, self.reads) = (counters.idles, counters.polls, counters.reads);
    }

    /// Whether the thread has neither received anything since its last operation nor waited for work. `first`: it is
    /// the first thread of its process.
    pub(super) fn goes_on(&self, counters: &ThreadCounters, first: bool) -> bool {
        let waited = self.polls != counters.polls || (self.idles != counters.idles && !first);
        self.reads == counters.reads && !waited
    }

    pub(super) fn uses(&mut self, cookie: u64) {
        if self.connections.contains(&cookie) {
            return;
        }
        if self.connections.len() == CONNECTIONS {
            self.connections.remove(0);
        }
        self.connections.push(cookie);
    }
}

/// How a thread finds its next request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serving {
    /// The connection it last read a request from.
    pub(super) cookie: u64,
    /// It returned to a connection after serving another.
    pub(super) returns: bool,
    /// It polls for requests itself.
    pub(super) polls: bool,
}

impl Serving {
    /// Whether it is an event loop or behaves like one.
    pub(super) fn is_loop(self) -> bool {
        self.returns && self.polls
    }
}
