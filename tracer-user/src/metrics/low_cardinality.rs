//! Duration histograms with few labels and a bounded number of series: DNS lookups, with the labels of OpenTelemetry's
//! semantic conventions, round trips on connections whose protocol is not decoded, and calls of declared functions.

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{Outcome, Side, Span};
use crate::protocols::Conventions;

/// Maximum number of series of one class (combinations of failure and port).
const SERIES: usize = 32;

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
struct Key {
    failure: &'static str,
    /// Set for round trips on the client side only.
    port: u16,
}

/// The series in use of one class.
#[derive(Debug, Default)]
pub(super) struct LowCardinality {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl LowCardinality {
    /// Counts a span; `class` gives the labels `service_name` and `request_class`. Returns true if the span went to the
    /// class's shared series because the class has too many.
    pub(super) fn observe(
        &mut self,
        family: &HistogramVec,
        class: [&str; 2],
        span: &Span,
        conventions: Conventions,
    ) -> bool {
        let seconds = span.duration() as f64 / 1e9;
        let lookup = conventions == Conventions::Names;
        let failure = match (span.failure, span.outcome) {
            (Some(word), _) => word,
            (None, Outcome::Aborted) if span.error => span.outcome.name(),
            _ => "",
        };
        let port = if span.side == Side::Client && !lookup { span.peer_port } else { 0 };
        let key = Key { failure, port };
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        let [service, name] = class;
        if conventions == Conventions::Function {
            let histogram = family.with_label_values(&[service, name, &*span.method, failure]);
            histogram.observe(seconds);
            self.series.push((key, histogram));
            return false;
        }
        let folded = name == OTHER;
        let port = if port == 0 { String::new() } else { port.to_string() };
        // A class that others merged into covers many names, so it gets no name label.
        let about = if !folded && *name == *span.path { span.collection().unwrap_or_default() } else { "" };
        let method = if folded { OTHER } else { &*span.method };
        let (third, fourth) = if lookup { (about, method) } else { (span.protocol.name(), &*port) };
        if self.series.len() >= SERIES {
            let fourth = if lookup { fourth } else { OTHER };
            let common = || family.with_label_values(&[service, name, third, fourth, OTHER]);
            self.overflow.get_or_insert_with(common).observe(seconds);
            return true;
        }
        let histogram = family.with_label_values(&[service, name, third, fourth, failure]);
        histogram.observe(seconds);
        self.series.push((key, histogram));
        false
    }
}
