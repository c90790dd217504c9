//! Clock offsets of other hosts, estimated from the two ends of calls: a request cannot arrive before it was sent, nor
//! its reply before it was written (as in NTP, RFC 5905 §8). For display only: no span's times are corrected by them.

use rustc_hash::FxHashMap;
use tracer_model::Nanos;

/// Most agents whose clocks are tracked.
const LIMIT: usize = 1024;
/// Each window of this length keeps its best estimate; the current and the previous window count. Nanoseconds.
const WINDOW: Nanos = 30_000_000_000;

/// Times of both ends of a call, nanoseconds. `sent` and `replied` are by this host's clock, the others by the other
/// host's.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// First byte of the request was sent.
    pub sent: i64,
    /// Last byte of the reply was read.
    pub replied: i64,
    /// The request arrived.
    pub arrived: i64,
    /// Last byte of the reply was written.
    pub answered: i64,
}

/// A clock's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// How far it is ahead of this host's, nanoseconds; negative: behind.
    pub offset: i64,
    /// Error of the offset, plus or minus, nanoseconds.
    pub error: u64,
}

#[derive(Clone, Copy, Debug)]
struct PeerClock {
    since: Nanos,
    now: Option<Clock>,
    before: Option<Clock>,
}

/// Clocks of other agents' hosts, by agent number.
#[derive(Debug, Default)]
pub struct Clocks {
    known: FxHashMap<u64, PeerClock>,
}

impl Clocks {
    /// Records the times of a call that the agent `number` reported; `now` is monotonic.
    pub fn learn(&mut self, now: Nanos, number: u64, pair: Pair) {
        // The true offset lies between these two.
        let most = pair.arrived.saturating_sub(pair.sent);
        let least = pair.answered.saturating_sub(pair.replied);
        let width = most.saturating_sub(least);
        if width < 0 {
            // A clock was set in between, or the report is wrong.
            return;
        }
        let clock = Clock { offset: least.saturating_add(width / 2), error: width.unsigned_abs().div_ceil(2) };
        if !self.known.contains_key(&number)
            && self.known.len() >= LIMIT
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.since).map(|(number, _)| *number)
        {
            self.known.remove(&oldest);
        }
        let known = self.known.entry(number).or_insert(PeerClock { since: now, now: None, before: None });
        if now.saturating_sub(known.since) >= WINDOW {
            *known = PeerClock { since: now, now: None, before: known.now };
        }
        if known.now.is_none_or(|best| clock.error < best.error) {
            known.now = Some(clock);
        }
    }

    /// The offset of an agent's host: the estimate with the smallest error in the last two windows.
    pub fn of(&self, number: u64) -> Option<Clock> {
        let known = self.known.get(&number)?;
        known.now.into_iter().chain(known.before).min_by_key(|clock| clock.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_truth_is_within_the_error(
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            calls in proptest::collection::vec((0i64..5_000_000, 0i64..9_000_000, 0i64..5_000_000), 1..40),
        ) {
            let mut clocks = Clocks::default();
            let mut best = i64::MAX;
            for (n, (there, work, back)) in (0i64..).zip(calls) {
                let sent = n * 20_000_000;
                let arrived = sent + there + offset;
                let answered = arrived + work;
                clocks.learn(sent as u64, 7, Pair { sent, replied: sent + there + work + back, arrived, answered });
                best = best.min(there + back);
            }
            let clock = clocks.of(7).unwrap();
            prop_assert!(clock.offset.abs_diff(offset) <= clock.error, "{clock:?}");
            prop_assert!(clock.error <= best.unsigned_abs().div_ceil(2), "the narrowest counts");
        }

        #[test]
        fn any_times_are_survived(times in any::<[i64; 4]>()) {
            let [sent, replied, arrived, answered] = times;
            Clocks::default().learn(1, 1, Pair { sent, replied, arrived, answered });
        }
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let mut clocks = Clocks::default();
        let pair = |offset: i64, on_the_way: i64| Pair {
            sent: 0,
            replied: 2 * on_the_way,
            arrived: offset + on_the_way,
            answered: offset + on_the_way,
        };
        clocks.learn(0, 1, pair(500, 10));
        assert_eq!(clocks.of(1), Some(Clock { offset: 500, error: 10 }));
        clocks.learn(WINDOW, 1, pair(900, 20));
        assert_eq!(clocks.of(1).unwrap().offset, 500, "narrower, and not long ago");
        clocks.learn(2 * WINDOW, 1, pair(901, 30));
        assert_eq!(clocks.of(1), Some(Clock { offset: 900, error: 20 }));
        clocks.learn(2 * WINDOW, 1, Pair { sent: 0, replied: 5, arrived: 100, answered: 200 });
        assert_eq!(clocks.of(1).unwrap().offset, 900, "a reply that took longer than the call");
        for number in 10..10 + 2 * LIMIT as u64 {
            clocks.learn(2 * WINDOW + number, number, pair(1, 1));
        }
        assert!(clocks.known.len() == LIMIT && clocks.of(1).is_none());
    }
}
