//! Limits of calls a second (`Declared::max_rate`): whose probes are to be detached because they are hit more often. Pure.

use std::time::{Duration, Instant};

/// Between two looks: at one that was attached a moment ago, and later. A function that is called in a tight loop runs some
/// ten times as slowly until its probes are gone.
const SOON: Duration = Duration::from_millis(2);
const LATER: Duration = Duration::from_millis(50);
const MOMENT: Duration = Duration::from_secs(1);
/// Calls that a new one may have at once, as a part of those of a second; a second's worth may follow each other later on.
const FIRST: f64 = 0.1;

/// The limit of one transaction.
#[derive(Clone, Copy, Debug)]
struct CallLimit {
    number: usize,
    /// Calls a second.
    rate: f64,
    /// Calls that may come now.
    room: f64,
    since: Instant,
    /// Calls before that.
    before: u64,
    /// When they were last counted, and how many there were.
    counted: (Instant, u64),
}

impl CallLimit {
    /// There have been `calls` by `now`; how many a second since it was attached, if that is too many.
    fn exceeded(&mut self, now: Instant, calls: u64) -> Option<f64> {
        let (at, counted) = self.counted;
        self.counted = (now, calls);
        self.room += self.rate * now.saturating_duration_since(at).as_secs_f64();
        self.room = self.room.min(self.rate) - calls.saturating_sub(counted) as f64;
        let seconds = now.saturating_duration_since(self.since).as_secs_f64().max(1e-3);
        (self.room < 0.0).then(|| calls.saturating_sub(self.before) as f64 / seconds)
    }
}

/// The limits of all transactions that have one.
#[derive(Debug, Default)]
pub(super) struct CallLimits(Vec<CallLimit>);

impl CallLimits {
    /// A transaction was attached, in one more file maybe, after `calls`.
    pub(super) fn add(&mut self, number: usize, rate: u32, now: Instant, calls: u64) {
        if self.0.iter().any(|one| one.number == number) {
            return;
        }
        let rate = f64::from(rate);
        let room = (rate * FIRST).max(1.0);
        self.0.push(CallLimit { number, rate, room, since: now, before: calls, counted: (now, calls) });
    }

    /// Those for which `stays` is not true are forgotten.
    pub(super) fn retain(&mut self, stays: impl Fn(usize) -> bool) {
        self.0.retain(|one| stays(one.number));
    }

    /// Until when to wait before the next look; `None`: there is nothing to look at.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let wait = |one: &CallLimit| if now.saturating_duration_since(one.since) < MOMENT { SOON } else { LATER };
        self.0.iter().map(wait).min()
    }

    /// Those that were called too often, with their calls a second; they are forgotten. `calls` by number so far.
    pub(super) fn exceeded(&mut self, now: Instant, calls: impl Fn(usize) -> u64) -> Vec<(usize, f64)> {
        let mut exceeded = Vec::new();
        self.0.retain_mut(|one| match one.exceeded(now, calls(one.number)) {
            Some(rate) => {
                exceeded.push((one.number, rate));
                false
            }
            None => true,
        });
        exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_of_a_second_pass_and_more_does_not() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut limits = CallLimits::default();
        assert_eq!(limits.wait(begin), None);
        limits.add(3, 1000, begin, 50);
        limits.add(3, 1000, at(1), 90);
        assert_eq!(limits.wait(at(10)), Some(SOON));
        // 100 at once, then 1000 a second; what was not used adds up to a second's worth.
        assert!(limits.exceeded(at(0), |_| 150).is_empty());
        assert!(limits.exceeded(at(500), |_| 640).is_empty());
        assert_eq!(limits.wait(at(1500)), Some(LATER));
        assert!(limits.exceeded(at(5000), |_| 640).is_empty());
        assert!(limits.exceeded(at(5000), |_| 1640).is_empty());
        assert_eq!(limits.exceeded(at(5001), |_| 1650).len(), 1);
        assert!(limits.exceeded(at(5002), |_| 9999).is_empty(), "it is forgotten");
    }

    #[test]
    fn a_tight_loop_is_found_within_milliseconds() {
        let begin = Instant::now();
        let mut limits = CallLimits::default();
        limits.add(1, 2000, begin, 0);
        // 100 000 a second.
        let first = (1..100u64).find_map(|millis| {
            let found = limits.exceeded(begin + Duration::from_millis(millis * 2), |_| millis * 200);
            found.first().map(|(_, rate)| (millis * 2, *rate))
        });
        let (millis, rate) = first.unwrap();
        assert!(millis <= 4 && (rate - 100_000.0).abs() < 1.0, "{millis} {rate}");
    }

    #[test]
    fn what_is_gone_is_not_looked_at() {
        let begin = Instant::now();
        let mut limits = CallLimits::default();
        limits.add(1, 1, begin, 0);
        limits.add(2, 1, begin, 0);
        limits.retain(|number| number == 2);
        assert_eq!(limits.exceeded(begin, |_| 100).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    }
}
