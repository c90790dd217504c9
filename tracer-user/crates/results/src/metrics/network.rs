//! The network between services: round-trip times, retransmits, connects and TLS handshakes of calls, by caller and callee.

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, IntCounter, IntCounterVec, Opts};
use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{FailedConnect, Names, ProtocolId, ServiceId, Side, Span};

use super::durations::{OTHER, port_label};
use super::export::Metrics;
use super::families::{Families, vec};
use super::series_budget::SeriesBudget;

/// Most pairs of services with series of their own.
const PAIRS: usize = 200;
/// Most services, ports and causes of failed connects with a series of their own.
const FAILURES: usize = 200;
const LABELS: [&str; 3] = ["service_name", "callee_service_name", "server_port"];

/// Caller, callee and port; `None`: all that share series.
type Pair = Option<(ServiceId, Option<ServiceId>, u16)>;

/// The families.
#[derive(Debug)]
pub(super) struct NetworkFamilies {
    rtt: GaugeVec,
    rtt_min: GaugeVec,
    retransmits: IntCounterVec,
    openings: OpeningFamilies,
    pairs: FxHashMap<Pair, PairSeries>,
    failures: IntCounterVec,
    failed: FxHashMap<Option<FailedConnect>, IntCounter>,
    /// Calls, and failed connects, that share series because there were too many.
    calls_shared: u64,
    failures_shared: u64,
}

/// Those of how connections were opened.
#[derive(Clone, Debug)]
struct OpeningFamilies {
    connects: IntCounterVec,
    connect_seconds: CounterVec,
    handshakes: IntCounterVec,
    handshake_seconds: CounterVec,
}

/// The series of a pair. Those of connects and handshakes exist from the first one on.
#[derive(Debug)]
struct PairSeries {
    labels: [String; 3],
    rtt: Gauge,
    rtt_min: Gauge,
    retransmits: IntCounter,
    connects: Option<(IntCounter, Counter)>,
    handshakes: Option<(IntCounter, Counter)>,
    /// Sum of the round-trip times of calls since the last tick, their shortest, and how many calls.
    sum_us: u64,
    least_us: u32,
    calls: u64,
}

impl NetworkFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let gauge = |name: &str, help: &str| vec(r, GaugeVec::new(Opts::new(name, help), &LABELS));
        let int = |name: &str, help: &str| vec(r, IntCounterVec::new(Opts::new(name, help), &LABELS));
        let float = |name: &str, help: &str| vec(r, CounterVec::new(Opts::new(name, help), &LABELS));
        let failures = "Connects that failed, by error_type: connection_refused, timeout, host_unreachable, network_unreachable, \
                        connection_reset, given_up (the program closed the socket before an answer came), _OTHER.";
        Self {
            rtt: gauge(
                "tracer_call_rtt_seconds",
                "Mean of TCP's smoothed round-trip time at the end of each call, over the calls of the last second that had \
                 any. callee_service_name is empty where nothing on this host answers.",
            ),
            rtt_min: gauge(
                "tracer_call_rtt_min_seconds",
                "The least of TCP's shortest round-trip times of these calls' connections.",
            ),
            retransmits: int(
                "tracer_call_retransmits_total",
                "Segments that the caller's end sent again while a call was open.",
            ),
            openings: OpeningFamilies {
                connects: int("tracer_call_connects_total", "Connects whose connection served a call."),
                connect_seconds: float("tracer_call_connect_seconds_total", "Seconds that these connects took."),
                handshakes: int(
                    "tracer_call_tls_handshakes_total",
                    "TLS handshakes whose connection served a call in view.",
                ),
                handshake_seconds: float(
                    "tracer_call_tls_handshake_seconds_total",
                    "Seconds that these handshakes took.",
                ),
            },
            pairs: FxHashMap::default(),
            failures: vec(
                r,
                IntCounterVec::new(
                    Opts::new("tracer_connect_failures_total", failures),
                    &["service_name", "server_port", "error_type"],
                ),
            ),
            failed: FxHashMap::default(),
            calls_shared: 0,
            failures_shared: 0,
        }
    }

    fn series(&mut self, names: &Names, span: &Span, budget: &mut SeriesBudget) -> &mut PairSeries {
        let wanted = Some((span.service, span.callee, span.peer_port));
        let has_room = self.pairs.len() < PAIRS;
        let pair: Pair = if self.pairs.contains_key(&wanted) || (has_room && budget.take(7)) { wanted } else { None };
        self.calls_shared += u64::from(pair.is_none());
        let (rtt, rtt_min, retransmits) = (&self.rtt, &self.rtt_min, &self.retransmits);
        self.pairs.entry(pair).or_insert_with(|| {
            let labels = match pair {
                Some((service, callee, port)) => [
                    names.service(service).to_string(),
                    callee.map(|callee| names.service(callee).to_string()).unwrap_or_default(),
                    port_label(port),
                ],
                None => [OTHER, OTHER, OTHER].map(str::to_owned),
            };
            PairSeries {
                rtt: rtt.with_label_values(&labels),
                rtt_min: rtt_min.with_label_values(&labels),
                retransmits: retransmits.with_label_values(&labels),
                connects: None,
                handshakes: None,
                sum_us: 0,
                least_us: u32::MAX,
                calls: 0,
                labels,
            }
        })
    }

    /// A call has ended.
    pub(super) fn span(&mut self, names: &Names, span: &Span, budget: &mut SeriesBudget) {
        if span.side != Side::Client || (span.network.is_none() && span.opening.is_none()) {
            return;
        }
        // A handshake is no call: what is sent behind it counts, where that is seen.
        let opening = span.opening.as_deref().filter(|_| span.protocol != ProtocolId::Tls);
        let families = opening.map(|opening| (opening, self.openings.clone()));
        let series = self.series(names, span, budget);
        if let Some(network) = span.network {
            series.sum_us += u64::from(network.rtt_us);
            series.least_us = series.least_us.min(network.rtt_min_us);
            series.calls += 1;
            if let Some(retransmits) = network.retransmits.filter(|retransmits| *retransmits != 0) {
                series.retransmits.inc_by(retransmits.into());
            }
        }
        // Few calls are the first of their connection.
        let Some((opening, families)) = families else { return };
        let labels = &series.labels;
        if let Some(nanos) = opening.connect_time() {
            add(&mut series.connects, (&families.connects, &families.connect_seconds), labels, nanos);
        }
        if let Some(nanos) = opening.handshake_time() {
            add(&mut series.handshakes, (&families.handshakes, &families.handshake_seconds), labels, nanos);
        }
    }

    /// A second has passed.
    pub(super) fn tick(&mut self) {
        for series in self.pairs.values_mut().filter(|series| series.calls != 0) {
            series.rtt.set(series.sum_us as f64 / series.calls as f64 / 1e6);
            series.rtt_min.set(f64::from(series.least_us) / 1e6);
            (series.sum_us, series.least_us, series.calls) = (0, u32::MAX, 0);
        }
    }
}

fn add(
    series: &mut Option<(IntCounter, Counter)>,
    (count, seconds): (&IntCounterVec, &CounterVec),
    labels: &[String; 3],
    nanos: u64,
) {
    let made = || (count.with_label_values(labels), seconds.with_label_values(labels));
    let (count, seconds) = series.get_or_insert_with(made);
    count.inc();
    seconds.inc_by(nanos as f64 / 1e9);
}

/// Numbers of `errno.h`, as a word.
fn error_type(error: u16) -> &'static str {
    match i32::from(error) {
        0 => "given_up",
        libc::ECONNREFUSED => "connection_refused",
        libc::ETIMEDOUT => "timeout",
        libc::EHOSTUNREACH => "host_unreachable",
        libc::ENETUNREACH => "network_unreachable",
        libc::ECONNRESET => "connection_reset",
        _ => "_OTHER",
    }
}

impl Metrics {
    /// Use of the tables of pairs of services, and of failed connects.
    pub fn network_tables(&self) -> [TableUse; 2] {
        let NetworkFamilies { pairs, failed, calls_shared, failures_shared, .. } = &self.network;
        [TableUse::new(pairs.len(), PAIRS, *calls_shared), TableUse::new(failed.len(), FAILURES, *failures_shared)]
    }

    /// So many connects failed alike.
    pub fn failed_connect(&mut self, names: &Names, failed: FailedConnect, count: u64) {
        let network = &mut self.network;
        let has_room = network.failed.len() < FAILURES;
        let budget = &mut self.classes.budget;
        let key = (network.failed.contains_key(&Some(failed)) || (has_room && budget.take(1))).then_some(failed);
        if key.is_none() {
            network.failures_shared += count;
        }
        let failures = &network.failures;
        let series = network.failed.entry(key).or_insert_with(|| match key {
            Some(failed) => failures.with_label_values(&[
                &*names.service(failed.service),
                &port_label(failed.port),
                error_type(failed.error),
            ]),
            None => failures.with_label_values(&[OTHER, OTHER, OTHER]),
        });
        series.inc_by(count);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus::core::Collector;

    use super::super::export::Metrics;
    use super::*;
    use tracer_model::{Network, Opening, Sink, sample_span::span};

    fn call(port: u16, rtt_us: u32, opening: Option<Opening>) -> Span {
        let network = Network { rtt_us, rtt_min_us: rtt_us / 2, retransmits: Some(2) };
        let (network, opening) = (Some(network), opening.map(Box::new));
        let (side, callee) = (Side::Client, Some(ServiceId(1)));
        Span { side, callee, network, opening, peer_port: port, ..span(1, 1, 1, false) }
    }

    fn value(family: &impl Collector, labels: [&str; 3]) -> Option<f64> {
        let families = family.collect();
        let metrics = families.first()?.get_metric();
        let found = metrics.iter().find(|metric| {
            let values: Vec<&str> = metric.get_label().iter().map(prometheus::proto::LabelPair::value).collect();
            labels.iter().all(|label| values.contains(label))
        })?;
        Some(found.get_gauge().get_value() + found.get_counter().get_value())
    }

    fn names() -> Names {
        Names { services: vec![Arc::from("shop"), Arc::from("db")], classes: Vec::new() }
    }

    #[test]
    fn a_pair_has_the_figures_of_its_calls() {
        let (names, mut metrics) = (names(), Metrics::new());
        let opening = Opening { connect: 1_000, established: 5_001_000, ..Opening::default() };
        metrics.span(&names, &call(5432, 1_000, Some(opening)));
        metrics.span(&names, &call(5432, 3_000, None));
        metrics.tick(1);
        let pair = ["shop", "db", "5432"];
        let network = &metrics.network;
        assert_eq!(value(&network.rtt, pair), Some(0.002));
        assert_eq!(value(&network.rtt_min, pair), Some(0.0005));
        assert_eq!(value(&network.retransmits, pair), Some(4.0));
        assert_eq!(value(&network.openings.connects, pair), Some(1.0));
        assert_eq!(value(&network.openings.connect_seconds, pair), Some(0.005));
        assert_eq!(value(&network.openings.handshakes, pair), None, "there was none");
        metrics.tick(2);
        assert_eq!(value(&metrics.network.rtt, pair), Some(0.002), "nothing newer is known");
    }

    #[test]
    fn pairs_and_failures_are_bounded() {
        let (names, mut metrics) = (names(), Metrics::new());
        for port in 0..1_000 {
            metrics.span(&names, &call(port, 10, None));
            let failed = FailedConnect { service: ServiceId(0), port, error: libc::ECONNREFUSED as u16 };
            metrics.failed_connect(&names, failed, 3);
        }
        assert!(metrics.network.pairs.len() <= PAIRS + 1 && metrics.network.failed.len() <= FAILURES + 1);
        let rest = value(&metrics.network.failures, [OTHER, OTHER, OTHER]).expect("what finds no room");
        let [pairs, failed] = metrics.network_tables();
        assert!(pairs.reached > 0 && (failed.reached as f64 - rest).abs() < 0.5, "{pairs:?} {failed:?}");
        assert!((rest - 3.0 * (1_000 - FAILURES) as f64).abs() < 1e-9, "{rest}");
        assert_eq!(value(&metrics.network.failures, ["shop", "7", "connection_refused"]), Some(3.0));
    }
}
