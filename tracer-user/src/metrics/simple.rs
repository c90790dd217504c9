//! Durations of what has few labels: lookups of names, with the labels of OpenTelemetry's semantic conventions for DNS, and
//! turns of connections of which nothing else is known. With a bound on their number.

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{Outcome, Side, Unit};
use crate::protocols::Conventions;

/// Most different combinations of failure and port one class gets series for.
const SERIES: usize = 32;

/// Labels of lookups. The conventions know the caller's side only; the family of the server's side is named after it.
pub(super) const LOOKUP_LABELS: [&str; 5] =
    ["service_name", "request_class", "dns_question_name", "dns_question_type", "error_type"];
/// Labels of turns.
pub(super) const TURN_LABELS: [&str; 5] =
    ["service_name", "request_class", "network_protocol_name", "server_port", "error_type"];

/// What tells the series of one class apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    failure: &'static str,
    /// Of turns on the client's side only.
    port: u16,
}

/// The series of one class that are in use.
#[derive(Debug, Default)]
pub(super) struct Simple {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Simple {
    /// Counts a unit; `class` gives the labels `service_name` and `request_class`. Returns whether it had to go to the
    /// class's common series because it has too many.
    pub(super) fn observe(
        &mut self,
        family: &HistogramVec,
        class: [&str; 2],
        unit: &Unit,
        conventions: Conventions,
    ) -> bool {
        let seconds = unit.duration() as f64 / 1e9;
        let lookup = conventions == Conventions::Names;
        let failure = match (unit.failure, unit.outcome) {
            (Some(word), _) => word,
            (None, Outcome::Aborted | Outcome::Unfinished) if unit.error => unit.outcome.name(),
            _ => "",
        };
        let port = if unit.side == Side::Client && !lookup { unit.peer_port } else { 0 };
        let key = Key { failure, port };
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        let [service, name] = class;
        let folded = name == OTHER;
        let port = if port == 0 { String::new() } else { port.to_string() };
        // A class that others merged into is about many names.
        let about = if !folded && *name == *unit.path { unit.collection().unwrap_or_default() } else { "" };
        let method = if folded { OTHER } else { &*unit.method };
        let (third, fourth) = if lookup { (about, method) } else { (unit.protocol, &*port) };
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
