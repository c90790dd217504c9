//! Processes that end with requests in their hands: each span has the signal or the exit code, and no other has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::http::{self, Connection};
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, operations_lost, say, scratch};

/// Requests of each kind.
const EACH: usize = 5;
/// Until a server holds a request, and until all spans are written.
const LIMIT: Duration = Duration::from_secs(20);
/// How a process of the forking server ends, and the `error.type` of its request.
const WAYS: [(&str, &str); 12] = [
    ("segv", "SIGSEGV"),
    ("abort", "SIGABRT"),
    ("term", "SIGTERM"),
    ("exit3", "exit_code_3"),
    ("exit0", "exit_code_0"),
    ("raise4", "exit_code_4"),
    ("part", "SIGSEGV"),
    ("close", "SIGSEGV"),
    ("calls", "SIGSEGV"),
    // Not marked: answered, or closed by a process that lives.
    ("whole", ""),
    ("fine", ""),
    ("drop", "aborted"),
];

fn server(name: &str, dir: &std::path::Path, arguments: &[&str]) -> Server {
    let python = tracer_tests::find("python3").expect("python3");
    Server::start(name, dir, Command::new(python).arg("-u").arg(source("dying.py")).args(arguments))
}

fn open(address: SocketAddr, path: &str) -> Connection {
    let mut connection = Connection::open(address).expect("a connection");
    connection.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).expect("sent");
    connection
}

/// Waits until the server holds the request, and returns the process that does.
fn held(server: &mut Server, path: &str) -> i32 {
    server.process.line(&format!("HELD {path} "), LIMIT).parse().expect("a process")
}

/// Every expected span: service, path, whether it is the server's, and its `error.type`.
#[derive(Default)]
struct Wanted(BTreeMap<(String, String, bool), &'static str>);

impl Wanted {
    fn add(&mut self, service: &str, path: &str, server: bool, error: &'static str) {
        self.0.insert((service.to_owned(), path.to_owned(), server), error);
    }

    fn of(&self, span: &Span) -> Option<&'static str> {
        self.0.get(&(span.service.clone(), span.path.clone(), span.server)).copied()
    }
}

fn by_forked_processes(server: &mut Server, want: &mut Wanted) {
    for (way, error) in WAYS {
        for n in 0..EACH {
            let path = format!("/{way}/{n}");
            if way == "fine" {
                assert_eq!(http::get(server.address, &path).expect("an answer").status, 200);
            } else {
                // Ends when its process does, with a reset or without.
                let _ = open(server.address, &path).rest();
            }
            want.add("forked", &path, true, error);
            if way == "calls" {
                let called = format!("/leave{path}");
                held(server, &called);
                want.add("forked", &called, false, "SIGSEGV");
                want.add("forked", &called, true, "aborted");
            }
        }
    }
    for n in 0..EACH {
        let path = format!("/held/{n}");
        let connection = open(server.address, &path);
        let pid = held(server, &path);
        // SAFETY: kills a process that holds the request and nothing else.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        drop(connection);
        want.add("forked", &path, true, "SIGKILL");

        let path = format!("/leave/{n}");
        let connection = open(server.address, &path);
        held(server, &path);
        drop(connection);
        want.add("forked", &path, true, "aborted");
    }
}

/// One thread ends them all.
fn by_threads(server: &mut Server, want: &mut Wanted) {
    let left = open(server.address, "/leave/thread");
    held(server, "/leave/thread");
    drop(left);
    want.add("threads", "/leave/thread", true, "aborted");
    let _ = open(server.address, "/drop/thread").rest();
    want.add("threads", "/drop/thread", true, "aborted");
    assert_eq!(http::get(server.address, "/fine/thread").expect("an answer").status, 200);
    want.add("threads", "/fine/thread", true, "");
    let mut open_ones = Vec::new();
    for n in 0..EACH {
        let path = format!("/held/{n}");
        open_ones.push(open(server.address, &path));
        held(server, &path);
        want.add("threads", &path, true, "SIGSEGV");
    }
    let _ = open(server.address, "/segv/thread").rest();
    want.add("threads", "/segv/thread", true, "SIGSEGV");
}

/// nginx itself answers 502.
fn behind_nginx(nginx: &Nginx, want: &mut Wanted) {
    for (at, service) in [("tcp", "forked"), ("unix", "socket")] {
        for n in 0..EACH {
            let path = format!("/segv/{at}-{n}");
            assert_eq!(http::get(nginx.address, &format!("/{at}{path}")).expect("an answer").status, 502);
            want.add(service, &path, true, "SIGSEGV");
            want.add("nginx", &path, false, "aborted");
            want.add("nginx", &format!("/{at}{path}"), true, "502");
        }
    }
}

#[test]
fn requests_of_processes_that_end_say_how() {
    let Some(_turn) = begin("process_ends", &["python3", "nginx"]) else { return };
    let dir = scratch();
    let mut forked = server("forked", dir.path(), &["forked"]);
    let mut threads = server("threads", dir.path(), &["threads"]);
    let path = dir.path().join("dying.socket");
    let socket = server("socket", dir.path(), &["socket", path.to_str().expect("a path")]);
    let upstreams = format!(
        "location /tcp/ {{ proxy_pass http://{}/; }} location /unix/ {{ proxy_pass http://unix:{}:/; }}",
        forked.address,
        path.display()
    );
    let nginx = Nginx::start(dir.path(), "", &upstreams);
    let agent = Agent::start(dir.path(), &[]);
    let mut want = Wanted::default();
    by_forked_processes(&mut forked, &mut want);
    behind_nginx(&nginx, &mut want);
    by_threads(&mut threads, &mut want);

    let mut tail = Tail::new(&agent.transactions);
    tail.until(want.0.len(), LIMIT, |span| want.of(span).is_some());
    let metrics = agent.metrics();
    let lost = metrics.lost();
    let list = agent.json("/api/v1/transactions?service=threads&limit=1000");
    let rows = list["transactions"].as_array().expect("a list");
    let shown = rows.iter().filter(|row| row["process_end"] == "SIGSEGV" && row["outcome"] == "aborted").count();
    agent.stop();
    drop(socket);
    let mut wrong = Vec::new();
    if shown != EACH + 1 {
        wrong.push(format!("{shown} rows of the list of transactions say SIGSEGV: {list}"));
    }
    let mut found = BTreeMap::new();
    for span in tail.read() {
        let Some(wanted) = want.of(span) else { continue };
        *found.entry((span.service.clone(), span.path.clone(), span.server)).or_insert(0) += 1;
        if span.error != wanted {
            wrong.push(format!("{wanted:?} expected: {span:?}"));
        }
    }
    wrong.extend(
        want.0.keys().filter(|key| found.get(*key) != Some(&1)).map(|key| format!("{key:?}: {:?}", found.get(key))),
    );
    let marked = want.0.values().filter(|error| error.starts_with("SIG") || error.starts_with("exit")).count();
    figure(
        "requests of processes that ended",
        &format!("{} spans, {marked} to be marked, {} wrong", want.0.len(), wrong.len()),
    );
    for line in wrong.iter().take(20) {
        say(&format!("  {line}"));
    }
    // By class and type.
    let mut counted = BTreeMap::new();
    for ((service, _, server), error) in &want.0 {
        if *server && (error.starts_with("SIG") || error.starts_with("exit")) {
            *counted.entry((service.as_str(), *error)).or_insert(0.0) += 1.0;
        }
    }
    for ((service, error), count) in counted {
        let name = "http_server_request_duration_seconds_count";
        let have = metrics.sum(name, &[("service_name", service), ("error_type", error)]);
        say(&format!("{service}: {error}: {have} of {count} in the metrics"));
        if (have - count).abs() > 0.5 {
            wrong.push(format!("{service} {error}: {have} in the metrics"));
        }
    }
    assert!(wrong.len() as f64 <= operations_lost(&lost), "{} wrong, lost {lost:?}", wrong.len());
}
