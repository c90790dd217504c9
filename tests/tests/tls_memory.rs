//! Text of TLS objects that read and write memory, by programs that move the encrypted bytes themselves: as many requests
//! as the server logged, at both ends, and no wrong parent.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::tls::{Counts, certificate, counts, differences};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, scratch, wait};

/// What the server logged.
fn logged(log: &Path) -> Counts {
    let mut found = Counts::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        let (path, status) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        *found.entry((path.to_owned(), status.parse().expect("a status"))).or_default() += 1;
    }
    found
}

/// A server and clients by the same program, each in a process of its own: `asks` are the clients' arguments behind the
/// port. How many served requests have the other end's call as parent, of how many.
fn both_ends(name: &str, program: &[&str], asks: &[&[&str]], requests: usize) -> (u64, u64) {
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let log = dir.path().join("served.log");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(find(program[0]).expect("the program"));
        command.arg(source(program[1])).args(arguments).env("OTEL_SERVICE_NAME", name);
        command
    };
    let log_path = log.display().to_string();
    let mut server =
        Process::start("server", &mut run(&["serve", &certificate, &key, &log_path]), &dir.path().join("server.log"));
    let port: u16 = server.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%", "--port", &port.to_string()]);
    // A program with OpenSSL inside is searched once nothing else is to be done.
    wait("its file to be traced", Duration::from_secs(60), || {
        let asked = outcome(&mut run(&[&["ask", &port.to_string()], &["warm", "1.2", "1", "1"][..]].concat()), "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
        let hits = agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", "tls_copy")]);
        (hits > 0.0).then_some(())
    });
    for ask in asks {
        let asked = outcome(&mut run(&[&["ask", &port.to_string()], *ask].concat()), "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
    }
    let mut tail = Tail::new(&agent.transactions);
    let is_http = |span: &Span| {
        (span.port == port || span.peer_port == port) && span.protocol == "http" && !span.path.contains("/warm-")
    };
    tail.until(2 * requests, Duration::from_secs(20), is_http);
    let metrics = agent.metrics();
    let lost = metrics.lost();
    agent.stop();
    let truth: Counts = logged(&log).into_iter().filter(|((path, _), _)| !path.contains("/warm-")).collect();
    assert_eq!(truth.values().sum::<usize>(), requests, "what the server logged");
    let all = tail.spans;
    for server in [true, false] {
        let found = counts(all.iter().filter(|span| is_http(span) && span.server == server));
        let differ = differences(&truth, &found);
        assert!(differ.is_empty(), "{name}, server {server}: {} differ: {differ:?}; lost {lost:?}", differ.len());
    }
    let served = all.iter().filter(|span| is_http(span) && span.server);
    let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
    figure(name, &format!("{count} of {requests} at both ends, {right} with their call"));
    assert_eq!(wrong, 0);
    (right, count)
}

#[test]
fn asyncio_at_both_ends() {
    let Some(_turn) = begin("tls_asyncio", &["python3", "openssl"]) else { return };
    // The last ones ask several times before they read.
    let asks: [&[&str]; 4] = [
        &["a", "1.2", "20", "20"],
        &["b", "1.3", "20", "20"],
        &["c", "1.2", "5", "24", "4"],
        &["d", "1.3", "5", "24", "4"],
    ];
    let (right, count) = both_ends("asyncio", &["python3", "tls_asyncio.py"], &asks, 2 * (20 * 20 + 5 * 24));
    assert_eq!(right, count, "each served request has the call of the other end");
}
