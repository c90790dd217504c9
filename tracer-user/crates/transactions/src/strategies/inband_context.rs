//! In-band contexts: matches the context in a connection's first segment of a request to its span.
//!
//! The kernel side draws a call's ids when it sends them, so the span adopts the ids that were written, and the request
//! at the other end gets the call as its parent. A context belongs to the span whose first byte has the context's
//! sequence number, and to no other.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tracer_common::event::{INBAND_HELD, INBAND_NAMED, INBAND_REFUSED, INBAND_TX, InbandContext};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{Direction, Nanos, Side, SpanId, TraceId};

use crate::inband_context::{InbandIds, Outcomes, Place};
use crate::open_span::OpenSpan;
use crate::world::World;

/// Limit of contexts that wait for their span.
const LIMIT: usize = 65_536;
/// How long a context waits, nanoseconds: a request can stay in its socket for long.
const KEEP: Nanos = 60_000_000_000;

/// Contexts that wait for their span.
#[derive(Debug)]
pub(crate) struct InbandContexts {
    waiting: FxHashMap<Place, InbandIds>,
    /// Expiry queue.
    due: VecDeque<(Nanos, Place)>,
    limit: usize,
    pub(crate) outcomes: Outcomes,
}

impl InbandContexts {
    pub(crate) fn new(memory: u64) -> Self {
        let outcomes = Outcomes::default();
        Self { waiting: FxHashMap::default(), due: VecDeque::new(), limit: scaled(LIMIT, memory), outcomes }
    }

    pub(crate) fn table_use(&self) -> TableUse {
        TableUse::new(self.waiting.len(), self.limit, self.outcomes.dropped)
    }

    fn take(&mut self, place: Place) -> Option<InbandIds> {
        if self.waiting.is_empty() { None } else { self.waiting.remove(&place) }
    }

    /// Drops contexts that waited too long.
    fn expire(&mut self, now: Nanos) {
        while let Some((due, place)) = self.due.front().copied()
            && due <= now
        {
            self.due.pop_front();
            if self.waiting.remove(&place).is_some_and(|inband_ids| inband_ids.parent.is_some()) {
                self.outcomes.unmatched += 1;
            }
        }
        self.waiting.shrink_excess();
        self.due.shrink_excess();
    }
}

impl InbandContexts {
    /// A context was sent or received.
    pub(crate) fn received(&mut self, world: &mut World, inband: &InbandContext) {
        world.now = world.now.max(inband.header.nanos);
        let (tx, named) = (inband.header.flags & INBAND_TX != 0, inband.header.flags & INBAND_NAMED != 0);
        let trace = TraceId(u128::from_be_bytes(inband.trace));
        let span = SpanId(u64::from_be_bytes(inband.span));
        let outcomes = &mut self.outcomes;
        if inband.header.flags & INBAND_REFUSED != 0 || trace.0 == 0 || (span.0 == 0 && !named) {
            outcomes.refused += 1;
            return;
        }
        match (tx, named) {
            (true, _) => outcomes.sent += 1,
            (false, true) => {}
            (false, false) => outcomes.received += 1,
        }
        if self.due.len() >= self.limit
            && let Some((_, oldest)) = self.due.pop_front()
            && self.waiting.remove(&oldest).is_some()
        {
            outcomes.dropped += 1;
        }
        let place = (inband.cookie, tx, inband.seq);
        let parent = (!named).then_some(span);
        self.due.push_back((world.now + KEEP, place));
        self.waiting.insert(
            place,
            InbandIds { trace, parent, held: inband.header.flags & INBAND_HELD != 0, flags: inband.flags },
        );
    }

    /// A request begins: takes the context it was sent or received with.
    pub(crate) fn begins(&mut self, live: &mut OpenSpan, dir: Direction, seq: Option<u32>) {
        let place = seq.map(|seq| (live.cookie, dir == Direction::Tx, seq));
        let Some(inband_ids) = place.and_then(|place| self.take(place)) else { return };
        match (live.side, inband_ids.parent) {
            (Side::Client, Some(id)) => {
                live.id = id;
                if !inband_ids.held {
                    live.trace = inband_ids.trace;
                }
            }
            (Side::Server, parent) if live.rare.remote_parent.is_none() => {
                live.trace = inband_ids.trace;
                self.outcomes.matched += u64::from(parent.is_some());
            }
            (Side::Server, Some(_)) => {
                self.outcomes.header += 1;
                return;
            }
            (_, None) => return,
        }
        live.rare.inband = Some(inband_ids);
    }

    /// A span is reported: compares its in-band ids with what is known now.
    pub(crate) fn reported(&mut self, live: &OpenSpan, parent: Option<SpanId>, trace: TraceId) {
        let Some(inband_ids) = live.rare.inband else { return };
        let other = match live.side {
            Side::Server => inband_ids.parent.is_some() && parent != inband_ids.parent,
            Side::Client => false,
        };
        self.outcomes.contradicted += u64::from(other);
        self.outcomes.renamed += u64::from(live.side == Side::Client && trace != inband_ids.trace);
    }

    /// About once a second.
    pub(crate) fn sweep(&mut self, world: &mut World) {
        self.expire(world.now);
    }
}
