//! In-band contexts of programs that work for several requests at once: a call carries its own request's transaction
//! or a new one, never another request's. Requests have their ids in their paths.

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{Agent, binary};
use tracer_tests::chain;
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, go, say, scratch, wait};

const PLAIN: Nat = Nat { destination: false, source: false };
const PROGRAMS: [&str; 4] = ["ip", "nft", "nsenter", "python3"];
const PORT: u16 = 18_480;
/// The port of a program behind a proxy on its own host.
const INNER: u16 = 18_481;
const CONNECTIONS: u64 = 32;
const REQUESTS: u64 = 1600;

fn agent(hosts: &Hosts, host: u8, name: &str, dir: &Path) -> Agent {
    let file = dir.join(format!("{name}.ndjson"));
    let arguments = ["--own-netns", "--hertz", "0", "--inband-tcp-option"];
    let agent = Agent::launch_by(hosts.command(host, &binary()), name, dir, &file, &arguments);
    hosts.inside(host, || agent.ready())
}

/// Starts a hop on `host`, at `port`, that asks `upstream` first.
fn hop(mut command: Command, name: &str, dir: &Path, port: u16, upstream: Option<SocketAddr>) -> Process {
    command.env("PORT", port.to_string()).env("OTEL_SERVICE_NAME", name);
    if let Some(upstream) = upstream {
        command.env("UPSTREAM", upstream.to_string());
    }
    let mut process = Process::start(name, &mut command, &dir.join(format!("{name}.log")));
    process.line("PORT", Duration::from_secs(30));
    process
}

fn python(hosts: &Hosts, host: u8, script: &str) -> Command {
    let mut command = hosts.command(host, &find("python3").expect("python3"));
    command.arg("-u").arg(source(script));
    command
}

/// All spans of `requests` requests with `prefix`, of the agents on hosts 1 and 2: `calls` client spans and as many
/// server spans on the first for each request, one server span on the second.
fn spans_of(agents: [&Agent; 2], prefix: &str, requests: u64, sides: u64) -> Vec<Span> {
    let wanted = format!("/hop/{prefix}-");
    let mut all = Vec::new();
    for (agent, sides) in agents.into_iter().zip([sides, 1]) {
        let mut tail = Tail::new(&agent.transactions);
        let count = (requests * sides) as usize;
        let have = tail.until(count, Duration::from_secs(60), |span| span.path.starts_with(&wanted));
        say(&format!("{have} of {count} spans"));
        all.extend(tail.spans.into_iter().filter(|span| span.path.starts_with(&wanted)));
    }
    all
}

/// Paths by trace id.
fn transactions(spans: &[Span]) -> HashMap<&str, HashSet<&str>> {
    let mut all: HashMap<&str, HashSet<&str>> = HashMap::new();
    for span in spans {
        all.entry(&span.trace).or_default().insert(&span.path);
    }
    all
}

/// No transaction has spans of two requests, every parent is right, and most requests on the second host know theirs.
fn judge(name: &str, spans: &[Span], sent: u64) -> u64 {
    let shared = transactions(spans).values().filter(|paths| paths.len() > 1).count();
    let ids: HashMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    let parents: Vec<(&Span, &Span)> =
        spans.iter().filter_map(|span| Some((span, *ids.get(span.parent.as_deref()?)?))).collect();
    let wrong = parents.iter().filter(|(span, parent)| span.path != parent.path).count();
    let known = parents.iter().filter(|(span, _)| span.server && span.service == "origin").count() as u64;
    let mut by_path: HashMap<&str, HashSet<&str>> = HashMap::new();
    for span in spans {
        by_path.entry(&span.path).or_default().insert(&span.trace);
    }
    let whole = by_path.values().filter(|traces| traces.len() == 1).count() as u64;
    let text = format!(
        "{sent} requests, {whole} of one transaction, {shared} transactions shared, {known} parents, {wrong} wrong"
    );
    figure(name, &text);
    say(&format!("{name}: {text}"));
    assert_eq!((shared, wrong), (0, 0), "{name}: {text}");
    assert!(known as f64 >= 0.99 * sent as f64, "{name}: {text}");
    whole
}

/// An event loop that answers requests in another order than it read them, and goroutines that change threads.
#[test]
fn loops_and_goroutines_pass_on_no_other_requests_id() {
    let Some(_turn) = begin("inband_callers", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(3, PLAIN);
    let [caller, callee] = [(2, "caller"), (3, "callee")].map(|(host, name)| agent(&hosts, host, name, dir.path()));
    let _origin = hop(python(&hosts, 3, "hop.py"), "origin", dir.path(), PORT, None);
    let upstream = SocketAddr::from((hosts.address(3), PORT));
    let go = Path::new(go::toolchain("1.27."));
    let mut programs = vec![("loop", python(&hosts, 2, "hop_loop.py"))];
    if go.exists() {
        let program = go::build(go, dir.path(), "hop.go", &[]);
        programs.push(("go", hosts.command(2, &program)));
    } else {
        say("SKIPPED goroutines: no Go");
    }
    for (name, command) in programs {
        let _hop = hop(command, name, dir.path(), PORT, Some(upstream));
        let front = SocketAddr::from((hosts.address(2), PORT));
        let warm = chain::load(&hosts, front, &format!("{name}warm"), 4, 40);
        assert_eq!(warm, 40);
        // A new runtime is recognised within a second.
        let known = || hosts.inside(2, || caller.metrics().sum("tracer_runtime_processes_waiting", &[])) < 0.5;
        wait("runtimes to be recognised", Duration::from_secs(20), || known().then_some(()));
        let sent = chain::load(&hosts, front, name, CONNECTIONS, REQUESTS);
        let spans = spans_of([&caller, &callee], name, sent, 2);
        judge(&format!("inband_{name}"), &spans, sent);
    }
}

/// nginx, and behind it on the same host a program that calls another host.
#[test]
fn a_proxy_of_the_same_host_passes_its_requests_id_on() {
    let Some(_turn) = begin("inband_proxy", &["ip", "nft", "nsenter", "python3", "nginx"]) else { return };
    let dir = scratch();
    let hosts = Hosts::new(3, PLAIN);
    let [caller, callee] = [(2, "caller"), (3, "callee")].map(|(host, name)| agent(&hosts, host, name, dir.path()));
    let _origin = hop(python(&hosts, 3, "hop.py"), "origin", dir.path(), PORT, None);
    let upstream = SocketAddr::from((hosts.address(3), PORT));
    let _inner = hop(python(&hosts, 2, "hop.py"), "inner", dir.path(), INNER, Some(upstream));
    let base = dir.path().display();
    let configuration = format!(
        "user root; worker_processes 1; pid {base}/nginx.pid; error_log {base}/error.log warn; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000;
  client_body_temp_path {base}/a; proxy_temp_path {base}/b; fastcgi_temp_path {base}/c;
  uwsgi_temp_path {base}/d; scgi_temp_path {base}/e;
  upstream next {{ server 127.0.0.1:{INNER}; keepalive 64; keepalive_requests 1000000; }}
  server {{ listen {PORT} backlog=1024;
    location / {{ proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, configuration).expect("a file");
    let mut command = hosts.command(2, &find("nginx").expect("nginx"));
    command.arg("-p").arg(dir.path()).arg("-c").arg(&file).arg("-e").arg(dir.path().join("error.log"));
    let _nginx = Process::start("nginx", &mut command, &dir.path().join("nginx.log"));
    let front = SocketAddr::from((hosts.address(2), PORT));
    hosts.inside(1, || {
        wait("nginx to listen", Duration::from_secs(30), || TcpStream::connect(front).ok().map(drop));
    });
    for (name, connections, requests) in [("one", 1, 200), ("many", CONNECTIONS, REQUESTS)] {
        let sent = chain::load(&hosts, front, name, connections, requests);
        let spans = spans_of([&caller, &callee], name, sent, 4);
        let whole = judge(&format!("inband_proxy_{name}"), &spans, sent);
        // What is beyond one at a time depends on the order in which nginx reads and sends.
        assert!(connections > 1 || whole as f64 >= 0.99 * sent as f64, "{whole} of {sent}");
    }
}

/// An agent that traces every namespace writes the options of connections that another agent traces, too: there is room
/// for one. Both agents' calls have the ids that were written.
#[test]
fn agents_that_trace_one_connection_agree_on_its_calls() {
    let Some(_turn) = begin("inband_two", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(3, PLAIN);
    let everywhere = Agent::start_named("everywhere", dir.path(), &["--hertz", "0", "--inband-tcp-option"]);
    let [caller, callee] = [(2, "caller"), (3, "callee")].map(|(host, name)| agent(&hosts, host, name, dir.path()));
    let _origin = hop(python(&hosts, 3, "hop.py"), "origin", dir.path(), PORT, None);
    let upstream = SocketAddr::from((hosts.address(3), PORT));
    let _hop = hop(python(&hosts, 2, "hop.py"), "application", dir.path(), PORT, Some(upstream));
    let front = SocketAddr::from((hosts.address(2), PORT));
    let sent = chain::load(&hosts, front, "two", 8, 400);
    let spans = spans_of([&caller, &callee], "two", sent, 2);
    judge("inband_two", &spans, sent);
    everywhere.stop();
}
