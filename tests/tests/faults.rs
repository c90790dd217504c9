//! What goes wrong around the agent: requests are reported or counted as lost, none wrongly, and nobody traced notices.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::units::{self, Tail, Unit};
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, begin, bpf, http, say, scale, scratch};

/// Connections that ask as fast as they can, each for paths of its own; lengths differ, and with them the replies'.
fn plans(name: &str, connections: u64, each: u64) -> Vec<Vec<Request>> {
    (0..connections)
        .map(|c| {
            let mut numbers = Numbers::new(c + 1);
            let mut one = |r| {
                let filler = "x".repeat(numbers.below(200) as usize);
                Request { pause: Duration::from_micros(200), ..Request::get(format!("/{name}/c{c}r{r}/{filler}")) }
            };
            (0..each).map(&mut one).collect()
        })
        .collect()
}

/// How units of one end compare to the requests that were sent.
#[derive(Debug, Default)]
struct Kept {
    right: usize,
    unfinished: usize,
    missing: usize,
    wrong: Vec<String>,
}

fn compare(plans: &[Vec<Request>], units: &[&Unit]) -> Kept {
    let mut by_path: HashMap<&str, Vec<&Unit>> = HashMap::new();
    for unit in units {
        by_path.entry(unit.path.as_str()).or_default().push(unit);
    }
    let mut kept = Kept::default();
    for request in plans.iter().flatten() {
        match by_path.get(request.target.as_str()).map(Vec::as_slice) {
            None => kept.missing += 1,
            // The origin answers with the path.
            Some([unit]) if unit.status == Some(200) && unit.outcome == "complete" => {
                if unit.body == request.target.len() as u64 {
                    kept.right += 1;
                } else {
                    kept.wrong.push(format!("{unit:?}"));
                }
            }
            Some([unit]) if unit.status.is_none() || unit.outcome != "complete" => kept.unfinished += 1,
            Some(several) => kept.wrong.push(format!("{several:?}")),
        }
    }
    kept
}

#[test]
fn an_agent_that_stands_still_loses_events_and_says_so() {
    let Some(_turn) = begin("faults_stopped", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let mut agent = Agent::start(dir.path(), &[]);
    let plans = plans("stopped", 16, (8000.0 * scale()) as u64);
    let (address, sent) = (server.address, plans.clone());
    let load = std::thread::spawn(move || load::run(address, sent));
    // The ring holds a second or so of this load.
    let lost_before = agent.metrics().lost();
    agent.process().signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(4));
    agent.process().signal(libc::SIGCONT);
    let loaded = load.join().expect("load");
    assert!(loaded.broken().is_empty(), "traced programs noticed: {:?}", loaded.broken().first());

    // The agent has caught up when it counts no further loss over two of its seconds.
    let mut before = -1.0;
    tracer_tests::wait("the agent to catch up", Duration::from_secs(30), || {
        let now = agent.metrics().sum("tracer_events_lost_total", &[("reason", "ring_full_op")]);
        let settled = (now - before).abs() < 0.5;
        before = now;
        if settled {
            return Some(());
        }
        std::thread::sleep(Duration::from_millis(2200));
        None
    });
    // Afterwards everything is as it was.
    let again = self::plans("after", 4, (200.0 * scale()).ceil() as u64);
    let loaded = load::run(address, again.clone());
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let afterwards: usize = again.iter().map(Vec::len).sum();
    let mut tail = Tail::new(&agent.transactions);
    tail.until(2 * afterwards, Duration::from_secs(20), |unit| unit.path.starts_with("/after/"));
    let lost = agent.metrics().lost();
    let file = agent.transactions.clone();
    agent.stop();

    let all = units::read(&file);
    let events: f64 = lost.iter().map(|(_, n)| n).sum::<f64>() - lost_before.iter().map(|(_, n)| n).sum::<f64>();
    say(&format!("stopped for 4 s: lost {lost:?}"));
    for server in [true, false] {
        let units: Vec<&Unit> = all.iter().filter(|unit| unit.server == server).collect();
        let during = compare(&plans, &units);
        let after = compare(&again, &units);
        say(&format!(
            "  server {server}: {} right, {} unfinished, {} missing, {} wrong; afterwards {} of {afterwards} right",
            during.right,
            during.unfinished,
            during.missing,
            during.wrong.len(),
            after.right
        ));
        assert!(during.wrong.is_empty(), "{} wrong, first: {}", during.wrong.len(), during.wrong[0]);
        assert!((during.missing + during.unfinished) as f64 <= events, "{during:?} and {events} events lost");
        assert_eq!(after.right, afterwards, "{after:?}");
    }
}

#[test]
fn agents_come_and_go_under_load() {
    let Some(_turn) = begin("faults_restarts", &["cc"]) else { return };
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let (address, before) = (server.address, bpf::programs());
    let rounds = 8;
    let load = std::thread::spawn(move || {
        load::until(address, 4, &["/a", "/bb", "/ccc"], Instant::now() + Duration::from_secs(12))
    });
    for round in 0..rounds {
        let agent = Agent::start_named(&format!("agent-{round}"), dir.path(), &[]);
        if round % 2 == 0 { drop(agent.end(libc::SIGKILL)) } else { drop(agent.stop()) }
    }
    // Two at once see the same.
    let (one, two) = (Agent::start_named("one", dir.path(), &[]), Agent::start_named("two", dir.path(), &[]));
    let asked = Instant::now();
    let loaded = load::run(address, plans("both", 4, 100));
    let files = [one.transactions.clone(), two.transactions.clone()];
    for file in &files {
        let mut tail = Tail::new(file);
        let seen = tail.until(400, Duration::from_secs(10), |unit| unit.server && unit.path.starts_with("/both/"));
        assert_eq!(seen, 400, "after {:?}", asked.elapsed());
    }
    one.stop();
    two.stop();
    let (good, bad) = load.join().expect("load");
    say(&format!("restarts: {rounds} agents in turn, then two at once; the load had {good} good replies, {bad} bad"));
    assert!(bad == 0 && loaded.broken().is_empty());
    tracer_tests::wait("the kernel to free the programs", Duration::from_secs(10), || {
        (bpf::programs() == before).then_some(())
    });
}

#[test]
fn readers_that_never_read_cost_nothing() {
    let Some(_turn) = begin("faults_readers", &[]) else { return };
    let dir = scratch();
    let mut agent = Agent::start(dir.path(), &[]);
    let files =
        |agent: &mut Agent| std::fs::read_dir(format!("/proc/{}/fd", agent.process().pid())).map_or(0, Iterator::count);
    let before = files(&mut agent);
    let mut silent = Vec::new();
    for _ in 0..200 {
        let Ok(mut stream) = TcpStream::connect_timeout(&agent.listen, Duration::from_secs(2)) else { break };
        let _ = stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", agent.listen).as_bytes());
        silent.push(stream);
    }
    // Those that hold a place and say nothing more are thrown out; then others are served again.
    let served = tracer_tests::wait("the console to answer", Duration::from_secs(40), || {
        http::get(agent.listen, "/readyz").ok().filter(|reply| reply.status == 200).map(|_| Instant::now())
    });
    let during = files(&mut agent);
    say(&format!("readers: {} held, {before} descriptors before, {during} while they were", silent.len()));
    assert!(during < before + 100, "{during} descriptors");
    drop((silent, served));
    agent.stop();
}
