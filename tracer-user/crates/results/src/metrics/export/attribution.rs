//! Calls by grade, and messages without a link.

use prometheus::{IntCounter, IntCounterVec, Opts};
use tracer_model::{Grade, Side, Span};

use super::Metrics;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct Attribution {
    /// In the order of [`Grade::ALL`].
    grades: Vec<IntCounter>,
    unlinked: Totals,
}

impl Attribution {
    pub(super) fn new(r: &Families) -> Self {
        let grades = Opts::new("tracer_attribution_total", "Calls by the grade of their parent.");
        let grades = vec(r, IntCounterVec::new(grades, &["grade"]));
        Self {
            grades: Grade::ALL.iter().map(|grade| grades.with_label_values(&[grade.name()])).collect(),
            unlinked: Totals::new(
                r,
                "tracer_messages_unlinked_total",
                "Messages in batches that got no link to their producer although they may name one, by reason: unread \
                 (compressed or not captured, as far as their number is known), limit (their span has too many links).",
                "reason",
            ),
        }
    }

    /// Counts a call by its grade.
    pub(super) fn span(&self, span: &Span) {
        if span.side == Side::Client
            && let Some(index) = Grade::ALL.iter().position(|grade| *grade == span.grade)
            && let Some(counter) = self.grades.get(index)
        {
            counter.inc();
        }
    }
}

impl Metrics {
    /// Messages that link nothing though they may say who produced them, by reason, absolute.
    pub fn set_unlinked(&self, reasons: &[(&str, u64)]) {
        self.attribution.unlinked.set_all(reasons.iter().copied());
    }
}
