//! Agents that cannot reach each other and meet at a NATS server: verifies every edge between hosts by an id in the
//! path, and again after the server was down for a while.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, as_before, connected, edges, load, outcomes, spans_of};
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::process::Process;
use tracer_tests::{begin, figure, find, say, scratch, truth, wait};

const NAMES: [&str; 4] = ["client", "proxy", "application-host", "origin-host"];
/// Port of the server, on the router.
const PORT: u16 = 18491;

fn server(hosts: &Hosts, dir: &Path) -> Process {
    let mut command = hosts.command(0, &find("nats-server").expect("nats-server"));
    command.args(["--addr", "0.0.0.0", "--port", &PORT.to_string(), "--user", "agents", "--pass", "met"]);
    let process = Process::start("nats-server", &mut command, &dir.join("nats-server.log"));
    hosts.inside(0, || {
        let listens = || TcpStream::connect(("127.0.0.1", PORT)).ok().map(drop);
        wait("nats-server to listen", Duration::from_secs(30), listens);
    });
    process
}

/// Agents configured with each other's hosts (`named`), or discovering the hosts that are called.
fn agents(hosts: &Hosts, dir: &Path, named: bool) -> Vec<Agent> {
    let key = secret(&dir.join("key"), &format!("{KEY:02x}").repeat(32)).display().to_string();
    let start = |(host, name): (u8, &str)| {
        let url = format!("nats://agents:met@{}:{PORT}", Ipv4Addr::new(10, 211, host, 1));
        let others: Vec<SocketAddr> =
            (1..=4).filter(|other| named && *other != host).map(|other| hosts.relay(other)).collect();
        let trust = ["--relay-key", &key, "--relay-nats", &url];
        hosts.speaking(host, name, dir, (&trust, &others), &["--hertz", "0"])
    };
    (1..).zip(NAMES).map(start).collect()
}

fn met(name: &str, nat: Nat) {
    let mut programs = PROGRAMS.to_vec();
    programs.push("nats-server");
    let Some(_turn) = begin(name, &programs) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, nat);
    // Blocks the agents' direct connections.
    hosts.cut(true);
    let nats = server(&hosts, dir.path());
    let chain = Chain::start(&hosts, dir.path());
    let named = nat.destination;
    let agents = agents(&hosts, dir.path(), named);
    let found = || {
        if named {
            return connected(&hosts, &agents);
        }
        for (host, agent) in (1..=3).zip(&agents) {
            wait("the next agent to be found", Duration::from_secs(30), || {
                let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
                let mut peers = peers["peers"].as_array().expect("peers").iter();
                peers.any(|peer| peer["direction"] == "out" && peer["state"] == "up").then_some(())
            });
        }
    };
    // The first calls make the agents look for each other.
    load(&hosts, chain.front, "warm", 4, 40);
    found();
    let (connections, requests) = if truth::full() { (64, 50_000) } else { (8, 800) };
    let sent = load(&hosts, chain.front, "truth", connections, requests);
    let edges = edges(&spans_of(&agents, "truth", sent), "truth");
    say(&format!("{name}: {sent} requests, {edges:?}, {:?}", outcomes(&hosts, &agents)));
    figure(name, &format!("{} of {} edges, {} wrong", edges.matched, EDGES * sent, edges.wrong));
    assert_eq!((edges.wrong, edges.dangling), (0, 0), "{name}");
    assert!(edges.matched as f64 >= 0.9999 * (EDGES * sent) as f64, "{name}: {edges:?} of {}", EDGES * sent);
    if named {
        again(&hosts, &chain, &agents, nats, dir.path());
    }
    for agent in agents {
        agent.stop();
    }
}

/// The server stops and restarts.
fn again(hosts: &Hosts, chain: &Chain, agents: &[Agent], nats: Process, dir: &Path) {
    drop(nats);
    for (host, agent) in (1..).zip(agents) {
        wait("agents to lose each other", Duration::from_secs(30), || {
            let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
            let peers = peers["peers"].as_array().expect("peers");
            let explained = peers.iter().any(|peer| peer["error"].as_str().is_some_and(|error| error.contains("NATS")));
            (explained && peers.iter().all(|peer| peer["state"] == "down")).then_some(())
        });
    }
    load(hosts, chain.front, "alone", 4, 40);
    let _nats = server(hosts, dir);
    let begun = Instant::now();
    connected(hosts, agents);
    figure("relay: recovery after a NATS server's restart", &format!("{:.2} s", begun.elapsed().as_secs_f64()));
    let spans = as_before(hosts, chain, agents, "again");
    assert_eq!(edges(&spans, "alone").wrong, 0);
}

#[test]
fn nats_without_translation() {
    met("nats_without_translation", Nat { destination: false, source: false });
}

#[test]
fn nats_through_both_translations() {
    met("nats_through_both_translations", Nat { destination: true, source: true });
}
