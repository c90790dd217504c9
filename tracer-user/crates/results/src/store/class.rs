//! Selects which transactions of a class to keep: the slowest, the failed ones and a fair sample.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tracer_model::{ClassId, Nanos, Span, TraceId};

/// Most entries in each of a class's three lists.
pub(super) const QUOTA: usize = 10;
/// Entries older than this are dropped, nanoseconds: the slowest request of last week is no longer useful.
const AGE: Nanos = 15 * 60 * 1_000_000_000;

/// The fields of a span that matter to its class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) class: ClassId,
    pub(super) trace: TraceId,
    end: Nanos,
    duration: u64,
    error: bool,
}

impl Seen {
    pub(super) fn of(span: &Span) -> Self {
        let Span { class, trace, end, error, .. } = *span;
        Self { class, trace, end, duration: span.duration(), error }
    }
}

/// Changes in a class's lists.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Number of lists that took the transaction.
    pub(super) taken: u32,
    /// Transactions that left a list, once per list.
    pub(super) released: SmallVec<[TraceId; 3]>,
    /// Number of lists that would have taken it but had no room.
    pub(super) refused: u32,
}

/// The lists of a class.
#[derive(Debug, Default)]
pub(super) struct Class {
    /// Sorted by duration, longest first.
    slowest: Vec<(u64, Nanos, TraceId)>,
    /// Oldest first.
    failed: VecDeque<(Nanos, TraceId)>,
    sample: Vec<(Nanos, TraceId)>,
    /// Number of spans the sample was drawn from. Halves over time, so that the sample follows recent traffic.
    seen: u64,
}

impl Class {
    /// Number of entries in all lists.
    pub(super) fn len(&self) -> usize {
        self.slowest.len() + self.failed.len() + self.sample.len()
    }

    /// Considers a finished span for each list. `quota` bounds each list, `room` the entries that may be added to all
    /// of them; `random` is a random number.
    pub(super) fn consider(&mut self, span: &Seen, quota: usize, room: usize, random: u64) -> Change {
        let mut change = Change::default();
        let (mut room, trace, now, duration) = (room, span.trace, span.end, span.duration);
        // Whether a list may grow; a list that may not can still replace an entry.
        let mut fits = |len: usize| {
            let grows = len < quota && room > 0;
            room -= usize::from(grows);
            grows
        };
        if span.error {
            if fits(self.failed.len()) {
                self.failed.push_back((now, trace));
                change.taken += 1;
            } else if let Some((_, oldest)) = self.failed.pop_front() {
                change.released.push(oldest);
                self.failed.push_back((now, trace));
                change.taken += 1;
            } else {
                change.refused += 1;
            }
        }

        let at = self.slowest.partition_point(|(longer, ..)| *longer >= duration);
        if fits(self.slowest.len()) {
            self.slowest.insert(at, (duration, now, trace));
            change.taken += 1;
        } else if at < self.slowest.len() {
            change.released.extend(self.slowest.pop().map(|(.., trace)| trace));
            self.slowest.insert(at, (duration, now, trace));
            change.taken += 1;
        } else {
            change.refused += u32::from(self.slowest.is_empty());
        }

        // Reservoir sampling (Vitter's algorithm R).
        self.seen += 1;
        if fits(self.sample.len()) {
            self.sample.push((now, trace));
            change.taken += 1;
        } else if let Some(entry) = self.sample.get_mut((random % self.seen) as usize) {
            change.released.push(std::mem::replace(entry, (now, trace)).1);
            change.taken += 1;
        } else {
            change.refused += u32::from(self.sample.is_empty());
        }
        change
    }

    /// Drops entries that are old or exceed `quota`; returns their transactions.
    pub(super) fn age(&mut self, now: Nanos, quota: usize) -> Vec<TraceId> {
        let mut released = Vec::new();
        let old = |at: Nanos| now.saturating_sub(at) > AGE;
        while self.failed.len() > quota || self.failed.front().is_some_and(|(at, _)| old(*at)) {
            released.extend(self.failed.pop_front().map(|(_, trace)| trace));
        }
        self.slowest.retain(|(_, at, trace)| {
            let keep = !old(*at);
            released.extend((!keep).then_some(*trace));
            keep
        });
        released.extend(self.slowest.drain(quota.min(self.slowest.len())..).map(|(.., trace)| trace));
        self.sample.retain(|(at, trace)| {
            let keep = !old(*at);
            released.extend((!keep).then_some(*trace));
            keep
        });
        released.extend(self.sample.drain(quota.min(self.sample.len())..).map(|(_, trace)| trace));
        self.seen -= self.seen / 8;
        released
    }
}
