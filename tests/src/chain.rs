//! A chain of hosts whose requests carry an id in their path: client (host 1) → nginx (host 2) → Python (host 3) → Python
//! (host 4), an agent on each that sees its own host only. Every edge between hosts is compared with the ids.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::agent::Agent;
use crate::hosts::Hosts;
use crate::load::{self, Request};
use crate::process::Process;
use crate::units::{self, Unit};
use crate::workload::source;
use crate::{find, say, wait};

/// What it takes.
pub const PROGRAMS: [&str; 5] = ["ip", "nft", "nsenter", "nginx", "python3"];
/// Port of every hop.
const PORT: u16 = 18480;
/// Edges between hosts that a request has.
pub const EDGES: u64 = 3;

/// The chain's programs.
#[derive(Debug)]
pub struct Chain {
    _processes: Vec<Process>,
    /// Where the client calls.
    pub front: SocketAddr,
}

impl Chain {
    /// Starts them; `dir` is for their files.
    pub fn start(hosts: &Hosts, dir: &Path) -> Self {
        let python = find("python3").unwrap_or_else(|| panic!("no python3"));
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
    location /near/ {{ return 200 \"here\"; }}
    location / {{ proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = dir.join("nginx.conf");
        std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut command = hosts.command(2, &find("nginx").unwrap_or_else(|| panic!("no nginx")));
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
pub fn load(hosts: &Hosts, front: SocketAddr, prefix: &str, connections: u64, requests: u64) -> u64 {
    paced(hosts, front, &format!("/hop/{prefix}"), (connections, requests), Duration::ZERO)
}

/// The same for targets that begin with `path`; each connection pauses before each request. nginx itself answers `/near/`.
pub fn paced(
    hosts: &Hosts,
    front: SocketAddr,
    path: &str,
    (connections, requests): (u64, u64),
    pause: Duration,
) -> u64 {
    let request = |c, r| Request { pause, ..Request::get(format!("{path}-{c}-{r}")) };
    let plan = |c| (0..requests / connections).map(move |r| request(c, r)).collect();
    let loaded = hosts.inside(1, || load::run(front, (0..connections).map(plan).collect()));
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    loaded.answers.len() as u64
}

/// Edges between hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edges {
    /// The parent is the call with the same id.
    pub matched: u64,
    /// Requests without a parent.
    pub unmatched: u64,
    /// The parent is a call nobody reported; its agent may have ended before it could.
    pub dangling: u64,
    /// The parent is something else.
    pub wrong: u64,
    /// Whole chains of one transaction.
    pub whole: u64,
}

/// Compares every request that came from another host with its id.
pub fn edges(units: &[Unit], prefix: &str) -> Edges {
    let ours = |unit: &&Unit| unit.path.starts_with(&format!("/hop/{prefix}-"));
    let ids: HashMap<&str, &Unit> = units.iter().map(|unit| (unit.id.as_str(), unit)).collect();
    let mut edges = Edges::default();
    for unit in units.iter().filter(ours).filter(|unit| unit.server) {
        match unit.parent.as_deref().map(|parent| ids.get(parent)) {
            None => edges.unmatched += 1,
            Some(None) => edges.dangling += 1,
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

/// Starts an agent on every host, told where the others are (`named`) or not.
pub fn agents(hosts: &Hosts, dir: &Path, named: bool) -> Vec<Agent> {
    let names = ["client", "proxy", "application-host", "origin-host"];
    (1..).zip(names).map(|(host, name)| hosts.agent(host, name, dir, named, &["--hertz", "0"])).collect()
}

/// Every unit all agents wrote, once those of `requests` requests of `prefix` are there.
pub fn units_of(agents: &[Agent], prefix: &str, requests: u64) -> Vec<Unit> {
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

/// Waits until every agent speaks with all others.
pub fn connected(hosts: &Hosts, agents: &[Agent]) {
    for (host, agent) in (1..).zip(agents) {
        wait("agents to find each other", Duration::from_secs(30), || {
            let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
            let peers = peers["peers"].as_array().unwrap_or_else(|| panic!("no peers: {peers}"));
            let up = peers.iter().filter(|peer| peer["direction"] == "out" && peer["state"] == "up").count();
            (up == agents.len() - 1).then_some(())
        });
    }
}

/// What became of contexts, by name, over all agents.
pub fn outcomes(hosts: &Hosts, agents: &[Agent]) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (host, agent) in (1..).zip(agents) {
        let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
        for (name, count) in peers["outcomes"].as_object().unwrap_or_else(|| panic!("no outcomes: {peers}")) {
            let count = count.as_u64().unwrap_or_default();
            match sums.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += count,
                None => sums.push((name.clone(), count)),
            }
        }
    }
    sums
}

/// Load under way while something happens, again and again; the prefixes of its ids.
pub fn during<T>(hosts: &Hosts, chain: &Chain, prefix: &str, act: impl FnOnce() -> T) -> (T, Vec<String>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut prefixes = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let prefix = format!("{prefix}{}", prefixes.len());
                // It asserts that every request was answered.
                load(hosts, chain.front, &prefix, 4, 80);
                prefixes.push(prefix);
                std::thread::sleep(Duration::from_millis(200));
            }
            prefixes
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        over.store(true, Ordering::Relaxed);
        let prefixes = loading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), prefixes)
    })
}

/// Sessions and contexts that were refused, over all agents.
pub fn refused(hosts: &Hosts, agents: &[Agent]) -> u64 {
    outcomes(hosts, agents).iter().find(|(name, _)| name == "refused").map_or(0, |(_, count)| *count)
}

/// None of `prefix`'s edges may be wrong; how many were found.
pub fn none_wrong(units: &[Unit], prefix: &str) -> u64 {
    let found = edges(units, prefix);
    assert_eq!(found.wrong, 0, "{prefix}: {found:?}");
    found.matched
}

/// After whatever happened all edges are found again.
pub fn as_before(hosts: &Hosts, chain: &Chain, agents: &[Agent], prefix: &str) -> Vec<Unit> {
    let sent = load(hosts, chain.front, prefix, 8, 400);
    let units = units_of(agents, prefix, sent);
    let found = edges(&units, prefix);
    say(&format!("{prefix}: {sent} requests, {found:?}"));
    assert_eq!((found.wrong, found.dangling), (0, 0), "{prefix}: {found:?}");
    assert!(found.matched as f64 >= 0.999 * (EDGES * sent) as f64, "{prefix}: {found:?} of {}", EDGES * sent);
    units
}
