//! Users and metrics of declared transactions against what the program counted itself: in the reports, on the spans, and
//! never as a label.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{Agent, command};
use tracer_tests::process::Process;
use tracer_tests::workload::compile_optimised;
use tracer_tests::{begin, figure, go, http, say, scale, scratch, wait};

const ROUNDS: usize = 210;

/// What the program counted: of one user, or in all.
#[derive(Debug)]
struct Truth {
    user: String,
    count: u64,
    wall: f64,
    failed: u64,
    items: i64,
    level: i64,
}

fn users(output: &str) -> Vec<Truth> {
    let of = |line: &str| {
        let mut words = line.strip_prefix("USER ")?.splitn(6, ' ');
        let mut next = || words.next()?.parse::<i64>().ok();
        let (count, wall, failed) = (next()? as u64, next()? as f64 / 1e9, next()? as u64);
        let (items, level) = (next()?, next()?);
        Some(Truth { user: words.next()?.to_owned(), count, wall, failed, items, level })
    };
    output.lines().filter_map(of).collect()
}

fn declare(dir: &Path, program: &Path, function: &str, values: &str) -> PathBuf {
    let file = dir.join("tracer.toml");
    let program = program.display();
    let text = format!(
        "[[transaction]]\nname = \"handle\"\nprogram = \"{program}\"\nfunction = \"{function}\"\nfail = \"return:i64 < 0\"\n{values}\n"
    );
    std::fs::write(&file, text).expect("a file");
    file
}

fn run(agent: &Agent, dir: &Path, program: &Path) -> Process {
    let mut run = Command::new(program);
    run.arg(ROUNDS.to_string()).env("OTEL_SERVICE_NAME", "kernels");
    let mut process = Process::start("kernels", &mut run, &dir.join("kernels.log"));
    process.line("DONE", Duration::from_secs(60));
    wait("every call to be counted", Duration::from_secs(20), || {
        let rows = agent.json("/api/v1/arm/measurements");
        (rows["measurements"][0]["count"].as_u64() == Some(ROUNDS as u64)).then_some(())
    });
    process
}

/// Compares the reports with what the program counted; `kept`: bytes of a text that are kept.
fn compare(agent: &Agent, what: &str, output: &str, kept: usize) {
    let truths = users(output);
    assert_eq!(truths.len(), 7, "{output}");
    let report = agent.json("/api/v1/arm/users");
    let rows = report["users"].as_array().expect("rows");
    assert_eq!(rows.len(), truths.len(), "{report}");
    for truth in &truths {
        let name: String = truth.user.chars().take(kept).collect();
        let row = rows.iter().find(|row| row["user"] == name).unwrap_or_else(|| panic!("no {name:?} in {report}"));
        assert_eq!(row["count"], truth.count, "{truth:?} {row}");
        assert_eq!(row["failed"], truth.failed, "{truth:?} {row}");
        assert_eq!(row["metrics"]["items"]["sum"], truth.items, "{truth:?} {row}");
        assert_eq!(row["metrics"]["level"]["sum"], truth.level, "{truth:?} {row}");
        // The program may lose the CPU between its own clock and the probes: then it measures less.
        let time = row["time_s"].as_f64().expect("a time");
        assert!(time > truth.wall * 0.999, "{truth:?} {row}");
    }
    let measured = agent.json("/api/v1/arm/measurements");
    let row = &measured["measurements"][0];
    assert_eq!((&row["service_name"], &row["user_unread"]), (&Value::from("kernels"), &Value::from(0)));
    let metrics = agent.json("/api/v1/arm/metrics");
    let of = |name: &str| {
        let rows = metrics["metrics"].as_array().expect("rows");
        rows.iter().find(|row| row["metric"] == name).cloned().unwrap_or_else(|| panic!("no {name} in {metrics}"))
    };
    let sum = |of: fn(&Truth) -> i64| truths.iter().map(of).sum::<i64>();
    assert_eq!(of("items")["sum"], sum(|truth| truth.items));
    assert_eq!(of("level")["sum"], sum(|truth| truth.level));
    assert_eq!(of("level")["min"], -((ROUNDS - 1) as i64));
    assert_eq!(of("tag")["last"], format!("tag {}", ROUNDS - 1));
    assert!(of("tag")["sum"].is_null() && of("id")["sum"].is_null());
    assert!(["items", "level", "tag", "id"].iter().all(|name| of(name)["unread"] == 0), "{metrics}");
    let csv = agent.text("/api/v1/arm/users?format=csv");
    assert!(csv.starts_with("transaction,service_name,user,"), "{csv}");
    assert!(csv.contains("\"with, comma \"\"and\"\" quotes\""), "{csv}");
    assert_eq!(csv.matches("\r\n").count(), 8, "{csv}");
    // Values are no labels.
    let labels = agent.text("/metrics");
    assert!(!labels.contains("\"ann\"") && !labels.contains("tag 1"), "a label");
    let spans = spans(agent);
    spans_have_values(&spans);
    let walls = output.lines().filter_map(|line| line.strip_prefix("CALL ")?.parse::<f64>().ok());
    let mut off: Vec<f64> = spans
        .iter()
        .zip(walls)
        .map(|(span, wall)| 100.0 * (span["duration_s"].as_f64().expect("a time") * 1e9 / wall - 1.0))
        .collect();
    assert_eq!(off.len(), ROUNDS);
    off.sort_by(f64::total_cmp);
    let median = off[ROUNDS / 2];
    say(&format!("{what}: {ROUNDS} calls of 7 users, response time {median:+.2} % (median), metrics equal"));
    figure(&format!("{what} response time with values"), &format!("{median:+.2} %"));
    assert!(median.abs() < 1.0 + 4.0 * (1.0 / scale() - 1.0), "{off:?}");
}

/// The spans of all calls, in the order they began.
fn spans(agent: &Agent) -> Vec<Value> {
    let mut spans = wait("spans with values", Duration::from_secs(20), || {
        let text = std::fs::read_to_string(&agent.transactions).ok()?;
        let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let spans: Vec<Value> = spans.into_iter().filter(|span| span["protocol"] == "declared").collect();
        (spans.len() == ROUNDS).then_some(spans)
    });
    spans.sort_by_key(|span| span["start_ns"].as_i64());
    spans
}

fn spans_have_values(spans: &[Value]) {
    let last = format!("tag {}", ROUNDS - 1);
    let last = spans.iter().map(|span| &span["attributes"]).find(|all| all["tracer.metric.tag"] == last.as_str());
    let last = last.expect("the last call");
    assert_eq!(last["enduser.id"], "zoe", "{last}");
    assert_eq!(last["tracer.metric.level"], -((ROUNDS - 1) as i64), "{last}");
    assert_eq!(last["tracer.metric.items"], ((ROUNDS - 1) * 7919) as u64, "{last}");
}

#[test]
fn users_and_metrics_of_a_c_program_are_what_it_counted() {
    let Some(_turn) = begin("declared_values_c", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_values");
    let values = r#"user = "arg2:string"
metrics = [
    { name = "items", type = "counter", value = "arg1:u32" },
    { name = "level", type = "gauge", value = "return:i64" },
    { name = "tag", type = "string", value = "arg4" },
    { name = "id", type = "id", value = "arg5" },
]"#;
    let config = declare(dir.path(), &program, "handle", values);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let process = run(&agent, dir.path(), &program);
    compare(&agent, "C at -O2", &process.output(), 63);
    let refused = http::get(agent.listen, "/api/v1/arm/users?format=xml").expect("a reply");
    assert_eq!(refused.status, 400);
    let definitions = agent.json("/api/v1/arm/definitions");
    let one = &definitions["definitions"][0];
    assert_eq!((&one["kind"], &one["user"]), (&Value::from("function"), &Value::from("arg2:string")), "{definitions}");
    drop(process);
    agent.stop();
}

#[test]
fn users_and_metrics_of_a_go_program_are_what_it_counted() {
    let toolchain = go::toolchain("1.27.");
    let Some(_turn) = begin("declared_values_go", &[toolchain]) else { return };
    let dir = scratch();
    let program = go::build(Path::new(toolchain), dir.path(), "declared_values.go", &[]);
    let values = r#"user = "arg2:string"
metrics = [
    { name = "items", type = "counter", value = "arg1" },
    { name = "level", type = "gauge", value = "arg4" },
    { name = "tag", type = "string", value = "arg5" },
    { name = "id", type = "id", value = "arg7" },
]"#;
    let config = declare(dir.path(), &program, "main.handle", values);
    let agent = Agent::start(dir.path(), &["--config", &config.display().to_string()]);
    let process = run(&agent, dir.path(), &program);
    compare(&agent, "Go", &process.output(), 64);
    drop(process);
    agent.stop();
}

#[test]
fn values_that_cannot_be_had_say_why() {
    let Some(_turn) = begin("declared_values_check", &["cc"]) else { return };
    let dir = scratch();
    let program = compile_optimised(dir.path(), "declared_values");
    let check = |values: &str| {
        let config = declare(dir.path(), &program, "handle", values);
        command(&["declare", "--check", &config.display().to_string()])
    };
    let fine = check("user = \"arg2:string\"");
    assert!(fine.code == Some(0) && fine.out.contains("user arg2:string"), "{fine:?}");
    let beyond = check("user = \"arg9\"");
    assert!(beyond.code == Some(2) && beyond.out.contains("registers of arguments can be read"), "{beyond:?}");
    let wrong = check("metrics = [{ name = \"a\", type = \"counter\", value = \"arg1:string\" }]");
    let place = format!("{}:6:", dir.path().join("tracer.toml").display());
    assert!(wrong.code == Some(2) && format!("{}{}", wrong.out, wrong.err).contains(&place), "{wrong:?}");
}
