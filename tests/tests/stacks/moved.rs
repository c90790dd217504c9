//! CPU per class where pool threads do the work: compares it with the clocks of the threads that did it, and the sum
//! with the process's own.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::metrics::Metrics;
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, http, load, say, scratch, wait};

/// Seconds of load per number of connections.
const LOAD: u64 = 6;
/// The server's work, and the least and greatest fraction of its threads' CPU for it that must be charged to its class.
/// If a job makes no call, its thread may take it from the queue without a wake-up, and before the submitting thread
/// sleeps: then nothing shows which request it was for, and it counts as overhead.
const KINDS: [(&str, f64, f64); 4] =
    [("own", 0.95, 1.05), ("before", 0.95, 1.05), ("after", 0.95, 1.05), ("bare", 0.7, 1.05)];
const SERVICE: &str = "moved";

fn truth(server: &Server) -> Value {
    let reply = http::get(server.address, "/truth").expect("the server's own books");
    serde_json::from_slice(&reply.body).expect("JSON")
}

#[test]
fn what_a_pool_burns_is_its_requests() {
    let Some(_turn) = begin("moved", &["python3", "cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg("-u").arg(source("moved.py")).env("OTEL_SERVICE_NAME", SERVICE);
    let server = Server::start("moved", dir.path(), command.env("UPSTREAM_PORT", upstream.address.port().to_string()));

    // The agent must see how a process's pools behave before it trusts them.
    let targets = KINDS.map(|(kind, ..)| format!("/{kind}"));
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let stop = |seconds| Instant::now() + Duration::from_secs(seconds);
    let (warm, bad) = load::until(server.address, 4, &targets, stop(3));
    assert_eq!(bad, 0);
    let counted = |metrics: &Metrics| KINDS.iter().map(|(kind, ..)| requests(metrics, kind)).sum::<f64>();
    let settled = |wanted: u64| {
        wait("every request to be counted", Duration::from_secs(30), || {
            let metrics = agent.metrics();
            (counted(&metrics) >= wanted as f64 - 0.5).then_some(metrics)
        })
    };
    settled(warm);
    std::thread::sleep(Duration::from_secs(3));
    let (before, first) = (agent.metrics(), truth(&server));
    let mut sent = warm;
    for connections in [1, 8] {
        let (good, bad) = load::until(server.address, connections, &targets, stop(LOAD));
        assert_eq!(bad, 0);
        sent += good;
    }
    settled(sent);
    std::thread::sleep(Duration::from_secs(3));
    let (after, last) = (agent.metrics(), truth(&server));
    let difference = |sum: &dyn Fn(&Metrics) -> f64| sum(&after) - sum(&before);
    let (mut classes, mut shares) = (0.0, Vec::new());
    for (kind, least, most) in KINDS {
        let of = |field: &str| {
            let value = |books: &Value| books[kind][field].as_f64().expect("a number");
            value(&last) - value(&first)
        };
        let traced = difference(&|metrics| metrics.sum("tracer_request_cpu_seconds_total", &labels(&class(kind))));
        classes += traced;
        let share = traced / of("seconds");
        say(&format!(
            "  {kind:6} {:5.0} requests, their threads used {:.4} s, traced {traced:.4} s ({share:.4})",
            of("count"),
            of("seconds")
        ));
        shares.push((kind, share, least..=most));
    }
    let service = |kind| {
        difference(&|metrics| {
            metrics.sum("tracer_service_cpu_seconds_total", &[("service_name", SERVICE), ("kind", kind)])
        })
    };
    let overhead = service("overhead");
    let used = |books: &Value| books["process"]["seconds"].as_f64().expect("a number");
    let process = used(&last) - used(&first);
    let sum = (classes + overhead) / process;
    say(&format!("  classes {classes:.4} s and overhead {overhead:.4} s of {process:.4} s ({sum:.4})"));
    say(&format!("  lost {:?}", after.lost()));
    let texts: Vec<String> = shares.iter().map(|(kind, share, _)| format!("{kind} {share:.3}")).collect();
    figure("a pool's CPU by class", &format!("{} of what threads used; all {sum:.4} of the process", texts.join(", ")));
    for (kind, share, within) in shares {
        assert!(within.contains(&share), "{kind}: {share}");
    }
    assert!((0.99..=1.01).contains(&sum), "{sum}");
    assert!((service("requests") - classes).abs() < 0.01 * classes, "{} and {classes}", service("requests"));
    agent.stop();
}

fn class(kind: &str) -> String {
    format!("GET /{kind}")
}

fn labels(class: &str) -> [(&str, &str); 2] {
    [("service_name", SERVICE), ("request_class", class)]
}

fn requests(metrics: &Metrics, kind: &str) -> f64 {
    metrics.sum("tracer_requests_total", &labels(&class(kind)))
}
