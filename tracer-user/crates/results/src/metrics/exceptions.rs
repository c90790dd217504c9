//! Exceptions: how many were thrown, and of which type those are that ended requests.

use std::sync::Arc;

use prometheus::{IntCounter, IntCounterVec, Opts};
use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{ClassId, Names, Span};

use super::durations::OTHER;
use super::export::Metrics;
use super::families::{Families, vec};
use super::series_budget::SeriesBudget;

/// Most classes and types with a series of their own: types are named by programs.
const SERIES: usize = 500;

/// Class and type; `None`: all that share a series.
type ExceptionKey = Option<(ClassId, Arc<str>)>;

/// The families.
#[derive(Debug)]
pub(super) struct ExceptionFamilies {
    failures: IntCounterVec,
    thrown: IntCounterVec,
    withdrawn: IntCounter,
    series: FxHashMap<ExceptionKey, IntCounter>,
    /// Requests that share a series because there were too many.
    shared: u64,
}

impl ExceptionFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let failures = "Requests that failed after an exception was thrown for them, by the type of the last one (_unknown: it could \
                        not be read; _other: there were too many).";
        let thrown = "Exceptions thrown in files with a probe, by runtime and whether a request was known that they were thrown for \
                      (request, no_request), handled ones among them.";
        let withdrawn = "Programs and libraries whose probe was detached because they threw more exceptions a second than \
                         [exceptions] max_rate.";
        let labels = ["service_name", "request_class", "exception_type"];
        Self {
            failures: vec(r, IntCounterVec::new(Opts::new("tracer_request_exceptions_total", failures), &labels)),
            thrown: vec(
                r,
                IntCounterVec::new(Opts::new("tracer_exceptions_total", thrown), &["runtime", "thrown_for"]),
            ),
            withdrawn: vec(r, IntCounter::new("tracer_exception_probes_withdrawn_total", withdrawn)),
            series: FxHashMap::default(),
            shared: 0,
        }
    }

    /// A span ended.
    pub(super) fn span(&mut self, names: &Names, span: &Span, budget: &mut SeriesBudget) {
        let Some(kind) = &span.exception else { return };
        let wanted = Some((span.class, Arc::clone(kind)));
        let has_room = self.series.len() < SERIES;
        let key = if self.series.contains_key(&wanted) || (has_room && budget.take(1)) { wanted } else { None };
        self.shared += u64::from(key.is_none());
        let failures = &self.failures;
        let series = self.series.entry(key).or_insert_with_key(|key| {
            let class = key.as_ref().and_then(|(class, kind)| Some((names.class(*class)?, kind)));
            match class {
                Some((class, kind)) => failures.with_label_values(&[&*class.service_name, &*class.name, &**kind]),
                None => failures.with_label_values(&[OTHER, OTHER, OTHER]),
            }
        });
        series.inc();
    }
}

impl Metrics {
    /// Use of the table of series by class and type.
    pub fn exception_table(&self) -> TableUse {
        TableUse::new(self.exceptions.series.len(), SERIES, self.exceptions.shared)
    }

    /// Exceptions of a runtime since the start: for requests, and others.
    pub fn set_thrown(&self, runtime: &str, for_requests: u64, others: u64) {
        for (what, total) in [("request", for_requests), ("no_request", others)] {
            let counter = self.exceptions.thrown.with_label_values(&[runtime, what]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// So many probes were detached since the start because exceptions were too frequent.
    pub fn set_exception_probes_withdrawn(&self, total: u64) {
        let counter = &self.exceptions.withdrawn;
        counter.inc_by(total.saturating_sub(counter.get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{Sink, sample_span::span};

    fn failed(kind: Option<&str>) -> Span {
        Span { exception: kind.map(Arc::from), ..span(1, 1, 1, true) }
    }

    #[test]
    fn types_are_counted_and_bounded() {
        let (names, mut metrics) = (Names::default(), Metrics::new());
        metrics.span(&names, &failed(None));
        assert_eq!(metrics.exception_table().entries, 0);
        for n in 0..2 * SERIES {
            metrics.span(&names, &failed(Some(&format!("Hostile{n}"))));
        }
        metrics.span(&names, &failed(Some("Hostile0")));
        let table = metrics.exception_table();
        assert!(table.entries <= SERIES as u64 + 1, "{table:?}");
        assert_eq!(table.reached, SERIES as u64);
        assert!(metrics.exceptions.series.contains_key(&None));
    }
}
