//! What the truth tests of transactions share: applications that pass the id of a request on to the calls they make for
//! it, and the comparison of every reported edge with that id.
//!
//! A request is `GET /MODE/ID`, a call it causes `GET /b/ID/kN/dT`: path segments, which the agent shows and never links
//! by; by gRPC the method `ID.kN.dT` of service `b`. Sleeps are random on both sides, so replies come in another order than requests.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::load::{self, Request};
use crate::truth_costs;
use crate::units::{self, Unit};
use crate::workload::{Server, source};
use crate::{Numbers, begin, find, go, jars, python, say, scratch, wait};

/// An application of `workloads/`.
#[derive(Clone, Copy, Debug)]
pub struct Application {
    /// Its service name, unlike any other's.
    pub name: &'static str,
    /// Program that runs it.
    pub program: &'static str,
    /// Arguments before its source; of Go, how it is built.
    pub arguments: &'static [&'static str],
    /// Its source; none where the program is the application.
    pub source: &'static str,
    /// Whether it is of Java, and compiled first.
    pub java: bool,
    /// What it is, for the table.
    pub title: &'static str,
}

impl Application {
    /// What starts it.
    fn command(&self, dir: &Path) -> Command {
        let find = |program: &str| find(program).unwrap_or_else(|| panic!("no {program}"));
        if Path::new(self.source).extension().is_some_and(|kind| kind == "go") {
            return Command::new(go::build(&find(self.program), dir, self.source, self.arguments));
        }
        let mut command = Command::new(find(self.program));
        command.args(self.arguments);
        if let Some(libraries) = python::libraries(self.program) {
            command.env("PYTHONPATH", libraries);
        }
        if self.source.is_empty() {
            return command;
        }
        if !self.java {
            command.arg(source(self.source));
            return command;
        }
        let main = self.source.trim_end_matches(".java");
        if !dir.join(main).with_extension("class").is_file() {
            let done = Command::new(find("javac"))
                .arg("-cp")
                .arg(jars::class_path(dir))
                .arg("-d")
                .arg(dir)
                .arg(source(self.source))
                .output();
            let done = done.unwrap_or_else(|error| panic!("javac: {error}"));
            assert!(done.status.success(), "{}: {}", self.source, String::from_utf8_lossy(&done.stderr));
        }
        command.arg("-cp").arg(jars::class_path(dir)).arg(main);
        command
    }
}

/// How long a call may wait to be decided.
const DECIDED: Duration = Duration::from_secs(20);

/// So long nothing new is told of an application once it has done what it does for requests that are answered: its longest
/// pause is a fraction of it.
const SETTLED: Duration = Duration::from_millis(200);

/// A process whose jobs come from pools confirms nobody's before it has shown some of them.
pub const FEW: u64 = 200;

/// One way of an application to make its calls, and what the agent must know of it.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// First segment of the path.
    pub name: &'static str,
    /// What it does, for the table.
    pub title: &'static str,
    /// Least share of calls whose request must be named, rightly, and said to be sure; of one. Of fewer than [`FEW`] calls
    /// none must.
    pub right: f64,
}

impl Mode {
    /// A way to call, what it is called in the table, and the least share that must be right.
    pub const fn new(name: &'static str, title: &'static str, right: f64) -> Self {
        Self { name, title, right }
    }
}

/// Edges of one mode at one concurrency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Calls that were made, as the upstream's end counted them.
    pub made: u64,
    /// Certain or confirmed, and right.
    pub right: u64,
    /// Certain, and wrong.
    pub certain_wrong: u64,
    /// Confirmed, and wrong.
    pub confirmed_wrong: u64,
    /// Said to be ambiguous.
    pub ambiguous: u64,
    /// Said to be of nobody.
    pub orphan: u64,
}

impl Score {
    /// Counts a call by its grade and whether its request is the right one.
    pub fn count(&mut self, grade: &str, right: bool) {
        let counter = match grade {
            "certain" | "confirmed" if right => &mut self.right,
            "certain" => &mut self.certain_wrong,
            "confirmed" => &mut self.confirmed_wrong,
            "ambiguous" => &mut self.ambiguous,
            _ => &mut self.orphan,
        };
        *counter += 1;
    }

    /// Calls that were counted.
    fn told(&self) -> u64 {
        self.right + self.certain_wrong + self.confirmed_wrong + self.ambiguous + self.orphan
    }
}

/// Whether the full size is asked for (`TRACER_TRUTH=full`), and not what fits in CI.
pub fn full() -> bool {
    std::env::var("TRACER_TRUTH").is_ok_and(|size| size == "full")
}

/// Whether a way to call is wanted: all, or the one that `TRACER_TRUTH_MODE` names.
fn wanted(mode: &Mode) -> bool {
    std::env::var("TRACER_TRUTH_MODE").map_or(true, |name| name == mode.name)
}

/// Concurrent requests, and requests in all.
pub fn sizes() -> &'static [(u64, u64)] {
    if full() { &[(1, 200), (8, 1000), (64, 3000), (256, 4000)] } else { &[(1, 20), (8, 240), (64, 960)] }
}

/// The request an edge's end belongs to: the second segment of its path, of a call by gRPC as far as that has no dot.
fn ident(path: &str) -> &str {
    path.split('/').nth(2).and_then(|words| words.split('.').next()).unwrap_or_default()
}

/// Compares the calls of `service` for requests whose id begins with `prefix` with the truth.
pub fn score(all: &[Unit], service: &str, prefix: &str) -> Score {
    let ids: HashMap<&str, &Unit> = all.iter().map(|unit| (unit.id.as_str(), unit)).collect();
    let of = |unit: &&Unit| unit.path.starts_with("/b/") && ident(&unit.path).starts_with(prefix);
    let mut score = Score { made: all.iter().filter(|u| u.server).filter(of).count() as u64, ..Score::default() };
    for call in all.iter().filter(|u| u.service == service && !u.server).filter(of) {
        let parent = call.parent.as_deref().and_then(|parent| ids.get(parent));
        let right = parent.is_some_and(|parent| ident(&parent.path) == ident(&call.path));
        score.count(&call.grade, right);
        if !right && ["certain", "confirmed"].contains(&call.grade.as_str()) {
            let unknown = call.parent.as_ref().map_or("nobody", |_| "who is not told");
            let said = parent.map_or(unknown, |parent| parent.path.as_str());
            eprintln!("wrong: {} of {said}, {}: {} (pid {})", call.path, call.grade, call.evidence, call.pid);
        }
    }
    // What a server reads in one piece may hold more heads than are captured: those it is not seen to serve.
    score.made = score.made.max(score.told());
    score
}

/// Starts an application in front of `upstream`.
pub fn begun(application: &Application, upstream: SocketAddr, dir: &Path) -> Server {
    let mut command = application.command(dir);
    command.env("UPSTREAM_PORT", upstream.port().to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
    Server::start(application.name, dir, &mut command)
}

/// Load on `address` in one mode: `requests` in all, on `connections`. Ids begin with `prefix`.
pub fn plans(mode: &str, prefix: &str, connections: u64, requests: u64) -> Vec<Vec<Request>> {
    (0..connections)
        .map(|c| {
            let mut numbers = Numbers::new(c + 1);
            let mut one = |r| Request {
                pause: Duration::from_micros(numbers.below(3000)),
                ..Request::get(format!("/{mode}/{prefix}c{c}r{r}"))
            };
            (0..requests.div_ceil(connections)).map(&mut one).collect()
        })
        .collect()
}

/// Waits until nothing is undecided, but for what others on this host are in the midst of: calls wait for who turns out to
/// have caused them, those of nobody longest.
pub fn decided(agent: &Agent) {
    let end = Instant::now() + DECIDED;
    while agent.metrics().sum("tracer_fill_entries", &[("what", "units")]) > 0.0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a process was looked at since, and none is being looked at: what the application needs is attached.
pub fn attached(agent: &Agent, looks: f64) {
    wait("runtimes are known", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        let known = metrics.sum("tracer_runtime_looks_total", &[]) > looks;
        (known && metrics.sum("tracer_runtime_processes_waiting", &[]) == 0.0).then_some(())
    });
}

/// Runs `application`, once for each mode, in front of `upstream`, beside `agent`; waits until every unit is told, and ends
/// the agent: requests whose end was not seen are told of then, and are the parents of calls that were.
pub fn run(
    agent: Agent,
    upstream: SocketAddr,
    dir: &Path,
    application: &Application,
    modes: &[Mode],
) -> Vec<(Mode, u64, Score)> {
    let mut tail = units::Tail::new(&agent.transactions);
    let mut sent = Vec::new();
    for mode in modes.iter().filter(|mode| wanted(mode)) {
        let looks = agent.metrics().sum("tracer_runtime_looks_total", &[]);
        let server = begun(application, upstream, dir);
        let mut warm = |prefix: &str| {
            let warm = load::run(server.address, plans(mode.name, prefix, 8, 40));
            assert!(warm.broken().is_empty(), "{}: {:?}", mode.name, warm.broken().first());
            sent.push((*mode, 0, prefix.to_owned(), warm.answers.len()));
        };
        // What it needs to be followed is attached when it is first seen to be needed, in each of its processes; and then the
        // first requests show what the process is like.
        warm("early-");
        attached(&agent, looks);
        warm("warm-");
        for (connections, requests) in sizes() {
            let prefix = format!("{}{}{connections}-", application.name, mode.name);
            let loaded = load::run(server.address, plans(mode.name, &prefix, *connections, *requests));
            assert!(loaded.broken().is_empty(), "{}: {:?}", mode.name, loaded.broken().first());
            sent.push((*mode, *connections, prefix, loaded.answers.len()));
        }
        // What it still does for requests that are answered is done before it ends.
        let of = |unit: &Unit| unit.path.starts_with("/b/") && !unit.server && unit.service == application.name;
        let mut before = usize::MAX;
        while before != tail.read().iter().filter(|unit| of(unit)).count() {
            before = tail.units.iter().filter(|unit| of(unit)).count();
            std::thread::sleep(SETTLED);
        }
    }
    // Both ends of every call, and then there is nothing to wait for. Of a call that is not decided neither is told: in CI of
    // every way to call a third must be there (some do not call for each request), at full size all that may come is waited for.
    let told = |units: &[Unit], server: bool| {
        let of = |unit: &&Unit| unit.server == server && unit.path.starts_with("/b/");
        units.iter().filter(of).filter(|unit| server || unit.service == application.name).count()
    };
    let end = Instant::now() + DECIDED;
    while Instant::now() < end && agent.metrics().sum("tracer_fill_entries", &[("what", "units")]) > 0.0 {
        let units = tail.read();
        let begun = sent.iter().all(|(_, _, prefix, answers)| {
            let of =
                |unit: &&Unit| unit.server && unit.path.starts_with("/b/") && ident(&unit.path).starts_with(prefix);
            units.iter().filter(of).count() * 3 >= *answers
        });
        if !full() && begun && told(units, false) == told(units, true) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let all: usize = sent.iter().map(|(.., answers)| answers).sum();
    let own = |unit: &Unit| unit.server && unit.service == application.name;
    let have = tail.until(all, Duration::from_secs(20), own);
    say(&format!("{}: {have} of {all} requests told; lost {:?}", application.name, agent.metrics().lost()));
    agent.stop();
    tail.read();
    let units = std::mem::take(&mut tail.units);
    let score = |prefix: &str| score(&units, application.name, prefix);
    let measured = sent.iter().filter(|(_, connections, ..)| *connections > 0);
    measured.map(|(mode, connections, prefix, _)| (*mode, *connections, score(prefix))).collect()
}

/// Runs `application` in front of a server of C beside an agent; panics where something is not as it must be ([`report`]).
pub fn judge(test: &str, application: &Application, modes: &[Mode]) {
    judge_by(test, application, modes, "");
}

/// The same with an agent that is configured so.
pub fn judge_by(test: &str, application: &Application, modes: &[Mode], config: &str) {
    let Some(_turn) = begin(test, &[application.program, "cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    judge_before(&upstream, dir.path(), application, modes, config);
}

/// The same in front of another server.
pub fn judge_before(upstream: &Server, dir: &Path, application: &Application, modes: &[Mode], config: &str) {
    let file = dir.join("tracer.toml");
    std::fs::write(&file, config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if truth_costs::wanted() {
        let modes: Vec<Mode> = modes.iter().copied().filter(wanted).collect();
        truth_costs::judge(upstream.address, dir, application, &modes, &file);
        return;
    }
    let agent = Agent::start(dir, &["--nice=-10", "--config", &file.to_string_lossy()]);
    let scores = run(agent, upstream.address, dir, application, modes);
    let faults = report(application, &scores);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Prints the scores, writes them where the table is made of them (`TRACER_TRUTH_FILE`), and says what is not as it must
/// be: an edge that is certain and wrong, more than one in two thousand wrong, fewer right than the mode must have.
pub fn report(application: &Application, scores: &[(Mode, u64, Score)]) -> Vec<String> {
    let mut faults = Vec::new();
    say(&format!(
        "{:<34} {:>5} {:>7} {:>9} {:>9} {:>9} {:>7} {:>9}",
        application.title, "conc.", "calls", "right", "ambiguous", "orphan", "certain", "confirmed"
    ));
    for (mode, connections, score) in scores {
        let share = |n: u64| 100.0 * n as f64 / score.made.max(1) as f64;
        say(&format!(
            "  {:<32} {connections:>5} {:>7} {:>8.2}% {:>8.2}% {:>8.2}% {:>7} {:>9}",
            mode.title,
            score.made,
            share(score.right),
            share(score.ambiguous),
            share(score.orphan),
            score.certain_wrong,
            score.confirmed_wrong
        ));
        line(application, mode, *connections, score);
        let at = format!("{}, {}, {connections} at once: {score:?}", application.title, mode.title);
        let wrong = score.certain_wrong + score.confirmed_wrong;
        if score.certain_wrong > 0 || wrong * 2000 > score.made.max(2000) {
            faults.push(format!("wrong: {at}"));
        }
        if score.made >= FEW && share(score.right) < 100.0 * mode.right {
            faults.push(format!("fewer than {} right: {at}", mode.right));
        }
    }
    faults
}

fn line(application: &Application, mode: &Mode, connections: u64, score: &Score) {
    let Some(path) = std::env::var_os("TRACER_TRUTH_FILE") else { return };
    let line = serde_json::json!({
        "application": application.title, "mode": mode.title, "connections": connections, "made": score.made,
        "right": score.right, "ambiguous": score.ambiguous, "orphan": score.orphan,
        "certain_wrong": score.certain_wrong, "confirmed_wrong": score.confirmed_wrong,
    });
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    writeln!(file, "{line}").unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
