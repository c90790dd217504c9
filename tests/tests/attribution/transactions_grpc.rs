//! Which request caused which gRPC call, by each runtime's client library: verifies every reported edge by an id that
//! the application puts into the method's name. One connection carries calls of many concurrent requests, and mostly a
//! different thread or task sends them than made them: unknown causes must be reported as unknown.

use std::process::Command;

use tracer_tests::agent::outcome;
use tracer_tests::go::{SOURCES, toolchain};
use tracer_tests::jars;
use tracer_tests::truth::{Application, Mode, full, judge_before};
use tracer_tests::workload::Server;
use tracer_tests::{begin, find, say, scratch};

/// Runs the application if `programs` are installed, in front of a grpcio server.
fn judge(test: &str, programs: &[&str], application: &Application, modes: &[Mode]) {
    let Some(_turn) = begin(test, &[programs, &[application.program, "python3"]].concat()) else { return };
    let python = find("python3").unwrap_or_else(|| panic!("no python3"));
    if outcome(Command::new(&python).args(["-c", "import grpc"]), "python3").code != Some(0) {
        say(&format!("SKIPPED {test}: needs grpcio for Python (python3-grpcio)"));
        return;
    }
    let dir = scratch();
    let upstream = Server::python("origin_grpc", dir.path());
    judge_before(&upstream, dir.path(), application, modes, "");
}

#[test]
fn python_threads() {
    let application = Application {
        name: "grpcthreads",
        program: "python3",
        arguments: &["-u"],
        source: "tree_grpc.py",
        java: false,
        title: "gRPC: Python threads, grpcio",
    };
    // In its library any active thread sends the others' calls, and so does a thread of its own.
    let modes = [
        Mode::new("same", "a channel for all threads", 0.0),
        // A thread is identified by its channel while it has one: one of so many.
        Mode::by_load("own", "a channel for each thread", [0.95, 0.2, 0.04, 0.01]),
        Mode::new("pool", "a job in a pool, awaited", 0.0),
    ];
    judge("transactions_grpc_threads", &[], &application, if full() { &modes } else { &modes[..2] });
}

#[test]
fn python_asyncio() {
    let application = Application {
        name: "grpcaio",
        program: "python3",
        arguments: &["-u"],
        source: "tree_grpc_aio.py",
        java: false,
        title: "gRPC: Python asyncio, grpc.aio",
    };
    // Calls sent by the library's own thread are orphans.
    let modes = [
        Mode::by_load("gather", "two calls at once (gather)", [0.95, 0.85, 0.55, 0.45]),
        Mode::by_load("naps", "two calls after sleeps", [0.95, 0.85, 0.55, 0.4]),
    ];
    judge("transactions_grpc_aio", &[], &application, if full() { &modes } else { &modes[..1] });
}

#[test]
fn node() {
    let application = Application {
        name: "grpcnode",
        program: "node",
        arguments: &[],
        source: "tree_grpc.js",
        java: false,
        title: "gRPC: Node.js, a session of http2",
    };
    let modes = [
        Mode::new("row", "two calls, one after the other", 0.0),
        Mode::new("naps", "a call after an awaited timer", 0.0),
    ];
    judge("transactions_grpc_node", &[], &application, if full() { &modes } else { &modes[..1] });
}

#[test]
fn go() {
    if !full() {
        say("gRPC of Go takes a minute to compile: only at full size (cargo xtask transactions --full)");
        return;
    }
    let application = Application {
        name: "grpcgo",
        program: toolchain("1.27."),
        arguments: &[],
        source: "tree_grpc.go",
        java: false,
        title: "gRPC: Go 1.27, grpc-go",
    };
    // The connection's own goroutine sends.
    let modes = [Mode::new("naps", "two calls after sleeps", 0.0), Mode::new("children", "two goroutines", 0.0)];
    let needed = format!("{SOURCES}/src/google.golang.org/grpc/clientconn.go");
    judge("transactions_grpc_go", &[&needed], &application, &modes);
}

#[test]
fn java() {
    if !full() {
        say("gRPC of Java: only at full size (cargo xtask transactions --full)");
        return;
    }
    let application = Application {
        name: "grpcjava",
        program: "java",
        // The server closes idle connections when there are more than 200.
        arguments: &[
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dsun.net.httpserver.maxIdleConnections=1024",
        ],
        source: "TreeGrpc.java",
        java: true,
        title: "gRPC: Java 17, grpc-netty",
    };
    // A Netty thread sends.
    let modes = [
        Mode::by_load("same", "calls on the request's thread", [0.5, 0.1, 0.0, 0.0]),
        Mode::new("pool", "a job in a pool, awaited", 0.0),
    ];
    let needed = ["grpc-netty", "perfmark-api", "perfmark-impl"].map(|name| format!("{}/{name}.jar", jars::DIRECTORY));
    judge("transactions_grpc_java", &needed.each_ref().map(String::as_str), &application, &modes);
}
