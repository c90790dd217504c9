//! The requests whose threads' contexts are published for other programs of this host.

use std::collections::HashSet;

use tracer_common::limits::TRACE_CONTEXT_BYTES;
use tracer_host::guard::tables::TableUse;
use tracer_kernel::trace_contexts::ThreadContext;
use tracer_model::{Nanos, Side};
use tracer_transactions::slot::Slot;

use super::Pipeline;

/// Most open requests whose threads are looked at.
const OPEN: usize = 16_384;
/// How long after the last request began more are expected, nanoseconds.
const EXPECTED: Nanos = 1_000_000_000;

/// Open requests, if contexts are published.
#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    pub(super) wanted: bool,
    slots: HashSet<Slot>,
    /// When the latest of them began.
    latest: Nanos,
    refused: u64,
}

impl OpenRequests {
    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.slots.len(), OPEN, self.refused)
    }
}

impl Pipeline {
    /// Finds out from now on which threads hold a request.
    pub fn publish_contexts(&mut self) {
        self.open_requests.wanted = true;
    }

    /// A request began.
    pub(super) fn watch_thread(&mut self, slot: Slot) {
        if !self.open_requests.wanted {
            return;
        }
        let Some(live) = self.engine.span(slot).filter(|live| live.side == Side::Server) else { return };
        let open = &mut self.open_requests;
        open.latest = open.latest.max(live.start);
        if open.slots.len() >= OPEN {
            open.refused += 1;
        } else {
            open.slots.insert(slot);
        }
    }

    /// The threads that certainly hold one request, with its context; call it after the rings were drained.
    pub fn thread_contexts(&mut self, held: &mut Vec<ThreadContext>) {
        let Self { engine, open_requests, .. } = self;
        open_requests.slots.retain(|slot| {
            let Some(live) = engine.span(*slot).filter(|live| live.end == 0) else { return false };
            if let Some((tid, tgid)) = engine.thread_of(*slot) {
                let mut ids = [0; TRACE_CONTEXT_BYTES];
                let (trace, span) = ids.split_at_mut(16);
                trace.copy_from_slice(&engine.trace_so_far(live).0.to_be_bytes());
                span.copy_from_slice(&live.id.0.to_be_bytes());
                held.push(ThreadContext { tgid, tid, ids });
            }
            true
        });
    }

    /// Whether requests are open, or were a moment ago: rings should be drained often.
    pub fn expects_thread_contexts(&self) -> bool {
        let open = &self.open_requests;
        let lately = open.latest != 0 && self.engine.now().saturating_sub(open.latest) < EXPECTED;
        open.wanted && (lately || !open.slots.is_empty())
    }
}
