//! PostgreSQL, Redis, HAProxy and Apache over TLS: as many statements, commands and requests as the servers say, at both ends.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tracer_tests::agent::{Agent, outcome};
use tracer_tests::go::unpacked;
use tracer_tests::nginx::Nginx;
use tracer_tests::postgresql::Postgres;
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::tls::{Counts, certificate, counts, differences};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, free_port, scratch, tls_servers, wait};

fn agent(dir: &Path, ports: &[u16]) -> Agent {
    let mut arguments = vec!["--nice=-10".to_owned(), "--max-cpu".into(), "400%".into()];
    for port in ports {
        arguments.extend(["--port".into(), port.to_string()]);
    }
    Agent::start(dir, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a client that reads what to do from a file.
fn run(command: &mut Command, input: &Path, text: &str) -> String {
    std::fs::write(input, text).expect("a client's input");
    let open = || Stdio::from(std::fs::File::open(input).expect("a client's input"));
    let done = command.stdin(open()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let output = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{command:?}: {}{}", output(&done.stdout), output(&done.stderr));
    output(&done.stdout)
}

/// Spans of a protocol by class and error, of one side.
fn classes(all: &[Span], protocol: &str, server: bool) -> BTreeMap<(String, String), usize> {
    let mut found = BTreeMap::new();
    for span in all.iter().filter(|span| span.protocol == protocol && span.server == server) {
        *found.entry((span.class.clone(), span.error.clone())).or_default() += 1;
    }
    found
}

/// Sessions with PostgreSQL, and rounds of four statements in each, behind one that asks whether it is encrypted.
const SESSIONS: usize = 8;
const ROUNDS: usize = 15;
const STATEMENTS: usize = SESSIONS * (4 * ROUNDS + 1);

/// PostgreSQL that offers TLS, with a table.
fn postgresql_with_a_table(dir: &Path) -> Postgres {
    let server = tls_servers::postgresql(dir);
    let table = "CREATE TABLE accounts AS SELECT i AS id, 'planted-owner' AS owner FROM generate_series(1, 900) i;";
    run(encrypted_psql(&server).arg("-At"), &dir.join("table.sql"), table);
    server
}

fn encrypted_psql(server: &Postgres) -> Command {
    let mut command = server.psql();
    command.env("PGSSLMODE", "require");
    command
}

/// Whether a span is one of the sessions' statements.
fn is_statement(span: &Span) -> bool {
    span.protocol == "postgresql" && !matches!(span.class.as_str(), "CONNECT" | "SELECT")
}

/// Compares the sessions' statements with the server's log behind the first `before` entries, at both ends.
fn check_statements(name: &str, server: &Postgres, before: usize, agent: Agent, mut tail: Tail) {
    let logged: Vec<_> = server.log().split_off(before);
    let ran = logged.iter().filter(|entry| entry.step == "statement" || entry.error.is_some());
    let ran = ran.filter(|entry| entry.sql != "SELECT 1").count();
    assert_eq!(ran, STATEMENTS, "what the server logged");
    tail.until(2 * STATEMENTS, Duration::from_secs(20), is_statement);
    let lost = agent.metrics().lost();
    let transactions = agent.transactions.clone();
    agent.stop();
    let text = std::fs::read_to_string(transactions).expect("spans");
    assert!(!text.contains("planted-"), "a literal was written");
    for is_server in [true, false] {
        let found = classes(&tail.spans, "postgresql", is_server);
        let of = |class: &str, error: &str| found.get(&(class.to_owned(), error.to_owned())).copied().unwrap_or(0);
        let n = SESSIONS * ROUNDS;
        let counted = [
            of("SELECT accounts", ""),
            of("UPDATE accounts", ""),
            of("SELECT nosuch", "42P01"),
            of("SELECT pg_stat_ssl", ""),
        ];
        assert_eq!(counted, [2 * n, n, n, SESSIONS], "{name}, server {is_server}: {found:?}; lost {lost:?}");
    }
    let served = tail.spans.iter().filter(|span| span.server && is_statement(span));
    let with_call = served.filter(|span| span.parent.is_some()).count();
    figure(name, &format!("{STATEMENTS} statements at both ends, {with_call} with their call"));
    assert_eq!(with_call, STATEMENTS);
}

#[test]
fn postgresql_with_sslmode_require() {
    let Some(_turn) = begin("tls_postgresql", &["openssl", "setpriv"]) else { return };
    let dir = scratch();
    let server = postgresql_with_a_table(dir.path());
    let agent = agent(dir.path(), &[server.address.port()]);
    let before = server.log().len();
    for session in 0..SESSIONS {
        let mut text = String::from("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid();\n");
        for n in 0..ROUNDS {
            text += &format!(
                "SELECT owner FROM accounts WHERE id = {n};\nUPDATE accounts SET owner = 'x' WHERE id = {n};\n"
            );
            text += "SELECT id, repeat(owner, 40) FROM accounts;\n";
            text += &format!("SELECT * FROM nosuch WHERE owner = 'planted-{session}';\n");
        }
        let output = run(encrypted_psql(&server).arg("-At"), &dir.path().join("input.sql"), &text);
        assert!(output.starts_with('t'), "the session is not encrypted: {output}");
    }
    let tail = Tail::new(&agent.transactions);
    check_statements("PostgreSQL over TLS", &server, before, agent, tail);
}

/// OpenSSL 1.1 and 3.5, beside a library that brings them.
#[test]
fn openssl_beside_psycopg() {
    for (version, openssl) in [("2.9.5", "OpenSSL 1.1.1r"), ("2.9.13", "OpenSSL 3.5")] {
        let library = unpacked(&format!("psycopg2-binary-{version}"), "psycopg2/__init__.py");
        let Some(_turn) = begin("tls_psycopg", &["openssl", "setpriv", "python3", library]) else { return };
        let library = Path::new(library).parent().and_then(Path::parent).expect("a directory");
        let dir = scratch();
        let server = postgresql_with_a_table(dir.path());
        let agent = agent(dir.path(), &[server.address.port()]);
        let before = server.log().len();
        let go_on = dir.path().join("go_on");
        let mut command = Command::new(find("python3").expect("python3"));
        command.arg(source("psycopg_client.py")).arg(library).arg(&go_on);
        command.args([SESSIONS.to_string(), ROUNDS.to_string()]).env("OTEL_SERVICE_NAME", "psycopg");
        server.tell(&mut command);
        let mut client = Process::start("psycopg", &mut command, &dir.path().join("psycopg.log"));
        let mut tail = Tail::new(&agent.transactions);
        // Its library gets probes when it first shakes hands.
        let is_warm = |span: &Span| !span.server && span.class == "SELECT";
        tail.until(1, Duration::from_secs(30), is_warm);
        std::fs::write(&go_on, "").expect("a file");
        assert!(client.wait(Duration::from_secs(60)).success(), "{}", client.output());
        check_statements(&format!("{openssl} beside psycopg {version}"), &server, before, agent, tail);
    }
}

#[test]
fn redis_over_tls() {
    let Some(_turn) = begin("tls_redis", &["redis-server", "redis-cli", "openssl"]) else { return };
    let dir = scratch();
    let (_server, port) = tls_servers::redis(dir.path());
    let agent = agent(dir.path(), &[port]);
    let port = port.to_string();
    let client = || {
        let mut command = Command::new(find("redis-cli").expect("redis-cli"));
        command.args(["--tls", "--insecure", "-p", &port]);
        command
    };
    let input = dir.path().join("input");
    let (sessions, each) = (10, 20);
    for session in 0..sessions {
        let mut text = String::new();
        for n in 0..each {
            text += &format!("SET planted-key:{n} {}\nGET planted-key:{n}\n", "v".repeat(100 * n + 1));
        }
        text += &format!("HSET planted-hash:{session} a b\nINCR planted-hash:{session}\n");
        run(&mut client(), &input, &text);
    }
    // In one write each way: longer than a record of TLS, and than what one record of the agent holds.
    let piped = 3000;
    run(client().arg("--pipe"), &input, &"*3\r\n$6\r\nAPPEND\r\n$11\r\nplanted-key\r\n$5\r\nvalue\r\n".repeat(piped));
    let output = run(client().args(["INFO", "commandstats"]), &input, "");
    let calls = |name: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    assert_eq!(calls("append"), piped);
    let truth = ["set", "get", "hset", "incr"].map(calls);
    let mut tail = Tail::new(&agent.transactions);
    let named = |span: &Span, name: &str| span.protocol == "redis" && span.class.split(' ').next() == Some(name);
    let is_piped = |span: &Span| named(span, "APPEND");
    tail.until(2 * piped, Duration::from_secs(20), is_piped);
    let ours = |span: &Span| ["SET", "GET", "HSET", "INCR"].iter().any(|name| named(span, name));
    tail.until(2 * truth.iter().sum::<usize>(), Duration::from_secs(20), ours);
    let lost = agent.metrics().lost();
    let transactions = agent.transactions.clone();
    agent.stop();
    assert!(!std::fs::read_to_string(transactions).expect("spans").contains("planted-"), "a key was written");
    for server in [true, false] {
        let found = ["SET", "GET", "HSET", "INCR"]
            .map(|name| tail.spans.iter().filter(|span| span.server == server && named(span, name)).count());
        assert_eq!(found, truth, "server {server}; lost {lost:?}");
        let counted = tail.spans.iter().filter(|span| span.server == server && is_piped(span)).count();
        assert_eq!(counted, piped, "of a pipeline, server {server}; lost {lost:?}");
        let errors = tail.spans.iter().filter(|span| span.server == server && !span.error.is_empty()).count();
        assert_eq!(errors, sessions, "WRONGTYPE, server {server}");
    }
    let served = tail.spans.iter().filter(|span| span.server && ours(span));
    let with_call = served.filter(|span| span.parent.is_some()).count();
    let all: usize = truth.iter().sum();
    figure("Redis over TLS", &format!("{all} commands at both ends, {with_call} with their call"));
    assert_eq!(with_call, all);
}

/// Has curl ask a server for three pages on each of ten connections, by HTTP/1.1 and HTTP/2, TLS 1.2 and 1.3; how many it asked for.
fn ask(port: u16) -> usize {
    let connections = 10;
    let kinds = [("1.2", "--http1.1"), ("1.2", "--http2"), ("1.3", "--http1.1"), ("1.3", "--http2")];
    for (n, (version, protocol)) in kinds.into_iter().enumerate() {
        for connection in 0..connections {
            let mut command = Command::new("curl");
            command.args(["-sk", protocol, "--tls-max", version]);
            for (place, kind) in ["ok", "e", "ok"].into_iter().enumerate() {
                let url = format!("https://127.0.0.1:{port}/{kind}/{n}-{connection}-{place}?secret=hunter2");
                command.args(["-o", "/dev/null"]).arg(url);
            }
            assert_eq!(outcome(&mut command, "curl").code, Some(0));
        }
    }
    kinds.len() * 3 * connections
}

#[test]
fn haproxy_between_two_encrypted_connections() {
    let Some(_turn) = begin("tls_haproxy", &["haproxy", "nginx", "curl", "openssl"]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let back = free_port();
    let server = format!(
        "listen 127.0.0.1:{back} ssl; ssl_certificate {certificate}; ssl_certificate_key {key};
         location /ok/ {{ return 200 \"yes\\n\"; }} location /e/ {{ return 500 \"no\\n\"; }}"
    );
    let nginx = Nginx::start(dir.path(), "", &server);
    let (_server, front) = tls_servers::haproxy(dir.path(), back);
    let agent = agent(dir.path(), &[front, back]);
    let sent = ask(front);
    let logged =
        wait("the access log", Duration::from_secs(10), || Some(nginx.logged()).filter(|all| all.len() >= sent));
    let mut truth = Counts::new();
    for entry in &logged {
        *truth.entry((entry.path().to_owned(), entry.status)).or_default() += 1;
    }
    let mut tail = Tail::new(&agent.transactions);
    let at =
        |span: &Span, port: u16, server: bool| span.protocol == "http" && span.port == port && span.server == server;
    let is_http = |span: &Span| span.protocol == "http" && (span.port == front || span.port == back);
    tail.until(4 * sent, Duration::from_secs(20), is_http);
    let lost = agent.metrics().lost();
    let transactions = agent.transactions.clone();
    agent.stop();
    assert!(!std::fs::read_to_string(transactions).expect("spans").contains("hunter2"));
    let all = tail.spans;
    for (port, server) in [(front, true), (front, false), (back, true), (back, false)] {
        let found = counts(all.iter().filter(|span| at(span, port, server)));
        let differ = differences(&truth, &found);
        let place = if port == front { "front" } else { "back" };
        assert!(differ.is_empty(), "{place}, server {server}: {differ:?}; lost {lost:?}");
    }
    for port in [front, back] {
        let served = all.iter().filter(|span| at(span, port, true));
        let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
        assert_eq!((wrong, right), (0, count), "served requests have the call of the other end");
    }
    let calls = all.iter().filter(|span| at(span, back, false));
    let (count, right, wrong, _) = report_parents("HAProxy's calls", &parents(&all, calls));
    figure("HAProxy between two TLS connections", &format!("{count} calls, {right} with their request, {wrong} wrong"));
    assert_eq!(wrong, 0);
}

/// Has curl ask Apache for a page for which both shake hands again, between two others, on each of ten connections; how many it
/// asked for.
fn ask_again(port: u16) -> usize {
    for connection in 0..10 {
        let mut command = Command::new("curl");
        command.args(["-skv", "--http1.1", "--tls-max", "1.2"]);
        for (place, kind) in ["ok", "again", "ok"].into_iter().enumerate() {
            command
                .args(["-o", "/dev/null"])
                .arg(format!("https://127.0.0.1:{port}/{kind}/again-{connection}-{place}"));
        }
        let ended = outcome(&mut command, "curl");
        assert_eq!(ended.code, Some(0));
        // Twice: it was one connection.
        let hellos = ended.err.matches("(OUT), TLS handshake, Client hello").count();
        assert_eq!(hellos, 2, "{}", ended.err);
    }
    30
}

/// Apache writes to memory and sends from there itself; its threads are those of its event loop.
#[test]
fn apache_with_an_event_loop() {
    let Some(_turn) = begin("tls_apache", &["apache2", "curl", "openssl"]) else { return };
    let dir = scratch();
    let (_server, port, log) = tls_servers::apache(dir.path());
    let agent = agent(dir.path(), &[port]);
    let sent = ask(port) + ask_again(port);
    let logged = wait("the access log", Duration::from_secs(10), || {
        Some(std::fs::read_to_string(&log).expect("a log")).filter(|text| text.lines().count() >= sent)
    });
    let mut truth = Counts::new();
    for line in logged.lines() {
        let (path, status) = line.rsplit_once(' ').expect("a path and a status");
        *truth.entry((path.to_owned(), status.parse().expect("a number"))).or_default() += 1;
    }
    let mut tail = Tail::new(&agent.transactions);
    let at = |span: &Span, server: bool| span.protocol == "http" && span.port == port && span.server == server;
    tail.until(2 * sent, Duration::from_secs(20), |span| at(span, true) || at(span, false));
    let lost = agent.metrics().lost();
    agent.stop();
    let all = tail.spans;
    for server in [true, false] {
        let found = counts(all.iter().filter(|span| at(span, server)));
        let differ = differences(&truth, &found);
        assert!(differ.is_empty(), "server {server}: {differ:?}; lost {lost:?}");
    }
    let served = all.iter().filter(|span| at(span, true));
    let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
    figure("Apache with an event loop", &format!("{count} of {sent}, {right} with their call, {wrong} wrong"));
    assert_eq!((wrong, right), (0, count));
}
