//! Server-Sent Events: replies that last, as long as the server says they did, whoever ends them.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::units::{self, Tail, Unit};
use tracer_tests::workload::{self, Server};
use tracer_tests::{begin, explained, figure, find, say, scale, scratch, secrets, wait};

/// Replies the server ends, those their clients leave, and those that go on until the agent ends.
const ENDED: usize = 12;
const LEFT: usize = 12;
const LASTING: usize = 4;

/// Asks for `path` and reads until `enough` bytes of the reply are there, or it is over.
fn ask(server: &Server, path: &str, enough: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n");
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("sent");
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while seen.len() < enough && !seen.ends_with(b"\r\n0\r\n\r\n") {
        let count = stream.read(&mut piece).expect("events");
        assert_ne!(count, 0, "{path} ends after {} bytes", seen.len());
        seen.extend_from_slice(&piece[..count]);
    }
    stream
}

#[test]
fn streams_last_as_long_as_the_server_says() {
    let Some(_turn) = begin("events", &["node"]) else { return };
    let dir = scratch();
    let node = find("node").expect("node");
    let server = Server::start("events", dir.path(), Command::new(node).arg(workload::source("events.js")));
    let port = server.address.port().to_string();
    let agent = Agent::start(dir.path(), &["--port", &port, "--nice=-10"]);

    let began = Instant::now();
    let lasting: Vec<TcpStream> = (0..LASTING).map(|n| ask(&server, &format!("/lasts/0/{n}"), 500)).collect();
    for n in 0..ENDED {
        drop(ask(&server, &format!("/ends/{}/{n}", 1 + n * 3), usize::MAX));
    }
    for n in 0..LEFT {
        drop(ask(&server, &format!("/left/0/{n}"), 1 + 400 * n));
    }
    let truth: Vec<Value> = wait("the server's last word", Duration::from_secs(30), || {
        let text = server.process.said();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= ENDED + LEFT).then_some(lines)
    });
    let mut tail = Tail::new(&agent.transactions);
    tail.until(2 * (ENDED + LEFT), Duration::from_secs(30), |unit| unit.protocol == "http");
    assert!(tail.units.iter().all(|unit| !unit.path.starts_with("/lasts")), "what goes on is not over");

    let lost = agent.metrics().lost();
    let mut differ = Vec::new();
    let mut off = Vec::new();
    for line in &truth {
        let path = line["path"].as_str().expect("a path");
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key}: {line}"));
        let ended = line["ended"].as_bool().expect("whether it ended");
        let of = |served: bool| {
            let mut units = tail.units.iter().filter(|unit| unit.server == served && unit.path == path);
            (units.next().cloned(), units.next().is_none())
        };
        for served in [true, false] {
            let (Some(unit), true) = of(served) else {
                differ.push(format!("{path}: not one unit (served {served})"));
                continue;
            };
            let wanted = if ended { "complete" } else { "aborted" };
            // What a client left unread was sent all the same.
            let bytes = !ended || unit.body == number("bytes") as u64;
            if unit.outcome != wanted || unit.status != Some(200) || !bytes {
                differ.push(format!("{line}: {unit:?}"));
            } else if served {
                // From the request's first byte to the last event, or to the end the server noticed.
                let seconds = number("seconds");
                let until = if ended { seconds } else { number("closed") };
                let far = (seconds - unit.duration_s).max(unit.duration_s - until).max(0.0);
                off.push(far / (0.001 + 0.02 * until));
            }
        }
    }
    off.sort_by(f64::total_cmp);
    let middle = off.get(off.len() / 2).copied().unwrap_or(f64::INFINITY);
    let right = 2 * truth.len() - differ.len();
    figure("event streams", &format!("{right} of {} ends as the server says, lost {lost:?}", 2 * truth.len()));
    say(&format!("durations: median {middle:.2}, most {:.2} of 1 ms + 2 % off", off.last().unwrap_or(&0.0)));
    assert!(differ.len() as f64 <= explained(&lost), "{} differ: {:?}; lost: {lost:?}", differ.len(), differ.first());
    assert!(scale() < 1.0 || middle <= 1.0, "durations are off by {middle} times 1 ms + 2 %");

    // Whatever goes on when the agent ends is told with the time so far.
    let units = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &["planted-event"], "aborted");
    let lasted = began.elapsed().as_secs_f64();
    drop(lasting);
    let open: Vec<Unit> = units::read(&units).into_iter().filter(|unit| unit.path.starts_with("/lasts")).collect();
    say(&format!("{} told as they stood", open.len()));
    assert_eq!(open.len(), 2 * LASTING);
    for unit in open {
        assert_eq!((unit.outcome.as_str(), unit.status), ("unfinished", Some(200)), "{unit:?}");
        // The server went on all the time; this client stopped reading after its first events.
        let least = if unit.server { lasted / 2.0 } else { 0.0 };
        assert!(unit.duration_s > least && unit.duration_s < lasted, "{unit:?} of {lasted} s");
    }
}
