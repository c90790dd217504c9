//! Transactions across hosts: every edge between them against an id in the path, whatever translates the addresses in
//! between, and whatever happens to the agents' own connections.
//!
//! client (host 1) → nginx (host 2) → Python (host 3) → Python (host 4): each has an agent that sees its own host only.

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::hosts::{Hosts, Nat, RELAY};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::units::{self, Unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch, truth, wait};

const PROGRAMS: [&str; 5] = ["ip", "nft", "nsenter", "nginx", "python3"];
/// Port of every hop.
const PORT: u16 = 18480;

/// Connections and requests of a load.
fn sizes() -> (u64, u64) {
    if truth::full() { (64, 50_000) } else { (8, 800) }
}

/// The chain's programs.
struct Chain {
    _processes: Vec<Process>,
    front: SocketAddr,
}

impl Chain {
    fn start(hosts: &Hosts, dir: &Path) -> Self {
        let python = find("python3").expect("python3");
        let address = |host| SocketAddr::from((hosts.address(host), PORT));
        let hop = |host: u8, name: &str, upstream: Option<SocketAddr>| {
            let mut command = hosts.command(host, &python);
            command.arg("-u").arg(source("hop.py")).env("PORT", PORT.to_string()).env("OTEL_SERVICE_NAME", name);
            if let Some(upstream) = upstream {
                command.env("UPSTREAM", upstream.to_string());
            }
            let mut process = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
            process.line("PORT", Duration::from_secs(30));
            process
        };
        let origin = hop(4, "origin", None);
        let application = hop(3, "application", Some(address(4)));
        let (base, upstream) = (dir.display(), address(3));
        let configuration = format!(
            "user root; worker_processes 2; pid {base}/nginx.pid; error_log {base}/error.log warn; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000;
  client_body_temp_path {base}/a; proxy_temp_path {base}/b; fastcgi_temp_path {base}/c;
  uwsgi_temp_path {base}/d; scgi_temp_path {base}/e;
  upstream next {{ server {upstream}; keepalive 64; keepalive_requests 1000000; }}
  server {{ listen {PORT} backlog=1024;
    location / {{ proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = dir.join("nginx.conf");
        std::fs::write(&file, configuration).expect("nginx.conf");
        let mut command = hosts.command(2, &find("nginx").expect("nginx"));
        command.arg("-p").arg(dir).arg("-c").arg(&file).arg("-e").arg(dir.join("error.log"));
        let nginx = Process::start("nginx", &mut command, &dir.join("nginx.log"));
        let front = address(2);
        hosts.inside(1, || {
            wait("nginx to listen", Duration::from_secs(30), || TcpStream::connect(front).ok().map(drop));
        });
        Self { _processes: vec![origin, application, nginx], front }
    }
}

/// Load whose ids begin with `prefix`; how many requests were answered.
fn load(hosts: &Hosts, front: SocketAddr, prefix: &str, connections: u64, requests: u64) -> u64 {
    let plan = |c| (0..requests / connections).map(move |r| Request::get(format!("/hop/{prefix}-{c}-{r}"))).collect();
    let loaded = hosts.inside(1, || load::run(front, (0..connections).map(plan).collect()));
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    loaded.answers.len() as u64
}

/// Edges between hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Edges {
    matched: u64,
    unmatched: u64,
    wrong: u64,
    /// Whole chains of one transaction.
    whole: u64,
}

/// Compares every request that came from another host with its id.
fn edges(units: &[Unit], prefix: &str) -> Edges {
    let ours = |unit: &&Unit| unit.path.starts_with(&format!("/hop/{prefix}-"));
    let ids: HashMap<&str, &Unit> = units.iter().map(|unit| (unit.id.as_str(), unit)).collect();
    let mut edges = Edges::default();
    for unit in units.iter().filter(ours).filter(|unit| unit.server) {
        match unit.parent.as_deref().map(|parent| ids.get(parent)) {
            None => edges.unmatched += 1,
            Some(Some(parent)) if parent.path == unit.path && !parent.server => edges.matched += 1,
            Some(_) => edges.wrong += 1,
        }
    }
    let mut traces: HashMap<&str, Vec<&str>> = HashMap::new();
    for unit in units.iter().filter(ours) {
        traces.entry(&unit.path).or_default().push(&unit.trace);
    }
    edges.whole =
        traces.values().filter(|all| all.len() == 6 && all.iter().all(|trace| trace == &all[0])).count() as u64;
    edges
}

fn agents(hosts: &Hosts, dir: &Path, named: bool) -> Vec<Agent> {
    let names = ["client", "proxy", "application-host", "origin-host"];
    (1..).zip(names).map(|(host, name)| hosts.agent(host, name, dir, named, &["--hertz", "0"])).collect()
}

/// Every unit all agents wrote, once those of `requests` requests of `prefix` are there.
fn units_of(agents: &[Agent], prefix: &str, requests: u64) -> Vec<Unit> {
    let mut tails: Vec<_> = agents.iter().map(|agent| units::Tail::new(&agent.transactions)).collect();
    let wanted = format!("/hop/{prefix}-");
    let mut all = Vec::new();
    // Each host has one unit of a request for its side of each edge.
    for (tail, sides) in tails.iter_mut().zip([1, 2, 2, 1]) {
        let count = (requests * sides) as usize;
        let have = tail.until(count, Duration::from_secs(60), |unit| unit.path.starts_with(&wanted));
        if have < count {
            say(&format!("{have} of {count} units"));
        }
        all.append(&mut tail.units);
    }
    all
}

fn connected(hosts: &Hosts, agents: &[Agent]) {
    for (host, agent) in (1..).zip(agents) {
        wait("agents to find each other", Duration::from_secs(30), || {
            let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
            let peers = peers["peers"].as_array().expect("peers").clone();
            let out = |state: &str| peers.iter().filter(|p| p["direction"] == "out" && p["state"] == state).count();
            (out("up") == 3).then_some(())
        });
    }
}

fn outcomes(hosts: &Hosts, agents: &[Agent]) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (host, agent) in (1..).zip(agents) {
        let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
        for (name, count) in peers["outcomes"].as_object().expect("outcomes") {
            let count = count.as_u64().unwrap_or_default();
            match sums.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name.clone(), count)),
            }
        }
    }
    sums
}

fn translated(name: &str, nat: Nat) {
    let Some(_turn) = begin(name, &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, nat);
    let chain = Chain::start(&hosts, dir.path());
    // Behind another address nobody can be found: they are named then.
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
    let units = units_of(&agents, "truth", sent);
    let edges = edges(&units, "truth");
    let lost = |host, agent: &Agent| hosts.inside(host, || agent.metrics().lost());
    let lost: Vec<_> = (1..).zip(&agents).map(|(host, agent)| lost(host, agent)).collect();
    say(&format!("{name}: {sent} requests, {edges:?}, {:?}", outcomes(&hosts, &agents)));
    say(&format!("lost: {lost:?}"));
    figure(name, &format!("{} of {} edges, {} wrong", edges.matched, 3 * sent, edges.wrong));
    assert_eq!(edges.wrong, 0, "{name}");
    assert!(edges.matched as f64 >= 0.9999 * (3 * sent) as f64, "{name}: {edges:?} of {}", 3 * sent);
    assert!(edges.whole as f64 >= 0.999 * sent as f64, "{name}: {edges:?}: chains of one transaction");
    network_time(&units);
    for agent in agents {
        agent.stop();
    }
}

/// A call knows how long its other end took, and what is left was on the way.
fn network_time(units: &[Unit]) {
    let calls = units.iter().filter(|unit| !unit.server && unit.path.starts_with("/hop/truth"));
    let (mut told, mut all) = (0u64, 0u64);
    for call in calls {
        all += 1;
        let Some(far) = call.far_duration_s else { continue };
        told += 1;
        assert!(far <= call.duration_s + 0.002, "the other end took longer than the call: {call:?}");
    }
    say(&format!("{told} of {all} calls were told how long their other end took"));
    // The agents are all on this machine, and what is late on a full one does not come.
    assert!(told as f64 >= 0.5 * all as f64, "{told} of {all} calls");
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

/// Agents are cut off from each other for 10 s, one is started anew, somebody sends garbage: no edge is wrong, and within
/// two seconds of the end of it everything is as before.
#[test]
fn recovery() {
    let Some(_turn) = begin("recovery", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, Nat { destination: true, source: true });
    let chain = Chain::start(&hosts, dir.path());
    let mut agents = agents(&hosts, dir.path(), true);
    connected(&hosts, &agents);
    load(&hosts, chain.front, "before", 8, 400);

    hosts.cut(true);
    let end = Instant::now() + Duration::from_secs(10);
    let mut rounds = 0;
    let mut during = 0;
    while Instant::now() < end {
        during += load(&hosts, chain.front, &format!("cut{rounds}"), 4, 40);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(500));
    }
    hosts.cut(false);
    let healed = Instant::now();
    connected(&hosts, &agents);
    let took = healed.elapsed();
    say(&format!("{during} requests while cut off; all sessions up again after {took:?}"));
    assert!(took < Duration::from_secs(2), "{took:?}");
    let after = load(&hosts, chain.front, "healed", 8, 800);

    // One that is started anew: nothing of what it knew is left.
    let restarted = agents.remove(2);
    let first = restarted.transactions.clone();
    restarted.stop();
    let kept = dir.path().join("application-host-1.ndjson");
    std::fs::rename(&first, &kept).expect("renamed");
    load(&hosts, chain.front, "without", 4, 40);
    agents.insert(2, hosts.agent(3, "application-host", dir.path(), true, &["--hertz", "0"]));
    let begun = Instant::now();
    connected(&hosts, &agents);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "found again after {took:?}");

    // Garbage at an agent's port, while requests go on.
    let refused = |agents: &[Agent]| outcomes(&hosts, agents).iter().find(|(name, _)| name == "refused").map(|o| o.1);
    let before = refused(&agents).expect("refused");
    hosts.inside(0, || {
        // The router's address, so that no agent's own is kept out.
        let mut stream = TcpStream::connect((hosts.own(3), RELAY)).expect("the agent's port");
        let _ = stream.write_all(&[0x5a; 4096]);
    });
    wait("garbage to be refused", Duration::from_secs(10), || (refused(&agents)? > before).then_some(()));
    let last = load(&hosts, chain.front, "last", 8, 800);
    let mut units = units_of(&agents, "last", last);
    units.extend(units::read(&kept));
    for (prefix, sent) in [("healed", after), ("last", last)] {
        let edges = edges(&units, prefix);
        say(&format!("{prefix}: {sent} requests, {edges:?}"));
        assert_eq!(edges.wrong, 0, "{prefix}");
        assert!(edges.matched as f64 >= 0.999 * (3 * sent) as f64, "{prefix}: {edges:?} of {}", 3 * sent);
    }
    for prefix in ["before", "without"].into_iter().map(str::to_owned).chain((0..rounds).map(|n| format!("cut{n}"))) {
        let edges = edges(&units, &prefix);
        assert_eq!(edges.wrong, 0, "{prefix}: {edges:?}");
    }
    for agent in agents {
        agent.stop();
    }
}

/// The namespaces a killed run left behind are no concern of this one's, but whoever looks should find none of ours.
#[test]
fn nothing_stays_behind() {
    let Some(_turn) = begin("nothing_stays_behind", &PROGRAMS) else { return };
    let own = format!("trt{}h", std::process::id());
    drop(Hosts::new(2, Nat { destination: true, source: true }));
    let left = Command::new("ip").args(["netns", "list"]).output().expect("ip netns list");
    assert!(!String::from_utf8_lossy(&left.stdout).contains(&own));
}
