//! Duration histograms of HTTP requests, with the labels of OpenTelemetry's semantic conventions and a bounded number
//! of series.

use tracer_model::{ClassInfo, Outcome, ProtocolId, Side, Span};
use tracer_protocols::http1::conventional_method;

use super::class_histograms::{ClassHistograms, Observation, SeriesSlot};
use super::histograms::HistogramVec;

/// Label value of everything beyond a bound.
pub(super) const OTHER: &str = "_other";

/// Labels of the server's family, in the order of [`values`]. They exclude the server's own port, as the conventions do
/// by default.
pub(super) const SERVER_LABELS: [&str; 9] = [
    "service_name",
    "request_class",
    "http_request_method",
    "http_route",
    "http_response_status_code",
    "error_type",
    "network_protocol_name",
    "network_protocol_version",
    "url_scheme",
];
/// The server's labels and the called port.
pub(super) const CLIENT_LABELS: [&str; 10] = [
    "service_name",
    "request_class",
    "http_request_method",
    "http_route",
    "http_response_status_code",
    "error_type",
    "network_protocol_name",
    "network_protocol_version",
    "url_scheme",
    "server_port",
];

/// `error.type`: the status if that is the failure, else what happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    None,
    Status,
    /// The reply's name for the failure, or how it or its process ended.
    Word(&'static str),
}

/// Key of a series within one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DurationKey {
    method: &'static str,
    status: Option<u16>,
    failure: Failure,
    /// Empty for HTTP itself.
    protocol: &'static str,
    version: &'static str,
    encrypted: bool,
    /// Set on the client side only.
    port: u16,
}

impl DurationKey {
    fn of(span: &Span) -> Self {
        let failure = match (span.outcome, span.error) {
            (Outcome::Aborted, _) => Failure::Word(span.end_type()),
            // An end that the agent did not see is no failure of the application.
            (_, false) => Failure::None,
            (_, true) if span.status.is_some() => Failure::Status,
            (_, true) => span.failure.map_or(Failure::None, Failure::Word),
        };
        Self {
            method: conventional_method(&span.method),
            status: span.status,
            failure,
            protocol: if span.protocol == ProtocolId::Http { "" } else { span.protocol.name() },
            version: span.version,
            encrypted: span.encrypted,
            port: if span.side == Side::Client { span.peer_port } else { 0 },
        }
    }
}

/// The series in use of one class.
pub(super) type Durations = ClassHistograms<DurationKey>;

/// Counts a request; `class` gives the labels `service_name` and `request_class`.
pub(super) fn observe(
    durations: &mut Durations,
    family: &HistogramVec,
    class: [&str; 2],
    info: &ClassInfo,
    span: &Span,
    observation: Observation<'_>,
) -> SeriesSlot {
    durations.observe(family, DurationKey::of(span), |key| values(span.side, class, info, key.copied()), observation)
}

/// Label value of a port; 0 is none.
pub(super) fn port_label(port: u16) -> String {
    if port == 0 { String::new() } else { port.to_string() }
}

/// Label values in the order of the family's labels; without a key, those of the shared series.
fn values(side: Side, class: [&str; 2], info: &ClassInfo, key: Option<DurationKey>) -> Vec<String> {
    let [service, name] = class;
    // A folded class folds its route too.
    let route = if name == OTHER { "" } else { &*info.route };
    let mut values = vec![service.to_owned(), name.to_owned()];
    if let Some(key) = key {
        let status = key.status.map_or_else(String::new, |status| status.to_string());
        let failure = match key.failure {
            Failure::None => String::new(),
            Failure::Status => status.clone(),
            Failure::Word(word) => word.into(),
        };
        values.extend([key.method, route].map(str::to_owned));
        values.extend([status, failure]);
        let scheme = if key.encrypted { "https" } else { "http" };
        values.extend([key.protocol, key.version, scheme].map(str::to_owned));
    } else {
        let protocol = if info.protocol == ProtocolId::Http { "" } else { info.protocol.name() };
        values.extend(["_OTHER", route, OTHER, OTHER, protocol, "", ""].map(str::to_owned));
    }
    if side == Side::Client {
        values.push(match key {
            Some(key) => port_label(key.port),
            None => OTHER.into(),
        });
    }
    values
}
