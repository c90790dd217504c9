//! Duration histograms of database operations, with the labels of OpenTelemetry's semantic conventions and a bounded
//! number of series. The conventions define only the client's metric; the server's is named after it.

use std::sync::Arc;

use tracer_model::{Outcome, Side, Span};

use super::class_histograms::{ClassHistograms, Observation, SeriesSlot};
use super::durations::{OTHER, port_label};
use super::histograms::HistogramVec;

/// Histogram bounds, seconds: those the conventions advise, and finer ones below for a cache on the same host.
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
/// The server's labels and the called port.
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

/// Key of a series within one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperationKey {
    operation: Arc<str>,
    /// The server's name for the failure.
    status: &'static str,
    /// The `error_type`: the status, or how the operation ended.
    failure: &'static str,
    /// Set on the client side only.
    port: u16,
}

impl OperationKey {
    fn of(span: &Span) -> Self {
        let status = span.failure.unwrap_or_default();
        let failure = match span.outcome {
            Outcome::Aborted if span.error => span.end_type(),
            _ => status,
        };
        let port = if span.side == Side::Client { span.peer_port } else { 0 };
        Self { operation: Arc::clone(&span.method), status, failure, port }
    }
}

/// The series in use of one class.
pub(super) type Operations = ClassHistograms<OperationKey>;

/// Counts an operation; `class` gives the labels `service_name` and `request_class`.
pub(super) fn observe(
    operations: &mut Operations,
    family: &HistogramVec,
    class: [&str; 2],
    span: &Span,
    observation: Observation<'_>,
) -> SeriesSlot {
    // A folded class folds its operations too.
    let folded = class[1] == OTHER;
    let operation = if folded { OTHER } else { &*span.method };
    // A class that a rule named, or that others merged into, can cover many collections.
    let collection = if class[1] == &*span.path { span.collection().unwrap_or_default() } else { "" };
    let [service, name] = class;
    let labels = [service, name, span.protocol.name(), operation, collection];
    let values = |key: Option<&OperationKey>| match key {
        Some(key) => values(labels, [key.status, key.failure, &port_label(key.port)], span.side),
        None => values(labels, [OTHER, OTHER, OTHER], span.side),
    };
    operations.observe(family, OperationKey::of(span), values, observation)
}

/// Label values in the order of the family's labels.
fn values(class: [&str; 5], rest: [&str; 3], side: Side) -> Vec<String> {
    let wanted = if side == Side::Client { CLIENT_LABELS.len() } else { SERVER_LABELS.len() };
    class.into_iter().chain(rest).take(wanted).map(str::to_owned).collect()
}
