//! Two hosts, each with its agent: a program on the one calls a program on the other, and every request there must know the
//! call that caused it.
//!
//! `cargo xtask vm --pair` runs each half in a guest of its own, under kernels that differ, joined by a wire: then
//! `TRACER_PAIR` says which half this is. Without it both run here, in namespaces.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tracer_tests::agent::Agent;
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::load::{self, Request};
use tracer_tests::process::Process;
use tracer_tests::units::{Tail, Unit, unit};
use tracer_tests::workload::source;
use tracer_tests::{begin, figure, find, http, say, scale, scratch, wait};

/// What it takes where both halves run.
const PROGRAMS: [&str; 4] = ["ip", "nft", "nsenter", "python3"];
/// Which half this is, its address and the other's.
const HALF: &str = "TRACER_PAIR";
/// Where the programs answer.
const PORT: u16 = 18480;
/// Where the agents speak to each other.
const RELAY: u16 = 19465;
/// Where the host that is called shows its units.
const UNITS: u16 = 18481;
/// Requests that cross.
const REQUESTS: u64 = 100;
/// An emulated host takes minutes to begin.
const BEGIN: Duration = Duration::from_secs(400);
/// For everything else.
const SOON: Duration = Duration::from_secs(120);

/// One of the two hosts: its agent and its program.
struct Host {
    agent: Agent,
    _program: Process,
    dir: tempfile::TempDir,
}

/// Starts an agent, and a program that asks `upstream` first.
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

/// The host that is called: shows its units until it is told that they were seen.
fn callee(own: Ipv4Addr) {
    let host = host("callee", own, None);
    let mut command = Command::new(find("python3").expect("python3"));
    command.args(["-m", "http.server", &UNITS.to_string(), "--directory", text(host.dir.path())]);
    let _shown = Process::start("units", &mut command, &host.dir.path().join("units.log"));
    let mut tail = Tail::new(&host.agent.transactions);
    let told = tail.until(1, BEGIN, |unit| unit.path == "/hop/seen");
    assert_eq!(told, 1, "the other host did not say that it saw the units");
    say(&format!("lost: {:?}", host.agent.metrics().lost()));
    host.agent.stop();
}

/// Units of the other host so far.
fn shown(address: SocketAddr) -> Vec<Unit> {
    let Ok(reply) = http::get(address, "/callee.ndjson") else { return Vec::new() };
    let text = reply.text();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(unit).collect()
}

/// The host that calls, and judges.
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
    let ours = |unit: &Unit| unit.path.starts_with("/hop/pair-");
    let served = wait("the other host's units", SOON, || {
        std::thread::sleep(Duration::from_millis(500));
        let served: Vec<Unit> = shown(at(UNITS)).into_iter().filter(|unit| unit.server && ours(unit)).collect();
        (served.len() as u64 >= REQUESTS).then_some(served)
    });
    let mut tail = Tail::new(&host.agent.transactions);
    let calls = tail.until(REQUESTS as usize, SOON, |unit| !unit.server && ours(unit) && unit.service == "caller");
    assert!(calls as u64 >= REQUESTS, "{calls} calls");
    say(&format!("{}", host.agent.json("/api/v1/peers")["outcomes"]));
    http::get(at(PORT), "/hop/seen").expect("the other host to be told");
    judge(&tail.units, &served);
    host.agent.stop();
}

/// Every request that was served there against the call here, by the id in its path.
fn judge(calls: &[Unit], served: &[Unit]) {
    let calls: HashMap<&str, &Unit> = calls.iter().map(|unit| (unit.id.as_str(), unit)).collect();
    let (mut matched, mut wrong, mut whole) = (0, 0, 0);
    for unit in served {
        let Some(parent) = &unit.parent else { continue };
        match calls.get(parent.as_str()) {
            Some(call) if call.path == unit.path && !call.server && call.service == "caller" => {
                matched += 1;
                whole += u64::from(call.trace == unit.trace);
            }
            call => {
                wrong += 1;
                say(&format!("wrong: {unit:?} has parent {call:?}"));
            }
        }
    }
    figure("edges between two hosts", &format!("{matched} of {REQUESTS}, {wrong} wrong, {whole} of one transaction"));
    assert_eq!((matched, wrong), (REQUESTS, 0), "of {} requests served", served.len());
    // An emulated host can be later with a transaction's name than a unit waits for it.
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
        say(&half.said());
        assert!(status.success(), "{status}");
    }
}
