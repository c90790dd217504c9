//! Memcached in all three protocol forms: compares commands and errors with the server's own statistics, and checks
//! that no secret shows.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::memcached::Memcached;
use tracer_tests::metrics::Metrics;
use tracer_tests::{begin, figure, find, say, scratch, secrets, wait};

const SECRETS: [&str; 4] = ["planted-key", "planted-value", "planted-password", "plantedcommand"];

/// A session of pymemcache, with replies and without. A command after a long value without a reply, in the same read of
/// the server, would lie beyond what is captured.
const PYTHON: &str = r#"
import sys
from pymemcache.client.base import Client
for quiet in (False, True):
    c = Client(("127.0.0.1", int(sys.argv[1])), default_noreply=quiet, no_delay=True)
    for i in range(200):
        c.set(f"planted-key-{i}", b"planted-value" * (1 + i * (1 if quiet else 20)))
        c.get(f"planted-key-{i}")
        c.add("planted-key-0", b"planted-value")
        c.append(f"planted-key-{i}", b"x")
    c.set("planted-key-n", b"1")
    for i in range(100):
        c.incr("planted-key-n", 1)
        c.decr("planted-key-n", 1)
        c.touch("planted-key-n", 100)
    for i in range(50):
        c.delete(f"planted-key-{i}")
        c.gets(f"planted-key-{i + 50}")
        c.get(f"planted-key-none-{i}")
    c.get("planted-key-n")
    c.close()
"#;

fn packet(opcode: u8, opaque: u32, extra: &[u8], key: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extra.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&((extra.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&[0; 8]);
    [&bytes, extra, key.as_bytes(), value.as_bytes()].concat()
}

/// Everything in the protocol, by a client that counts the commands it sent, by class.
fn by_hand(server: &Memcached, sent: &mut BTreeMap<&'static str, u64>) {
    let mut client = server.client();
    let mut add = |name: &'static str, count: u64| *sent.entry(name).or_default() += count;
    client.ask("set planted-key 0 0 13\r\nplanted-value\r\n", &["STORED"]);
    client.ask("get planted-key none\r\n", &["VALUE planted-key 0 13", "planted-value", "END"]);
    client.ask("incr planted-key 1\r\n", &["CLIENT_ERROR cannot increment or decrement non-numeric value"]);
    client.ask("plantedcommand planted-value\r\n", &["ERROR"]);
    client.ask("cas planted-key 0 0 1 999999\r\nx\r\n", &["EXISTS"]);
    client.ask("replace none 0 0 1\r\nx\r\n", &["NOT_STORED"]);
    client.ask("gat 100 planted-key\r\n", &["VALUE planted-key 0 13", "planted-value", "END"]);
    client.ask("verbosity 0\r\nversion\r\n", &["OK"]);
    assert!(client.line().starts_with("VERSION "));
    for (name, count) in [
        ("set", 1),
        ("get", 1),
        ("incr", 1),
        ("_OTHER", 1),
        ("cas", 1),
        ("replace", 1),
        ("gat", 1),
        ("verbosity", 1),
        ("version", 1),
    ] {
        add(name, count);
    }
    // Longer than what is captured, several in one reply.
    let long = "planted-value".repeat(8_000);
    for key in ["planted-key-a", "planted-key-b"] {
        client.ask(&format!("set {key} 0 0 {}\r\n{long}\r\n", long.len()), &["STORED"]);
    }
    for _ in 0..5 {
        client.send(b"get planted-key-a planted-key-b\r\n");
        while client.line() != "END" {}
    }
    add("set", 2);
    add("get", 5);
    // Pipelines, and commands without a reply.
    for _ in 0..20 {
        client.ask(
            "set planted-key-c 0 0 1 noreply\r\nx\r\nget none\r\nmg none v\r\nms planted-key-d 2\r\nok\r\nmg planted-key-d v q\r\nmg none v q\r\nmn\r\n",
            &["END", "EN", "HD", "VA 2", "ok", "MN"],
        );
    }
    for (name, count) in [("set", 20), ("get", 20), ("mg", 60), ("ms", 20), ("mn", 20)] {
        add(name, count);
    }
    // Cut into single bytes.
    for byte in b"touch planted-key 100\r\n" {
        client.send(&[*byte]);
    }
    assert_eq!(client.line(), "TOUCHED");
    add("touch", 1);
    client.send(b"quit\r\n");
    add("quit", 1);

    let mut binary = server.client();
    let (flags, counter) = ([0; 8], [0; 20]);
    let set = binary.packets(&[packet(1, 1, &flags, "planted-key-e", "planted-value")], 1);
    assert_eq!(set, [(1, 1, 0)]);
    for _ in 0..20 {
        let asked = [
            packet(0x0d, 10, &[], "planted-key-e", ""),
            packet(0x0d, 11, &[], "none", ""),
            packet(0x11, 12, &flags, "planted-key-f", "planted-value"),
            packet(0x00, 13, &[], "none", ""),
            packet(0x0d, 14, &[], "none", ""),
            packet(0x0a, 15, &[], "", ""),
        ];
        assert_eq!(binary.packets(&asked, 3), [(0x0d, 10, 0), (0, 13, 1), (0x0a, 15, 0)]);
    }
    assert_eq!(binary.packets(&[packet(5, 20, &counter, "planted-key-e", "")], 1), [(5, 20, 6)]);
    assert_eq!(binary.packets(&[packet(0x21, 21, &[], "PLAIN", "\0u\0planted-password")], 1), [(0x21, 21, 0x81)]);
    assert_eq!(binary.packets(&[packet(4, 22, &[], "planted-key-e", "")], 1), [(4, 22, 0)]);
    for (name, count) in [("set", 21), ("get", 80), ("noop", 20), ("incr", 1), ("sasl_auth", 1), ("delete", 1)] {
        add(name, count);
    }
}

/// Memcached spans by class: server side, and client side.
fn classes(metrics: &Metrics, port: u16) -> [BTreeMap<String, u64>; 2] {
    let port = port.to_string();
    let count = |name: &str, labels: &[(&str, &str)], class: &str| {
        let mut counts = BTreeMap::new();
        for series in metrics.of(name, labels).filter(|series| series.value > 0.0) {
            *counts.entry(series.labels.get(class).cloned().unwrap_or_default()).or_default() += series.value as u64;
        }
        counts
    };
    let client = [("db_system_name", "memcached"), ("server_port", port.as_str())];
    [
        count("tracer_requests_total", &[("protocol", "memcached")], "request_class"),
        count("db_client_operation_duration_seconds_count", &client, "db_operation_name"),
    ]
}

#[test]
fn commands_and_errors_are_what_the_server_says() {
    let Some(_turn) = begin("memcached", &["memcached", "python3"]) else { return };
    let dir = scratch();
    let server = Memcached::start(dir.path());
    let port = server.address.port();
    let agent = Agent::start(dir.path(), &["--port", &port.to_string(), "--nice=-10"]);

    let mut sent = BTreeMap::new();
    by_hand(&server, &mut sent);
    let hand = server.client().stats();
    let mut run = Command::new(find("python3").expect("python3"));
    run.args(["-c", PYTHON, &port.to_string()]).env("OTEL_SERVICE_NAME", "python-client");
    let done = outcome(&mut run, "pymemcache");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let stats = server.client().stats();
    sent.insert("stats", 2);
    let python = [
        ("set", 402),
        ("get", 502),
        ("add", 400),
        ("append", 400),
        ("incr", 200),
        ("decr", 200),
        ("touch", 200),
        ("delete", 100),
        ("gets", 100),
    ];
    for (name, count) in python {
        *sent.entry(name).or_default() += count;
    }

    // The server's counts, in terms of what was sent: keys of one `get`, and commands it counts together.
    let stat = |names: &[&str]| -> u64 { names.iter().filter_map(|name| stats.get(*name)).sum() };
    let of = |names: &[&str]| -> u64 { names.iter().filter_map(|name| sent.get(name)).sum() };
    let more_keys = 1 + 5;
    assert_eq!(stat(&["cmd_get"]), of(&["get", "gets", "mg"]) + more_keys, "gets; by hand {hand:?}");
    assert_eq!(stat(&["cmd_set"]), of(&["set", "add", "append", "replace", "cas", "ms"]), "sets; by hand {hand:?}");
    assert_eq!(stat(&["incr_hits", "incr_misses"]), of(&["incr"]) - 2, "two were refused");
    assert_eq!(stat(&["decr_hits", "decr_misses"]), of(&["decr"]));
    assert_eq!(stat(&["delete_hits", "delete_misses"]), of(&["delete"]));
    assert_eq!(stat(&["cmd_touch"]), of(&["touch", "gat"]));

    let expected: BTreeMap<String, u64> = sent.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let wanted: u64 = expected.values().sum();
    let total = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
    let mut last = [0, 0];
    let (served, called, metrics) = wait("the last commands", Duration::from_secs(60), || {
        let metrics = agent.metrics();
        let [served, called] = classes(&metrics, port);
        let now = [total(&served), total(&called)];
        let still = now == std::mem::replace(&mut last, now) && now[0] > 0;
        if now.iter().all(|count| *count >= wanted) || still {
            return Some((served, called, metrics));
        }
        std::thread::sleep(Duration::from_millis(1500));
        None
    });
    for (name, count) in &expected {
        let have = |counts: &BTreeMap<String, u64>| counts.get(name).copied().unwrap_or_default();
        say(&format!("  {name:<10} {count:>6} {:>6} {:>6}", have(&served), have(&called)));
    }
    let right = |found: &BTreeMap<String, u64>| -> u64 {
        expected.iter().map(|(name, count)| found.get(name).copied().unwrap_or_default().min(*count)).sum()
    };
    let lost = metrics.lost();
    say(&format!("lost: {lost:?}"));
    figure("memcached commands", &format!("{} served and {} called of {wanted}", right(&served), right(&called)));
    assert_eq!(served, expected, "served; lost: {lost:?}");
    assert_eq!(called, expected, "called; lost: {lost:?}");

    let failures = |kind: &str| {
        metrics.sum("db_server_operation_duration_seconds_count", &[("db_response_status_code", kind)]) as u64
    };
    for (kind, count) in [("CLIENT_ERROR", 1), ("ERROR", 1), ("non_numeric", 1), ("unknown_command", 1)] {
        assert_eq!(failures(kind), count, "{kind}");
    }
    secrets::none_shows(agent, dir.path(), &SECRETS, "non_numeric");
}
