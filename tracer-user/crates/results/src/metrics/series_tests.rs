//! The budget of series, end to end: spans and charges in, exposition out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracer_model::sample_span::span;
use tracer_model::{ClassId, ClassInfo, Cost, Names, Nanos, Owner, ProtocolId, ServiceId, Side, Sink, Span};

use super::{Format, Metrics, SeriesLimits};

const SECOND: Nanos = 1_000_000_000;
/// What one charge costs.
const COST: Cost = Cost { cpu: 1_000_000, runq: 0, blocked: 0, switches: 0 };

/// Services with so many classes each.
fn names(services: usize, classes: usize) -> Names {
    let service = |index: usize| Arc::<str>::from(format!("service-{index}"));
    let class = |index: usize| ClassInfo {
        service: ServiceId((index / classes) as u32),
        service_name: service(index / classes),
        protocol: ProtocolId::Http,
        side: Side::Server,
        name: Arc::from(format!("GET /{index}")),
        route: Arc::from(format!("/{index}")),
    };
    Names { services: (0..services).map(service).collect(), classes: (0..services * classes).map(class).collect() }
}

fn metrics(max_series: usize, idle_s: u64) -> Metrics {
    let limits = SeriesLimits { max_series, idle: Duration::from_secs(idle_s) };
    Metrics::new().with_series(limits).at(1_700_000_000_000_000_000)
}

fn request(metrics: &mut Metrics, names: &Names, class: usize, at: Nanos) {
    let service = names.classes[class].service;
    let one = Span { class: ClassId(class as u32), service, ..span(class as u128 + 1, at, 2_000_000, false) };
    metrics.span(names, &one);
    metrics.cost(names, Owner::Class(ClassId(class as u32)), COST);
}

/// Samples by name and labels.
fn scrape(metrics: &Metrics) -> BTreeMap<String, f64> {
    let text = String::from_utf8(metrics.exposition().bytes(Format::Text).unwrap()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut samples: BTreeMap<String, f64> = BTreeMap::new();
    for line in lines {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let double = samples.insert(name.to_owned(), value.parse().unwrap());
        assert!(double.is_none(), "{name} twice");
    }
    assert!((samples["tracer_series"] - samples.len() as f64).abs() < 0.5, "{} series", samples.len());
    samples
}

/// The sum over a family, of series whose labels contain all of these.
fn sum(samples: &BTreeMap<String, f64>, family: &str, labels: &[&str]) -> f64 {
    let start = format!("{family}{{");
    let of = samples.iter().filter(|(name, _)| name.starts_with(&start) && labels.iter().all(|l| name.contains(l)));
    of.map(|(_, value)| value).sum()
}

#[track_caller]
fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-6 * want.max(1.0), "{got}, not {want}");
}

#[track_caller]
fn adds_up(samples: &BTreeMap<String, f64>, requests: usize) {
    let requests = requests as f64;
    near(sum(samples, "tracer_requests_total", &["status=\"ok\""]), requests);
    near(sum(samples, "http_server_request_duration_seconds_count", &[]), requests);
    near(sum(samples, "http_server_request_duration_seconds_bucket", &["le=\"+Inf\""]), requests);
    near(sum(samples, "http_server_request_duration_seconds_bucket", &["le=\"0.001\""]), 0.0);
    near(sum(samples, "http_server_request_duration_seconds_sum", &[]), requests * 0.002);
    near(sum(samples, "tracer_request_cpu_seconds_total", &[]), requests * 0.001);
    near(sum(samples, "tracer_service_cpu_seconds_total", &["kind=\"requests\""]), requests * 0.001);
}

#[test]
fn the_limit_holds_and_sums_stay_exact() {
    for max in [2_000, 10_000] {
        let names = names(100, 50);
        let mut metrics = metrics(max, 900);
        let mut requests = 0;
        for round in 0..3 {
            for class in 0..names.classes.len() {
                request(&mut metrics, &names, class, round * SECOND);
                requests += 1;
            }
            metrics.set_classes((0..100).map(|id| (ServiceId(id), 50, 2)));
            metrics.tick((round + 1) * SECOND);
            let samples = scrape(&metrics);
            assert!(samples.len() <= max, "{} series of {max}", samples.len());
            // The limit is used.
            assert!(samples.len() > max / 4, "{} series of {max}", samples.len());
            adds_up(&samples, requests);
            near(sum(&samples, "tracer_classes", &[]), 5_000.0);
            near(sum(&samples, "tracer_classes_merged_total", &[]), 200.0);
            let folded = samples["tracer_series_folded{kind=\"class\",reason=\"limit\"}"];
            let own = samples.keys().filter(|name| {
                name.starts_with("tracer_requests_total{") && name.contains("\"ok\"") && !name.contains("_other")
            });
            near(folded + own.count() as f64, 5_000.0);
            assert!(samples["tracer_metrics_folded_total{reason=\"class\"}"] >= folded);
            near(samples["tracer_series_limit"], max as f64);
        }
    }
}

#[test]
fn idle_classes_leave_and_continue_when_they_return() {
    let names = names(2, 2);
    let mut metrics = metrics(10_000, 60);
    let own = "http_server_request_duration_seconds_count{error_type=\"\",http_request_method=\"GET\",\
               http_response_status_code=\"200\",http_route=\"/0\",network_protocol_name=\"\",\
               network_protocol_version=\"1.1\",request_class=\"GET /0\",service_name=\"service-0\",url_scheme=\"http\"}";
    let cpu = "tracer_request_cpu_seconds_total{protocol=\"http\",request_class=\"GET /0\",service_name=\"service-0\"}";
    let mut requests = 0;
    for second in 0..10 {
        for class in 0..4 {
            request(&mut metrics, &names, class, second * SECOND);
            requests += 1;
        }
        metrics.tick(second * SECOND);
    }
    let before = scrape(&metrics);
    adds_up(&before, requests);
    near(before[own], 10.0);
    // Class 3 alone has requests: the others leave, and service 0 with them.
    for second in 10..100 {
        request(&mut metrics, &names, 3, second * SECOND);
        requests += 1;
        metrics.tick(second * SECOND);
        adds_up(&scrape(&metrics), requests);
    }
    let idle = scrape(&metrics);
    assert!(!idle.contains_key(own) && !idle.contains_key(cpu), "{idle:#?}");
    assert!(idle.len() < before.len(), "{} series, {} before", idle.len(), before.len());
    near(idle["tracer_series_folded{kind=\"class\",reason=\"idle\"}"], 3.0);
    near(idle["tracer_series_folded{kind=\"service\",reason=\"idle\"}"], 1.0);
    near(idle["tracer_series_expired_total"], 4.0);
    near(sum(&idle, "tracer_requests_total", &["_expired-17"]), 30.0);
    near(sum(&idle, "tracer_service_cpu_seconds_total", &["_expired-17"]), 0.02);
    // It returns: until a sweep in a shared series, then in its own, which continues.
    for second in 100..140 {
        request(&mut metrics, &names, 0, second * SECOND);
        requests += 1;
        metrics.tick(second * SECOND);
        adds_up(&scrape(&metrics), requests);
    }
    let back = scrape(&metrics);
    let returned = back["tracer_metrics_folded_total{reason=\"idle\"}"];
    assert!((1.0..=16.0).contains(&returned), "{returned}");
    near(back[own], 10.0 + 40.0 - returned);
    near(back["tracer_metrics_folded_total{reason=\"class\"}"], 0.0);
    // The sum of what is hidden has another name whenever it is another sum.
    let hidden = |samples: &BTreeMap<String, f64>| -> Vec<(String, f64)> {
        let hidden = samples.iter().filter(|(name, _)| name.contains("_expired-"));
        hidden.map(|(name, value)| (name.clone(), *value)).collect()
    };
    let (idle, back) = (hidden(&idle), hidden(&back));
    assert!(!back.is_empty() && back.iter().all(|(name, _)| idle.iter().all(|(old, _)| old != name)), "{back:?}");
}

#[test]
fn no_counter_goes_back_whatever_comes_and_goes() {
    let names = names(40, 10);
    let mut metrics = metrics(2_000, 20);
    let mut last: BTreeMap<String, f64> = BTreeMap::new();
    let mut requests = 0;
    let mut state = 7_u64;
    for second in 0..300 {
        // Busy classes move on with time.
        for _ in 0..30 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let class = ((state >> 33) as usize % 40 + second as usize * 2) % names.classes.len();
            request(&mut metrics, &names, class, second * SECOND);
            requests += 1;
        }
        metrics.cost(&names, Owner::Overhead(ServiceId(second as u32 % 40)), COST);
        metrics.tick(second * SECOND);
        let samples = scrape(&metrics);
        assert!(samples.len() <= 2_000, "{} series", samples.len());
        adds_up(&samples, requests);
        near(sum(&samples, "tracer_service_cpu_seconds_total", &["overhead"]), (second + 1) as f64 * 0.001);
        for (name, value) in samples {
            let counter = ["_total{", "_total", "_count{", "_bucket{", "_sum{"].iter().any(|end| name.contains(end));
            if !counter || name.starts_with("process_") {
                continue;
            }
            let before = last.insert(name.clone(), value).unwrap_or(0.0);
            assert!(value >= before, "{name}: {before}, then {value}");
        }
    }
}

#[test]
fn services_without_requests_share_series() {
    let names = names(281, 1);
    let mut metrics = metrics(10_000, 900);
    for service in 0..281 {
        metrics.cost(&names, Owner::Overhead(ServiceId(service)), COST);
    }
    metrics.tick(SECOND);
    let quiet = scrape(&metrics);
    let cpu: Vec<_> = quiet.iter().filter(|(name, _)| name.starts_with("tracer_service_cpu_seconds_total{")).collect();
    assert_eq!(cpu.len(), 1, "{cpu:?}");
    near(sum(&quiet, "tracer_service_cpu_seconds_total", &["\"_no_requests\"", "overhead"]), 0.281);
    near(quiet["tracer_series_folded{kind=\"service\",reason=\"no_requests\"}"], 281.0);
    // One of them gets a request.
    request(&mut metrics, &names, 7, SECOND);
    metrics.cost(&names, Owner::Overhead(ServiceId(7)), COST);
    metrics.tick(2 * SECOND);
    let samples = scrape(&metrics);
    near(sum(&samples, "tracer_service_cpu_seconds_total", &["\"service-7\"", "overhead"]), 0.001);
    near(sum(&samples, "tracer_service_cpu_seconds_total", &["overhead"]), 0.282);
}

#[test]
fn exemplars_are_in_open_metrics_only() {
    let names = names(1, 1);
    let mut metrics = metrics(10_000, 900);
    request(&mut metrics, &names, 0, 5 * SECOND);
    metrics.tick(6 * SECOND);
    let exposition = metrics.exposition();
    let plain = String::from_utf8(exposition.bytes(Format::Text).unwrap()).unwrap();
    assert!(!plain.contains(" # {") && !plain.contains("# EOF"), "{plain}");
    let open = String::from_utf8(exposition.bytes(Format::OpenMetrics).unwrap()).unwrap();
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    let bucket = open.lines().find(|line| line.contains("le=\"0.0025\"")).unwrap();
    let exemplar =
        " 1 # {trace_id=\"00000000000000000000000000000001\",span_id=\"000000012a05f201\"} 0.002 1700000005.002";
    assert!(
        bucket.starts_with("http_server_request_duration_seconds_bucket{") && bucket.ends_with(exemplar),
        "{bucket}"
    );
    assert_eq!(open.lines().filter(|line| line.contains(" # {")).count(), 1);
    for line in [
        "# TYPE tracer_requests counter",
        "# TYPE http_server_request_duration_seconds histogram",
        "# TYPE tracer_capture_ratio gauge",
        "# TYPE tracer_findings counter",
    ] {
        let family = line.split(' ').nth(2).unwrap();
        assert!(open.lines().any(|found| found == line) || !open.contains(&format!(" {family} ")), "{line}\n{open}");
    }
    // The same samples in both.
    let names_of = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("_bucket{"));
        lines.map(|line| line.split(" # ").next().unwrap().rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    assert_eq!(names_of(&plain), names_of(&open));
}
