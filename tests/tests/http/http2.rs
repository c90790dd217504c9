//! HTTP/2 and gRPC: compares the agent's spans with the servers' and clients' own figures.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::http2::{Nghttpd, Nghttpx, h2load};
use tracer_tests::metrics::Metrics;
use tracer_tests::nginx::Nginx;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::{Server, source};
use tracer_tests::{begin, figure, find, peers, rings, say, scale, scratch, wait};

/// Counts of outcomes.
type Counts = BTreeMap<String, u64>;

fn add(counts: &mut Counts, what: String) {
    *counts.entry(what).or_default() += 1;
}

/// An agent for this port's connections, at a higher CPU priority than others: losses from a full ring under saturating
/// load would be counted, and are not tested here; neither is load shedding below a CPU limit.
fn start(dir: &Path, port: u16) -> Agent {
    Agent::start(dir, &["--port", &port.to_string(), "--nice=-10", "--max-cpu", "400%"])
}

/// Waits until `count` spans per side of `port` are written, and returns all of them.
fn spans(agent: &Agent, port: u16, count: usize) -> Vec<Span> {
    let mut tail = Tail::new(&agent.transactions);
    for server in [true, false] {
        tail.until(count, Duration::from_secs(20), |span| span.server == server && span.port == port);
    }
    tail.spans.into_iter().filter(|span| span.port == port).collect()
}

/// Files of www: one that fits into a frame, one of several frames, one of many operations.
fn files(dir: &Path) {
    let www = dir.join("www");
    std::fs::create_dir_all(&www).expect("www");
    for (name, size) in [("small", 200), ("middle", 30_000), ("big", 1_000_000)] {
        std::fs::write(www.join(name), vec![b'x'; size]).expect("a file");
    }
}

fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new(find("node").expect("node"));
    command.arg(source("h2.js")).args(arguments);
    command
}

/// The lines of `expected` and `found` that differ.
fn differences(expected: &Counts, found: &Counts) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    keys.into_iter()
        .map(|key| (key, expected.get(key).copied().unwrap_or(0), found.get(key).copied().unwrap_or(0)))
        .filter(|(_, expected, found)| expected != found)
        .map(|(key, expected, found)| format!("{key}: expected {expected}, found {found}"))
        .collect()
}

fn check(title: &str, expected: &Counts, found: &Counts, metrics: &Metrics) {
    let (wanted, have) = (expected.values().sum::<u64>(), found.values().sum::<u64>());
    let differ = differences(expected, found);
    say(&format!("{title}: {wanted} expected, {have} found, {} kinds; lost {:?}", expected.len(), metrics.lost()));
    assert!(wanted > 0, "{title}: nothing was expected");
    assert!(differ.is_empty(), "{title}: {differ:#?}\nlost: {:?}", metrics.lost());
}

#[test]
fn h2load_counts_what_is_found() {
    let Some(_turn) = begin("h2load", &["nghttpd", "h2load"]) else { return };
    let dir = scratch();
    files(dir.path());
    let server = Nghttpd::start(dir.path());
    let port = server.address.port();
    let agent = start(dir.path(), port);
    let requests = (4_000.0 * scale()) as u64;
    // Many streams at once, one at a time, and bodies longer than what is captured.
    let mut loaded = [0; 4];
    // Rate-limited: unlimited, the bodies come at gigabytes per second, and losses then are the benchmark's subject.
    for (requests, connections, streams, rate, paths) in [
        (requests, 4, 10, 1000, &["/small", "/none"][..]),
        (requests, 4, 1, 1000, &["/small"]),
        (requests / 20, 2, 1, 100, &["/middle"]),
        (requests / 200, 2, 1, 20, &["/big"]),
    ] {
        let part = h2load(server.address, requests, connections, streams, rate, paths);
        for (sum, part) in loaded.iter_mut().zip([part.done, part.ok, part.refused, part.data]) {
            *sum += part;
        }
    }
    let all = spans(&agent, port, loaded[0] as usize);
    let lost = agent.metrics().lost();
    for side in [true, false] {
        let spans = || all.iter().filter(|span| span.server == side);
        let with = |status| spans().filter(|span| span.status == Some(status)).count() as u64;
        // An unknown length makes the sum wrong, as it should.
        let body = spans().fold(0, |sum: u64, span| sum.saturating_add(span.body));
        let complete = spans().filter(|span| span.outcome == "complete").count() as u64;
        let found = [spans().count() as u64, with(200), with(404), body];
        say(&format!(
            "h2load: {loaded:?} (requests, 200, 404, bytes), server {side}: {found:?}, complete {complete}; lost {lost:?}"
        ));
        assert_eq!(found, loaded, "server: {side}; lost: {lost:?}");
        assert_eq!(complete, loaded[0], "server: {side}; lost: {lost:?}");
    }
    // Every request has two ends, linked to each other.
    let callees: std::collections::HashSet<&str> =
        all.iter().filter(|span| span.server).filter_map(|span| span.parent.as_deref()).collect();
    let joined = all.iter().filter(|span| !span.server && callees.contains(span.id.as_str())).count() as u64;
    assert_eq!(joined, loaded[0], "ends that were joined");
    figure("HTTP/2 requests", &format!("{} of {} at both ends", joined, loaded[0]));
    agent.stop();
}

#[test]
fn nginx_logs_what_is_found() {
    let Some(_turn) = begin("nginx h2c", &["nginx", "h2load", "curl", "cc"]) else { return };
    let dir = scratch();
    files(dir.path());
    let origin = Server::c("origin", dir.path());
    let port = tracer_tests::free_port();
    let base = dir.path().display();
    let origin = origin.address;
    let nginx = Nginx::start(
        dir.path(),
        &format!(
            "server {{ listen 127.0.0.1:{port} http2; root {base}/www; http2_max_concurrent_streams 64;
             location /p/ {{ return 201 \"made\\n\"; }}
             location /e/ {{ return 500 \"oh no\\n\"; }}
             location /no/ {{ return 204; }}
             location /up/ {{ proxy_pass http://{origin}; }}
             location /slow/ {{ limit_rate 20k; try_files /middle =404; }} }}"
        ),
        "",
    );
    let agent = start(dir.path(), port);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let requests = (2_000.0 * scale()) as u64;
    h2load(address, requests, 3, 8, 500, &["/p/1", "/e/2", "/no/3", "/small", "/none"]);
    h2load(address, requests / 10, 3, 1, 100, &["/up/1", "/up/2"]);
    h2load(address, requests / 50, 2, 1, 50, &["/middle"]);
    h2load(address, 8, 4, 1, 10, &["/slow/1"]);
    for (n, arguments) in [&["-d", "name=value"][..], &["-I"], &["-X", "DELETE"]].iter().enumerate() {
        let mut curl = Command::new(find("curl").expect("curl"));
        curl.args(["-s", "-o", "/dev/null", "--max-time", "20", "--http2-prior-knowledge"]).args(*arguments);
        curl.arg(format!("http://{address}/up/curl{n}"));
        let done = outcome(&mut curl, "curl");
        assert_eq!(done.code, Some(0), "{arguments:?} {}", done.err);
    }
    let sent = requests + requests / 10 + requests / 50 + 8 + 3;
    let logged = wait("the access log to be complete", Duration::from_secs(20), || {
        let logged = nginx.logged();
        (logged.len() as u64 >= sent).then_some(logged)
    });
    let all = spans(&agent, port, logged.len());
    let metrics = agent.metrics();
    let mut expected = Counts::new();
    let mut found = Counts::new();
    for line in &logged {
        add(&mut expected, format!("{} {} {} {}", line.method, line.path(), line.status, line.body));
    }
    let served = || all.iter().filter(|span| span.server);
    for span in served() {
        add(&mut found, format!("{} {} {} {}", span.method, span.path, span.status.unwrap_or(0), span.body));
        assert_eq!(span.outcome, "complete", "{span:?}");
    }
    check("nginx's access log", &expected, &found, &metrics);

    // Durations: the log has steps of a millisecond. Medians, because one request can wait for a busy CPU in between.
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or_default()
    };
    for path in ["/up/", "/slow/", "/p/"] {
        let lines = logged.iter().filter(|line| line.path().starts_with(path));
        let theirs = median(lines.map(|line| line.duration_s).collect());
        let ours = median(served().filter(|span| span.path.starts_with(path)).map(|span| span.duration_s).collect());
        say(&format!("median duration of {path}: nginx {:.1} ms, found {:.1} ms", theirs * 1e3, ours * 1e3));
        assert!((ours - theirs).abs() <= 0.001 + 0.02 * theirs, "{path}: {ours} {theirs}");
    }

    figure("HTTP/2 requests in nginx's log", &format!("{} of {}", found.values().sum::<u64>(), logged.len()));
    agent.stop();
}

/// Targets longer than what is captured of an operation's front: their classes are those of their beginnings, and what follows
/// on the same connection has its own.
#[test]
fn long_targets_are_named_by_their_beginnings() {
    let Some(_turn) = begin("h2 long targets", &["nginx", "curl", "h2load"]) else { return };
    let dir = scratch();
    files(dir.path());
    let port = tracer_tests::free_port();
    let base = dir.path().display();
    let nginx = Nginx::start(
        dir.path(),
        &format!(
            "server {{ listen 127.0.0.1:{port} http2; root {base}/www; large_client_header_buffers 8 32k;
             location /make {{ return 201 \"made\\n\"; }} location /fail {{ return 500 \"oh no\\n\"; }}
             location /find/ {{ return 200 \"found\\n\"; }} }}"
        ),
        "",
    );
    let agent = start(dir.path(), port);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // Compressed, `q` has five bits and `~` would have thirteen, so it is sent as it is.
    let targets = [
        format!("/make?{}", "q".repeat(9_000)),
        format!("/fail?{}", "~".repeat(9_000)),
        format!("/find/{}", "q~".repeat(4_500)),
        "/small".to_owned(),
    ];
    let count = ((20.0 * scale()) as usize).max(5);
    // A connection for each.
    for target in (0..count).flat_map(|_| &targets) {
        let mut curl = Command::new(find("curl").expect("curl"));
        curl.args(["-s", "-o", "/dev/null", "--http2-prior-knowledge", "--max-time", "20"]);
        let done = outcome(curl.arg(format!("http://{address}{target}")), "curl");
        assert_eq!(done.code, Some(0), "{}", done.err);
    }
    // By another program over kept connections: one at a time, and several heads in one send.
    let paths: Vec<&str> = targets.iter().map(String::as_str).collect();
    for streams in [1, 4] {
        h2load(address, (count * targets.len()) as u64, 1, streams, 50, &paths);
    }
    let sent = 3 * count * targets.len();
    let logged = wait("the access log to be complete", Duration::from_secs(20), || {
        let logged = nginx.logged();
        (logged.len() >= sent).then_some(logged)
    });
    let all = spans(&agent, port, sent);
    let metrics = agent.metrics();
    let mut expected = Counts::new();
    for line in &logged {
        let path = if line.path().starts_with("/find/") { "/find/{token}" } else { line.path() };
        add(&mut expected, format!("{} {path} {}", line.method, line.status));
    }
    for side in [true, false] {
        let mut found = Counts::new();
        for span in all.iter().filter(|span| span.server == side) {
            assert_eq!(span.outcome, "complete", "{span:?}");
            add(&mut found, format!("{} {}", span.class, span.status.unwrap_or(0)));
        }
        check(&format!("long targets, server {side}"), &expected, &found, &metrics);
    }
    figure("HTTP/2 targets of 9 kB", &format!("{sent} of {sent} named at both ends"));
    agent.stop();
}

#[test]
fn node_in_both_roles() {
    let Some(_turn) = begin("node http2", &["node"]) else { return };
    let dir = scratch();
    let server = Server::start("node-server", dir.path(), &mut node(&["server"]));
    let port = server.address.port();
    let agent = start(dir.path(), port);
    let count = ((60.0 * scale()) as u64).max(5);
    let kinds = ["echo", "trailers", "push", "early", "slow", "never", "broken", "other"];
    let mut client = node(&["client", &port.to_string(), &kinds.join(","), &count.to_string()]);
    client.env("OTEL_SERVICE_NAME", "node-client");
    let done = outcome(&mut client, "the client");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let wanted = count as usize * kinds.len();
    let served = wait("the server to have seen every stream's end", Duration::from_secs(20), || {
        let output = server.process.output();
        let lines: Vec<String> =
            output.lines().filter_map(|line| line.strip_prefix("SERVED ")).map(str::to_owned).collect();
        (lines.len() >= wanted).then_some(lines)
    });
    let mut expected = Counts::new();
    for line in served {
        add(&mut expected, line);
    }
    let all = spans(&agent, port, wanted);
    let metrics = agent.metrics();
    for side in [true, false] {
        let mut found = Counts::new();
        for span in all.iter().filter(|span| span.server == side) {
            let Span { method, path, body, outcome, .. } = span;
            add(&mut found, format!("{method} {path} {} {body} {outcome}", span.status.unwrap_or(0)));
        }
        check(if side { "node's server" } else { "node's client" }, &expected, &found, &metrics);
    }
    agent.stop();
}

#[test]
fn grpc_calls_and_what_came_of_them() {
    let Some(_turn) = begin("grpc", &["python3"]) else { return };
    grpc_calls(0);
}

/// Heads longer than what is captured of an operation's front, among others and behind long bodies.
#[test]
fn grpc_calls_with_long_heads() {
    let Some(_turn) = begin("grpc heads", &["python3"]) else { return };
    for token in [1500, 3000] {
        grpc_calls(token);
    }
}

/// Makes calls with tokens of so many bytes, and compares them with the client's account.
fn grpc_calls(token: usize) {
    let python = find("python3").expect("python3");
    let has = outcome(Command::new(&python).args(["-c", "import grpc"]), "python3");
    if has.code != Some(0) {
        say("SKIPPED grpc: needs grpcio for Python (python3-grpcio)");
        return;
    }
    let dir = scratch();
    let mut run = Command::new(&python);
    let server = Server::start("cart", dir.path(), run.arg("-u").arg(source("calls_grpc.py")).arg("server"));
    let port = server.address.port();
    let mut agent = start(dir.path(), port);
    let count = ((100.0 * scale()) as u64).max(10);
    let mut client = Command::new(&python);
    client.arg(source("calls_grpc.py")).args(["client", &port.to_string(), &count.to_string(), &token.to_string()]);
    let done = outcome(client.env("OTEL_SERVICE_NAME", "shopper"), "the client");
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let mut expected = Counts::new();
    for line in done.out.lines().filter_map(|line| line.strip_prefix("CALLED ")) {
        let (what, times) = line.rsplit_once(' ').expect("a count");
        // The deadline passes in the client, which cancels the call without naming a status; or the server notices it
        // first.
        let (method, code) = what.split_once(' ').expect("a code");
        let code = if code == "DEADLINE_EXCEEDED" { "" } else { code };
        expected.insert(format!("{method} {code}"), times.parse().expect("a number"));
    }
    let wanted = expected.values().sum::<u64>();
    let broken_off = expected.remove("shop.v1.Cart/Slow ");
    assert_eq!(broken_off, Some(1), "{expected:?}");
    let all = spans(&agent, port, wanted as usize);
    for (family, service, side) in [
        ("rpc_server_call_duration_seconds_count", "cart", true),
        ("rpc_client_call_duration_seconds_count", "shopper", false),
    ] {
        let metrics = agent.metrics();
        let mut found = Counts::new();
        for series in metrics.of(family, &[("service_name", service), ("rpc_system_name", "grpc")]) {
            let label = |name: &str| series.labels.get(name).cloned().unwrap_or_default();
            assert_eq!(label("rpc_method"), label("request_class"));
            let failed = match (label("rpc_response_status_code").as_str(), side) {
                ("", _) => "aborted".to_owned(),
                ("OK", _) | ("NOT_FOUND" | "PERMISSION_DENIED" | "OUT_OF_RANGE", true) => String::new(),
                (code, _) => code.to_owned(),
            };
            assert_eq!(label("error_type"), failed, "{series:?}");
            let key = format!("{} {}", label("rpc_method"), label("rpc_response_status_code"));
            *found.entry(key).or_default() += series.value as u64;
        }
        let late =
            ["", "DEADLINE_EXCEEDED"].map(|code| found.remove(&format!("shop.v1.Cart/Slow {code}")).unwrap_or(0));
        assert_eq!(late.iter().sum::<u64>(), 1, "{found:?}");
        check(if side { "grpcio's server" } else { "grpcio's client" }, &expected, &found, &metrics);
    }
    let classes = all.iter().filter(|span| span.class == "shop.v1.Cart/List").count();
    assert_eq!(classes as u64, 2 * expected["shop.v1.Cart/List OK"]);
    figure(&format!("gRPC calls, tokens of {token} bytes"), &format!("{wanted} of {wanted} at both ends"));
    // Records whose frames are searched give back most of their room.
    let passed = rings::nothing_is_left(agent.process().pid());
    assert!(passed > 1 << 20, "{passed} bytes of records");
    no_secret(agent);
}

/// Calls of long messages, one at a time and several at once, are whole at both ends, however they are framed; no name
/// and no outcome is wrong, and missing calls are counted.
#[test]
fn grpc_messages_longer_than_what_is_captured() {
    let Some(_turn) = begin("grpc large", &["python3"]) else { return };
    let python = find("python3").expect("python3");
    let has = outcome(Command::new(&python).args(["-c", "import grpc"]), "python3");
    if has.code != Some(0) {
        say("SKIPPED grpc large: needs grpcio for Python (python3-grpcio)");
        return;
    }
    let dir = scratch();
    let count = ((25.0 * scale()) as usize).max(5);
    for (frame, workers) in [(1 << 22, 1), (16_384, 1), (16_384, 6)] {
        let mut run = Command::new(&python);
        run.arg("-u").arg(source("calls_grpc.py")).args(["server", &frame.to_string()]);
        let server = Server::start("cart", dir.path(), &mut run);
        let port = server.address.port();
        let agent = start(dir.path(), port);
        let mut client = Command::new(&python);
        client.arg(source("calls_grpc.py")).arg("large");
        client.args([usize::from(port), count, workers, frame].map(|number| number.to_string()));
        let done = outcome(client.env("OTEL_SERVICE_NAME", "shopper"), "the client");
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        drop(server);
        let wanted = count * workers;
        let names = ["shop.v1.Cart/Up", "shop.v1.Cart/Down"];
        let title = format!("large gRPC calls by {workers} in frames of at most {frame}");
        if workers == 1 {
            let all = spans(&agent, port, 2 * wanted);
            for (server, name) in [true, false].into_iter().flat_map(|server| names.map(|name| (server, name))) {
                let whole = |span: &&Span| {
                    span.server == server && span.class == name && span.outcome == "complete" && span.error.is_empty()
                };
                let whole = all.iter().filter(whole).count();
                assert_eq!(whole, wanted, "{title}: {name}, server {server}, lost {:?}", agent.metrics().lost());
            }
            figure(&title, &format!("{} of {} whole at both ends", all.len() / 2, 2 * wanted));
        } else {
            // Every incomplete call was counted as missing.
            let mut tail = Tail::new(&agent.transactions);
            tail.until(1, Duration::from_secs(20), |span| span.server);
            peers::settled(&agent);
            tail.read();
            let known = |span: &Span| names.contains(&span.class.as_str());
            for span in tail.spans.iter().filter(|span| span.class != "_UNNAMED") {
                let path = span.class.strip_prefix("POST /").unwrap_or(&span.class);
                assert!(names.contains(&path), "{title}: {span:?}");
                let fails = span.outcome == "complete" && known(span) && !span.error.is_empty();
                assert!(!fails, "{title}: {span:?}");
            }
            let whole = tail.spans.iter().filter(|span| known(span) && span.outcome == "complete").count();
            let missed = agent.metrics().sum("tracer_attribution_gaps_total", &[("reason", "parser_gap_bytes")]);
            assert!(whole == 4 * wanted || missed > 0.0, "{title}: {whole} of {}", 4 * wanted);
            // The assertion above covers cases where the kernel side lost track; they must be exceptions.
            assert!(whole * 100 >= 4 * wanted * 95, "{title}: {whole} of {}", 4 * wanted);
            figure(&title, &format!("{whole} of {} ends whole, {missed} bytes not read", 4 * wanted));
        }
        agent.stop();
    }
}

/// Searches all of the agent's output for secrets planted in heads, bodies and reasons.
fn no_secret(agent: Agent) {
    let targets = ["/", "/metrics", "/service?name=cart", "/api/v1/classes", "/api/v1/transactions?limit=1000"];
    let mut shown: Vec<(String, String)> =
        targets.iter().map(|target| ((*target).into(), agent.text(target))).collect();
    let spans = agent.transactions.clone();
    shown.push(("output".into(), agent.stop().output));
    shown.push(("spans".into(), std::fs::read_to_string(spans).expect("the file of spans")));
    for (place, text) in shown {
        assert!(text.contains("shop.v1.Cart/Get") || place == "output" || place == "/", "calls show in {place}");
        assert!(!text.to_lowercase().contains("planted"), "something planted shows in {place}");
    }
}

#[test]
fn upgrades_and_proxies() {
    let Some(_turn) = begin("h2c upgrade", &["nghttpd", "nghttpx", "nginx", "curl"]) else { return };
    let dir = scratch();
    files(dir.path());
    let backend = Nghttpd::start(dir.path());
    let front = Nghttpx::start(dir.path(), backend.address);
    let introduced = tracer_tests::free_port();
    let _nginx = Nginx::start(
        dir.path(),
        &format!("server {{ listen 127.0.0.1:{introduced} proxy_protocol; location / {{ return 201 \"made\\n\"; }} }}"),
        "",
    );
    let ports = [front.address.port(), introduced].map(|port| port.to_string());
    let agent = Agent::start(dir.path(), &["--port", &ports[0], "--port", &ports[1], "--nice=-10"]);
    let curl = |arguments: &[&str]| {
        let mut command = Command::new(find("curl").expect("curl"));
        command.args(["-s", "-o", "/dev/null", "--max-time", "20", "-w", "%{http_version} %{http_code}"]);
        let done = outcome(command.args(arguments), "curl");
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        done.out
    };
    let url = |port: u16, path: &str| format!("http://127.0.0.1:{port}{path}");
    let front = front.address.port();
    for n in 0..20 {
        // Two requests: the second is HTTP/2 from its beginning.
        let (first, second) = (url(front, &format!("/small?{n}")), url(front, "/none"));
        assert_eq!(curl(&["--http2", &first, "-o", "/dev/null", &second]), "2 2002 404");
        assert_eq!(curl(&["--haproxy-protocol", &url(introduced, "/a")]), "1.1 201");
    }
    let all = spans(&agent, introduced, 20);
    let found = |port: u16, path: &str, status: u16, body: u64| {
        let fits =
            |span: &&Span| span.port == port && span.path == path && span.status == Some(status) && span.body == body;
        let fitting: Vec<&Span> = all.iter().filter(fits).collect();
        assert!(fitting.iter().all(|span| span.outcome == "complete"), "{fitting:?}");
        [true, false].map(|side| fitting.iter().filter(|span| span.server == side).count())
    };
    assert_eq!(found(introduced, "/a", 201, 5), [20, 20], "introduced by PROXY");
    let mut tail = Tail::new(&agent.transactions);
    tail.until(80, Duration::from_secs(20), |span| span.port == front);
    let all: Vec<Span> = tail.spans;
    let found = |path: &str, status: u16| {
        let fits = |span: &&Span| span.port == front && span.path == path && span.status == Some(status);
        [true, false].map(|side| {
            all.iter().filter(fits).filter(|span| span.server == side && span.outcome == "complete").count()
        })
    };
    assert_eq!(found("/small", 200), [20, 20], "upgraded: {:?}", agent.metrics().lost());
    assert_eq!(found("/none", 404), [20, 20], "after an upgrade");
    agent.stop();
}

#[test]
fn joined_in_the_middle() {
    let Some(_turn) = begin("h2 joined", &["node"]) else { return };
    let dir = scratch();
    let server = Server::start("node-server", dir.path(), &mut node(&["server"]));
    let port = server.address.port();
    let mut client = node(&["drip", &port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("node: {error}"));
    let mut ask = client.stdin.take().expect("its input");
    let mut answers = BufReader::new(client.stdout.take().expect("its output")).lines();
    let mut one = |path: &str| {
        writeln!(ask, "{path}").expect("the client to listen");
        let line = answers.next().expect("an answer").expect("text");
        assert_eq!(line, format!("DONE {path}"));
    };
    // Both ends' header tables hold these heads before the agent starts.
    (0..20).for_each(|n| one(&format!("/other/{n}")));
    let agent = start(dir.path(), port);
    let count = 200;
    (0..count).for_each(|n| one(&format!("/{}/{n}", ["other", "echo", "trailers"][n % 3])));
    let all = spans(&agent, port, count);
    let metrics = agent.metrics();
    drop(ask);
    client.wait().expect("the client's end");
    for side in [true, false] {
        let spans: Vec<&Span> = all.iter().filter(|span| span.server == side).collect();
        let named = spans.iter().filter(|span| span.class != "_UNNAMED").count();
        let mut wrong = Vec::new();
        for span in &spans {
            let kind = span.path.split('/').nth(1).unwrap_or_default();
            let known =
                span.class == "_UNNAMED" && span.path.is_empty() || ["other", "echo", "trailers"].contains(&kind);
            let status = match (kind, span.status) {
                ("other", Some(404)) | ("echo", Some(201)) | ("trailers", Some(200)) | (_, None) => true,
                _ => span.path.is_empty(),
            };
            if !known || !status {
                wrong.push(span);
            }
        }
        say(&format!("joined: {count} requests, {} found by their {side} side, {named} named", spans.len()));
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(spans.len(), count, "lost: {:?}", metrics.lost());
        let unnamed = metrics.sum("tracer_attribution_gaps_total", &[("reason", "requests_unnamed")]) as usize;
        assert!(named + unnamed >= count, "{named} named, {unnamed} counted as unnamed");
    }
    agent.stop();
}
