//! Contexts in band: which unit the context in a connection's first segment of a request is of.
//!
//! The kernel side draws a call's ids when it sends them, so the unit takes what was written; and the request at the other
//! end has the call as its parent. A context is of the unit whose first byte has the sequence number it came with, and of
//! no other.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tracer_common::event::{TAG_HELD, TAG_NAMED, TAG_REFUSED, TAG_TX, Tag};

use super::engine::Engine;
use super::live::Live;
use crate::guard::fill::{Fill, scaled};
use crate::guard::room::Room;
use crate::model::{Direction, Nanos, Side, TraceId, UnitId};

/// Most contexts that wait for their unit.
const LIMIT: usize = 65_536;
/// How long one waits, nanoseconds: a request can lie in its socket for long.
const KEEP: Nanos = 60_000_000_000;

/// Socket, direction, sequence number.
type Place = (u64, bool, u32);

/// A unit's context in band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The transaction.
    pub trace: TraceId,
    /// Server side: the call. `None` = nothing came, and `trace` is what the calls it causes are sent with.
    pub parent: Option<UnitId>,
    /// Client side: that is the name of a request's transaction, as the kernel side saw it. Whether it is the call's will be
    /// seen.
    pub held: bool,
    /// Trace flags.
    pub flags: u8,
}

/// What became of contexts: `tracer_inband_total{outcome}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sent with a request.
    pub sent: u64,
    /// Came with one.
    pub received: u64,
    /// Named the parent of the request it came with.
    pub matched: u64,
    /// No request begins where it came, or went.
    pub unmatched: u64,
    /// The request named a parent itself, in a header.
    pub header: u64,
    /// Another carrier named another parent.
    pub contradicted: u64,
    /// The call turned out to be of another transaction than its context said.
    pub renamed: u64,
    /// Not taken by the kernel, or without ids.
    pub refused: u64,
    /// Went for others while it waited, the oldest.
    pub dropped: u64,
}

impl Outcomes {
    /// By the names they are exported by.
    pub fn all(&self) -> [(&'static str, u64); 9] {
        let Self { sent, received, matched, unmatched, header, contradicted, renamed, refused, dropped } = *self;
        [
            ("sent", sent),
            ("received", received),
            ("matched", matched),
            ("unmatched", unmatched),
            ("header", header),
            ("contradicted", contradicted),
            ("renamed", renamed),
            ("refused", refused),
            ("dropped", dropped),
        ]
    }
}

/// Contexts that wait for their unit.
#[derive(Debug)]
pub(super) struct Tags {
    waiting: FxHashMap<Place, Tagged>,
    /// By the time they are given up.
    due: VecDeque<(Nanos, Place)>,
    limit: usize,
    outcomes: Outcomes,
}

impl Tags {
    pub(super) fn new(memory: u64) -> Self {
        let outcomes = Outcomes::default();
        Self { waiting: FxHashMap::default(), due: VecDeque::new(), limit: scaled(LIMIT, memory), outcomes }
    }

    pub(super) fn fill(&self) -> Fill {
        Fill::new(self.waiting.len(), self.limit, self.outcomes.dropped)
    }

    fn take(&mut self, place: Place) -> Option<Tagged> {
        if self.waiting.is_empty() { None } else { self.waiting.remove(&place) }
    }

    /// Gives up what waited for too long.
    fn expire(&mut self, now: Nanos) {
        while let Some((due, place)) = self.due.front().copied()
            && due <= now
        {
            self.due.pop_front();
            if self.waiting.remove(&place).is_some_and(|tagged| tagged.parent.is_some()) {
                self.outcomes.unmatched += 1;
            }
        }
        self.waiting.give_back();
        self.due.give_back();
    }
}

impl Engine {
    /// What became of contexts in band.
    pub fn inband_outcomes(&self) -> Outcomes {
        self.tags.outcomes
    }

    /// A context was sent, or came.
    pub(super) fn tag(&mut self, tag: &Tag) {
        self.now = self.now.max(tag.header.nanos);
        let (tx, named) = (tag.header.flags & TAG_TX != 0, tag.header.flags & TAG_NAMED != 0);
        let trace = TraceId(u128::from_be_bytes(tag.trace));
        let span = UnitId(u64::from_be_bytes(tag.span));
        let outcomes = &mut self.tags.outcomes;
        if tag.header.flags & TAG_REFUSED != 0 || trace.0 == 0 || (span.0 == 0 && !named) {
            outcomes.refused += 1;
            return;
        }
        match (tx, named) {
            (true, _) => outcomes.sent += 1,
            (false, true) => {}
            (false, false) => outcomes.received += 1,
        }
        if self.tags.due.len() >= self.tags.limit
            && let Some((_, oldest)) = self.tags.due.pop_front()
            && self.tags.waiting.remove(&oldest).is_some()
        {
            outcomes.dropped += 1;
        }
        let place = (tag.cookie, tx, tag.seq);
        let parent = (!named).then_some(span);
        self.tags.due.push_back((self.now + KEEP, place));
        self.tags
            .waiting
            .insert(place, Tagged { trace, parent, held: tag.header.flags & TAG_HELD != 0, flags: tag.flags });
    }

    /// A request begins: the context it was sent or came with.
    pub(super) fn tagged(&mut self, live: &mut Live, dir: Direction, seq: Option<u32>) {
        let place = seq.map(|seq| (live.cookie, dir == Direction::Tx, seq));
        let Some(tagged) = place.and_then(|place| self.tags.take(place)) else { return };
        match (live.side, tagged.parent) {
            (Side::Client, Some(id)) => {
                live.id = id;
                if !tagged.held {
                    live.trace = tagged.trace;
                }
            }
            (Side::Server, parent) if live.remote_parent.is_none() => {
                live.trace = tagged.trace;
                self.tags.outcomes.matched += u64::from(parent.is_some());
            }
            (Side::Server, Some(_)) => {
                self.tags.outcomes.header += 1;
                return;
            }
            (_, None) => return,
        }
        live.tag = Some(tagged);
    }

    /// A unit is reported: what was said in band is compared with what is known now.
    pub(super) fn tag_over(&mut self, live: &Live, parent: Option<UnitId>, trace: TraceId) {
        let Some(tagged) = live.tag else { return };
        let other = match live.side {
            Side::Server => tagged.parent.is_some() && parent != tagged.parent,
            Side::Client => false,
        };
        self.tags.outcomes.contradicted += u64::from(other);
        self.tags.outcomes.renamed += u64::from(live.side == Side::Client && trace != tagged.trace);
    }

    /// About once a second.
    pub(super) fn tags_expire(&mut self) {
        self.tags.expire(self.now);
    }
}
