//! Server-Sent Events: long replies last as long as the server reports, whichever side ends them.

use std::io::Read;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tracer_tests::agent::Agent;
use tracer_tests::spans::{self, Span, Tail};
use tracer_tests::workload::{self, Server};
use tracer_tests::{begin, explained, figure, find, say, scale, scratch, secrets, wait};

/// Replies ended by the server, those left by their clients, and those that continue until the agent ends.
const ENDED: usize = 12;
const LEFT: usize = 12;
const LASTING: usize = 4;

/// Requests `path` and reads until `enough` bytes of the reply arrived, or it is over.
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
        let text = server.process.output();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= ENDED + LEFT).then_some(lines)
    });
    let mut tail = Tail::new(&agent.transactions);
    tail.until(2 * (ENDED + LEFT), Duration::from_secs(30), |span| span.protocol == "http");
    assert!(tail.spans.iter().all(|span| !span.path.starts_with("/lasts")), "what goes on is not over");

    let lost = agent.metrics().lost();
    let mut differ = Vec::new();
    let mut off = Vec::new();
    for line in &truth {
        let path = line["path"].as_str().expect("a path");
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("no {key}: {line}"));
        let ended = line["ended"].as_bool().expect("whether it ended");
        let of = |served: bool| {
            let mut spans = tail.spans.iter().filter(|span| span.server == served && span.path == path);
            (spans.next().cloned(), spans.next().is_none())
        };
        for served in [true, false] {
            let (Some(span), true) = of(served) else {
                differ.push(format!("{path}: not one span (served {served})"));
                continue;
            };
            let wanted = if ended { "complete" } else { "aborted" };
            // The server sent even what a client left unread.
            let bytes = !ended || span.body == number("bytes") as u64;
            if span.outcome != wanted || span.status != Some(200) || !bytes {
                differ.push(format!("{line}: {span:?}"));
            } else if served {
                // From the request's first byte to the last event, or to the end the server noticed.
                let seconds = number("seconds");
                let until = if ended { seconds } else { number("closed") };
                let far = (seconds - span.duration_s).max(span.duration_s - until).max(0.0);
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

    // Replies still running when the agent ends are reported with the time so far.
    let spans = agent.transactions.clone();
    secrets::none_shows(agent, dir.path(), &["planted-event"], "aborted");
    let lasted = began.elapsed().as_secs_f64();
    drop(lasting);
    let open: Vec<Span> = spans::read(&spans).into_iter().filter(|span| span.path.starts_with("/lasts")).collect();
    say(&format!("{} reported while open", open.len()));
    assert_eq!(open.len(), 2 * LASTING);
    for span in open {
        assert_eq!((span.outcome.as_str(), span.status), ("unfinished", Some(200)), "{span:?}");
        // The server continued all the time; this client stopped reading after its first events.
        let least = if span.server { lasted / 2.0 } else { 0.0 };
        assert!(span.duration_s > least && span.duration_s < lasted, "{span:?} of {lasted} s");
    }
}
