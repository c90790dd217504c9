//! WebSocket sessions: compares paths, closing codes and durations with the server's own figures.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, outcome};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::{self, Server};
use tracer_tests::{begin, figure, find, say, scale, scratch, secrets, wait};

/// The error name of a closing code.
fn failure(code: u64) -> &'static str {
    match code {
        0 => "aborted",
        1000 | 1001 => "",
        1011 => "1011",
        _ => "4xxx",
    }
}

#[test]
fn sessions_of_pythons_websockets() {
    let Some(_turn) = begin("websocket", &["python3"]) else { return };
    let python = find("python3").expect("python3");
    if outcome(Command::new(&python).args(["-c", "import websockets"]), "python3").code != Some(0) {
        say("SKIPPED websocket: needs python3-websockets");
        return;
    }
    sessions_and_their_codes("python", &|| {
        let mut command = Command::new(&python);
        command.arg(workload::source("sockets.py"));
        command
    });
}

#[test]
fn compressed_sessions_of_nodes_ws() {
    let Some(_turn) = begin("websocket_node", &["node"]) else { return };
    let node = || {
        let mut command = Command::new(find("node").expect("node"));
        // Debian's module path, for a Node that is not Debian's.
        command.env("NODE_PATH", "/usr/share/nodejs");
        command
    };
    if outcome(node().args(["-e", "require('ws')"]), "node").code != Some(0) {
        say("SKIPPED websocket_node: needs node-ws");
        return;
    }
    sessions_and_their_codes("node", &|| {
        let mut command = node();
        command.arg(workload::source("sockets.js"));
        command
    });
}

/// `program` serves and calls sessions.
fn sessions_and_their_codes(name: &str, program: &dyn Fn() -> Command) {
    let dir = scratch();
    let server = Server::start("sockets", dir.path(), program().arg("serve"));
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);

    let mut call = program();
    call.args(["call", &port]).env("OTEL_SERVICE_NAME", "caller");
    let done = outcome(&mut call, "the client");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let wanted: usize = done.out.trim().rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count");
    let truth: Vec<Value> = wait("the server's last word", Duration::from_secs(20), || {
        let text = server.process.output();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= wanted).then_some(lines)
    });

    let ours = |span: &Span| span.protocol == "websocket";
    let mut tail = Tail::new(&agent.transactions);
    tail.until(wanted * 2, Duration::from_secs(30), ours);
    let lost = agent.metrics().lost();
    let mut differ = Vec::new();
    let (mut right, mut logged, mut found) = ([0, 0], Vec::new(), Vec::new());
    let seconds = |line: &Value, key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key}: {line}"));
    for line in &truth {
        let (path, code) = (line["path"].as_str().expect("a path"), line["code"].as_u64().expect("a code"));
        for server in [true, false] {
            let spans: Vec<&Span> =
                tail.spans.iter().filter(|span| ours(span) && span.server == server && span.path == path).collect();
            match spans[..] {
                [span] if span.error == failure(code) => {
                    right[usize::from(server)] += 1;
                    if server && code != 0 {
                        let spoke = seconds(line, "spoke");
                        assert!(span.duration_s > spoke - 0.001, "{path}: {spoke} s, found {} s", span.duration_s);
                        logged.push(seconds(line, "seconds"));
                        found.push(span.duration_s);
                    }
                }
                _ => differ.push(format!("server {server} {path}: {spans:?}")),
            }
        }
    }
    say(&format!("lost: {lost:?}"));
    figure(&format!("websocket sessions, {name}"), &format!("{} served and {} called of {wanted}", right[1], right[0]));
    assert!(differ.is_empty(), "{} differ: {:?}; lost: {lost:?}", differ.len(), differ.first());
    let sessions = tail.spans.iter().filter(|span| ours(span)).count();
    assert_eq!(sessions, wanted * 2, "none is reported twice");

    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    // The server is active at least to its last message, and notices the end some time later.
    let (logged, found) = (median(&mut logged), median(&mut found));
    tracer_tests::say(&format!("{:.3} ms logged, {:.3} ms found (medians)", logged * 1e3, found * 1e3));
    assert!(scale() < 1.0 || found < logged + 0.001 + 0.02 * logged, "{logged} s logged, {found} s found");

    // Each session is a child of its upgrade.
    let upgrades: HashMap<&str, &Span> =
        tail.spans.iter().filter(|span| span.outcome == "upgraded").map(|span| (span.id.as_str(), span)).collect();
    let belongs = |span: &&Span| {
        let upgrade = span.parent.as_deref().and_then(|parent| upgrades.get(parent));
        upgrade.is_some_and(|upgrade| {
            upgrade.trace == span.trace && upgrade.path == span.path && upgrade.server == span.server
        })
    };
    let children = tail.spans.iter().filter(|span| ours(span)).filter(belongs).count();
    figure(&format!("websocket sessions below their upgrades, {name}"), &format!("{children} of {sessions}"));
    assert_eq!(children, sessions);

    // One class per kind and code; the upgrades are requests of their own.
    let metrics = agent.metrics();
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    for series in metrics.of("tracer_requests_total", &[("service_name", "sockets")]) {
        let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
        *classes.entry(label("protocol")).or_default() += series.value as u64;
    }
    let expected = [("http".to_owned(), wanted as u64), ("websocket".to_owned(), wanted as u64)];
    assert_eq!(classes, expected.into());
    let upgrades = metrics.sum("http_server_request_duration_seconds_count", &[("service_name", "sockets")]);
    assert!((upgrades - wanted as f64).abs() < 0.5, "sessions are no requests: {upgrades} of {wanted}");
    secrets::none_shows(agent, dir.path(), &["planted-message", "planted-reason"], "1011");
}
