//! Graded instrumentation: of two hot functions of a C program the one that probes would slow down is found out and left
//! alone, and the other becomes a request class whose counts are those of the program.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, command};
use tracer_tests::process::Process;
use tracer_tests::workload::compile_optimised;
use tracer_tests::{begin, figure, say, scratch, wait};

const LIMIT: Duration = Duration::from_secs(60);

/// What the program says when it stops.
#[derive(Debug)]
struct Truth {
    seldom: u64,
    often: u64,
    longest: f64,
    code: [String; 2],
}

/// Has the program stop, and gives what it says.
fn stop(process: &mut Process, nth: usize) -> Truth {
    process.signal(libc::SIGUSR1);
    let line = wait("the program to stop", LIMIT, || {
        process.output().lines().filter(|line| line.starts_with("STOPPED ")).nth(nth).map(ToOwned::to_owned)
    });
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
    Truth {
        seldom: number(3),
        often: number(5),
        longest: number(9) as f64 / 1e9,
        code: [words[11].to_owned(), words[12].to_owned()],
    }
}

fn go_on(process: &Process) {
    process.signal(libc::SIGUSR1);
}

/// The decisions about a function, oldest first: action and reason.
fn decisions(answer: &Value, function: &str) -> Vec<(String, String)> {
    let all = answer["decisions"].as_array().expect("decisions").iter().rev();
    let text = |one: &Value, key: &str| one[key].as_str().expect("a text").to_owned();
    all.filter(|one| one["function"] == function).map(|one| (text(one, "action"), text(one, "reason"))).collect()
}

fn asked(agent: &Agent) -> Value {
    agent.json("/api/v1/instrumentation")
}

/// Calls of the class that were counted, when there are no more.
fn counted(agent: &Agent) -> u64 {
    let count =
        || agent.metrics().sum("tracer_requests_total", &[("request_class", "auto:seldom"), ("protocol", "declared")]);
    let mut last = -1.0;
    wait("a count that stays", LIMIT, || {
        let now = count();
        let stays = (now - last).abs() < 0.5;
        last = now;
        std::thread::sleep(Duration::from_millis(1500));
        stays.then_some(now as u64)
    })
}

#[test]
fn a_hot_function_becomes_a_class_and_one_that_costs_too_much_does_not() {
    let Some(_turn) = begin("instrumentation", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "instrumented");
    let config = dir.path().join("tracer.toml");
    let text = "[instrument]\nauto = true\nbudget = \"1%\"\ninterval = \"2s\"\nservices = [\"kernels\"]\n";
    std::fs::write(&config, text).expect("a file");
    let mut run = Command::new(&program);
    run.env("OTEL_SERVICE_NAME", "kernels");
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    process.line("STEPS", LIMIT);
    let before = stop(&mut process, 0);
    go_on(&process);

    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let removed = wait("the function that is called too often to be left alone", LIMIT, || {
        let answer = asked(&agent);
        let all = decisions(&answer, "often");
        (all.len() >= 2).then_some((all, answer))
    });
    let pair = |action: &str, reason: &str| (action.to_owned(), reason.to_owned());
    assert_eq!(removed.0[..2], [pair("added", "hot"), pair("removed", "too_many_calls")], "{}", removed.1);
    wait("the other one to be traced", LIMIT, || {
        let traced = asked(&agent);
        let mut functions = traced["functions"].as_array().expect("functions").iter();
        functions
            .any(|one| one["function"] == "seldom" && one["state"] == "traced" && one["count"].as_u64() > Some(0))
            .then_some(())
    });

    // Between two stops every call is counted.
    let first = stop(&mut process, 1);
    let first_counted = counted(&agent);
    go_on(&process);
    std::thread::sleep(Duration::from_secs(3));
    let second = stop(&mut process, 2);
    let second_counted = counted(&agent);
    go_on(&process);
    let (calls, all) = (second_counted - first_counted, second.seldom - first.seldom);
    say(&format!(
        "{calls} of {all} calls; longest round before {:.1} ms, while functions were tried {:.1} ms, after that {:.1} ms",
        before.longest * 1e3,
        first.longest * 1e3,
        second.longest * 1e3
    ));
    figure("instrumentation, calls of a hotspot", &format!("{calls} of {all}"));
    assert!(calls == all && all > 100, "{calls} {all}");
    // One function has a probe, the other one has none any more.
    assert_eq!((first.code[1].as_str(), second.code[1].as_str()), (before.code[1].as_str(), before.code[1].as_str()));
    assert_ne!(second.code[0], before.code[0], "{second:?}");
    // The program was held up for a moment only.
    assert!(first.longest < 1.0 && second.longest < 0.2, "{first:?} {second:?}");
    assert!(second.often > first.often, "{second:?}");

    let answer = wait("it to be learnt", 3 * LIMIT, || {
        let answer = asked(&agent);
        (decisions(&answer, "seldom").len() >= 2).then_some(answer)
    });
    let seldom = decisions(&answer, "seldom");
    // Where others want the CPU, too, its response time changes as long as it is looked at.
    let ended = [pair("removed", "learnt"), pair("removed", "long_enough")];
    assert!(seldom[0] == pair("added", "hot") && ended.contains(&seldom[1]), "{answer}");
    figure("instrumentation, a hotspot is removed because", &seldom[1].1);
    assert_eq!(decisions(&answer, "often").len(), 2, "it is not tried again: {answer}");
    let row = answer["functions"]
        .as_array()
        .expect("functions")
        .iter()
        .find(|one| one["function"] == "seldom")
        .expect("a row");
    say(&format!("seldom: {row}"));
    let rate = row["calls_per_second"].as_f64().expect("a rate");
    let mean = row["mean_s"].as_f64().expect("a mean");
    // A hundred a second of two milliseconds, fewer on a busy host.
    assert!(rate > 20.0 && rate < 110.0 && mean > 0.0015, "{row}");
    assert!(answer["cost_ratio"].as_f64() <= answer["budget_ratio"].as_f64(), "{answer}");
    let metrics = agent.metrics();
    assert!((metrics.sum("tracer_instrumentation_decisions_total", &[("action", "removed")]) - 2.0).abs() < 0.5);
    agent.stop();

    let after = stop(&mut process, 3);
    assert_eq!(after.code, before.code, "nothing stays");
    go_on(&process);
}

#[test]
fn nothing_is_instrumented_by_default() {
    let Some(_turn) = begin("instrumentation_default", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "instrumented");
    let mut run = Command::new(&program);
    run.env("OTEL_SERVICE_NAME", "kernels");
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    process.line("STEPS", LIMIT);
    let agent = Agent::start(dir.path(), &[]);
    wait("a profile", LIMIT, || agent.text("/profile.folded?service=kernels").contains("often").then_some(()));
    let answer = asked(&agent);
    assert!(answer["enabled"] == false && answer["functions"].as_array().is_some_and(Vec::is_empty), "{answer}");
    agent.stop();
    let wrong = dir.path().join("wrong.toml");
    std::fs::write(&wrong, "[instrument]\nfunctions = 0\n").expect("a file");
    let refused = command(&["check-config", &wrong.display().to_string()]);
    assert!(refused.code == Some(2) && refused.err.contains(":2:13: 0 is out of range"), "{refused:?}");
}
