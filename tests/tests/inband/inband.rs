//! In-band contexts: requests of a chain of hosts whose agents do not communicate, linked by TCP options alone; the
//! bytes on the wire; and that traffic is not impaired.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::{self, Agent, binary};
use tracer_tests::chain::{Chain, EDGES, PROGRAMS, connected, edges, load, spans_of};
use tracer_tests::hosts::{Hosts, Nat};
use tracer_tests::http::Connection;
use tracer_tests::process::Process;
use tracer_tests::spans::Span;
use tracer_tests::wire::{Capture, Passed};
use tracer_tests::workload::source;
use tracer_tests::{begin, bpf, figure, find, say, scratch, truth, wait};

const PLAIN: Nat = Nat { destination: false, source: false };
const OPTION: &str = "--inband-tcp-option";
/// Requests with `MSG_ZEROCOPY`.
const COUNT: u64 = 40;
/// Loss of packets that makes both ends use all the room there is for options.
const LOSS: u8 = 3;

/// Connections and requests of a load.
fn sizes() -> (u64, u64) {
    if truth::full() { (64, 50_000) } else { (8, 1600) }
}

/// An agent without a relay.
fn alone(hosts: &Hosts, host: u8, name: &str, dir: &Path) -> Agent {
    let file = dir.join(format!("{name}.ndjson"));
    let recording = dir.join(format!("{name}.recording")).display().to_string();
    let arguments = ["--own-netns", "--hertz", "0", OPTION, "--record", &recording];
    let agent = Agent::launch_by(hosts.command(host, &binary()), name, dir, &file, &arguments);
    hosts.inside(host, || agent.ready())
}

fn everywhere(hosts: &Hosts, dir: &Path) -> Vec<Agent> {
    let names = ["client", "proxy", "application-host", "origin-host"];
    (1..).zip(names).map(|(host, name)| alone(hosts, host, name, dir)).collect()
}

/// Outcomes of contexts, over all agents.
fn outcome(hosts: &Hosts, agents: &[Agent], name: &str) -> u64 {
    let of =
        |host, agent: &Agent| hosts.inside(host, || agent.metrics().sum("tracer_inband_total", &[("outcome", name)]));
    (1..).zip(agents).map(|(host, agent)| of(host, agent) as u64).sum()
}

fn outcomes(hosts: &Hosts, agents: &[Agent]) -> String {
    let names = ["sent", "received", "matched", "header", "unmatched", "contradicted", "renamed", "refused", "dropped"];
    let all: Vec<_> = names.iter().map(|name| format!("{name} {}", outcome(hosts, agents, name))).collect();
    let lost: Vec<_> = (1..).zip(agents).map(|(h, agent)| hosts.inside(h, || agent.metrics().lost())).collect();
    format!("{}; lost {lost:?}", all.join(", "))
}

/// Compares the captured options with the calls that sent the requests.
fn compare(passed: &Passed, spans: &[Span], sent: u64) {
    let calls: HashMap<(&str, &str), &Span> =
        spans.iter().filter(|span| !span.server).map(|span| ((span.id.as_str(), span.path.as_str()), span)).collect();
    let (mut right, mut same, mut seen) = (0u64, 0u64, HashSet::new());
    for marked in &passed.marked {
        let text = String::from_utf8_lossy(&marked.payload);
        let path = text.split(' ').nth(1).unwrap_or_default();
        assert!(text.starts_with("GET /hop/"), "an option with a segment that begins no request: {marked:?}");
        // With trace flags: sampled, and a random id, as the agent draws it.
        assert_eq!(
            (marked.option.get(..2), marked.option.get(26..)),
            (Some(&[25, 27][..]), Some(&[3][..])),
            "{marked:?}"
        );
        let (trace, span): ([u8; 16], [u8; 8]) = match (marked.option.get(2..18), marked.option.get(18..26)) {
            (Some(trace), Some(span)) => (trace.try_into().expect("16 bytes"), span.try_into().expect("8 bytes")),
            _ => panic!("a short option: {marked:?}"),
        };
        let (trace, span) = (u128::from_be_bytes(trace), u64::from_be_bytes(span));
        if !path.starts_with("/hop/truth-") {
            continue;
        }
        assert!(seen.insert(span), "one context, two requests: {marked:?}");
        let id = format!("{span:016x}");
        let call = calls.get(&(id.as_str(), path));
        right += u64::from(call.is_some());
        same += u64::from(call.is_some_and(|call| call.trace == format!("{trace:032x}")));
    }
    figure("inband_wire", &format!("{right} of {sent} requests carry their call's id, {same} its transaction's"));
    assert_eq!(right, seen.len() as u64, "contexts of no call");
    assert!(right as f64 >= 0.999 * sent as f64, "{right} of {sent} requests");
}

#[test]
fn options_alone_link_hosts() {
    let Some(_turn) = begin("options_alone_link_hosts", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, PLAIN);
    let agents = everywhere(&hosts, dir.path());
    // Connections opened before the agents carry nothing: the chain's come later.
    let chain = Chain::start(&hosts, dir.path());
    let capture = Capture::start(&hosts, 4);
    let (connections, requests) = sizes();
    let sent = load(&hosts, chain.front, "truth", connections, requests);
    let spans = spans_of(&agents, "truth", sent);
    let passed = capture.stop();
    let edges = edges(&spans, "truth");
    say(&format!("{sent} requests, {edges:?}, {}", outcomes(&hosts, &agents)));
    let detail = format!("{} of {} edges, {} wrong, {} whole", edges.matched, EDGES * sent, edges.wrong, edges.whole);
    figure("inband_edges", &detail);
    assert_eq!((edges.wrong, edges.dangling), (0, 0), "{edges:?}");
    assert!(edges.matched as f64 >= 0.999 * (EDGES * sent) as f64, "{edges:?} of {}", EDGES * sent);
    compare(&passed, &spans, sent);
    assert_eq!(outcome(&hosts, &agents, "contradicted"), 0);
    let origin = &agents[3].transactions;
    let lines = std::fs::read_to_string(origin).unwrap_or_else(|error| panic!("{}: {error}", origin.display()));
    let linked =
        lines.lines().filter(|line| line.contains("/hop/truth-") && line.contains("\"parent_from\":\"tcp_option\""));
    assert!(linked.count() as f64 >= 0.999 * sent as f64, "the carrier is on the edge");
    let middle = agents[2].transactions.clone();
    for agent in agents {
        agent.stop();
    }
    replayed(&middle);
}

/// The recording gives the same spans again, with the ids that were on the wire.
fn replayed(live: &Path) {
    let (recording, again) = (live.with_extension("recording"), live.with_extension("again"));
    let (from, to) = (recording.display().to_string(), again.display().to_string());
    let outcome = agent::command(&["replay", &from, "--transactions", &to]);
    assert_eq!(outcome.code, Some(0), "replay: {}", outcome.err);
    let lines = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.contains("/hop/truth-")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let (live, again) = (lines(live), lines(&again));
    assert!(!live.is_empty() && live == again, "{} spans live, {} again, or others", live.len(), again.len());
}

#[test]
fn options_and_the_relay_agree() {
    let Some(_turn) = begin("options_and_the_relay_agree", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, PLAIN);
    let names = ["client", "proxy", "application-host", "origin-host"];
    let both = |(host, name)| hosts.agent(host, name, dir.path(), true, &["--hertz", "0", OPTION]);
    let agents: Vec<_> = (1..).zip(names).map(both).collect();
    connected(&hosts, &agents);
    let chain = Chain::start(&hosts, dir.path());
    let (connections, requests) = sizes();
    let sent = load(&hosts, chain.front, "truth", connections, requests);
    let spans = spans_of(&agents, "truth", sent);
    let edges = edges(&spans, "truth");
    say(&format!("{sent} requests, {edges:?}, {}", outcomes(&hosts, &agents)));
    figure("inband_and_relay", &format!("{} of {} edges, {} wrong", edges.matched, EDGES * sent, edges.wrong));
    assert_eq!((edges.wrong, edges.dangling), (0, 0), "{edges:?}");
    assert!(edges.matched as f64 >= 0.9999 * (EDGES * sent) as f64, "{edges:?} of {}", EDGES * sent);
    assert!(edges.whole as f64 >= 0.999 * sent as f64, "{edges:?}: chains of one transaction");
    assert_eq!(outcome(&hosts, &agents, "contradicted"), 0);
    assert!(outcome(&hosts, &agents, "matched") as f64 >= 0.999 * (EDGES * sent) as f64);
    for agent in agents {
        agent.stop();
    }
}

/// A server on host 2 whose reply to `/NUMBER` is that many bytes behind the request's own body.
fn echo(hosts: &Hosts) -> SocketAddr {
    let address = SocketAddr::from((hosts.own(2), 18_490));
    let listener = hosts.inside(2, || TcpListener::bind(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Serves until the connection ends, for any reason: the other end detects missing bytes.
fn serve(mut stream: TcpStream) -> Option<()> {
    let mut kept = Vec::new();
    let mut more = vec![0u8; 65_536];
    loop {
        let end = loop {
            if let Some(at) = kept.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let got = stream.read(&mut more).ok().filter(|got| *got > 0)?;
            kept.extend_from_slice(&more[..got]);
        };
        let head = String::from_utf8_lossy(&kept[..end]).into_owned();
        let wanted: usize = head.split(['/', ' ']).nth(2)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        while kept.len() < end + length {
            let got = stream.read(&mut more).ok().filter(|got| *got > 0)?;
            kept.extend_from_slice(&more[..got]);
        }
        let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length + wanted).into_bytes();
        reply.extend(kept.drain(..end + length).skip(end));
        reply.resize(reply.len() + wanted, b'x');
        stream.write_all(&reply).ok()?;
    }
}

/// One request; reads its reply to the end, which must hold the sent bytes.
fn exchange(connection: &mut Connection, body: &[u8], wanted: usize) {
    let head = format!("POST /{wanted} HTTP/1.1\r\nHost: tests\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.send(&[head.as_bytes(), body].concat()).unwrap_or_else(|error| panic!("a request: {error}"));
    let reply = connection.reply("POST").unwrap_or_else(|error| panic!("a reply: {error}"));
    assert_eq!((reply.status, reply.wire_body), (200, (body.len() + wanted) as u64));
    assert!(reply.body.starts_with(body), "the bytes that came back are not those that were sent");
}

fn ip(hosts: &Hosts, host: u8, arguments: &[&str]) {
    let mut command: Command = hosts.command(host, &find("ip").unwrap_or_else(|| panic!("no ip")));
    let status = command.args(arguments).status().unwrap_or_else(|error| panic!("ip: {error}"));
    assert!(status.success(), "ip {arguments:?}: {status}");
}

/// Requests that the kernel holds back until more bytes come: their segments go out after the call that wrote them.
/// Returns how many.
fn held_back(hosts: &Hosts, address: SocketAddr) -> u64 {
    let mut stream =
        hosts.inside(1, || TcpStream::connect(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
    let cork = |stream: &TcpStream, on: i32| {
        // SAFETY: the pointer and length describe the option value.
        let done = unsafe {
            let len = size_of::<i32>() as libc::socklen_t;
            libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CORK, (&raw const on).cast(), len)
        };
        assert_eq!(done, 0, "TCP_CORK: {}", std::io::Error::last_os_error());
    };
    for _ in 0..10 {
        cork(&stream, 1);
        stream.write_all(b"GET /10 HTTP/1.1\r\nHost: tests\r\n\r\n").unwrap_or_else(|error| panic!("{error}"));
        cork(&stream, 0);
        let mut reply = [0; "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nxxxxxxxxxx".len()];
        stream.read_exact(&mut reply).unwrap_or_else(|error| panic!("a reply to what was held back: {error}"));
        assert!(reply.starts_with(b"HTTP/1.1 200 OK") && reply.ends_with(b"xxxxxxxxxx"));
    }
    10
}

#[test]
fn no_room_breaks_nothing() {
    let Some(_turn) = begin("no_room_breaks_nothing", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let agents = vec![alone(&hosts, 1, "client", dir.path()), alone(&hosts, 2, "server", dir.path())];
    let address = echo(&hosts);
    // Segments as on a real wire, none merged: a segment that is too long would be dropped.
    for host in 1..=2 {
        ip(&hosts, host, &["link", "set", "eth0", "gso_max_segs", "1"]);
    }
    let capture = Capture::start(&hosts, 2);
    let open = || hosts.inside(1, || Connection::open(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
    let mut connection = open().keeping(1 << 20);
    let body: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    // Every length around a segment's, with and without the room the option takes.
    for length in (1_200..1_500).chain([2_800, 2_900, 65_536, 300_000]) {
        exchange(&mut connection, &body[..length], 10);
    }
    let corked = held_back(&hosts, address);
    hosts.lose(LOSS);
    for _ in 0..8 {
        exchange(&mut connection, &body, 200_000);
    }
    // Sends the next request while the previous reply still arrives with gaps: its segments carry SACK blocks.
    for _ in 0..8 {
        let head = b"GET /150000 HTTP/1.1\r\nHost: tests\r\n\r\n";
        for _ in 0..4 {
            connection.send(head).unwrap_or_else(|error| panic!("a request: {error}"));
            connection.take(1000, &mut Vec::new()).unwrap_or_else(|error| panic!("a reply's beginning: {error}"));
        }
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 150000\r\n\r\n".len() as u64 + 150_000;
        connection.take(4 * (reply - 1000), &mut Vec::new()).unwrap_or_else(|error| panic!("the replies: {error}"));
    }
    let passed = capture.stop();
    let lost = |reason| {
        let of = |host, agent: &Agent| {
            hosts.inside(host, || agent.metrics().sum("tracer_attribution_gaps_total", &[("reason", reason)]))
        };
        (1..).zip(&agents).map(|(host, agent)| of(host, agent)).sum::<f64>()
    };
    say(&format!(
        "{} segments with data, the longest packet {} bytes, {} that reported gaps, {} with a context; {}; no room {}, late {}",
        passed.data,
        passed.longest,
        passed.selective,
        passed.marked.len(),
        outcomes(&hosts, &agents),
        lost("tcp_option_no_room"),
        lost("tcp_option_late"),
    ));
    assert!(passed.longest <= 1500, "a packet of {} bytes", passed.longest);
    assert!(passed.selective > 0, "nothing was lost, so nothing was tried");
    assert_eq!(lost("tcp_option_late") as u64, corked, "requests that were held back");
    // All requests on the lossless wire carry one, whatever their length.
    assert!(passed.marked.len() >= 304, "{} contexts", passed.marked.len());
    assert!(
        passed
            .marked
            .iter()
            .all(|marked| marked.payload.starts_with(b"POST /") || marked.payload.starts_with(b"GET /"))
    );
    for agent in agents {
        agent.stop();
    }
}

/// Every send completes once, with its own number; and every request carries a context.
#[test]
fn senders_that_lend_their_memory() {
    let Some(_turn) = begin("senders_that_lend_their_memory", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, PLAIN);
    let agents = vec![alone(&hosts, 1, "client", dir.path()), alone(&hosts, 2, "server", dir.path())];
    let address = echo(&hosts);
    let capture = Capture::start(&hosts, 2);
    let mut command = hosts.command(1, &find("python3").unwrap_or_else(|| panic!("no python3")));
    command.arg(source("zero_copy.py")).args([address.ip().to_string(), address.port().to_string()]);
    let mut process = Process::start("zero_copy", command.arg(COUNT.to_string()), &dir.path().join("zero_copy.log"));
    let status = process.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}: {}", process.output());
    wait("all contexts to come", Duration::from_secs(30), || {
        (outcome(&hosts, &agents, "matched") >= COUNT).then_some(())
    });
    let passed = capture.stop();
    let first: HashSet<_> = passed.marked.iter().map(|marked| marked.option.clone()).collect();
    assert_eq!(first.len() as u64, COUNT, "contexts on the wire");
    assert!(passed.marked.iter().all(|marked| marked.payload.starts_with(b"POST /")), "not with a request's beginning");
    figure("inband_zero_copy", &format!("{COUNT} of {COUNT} requests, {}", process.output().trim()));
    for agent in agents {
        agent.stop();
    }
}

#[test]
fn nothing_stays_attached_and_traffic_goes_on() {
    let Some(_turn) = begin("nothing_stays_attached_and_traffic_goes_on", &PROGRAMS) else { return };
    let hosts = Hosts::new(2, PLAIN);
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let dir = scratch();
        let mut agents = vec![alone(&hosts, 1, "client", dir.path()), alone(&hosts, 2, "server", dir.path())];
        let address = if signal == libc::SIGTERM { echo(&hosts) } else { SocketAddr::from((hosts.own(2), 18_490)) };
        let open =
            || hosts.inside(1, || Connection::open(address)).unwrap_or_else(|error| panic!("{address}: {error}"));
        let mut connection = open().keeping(1 << 20);
        let matched = || outcome(&hosts, &agents, "matched");
        wait("a context to come", Duration::from_secs(30), || {
            exchange(&mut connection, b"abc", 10);
            (matched() > 0).then_some(())
        });
        let held: Vec<_> = agents.iter_mut().map(|agent| bpf::held(agent.process().pid())).collect();
        assert!(held.iter().all(|held| held.iter().any(|(kind, _)| *kind == "link_id")), "{held:?}");
        let capture = Capture::start(&hosts, 2);
        for agent in agents {
            agent.end(signal);
        }
        for held in &held {
            assert_eq!(bpf::left(held), 0, "left: {:?}", bpf::remaining(held));
        }
        // The same connection: the kernel still has it marked to call a program that is gone.
        for _ in 0..50 {
            exchange(&mut connection, b"abcdef", 100_000);
        }
        let passed = capture.stop();
        assert!(passed.data >= 100 && passed.marked.is_empty(), "{passed:?}");
    }
}
