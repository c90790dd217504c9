//! `[export]`: of requests whose fate is known, a collector and the file get every failed and every slow one whole, and a tenth of
//! the others, whose weights say how many there were.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::collector;
use tracer_tests::load::{self, Request};
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, scratch, wait};

/// Requests, and which of them fail and are slow: those whose number is a multiple of the one, or one more than one of the other.
const REQUESTS: usize = 3000;
const FAILS: usize = 100;
const SLOW: usize = 500;
/// Connections of the load.
const CONNECTIONS: usize = 4;
/// Spans of a request: the load's call, the request, its call, and the request at the other end.
const SPANS: usize = 4;
/// The threshold of a tenth, and how many one of them stands for.
const TENTH: &str = "ot=th:e666";
const COUNT: f64 = 9.999_389_685_688_13;

/// A span as the collector prints it.
#[derive(Clone, Debug, Default)]
struct Received {
    trace: String,
    id: String,
    server: bool,
    path: String,
    state: String,
    because: String,
}

fn received(text: &str) -> Vec<Received> {
    let mut all: Vec<Received> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Span #") {
            all.push(Received::default());
        }
        let Some(span) = all.last_mut() else { continue };
        let attribute = line.strip_prefix("-> ").and_then(|pair| pair.split_once(": Str("));
        match (attribute, line.split_once(':').map(|(key, value)| (key.trim(), value))) {
            (Some(("url.path", value)), _) => span.path = value.trim_end_matches(')').into(),
            (Some(("tracer.kept_because", value)), _) => span.because = value.trim_end_matches(')').into(),
            (None, Some(("Trace ID", value))) => span.trace = value.trim().into(),
            (None, Some(("ID", value))) => span.id = value.trim().into(),
            (None, Some(("Kind", value))) => span.server = value.trim() == "SPAN_KIND_SERVER",
            (None, Some(("TraceState", value))) => span.state = value.trim().into(),
            _ => {}
        }
    }
    all
}

fn number(path: &str) -> usize {
    path.rsplit('/').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number: {path:?}"))
}

#[test]
fn what_fails_and_what_is_slow_arrives_whole_and_the_rest_in_a_share_with_its_weight() {
    let Some(_turn) = begin("tail_sampling", &["python3", "rotel-agent"]) else { return };
    let dir = scratch();
    let (collector, endpoint) = collector::start(dir.path(), "traces");
    let server = Server::python_with("tail", dir.path(), &[&FAILS.to_string(), &SLOW.to_string()]);
    let config = dir.path().join("tail.toml");
    std::fs::write(&config, "[export]\nshare = \"10%\"\nkeep = [\"failed\", \"slow\"]\n").expect("written");
    let (to, port) = (format!("http://{}", endpoint[1]), server.address.port().to_string());
    let config = config.to_str().expect("a path");
    let agent =
        Agent::launch_with("tail", dir.path(), &["--config", config, "--otlp", &to, "--port", &port], |command| {
            command.env("OTEL_BSP_SCHEDULE_DELAY", "200").env("OTEL_BSP_MAX_QUEUE_SIZE", "65536");
        })
        .ready();
    // What is slow is known of a class once it has a hundred requests.
    let load = |from: usize, to: usize| {
        let plan =
            |first| (from + first..to).step_by(CONNECTIONS).map(|n| Request::get(format!("/item/{n}"))).collect();
        let loaded = load::run(server.address, (0..CONNECTIONS).map(plan).collect());
        assert_eq!((loaded.answers.len(), loaded.broken().len()), (to - from, 0));
        loaded.answers.iter().filter(|answer| answer.status == Ok(500)).count()
    };
    let mut failed = load(2, SLOW);
    wait("the first requests in the metrics", Duration::from_secs(20), || {
        let count = agent.metrics().sum("http_server_request_duration_seconds_count", &[]);
        (count >= 2.0 * (SLOW - 2) as f64).then_some(())
    });
    failed += load(SLOW, REQUESTS);
    let total = REQUESTS - 2;
    assert_eq!(failed, (REQUESTS - 1) / FAILS);
    let slow = (SLOW..REQUESTS).filter(|n| n % SLOW == 1).count();

    // Metrics are of all requests, and everything is decided.
    let decided = |agent: &Agent| agent.metrics().sum("tracer_export_spans_total", &[]);
    wait("all spans to be decided about", Duration::from_secs(30), || {
        (decided(&agent) >= (total * SPANS) as f64).then_some(())
    });
    let metrics = agent.metrics();
    let counted = |side: &str| metrics.sum(&format!("http_{side}_request_duration_seconds_count"), &[]);
    assert_eq!((counted("server"), counted("client")), (2.0 * total as f64, 2.0 * total as f64));
    let transactions = |decision| metrics.sum("tracer_export_transactions_total", &[("decision", decision)]);
    let by_decision = ["failed", "slow", "rare", "finding", "share", "dropped"].map(transactions);
    assert!((by_decision.iter().sum::<f64>() - total as f64).abs() < 0.5, "{by_decision:?} of {total}");
    assert_eq!((by_decision[0], by_decision[2], by_decision[3]), (failed as f64, 0.0, 0.0), "{by_decision:?}");
    let exported = decided(&agent) - metrics.sum("tracer_export_spans_total", &[("decision", "dropped")]);
    let others = metrics.sum("tracer_export_share_ratio", &[("of", "others")]);
    assert!((others - 1.0 / COUNT).abs() < 1e-9, "{others}");
    let file = agent.transactions.clone();
    agent.stop();
    let spans = wait("the collector to have printed what was exported", Duration::from_secs(20), || {
        let spans = received(&collector.output());
        (spans.len() >= exported as usize).then_some(spans)
    });
    assert_eq!(spans.len(), exported as usize);

    // The file has the same spans, with the same reasons and weights.
    let written = std::fs::read_to_string(file).expect("its file");
    let written = written.lines().map(|line| serde_json::from_str::<Value>(line).expect("a span"));
    let written: BTreeMap<String, Value> =
        written.map(|span| (span["span_id"].as_str().expect("an id").to_owned(), span)).collect();
    assert_eq!(written.keys().collect::<BTreeSet<_>>(), spans.iter().map(|span| &span.id).collect());
    for span in &spans {
        let line = &written[&span.id];
        let because = line["attributes"]["tracer.kept_because"].as_str().unwrap_or_default();
        let count = line["adjusted_count"].as_f64().expect("a weight");
        assert_eq!(because, span.because);
        // A reason keeps all that have it; the share says how many one stands for.
        let (state, weight) = if because.is_empty() { (TENTH, COUNT) } else { ("ot=th:0", 1.0) };
        assert_eq!(span.state, state, "{span:?}");
        assert!((count - weight).abs() < 1e-9, "{line}");
    }

    // Each transaction is whole, and every one that failed or was slow is there.
    let mut traces: BTreeMap<&str, Vec<&Received>> = BTreeMap::new();
    for span in &spans {
        traces.entry(&span.trace).or_default().push(span);
    }
    let mut kept: BTreeMap<usize, &str> = BTreeMap::new();
    for spans in traces.values() {
        let numbers: BTreeSet<usize> = spans.iter().map(|span| number(&span.path)).collect();
        assert_eq!((spans.len(), numbers.len()), (SPANS, 1), "{spans:?}");
        kept.extend(numbers.iter().map(|number| (*number, spans[0].because.as_str())));
    }
    assert_eq!(kept.len(), traces.len());
    for number in (2..REQUESTS).filter(|n| n % FAILS == 0) {
        assert_eq!(kept.get(&number), Some(&"failed"), "request {number}");
    }
    for number in (SLOW..REQUESTS).filter(|n| n % SLOW == 1) {
        assert_eq!(kept.get(&number), Some(&"slow"), "request {number}");
    }

    // The others are a tenth, and their weights say how many there were.
    let of = |reason| kept.values().filter(|because| **because == reason).count();
    let (in_share, as_slow) = (of(""), of("slow"));
    assert!(as_slow >= slow && as_slow <= total / 20, "{as_slow} as slow");
    let rest = total - failed - as_slow;
    let sigma = (rest as f64 * 0.1 * 0.9).sqrt();
    assert!((in_share as f64 - rest as f64 / COUNT).abs() < 4.0 * sigma, "{in_share} of {rest}");
    let requests = spans.iter().filter(|span| span.server && span.path.starts_with("/item/"));
    let estimate: f64 = requests.map(|span| if span.because.is_empty() { COUNT } else { 1.0 }).sum();
    assert!((estimate - total as f64).abs() < 4.0 * sigma * COUNT, "{estimate} of {total}");
    figure("spans exported", &format!("{} of {}", spans.len(), total * SPANS));
    figure(
        "kept",
        &format!(
            "{failed} failed of {failed}, {as_slow} slow ({slow} of {slow} by a second), {in_share} of {rest} others"
        ),
    );
    figure("requests by their weights", &format!("{estimate:.0} of {total}"));
}
