//! When records were lost, and for how long that leaves doubts.

use tracer_model::Nanos;

use super::evidence::Evidence;

/// How long after a loss a process not seen to serve requests may still work for one whose record was lost,
/// nanoseconds. A process that serves requests shows it when it reads the next one.
pub const SUSPECT: Nanos = 60_000_000_000;
/// The same for requests read before tracing began: shorter, because it affects every host at every start.
pub const BEGINNING: Nanos = 10_000_000_000;

/// The latest loss window, extended to the end of its aftermath; and the start of tracing, before which nothing was
/// recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    pub(super) from: Nanos,
    /// 0: no losses.
    pub(super) until: Nanos,
    /// Until then there may be work for requests read before tracing began.
    pub(super) begun_until: Nanos,
}

impl Losses {
    pub(super) fn note(&mut self, since: Nanos, until: Nanos) {
        if self.until == 0 || since > self.until {
            self.from = since;
        }
        self.until = self.until.max(until);
    }

    /// Why events at or before `at` may have been missed, if so.
    pub(super) fn cover(&self, at: Nanos) -> Option<Evidence> {
        if self.until != 0 && (self.from..=self.until).contains(&at) {
            Some(Evidence::EventsLost)
        } else {
            (at <= self.begun_until).then_some(Evidence::JustBegun)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_makes_doubtful_what_follows_for_a_while() {
        let mut losses = Losses::default();
        let lost = |losses: &Losses, at| losses.cover(at) == Some(Evidence::EventsLost);
        assert!(losses.cover(1).is_none() && losses.cover(5).is_none());
        losses.note(100, 200);
        assert!(!lost(&losses, 99) && lost(&losses, 100) && lost(&losses, 200) && !lost(&losses, 201));
        // A second loss in between extends the window: from the first until long after the second.
        losses.note(150, 300);
        assert!(lost(&losses, 100) && lost(&losses, 300) && !lost(&losses, 301));
        losses.note(400, 500);
        assert!(!lost(&losses, 350) && lost(&losses, 400));
    }

    #[test]
    fn the_beginning_is_no_loss() {
        let mut losses = Losses { begun_until: 100, ..Losses::default() };
        assert_eq!((losses.cover(100), losses.cover(101)), (Some(Evidence::JustBegun), None));
        losses.note(50, 70);
        assert_eq!(losses.cover(60), Some(Evidence::EventsLost), "what was really lost goes before");
    }
}
