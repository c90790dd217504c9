//! Faults: agents killed at any moment, restarted again and again, two at once. Traced programs do not notice, and
//! nothing stays attached.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::faults::{self, Figures};
use tracer_tests::load::Request;
use tracer_tests::spans::Tail;
use tracer_tests::vitals::{self, Vitals};
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, begin, bpf, load, say, scratch, spans};

/// Sends requests to a server until stopped.
struct Load {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(u64, u64)>,
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let (mut good, mut bad) = (0, 0);
            while !end.load(Ordering::Relaxed) {
                // Some two thousand per second: every agent writes each of them to its file.
                let plans = faults::plans("load", 8, 50).into_iter().map(|plan| {
                    plan.into_iter().map(|one| Request { pause: Duration::from_millis(4), ..one }).collect()
                });
                let loaded = load::run(address, plans.collect());
                bad += loaded.broken().len() as u64;
                good += (loaded.answers.len() - loaded.broken().len()) as u64;
            }
            (good, bad)
        });
        Self { over, thread }
    }

    fn end(self) -> (u64, u64) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("load")
    }
}

#[test]
fn an_agent_killed_at_any_moment_leaves_nothing() {
    let Some(_turn) = begin("faults_killed", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let load = Load::start(server.address);
    // The start-up time on this machine determines when to kill.
    let begun = Instant::now();
    let agent = Agent::start_named("first", dir.path(), &[]);
    let ready = begun.elapsed();
    agent.stop();

    let rounds = faults::size(25, 200);
    let mut numbers = Numbers::new(u64::from(std::process::id()));
    let mut all = bpf::Objects::new();
    let (mut starting, mut written) = (0, 0);
    for round in 0..rounds {
        let mut agent = Agent::launch(&format!("killed-{round}"), dir.path(), &[]);
        // From the first instruction to well after readiness.
        std::thread::sleep(Duration::from_micros(numbers.below(ready.as_micros() as u64 * 3)));
        let pid = agent.process().pid();
        // Stopped, so that its objects do not change between the inspection and the kill.
        agent.process().signal(libc::SIGSTOP);
        all.extend(bpf::held(pid));
        starting += usize::from(!agent.output().contains("console, metrics and API"));
        let file = agent.transactions.clone();
        let ended = agent.end(libc::SIGKILL);
        assert!(!ended.output.contains("panicked"), "{}", ended.output);
        if file.exists() {
            // The kill may cut the last line, but no other.
            written += Tail::new(&file).read().len();
        }
    }
    let kinds: BTreeSet<_> = all.iter().map(|(kind, _)| *kind).collect();
    assert!(kinds.len() == 3 && starting > 0 && starting < rounds, "{kinds:?}, {starting} of {rounds} while starting");
    let left = bpf::left(&all);
    let (good, bad) = load.end();
    say(&format!(
        "killed: {rounds} agents, {starting} of them while they started ({ready:?}), {} programs, maps and links seen, \
         {left} left; {written} spans in their files",
        all.len()
    ));
    let mut figures =
        Figures::of("killed (SIGKILL) at any moment", format!("{rounds} agents, {starting} while starting"));
    figures.traced(good + bad, bad).attached(left).finish();
}

#[test]
fn agents_are_restarted_under_load() {
    let Some(_turn) = begin("faults_restarts", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let load = Load::start(server.address);
    let rounds = faults::size(12, 100);
    let mut all = bpf::Objects::new();
    let mut judged = faults::Judged::default();
    let (mut lost, mut sent, mut failed) = (0.0, 0, 0);
    let mut found = Vec::new();
    for round in 0..rounds {
        let mut agent = Agent::start_named(&format!("agent-{round}"), dir.path(), &[]);
        all.extend(bpf::held(agent.process().pid()));
        // Each agent sees all requests sent while it runs.
        let plans = faults::plans(&format!("round{round}"), 2, 25);
        let loaded = load::run(server.address, plans.clone());
        (sent, failed) = (sent + loaded.answers.len() as u64, failed + loaded.broken().len() as u64);
        faults::reported(&agent, &plans);
        let now = faults::operations_lost(&agent.metrics());
        found.push(Vitals::of(agent.process().pid()));
        let file = agent.transactions.clone();
        drop(agent.stop());
        let one = faults::judge(&plans, &spans::read(&file));
        one.covered(now);
        lost += now;
        judged.sent += one.sent;
        judged.server.right += one.server.right;
        judged.client.right += one.client.right;
        judged.server.missing += one.server.missing + one.server.unfinished;
        judged.client.missing += one.client.missing + one.client.unfinished;
        std::fs::remove_file(&file).expect("its file");
    }
    let left = bpf::left(&all);
    let (good, bad) = load.end();
    let (first, last) = (found[0], found[found.len() - 1]);
    say(&format!(
        "restarts: {rounds} agents in turn, {} objects, {left} left; {good} good replies, {bad} bad",
        all.len()
    ));
    let mut figures = Figures::of("restarted under load", format!("{rounds} times"));
    figures.traced(sent + good + bad, failed + bad).judged(&judged, lost).attached(left).growth(first, last).finish();
    // Later agents are like earlier ones: leftovers would show in the kernel, or here. An agent's memory at inspection
    // depends on which symbol tables it is just reading.
    vitals::flat(&found, 16e6, 4);
}

#[test]
fn two_agents_at_once_see_the_same() {
    let Some(_turn) = begin("faults_two", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let port = server.address.port().to_string();
    let start = |name: &str| Agent::start_named(name, dir.path(), &["--port", &port]);
    let mut agents = [start("one"), start("two")];
    let mut held = bpf::Objects::new();
    for agent in &mut agents {
        let own = bpf::held(agent.process().pid());
        assert!(held.is_disjoint(&own), "they share something");
        held.extend(own);
    }
    let plans = faults::plans("both", 8, faults::size(300, 5000));
    let loaded = load::run(server.address, plans.clone());
    let wanted = 2 * plans.iter().map(Vec::len).sum::<usize>();
    let mut seen = Vec::new();
    for mut agent in agents {
        let mut tail = Tail::new(&agent.transactions);
        tail.until(wanted, Duration::from_secs(20), |span| span.path.starts_with("/both/"));
        let lost = faults::operations_lost(&agent.metrics());
        let vitals = Vitals::of(agent.process().pid());
        let file = agent.transactions.clone();
        agent.stop();
        let judged = faults::judge(&plans, &spans::read(&file));
        judged.covered(lost);
        seen.push((judged, lost, vitals));
    }
    let left = bpf::left(&held);
    for (judged, lost, _) in &seen {
        say(&format!("two agents: {} of {wanted} ends right, {lost} operations counted as lost", judged.right()));
    }
    let mut figures = Figures::of("two agents at once", "each sees everything");
    let (judged, lost, _) = seen.pop().expect("two");
    figures.loaded(&loaded).judged(&judged, lost).attached(left).finish();
}
