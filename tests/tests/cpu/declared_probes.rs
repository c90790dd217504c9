//! Transactions between USDT probes against what the programs say: a C program that measures itself, with a semaphore and
//! arguments of every kind, and PostgreSQL, whose log has each statement's duration.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, command, outcome};
use tracer_tests::declared::declare;
use tracer_tests::postgresql::{Postgres, programs};
use tracer_tests::process::Process;
use tracer_tests::workload::compile_optimised;
use tracer_tests::{begin, figure, say, scale, scratch, wait};

const ROUNDS: usize = 100;

/// The spans of a transaction, in the order they began, once there are `count`.
fn spans(agent: &Agent, name: &str, count: usize) -> Vec<Value> {
    let mut spans = wait(&format!("{count} spans of {name}"), Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).ok()?;
        let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = |span: &Value| span["protocol"] == "declared" && span["request_class"] == name;
        let spans: Vec<Value> = spans.into_iter().filter(of).collect();
        (spans.len() >= count).then_some(spans)
    });
    assert_eq!(spans.len(), count, "{name}");
    spans.sort_by_key(|span| span["start_ns"].as_i64());
    spans
}

/// Compares response times with what was measured otherwise, seconds; the median within one per cent.
fn within_one_percent(what: &str, pairs: &[(f64, f64)]) {
    let mut off: Vec<f64> = pairs.iter().map(|(time, truth)| 100.0 * (time / truth - 1.0)).collect();
    off.sort_by(f64::total_cmp);
    let median = off[off.len() / 2];
    say(&format!("{what}: {} calls, response time {median:+.2} % (median)", off.len()));
    figure(&format!("{what} response time"), &format!("{median:+.2} %"));
    assert!(median.abs() < 1.0 + 4.0 * (1.0 / scale() - 1.0), "{what}: {off:?}");
}

fn time(span: &Value) -> f64 {
    span["duration_s"].as_f64().expect("a time")
}

/// The seconds of every call that the program measured.
fn truth(output: &str, name: &str) -> Vec<f64> {
    let line = output.lines().find_map(|line| line.strip_prefix(&format!("TRUTH {name} "))).expect("a truth");
    line.split(' ').skip(2).map(|nanos| nanos.parse::<f64>().expect("a number") / 1e9).collect()
}

fn gap(agent: &Agent, reason: &str) -> u64 {
    agent.metrics().sum("tracer_attribution_gaps_total", &[("reason", reason)]) as u64
}

#[test]
fn probes_of_a_c_program_are_what_it_measured() {
    let Some(_turn) = begin("declared_probes_c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_probes");
    let of =
        |begin: &str, end: &str| format!("probes = {{ provider = \"kernels\", begin = \"{begin}\", end = \"{end}\" }}");
    let values = r#"
user = "arg2:string"
metrics = [
    { name = "items", type = "counter", value = "arg1" },
    { name = "level", type = "gauge", value = "arg3" },
    { name = "constant", type = "id", value = "arg4" },
    { name = "round", type = "gauge", value = "global:rounds_done:i64" },
]"#;
    let ticks = "probes = { provider = \"kernels\", begin = \"tick\" }\n\
                 metrics = [{ name = \"value\", type = \"counter\", value = \"arg1\" }]";
    let globals = r#"
metrics = [
    { name = "bytes", type = "counter", value = "arg1" },
    { name = "round", type = "gauge", value = "global:rounds_done:i64" },
]"#;
    let all = [
        ("handle", of("begin", "end") + "\nfail = \"end.arg1 >= 100\"" + values),
        ("nested", of("nested__begin", "nested__end")),
        ("abandoned", of("abandoned__begin", "abandoned__end")),
        ("tick", ticks.to_owned() + "\nfail = \"arg1:i64 >= 50000000350\""),
        ("ending", "function = \"end\"".to_owned() + globals),
    ];
    let all: Vec<(&str, &str)> = all.iter().map(|(name, rest)| (*name, rest.as_str())).collect();
    let config = declare(dir.path(), &program, &all);
    let mut run = Command::new(&program);
    run.arg(ROUNDS.to_string()).env("OTEL_SERVICE_NAME", "kernels");
    // Before the agent: the semaphore of a process that runs already is raised, too.
    let mut process = Process::start("kernels", &mut run, &dir.path().join("kernels.log"));
    assert_eq!(process.line("BEFORE", Duration::from_secs(10)), "0");
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    process.signal(libc::SIGUSR1);
    process.line("DONE", Duration::from_secs(120));
    let output = process.output();
    assert_eq!(process.line("DURING", Duration::from_secs(10)), "1");

    for name in ["handle", "nested"] {
        let truths = truth(&output, name);
        let mut spans = spans(&agent, name, truths.len());
        if name == "nested" {
            // The program writes them as they end.
            spans.sort_by_key(|span| span["start_ns"].as_i64().map(|at| at + (time(span) * 1e9) as i64));
        }
        let pairs: Vec<(f64, f64)> = spans.iter().map(time).zip(truths).collect();
        within_one_percent(&format!("C at -O2, probes {name}"), &pairs);
    }
    // What was begun and not ended is no parent.
    let nested = spans(&agent, "nested", 60);
    assert!(nested.iter().all(|span| span["parent_span_id"].is_null()), "{nested:?}");
    // Those whose end did not come are counted as such: each as soon as the next one begins.
    assert_eq!(spans(&agent, "abandoned", ROUNDS - ROUNDS / 5).len(), ROUNDS - ROUNDS / 5);
    assert_eq!((gap(&agent, "declared_unreturned"), gap(&agent, "declared_unmatched")), (ROUNDS as u64 / 5 - 1, 0));
    let ticks = spans(&agent, "tick", ROUNDS);
    assert!(ticks.iter().all(|span| time(span) == 0.0), "{}", ticks[0]);
    let sums: i64 = ticks.iter().map(|span| span["attributes"]["tracer.metric.value"].as_i64().expect("a value")).sum();
    assert_eq!(sums, (0..ROUNDS as i64).map(|n| n * 1_000_000_007).sum::<i64>());

    // An argument of the probe that ends it says which failed (64 + n of it is 100 and more), of a mark its own does.
    for (name, expected) in [("handle", ROUNDS - 36), ("tick", ROUNDS - 50)] {
        let labels = [("request_class", name), ("protocol", "declared"), ("status", "error")];
        let failed = agent.metrics().sum("tracer_requests_total", &labels);
        assert!((failed - expected as f64).abs() < 0.5, "{name}: {failed} of {expected}");
    }

    let report = agent.json("/api/v1/arm/users");
    let rows = report["users"].as_array().expect("rows");
    for line in output.lines().filter_map(|line| line.strip_prefix("USER ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let row = rows.iter().find(|row| row["user"] == words[3]).unwrap_or_else(|| panic!("no {line} in {report}"));
        let number = |at: usize| Value::from(words[at].parse::<i64>().expect("a number"));
        assert_eq!(row["count"], number(0), "{line} {row}");
        assert_eq!(row["metrics"]["items"]["sum"], number(1), "{line} {row}");
        assert_eq!(row["metrics"]["level"]["sum"], number(2), "{line} {row}");
    }
    let metrics = agent.json("/api/v1/arm/metrics");
    let of = |transaction: &str, name: &str| {
        let rows = metrics["metrics"].as_array().expect("rows");
        let is_it = |row: &&Value| row["transaction"] == transaction && row["metric"] == name;
        rows.iter().find(is_it).cloned().unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    assert_eq!(of("handle", "constant")["last"], -7, "{metrics}");
    // A global variable, seen from a probe and from a function.
    let rounds: i64 = (0..ROUNDS as i64).sum();
    assert_eq!((&of("handle", "round")["sum"], &of("ending", "round")["sum"]), (&rounds.into(), &rounds.into()));
    assert_eq!(of("ending", "bytes")["sum"], 64 * ROUNDS as i64 + rounds, "{metrics}");
    assert!(metrics["metrics"].as_array().expect("rows").iter().all(|row| row["unread"] == 0), "{metrics}");
    agent.stop();
    process.signal(libc::SIGUSR1);
    assert_eq!(process.line("AFTER", Duration::from_secs(10)), "0");
}

#[test]
fn statements_of_postgresql_are_what_its_log_says() {
    let postgres = programs().map(|dir| dir.join("postgres"));
    let needed = postgres.as_ref().map_or("postgres", |path| path.to_str().unwrap_or("postgres"));
    let Some(_turn) = begin("declared_probes_postgresql", &[needed]) else { return };
    let dir = scratch();
    let server = Postgres::start(dir.path());
    let file = declare(
        dir.path(),
        &postgres.expect("PostgreSQL"),
        &[(
            "statement",
            "probes = { provider = \"postgresql\", begin = \"query__start\", end = \"query__done\" }\n\
             metrics = [{ name = \"sql\", type = \"string\", value = \"arg1\" }]",
        )],
    );
    let config = file.display().to_string();
    let checked = command(&["declare", "--check", &config]);
    assert!(checked.code == Some(0) && checked.out.contains("from 1 place to 1 place"), "{checked:?}");
    let agent = Agent::start(dir.path(), &["--config", &config]);
    // An error leaves the statement by a jump: `query__done` is not reached.
    let statements: Vec<String> = (0..60)
        .map(|n| match n % 6 {
            5 => format!("SELECT 1/0 /* {n} */"),
            _ => format!("SELECT pg_sleep(0.02) /* {n} */"),
        })
        .collect();
    let mut psql = server.psql();
    psql.args(["-o", "/dev/null"]);
    for statement in &statements {
        psql.args(["-c", statement]);
    }
    outcome(&mut psql, "psql");
    let log: BTreeMap<String, f64> = wait("the log", Duration::from_secs(20), || {
        let logged = server.log().into_iter().filter(|one| one.step == "statement");
        let log: BTreeMap<String, f64> =
            logged.filter_map(|one| Some((one.sql, one.duration_s?))).filter(|(sql, _)| sql.contains("/*")).collect();
        (log.len() == 50).then_some(log)
    });
    let spans = spans(&agent, "statement", log.len());
    let pairs: Vec<(f64, f64)> = spans
        .iter()
        .map(|span| {
            let sql = span["attributes"]["tracer.metric.sql"].as_str().expect("a text");
            (time(span), *log.get(sql).unwrap_or_else(|| panic!("{sql} is not in the log")))
        })
        .collect();
    within_one_percent("PostgreSQL, statements", &pairs);
    wait("what did not end", Duration::from_secs(20), || (gap(&agent, "declared_unreturned") == 10).then_some(()));
    // Within the request that the server's protocol shows.
    let children = spans.iter().filter(|span| span["parent_span_id"].is_string()).count();
    assert_eq!(children, spans.len(), "{}", spans[0]);
    agent.stop();
}

#[test]
fn probes_that_cannot_be_declared_say_why() {
    let Some(_turn) = begin("declared_probes_check", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_probes");
    let listed = command(&["declare", "--list", &program.display().to_string(), "kernels:*"]);
    let expected = "usdt:kernels:begin arg1:u32 arg2:u64 arg3:i16 arg4:i32 arg5:8f@%xmm0, cannot be read: it is a \
                    floating-point number\n";
    assert!(listed.code == Some(0) && listed.out.contains(expected), "{listed:?}");
    assert_eq!(listed.out.lines().count(), 7, "{listed:?}");
    let check = |rest: &str| {
        let config = declare(dir.path(), &program, &[("a", rest)]);
        command(&["declare", "--check", &config.display().to_string()])
    };
    let of = |begin: &str, rest: &str| format!("probes = {{ provider = \"kernels\", begin = \"{begin}\" }}\n{rest}");
    let fine = check(&of("begin", "user = \"arg2:string\""));
    assert!(fine.code == Some(0) && fine.out.contains("counted without a duration"), "{fine:?}");
    for (rest, why) in [
        (of("started", ""), "no USDT probe 'kernels:started' (there are: kernels:abandoned__begin"),
        (of("begin", "user = \"arg5\""), "floating-point"),
        (of("begin", "user = \"arg6\""), "it has 5 arguments"),
        (of("begin", "user = \"arg1:string\""), "4@%edi is not a pointer"),
        (of("begin", "user = \"global:rounds_done\""), "'rounds_done' has 8 bytes and is not 4 bytes: give its type"),
        (of("begin", "user = \"global:of_thread\""), "every thread has a 'of_thread' of its own"),
        (of("begin", "user = \"global:nothing\""), "no symbol of a variable 'nothing'"),
    ] {
        let refused = check(&rest);
        assert!(refused.code == Some(2) && refused.out.contains(why), "{rest}: {refused:?}");
    }
    let none = command(&["declare", "--list", "/bin/true", "kernels:*"]);
    assert!(none.code == Some(2) && none.err.contains("nothing fits"), "{none:?}");
}
