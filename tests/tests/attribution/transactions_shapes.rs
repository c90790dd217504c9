//! Which request caused which call, in the shapes of work in applications: retried, handed over twice, forked and
//! joined, over shared connections, from a client library's own thread, in forked processes, in child processes of requests,
//! over connections passed to another process, by threads that share all requests and by Twisted's loop; to servers behind UNIX sockets, to
//! Redis and to PostgreSQL.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::go::unpacked;
use tracer_tests::load::{self, Request};
use tracer_tests::postgresql::{self, Postgres};
use tracer_tests::redis::Redis;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::truth::{
    Application, Mode, Score, decided, judge, judge_before, plans, report, score, sizes, strays,
};
use tracer_tests::workload::{Server, compile, source};
use tracer_tests::{begin, find, say, scratch};

const SOURCE: &str = "tree_shapes.py";

const fn application(name: &'static str, arguments: &'static [&'static str], title: &'static str) -> Application {
    Application { name, program: "python3", arguments, source: SOURCE, java: false, title }
}

#[test]
fn shapes() {
    let application = application("shapes", &["-u"], "Python threads, other shapes");
    let modes = [
        Mode::new("retry", "given up and tried again", 0.999),
        Mode::new("shared", "two calls by connections of all threads", 0.999),
        Mode::new("nested", "handed over twice, awaited", 0.0),
        Mode::by_load("fan", "four jobs at once, joined", [0.35, 0.3, 0.25, 0.25]),
        // One thread sends all requests' calls.
        Mode::new("background", "sent by a thread of the client's own", 0.0),
    ];
    judge("transactions_shapes", &application, &modes);
}

#[test]
fn forked_processes() {
    let application = application("shapesforked", &["-u", "-X", "shape=forked"], "Python, two forked processes");
    judge("transactions_forked", &application, &[Mode::new("direct", "a call on the request's thread", 0.999)]);
}

#[test]
fn processes_forked_for_a_request() {
    let application = application("shapeschildren", &["-u"], "Python threads, child processes");
    let modes = [
        Mode::new("fork", "a forked child calls, awaited", 0.99),
        Mode::new("command", "a shell runs curl twice, awaited", 0.99),
        Mode::new("detached", "curl, not awaited", 0.5),
        // Workers outlive the request that forked them.
        Mode::new("workers", "worker processes of a pool", 0.0),
    ];
    judge("transactions_children", &application, &modes);
}

#[test]
fn programs_that_a_task_runs() {
    let application =
        Application { source: "tree_asyncio.py", ..application("shapestasks", &["-u"], "asyncio, programs") };
    judge("transactions_task_programs", &application, &[Mode::new("command", "curl, awaited", 0.99)]);
}

#[test]
fn passed_connections() {
    let application = application("shapespassed", &["-u", "-X", "shape=passed"], "Python, connections passed on");
    judge("transactions_passed", &application, &[Mode::new("direct", "a call on the request's thread", 0.999)]);
}

#[test]
fn unix_sockets() {
    let Some(_turn) = begin("transactions_unix", &["python3", "cc"]) else { return };
    let dir = scratch();
    let socket = dir.path().join("upstream.sock");
    let mut command = Command::new(compile(dir.path(), "origin"));
    let upstream = Server::start("origin", dir.path(), command.env("LISTEN_UNIX", &socket));
    let application = application("shapeslocal", &["-u"], "Python threads, to a UNIX socket");
    let modes = [Mode::new("local", "two calls on the request's thread", 0.999)];
    judge_before(&upstream, dir.path(), &application, &modes, "");
}

/// Requests that other threads go on with than those that read them: from a process's first call on, no wrong parent is
/// certain or confirmed. With two and four requests at once, threads that hold only one tell least.
#[test]
fn requests_that_move_between_threads() {
    let Some(_turn) = begin("transactions_moving", &["cc", "escript"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let program = compile(dir.path(), "tree_moving");
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut tail = Tail::new(&agent.transactions);
    let sharing = |title| Application { source: "", ..application("moving", &[], title) };
    let erlang =
        |title| Application { program: "escript", source: "tree_moving.erl", ..application("movingbeam", &[], title) };
    let cases = [
        (sharing("2 threads share requests"), "2", 2),
        (sharing("4 threads share requests"), "4", 4),
        (sharing("16 threads share requests"), "16", 2),
        (erlang("Erlang"), "", 4),
        (erlang("Erlang"), "", 16),
    ];
    let mut sent = Vec::new();
    for (number, (application, threads, connections)) in cases.iter().enumerate() {
        // Each is a process that the agent knows nothing of.
        let mut command =
            if application.source.is_empty() { Command::new(&program) } else { application.command(dir.path()) };
        command.env("UPSTREAM_PORT", upstream.address.port().to_string()).env("THREADS", threads);
        let server = Server::start(application.name, dir.path(), &mut command);
        let prefix = format!("moving{number}-");
        let loaded = load::run(server.address, plans("moving", &prefix, *connections, 400));
        assert!(loaded.broken().is_empty(), "{}: {:?}", application.title, loaded.broken().first());
        let served = |span: &Span| span.server && span.path.starts_with(&format!("/moving/{prefix}"));
        let answered = loaded.answers.len();
        assert_eq!(tail.until(answered, Duration::from_secs(30), served), answered, "{:?}", agent.metrics().lost());
        sent.push((application, *connections, prefix, answered as u64));
    }
    decided(&agent);
    let lost = agent.metrics().lost();
    agent.stop();
    tail.read();
    let mut faults = Vec::new();
    for (application, connections, prefix, answered) in sent {
        let score = score(&tail.spans, application.name, &prefix);
        assert_eq!(score.made, answered, "calls of {}; lost: {lost:?}", application.title);
        let line = format!("{}, {connections} at once: {score:?}", application.title);
        say(&line);
        faults.extend((score.certain_wrong + score.confirmed_wrong > 0).then_some(line));
    }
    assert!(faults.is_empty(), "wrong:\n{}", faults.join("\n"));
}

/// A call to a store, as the application prints it: its id, and its position on its connection.
type Call = (String, u16, usize);

/// The calls to `store` that the application printed.
fn calls(output: &str, store: &str) -> Vec<Call> {
    let mut counts: HashMap<u16, usize> = HashMap::new();
    let lines = output.lines().filter_map(|line| line.strip_prefix("CALL ")?.strip_prefix(store)?.strip_prefix(' '));
    lines
        .filter_map(|line| {
            let (ident, port) = line.split_once(' ')?;
            let port = port.parse().ok()?;
            let count = counts.entry(port).or_default();
            *count += 1;
            Some((ident.to_owned(), port, *count - 1))
        })
        .collect()
}

/// Compares the application's calls to a store with the edges, by the store's end of each.
fn compare(spans: &[Span], calls: &[Call], store: &str, prefix: &str) -> Score {
    let ids: HashMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let mut served: HashMap<u16, Vec<&Span>> = HashMap::new();
    for span in spans.iter().filter(|span| span.server && span.protocol == store) {
        if ["GET", "SELECT"].iter().any(|name| span.class.starts_with(name)) {
            served.entry(span.peer_port).or_default().push(span);
        }
    }
    for spans in served.values_mut() {
        spans.sort_by_key(|span| span.start_ns);
    }
    let mut score = Score::default();
    for (ident, port, number) in calls.iter().filter(|(ident, ..)| ident.starts_with(prefix)) {
        score.made += 1;
        let end = served.get(port).and_then(|spans| spans.get(*number));
        let call = end.and_then(|span| ids.get(span.parent.as_deref()?));
        let Some(call) = call else { continue };
        let parent = call.parent.as_deref().and_then(|parent| ids.get(parent));
        let right = parent.is_some_and(|parent| parent.path.rsplit('/').next() == Some(ident));
        score.count(&call.grade, right);
    }
    score
}

#[test]
fn stores() {
    let programs = ["python3", "cc", "redis-server"];
    let Some(_turn) = begin("transactions_stores", &programs) else { return };
    assert!(postgresql::programs().is_some(), "no PostgreSQL");
    let dir = scratch();
    let (database, redis) = (Postgres::start(dir.path()), Redis::start(dir.path()));
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut tail = Tail::new(&agent.transactions);
    let mut faults = Vec::new();
    // The first of a job's two calls is not the last before its result.
    for (mode, how, [first, last]) in [
        ("stores", "on the request's thread", [[0.999; 4]; 2]),
        ("stores-pool", "a job with two calls, awaited", [[0.9, 0.8, 0.0, 0.0], [0.98; 4]]),
    ] {
        // Another process may reuse the previous one's ports: its connections begin here.
        let begin = tail.spans.len();
        let mut command = Command::new(find("python3").expect("python3"));
        command.arg("-u").arg(source(SOURCE)).env("UPSTREAM_PORT", "0");
        database.tell(command.env("REDIS_PORT", redis.address.port().to_string()));
        let mut server = Server::start("shapesstores", dir.path(), &mut command);
        let mut sent = 0;
        let mut ask = |prefix: &str, connections: u64, requests: u64| {
            let each = requests.div_ceil(connections);
            let plan = |c| (0..each).map(move |r| Request::get(format!("/{mode}/{prefix}c{c}r{r}"))).collect();
            let loaded = load::run(server.address, (0..connections).map(plan).collect());
            assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
            sent += loaded.answers.len();
        };
        ask("warm-", 1, 20);
        for (connections, requests) in sizes() {
            // A database accepts a hundred concurrent connections.
            ask(&format!("{mode}{connections}-"), (*connections).min(64), *requests);
        }
        let wanted = format!("/{mode}/");
        let served = |span: &Span| span.server && span.path.starts_with(&wanted);
        let have = tail.until(sent, Duration::from_secs(30), served);
        assert_eq!(have, sent, "lost: {:?}", agent.metrics().lost());
        server.process.signal(libc::SIGTERM);
        server.process.wait(Duration::from_secs(10));
        decided(&agent);
        tail.read();
        let output = server.process.output();
        for (store, floors) in [("redis", first), ("postgresql", last)] {
            let title = if store == "redis" { "Python threads, to Redis" } else { "Python threads, to PostgreSQL" };
            let application = application("shapesstores", &["-u"], title);
            let of = |connections: u64| {
                let score =
                    compare(&tail.spans[begin..], &calls(&output, store), store, &format!("{mode}{connections}-"));
                (Mode::by_load(mode, how, floors), connections, score)
            };
            faults.extend(report(
                &application,
                &sizes().iter().map(|(connections, _)| of(*connections)).collect::<Vec<_>>(),
            ));
        }
    }
    say(&format!("lost: {:?}", agent.metrics().lost()));
    agent.stop();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Twisted's loop has no tasks, or one context for all requests. Processes that ran before the agent serve several clients at
/// once from their first request on: a call has the right parent or none.
#[test]
fn twisted() {
    let library = unpacked("twisted-", "twisted/__init__.py");
    if !Path::new(library).is_file() {
        return say("SKIPPED twisted: needs the package of that name (cargo xtask test --full)");
    }
    let Some(_turn) = begin("transactions_twisted", &["python3", "cc"]) else { return };
    let dir = scratch();
    let upstream = Server::c("origin", dir.path());
    let libraries = Path::new(library).ancestors().nth(2).expect("the directory of the package");
    let start = |reactor: &str| {
        let mut command = Command::new(find("python3").expect("python3"));
        // Packages of the distribution make a part of `zope` their own.
        command.args(["-S", "-u", "-X", &format!("reactor={reactor}")]).arg(source("tree_twisted.py"));
        command.env("PYTHONPATH", libraries).env("PYTHONDONTWRITEBYTECODE", "1");
        Server::start("twisted", dir.path(), command.env("UPSTREAM_PORT", upstream.address.port().to_string()))
    };
    let modes = ["callbacks", "generator", "coroutine"];
    let cases: Vec<_> = ["epoll", "asyncio"]
        .iter()
        .flat_map(|reactor| modes.iter().flat_map(move |mode| [3, 16].map(|connections| (reactor, mode, connections))))
        .map(|(reactor, mode, connections)| (*reactor, *mode, connections, start(reactor)))
        .collect();
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut tail = Tail::new(&agent.transactions);
    let mut sent = Vec::new();
    for (reactor, mode, connections, server) in &cases {
        let prefix = format!("{reactor}{mode}{connections}-");
        let loaded = load::run(server.address, plans(mode, &prefix, *connections, 96));
        assert!(loaded.broken().is_empty(), "{prefix}: {:?}", loaded.broken().first());
        sent.push((prefix, loaded.answers.len()));
    }
    for (prefix, answered) in &sent {
        let served = |span: &Span| span.server && span.service == "twisted" && span.path.contains(prefix.as_str());
        assert_eq!(tail.until(*answered, Duration::from_secs(30), served), *answered, "{:?}", agent.metrics().lost());
    }
    decided(&agent);
    let lost = agent.metrics().lost();
    agent.stop();
    tail.read();
    let mut faults = strays(&tail.spans);
    for (prefix, answered) in sent {
        let score = score(&tail.spans, "twisted", &prefix);
        assert_eq!(score.made, 2 * answered as u64, "calls of {prefix}; lost: {lost:?}");
        let line = format!("Twisted, {prefix}: {score:?}");
        say(&line);
        faults.extend((score.certain_wrong + score.confirmed_wrong > 0).then_some(line));
    }
    assert!(faults.is_empty(), "wrong:\n{}", faults.join("\n"));
}

#[test]
fn jobs_of_a_queue() {
    let Some(_turn) = begin("transactions_jobs", &["python3", "cc", "redis-server"]) else { return };
    let dir = scratch();
    let (redis, upstream) = (Redis::start(dir.path()), Server::c("origin", dir.path()));
    let agent = Agent::start(dir.path(), &["--nice=-10"]);
    let mut tail = Tail::new(&agent.transactions);
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg("-u").arg(source("queue_worker.py")).env("REDIS_PORT", redis.address.port().to_string());
    let _worker =
        Server::start("queueworker", dir.path(), command.env("UPSTREAM_PORT", upstream.address.port().to_string()));
    let mut client = redis.client();
    // Only when it has asked again are the worker's calls its jobs' for certain.
    client.ask(&["LPUSH", "jobs", "first"]);
    for job in 0..40 {
        client.ask(&["LPUSH", "jobs", &format!("job{job}")]);
    }
    let made = |span: &Span| !span.server && span.path.starts_with("/b/job");
    assert_eq!(tail.until(40, Duration::from_secs(30), made), 40, "lost: {:?}", agent.metrics().lost());
    let jobs: HashMap<&str, &Span> =
        tail.spans.iter().filter(|span| span.class == "process").map(|span| (span.id.as_str(), span)).collect();
    let mut found: HashMap<(&str, &str, &str), usize> = HashMap::new();
    for span in tail.spans.iter().filter(|span| made(span)) {
        assert!(span.parent.as_deref().is_some_and(|parent| jobs.contains_key(parent)), "{span:?}");
        *found.entry((&span.service, &span.grade, &span.evidence)).or_default() += 1;
    }
    let expected = [
        "same thread, one job at a time",
        "its process was forked for the request, by a thread with one request at a time",
    ];
    assert_eq!(found, expected.map(|evidence| (("queueworker", "certain", evidence), 20)).into());
    agent.stop();
}
