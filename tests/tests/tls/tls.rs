//! Text inside encrypted connections: as many requests, with the same statuses, as the servers say, by OpenSSL and Go,
//! at both ends, and no wrong parent; and nothing of them by round trips.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::{Process, descendants};
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::tls::{Counts, certificate, counts, differences};
use tracer_tests::workload::source;
use tracer_tests::{begin, changed_code, figure, find, free_port, go, say, scale, scratch, wait};

/// An agent at a higher priority than the rest: losses are not what is tested here.
fn agent(dir: &Path, more: &[&str]) -> Agent {
    Agent::start(dir, &[&["--nice=-10", "--max-cpu", "400%"], more].concat())
}

/// nginx that listens with TLS on `port`, and passes `/up/` to itself by TLS.
fn nginx(dir: &Path, port: u16) -> Nginx {
    let (certificate, key) = certificate(dir);
    std::fs::create_dir_all(dir.join("www")).expect("www");
    for (name, size) in [("small", 20), ("big", 100_000)] {
        std::fs::write(dir.join("www").join(name), vec![b'x'; size]).expect("a file");
    }
    let http = format!("upstream own {{ server 127.0.0.1:{port}; keepalive 8; }}");
    let server = format!(
        "listen 127.0.0.1:{port} ssl http2;
         ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
         location ~ ^/(?<file>small|big)/ {{ try_files /$file =404; }}
         location /e/ {{ return 500 \"no\\n\"; }}
         location /up/ {{ proxy_pass https://own/small$uri; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}"
    );
    Nginx::start(dir, &http, &server)
}

/// Round trips of encrypted bytes other than handshakes.
fn round_trips(spans: &[Span], port: u16) -> usize {
    spans
        .iter()
        .filter(|span| (span.port == port || span.peer_port == port) && span.protocol == "tls")
        .filter(|span| span.class.starts_with("TLS"))
        .count()
}

/// Checks the parents of served requests (the call at the other end, with the same path) and of calls, by their paths;
/// returns how many served requests have theirs.
fn check_parents(all: &[Span], port: u16) -> (u64, u64) {
    let ids: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let served = all.iter().filter(|span| span.server && span.port == port && span.protocol == "http");
    for request in served.clone() {
        let parent = request.parent.as_deref().and_then(|id| ids.get(id));
        if let Some(parent) = parent.filter(|parent| parent.path != request.path) {
            say(&format!("wrong: {request:?}\n  is not caused by {parent:?}"));
        }
    }
    let (count, right, wrong, _) = report_parents("served", &parents(all, served));
    assert_eq!(wrong, 0, "parents of served requests");
    (right, count)
}

#[test]
fn nginx_and_curl_as_the_access_log_says() {
    let Some(_turn) = begin("tls", &["nginx", "curl", "openssl"]) else { return };
    let dir = scratch();
    let port = free_port();
    let nginx = nginx(dir.path(), port);
    let agent = agent(dir.path(), &["--port", &port.to_string()]);
    let each = (10.0 * scale()).ceil() as usize;
    for (n, (version, protocol)) in
        [("1.2", "--http1.1"), ("1.2", "--http2"), ("1.3", "--http1.1"), ("1.3", "--http2")].into_iter().enumerate()
    {
        for connection in 0..each {
            let mut command = Command::new("curl");
            command.args(["-sk", protocol, "--tls-max", version]);
            for (place, kind) in ["small", "e", "big", "up", "missing"].into_iter().enumerate() {
                let id = format!("{n}-{connection}-{place}");
                command.args(["-o", "/dev/null"]).arg(format!("https://127.0.0.1:{port}/{kind}/{id}?secret=hunter2"));
            }
            assert_eq!(outcome(&mut command, "curl").code, Some(0));
        }
    }
    let asked = 4 * 5 * each;
    // What is passed on is served again.
    let sent = asked + 4 * each;
    let logged =
        wait("the access log", Duration::from_secs(10), || Some(nginx.logged()).filter(|all| all.len() >= sent));
    let mut tail = Tail::new(&agent.transactions);
    let is_http = |span: &Span| span.port == port && span.protocol == "http";
    tail.until(2 * sent, Duration::from_secs(20), is_http);
    let lost = agent.metrics().lost();
    let metrics = agent.metrics();
    let transactions = agent.transactions.clone();
    agent.stop();
    let text = std::fs::read_to_string(transactions).expect("spans");
    assert!(!text.contains("hunter2"), "a query string was written");
    let all = tail.spans;
    let mut truth = Counts::new();
    for entry in &logged {
        *truth.entry((entry.path().to_owned(), entry.status)).or_default() += 1;
    }
    for server in [true, false] {
        let found = counts(all.iter().filter(|span| is_http(span) && span.server == server));
        let differ = differences(&truth, &found);
        let side = if server { "served" } else { "asked" };
        say(&format!("{side}: {} of {} logged; lost {lost:?}", found.values().sum::<usize>(), logged.len()));
        assert!(differ.is_empty(), "{side}: {differ:?}");
    }
    let (right, count) = check_parents(&all, port);
    figure("requests inside TLS", &format!("{} of {}, {right} of {count} with their call", count, logged.len()));
    assert_eq!(right, count, "each served request has the call of the other end");
    // nginx's own calls belong to the requests it passes on.
    let passed = |span: &&Span| !span.server && span.port == port && span.path.starts_with("/small/up/");
    let ids: BTreeMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let calls: Vec<&Span> = all.iter().filter(passed).collect();
    assert_eq!(calls.len(), 4 * each);
    for call in calls {
        let parent = call.parent.as_deref().and_then(|id| ids.get(id));
        if let Some(parent) = parent {
            assert_eq!(format!("/small{}", parent.path), call.path, "{call:?}");
        }
        assert!(parent.is_some() || call.grade != "certain", "{call:?}");
    }
    assert_eq!(round_trips(&all, port), 0, "text and encrypted bytes were both reported");
    for reason in ["text_unbound", "text_missed"] {
        let gaps = metrics.sum("tracer_attribution_gaps_total", &[("reason", reason)]);
        assert!(gaps < 0.5, "{reason}: {gaps}");
    }
}

#[test]
fn pythons_ssl_at_both_ends() {
    let Some(_turn) = begin("tls_python", &["python3", "openssl"]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg(source("tls_pair.py")).args(["serve", &certificate, &key]);
    let mut server = Process::start("server", &mut command, &dir.path().join("server.log"));
    let port: u16 = server.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    let agent = agent(dir.path(), &["--port", &port.to_string()]);
    let (connections, requests) = (10, 20);
    let mut truth = Counts::new();
    for version in ["1.2", "1.3"] {
        let mut command = Command::new(find("python3").expect("python3"));
        command.arg(source("tls_pair.py")).args(["ask", &port.to_string()]);
        command.args([&connections.to_string(), &requests.to_string(), version]);
        let asked = outcome(&mut command, "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
        for connection in 0..connections {
            for request in 0..requests {
                let (kind, status) = if request % 5 == 4 { ("e", 500) } else { ("py", 200) };
                truth.insert((format!("/{kind}/{version}-{connection}-{request}"), status), 1);
            }
        }
    }
    let mut tail = Tail::new(&agent.transactions);
    let is_http = |span: &Span| span.port == port && span.protocol == "http";
    tail.until(2 * truth.len(), Duration::from_secs(20), is_http);
    let lost = agent.metrics().lost();
    agent.stop();
    let all = tail.spans;
    for server in [true, false] {
        let found = counts(all.iter().filter(|span| is_http(span) && span.server == server));
        assert!(differences(&truth, &found).is_empty(), "{:?}; lost {lost:?}", differences(&truth, &found));
    }
    let (right, count) = check_parents(&all, port);
    figure("Python's ssl", &format!("{right} of {count} requests with their call"));
    assert_eq!(right, count);
    assert_eq!(round_trips(&all, port), 0);
}

#[test]
fn a_protocol_that_is_not_known_shows_round_trips() {
    let Some(_turn) = begin("tls_own", &["python3", "openssl"]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let agent = agent(dir.path(), &[]);
    let turns = 30;
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg(source("tls_pair.py")).args(["own", &certificate, &key, &turns.to_string()]);
    let mut workload = Process::start("own", &mut command, &dir.path().join("own.log"));
    let port: u16 = workload.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    let mut tail = Tail::new(&agent.transactions);
    let is_turn = |span: &Span| span.protocol == "tls" && span.class.starts_with("TLS");
    tail.until(2 * turns, Duration::from_secs(20), |span| is_turn(span) && (span.port == port || span.server));
    let all = tail.spans;
    for server in [true, false] {
        let found = all.iter().filter(|span| is_turn(span) && span.server == server && span.service == "own").count();
        let by_port = all.iter().filter(|span| is_turn(span) && span.server == server && span.port == port).count();
        say(&format!("server {server}: {found} by service, {by_port} by port of {turns}"));
    }
    let found = round_trips(&all, port);
    assert_eq!(found, 2 * turns, "round trips at both ends");
}

#[test]
fn gos_tls_at_both_ends() {
    for version in ["1.21.", "1.24.", "1.27."] {
        let toolchain = go::toolchain(version);
        let Some(_turn) = begin("tls_go", &[toolchain, "openssl"]) else { continue };
        let dir = scratch();
        let (certificate, key) = certificate(dir.path());
        let stripped: &[&str] = if version == "1.24." { &["-ldflags=-s -w"] } else { &[] };
        let program = go::build(Path::new(toolchain), dir.path(), "tls_pair.go", stripped);
        let agent = agent(dir.path(), &[]);
        let requests = 160;
        let mut command = Command::new(&program);
        command.args([&certificate, &key, &requests.to_string(), "late"]).env("OTEL_SERVICE_NAME", "go");
        let mut workload = Process::start("go", &mut command, &dir.path().join("go.log"));
        let line = workload.line("PORTS", Duration::from_secs(20));
        let ports: Vec<u16> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [front, back] = ports[..] else { panic!("{line}") };
        assert!(workload.wait(Duration::from_secs(60)).success(), "{}", workload.output());
        let mut truth = Counts::new();
        for h2 in [false, true] {
            for worker in 0..4 {
                for n in 0..requests / 8 {
                    let path = format!("/go/{h2}-{worker}-{n}");
                    let status = if path.ends_with('7') { 500 } else { 200 };
                    truth.insert((path, status), 1);
                }
            }
        }
        let mut tail = Tail::new(&agent.transactions);
        let is_ours = |span: &Span| {
            (span.port == front || span.port == back) && span.protocol == "http" && span.path.starts_with("/go/")
        };
        tail.until(4 * truth.len(), Duration::from_secs(20), is_ours);
        let lost = agent.metrics().lost();
        agent.stop();
        let all = tail.spans;
        for port in [front, back] {
            for server in [true, false] {
                let found =
                    counts(all.iter().filter(|span| is_ours(span) && span.server == server && span.port == port));
                let differ = differences(&truth, &found);
                let place = if port == front { "front" } else { "back" };
                say(&format!("Go {version}: {place}, server {server}: {} of {}", found.len(), truth.len()));
                assert!(differ.is_empty(), "Go {version} {place} {server}: {differ:?}; lost {lost:?}");
            }
            check_parents(&all, port);
        }
        // Calls to the back belong to the request with the same path, or to none.
        let calls = all.iter().filter(|span| is_ours(span) && !span.server && span.port == back);
        let (count, right, wrong, _) = report_parents("calls by Go", &parents(&all, calls));
        figure("calls inside Go's TLS", &format!("{right} of {count} with their request, {wrong} wrong"));
        assert_eq!(wrong, 0);
    }
}

#[test]
fn probes_come_and_go_under_load() {
    let Some(_turn) = begin("tls_harm", &["nginx", "h2load", "openssl"]) else { return };
    let dir = scratch();
    let port = free_port();
    let nginx = nginx(dir.path(), port);
    let mut command = Command::new(find("h2load").expect("h2load"));
    command.args(["-D", "20", "-c", "8", "-m", "4"]).arg(format!("https://127.0.0.1:{port}/small/load"));
    let log = dir.path().join("h2load.log");
    let mut load = Process::start("h2load", &mut command, &log);
    let mut rounds = 0;
    while load.ended().is_none() {
        let agent = Agent::start_named(&format!("agent{rounds}"), dir.path(), &["--hertz", "0"]);
        let hits = || agent.metrics().sum("tracer_uprobe_hits_total", &[("probe", "tls_copy")]);
        let hit =
            wait(
                "hits",
                Duration::from_secs(30),
                || {
                    if hits() > 0.0 { Some(true) } else { load.ended().map(|_| false) }
                },
            );
        agent.stop();
        rounds += u32::from(hit);
    }
    let said = std::fs::read_to_string(&log).expect("h2load's report");
    let line = said.lines().find(|line| line.starts_with("requests:")).unwrap_or_else(|| panic!("{said}"));
    figure("attached and detached under load", &format!("{rounds} times; {line}"));
    assert!(line.contains(" 0 failed, 0 errored, 0 timeout"), "{line}");
    assert!(rounds >= 2, "{rounds}");
    for pid in descendants(nginx.process.pid()) {
        assert_eq!(changed_code::of(pid), [], "what stays behind in process {pid}");
    }
}
