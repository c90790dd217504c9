//! What keeps a transaction besides the share.

use std::collections::HashSet;

use rustc_hash::FxHashMap;
use tracer_model::{ClassId, KeepReason, Nanos, Span};

use super::TailSamplingSettings;

/// How long the tail of a class counts before it is asked for again, nanoseconds.
const FRESH: Nanos = 1_000_000_000;
const MINUTE: Nanos = 60_000_000_000;
/// Fewer requests than this in the last minutes have no 99th percentile worth the name.
const LEAST: u64 = 100;
/// Percentiles are of a sketch: a duration that is longer by less may be the same.
const SKETCH: f64 = 1.025;

/// Requests of a class by minute.
#[derive(Clone, Copy, Debug, Default)]
struct Minutes {
    minute: u64,
    before: u32,
    now: u32,
}

/// Why transactions are kept.
#[derive(Debug)]
pub(super) struct Reasons {
    keep: [bool; KeepReason::ALL.len()],
    /// A class with fewer requests a minute is rare.
    rare: u32,
    /// By class, of which there is a limit.
    minutes: Vec<Minutes>,
    /// By class: when it was asked for, and from what duration on a request is slow.
    slow: FxHashMap<ClassId, (Nanos, Option<Nanos>)>,
    /// Classes with open findings.
    findings: HashSet<ClassId>,
}

impl Reasons {
    pub(super) fn new(settings: &TailSamplingSettings) -> Self {
        let keep = KeepReason::ALL.map(|reason| settings.keep.contains(&reason));
        let (minutes, slow, findings) = (Vec::new(), FxHashMap::default(), HashSet::new());
        Self { keep, rare: settings.rare_per_minute, minutes, slow, findings }
    }

    pub(super) fn wants(&self, reason: KeepReason) -> bool {
        self.keep[reason as usize]
    }

    pub(super) fn set_findings(&mut self, classes: HashSet<ClassId>) {
        self.findings = classes;
    }

    /// The strongest reason that a span gives. `tail` says how many requests of a class there were lately, and their 99th
    /// percentile.
    pub(super) fn of(
        &mut self,
        span: &Span,
        is_top: bool,
        now: Nanos,
        tail: impl FnOnce(ClassId) -> (u64, Nanos),
    ) -> Option<KeepReason> {
        // Whatever else it is, it counts.
        let is_rare = self.wants(KeepReason::Rare) && self.is_rare(span.class, now);
        if self.wants(KeepReason::Failed) && span.error {
            return Some(KeepReason::Failed);
        }
        if is_top && self.wants(KeepReason::Slow) && self.is_slow(span, now, tail) {
            return Some(KeepReason::Slow);
        }
        if is_rare {
            return Some(KeepReason::Rare);
        }
        (self.wants(KeepReason::Finding) && self.findings.contains(&span.class)).then_some(KeepReason::Finding)
    }

    fn is_slow(&mut self, span: &Span, now: Nanos, tail: impl FnOnce(ClassId) -> (u64, Nanos)) -> bool {
        let known = self.slow.get(&span.class).filter(|(at, _)| now.saturating_sub(*at) < FRESH);
        let threshold = if let Some((_, threshold)) = known {
            *threshold
        } else {
            let (recent, p99) = tail(span.class);
            // `as` saturates.
            let threshold = (recent >= LEAST).then_some((p99 as f64 * SKETCH) as Nanos);
            self.slow.insert(span.class, (now, threshold));
            threshold
        };
        threshold.is_some_and(|threshold| span.duration() > threshold)
    }

    fn is_rare(&mut self, class: ClassId, now: Nanos) -> bool {
        let index = class.0 as usize;
        if self.minutes.len() <= index {
            self.minutes.resize(index + 1, Minutes::default());
        }
        let Some(minutes) = self.minutes.get_mut(index) else { return false };
        let minute = now / MINUTE;
        if minute != minutes.minute {
            let before = if minute == minutes.minute + 1 { minutes.now } else { 0 };
            *minutes = Minutes { minute, before, now: 0 };
        }
        minutes.now = minutes.now.saturating_add(1);
        minutes.before < self.rare && minutes.now <= self.rare
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::sample_span::span;

    fn reasons(keep: &[KeepReason]) -> Reasons {
        Reasons::new(&TailSamplingSettings { keep: keep.into(), rare_per_minute: 3, ..TailSamplingSettings::default() })
    }

    #[test]
    fn slow_is_beyond_the_99th_percentile_of_enough_requests() {
        let mut reasons = reasons(&[KeepReason::Slow]);
        let mut of = |duration, is_top, at, tail| reasons.of(&span(1, 0, duration, true), is_top, at, |_| tail);
        assert_eq!(of(10_000, true, 0, (99, 1_000)), None);
        assert_eq!(of(10_000, true, FRESH, (100, 1_000)), Some(KeepReason::Slow));
        assert_eq!(of(10_000, false, FRESH, (100, 1_000)), None);
        // What is known counts for a second; the sketch is exact to 2 %.
        assert_eq!(of(1_020, true, FRESH, (100, 500)), None);
        assert_eq!(of(1_020, true, 2 * FRESH, (100, 500)), Some(KeepReason::Slow));
    }

    #[test]
    fn a_class_is_rare_until_a_minute_has_more() {
        let mut reasons = reasons(&[KeepReason::Rare]);
        let mut at = |now| reasons.of(&span(1, 0, 1, false), false, now, |_| (0, 0)).is_some();
        // The first of a class that turns out to be frequent, and then no more.
        assert_eq!([0, 1, 2, 3, 4].map(&mut at), [true, true, true, false, false]);
        assert_eq!([MINUTE, MINUTE + 1].map(&mut at), [false, false]);
        // It had two in that minute; a minute without any is one, too.
        assert_eq!([2 * MINUTE, 4 * MINUTE].map(&mut at), [true, true]);
    }

    #[test]
    fn the_strongest_reason_is_named() {
        let all = [KeepReason::Finding, KeepReason::Rare, KeepReason::Failed];
        let mut found = reasons(&all);
        found.set_findings(HashSet::from([ClassId(0)]));
        let mut of = |error| found.of(&span(1, 0, 1, error), true, 0, |_| (0, 0));
        assert_eq!(of(true), Some(KeepReason::Failed));
        assert_eq!(
            [of(false), of(false), of(false)].map(|reason| reason.map(KeepReason::name)),
            [Some("rare"), Some("rare"), Some("finding")]
        );
        assert_eq!(reasons(&[]).of(&span(1, 0, 1, true), true, 0, |_| (0, 0)), None);
    }
}
