//! The relay's cost per request from another host: bytes between agents, CPU of the agents, and how long a request does
//! not know its caller.
//!
//! Three loads. The chain at a pace that leaves CPU idle: there the relay alone determines how long a match takes. The
//! chain at full speed: four agents, nginx, two Pythons and the client compete for this machine's CPUs, and waits add
//! up. And one edge at some thousand requests per second, between agents that do little else: the relay's cost is per
//! batch, and the rate determines how many requests share one.

use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, agents, connected, edges, load, outcomes, paced, spans_of};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::{begin, figure, say, scratch, truth, wait};

/// Most bytes between agents per request from another host: a context, its confirmation and a summary.
const BYTES: f64 = 100.0;
/// All but one request in a hundred should know their caller within this time, seconds.
const DELAY: f64 = 0.02;
/// Required share where CPU is left: other tests run at the same time.
const IN_TIME: f64 = 0.8;
/// Limit for all but one in a hundred of the chain at full speed, seconds.
const DELAY_MOST: f64 = 1.0;
/// Most CPU of the relay's threads at both ends per request, at some thousand per second; µs. The README states it.
const CPU: f64 = 30.0;

/// Totals over all agents.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// CPU of the relay's threads, and of all; nanoseconds.
    relay: f64,
    all: f64,
    /// Bytes sent to each other.
    bytes: f64,
    /// Requests that found their callers in time, and all that found them.
    in_time: f64,
    matched: f64,
}

impl Reading {
    fn of(hosts: &Hosts, agents: &mut [Agent]) -> Self {
        let mut sum = Self::default();
        for (host, agent) in (1..).zip(agents) {
            let tasks = format!("/proc/{}/task", agent.process().pid());
            for task in std::fs::read_dir(&tasks).expect("threads").flatten() {
                let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                let time: f64 = read("schedstat").split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0.0);
                sum.all += time;
                if read("comm").trim() == "tracer-relay" {
                    sum.relay += time;
                }
            }
            let (peers, metrics) = hosts.inside(host, || (agent.json("/api/v1/peers"), agent.metrics()));
            let peers = peers["peers"].as_array().expect("peers").clone();
            sum.bytes += peers.iter().filter_map(|peer| peer["sent_bytes"].as_f64()).sum::<f64>();
            let le = DELAY.to_string();
            sum.in_time += metrics.sum("tracer_relay_match_delay_seconds_bucket", &[("le", &le)]);
            sum.matched += metrics.sum("tracer_relay_match_delay_seconds_count", &[]);
        }
        sum
    }

    /// The increase since `before`, per request from another host.
    fn each(self, before: Self, requests: u64) -> Self {
        let of = |now: f64, before: f64| (now - before) / requests as f64;
        Self {
            relay: of(self.relay, before.relay) / 1e3,
            all: of(self.all, before.all) / 1e3,
            bytes: of(self.bytes, before.bytes),
            in_time: of(self.in_time, before.in_time),
            matched: of(self.matched, before.matched),
        }
    }
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
    // Names are exchanged, connections are known.
    let warm = load(&hosts, chain.front, "warm", connections, connections * 4);
    spans_of(&agents, "warm", warm);

    // The cost of idle sessions.
    let (before, begun) = (Reading::of(&hosts, &mut agents), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (after, took) = (Reading::of(&hosts, &mut agents), begun.elapsed().as_secs_f64());
    let idle = (after.relay - before.relay) / took / agents.len() as f64 / 1e6;
    figure("relay: ms of CPU of an agent's relay thread a second, idle, three agents up", &format!("{idle:.2}"));

    // The chain: with a pause before each request, and without.
    for (name, pause) in [("paced", Duration::from_millis(60)), ("full", Duration::ZERO)] {
        let before = Reading::of(&hosts, &mut agents);
        let begun = Instant::now();
        let count = if pause.is_zero() { requests } else { 1280 };
        let sent = paced(&hosts, chain.front, &format!("/hop/{name}"), (connections, count), pause);
        let rate = sent as f64 / begun.elapsed().as_secs_f64();
        let spans = spans_of(&agents, name, sent);
        let found = edges(&spans, name);
        let each = Reading::of(&hosts, &mut agents).each(before, EDGES * sent);
        say(&format!("{name}: {sent} requests, {rate:.0} a second, {found:?}, {:?}", outcomes(&hosts, &agents)));
        report(name, rate * EDGES as f64, each, idle * agents.len() as f64);
        assert_eq!((found.wrong, found.dangling), (0, 0), "{found:?}");
        assert!(each.bytes <= BYTES * 1.5, "{each:?}");
        assert!(pause.is_zero() || each.in_time / each.matched >= IN_TIME, "{name}: {each:?}");
    }
    for (host, agent) in (1..).zip(&agents) {
        let metrics = hosts.inside(host, || agent.metrics());
        let count = |le: &str| metrics.sum("tracer_relay_match_delay_seconds_bucket", &[("le", le)]);
        let (within, all) = (count(&DELAY_MOST.to_string()), count("+Inf"));
        assert!(within >= 0.99 * all, "host {host}: {within} of {all} knew their caller within {DELAY_MOST} s");
    }

    // One edge.
    let before = Reading::of(&hosts, &mut agents);
    let (connections, count) = if truth::full() { (64, 64_000) } else { (64, 12_800) };
    let begun = Instant::now();
    let sent = paced(&hosts, chain.front, "/near/one", (connections, count), Duration::from_millis(12));
    let rate = sent as f64 / begun.elapsed().as_secs_f64();
    let after = wait("requests to be reported", Duration::from_secs(30), || {
        let now = Reading::of(&hosts, &mut agents);
        (now.matched - before.matched >= 0.99 * sent as f64).then_some(now)
    });
    let each = after.each(before, sent);
    report("one edge", rate, each, idle * agents.len() as f64);
    assert!(each.relay <= CPU, "{each:?}");
    assert!(each.bytes <= BYTES, "{each:?}");
    for agent in agents {
        agent.stop();
    }
}

/// Prints and records a load's cost, at `rate` requests from another host per second; without any, the relay's threads
/// of all agents take `idle` ms per second.
fn report(name: &str, rate: f64, each: Reading, idle: f64) {
    let what = |what: &str| format!("relay, {name} ({rate:.0} a second): {what} for a request from another host");
    figure(&what("bytes"), &format!("{:.0}", each.bytes));
    figure(&what("µs of CPU of its threads at both ends"), &format!("{:.2}", each.relay));
    let more = each.relay - idle * 1e3 / rate;
    figure(&what("µs of CPU of its threads at both ends beyond that of idle sessions"), &format!("{more:.2}"));
    figure(&what("µs of CPU of both agents in all"), &format!("{:.2}", each.all));
    let share = 100.0 * each.in_time / each.matched;
    figure(&format!("relay, {name}: requests that knew their caller within 20 ms"), &format!("{share:.2} %"));
}
