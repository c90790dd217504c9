//! Which request caused which call, inside of applications that work as theirs do: every reported edge against an id
//! that the application passed on.

use tracer_tests::agent::Agent;
use tracer_tests::go::{node_of, toolchain};
use tracer_tests::python::others;
use tracer_tests::truth::{Application, Mode, full, report, run};
use tracer_tests::workload::{Server, built};
use tracer_tests::{begin, say, scratch};

const fn mode(name: &'static str, title: &'static str, right: f64) -> Mode {
    Mode { name, title, right }
}

fn judge(test: &str, application: &Application, modes: &[Mode]) {
    judge_by(test, application, modes, "");
}

/// The same with an agent that is configured so.
fn judge_by(test: &str, application: &Application, modes: &[Mode], config: &str) {
    let Some(_turn) = begin(test, &[application.program, "cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let file = dir.path().join("tracer.toml");
    std::fs::write(&file, config).expect("a file for the configuration");
    let agent = Agent::start(dir.path(), &["--nice=-10", "--config", &file.to_string_lossy()]);
    let scores = run(&agent, upstream.address, dir.path(), application, modes);
    agent.stop();
    let faults = report(application, &scores);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn python_threads_and_pools() {
    let application = Application {
        name: "pythreads",
        program: "python3",
        arguments: &["-u"],
        source: "tree_threads.py",
        java: false,
        title: "Python threads, ThreadPoolExecutor",
    };
    let modes = [
        mode("same", "calls on the request's thread", 0.999),
        mode("pool", "a job in a pool, awaited", 0.98),
        mode("once", "the same without sleeps", 0.98),
        mode("turn", "a job with two calls", 0.0),
        mode("two", "two jobs at once", 0.0),
        mode("forgotten", "half of the jobs not awaited", 0.0),
        mode("hole", "calls not awaited, jobs without one", 0.0),
    ];
    judge("transactions_python", &application, &modes);
}

#[test]
fn java_pools() {
    let application = Application {
        name: "javapools",
        program: "java",
        arguments: &["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        source: "Tree.java",
        java: true,
        title: "Java 17, com.sun.net.httpserver",
    };
    let modes = [
        mode("same", "calls on the request's thread", 0.999),
        mode("pool", "a job in a pool, awaited", 0.98),
        mode("once", "the same without sleeps", 0.98),
        mode("turn", "a job with two calls", 0.9),
        mode("bounded", "a bounded queue", 0.98),
        mode("two", "two jobs at once", 0.5),
        mode("join", "CompletableFuture.join, ForkJoinPool", 0.98),
        mode("client", "java.net.http.HttpClient", 0.0),
        mode("async", "answered by the pool's thread", 0.98),
        mode("forgotten", "half of the jobs not awaited", 0.0),
        mode("hole", "calls not awaited, jobs without one", 0.0),
    ];
    judge("transactions_java", &application, &modes);
}

#[test]
fn python_asyncio() {
    let application = Application {
        name: "pyasyncio",
        program: "python3",
        arguments: &["-u"],
        source: "tree_asyncio.py",
        java: false,
        title: "Python asyncio streams",
    };
    let modes = [
        mode("direct", "a call at once", 0.999),
        mode("naps", "two calls after sleeps", 0.999),
        mode("gather", "two calls at once (gather)", 0.999),
        mode("nested", "a task in a task", 0.999),
        mode("thread", "asyncio.to_thread", 0.999),
        mode("forgotten", "half of the calls not awaited", 0.0),
    ];
    judge("transactions_asyncio", &application, &modes);
}

/// One of the servers on event loops of Python.
const fn python(name: &'static str, arguments: &'static [&'static str], source: &'static str) -> Application {
    Application { name, program: "python3", arguments, source, java: false, title: "" }
}

#[test]
fn python_aiohttp() {
    let application = Application { title: "aiohttp", ..python("pyaiohttp", &["-u"], "tree_aiohttp.py") };
    let modes = [
        mode("direct", "a call at once", 0.999),
        mode("naps", "two calls after sleeps", 0.999),
        mode("gather", "two calls at once (gather)", 0.999),
    ];
    judge("transactions_aiohttp", &application, &modes);
}

#[test]
fn python_uvicorn() {
    let application = python("pyuvicorn", &["-u", "-X", "loop=asyncio"], "tree_uvicorn.py");
    let application = Application { title: "uvicorn (asyncio), aiohttp", ..application };
    let modes = [
        mode("naps", "two calls after sleeps", 0.999),
        mode("gather", "two calls at once (gather)", 0.999),
        mode("thread", "asyncio.to_thread", 0.999),
    ];
    judge("transactions_uvicorn", &application, &modes);
}

#[test]
fn python_uvloop() {
    let application = python("pyuvloop", &["-u", "-X", "loop=uvloop"], "tree_uvicorn.py");
    let application = Application { title: "uvicorn (uvloop), aiohttp", ..application };
    // It sends from its loop, which is every request's.
    let modes = [mode("naps", "two calls after sleeps", 0.999), mode("gather", "two calls at once (gather)", 0.999)];
    judge("transactions_uvloop", &application, &modes);
}

#[test]
fn python_gevent() {
    let application = Application { title: "gevent", ..python("pygevent", &["-u"], "tree_gevent.py") };
    let modes = [
        mode("direct", "a call at once", 0.999),
        mode("naps", "two calls after sleeps", 0.999),
        mode("two", "two greenlets at once", 0.999),
    ];
    judge("transactions_gevent", &application, &modes);
}

/// Other versions of Python, where there are any, with newer libraries: short, since of all that is found in a process only
/// where things are in memory differs.
#[test]
fn pythons() {
    let others = others();
    if others.is_empty() {
        say("only the system's Python is here");
    }
    let some = |all: &[(bool, Mode)]| -> Vec<Mode> {
        all.iter().filter(|(short, _)| *short || full()).map(|(_, mode)| *mode).collect()
    };
    for (program, version) in others {
        let application = |name: &str, title: &str, arguments, source| {
            // Names are static everywhere else; there are a few of these.
            let leak = |text: String| &*Box::leak(text.into_boxed_str());
            let name = leak(format!("py{}{name}", version.replace('.', "")));
            Application {
                name,
                program,
                arguments,
                source,
                java: false,
                title: leak(format!("Python {version}, {title}")),
            }
        };
        let naps = mode("naps", "two calls after sleeps", 0.999);
        let gather = mode("gather", "two calls at once (gather)", 0.999);
        let streams = application("streams", "asyncio streams", &["-u"], "tree_asyncio.py");
        let nested = mode("nested", "a task in a task", 0.999);
        let thread = mode("thread", "asyncio.to_thread", 0.999);
        judge(
            "transactions_pythons",
            &streams,
            &some(&[(false, naps), (true, gather), (false, nested), (false, thread)]),
        );
        let uvloop = application("uvloop", "uvloop", &["-u", "-X", "loop=uvloop"], "tree_asyncio.py");
        judge("transactions_pythons", &uvloop, &some(&[(false, naps), (true, gather)]));
        let gevent = application("gevent", "gevent", &["-u"], "tree_gevent.py");
        let two = mode("two", "two greenlets at once", 0.999);
        judge("transactions_pythons", &gevent, &some(&[(false, naps), (true, two)]));
    }
}

/// Node.js of some version.
const fn nodejs(name: &'static str, program: &'static str, title: &'static str) -> Application {
    Application { name, program, arguments: &[], source: "tree.js", java: false, title }
}

/// Another version of Node.js.
#[test]
fn node_newer() {
    let application = nodejs("nodejs22", node_of("22."), "Node.js 22, http");
    let modes = [
        mode("row", "two calls, one after the other", 0.999),
        mode("timers", "a call from a timer", 0.999),
        mode("twice", "two calls, each after an awaited timer", 0.45),
    ];
    judge("transactions_node_newer", &application, &modes);
}

#[test]
fn node() {
    let named = std::env::var("TRACER_NODE").ok().map(|path| &*Box::leak(path.into_boxed_str()));
    let application = nodejs("nodejs", named.unwrap_or("node"), "Node.js, http");
    let modes = [
        mode("direct", "a call at once", 0.999),
        mode("row", "two calls, one after the other", 0.999),
        mode("fetch", "a call at once by fetch", 0.999),
        mode("timers", "a call from a timer", 0.999),
        mode("naps", "a call after an awaited timer", 0.98),
        mode("twice", "two calls, each after an awaited timer", 0.45),
        mode("local", "the same within AsyncLocalStorage", 0.9),
        mode("all", "two calls at once (Promise.all), one after a timer", 0.6),
        mode("few", "a call at once, of at most 8", 0.0),
        mode("few-twice", "two calls after timers, of at most 8", 0.0),
        mode("files", "calls after work in libuv's threads", 0.0),
        mode("worker", "a call after work in a worker thread", 0.0),
    ];
    judge("transactions_node", &application, &modes);
}

/// What Go's modes are called, and what must be right of them.
fn go_modes() -> [Mode; 6] {
    [
        mode("direct", "a call at once", 0.999),
        mode("naps", "two calls after sleeps", 0.999),
        mode("children", "two goroutines, one of them two levels deep", 0.999),
        mode("query", "two queries of database/sql", 0.999),
        mode("worker", "goroutines that wait for work", 0.0),
        mode("forgotten", "a goroutine nobody waits for", 0.0),
    ]
}

/// Of those, in CI, the ones that need most to be known of the program.
fn go_few() -> Vec<Mode> {
    go_modes().into_iter().filter(|mode| full() || ["children", "query"].contains(&mode.name)).collect()
}

#[test]
fn go() {
    let application = Application {
        name: "go",
        program: toolchain("1.27."),
        arguments: &[],
        source: "tree.go",
        java: false,
        title: "Go 1.27, net/http",
    };
    judge("transactions_go", &application, &go_modes());
}

#[test]
fn go_stripped() {
    let application = Application {
        name: "gostripped",
        program: toolchain("1.24."),
        arguments: &["-buildmode=pie", "-ldflags=-s -w"],
        source: "tree.go",
        java: false,
        title: "Go 1.24, stripped, position-independent",
    };
    judge("transactions_go_stripped", &application, &go_few());
}

#[test]
fn go_oldest() {
    let application = Application {
        name: "gooldest",
        program: toolchain("1.21."),
        arguments: &["-ldflags=-linkmode=external"],
        source: "tree.go",
        java: false,
        title: "Go 1.21, linked by the C compiler",
    };
    judge("transactions_go_oldest", &application, &go_few());
}

/// What tokio's modes are called, and what must be right of them; in CI those that differ most.
fn tokio_modes() -> Vec<Mode> {
    let all = [
        (true, mode("direct", "a call at once", 0.999)),
        (true, mode("naps", "two calls after sleeps", 0.999)),
        // A call made last on its connection is believed only when another task uses that, too.
        (true, mode("children", "two tasks, one of them two levels deep", 0.9)),
        (false, mode("forgotten", "a task nobody waits for", 0.0)),
        (false, mode("worker", "tasks that wait for work", 0.0)),
        // hyper's client sends from a task of the connection's own.
        (false, mode("fetch", "a call at once by hyper's client", 0.0)),
        (true, mode("fetch-naps", "two calls by it after sleeps", 0.0)),
        (true, mode("fetch-children", "two tasks that call by it", 0.0)),
    ];
    all.into_iter().filter(|(short, _)| *short || full()).map(|(_, mode)| mode).collect()
}

#[test]
fn tokio() {
    let application = Application {
        name: "tokio",
        program: built("tree-tokio"),
        arguments: &[],
        source: "",
        java: false,
        title: "Rust, tokio and hyper",
    };
    judge("transactions_tokio", &application, &tokio_modes());
}

#[test]
fn tokio_stripped() {
    let application = Application {
        name: "tokiostripped",
        program: built("tree-tokio-stripped"),
        arguments: &[],
        source: "",
        java: false,
        title: "Rust, tokio and hyper, stripped",
    };
    // Nothing tells which task it is.
    let modes: Vec<Mode> = tokio_modes().into_iter().map(|mode| Mode { right: 0.0, ..mode }).collect();
    let some = if full() { modes.len() } else { 2 };
    judge("transactions_tokio_stripped", &application, &modes[modes.len() - some..]);
}

/// Who wakes whom is asked for: hyper's client, and tasks that wait for work.
#[test]
fn tokio_wakers() {
    let application = Application {
        name: "tokiowakers",
        program: built("tree-tokio"),
        arguments: &[],
        source: "",
        java: false,
        title: "Rust, tokio and hyper, with `tokio_wakers`",
    };
    let all = [
        (true, mode("children", "two tasks, one of them two levels deep", 0.999)),
        (true, mode("worker", "tasks that wait for work", 0.999)),
        (false, mode("direct", "a call at once", 0.999)),
        (false, mode("naps", "two calls after sleeps", 0.999)),
        (false, mode("forgotten", "a task nobody waits for", 0.0)),
        (false, mode("fetch", "a call at once by hyper's client", 0.999)),
        (true, mode("fetch-naps", "two calls by it after sleeps", 0.999)),
        (true, mode("fetch-children", "two tasks that call by it", 0.999)),
    ];
    let modes: Vec<Mode> = all.into_iter().filter(|(short, _)| *short || full()).map(|(_, mode)| mode).collect();
    judge_by("transactions_tokio_wakers", &application, &modes, "[runtimes]\ntokio_wakers = true\n");
}

/// Of goroutines that wait for work it is asked for who lets which go on; in CI the newest Go alone.
fn ready(test: &str, application: &Application, short: bool) {
    let modes: Vec<Mode> = go_modes()
        .into_iter()
        .filter(|mode| full() || (short && mode.name == "worker"))
        .map(|mode| if mode.name == "worker" { Mode { right: 0.99, ..mode } } else { mode })
        .collect();
    if !modes.is_empty() {
        judge_by(test, application, &modes, "[runtimes]\ngo_ready = true\n");
    }
}

#[test]
fn go_ready() {
    let application = Application {
        name: "goready",
        program: toolchain("1.27."),
        arguments: &[],
        source: "tree.go",
        java: false,
        title: "Go 1.27, net/http, with `go_ready`",
    };
    ready("transactions_go_ready", &application, true);
}

#[test]
fn go_ready_stripped() {
    let application = Application {
        name: "goreadystripped",
        program: toolchain("1.24."),
        arguments: &["-buildmode=pie", "-ldflags=-s -w"],
        source: "tree.go",
        java: false,
        title: "Go 1.24, stripped, position-independent, with `go_ready`",
    };
    ready("transactions_go_ready_stripped", &application, false);
}

#[test]
fn go_ready_oldest() {
    let application = Application {
        name: "goreadyoldest",
        program: toolchain("1.21."),
        arguments: &["-ldflags=-linkmode=external"],
        source: "tree.go",
        java: false,
        title: "Go 1.21, linked by the C compiler, with `go_ready`",
    };
    ready("transactions_go_ready_oldest", &application, false);
}
