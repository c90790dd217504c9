//! Duration histograms with few labels and a bounded number of series: DNS lookups, with the labels of OpenTelemetry's
//! semantic conventions, round trips on connections whose protocol is not decoded, and calls of declared functions.

use tracer_model::{Outcome, Side, Span};
use tracer_protocols::Conventions;

use super::class_histograms::{ClassHistograms, Observation, SeriesSlot};
use super::durations::{OTHER, port_label};
use super::histograms::HistogramVec;

/// Labels of lookups. The conventions define only the client's metric; the server's is named after it.
pub(super) const LOOKUP_LABELS: [&str; 5] =
    ["service_name", "request_class", "dns_question_name", "dns_question_type", "error_type"];
/// Labels of round trips.
pub(super) const TURN_LABELS: [&str; 5] =
    ["service_name", "request_class", "network_protocol_name", "server_port", "error_type"];

/// Labels of calls of declared functions.
pub(super) const FUNCTION_LABELS: [&str; 4] = ["service_name", "request_class", "code_function_name", "error_type"];

/// Key of a series within one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LowCardinalityKey {
    failure: &'static str,
    /// Set for round trips on the client side only.
    port: u16,
}

/// The series in use of one class.
pub(super) type LowCardinality = ClassHistograms<LowCardinalityKey>;

/// Counts a span; `class` gives the labels `service_name` and `request_class`.
pub(super) fn observe(
    series: &mut LowCardinality,
    family: &HistogramVec,
    class: [&str; 2],
    span: &Span,
    conventions: Conventions,
    observation: Observation<'_>,
) -> SeriesSlot {
    let lookup = conventions == Conventions::Names;
    let function = conventions == Conventions::Function;
    let failure = match (span.failure, span.outcome) {
        (Some(word), _) => word,
        (None, Outcome::Aborted) if span.error => span.end_type(),
        _ => "",
    };
    let port = if span.side == Side::Client && !lookup && !function { span.peer_port } else { 0 };
    let [service, name] = class;
    let folded = name == OTHER;
    // A class that others merged into covers many names, so it gets no name label.
    let about = if !folded && *name == *span.path { span.collection().unwrap_or_default() } else { "" };
    let method = if folded { OTHER } else { &*span.method };
    let values = |key: Option<&LowCardinalityKey>| -> Vec<String> {
        let (failure, port) = key.map_or((OTHER, OTHER.to_owned()), |key| (key.failure, port_label(key.port)));
        let values: &[&str] = match conventions {
            Conventions::Function => &[service, name, method, failure],
            Conventions::Names => &[service, name, about, method, failure],
            _ => &[service, name, span.protocol.name(), &port, failure],
        };
        values.iter().map(|value| (*value).to_owned()).collect()
    };
    series.observe(family, LowCardinalityKey { failure, port }, values, observation)
}
