//! The network of calls: connect, TLS handshake, round-trip times and retransmits of each, and connects that failed by cause,
//! against what the calling program measures and what TCP tells it (`TCP_INFO`).

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::metrics::Metrics;
use tracer_tests::process::Process;
use tracer_tests::tls::certificate;
use tracer_tests::{begin, figure, find, free_port, http, scratch, wait, workload};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the program with these arguments, as `command` does, to its end; the lines that it printed.
fn run(mut command: Command, arguments: &[&str]) -> Vec<String> {
    let output =
        command.arg(workload::source("network.py")).args(arguments).env("OTEL_SERVICE_NAME", "caller").output();
    let output = output.expect("python3");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// A server, and its two ports: plain and TLS.
fn serve(mut command: Command, address: &str, dir: &Path) -> (Process, [String; 2]) {
    let (certificate, key) = certificate(dir);
    command.arg(workload::source("network.py")).args(["serve", address, &certificate, &key]);
    command.env("OTEL_SERVICE_NAME", "answerer");
    let mut server = Process::start("answerer", &mut command, &dir.join("answerer.log"));
    let line = server.line("PORTS", LIMIT);
    let mut ports = line.split_whitespace().rev().take(2).map(str::to_owned);
    let (tls, plain) = (ports.next().expect("a port"), ports.next().expect("a port"));
    (server, [plain, tls])
}

/// The client spans of the caller by path, once there are this many.
fn calls(agent: &Agent, count: usize) -> HashMap<String, Value> {
    wait("all calls", LIMIT, || {
        let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
        let spans = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let calls = spans.filter(|span| span["service_name"] == "caller" && span["side"] == "client");
        let calls: HashMap<String, Value> = calls
            .filter_map(|span| Some((span["attributes"]["url.path"].as_str()?.to_owned(), span.clone())))
            .collect();
        (calls.len() >= count).then_some(calls)
    })
}

/// Compares what the program printed with the spans. How many first calls had a connect, and the retransmits of all.
fn compare(measured: &[String], calls: &HashMap<String, Value>) -> (usize, u64) {
    let (mut connects, mut retransmits, mut rtt_right) = (0, 0, 0);
    // Only one of Python's threads runs at a time: the program notices later than TCP does.
    let close = |found: &Value, measured: f64| {
        found.as_f64().is_some_and(|found| found < measured + 0.001 && measured < found + 0.2)
    };
    for line in measured {
        let measured: Value = serde_json::from_str(line).expect("JSON");
        let call = &calls[measured["path"].as_str().expect("a path")];
        let found = &call["attributes"];
        let micros = |name: &str| found[name].as_f64().map(|seconds| (seconds * 1e6).round());
        // An acknowledgement may come between the last read and the program's look.
        rtt_right += usize::from(micros("tracer.rtt.time") == measured["rtt"].as_f64());
        assert!(micros("tracer.rtt.min.time") >= measured["rtt_min"].as_f64(), "{measured} {call}");
        assert_eq!(found["tracer.retransmits"], measured["retransmits"], "{measured} {call}");
        retransmits += measured["retransmits"].as_u64().expect("a count");
        match measured["connect"].as_f64() {
            Some(connect) => {
                assert!(close(&found["tracer.connect.time"], connect), "{measured} {call}");
                connects += 1;
            }
            None => assert!(found.get("tracer.connect.time").is_none(), "{measured} {call}"),
        }
        if let Some(handshake) = measured["tls"].as_f64() {
            assert!(close(&found["tracer.tls.handshake.time"], handshake), "{measured} {call}");
        }
    }
    figure("round-trip times equal to TCP_INFO", &format!("{rtt_right} of {}", measured.len()));
    assert!(rtt_right * 100 >= measured.len() * 95, "{rtt_right} of {}", measured.len());
    (connects, retransmits)
}

fn metrics(agent: &Agent) -> Metrics {
    Metrics::parse(&http::get(agent.listen, "/metrics").expect("metrics").text())
}

/// Of so many calls most took the stack of the send that began them; `call_sites` looks at what it says.
fn calls_have_stacks(metrics: &Metrics, calls: usize) {
    let of = |outcome: &str| metrics.sum("tracer_call_stacks_total", &[("outcome", outcome)]);
    figure("stacks of calls", &format!("{} joined, {} unused, of {calls} calls", of("joined"), of("unused")));
    assert!(of("joined") >= calls as f64 * 0.9, "{} of {calls}", of("joined"));
}

fn python() -> Command {
    Command::new("python3")
}

#[test]
fn calls_have_what_tcp_says_and_failed_connects_their_cause() {
    let Some(_turn) = begin("network", &["python3", "openssl"]) else { return };
    let dir = scratch();
    let (_server, [plain, _]) = serve(python(), "127.0.0.1", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let measured = run(python(), &["ask", "127.0.0.1", &plain, "8", "3", "20000"]);
    let (connects, _) = compare(&measured, &calls(&agent, measured.len()));
    assert_eq!(connects, 8);

    run(python(), &["fail", "127.0.0.1", &free_port().to_string(), "5"]);
    let pair = [("service_name", "caller"), ("callee_service_name", "answerer")];
    let metrics = wait("metrics of what failed", LIMIT, || {
        let metrics = metrics(&agent);
        let refused = [("service_name", "caller"), ("error_type", "connection_refused")];
        (metrics.sum("tracer_connect_failures_total", &refused) >= 5.0).then_some(metrics)
    });
    assert!((metrics.sum("tracer_connect_failures_total", &[]) - 5.0).abs() < 0.5, "closed connections are none");
    assert!((metrics.sum("tracer_call_connects_total", &pair) - 8.0).abs() < 0.5);
    assert!(metrics.sum("tracer_call_rtt_seconds", &pair) > 0.0);
    calls_have_stacks(&metrics, measured.len());
    agent.stop();
}

#[test]
fn calls_inside_tls_have_their_handshake() {
    let Some(_turn) = begin("network_tls", &["python3", "openssl"]) else { return };
    let dir = scratch();
    let (_server, [_, tls]) = serve(python(), "127.0.0.1", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    // Probes come once the agent has seen the library at work.
    let mut early = 0.0;
    wait("text of the caller", LIMIT, || {
        early += 1.0;
        run(python(), &["ask", "127.0.0.1", &tls, "1", "1", "10", "early"]);
        let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
        text.contains("/early/0/0").then_some(())
    });
    let pair = [("service_name", "caller"), ("callee_service_name", "answerer")];
    let measured = run(python(), &["ask", "127.0.0.1", &tls, "8", "3", "20000", "tls"]);
    let (connects, _) = compare(&measured, &calls(&agent, measured.len() + 1));
    assert_eq!(connects, 8);
    let metrics = metrics(&agent);
    for family in ["tracer_call_connects_total", "tracer_call_tls_handshakes_total"] {
        let count = metrics.sum(family, &pair);
        assert!((8.5..8.5 + early).contains(&count), "{family}: {count}, {early} early ones");
    }
    calls_have_stacks(&metrics, measured.len());
    agent.stop();
}

#[test]
fn lost_packets_show_as_retransmits_and_slow_connects() {
    let Some(_turn) = begin("network_loss", &["python3", "openssl", "ip", "nft", "nsenter"]) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, Nat { destination: false, source: false });
    let python = find("python3").expect("python3");
    let address = hosts.address(2).to_string();
    let (_server, [plain, _]) = serve(hosts.command(2, &python), &hosts.own(2).to_string(), dir.path());
    let agent = Agent::start(dir.path(), &[]);
    run(hosts.command(1, &python), &["ask", &address, &plain, "1", "1", "10"]);
    // The name of its service is known from here on.
    calls(&agent, 1);
    hosts.lose(15);
    let measured = run(hosts.command(1, &python), &["ask", &address, &plain, "30", "4", "20000"]);
    hosts.lose(0);
    let (connects, retransmits) = compare(&measured, &calls(&agent, measured.len()));
    assert_eq!(connects, 30);
    assert!(retransmits > 20, "{retransmits}: hardly anything was lost");
    let metrics = metrics(&agent);
    let counted = metrics.sum("tracer_call_retransmits_total", &[("service_name", "caller")]);
    assert!((counted - retransmits as f64).abs() <= 2.0, "{counted} of {retransmits}");
    let connecting = metrics.sum("tracer_call_connect_seconds_total", &[("service_name", "caller")]);
    figure("lost packets", &format!("{retransmits} retransmits, 30 connects in {connecting:.1} s"));

    // Nobody answers: the program gives up, or TCP does.
    let nft = find("nft").expect("nft");
    let drop = "add table inet filter; add chain inet filter input { type filter hook input priority 0; }; \
                add rule inet filter input tcp dport 9 drop";
    assert!(hosts.command(2, &nft).arg(drop).status().is_ok_and(|status| status.success()), "nft");
    run(hosts.command(1, &python), &["fail", &address, "9", "4", "0.1"]);
    let failed = wait("metrics of what failed", LIMIT, || {
        let metrics = self::metrics(&agent);
        let failed = metrics.sum("tracer_connect_failures_total", &[("error_type", "given_up"), ("server_port", "9")]);
        (failed > 0.0).then_some(failed)
    });
    assert!((failed - 4.0).abs() < 0.5, "{failed}");
    agent.stop();
}
