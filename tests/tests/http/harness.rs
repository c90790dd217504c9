//! Tests of the harness and the workloads without the agent: the truth tests rely on them.

use std::process::Command;
use std::time::Duration;

use tracer_tests::load::{self, Request};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::workload::{self, Server};
use tracer_tests::{find, http, say, scratch, wait};

fn have(name: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    if let Some(program) = missing {
        say(&format!("SKIPPED {name}: needs the program {program}"));
    }
    missing.is_none()
}

#[test]
fn the_burning_server_knows_its_cost() {
    if !have("harness_burn", &["cc"]) {
        return;
    }
    let dir = scratch();
    let server = Server::c("burn", dir.path());
    for _ in 0..3 {
        assert_eq!(http::get(server.address, "/medium").expect("reply").status, 200);
    }
    // The server records its CPU figures after the reply.
    wait("the server's books", Duration::from_secs(10), || {
        let truth: serde_json::Value =
            serde_json::from_slice(&http::get(server.address, "/truth").expect("truth").body).expect("JSON");
        let medium = &truth["/medium"];
        (medium["count"] == 3).then(|| {
            let handler = medium["handler_ns"].as_f64().expect("number");
            assert!(handler > 14.9e6 && handler < 17e6, "{truth}");
            assert!(medium["whole_ns"].as_f64().expect("number") >= handler * 0.999, "{truth}");
        })
    });
}

#[test]
fn the_origin_answers_and_refuses() {
    if !have("harness_origin", &["cc"]) {
        return;
    }
    let dir = scratch();
    let server = Server::c("origin", dir.path());
    let reply = http::get(server.address, "/a/b/d1000").expect("reply");
    assert_eq!((reply.status, reply.text().as_str()), (200, "/a/b/d1000"));
    let mut connection = http::Connection::open(server.address).expect("connection");
    connection.send(b"\0\0\0\0").expect("bytes");
    assert_eq!(connection.reply("GET").expect("reply").status, 400);
}

#[test]
fn the_matrix_of_operations_exchanges_everything() {
    if !have("harness_matrix", &["cc"]) {
        return;
    }
    let dir = scratch();
    let program = workload::compile(dir.path(), "matrix");
    for (family, least) in [("tcp4", 48), ("tcp6", 48), ("unix", 35)] {
        let mut command = Command::new(&program);
        command.arg(family).arg(dir.path().join("socket"));
        let mut process = Process::start("matrix", &mut command, &dir.path().join(family));
        assert!(process.wait(Duration::from_secs(60)).success(), "{family}: {}", process.output());
        let exchanges = process.output().lines().filter(|line| line.starts_with("EXCHANGE ")).count();
        assert!(exchanges >= least, "{family}: {exchanges}");
    }
}

#[test]
fn nginx_logs_what_the_load_generator_asked() {
    if !have("harness_nginx", &["nginx"]) {
        return;
    }
    let dir = scratch();
    let nginx = Nginx::start(dir.path(), "", "location /r/ { return 200 \"hello\"; }");
    let plans =
        (0..4).map(|connection| (0..50).map(|at| Request::get(format!("/r/{connection}/{at}"))).collect()).collect();
    let loaded = load::run(nginx.address, plans);
    assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    assert!(loaded.answers.iter().all(|answer| answer.status == Ok(200) && answer.body == 5));
    let logged = wait("the access log", Duration::from_secs(10), || {
        let logged = nginx.logged();
        (logged.len() >= 200).then_some(logged)
    });
    assert_eq!(logged.len(), 200);
    assert!(logged.iter().all(|entry| entry.complete && entry.body == 5 && entry.status == 200));
}
