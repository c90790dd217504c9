//! Matches contexts that callers' agents send with the requests this host serves, in whatever order both arrive.
//!
//! Pure: time is passed in. A request gets one parent, from the first context that names it; repeated, late and
//! contradicting contexts are counted and change nothing. `U` identifies a request in the engine.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::Nanos;

use super::key::RequestKey;
use super::message::Context;
use super::{Agent, Outcomes};

/// Most requests and contexts remembered.
pub const LIMIT: usize = 65_536;
/// How long a context waits for its request, and how long a reported request is remembered; nanoseconds.
pub const KEEP: Nanos = 10_000_000_000;

/// How many of the oldest entries to search for one that may be evicted.
const LOOK: usize = 256;

/// A context and its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The context.
    pub context: Context,
    /// The agent that sent it.
    pub from: Agent,
}

/// The effect of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<U> {
    /// It waits for its request to be read, or updated a waiting one.
    Waits,
    /// It belongs to this request, which had no context before.
    Met(U),
    /// It belongs to this request and adds to the context before.
    More(U),
    /// The request was reported without it.
    Late(U),
    /// None: it was a duplicate, another agent's context came first, or the table is full.
    Nothing,
}

#[derive(Debug)]
struct Entry<U> {
    number: u64,
    key: RequestKey,
    given: Option<Given>,
    /// A contradicting context that another agent sent before the request was read: only the request tells which of the
    /// two agents may report on it.
    other: Option<Box<Given>>,
    span: Option<U>,
    reported: bool,
}

/// The table.
#[derive(Debug)]
pub struct Matches<U> {
    entries: FxHashMap<u64, Entry<U>>,
    /// Expiry times of the entries.
    order: VecDeque<(Nanos, u64, u64)>,
    /// Waiting contexts per sender, so that no agent fills the table.
    waiting: FxHashMap<u64, usize>,
    number: u64,
    limit: usize,
    /// Outcomes of contexts.
    pub outcomes: Outcomes,
    /// Entries evicted early because the table was full.
    pub evicted: u64,
}

impl<U: Copy> Matches<U> {
    /// An empty table for `limit` entries.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: FxHashMap::default(),
            order: VecDeque::new(),
            waiting: FxHashMap::default(),
            number: 0,
            limit: limit.max(4),
            outcomes: Outcomes::default(),
            evicted: 0,
        }
    }

    /// Number of requests and contexts remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The table's limit.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Adds a context that arrived; `may` tells whether its sender may report on a request.
    pub fn context(&mut self, now: Nanos, given: Given, may: impl Fn(U, &Given) -> bool) -> Effect<U> {
        self.outcomes.received += 1;
        let key = given.context.key;
        let Some(entry) = self.entries.get_mut(&key.place()) else {
            if !self.has_room(given.from.number) {
                self.outcomes.dropped += 1;
                return Effect::Nothing;
            }
            *self.waiting.entry(given.from.number).or_default() += 1;
            self.insert(now, key, Some(given), None);
            return Effect::Waits;
        };
        if !entry.key.fits(key) {
            self.outcomes.refused += 1;
            return Effect::Nothing;
        }
        let same =
            |known: &Given| known.from.number == given.from.number && known.context.parent == given.context.parent;
        let (span, reported) = (entry.span, entry.reported);
        let known = match &mut entry.given {
            Some(known) if span.is_none() && known.from.number != given.from.number => {
                let Some(other) = &mut entry.other else {
                    entry.other = Some(Box::new(given));
                    return Effect::Waits;
                };
                Some(&mut **other)
            }
            known => known.as_mut(),
        };
        match (known, span) {
            (Some(known), span) => {
                if !same(known) {
                    self.outcomes.refused += 1;
                    return Effect::Nothing;
                }
                let more =
                    given.context.settled && (!known.context.settled || known.context.trace != given.context.trace);
                if !more {
                    self.outcomes.duplicate += 1;
                    return Effect::Nothing;
                }
                self.outcomes.settled += 1;
                known.context = given.context;
                match span {
                    Some(span) if reported => Effect::Late(span),
                    Some(span) => Effect::More(span),
                    None => Effect::Waits,
                }
            }
            (None, Some(span)) if !may(span, &given) => {
                self.outcomes.refused += 1;
                Effect::Nothing
            }
            (None, Some(span)) => {
                entry.given = Some(given);
                if reported {
                    self.outcomes.late += 1;
                    Effect::Late(span)
                } else {
                    self.outcomes.matched += 1;
                    Effect::Met(span)
                }
            }
            // An entry has a request, a context, or both.
            (None, None) => Effect::Nothing,
        }
    }

    /// Whether one more context of `agent` may wait. No agent gets more than half of the table, nor more than its fair
    /// share of that half when the table is full. For an agent below its share, evicts the context that waited longest,
    /// whoever sent it, or the request that was reported longest ago.
    fn has_room(&mut self, agent: u64) -> bool {
        let has = self.waiting.get(&agent).copied().unwrap_or_default();
        if self.entries.len() < self.limit {
            return has < self.limit / 2;
        }
        let agents = self.waiting.len() + usize::from(has == 0);
        if has >= self.limit / 2 / agents {
            return false;
        }
        let waits = |(_, place, number): &(Nanos, u64, u64)| {
            self.entries
                .get(place)
                .is_some_and(|entry| entry.number == *number && (entry.span.is_none() || entry.reported))
        };
        let Some(at) = self.order.iter().take(LOOK).position(waits) else { return false };
        if let Some((_, place, _)) = self.order.remove(at) {
            self.evicted += 1;
            self.forget(place);
        }
        true
    }

    /// Adds a request that was read; returns its context if an agent that may report on it sent one.
    pub fn span(&mut self, now: Nanos, key: RequestKey, span: U, may: impl Fn(&Given) -> bool) -> Option<&Given> {
        let place = key.place();
        let fits = self.entries.get(&place).is_some_and(|entry| entry.span.is_none() && entry.key.fits(key));
        if !fits {
            // The sequence number wrapped, or the entry is of another connection: its context belongs to the earlier
            // request.
            self.forget(place);
            while self.entries.len() >= self.limit && self.evict() {}
            self.insert(now, key, None, Some(span));
            return None;
        }
        let entry = self.entries.get_mut(&place)?;
        entry.span = Some(span);
        if let Some(given) = &entry.given {
            less(&mut self.waiting, given.from.number);
        }
        let other = entry.other.take().map(|other| *other);
        for given in entry.given.take().into_iter().chain(other) {
            if entry.given.is_none() && may(&given) {
                self.outcomes.matched += 1;
                entry.given = Some(given);
            } else {
                self.outcomes.refused += 1;
            }
        }
        entry.given.as_ref()
    }

    /// Marks the request as reported: later contexts are late.
    pub fn reported(&mut self, key: RequestKey) {
        if let Some(entry) = self.entries.get_mut(&key.place())
            && entry.span.is_some()
        {
            entry.reported = true;
        }
    }

    /// Expires old entries, except requests that are `open`.
    pub fn expire(&mut self, now: Nanos, open: impl Fn(U) -> bool) {
        while let Some((due, place, number)) = self.order.front().copied()
            && due <= now
        {
            self.order.pop_front();
            let Some(entry) = self.entries.get(&place).filter(|entry| entry.number == number) else { continue };
            if !entry.reported && entry.span.is_some_and(&open) {
                self.order.push_back((now.saturating_add(KEEP), place, number));
            } else {
                self.forget(place);
            }
        }
    }

    /// Frees memory of tables that are mostly empty.
    pub fn shrink_excess(&mut self) {
        self.entries.shrink_excess();
        self.order.shrink_excess();
        self.waiting.shrink_excess();
    }

    fn insert(&mut self, now: Nanos, key: RequestKey, given: Option<Given>, span: Option<U>) {
        self.number += 1;
        let number = self.number;
        self.entries.insert(key.place(), Entry { number, key, given, other: None, span, reported: false });
        if self.order.len() >= 2 * self.limit {
            // Places of entries that were forgotten early.
            let entries = &self.entries;
            self.order.retain(|(_, place, number)| entries.get(place).is_some_and(|entry| entry.number == *number));
        }
        self.order.push_back((now.saturating_add(KEEP), key.place(), number));
    }

    /// Evicts the oldest entry; `false` if there is none.
    fn evict(&mut self) -> bool {
        while let Some((_, place, number)) = self.order.pop_front() {
            if self.entries.get(&place).is_some_and(|entry| entry.number == number) {
                self.evicted += 1;
                self.forget(place);
                return true;
            }
        }
        false
    }

    fn forget(&mut self, place: u64) {
        let Some(entry) = self.entries.remove(&place) else { return };
        if entry.span.is_some() {
            return;
        }
        if let Some(given) = &entry.given {
            less(&mut self.waiting, given.from.number);
        }
        for given in entry.given.into_iter().chain(entry.other.map(|other| *other)) {
            if given.context.broadcast {
                self.outcomes.elsewhere += 1;
            } else {
                self.outcomes.unmatched += 1;
            }
        }
    }
}

/// Decrements the count of waiting contexts of an agent.
fn less(waiting: &mut FxHashMap<u64, usize>, from: u64) {
    if let Some(count) = waiting.get_mut(&from) {
        *count -= 1;
        if *count == 0 {
            waiting.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests;
