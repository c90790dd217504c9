//! Fault: very many connections, open and idle, half of them older than the agent; with traffic among them.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::Agent;
use tracer_tests::faults::{self, Figures};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::vitals::Vitals;
use tracer_tests::workload::{Server, compile};
use tracer_tests::{begin, bpf, say, scale, scratch, spans, stat};

/// Most connections to one server: each needs a descriptor, and one address has only so many ports.
const EACH: usize = 14_000;
/// Longest a step on all connections may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program that holds connections and can send one request on each.
struct Holder {
    process: Process,
    name: String,
    count: usize,
}

impl Holder {
    fn open(program: &Path, dir: &Path, name: String, count: usize, port: u16) -> Self {
        let mut command = Command::new(program);
        command.args(["open", &count.to_string(), &name, &port.to_string()]);
        let mut process = Process::start(&name, &mut command, &dir.join(format!("{name}.log")));
        assert_eq!(process.line("OPENED", PATIENCE), count.to_string());
        Self { process, name, count }
    }

    /// Sends a request on every connection; returns how many failed.
    fn ask(&mut self) -> u64 {
        self.process.signal(libc::SIGUSR1);
        let line = self.process.line("ASKED0", PATIENCE);
        let failed = line.split("FAILED ").nth(1).and_then(|text| text.parse().ok());
        failed.unwrap_or_else(|| panic!("{line}"))
    }

    /// Its requests, one plan per connection.
    fn plans(&self) -> Vec<Vec<Request>> {
        (0..self.count).map(|c| vec![Request::get(format!("/{}/c{c}", self.name))]).collect()
    }
}

fn level(agent: &Agent, what: &str) -> f64 {
    agent.metrics().sum("tracer_table_entries", &[("table", what)])
}

#[test]
fn a_hundred_thousand_connections_are_followed_or_counted() {
    let Some(_turn) = begin("faults_connections", &["cc"]) else { return };
    let dir = scratch();
    let all = (faults::size(10_000.0, 100_000.0) * scale()) as usize;
    let shards = all.div_ceil(EACH);
    let each = all / shards / 2;
    let program = compile(dir.path(), "hoard");
    let start = |shard| {
        let mut command = Command::new(&program);
        Server::start(&format!("hoard{shard}"), dir.path(), command.arg("serve"))
    };
    let servers: Vec<Server> = (0..shards).map(start).collect();
    let ports: Vec<u16> = servers.iter().map(|server| server.address.port()).collect();
    let address = servers[0].address;
    let open = |when: &str| -> Vec<Holder> {
        let one = |(i, port): (usize, &u16)| Holder::open(&program, dir.path(), format!("{when}{i}"), each, *port);
        ports.iter().enumerate().map(one).collect()
    };

    let mut holders = open("early");
    let mut arguments = vec!["--hertz".to_owned(), "0".to_owned()];
    arguments.extend(ports.iter().flat_map(|port| ["--port".to_owned(), port.to_string()]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut agent = Agent::start(dir.path(), &arguments);
    let held = bpf::held(agent.process().pid());
    holders.extend(open("late"));
    let count: usize = holders.iter().map(|holder| holder.count).sum();
    let before = Vitals::of(agent.process().pid());

    // Traffic among the idle ones, then a request on every one of them.
    let among = faults::plans("among", 16, 200);
    let loaded = load::run(address, among.clone());
    faults::reported(&agent, &among);
    let mut figures = Figures::of("connections, open and idle", format!("{count} and traffic"));
    figures.loaded(&loaded);
    for holder in &mut holders {
        let failed = holder.ask();
        figures.traced(holder.count as u64, failed);
        faults::reported(&agent, &holder.plans());
    }
    faults::caught_up(&agent);
    let (full, followed) = (Vitals::of(agent.process().pid()), level(&agent, "connections"));

    // All close at once.
    let plans: Vec<_> = among.into_iter().chain(holders.iter().flat_map(Holder::plans)).collect();
    drop(holders);
    // The agent frees each connection when its close is reported. If the ring was full and closes were lost, it counts
    // them, and frees those connections after five minutes of silence. It also announces connections of other programs
    // on this machine, and keeps them for ten seconds. Of the rest (other programs' sockets without a port) a
    // two-hundredth is tolerated.
    let other = (2.0 * count as f64 / 200.0).max(100.0);
    let end = Instant::now() + PATIENCE;
    let mut opened = VecDeque::new();
    let kept = loop {
        opened.push_back((Instant::now(), stat::connections_opened()));
        while opened.get(1).is_some_and(|(at, _)| at.elapsed() > Duration::from_secs(12)) {
            opened.pop_front();
        }
        let others = opened.back().map_or(0, |(_, now)| now - opened[0].1) as f64;
        let metrics = agent.metrics();
        let kept = metrics.sum("tracer_table_entries", &[("table", "connections")]);
        let lost = metrics.sum("tracer_events_lost_total", &[("reason", "ring_full_connection")]);
        if kept <= other + lost + others {
            break kept;
        }
        let what = ["connections_closing", "spans"].map(|what| metrics.sum("tracer_table_entries", &[("table", what)]));
        assert!(Instant::now() < end, "{kept} connections are kept, {what:?}; lost {:?}", metrics.lost());
        std::thread::sleep(Duration::from_millis(100));
    };
    let again = faults::plans("again", 16, 100);
    figures.loaded(&load::run(address, again.clone()));
    faults::reported(&agent, &again);
    let metrics = agent.metrics();
    let after = Vitals::of(agent.process().pid());
    let file = agent.transactions.clone();
    agent.stop();

    let spans = spans::read(&file);
    let plans: Vec<_> = plans.into_iter().chain(again).collect();
    let (judged, lost) = (faults::judge(&plans, &spans), faults::operations_lost(&metrics));
    let evicted = faults::evicted(&metrics);
    say(&format!(
        "connections: {} held, {followed} ends followed, {evicted} let go for others; {} of {} ends right, {lost} \
         operations lost; {kept} followed after all closed; memory {:.0} MB before, {:.0} MB with all, {:.0} MB after",
        count,
        judged.right(),
        2 * judged.sent,
        before.rss / 1e6,
        full.rss / 1e6,
        after.rss / 1e6
    ));
    judged.covered(lost + evicted);
    figures.judged(&judged, lost).growth(before, after).attached(bpf::left(&held));
    figures.note(format!("{followed} ends followed, {evicted} let go for others, {:.0} MB with all", full.rss / 1e6));
    figures.finish();
    // An end without any reported event is one of the operations counted as lost.
    let known = followed + evicted + lost;
    assert!(known >= 2.0 * count as f64, "{followed} followed, {evicted} let go, {lost} lost of {}", 2 * count);
    // A kilobyte per end, and the table's remaining capacity.
    assert!(full.rss - before.rss < 32e6 + 2.0 * count as f64 * 2048.0, "{before:?} {full:?}");
    assert!(after.fds <= before.fds + 4, "{before:?} {after:?}");
}
