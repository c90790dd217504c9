//! Where a request waits before it is read: for its connection to be accepted, or in the socket. Compared with the
//! clocks of a server that accepts late and reads late, and of its client.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tracer_tests::agent::{self, Agent};
use tracer_tests::process::Process;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, say, scratch};

/// The client's figures for one request, seconds: the least and the greatest possible wait.
#[derive(Debug)]
struct Truth {
    /// Sent before its connection was accepted.
    early: bool,
    /// Total time until it was read.
    queue: RangeInclusive<f64>,
    /// Wait for accept.
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
    // Seconds are rounded when printed.
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

/// Whether this kernel shows when connections are accepted, according to `tracer doctor`.
fn is_divided() -> bool {
    let outcome = agent::command(&["doctor", "--json"]);
    let report: Value = serde_json::from_str(&outcome.out).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    let features = report["features"].as_array().expect("features");
    let feature = features.iter().find(|feature| feature["name"] == "accept queue").expect("accept queue");
    say(&format!("queues: {} ({})", feature["state"], feature["detail"]));
    feature["state"] == "full"
}

fn wrong(span: &Span, truth: &Truth, divided: bool) -> Option<String> {
    let queues = span.accept_queue_s.zip(span.socket_queue_s);
    let apart = match queues {
        // Unknown waits must be reported as unknown, and only those.
        None => truth.early && !divided,
        Some((accept, socket)) => {
            (divided || !truth.early)
                && truth.accept.contains(&accept)
                && truth.socket.contains(&socket)
                && (accept + socket - span.queue_s).abs() < 1e-6
        }
    };
    let right = apart && truth.queue.contains(&span.queue_s);
    (!right).then(|| format!("{}: queue {} of it {queues:?}; {truth:?}", span.path, span.queue_s))
}

#[test]
fn accept_queue_and_socket_queue_are_separate_or_reported_as_one() {
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
        assert!(process.wait(Duration::from_secs(60)).success(), "{}", process.output());
        truths.extend(process.output().lines().filter_map(|line| line.strip_prefix("REQUEST ")).map(truth));
    }
    assert_eq!(truths.len(), 3 * 3 * 4, "{truths:?}");
    Tail::new(&agent.transactions)
        .until(2 * truths.len(), Duration::from_secs(10), |span| truths.contains_key(&span.path));
    let metrics = agent.metrics();
    let file = agent.transactions.clone();
    agent.stop();

    let spans = spans::read(&file);
    let served: Vec<&Span> = spans.iter().filter(|span| span.server && truths.contains_key(&span.path)).collect();
    assert_eq!(served.len(), truths.len(), "each request once");
    let wrong: Vec<String> = served.iter().filter_map(|span| wrong(span, &truths[&span.path], divided)).collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), served.len(), wrong.join("\n"));
    let asked = spans.iter().filter(|span| !span.server && truths.contains_key(&span.path));
    assert!(asked.clone().count() > 0, "calls were seen");
    assert!(asked.clone().all(|span| span.accept_queue_s.is_none() && span.queue_s == 0.0), "a call waits in no queue");
    for (metric, of_units) in [
        ("tracer_request_queue_seconds_total", served.iter().map(|span| span.queue_s).sum::<f64>()),
        ("tracer_request_accept_queue_seconds_total", served.iter().filter_map(|span| span.accept_queue_s).sum()),
        ("tracer_request_socket_queue_seconds_total", served.iter().filter_map(|span| span.socket_queue_s).sum()),
    ] {
        let counted = metrics.sum(metric, &[("service_name", "queues")]);
        assert!((counted - of_units).abs() < 1e-4, "{metric}: {counted}, of spans {of_units}");
    }
    let early = served.iter().filter(|span| truths[&span.path].early).count();
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
