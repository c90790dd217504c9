//! In-band contexts by header: compares, byte for byte, what programs send with and without it, as recorded by the
//! test's own origin; checks the resulting edges; and connections whose agent ends.
//!
//! The truth is the same program's bytes to another port, which is not a destination. On kernels whose self-test finds
//! FIONREAD disturbed, only the first request of each connection gets a header, and the test expects that.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tracer_tests::agent::{Agent, binary};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::recorder::Recorder;
use tracer_tests::spans::{self, Span};
use tracer_tests::workload::source;
use tracer_tests::{begin, bpf, figure, find, go, say, scratch, truth, wait};

const PLAIN: Nat = Nat { destination: false, source: false };
/// Port of the destination, and the same origin's port that is not one.
const CHOSEN: u16 = 18_600;
const OTHER: u16 = 18_601;
/// Offset of nginx's own ports from the ports it proxies to.
const BY_NGINX: u16 = 10;
/// Servers of TLS and WebSocket.
const SECRET: u16 = 18_602;
const UPGRADED: u16 = 18_603;
/// Bytes of the inserted line.
const LINE: usize = 70;

/// An origin on host 2 that answers every request and records every byte.
fn origin(hosts: &Hosts, recorder: &Recorder) {
    for port in [CHOSEN, OTHER] {
        let address = SocketAddr::from((hosts.own(2), port));
        let listener =
            hosts.inside(2, || TcpListener::bind(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
        recorder.accept(listener, port, serve);
    }
}

/// Answers each request head, and accepts any other bytes as they come.
fn serve(mut stream: TcpStream, bytes: &Mutex<Vec<u8>>) -> Option<()> {
    let (mut at, mut part) = (0, vec![0u8; 1 << 16]);
    loop {
        let got = stream.read(&mut part).ok().filter(|got| *got > 0)?;
        let mut all = bytes.lock().expect("a lock");
        all.extend_from_slice(&part[..got]);
        while let Some((end, length)) = head(&all[at..])
            && all.len() >= at + end + length
        {
            at += end + length;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok()?;
        }
    }
}

/// Bytes of a request's head, and of its body.
fn head(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    Some((end, length.unwrap_or(0)))
}

/// A connection's bytes without the inserted lines, and per request its path and its inserted context.
fn without(bytes: &[u8]) -> (Vec<u8>, Vec<(String, Option<String>)>) {
    let (mut plain, mut requests, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some((end, length)) = head(&bytes[at..]) {
        let request = &bytes[at..bytes.len().min(at + end + length)];
        let line = request.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let path = String::from_utf8_lossy(&request[..line]).split(' ').nth(1).unwrap_or_default().to_owned();
        let put = request.get(line..line + LINE).filter(|put| put.starts_with(b"traceparent: 00-"));
        plain.extend_from_slice(&request[..line]);
        plain.extend_from_slice(&request[line + put.map_or(0, <[u8]>::len)..]);
        requests.push((path, put.map(|put| String::from_utf8_lossy(&put[13..68]).into_owned())));
        at += request.len();
    }
    plain.extend_from_slice(&bytes[at..]);
    (plain, requests)
}

/// Runs a program on host 1 to its end.
fn run(hosts: &Hosts, dir: &Path, name: &str, program: &Path, arguments: &[String]) {
    let mut command: Command = hosts.command(1, program);
    command.args(arguments).current_dir(dir);
    let mut process = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
    let status = process.wait(Duration::from_secs(120));
    assert!(status.success(), "{name}: {status}: {}", process.output());
}

fn agent(hosts: &Hosts, host: u8, name: &str, dir: &Path, more: &[&str]) -> Agent {
    let file = dir.join(format!("{name}.ndjson"));
    let mut arguments = vec!["--own-netns", "--hertz", "0"];
    arguments.extend(more);
    let agent = Agent::launch_by(hosts.command(host, &binary()), name, dir, &file, &arguments);
    hosts.inside(host, || agent.ready())
}

/// A client host's agent that writes headers, and whether it does so only for first requests.
fn caller(hosts: &Hosts, dir: &Path) -> (Agent, bool) {
    let destination = format!("{}:{CHOSEN}", hosts.own(2));
    let agent = agent(hosts, 1, "caller", dir, &["--inband-header", &destination]);
    let once = agent.output().contains("only the first request of each connection");
    (agent, once)
}

/// The sum of a family of header injection over the series with this label value.
fn counted(hosts: &Hosts, agent: &Agent, family: &str, label: (&str, &str)) -> u64 {
    hosts.inside(1, || agent.metrics().sum(&format!("tracer_inband_header_{family}_total"), &[label])) as u64
}

/// Name, program, and arguments before the address and port.
fn clients(dir: &Path) -> Vec<(&'static str, PathBuf, Vec<String>)> {
    let text = |path: &Path| path.display().to_string();
    let mut all = vec![("python", find("python3").expect("python3"), vec![text(&source("header_client.py"))])];
    if let Some(node) = find("node") {
        all.push(("node", node, vec![text(&source("header_client.js"))]));
    }
    if let (Some(javac), Some(java)) = (find("javac"), find("java")) {
        let done = Command::new(javac).arg("-d").arg(dir).arg(source("HeaderClient.java")).output().expect("javac");
        assert!(done.status.success(), "javac: {}", String::from_utf8_lossy(&done.stderr));
        all.push(("java", java, vec!["-cp".into(), text(dir), "HeaderClient".into()]));
    }
    let toolchain = Path::new(go::toolchain("1.27"));
    if toolchain.is_file() {
        all.push(("go", go::build(toolchain, dir, "header_client.go", &[]), Vec::new()));
    }
    all
}

/// nginx on host 1, which keeps its connections to the origin.
fn proxy(hosts: &Hosts, dir: &Path) -> Process {
    let at = dir.display();
    let server = |port: u16| {
        let name = format!("up{port}");
        format!(
            "upstream {name} {{ server {}:{port}; keepalive 4; }}
  server {{ listen {}; location / {{ proxy_pass http://{name}; proxy_http_version 1.1;
    proxy_set_header Connection \"\"; proxy_set_header Host a:{port}; }} }}\n",
            hosts.own(2),
            port + BY_NGINX,
        )
    };
    let configuration = format!(
        "user root; worker_processes 1; pid {at}/nginx.pid; error_log {at}/error.log warn; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; client_max_body_size 8m; client_body_buffer_size 4m;
  client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;
  uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
  {}{} }}\n",
        server(CHOSEN),
        server(OTHER)
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut command = hosts.command(1, &find("nginx").expect("nginx"));
    command.arg("-p").arg(dir).arg("-c").arg(&file).arg("-e").arg(dir.join("error.log"));
    let process = Process::start("nginx", &mut command, &dir.join("nginx.log"));
    hosts.inside(2, || {
        let to = (hosts.own(1), CHOSEN + BY_NGINX);
        wait("nginx to listen", Duration::from_secs(30), || TcpStream::connect(to).ok().map(drop));
    });
    process
}

#[test]
fn programs_get_headers_and_nothing_else_changes() {
    let programs = ["ip", "nft", "nsenter", "python3", "curl", "nginx"];
    let Some(_turn) = begin("programs_get_headers_and_nothing_else_changes", &programs) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let recorder = Recorder::default();
    origin(&hosts, &recorder);
    let (caller, once) = caller(&hosts, dir.path());
    let callee = agent(&hosts, 2, "callee", dir.path(), &[]);
    let body = dir.path().join("body");
    let bytes: Vec<u8> = (0..3u32 << 20).map(|i| (i % 251) as u8).collect();
    std::fs::write(&body, bytes).expect("a file");

    let mut all: Vec<(String, Option<String>)> = Vec::new();
    let mut ran = Vec::new();
    let mut compare = |name: &str, run: &dyn Fn(u16)| {
        let of = |port: u16| {
            run(port);
            recorder.taken(port)
        };
        let (plain, changed) = (of(OTHER), of(CHOSEN));
        assert!(!plain.is_empty() && plain.len() == changed.len(), "{name}: {} connections", changed.len());
        for (plain, changed) in plain.iter().zip(&changed) {
            // A client names the port in each request; everything else is equal.
            let (rest, requests) = without(changed);
            let renamed = |bytes: &[u8]| {
                let from = format!(":{OTHER}\r\n").into_bytes();
                let to = format!(":{CHOSEN}\r\n").into_bytes();
                let mut out = bytes.to_vec();
                for at in 0..out.len().saturating_sub(from.len()) {
                    if out[at..].starts_with(&from) {
                        out[at..at + to.len()].copy_from_slice(&to);
                    }
                }
                out
            };
            assert!(rest == renamed(plain), "{name}: {} bytes came, {} were meant", rest.len(), plain.len());
            let injected = requests.iter().filter(|(_, put)| put.is_some()).count();
            let expected = if once { 1 } else { requests.len() };
            assert_eq!(injected, expected, "{name}: {requests:?}");
            all.extend(requests);
        }
        ran.push(name.to_owned());
    };
    let own = hosts.own(2).to_string();
    for (name, program, before) in clients(dir.path()) {
        let go = |port: u16| {
            let arguments = [&before[..], &[own.clone(), port.to_string()]].concat();
            run(&hosts, dir.path(), name, &program, &arguments);
        };
        compare(name, &go);
    }
    let curl = find("curl").expect("curl");
    let file = format!("@{}", body.display());
    compare("curl", &|port| {
        let base = format!("http://{own}:{port}");
        let urls = [format!("{base}/curl-0"), format!("{base}/curl-1")];
        run(&hosts, dir.path(), "curl", &curl, &[&["-sS".to_owned()][..], &urls].concat());
        let post = ["-sS", "-H", "Expect:", "--data-binary", &file, &format!("{base}/curl-post")].map(str::to_owned);
        run(&hosts, dir.path(), "curl-post", &curl, &post);
    });

    let _nginx = proxy(&hosts, dir.path());
    let post = Request {
        method: "POST",
        body: (0..2u32 << 20).map(|i| (i % 251) as u8).collect(),
        ..Request::get("/nginx-post".into())
    };
    compare("nginx", &|port| {
        let mut plan: Vec<_> = (0..20).map(|i| Request::get(format!("/nginx-{i}"))).collect();
        plan.insert(10, post.clone());
        // From the other host: a caller on this host names the transaction later.
        let front = SocketAddr::from((hosts.own(1), port + BY_NGINX));
        let loaded = hosts.inside(2, || load::run(front, vec![plan]));
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    });

    let figures = format!(
        "{} requests of {}: {} got one",
        all.len(),
        ran.join(", "),
        all.iter().filter(|(_, p)| p.is_some()).count()
    );
    say(&format!("{figures}; once {once}"));
    figure("inband_header_programs", &format!("{figures}, every other byte as without"));
    edges(&hosts, [&caller, &callee], &all);
    for agent in [caller, callee] {
        agent.stop();
    }
}

/// Every header names the call it was inserted into, and the request at the other end has that call as its parent.
fn edges(hosts: &Hosts, agents: [&Agent; 2], requests: &[(String, Option<String>)]) {
    let put: HashMap<&str, &str> =
        requests.iter().filter_map(|(path, put)| Some((path.as_str(), put.as_deref()?))).collect();
    let of = |agent: &Agent, server: bool| {
        // nginx has clients of its own, with the same paths.
        let wanted = |span: &Span| span.server == server && span.port == CHOSEN && put.contains_key(span.path.as_str());
        wait("spans of all requests", Duration::from_secs(30), || {
            let all: Vec<Span> = spans::read(&agent.transactions).into_iter().filter(|span| wanted(span)).collect();
            (put.keys().all(|path| all.iter().any(|span| span.path == **path))).then_some(all)
        })
    };
    let [caller, callee] = agents;
    let (calls, served) = (of(caller, false), of(callee, true));
    let mut matched = 0;
    for (path, put) in &put {
        let (trace, call_id) = (&put[3..35], &put[36..52]);
        let named = calls.iter().filter(|call| call.id == call_id).collect::<Vec<_>>();
        assert!(named.len() == 1 && named[0].path == *path && named[0].trace == trace, "{path} {put}: {named:?}");
        let parents =
            served.iter().filter(|span| span.path == *path && span.parent.as_deref() == Some(call_id)).count();
        assert_eq!(parents, 1, "{path}: the request at the other end");
        matched += 1;
    }
    figure("inband_header_edges", &format!("{matched} of {} right, 0 wrong", put.len()));
    let refused = hosts.inside(1, || caller.metrics().sum("tracer_inband_total", &[("outcome", "unmatched")]));
    assert_eq!(refused as u64, 0, "contexts of no call");
}

#[test]
fn what_is_no_request_is_not_touched() {
    let Some(_turn) = begin("what_is_no_request_is_not_touched", &["ip", "nft", "nsenter", "python3"]) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let recorder = Recorder::default();
    origin(&hosts, &recorder);
    let (caller, _) = caller(&hosts, dir.path());
    let python = find("python3").expect("python3");
    let of = |port: u16| {
        let arguments = [source("header_raw.py").display().to_string(), hosts.own(2).to_string(), port.to_string()];
        run(&hosts, dir.path(), "raw", &python, &arguments);
        recorder.taken(port)
    };
    let (plain, chosen) = (of(OTHER), of(CHOSEN));
    assert_eq!(plain.len(), 6);
    assert!(plain == chosen, "bytes differ");
    let requests = |outcome: &str| counted(&hosts, &caller, "requests", ("outcome", outcome));
    let taken = || counted(&hosts, &caller, "connections", ("event", "taken"));
    let left_alone = |reason: &str| counted(&hosts, &caller, "left_alone", ("reason", reason));
    wait("the connections to be counted", Duration::from_secs(10), || {
        (taken() == 6 && left_alone("not_http") >= 2 && left_alone("upgrade") == 2).then_some(())
    });
    assert_eq!(requests("injected"), 0);
    assert!(left_alone("head_not_whole") == 1 && requests("present") >= 1, "{}", caller.text("/metrics"));
    caller.stop();
}

#[test]
fn kept_connections_and_an_agent_that_goes() {
    let programs = ["ip", "nft", "nsenter", "python3"];
    let Some(_turn) = begin("kept_connections_and_an_agent_that_goes", &programs) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let recorder = Recorder::default();
    origin(&hosts, &recorder);
    let (caller, once) = caller(&hosts, dir.path());
    let python = find("python3").expect("python3");
    let start = |name: &str, count: u64| {
        let mut command = hosts.command(1, &python);
        command.arg(source("header_client.py")).arg(hosts.own(2).to_string()).arg(CHOSEN.to_string());
        Process::start(name, command.arg(count.to_string()), &dir.path().join(format!("{name}.log")))
    };
    let count = if truth::full() { 10_000 } else { 1000 };
    let status = start("kept", count).wait(Duration::from_secs(120));
    assert!(status.success(), "{status}");
    let kept = recorder.taken(CHOSEN);
    let (_, requests) = without(&kept[0]);
    let injected = requests.iter().filter(|(_, put)| put.is_some()).count();
    figure("inband_header_kept", &format!("{injected} of {count} requests on one connection got one (once: {once})"));
    assert_eq!(requests.len() as u64, count);
    assert_eq!(injected as u64, if once { 1 } else { count });

    // Four clients send requests while the agent ends, orderly or not: no request fails, and nothing stays behind.
    let mut caller = Some(caller);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut agent = caller.take().unwrap_or_else(|| self::caller(&hosts, dir.path()).0);
        let held = bpf::held(agent.process().pid());
        assert!(held.iter().any(|(kind, _)| *kind == "link_id"), "{held:?}");
        let mut asking: Vec<Process> = (0..4).map(|i| start(&format!("asking-{signal}-{i}"), 2 * count)).collect();
        let seen = || recorder.connections(CHOSEN);
        wait("four connections", Duration::from_secs(30), || (seen() == 4).then_some(()));
        wait("all four to get headers", Duration::from_secs(30), || {
            (counted(&hosts, &agent, "requests", ("outcome", "injected")) >= 4).then_some(())
        });
        agent.end(signal);
        for process in &mut asking {
            let status = process.wait(Duration::from_secs(120));
            assert!(status.success(), "{status}: {}", process.output());
        }
        assert_eq!(bpf::left(&held), 0, "left: {:?}", bpf::remaining(&held));
        let mut last = 0;
        for bytes in recorder.taken(CHOSEN) {
            let (_, requests) = without(&bytes);
            assert_eq!(requests.len() as u64, 2 * count);
            last += requests.iter().rev().take(10).filter(|(_, put)| put.is_some()).count();
        }
        assert_eq!(last, 0, "headers after the agent");
    }
}

#[test]
fn tls_and_upgraded_connections_of_programs_are_left_alone() {
    let programs = ["ip", "nft", "nsenter", "python3", "openssl"];
    let Some(_turn) = begin("tls_and_upgraded_connections_of_programs_are_left_alone", &programs) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let (key, certificate) = (dir.path().join("key"), dir.path().join("certificate"));
    let mut openssl = Command::new(find("openssl").expect("openssl"));
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    let made = openssl.args(["-subj", "/CN=a", "-keyout"]).arg(&key).arg("-out").arg(&certificate).output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let destination = hosts.own(2).to_string();
    let caller = agent(&hosts, 1, "caller", dir.path(), &["--inband-header", &destination]);
    let python = find("python3").expect("python3");
    let script = source("header_secret.py");
    let ports = [SECRET.to_string(), UPGRADED.to_string()];
    let mut command = hosts.command(2, &python);
    command.arg(&script).args(["serve", &destination]).args(&ports).arg(&key).arg(&certificate);
    let mut server = Process::start("server", &mut command, &dir.path().join("server.log"));
    server.line("READY", Duration::from_secs(30));
    let mut arguments = vec![script.display().to_string(), "ask".into(), destination];
    arguments.extend(ports);
    // The client checks every byte, and TLS verifies its own.
    run(&hosts, dir.path(), "secret", &python, &arguments);
    let requests = |outcome: &str| counted(&hosts, &caller, "requests", ("outcome", outcome));
    let taken = || counted(&hosts, &caller, "connections", ("event", "taken"));
    let left_alone = |reason: &str| counted(&hosts, &caller, "left_alone", ("reason", reason));
    wait("the connections to be counted", Duration::from_secs(10), || {
        (taken() == 2 && left_alone("not_http") == 1 && left_alone("upgrade") == 1).then_some(())
    });
    assert_eq!(requests("injected"), 0, "{}", caller.text("/metrics"));
    caller.stop();
}
