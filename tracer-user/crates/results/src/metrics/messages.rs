//! Duration histograms of messaging operations, with the names and labels of OpenTelemetry's semantic conventions for
//! messaging and a bounded number of series. The conventions define metrics of producers and consumers only; the
//! broker's is named after them. Destination labels are templates.

use std::sync::Arc;

use tracer_model::{ClassInfo, Outcome, Span};
use tracer_protocols::messaging;

use super::class_histograms::{ClassHistograms, Observation, SeriesSlot};
use super::durations::{OTHER, port_label};
use super::histograms::HistogramVec;

/// Labels of consumers' processing and of brokers.
pub(super) const LABELS: [&str; 7] = [
    "service_name",
    "request_class",
    "messaging_system",
    "messaging_operation_name",
    "messaging_operation_type",
    "messaging_destination_name",
    "error_type",
];
/// Labels of client operations: the same and the broker's port.
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

/// The family that counts a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// A producer's or consumer's operation on a broker.
    Client,
    /// A consumer's processing of a message.
    Process,
    /// Either, as the broker observes it.
    Server,
}

impl Family {
    pub(super) fn of(span: &Span) -> Self {
        match (messaging::is_of_client(span), messaging::is_processing(span)) {
            (_, true) => Self::Process,
            (true, false) => Self::Client,
            (false, false) => Self::Server,
        }
    }
}

/// Key of a series within one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessageKey {
    operation: Arc<str>,
    failure: &'static str,
    /// Set for [`Family::Client`] only.
    port: u16,
}

impl MessageKey {
    fn of(span: &Span) -> Self {
        let failure = match span.outcome {
            Outcome::Aborted if span.error => span.end_type(),
            _ => span.failure.unwrap_or_default(),
        };
        let port = if Family::of(span) == Family::Client { span.peer_port } else { 0 };
        Self { operation: Arc::clone(&span.method), failure, port }
    }
}

/// The series in use of one class.
pub(super) type Messages = ClassHistograms<MessageKey>;

/// Counts an operation; `class` gives the labels `service_name` and `request_class`.
pub(super) fn observe(
    messages: &mut Messages,
    family: &HistogramVec,
    class: [&str; 2],
    info: &ClassInfo,
    span: &Span,
    observation: Observation<'_>,
) -> SeriesSlot {
    let [service, name] = class;
    // A folded class folds its destinations too.
    let folded = name == OTHER;
    let (operation, destination) = if folded { (OTHER, "") } else { (&*span.method, &*info.route) };
    let kind = if folded { "" } else { messaging::operation_type(operation) };
    let labels = [service, name, messaging::system(span.protocol), operation, kind, destination];
    let wanted = if Family::of(span) == Family::Client { CLIENT_LABELS.len() } else { LABELS.len() };
    let values = |rest: [&str; 2]| labels.into_iter().chain(rest).take(wanted).map(str::to_owned).collect();
    let values = |key: Option<&MessageKey>| match key {
        Some(key) => values([key.failure, &port_label(key.port)]),
        None => values([OTHER, OTHER]),
    };
    messages.observe(family, MessageKey::of(span), values, observation)
}
