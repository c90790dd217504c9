//! Noteworthy transactions that wait until they stand still: whoever saves one wants all of it.

use std::collections::VecDeque;

use crate::model::{Nanos, TraceId};

/// A transaction is handed out so long after it became noteworthy, or more of it was reported after it was handed out,
/// nanoseconds: what was going on of it is over then, but for calls that outlive their request.
pub(super) const STILL: Nanos = 2_000_000_000;

/// Those that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// Whether anybody asks for them.
    pub(super) on: bool,
    waiting: VecDeque<(Nanos, TraceId)>,
    /// Those that were let go before they were handed out.
    pub(super) missed: u64,
}

impl Settling {
    /// Takes one, unless there are `most`. Says whether it did.
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

    /// The next one that waited long enough, or, when everything is `over`, the next one.
    pub(super) fn due(&mut self, now: Nanos, over: bool) -> Option<TraceId> {
        let due = self.waiting.front().is_some_and(|(at, _)| over || now.saturating_sub(*at) >= STILL);
        if due { self.waiting.pop_front().map(|(_, trace)| trace) } else { None }
    }
}
