//! Exports what `/metrics` has, once an interval: the same figures under OpenTelemetry's names.
//!
//! Counters are cumulative, so an export that fails loses nothing: the next one has everything. There is no queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus::proto::{LabelPair, MetricFamily, MetricType};
use tokio::sync::oneshot;
use tracer_model::text::printable;

use super::instance::HostFacts;
use super::metric_names;
use super::metric_proto::{
    CUMULATIVE, Data, Gauge, Histogram, HistogramPoint, Metric, Number, Request, ResourceMetrics, ScopeMetrics, Sum,
    Value,
};
use super::proto::{self, KeyValue, Resource, Scope};
use super::send::{Sender, Sent};
use super::settings::{Settings, SettingsError};
use super::spans::SCHEMA;

/// Most data points of one request: collectors take 4 MB by default.
const POINTS: usize = 2000;
/// Beginning of the name of series that stand for classes that left `/metrics` for a while. Collectors need no sums over what
/// they saw before.
const EXPIRED: &str = "_expired-";

/// Gives what `/metrics` has now.
pub type Gather = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// Outcomes of data points so far.
#[derive(Debug, Default)]
pub struct PointCounts {
    sent: AtomicU64,
    rejected: AtomicU64,
    failed: AtomicU64,
}

impl PointCounts {
    /// By outcome: `sent`, `rejected` (by the collector), `failed` (it was unreachable; the next export has the same sums).
    pub fn points(&self) -> [(&'static str, u64); 3] {
        [("sent", &self.sent), ("rejected", &self.rejected), ("failed", &self.failed)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }
}

/// The agent's handle.
#[derive(Debug)]
pub struct MetricExport {
    /// Outcomes of data points.
    pub counts: Arc<PointCounts>,
    end: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
}

impl MetricExport {
    /// Sends what there is at the end; waits for it until `deadline`.
    pub async fn finish(self, deadline: Instant) {
        let _ = self.end.send(());
        if tokio::time::timeout_at(deadline.into(), self.done).await.is_err() {
            log::warn!("the last metrics could not be sent before the end: the collector is too slow or not there");
        }
    }
}

/// Starts to export. Must run inside a tokio runtime. `wall` gives nanoseconds since the epoch. Fails if required certificates
/// cannot be read.
pub fn start(settings: Settings, host: &str, gather: Gather, wall: fn() -> u64) -> Result<MetricExport, SettingsError> {
    let sender = Sender::new(settings.clone())?;
    let counts = Arc::new(PointCounts::default());
    let (end, ended) = oneshot::channel();
    let (finished, done) = oneshot::channel();
    let job = Job {
        sender,
        counts: Arc::clone(&counts),
        host: HostFacts::read(host),
        gather,
        wall,
        begun: wall(),
        reached: true,
        settings,
    };
    tokio::spawn(async move {
        job.work(ended).await;
        let _ = finished.send(());
    });
    Ok(MetricExport { counts, end, done })
}

struct Job {
    sender: Sender,
    counts: Arc<PointCounts>,
    host: HostFacts,
    gather: Gather,
    wall: fn() -> u64,
    /// When counting began, nanoseconds since the epoch.
    begun: u64,
    /// Whether the collector took the last export.
    reached: bool,
    settings: Settings,
}

impl Job {
    /// Exports once an interval, and once more at the end.
    async fn work(mut self, mut ended: oneshot::Receiver<()>) {
        let mut ticks = tokio::time::interval(self.settings.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first one is at once.
        ticks.tick().await;
        loop {
            let last = tokio::select! {
                _ = ticks.tick() => false,
                _ = &mut ended => true,
            };
            self.export().await;
            if last {
                return;
            }
        }
    }

    async fn export(&mut self) {
        let gather = Arc::clone(&self.gather);
        // As a scrape does, it takes a while and locks.
        let Ok(families) = tokio::task::spawn_blocking(move || gather()).await else { return };
        let times = Times { begun: self.begun, now: (self.wall)() };
        let count = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        let uri = &self.settings.uri;
        for (request, points) in requests(&families, times, &self.host, &self.settings.resource) {
            let why = match self.sender.send(&request).await {
                Sent::Taken(rejected, why) => {
                    let rejected = rejected.min(points);
                    count(&self.counts.sent, points - rejected);
                    count(&self.counts.rejected, rejected);
                    if rejected > 0 {
                        log::warn!("{uri} did not take {rejected} of {points} data points: {why}");
                    } else if !self.reached {
                        log::warn!("{uri} takes metrics again");
                    }
                    self.reached = true;
                    continue;
                }
                Sent::Again(why, _) => {
                    count(&self.counts.failed, points);
                    why
                }
                Sent::Refused(why) => {
                    count(&self.counts.rejected, points);
                    why
                }
            };
            if self.reached {
                log::error!(
                    "metrics cannot be sent to {uri}: {why}; they are sent again every {:?}",
                    self.settings.interval
                );
            }
            self.reached = false;
        }
    }
}

/// Nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
struct Times {
    begun: u64,
    now: u64,
}

/// Requests with these families, and the data points of each: grouped by service, none larger than it may be.
fn requests(
    families: &[MetricFamily],
    times: Times,
    host: &HostFacts,
    more: &[(String, String)],
) -> Vec<(Request, u64)> {
    let mut services: BTreeMap<&str, Vec<Metric>> = BTreeMap::new();
    for family in families {
        let mut by_service: BTreeMap<&str, Vec<&prometheus::proto::Metric>> = BTreeMap::new();
        for metric in family.get_metric() {
            let service = metric.get_label().iter().find(|label| label.name() == "service_name");
            let service = service.map_or("tracer", LabelPair::value);
            if !service.starts_with(EXPIRED) {
                by_service.entry(service).or_default().push(metric);
            }
        }
        for (service, metrics) in by_service {
            let of_service = services.entry(service).or_default();
            of_service.extend(metrics.chunks(POINTS).map(|metrics| converted(family, metrics, times)));
        }
    }
    let mut made = Vec::new();
    let (mut request, mut points) = (Request::default(), 0);
    for (service, metrics) in services {
        let resource = resource(service, host, more);
        let mut waiting = Vec::new();
        for metric in metrics {
            let added = size(&metric);
            if points + added > POINTS && points > 0 {
                push(&mut request, &resource, std::mem::take(&mut waiting));
                made.push((std::mem::take(&mut request), points as u64));
                points = 0;
            }
            points += added;
            waiting.push(metric);
        }
        push(&mut request, &resource, waiting);
    }
    if points > 0 {
        made.push((request, points as u64));
    }
    made
}

fn push(request: &mut Request, resource: &Resource, metrics: Vec<Metric>) {
    if metrics.is_empty() {
        return;
    }
    let scope = Scope { name: "tracer".into(), version: env!("CARGO_PKG_VERSION").into() };
    request.resource_metrics.push(ResourceMetrics {
        resource: Some(resource.clone()),
        scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics }],
        schema_url: SCHEMA.into(),
    });
}

/// Data points of a metric.
fn size(metric: &Metric) -> usize {
    match &metric.data {
        Some(Data::Gauge(gauge)) => gauge.data_points.len(),
        Some(Data::Sum(sum)) => sum.data_points.len(),
        Some(Data::Histogram(histogram)) => histogram.data_points.len(),
        None => 0,
    }
}

/// A service on this host: its processes are counted together.
pub(super) fn resource(service: &str, host: &HostFacts, more: &[(String, String)]) -> Resource {
    let mut attributes =
        vec![KeyValue::text("service.name", printable(service)), KeyValue::text("service.instance.id", host.id())];
    attributes.extend(host.attributes());
    for (key, value) in more {
        if attributes.iter().all(|known| known.key != *key) {
            attributes.push(KeyValue::text(key, value));
        }
    }
    Resource { attributes }
}

fn converted(family: &MetricFamily, metrics: &[&prometheus::proto::Metric], times: Times) -> Metric {
    let kind = family.get_field_type();
    let (name, unit) = metric_names::metric(family.name(), kind);
    let number = |metric: &prometheus::proto::Metric, value: f64, start_time_unix_nano: u64| Number {
        start_time_unix_nano,
        time_unix_nano: times.now,
        value: Some(Value::Double(value)),
        attributes: attributes(metric.get_label()),
    };
    let data = match kind {
        MetricType::HISTOGRAM => Data::Histogram(Histogram {
            data_points: metrics.iter().map(|metric| histogram(metric, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
        MetricType::COUNTER => {
            let of =
                |metric: &&prometheus::proto::Metric| number(metric, metric.get_counter().get_value(), times.begun);
            let data_points = metrics.iter().map(of).collect();
            Data::Sum(Sum { data_points, aggregation_temporality: CUMULATIVE, is_monotonic: true })
        }
        _ => {
            let of = |metric: &&prometheus::proto::Metric| number(metric, metric.get_gauge().get_value(), 0);
            Data::Gauge(Gauge { data_points: metrics.iter().map(of).collect() })
        }
    };
    Metric { name: name.into_owned(), description: family.help().into(), unit: unit.into(), data: Some(data) }
}

fn histogram(metric: &prometheus::proto::Metric, times: Times) -> HistogramPoint {
    let from = metric.get_histogram();
    let (mut bucket_counts, mut before) = (Vec::with_capacity(from.get_bucket().len() + 1), 0);
    for bucket in from.get_bucket() {
        bucket_counts.push(bucket.cumulative_count().saturating_sub(before));
        before = bucket.cumulative_count();
    }
    bucket_counts.push(from.get_sample_count().saturating_sub(before));
    HistogramPoint {
        start_time_unix_nano: times.begun,
        time_unix_nano: times.now,
        count: from.get_sample_count(),
        sum: Some(from.get_sample_sum()),
        bucket_counts,
        explicit_bounds: from.get_bucket().iter().map(prometheus::proto::Bucket::upper_bound).collect(),
        attributes: attributes(metric.get_label()),
    }
}

/// Labels as attributes: without the service, which is the resource, and without empty ones, which Prometheus needs only to
/// have the same labels everywhere.
fn attributes(labels: &[LabelPair]) -> Vec<KeyValue> {
    let given = labels.iter().filter(|label| label.name() != "service_name" && !label.value().is_empty());
    let pair = |label: &LabelPair| {
        let name = metric_names::attribute(label.name());
        match label.value().parse::<i64>() {
            Ok(number) if metric_names::is_number(&name) => KeyValue::of(&name, proto::Value::Int(number)),
            _ => KeyValue::text(&name, printable(label.value())),
        }
    };
    given.map(pair).collect()
}

/// The clock of data points.
pub fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Vec<LabelPair> {
        let pair = |(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).into());
            pair.set_value((*value).into());
            pair
        };
        pairs.iter().map(pair).collect()
    }

    fn family(name: &str, kind: MetricType, metrics: Vec<prometheus::proto::Metric>) -> MetricFamily {
        let mut family = MetricFamily::default();
        family.set_name(name.into());
        family.set_help("Help.".into());
        family.set_field_type(kind);
        family.set_metric(metrics);
        family
    }

    fn counter(pairs: &[(&str, &str)], value: f64) -> prometheus::proto::Metric {
        let mut metric = prometheus::proto::Metric::from_label(labels(pairs));
        let mut counter = prometheus::proto::Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
        metric
    }

    fn host() -> HostFacts {
        HostFacts { name: "host1".into(), machine: None }
    }

    const TIMES: Times = Times { begun: 5, now: 7 };

    #[test]
    fn a_service_is_a_resource_and_a_family_a_metric() {
        let mut histogram = prometheus::proto::Histogram::default();
        let bucket = |bound, count| {
            let mut bucket = prometheus::proto::Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        };
        histogram.set_bucket(vec![bucket(0.1, 2), bucket(1.0, 5)]);
        histogram.set_sample_count(6);
        histogram.set_sample_sum(4.5);
        let of_shop = [
            ("service_name", "shop"),
            ("request_class", "GET /"),
            ("http_response_status_code", "200"),
            ("error_type", ""),
        ];
        let mut metric = prometheus::proto::Metric::from_label(labels(&of_shop));
        metric.set_histogram(histogram);
        let families = [
            family("http_server_request_duration_seconds", MetricType::HISTOGRAM, vec![metric]),
            family(
                "tracer_requests_total",
                MetricType::COUNTER,
                vec![counter(&[("service_name", "shop")], 6.0), counter(&[("service_name", "_expired-5")], 9.0)],
            ),
            family("tracer_events_total", MetricType::COUNTER, vec![counter(&[("kind", "send")], 0.0)]),
        ];
        let more = [("service.name".to_owned(), "mine".to_owned()), ("zone".to_owned(), "z1".to_owned())];
        let made = requests(&families, TIMES, &host(), &more);
        let [(request, 3)] = made.as_slice() else { panic!("one request of three points: {made:?}") };
        let [shop, own] = request.resource_metrics.as_slice() else { panic!("two resources") };
        let service = |of: &ResourceMetrics| of.resource.as_ref().unwrap().attributes[0].clone();
        assert_eq!(
            (service(shop), service(own)),
            (KeyValue::text("service.name", "shop"), KeyValue::text("service.name", "tracer"))
        );
        assert!(shop.resource.as_ref().unwrap().attributes.contains(&KeyValue::text("zone", "z1")));
        let metrics = &shop.scope_metrics[0].metrics;
        assert_eq!((metrics[0].name.as_str(), metrics[0].unit.as_str()), ("http.server.request.duration", "s"));
        let Some(Data::Histogram(histogram)) = &metrics[0].data else { panic!("a histogram") };
        let point = &histogram.data_points[0];
        assert_eq!(
            (point.bucket_counts.as_slice(), point.explicit_bounds.as_slice()),
            (&[2, 3, 1][..], &[0.1, 1.0][..])
        );
        assert_eq!((point.count, point.sum, point.start_time_unix_nano, point.time_unix_nano), (6, Some(4.5), 5, 7));
        assert_eq!(
            point.attributes,
            [
                KeyValue::text("tracer.request_class", "GET /"),
                KeyValue::of("http.response.status_code", proto::Value::Int(200)),
            ]
        );
        let Some(Data::Sum(sum)) = &metrics[1].data else { panic!("a sum") };
        assert_eq!((sum.data_points.len(), sum.is_monotonic, sum.aggregation_temporality), (1, true, CUMULATIVE));
        // Zero is a value, too.
        let Some(Data::Sum(sum)) = &own.scope_metrics[0].metrics[0].data else { panic!("a sum") };
        assert_eq!(sum.data_points[0].value, Some(Value::Double(0.0)));
    }

    #[test]
    fn a_request_is_never_too_large() {
        let of = |service: &str| {
            let names: Vec<String> = (0..2500).map(|index| index.to_string()).collect();
            names.iter().map(|name| counter(&[("service_name", service), ("reason", name)], 1.0)).collect::<Vec<_>>()
        };
        let families = [
            family("tracer_a_total", MetricType::COUNTER, [of("a"), of("b")].concat()),
            family("tracer_b_total", MetricType::COUNTER, of("a")),
        ];
        let made = requests(&families, TIMES, &host(), &[]);
        assert_eq!(made.iter().map(|(_, points)| points).sum::<u64>(), 7500);
        for (request, points) in &made {
            let found = request.resource_metrics.iter().flat_map(|of| &of.scope_metrics[0].metrics).map(size);
            assert_eq!(found.sum::<usize>() as u64, *points);
            assert!((1..=2000).contains(points), "{points}");
        }
        assert!(requests(&[], TIMES, &host(), &[]).is_empty());
    }
}
