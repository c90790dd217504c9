//! Shared by the truth tests of transactions: applications that pass a request's id on to the calls they make for it,
//! and the comparison of every reported edge with that id.
//!
//! A request is `GET /MODE/ID`, a call it causes `GET /b/ID/kN/dT`: path segments, which the agent shows but never uses
//! for linking; with gRPC the method `ID.kN.dT` of service `b`. Sleeps are random on both sides, so replies come in
//! another order than requests.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::load::{self, Request};
use crate::spans::{self, Span};
use crate::truth_costs;
use crate::workload::{Server, source};
use crate::{Numbers, begin, find, go, jars, python, say, scratch, wait};

/// An application of `workloads/`.
#[derive(Clone, Copy, Debug)]
pub struct Application {
    /// Its service name, unique among applications.
    pub name: &'static str,
    /// Program that runs it.
    pub program: &'static str,
    /// Arguments before its source; for Go, build arguments.
    pub arguments: &'static [&'static str],
    /// Its source; empty if the program is the application.
    pub source: &'static str,
    /// Whether it is Java, and must be compiled first.
    pub java: bool,
    /// Its description in the table.
    pub title: &'static str,
}

impl Application {
    /// The command that starts it.
    pub fn command(&self, dir: &Path) -> Command {
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

/// Limit for deciding a call's parent.
const DECIDED: Duration = Duration::from_secs(20);

/// An application counts as settled after this long without new spans, once it has finished work for answered requests:
/// its longest pause is a fraction of it.
const SETTLED: Duration = Duration::from_millis(200);

/// Below this many calls, one more than the floor allows may be missing: a single call is more than the noise of a
/// share.
pub const FEW: u64 = 200;

/// One way in which an application makes its calls, and its expected results.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// First segment of the path.
    pub name: &'static str,
    /// Its description in the table.
    pub title: &'static str,
    /// Least share of calls that must name the right request and be graded certain or confirmed: with 1, 8, 64 and 256
    /// concurrent requests. Each floor is below the published figure by the spread between runs of that row.
    pub floors: Floors,
}

/// Least shares, as fractions, with 1, 8, 64 and 256 concurrent requests ([`sizes`]).
pub type Floors = [f64; 4];

impl Mode {
    /// A mode, its description in the table, and the least share that must be right, at any concurrency.
    pub const fn new(name: &'static str, title: &'static str, floor: f64) -> Self {
        Self::by_load(name, title, [floor; 4])
    }

    /// The same if the share depends on the concurrency.
    pub const fn by_load(name: &'static str, title: &'static str, floors: Floors) -> Self {
        Self { name, title, floors }
    }

    /// The floor at this concurrency.
    fn floor(&self, connections: u64) -> f64 {
        self.floors[match connections {
            0..=1 => 0,
            2..=8 => 1,
            9..=64 => 2,
            _ => 3,
        }]
    }
}

/// Edges of one mode at one concurrency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Calls made, as counted at the upstream's end.
    pub made: u64,
    /// Certain or confirmed, and right.
    pub right: u64,
    /// Certain, and wrong.
    pub certain_wrong: u64,
    /// Confirmed, and wrong.
    pub confirmed_wrong: u64,
    /// Graded ambiguous.
    pub ambiguous: u64,
    /// Graded orphan.
    pub orphan: u64,
}

impl Score {
    /// Counts a call by its grade and whether its parent is right.
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
    fn counted(&self) -> u64 {
        self.right + self.certain_wrong + self.confirmed_wrong + self.ambiguous + self.orphan
    }
}

/// Whether to run at full size (`TRACER_TRUTH=full`) instead of CI's.
pub fn full() -> bool {
    std::env::var("TRACER_TRUTH").is_ok_and(|size| size == "full")
}

/// Whether to run a mode: all, or the one that `TRACER_TRUTH_MODE` names.
fn wanted(mode: &Mode) -> bool {
    std::env::var("TRACER_TRUTH_MODE").map_or(true, |name| name == mode.name)
}

/// Concurrent requests, and total requests.
pub fn sizes() -> &'static [(u64, u64)] {
    if full() { &[(1, 200), (8, 1000), (64, 3000), (256, 4000)] } else { &[(1, 20), (8, 160), (64, 960)] }
}

/// The request id of an edge's end: the second segment of its path; for gRPC its part before the first dot.
fn ident(path: &str) -> &str {
    path.split('/').nth(2).and_then(|words| words.split('.').next()).unwrap_or_default()
}

/// Compares the calls of `service` for requests whose id begins with `prefix` with the truth.
pub fn score(all: &[Span], service: &str, prefix: &str) -> Score {
    let ids: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let of = |span: &&Span| span.path.starts_with("/b/") && ident(&span.path).starts_with(prefix);
    let mut score = Score { made: all.iter().filter(|u| u.server).filter(of).count() as u64, ..Score::default() };
    let mut reasons: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for call in all.iter().filter(|u| u.service == service && !u.server).filter(of) {
        let parent = call.parent.as_deref().and_then(|parent| ids.get(parent));
        let right = parent.is_some_and(|parent| ident(&parent.path) == ident(&call.path));
        score.count(&call.grade, right);
        if !right {
            *reasons.entry((call.grade.as_str(), call.evidence.as_str())).or_default() += 1;
        }
        if !right && ["certain", "confirmed"].contains(&call.grade.as_str()) {
            let unknown = call.parent.as_ref().map_or("no parent", |_| "an unknown span");
            let claimed = parent.map_or(unknown, |parent| parent.path.as_str());
            eprintln!("wrong: {} of {claimed}, {}: {} (pid {})", call.path, call.grade, call.evidence, call.pid);
        }
    }
    for ((grade, evidence), calls) in reasons {
        eprintln!("{prefix}: {calls} calls {grade}: {evidence}");
    }
    // One read of a server may hold more heads than are captured: the agent sees no server span for the rest.
    score.made = score.made.max(score.counted());
    score
}

/// Spans whose trace id differs from their parent's, if both were reported.
pub fn strays(all: &[Span]) -> Vec<String> {
    let ids: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let parent = |span: &Span| span.parent.as_deref().and_then(|parent| ids.get(parent).copied());
    let stray = |span: &&Span| parent(span).is_some_and(|parent| parent.trace != span.trace);
    let line = |span: &Span| {
        let side = if span.server { "request" } else { "call" };
        format!("{side} {} of {}: {}, {}", span.path, span.service, span.grade, span.evidence)
    };
    let place = |span: &Span| all.iter().position(|other| other.id == span.id).unwrap_or_default();
    let both = |span: &Span| {
        let above = parent(span).map(|above| format!("; its parent is line {}, {}", place(above), line(above)));
        format!("line {}, {}{}", place(span), line(span), above.unwrap_or_default())
    };
    all.iter().filter(stray).map(both).collect()
}

/// Calls that are said to have found their parent when spans below them had been reported with another trace id, though
/// the request they belong to (of the same process, with the same target) has theirs.
pub fn disproved(all: &[Span]) -> Vec<String> {
    let late = "its parent was found after spans below it were reported";
    let requests: HashMap<(u32, &str, &str), &Span> = all
        .iter()
        .filter(|span| span.server)
        .map(|span| ((span.pid, span.path.as_str(), span.trace.as_str()), span))
        .collect();
    let of = |call: &Span| requests.contains_key(&(call.pid, call.path.as_str(), call.trace.as_str()));
    let calls = all.iter().filter(|span| !span.server && span.parent.is_none() && span.evidence == late);
    calls.filter(|call| of(call)).map(|call| format!("{} of {}: {late}", call.path, call.service)).collect()
}

/// Starts an application in front of `upstream`.
pub fn begun(application: &Application, upstream: SocketAddr, dir: &Path) -> Server {
    let mut command = application.command(dir);
    command.env("UPSTREAM_PORT", upstream.port().to_string()).env("PYTHONDONTWRITEBYTECODE", "1");
    Server::start(application.name, dir, &mut command)
}

/// Load on `address` in one mode: `requests` in total, over `connections`. Ids begin with `prefix`.
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

/// Waits until no call is undecided, except for ongoing activity of other programs on this host: calls wait for the
/// request that turns out to have caused them, orphans longest.
pub fn decided(agent: &Agent) {
    let end = Instant::now() + DECIDED;
    while agent.metrics().sum("tracer_table_entries", &[("table", "spans")]) > 0.0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a detection has run since, and none is running: the probes the application needs are attached.
pub fn attached(agent: &Agent, looks: f64) {
    wait("runtimes are known", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        let known = metrics.sum("tracer_runtime_detections_total", &[]) > looks;
        (known && metrics.sum("tracer_runtime_processes_waiting", &[]) == 0.0).then_some(())
    });
}

/// Runs `application`, once per mode, in front of `upstream`, beside `agent`; waits until every span is reported, and
/// ends the agent: it then reports requests without an observed end, which are the parents of observed calls.
pub fn run(
    agent: Agent,
    upstream: SocketAddr,
    dir: &Path,
    application: &Application,
    modes: &[Mode],
) -> Vec<(Mode, u64, Score)> {
    let mut tail = spans::Tail::new(&agent.transactions);
    let mut sent = Vec::new();
    for mode in modes.iter().filter(|mode| wanted(mode)) {
        let looks = agent.metrics().sum("tracer_runtime_detections_total", &[]);
        let server = begun(application, upstream, dir);
        let mut warm = |prefix: &str| {
            let warm = load::run(server.address, plans(mode.name, prefix, 8, 40));
            assert!(warm.broken().is_empty(), "{}: {:?}", mode.name, warm.broken().first());
            sent.push((*mode, 0, prefix.to_owned(), warm.answers.len()));
        };
        // The agent attaches probes when it first sees that each process needs them; then the first requests show how
        // the process behaves.
        warm("early-");
        attached(&agent, looks);
        warm("warm-");
        for (connections, requests) in sizes() {
            let prefix = format!("{}{}{connections}-", application.name, mode.name);
            let loaded = load::run(server.address, plans(mode.name, &prefix, *connections, *requests));
            assert!(loaded.broken().is_empty(), "{}: {:?}", mode.name, loaded.broken().first());
            sent.push((*mode, *connections, prefix, loaded.answers.len()));
        }
        // Let it finish work for answered requests before it ends.
        let of = |span: &Span| span.path.starts_with("/b/") && !span.server && span.service == application.name;
        let mut before = usize::MAX;
        while before != tail.read().iter().filter(|span| of(span)).count() {
            before = tail.spans.iter().filter(|span| of(span)).count();
            std::thread::sleep(SETTLED);
        }
    }
    // Once both ends of every call are there, the wait is over. An undecided call has neither end reported: CI requires
    // a third in every mode (some modes do not call for each request), the full size waits for all that may come.
    let count = |spans: &[Span], server: bool| {
        let of = |span: &&Span| span.server == server && span.path.starts_with("/b/");
        spans.iter().filter(of).filter(|span| server || span.service == application.name).count()
    };
    let end = Instant::now() + DECIDED;
    while Instant::now() < end && agent.metrics().sum("tracer_table_entries", &[("table", "spans")]) > 0.0 {
        let spans = tail.read();
        let begun = sent.iter().all(|(_, _, prefix, answers)| {
            let of =
                |span: &&Span| span.server && span.path.starts_with("/b/") && ident(&span.path).starts_with(prefix);
            spans.iter().filter(of).count() * 3 >= *answers
        });
        if !full() && begun && count(spans, false) == count(spans, true) {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let all: usize = sent.iter().map(|(.., answers)| answers).sum();
    let own = |span: &Span| span.server && span.service == application.name;
    let have = tail.until(all, Duration::from_secs(20), own);
    say(&format!("{}: {have} of {all} requests reported; lost {:?}", application.name, agent.metrics().lost()));
    agent.stop();
    tail.read();
    let spans = std::mem::take(&mut tail.spans);
    let strays = strays(&spans);
    assert!(
        strays.is_empty(),
        "{} spans with another trace id than their parent's:\n{}",
        strays.len(),
        strays.join("\n")
    );
    let score = |prefix: &str| score(&spans, application.name, prefix);
    let measured = sent.iter().filter(|(_, connections, ..)| *connections > 0);
    measured.map(|(mode, connections, prefix, _)| (*mode, *connections, score(prefix))).collect()
}

/// Runs `application` in front of a C server beside an agent; panics on any violation ([`report`]).
pub fn judge(test: &str, application: &Application, modes: &[Mode]) {
    judge_by(test, application, modes, "");
}

/// The same with this agent configuration.
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

/// Prints the scores, writes them for the table (`TRACER_TRUTH_FILE`), and returns the violations: a certain or
/// confirmed edge that is wrong, or fewer right calls than the mode's floor.
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
        faults.extend(below(mode.floor(*connections), score).map(|why| format!("{why}: {at}")));
    }
    faults
}

/// What is wrong with a score, given the least share `floor` of right calls.
fn below(floor: f64, score: &Score) -> Option<String> {
    if score.certain_wrong + score.confirmed_wrong > 0 {
        return Some("wrong".to_owned());
    }
    let least = floor * score.made as f64 - if score.made < FEW { 1.0 } else { 0.0 };
    ((score.right as f64) < least).then(|| format!("fewer than {floor} right"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_edge_that_is_wrong_fails_a_row() {
        let score = Score { made: 5000, right: 4999, ..Score::default() };
        assert_eq!(below(0.999, &score), None);
        for wrong in [Score { confirmed_wrong: 1, ..score }, Score { certain_wrong: 1, ..score }] {
            assert_eq!(below(0.0, &wrong).as_deref(), Some("wrong"));
        }
    }

    #[test]
    fn few_calls_have_a_floor_too() {
        let score = |made, right| Score { made, right, ..Score::default() };
        assert_eq!(below(0.999, &score(20, 19)), None);
        assert!(below(0.999, &score(20, 18)).is_some());
        assert!(below(0.5, &score(20, 5)).is_some());
        assert!(below(0.999, &score(1000, 998)).is_some());
    }

    #[test]
    fn floors_follow_the_load() {
        let mode = Mode::by_load("m", "", [0.9, 0.7, 0.5, 0.3]);
        for (connections, floor) in [(1, 0.9), (8, 0.7), (64, 0.5), (256, 0.3)] {
            assert!((mode.floor(connections) - floor).abs() < 1e-9, "{connections}");
            assert!((Mode::new("m", "", 0.5).floor(connections) - 0.5).abs() < 1e-9);
        }
    }
}
