//! Text of encrypted connections by other TLS libraries than OpenSSL's shared one: as many requests, with the same
//! statuses, as the other end says; and what cannot be seen is named.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, command as tracer, outcome};
use tracer_tests::nginx::Nginx;
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, parents, report_parents};
use tracer_tests::tls::{Counts, certificate, counts, differences};
use tracer_tests::tls_pair::logged;
use tracer_tests::workload::{built, source};
use tracer_tests::{begin, figure, find, free_port, go, say, scratch, wait};

fn agent(dir: &Path, more: &[&str]) -> Agent {
    Agent::start(dir, &[&["--nice=-10", "--max-cpu", "400%"], more].concat())
}

/// A server with OpenSSL inside; `None` where its static library is not installed.
fn static_server(dir: &Path) -> Option<PathBuf> {
    let program = dir.join("tls_static");
    let mut command = Command::new("cc");
    command.arg("-O2").arg("-o").arg(&program).arg(source("tls_static.c"));
    command.args(["-l:libssl.a", "-l:libcrypto.a", "-lpthread", "-ldl"]);
    let built = outcome(&mut command, "cc");
    if built.code != Some(0) {
        say(&format!("SKIPPED: OpenSSL's static library (libssl-dev) is not installed: {}", built.err));
        return None;
    }
    Some(program)
}

fn serve(program: &Path, arguments: &[&str], dir: &Path, name: &str) -> (Process, u16) {
    let mut command = Command::new(program);
    command.args(arguments).env("OTEL_SERVICE_NAME", name);
    let mut server = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
    let port = server.line("PORT", Duration::from_secs(20)).trim().parse().expect("a port");
    (server, port)
}

/// Asks for `/ok/` twice and `/e/` once in each of `connections` connections, by TLS 1.2 and 1.3; what was asked.
fn ask(port: u16, connections: usize) -> Counts {
    let mut truth = Counts::new();
    for version in ["1.2", "1.3"] {
        for connection in 0..connections {
            let mut command = Command::new("curl");
            command.args(["-sk", "--http1.1", "--tls-max", version]);
            // The client names the server.
            command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]);
            for (kind, place, status) in [("ok", 0, 200), ("e", 1, 500), ("ok", 2, 200)] {
                let path = format!("/{kind}/{version}-{connection}-{place}");
                command.args(["-o", "/dev/null"]).arg(format!("https://localhost:{port}{path}?secret=hunter2"));
                truth.insert((path, status), 1);
            }
            assert_eq!(outcome(&mut command, "curl").code, Some(0));
        }
    }
    truth
}

/// When a certificate expires, as OpenSSL reads it; seconds since 1970.
fn expires(certificate: &str) -> i64 {
    let script = "date -d \"$(openssl x509 -in \"$1\" -noout -enddate | cut -d= -f2)\" +%s";
    let made = outcome(Command::new("sh").args(["-c", script, "sh", certificate]), "date");
    made.out.trim().parse().unwrap_or_else(|error| panic!("{error}: {} {}", made.out, made.err))
}

#[test]
fn openssl_inside_a_program() {
    let Some(_turn) = begin("tls_static", &["cc", "curl", "openssl", "strip"]) else { return };
    let dir = scratch();
    let certificate = certificate(dir.path());
    let Some(program) = static_server(dir.path()) else { return };
    let stripped = dir.path().join("tls_stripped");
    let mut strip = Command::new("strip");
    assert_eq!(outcome(strip.arg("-o").arg(&stripped).arg(&program), "strip").code, Some(0));
    let arguments = [&*certificate.0, &*certificate.1];
    inside_a_program("OpenSSL", [&program, &stripped], &arguments, dir.path(), &certificate.0);
}

#[test]
fn rustls_inside_a_program() {
    let programs = ["tls-pair", "tls-pair-stripped"].map(built);
    let Some(_turn) = begin("tls_rustls", &["curl", "openssl", programs[0], programs[1]]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let log = dir.path().join("served.log").display().to_string();
    let arguments = ["serve", &*certificate, &*key, &*log];
    inside_a_program("rustls", programs.map(Path::new), &arguments, dir.path(), &certificate);
}

/// curl asks a server, and the same without its symbols: the first is seen whole, of the other `tracer doctor` says why not.
fn inside_a_program(library: &str, programs: [&Path; 2], arguments: &[&str], dir: &Path, certificate: &str) {
    let (_named, port) = serve(programs[0], arguments, dir, "named");
    let (_nameless, nameless) = serve(programs[1], arguments, dir, "nameless");
    let agent = agent(dir, &[]);
    // Programs are searched once the agent runs.
    let mut tail = Tail::new(&agent.transactions);
    let served = |span: &Span, port: u16| span.server && span.port == port && span.protocol == "http";
    wait("the program to be searched", Duration::from_secs(60), || {
        let mut command = Command::new("curl");
        command.args(["-sk", "-o", "/dev/null"]).arg(format!("https://127.0.0.1:{port}/warm/"));
        assert_eq!(outcome(&mut command, "curl").code, Some(0));
        tail.read().iter().any(|span| served(span, port)).then_some(())
    });
    let refused = || agent.metrics().sum("tracer_tls_files", &[("state", "refused")]);
    wait("the other to be refused", Duration::from_secs(60), || (refused() >= 1.0).then_some(()));
    let served = |span: &Span, port: u16| served(span, port) && !span.path.starts_with("/warm/");
    let truth = ask(port, 20);
    let asked = ask(nameless, 2);
    // Other programs call other servers meanwhile, this test the agent's console among them.
    let called = |span: &Span, to: u16| {
        !span.server && span.port == to && span.protocol == "http" && !span.path.starts_with("/warm/")
    };
    tail.until(truth.len(), Duration::from_secs(20), |span| served(span, port));
    let calls = truth.len() + asked.len();
    tail.until(calls, Duration::from_secs(20), |span| called(span, port) || called(span, nameless));
    let lost = agent.metrics().lost();
    let expiry = agent.metrics().sum("tracer_tls_certificate_expiry_seconds", &[("server_name", "localhost")]);
    let doctor = tracer(&["doctor"]);
    agent.stop();
    let all = tail.spans;
    let found = counts(all.iter().filter(|span| served(span, port)));
    let differ = differences(&truth, &found);
    assert!(differ.is_empty(), "{differ:?}; lost {lost:?}");
    for (to, truth) in [(port, &truth), (nameless, &asked)] {
        let found = counts(all.iter().filter(|span| called(span, to)));
        let differ = differences(truth, &found);
        assert!(differ.is_empty(), "curl's own text: {differ:?}; lost {lost:?}");
    }
    let (count, right, wrong, _) = report_parents("served", &parents(&all, all.iter().filter(|s| served(s, port))));
    figure(&format!("{library} inside a program"), &format!("{count} of {}, {right} with their call", truth.len()));
    assert_eq!((wrong, right), (0, count));
    assert_eq!(expiry as i64, expires(certificate), "when the certificate expires");
    // Without symbols: nothing, and `tracer doctor` gives the reason.
    assert_eq!(all.iter().filter(|span| served(span, nameless)).count(), 0);
    let line = |program: &Path| {
        let named = format!("{}:", program.display());
        doctor.out.lines().find(|line| line.contains(&named)).unwrap_or_else(|| panic!("{}", doctor.out))
    };
    assert!(line(programs[1]).contains("symbols are stripped"), "{}", line(programs[1]));
    assert!(line(programs[0]).contains("text can be traced; in"), "{}", line(programs[0]));
}

/// `client` asks nginx for each list of addresses on one connection, by TLS 1.2 and 1.3: the agent must see at both ends what
/// the access log has, and each request with its call. `programs`: what the test needs.
fn client_of_nginx(name: &str, programs: &[&str], client: impl Fn(&str, &[String])) {
    let Some(_turn) = begin(name, programs) else { return };
    let dir = scratch();
    let port = free_port();
    let (certificate, key) = certificate(dir.path());
    let server = format!(
        "listen 127.0.0.1:{port} ssl;
         ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
         location /ok/ {{ return 200 \"yes\\n\"; }} location /e/ {{ return 500 \"no\\n\"; }}"
    );
    let nginx = Nginx::start(dir.path(), "", &server);
    let agent = agent(dir.path(), &["--port", &port.to_string()]);
    let connections = 12;
    for version in ["1.2", "1.3"] {
        for connection in 0..connections {
            let paths = ["ok", "e", "ok"].into_iter().enumerate();
            let url = |(place, kind)| {
                format!("https://127.0.0.1:{port}/{kind}/{version}-{connection}-{place}?secret=hunter2")
            };
            client(version, &paths.map(url).collect::<Vec<_>>());
        }
    }
    let sent = 2 * 3 * connections;
    let logged =
        wait("the access log", Duration::from_secs(10), || Some(nginx.logged()).filter(|all| all.len() >= sent));
    let mut tail = Tail::new(&agent.transactions);
    let is_http = |span: &Span| (span.port == port || span.peer_port == port) && span.protocol == "http";
    tail.until(2 * sent, Duration::from_secs(20), is_http);
    let lost = agent.metrics().lost();
    let transactions = agent.transactions.clone();
    agent.stop();
    assert!(!std::fs::read_to_string(transactions).expect("spans").contains("hunter2"));
    let all = tail.spans;
    let mut truth = Counts::new();
    for entry in &logged {
        *truth.entry((entry.path().to_owned(), entry.status)).or_default() += 1;
    }
    for server in [true, false] {
        let found = counts(all.iter().filter(|span| is_http(span) && span.server == server));
        let differ = differences(&truth, &found);
        assert!(differ.is_empty(), "server {server}: {differ:?}; lost {lost:?}");
    }
    let served = all.iter().filter(|span| is_http(span) && span.server);
    let (count, right, wrong, _) = report_parents("served", &parents(&all, served));
    figure(name, &format!("{count} of {}, {right} with their call", logged.len()));
    assert_eq!((wrong, right), (0, count));
}

#[test]
fn gnutls_as_a_client() {
    client_of_nginx("tls_gnutls", &["wget", "nginx", "openssl"], |version, urls| {
        let mut command = Command::new(find("wget").expect("wget"));
        command.args(["-q", "--no-check-certificate", "--tries=1", "-O", "/dev/null"]);
        let secure = if version == "1.2" { "NORMAL:-VERS-TLS1.3" } else { "NORMAL" };
        command.arg(format!("--ciphers={secure}")).args(urls);
        // 8: the server answered with an error.
        assert_eq!(outcome(&mut command, "wget").code, Some(8));
    });
}

/// Each call has a method of its own: its class says which it is.
#[test]
fn gos_grpc_at_both_ends() {
    let toolchain = go::toolchain("1.27.");
    let library = format!("{}/src/google.golang.org/grpc/clientconn.go", go::SOURCES);
    let Some(_turn) = begin("tls_grpc", &[toolchain, &library, "openssl"]) else { return };
    let dir = scratch();
    let (certificate, key) = certificate(dir.path());
    let program = go::build(Path::new(toolchain), dir.path(), "tls_grpc.go", &[]);
    let log = dir.path().join("served.log");
    let (_server, port) = serve(&program, &["serve", &certificate, &key, &log.display().to_string()], dir.path(), "go");
    let agent = agent(dir.path(), &["--port", &port.to_string()]);
    let mut tail = Tail::new(&agent.transactions);
    let ask = |arguments: &[&str]| {
        let asked = outcome(Command::new(&program).args(["ask", &port.to_string()]).args(arguments), "ask");
        assert_eq!(asked.code, Some(0), "{}", asked.err);
    };
    let is_call = |span: &Span| span.protocol == "grpc" && (span.port == port || span.peer_port == port);
    // A Go program gets its probes when it first encrypts.
    wait("both ends' text", Duration::from_secs(30), || {
        ask(&["warm", "1.3", "1", "1"]);
        (tail.until(2, Duration::from_secs(1), is_call) >= 2).then_some(())
    });
    let (connections, calls) = (5, 12);
    for (label, version) in [("a", "1.2"), ("b", "1.3")] {
        ask(&[label, version, &connections.to_string(), &calls.to_string(), "3"]);
    }
    let count = 2 * connections * calls;
    let is_counted = |span: &Span| is_call(span) && !span.class.contains("/warm-");
    tail.until(2 * count, Duration::from_secs(20), is_counted);
    let lost = agent.metrics().lost();
    agent.stop();
    let all = tail.spans;
    let named = |(path, status): (String, u16)| (path.trim_start_matches('/').to_owned(), status);
    let truth: Counts = logged(&log).into_iter().map(|(call, n)| (named(call), n)).collect();
    let truth: Counts = truth.into_iter().filter(|((class, _), _)| !class.contains("/warm-")).collect();
    assert_eq!(truth.values().sum::<usize>(), count, "what the server logged");
    for server in [true, false] {
        let mut found = Counts::new();
        for span in all.iter().filter(|span| is_counted(span) && span.server == server) {
            *found.entry((span.class.clone(), span.status.unwrap_or(u16::MAX))).or_default() += 1;
        }
        let differ = differences(&truth, &found);
        assert!(differ.is_empty(), "server {server}: {differ:?}; lost {lost:?}");
    }
    let called: HashMap<&str, &Span> = all.iter().map(|span| (span.id.as_str(), span)).collect();
    let parents = all.iter().filter(|span| is_counted(span) && span.server);
    let (right, wrong): (Vec<_>, Vec<_>) = parents
        .filter_map(|span| Some((&span.class, &called.get(span.parent.as_deref()?)?.class)))
        .partition(|(served, asked)| served == asked);
    figure("gRPC of Go over TLS", &format!("{count} calls at both ends, {} with their call", right.len()));
    assert_eq!((right.len(), wrong), (count, Vec::new()));
}

#[test]
fn nss_as_a_client() {
    client_of_nginx("tls_nss", &["python3", "nginx", "openssl"], |version, urls| {
        let mut command = Command::new("python3");
        let ended = outcome(command.arg(source("nss_client.py")).arg(version).args(urls), "nss_client.py");
        assert_eq!(ended.code, Some(0), "{ended:?}");
    });
}

/// NSS' own server, which writes by `PR_Writev`, closes each connection after its reply, and replies what it was asked for.
#[test]
fn nss_as_a_server() {
    let Some(_turn) = begin("tls_nss_server", &["selfserv", "certutil", "curl"]) else { return };
    let dir = scratch();
    let database = format!("sql:{}", dir.path().display());
    let noise = dir.path().join("noise");
    std::fs::write(&noise, [7; 64]).expect("noise");
    for arguments in [
        &["-N", "--empty-password"][..],
        &["-S", "-s", "CN=localhost", "-n", "server", "-x", "-t", "CT,,", "-z", noise.to_str().expect("a path")],
    ] {
        let made = outcome(Command::new("certutil").args(["-d", &database]).args(arguments), "certutil");
        assert_eq!(made.code, Some(0), "{made:?}");
    }
    let port = free_port();
    let log = dir.path().join("selfserv.log");
    let mut command = Command::new("selfserv");
    command.args(["-n", "server", "-p", &port.to_string(), "-d", &database, "-V", "tls1.2:tls1.3", "-t", "4"]);
    let _server = Process::start("selfserv", &mut command, &log);
    let ask = |version: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sk", "--http1.1", "--tls-max", version]);
        outcome(command.arg(format!("https://127.0.0.1:{port}{path}")), "curl").out
    };
    let is_answered = |version: &str, path: &str| ask(version, path).contains(&format!("GET {path} "));
    wait("the server to answer", Duration::from_secs(20), || is_answered("1.3", "/warm").then_some(()));
    let agent = agent(dir.path(), &["--port", &port.to_string()]);
    let mut truth = Counts::new();
    for version in ["1.2", "1.3"] {
        for number in 0..30 {
            let path = format!("/page/{version}-{number}");
            assert!(is_answered(version, &path), "{path}");
            truth.insert((path, 200), 1);
        }
    }
    let mut tail = Tail::new(&agent.transactions);
    let is_http = |span: &Span| (span.port == port || span.peer_port == port) && span.protocol == "http";
    tail.until(2 * truth.len(), Duration::from_secs(20), is_http);
    let lost = agent.metrics().lost();
    agent.stop();
    for server in [true, false] {
        let found = counts(tail.spans.iter().filter(|span| is_http(span) && span.server == server));
        let differ = differences(&truth, &found);
        assert!(differ.is_empty(), "server {server}: {differ:?}; lost {lost:?}");
    }
    let served = tail.spans.iter().filter(|span| is_http(span) && span.server);
    let (count, right, wrong, _) = report_parents("served", &parents(&tail.spans, served));
    figure("NSS as a server", &format!("{count} of {}, {right} with their call", truth.len()));
    assert_eq!((wrong, right), (0, count));
}
