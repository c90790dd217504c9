//! Redis: compares commands and errors with the server's own statistics, CPU with the scheduler's, and checks that no
//! secret shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::metrics::Metrics;
use tracer_tests::redis::{Client, Redis, Value, command};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::{begin, explained, figure, find, say, scale, scratch, wait};

/// The agent's name for it: it overwrites its environment with its title, so the environment cannot set one.
const SERVICE: &str = "redis-server";
/// Longer than spans wait for what may still confirm them: this thread takes an element of a list, and what it does then
/// may be that job.
const DEFERRED: Duration = Duration::from_secs(12);
/// Secrets that must not show anywhere.
const SECRETS: [&str; 8] = [
    "planted-password",
    "planted-wrong-password",
    "planted-user",
    "planted-key",
    "planted-value",
    "planted-channel",
    "PLANTEDERROR",
    "plantedcommand",
];

/// A session of redis-py: pipelines of 20 commands, one of 50 in a transaction, and single ones.
const PYTHON: &str = r#"
import sys, redis
r = redis.Redis(port=int(sys.argv[1]), password="planted-password", client_name="py")
for i in range(150):
    p = r.pipeline(transaction=False)
    for j in range(20):
        p.set(f"planted-key:{i}", "planted-value" * (1 + j % 7))
    p.execute()
p = r.pipeline(transaction=True)
for i in range(50):
    p.incr("planted-key:n")
p.execute()
for i in range(200):
    r.get(f"planted-key:{i}")
r.hset("planted-key:h", mapping={"a": "planted-value"})
try:
    r.incr("planted-key:h")
except redis.ResponseError:
    pass
"#;

/// An agent for this port's connections, at a higher CPU priority than others: losses from a full ring under saturating
/// load would be counted, and are not tested here.
fn start(dir: &Path, port: u16) -> Agent {
    Agent::start(dir, &["--port", &port.to_string(), "--nice=-10", "--max-cpu", "400%"])
}

/// Server-side spans of Redis by class.
fn classes(metrics: &Metrics, service: &str) -> BTreeMap<String, u64> {
    let labels = [("service_name", service), ("protocol", "redis")];
    let mut counts = BTreeMap::new();
    for series in metrics.of("tracer_requests_total", &labels).filter(|series| series.value > 0.0) {
        let class = series.labels.get("request_class").cloned().unwrap_or_default();
        *counts.entry(class).or_default() += series.value as u64;
    }
    counts
}

/// The same for client-side spans, all services together, by label of the operation.
fn calls(metrics: &Metrics, port: u16) -> BTreeMap<String, u64> {
    let port = port.to_string();
    let labels = [("db_system_name", "redis"), ("server_port", port.as_str())];
    let mut counts = BTreeMap::new();
    for series in metrics.of("db_client_operation_duration_seconds_count", &labels) {
        let name = series.labels.get("db_operation_name").cloned().unwrap_or_default();
        *counts.entry(name).or_default() += series.value as u64;
    }
    counts
}

fn errors(metrics: &Metrics, service: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for series in metrics.of("db_server_operation_duration_seconds_count", &[("service_name", service)]) {
        let kind = series.labels.get("db_response_status_code").cloned().unwrap_or_default();
        if !kind.is_empty() {
            *counts.entry(kind).or_default() += series.value as u64;
        }
    }
    counts
}

fn total(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}

fn benchmark(server: &Redis, arguments: &[&str]) {
    let program = find("redis-benchmark").expect("redis-benchmark");
    let mut run = Command::new(program);
    run.args(["-p", &server.address.port().to_string(), "-q", "-a", "planted-password"]).args(arguments);
    let done = outcome(&mut run, "redis-benchmark");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
}

fn python(server: &Redis) {
    let mut run = Command::new(find("python3").expect("python3"));
    run.args(["-c", PYTHON, &server.address.port().to_string()]).env("OTEL_SERVICE_NAME", "python-client");
    let done = outcome(&mut run, "redis-py");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
}

/// Everything in the protocol, by a client that adjusts the expectation: for commands that were on the wire and did not
/// run, and commands that ran and were not on the wire.
fn by_hand(server: &Redis, expected: &mut BTreeMap<String, i64>) {
    let mut client = server.client();
    let ok = Value::Line("+OK".into());
    let refused = |value: Value, kind: &str| match value {
        Value::Error(text) => assert!(text.starts_with(kind), "{text} for {kind}"),
        other => panic!("{other:?} for {kind}"),
    };
    assert_eq!(client.ask(&["CONFIG", "SET", "requirepass", "planted-password"]), ok);
    let mut stranger = server.client();
    refused(stranger.ask(&["GET", "planted-key"]), "NOAUTH");
    refused(stranger.ask(&["AUTH", "planted-wrong-password"]), "WRONGPASS");
    assert_eq!(stranger.ask(&["AUTH", "default", "planted-password"]), ok);
    assert_eq!(
        client.ask(&["ACL", "SETUSER", "planted-user", "on", ">planted-password", "~*", "+@all", "-flushall"]),
        ok
    );
    let mut modern = server.client();
    assert!(matches!(modern.ask(&["HELLO", "3", "AUTH", "planted-user", "planted-password"]), Value::Array(Some(_))));
    refused(modern.ask(&["FLUSHALL"]), "NOPERM");
    modern.ask(&["HSET", "planted-key:h", "f", "planted-value"]);
    assert!(matches!(modern.ask(&["HGETALL", "planted-key:h"]), Value::Array(Some(_))));
    refused(modern.ask(&["INCR", "planted-key:h"]), "WRONGTYPE");
    refused(modern.ask(&["plantedcommand", "planted-value"]), "ERR");
    *expected.entry("_OTHER".into()).or_default() += 1;
    refused(modern.ask(&["GET"]), "ERR");

    // Transactions: discarded commands do not run.
    assert_eq!(client.ask(&["MULTI"]), ok);
    client.ask(&["SET", "planted-key:t", "planted-value"]);
    client.ask(&["LPUSH", "planted-key:t", "planted-value"]);
    let Value::Array(Some(inner)) = client.ask(&["EXEC"]) else { panic!("no array") };
    assert!(matches!(inner.last(), Some(Value::Error(text)) if text.starts_with("WRONGTYPE")), "{inner:?}");
    client.ask(&["MULTI"]);
    client.ask(&["SET", "planted-key:t", "planted-value"]);
    *expected.entry("SET".into()).or_default() += 1;
    assert_eq!(client.ask(&["DISCARD"]), ok);
    client.ask(&["MULTI"]);
    refused(client.ask(&["SET"]), "ERR");
    refused(client.ask(&["EXEC"]), "EXECABORT");

    // Scripts: the commands they call were not on the wire.
    for _ in 0..20 {
        client.ask(&["EVAL", "return redis.call('incrby', KEYS[1], 2)", "1", "planted-key:s"]);
    }
    *expected.entry("INCRBY".into()).or_default() -= 20;
    refused(client.ask(&["EVALSHA", "ffffffffffffffffffffffffffffffffffffffff", "0"]), "NOSCRIPT");
    refused(client.ask(&["EVAL", "return redis.error_reply('PLANTEDERROR planted-value')", "0"]), "PLANTEDERROR");

    subscriptions(server, &mut client);

    // No reply at all, then one again; and values longer than what is captured, several in one command.
    let mut mute = server.client();
    mute.ask(&["AUTH", "planted-password"]);
    mute.send(&command(&["CLIENT", "REPLY", "OFF"]));
    (0..30).for_each(|_| mute.send(&command(&["SET", "planted-key", "planted-value"])));
    assert_eq!(mute.ask(&["CLIENT", "REPLY", "ON"]), ok);
    let long = "planted-value".repeat(20_000);
    for _ in 0..5 {
        assert_eq!(mute.ask(&["MSET", "planted-key:1", &long, "planted-key:2", &long]), ok);
        assert_eq!(mute.ask(&["GET", "planted-key:1"]), Value::Text(Some(long.clone())));
        assert!(matches!(mute.ask(&["MGET", "planted-key:1", "planted-key:2"]), Value::Array(Some(_))));
    }

    // Inline commands, on a connection of their own, also in fragments.
    let mut typed = server.client();
    for line in ["AUTH planted-password\r\n", "set planted-key planted-value\r\n", "GET planted-key\n", "DBSIZE\r\n"] {
        typed.send(line.as_bytes());
        assert!(!matches!(typed.reply(), Value::Error(_)), "{line}");
    }
    for piece in command(&["STRLEN", "planted-key"]) {
        typed.send(&[piece]);
    }
    typed.reply();

    // A blocking command, answered because of another connection's command.
    let mut waiting = server.client();
    waiting.ask(&["AUTH", "planted-password"]);
    waiting.send(&command(&["BLPOP", "planted-key:q", "10"]));
    wait("a blocked client", Duration::from_secs(10), || {
        let Value::Text(Some(text)) = client.ask(&["INFO", "clients"]) else { panic!("no INFO") };
        text.contains("blocked_clients:1").then_some(())
    });
    client.ask(&["RPUSH", "planted-key:q", "planted-value"]);
    assert!(matches!(waiting.reply(), Value::Array(Some(_))));
    assert_eq!(waiting.ask(&["QUIT"]), ok);
}

/// Publish and subscribe, in both forms of the protocol.
fn subscriptions(server: &Redis, publisher: &mut Client) {
    for hello in [None, Some("3")] {
        let mut subscriber = server.client();
        subscriber.ask(&["AUTH", "planted-password"]);
        if let Some(version) = hello {
            subscriber.ask(&["HELLO", version]);
        }
        subscriber.ask(&["SUBSCRIBE", "planted-channel", "planted-channel:2"]);
        subscriber.reply();
        subscriber.ask(&["PSUBSCRIBE", "planted-channel*"]);
        for _ in 0..50 {
            publisher.ask(&["PUBLISH", "planted-channel", "planted-value"]);
        }
        (0..100).for_each(|_| drop(subscriber.reply()));
        subscriber.ask(&["UNSUBSCRIBE"]);
        subscriber.reply();
        subscriber.ask(&["PUNSUBSCRIBE", "planted-channel*"]);
        subscriber.ask(&["PING"]);
    }
}

#[test]
fn commands_errors_and_cpu_are_what_the_server_says() {
    let Some(_turn) = begin("redis", &["redis-server", "redis-benchmark", "python3"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let agent = start(dir.path(), server.address.port());
    let cpu_before = (server.cpu_s(), service_cpu(&agent.metrics()));
    let mut expected = BTreeMap::new();

    by_hand(&server, &mut expected);
    // As many as the rings of two CPUs hold: 70 000 a second come, faster than any agent reads them.
    let requests = ((1_000.0 * scale()) as u64).to_string();
    benchmark(&server, &["-t", "set,get,incr,lpush,sadd,hset", "-n", &requests, "-c", "5"]);
    benchmark(&server, &["-t", "lrange_100", "-n", &requests, "-c", "1"]);
    benchmark(&server, &["-t", "set,get", "-n", &requests, "-c", "5", "-P", "16"]);
    python(&server);

    let mut control = server.client();
    control.ask(&["AUTH", "planted-password"]);
    let refusals = control.errorstats();
    for (name, count) in control.commandstats() {
        *expected.entry(name).or_default() += count as i64;
    }
    // The INFO that returned these counts.
    *expected.entry("INFO".into()).or_default() += 1;
    expected.retain(|_, count| *count != 0);

    let wanted = expected.values().sum::<i64>() as u64;
    let metrics = wait_for(&agent, wanted);
    let (found, called) = (classes(&metrics, SERVICE), calls(&metrics, server.address.port()));
    say(&format!(
        "{wanted} commands of {} kinds; found {} served, {} called",
        expected.len(),
        total(&found),
        total(&called)
    ));
    let lost = metrics.lost();
    for (name, count) in &expected {
        let (served, called) = (found.get(name).copied().unwrap_or(0), called.get(name).copied().unwrap_or(0));
        say(&format!("  {name:<20} {count:>7} {served:>7} {called:>7}"));
    }
    say(&format!("lost: {lost:?}"));
    let right = |counts: &BTreeMap<String, u64>| -> u64 {
        expected.iter().map(|(name, count)| counts.get(name).copied().unwrap_or(0).min(*count as u64)).sum()
    };
    figure("redis commands", &format!("{} served and {} called of {wanted}", right(&found), right(&called)));
    let found: BTreeMap<String, i64> = found.into_iter().map(|(name, count)| (name, count as i64)).collect();
    let off = |counts: &BTreeMap<String, i64>| {
        let kinds: BTreeSet<&String> = counts.keys().chain(expected.keys()).collect();
        let of = |counts: &BTreeMap<String, i64>, kind| counts.get(kind).copied().unwrap_or(0);
        kinds.into_iter().map(|kind| (of(counts, kind) - of(&expected, kind)).unsigned_abs()).sum::<u64>()
    };
    // A skipped command is missing; one whose name was in a skipped operation is counted without it, and then differs
    // twice.
    let most = 2.0 * explained(&lost);
    assert!(
        found == expected || off(&found) as f64 <= most,
        "served: {found:?}, {expected:?} expected; lost: {lost:?}"
    );
    let called: BTreeMap<String, i64> = called.into_iter().map(|(name, count)| (name, count as i64)).collect();
    let right = called == expected || off(&called) as f64 <= most;
    assert!(right, "called: {called:?}, {expected:?} expected; lost: {lost:?}");

    let kinds = errors(&metrics, SERVICE);
    say(&format!("errors: the server's {refusals:?}, found {kinds:?}"));
    let mut refusals = refusals;
    let own = refusals.remove("PLANTEDERROR").expect("a script's own kind");
    refusals.insert("_OTHER".into(), own);
    let names: BTreeSet<&String> = kinds.keys().chain(refusals.keys()).collect();
    let of = |counts: &BTreeMap<String, u64>, kind| counts.get(kind).copied().unwrap_or(0);
    let off: u64 = names.into_iter().map(|kind| of(&kinds, kind).abs_diff(of(&refusals, kind))).sum();
    assert!(off as f64 <= most, "errors: {kinds:?}, {refusals:?} expected; lost: {lost:?}");

    let cpu = wait("the books of the last commands", Duration::from_secs(20), || {
        let (used, found) = (server.cpu_s() - cpu_before.0, service_cpu(&agent.metrics()).0 - cpu_before.1.0);
        (found > used * 0.99).then_some((used, found, service_cpu(&agent.metrics()).1))
    });
    say(&format!("CPU of redis-server: {:.4} s used, {:.4} s found, {:.4} s of it for commands", cpu.0, cpu.1, cpu.2));
    // An emulated server uses milliseconds between its reply and the reading of its CPU.
    let most = if scale() < 1.0 { 1.15 } else { 1.01 };
    assert!(cpu.1 < cpu.0 * most, "{cpu:?}");
    assert!(cpu.2 > cpu.1 * 0.5, "most of it is for commands: {cpu:?}");

    no_secret(agent, dir.path());
}

/// CPU attributed to the server: in total, and to its commands.
fn service_cpu(metrics: &Metrics) -> (f64, f64) {
    let name = "tracer_service_cpu_seconds_total";
    let labels = [("service_name", SERVICE)];
    let requests = [("service_name", SERVICE), ("kind", "requests")];
    (metrics.sum(name, &labels), metrics.sum(name, &requests))
}

/// Waits until both sides counted that many commands, or until no more come.
fn wait_for(agent: &Agent, wanted: u64) -> Metrics {
    let (mut last, mut since) = ((0, 0), Instant::now());
    wait("the last commands", Duration::from_secs(60), || {
        let metrics = agent.metrics();
        let served = metrics.sum("tracer_requests_total", &[("protocol", "redis")]) as u64;
        let called = metrics.sum("db_client_operation_duration_seconds_count", &[]) as u64;
        if served >= wanted && called >= wanted {
            return Some(metrics);
        }
        if (served, called) != last {
            (last, since) = ((served, called), Instant::now());
        }
        (served > 0 && since.elapsed() > DEFERRED).then_some(metrics)
    })
}

/// Searches all of the agent's output for secrets.
fn no_secret(agent: Agent, dir: &Path) {
    let mut shown: Vec<(String, String)> = Vec::new();
    for target in [
        "/",
        "/metrics",
        "/service?name=redis-server",
        "/api/v1/services",
        "/api/v1/classes",
        "/api/v1/health",
        "/api/v1/transactions?limit=1000",
        "/api/v1/transactions?status=error&limit=1000",
    ] {
        shown.push((target.into(), agent.text(target)));
    }
    let one = agent.json("/api/v1/transactions?status=error&service=redis-server&limit=1");
    let id = one["transactions"][0]["trace_id"].as_str().expect("a failed command").to_owned();
    for target in [format!("/api/v1/transactions/{id}"), format!("/transaction?id={id}")] {
        shown.push((target.clone(), agent.text(&target)));
    }
    let spans = agent.transactions.clone();
    let ended = agent.stop();
    shown.push(("output".into(), ended.output));
    shown.push(("spans".into(), std::fs::read_to_string(spans).expect("the file of spans")));
    for entry in std::fs::read_dir(dir).expect("the directory").filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with("agent") {
            let bytes = std::fs::read(entry.path()).expect("a file of the agent's");
            shown
                .push((entry.file_name().to_string_lossy().into_owned(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    assert!(shown.iter().any(|(_, text)| text.contains("WRONGTYPE")), "errors show");
    for (place, text) in shown {
        let lower = text.to_lowercase();
        for secret in SECRETS {
            assert!(!lower.contains(&secret.to_lowercase()), "{secret} shows in {place}");
        }
    }
}

/// Sends `count` commands in one write and reads the replies.
fn pipeline(client: &mut Client, count: u64) {
    client.send(&command(&["INCR", "n"]).repeat(count as usize));
    (0..count).for_each(|_| drop(client.reply()));
}

#[test]
fn long_pipelines_are_counted_to_the_last_command() {
    let Some(_turn) = begin("redis_pipeline", &["redis-server"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let port = server.address.port();
    let agent = start(dir.path(), port);
    let sum = |metrics: &Metrics| (total(&classes(metrics, SERVICE)), total(&calls(metrics, port)));
    // A connection begins with one, as a script does that has no more to say.
    pipeline(&mut server.client(), 20_000);
    let first = wait_for(&agent, 20_000);
    assert_eq!(sum(&first), (20_000, 20_000), "lost: {:?}", first.lost());
    let mut client = server.client();
    (0..50).for_each(|_| pipeline(&mut client, 50));
    let before = wait_for(&agent, 22_500);
    assert_eq!(sum(&before), (22_500, 22_500), "lost: {:?}", before.lost());
    (0..25).for_each(|_| pipeline(&mut client, 50));

    // One write of these, and one read by the server, exceeds the bytes carried of it.
    let truth = client.commandstats();
    assert_eq!(truth.get("INCR"), Some(&23_750));
    (0..20).for_each(|_| pipeline(&mut client, 700));
    let after = wait_for(&agent, 37_751);
    say(&format!(
        "pipelines of 700: 14000 sent, served {:?}, called {:?}, lost {:?}",
        classes(&after, SERVICE),
        calls(&after, port),
        after.lost()
    ));
    assert_eq!(sum(&after), (37_751, 37_751), "named, or counted by their replies; lost: {:?}", after.lost());

    // Longer than what can wait for replies. What is not counted lies in bytes that were not carried: the ring was half full.
    (0..5).for_each(|_| pipeline(&mut client, 20_000));
    let end = wait_for(&agent, 137_751);
    let missing = 137_751 - sum(&end).0.min(sum(&end).1);
    let gaps = end.sum("tracer_attribution_gaps_total", &[("reason", "parser_gap_bytes")]);
    say(&format!(
        "pipelines of 20000: 100000 sent, served {:?}, called {:?}; {missing} missing, {gaps} bytes not seen",
        classes(&end, SERVICE),
        calls(&end, port)
    ));
    assert!(sum(&end).0 <= 137_751 && sum(&end).1 <= 137_751, "none is counted twice: {:?}", sum(&end));
    assert!(missing as f64 * 4.0 <= gaps, "{missing} missing");
    let named = classes(&end, SERVICE);
    assert!(named.keys().all(|name| ["INCR", "INFO", "_UNNAMED"].contains(&name.as_str())), "guessed: {named:?}");
    client.ask(&["SET", "k", "v"]);
    let last = wait_for(&agent, 137_752);
    assert_eq!(classes(&last, SERVICE).get("SET"), Some(&1), "the connection is followed on");
    agent.stop();
}

#[test]
fn connections_are_joined_in_their_middle() {
    let Some(_turn) = begin("redis_midstream", &["redis-server"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let mut client = server.client();
    let mut subscriber = server.client();
    subscriber.ask(&["SUBSCRIBE", "c"]);
    (0..20).for_each(|_| drop(client.ask(&["SET", "k", "v"])));
    let agent = start(dir.path(), server.address.port());
    for _ in 0..40 {
        client.ask(&["PUBLISH", "c", "hi"]);
        subscriber.reply();
        assert_eq!(client.ask(&["GET", "k"]), Value::Text(Some("v".into())));
    }
    let expected: BTreeMap<String, u64> = [("GET".into(), 40), ("PUBLISH".into(), 40)].into();
    let metrics = wait_for(&agent, 80);
    let (found, called) = (classes(&metrics, SERVICE), calls(&metrics, server.address.port()));
    say(&format!("joined in the middle: {found:?}, called {called:?}, lost {:?}", metrics.lost()));
    assert_eq!(found, expected);
    assert_eq!(called, expected);
    agent.stop();
}

/// A server that reads its first bytes only when its client has already closed its direction.
#[test]
fn clients_that_close_one_direction_are_joined() {
    const CLIENTS: usize = 20;
    let Some(_turn) = begin("redis_half", &["redis-server"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let agent = start(dir.path(), server.address.port());
    let mut tail = Tail::new(&agent.transactions);
    for n in 0..CLIENTS {
        let mut client = server.client();
        client.send(&command(&["SET", &format!("k{n}"), "v"]));
        client.finish();
        assert_eq!(client.reply(), Value::Line("+OK".into()));
    }
    let set = |span: &Span| span.class == "SET";
    assert_eq!(tail.until(2 * CLIENTS, Duration::from_secs(20), set), 2 * CLIENTS, "{:?}", agent.metrics().lost());
    let of = |server: bool| tail.spans.iter().filter(move |span| set(span) && span.server == server);
    let callers: BTreeSet<&str> = of(false).map(|span| span.id.as_str()).collect();
    let joined = of(true).filter_map(|span| span.parent.as_deref()).filter(|parent| callers.contains(parent)).count();
    figure("Redis, clients that close one direction", &format!("{joined} of {CLIENTS} joined"));
    assert_eq!((callers.len(), joined), (CLIENTS, CLIENTS));
    agent.stop();
}

/// The reply of a transaction counts commands, but the server confirms each channel: what comes behind would be answered by the
/// wrong replies.
#[test]
fn subscriptions_in_a_transaction_move_no_outcome() {
    const TIMES: u64 = 20;
    let Some(_turn) = begin("redis_exec", &["redis-server"]) else { return };
    let dir = scratch();
    let server = Redis::start(dir.path());
    let agent = start(dir.path(), server.address.port());
    for hello in [None, Some("3")] {
        let mut client = server.client();
        if let Some(version) = hello {
            client.ask(&["HELLO", version]);
        }
        for _ in 0..TIMES {
            let commands = [
                &["MULTI"][..],
                &["SUBSCRIBE", "a", "b"],
                &["UNSUBSCRIBE", "a", "b"],
                &["EXEC"],
                &["GET", "none"],
                &["INCR", "n"],
                &["LPUSH", "n", "1"],
                &["STRLEN", "n"],
            ];
            client.send(&commands.iter().flat_map(|words| command(words)).collect::<Vec<u8>>());
            // The transaction has two of its four confirmations.
            let replies: Vec<Value> = (0..10).map(|_| client.reply()).collect();
            assert!(matches!(&replies[8], Value::Error(text) if text.starts_with("WRONGTYPE")), "{replies:?}");
            assert!(matches!(&replies[9], Value::Line(_)), "{replies:?}");
        }
    }
    let mut control = server.client();
    let (truth, refused) = (control.commandstats(), control.failures());
    assert_eq!(refused, BTreeMap::from([("LPUSH".into(), 2 * TIMES)]), "{truth:?}");
    // The two INFO that returned these counts, of which the first was not counted yet.
    let wanted = total(&truth) + 2;
    let metrics = wait_for(&agent, wanted);
    let mut found = classes(&metrics, SERVICE);
    assert_eq!(found.remove("INFO"), Some(2));
    assert_eq!(found, truth, "lost: {:?}", metrics.lost());
    let failed: BTreeMap<String, u64> = {
        let mut counts = BTreeMap::new();
        for series in metrics.of("db_server_operation_duration_seconds_count", &[("service_name", SERVICE)]) {
            if series.labels.get("db_response_status_code").is_some_and(|code| !code.is_empty()) {
                let name = series.labels.get("db_operation_name").cloned().unwrap_or_default();
                *counts.entry(name).or_default() += series.value as u64;
            }
        }
        counts
    };
    figure("Redis, subscriptions in transactions", &format!("{failed:?} failed, the server's {refused:?}"));
    assert_eq!(failed, refused);
    agent.stop();
}
