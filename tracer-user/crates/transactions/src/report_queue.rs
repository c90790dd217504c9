//! Spans that have ended, in the order in which they are reported.

use std::collections::VecDeque;

use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::Nanos;

use super::slot::Slot;

/// Ended spans. All lists are ordered by time.
#[derive(Debug, Default)]
pub(super) struct ReportQueue {
    /// Those in their grace time, by due time.
    pub(super) waiting: VecDeque<(Nanos, Slot)>,
    /// Of those whose turn it was: requests to report after their calls.
    pub(super) followers: VecDeque<Slot>,
    /// Those whose report was deferred, by due time.
    pub(super) deferred: VecDeque<(Nanos, Slot)>,
}

impl ReportQueue {
    /// Number of spans.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.followers.len() + self.deferred.len()
    }

    /// All spans, each list from its front.
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        let timed = self.waiting.iter().chain(&self.deferred).map(|(_, slot)| *slot);
        timed.chain(self.followers.iter().copied())
    }

    /// The span to report before its time if there is no room.
    pub(super) fn pop_early(&mut self) -> Option<Slot> {
        let timed = self.waiting.pop_front().or_else(|| self.deferred.pop_front());
        timed.map(|(_, slot)| slot).or_else(|| self.followers.pop_front())
    }

    /// The next span that is due by `now`; at the end ([`Nanos::MAX`]) all are. `follows`: whether a follower still waits
    /// for its call.
    pub(super) fn pop_due(&mut self, now: Nanos, follows: impl Fn(Slot) -> bool) -> Option<Slot> {
        // What follows a call comes right behind it, at the end behind all calls.
        let last = now == Nanos::MAX;
        if !last && self.followers.front().is_some_and(|slot| !follows(*slot)) {
            self.followers.pop_front()
        } else if self.waiting.front().is_some_and(|(due, _)| *due <= now) {
            self.waiting.pop_front().map(|(_, slot)| slot)
        } else if last && !self.followers.is_empty() {
            self.followers.pop_front()
        } else if self.deferred.front().is_some_and(|(due, _)| *due <= now) {
            self.deferred.pop_front().map(|(_, slot)| slot)
        } else {
            None
        }
    }

    /// Releases the memory of lists that are mostly empty.
    pub(super) fn shrink(&mut self) {
        self.waiting.shrink_excess();
        self.followers.shrink_excess();
        self.deferred.shrink_excess();
    }
}
