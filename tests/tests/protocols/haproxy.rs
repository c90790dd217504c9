//! HAProxy in HTTP and TCP mode, in front of nginx and of a server behind that. Every request has its own path, so the
//! path shows which request caused a call. There must be no wrong parent, and no trace id that two requests share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::haproxy::{Haproxy, Way};
use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, begin, figure, peers, say, scale, scratch};

/// HAProxy's modes, and the share of its calls whose parent must be known. TCP mode promises no share yet.
const MODES: [(&str, f64); 2] = [("http", 0.8), ("tcp", 0.0)];
const AT_ONCE: [u64; 2] = [32, 1];

fn each(connections: u64) -> u64 {
    let requests = if connections == 1 { 300.0 } else { 60.0 };
    (requests * scale()).ceil() as u64
}

fn plans(name: &str, connections: u64) -> Vec<Vec<Request>> {
    let mut numbers = Numbers::new(5);
    let mut one = |connection: u64, n: u64| {
        let id = format!("{name}/{connection}-{n}");
        let mut request = Request::get(match numbers.below(3) {
            0 => format!("/p/{id}"),
            1 => format!("/up/{id}"),
            // The server ignores the query, but HAProxy sends it on.
            _ => format!("/up/{id}/d2000?n={n}"),
        });
        // Some connections are opened while other requests are under way.
        request.keep_alive = numbers.below(4) != 0;
        request
    };
    (0..connections).map(|connection| (0..each(connections)).map(|n| one(connection, n)).collect()).collect()
}

#[test]
fn no_call_of_haproxy_is_another_requests() {
    let Some(_turn) = begin("haproxy", &["haproxy", "nginx", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let places =
        format!("location /p/ {{ return 200 \"made\\n\"; }} location /up/ {{ proxy_pass http://{}; }}", origin.address);
    let nginx = Nginx::start(dir.path(), "", &places);
    let haproxy = Haproxy::start(dir.path(), &MODES.map(|(mode, _)| Way { mode, words: "", to: nginx.address }));
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%"]);
    let mut sent = 0;
    for ((mode, _), address) in MODES.iter().zip(&haproxy.addresses) {
        for connections in AT_ONCE {
            let name = format!("{mode}{connections}");
            let loaded = load::run(*address, plans(&name, connections));
            assert!(loaded.broken().is_empty(), "{name}: {:?}", loaded.broken().first());
            sent += loaded.answers.len();
        }
    }
    let port = nginx.address.port();
    let lost = peers::settled(&agent).lost();
    // What was lost never comes.
    if lost.is_empty() {
        let mut tail = Tail::new(&agent.transactions);
        for server in [true, false] {
            tail.until(sent, Duration::from_secs(30), |span| span.server == server && span.port == port);
        }
    }
    let file = agent.transactions.clone();
    agent.stop();
    let all = spans::read(&file);
    let ids: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    say(&format!("{sent} sent, lost: {lost:?}"));

    for (mode, share) in MODES {
        for connections in AT_ONCE {
            let name = format!("{mode}{connections}");
            let of = |span: &&Span| span.path.split('/').nth(2) == Some(&name);
            let calls = || all.iter().filter(of).filter(|span| !span.server && span.service == "haproxy");
            let tallies = spans::parents(&all, calls());
            let (total, right, wrong, sure) = spans::report_parents(&format!("HAProxy, {name}"), &tallies);
            let mut why: BTreeMap<&str, u64> = BTreeMap::new();
            for call in calls().filter(|call| call.parent.is_none()) {
                *why.entry(&call.evidence).or_default() += 1;
                assert!(matches!(call.grade.as_str(), "ambiguous" | "orphan"), "{call:?}");
            }
            say(&format!("  without a parent: {why:?}"));
            assert_eq!((wrong, sure), (0, 0), "{name}: a wrong parent shows");
            figure(&format!("HAProxy, {mode} mode, {connections} at once"), &format!("{right} of {total} linked"));
            assert!(right as f64 >= share * total as f64, "{name}: {right} of {total} linked; lost {lost:?}");
        }
    }
    // No two requests share a transaction.
    let mut paths: HashMap<&str, HashSet<&str>> = HashMap::new();
    let mut apart = 0;
    for span in all.iter().filter(|span| span.path.starts_with("/p/") || span.path.starts_with("/up/")) {
        paths.entry(&span.trace).or_default().insert(&span.path);
        let parent = span.parent.as_deref().and_then(|parent| ids.get(parent));
        apart += u64::from(parent.is_some_and(|parent| parent.trace != span.trace));
    }
    let shared: Vec<_> = paths.iter().filter(|(_, paths)| paths.len() > 1).take(5).collect();
    assert!(shared.is_empty(), "transactions of several requests: {shared:?}");
    figure("HAProxy, spans with another trace id than their parent", &apart.to_string());
}
