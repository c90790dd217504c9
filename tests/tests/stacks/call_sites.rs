//! Where calls are made: programs send one query from three functions, each on a connection to a server of its own, so that the port
//! says of every call which function made it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::redis::Redis;
use tracer_tests::workload::{compile_optimised, source};
use tracer_tests::{begin, figure, find, go, scratch, wait};

/// How long a program makes calls, seconds.
const SECONDS: &str = "12";
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls of each function whose place has to be known.
const ENOUGH: usize = 60;
const FUNCTIONS: [&str; 3] = ["first", "second", "third"];

/// Which lines a language's calls have.
#[derive(Clone, Copy, PartialEq)]
enum Lines {
    /// Those with a function's mark.
    Marked,
    /// None can be read.
    None,
}

/// Client spans of a service, by the port that they called.
fn calls(agent: &Agent, service: &str) -> BTreeMap<u64, Vec<Value>> {
    let text = std::fs::read_to_string(&agent.transactions).unwrap_or_default();
    let spans = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut calls: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for span in spans.filter(|span| span["service_name"] == service && span["side"] == "client") {
        let port = span["attributes"]["network.peer.port"].as_u64().expect("a port");
        calls.entry(port).or_default().push(span);
    }
    calls
}

/// Runs a program to its end, and compares the place of each of its calls with where it made it.
fn judge(name: &str, program: &str, lines: Lines, command: impl FnOnce(&Path) -> Command) {
    let dir = scratch();
    let servers = [(); 3].map(|()| {
        let own = scratch();
        (Redis::start(own.path()), own)
    });
    let ports: Vec<u64> = servers.iter().map(|(server, _)| u64::from(server.address.port())).collect();
    let mut command = command(dir.path());
    // All stacks are taken: how many the budget allows is another test's subject.
    let agent = Agent::start(dir.path(), &["--nice=-10", "--overhead-budget", "50%"]);
    command.args(ports.iter().map(u64::to_string)).arg(SECONDS).env("OTEL_SERVICE_NAME", name);
    let mut process = Process::start(name, &mut command, &dir.path().join(format!("{name}.log")));
    let counts = process.line("COUNTS", PATIENCE);
    let counts: Vec<usize> = counts.split_whitespace().map(|count| count.parse().expect("a count")).collect();
    let seen = wait("all calls", PATIENCE, || {
        let calls = calls(&agent, name);
        let whole = ports.iter().zip(&counts).all(|(port, count)| calls.get(port).is_some_and(|of| of.len() >= *count));
        whole.then_some(calls)
    });

    let text = std::fs::read_to_string(source(program)).expect("its source");
    let line_of =
        |function: &str| 1 + text.lines().position(|line| line.contains(&format!("line: {function}"))).expect("a mark");
    let (mut known, mut right, mut right_lines, mut wrong) = (0, 0, 0, Vec::new());
    for ((port, count), function) in ports.iter().zip(&counts).zip(FUNCTIONS) {
        let of = &seen[port];
        assert_eq!(of.len(), *count, "{name}: calls of {function}");
        let placed: Vec<&Value> =
            of.iter().filter(|span| !span["attributes"]["code.function.name"].is_null()).collect();
        assert!(placed.len() >= ENOUGH, "{name}: {} of {count} calls of {function} have a place", placed.len());
        known += placed.len();
        for span in placed {
            let place = &span["attributes"];
            let is_right = place["code.function.name"]
                .as_str()
                .is_some_and(|name| name.rsplit(['.', ':']).next() == Some(function));
            let is_line = lines == Lines::None
                || place["code.line.number"].as_u64() == Some(line_of(function) as u64)
                    && place["code.file.path"].as_str().is_some_and(|file| file.ends_with(program));
            right += usize::from(is_right);
            right_lines += usize::from(is_right && is_line);
            if !is_right || !is_line {
                let place =
                    ["code.function.name", "code.file.path", "code.line.number"].map(|key| place[key].to_string());
                wrong.push(format!("{function}: {place:?}"));
            }
        }
    }
    let all: usize = counts.iter().sum();
    let metrics = agent.metrics();
    let stacks = |outcome: &str| metrics.sum("tracer_call_stacks_total", &[("outcome", outcome)]);
    figure(
        &format!("call sites, {name}"),
        &format!(
            "{all} calls, {known} with a place: {right} with the right function, {right_lines} with the right line; stacks \
             joined {}, unused {}",
            stacks("joined"),
            stacks("unused")
        ),
    );
    wrong.sort();
    wrong.dedup();
    assert!(right * 100 >= known * 99, "{name}: {right} of {known}: {wrong:?}");
    assert!(right_lines * 100 >= known * 99, "{name}: lines {right_lines} of {known}: {wrong:?}");

    // What people ask: which lines send this query. The first stacks come before the process's code is known.
    let sites = agent.json(&format!("/api/v1/call-sites?service={name}&class=GET"));
    let calls = |wanted: Option<&str>| -> f64 {
        let of = sites["sites"].as_array().expect("sites").iter();
        let is = |site: &&Value| {
            let name = site["function"].as_str();
            name.is_some_and(|name| wanted.is_none_or(|wanted| name.rsplit(['.', ':']).next() == Some(wanted)))
        };
        of.filter(is).map(|site| site["calls"].as_f64().expect("a number")).sum()
    };
    let whole = calls(None);
    figure(&format!("call sites, {name}, stacks with a place"), &format!("{whole} of {}", sites["calls_with_stack"]));
    for (function, count) in FUNCTIONS.iter().zip(&counts) {
        let (found, made) = (calls(Some(function)) / whole, *count as f64 / all as f64);
        assert!((found - made).abs() < 0.02, "{name}: {function} {found} of {made}: {sites}");
    }
    drop(servers);
}

#[test]
fn calls_of_c() {
    let Some(_turn) = begin("call sites, C", &["cc", "redis-server"]) else { return };
    judge("sites_c", "call_sites.c", Lines::Marked, |dir| Command::new(compile_optimised(dir, "call_sites")));
}

#[test]
fn calls_of_python() {
    let Some(_turn) = begin("call sites, Python", &["python3", "redis-server"]) else { return };
    judge("sites_python", "call_sites.py", Lines::Marked, |_| {
        let mut command = Command::new(find("python3").unwrap_or_default());
        command.arg(source("call_sites.py"));
        command
    });
}

#[test]
fn calls_of_go() {
    let Some(_turn) = begin("call sites, Go", &["redis-server", go::toolchain("1.27.")]) else { return };
    judge("sites_go", "call_sites.go", Lines::Marked, |dir| {
        Command::new(go::build(Path::new(go::toolchain("1.27.")), dir, "call_sites.go", &[]))
    });
}

#[test]
fn calls_of_node() {
    let node = go::node_of("22.");
    let Some(_turn) = begin("call sites, Node.js", &[node, "redis-server"]) else { return };
    // V8 does not say which line runs: the line is that of the function's definition.
    judge("sites_node", "call_sites.js", Lines::Marked, |_| {
        let mut command = Command::new(node);
        command.arg(source("call_sites.js"));
        command
    });
}

#[test]
fn calls_of_php() {
    let Some(_turn) = begin("call sites, PHP", &["php", "redis-server"]) else { return };
    judge("sites_php", "call_sites.php", Lines::Marked, |_| {
        let mut command = Command::new(find("php").unwrap_or_default());
        command.arg(source("call_sites.php"));
        command
    });
}

#[test]
fn calls_of_java() {
    let Some(_turn) = begin("call sites, Java", &["java", "javac", "redis-server"]) else { return };
    judge("sites_java", "CallSites.java", Lines::None, |dir| {
        let mut compile = Command::new(find("javac").unwrap_or_default());
        let done = compile.arg("-d").arg(dir).arg(source("CallSites.java")).status();
        assert!(done.is_ok_and(|status| status.success()), "javac");
        let mut command = Command::new(find("java").unwrap_or_default());
        command.arg("-cp").arg(PathBuf::from(dir)).arg("CallSites");
        command
    });
}
