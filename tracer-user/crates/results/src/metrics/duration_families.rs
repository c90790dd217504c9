//! The families of duration histograms: one for each kind of protocol and side.

use prometheus::HistogramOpts;
use tracer_model::{ClassInfo, Side, Span};
use tracer_protocols::Conventions;

use super::class_histograms::{Observation, SeriesSlot};
use super::durations::{self, CLIENT_LABELS, SERVER_LABELS};
use super::families::{Families, vec};
use super::histograms::HistogramVec;
use super::low_cardinality::{self, FUNCTION_LABELS, LOOKUP_LABELS, TURN_LABELS};
use super::{calls, messages, operations};

/// Bounds of request durations, seconds: those of OpenTelemetry's semantic conventions for HTTP, and finer ones below, because
/// many services answer in less than the smallest of those, 5 ms.
const BOUNDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0,
];

/// The families; pairs are server, client.
#[derive(Debug)]
pub(super) struct DurationFamilies {
    http: [HistogramVec; 2],
    rpc: [HistogramVec; 2],
    db: [HistogramVec; 2],
    messaging_client: HistogramVec,
    messaging_process: HistogramVec,
    messaging_server: HistogramVec,
    lookups: [HistogramVec; 2],
    round_trips: [HistogramVec; 2],
    /// Calls of declared functions.
    functions: HistogramVec,
}

impl DurationFamilies {
    /// Registers them.
    pub(super) fn new(r: &Families) -> Self {
        let family = |bounds: &[f64], name: &str, help: &str, labels: &[&str]| {
            vec(r, HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), labels))
        };
        let requests = |name: &str, help: &str, labels: &[&str]| family(BOUNDS, name, help, labels);
        let operations = |name: &str, help: &str, labels: &[&str]| family(operations::BOUNDS, name, help, labels);
        Self {
            http: [
                requests(
                    "http_server_request_duration_seconds",
                    "Seconds from the first byte of a request read to the last byte of its response sent, on the \
                     server.",
                    &SERVER_LABELS,
                ),
                requests(
                    "http_client_request_duration_seconds",
                    "Seconds from the first byte of a request sent to the last byte of its response read, on the \
                     client.",
                    &CLIENT_LABELS,
                ),
            ],
            rpc: [
                requests(
                    "rpc_server_call_duration_seconds",
                    "Seconds from the first byte of a remote procedure call read to the last byte of its response \
                     sent, on the server.",
                    &calls::SERVER_LABELS,
                ),
                requests(
                    "rpc_client_call_duration_seconds",
                    "Seconds from the first byte of a remote procedure call sent to the last byte of its response \
                     read, on the client.",
                    &calls::CLIENT_LABELS,
                ),
            ],
            db: [
                operations(
                    "db_server_operation_duration_seconds",
                    "Seconds from the first byte of a database operation read to the last byte of its result sent, on \
                     the server.",
                    &operations::SERVER_LABELS,
                ),
                operations(
                    "db_client_operation_duration_seconds",
                    "Seconds from the first byte of a database operation sent to the last byte of its result read, on \
                     the client.",
                    &operations::CLIENT_LABELS,
                ),
            ],
            messaging_client: operations(
                "messaging_client_operation_duration_seconds",
                "Seconds from a producer's or consumer's messaging operation sent to its confirmation or answer, \
                 if it has one.",
                &messages::CLIENT_LABELS,
            ),
            messaging_process: operations(
                "messaging_process_duration_seconds",
                "Seconds from a message read to the consumer's acknowledgement or answer, if it has one.",
                &messages::LABELS,
            ),
            messaging_server: operations(
                "messaging_server_operation_duration_seconds",
                "Seconds that messaging operations took, as the broker observed them.",
                &messages::LABELS,
            ),
            lookups: [
                operations(
                    "dns_server_lookup_duration_seconds",
                    "Seconds from a DNS query read to its answer sent, on the server.",
                    &LOOKUP_LABELS,
                ),
                operations(
                    "dns_lookup_duration_seconds",
                    "Seconds from the first transmission of a DNS query to its answer read, on the client.",
                    &LOOKUP_LABELS,
                ),
            ],
            round_trips: [
                operations(
                    "tracer_server_round_trip_duration_seconds",
                    "Seconds that round trips took on connections whose protocol is not decoded, on the server.",
                    &TURN_LABELS,
                ),
                operations(
                    "tracer_client_round_trip_duration_seconds",
                    "Seconds that round trips took on connections whose protocol is not decoded, on the client.",
                    &TURN_LABELS,
                ),
            ],
            functions: operations(
                "tracer_declared_duration_seconds",
                "Seconds that calls of declared functions took, from entry to return.",
                &FUNCTION_LABELS,
            ),
        }
    }
}

/// The histograms of one class.
#[derive(Debug, Default)]
pub(super) struct ClassDurations {
    requests: durations::Durations,
    calls: calls::Calls,
    operations: operations::Operations,
    messages: messages::Messages,
    simple: low_cardinality::LowCardinality,
}

impl ClassDurations {
    /// Counts a span in the family of its protocol; `class` gives the labels `service_name` and `request_class`.
    pub(super) fn observe(
        &mut self,
        families: &DurationFamilies,
        class: [&str; 2],
        info: &ClassInfo,
        span: &Span,
        observation: Observation<'_>,
    ) -> SeriesSlot {
        let [server, client] = [0, 1];
        let side = if span.side == Side::Client { client } else { server };
        match span.protocol.conventions() {
            Conventions::Http => {
                durations::observe(&mut self.requests, &families.http[side], class, info, span, observation)
            }
            Conventions::Rpc => calls::observe(&mut self.calls, &families.rpc[side], class, span, observation),
            Conventions::Database => {
                operations::observe(&mut self.operations, &families.db[side], class, span, observation)
            }
            Conventions::Messaging => {
                let family = match messages::Family::of(span) {
                    messages::Family::Client => &families.messaging_client,
                    messages::Family::Process => &families.messaging_process,
                    messages::Family::Server => &families.messaging_server,
                };
                messages::observe(&mut self.messages, family, class, info, span, observation)
            }
            simple @ (Conventions::Names | Conventions::RoundTrips | Conventions::Function) => {
                let family = match simple {
                    Conventions::Names => &families.lookups[side],
                    Conventions::RoundTrips => &families.round_trips[side],
                    _ => &families.functions,
                };
                low_cardinality::observe(&mut self.simple, family, class, span, simple, observation)
            }
            Conventions::Session => SeriesSlot::Own,
        }
    }

    /// Forgets what only shown series need.
    pub(super) fn forget_exemplars(&self) {
        self.requests.forget_exemplars();
        self.calls.forget_exemplars();
        self.operations.forget_exemplars();
        self.messages.forget_exemplars();
        self.simple.forget_exemplars();
    }
}
