//! Probes of every kind under load at once, for as long as `TRACER_TEST_MINUTES` says: no program fails, each probe is hit,
//! and every request is counted.
//!
//! `cargo xtask vm --preempt full|lazy` runs it in guests whose kernel preempts programs at uprobes: there `TRACER_TEST_PREEMPT`
//! says how, and the kernel's console is watched.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::declared::declare;
use tracer_tests::load::{self, Request};
use tracer_tests::tls::certificate;
use tracer_tests::workload::{Server, built, compile, prebuilt, source};
use tracer_tests::{begin, explained, figure, find, go, say, scale, scratch, wait};

/// Kernel programs that these loads run; the agent names a probe by its program.
const PROBES: [&str; 16] = [
    "declared_place",
    "declared_return",
    "go_created",
    "go_ready",
    "go_round_trip",
    "node_accepts",
    "node_timers",
    "python_context",
    "tls_copy",
    "tls_enter",
    "tls_go_read",
    "tls_go_write",
    "tls_return",
    "tls_rustls_read",
    "tokio_spawned",
    "tokio_woken",
];

/// More of the configuration: wake-ups of tasks; series of classes that get no more requests stay for the whole load; and an emulated
/// agent on a busy machine may stand still for a while.
const MORE: &str =
    "[runtimes]\ntokio_wakers = true\ngo_ready = true\n[limits]\nseries_idle = \"1d\"\n[watchdog]\nstall = \"60s\"\n";

/// Connections of a load.
const CONNECTIONS: usize = 3;
/// Requests on each connection of a client over TLS, and of one without, which opens another behind them.
const EACH: usize = 20;
const PLAN: usize = 5;

/// How the requests of a load are asked.
enum Client<'a> {
    /// Plain HTTP, for these targets.
    Plain(&'static [&'static str]),
    /// A program that asks over TLS.
    Tls(Box<dyn Fn() -> Command + Sync + 'a>),
}

/// A server under load.
struct Load<'a> {
    server: Server,
    name: &'static str,
    connections: usize,
    client: Client<'a>,
    /// Before each request, or behind each run of a client: at full speed, ten programs fill the agent's rings, and an emulated
    /// processor hardly runs them.
    pause: Duration,
    /// Requests that were sent and not answered in time.
    unanswered: AtomicU64,
    /// Its requests are those of this protocol.
    protocol: &'static str,
}

impl Load<'_> {
    /// Asks until `end`, and at least once; how many requests were sent.
    fn run(&self, end: Instant, failed: &AtomicBool) -> u64 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.ask(end, failed)));
        result.unwrap_or_else(|panic| {
            failed.store(true, Ordering::Relaxed);
            std::panic::resume_unwind(panic)
        })
    }

    fn ask(&self, end: Instant, failed: &AtomicBool) -> u64 {
        let mut all = 0;
        while all == 0 || (Instant::now() < end && !failed.load(Ordering::Relaxed)) {
            all += match &self.client {
                Client::Plain(targets) => {
                    let pause = self.pause;
                    let plan = || targets.iter().cycle().take(PLAN).map(|target| Request::get((*target).to_owned()));
                    let plan = || plan().map(|request| Request { pause, ..request }).collect();
                    let loaded = load::run(self.server.address, (0..self.connections).map(|_| plan()).collect());
                    let broken = loaded.broken();
                    // An emulated program on a busy machine may stand still for longer than a client waits.
                    let fine = broken.is_empty() || scale() < 1.0;
                    assert!(fine, "{}: {broken:?}\n{}", self.name, self.server.process.output());
                    self.unanswered.fetch_add(broken.len() as u64, Ordering::Relaxed);
                    loaded.answers.len() as u64
                }
                Client::Tls(command) => {
                    let mut command = command();
                    let ended = outcome(command.env("OTEL_SERVICE_NAME", "client"), self.name);
                    assert_eq!(ended.code, Some(0), "{}: {}{}", self.name, ended.out, ended.err);
                    std::thread::sleep(self.pause);
                    (CONNECTIONS * EACH) as u64
                }
            };
        }
        all
    }

    fn counted(&self, agent: &Agent) -> u64 {
        let labels = [("service_name", self.name), ("protocol", self.protocol)];
        agent.metrics().sum("tracer_requests_total", &labels) as u64
    }
}

/// Runs all at once until `end`; how many requests were sent to each.
fn run(loads: &[Load<'_>], end: Instant) -> Vec<u64> {
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running: Vec<_> = loads.iter().map(|load| scope.spawn(|| load.run(end, &failed))).collect();
        let done = running.into_iter().zip(loads);
        done.map(|(run, load)| run.join().unwrap_or_else(|_| panic!("the load of {} failed", load.name))).collect()
    })
}

/// Whether the kernel preempts as was asked; says what it does else.
fn preempts(kind: &str) {
    let file = Path::new("/sys/kernel/debug/sched/preempt");
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    figure("preemption", text.trim());
    assert!(text.contains(&format!("({kind})")), "preempt={kind} was asked for, the kernel says {text}");
}

#[test]
fn probes_of_every_kind_under_load_where_the_kernel_preempts() {
    let toolchain = go::toolchain("1.27.");
    let mut needed = vec!["python3", "node", "cc", built("tls-pair"), built("tree-tokio")];
    if prebuilt().is_none() {
        needed.extend([toolchain, "openssl"]);
    }
    let Some(_turn) = begin("preempted", &needed) else { return };
    if let Ok(kind) = std::env::var("TRACER_TEST_PREEMPT") {
        preempts(&kind);
    }
    let minutes = std::env::var("TRACER_TEST_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0.2);
    let emulated = scale() < 1.0;
    let dir = scratch();
    let dir = dir.path();
    let (certificate, key) = certificate(dir);
    let declared = compile(dir, "declared");
    let config = declare(dir, &declared, &[("busy", "function = \"busy\"")]);
    let runtimes = std::fs::read_to_string(&config).expect("the file") + MORE;
    std::fs::write(&config, runtimes).expect("a file");

    let python = find("python3").expect("python3").display().to_string();
    let node = find("node").expect("node").display().to_string();
    let script = |name: &str| source(name).display().to_string();
    let asyncio = [python.clone(), script("tls_asyncio.py")];
    let rustls = [built("tls-pair").to_owned()];
    let by_go = |name: &str| go::build(Path::new(toolchain), dir, name, &[]).display().to_string();
    let start = |name: &str, command: &[String], arguments: &[&str], upstream: u16| {
        let mut run = Command::new(&command[0]);
        run.args(&command[1..]).args(arguments).env("UPSTREAM_PORT", upstream.to_string());
        Server::start(name, dir, &mut run)
    };
    let over_tls = |name, serve: &[String], arguments: &[&str], ask: &[String], more: &'static [&'static str]| {
        let server = start(name, serve, &[arguments, &[&certificate, &key, "served.log"]].concat(), 0);
        let pause = Duration::from_millis(if emulated { 10_000 } else { 500 });
        let (ask, port) = (ask.to_vec(), server.address.port().to_string());
        let command = move || {
            let mut command = Command::new(&ask[0]);
            command.args(&ask[1..]).args(["ask", &port, "load", "1.3", &CONNECTIONS.to_string(), &EACH.to_string()]);
            command.args(more);
            command
        };
        Load {
            server,
            name,
            protocol: "http",
            connections: CONNECTIONS,
            client: Client::Tls(Box::new(command)),
            pause,
            unanswered: AtomicU64::new(0),
        }
    };
    let origin = Server::c("origin", dir);
    let upstream = origin.address.port();
    let tasks = |name, command: &[String], targets| {
        let server = start(name, command, &[], upstream);
        let pause = Duration::from_millis(if emulated { 2000 } else { 30 });
        Load {
            server,
            name,
            protocol: "http",
            connections: CONNECTIONS,
            client: Client::Plain(targets),
            pause,
            unanswered: AtomicU64::new(0),
        }
    };
    // Each serves one connection at a time; all run the same two kernel programs.
    let calls = |name| {
        let server = start(name, &[declared.display().to_string()], &["serve"], 0);
        let pause = Duration::from_millis(if emulated { 200 } else { 20 });
        Load {
            server,
            name,
            protocol: "declared",
            connections: 1,
            client: Client::Plain(&["/load"]),
            pause,
            unanswered: AtomicU64::new(0),
        }
    };
    let loads = [
        over_tls("asyncio", &asyncio, &["serve"], &asyncio, &[]),
        over_tls("rustls", &rustls, &["serve"], &rustls, &["h1"]),
        over_tls("gotls", &[by_go("tls_serve.go")], &[], &asyncio, &[]),
        tasks("go", &[by_go("tree.go")], &["/children/load"]),
        tasks("tokio", &[built("tree-tokio").to_owned()], &["/children/load"]),
        tasks("node", &[node, script("tree.js")], &["/naps/load"]),
        tasks("tasks", &[python, "-u".to_owned(), script("tree_asyncio.py")], &["/gather/load"]),
        calls("declared1"),
        calls("declared2"),
        calls("declared3"),
    ];

    let arguments = ["--nice=-10", "--hertz", "11", "--max-cpu", "6400%", "--config", &config.display().to_string()]
        .map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Its spans would fill a guest's memory.
    let agent = Agent::launch_writing("agent", dir, Path::new("/dev/null"), &arguments, |_| ()).ready();
    let limit = Duration::from_secs(if emulated { 900 } else { 120 });
    let hits = |probe: &str| agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", probe)]);
    wait("every program to be traced", limit, || {
        run(&loads, Instant::now());
        let unseen: Vec<_> = loads.iter().filter(|load| load.counted(&agent) == 0).map(|load| load.name).collect();
        let unhit: Vec<_> = PROBES.into_iter().filter(|probe| hits(probe) == 0.0).collect();
        say(&format!("not seen yet: {unseen:?}, not hit yet: {unhit:?}"));
        (unseen.is_empty() && unhit.is_empty()).then_some(())
    });
    for load in &loads {
        load.unanswered.store(0, Ordering::Relaxed);
    }
    let mut before = loads.each_ref().map(|load| load.counted(&agent));
    wait("what was asked so far to be counted", limit, || {
        std::thread::sleep(Duration::from_secs(2));
        let now = loads.each_ref().map(|load| load.counted(&agent));
        (std::mem::replace(&mut before, now) == now).then_some(())
    });

    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let sent = run(&loads, end);
    let lost = agent.metrics().lost();
    figure("load", &format!("{minutes} minutes, {} requests, lost {lost:?}", sent.iter().sum::<u64>()));
    let all: Vec<String> = PROBES.into_iter().map(|probe| format!("{probe} {:.0}", hits(probe))).collect();
    figure("probes", &all.join(", "));
    let mut differ = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    for ((load, sent), before) in loads.iter().zip(&sent).zip(before) {
        while load.counted(&agent) < before + sent && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(200));
        }
        let counted = load.counted(&agent) - before;
        let unanswered = load.unanswered.load(Ordering::Relaxed);
        figure(load.name, &format!("{counted} of {sent} requests, {unanswered} not answered in time"));
        if counted.abs_diff(*sent) as f64 > explained(&lost) + unanswered as f64 {
            differ.push(format!("{}: {counted} counted, {sent} sent", load.name));
        }
    }
    assert!(differ.is_empty(), "{differ:?}; lost {lost:?}");
    agent.stop();
}
