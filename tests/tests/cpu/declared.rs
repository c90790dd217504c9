//! Declared transactions against what the functions measured of themselves: counts, response times, CPU, failures and
//! stacks of a C and of a Go program; and a declared function within requests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, command};
use tracer_tests::process::Process;
use tracer_tests::stat::HostCpuSource;
use tracer_tests::workload::{Server, compile, compile_optimised};
use tracer_tests::{begin, figure, go, http, say, scale, scratch, wait};

const ROUNDS: usize = 200;

/// A class as the program measured it. Times in seconds.
#[derive(Debug)]
struct Truth {
    name: String,
    count: f64,
    wall: f64,
    cpu: f64,
    failed: f64,
}

fn truths(output: &str) -> Vec<Truth> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("TRUTH ")?.split(' ');
        let name = words.next()?.to_owned();
        let mut next = || words.next().and_then(|word| word.parse::<f64>().ok());
        Some(Truth { name, count: next()?, wall: next()? / 1e9, cpu: next()? / 1e9, failed: next()? })
    };
    output.lines().filter_map(of).collect()
}

fn declare(dir: &Path, program: &Path, functions: &[(&str, &str, &str)]) -> PathBuf {
    let file = dir.join("tracer.toml");
    let text: Vec<String> = functions
        .iter()
        .map(|(name, function, fail)| {
            let fail = if fail.is_empty() { String::new() } else { format!("fail = \"{fail}\"\n") };
            format!(
                "[[transaction]]\nname = \"{name}\"\nprogram = \"{}\"\nfunction = \"{function}\"\n{fail}\n",
                program.display()
            )
        })
        .collect();
    std::fs::write(&file, text.concat()).expect("a file");
    file
}

fn class(agent: &Agent, name: &str) -> Option<Value> {
    let classes = agent.json("/api/v1/classes");
    let mut of = classes["classes"].as_array()?.iter();
    of.find(|class| class["request_class"] == name && class["protocol"] == "declared").cloned()
}

/// Compares every class with its truth. `stolen`: seconds of CPU that the host took away meanwhile, which can count as a call's
/// own (docs/limits.md#cpu).
fn compare(agent: &Agent, service: &str, truths: &[Truth], cpu_within: f64, stolen: f64) {
    for truth in truths {
        let labels = [("service_name", service), ("request_class", truth.name.as_str()), ("protocol", "declared")];
        let all = wait("every call to be counted", Duration::from_secs(20), || {
            let metrics = agent.metrics();
            (metrics.sum("tracer_requests_total", &labels) >= truth.count).then_some(metrics)
        });
        let count = all.sum("tracer_requests_total", &labels);
        let cpu = all.sum("tracer_request_cpu_seconds_total", &labels);
        let mean = class(agent, &truth.name).expect("the class")["mean_s"].as_f64().unwrap_or(0.0);
        let wall = mean * count;
        let off = |one: f64, other: f64| 100.0 * (one / other - 1.0);
        say(&format!(
            "{service} {:9} {count:5.0} of {:5.0} calls, response time {:+.2} %, CPU {cpu:.4} s of {:.4} s",
            truth.name,
            truth.count,
            off(wall, truth.wall),
            truth.cpu,
        ));
        figure(&format!("{service} {} response time", truth.name), &format!("{:+.2} %", off(wall, truth.wall)));
        assert!((count - truth.count).abs() < 0.5, "{truth:?}: {count} calls");
        // Two probes per call, and what the program needs to measure itself.
        let slack = truth.count * 40e-6 / scale();
        assert!((wall - truth.wall).abs() < truth.wall * 0.02 + slack, "{truth:?}: {wall} s");
        let more = cpu - truth.cpu;
        let within = truth.cpu * cpu_within + slack;
        assert!(-within < more && more < within + stolen, "{truth:?}: {cpu} s of CPU, {stolen} s stolen");
        let failed = [&labels[..], &[("status", "error")]].concat();
        let errors = all.sum("tracer_requests_total", &failed);
        assert!((errors - truth.failed).abs() < 0.5, "{truth:?}: {errors} errors");
    }
}

#[test]
fn functions_of_a_c_program_are_what_they_measured() {
    let Some(_turn) = begin("declared_c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "declared");
    let functions = [
        ("busy", "busy", "return < 0"),
        ("sleepy", "sleepy", ""),
        ("nested", "nested", "return != 0"),
        ("deep", "deep", ""),
        ("jumper", "jumper", ""),
    ];
    let config = declare(dir.path(), &program, &functions);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let mut run = Command::new(&program);
    run.arg(ROUNDS.to_string()).env("OTEL_SERVICE_NAME", "kernels");
    let host = HostCpuSource::now();
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    process.line("DONE", Duration::from_secs(60));
    let stolen = HostCpuSource::now().since(host).stolen;
    let truths = truths(&process.output());
    assert_eq!(truths.len(), 4, "{}", process.output());
    compare(&agent, "kernels", &truths, 0.05, stolen);
    // A call that is left by `longjmp` is no call that ended.
    assert!(class(&agent, "jumper").is_none_or(|class| class["count"] == 0), "calls that did not return");
    let text = wait("stacks with names", Duration::from_secs(20), || {
        let text = agent.text("/profile.folded?service=kernels&class=busy");
        text.contains("busy").then_some(text)
    });
    let weight = |line: &str| line.rsplit(' ').next().and_then(|weight| weight.parse::<f64>().ok()).unwrap_or(0.0);
    let all: f64 = text.lines().map(weight).sum();
    let inside: f64 = text.lines().filter(|line| line.contains("busy")).map(weight).sum();
    say(&format!("flame graph of busy: {:.1} % of the samples are in it", 100.0 * inside / all));
    // The C library has no frame pointers: a stack that begins there can lack its callers.
    assert!(inside / all > 0.75, "{inside} of {all}\n{text}");
    assert!(!text.contains("sleepy") && !text.contains("deep"), "{text}");
    drop(process);
    agent.stop();
}

/// Response times within one per cent of the program's own clock, for data that fit into a cache and for data that do not.
#[test]
fn numeric_kernels_take_as_long_as_they_say() {
    let Some(_turn) = begin("declared_kernels", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "kernels");
    let kernels = ["fft", "sor", "monte_carlo", "sparse", "lu"];
    let names: Vec<String> =
        kernels.iter().flat_map(|name| [format!("{name}_small"), format!("{name}_large")]).collect();
    let functions: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str(), "return <= 0")).collect();
    let config = declare(dir.path(), &program, &functions);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let mut run = Command::new(&program);
    run.arg("20").env("OTEL_SERVICE_NAME", "kernels");
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    process.line("DONE", Duration::from_secs(120));
    let truths = truths(&process.output());
    assert_eq!(truths.len(), 10, "{}", process.output());
    let spans: Vec<Value> = wait("every call", Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).ok()?;
        let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let calls = spans.into_iter().filter(|span| span["protocol"] == "declared").collect::<Vec<_>>();
        (calls.len() as f64 >= truths.iter().map(|truth| truth.count).sum()).then_some(calls)
    });
    for Truth { name, count, wall, cpu, .. } in &truths {
        let of = |key: &str| {
            let calls = spans.iter().filter(|span| span["request_class"] == name.as_str());
            calls.map(|span| span[key].as_f64().unwrap_or(0.0)).collect::<Vec<f64>>()
        };
        let mut walls = of("duration_s");
        assert!((walls.len() as f64 - count).abs() < 0.5, "{name}: {} calls of {count}", walls.len());
        walls.sort_by(f64::total_cmp);
        let off = walls[walls.len() / 2] / wall - 1.0;
        let cpu = of("cpu_s").iter().sum::<f64>() / cpu - 1.0;
        say(&format!("{name:17} {:.2} ms, median {:+.3} %, CPU {:+.2} %", 1e3 * wall, 100.0 * off, 100.0 * cpu));
        assert!(off.abs() < 0.01 && cpu.abs() < 0.05, "{name}: {off} {cpu}");
    }
    drop(process);
    agent.stop();
}

#[test]
fn functions_of_a_go_program_are_what_they_measured() {
    let toolchain = go::toolchain("1.27.");
    let Some(_turn) = begin("declared_go", &[toolchain]) else { return };
    let dir = scratch();
    // Without symbols: Go's own table has the functions.
    let program = go::build(Path::new(toolchain), dir.path(), "declared.go", &["-ldflags=-s -w"]);
    let functions = [("hash", "main.hash", "return < 0"), ("grow", "main.grow", ""), ("recovers", "main.recovers", "")];
    let config = declare(dir.path(), &program, &functions);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let mut run = Command::new(&program);
    run.arg(ROUNDS.to_string()).env("OTEL_SERVICE_NAME", "kernels");
    let host = HostCpuSource::now();
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    process.line("DONE", Duration::from_secs(60));
    let stolen = HostCpuSource::now().since(host).stolen;
    let truths = truths(&process.output());
    assert_eq!(truths.len(), 3, "{}", process.output());
    compare(&agent, "kernels", &truths, 0.05, stolen);
    drop(process);
    agent.stop();
}

#[test]
fn a_function_within_requests_is_their_child() {
    let Some(_turn) = begin("declared_requests", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "declared");
    let config = declare(dir.path(), &program, &[("busy", "busy", "return < 0")]);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let server = Server::start("shop", dir.path(), Command::new(&program).arg("serve"));
    for _ in 0..20 {
        assert_eq!(http::get(server.address, "/buy").expect("a reply").status, 200);
    }
    let children = wait("every call within its request", Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).ok()?;
        let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |protocol: &'static str| spans.iter().filter(move |span| span["protocol"] == protocol);
        let requests: Vec<&Value> = of("http").filter(|span| span["service_name"] == "shop").collect();
        let is_child = |call: &&Value| {
            let same = |key: &str, request: &Value, other: &str| call[key] == request[other] && !call[key].is_null();
            requests
                .iter()
                .any(|request| same("parent_span_id", request, "span_id") && same("trace_id", request, "trace_id"))
        };
        let children = of("declared").filter(is_child).count();
        (children >= 20).then_some(children)
    });
    assert_eq!(children, 20);
    drop(server);
    agent.stop();
}

#[test]
fn what_cannot_be_declared_says_why() {
    let Some(_turn) = begin("declared_check", &["cc", "strip"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "declared");
    let check = |program: &Path, function: &str| {
        let config = declare(dir.path(), program, &[("a", function, "")]);
        command(&["declare", "--check", &config.display().to_string()])
    };
    let fine = check(&program, "busy");
    assert!(fine.code == Some(0) && fine.out.contains("2 probes"), "{fine:?}");
    let place = format!("{}:4: ", dir.path().join("tracer.toml").display());
    for (function, why) in [("busi", "no such symbol"), ("folded", "inlined away")] {
        let refused = check(&program, function);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.out.starts_with(&place) && refused.out.contains(why), "{refused:?}");
    }
    let stripped = Command::new("strip").arg(&program).status().expect("strip");
    assert!(stripped.success());
    let refused = check(&program, "busy");
    assert!(refused.out.contains("stripped"), "{refused:?}");
    let refused = check(Path::new("/etc/passwd"), "busy");
    assert!(refused.out.contains("is not an ELF program"), "{refused:?}");
}

#[test]
fn functions_of_interpreters_are_refused_by_name() {
    let Some(_turn) = begin("declared_interpreters", &[]) else { return };
    let dir = scratch();
    let check = |program: &Path, function: &str| {
        let config = declare(dir.path(), program, &[("one", function, "")]);
        command(&["declare", "--check", &config.display().to_string()])
    };
    let script = dir.path().join("app.py");
    std::fs::write(&script, "#!/usr/bin/env python3\nprint(1)\n").expect("a script");
    let refused = check(&script, "handler");
    assert!(
        refused.code == Some(2) && refused.out.contains("is a script of '/usr/bin/env python3'"),
        "{}",
        refused.out
    );
    let languages = [
        ("python3", "Python"),
        ("node", "JavaScript"),
        ("java", "Java"),
        ("php", "PHP"),
        ("ruby", "Ruby"),
        ("perl", "Perl"),
    ];
    let mut seen = Vec::new();
    for (program, language) in languages {
        let Ok(path) = Path::new("/usr/bin").join(program).canonicalize() else { continue };
        let refused = check(&path, "handler");
        let expected = format!(
            "no function 'handler' in the interpreter itself, and functions of {language} have no machine code"
        );
        assert!(
            refused.code == Some(2) && refused.out.contains(&expected),
            "{program}: {} {}",
            refused.out,
            refused.err
        );
        seen.push(language);
    }
    say(&format!("refused: {seen:?}"));
    // Its own functions are declared as those of any other program.
    if let Ok(python) = Path::new("/usr/bin/python3").canonicalize() {
        let fine = check(&python, "Py_BytesMain");
        assert!(fine.code == Some(0) || fine.out.contains("in the interpreter itself"), "{} {}", fine.out, fine.err);
    }
}
