//! Hosts with different clocks: the two ends of calls determine the offset, the agent reports it with its error, and it
//! changes no time of a span. No clock is set for this: the remote host is a server and an agent implemented here,
//! which report times of another clock.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracer_model::SpanId;
use tracer_relay::channel::{Channel, Secret, SessionEnd};
use tracer_relay::message::{Decoder, Encoder, Hello, Message, Summary, VERSION};
use tracer_relay::settings::Trust;
use tracer_tests::hosts::{Hosts, KEY, Nat};
use tracer_tests::load::{self, Request};
use tracer_tests::spans::Tail;
use tracer_tests::{begin, figure, scratch, wait};

/// Port of the server.
const PORT: u16 = 18490;
/// Requests on one connection; all have the same length.
const REQUESTS: usize = 60;
/// The server's time per request.
const WORK: Duration = Duration::from_millis(5);

fn wall() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as i64
}

/// When each request arrived and was answered, and its length.
#[derive(Default)]
struct Served {
    times: Vec<(i64, i64)>,
    len: usize,
}

/// Serves one connection.
fn serve(listener: &TcpListener, served: &Mutex<Served>) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut buffer = [0; 4096];
    loop {
        let len = stream.read(&mut buffer).expect("a request");
        let arrived = wall();
        if len == 0 {
            return;
        }
        assert!(buffer[..len].ends_with(b"\r\n\r\n"), "a whole request");
        std::thread::sleep(WORK);
        // Before the client can receive it.
        let left = wall();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").expect("a client");
        let mut served = served.lock().expect("unpoisoned");
        assert!(served.len == 0 || served.len == len, "requests are equally long");
        served.len = len;
        served.times.push((arrived, left));
    }
}

/// The server's agent: answers each context once, `ahead` nanoseconds ahead of the true time. Ends when `over` returns
/// true.
async fn answer(listener: TcpListener, served: &Mutex<Served>, ahead: i64, over: impl Fn() -> bool) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    let trust = Trust::Key(Secret([KEY; 32]));
    let Channel { mut writer, mut reader, .. } = loop {
        let (stream, _) = listener.accept().await.expect("an agent");
        // Skips connections that ended before we listened.
        if let Ok(channel) = Channel::agree(stream, &trust, SessionEnd::Accepted).await {
            break channel;
        }
    };
    let (mut encoder, mut decoder, mut bytes) = (Encoder::default(), Decoder::default(), Vec::new());
    let hello = Hello { version: VERSION, least: VERSION, agent: 4711, host: "elsewhere".into() };
    encoder.put(&Message::Hello(hello), &mut bytes);
    writer.send(&bytes).await.expect("it listens");
    let mut answered = [false; REQUESTS];
    while !over() {
        let mut messages = Vec::new();
        decoder.read(reader.receive().await.expect("it speaks"), &mut messages).expect("messages");
        bytes.clear();
        encoder.put(&Message::Alive, &mut bytes);
        for message in messages {
            let Message::Context(context) = message else { continue };
            let key = context.key;
            let number = |served: &Served| {
                let number = key.seq.wrapping_sub(key.opener) as usize / served.len.max(1);
                served.times.get(number).map(|times| (number, *times))
            };
            let end = Instant::now() + Duration::from_secs(20);
            let (number, (arrived, left)) = loop {
                if let Some(found) = number(&served.lock().expect("unpoisoned")) {
                    break found;
                }
                assert!(Instant::now() < end, "a context of a request that was not made: {key:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            if std::mem::replace(&mut answered[number], true) {
                continue;
            }
            let (span, duration) = (SpanId(number as u64 + 1), (left - arrived) as u64);
            let (queue, cpu, status, error, start) = (0, 0, 200, false, arrived + ahead);
            encoder
                .put(&Message::Summary(Summary { key, span, duration, queue, cpu, start, status, error }), &mut bytes);
        }
        writer.send(&bytes).await.expect("it listens");
    }
}

/// Sets the flag when dropped, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A host whose clock is `ahead` by this many nanoseconds.
fn apart(name: &str, ahead: i64) {
    let Some(_turn) = begin(name, &["ip", "nft", "nsenter"]) else { return };
    let dir = scratch();
    let hosts = Hosts::new(2, Nat { destination: false, source: false });
    let listen = |place: SocketAddr| hosts.inside(2, move || TcpListener::bind(place).expect("a port"));
    let front = SocketAddr::from((hosts.own(2), PORT));
    let (server, peers) = (listen(front), listen(hosts.relay(2)));
    peers.set_nonblocking(true).expect("set");
    let agent = hosts.agent(1, "client", dir.path(), true, &["--hertz", "0"]);
    let (served, over) = (Mutex::new(Served::default()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&server, &served));
        scope.spawn(|| {
            let runtime = hosts.inside(2, || tokio::runtime::Builder::new_current_thread().enable_all().build());
            let over = || over.load(Ordering::Relaxed);
            runtime.expect("a runtime").block_on(answer(peers, &served, ahead, over));
        });
        let _over = Over(&over);
        let peer = || {
            let peers = hosts.inside(1, || agent.json("/api/v1/peers"));
            peers["peers"].as_array().and_then(|peers| peers.iter().find(|peer| peer["direction"] == "out").cloned())
        };
        wait("the agent to be found", Duration::from_secs(30), || {
            peer().filter(|peer| peer["state"] == "up").map(drop)
        });
        let plan = (0..REQUESTS).map(|n| Request::get(format!("/clock/{n:03}"))).collect();
        let begun = wall();
        let loaded = hosts.inside(1, || load::run(front, vec![plan]));
        let ended = wall();
        assert!(loaded.broken().is_empty(), "{:?}", loaded.broken().first());
        let (offset, error) = wait("a clock to be known", Duration::from_secs(20), || {
            let peer = peer()?;
            Some((peer["clock_offset_s"].as_f64()?, peer["clock_error_s"].as_f64()?))
        });
        let truth = ahead as f64 / 1e9;
        figure(
            &format!("{name}: a clock {truth:+.6} s off is shown as"),
            &format!("{offset:+.6} s ± {:.0} µs, {:.0} µs off", error * 1e6, (offset - truth).abs() * 1e6),
        );
        // Reported as a float, which resolves some 0.5 µs at an hour.
        assert!((offset - truth).abs() <= error + 1e-6, "{offset} ± {error} and not {truth}");
        assert!(error < 0.1, "it says little: ± {error} s");

        let mut tail = Tail::new(&agent.transactions);
        let have = tail.until(REQUESTS, Duration::from_secs(30), |span| span.path.starts_with("/clock/"));
        assert_eq!(have, REQUESTS);
        let mut calls: Vec<_> = tail.spans.iter().filter(|span| span.path.starts_with("/clock/")).collect();
        calls.sort_by_key(|call| call.path.clone());
        let mut last = begun;
        let mut known = 0;
        for call in calls {
            // Times are of this host's clock, and calls follow one another in the order they were made.
            let end = call.start_ns + (call.duration_s * 1e9) as i64;
            assert!(call.start_ns >= last - SLACK && end <= ended + SLACK, "{begun} {last} {ended} {call:?}");
            last = end;
            if let Some(far) = call.far_duration_s {
                known += 1;
                assert!(far >= WORK.as_secs_f64() && far <= call.duration_s, "{call:?}");
            }
        }
        assert!(known * 2 >= REQUESTS, "{known} of {REQUESTS} calls know how long their other end took");
    });
    agent.stop();
}

/// Span times are the kernel's, converted to the wall clock once: both may differ by this many nanoseconds.
const SLACK: i64 = 1_000_000;

#[test]
fn an_hour_ahead() {
    apart("an_hour_ahead", 3_600_123_456_789);
}

#[test]
fn behind_by_a_little() {
    apart("behind_by_a_little", -31_000_000);
}
