//! Durations of messaging operations, with the names and labels of OpenTelemetry's semantic conventions for messaging and a
//! bound on their number. The conventions know producers and consumers only; the family of the broker's side is named after
//! theirs. Destinations are label values as templates.

use std::sync::Arc;

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{ClassInfo, Outcome, Unit};
use crate::protocols::messaging;

/// Most different combinations of failure and port one class gets series for.
const SERIES: usize = 32;

/// Labels of what consumers and brokers do.
pub(super) const LABELS: [&str; 7] = [
    "service_name",
    "request_class",
    "messaging_system",
    "messaging_operation_name",
    "messaging_operation_type",
    "messaging_destination_name",
    "error_type",
];
/// Of what clients do: the same, and the broker's port.
pub(super) const CLIENT_LABELS: [&str; 8] = [
    "service_name",
    "request_class",
    "messaging_system",
    "messaging_operation_name",
    "messaging_operation_type",
    "messaging_destination_name",
    "error_type",
    "server_port",
];

/// Where a unit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// What a producer or consumer asks of a broker.
    Client,
    /// What a consumer does with a message.
    Process,
    /// Either as the broker sees it.
    Server,
}

impl Family {
    pub(super) fn of(unit: &Unit) -> Self {
        match (messaging::is_of_client(unit), messaging::is_processing(unit)) {
            (_, true) => Self::Process,
            (true, false) => Self::Client,
            (false, false) => Self::Server,
        }
    }
}

/// What tells the series of one class apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    operation: Arc<str>,
    failure: &'static str,
    /// [`Family::Client`] only.
    port: u16,
}

impl Key {
    fn of(unit: &Unit) -> Self {
        let failure = match unit.outcome {
            Outcome::Aborted | Outcome::Unfinished if unit.error => unit.outcome.name(),
            _ => unit.failure.unwrap_or_default(),
        };
        let port = if Family::of(unit) == Family::Client { unit.peer_port } else { 0 };
        Self { operation: Arc::clone(&unit.method), failure, port }
    }
}

/// The series of one class that are in use.
#[derive(Debug, Default)]
pub(super) struct Messages {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Messages {
    /// Counts an operation; `class` gives the labels `service_name` and `request_class`. Returns whether it had to go to
    /// the class's common series because it has too many.
    pub(super) fn observe(&mut self, family: &HistogramVec, class: [&str; 2], info: &ClassInfo, unit: &Unit) -> bool {
        let seconds = unit.duration() as f64 / 1e9;
        let key = Key::of(unit);
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        let [service, name] = class;
        // A class that is folded away takes its destinations along.
        let folded = name == OTHER;
        let (operation, destination) = if folded { (OTHER, "") } else { (&*unit.method, &*info.route) };
        let kind = if folded { "" } else { messaging::operation_type(operation) };
        let labels = [service, name, messaging::system(unit.protocol), operation, kind, destination];
        let wanted = if Family::of(unit) == Family::Client { CLIENT_LABELS.len() } else { LABELS.len() };
        let values = |rest: [&str; 2]| -> Vec<String> {
            labels.into_iter().chain(rest).take(wanted).map(str::to_owned).collect()
        };
        if self.series.len() >= SERIES {
            let common = || family.with_label_values(&values([OTHER, OTHER]));
            self.overflow.get_or_insert_with(common).observe(seconds);
            return true;
        }
        let port = if key.port == 0 { String::new() } else { key.port.to_string() };
        let histogram = family.with_label_values(&values([key.failure, &port]));
        histogram.observe(seconds);
        self.series.push((key, histogram));
        false
    }
}
