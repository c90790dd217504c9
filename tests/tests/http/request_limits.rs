//! Limits of service classes: requests beyond them are ended by a reset of their connection, others are not, and a dry run
//! ends none.

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::http::{self, Connection};
use tracer_tests::workload::{Server, compile};
use tracer_tests::{begin, figure, say, scratch, wait};

const LIMIT: Duration = Duration::from_secs(20);
/// Requests at once of a class that may have two.
const BULK: usize = 5;

fn config(dir: &Path) -> PathBuf {
    let file = dir.join("tracer.toml");
    let text = format!(
        r#"
        [enforcement]
        state_dir = "{}"
        [[class]]
        name = "slow"
        path = "/slow"
        service_class = "patient"
        [[class]]
        name = "bulk"
        path = "/bulk"
        service_class = "bulk"
        [[service_class]]
        name = "patient"
        importance = 2
        end_after = "1s"
        [[service_class]]
        name = "bulk"
        importance = 3
        max_open = 2
        "#,
        dir.join("state").display()
    );
    std::fs::write(&file, text).expect("a file");
    file
}

/// Whether a request is answered, and how long that, or the error, takes.
fn get(address: SocketAddr, target: &str) -> (bool, Duration) {
    let begin = Instant::now();
    let answered = Connection::open(address).and_then(|mut connection| {
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: shop\r\n\r\n").as_bytes())?;
        connection.reply("GET")
    });
    (answered.is_ok(), begin.elapsed())
}

/// One slow request, and as many bulk ones as go together: how long the slow one took, and how many were answered.
fn load(address: SocketAddr) -> ((bool, Duration), usize) {
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| get(address, "/slow"));
        let bulk: Vec<_> = (0..BULK).map(|_| scope.spawn(|| get(address, "/bulk"))).collect();
        let answered = bulk.into_iter().map(|one| one.join().expect("a client")).filter(|(good, _)| *good).count();
        (slow.join().expect("a client"), answered)
    })
}

/// What the agent says was done for a class.
fn actions(agent: &Agent, class: &str) -> Value {
    let all = agent.json("/api/v1/service-classes");
    let classes = all["service_classes"].as_array().cloned().unwrap_or_default();
    let found = classes.into_iter().find(|one| one["service_class"] == class);
    found.unwrap_or_else(|| panic!("no {class} in {all}"))["end_actions"].clone()
}

#[test]
fn requests_beyond_their_limits_are_ended_and_others_are_not() {
    let Some(_turn) = begin("request_limits", &["cc"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "priorities");
    let server = Server::start("shop", dir.path(), &mut Command::new(program));
    let file = config(dir.path()).display().to_string();

    let dry = Agent::start(dir.path(), &["--config", &file, "--enforce", "dry-run"]);
    let (slow, bulk) = load(server.address);
    assert!(slow.0 && slow.1 >= Duration::from_secs(3) && bulk == BULK, "a dry run ends none: {slow:?} {bulk}");
    let would = wait("what it would have done", LIMIT, || {
        let (slow, bulk) = (actions(&dry, "patient"), actions(&dry, "bulk"));
        (slow["would_end"]["too_long"] == 1 && bulk["would_end"]["too_many"] == BULK - 2).then_some((slow, bulk))
    });
    assert!(would.0["ended"]["too_long"] == 0 && would.1["ended"]["too_many"] == 0, "{would:?}");
    dry.stop();

    let on = Agent::start(dir.path(), &["--config", &file, "--enforce", "on"]);
    let (slow, bulk) = load(server.address);
    say(&format!("slow request ended after {:.2} s; {bulk} of {BULK} bulk requests answered", slow.1.as_secs_f64()));
    figure("a request of 3 s with end_after = 1s ended after", &format!("{:.2} s", slow.1.as_secs_f64()));
    assert!(!slow.0 && slow.1 >= Duration::from_millis(900) && slow.1 < Duration::from_millis(2500), "{slow:?}");
    assert_eq!(bulk, 2);
    let done = wait("what was done", LIMIT, || {
        let (slow, bulk) = (actions(&on, "patient"), actions(&on, "bulk"));
        (slow["ended"]["too_long"] == 1 && bulk["ended"]["too_many"] == BULK - 2).then_some((slow, bulk))
    });
    let none = |one: &Value| one["refused"].as_object().is_some_and(serde_json::Map::is_empty);
    assert!(none(&done.0) && none(&done.1), "{done:?}");
    // Others are served as before, also on connections that were open all the time.
    let mut open = Connection::open(server.address).expect("a connection");
    for target in ["/gold", "/gold", "/bulk"] {
        open.send(format!("GET {target} HTTP/1.1\r\nHost: shop\r\n\r\n").as_bytes()).expect("a request");
        assert_eq!(open.reply("GET").expect("an answer").status, 200);
    }
    // In the metrics, and as requests that got no answer.
    let metrics = on.metrics();
    let of = |reason| metrics.sum("tracer_service_class_ends_total", &[("action", "ended"), ("reason", reason)]);
    assert_eq!((of("too_long") as usize, of("too_many") as usize), (1, BULK - 2));
    on.stop();
    assert_eq!(http::get(server.address, "/gold").expect("an answer").status, 200);
}

#[test]
fn a_request_in_another_network_namespace_is_ended() {
    let Some(_turn) = begin("request_limits_netns", &["cc", "unshare", "ip"]) else { return };
    let dir = scratch();
    let program = compile(dir.path(), "priorities");
    let mut run = Command::new("unshare");
    run.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\""]).arg(program);
    let server = Server::start("shop", dir.path(), &mut run);
    let file = config(dir.path()).display().to_string();
    let on = Agent::start(dir.path(), &["--config", &file, "--enforce", "on"]);
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", server.process.pid())).expect("a namespace");
    let address = server.address;
    let client = std::thread::spawn(move || {
        // SAFETY: a plain system call with an open descriptor; it is about this thread only.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
        (get(address, "/slow"), get(address, "/gold"))
    });
    let (slow, gold) = client.join().expect("a client");
    assert!(!slow.0 && slow.1 < Duration::from_millis(2500) && gold.0, "{slow:?} {gold:?}");
    wait("what was done", LIMIT, || (actions(&on, "patient")["ended"]["too_long"] == 1).then_some(()));
    on.stop();
}
