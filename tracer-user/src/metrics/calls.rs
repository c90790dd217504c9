//! Durations of remote procedure calls (gRPC), with the names and labels of OpenTelemetry's semantic conventions for RPC
//! (1.40) and a bound on their number.

use prometheus::{Histogram, HistogramVec};

use super::durations::OTHER;
use crate::model::{Side, Unit};
use crate::protocols::grpc;

/// Most different combinations of status, failure and port one class gets series for.
const SERIES: usize = 32;

/// Labels of the server's family.
pub(super) const SERVER_LABELS: [&str; 6] =
    ["service_name", "request_class", "rpc_system_name", "rpc_method", "rpc_response_status_code", "error_type"];
/// The same, and the port that was called.
pub(super) const CLIENT_LABELS: [&str; 7] = [
    "service_name",
    "request_class",
    "rpc_system_name",
    "rpc_method",
    "rpc_response_status_code",
    "error_type",
    "server_port",
];

/// What tells the series of one class apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    status: &'static str,
    failure: &'static str,
    /// Client side only.
    port: u16,
}

impl Key {
    fn of(unit: &Unit) -> Self {
        let status = unit.status.and_then(grpc::word).unwrap_or_default();
        Self {
            status,
            failure: grpc::error_type(unit),
            port: if unit.side == Side::Client { unit.peer_port } else { 0 },
        }
    }
}

/// The series of one class that are in use.
#[derive(Debug, Default)]
pub(super) struct Calls {
    series: Vec<(Key, Histogram)>,
    overflow: Option<Histogram>,
}

impl Calls {
    /// Counts a call; `class` gives the labels `service_name` and `request_class`, which is the method. Returns whether
    /// it had to go to the class's common series because it has too many.
    pub(super) fn observe(&mut self, family: &HistogramVec, class: [&str; 2], unit: &Unit) -> bool {
        let seconds = unit.duration() as f64 / 1e9;
        let key = Key::of(unit);
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds);
            return false;
        }
        let [service, name] = class;
        let method = if name == OTHER { OTHER } else { grpc::method(&unit.path) };
        let labels = [service, name, grpc::NAME, method];
        let wanted = if unit.side == Side::Client { CLIENT_LABELS.len() } else { SERVER_LABELS.len() };
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
