//! Functions of JavaScript in flame graphs of Node.js: the chains of functions that a program is known to run, in their order, with file
//! and line, in every version that the machine has and in every kind of code that V8 makes; shares of the CPU as Node.js's own
//! profiler has them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::folded::{self, Stacks, function, named, since};
use tracer_tests::go::node_of;
use tracer_tests::interpreted::{self, ask};
use tracer_tests::process::Process;
use tracer_tests::workload::{source, wait_for_listener};
use tracer_tests::{begin, figure, find, free_port, say, scratch, wait};

/// Samples a second and CPU.
const HERTZ: f64 = 499.0;
const PATIENCE: Duration = Duration::from_secs(240);

/// A route and the functions below the one that chooses it; what is V8's own is marked with its language.
struct Chain {
    path: &'static str,
    functions: &'static [&'static str],
}

const CHAINS: &[Chain] = &[
    Chain { path: "/burn", functions: &["a", "b", "c"] },
    Chain { path: "/callback", functions: &["by_key", "map (JavaScript)", "each", "of", "c"] },
    Chain { path: "/native", functions: &["replaced", "replace (JavaScript)", "found", "c"] },
    Chain { path: "/generator", functions: &["consumer", "next (JavaScript)", "producer", "c"] },
    Chain { path: "/closure", functions: &["closed", "d"] },
    Chain { path: "/recursive", functions: &["recursive", "deep", "d"] },
];

/// Functions that each request runs before its route.
const CHOOSES: &str = "serve";
/// Functions that `c` and `d` call, to know when it is over.
const INNER: &[&str] = &["used", "cpuUsage"];

/// The name of a function of JavaScript in a stack; `None` for what is native.
fn name(frame: &str) -> Option<&str> {
    if frame.ends_with(" (JavaScript)") { Some(frame) } else { function(frame).map(|(name, _)| name) }
}

/// Whether this line of the program begins the definition of the function.
fn is_line_of(text: &str, name: &str, line: u32) -> bool {
    let Some(found) = text.lines().nth(line as usize - 1) else { return false };
    // A word of its own, before its parameters.
    found.match_indices(name).any(|(at, _)| {
        let (before, behind) = (found.get(..at), found.get(at + name.len()..));
        before.is_some_and(|text| !text.ends_with(char::is_alphanumeric))
            && behind.is_some_and(|text| text.starts_with(['(', ' ']))
    })
}

/// Weight of stacks: all below the program's own choice, those with the whole chain, those of them with the right lines.
#[derive(Debug, Default)]
struct Judged {
    all: f64,
    right: f64,
    lines: f64,
    wrong: Vec<String>,
}

impl Chain {
    fn judge(&self, stacks: &Stacks, text: &str) -> Judged {
        let mut judged = Judged::default();
        for (stack, weight) in stacks {
            let frames: Vec<&str> = stack.split(';').skip(1).collect();
            let from = frames.iter().position(|frame| name(frame) == Some(CHOOSES));
            let Some(below) = from.and_then(|from| frames.get(from + 1..)) else { continue };
            let mut functions: Vec<&str> = below.iter().filter_map(|frame| name(frame)).collect();
            // What chooses runs functions of Node.js besides.
            if functions.first() != Some(&self.functions[0]) {
                continue;
            }
            // How the calling function asks for the time.
            if let Some(inner) = functions.iter().position(|name| INNER.contains(name)) {
                functions.truncate(inner);
            }
            judged.all += weight;
            functions.dedup();
            if functions != self.functions {
                judged.wrong.push(format!("{weight} {stack}"));
                continue;
            }
            judged.right += weight;
            let is_right = |frame: &&str| match function(frame) {
                None => true,
                Some((name, _)) if !self.functions.contains(&name) => true,
                Some((name, line)) => is_line_of(text, name, line) && frame.contains("(workloads/frames.js:"),
            };
            if below.iter().all(is_right) {
                judged.lines += weight;
            } else {
                judged.wrong.push(format!("{weight} LINES {stack}"));
            }
        }
        judged
    }
}

fn stacks(agent: &Agent, service: &str, path: &str) -> Stacks {
    folded::stacks(agent, service, path, "cpu", HERTZ)
}

/// Asks for all `paths` in turn until each has enough samples that know of unwind tables and functions; their stacks from before
/// that.
fn load_until_sampled(agent: &Agent, service: &str, address: SocketAddr, paths: &[&str]) -> Vec<Stacks> {
    let all = || paths.iter().map(|path| stacks(agent, service, path)).collect();
    interpreted::load_until_sampled(address, paths, "frames.js:", all)
}

/// A server with these options of V8, judged route by route; it still runs.
fn judge(
    agent: &Agent,
    dir: &Path,
    node: &str,
    version: &str,
    code: &str,
    options: &[&str],
    routes: &[&str],
) -> Process {
    let service = format!("node{version}{code}");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find(node).expect("Node.js"));
    command.args(options).arg(source("frames.js")).arg(address.to_string()).env("OTEL_SERVICE_NAME", &service);
    let mut server = Process::start("node", &mut command, &dir.join(format!("{service}.log")));
    wait_for_listener(&mut server, address);
    let text = std::fs::read_to_string(source("frames.js")).expect("the program");
    let chains: Vec<&Chain> = CHAINS.iter().filter(|chain| routes.is_empty() || routes.contains(&chain.path)).collect();
    let paths: Vec<&str> = chains.iter().map(|chain| chain.path).collect();
    let before = load_until_sampled(agent, &service, address, &paths);
    for (chain, before) in chains.iter().zip(&before) {
        let all = named(before, || stacks(agent, &service, chain.path));
        let judged = chain.judge(&all, &text);
        let sum: f64 = all.values().sum();
        let (right, lines) = (100.0 * judged.right / judged.all, 100.0 * judged.lines / judged.all);
        let what = format!(
            "{right:.2} % have the chain, {lines:.2} % the right lines, of {:.0} samples below it and {sum:.0} in all",
            judged.all
        );
        say(&format!("{service} {}: {what}", chain.path));
        figure(&format!("{service} {}", chain.path), &what);
        let some: String = judged.wrong.iter().take(12).flat_map(|line| [line, "\n"]).collect();
        assert!(judged.right >= 0.98 * judged.all && judged.lines >= 0.99 * judged.right, "{what}\n{some}");
        // Reading the request and answering it takes a few milliseconds of CPU where the route takes 200.
        assert!(judged.all >= 0.94 * sum, "{what}\n{all:?}");
        // Functions of other classes are not in this one's.
        let others = ["a", "by_key", "replaced", "consumer", "closed", "recursive"];
        let of_others = |stack: &str| {
            let mut names = stack.split(';').filter_map(name);
            names.any(|name| others.contains(&name) && name != chain.functions[0])
        };
        let foreign: f64 = all.iter().filter(|(stack, _)| of_others(stack)).map(|(_, weight)| weight).sum();
        assert!(foreign <= 0.01 * sum, "{foreign} of {sum} samples of {} are of other classes", chain.path);
    }
    server
}

fn agent(dir: &Path) -> Agent {
    let hertz = format!("--hertz={HERTZ}");
    Agent::start(dir, &["--nice=-10", &hertz, "--overhead-budget=100%"])
}

/// Walks of the whole machine that ended badly, and all.
fn walks(agent: &Agent) -> (f64, f64) {
    let metrics = agent.metrics();
    let of = |outcome: &str| metrics.sum("tracer_javascript_stack_walks_total", &[("outcome", outcome)]);
    let bad = ["unreadable", "unknown_version", "unsupported"];
    (bad.into_iter().map(of).sum(), metrics.sum("tracer_javascript_stack_walks_total", &[]))
}

/// Functions stay apart, so that the chains are whole: inlined ones have no frame.
const APART: &[&str] = &["--max-inlined-bytecode-size=0", "--max-inlined-bytecode-size-small=0"];

#[test]
fn a_server_shows_its_functions_with_file_and_line() {
    let Some(_turn) = begin("node frames", &["node"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path());
    let optimised = judge(&agent, dir.path(), "node", "", "optimised", APART, &[]);
    let bytecode =
        judge(&agent, dir.path(), "node", "", "bytecode", &["--no-opt", "--no-sparkplug"], &["/burn", "/closure"]);
    let (bad, all) = walks(&agent);
    assert!(all > 1000.0 && bad <= 0.005 * all, "{bad} of {all} walks:\n{}", agent.text("/metrics"));
    // Readings that came too late: a function that was moved is read again where it is seen next, so that they say nothing
    // of the stacks, which are judged above.
    let metrics = agent.metrics();
    let of = |outcome: &str| metrics.sum("tracer_javascript_functions_total", &[("outcome", outcome)]);
    assert!(of("named") > 20.0, "{} functions named", of("named"));
    assert!(of("unnamed") <= 0.5 * of("named"), "{} of {} functions were read too late", of("unnamed"), of("named"));
    figure("node functions", &format!("{} named, {} moved before they were read", of("named"), of("unnamed")));
    drop((optimised, bytecode));
    agent.stop();
}

#[test]
fn versions_and_kinds_of_code() {
    let Some(_turn) = begin("node frames versions", &["node"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path());
    for (version, node) in [("18", node_of("18.")), ("", "node"), ("22", node_of("22."))] {
        if find(node).is_none() {
            say(&format!("SKIPPED Node.js {version}: not installed"));
            continue;
        }
        let kinds: [(&str, &[&str], &[&str]); 3] = [
            ("optimised", APART, &[]),
            ("baseline", &["--always-sparkplug", "--no-opt"], &["/burn", "/native"]),
            ("bytecode", &["--no-opt", "--no-sparkplug"], &["/burn", "/native"]),
        ];
        for (code, options, routes) in kinds {
            drop(judge(&agent, dir.path(), node, version, code, options, routes));
        }
    }
    agent.stop();
}

/// The version with long-term support, and the newest.
#[test]
fn newer_versions() {
    for version in ["24", "26"] {
        let node = node_of(&format!("{version}."));
        let Some(_turn) = begin("node frames newer versions", &[node]) else { return };
        let dir = scratch();
        let agent = agent(dir.path());
        drop(judge(&agent, dir.path(), node, version, "optimised", APART, &[]));
        agent.stop();
    }
}

/// Own time by function of a profile that Node.js wrote itself, in parts of all of the program's.
fn own_profile(dir: &Path, node: &str) -> BTreeMap<String, f64> {
    let mut command = Command::new(find(node).expect("Node.js"));
    command.args(APART).args(["--cpu-prof", "--cpu-prof-dir"]).arg(dir).arg(source("frames.js"));
    let status = command.args(["burn", "/shares", "6"]).status().expect("Node.js");
    assert!(status.success());
    let is_profile = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "cpuprofile");
    let mut files = std::fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.path());
    let text = std::fs::read_to_string(files.find(is_profile).expect("a profile")).expect("a profile");
    let profile: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let mut names = BTreeMap::new();
    for node in profile["nodes"].as_array().expect("nodes") {
        let id = node["id"].as_u64().expect("an id");
        names.insert(id, node["callFrame"]["functionName"].as_str().expect("a name").to_owned());
    }
    let mut own: BTreeMap<String, f64> = BTreeMap::new();
    for sample in profile["samples"].as_array().expect("samples") {
        let name = &names[&sample.as_u64().expect("an id")];
        *own.entry(name.clone()).or_default() += 1.0;
    }
    let sum: f64 = own.values().sum();
    own.into_iter().map(|(name, count)| (name, count / sum)).collect()
}

#[test]
fn shares_are_those_of_the_profiler_of_node() {
    let Some(_turn) = begin("node frames shares", &["node"]) else { return };
    let dir = scratch();
    let agent = agent(dir.path());
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(find("node").expect("Node.js"));
    command.args(APART).arg(source("frames.js")).arg(address.to_string()).env("OTEL_SERVICE_NAME", "nodeshares");
    let mut server = Process::start("node", &mut command, &dir.path().join("node.log"));
    wait_for_listener(&mut server, address);
    load_until_sampled(&agent, "nodeshares", address, &["/shares"]);
    let of_class = || {
        let burns = |stack: &str| stack.split(';').filter_map(name).any(|name| name == "both");
        let mut all = stacks(&agent, "nodeshares", "/shares");
        all.retain(|stack, _| burns(stack));
        all
    };
    let before = of_class();
    wait("more samples", PATIENCE, || {
        ask(address, &["/shares"], 2);
        (since(&of_class(), &before).values().sum::<f64>() >= 1000.0).then_some(())
    });
    let all = named(&before, of_class);
    agent.stop();
    let sum: f64 = all.values().sum();
    let mut own: BTreeMap<&str, f64> = BTreeMap::new();
    for (stack, weight) in &all {
        let innermost = stack.split(';').rfind(|frame| name(frame).is_some());
        if let Some(name) = innermost.and_then(name) {
            *own.entry(name).or_default() += weight / sum;
        }
    }
    let truth = own_profile(dir.path(), "node");
    let mut compared = 0;
    for (name, share) in &truth {
        // How the functions ask for the time takes more of it under that profiler.
        if *share < 0.05 || name.starts_with('(') || INNER.contains(&name.as_str()) {
            continue;
        }
        compared += 1;
        let found = own.get(name.as_str()).copied().unwrap_or_default();
        let what = format!("{:.1} % here, {:.1} % there, of {sum:.0} samples", 100.0 * found, 100.0 * share);
        say(&format!("own time of {name}: {what}"));
        figure(&format!("own time of {name}"), &what);
        assert!((found - share).abs() <= 0.05, "{name}: {what}\n{own:?}\n{truth:?}");
    }
    assert!(compared >= 2, "{truth:?}");
}
