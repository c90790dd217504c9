//! Tracing narrowed to some services, processes or ports.

use std::path::Path;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::http;
use tracer_tests::spans::{self, Tail};
use tracer_tests::workload::Server;
use tracer_tests::{begin, say, scratch};

/// Paths that an agent with `arguments` saw each of two servers serve.
fn served(dir: &Path, arguments: &[&str], servers: [&Server; 2]) -> Vec<String> {
    let agent = Agent::start_named(arguments[0].trim_start_matches('-'), dir, arguments);
    for (n, server) in servers.iter().enumerate() {
        for r in 0..5 {
            assert_eq!(http::get(server.address, &format!("/s{n}/r{r}")).expect("reply").status, 200);
        }
    }
    let mut tail = Tail::new(&agent.transactions);
    tail.until(5, Duration::from_secs(10), |span| span.server);
    let file = agent.transactions.clone();
    agent.stop();
    let mut paths: Vec<String> =
        spans::read(&file).into_iter().filter(|span| span.server).map(|span| span.path).collect();
    paths.sort();
    paths
}

#[test]
fn only_what_was_asked_for_is_traced() {
    let Some(_turn) = begin("narrow", &["cc"]) else { return };
    let dir = scratch();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    for sub in [&one, &two] {
        std::fs::create_dir(sub).expect("a directory");
    }
    // Two services of one program; the environment sets the name.
    let program = tracer_tests::workload::compile(dir.path(), "origin");
    let start = |name: &str, dir: &Path| Server::start(name, dir, &mut std::process::Command::new(&program));
    let (first, second) = (start("first", &one), start("second", &two));
    let wanted: Vec<String> = (0..5).map(|r| format!("/s0/r{r}")).collect();
    let (port, pid) = (first.address.port().to_string(), first.process.pid().to_string());
    for arguments in [["--port", &port], ["--pid", &pid], ["--service", "first"]] {
        let seen = served(dir.path(), &arguments, [&first, &second]);
        say(&format!("narrow {arguments:?}: {seen:?}"));
        assert_eq!(seen, wanted, "{arguments:?}");
    }
    // The agent also finds a service that starts later.
    let agent = Agent::start_named("later", dir.path(), &["--service", "late"]);
    let late = start("late", &two);
    let mut tail = Tail::new(&agent.transactions);
    tracer_tests::wait("the new service to be traced", Duration::from_secs(20), || {
        http::get(late.address, "/late").expect("reply");
        tail.read().iter().any(|span| span.server && span.path == "/late").then_some(())
    });
    agent.stop();
}
