//! When records were lost: what was not seen then, and for long after, is not known not to have been.

use super::engine::Engine;
use super::live::Slot;
use crate::model::{Nanos, Side};

/// So long after tracing began the same goes for what was read before, nanoseconds: until then nobody is sure to serve nobody.
pub(super) const BEGINNING: Nanos = 10_000_000_000;
/// So long after a loss a process that was not seen to serve requests may be at work for one whose record was lost,
/// nanoseconds. One that serves is seen to when it reads the next.
const SUSPECT: Nanos = 60_000_000_000;

/// What is said of a call of a process that is not seen to serve any request.
pub const BEGINS: &str = "its process serves no requests: the transaction begins here";
/// The same where that may have been lost.
pub const SUSPECTED: &str = "its process was not seen to serve requests, but events were lost";

/// The latest stretch of time in which records were lost, and after which that is not over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    from: Nanos,
    /// 0: nothing was lost.
    until: Nanos,
}

impl Losses {
    fn note(&mut self, since: Nanos, now: Nanos) {
        if self.until == 0 || since > self.until {
            self.from = since;
        }
        self.until = self.until.max(now.saturating_add(SUSPECT));
    }

    /// Whether what happened before `at` may not have been seen.
    pub(super) fn cover(&self, at: Nanos) -> bool {
        self.until != 0 && (self.from..=self.until).contains(&at)
    }
}

impl Engine {
    /// Records of operations were lost on their way, some time after `since` and before `now`.
    pub fn lost(&mut self, since: Nanos, now: Nanos) {
        self.losses.note(since, now);
    }

    /// A call was said to be of nobody because its process serves nobody, as far as was seen: not where that may have been
    /// lost. What was lost is counted some time after it was, but before the call is reported.
    pub(super) fn suspect(&mut self, slot: Slot) {
        let (losses, serving) = (self.losses, &self.serving);
        let Some(live) = self.units.get_mut(slot).filter(|live| live.side == Side::Client) else { return };
        let served = || serving.get(&live.pid).is_some_and(|since| *since <= live.start);
        if live.cause.evidence == BEGINS && (losses.cover(live.start) || served()) {
            live.cause.alone = false;
            live.cause.evidence = SUSPECTED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_makes_doubtful_what_follows_for_a_while() {
        let mut losses = Losses::default();
        assert!(!losses.cover(0) && !losses.cover(5));
        losses.note(100, 110);
        assert!(!losses.cover(99));
        assert!([100, 105, 111, 110 + SUSPECT].iter().all(|at| losses.cover(*at)));
        assert!(!losses.cover(111 + SUSPECT));
        // Another one meanwhile: from the first on, until long after the second.
        losses.note(SUSPECT, SUSPECT + 10);
        assert!(losses.cover(100) && losses.cover(2 * SUSPECT + 10) && !losses.cover(2 * SUSPECT + 11));
        losses.note(4 * SUSPECT, 4 * SUSPECT + 1);
        assert!(!losses.cover(3 * SUSPECT + 12) && losses.cover(5 * SUSPECT));
    }
}
