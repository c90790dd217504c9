//! Requests that the kernel side only counts: every one of them is in the metrics, with its class, status and cost, by the
//! servers' own accounts.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::load::{self, Request};
use tracer_tests::memcached::Memcached;
use tracer_tests::metrics::Metrics;
use tracer_tests::nginx::Nginx;
use tracer_tests::process::{descendants, scheduled_s};
use tracer_tests::redis::{Redis, Value};
use tracer_tests::{begin, figure, find, folded, http, say, scale, scratch, wait};

/// Answers some requests with 503, at the same address.
const SOME_FAIL: &str = "split_clients $request_id $answer { 20% 503; * 200; }";
const PLACES: &str =
    "location /ok { return 200 ok; } location /some { if ($answer = 503) { return 503; } return 200 some; }";

/// Samples a second.
const HERTZ: f64 = 499.0;

fn start(dir: &Path, port: u16, detail: &str) -> Agent {
    let (port, hertz) = (port.to_string(), format!("--hertz={HERTZ}"));
    let options = ["--port", &port, "--detail", detail, "--nice=-10", "--max-cpu", "400%", &hertz];
    Agent::start(dir, &[&options[..], &["--overhead-budget", "100%"]].concat())
}

fn counted_only(metrics: &Metrics) -> f64 {
    metrics.sum("tracer_requests_counted_only_total", &[])
}

/// Asks until the kernel side knows this many beginnings.
fn known(agent: &Agent, beginnings: f64, mut ask: impl FnMut()) {
    wait("beginnings of requests that the kernel side knows", Duration::from_secs(30), || {
        ask();
        (agent.metrics().sum("tracer_table_entries", &[("table", "request_prefixes")]) >= beginnings).then_some(())
    });
}

/// Requests by path and status.
type Counts = BTreeMap<(String, u16), u64>;

fn found(metrics: &Metrics, family: &str) -> Counts {
    let mut counts = Counts::new();
    for series in metrics.of(family, &[]).filter(|series| series.value > 0.0) {
        let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
        let path = label("request_class").trim_start_matches("GET ").to_owned();
        *counts.entry((path, label("http_response_status_code").parse().unwrap_or(0))).or_default() +=
            series.value as u64;
    }
    counts
}

fn rounds(plans: usize, requests: usize, target: &str) -> Vec<Vec<Request>> {
    (0..plans).map(|_| (0..requests).map(|_| Request::get(target.to_owned())).collect()).collect()
}

#[test]
fn every_request_of_nginx_is_counted_though_few_are_seen_whole() {
    let Some(_turn) = begin("exchange_counts", &["nginx"]) else { return };
    let dir = scratch();
    std::fs::create_dir(dir.path().join("www")).expect("a directory");
    std::fs::write(dir.path().join("www/file"), vec![b'x'; 100_000]).expect("a file");
    let server = Nginx::start(dir.path(), SOME_FAIL, PLACES);
    let workers = descendants(server.process.pid());
    let before = scheduled_s(&workers);
    let agent = start(dir.path(), server.address.port(), "1%");
    let targets = ["/ok", "/some", "/file"];
    // By each of two workers, and by this process.
    known(&agent, 9.0, || {
        for target in targets {
            load::run(server.address, rounds(8, 20, target));
        }
    });
    let requests = (2_000.0 * scale()) as usize;
    for target in targets {
        load::run(server.address, rounds(4, requests, target));
    }
    // One request a connection.
    for _ in 0..requests / 4 {
        http::get(server.address, "/ok").expect("an answer");
    }
    let mut expected = Counts::new();
    for line in server.logged() {
        *expected.entry((line.path().to_owned(), line.status)).or_default() += 1;
    }
    let wanted: u64 = expected.values().sum();
    let metrics = wait("all requests of the log", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        let served = found(&metrics, "http_server_request_duration_seconds_count");
        let called = found(&metrics, "http_client_request_duration_seconds_count");
        say(&format!("{wanted} logged; {:?} lost; served {served:?}, called {called:?}", metrics.lost()));
        (served == expected && called == expected).then_some(metrics)
    });
    // Written behind the counts.
    let only = counted_only(&agent.metrics());
    figure("requests of nginx", &format!("{wanted} of {wanted} at both ends, {only} only counted"));
    // At both ends; some were seen whole before the process was known, and one in a hundred after.
    assert!(only > wanted as f64 * 1.5, "{only} only counted of {wanted} at both ends");
    assert!(metrics.sum("tracer_requests_total", &[("status", "unfinished")]) < 1.0);

    let own = [("service_name", "nginx"), ("kind", "requests")];
    let (used, charged) = wait("the CPU of the last requests", Duration::from_secs(20), || {
        let (used, charged) =
            (scheduled_s(&workers) - before, agent.metrics().sum("tracer_service_cpu_seconds_total", &own));
        say(&format!("CPU of nginx: {used:.3} s used, {charged:.3} s charged"));
        ((charged / used - 1.0).abs() < 0.03).then_some((used, charged))
    });
    figure("CPU of nginx", &format!("{charged:.3} of {used:.3} s"));

    // Stacks of requests that nobody saw stand under their class, too.
    let seconds = |stacks: folded::Stacks| stacks.values().sum::<f64>() / HERTZ;
    let (own, all) = wait("stacks of requests", Duration::from_secs(20), || {
        let of = |path: &str| seconds(folded::stacks(&agent, "nginx", path, "cpu", HERTZ));
        let own = targets.map(of).iter().sum::<f64>();
        let all = seconds(folded::of_service(&agent, "nginx", "cpu", HERTZ));
        say(&format!(
            "samples of {own:.3} s stand under classes, of {all:.3} s all in all; {charged:.3} s are charged"
        ));
        (all > 0.5 * charged && own > 0.9 * all).then_some((own, all))
    });
    figure("stacks of nginx", &format!("{own:.3} of {all:.3} s"));
}

/// A server with few requests a second is seen whole; one with many in part, without being asked for, if its clients are not
/// in view.
#[test]
fn of_a_busy_server_some_requests_are_seen_whole() {
    let Some(_turn) = begin("exchange_counts_auto", &["nginx"]) else { return };
    let dir = scratch();
    let server = Nginx::start(dir.path(), SOME_FAIL, PLACES);
    let port = server.address.port().to_string();
    let options = ["--port", &port, "--service", "nginx", "--detail", "auto", "--nice=-10", "--max-cpu", "400%"];
    let agent = Agent::start(dir.path(), &options);
    known(&agent, 2.0, || drop(load::run(server.address, rounds(8, 20, "/ok"))));
    assert!(counted_only(&agent.metrics()) < 1.0, "few requests a second are seen whole");
    let end = Instant::now() + Duration::from_secs(4);
    let (answered, unanswered) = load::until(server.address, 4, &["/ok"], end);
    assert_eq!(unanswered, 0);
    let expected = server.logged().len() as u64;
    let metrics = wait("all requests of the log", Duration::from_secs(20), || {
        let metrics = agent.metrics();
        let served = metrics.sum("tracer_requests_total", &[("service_name", "nginx")]) as u64;
        say(&format!("{expected} logged, {served} served; {:?} lost", metrics.lost()));
        (served == expected).then_some(metrics)
    });
    let only = counted_only(&metrics);
    figure("requests of a busy nginx", &format!("{answered} in 4 s, {only} only counted"));
    // About a thousand a second are seen whole by each worker, once the first second has shown how many there are.
    assert!(answered > 16_000, "{answered} requests in 4 s are not many");
    assert!(only > 0.5 * answered as f64, "{only} only counted of {answered}");
    assert!(only < answered as f64 - 1000.0, "{only} only counted of {answered}");
}

#[test]
fn every_command_of_redis_is_counted_though_few_are_seen_whole() {
    let Some(_turn) = begin("exchange_counts", &["redis-server", "redis-benchmark"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let agent = start(dir.path(), server.address.port(), "1%");
    let mut client = server.client();
    let kinds: [&[&str]; 6] = [
        &["SET", "key:text", "text"],
        &["GET", "key:text"],
        &["INCR", "key:number"],
        &["LPUSH", "key:list", "element"],
        &["LPOP", "key:list"],
        // A failure each time.
        &["INCR", "key:text"],
    ];
    // By the server, and by this process.
    known(&agent, 12.0, || {
        for words in kinds {
            client.ask(words);
        }
    });
    let rounds = (1_000.0 * scale()) as usize;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..rounds {
                    for words in kinds {
                        client.ask(words);
                    }
                }
            });
        }
    });
    // Keys of other lengths, and another kind of failure.
    for i in 0..rounds {
        client.ask(&["SET", &format!("k{}", i * 7), "text"]);
        assert!(matches!(client.ask(&["LPUSH", "key:text", "x"]), Value::Error(_)));
    }
    // The next before the one before is answered.
    let ask = tracer_tests::redis::command(&["GET", "key:text"]);
    for _ in 0..rounds {
        (0..3).for_each(|_| client.send(&ask));
        (0..3).for_each(|_| assert!(matches!(client.reply(), Value::Text(Some(_)))));
    }
    // Several in one operation: seen whole.
    let mut run = Command::new(find("redis-benchmark").expect("redis-benchmark"));
    run.args(["-p", &server.address.port().to_string(), "-q", "-n", "2000", "-t", "set,get", "-c", "1", "-P", "16"]);
    let done = outcome(&mut run, "redis-benchmark");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let refused = client.errorstats();
    let mut expected = client.commandstats();
    // The INFO that returned these.
    *expected.entry("INFO".into()).or_default() += 1;
    let wanted: u64 = expected.values().sum();
    wait("all commands of the server", Duration::from_secs(30), || {
        let metrics = agent.metrics();
        let mut served = BTreeMap::<String, u64>::new();
        for series in metrics.of("tracer_requests_total", &[("service_name", "redis-server")]) {
            let class = series.labels.get("request_class").cloned().unwrap_or_default();
            *served.entry(class).or_default() += series.value as u64;
        }
        served.retain(|_, count| *count > 0);
        let mut errors = BTreeMap::<String, u64>::new();
        for series in metrics.of("db_server_operation_duration_seconds_count", &[("service_name", "redis-server")]) {
            let kind = series.labels.get("db_response_status_code").cloned().unwrap_or_default();
            *errors.entry(kind).or_default() += series.value as u64;
        }
        errors.retain(|kind, count| *count > 0 && !kind.is_empty());
        say(&format!("{expected:?} {refused:?}\n{served:?} {errors:?}; lost {:?}", metrics.lost()));
        (served == expected && errors == refused).then_some(())
    });
    // Written behind the counts.
    let only = counted_only(&agent.metrics());
    figure("commands of redis", &format!("{wanted} of {wanted}, {only} only counted at both ends"));
    assert!(only > wanted as f64 * 0.5, "{only} only counted of {wanted}");
}

/// Slow and failed commands, one class with thousands of others, are transactions though none is seen whole.
#[test]
fn slow_and_failed_commands_are_kept_though_all_are_only_counted() {
    const SCRIPT: &str = "if ARGV[1] == '-000001' then return redis.error_reply('WRONGTYPE by will') end \
                          for i = 1, tonumber(ARGV[1]) do end return 1";
    const EACH: usize = 5;
    let Some(_turn) = begin("exchange_counts_slow", &["redis-server"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--service", "redis-server", "--detail", "0%"]);
    let mut client = server.client();
    // Arguments of one length: they all begin alike.
    let ask = |client: &mut tracer_tests::redis::Client, loops: &str| client.ask(&["EVAL", SCRIPT, "0", loops]);
    known(&agent, 1.0, || drop(ask(&mut client, "0000001")));
    let stop = AtomicBool::new(false);
    let slowest = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client();
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ask(&mut client, "0000001"), Value::Line(":1".into()));
                }
            });
        }
        // What is slow is decided by what was counted in a whole second.
        for _ in 0..3 {
            let before = counted_only(&agent.metrics());
            wait("another second of counts", Duration::from_secs(20), || {
                (counted_only(&agent.metrics()) > before + 100.0).then_some(())
            });
        }
        let slowest: Vec<Duration> = (0..EACH)
            .map(|_| {
                let sent = Instant::now();
                assert_eq!(ask(&mut client, "9999999"), Value::Line(":1".into()));
                let took = sent.elapsed();
                assert!(matches!(ask(&mut client, "-000001"), Value::Error(_)));
                took
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        slowest
    });
    let least = slowest.iter().min().expect("a slow command").as_secs_f64();
    // The next command of a connection ends the exchange before it.
    client.ask(&["PING"]);
    let (slow, failed) = wait("slow and failed commands among the transactions", Duration::from_secs(20), || {
        let list = agent.json("/api/v1/transactions?service=redis-server&limit=1000");
        let rows = list["transactions"].as_array()?;
        let slow = rows.iter().filter(|row| row["duration_s"].as_f64().is_some_and(|took| took > 0.5 * least)).count();
        let failed = rows.iter().filter(|row| row["failure"] == "WRONGTYPE").count();
        say(&format!("{slow} slow, {failed} failed of {}; e.g. {}", rows.len(), rows.first()?));
        (slow >= EACH && failed >= EACH).then_some((slow, failed))
    });
    // Where the server answers several connections at a time, those it read before wait with it.
    assert!(slow <= 4 * EACH && failed == EACH, "{slow} slow, {failed} failed");
    let calls = client.commandstats()["EVAL"];
    let counted = |labels: &[(&str, &str)]| agent.metrics().sum("db_server_operation_duration_seconds_count", labels);
    wait("every command of the server, once", Duration::from_secs(20), || {
        let all = counted(&[("db_operation_name", "EVAL")]) as u64;
        let failed = counted(&[("db_operation_name", "EVAL"), ("db_response_status_code", "WRONGTYPE")]) as usize;
        say(&format!("{all} of {calls} counted, {failed} of them failed"));
        (all == calls && failed == EACH).then_some(())
    });
    figure(
        "slow and failed commands",
        &format!("{slow} and {failed} of {EACH}; the slow ones took {least:.3} s at least"),
    );
}

#[test]
fn every_command_of_memcached_is_counted_though_few_are_seen_whole() {
    let Some(_turn) = begin("exchange_counts", &["memcached"]) else { return };
    let dir = scratch();
    let server = Memcached::start(dir.path());
    let port = server.address.port();
    let agent = start(dir.path(), port, "1%");
    let mut client = server.client();
    // The server reads it in several operations: its request is never only counted, its reply is.
    let long = "v".repeat(20_000);
    client.ask(&format!("set long 0 0 20000\r\n{long}\r\n"), &["STORED"]);
    let store = format!("set short 0 0 1000\r\n{}\r\n", "v".repeat(1000));
    let value = "VALUE long 0 20000";
    let kinds: [(&str, &str, &[&str]); 7] = [
        ("set", &store, &["STORED"]),
        ("get", "get long\r\n", &[value, &long, "END"]),
        ("get", "get none\r\n", &["END"]),
        ("add", "add long 0 0 1\r\nx\r\n", &["NOT_STORED"]),
        ("delete", "delete none\r\n", &["NOT_FOUND"]),
        ("touch", "touch long 1000\r\n", &["TOUCHED"]),
        // A failure each time.
        ("touch", "touch long soon\r\n", &["CLIENT_ERROR invalid exptime argument"]),
    ];
    let mut asked = 0;
    // By the server, and by this process; both kinds of `touch` begin alike.
    known(&agent, 12.0, || {
        for (_, lines, replies) in kinds {
            client.ask(lines, replies);
        }
        asked += 1;
    });
    let rounds = (1_000.0 * scale()) as u64;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..rounds {
                    for (_, lines, replies) in kinds {
                        client.ask(lines, replies);
                    }
                }
            });
        }
    });
    asked += 4 * rounds;
    let mut expected = BTreeMap::<String, u64>::new();
    for (name, ..) in kinds {
        *expected.entry(name.into()).or_default() += asked;
    }
    // What is never only counted: numbers as replies, and no reply.
    client.ask("set number 0 0 1\r\n1\r\n", &["STORED"]);
    for n in 0..rounds {
        client.ask("incr number 1\r\n", &[&(n + 2).to_string()]);
        client.ask("set quiet 0 0 1 noreply\r\nx\r\nget none\r\n", &["END"]);
    }
    for (name, more) in [("set", 2 + rounds), ("incr", rounds), ("get", rounds)] {
        *expected.entry(name.into()).or_default() += more;
    }
    let stats = client.stats();
    for (names, stat) in [(&["set", "add"][..], "cmd_set"), (&["get"], "cmd_get"), (&["incr"], "incr_hits")] {
        let sent: u64 = names.iter().filter_map(|name| expected.get(*name)).sum();
        assert_eq!(stats[stat], sent, "{stat}");
    }
    expected.insert("stats".into(), 1);
    let wanted: u64 = expected.values().sum();
    let metrics = wait("all commands that were sent", Duration::from_secs(30), || {
        let metrics = agent.metrics();
        let by = |family: &str, label: &str| {
            let mut found = BTreeMap::<String, u64>::new();
            for series in metrics.of(family, &[("db_system_name", "memcached")]).filter(|series| series.value > 0.0) {
                let name = series.labels.get(label).cloned().unwrap_or_default();
                *found.entry(name).or_default() += series.value as u64;
            }
            found
        };
        let served = by("db_server_operation_duration_seconds_count", "db_operation_name");
        let called = by("db_client_operation_duration_seconds_count", "db_operation_name");
        let failed = by("db_server_operation_duration_seconds_count", "db_response_status_code");
        say(&format!("{expected:?}\n{served:?} {called:?} {failed:?}; lost {:?}", metrics.lost()));
        let failures = failed.get("CLIENT_ERROR") == Some(&asked);
        (served == expected && called == expected && failures).then_some(metrics)
    });
    assert!(metrics.sum("tracer_requests_total", &[("status", "unfinished")]) < 1.0);
    // Written behind the counts.
    let only = counted_only(&agent.metrics());
    figure("commands of memcached", &format!("{wanted} of {wanted}, {only} only counted at both ends"));
    assert!(only > wanted as f64, "{only} only counted of {wanted} at both ends");
}
