//! Compares spans as a real collector reads them with the spans the agent wrote to its file, and metrics with the agent's own.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::collector;
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::{begin, say, scratch, wait};

/// Requests sent.
const REQUESTS: usize = 300;

/// A span as printed by the collector: its fields and attributes as text.
type Fields = BTreeMap<String, String>;

/// Parses the collector's output.
fn spans(text: &str) -> Vec<Fields> {
    let mut all: Vec<Fields> = Vec::new();
    let (mut resource, mut inside) = (Fields::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("ResourceSpans #") {
            (resource, inside) = (Fields::new(), false);
        } else if line.starts_with("Span #") {
            inside = true;
            all.push(resource.clone());
        } else if let Some((key, value)) = line.strip_prefix("-> ").and_then(|pair| pair.split_once(": ")) {
            let value = value.split_once('(').and_then(|(_, value)| value.strip_suffix(')')).unwrap_or(value);
            let into = if inside { all.last_mut() } else { Some(&mut resource) };
            into.map(|into| into.insert(key.into(), value.into()));
        } else if let (true, Some(span), Some((key, value))) = (inside, all.last_mut(), line.split_once(':')) {
            span.insert(key.trim().into(), value.trim().into());
        }
    }
    all
}

/// The same from the agent's file, as far as it is compared.
fn expected(spans: &str) -> BTreeMap<String, Fields> {
    let spans = spans.lines().map(|line| serde_json::from_str::<Value>(line).expect("a span"));
    spans
        .map(|span| {
            let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
            let start = span["start_ns"].as_i64().expect("a time");
            let fields = [
                ("Trace ID", text("trace_id")),
                ("Parent ID", text("parent_span_id")),
                ("ID", text("span_id")),
                ("Name", text("request_class")),
                ("Kind", format!("SPAN_KIND_{}", text("side").to_uppercase())),
                ("Start time", start.to_string()),
                ("service.name", text("service_name")),
                ("url.path", span["attributes"]["url.path"].as_str().unwrap_or_default().to_owned()),
                ("tracer.grade", text("grade")),
            ];
            let fields = fields.map(|(key, value)| (key.to_owned(), value));
            (text("span_id"), Fields::from(fields))
        })
        .collect()
}

fn exported(name: &str, protocol: &str, compression: &str) {
    let Some(_turn) = begin(name, &["nginx", "rotel-agent"]) else { return };
    let dir = scratch();
    let (collector, endpoint) = collector::start(dir.path(), "traces");
    let nginx = Nginx::start(dir.path(), "", "location /x/ { return 200 hello; }");
    let to = format!("http://{}", endpoint[usize::from(protocol != "grpc")]);
    let port = nginx.address.port().to_string();
    let agent = Agent::launch_with("otlp", dir.path(), &["--otlp", &to, "--port", &port], |command| {
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol).env("OTEL_EXPORTER_OTLP_COMPRESSION", compression);
        command
            .env("OTEL_BSP_SCHEDULE_DELAY", "200")
            .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    })
    .ready();
    let plan = (0..REQUESTS).map(|i| Request::get(format!("/x/{i}?secret={i}"))).collect();
    let loaded = load::run(nginx.address, vec![plan]);
    assert_eq!((loaded.answers.len(), loaded.broken().len()), (REQUESTS, 0));
    let sent = |agent: &Agent| {
        let metrics = agent.metrics();
        let of = |outcome| metrics.sum("tracer_otlp_spans_total", &[("outcome", outcome)]);
        (of("sent"), of("queue_full") + of("rejected") + of("failed"))
    };
    // At either end of the connection: nginx and the load generator.
    wait("the spans to be sent", Duration::from_secs(30), || (sent(&agent).0 >= 2.0 * REQUESTS as f64).then_some(()));
    let (_, lost) = sent(&agent);
    let file = agent.transactions.clone();
    agent.stop();
    let expected = expected(&std::fs::read_to_string(file).expect("its file"));
    let found = wait("the collector to have printed them", Duration::from_secs(20), || {
        let found = spans(&collector.output());
        (found.len() >= expected.len()).then_some(found)
    });
    say(&format!(
        "{protocol}, {compression}: {} spans in the file, {} spans received, {lost} lost",
        expected.len(),
        found.len()
    ));
    assert_eq!((found.len(), lost), (expected.len(), 0.0));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned();
    for span in &found {
        let written_kind = span["Kind"].clone();
        let (server, client) = (written_kind == "SPAN_KIND_SERVER", written_kind == "SPAN_KIND_CLIENT");
        assert!(server || client, "{span:?}");
        // The resource is the process: its id, and where it is known, its program and host.
        let instance = &span["service.instance.id"];
        assert!(instance.contains(&format!("/{}@", span["process.pid"])) && !instance.ends_with("@0"), "{instance}");
        for (key, value) in
            [("telemetry.sdk.name", "tracer"), ("os.type", "linux"), ("host.name", &host), ("url.scheme", "http")]
        {
            assert_eq!(span.get(key).map(String::as_str), Some(value), "{key} of {span:?}");
        }
        assert!(!span.contains_key("telemetry.sdk.language"), "{span:?}");
        assert!(span.contains_key("process.executable.name"), "{span:?}");
        if server {
            assert_eq!(span["process.executable.name"], "nginx", "{span:?}");
            assert_eq!((&span["server.address"], &span["server.port"]), (&host, &port), "{span:?}");
            assert!(span.contains_key("http.route") && !span.contains_key("url.full"), "{span:?}");
        } else {
            let full = format!("http://127.0.0.1:{port}{}", span["url.path"]);
            assert_eq!(span["url.full"], full, "{span:?}");
            assert!(!span.contains_key("http.route"), "{span:?}");
            assert_eq!(span["server.address"], "127.0.0.1", "{span:?}");
        }
        let written = expected.get(&span["ID"]).unwrap_or_else(|| panic!("not in the file: {span:?}"));
        for (key, value) in written {
            assert_eq!(span.get(key).map(String::as_str).unwrap_or_default(), value, "{key} of {span:?}");
        }
        assert_eq!(span["deployment.environment.name"], "test");
        assert!(span["End time"].parse::<u64>().expect("a time") >= span["Start time"].parse().expect("a time"));
        for key in [
            "http.request.method",
            "http.response.status_code",
            "tracer.cpu.time",
            "tracer.queue.time",
            "network.protocol.name",
        ] {
            assert!(span.contains_key(key), "{key} is missing: {span:?}");
        }
    }
    // Every process is an instance, and no two are the same.
    let instances: std::collections::BTreeSet<_> =
        found.iter().map(|span| (&span["process.pid"], &span["service.instance.id"])).collect();
    let ids: std::collections::BTreeSet<_> = instances.iter().map(|(_, id)| id).collect();
    assert!(ids.len() == instances.len() && ids.len() >= 2, "{instances:?}");
    assert!(!collector.output().contains("secret"), "query strings are never exported");
}

#[test]
fn a_collector_reads_them_by_grpc() {
    exported("otlp_grpc", "grpc", "none");
}

#[test]
fn a_collector_reads_them_by_http() {
    exported("otlp_http", "http/protobuf", "gzip");
}

/// Metrics by a transport: the collector reads the names of the conventions, and the agent's last sums.
fn metrics_exported(name: &str, protocol: &str) {
    let Some(_turn) = begin(name, &["nginx", "rotel-agent"]) else { return };
    let dir = scratch();
    let (collector, endpoint) = collector::start(dir.path(), "metrics");
    let nginx = Nginx::start(dir.path(), "", "location /x/ { return 200 hello; }");
    let to = format!("http://{}", endpoint[usize::from(protocol != "grpc")]);
    let port = nginx.address.port().to_string();
    let arguments = ["--otlp", &to, "--otlp-signals", "metrics", "--port", &port];
    let agent = Agent::launch_with("otlp_metrics", dir.path(), &arguments, |command| {
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol).env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        command.env("OTEL_METRIC_EXPORT_INTERVAL", "500");
    })
    .ready();
    let plan = (0..REQUESTS).map(|i| Request::get(format!("/x/{i}?secret={i}"))).collect();
    let loaded = load::run(nginx.address, vec![plan]);
    assert_eq!((loaded.answers.len(), loaded.broken().len()), (REQUESTS, 0));
    let found = wait("the collector to have printed every request", Duration::from_secs(30), || {
        let found = histogram_counts(&collector.output(), "http.server.request.duration");
        (found.last() == Some(&(REQUESTS as u64))).then_some(found)
    });
    assert!(found.is_sorted(), "sums only grow: {found:?}");
    let metrics = wait("the agent to count data points", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        (metrics.sum("tracer_otlp_points_total", &[("outcome", "sent")]) > 0.0).then_some(metrics)
    });
    for outcome in ["rejected", "failed"] {
        assert!(metrics.sum("tracer_otlp_points_total", &[("outcome", outcome)]) < 0.5, "{outcome}");
    }
    // Spans were not asked for.
    assert!(metrics.sum("tracer_otlp_spans_total", &[]) < 0.5);
    agent.stop();
    let text = collector.output();
    for expected in [
        "tracer.requests",
        "tracer.capture_ratio",
        "process.cpu.time",
        "service.name: Str(nginx)",
        "service.name: Str(tracer)",
    ] {
        assert!(text.contains(expected), "{expected} is missing");
    }
    for key in
        ["http.request.method: Str(GET)", "http.response.status_code: Int(200)", "host.name", "telemetry.sdk.name"]
    {
        assert!(text.contains(key), "{key} is missing");
    }
    assert!(!text.contains("secret"), "query strings are never exported");
    say(&format!("metrics by {protocol}: {} exports, {REQUESTS} requests in the last", found.len()));
}

/// Counts of a histogram in the collector's output, one for each export; its series are added.
fn histogram_counts(text: &str, metric: &str) -> Vec<u64> {
    let (mut all, mut inside) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("-> Name: ") {
            inside = name == metric;
            if inside {
                all.push(0);
            }
        } else if let (true, Some(count), Some(last)) = (inside, line.strip_prefix("Count: "), all.last_mut()) {
            *last += count.trim().parse::<u64>().unwrap_or(0);
        }
    }
    all
}

#[test]
fn a_collector_reads_metrics_by_grpc() {
    metrics_exported("otlp_metrics_grpc", "grpc");
}

#[test]
fn a_collector_reads_metrics_by_http() {
    metrics_exported("otlp_metrics_http", "http/protobuf");
}
