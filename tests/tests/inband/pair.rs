//! Two hosts, each with its agent: a program on one calls a program on the other, and every request there must be
//! linked to the call that caused it.
//!
//! `cargo xtask vm --pair` runs each half in its own guest, under different kernels, joined by a wire: then
//! `TRACER_PAIR` selects the half. Without it both run here, in namespaces.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::spans::{Span, Tail, span};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, http, say, scale, scratch, wait};

/// Programs needed if both halves run here.
const PROGRAMS: [&str; 4] = ["ip", "nft", "nsenter", "python3"];
/// Selects the half, its address and the other's.
const HALF: &str = "TRACER_PAIR";
/// Port of the programs.
const PORT: u16 = 18480;
/// Relay port of the agents.
const RELAY: u16 = 19465;
/// Port where the called host publishes its spans.
const UNITS: u16 = 18481;
/// Requests between the hosts.
const REQUESTS: u64 = 100;
/// Limit for the start: an emulated host takes minutes.
const BEGIN: Duration = Duration::from_secs(400);
/// Limit for everything else.
const SOON: Duration = Duration::from_secs(120);

/// One of the two hosts: its agent and its program.
struct Host {
    agent: Agent,
    _program: Process,
    dir: tempfile::TempDir,
}

/// Starts an agent, and a program that calls `upstream` first.
fn host(name: &str, own: Ipv4Addr, upstream: Option<Ipv4Addr>) -> Host {
    let dir = scratch();
    let config = dir.path().join("relay.toml");
    std::fs::write(&config, format!("[relay]\nport = {RELAY}\n")).expect("its configuration");
    let key = secret(&dir.path().join("key"), &format!("{KEY:02x}").repeat(32));
    let arguments = ["--own-netns", "--config", text(&config), "--relay", &format!("{own}:{RELAY}"), "--relay-key"];
    let agent = Agent::start_named(name, dir.path(), &[&arguments[..], &[text(&key), "--hertz", "0"]].concat());
    let python = find("python3").expect("python3");
    let mut command = Command::new(&python);
    command.arg("-u").arg(source("hop.py")).env("PORT", PORT.to_string()).env("OTEL_SERVICE_NAME", name);
    if let Some(upstream) = upstream {
        command.env("UPSTREAM", format!("{upstream}:{PORT}"));
    }
    let mut program = Process::start("hop", &mut command, &dir.path().join("hop.log"));
    program.line("PORT", SOON);
    Host { agent, _program: program, dir }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// The called host: publishes its spans until the caller has seen them.
fn callee(own: Ipv4Addr) {
    let host = host("callee", own, None);
    let mut command = Command::new(find("python3").expect("python3"));
    command.args(["-m", "http.server", &UNITS.to_string(), "--directory", text(host.dir.path())]);
    let _shown = Process::start("spans", &mut command, &host.dir.path().join("spans.log"));
    let mut tail = Tail::new(&host.agent.transactions);
    let seen = tail.until(1, BEGIN, |span| span.path == "/hop/seen");
    assert_eq!(seen, 1, "the other host did not confirm that it saw the spans");
    say(&format!("lost: {:?}", host.agent.metrics().lost()));
    host.agent.stop();
}

/// The other host's spans so far.
fn shown(address: SocketAddr) -> Vec<Span> {
    let Ok(reply) = http::get(address, "/callee.ndjson") else { return Vec::new() };
    let text = reply.text();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(span).collect()
}

/// The calling host, which also judges.
fn caller(own: Ipv4Addr, other: Ipv4Addr) {
    let host = host("caller", own, Some(other));
    let at = |port: u16| SocketAddr::from((other, port));
    for port in [RELAY, PORT, UNITS] {
        wait("the other host", BEGIN, || TcpStream::connect_timeout(&at(port), Duration::from_secs(5)).ok().map(drop));
    }
    let front = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    let ask = |prefix: &str, connections: u64, each: u64| {
        let plan = |c| (0..each).map(move |r| Request::get(format!("/hop/{prefix}-{c}-{r}"))).collect();
        let loaded = load::run(front, (0..connections).map(plan).collect());
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
    };
    // The first call makes this agent look for the other one.
    ask("warm", 4, 5);
    wait("the other agent", SOON, || {
        let peers = host.agent.json("/api/v1/peers");
        peers["peers"].as_array()?.iter().any(|p| p["direction"] == "out" && p["state"] == "up").then_some(())
    });
    ask("pair", 4, REQUESTS / 4);
    let ours = |span: &Span| span.path.starts_with("/hop/pair-");
    let served = wait("the other host's spans", SOON, || {
        std::thread::sleep(Duration::from_millis(500));
        let served: Vec<Span> = shown(at(UNITS)).into_iter().filter(|span| span.server && ours(span)).collect();
        (served.len() as u64 >= REQUESTS).then_some(served)
    });
    let mut tail = Tail::new(&host.agent.transactions);
    let calls = tail.until(REQUESTS as usize, SOON, |span| !span.server && ours(span) && span.service == "caller");
    assert!(calls as u64 >= REQUESTS, "{calls} calls");
    say(&format!("{}", host.agent.json("/api/v1/peers")["outcomes"]));
    http::get(at(PORT), "/hop/seen").expect("a request to the other host");
    judge(&tail.spans, &served);
    host.agent.stop();
}

/// Compares every request served there with the call here, by the id in its path.
fn judge(calls: &[Span], served: &[Span]) {
    let calls: HashMap<&str, &Span> = calls.iter().map(|span| (span.id.as_str(), span)).collect();
    let (mut matched, mut wrong, mut whole) = (0, 0, 0);
    for span in served {
        let Some(parent) = &span.parent else { continue };
        match calls.get(parent.as_str()) {
            Some(call) if call.path == span.path && !call.server && call.service == "caller" => {
                matched += 1;
                whole += u64::from(call.trace == span.trace);
            }
            call => {
                wrong += 1;
                say(&format!("wrong: {span:?} has parent {call:?}"));
            }
        }
    }
    figure("edges between two hosts", &format!("{matched} of {REQUESTS}, {wrong} wrong, {whole} of one transaction"));
    assert_eq!((matched, wrong), (REQUESTS, 0), "of {} requests served", served.len());
    // On an emulated host the transaction's name can arrive too late for a span.
    assert!(whole == REQUESTS || scale() < 1.0, "{whole} of one transaction");
}

#[test]
fn crossing() {
    if let Ok(half) = std::env::var(HALF) {
        let words: Vec<&str> = half.split(' ').collect();
        let [role, own, other] = words[..] else { panic!("{HALF}={half}: expected a role and two addresses") };
        let [own, other] = [own, other].map(|address| address.parse().expect("an address"));
        return if role == "caller" { caller(own, other) } else { callee(own) };
    }
    let Some(_turn) = begin("crossing", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, Nat { destination: false, source: false });
    let own = std::env::current_exe().expect("this program's path");
    let start = |host: u8, role: &str| {
        let mut command = hosts.command(host, &own);
        command.args(["--exact", "crossing", "--nocapture"]);
        command.env(HALF, format!("{role} {} {}", hosts.own(host), hosts.own(3 - host)));
        Process::start(role, &mut command, &dir.path().join(format!("{role}.log")))
    };
    let mut halves = [start(2, "callee"), start(1, "caller")];
    let ended = halves.each_mut().map(|half| half.wait(BEGIN));
    for (half, status) in halves.iter().zip(ended) {
        say(&half.output());
        assert!(status.success(), "{status}");
    }
}
