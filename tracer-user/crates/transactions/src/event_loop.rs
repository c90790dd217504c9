//! The callbacks of one event loop, by the ids that were created in them.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use smallvec::SmallVec;
use tracer_common::event::Op;
use tracer_common::runtime::NODE_ID_BITS;

use super::slot::Slot;

/// Callbacks remembered per loop; ids created in older callbacks have no owner.
pub(super) const STRETCHES: usize = 16_384;

/// Ids created from counter value `from` up to the next range, and the span whose callback created them.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdRange {
    pub(super) from: u64,
    pub(super) of: Option<Slot>,
}

/// Callback state of a thread that runs an event loop.
#[derive(Debug, Default)]
pub struct EventLoop {
    pub(super) stretches: VecDeque<IdRange>,
    /// The thread's read count at its last reported operation.
    pub(super) reads: u32,
    /// The process's count of loop turns at the last reported operation.
    pub(super) edge_seq: u32,
    /// Ranges evicted because there were too many, since last taken.
    pub(super) forgotten: u64,
    /// What the last receive contained: requests that began, and the last span.
    pub(super) spoken: Spoken,
}

impl EventLoop {
    /// Records are missing: ids created since the last read may belong to other callbacks.
    pub fn lose(&mut self) {
        if let Some(last) = self.stretches.iter_mut().rev().take(2).find(|stretch| stretch.of.is_some()) {
            last.of = None;
        }
    }

    /// Whether the id was created before the current callback.
    pub(super) fn is_old(&self, low: u64) -> bool {
        self.id(low).zip(self.stretches.back()).is_some_and(|(id, newest)| id <= newest.from)
    }

    pub(super) fn begin(&mut self, from: u64, of: Option<Slot>) {
        // 0: the counter could not be read.
        if from == 0 {
            self.stretches.clear();
            return;
        }
        if self.stretches.back().is_some_and(|last| last.from > from) {
            // The counter only grows: this is another loop's.
            self.stretches.clear();
        }
        if self.stretches.len() >= STRETCHES {
            self.stretches.pop_front();
            self.forgotten += 1;
        }
        self.stretches.push_back(IdRange { from, of });
    }

    /// Checks an operation's counts for missing records: how far its read count is `ahead` of the last reported one, and
    /// that its turn count is the same.
    pub(super) fn counted(&mut self, op: &Op, ahead: RangeInclusive<u32>) {
        if !ahead.contains(&op.counters.reads.wrapping_sub(self.reads)) || op.edge_seq != self.edge_seq {
            self.lose();
        }
        (self.reads, self.edge_seq) = (op.counters.reads, op.edge_seq);
    }

    /// The full id whose lowest bits are `low`; `None` if there is none or it cannot be determined.
    pub(super) fn id(&self, low: u64) -> Option<u64> {
        let newest = self.stretches.back()?.from;
        if low == 0 {
            return None;
        }
        let span = 1u64 << NODE_ID_BITS;
        let near = (newest & !(span - 1)) | low;
        // Pick the candidate nearest to the counter.
        if near > newest + span / 2 {
            near.checked_sub(span)
        } else if near + span / 2 < newest {
            Some(near + span)
        } else {
            Some(near)
        }
    }

    /// The span whose callback created the id with lowest bits `low`.
    pub(super) fn of(&self, low: u64) -> Option<Slot> {
        let id = self.id(low)?;
        let after = self.stretches.partition_point(|stretch| stretch.from < id);
        self.stretches.get(after.checked_sub(1)?)?.of
    }
}

/// What a receive contains.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// Spans it carries a reply or an end for.
    pub(super) spans: SmallVec<[Slot; 4]>,
    /// Number of requests that begin with it.
    pub(super) begun: usize,
}

impl Spoken {
    /// With what a further record of the same receive contains.
    pub(super) fn and(mut self, further: Self) -> Self {
        self.spans.extend(further.spans);
        self.spans.dedup();
        self.begun += further.begun;
        self
    }
}
