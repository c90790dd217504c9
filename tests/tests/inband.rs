//! Contexts in band: requests of a chain of hosts whose agents do not speak to each other, linked by what travels in TCP
//! options alone; the bytes on the wire; and that nothing is the worse for it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::{Agent, binary};
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, agents, connected, edges, load, units_of};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::units::Unit;
use tracer_tests::wire::{Capture, Passed};
use tracer_tests::{begin, bpf, figure, say, scratch, truth, wait};

const PLAIN: Nat = Nat { destination: false, source: false };
const OPTION: &str = "--inband-tcp-option";
/// Loss of packets that makes both ends use all the room there is for options.
const LOSS: u8 = 3;

/// Connections and requests of a load.
fn sizes() -> (u64, u64) {
    if truth::full() { (64, 50_000) } else { (8, 1600) }
}

/// An agent that speaks to no other.
fn alone(hosts: &Hosts, host: u8, name: &str, dir: &Path) -> Agent {
    let file = dir.join(format!("{name}.ndjson"));
    let arguments = ["--own-netns", "--hertz", "0", OPTION];
    let agent = Agent::launch_by(hosts.command(host, &binary()), name, dir, &file, &arguments);
    hosts.inside(host, || agent.ready())
}

fn everywhere(hosts: &Hosts, dir: &Path) -> Vec<Agent> {
    let names = ["client", "proxy", "application-host", "origin-host"];
    (1..).zip(names).map(|(host, name)| alone(hosts, host, name, dir)).collect()
}

/// What became of contexts, over all agents.
fn outcome(hosts: &Hosts, agents: &[Agent], name: &str) -> u64 {
    let of = |host, agent: &Agent| hosts.inside(host, || agent.metrics().sum("tracer_inband_total", &[("outcome", name)]));
    (1..).zip(agents).map(|(host, agent)| of(host, agent) as u64).sum()
}

fn said(hosts: &Hosts, agents: &[Agent]) -> String {
    let names = ["sent", "received", "matched", "header", "unmatched", "contradicted", "renamed", "refused", "dropped"];
    let all: Vec<_> = names.iter().map(|name| format!("{name} {}", outcome(hosts, agents, name))).collect();
    let lost: Vec<_> = (1..).zip(agents).map(|(h, agent)| hosts.inside(h, || agent.metrics().lost())).collect();
    format!("{}; lost {lost:?}", all.join(", "))
}

/// Compares what passed with the calls whose requests it was.
fn compare(passed: &Passed, units: &[Unit], sent: u64) {
    let calls: HashMap<(&str, &str), &Unit> =
        units.iter().filter(|unit| !unit.server).map(|unit| ((unit.id.as_str(), unit.path.as_str()), unit)).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (mut right, mut same, mut seen) = (0u64, 0u64, HashSet::new());
    for marked in &passed.marked {
        let text = String::from_utf8_lossy(&marked.payload);
        let path = text.split(' ').nth(1).unwrap_or_default();
        assert!(text.starts_with("GET /hop/"), "an option with a segment that begins no request: {marked:?}");
        assert_eq!(marked.option.get(..2), Some(&[25, 26][..]), "{marked:?}");
        let (trace, span) = marked.option.get(2..).unwrap_or_default().split_at(16);
        if !path.starts_with("/hop/truth-") {
            continue;
        }
        assert!(seen.insert(span.to_vec()), "one context, two requests: {marked:?}");
        let id = hex(span);
        let call = calls.get(&(id.as_str(), path));
        right += u64::from(call.is_some());
        same += u64::from(call.is_some_and(|call| call.trace == hex(trace)));
    }
    figure("inband_wire", &format!("{right} of {sent} requests carry their call's id, {same} its transaction's"));
    assert_eq!(right, seen.len() as u64, "contexts of no call");
    assert!(right as f64 >= 0.999 * sent as f64, "{right} of {sent} requests");
}

#[test]
fn options_alone_link_hosts() {
    let Some(_turn) = begin("options_alone_link_hosts", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, PLAIN);
    let agents = everywhere(&hosts, dir.path());
    // Connections that were open before carry nothing: those of the chain come after.
    let chain = Chain::start(&hosts, dir.path());
    let capture = Capture::start(&hosts, 4);
    let (connections, requests) = sizes();
    let sent = load(&hosts, chain.front, "truth", connections, requests);
    let units = units_of(&agents, "truth", sent);
    let passed = capture.stop();
    let edges = edges(&units, "truth");
    say(&format!("{sent} requests, {edges:?}, {}", said(&hosts, &agents)));
    let detail = format!("{} of {} edges, {} wrong, {} whole", edges.matched, EDGES * sent, edges.wrong, edges.whole);
    figure("inband_edges", &detail);
    assert_eq!((edges.wrong, edges.dangling), (0, 0), "{edges:?}");
    assert!(edges.matched as f64 >= 0.999 * (EDGES * sent) as f64, "{edges:?} of {}", EDGES * sent);
    compare(&passed, &units, sent);
    for agent in agents {
        agent.stop();
    }
}
