//! Which request caused which gRPC call, by each runtime's client library: every reported edge against an id that the
//! application puts into the method's name. Their connections carry the calls of many requests at once, and mostly
//! somebody else sends them than who made them: what is not known must be said to be so.

use std::process::Command;

use tracer_tests::agent::outcome;
use tracer_tests::go::{SOURCES, toolchain};
use tracer_tests::jars;
use tracer_tests::truth::{Application, Mode, full, judge_before};
use tracer_tests::workload::Server;
use tracer_tests::{begin, find, say, scratch};

/// Runs the application where `programs` are there, in front of a server of grpcio.
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
    // Its library lets whoever is at it send the others' calls, a thread of its own included.
    let modes = [
        Mode::new("same", "a channel for all threads", 0.0),
        Mode::new("own", "a channel for each thread", 0.0),
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
    // What the library's own thread sends is nobody's.
    let modes =
        [Mode::new("gather", "two calls at once (gather)", 0.4), Mode::new("naps", "two calls after sleeps", 0.4)];
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
    // A goroutine of the connection's own sends.
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
        // The server closes connections that are idle when there are more than 200.
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
    // A thread of Netty's sends.
    let modes =
        [Mode::new("same", "calls on the request's thread", 0.0), Mode::new("pool", "a job in a pool, awaited", 0.0)];
    let needed = ["grpc-netty", "perfmark-api", "perfmark-impl"].map(|name| format!("{}/{name}.jar", jars::DIRECTORY));
    judge("transactions_grpc_java", &needed.each_ref().map(String::as_str), &application, &modes);
}
