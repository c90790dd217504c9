//! Which request caused which call in compiled applications: Go in three versions, tokio with symbols and without;
//! verifies every reported edge by an id that the application passed on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::go::{self, toolchain};
use tracer_tests::load::{self, Request};
use tracer_tests::process::cpu_s;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::truth::{Application, Mode, full, judge, judge_by, score};
use tracer_tests::workload::{Server, built};
use tracer_tests::{begin, figure, scratch, wait};

/// Go's modes, and their floors.
fn go_modes() -> [Mode; 6] {
    [
        Mode::new("direct", "a call at once", 0.999),
        Mode::new("naps", "two calls after sleeps", 0.999),
        Mode::new("children", "two goroutines, one of them two levels deep", 0.999),
        Mode::new("query", "two queries of database/sql", 0.999),
        Mode::new("worker", "goroutines that wait for work", 0.0),
        Mode::new("forgotten", "a detached goroutine", 0.0),
    ]
}

/// The modes that CI runs: those that need most knowledge of the program.
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
    judge("transactions_go", &application, &go_few());
}

#[test]
fn programs_that_a_goroutine_runs() {
    let application = Application {
        name: "goprograms",
        program: toolchain("1.27."),
        arguments: &[],
        source: "tree.go",
        java: false,
        title: "Go 1.27, programs",
    };
    judge("transactions_go_programs", &application, &[Mode::new("command", "curl, awaited", 0.99)]);
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

/// tokio's modes, and their floors; in CI the most different ones.
fn tokio_modes() -> Vec<Mode> {
    let all = [
        (true, Mode::new("direct", "a call at once", 0.999)),
        (true, Mode::new("naps", "two calls after sleeps", 0.999)),
        // The last call on its connection is confirmed only if another task uses the connection, too: at 64 connections up to
        // 128 of 1920 calls.
        (true, Mode::by_load("children", "two tasks, one of them two levels deep", [0.98, 0.98, 0.9, 0.9])),
        (false, Mode::new("forgotten", "a detached task", 0.0)),
        (false, Mode::new("worker", "tasks that wait for work", 0.0)),
        // hyper's client sends from a task of the connection's own.
        (false, Mode::by_load("fetch", "a call at once by hyper's client", [0.95, 0.9, 0.75, 0.7])),
        (true, Mode::new("fetch-naps", "two calls by it after sleeps", 0.0)),
        (true, Mode::new("fetch-children", "two tasks that call by it", 0.0)),
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
    // Nothing shows the running task: immediate calls do not need it, other modes have no floor.
    let at_once = |mode: &Mode| ["direct", "fetch"].contains(&mode.name);
    let modes = tokio_modes().into_iter();
    let modes: Vec<Mode> =
        modes.map(|mode| if at_once(&mode) { mode } else { Mode { floors: [0.0; 4], ..mode } }).collect();
    let some = if full() { modes.len() } else { 2 };
    judge("transactions_tokio_stripped", &application, &modes[modes.len() - some..]);
}

/// The service's page states whether requests can be distinguished in it.
#[test]
fn a_stripped_program_is_reported() {
    let Some(_turn) = begin("transactions_stripped", &["cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let agent = Agent::start(dir.path(), &[]);
    let port = upstream.address.port().to_string();
    for (name, program, state) in [("named", "tree-tokio", "known"), ("stripped", "tree-tokio-stripped", "no_symbols")]
    {
        let server = Server::start(name, dir.path(), Command::new(built(program)).env("UPSTREAM_PORT", &port));
        let requests = (0..8).map(|r| Request::get(format!("/direct/{name}-{r}"))).collect();
        assert!(load::run(server.address, vec![requests]).broken().is_empty(), "{name}");
        let status = wait(&format!("the status of {name}"), Duration::from_secs(20), || {
            let services = agent.json("/api/v1/services");
            let services = services["services"].as_array().or(services.as_array())?.clone();
            let service = services.into_iter().find(|service| service["service_name"] == name)?;
            service["runtimes"].as_array()?.iter().find(|runtime| runtime["name"] == "tokio").cloned()
        });
        assert_eq!(status["state"], state, "{status}");
        let apart = status["meaning"].as_str().is_some_and(|meaning| meaning.contains("are distinguished"));
        assert_eq!(apart, state == "known", "{status}");
    }
    agent.stop();
}

/// With task wake-ups enabled: hyper's client, and tasks that wait for work.
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
        (true, Mode::new("children", "two tasks, one of them two levels deep", 0.999)),
        (true, Mode::new("worker", "tasks that wait for work", 0.999)),
        (false, Mode::new("direct", "a call at once", 0.999)),
        (false, Mode::new("naps", "two calls after sleeps", 0.999)),
        (false, Mode::new("forgotten", "a detached task", 0.0)),
        (false, Mode::new("fetch", "a call at once by hyper's client", 0.98)),
        // A connection task's first wake-up is trusted until it once turned out wrong, and then not for long: no share
        // is certain.
        (true, Mode::new("fetch-naps", "two calls by it after sleeps", 0.0)),
        // The busier its connections, the more of them wake several tasks that gave them work.
        (true, Mode::by_load("fetch-children", "two tasks that call by it", [0.9, 0.9, 0.35, 0.1])),
    ];
    let modes: Vec<Mode> = all.into_iter().filter(|(short, _)| *short || full()).map(|(_, mode)| mode).collect();
    judge_by("transactions_tokio_wakers", &application, &modes, "[runtimes]\ntokio_wakers = true\n");
}

/// Ends a load when a test is over, however it ends.
struct EndOfLoad<'a>(&'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process whose calls have no parent while its wake-ups are not watched.
struct NeedsWakes {
    name: &'static str,
    program: PathBuf,
    /// What it is asked for, and the calls that it makes then.
    mode: &'static str,
    calls: usize,
    /// The probe that sees wake-ups.
    probe: &'static str,
}

/// Wake-ups are watched without a switch in a process that needs it: its calls have their parents then, and its CPU its requests.
fn is_watched_on_demand(dir: &Path, case: &NeedsWakes) {
    let upstream = Server::c("origin", dir);
    let agent = Agent::start(dir, &["--nice=-10"]);
    let NeedsWakes { name, mode, probe, .. } = *case;
    let port = upstream.address.port().to_string();
    let mut command = Command::new(&case.program);
    let server = Server::start(name, dir, command.env("UPSTREAM_PORT", &port).env("BURN_US", "1000"));
    let ask = |prefix: &str, connections: u64, requests: u64| {
        let request = |c: u64, r: u64| Request::get(format!("/{mode}/{prefix}{c}x{r}"));
        let loads = (0..connections).map(|c| (0..requests).map(|r| request(c, r)).collect()).collect();
        assert!(load::run(server.address, loads).broken().is_empty(), "{prefix}");
    };
    let state = || {
        let services = agent.json("/api/v1/services");
        let services = services["services"].as_array().or(services.as_array())?.clone();
        let service = services.into_iter().find(|service| service["service_name"] == name)?;
        let runtime = service["runtimes"].as_array()?.first()?.clone();
        Some(runtime["wakes_state"].as_str()?.to_owned())
    };
    // Probes are attached while requests wait for their calls: what these were given before is not seen.
    let is_watched = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                ask(&format!("w{round}-"), 8, 8);
                if is_watched.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _last = EndOfLoad(&is_watched);
        wait("wake-ups to be watched", Duration::from_secs(60), || (state()? == "watched").then_some(()));
    });
    let charged =
        || agent.metrics().sum("tracer_service_cpu_seconds_total", &[("service_name", name), ("kind", "requests")]);
    // The agent counts once a second: what the first load cost is no part of what follows.
    wait("the first load's CPU", Duration::from_secs(20), || {
        let before = charged();
        std::thread::sleep(Duration::from_millis(2500));
        (charged() - before < 1e-6).then_some(())
    });
    let process = [server.process.pid()];
    let (cpu, charged_before) = (cpu_s(&process), charged());
    ask("m-", 16, 60);
    let cpu = cpu_s(&process) - cpu;
    let made = case.calls * 16 * 60;
    let mut tail = Tail::new(&agent.transactions);
    let is_end = |span: &Span| span.path.starts_with("/b/m-");
    assert_eq!(tail.until(2 * made, Duration::from_secs(20), is_end), 2 * made, "both ends of every call");
    // The system counts in hundredths of a second.
    let share = || (charged() - charged_before) / (cpu - 0.02);
    let is_charged = || (share() >= 0.95).then_some(());
    wait(&format!("the CPU of requests: {:.3} of {cpu:.3} s", share()), Duration::from_secs(20), is_charged);
    let hits = agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", probe)]);
    assert!(hits > 0.0);
    assert!((agent.metrics().sum("tracer_runtime_wakes_processes", &[("state", "watched")]) - 1.0).abs() < 0.1);
    let share = share();
    agent.stop();
    let score = score(&tail.spans, name, "m-");
    figure(&format!("{name}, wake-ups on demand"), &format!("{score:?}, CPU of requests {share:.3}"));
    assert_eq!((score.certain_wrong, score.confirmed_wrong), (0, 0), "{score:?}");
    assert!(score.right as f64 >= 0.95 * made as f64, "{score:?}");
}

/// hyper's client in a process that computes.
#[test]
fn tokio_wakers_on_demand() {
    let Some(_turn) = begin("transactions_tokio_on_demand", &["cc"]) else { return };
    let dir = scratch();
    let (name, program) = ("tokioondemand", built("tree-tokio").into());
    is_watched_on_demand(dir.path(), &NeedsWakes { name, program, mode: "fetch-naps", calls: 2, probe: "tokio_woken" });
}

/// Goroutines that wait for work on a channel.
#[test]
fn go_ready_on_demand() {
    let toolchain = toolchain("1.27.");
    let Some(_turn) = begin("transactions_go_on_demand", &["cc", toolchain]) else { return };
    let dir = scratch();
    let (name, program) = ("goondemand", go::build(Path::new(toolchain), dir.path(), "tree.go", &[]));
    is_watched_on_demand(dir.path(), &NeedsWakes { name, program, mode: "worker", calls: 1, probe: "go_ready" });
}

/// Threads of `spawn_blocking` make no operation on a socket: their request shows when they wake its task. Wake-ups are watched
/// without a switch, because their CPU is no request's.
#[test]
fn what_spawn_blocking_runs() {
    let Some(_turn) = begin("transactions_tokio_blocking", &["cc"]) else { return };
    let dir = scratch();
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let name = "tokioblocking";
    let mut command = Command::new(built("tree-tokio"));
    let server = Server::start(name, dir.path(), command.env("UPSTREAM_PORT", "9").env("BURN_US", "2000"));
    let ask = |prefix: &str, connections: u64, requests: u64| {
        let request = |c: u64, r: u64| Request::get(format!("/blocking/{prefix}{c}x{r}"));
        let loads = (0..connections).map(|c| (0..requests).map(|r| request(c, r)).collect()).collect();
        assert!(load::run(server.address, loads).broken().is_empty(), "{prefix}");
    };
    let hits = || agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", "tokio_woken")]);
    let rounds = std::cell::Cell::new(0);
    wait("wake-ups to be watched", Duration::from_secs(60), || {
        rounds.set(rounds.get() + 1);
        ask(&format!("w{}-", rounds.get()), 16, 8);
        (hits() > 0.0).then_some(())
    });
    let process = [server.process.pid()];
    for connections in [1, 16] {
        let prefix = format!("m{connections}-");
        let (made, before) = (320, cpu_s(&process));
        ask(&prefix, connections, made as u64 / connections);
        let used = cpu_s(&process) - before;
        let mut tail = Tail::new(&agent.transactions);
        let is_asked = |span: &Span| span.server && span.path.starts_with(&format!("/blocking/{prefix}"));
        assert_eq!(tail.until(made, Duration::from_secs(20), is_asked), made, "every request");
        let cpu: Vec<f64> = tail.spans.iter().filter(|span| is_asked(span)).map(|span| span.cpu_s).collect();
        let (sum, least) = (cpu.iter().sum::<f64>(), cpu.iter().filter(|cpu| **cpu >= 0.0015).count());
        figure(
            "spawn_blocking",
            &format!("{connections} clients: {sum:.3} of {used:.3} s, {least} of {made} at least 1.5 ms"),
        );
        // The system counts in hundredths of a second. A result that is there before its task asks for it wakes no task, as where that
        // task's thread lost its CPU to the one that computes.
        assert!(sum >= 0.7 * (used - 0.02) && sum <= used + 0.02, "{sum} of {used} s");
        assert!(least >= made * 7 / 10, "{least} of {made} requests have what was computed for them");
    }
    agent.stop();
}

/// Calls that closures of `spawn_blocking` make are those of the request whose task waits for the closure, in whatever way they connect. A
/// closure that serves all requests belongs to none, and one whose result is not awaited belongs to its request or is unknown.
#[test]
fn what_spawn_blocking_calls() {
    let Some(_turn) = begin("transactions_tokio_blocking_calls", &["cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let name = "tokioclosures";
    let port = upstream.address.port().to_string();
    let mut command = Command::new(built("tree-tokio"));
    let server = Server::start(name, dir.path(), command.env("UPSTREAM_PORT", &port).env("BURN_US", "1000"));
    let ask = |mode: &str, prefix: &str, connections: u64, requests: u64| {
        let request = |c: u64, r: u64| Request::get(format!("/{mode}/{prefix}{c}x{r}"));
        let loads = (0..connections).map(|c| (0..requests).map(|r| request(c, r)).collect()).collect();
        assert!(load::run(server.address, loads).broken().is_empty(), "{prefix}");
    };
    let hits = || agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", "tokio_closure")]);
    let rounds = std::cell::Cell::new(0);
    wait("closures to be watched", Duration::from_secs(60), || {
        rounds.set(rounds.get() + 1);
        ask("blocking-calls", &format!("w{}-", rounds.get()), 16, 8);
        (hits() > 0.0).then_some(())
    });
    let process = [server.process.pid()];
    // The closure that serves all comes last: it keeps a thread.
    let modes = [("calls", 2, 0.98), ("anew", 1, 0.98), ("child", 2, 0.9), ("forgotten", 1, 0.0), ("all", 1, 0.0)];
    for (mode, calls, least) in modes {
        // Many at once first: one of them starts the closure that serves all.
        for connections in [16, 1] {
            let prefix = format!("{mode}{connections}-");
            let (requests, before) = (320, cpu_s(&process));
            ask(&format!("blocking-{mode}"), &prefix, connections, requests / connections);
            let made = (calls * requests) as usize;
            let mut tail = Tail::new(&agent.transactions);
            let is_end = |span: &Span| span.path.starts_with(&format!("/b/{prefix}"));
            assert_eq!(tail.until(2 * made, Duration::from_secs(20), is_end), 2 * made, "both ends of every call");
            let used = cpu_s(&process) - before;
            let is_asked = |span: &&Span| span.server && span.path.starts_with(&format!("/blocking-{mode}/{prefix}"));
            let cpu: f64 = tail.spans.iter().filter(is_asked).map(|span| span.cpu_s).sum();
            let score = score(&tail.spans, name, &prefix);
            figure(
                "calls of spawn_blocking",
                &format!("{mode}, {connections} clients: {score:?}, CPU of requests {cpu:.3} of {used:.3} s"),
            );
            assert_eq!((score.certain_wrong, score.confirmed_wrong), (0, 0), "{mode}: {score:?}");
            assert!(score.right as f64 >= least * made as f64, "{mode}: {score:?}");
            assert!(cpu <= used + 0.02, "{mode}: {cpu} of {used} s");
            if mode == "calls" || mode == "anew" {
                assert!(cpu >= 0.7 * (used - 0.02), "{mode}: {cpu} of {used} s");
            }
        }
    }
    agent.stop();
}

/// With goroutine wake-ups enabled, for goroutines that wait for work; in CI only the newest Go.
fn ready(test: &str, application: &Application, short: bool) {
    let modes: Vec<Mode> = go_modes()
        .into_iter()
        .filter(|mode| full() || (short && mode.name == "worker"))
        .map(|mode| if mode.name == "worker" { Mode { floors: [0.95, 0.95, 0.75, 0.6], ..mode } } else { mode })
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
