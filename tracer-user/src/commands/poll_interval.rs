//! How long the pipeline sleeps between two polls of the rings.
//!
//! Each poll is a wake-up with cold caches, so few large polls cost less than many small ones. Records get older
//! meanwhile but are not lost: the kernel side ends a sleep when a ring is a quarter full. On a calm host the agent sleeps until
//! there is a record (`sleep_until_record.rs`).

use tracer_model::Nanos;

/// The shortest sleep, milliseconds: under load, and when results are awaited.
pub(super) const SHORTEST: i32 = 4;
/// The longest sleep, milliseconds.
pub(super) const LONGEST: i32 = 50;
/// A host is calm after so many polls that found few records: at most so many each millisecond (less than one busy CPU's samples),
/// or so many in all.
const CALM_POLLS: u32 = 3;
const CALM_RATE: f64 = 0.04;
const CALM_FEW: f64 = 2.0;
/// Target records per poll. Larger batches save little and would occupy a CPU for more than a millisecond or two.
const WANTED: f64 = 1024.0;
/// Target fill of the fullest ring at a poll, as a fraction: well before the kernel side ends the sleep.
const FILLED: f64 = 1.0 / 8.0;
/// Maximum records per poll of a calm host while other agents wait for contexts; some thousand a second.
const FEW: usize = 32;
/// The longest sleep while other agents wait and there are records, milliseconds.
const CALM: i32 = 20;
/// A millisecond.
const MILLI: f64 = 1e6;

/// Result of a poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// When it began, `CLOCK_MONOTONIC`.
    pub(super) at: Nanos,
    /// Records taken.
    pub(super) records: usize,
    /// How full the fullest ring was, 0 to 1.
    pub(super) filled: f64,
    /// The poll left no records of that time behind.
    pub(super) drained: bool,
    /// A process executed another program and may soon be gone; or the capture policy of a connection was raised, and
    /// more of its messages may follow.
    pub(super) stirred: bool,
}

/// State of the poll interval.
#[derive(Debug)]
pub(super) struct Pace {
    rest: i32,
    last: Nanos,
    /// Polls in a row that found few records.
    calm: u32,
}

impl Pace {
    /// Starts with frequent polls.
    pub(super) fn new() -> Self {
        Self { rest: SHORTEST, last: 0, calm: 0 }
    }

    /// How long to sleep after this poll, milliseconds.
    pub(super) fn after(&mut self, found: &Found) -> i32 {
        let since = found.at.saturating_sub(std::mem::replace(&mut self.last, found.at)) as f64 / MILLI;
        if !found.drained {
            self.calm = 0;
            return 0;
        }
        let is_calm = !found.stirred && found.records as f64 <= (since * CALM_RATE).max(CALM_FEW);
        self.calm = if is_calm { self.calm.saturating_add(1) } else { 0 };
        let by_count = WANTED / found.records.max(1) as f64;
        let by_room = if found.filled > 0.0 { FILLED / found.filled } else { f64::MAX };
        // `as` saturates.
        let rest = (since * by_count.min(by_room)) as i32;
        self.rest = if found.stirred { SHORTEST } else { rest.clamp(SHORTEST, self.longer()) };
        self.rest
    }

    /// Whether the host is so calm that the agent may sleep until there is a record.
    pub(super) fn is_calm(&self) -> bool {
        self.rest == LONGEST && self.calm >= CALM_POLLS
    }

    /// A record ended such a sleep: more may follow.
    pub(super) fn woken(&mut self) {
        self.calm = 0;
    }

    /// Like `after`, when other agents wait for contexts: `rested` says whether the last sleep lasted as long as
    /// planned.
    pub(super) fn after_for_others(&mut self, found: &Found, rested: bool) -> i32 {
        self.last = found.at;
        self.rest = match found.records {
            0 if rested => self.longer(),
            1..=FEW if rested => self.longer().min(CALM),
            // A relay message ended the sleep early, so the few records say nothing about the load.
            0..=FEW => self.rest,
            _ => SHORTEST,
        };
        if found.drained { self.rest } else { 0 }
    }

    /// Records that the sleep was shorter than planned.
    pub(super) fn cut(&mut self, rest: i32) {
        self.rest = rest;
    }

    /// A busy host may be calm for a moment, so sleeps grow step by step.
    fn longer(&self) -> i32 {
        self.rest.max(SHORTEST).saturating_mul(2).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Found = Found { at: 0, records: 0, filled: 0.0, drained: true, stirred: false };

    /// Sleeps of a host with this many records a second, each filling this part of a ring.
    fn rests(a_second: f64, part: f64) -> Vec<i32> {
        let mut pace = Pace::new();
        let mut at = 1_000_000_000;
        let mut rest = pace.after(&Found { at, ..QUIET });
        let mut rests = Vec::new();
        for _ in 0..20 {
            at += (f64::from(rest) * MILLI) as Nanos;
            let records = a_second * f64::from(rest) / 1000.0;
            rest = pace.after(&Found { at, records: records as usize, filled: records * part, ..QUIET });
            rests.push(rest);
        }
        rests
    }

    #[test]
    fn a_look_finds_as_much_as_it_should() {
        assert_eq!(rests(0.0, 0.0)[..5], [16, 32, 50, 50, 50]);
        assert_eq!(rests(1_000.0, 1e-4)[19], 50);
        let some = rests(50_000.0, 1e-5)[19];
        assert!((19..=21).contains(&some), "{some}");
        assert_eq!(rests(10_000_000.0, 1e-5)[19], SHORTEST);
        // A few large ones.
        let full = rests(100.0, 0.1)[19];
        assert!((9..=13).contains(&full), "{full}");
    }

    #[test]
    fn what_is_left_and_what_stirs_is_looked_at_soon() {
        let mut pace = Pace::new();
        for at in 1..10 {
            pace.after(&Found { at: at * 50_000_000, ..QUIET });
        }
        assert_eq!(pace.after(&Found { at: 500_000_000, records: 16_384, drained: false, ..QUIET }), 0);
        assert_eq!(pace.after(&Found { at: 550_000_000, stirred: true, ..QUIET }), SHORTEST);
        assert_eq!(pace.after(&Found { at: 554_000_000, ..QUIET }), 2 * SHORTEST);
        // A clock that stands, or numbers that are none.
        assert_eq!(pace.after(&Found { at: 554_000_000, records: usize::MAX, filled: f64::NAN, ..QUIET }), SHORTEST);
    }

    #[test]
    fn a_host_is_calm_until_something_happens() {
        let mut pace = Pace::new();
        let mut at = 0;
        // Whether it is calm after polls that found so many records, each after so many milliseconds.
        let mut polls = |pace: &mut Pace, records: usize, millis: u64, stirred: bool| {
            at += millis * MILLI as Nanos;
            pace.after(&Found { at, records, stirred, ..QUIET });
            pace.is_calm()
        };
        assert_eq!([0; 7].map(|_| polls(&mut pace, 0, 50, false)), [false, false, false, true, true, true, true]);
        // A second of a calm host; a busy CPU; what begins.
        assert!(polls(&mut pace, 40, 1000, false));
        assert!(!polls(&mut pace, 5, 50, false));
        assert_eq!([0; 3].map(|_| polls(&mut pace, 2, 50, false)), [false, false, true]);
        assert!(!polls(&mut pace, 1, 1000, true));
        assert_eq!([0; 6].map(|_| polls(&mut pace, 0, 50, false)), [false, false, false, true, true, true]);
        pace.woken();
        assert_eq!([0; 3].map(|_| polls(&mut pace, 1, 50, false)), [false, false, true]);
        pace.after(&Found { at: 1 << 60, drained: false, ..QUIET });
        assert!(!pace.is_calm());
    }

    #[test]
    fn others_do_not_wait_long() {
        let mut pace = Pace::new();
        let few = Found { records: 5, ..QUIET };
        assert_eq!([0; 4].map(|_| pace.after_for_others(&few, true)), [8, 16, 20, 20]);
        assert_eq!(pace.after_for_others(&few, false), 20);
        assert_eq!([0; 3].map(|_| pace.after_for_others(&QUIET, true)), [40, 50, 50]);
        assert_eq!(pace.after_for_others(&Found { records: 33, ..QUIET }, true), SHORTEST);
        pace.cut(7);
        assert_eq!(pace.after_for_others(&few, true), 14);
    }
}
