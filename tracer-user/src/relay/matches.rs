//! Brings together what callers' agents say of calls and the requests this host serves, in whatever order both come.
//!
//! Pure: time comes with what is told. A request gets one parent, the first that is said of it; everything that comes
//! again, too late, twice or otherwise is counted and changes nothing. `U` names a request of the engine.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::key::Key;
use super::message::Context;
use super::{Agent, Outcomes};
use crate::guard::room::Room;
use crate::model::Nanos;

/// Most requests and contexts that are remembered.
pub const LIMIT: usize = 65_536;
/// How long a context waits for its request, and how long a request that was reported is remembered; nanoseconds.
pub const KEEP: Nanos = 10_000_000_000;

/// How many of the oldest entries are looked at for one that may go.
const LOOK: usize = 256;

/// A context, and who sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// What it says.
    pub context: Context,
    /// The agent it comes from.
    pub from: Agent,
}

/// What a context did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect<U> {
    /// It is remembered until its request is read, or changed what was remembered.
    Waits,
    /// It is this request's, which had none.
    Met(U),
    /// It is this request's, and says more than the one before.
    More(U),
    /// The request was reported without it.
    Late(U),
    /// Nothing: it was known, somebody else's word came first, or there is no room.
    Nothing,
}

#[derive(Debug)]
struct Entry<U> {
    number: u64,
    key: Key,
    given: Option<Given>,
    /// What another agent said otherwise before the request was read: only then it is known which of them may.
    other: Option<Box<Given>>,
    unit: Option<U>,
    reported: bool,
}

/// The table.
#[derive(Debug)]
pub struct Matches<U> {
    entries: FxHashMap<u64, Entry<U>>,
    /// When each is forgotten.
    order: VecDeque<(Nanos, u64, u64)>,
    /// Contexts that wait, by who sent them: nobody may take all the room.
    waiting: FxHashMap<u64, usize>,
    number: u64,
    limit: usize,
    /// What became of contexts.
    pub outcomes: Outcomes,
    /// Entries that went early because there were too many.
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

    /// Requests and contexts remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Most that are.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// A context arrived; `may` says whether who sent it is believed about a request.
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
        let (unit, reported) = (entry.unit, entry.reported);
        let known = match &mut entry.given {
            Some(known) if unit.is_none() && known.from.number != given.from.number => {
                let Some(other) = &mut entry.other else {
                    entry.other = Some(Box::new(given));
                    return Effect::Waits;
                };
                Some(&mut **other)
            }
            known => known.as_mut(),
        };
        match (known, unit) {
            (Some(known), unit) => {
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
                match unit {
                    Some(unit) if reported => Effect::Late(unit),
                    Some(unit) => Effect::More(unit),
                    None => Effect::Waits,
                }
            }
            (None, Some(unit)) if !may(unit, &given) => {
                self.outcomes.refused += 1;
                Effect::Nothing
            }
            (None, Some(unit)) => {
                entry.given = Some(given);
                if reported {
                    self.outcomes.late += 1;
                    Effect::Late(unit)
                } else {
                    self.outcomes.matched += 1;
                    Effect::Met(unit)
                }
            }
            // Nothing is kept of neither.
            (None, None) => Effect::Nothing,
        }
    }

    /// Whether one more context of an agent may wait: none has more than half of the table, nor more than its share of that
    /// where the table is full. An agent below its share has room made by what waited longest, whoever said it, or was
    /// reported longest ago.
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
                .is_some_and(|entry| entry.number == *number && (entry.unit.is_none() || entry.reported))
        };
        let Some(at) = self.order.iter().take(LOOK).position(waits) else { return false };
        if let Some((_, place, _)) = self.order.remove(at) {
            self.evicted += 1;
            self.forget(place);
        }
        true
    }

    /// A request was read; gives what is known of it, by somebody who `may` say so.
    pub fn unit(&mut self, now: Nanos, key: Key, unit: U, may: impl Fn(&Given) -> bool) -> Option<&Given> {
        let place = key.place();
        let fits = self.entries.get(&place).is_some_and(|entry| entry.unit.is_none() && entry.key.fits(key));
        if !fits {
            // Another request of a connection that has gone once around, or of another: what was said is of that one.
            self.forget(place);
            while self.entries.len() >= self.limit && self.evict() {}
            self.insert(now, key, None, Some(unit));
            return None;
        }
        let entry = self.entries.get_mut(&place)?;
        entry.unit = Some(unit);
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

    /// The request was reported: what comes from now on is late.
    pub fn reported(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key.place())
            && entry.unit.is_some()
        {
            entry.reported = true;
        }
    }

    /// Forgets what is old, but for requests that are `open`.
    pub fn expire(&mut self, now: Nanos, open: impl Fn(U) -> bool) {
        while let Some((due, place, number)) = self.order.front().copied()
            && due <= now
        {
            self.order.pop_front();
            let Some(entry) = self.entries.get(&place).filter(|entry| entry.number == number) else { continue };
            if !entry.reported && entry.unit.is_some_and(&open) {
                self.order.push_back((now.saturating_add(KEEP), place, number));
            } else {
                self.forget(place);
            }
        }
    }

    /// Gives back the room of tables that are mostly empty.
    pub fn give_back(&mut self) {
        self.entries.give_back();
        self.order.give_back();
        self.waiting.give_back();
    }

    fn insert(&mut self, now: Nanos, key: Key, given: Option<Given>, unit: Option<U>) {
        self.number += 1;
        let number = self.number;
        self.entries.insert(key.place(), Entry { number, key, given, other: None, unit, reported: false });
        if self.order.len() >= 2 * self.limit {
            // Places of what was forgotten before its time.
            let entries = &self.entries;
            self.order.retain(|(_, place, number)| entries.get(place).is_some_and(|entry| entry.number == *number));
        }
        self.order.push_back((now.saturating_add(KEEP), key.place(), number));
    }

    /// The oldest goes. `false` when there is none.
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
        if entry.unit.is_some() {
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

/// One context of that agent fewer waits.
pub(super) fn less(waiting: &mut FxHashMap<u64, usize>, from: u64) {
    if let Some(count) = waiting.get_mut(&from) {
        *count -= 1;
        if *count == 0 {
            waiting.remove(&from);
        }
    }
}

#[cfg(test)]
#[path = "matches_tests.rs"]
mod tests;
