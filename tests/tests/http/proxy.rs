//! The PROXY protocol as HAProxy sends it, versions 1 and 2, to nginx and MariaDB: the agent finds the requests behind
//! the header as if there were none, compared with nginx's access log and MariaDB's general log, and links them to the
//! requests that HAProxy received.

use std::collections::BTreeMap;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::haproxy::{Haproxy, Way};
use tracer_tests::load::{self, Request};
use tracer_tests::mariadb::MariaDb;
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::workload::Server;
use tracer_tests::{Numbers, begin, figure, free_port, peers, say, scale, scratch, wait};

/// Names of the routes through HAProxy, as in paths; how the header is sent, and the protocol behind it.
const WAYS: [(&str, &str, &str); 7] = [
    // The baseline for the others.
    ("plain", "http", ""),
    ("one", "http", "send-proxy"),
    ("two", "http", "send-proxy-v2"),
    // Longer: with a checksum, the client's stated name, an id of the connection.
    ("more", "http", "send-proxy-v2 proxy-v2-options crc32c,unique-id"),
    ("passed", "tcp", "send-proxy-v2"),
    // Health checks: headers (LOCAL) with nothing behind them.
    ("looked", "http", "send-proxy-v2 check check-send-proxy inter 100"),
    ("h2", "http", "send-proxy-v2 proto h2"),
];
const CONNECTIONS: u64 = 8;

fn each() -> u64 {
    (60.0 * scale()).ceil() as u64
}

/// Over `connections` at once.
fn plans(way: &str, connections: u64) -> Vec<Vec<Request>> {
    let mut numbers = Numbers::new(11);
    let mut one = |connection: u64, n: u64| {
        let id = format!("{way}/{}", 1000 * connection + n);
        let mut request = Request::get(match numbers.below(5) {
            0 => format!("/e/{id}"),
            1 => format!("/no/{id}"),
            2 => format!("/p/{id}"),
            _ => format!("/up/{id}/d3000"),
        });
        if numbers.below(2) == 0 && request.target.starts_with("/up/") {
            request.method = "POST";
            request.body = vec![b'p'; numbers.below(30_000) as usize];
        }
        // A new client connection makes HAProxy open one with its own header.
        request.keep_alive = numbers.below(3) != 0;
        request.pause = Duration::from_micros(numbers.below(20_000)).div_f64(scale());
        request
    };
    (0..connections).map(|connection| (0..each()).map(|n| one(connection, n)).collect()).collect()
}

/// Counts `method path status body`.
fn add(counts: &mut BTreeMap<String, u64>, method: &str, path: &str, status: u16, body: u64) {
    *counts.entry(format!("{method} {path} {status} {body}")).or_default() += 1;
}

#[test]
fn haproxy_to_nginx_as_if_there_were_no_header() {
    let Some(_turn) = begin("proxy protocol", &["haproxy", "nginx", "cc"]) else { return };
    let dir = scratch();
    let origin = Server::c("origin", dir.path());
    let [one, two] = [free_port(), free_port()];
    let places = format!(
        "location /p/ {{ return 201 \"made\\n\"; }} location /e/ {{ return 500 \"oh no\\n\"; }}
         location /no/ {{ return 204; }} location /up/ {{ proxy_pass http://{}; }}",
        origin.address
    );
    // nginx refuses a connection there that sends no PROXY header before its request.
    let nginx = Nginx::start(
        dir.path(),
        &format!(
            "server {{ listen 127.0.0.1:{one} proxy_protocol; {places} }}
             server {{ listen 127.0.0.1:{two} proxy_protocol http2; {places} }}"
        ),
        &places,
    );
    let plain = nginx.address.port();
    let to = |way: &str| {
        let port = match way {
            "plain" => plain,
            "h2" => two,
            _ => one,
        };
        ([127, 0, 0, 1], port).into()
    };
    let ways = WAYS.map(|(way, mode, words)| Way { mode, words, to: to(way) });
    let haproxy = Haproxy::start(dir.path(), &ways);
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%"]);
    for ((way, ..), address) in WAYS.iter().zip(&haproxy.addresses) {
        for (name, connections) in [(way.to_string(), CONNECTIONS), (format!("{way}-alone"), 1)] {
            let loaded = load::run(*address, plans(&name, connections));
            assert!(loaded.broken().is_empty(), "{name}: {:?}", loaded.broken().first());
        }
    }
    let sent = WAYS.len() as u64 * (CONNECTIONS + 1) * each();
    let logged = wait("the access log to be complete", Duration::from_secs(20), || {
        let logged = nginx.logged();
        (logged.len() as u64 >= sent).then_some(logged)
    });
    assert_eq!(logged.len() as u64, sent);
    let ports = [one, two, plain];
    let mut tail = Tail::new(&agent.transactions);
    for server in [true, false] {
        tail.until(sent as usize, Duration::from_secs(20), |span| span.server == server && ports.contains(&span.port));
    }
    let lost = peers::settled(&agent).lost();
    let file = agent.transactions.clone();
    agent.stop();
    let all = spans::read(&file);

    let mut truth = BTreeMap::new();
    for line in &logged {
        add(&mut truth, &line.method, line.path(), line.status, line.body);
    }
    for server in [true, false] {
        let (mut found, mut unknown) = (BTreeMap::new(), BTreeMap::<_, usize>::new());
        for span in all.iter().filter(|span| span.server == server && ports.contains(&span.port)) {
            add(&mut found, &span.method, &span.path, span.status.unwrap_or(0), span.body);
            assert_eq!(span.outcome, "complete", "{span:?}");
            let words: Vec<&str> = span.path.split('/').take(3).collect();
            if !span.class.starts_with(&format!("{} {}/{{id}}", span.method, words.join("/"))) {
                // A word below the first level shows once three requests were served there; some were under way by then.
                assert!(span.class.starts_with(&format!("{} /{}/{{param}}/{{id}}", span.method, words[1])), "{span:?}");
                *unknown.entry((server, span.service.clone(), words.join("/"))).or_default() += 1;
            }
        }
        assert!(unknown.values().all(|count| *count <= 8), "{unknown:?}");
        let differ: Vec<_> = truth.iter().filter(|(key, count)| found.get(*key) != Some(*count)).take(5).collect();
        let more: Vec<_> = found.keys().filter(|key| !truth.contains_key(*key)).take(5).collect();
        let have: u64 = found.values().sum();
        say(&format!("behind the header: {sent} logged, server {server}: {have} found; lost {lost:?}"));
        assert!(differ.is_empty() && more.is_empty(), "server {server}: missing {differ:?}, more {more:?}; {lost:?}");
    }
    // nginx's caller is HAProxy's call, which the request to HAProxy caused.
    let ids: BTreeMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let caller = |span: &Span| span.parent.as_deref().and_then(|parent| ids.get(parent)).copied();
    for (way, ..) in WAYS {
        for (name, connections) in [(way.to_string(), CONNECTIONS), (format!("{way}-alone"), 1)] {
            let of = |span: &&Span| span.path.split('/').nth(2) == Some(&name);
            let served = || all.iter().filter(of).filter(|span| span.server && ports.contains(&span.port));
            let joined = served().filter(|span| {
                caller(span).is_some_and(|call| !call.server && call.path == span.path && call.service == "haproxy")
            });
            let joined = joined.count() as u64;
            let calls = all.iter().filter(of).filter(|span| !span.server && ports.contains(&span.port));
            let tallies = spans::parents(&all, calls);
            let (total, right, wrong, sure) = spans::report_parents(&format!("HAProxy, {name}"), &tallies);
            assert_eq!((joined, total), (connections * each(), connections * each()), "{name}");
            assert_eq!((wrong, sure), (0, 0), "{name}: a wrong parent shows");
            assert!(connections > 1 || right == total, "{name}: {right} of {total} linked to what caused them");
            figure(&format!("PROXY, {name}"), &format!("{joined} joined and {right} linked of {total}"));
        }
    }
    // Durations: the log has a resolution of a millisecond.
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    let theirs = median(logged.iter().filter(|line| line.path().starts_with("/up/")).map(|l| l.duration_s).collect());
    let served = all.iter().filter(|span| span.server && ports.contains(&span.port) && span.path.starts_with("/up/"));
    let ours = median(served.map(|span| span.duration_s).collect());
    say(&format!("median duration: nginx {:.2} ms, found {:.2} ms", theirs * 1e3, ours * 1e3));
    assert!(scale() < 1.0 || (ours - theirs).abs() <= 0.001 + 0.02 * theirs, "{ours} and {theirs}");
}

/// A server that speaks first, after the header.
#[test]
fn haproxy_to_mariadb_as_if_there_were_no_header() {
    let Some(_turn) = begin("proxy protocol mariadb", &["haproxy", "mariadbd", "mariadb"]) else { return };
    let dir = scratch();
    let server = MariaDb::start_with(dir.path(), &["--proxy-protocol-networks=127.0.0.1"]);
    let setup = "CREATE TABLE orders (id INT); INSERT INTO orders VALUES (1)";
    let done = outcome(server.client().args(["-e", setup]), "mariadb");
    assert_eq!(done.code, Some(0), "{}", done.err);
    let ways = ["send-proxy", "send-proxy-v2"].map(|words| Way { mode: "tcp", to: server.address, words });
    let haproxy = Haproxy::start(dir.path(), &ways);
    let agent = Agent::start(dir.path(), &["--nice=-10", "--max-cpu", "400%"]);
    let before = server.sent().len();
    let count = ((20.0 * scale()) as usize).max(3);
    let statements = "SELECT id FROM orders; UPDATE orders SET id = 2; SELECT nosuch FROM orders;";
    for address in &haproxy.addresses {
        for _ in 0..count {
            let done = outcome(server.client_by(*address).args(["-f", "-e", statements]), "mariadb");
            assert!(done.err.contains("Unknown column") && done.out.contains("id"), "{}{}", done.out, done.err);
        }
    }
    let lost = peers::settled(&agent).lost();
    let file = agent.transactions.clone();
    agent.stop();
    let sent = server.sent().split_off(before);
    let all = spans::read(&file);
    let ids: BTreeMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let parent = |span: &Span| span.parent.as_deref().and_then(|parent| ids.get(parent)).copied();
    for (sql, class, error) in [
        ("SELECT id FROM orders", "SELECT orders", ""),
        ("UPDATE orders SET id = 2", "UPDATE orders", ""),
        ("SELECT nosuch FROM orders", "SELECT orders", "1054"),
    ] {
        let wanted = sent.iter().filter(|one| one.as_str() == sql).count();
        assert_eq!(wanted, ways.len() * count, "{sent:?}");
        for service in ["mariadbd", "haproxy"] {
            for server in [true, false] {
                let fits = |span: &&Span| {
                    span.service == service && span.server == server && span.class == class && span.error == error
                };
                let have = all.iter().filter(fits).count();
                let expected = if service == "mariadbd" && !server { 0 } else { wanted };
                assert_eq!(have, expected, "{sql} of {service}, server {server}; lost {lost:?}");
            }
        }
        let linked = all.iter().filter(|span| span.service == "mariadbd" && span.class == class && span.error == error);
        let linked = linked.filter(|span| {
            let call = parent(span).filter(|call| !call.server && call.service == "haproxy" && call.class == class);
            let asked = call.and_then(&parent);
            asked.is_some_and(|asked| asked.server && asked.service == "haproxy" && asked.class == class)
        });
        let linked = linked.count();
        say(&format!("{sql}: {wanted} logged, {linked} whole to what HAProxy was asked"));
        assert_eq!(linked, wanted, "{sql}");
    }
    figure("PROXY, mariadb", &format!("{0} of {0} statements behind both headers", 3 * ways.len() * count));
}
