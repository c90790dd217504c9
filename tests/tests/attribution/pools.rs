//! Compares how long a request waits for a pool thread with the clocks of the request's thread and of the job: reported
//! where it is certain, and right there.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::load::{self, Request};
use tracer_tests::spans::{self, Tail};
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, find, say, scratch};

const CLIENTS: u64 = 8;
const EACH: u64 = 60;

/// For a request that waited for a job: seconds until the job began, from before and from after its submission.
type Waited = (f64, f64);

fn truth(line: &str) -> Option<(String, Waited)> {
    let mut words = line.strip_prefix("JOB ")?.split(' ');
    let path = words.next()?.to_owned();
    let [before, after, began] = [words.next()?, words.next()?, words.next()?].map(|word| word.parse::<f64>().ok());
    let began = began?;
    Some((path, ((began - before?) / 1e9, ((began - after?) / 1e9).max(0.0))))
}

/// Runs the server and compares the reported waits with its output; at least this share must be known.
fn judge(name: &'static str, command: impl FnOnce(&std::path::Path) -> Command, least: f64) {
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut command = command(dir.path());
    command.env("UPSTREAM_PORT", upstream.address.port().to_string());
    let server = Server::start(name, dir.path(), &mut command);
    let plan = |prefix: &str, client| (0..EACH).map(|r| Request::get(format!("/w/{prefix}c{client}r{r}"))).collect();
    // The agent attaches a pool's probes when it first sees the pool.
    assert!(load::run(server.address, vec![plan("warm", 0)]).broken().is_empty(), "{}", server.process.output());
    let loaded = load::run(server.address, (0..CLIENTS).map(|client| plan("", client)).collect());
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    let own = |path: &str| path.starts_with("/w/c");
    let all = (CLIENTS * EACH) as usize;
    Tail::new(&agent.transactions).until(all, Duration::from_secs(20), |span| span.server && own(&span.path));
    let file = agent.transactions.clone();
    let metrics = agent.metrics();
    agent.stop();
    let truths: HashMap<String, Waited> = server.process.output().lines().filter_map(truth).collect();
    let spans = spans::read(&file);
    let (mut known, mut reported, mut most, mut least_sum, mut all_reported) = (0, 0.0, 0.0, 0.0, 0.0);
    let mut wrong = Vec::new();
    for span in spans.iter().filter(|span| span.server && span.service == name) {
        let Some(waited) = span.pool_queue_s else { continue };
        all_reported += waited;
        let Some((from_before, from_after)) = truths.get(&span.path).filter(|_| own(&span.path)) else { continue };
        known += 1;
        reported += waited;
        most += from_before;
        least_sum += from_after;
        // The thread slept only after it had begun to submit the job, and the job began before it read the clock.
        if waited > from_before + 1e-6 {
            wrong.push(format!("{}: {waited} of at most {from_before}", span.path));
        }
    }
    let share = f64::from(known) / all as f64;
    say(&format!(
        "{name}: known of {known} of {all}, {reported:.3} s reported, {least_sum:.3} to {most:.3} s by their clocks, {} wrong",
        wrong.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(share >= least, "known of {share}, at least {least} expected");
    // Beyond that, reported waits are shorter only by the time a thread takes to fall asleep, and a job to read the
    // clock.
    assert!(reported > 0.9 * least_sum, "{reported} s reported, {least_sum} by the clocks");
    let counted = metrics.sum("tracer_request_pool_queue_seconds_total", &[("service_name", name)]);
    assert!((counted - all_reported).abs() < 0.001 + 0.01 * all_reported, "{counted} counted, {all_reported} reported");
}

#[test]
fn java() {
    let Some(_turn) = begin("pools_java", &["java", "javac", "cc"]) else { return };
    let command = |dir: &std::path::Path| {
        let find = |program: &str| find(program).unwrap_or_else(|| panic!("no {program}"));
        let done = Command::new(find("javac")).arg("-d").arg(dir).arg(source("Pool.java")).output();
        let done = done.unwrap_or_else(|error| panic!("javac: {error}"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let mut command = Command::new(find("java"));
        command.args(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(dir).arg("Pool");
        command
    };
    // Once its own locks have looked like jobs without a waiter, nothing is certain for a while.
    judge("javapool", command, 0.05);
}

#[test]
fn python() {
    let Some(_turn) = begin("pools_python", &["python3", "cc"]) else { return };
    let command = |_: &std::path::Path| {
        let mut command = Command::new(find("python3").unwrap_or_else(|| panic!("no python3")));
        command.arg("-u").arg(source("pool.py"));
        command
    };
    judge("pythonpool", command, 0.3);
}
