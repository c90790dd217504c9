//! Durations of database operations, with the labels of OpenTelemetry's semantic conventions and a bound on their
//! number. The conventions know the caller's side only; the family of the server's side is named after it.

use std::sync::Arc;

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{Outcome, Side, Unit};

/// Most different combinations of operation, failure and port one class gets series for.
const SERIES: usize = 32;
/// Bounds of durations, seconds: what the conventions advise, and below that what a cache on the same host needs.
pub(super) const BOUNDS: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Labels of the server's family.
pub(super) const SERVER_LABELS: [&str; 7] = [
    "service_name",
    "request_class",
    "db_system_name",
    "db_operation_name",
    "db_collection_name",
    "db_response_status_code",
    "error_type",
];
/// The same, and the port that was called.
pub(super) const CLIENT_LABELS: [&str; 8] = [
    "service_name",
    "request_class",
    "db_system_name",
    "db_operation_name",
    "db_collection_name",
    "db_response_status_code",
    "error_type",
    "server_port",
];

/// What tells the series of one class apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    operation: Arc<str>,
    /// What the server called the failure.
    status: &'static str,
    /// What failed: the same, or how the operation ended.
    failure: &'static str,
    /// Client side only.
    port: u16,
}

impl Key {
    fn of(unit: &Unit) -> Self {
        let status = unit.failure.unwrap_or_default();
        let failure = match unit.outcome {
            Outcome::Aborted | Outcome::Unfinished if unit.error => unit.outcome.name(),
            _ => status,
        };
        let port = if unit.side == Side::Client { unit.peer_port } else { 0 };
        Self { operation: Arc::clone(&unit.method), status, failure, port }
    }
}

/// The series of one class that are in use.
#[derive(Debug, Default)]
pub(super) struct Operations {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Operations {
    /// Counts an operation; `class` gives the labels `service_name` and `request_class`. Returns whether it had to go
    /// to the class's common series because it has too many.
    pub(super) fn observe(&mut self, family: &HistogramVec, class: [&str; 2], unit: &Unit) -> bool {
        let seconds = unit.duration() as f64 / 1e9;
        let key = Key::of(unit);
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        // A class that is folded away takes its operations along.
        let folded = class[1] == OTHER;
        let operation = if folded { OTHER } else { &*unit.method };
        // A class that a rule named, or others merged into, can be about many.
        let collection = if class[1] == &*unit.path { unit.collection().unwrap_or_default() } else { "" };
        let [service, name] = class;
        let labels = [service, name, unit.protocol, operation, collection];
        if self.series.len() >= SERIES {
            let common = || family.with_label_values(&values(labels, [OTHER, OTHER, OTHER], unit.side));
            self.overflow.get_or_insert_with(common).observe(seconds);
            return true;
        }
        let port = if key.port == 0 { String::new() } else { key.port.to_string() };
        let histogram = family.with_label_values(&values(labels, [key.status, key.failure, &port], unit.side));
        histogram.observe(seconds);
        self.series.push((key, histogram));
        false
    }
}

/// Label values in the order of the family's labels.
fn values<'a>(class: [&'a str; 5], rest: [&'a str; 3], side: Side) -> Vec<&'a str> {
    let wanted = if side == Side::Client { CLIENT_LABELS.len() } else { SERVER_LABELS.len() };
    class.into_iter().chain(rest).take(wanted).collect()
}
