//! Headers on kept connections, and on those whose owner sends with `MSG_ZEROCOPY`, on any kernel: also in guests,
//! which have neither `ip` nor `nft`.
//!
//! The truth is the same program's bytes to another port, which is not a destination. Client, server and agent use the
//! loopback of the test's own network namespace. On kernels whose self-test finds FIONREAD disturbed, only the first
//! request of each connection gets a header, and the test expects that.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::process::Process;
use tracer_tests::recorder::Recorder;
use tracer_tests::spans::{Span, Tail};
use tracer_tests::workload::source;
use tracer_tests::{begin, bpf, figure, find, scratch, truth, wait};

/// Port of the destination, and the same origin's port that is not one.
const CHOSEN: u16 = 18_610;
const OTHER: u16 = 18_611;
const CONNECTIONS: usize = 4;
/// Bytes of the inserted line.
const LINE: usize = 70;
/// The client's own header on some requests.
const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Puts this thread and its children into a network namespace of their own with a loopback.
struct Apart(File);

impl Apart {
    fn new() -> Self {
        let home = File::open("/proc/thread-self/ns/net").expect("a namespace");
        // SAFETY: plain system calls; the request's name and flags have the given length.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_NEWNET), 0, "unshare: {}", std::io::Error::last_os_error());
            let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            let mut request: libc::ifreq = std::mem::zeroed();
            request.ifr_name[0] = b'l' as libc::c_char;
            request.ifr_name[1] = b'o' as libc::c_char;
            request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
            let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request);
            assert_eq!(done, 0, "loopback: {}", std::io::Error::last_os_error());
            libc::close(socket);
        }
        Self(home)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // SAFETY: a namespace's descriptor.
        unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) };
    }
}

/// An origin that answers every request and records every byte.
fn origin(recorder: &Recorder) {
    for port in [CHOSEN, OTHER] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap_or_else(|error| panic!("{port}: {error}"));
        recorder.accept(listener, port, serve);
    }
}

/// Answers each request once it is complete.
fn serve(mut stream: TcpStream, bytes: &Mutex<Vec<u8>>) -> Option<()> {
    let (mut at, mut part) = (0, vec![0u8; 1 << 16]);
    loop {
        let got = stream.read(&mut part).ok().filter(|got| *got > 0)?;
        let mut all = bytes.lock().expect("a lock");
        all.extend_from_slice(&part[..got]);
        while let Some(length) = whole(&all[at..]) {
            at += length;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").ok()?;
        }
    }
}

/// Bytes of the first request in `bytes`, if it is complete.
fn whole(bytes: &[u8]) -> Option<usize> {
    let find = |from: usize, what: &[u8]| bytes.get(from..)?.windows(what.len()).position(|at| at == what);
    let head = find(0, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let mut end = head;
    if text.contains("\r\ntransfer-encoding: chunked\r\n") {
        loop {
            let line = find(end, b"\r\n")?;
            let size = std::str::from_utf8(&bytes[end..end + line]).expect("a chunk's size");
            let size = usize::from_str_radix(size, 16).expect("a chunk's size");
            end += line + 2 + size + 2;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = text.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        end += length.parse::<usize>().expect("a length");
    }
    (bytes.len() >= end).then_some(end)
}

/// Requests of a connection: path, the request without an inserted line, and that line's context.
fn requests(mut bytes: &[u8]) -> Vec<(String, Vec<u8>, Option<String>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (request, rest) = bytes.split_at(whole(bytes).expect("a whole request"));
        let line = request.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let path = String::from_utf8_lossy(&request[..line]).split(' ').nth(1).unwrap_or_default().to_owned();
        let own = format!("traceparent: {OWN}");
        let put = request.get(line..line + LINE).filter(|put| put.starts_with(b"traceparent: 00-"));
        let put = put.filter(|put| !put.starts_with(own.as_bytes()));
        let plain = [&request[..line], &request[line + put.map_or(0, <[u8]>::len)..]].concat();
        all.push((path, plain, put.map(|put| String::from_utf8_lossy(&put[13..68]).into_owned())));
        bytes = rest;
    }
    all
}

/// An agent that writes headers, and whether it does so only for a connection's first request.
fn traced(dir: &Path) -> (Agent, bool) {
    let destination = format!("127.0.0.1:{CHOSEN}");
    let agent = Agent::start(dir, &["--own-netns", "--hertz", "0", "--inband-header", &destination]);
    let once = agent.output().contains("only the first request of each connection");
    (agent, once)
}

/// Runs a script to its end; it checks every reply.
fn run(dir: &Path, script: &str, port: u16, words: &[&str]) {
    let mut command = Command::new(find("python3").expect("python3"));
    command.arg(source(script)).args(["127.0.0.1", &port.to_string()]).args(words);
    let mut client = Process::start("client", &mut command, &dir.join(format!("client-{port}.log")));
    let status = client.wait(Duration::from_secs(240));
    assert!(status.success(), "{script} {words:?}: {status}: {}", client.output());
}

/// The sum of a family of header injection over the series with this label value.
fn count(agent: &Agent, family: &str, label: (&str, &str)) -> usize {
    agent.metrics().sum(&format!("tracer_inband_header_{family}_total"), &[label]) as usize
}

#[test]
fn every_request_on_kept_connections_gets_one() {
    let Some(_turn) = begin("every_request_on_kept_connections_gets_one", &["python3"]) else { return };
    let dir = scratch();
    let _apart = Apart::new();
    // So small that the kernel takes long bodies only in parts.
    std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 1048576").expect("tcp_wmem");
    let recorder = Recorder::default();
    origin(&recorder);
    let (mut agent, once) = traced(dir.path());
    let held = bpf::held(agent.process().pid());

    let all = if truth::full() { 10_000 } else { 1_200 };
    let rounds = all / CONNECTIONS;
    let of = |port: u16| {
        run(dir.path(), "header_kept.py", port, &[&CONNECTIONS.to_string(), &rounds.to_string()]);
        recorder.taken(port)
    };
    let (plain, changed) = (of(OTHER), of(CHOSEN));
    assert_eq!((plain.len(), changed.len()), (2 * CONNECTIONS, 2 * CONNECTIONS));

    let mut put: HashMap<String, String> = HashMap::new();
    let (mut seen, mut own, mut bytes) = (0, 0, 0);
    for (plain, changed) in plain.iter().zip(&changed) {
        let (plain, changed) = (requests(plain), requests(changed));
        assert_eq!(plain.len(), changed.len());
        for (i, (meant, came)) in plain.iter().zip(&changed).enumerate() {
            assert!(meant.0 == came.0 && meant.1 == came.1 && meant.2.is_none(), "{}: other bytes", meant.0);
            let could = came.0.starts_with("/any-") || came.0.starts_with("/chunked-");
            assert_eq!(came.2.is_some(), could && (!once || i == 0), "{}: {:?}", came.0, came.2);
            own += usize::from(came.0.starts_with("/own-") && !once);
            bytes += came.1.len();
            if let Some(context) = &came.2 {
                assert!(put.insert(came.0.clone(), context.clone()).is_none(), "{} twice", came.0);
            }
        }
        seen += changed.len();
    }
    assert_eq!(seen, all + CONNECTIONS * 10);
    counted(&agent, once, (put.len(), own));
    named(&agent, &put);
    figure(
        "inband_header_kept_connections",
        &format!("{} of {seen} got one, {own} had theirs (once: {once}); {bytes} other bytes as without", put.len()),
    );
    agent.stop();
    assert_eq!(bpf::left(&held), 0, "left: {:?}", bpf::remaining(&held));
}

/// The counters match the received requests.
fn counted(agent: &Agent, once: bool, (injected, own): (usize, usize)) {
    wait("all connections to be released", Duration::from_secs(20), || {
        (count(agent, "connections", ("event", "released")) == 2 * CONNECTIONS).then_some(())
    });
    let whole = |family: &str, label: &str, name: &str, expected: usize| {
        assert_eq!(count(agent, family, (label, name)), expected, "{name}:\n{}", agent.text("/metrics"));
    };
    whole("connections", "event", "taken", 2 * CONNECTIONS);
    whole("requests", "outcome", "injected", injected);
    whole("requests", "outcome", "present", own);
    whole("requests", "outcome", "busy", 0);
    whole("left_alone", "reason", "chunked", if once { 0 } else { CONNECTIONS });
    whole("left_alone", "reason", "once", if once { 2 * CONNECTIONS } else { 0 });
    for none in [
        "head_not_whole",
        "not_http",
        "malformed",
        "upgrade",
        "expect",
        "pipelined",
        "lost_track",
        "refused",
        "full",
        "not_taken",
        "blocking",
    ] {
        whole("left_alone", "reason", none, 0);
    }
}

/// Every header names the call it was inserted into and its transaction, and the received request has that call as its
/// parent.
fn named(agent: &Agent, put: &HashMap<String, String>) {
    let of = |server: bool| -> HashMap<String, Span> {
        let wanted = |span: &Span| span.server == server && span.port == CHOSEN && put.contains_key(&span.path);
        let mut tail = Tail::new(&agent.transactions);
        tail.until(put.len(), Duration::from_secs(60), wanted);
        let all: Vec<Span> = tail.spans.into_iter().filter(wanted).collect();
        assert_eq!(all.len(), put.len(), "spans");
        all.into_iter().map(|span| (span.path.clone(), span)).collect()
    };
    let (calls, served) = (of(false), of(true));
    for (path, context) in put {
        let (trace, span) = (&context[3..35], &context[36..52]);
        let (call, server) = (&calls[path], &served[path]);
        assert!(call.id == span && call.trace == trace, "{path}: {context} is not its call {call:?}");
        assert_eq!(server.parent.as_deref(), Some(span), "{path}: the request that came");
        assert_eq!(server.trace, trace, "{path}: its transaction");
    }
    let none = agent.metrics().sum("tracer_inband_total", &[("outcome", "unmatched")]);
    assert_eq!(none as usize, 0, "contexts of no call");
}

#[test]
fn senders_that_lend_their_memory_are_left_alone() {
    let Some(_turn) = begin("senders_that_lend_their_memory_are_left_alone", &["python3"]) else { return };
    let dir = scratch();
    let _apart = Apart::new();
    let recorder = Recorder::default();
    origin(&recorder);
    let (agent, once) = traced(dir.path());
    let mut sizes = Vec::new();
    let (mut left, mut joined) = (0, 0);
    for (when, length) in [("before", 200_000), ("before", 4_000_000), ("later", 4_000), ("after", 200_000)] {
        let of = |port: u16| {
            // The client checks that each of its sends completes exactly once.
            run(dir.path(), "header_lent.py", port, &[when, &length.to_string(), "8"]);
            recorder.taken(port)
        };
        let (plain, chosen) = (of(OTHER), of(CHOSEN));
        let (plain, chosen) = (requests(&plain[0]), requests(&chosen[0]));
        assert!(plain.iter().map(|meant| &meant.1).eq(chosen.iter().map(|came| &came.1)), "{when}: other bytes");
        let put: Vec<&str> = chosen.iter().filter(|came| came.2.is_some()).map(|came| came.0.as_str()).collect();
        // With `later`, the first request is sent before zero-copy is used.
        let plain = if when == "later" { &["/plain"][..] } else { &[] };
        assert_eq!(put, plain, "{when}");
        left += usize::from(when != "later" || !once);
        joined += usize::from(when != "before");
        wait("the connection to be counted", Duration::from_secs(10), || {
            (count(&agent, "left_alone", ("reason", "zerocopy")) == left).then_some(())
        });
        sizes.push(format!("{when}: {} of {length} bytes", chosen.len()));
    }
    assert_eq!(count(&agent, "connections", ("event", "taken")), joined, "those that lend from before are not taken");
    figure("inband_header_lent", &format!("each send completed once; {}", sizes.join(", ")));
    agent.stop();
}
