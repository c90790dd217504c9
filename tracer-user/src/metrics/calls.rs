//! Duration histograms of remote procedure calls (gRPC), with the names and labels of OpenTelemetry's semantic
//! conventions for RPC (1.40) and a bounded number of series.

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{Side, Span};
use crate::protocols::grpc;

/// Maximum number of series of one class (combinations of status, failure and port).
const SERIES: usize = 32;

/// Labels of the server's family.
pub(super) const SERVER_LABELS: [&str; 6] =
    ["service_name", "request_class", "rpc_system_name", "rpc_method", "rpc_response_status_code", "error_type"];
/// The server's labels and the called port.
pub(super) const CLIENT_LABELS: [&str; 7] = [
    "service_name",
    "request_class",
    "rpc_system_name",
    "rpc_method",
    "rpc_response_status_code",
    "error_type",
    "server_port",
];

/// Key of a series within one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    status: &'static str,
    failure: &'static str,
    /// Set on the client side only.
    port: u16,
}

impl Key {
    fn of(span: &Span) -> Self {
        let status = span.status.and_then(grpc::word).unwrap_or_default();
        Self {
            status,
            failure: grpc::error_type(span),
            port: if span.side == Side::Client { span.peer_port } else { 0 },
        }
    }
}

/// The series in use of one class.
#[derive(Debug, Default)]
pub(super) struct Calls {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Calls {
    /// Counts a call; `class` gives the labels `service_name` and `request_class` (the method). Returns true if the
    /// call went to the class's shared series because the class has too many.
    pub(super) fn observe(&mut self, family: &HistogramVec, class: [&str; 2], span: &Span) -> bool {
        let seconds = span.duration() as f64 / 1e9;
        let key = Key::of(span);
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        let [service, name] = class;
        let method = if name == OTHER { OTHER } else { grpc::method(&span.path) };
        let labels = [service, name, grpc::NAME, method];
        let wanted = if span.side == Side::Client { CLIENT_LABELS.len() } else { SERVER_LABELS.len() };
        let values = |rest: [&str; 3]| -> Vec<String> {
            labels.into_iter().chain(rest).take(wanted).map(str::to_owned).collect()
        };
        if self.series.len() >= SERIES {
            let common = || family.with_label_values(&values([OTHER, OTHER, OTHER]));
            self.overflow.get_or_insert_with(common).observe(seconds);
            return true;
        }
        let port = if key.port == 0 { String::new() } else { key.port.to_string() };
        let histogram = family.with_label_values(&values([key.status, key.failure, &port]));
        histogram.observe(seconds);
        self.series.push((key, histogram));
        false
    }
}
