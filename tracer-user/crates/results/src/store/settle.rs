//! Queue of noteworthy transactions that wait to settle: whoever saves one wants all of it.

use std::collections::VecDeque;

use tracer_model::{Nanos, TraceId};

/// How long after a transaction became noteworthy, or was reported on again after it was handed out, it is handed out,
/// nanoseconds: by then it is over, except calls that outlive their request.
pub(super) const STILL: Nanos = 2_000_000_000;

/// The queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// Whether anything asks for settled transactions.
    pub(super) on: bool,
    waiting: VecDeque<(Nanos, TraceId)>,
    /// Number of transactions dropped before they were handed out.
    pub(super) missed: u64,
}

impl Settling {
    /// Queues a transaction unless there are `most` already; returns whether it did.
    pub(super) fn push(&mut self, now: Nanos, trace: TraceId, most: usize) -> bool {
        if !self.on {
            return false;
        }
        let fits = self.waiting.len() < most;
        if fits {
            self.waiting.push_back((now, trace));
        } else {
            self.missed += 1;
        }
        fits
    }

    /// The next transaction that has waited long enough; with `over`, the next one at all.
    pub(super) fn due(&mut self, now: Nanos, over: bool) -> Option<TraceId> {
        let due = self.waiting.front().is_some_and(|(at, _)| over || now.saturating_sub(*at) >= STILL);
        if due { self.waiting.pop_front().map(|(_, trace)| trace) } else { None }
    }
}
