//! What tests of findings share: a server that knows what its handlers cost, under a load at steady rates, and an agent
//! with windows of a second.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::agent::Agent;
use crate::stat::HostCpuSource;
use crate::workload::Server;
use crate::{Numbers, http, wait};

/// Windows before the first verdict, and some more.
pub const WARM: usize = 28;

/// Requests at steady rates, whatever the server takes for them.
#[derive(Debug)]
pub struct Load {
    ended: Arc<AtomicBool>,
    /// Thousandths of the rates, by class.
    factors: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<u64>>,
}

impl Load {
    /// Asks for each target so often a second; `seed` decides about the times.
    pub fn start(server: &Server, rates: &[(&'static str, f64)], seed: u64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let factors: Vec<_> = rates.iter().map(|_| Arc::new(AtomicU64::new(1000))).collect();
        let one = |(nth, (target, rate)): (usize, &(&'static str, f64))| {
            let (ended, factor, address) = (Arc::clone(&ended), Arc::clone(&factors[nth]), server.address);
            let (target, rate, mut numbers) = (*target, *rate, Numbers::new(seed * 16 + nth as u64 + 1));
            thread::spawn(move || {
                let mut connection = http::Connection::open(address).expect("a connection");
                let (mut next, mut asked) = (Instant::now(), 0);
                while !ended.load(Ordering::Relaxed) {
                    let jitter = 0.5 + numbers.below(1000) as f64 / 1000.0;
                    next += Duration::from_secs_f64(jitter / rate / factor.load(Ordering::Relaxed) as f64 * 1000.0);
                    // After a stall the rate goes on; what was missed is not made up for.
                    next = next.max(Instant::now());
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    connection.ask("GET", target).expect("a reply");
                    asked += 1;
                }
                asked
            })
        };
        let threads = rates.iter().enumerate().map(one).collect();
        Self { ended, factors, threads }
    }

    /// Multiplies the rate of each class.
    pub fn times(&self, mut factor: impl FnMut(usize) -> f64) {
        for (nth, now) in self.factors.iter().enumerate() {
            now.store((factor(nth) * 1000.0) as u64, Ordering::Relaxed);
        }
    }

    /// Stops; returns how many requests there were.
    pub fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("the load")).sum()
    }
}

/// An agent with windows of a second and these settings of `[analysis]`, which may go on with other sections.
pub fn agent(dir: &Path, analysis: &str, more: &[&str]) -> Agent {
    let config = dir.join("tracer.toml");
    let window = if analysis.contains("[history]") { "" } else { "[history]\nwindow = \"1s\"\n" };
    std::fs::write(&config, format!("{window}[analysis]\n{analysis}\n")).expect("a file");
    let arguments = ["--config", config.to_str().expect("text"), "--hertz", "99", "--nice=-10"];
    Agent::start(dir, &[&arguments, more].concat())
}

/// Windows in which the agent saw requests of a class; none while it does not know the service (404).
pub fn windows(agent: &Agent, class: &str) -> usize {
    let target = "/api/v1/series?service=burn";
    let reply = http::get(agent.listen, target).unwrap_or_else(|error| panic!("{target}: {error}"));
    if reply.status == 404 {
        return 0;
    }
    assert_eq!(reply.status, 200, "{target}: {}", reply.text());
    let all: Value = serde_json::from_str(&reply.text()).expect("JSON");
    let series = all["series"].as_array().expect("series").clone();
    let of = series.iter().find(|one| one["request_class"] == class && one["side"] == "server");
    of.and_then(|one| one["t"].as_array()).map_or(0, Vec::len)
}

/// Waits until the agent has seen so many windows of a class.
pub fn wait_for_windows(agent: &Agent, class: &str, count: usize) {
    let done = || (windows(agent, class) >= count).then_some(());
    wait(&format!("{count} windows of {class}"), Duration::from_secs(60 + 2 * count as u64), done);
}

/// Waits for so many windows more.
pub fn wait_for_more_windows(agent: &Agent, class: &str, more: usize) {
    wait_for_windows(agent, class, windows(agent, class) + more);
}

/// What the agent found in the last hour.
pub fn findings(agent: &Agent) -> Vec<Value> {
    agent.json("/api/v1/findings?since=1h")["findings"].as_array().expect("findings").clone()
}

/// What every finding promises.
pub fn check_contract(all: &[Value]) {
    for one in all {
        let kind = one["kind"].as_str().expect("a kind");
        assert!(["anomaly", "application_change", "workload_change", "environment"].contains(&kind), "{one}");
        assert!(one["id"].is_u64() && one["service_name"].is_string() && one["request_classes"].is_array(), "{one}");
        assert!(one["since_ns"].is_u64() && (one["until_ns"].is_null() || one["until_ns"].is_u64()), "{one}");
        assert!(one["change_ratio"].as_f64().is_some_and(|ratio| ratio >= 0.0), "{one}");
        assert!(one["confidence"].as_f64().is_some_and(|sure| (0.0..=1.0).contains(&sure)), "{one}");
        assert!(one["resource"].is_string() && one["summary"].as_str().is_some_and(|words| !words.is_empty()), "{one}");
    }
}

/// Nanoseconds since the epoch.
pub fn now_ns() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as f64
}

/// Why a process that burns a CPU would make no difference here: others use the CPUs already.
pub fn busy_host() -> Option<String> {
    let before = HostCpuSource::now();
    let watched = Duration::from_secs(2);
    thread::sleep(watched);
    let host = HostCpuSource::now().since(before);
    let used = (host.busy + host.stolen) / watched.as_secs_f64();
    let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    (used > 0.4 * cores).then(|| format!("others use {used:.1} of {cores} CPUs"))
}
