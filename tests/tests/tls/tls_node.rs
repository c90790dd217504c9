//! Text inside the TLS connections of Node.js, whose OpenSSL works over memory and in one event loop: by the builds that
//! have OpenSSL inside (18, 22) and by the installed one. As many requests, with the same statuses, as the servers log,
//! at both ends, no wrong parent, and no harm while probes come and go.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::go::node_of;
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, Tally, parents, report_parents};
use tracer_tests::tls::{Counts, certificate, counts, differences};
use tracer_tests::tls_pair::{ServerAndClients, both_ends, logged};
use tracer_tests::workload::source;
use tracer_tests::{begin, changed_code, figure, find, free_port, scratch, wait};

const WORKLOAD: &str = "tls_node.js";

fn node(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(find(program).expect("Node.js"));
    command.arg(source(WORKLOAD)).args(arguments).env("OTEL_SERVICE_NAME", "node");
    command
}

/// A server by Node.js that logs to `served.log` in `dir`; its port.
fn serve(program: &str, dir: &Path, (certificate, key): &(String, String), more: &[&str]) -> (Process, u16) {
    let log = dir.join("served.log").display().to_string();
    let arguments = [&["serve", certificate, key, &log], more].concat();
    let mut server = Process::start("node", &mut node(program, &arguments), &dir.join("node.log"));
    let port = server.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    (server, port)
}

fn ask(program: &str, port: u16, arguments: &[&str]) {
    let asked = outcome(&mut node(program, &[&["ask", &port.to_string()], arguments].concat()), "ask");
    assert_eq!(asked.code, Some(0), "{}", asked.err);
}

fn agent(dir: &Path, ports: &[u16]) -> Agent {
    let mut arguments = vec!["--nice=-10".to_owned(), "--max-cpu".into(), "400%".into()];
    arguments.extend(ports.iter().flat_map(|port| ["--port".to_owned(), port.to_string()]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Agent::start(dir, &arguments)
}

/// Asks until a request to the server is seen: a program with OpenSSL inside is searched once nothing else is to be done.
fn warm(tail: &mut Tail, port: u16, ask: impl Fn()) {
    wait("the program to be searched", Duration::from_secs(120), || {
        ask();
        let served = |span: &Span| span.server && span.port == port && span.protocol == "http";
        (tail.until(1, Duration::from_millis(200), served) > 0).then_some(())
    });
}

fn is_warm(span: &Span) -> bool {
    span.path.contains("/warm-")
}

/// Requests that the server logged, those that warmed up aside.
fn truth(dir: &Path) -> Counts {
    logged(&dir.join("served.log")).into_iter().filter(|((path, _), _)| !path.contains("/warm-")).collect()
}

fn node_at_both_ends(program: &str, name: &str) {
    let Some(_turn) = begin(name, &[program, "openssl"]) else { return };
    let asks: [&[&str]; 4] = [
        &["a", "1.2", "20", "20"],
        &["b", "1.3", "20", "20"],
        &["c", "1.2", "5", "24", "node,e,big", "h2"],
        &["d", "1.3", "5", "24", "node,e,big", "h2"],
    ];
    let (right, count) =
        both_ends(name, &ServerAndClients::interpreted(&[program], WORKLOAD), &asks, 2 * (20 * 20 + 5 * 24));
    assert_eq!(right, count, "each served request has the call of the other end");
}

#[test]
fn node_18_at_both_ends() {
    node_at_both_ends(node_of("18."), "tls_node_18");
}

#[test]
fn node_at_both_ends_as_installed() {
    node_at_both_ends("node", "tls_node");
}

#[test]
fn node_22_at_both_ends() {
    node_at_both_ends(node_of("22."), "tls_node_22");
}

#[test]
fn node_24_at_both_ends() {
    node_at_both_ends(node_of("24."), "tls_node_24");
}

/// Built by clang, unlike those before.
#[test]
fn node_26_at_both_ends() {
    node_at_both_ends(node_of("26."), "tls_node_26");
}

#[test]
fn curl_to_a_server_by_node() {
    for program in [node_of("18."), "node", node_of("22.")] {
        let Some(_turn) = begin("tls_node_curl", &[program, "curl", "openssl"]) else { continue };
        let dir = scratch();
        let (_server, port) = serve(program, dir.path(), &certificate(dir.path()), &[]);
        let agent = agent(dir.path(), &[port]);
        let mut tail = Tail::new(&agent.transactions);
        let curl = |options: &[&str], paths: &[String]| {
            let mut command = Command::new("curl");
            command.arg("-sk").args(options);
            for path in paths {
                command.args(["-o", "/dev/null"]).arg(format!("https://127.0.0.1:{port}{path}?secret=hunter2"));
            }
            assert_eq!(outcome(&mut command, "curl").code, Some(0));
        };
        warm(&mut tail, port, || curl(&[], &["/node/warm-0".into()]));
        let connections = 10;
        for version in ["1.2", "1.3"] {
            for protocol in ["--http1.1", "--http2"] {
                for connection in 0..connections {
                    let path =
                        |(place, kind): (usize, &&str)| format!("/{kind}/{version}{protocol}-{connection}-{place}");
                    let paths: Vec<String> = ["node", "e", "big"].iter().enumerate().map(path).collect();
                    curl(&[protocol, "--tls-max", version], &paths);
                }
            }
        }
        let sent = 4 * 3 * connections;
        let is_ours = |span: &Span| span.port == port && span.protocol == "http" && !is_warm(span);
        tail.until(2 * sent, Duration::from_secs(20), is_ours);
        let lost = agent.metrics().lost();
        let transactions = agent.transactions.clone();
        agent.stop();
        assert!(!std::fs::read_to_string(transactions).expect("spans").contains("hunter2"));
        let truth = truth(dir.path());
        assert_eq!(truth.values().sum::<usize>(), sent, "what the server logged");
        let all = tail.spans;
        for server in [true, false] {
            let found = counts(all.iter().filter(|span| is_ours(span) && span.server == server));
            let differ = differences(&truth, &found);
            assert!(
                differ.is_empty(),
                "{program}, server {server}: {} differ: {differ:?}; lost {lost:?}",
                differ.len()
            );
        }
        let served = all.iter().filter(|span| is_ours(span) && span.server);
        let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
        figure("curl to a server by Node.js", &format!("{count} of {sent} at both ends, {right} with their call"));
        assert_eq!((wrong, right), (0, count));
    }
}

/// Calls by their parents: `/b/KIND/ID/kN` belongs to `/KIND/ID`. By kind of request: right, wrong and no parents.
fn callers<'a>(all: &'a [Span], calls: impl Iterator<Item = &'a Span>) -> BTreeMap<&'a str, Tally> {
    let by_id: BTreeMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let mut found: BTreeMap<&str, Tally> = BTreeMap::new();
    for call in calls {
        let (request, kind) = (
            call.path.strip_prefix("/b").and_then(|path| path.rsplit_once("/k")).expect("a call's path").0,
            call.path.split('/').nth(2).expect("a kind"),
        );
        let tally = found.entry(kind).or_default();
        match call.parent.as_deref().and_then(|parent| by_id.get(parent)) {
            None => tally.none += 1,
            Some(parent) if parent.path == request && parent.server => tally.right += 1,
            Some(_) => tally.wrong += 1,
        }
    }
    found
}

#[test]
fn calls_within_requests_of_node() {
    calls_within_requests(&[node_of("18."), "node", node_of("22."), node_of("24.")]);
}

#[test]
fn calls_within_requests_of_node_26() {
    calls_within_requests(&[node_of("26.")]);
}

fn calls_within_requests(programs: &[&str]) {
    for program in programs.iter().copied() {
        let Some(_turn) = begin("tls_node_calls", &[program, "nginx", "openssl"]) else { continue };
        let dir = scratch();
        let files = certificate(dir.path());
        let back = free_port();
        let nginx = Nginx::start(
            dir.path(),
            "",
            &format!(
                "listen 127.0.0.1:{back} ssl; ssl_certificate {}; ssl_certificate_key {};
                 location /b/ {{ return 200 \"yes\\n\"; }}",
                files.0, files.1
            ),
        );
        let (_server, front) = serve(program, dir.path(), &files, &[&back.to_string()]);
        let agent = agent(dir.path(), &[front, back]);
        let mut tail = Tail::new(&agent.transactions);
        warm(&mut tail, front, || ask(program, front, &["warm", "1.3", "1", "1"]));
        let kinds = ["direct", "row", "nap", "fetch"];
        for (version, label) in [("1.2", "a"), ("1.3", "b")] {
            ask(program, front, &[label, version, "8", "40", &kinds.join(",")]);
        }
        let sent = 2 * 8 * 40;
        // A quarter of the requests calls twice.
        let called = sent + sent / 4;
        let at = |span: &Span, port: u16, server: bool| {
            span.port == port && span.server == server && span.protocol == "http" && !is_warm(span)
        };
        let ours = |span: &Span| {
            at(span, front, true) || at(span, front, false) || at(span, back, true) || at(span, back, false)
        };
        tail.until(2 * (sent + called), Duration::from_secs(20), ours);
        let lost = agent.metrics().lost();
        agent.stop();
        let all = tail.spans;
        let served = truth(dir.path());
        assert_eq!(served.values().sum::<usize>(), sent, "what Node.js logged");
        let mut called_truth = Counts::new();
        for entry in nginx.logged() {
            *called_truth.entry((entry.path().to_owned(), entry.status)).or_default() += 1;
        }
        assert_eq!(called_truth.values().sum::<usize>(), called, "what nginx logged");
        for (port, truth) in [(front, &served), (back, &called_truth)] {
            for server in [true, false] {
                let found = counts(all.iter().filter(|span| at(span, port, server)));
                let differ = differences(truth, &found);
                let place = if port == front { "front" } else { "back" };
                assert!(
                    differ.is_empty(),
                    "{program}, {place}, server {server}: {} differ: {differ:?}; lost {lost:?}",
                    differ.len()
                );
            }
            let served = all.iter().filter(|span| at(span, port, true));
            let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
            let alone: Vec<_> = all
                .iter()
                .filter(|span| at(span, port, true) && span.parent.is_none())
                .map(|span| &span.path)
                .collect();
            let both: Vec<_> = all.iter().filter(|span| alone.contains(&&span.path)).collect();
            assert_eq!(
                (wrong, right),
                (0, count),
                "served requests have the call of the other end; lost {lost:?}; not: {both:#?}"
            );
        }
        let found = callers(&all, all.iter().filter(|span| at(span, back, false)));
        for (kind, tally) in &found {
            figure(&format!("Node.js over TLS, {kind}"), &format!("{tally:?}"));
        }
        assert!(found.values().all(|tally| tally.wrong == 0), "{found:?}");
        assert_eq!(found.len(), kinds.len());
    }
}

#[test]
fn probes_come_and_go_under_load_of_node() {
    for program in [node_of("18."), "node", node_of("22.")] {
        let Some(_turn) = begin("tls_node_harm", &[program, "openssl"]) else { continue };
        let dir = scratch();
        let (mut server, port) = serve(program, dir.path(), &certificate(dir.path()), &[]);
        let (connections, requests) = (16, 4000);
        let asks = ["ask", &port.to_string(), "load", "1.3", &connections.to_string(), &requests.to_string(), "node,e"];
        let (mut loads, mut agents, mut rounds) = (0, 0, 0);
        while rounds < 3 {
            assert!(loads < 8, "{rounds} rounds while {loads} loads went on");
            loads += 1;
            let mut load = Process::start("load", &mut node(program, &asks), &dir.path().join("load.log"));
            while load.ended().is_none() {
                agents += 1;
                let agent = Agent::start_named(&format!("agent{agents}"), dir.path(), &["--hertz", "0", "--nice=-10"]);
                // Nothing but Node.js uses TLS meanwhile.
                let hits = || agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", "tls_copy")]);
                let hit = wait("hits", Duration::from_secs(60), || {
                    if hits() > 0.0 { Some(true) } else { load.ended().map(|_| false) }
                });
                agent.stop();
                rounds += u32::from(hit);
            }
            let status = load.wait(Duration::from_secs(1));
            assert!(status.success(), "{status}: {}", load.output());
        }
        assert!(server.ended().is_none(), "{}", server.output());
        let served = truth(dir.path()).values().sum::<usize>();
        figure("attached to Node.js and detached under load", &format!("{rounds} times; {served} requests, 0 failed"));
        assert_eq!(served, loads * connections * requests);
        assert_eq!(changed_code::of(server.pid()), [], "what stays behind in Node.js");
    }
}

/// A program that runs for a moment ends before it was searched for OpenSSL: the next time it runs it is traced.
#[test]
fn tunnels_of_a_program_that_ends_at_once() {
    // Another program than the one in the tunnel, so that nothing but the client has the file.
    let program = node_of("24.");
    let Some(_turn) = begin("tls_node_tunnels", &[program, "node", "nginx", "openssl"]) else { return };
    let dir = scratch();
    let files = certificate(dir.path());
    let port = free_port();
    let directives = format!(
        "listen 127.0.0.1:{port} ssl; ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 \"yes\\n\"; }}",
        files.0, files.1
    );
    let nginx = Nginx::start(dir.path(), "", &directives);
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(find(program).expect("Node.js"));
        command.arg(source("tls_tunnel.js")).args(arguments);
        command
    };
    let mut proxy = Process::start("proxy", &mut run("node", &["proxy"]), &dir.path().join("proxy.log"));
    let near = proxy.line("PORT", Duration::from_secs(20)).trim().to_owned();
    let agent = agent(dir.path(), &[port, near.parse().expect("a port")]);
    let mut tail = Tail::new(&agent.transactions);
    let ask = |count: usize, path: &str| {
        let arguments = ["ask", &near, &port.to_string(), &count.to_string(), path];
        let asked = outcome(run(program, &arguments).env("OTEL_SERVICE_NAME", "brief"), "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
    };
    // What is asked before the program was searched is not seen.
    let warm = |span: &Span| span.service == "brief" && span.path.starts_with("/warm-");
    wait("the program to be searched", Duration::from_secs(60), || {
        ask(1, "/warm-");
        tail.read();
        tail.spans.iter().any(warm).then_some(())
    });
    ask(40, "/asked");
    let asked =
        |span: &Span| !span.server && span.service == "brief" && span.protocol == "http" && span.path == "/asked";
    tail.until(40, Duration::from_secs(20), asked);
    let lost = agent.metrics().lost();
    agent.stop();
    tail.read();
    let served = nginx.logged().iter().filter(|entry| entry.path() == "/asked").count();
    let found: Vec<&Span> = tail.spans.iter().filter(|span| asked(span)).collect();
    assert_eq!((found.len(), served), (40, 40), "lost {lost:?}");
    assert!(found.iter().all(|span| span.status == Some(200)), "{found:?}");
}
