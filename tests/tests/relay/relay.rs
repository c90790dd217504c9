//! Transactions across hosts: verifies every edge between them by an id in the path, under any address translation. The
//! chain is that of [`tracer_tests::chain`].

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, agents, connected, edges, load, outcomes, spans_of};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::http::Connection;
use tracer_tests::spans::Span;
use tracer_tests::{begin, figure, say, scratch, truth, wait};

/// Connections and requests of a load.
fn sizes() -> (u64, u64) {
    if truth::full() { (64, 50_000) } else { (8, 800) }
}

fn translated(name: &str, nat: Nat) {
    let Some(_turn) = begin(name, &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, nat);
    let chain = Chain::start(&hosts, dir.path());
    // Agents behind translated addresses cannot be discovered: configure their addresses.
    let named = nat.destination;
    let agents = agents(&hosts, dir.path(), named);
    if named {
        connected(&hosts, &agents);
    } else {
        // The first calls make the agents look for each other.
        load(&hosts, chain.front, "warm", 4, 40);
        let up = |host: u8, agent: &Agent| {
            let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
            peers["peers"].as_array().expect("peers").iter().any(|p| p["direction"] == "out" && p["state"] == "up")
        };
        for (host, agent) in (1..=3).zip(&agents) {
            wait("the next agent to be found", Duration::from_secs(30), || up(host, agent).then_some(()));
        }
    }
    let (connections, requests) = sizes();
    let sent = load(&hosts, chain.front, "truth", connections, requests);
    let spans = spans_of(&agents, "truth", sent);
    let edges = edges(&spans, "truth");
    let lost = |host, agent: &Agent| hosts.inside(host, || agent.metrics().lost());
    let lost: Vec<_> = (1..).zip(&agents).map(|(host, agent)| lost(host, agent)).collect();
    say(&format!("{name}: {sent} requests, {edges:?}, {:?}", outcomes(&hosts, &agents)));
    say(&format!("lost: {lost:?}"));
    figure(name, &format!("{} of {} edges, {} wrong", edges.matched, EDGES * sent, edges.wrong));
    assert_eq!((edges.wrong, edges.dangling), (0, 0), "{name}");
    assert!(edges.matched as f64 >= 0.9999 * (EDGES * sent) as f64, "{name}: {edges:?} of {}", EDGES * sent);
    assert!(edges.whole as f64 >= 0.999 * sent as f64, "{name}: {edges:?}: chains of one transaction");
    if nat.source && nat.destination {
        laden(&hosts, &chain, &agents);
        roots(&hosts, &chain, &agents);
    }
    network_time(&spans);
    clocks(&hosts, &agents);
    for agent in agents {
        agent.stop();
    }
}

/// A request's other context also propagates without headers: the application passes none on.
fn laden(hosts: &Hosts, chain: &Chain, agents: &[Agent]) {
    let head = "GET /hop/laden-0-0 HTTP/1.1\r\nHost: a\r\n\
                traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\ntracestate: vendor=1\r\n\
                baggage: user=planted-name,tenant=t1\r\n\r\n";
    let status = hosts.inside(1, || {
        let mut connection = Connection::open(chain.front).expect("a connection");
        connection.send(head.as_bytes()).expect("sent");
        connection.reply("GET").expect("a reply").status
    });
    assert_eq!(status, 200);
    // The agents of the application and of the origin.
    for (agent, from) in [(&agents[2], "traceparent"), (&agents[3], "relay")] {
        let span = wait("the span to be reported", Duration::from_secs(20), || {
            let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
            let mut spans = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            spans.find(|span| span["side"] == "server" && span["attributes"]["url.path"] == "/hop/laden-0-0")
        });
        assert_eq!(span["parent_from"], from, "{span}");
        assert_eq!(span["trace_id"], "0af7651916cd43dd8448eb211c80319c", "{span}");
        let attributes = &span["attributes"];
        assert_eq!(attributes["tracer.parent.sampled"], false, "{span}");
        assert_eq!(
            (&attributes["baggage.tenant"], &attributes["tracer.service_class"]),
            (&"t1".into(), &"gold".into()),
            "{span}"
        );
        assert!(!span.to_string().contains("planted-name"), "that member of baggage is not configured");
    }
}

/// The proxy's request is the first of each transaction: requests on all hosts behind it count for its class.
fn roots(hosts: &Hosts, chain: &Chain, agents: &[Agent]) {
    let rows = |host: u8| {
        let rows = hosts.inside(host, || agents[usize::from(host) - 1].json("/api/v1/roots"));
        let served = |row: &Value| row["side"] == "server" && row["request_class"].to_string().contains("/hop");
        rows["roots"].as_array().expect("rows").iter().filter(|row| served(row)).cloned().collect::<Vec<Value>>()
    };
    let proxy = |row: &&Value| row["root_service"] == "nginx" && row["root_class"].to_string().contains("/hop");
    let count = |rows: &[Value]| rows.iter().filter(proxy).filter_map(|row| row["count"].as_u64()).sum::<u64>();
    // Right after its start an agent does not know that the client serves no requests, and its calls begin transactions.
    wait("requests to have a root", Duration::from_secs(30), || {
        load(hosts, chain.front, "begun", 4, 40);
        (count(&rows(2)) > 0).then_some(())
    });
    let before = [2, 3, 4].map(|host| count(&rows(host)));
    let sent = load(hosts, chain.front, "roots", 4, 400);
    for (host, before) in [2, 3, 4].into_iter().zip(before) {
        let found = wait("the root of each request on each host", Duration::from_secs(30), || {
            let rows = rows(host);
            (count(&rows) >= before + sent).then_some(rows)
        });
        let other = |row: &&Value| row["root"] == "class" && !proxy(row);
        let others: Vec<&Value> = found.iter().filter(other).collect();
        say(&format!("host {host}: {} requests of the proxy's, others {others:?}", count(&found)));
        assert!(others.is_empty(), "host {host}: {others:?}");
    }
}

/// A call knows the duration at its remote end; the rest was network time.
fn network_time(spans: &[Span]) {
    let calls = spans.iter().filter(|span| !span.server && span.path.starts_with("/hop/truth"));
    let (mut known, mut all) = (0u64, 0u64);
    for call in calls {
        all += 1;
        let Some(far) = call.far_duration_s else { continue };
        known += 1;
        assert!(far <= call.duration_s + 0.002, "the other end took longer than the call: {call:?}");
    }
    say(&format!("{known} of {all} calls know how long their other end took"));
    // All agents run on this machine, and on a full one late reports do not arrive.
    assert!(known as f64 >= 0.5 * all as f64, "{known} of {all} calls");
}

/// Every calling agent reports the clock offset of the called one; all hosts share one clock here.
fn clocks(hosts: &Hosts, agents: &[Agent]) {
    for (host, agent) in (1..).zip(agents).take(3) {
        let (offset, error) = wait("a clock to be known", Duration::from_secs(10), || {
            let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
            let peers = peers["peers"].as_array().expect("peers").clone();
            peers.iter().find_map(|peer| Some((peer["clock_offset_s"].as_f64()?, peer["clock_error_s"].as_f64()?)))
        });
        say(&format!("clock of the next host: {:+.1} µs ± {:.1} µs", offset * 1e6, error * 1e6));
        // The times of both ends are taken a moment after the events.
        assert!(offset.abs() <= error + 0.001 && error < 0.1, "{offset} ± {error} s");
    }
}

#[test]
fn edges_without_translation() {
    translated("edges_without_translation", Nat { destination: false, source: false });
}

#[test]
fn edges_through_source_translation() {
    translated("edges_through_source_translation", Nat { destination: false, source: true });
}

#[test]
fn edges_through_destination_translation() {
    translated("edges_through_destination_translation", Nat { destination: true, source: false });
}

#[test]
fn edges_through_both_translations() {
    translated("edges_through_both_translations", Nat { destination: true, source: true });
}

/// Namespaces left by a killed run do not matter to this one, but this run must leave none of its own.
#[test]
fn nothing_stays_behind() {
    let Some(_turn) = begin("nothing_stays_behind", &PROGRAMS) else { return };
    let own = format!("trt{}h", std::process::id());
    drop(Hosts::new(2, Nat { destination: true, source: true }));
    let left = Command::new("ip").args(["netns", "list"]).output().expect("ip netns list");
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&own));
}
