//! Transactions that a list showed a moment ago: they stay for a while, so that a click on a row finds what it showed.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::guard::tables::TableUse;
use crate::model::{Nanos, TraceId};

/// How long a transaction stays after a list showed it, nanoseconds.
pub const LISTED_FOR: Nanos = 60_000_000_000;
/// Most transactions held so. The rows of one list beyond it are not held.
pub(super) const LISTED: usize = 1024;

/// Transactions held because a list showed them.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Until when each is held.
    until: FxHashMap<TraceId, Nanos>,
    /// In the order of their ends; an entry whose end is not the one in `until` is outdated.
    order: VecDeque<(Nanos, TraceId)>,
    /// Those that were listed under another id before they were joined to it.
    aliases: FxHashMap<TraceId, TraceId>,
    /// Rows that found no room.
    refused: u64,
}

impl Listed {
    /// Holds `traces` from `now` on; returns how many of them found room.
    pub(super) fn hold(&mut self, now: Nanos, traces: impl Iterator<Item = TraceId>) -> usize {
        let (until, mut held) = (now.saturating_add(LISTED_FOR), 0);
        for trace in traces {
            let known = self.until.contains_key(&trace);
            // Lists that are read again and again leave outdated entries behind.
            if (!known && self.until.len() >= LISTED) || self.order.len() >= 4 * LISTED {
                self.refused += 1;
                continue;
            }
            if self.until.insert(trace, until) != Some(until) {
                self.order.push_back((until, trace));
            }
            held += 1;
        }
        held
    }

    /// Whether a list showed the transaction a moment ago.
    pub(super) fn holds(&self, trace: TraceId) -> bool {
        self.until.contains_key(&trace)
    }

    /// The next transaction that is held no longer at `now`.
    pub(super) fn expired(&mut self, now: Nanos) -> Option<TraceId> {
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
        if !self.until.contains_key(&trace) {
            self.until.insert(trace, until);
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
