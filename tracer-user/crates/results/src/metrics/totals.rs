//! Counters that follow totals counted elsewhere.

use prometheus::{Counter, CounterVec, IntCounterVec, Opts};

use super::families::{Families, vec};

/// Counters that follow an absolute total counted elsewhere.
#[derive(Debug)]
pub(super) struct Totals(pub(super) IntCounterVec);

impl Totals {
    /// Registers a family with one label.
    pub(super) fn new(families: &Families, name: &str, help: &str, label: &str) -> Self {
        Self(vec(families, IntCounterVec::new(Opts::new(name, help), &[label])))
    }

    pub(super) fn set(&self, label: &str, total: u64) {
        let counter = self.0.with_label_values(&[label]);
        counter.inc_by(total.saturating_sub(counter.get()));
    }

    /// Sets several totals: label value and total.
    pub(super) fn set_all<'a>(&self, totals: impl IntoIterator<Item = (&'a str, u64)>) {
        for (label, total) in totals {
            self.set(label, total);
        }
    }
}

/// Like [`Totals`], in seconds.
#[derive(Debug)]
pub(super) struct Seconds(pub(super) CounterVec);

impl Seconds {
    /// Registers a family with one label.
    pub(super) fn new(families: &Families, name: &str, help: &str, label: &str) -> Self {
        Self(vec(families, CounterVec::new(Opts::new(name, help), &[label])))
    }

    pub(super) fn set(&self, label: &str, total: f64) {
        raise(&self.0.with_label_values(&[label]), total);
    }
}

/// Raises a counter to `total`; a total that falls (or is not a number) changes nothing.
pub(super) fn raise(counter: &Counter, total: f64) {
    let more = total - counter.get();
    if more > 0.0 && more.is_finite() {
        counter.inc_by(more);
    }
}
