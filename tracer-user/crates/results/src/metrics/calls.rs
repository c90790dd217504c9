//! Duration histograms of remote procedure calls (gRPC), with the names and labels of OpenTelemetry's semantic
//! conventions for RPC (1.40) and a bounded number of series.

use tracer_model::{Side, Span};
use tracer_protocols::grpc;

use super::class_histograms::{ClassHistograms, Observation, SeriesSlot};
use super::durations::{OTHER, port_label};
use super::histograms::HistogramVec;

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
pub(super) struct CallKey {
    status: &'static str,
    failure: &'static str,
    /// Set on the client side only.
    port: u16,
}

impl CallKey {
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
pub(super) type Calls = ClassHistograms<CallKey>;

/// Counts a call; `class` gives the labels `service_name` and `request_class` (the method).
pub(super) fn observe(
    calls: &mut Calls,
    family: &HistogramVec,
    class: [&str; 2],
    span: &Span,
    observation: Observation<'_>,
) -> SeriesSlot {
    let [service, name] = class;
    let method = if name == OTHER { OTHER } else { grpc::method(&span.path) };
    let labels = [service, name, grpc::NAME, method];
    let wanted = if span.side == Side::Client { CLIENT_LABELS.len() } else { SERVER_LABELS.len() };
    let values = |rest: [&str; 3]| labels.into_iter().chain(rest).take(wanted).map(str::to_owned).collect();
    let values = |key: Option<&CallKey>| match key {
        Some(key) => values([key.status, key.failure, &port_label(key.port)]),
        None => values([OTHER, OTHER, OTHER]),
    };
    calls.observe(family, CallKey::of(span), values, observation)
}
