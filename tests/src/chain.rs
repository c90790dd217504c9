//! A chain of hosts whose requests carry an id in their path: client (host 1) → nginx (host 2) → Python (host 3) →
//! Python (host 4), an agent on each that sees only its own host. The ids verify every edge between hosts.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::agent::Agent;
use crate::hosts::Hosts;
use crate::load::{self, Request};
use crate::process::Process;
use crate::spans::{self, Span};
use crate::workload::source;
use crate::{find, say, wait};

/// Programs the chain needs.
pub const PROGRAMS: [&str; 5] = ["ip", "nft", "nsenter", "nginx", "python3"];
/// Port of every hop.
const PORT: u16 = 18480;
/// Edges between hosts per request.
pub const EDGES: u64 = 3;

/// The chain's programs.
#[derive(Debug)]
pub struct Chain {
    _processes: Vec<Process>,
    /// The address clients call.
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

/// Sends load with ids that begin with `prefix`; returns how many requests were answered.
pub fn load(hosts: &Hosts, front: SocketAddr, prefix: &str, connections: u64, requests: u64) -> u64 {
    paced(hosts, front, &format!("/hop/{prefix}"), (connections, requests), Duration::ZERO)
}

/// The same for targets that begin with `path`; each connection pauses before each request. nginx itself answers
/// `/near/`.
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

/// Counts of edges between hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edges {
    /// The parent is the call with the same id.
    pub matched: u64,
    /// Requests without a parent.
    pub unmatched: u64,
    /// The parent is an unreported call; its agent may have ended before it could report it.
    pub dangling: u64,
    /// The parent is something else.
    pub wrong: u64,
    /// Whole chains in one transaction.
    pub whole: u64,
}

/// Checks every request from another host against its id.
pub fn edges(spans: &[Span], prefix: &str) -> Edges {
    let ours = |span: &&Span| span.path.starts_with(&format!("/hop/{prefix}-"));
    let ids: HashMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let mut edges = Edges::default();
    for span in spans.iter().filter(ours).filter(|span| span.server) {
        match span.parent.as_deref().map(|parent| ids.get(parent)) {
            None => edges.unmatched += 1,
            Some(None) => edges.dangling += 1,
            Some(Some(parent)) if parent.path == span.path && !parent.server => edges.matched += 1,
            Some(_) => edges.wrong += 1,
        }
    }
    let mut traces: HashMap<&str, Vec<&str>> = HashMap::new();
    for span in spans.iter().filter(ours) {
        traces.entry(&span.path).or_default().push(&span.trace);
    }
    edges.whole =
        traces.values().filter(|all| all.len() == 6 && all.iter().all(|trace| trace == &all[0])).count() as u64;
    edges
}

/// Starts an agent on every host, configured with the others' addresses (`named`) or not.
pub fn agents(hosts: &Hosts, dir: &Path, named: bool) -> Vec<Agent> {
    let names = ["client", "proxy", "application-host", "origin-host"];
    (1..).zip(names).map(|(host, name)| hosts.agent(host, name, dir, named, &["--hertz", "0"])).collect()
}

/// Every span of all agents, once those of `requests` requests of `prefix` are written.
pub fn spans_of(agents: &[Agent], prefix: &str, requests: u64) -> Vec<Span> {
    let mut tails: Vec<_> = agents.iter().map(|agent| spans::Tail::new(&agent.transactions)).collect();
    let wanted = format!("/hop/{prefix}-");
    let mut all = Vec::new();
    // Each host has one span per request for its side of each edge.
    for (tail, sides) in tails.iter_mut().zip([1, 2, 2, 1]) {
        let count = (requests * sides) as usize;
        let have = tail.until(count, Duration::from_secs(60), |span| span.path.starts_with(&wanted));
        if have < count {
            say(&format!("{have} of {count} spans"));
        }
        all.append(&mut tail.spans);
    }
    all
}

/// Waits until every agent is connected to all others.
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

/// Outcomes of contexts, by name, over all agents.
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

/// Repeats load while `act` runs; returns the prefixes of its ids.
pub fn during<T>(hosts: &Hosts, chain: &Chain, prefix: &str, act: impl FnOnce() -> T) -> (T, Vec<String>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let mut prefixes = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let prefix = format!("{prefix}{}", prefixes.len());
                // `load` asserts that every request was answered.
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

/// Refused sessions and contexts, over all agents.
pub fn refused(hosts: &Hosts, agents: &[Agent]) -> u64 {
    outcomes(hosts, agents).iter().find(|(name, _)| name == "refused").map_or(0, |(_, count)| *count)
}

/// Asserts that none of `prefix`'s edges is wrong; returns how many were found.
pub fn none_wrong(spans: &[Span], prefix: &str) -> u64 {
    let found = edges(spans, prefix);
    assert_eq!(found.wrong, 0, "{prefix}: {found:?}");
    found.matched
}

/// Asserts that all edges are found again after a fault.
pub fn as_before(hosts: &Hosts, chain: &Chain, agents: &[Agent], prefix: &str) -> Vec<Span> {
    let sent = load(hosts, chain.front, prefix, 8, 400);
    let spans = spans_of(agents, prefix, sent);
    let found = edges(&spans, prefix);
    say(&format!("{prefix}: {sent} requests, {found:?}"));
    assert_eq!((found.wrong, found.dangling), (0, 0), "{prefix}: {found:?}");
    assert!(found.matched as f64 >= 0.999 * (EDGES * sent) as f64, "{prefix}: {found:?} of {}", EDGES * sent);
    spans
}
