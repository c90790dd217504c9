//! The shares that are kept, and how a bound on exported spans lowers them.

use tracer_model::{Nanos, Threshold};

/// How often the shares are adapted, nanoseconds.
const EVERY: Nanos = 1_000_000_000;
/// Weight of the last interval in the rates that the shares follow.
const NEWEST: f64 = 0.3;
/// Part of the bound that what has a reason cannot take: else a storm of failures would leave nothing to compare them with.
const RESERVED: f64 = 0.1;

/// Shares of transactions: with a reason, and all others.
#[derive(Debug)]
pub(super) struct Shares {
    /// Of the others, unless the bound lowers it.
    share: f64,
    /// Most exported spans a second.
    most: Option<f64>,
    pub(super) reasons: Threshold,
    pub(super) others: Threshold,
    /// Spans since the shares were adapted, with a reason and others, exported or not.
    seen: (u64, u64),
    /// The same a second, smoothed.
    rates: Option<(f64, f64)>,
    adapted: Nanos,
}

impl Shares {
    pub(super) fn new(share: f64, most: Option<u32>) -> Self {
        let others = Threshold::of_share(share);
        let most = most.map(f64::from);
        Self { share, most, reasons: Threshold::ALL, others, seen: (0, 0), rates: None, adapted: 0 }
    }

    /// Spans were decided about.
    pub(super) fn seen(&mut self, has_reason: bool, spans: usize) {
        let counter = if has_reason { &mut self.seen.0 } else { &mut self.seen.1 };
        *counter += spans as u64;
    }

    /// Adapts the shares to what was seen. They depend on other transactions only, never on one's own randomness: so they
    /// are its probabilities.
    pub(super) fn tick(&mut self, now: Nanos) {
        let Some(most) = self.most else { return };
        let since = now.saturating_sub(self.adapted);
        if since < EVERY {
            return;
        }
        let (reasons, others) = std::mem::take(&mut self.seen);
        if std::mem::replace(&mut self.adapted, now) == 0 {
            // Since when it was counted is not known.
            return;
        }
        let rate = |spans: u64| spans as f64 * 1e9 / since as f64;
        let (reasons, others) = (rate(reasons), rate(others));
        let smooth = |old: f64, new: f64| old + NEWEST * (new - old);
        let (reasons, others) =
            self.rates.map_or((reasons, others), |old| (smooth(old.0, reasons), smooth(old.1, others)));
        self.rates = Some((reasons, others));
        let wanted = self.share * others;
        let for_reasons = most - wanted.min(RESERVED * most);
        let of_reasons = (for_reasons / reasons).min(1.0);
        let left = most - of_reasons * reasons;
        self.reasons = Threshold::of_share(of_reasons);
        self.others = Threshold::of_share((left / others).min(self.share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(share: f64, most: Option<u32>, reasons: usize, others: usize) -> (f64, f64) {
        let mut shares = Shares::new(share, most);
        for second in 1..60 {
            shares.seen(true, reasons);
            shares.seen(false, others);
            shares.tick(second * EVERY);
        }
        (shares.reasons.share(), shares.others.share())
    }

    #[track_caller]
    fn near(found: (f64, f64), reasons: f64, others: f64) {
        assert!((found.0 - reasons).abs() < 0.001 && (found.1 - others).abs() < 0.001, "{found:?}");
    }

    #[test]
    fn a_bound_lowers_the_share_of_the_others_first() {
        near(after(0.1, None, 1000, 100_000), 1.0, 0.1);
        near(after(1.0, Some(1000), 100, 400), 1.0, 1.0);
        near(after(1.0, Some(1000), 100, 9000), 1.0, 0.1);
        near(after(0.1, Some(1000), 100, 4000), 1.0, 0.1);
        // A storm of failures: a tenth of the bound stays for the others.
        near(after(1.0, Some(1000), 9000, 1000), 0.1, 0.1);
        near(after(0.0, Some(1000), 2000, 1000), 0.5, 0.0);
        near(after(0.5, Some(1000), 0, 0), 1.0, 0.5);
    }

    #[test]
    fn shares_come_back_when_there_is_less() {
        let mut shares = Shares::new(0.5, Some(100));
        for second in 1..60 {
            shares.seen(false, if second < 20 { 10_000 } else { 10 });
            shares.tick(second * EVERY);
            assert!(second != 19 || shares.others.share() < 0.02, "{}", shares.others.share());
        }
        assert!((shares.others.share() - 0.5).abs() < 0.001);
    }
}
