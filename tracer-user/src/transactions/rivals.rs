//! Several threads that held requests and were woken by one that had read a reply: which of them took its result.
//!
//! Who waits for room in a bounded queue, or for a lock, is woken as well, goes on, and waits again for its own result or
//! makes a call of its own. Who was handed the result has what it waited for and answers. So where the first that was woken
//! answers without being woken again, and every other one was, or called, the first took it.

use smallvec::SmallVec;

use super::engine::Engine;
use super::live::Slot;
use crate::model::Nanos;

/// Why nothing is sure before that.
pub(super) const SEVERAL: &str = "its thread woke several that waited";

/// Those that were woken, and what had happened to their requests by then.
#[derive(Clone, Debug)]
pub struct Rivals {
    /// How often the thread of the first one's request had been woken or had called, this wake-up included.
    pub own: u32,
    /// The requests of the others, with the same of theirs, as long as they have not been seen to go on.
    pub others: SmallVec<[(Slot, u32); 2]>,
}

/// What is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The first took the result.
    First,
    /// It may yet be known.
    Later,
    /// It will not be.
    Never,
}

impl Engine {
    /// The thread of `request` was woken by another, or made a call; how often by now.
    pub(super) fn stirred(&mut self, request: Slot) -> u32 {
        let Some(live) = self.units.get_mut(request) else { return 0 };
        live.stirs = live.stirs.saturating_add(1);
        live.stirs
    }

    /// Looks whether it is known by now who took the result of `call`; whether it may be later.
    pub(super) fn still_rivals(&mut self, call: Slot, now: Nanos) -> bool {
        let known = self.known(call);
        let Some(live) = self.units.get_mut(call) else { return false };
        if known == Known::Later && now != Nanos::MAX {
            return true;
        }
        live.rivals = None;
        if known == Known::First
            && let Some(handed) = &mut live.cause.handed
            && handed.doubt == Some(SEVERAL)
        {
            handed.doubt = None;
        }
        false
    }

    fn known(&self, call: Slot) -> Known {
        let Some(live) = self.units.get(call) else { return Known::Never };
        let Some(rivals) = live.rivals.as_deref() else { return Known::Never };
        let first = live.cause.candidate.and_then(|slot| self.units.get(slot));
        match first.map(|first| first.answered_after) {
            Some(Some(stirs)) if stirs == rivals.own => {}
            Some(None) => return Known::Later,
            _ => return Known::Never,
        }
        let mut known = Known::First;
        for (slot, stirs) in &rivals.others {
            match self.units.get(*slot) {
                Some(other) if other.stirs > *stirs => {}
                Some(other) if other.answered_after.is_none() => known = Known::Later,
                _ => return Known::Never,
            }
        }
        known
    }
}
