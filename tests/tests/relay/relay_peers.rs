//! Intermediate peers: one of an older version, to which both directions must be encoded in that version; and one that
//! has the key and sends contexts of connections its host has no part in.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tracer_model::{SpanId, TraceId};
use tracer_relay::channel::{Broken, CONTENT, Channel, ChannelReader, Secret, SessionEnd, Writer};
use tracer_relay::message::{Context, Decoder, Encoder, Hello, Message};
use tracer_relay::settings::Trust;
use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, PROGRAMS, edges, load};
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::spans::{Span, Tail};
use tracer_tests::{begin, figure, say, scratch, wait};

/// Limit for a condition to come true.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests of a load.
const REQUESTS: u64 = 400;

/// Forwards messages from one agent to another.
struct Pump {
    reader: ChannelReader,
    decoder: Decoder,
    writer: Writer,
    encoder: Encoder,
}

async fn agree(stream: TcpStream, end: SessionEnd<'_>) -> Result<Channel, Broken> {
    Channel::agree(stream, &Trust::Key(Secret([KEY; 32])), end).await
}

/// A session with an agent, after the greeting in this version.
async fn greet(channel: Channel, version: u16) -> (ChannelReader, Decoder, Writer, Encoder) {
    let Channel { mut writer, mut reader, .. } = channel;
    let (mut encoder, mut decoder, mut bytes, mut found) = (Encoder::default(), Decoder::default(), Vec::new(), vec![]);
    decoder.read(reader.receive().await.expect("a greeting"), &mut found).expect("messages");
    let hello = Hello { version, least: 1, agent: 0xbeef, host: "between".into() };
    encoder.put(&Message::Hello(hello), &mut bytes);
    encoder.speak(version);
    writer.send(&bytes).await.expect("it listens");
    (reader, decoder, writer, encoder)
}

/// Accepts one agent's session, dials another agent, and speaks that `version` with both.
async fn between(listener: TcpListener, to: SocketAddr, version: u16) -> (Pump, Pump) {
    let channel = loop {
        let (stream, _) = listener.accept().await.expect("an agent");
        // Skips connections that ended before we listened.
        if let Ok(channel) = agree(stream, SessionEnd::Accepted).await {
            break channel;
        }
    };
    let caller = greet(channel, version).await;
    let stream = TcpStream::connect(to).await.expect("an agent");
    let callee = greet(agree(stream, SessionEnd::Dialled("")).await.expect("the same key"), version).await;
    let pump = |from: (ChannelReader, Decoder), to: (Writer, Encoder)| Pump {
        reader: from.0,
        decoder: from.1,
        writer: to.0,
        encoder: to.1,
    };
    (pump((caller.0, caller.1), (callee.2, callee.3)), pump((callee.0, callee.1), (caller.2, caller.3)))
}

impl Pump {
    /// Forwards the result of `pass`, until `over` is set; an agent sends something at least every 0.4 s.
    async fn run(mut self, over: &AtomicBool, mut pass: impl FnMut(Message) -> Vec<Message>) {
        while !over.load(Ordering::Relaxed) {
            let Ok(frame) = self.reader.receive().await else { return };
            let mut found = Vec::new();
            self.decoder.read(frame, &mut found).expect("messages");
            let mut bytes = Vec::new();
            self.encoder.put(&Message::Alive, &mut bytes);
            for message in found.into_iter().flat_map(&mut pass) {
                self.encoder.put(&message, &mut bytes);
                if bytes.len() > CONTENT / 2 {
                    if self.writer.send(&bytes).await.is_err() {
                        return;
                    }
                    bytes.clear();
                }
            }
            if !bytes.is_empty() && self.writer.send(&bytes).await.is_err() {
                return;
            }
        }
    }
}

/// Runs `act` while tasks run on a host.
fn beside<T>(
    (hosts, host): (&Hosts, u8),
    tasks: impl Future<Output = ()> + Send,
    over: &AtomicBool,
    act: impl FnOnce() -> T,
) -> T {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            hosts.inside(host, || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(tasks);
            });
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        over.store(true, Ordering::Relaxed);
        let ended = running.join();
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done
    })
}

/// An agent that authenticates others by the key, with additional lines under `[relay]`.
fn agent(hosts: &Hosts, host: u8, name: &str, dir: &std::path::Path, others: &[SocketAddr], relay: &str) -> Agent {
    let key = secret(&dir.join("key"), &format!("{KEY:02x}").repeat(32)).display().to_string();
    hosts.configured(host, name, dir, (&["--relay-key", &key], others), relay, &["--hertz", "0"])
}

fn listener(hosts: &Hosts, host: u8, place: SocketAddr) -> std::net::TcpListener {
    let listener = hosts.inside(host, || std::net::TcpListener::bind(place).expect("a port"));
    listener.set_nonblocking(true).expect("set");
    listener
}

/// Waits until an agent has this many sessions.
fn up(hosts: &Hosts, host: u8, agent: &Agent, count: usize) {
    wait("sessions", PATIENCE, || {
        let peers = hosts.inside(host, || agent.json("/api/v1/peers"));
        let up = peers["peers"].as_array()?.iter().filter(|peer| peer["state"] == "up").count();
        (up >= count).then_some(())
    });
}

/// Contexts with one outcome at an agent: a freshly started one reports them with its first tick.
fn outcome(hosts: &Hosts, host: u8, agent: &Agent, name: &str) -> u64 {
    wait(&format!("the count {name}"), PATIENCE, || {
        hosts.inside(host, || agent.json("/api/v1/peers"))["outcomes"][name].as_u64()
    })
}

/// Service classes of the requests read on a host, and whether the relay delivered all.
fn received(agent: &Agent, prefix: &str, count: u64) -> Vec<Value> {
    let path = format!("/hop/{prefix}-");
    let text = std::fs::read_to_string(&agent.transactions).expect("spans");
    let spans: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ours = |span: &&Value| {
        span["side"] == "server" && span["attributes"]["url.path"].as_str().is_some_and(|own| own.starts_with(&path))
    };
    let found: Vec<Value> = spans.iter().filter(ours).cloned().collect();
    assert_eq!(found.len() as u64, count, "{prefix}");
    assert!(found.iter().all(|span| span["parent_from"] == "relay"), "{prefix}: not by the relay");
    found.iter().map(|span| span["attributes"]["tracer.service_class"].clone()).collect()
}

#[test]
fn versions() {
    let Some(_turn) = begin("versions", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(5, Nat { destination: true, source: true });
    let chain = Chain::start(&hosts, dir.path());
    for version in [1, 2] {
        let listener = listener(&hosts, 5, hosts.relay(5));
        // Contexts of the application's calls reach the callee only by way of the last host.
        let caller = agent(&hosts, 3, &format!("caller{version}"), dir.path(), &[hosts.relay(5)], "discover = false");
        let callee = agent(&hosts, 4, &format!("callee{version}"), dir.path(), &[], "discover = false");
        let (over, contexts, summaries) = (AtomicBool::new(false), Mutex::new(Vec::new()), Mutex::new(0u64));
        let place = hosts.relay(4);
        let task = async {
            let (out, back) = between(TcpListener::from_std(listener).expect("a socket"), place, version).await;
            let out = out.run(&over, |message| {
                let Message::Context(context) = &message else { return Vec::new() };
                contexts.lock().expect("whole").push(context.clone());
                vec![message]
            });
            let back = back.run(&over, |message| {
                let Message::Summary(_) = message else { return Vec::new() };
                *summaries.lock().expect("whole") += 1;
                vec![message]
            });
            tokio::join!(out, back);
        };
        let prefix = format!("laden{version}");
        let (sent, spans) = beside((&hosts, 5), task, &over, || {
            up(&hosts, 3, &caller, 1);
            up(&hosts, 4, &callee, 1);
            let sent = load(&hosts, chain.front, &prefix, 8, REQUESTS);
            let wanted = format!("/hop/{prefix}-");
            let mut spans = Vec::new();
            for (agent, sides) in [(&caller, 2), (&callee, 1)] {
                let mut tail = Tail::new(&agent.transactions);
                tail.until((sent * sides) as usize, PATIENCE, |span| span.path.starts_with(&wanted));
                spans.append(&mut tail.spans);
            }
            (sent, spans)
        });
        let found = edges(&spans, &prefix);
        let far = spans.iter().filter(|span| !span.server && span.far_duration_s.is_some()).count() as u64;
        let contexts = contexts.into_inner().expect("whole");
        let carried = contexts.iter().filter(|context| context.carried.is_some()).count() as u64;
        let summaries = summaries.into_inner().expect("whole");
        say(&format!("version {version}: {found:?}, {carried} of {} carry more, {far} answers", contexts.len()));
        figure(&format!("relay: edges by way of a peer of version {version}"), &format!("{} of {sent}", found.matched));
        assert_eq!((found.wrong, found.dangling, found.matched), (0, 0, sent), "{found:?}");
        assert!(summaries >= sent && far * 2 >= sent, "{summaries} summaries, {far} received in time");
        let classes = received(&callee, &prefix, sent);
        if version == 1 {
            assert_eq!(carried, 0, "it received what it does not know");
            assert!(classes.iter().all(Value::is_null), "{classes:?}");
        } else {
            assert!(carried >= sent, "{carried} of {sent}");
            assert!(classes.iter().all(|class| class == "gold"), "{classes:?}");
        }
        assert_eq!(outcome(&hosts, 4, &callee, "refused"), 0);
        caller.stop();
        callee.stop();
    }
}

/// False contexts for an observed call, and for the next four of its connection, whose requests have one unknown
/// length: all with another parent.
fn lies(context: &Context) -> Vec<Message> {
    let message = |bytes: u32| {
        let mut key = context.key;
        key.seq = key.seq.wrapping_add(bytes);
        let (parent, trace) = (SpanId(context.parent.0 ^ 1), TraceId(7));
        Message::Context(Context { key, parent, trace, settled: true, broadcast: true, ..context.clone() })
    };
    let lengths = 40..200;
    std::iter::once(message(0))
        .chain(lengths.flat_map(|length| (1..=4).map(move |n| n * length)).map(message))
        .collect()
}

#[test]
fn claims() {
    let Some(_turn) = begin("claims", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(5, Nat { destination: false, source: false });
    for host in 1..=5 {
        // Otherwise the agents report that others may be behind them.
        hosts.inside(host, || {
            for file in ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"] {
                if std::path::Path::new(file).exists() {
                    std::fs::write(file, "0").expect("set");
                }
            }
        });
    }
    let chain = Chain::start(&hosts, dir.path());
    let callee = agent(&hosts, 3, "callee", dir.path(), &[], "discover = false");
    // An agent that takes its callee's address for a translated one sends everything it knows; otherwise only the
    // callee's contexts.
    let network = Ipv4Addr::new(10, 211, 3, 0);
    // The last case is the control: the same messages from the host that owns the connections are trusted, and every
    // edge is the liar's. So their origin is the reason for refusing them. (What is refused then contradicts earlier
    // messages.)
    let tells = format!("translated = [\"{network}/24\"]");
    for (name, relay, host) in [("tells", &tells, 5), ("keeps", &String::new(), 5), ("owns", &tells, 2)] {
        let (own, place) = (host == 2, hosts.relay(3));
        // Beside its host's agent.
        let liar = SocketAddr::new(hosts.relay(host).ip(), hosts.relay(host).port() + u16::from(own));
        let listener = listener(&hosts, host, liar);
        let relay = format!("discover = false\n{relay}");
        let others: &[SocketAddr] = if own { &[liar] } else { &[place, liar] };
        let caller = agent(&hosts, 2, name, dir.path(), others, &relay);
        let (over, calls) = (AtomicBool::new(false), Mutex::new(0u64));
        let task = async {
            let (out, back) = between(TcpListener::from_std(listener).expect("a socket"), place, 2).await;
            let out = out.run(&over, |message| {
                let Message::Context(context) = message else { return Vec::new() };
                let mut calls = calls.lock().expect("whole");
                *calls += 1;
                let mut claims = lies(&context);
                // A liar alone with the caller receives every call; answering all of them would be a flood.
                if *calls > 12 {
                    claims.truncate(1);
                }
                claims
            });
            tokio::join!(out, back.run(&over, |_| Vec::new()));
        };
        let before = outcome(&hosts, 3, &callee, "refused");
        let (sent, spans) = beside((&hosts, host), task, &over, || {
            // To both, and from both; in the control everything passes the liar.
            let sessions = if own { 1 } else { 2 };
            up(&hosts, 2, &caller, sessions);
            up(&hosts, 3, &callee, sessions);
            let sent = load(&hosts, chain.front, name, 8, REQUESTS);
            let wanted = format!("/hop/{name}-");
            let mut spans = Vec::new();
            for agent in [&caller, &callee] {
                let mut tail = Tail::new(&agent.transactions);
                tail.until((sent * 2) as usize, PATIENCE, |span| span.path.starts_with(&wanted));
                spans.append(&mut tail.spans);
            }
            (sent, spans)
        });
        let count = outcome(&hosts, 3, &callee, "refused") - before;
        let calls = calls.into_inner().expect("whole");
        // The client's requests have no caller here: its host has no agent.
        let served_here = |span: &&Span| span.server && span.service == "application" && span.path.contains(name);
        let served: Vec<&Span> = spans.iter().filter(served_here).collect();
        let ids: HashMap<&str, &Span> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
        let right = |span: &&&Span| {
            let parent = span.parent.as_deref().and_then(|parent| ids.get(parent));
            parent.is_some_and(|parent| !parent.server && parent.path == span.path)
        };
        let right = served.iter().filter(right).count() as u64;
        let wrong = served.iter().filter(|span| span.parent.is_some()).count() as u64 - right;
        say(&format!(
            "{name}: {right} of {sent} right, {wrong} wrong, {calls} calls reported to it, {count} lies refused"
        ));
        figure(
            &format!("relay: a peer that makes claims about others' connections ({name})"),
            &format!("{right} of {sent} right, {wrong} wrong, {count} lies refused"),
        );
        if own {
            let believed =
                spans.iter().filter(|span| span.server && span.trace == format!("{:032x}", 7)).count() as u64;
            assert_eq!(right, 0, "{name}: of {sent}");
            assert!(wrong as f64 >= 0.99 * sent as f64 && believed >= wrong, "{name}: {wrong}, {believed} of {sent}");
            caller.stop();
            continue;
        }
        assert_eq!((served.len() as u64, wrong), (sent, 0), "{name}");
        assert!(right as f64 >= 0.99 * sent as f64, "{name}: {right} of {sent}");
        assert!(spans.iter().all(|span| span.trace != format!("{:032x}", 7)), "a span has the liar's transaction");
        if name == "tells" {
            // Once per connection: its callee answers, and is the only recipient from then on.
            assert!(calls > 0 && count >= 3 * calls, "{calls} calls reported to it, {count} refused");
        } else {
            assert_eq!((calls, count), (0, 0), "it received calls to another host");
        }
        caller.stop();
    }
    callee.stop();
}
