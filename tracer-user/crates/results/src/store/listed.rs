//! Transactions that a list showed a moment ago: they stay for a while, so that a click on a row finds what it showed.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{Nanos, TraceId};

/// How long a transaction stays after a list showed it, nanoseconds.
pub const LISTED_FOR: Nanos = 60_000_000_000;
/// Most transactions held so: the newest. The rows of one list beyond it are not held.
pub(super) const LISTED: usize = 1024;

/// Transactions held because a list showed them.
#[derive(Debug, Default)]
pub(super) struct ListedTransactions {
    /// Until when each is held.
    until: FxHashMap<TraceId, Nanos>,
    /// In the order of their ends; an entry whose end is not the one in `until` is outdated.
    order: VecDeque<(Nanos, TraceId)>,
    /// Those that were listed under another id before they were joined to it.
    aliases: FxHashMap<TraceId, TraceId>,
    /// Those that gave way to newer lists, until the store has noticed.
    gone: Vec<TraceId>,
    /// Rows that found no room, or lost it.
    refused: u64,
}

impl ListedTransactions {
    /// Holds `traces` from `now` on; returns how many of them found room. The newest list takes the place of old ones: a page
    /// that refreshes shows other rows each time.
    pub(super) fn hold(&mut self, now: Nanos, traces: impl Iterator<Item = TraceId>) -> usize {
        let (until, mut held) = (now.saturating_add(LISTED_FOR), 0);
        for trace in traces {
            if !self.until.contains_key(&trace) && self.until.len() >= LISTED && !self.let_go(until) {
                self.refused += 1;
                continue;
            }
            if self.until.insert(trace, until) != Some(until) {
                self.order.push_back((until, trace));
            }
            held += 1;
        }
        // Lists that are read again and again leave outdated entries behind.
        if self.order.len() >= 4 * LISTED {
            self.order.retain(|(until, trace)| self.until.get(trace) == Some(until));
        }
        held
    }

    /// Holds the oldest no longer, unless it is to be held `until` then; returns whether it did.
    fn let_go(&mut self, until: Nanos) -> bool {
        while let Some((oldest, trace)) = self.order.pop_front() {
            if self.until.get(&trace) != Some(&oldest) {
                continue;
            }
            if oldest >= until {
                self.order.push_front((oldest, trace));
                return false;
            }
            self.until.remove(&trace);
            self.aliases.remove(&trace);
            self.gone.push(trace);
            self.refused += 1;
            return true;
        }
        false
    }

    /// Whether a list showed the transaction a moment ago.
    pub(super) fn holds(&self, trace: TraceId) -> bool {
        self.until.contains_key(&trace)
    }

    /// The next transaction that is held no longer at `now`.
    pub(super) fn expired(&mut self, now: Nanos) -> Option<TraceId> {
        if let Some(trace) = self.gone.pop() {
            return Some(trace);
        }
        while let Some((until, trace)) = self.order.front().copied()
            && until <= now
        {
            self.order.pop_front();
            if self.until.get(&trace) == Some(&until) {
                self.until.remove(&trace);
                self.aliases.remove(&trace);
                return Some(trace);
            }
        }
        None
    }

    /// Transaction `was` became part of `trace`.
    pub(super) fn rename(&mut self, was: TraceId, trace: TraceId) {
        let Some(until) = self.until.get(&was).copied() else { return };
        if self.until.len() >= 2 * LISTED {
            self.refused += 1;
            return;
        }
        self.aliases.values_mut().filter(|current| **current == was).for_each(|current| *current = trace);
        self.aliases.insert(was, trace);
        // As long as the list that showed it under the old id.
        if let Entry::Vacant(entry) = self.until.entry(trace) {
            entry.insert(until);
            self.order.push_back((until, trace));
            self.order.make_contiguous().sort_unstable_by_key(|(until, _)| *until);
        }
    }

    /// The id under which a listed transaction is kept now.
    pub(super) fn current(&self, trace: TraceId) -> TraceId {
        self.aliases.get(&trace).copied().unwrap_or(trace)
    }

    pub(super) fn table_use(&self) -> TableUse {
        // Twice as many: each can have got another id.
        TableUse::new(self.until.len(), 2 * LISTED, self.refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_list_is_held_and_nothing_grows() {
        let mut listed = ListedTransactions::default();
        let page = |first: u128| (first..first + 100).map(TraceId);
        let mut gone = 0;
        for refresh in 0..200_u64 {
            let (now, first) = (refresh * 1_000_000_000, u128::from(refresh) * 90);
            assert_eq!(listed.hold(now, page(first)), 100);
            assert!(page(first).all(|trace| listed.holds(trace)));
            // Again, as a second reader does.
            listed.hold(now, page(first));
            assert!(listed.until.len() <= LISTED && listed.order.len() <= 4 * LISTED + 200);
            while listed.expired(now).is_some() {
                gone += 1;
            }
        }
        assert!(listed.gone.is_empty() && gone > 15_000, "{gone}");
        let one = |n: u128| TraceId((1 << 90) | n);
        assert_eq!(listed.hold(1_000_000_000_000, (0..5000).map(one)), LISTED, "of one list");
        while listed.expired(Nanos::MAX).is_some() {}
        assert!(listed.until.is_empty() && listed.order.is_empty() && listed.aliases.is_empty());
    }
}
