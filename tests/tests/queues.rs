//! Where a request waits before it is read: for its connection to be accepted, or in the socket. Against the clocks of a
//! server that accepts late and reads late, and of its client.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{self, Agent};
use tracer_tests::process::Process;
use tracer_tests::units::{self, Tail, Unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch};

/// What the client printed of one request, seconds: the least and the most it can have waited.
#[derive(Debug)]
struct Truth {
    /// Sent before its connection was accepted.
    early: bool,
    /// Until it was read, all in all.
    queue: RangeInclusive<f64>,
    /// For accept.
    accept: RangeInclusive<f64>,
    /// After accept.
    socket: RangeInclusive<f64>,
}

fn truth(words: &str) -> (String, Truth) {
    let mut words = words.split(' ');
    let path = words.next().expect("a path").to_owned();
    let early = words.next() == Some("1");
    let times: Vec<f64> = words.map(|word| word.parse::<f64>().expect("nanoseconds") / 1e9).collect();
    let [sent, arrived, accepts, accepted, reads, read] = times[..] else { panic!("{times:?}") };
    // Seconds are rounded where they are printed.
    let between = |least: f64, most: f64| (least - 1e-6).max(0.0)..=most + 1e-6;
    let queue = between(reads - arrived, read - sent);
    let truth = if early {
        Truth {
            early,
            queue,
            accept: between(accepts - arrived, accepted - sent),
            socket: between(reads - accepted, read - accepts),
        }
    } else {
        Truth { early, socket: queue.clone(), queue, accept: 0.0..=0.0 }
    };
    (path, truth)
}

/// Whether this kernel shows when connections are accepted, as `tracer doctor` has it.
fn is_divided() -> bool {
    let outcome = agent::command(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    let features = report["features"].as_array().expect("features");
    let feature = features.iter().find(|feature| feature["name"] == "accept queue").expect("accept queue");
    say(&format!("queues: {} ({})", feature["state"], feature["detail"]));
    feature["state"] == "full"
}

fn wrong(unit: &Unit, truth: &Truth, divided: bool) -> Option<String> {
    let queues = unit.accept_queue_s.zip(unit.socket_queue_s);
    let apart = match queues {
        // What is not known is said to be unknown, and only then.
        None => truth.early && !divided,
        Some((accept, socket)) => {
            (divided || !truth.early)
                && truth.accept.contains(&accept)
                && truth.socket.contains(&socket)
                && (accept + socket - unit.queue_s).abs() < 1e-6
        }
    };
    let right = apart && truth.queue.contains(&unit.queue_s);
    (!right).then(|| format!("{}: queue {} of it {queues:?}; {truth:?}", unit.path, unit.queue_s))
}

#[test]
fn accept_queue_and_socket_queue_are_told_apart_or_said_to_be_one() {
    let Some(_turn) = begin("queues", &["python3"]) else { return };
    let divided = is_divided();
    let dir = scratch();
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut truths = HashMap::new();
    for family in ["tcp4", "tcp6", "unix"] {
        let mut command = Command::new(find("python3").expect("python3"));
        command.arg("-u").arg(source("queues.py")).arg(family).arg(dir.path().join("queues.socket"));
        command.env("OTEL_SERVICE_NAME", "queues");
        let mut process = Process::start("queues", &mut command, &dir.path().join(format!("{family}.log")));
        assert!(process.wait(Duration::from_secs(60)).success(), "{}", process.said());
        truths.extend(process.said().lines().filter_map(|line| line.strip_prefix("REQUEST ")).map(truth));
    }
    assert_eq!(truths.len(), 3 * 3 * 4, "{truths:?}");
    Tail::new(&agent.transactions)
        .until(2 * truths.len(), Duration::from_secs(10), |unit| truths.contains_key(&unit.path));
    let metrics = agent.metrics();
    let file = agent.transactions.clone();
    agent.stop();

    let units = units::read(&file);
    let served: Vec<&Unit> = units.iter().filter(|unit| unit.server && truths.contains_key(&unit.path)).collect();
    assert_eq!(served.len(), truths.len(), "each request once");
    let wrong: Vec<String> = served.iter().filter_map(|unit| wrong(unit, &truths[&unit.path], divided)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), served.len(), wrong.join("\n"));
    let asked = units.iter().filter(|unit| !unit.server && truths.contains_key(&unit.path));
    assert!(asked.clone().count() > 0, "calls were seen");
    assert!(asked.clone().all(|unit| unit.accept_queue_s.is_none() && unit.queue_s == 0.0), "a call waits in no queue");
    for (metric, of_units) in [
        ("tracer_work_queue_seconds_total", served.iter().map(|unit| unit.queue_s).sum::<f64>()),
        ("tracer_work_accept_queue_seconds_total", served.iter().filter_map(|unit| unit.accept_queue_s).sum()),
        ("tracer_work_socket_queue_seconds_total", served.iter().filter_map(|unit| unit.socket_queue_s).sum()),
    ] {
        let counted = metrics.sum(metric, &[("service_name", "queues")]);
        assert!((counted - of_units).abs() < 1e-4, "{metric}: {counted}, of units {of_units}");
    }
    let early = served.iter().filter(|unit| truths[&unit.path].early).count();
    figure(
        "accept queue",
        &format!(
            "{early} {} and {} accepted earlier, of {}",
            if divided { "divided" } else { "as one" },
            served.len() - early,
            served.len()
        ),
    );
}
