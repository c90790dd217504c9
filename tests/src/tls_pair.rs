//! A server and clients over TLS by the same program, judged by what the server logged.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::agent::{Agent, outcome};
use crate::process::Process;
use crate::spans::{Span, Tail, parents, report_parents};
use crate::tls::{Counts, certificate, counts, differences};
use crate::workload::source;
use crate::{figure, find, scratch, wait};

/// What a server logged: a line "PATH STATUS" for each request.
pub fn logged(log: &Path) -> Counts {
    let mut found = Counts::new();
    for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
        let (path, status) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        *found.entry((path.to_owned(), status.parse().expect("a status"))).or_default() += 1;
    }
    found
}

/// A program that is a server and clients.
pub struct ServerAndClients<'a> {
    /// The interpreter and its options, or the program itself.
    pub run: &'a [&'a str],
    /// The workload's source, if it has an interpreter.
    pub source: Option<&'a str>,
    /// A probe that its text hits.
    pub probe: &'a str,
}

impl<'a> ServerAndClients<'a> {
    /// One that OpenSSL encrypts for.
    pub fn interpreted(run: &'a [&'a str], source: &'a str) -> Self {
        Self { run, source: Some(source), probe: "tls_copy" }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let [program, options @ ..] = self.run else { panic!("no program") };
        let mut command = Command::new(find(program).unwrap_or_else(|| panic!("no {program}")));
        command.args(options).args(self.source.map(source)).args(arguments);
        command
    }
}

/// A server and clients by the same program, each in a process of its own; `asks` are the clients' arguments behind the port. How
/// many served requests have the other end's call as parent, of how many.
pub fn both_ends(name: &str, program: &ServerAndClients<'_>, asks: &[&[&str]], requests: usize) -> (u64, u64) {
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let log = dir.path().join("served.log");
    let run = |arguments: &[&str]| {
        let mut command = program.command(arguments);
        command.env("OTEL_SERVICE_NAME", name);
        command
    };
    let log_path = log.display().to_string();
    let mut server =
        Process::start("server", &mut run(&["serve", &certificate, &key, &log_path]), &dir.path().join("server.log"));
    let port: u16 = server.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%", "--port", &port.to_string()]);
    // A program with a library inside is searched once nothing else is to be done.
    wait("its file to be traced", Duration::from_secs(120), || {
        let asked = outcome(&mut run(&[&["ask", &port.to_string()], &["warm", "1.2", "1", "1"][..]].concat()), "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
        let hits = agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", program.probe)]);
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
        let some = &differ[..differ.len().min(8)];
        assert!(differ.is_empty(), "{name}, server {server}: {} differ: {some:?}; lost {lost:?}", differ.len());
    }
    let served = all.iter().filter(|span| is_http(span) && span.server);
    let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
    figure(name, &format!("{count} of {requests} at both ends, {right} with their call"));
    assert_eq!(wrong, 0);
    (right, count)
}
