//! Declared call sites and lines of optimised programs against what the program measured itself: every call, its failures
//! and its response time; and what the compiler left undecidable is refused by name.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, command};
use tracer_tests::declared::declare;
use tracer_tests::process::Process;
use tracer_tests::workload::{compile_optimised, source};
use tracer_tests::{begin, figure, go, say, scale, scratch, wait};

const ROUNDS: usize = 100;

/// What the program measured: failures, and the seconds of every call.
#[derive(Debug)]
struct Truth {
    name: String,
    failed: usize,
    calls: Vec<f64>,
}

fn truths(output: &str) -> Vec<Truth> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("TRUTH ")?.split(' ');
        let (name, count, failed) = (words.next()?.to_owned(), words.next()?, words.next()?);
        let calls: Vec<f64> = words.filter_map(|word| word.parse::<f64>().ok()).map(|nanos| nanos / 1e9).collect();
        assert_eq!(count.parse().ok(), Some(calls.len()), "{line}");
        Some(Truth { name, failed: failed.parse().ok()?, calls })
    };
    output.lines().filter_map(of).collect()
}

fn run(dir: &Path, program: &Path) -> (Process, Vec<Truth>) {
    let mut run = Command::new(program);
    run.arg(ROUNDS.to_string()).env("OTEL_SERVICE_NAME", "kernels");
    let mut process = Process::start("kernels", &mut run, &dir.join("kernels.log"));
    process.line("DONE", Duration::from_secs(120));
    let truths = truths(&process.output());
    (process, truths)
}

/// The spans of a transaction, in the order they began, once there are `count`.
fn spans(agent: &Agent, name: &str, count: usize) -> Vec<Value> {
    let mut spans = wait(&format!("{count} spans of {name}"), Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).ok()?;
        let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |span: &Value| span["protocol"] == "declared" && span["request_class"] == name;
        let spans: Vec<Value> = spans.into_iter().filter(of).collect();
        (spans.len() >= count).then_some(spans)
    });
    spans.sort_by_key(|span| span["start_ns"].as_i64());
    spans
}

fn compare(agent: &Agent, what: &str, truth: &Truth) {
    let spans = spans(agent, &truth.name, truth.calls.len());
    assert_eq!(spans.len(), truth.calls.len(), "{}: calls", truth.name);
    let failed = spans.iter().filter(|span| span["error"] == true).count();
    assert_eq!(failed, truth.failed, "{}: failures", truth.name);
    let off = |(span, wall): (&Value, &f64)| 100.0 * (span["duration_s"].as_f64().expect("a time") / wall - 1.0);
    let mut off: Vec<f64> = spans.iter().zip(&truth.calls).map(off).collect();
    off.sort_by(f64::total_cmp);
    let median = off[off.len() / 2];
    let name = &truth.name;
    say(&format!("{what} {name}: {} calls, {failed} failed, response time {median:+.2} % (median)", spans.len()));
    figure(&format!("{what} {name} response time"), &format!("{median:+.2} %"));
    assert!(median.abs() < 1.0 + 4.0 * (1.0 / scale() - 1.0), "{name}: {off:?}");
}

/// Losses by reason.
fn gaps(agent: &Agent) -> f64 {
    ["declared_unmatched", "declared_unreturned", "declared_refused"]
        .iter()
        .map(|reason| agent.metrics().sum("tracer_attribution_gaps_total", &[("reason", reason)]))
        .sum()
}

#[test]
fn calls_of_an_optimised_c_program_are_what_they_measured() {
    let Some(_turn) = begin("declared_calls_c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_calls");
    let of = |caller: &str, callee: &str| format!("call = {{ caller = \"{caller}\", callee = \"{callee}\" }}");
    let all = [
        ("once", of("once", "work") + "\nfail = \"return != 0\"\nuser = \"arg2:string\""),
        ("imported", of("imported", "usleep")),
        ("sometimes", of("sometimes", "work")),
    ];
    let all: Vec<(&str, &str)> = all.iter().map(|(name, rest)| (*name, rest.as_str())).collect();
    let config = declare(dir.path(), &program, &all);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let (process, truths) = run(dir.path(), &program);
    for truth in truths.iter().filter(|truth| all.iter().any(|(name, _)| *name == truth.name)) {
        compare(&agent, "C at -O2, call", truth);
    }
    let users = agent.json("/api/v1/arm/users");
    let counts: Vec<(&str, u64)> = users["users"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| Some((row["user"].as_str()?, row["count"].as_u64()?)))
        .collect();
    assert_eq!(counts, [("even", ROUNDS as u64 / 2), ("odd", ROUNDS as u64 / 2)]);
    assert!(gaps(&agent) < 0.5, "{}", agent.text("/metrics"));
    drop(process);
    agent.stop();
}

#[test]
fn calls_of_a_go_program_are_what_they_measured() {
    let toolchain = go::toolchain("1.27.");
    let Some(_turn) = begin("declared_calls_go", &[toolchain]) else { return };
    let dir = scratch();
    // Without symbols: Go's own table has the functions.
    let program = go::build(Path::new(toolchain), dir.path(), "declared_calls.go", &["-ldflags=-s -w"]);
    let rest = "call = { caller = \"main.once\", callee = \"main.work\" }\nfail = \"return < 0\"";
    let config = declare(dir.path(), &program, &[("once", rest)]);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let (process, truths) = run(dir.path(), &program);
    assert_eq!(truths.len(), 1);
    compare(&agent, "Go, call", &truths[0]);
    drop(process);
    agent.stop();
}

/// The number of the first line of the source that contains `text`, from 1.
fn line(text: &str) -> usize {
    let source = std::fs::read_to_string(source("declared_calls.c")).expect("the source");
    source.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("no line with {text}")) + 1
}

fn lines(from: &str, to: &str) -> String {
    format!("lines = {{ file = \"declared_calls.c\", from = {}, to = {} }}", line(from), line(to))
}

#[test]
fn lines_of_an_optimised_c_program_are_what_they_measured() {
    let Some(_turn) = begin("declared_lines_c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_calls");
    let straight = lines("sum += work(n, \"lines\")", "sum *= 3");
    let looping = lines("int most = lengths", "sum += work(i, \"loop\")");
    let config = declare(dir.path(), &program, &[("lines", &straight), ("looping", &looping)]);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let (process, truths) = run(dir.path(), &program);
    for truth in truths.iter().filter(|truth| ["lines", "looping"].contains(&truth.name.as_str())) {
        compare(&agent, "C at -O2,", truth);
    }
    assert!(gaps(&agent) < 0.5, "{}", agent.text("/metrics"));
    drop(process);
    agent.stop();
}

#[test]
fn lines_that_cannot_be_declared_say_why() {
    let Some(_turn) = begin("declared_lines_check", &["cc", "strip"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_calls");
    let place = format!("{}:4: ", dir.path().join("tracer.toml").display());
    let check = |rest: &str| {
        let config = declare(dir.path(), &program, &[("a", rest)]);
        command(&["declare", "--check", &config.display().to_string()])
    };
    for (rest, why) in [
        // Its own code, and a copy where it is called.
        (lines("int small(int n)", "int small(int n)"), "inlined several times"),
        (lines("int twice(int n)", "int tail(int n)"), "inlined several times, or more than one function's lines"),
        (lines("// Calls for", "// Calls for"), "optimised out"),
        (lines("int tail(int n)", "int tail(int n)"), "tail call"),
        ("lines = { file = \"nothing.c\", from = 1, to = 2 }".into(), "no such file in the line table"),
    ] {
        let refused = check(&rest);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.out.starts_with(&place) && refused.out.contains(why), "{rest}: {refused:?}");
    }
    assert!(Command::new("strip").arg(&program).status().expect("strip").success());
    let refused = check(&lines("int twice(int n)", "int twice(int n)"));
    assert!(refused.code == Some(2) && refused.out.contains("no line table"), "{refused:?}");
}

#[test]
fn calls_that_cannot_be_declared_say_why() {
    let Some(_turn) = begin("declared_calls_check", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_calls");
    let place = format!("{}:4: ", dir.path().join("tracer.toml").display());
    let check = |rest: &str| {
        let config = declare(dir.path(), &program, &[("a", rest)]);
        command(&["declare", "--check", &config.display().to_string()])
    };
    let fine = check("call = { caller = \"once\", callee = \"work\" }");
    assert!(fine.code == Some(0) && fine.out.contains("the call instruction and the one behind it"), "{fine:?}");
    for (caller, callee, why) in [
        ("twice", "work", "several matches: 'twice' calls 'work' at 2 places"),
        ("tail", "work", "tail-called"),
        ("inlines", "small", "it was inlined there"),
        ("by_pointer", "other", "1 calls through pointers"),
        ("once", "nothing", "no such symbol 'nothing'"),
        ("nothing", "work", "no such symbol 'nothing'"),
        ("imported", "work", "'imported' has no call of 'work'"),
    ] {
        let refused = check(&format!("call = {{ caller = \"{caller}\", callee = \"{callee}\" }}"));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.out.starts_with(&place) && refused.out.contains(why), "{caller} {callee}: {refused:?}");
    }
    let both = check("function = \"once\"\ncall = { caller = \"once\", callee = \"work\" }");
    assert!(
        both.code == Some(2) && format!("{}{}", both.out, both.err).contains("tracer.toml:5:8: either"),
        "{both:?}"
    );
}
