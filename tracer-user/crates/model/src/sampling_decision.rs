//! Why a span is exported, and how many it stands for.

use std::fmt;

/// The number of values that the randomness of a trace id can have.
const RANGE: u64 = 1 << 56;
/// Significant hexadecimal digits of a threshold, as OpenTelemetry recommends.
const DIGITS: i32 = 4;

/// Rejection threshold of OpenTelemetry's consistent probability sampling: of the 2^56 values that the randomness of a trace
/// can have, those below it are rejected. Displays as `th` of `tracestate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Threshold(u64);

impl Threshold {
    /// Rejects nothing.
    pub const ALL: Self = Self(0);
    /// Rejects everything: no sampling probability, and never on a span.
    pub const NONE: Self = Self(RANGE);

    /// That of a share, 0 to 1, rounded to four significant digits (more where the share is small), as in the
    /// specification's own algorithm.
    pub fn of_share(share: f64) -> Self {
        if share >= 1.0 {
            return Self::ALL;
        }
        if share.is_nan() || share < 1.0 / RANGE as f64 {
            return Self::NONE;
        }
        // Leading f digits say how small the share is, not how exact.
        let small = -(share.log2().floor() as i32 + 1);
        let digits = (DIGITS + small.max(0) / 4).clamp(1, 12);
        let step = 1u64 << (56 - 4 * digits);
        let steps = ((1.0 - share) * RANGE as f64 / step as f64).round() as u64;
        Self((steps * step).min(RANGE - step))
    }

    /// Whether a trace of this randomness is kept.
    pub fn keeps(self, randomness: u64) -> bool {
        randomness >= self.0
    }

    /// The share that is kept, 0 to 1.
    pub fn share(self) -> f64 {
        (RANGE - self.0) as f64 / RANGE as f64
    }

    /// How many a kept one stands for.
    pub fn adjusted_count(self) -> f64 {
        1.0 / self.share()
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:014x}", self.0);
        let short = digits.trim_end_matches('0');
        f.write_str(if short.is_empty() { "0" } else { short })
    }
}

/// What is known of a transaction at its end that keeps it, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeepReason {
    /// A span of it failed.
    Failed,
    /// Its first span here took longer than nearly all of its class.
    Slow,
    /// It has a span of a class with few requests.
    Rare,
    /// It has a span of a class with an open finding.
    Finding,
}

impl KeepReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Failed, Self::Slow, Self::Rare, Self::Finding];

    /// As configuration, metrics and attributes name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Slow => "slow",
            Self::Rare => "rare",
            Self::Finding => "finding",
        }
    }
}

/// The decision to export a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingDecision {
    /// The reason; `None`: its transaction is in the share of all others.
    pub because: Option<KeepReason>,
    /// The threshold of all that are kept for this reason, or of that share.
    pub threshold: Threshold,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the specification, at four digits of precision.
    #[test]
    fn shares_have_the_thresholds_of_the_specification() {
        for (one_in, text, count) in [
            (1.0, "0", 1.0),
            (2.0, "8", 2.0),
            (3.0, "aaab", 3.000_045_777_065_69),
            (4.0, "c", 4.0),
            (5.0, "cccd", 5.000_076_295_109_483),
            (8.0, "e", 8.0),
            (10.0, "e666", 9.999_389_685_688_13),
            (16.0, "f", 16.0),
            (100.0, "fd70a", 99.997_711_234_026_33),
            (1e3, "ffbe77", 1_000.012_874_769_029),
            (1e4, "fff9724", 9_999.830_725_674_266),
            (1e5, "ffff583a", 99_999.238_556_461),
            (1e6, "ffffef39", 999_992.385_564_61),
        ] {
            let threshold = Threshold::of_share(1.0 / one_in);
            assert_eq!(threshold.to_string(), text, "1 in {one_in}");
            let found = threshold.adjusted_count();
            assert!((found / count - 1.0).abs() < 1e-9, "1 in {one_in}: {found}, not {count}");
        }
    }

    #[test]
    fn the_ends_of_the_range_are_all_and_nothing() {
        assert_eq!((Threshold::of_share(2.0), Threshold::of_share(1.0)), (Threshold::ALL, Threshold::ALL));
        for nothing in [0.0, -1.0, f64::NAN, 1e-18] {
            assert_eq!(Threshold::of_share(nothing), Threshold::NONE, "{nothing}");
        }
        assert!(Threshold::ALL.keeps(0) && !Threshold::NONE.keeps(RANGE - 1));
        assert!(Threshold::of_share(0.5).keeps(RANGE / 2) && !Threshold::of_share(0.5).keeps(RANGE / 2 - 1));
        // Small shares are never rounded to nothing, large ones to all at most; leading zeros say how large.
        for share in [1.0 / RANGE as f64, 1e-12, 0.99, 0.999_999] {
            let threshold = Threshold::of_share(share);
            assert!(threshold != Threshold::NONE && threshold.to_string().len() <= 14, "{share}: {threshold}");
        }
        assert_eq!(Threshold::of_share(0.97).to_string(), "07ae");
    }
}
