//! Contexts that requests carry, in every supported form, and what the agent reports of them.

use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::Connection;
use tracer_tests::workload::Server;
use tracer_tests::{begin, figure, say, scratch, wait};

const W3C: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
const B3: &str = "b3: 463ac35c9f6413ad48485a3953bb6124-a2fb4a1d1a96d312-0\r\n";
const SEVERAL: &str = "X-B3-TraceId: 5af7183fb1d4cf5f\r\nX-B3-SpanId: 6b221d5bc9e6496c\r\nX-B3-Sampled: 1\r\n";

/// A path, the request's headers, and the expected span: carrier, trace, parent.
const CASES: [(&str, &[&str], &str, &str, &str); 6] = [
    ("/context/w3c", &[W3C], "traceparent", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
    ("/context/b3", &[B3], "b3", "463ac35c9f6413ad48485a3953bb6124", "a2fb4a1d1a96d312"),
    ("/context/several", &[SEVERAL], "b3", "00000000000000005af7183fb1d4cf5f", "6b221d5bc9e6496c"),
    ("/context/both", &[B3, W3C], "traceparent", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
    // With two of them neither can be trusted: the parent comes from the connection.
    ("/context/doubled", &[W3C, W3C], "connection", "", ""),
    ("/context/none", &[], "connection", "", ""),
];

#[test]
fn a_request_belongs_to_whom_it_says() {
    let Some(_turn) = begin("context", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let config = dir.path().join("tracer.toml");
    std::fs::write(&config, "[transactions]\nbaggage = [\"tenant\"]\n").expect("a configuration");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &config.display().to_string()]);
    let mut connection = Connection::open(server.address).expect("a connection");
    for (path, headers, ..) in CASES {
        let more = "baggage: user=planted-name,tenant=t1;p=2\r\n";
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{}{more}\r\n", headers.concat());
        connection.send(head.as_bytes()).expect("sent");
        assert_eq!(connection.reply("GET").expect("a reply").status, 200);
    }
    let spans = wait("both ends of each", Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let spans: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).expect("a span")).collect();
        (spans.len() >= 2 * CASES.len()).then_some(spans)
    });
    let of = |path: &str, side: &str| {
        let fits = |span: &&Value| span["attributes"]["url.path"] == path && span["side"] == side;
        let found: Vec<&Value> = spans.iter().filter(fits).collect();
        assert_eq!(found.len(), 1, "{side} {path}");
        found[0]
    };
    for (path, _, carrier, trace, parent) in CASES {
        let (call, served) = (of(path, "client"), of(path, "server"));
        assert_eq!(served["parent_from"], carrier, "{path}");
        let (trace, parent) = if carrier == "connection" {
            (call["trace_id"].clone(), call["span_id"].clone())
        } else {
            (Value::from(trace), Value::from(parent))
        };
        assert_eq!((&served["trace_id"], &served["parent_span_id"]), (&trace, &parent), "{path}");
        assert_eq!(served["attributes"]["baggage.tenant"], "t1", "{path}");
    }
    figure("contexts", &format!("{} of {}", CASES.len(), CASES.len()));
    say(&format!("context: {} forms, each believed as it should be", CASES.len()));
    let written = std::fs::read_to_string(&agent.transactions).expect("spans");
    assert!(!written.contains("planted-name"), "that member of baggage is not configured");
    agent.stop();
}
