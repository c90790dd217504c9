//! What the relay costs for each request from another host: bytes between agents, CPU of the agents, and how long a request
//! does not know its caller.

use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, agents, connected, edges, load, outcomes, units_of};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::{begin, figure, say, scratch, truth};

/// Most bytes between agents for a request from another host, whatever the pace: a context, what settles it and a summary,
/// each in a frame of its own. Under load several share a frame; the figure says how many.
const BYTES: f64 = 150.0;
/// Within this time a request should know its caller, seconds. Told, not demanded: it is the machine's as much as the relay's.
const DELAY: f64 = 0.02;
/// What is demanded of all but one in a hundred, seconds: far more than the waits of the relay itself.
const DELAY_MOST: f64 = 1.0;

/// CPU nanoseconds of an agent's threads: those of the relay, and all.
fn cpu(agent: &mut Agent) -> (f64, f64) {
    let tasks = format!("/proc/{}/task", agent.process().pid());
    let (mut relay, mut all) = (0.0, 0.0);
    for task in std::fs::read_dir(&tasks).expect("threads").flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let time: f64 = read("schedstat").split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default();
        all += time;
        if read("comm").trim() == "tracer-relay" {
            relay += time;
        }
    }
    (relay, all)
}

/// Bytes all agents sent to each other so far.
fn bytes(hosts: &Hosts, agents: &[Agent]) -> f64 {
    let of = |(host, agent): (u8, &Agent)| {
        let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
        let peers = peers["peers"].as_array().expect("peers").clone();
        peers.iter().filter_map(|peer| peer["sent_bytes"].as_f64()).sum::<f64>()
    };
    (1..).zip(agents).map(of).sum()
}

/// Requests whose caller was known within `limit` seconds, and all that know it.
fn delays(hosts: &Hosts, agents: &[Agent], limit: f64) -> (f64, f64) {
    let mut sums = (0.0, 0.0);
    for (host, agent) in (1..).zip(agents) {
        let metrics = hosts.inside(host, || agent.metrics());
        let limit = limit.to_string();
        sums.0 += metrics.sum("tracer_relay_match_delay_seconds_bucket", &[("le", &limit)]);
        sums.1 += metrics.sum("tracer_relay_match_delay_seconds_count", &[]);
    }
    sums
}

#[test]
fn cost() {
    let Some(_turn) = begin("cost", &PROGRAMS) else { return };
    let (connections, requests) = if truth::full() { (64, 20_000) } else { (32, 3200) };
    let dir = scratch();
    let hosts = Hosts::new(4, Nat { destination: true, source: true });
    let chain = Chain::start(&hosts, dir.path());
    let mut agents = agents(&hosts, dir.path(), true);
    connected(&hosts, &agents);
    // Names are told, connections are known.
    let warm = load(&hosts, chain.front, "warm", connections, connections * 4);
    units_of(&agents, "warm", warm);

    let before: Vec<(f64, f64)> = agents.iter_mut().map(cpu).collect();
    let (bytes_before, delays_before) = (bytes(&hosts, &agents), delays(&hosts, &agents, DELAY));
    let begun = std::time::Instant::now();
    let sent = load(&hosts, chain.front, "cost", connections, requests);
    let took = begun.elapsed().as_secs_f64();
    let units = units_of(&agents, "cost", sent);
    let after: Vec<(f64, f64)> = agents.iter_mut().map(cpu).collect();
    let found = edges(&units, "cost");
    let crossed = (EDGES * sent) as f64;
    let sum =
        |of: fn(&(f64, f64)) -> f64| (after.iter().map(of).sum::<f64>() - before.iter().map(of).sum::<f64>()) / crossed;
    let each = (bytes(&hosts, &agents) - bytes_before) / crossed;
    let (in_time, all) = delays(&hosts, &agents, DELAY);
    let (in_time, all) = (in_time - delays_before.0, all - delays_before.1);
    for limit in [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25] {
        let (within, all) = delays(&hosts, &agents, limit);
        say(&format!("{within} of {all} within {limit} s"));
    }
    say(&format!("{sent} requests, {found:?}, {:?}", outcomes(&hosts, &agents)));
    say(&format!("{:.0} requests a second", sent as f64 / took));
    figure("relay: bytes for a request from another host", &format!("{each:.0}"));
    figure("relay: CPU of its threads for a request from another host, µs", &format!("{:.2}", sum(|cpu| cpu.0) / 1e3));
    figure("relay: CPU of both agents in all for such a request, µs", &format!("{:.2}", sum(|cpu| cpu.1) / 1e3));
    figure("relay: requests that knew their caller within 20 ms", &format!("{:.2} %", 100.0 * in_time / all));
    assert_eq!((found.wrong, found.dangling), (0, 0), "{found:?}");
    assert!(each <= BYTES, "{each} bytes");
    let (within, all) = delays(&hosts, &agents, DELAY_MOST);
    assert!(within >= 0.99 * all, "{within} of {all} requests knew their caller within {DELAY_MOST} s");
    for agent in agents {
        agent.stop();
    }
}
