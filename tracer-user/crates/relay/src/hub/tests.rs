//! Agents that talk over loopback: with and without a key, after garbage, and again after a disconnect.

use std::future::Future;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tracer_model::{SpanId, TraceId};

use super::*;
use crate::bounds::Policy;
use crate::channel::Secret;
use crate::key::RequestKey;
use crate::message::{Context, Summary};
use crate::settings::Trust;

/// Longest wait for a condition.
const PATIENCE: Duration = Duration::from_secs(20);

fn settings(secret: Option<u8>, peers: Vec<String>) -> Settings {
    let trust = secret.map_or(Trust::Anybody, |byte| Trust::Key(Secret([byte; 32])));
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Settings {
        listen,
        peers,
        discover: false,
        port: 1,
        nats: None,
        trust,
        insecure: false,
        policy: Policy::default(),
        forwards: false,
    }
}

async fn hub(number: u64, secret: Option<u8>, peers: &[SocketAddr]) -> Hub {
    let own = Agent { number, host: format!("host{number}").into() };
    Hub::start(settings(secret, peers.iter().map(ToString::to_string).collect()), own).await.unwrap()
}

fn runs(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn context(seq: u32) -> Outgoing {
    let context = Context {
        key: RequestKey { opener: 1, accepting: 2, seq },
        trace: TraceId(7),
        parent: SpanId(9),
        settled: true,
        broadcast: false,
        trace_flags: None,
        service: "shop".into(),
        class: "GET /".into(),
        carried: None,
        root: crate::message::ContextRoot::Unknown,
    };
    Outgoing::Context { remote: IpAddr::from([127, 0, 0, 1]), context }
}

fn summary(to: u64, seq: u32) -> Outgoing {
    let key = RequestKey { opener: 1, accepting: 2, seq };
    let span = SpanId(4);
    let summary = Summary { key, span, duration: 5, queue: 1, cpu: 2, start: 3, status: 200, error: false };
    Outgoing::Summary { to, summary }
}

/// The next messages; skips changes of sessions.
fn received(hub: &mut Hub) -> Option<Received> {
    std::iter::from_fn(|| hub.receive()).find(|received| received.session.is_none())
}

async fn next(hub: &mut Hub) -> Received {
    let mut found = None;
    until("a message comes", || {
        found = received(hub);
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[test]
fn contexts_go_and_summaries_come_back() {
    for secret in [None, Some(5)] {
        runs(async move {
            let mut callee = hub(1, secret, &[]).await;
            let mut caller = hub(2, secret, &[callee.listen.unwrap()]).await;
            until("a session", || caller.mode() == Mode::Waits && callee.mode() == Mode::Waits).await;
            until("the peer is known", || caller.peers().iter().any(|peer| peer.host == "host1")).await;
            caller.send(vec![context(10), context(11)]);
            let got = next(&mut callee).await;
            assert_eq!((&*got.from.host, got.messages.len()), ("host2", 2));
            callee.send(vec![summary(got.from.number, 10)]);
            let got = next(&mut caller).await;
            assert!(matches!(got.messages[..], [Message::Summary(Summary { cpu: 2, .. })]));
            assert_eq!((caller.outcomes().sent, callee.outcomes()), (2, Outcomes::default()));
        });
    }
}

#[test]
fn a_connection_belongs_to_whoever_answered_for_it() {
    runs(async {
        let (mut right, mut wrong) = (hub(1, Some(5), &[]).await, hub(3, Some(5), &[]).await);
        let mut caller = hub(2, Some(5), &[right.listen.unwrap(), wrong.listen.unwrap()]).await;
        until("two sessions", || caller.peers().iter().filter(|peer| peer.state == "up").count() == 2).await;
        caller.send(vec![context(10)]);
        let mut caller_is = 0;
        for hub in [&mut wrong, &mut right] {
            let got = next(hub).await;
            assert!(matches!(&got.messages[..], [Message::Context(context)] if context.broadcast));
            caller_is = got.from.number;
        }
        right.send(vec![summary(caller_is, 10)]);
        next(&mut caller).await;
        caller.send(vec![context(20)]);
        let got = next(&mut right).await;
        assert!(matches!(&got.messages[..], [Message::Context(context)] if !context.broadcast));
        assert_eq!(received(&mut wrong), None, "it has nothing to do with it");
    });
}

#[test]
fn an_agent_elsewhere_than_the_remote_address_receives_nothing() {
    runs(async {
        let remote = [127, 0, 0, 5];
        for (forwards, receivers) in [(false, 1), (true, 2)] {
            // One agent is at the called address, the other is configured.
            let listen = Some(SocketAddr::from((remote, 0)));
            let own = Agent { number: 1, host: "host1".into() };
            let there = Settings { listen, forwards, ..settings(Some(5), Vec::new()) };
            let (mut there, mut named) = (Hub::start(there, own).await.unwrap(), hub(3, Some(5), &[]).await);
            let caller = hub(2, Some(5), &[there.listen.unwrap(), named.listen.unwrap()]).await;
            until("two sessions", || caller.peers().iter().filter(|peer| peer.state == "up").count() == 2).await;
            let Outgoing::Context { context: one, .. } = context(10) else { return };
            caller.send(vec![Outgoing::Context { remote: remote.into(), context: one }]);
            let got = next(&mut there).await;
            assert!(matches!(&got.messages[..], [Message::Context(context)] if context.broadcast == (receivers == 2)));
            if receivers == 2 {
                next(&mut named).await;
            }
            // To an address without an agent: both get it, and the other agent got nothing before.
            let Outgoing::Context { context: one, .. } = context(20) else { return };
            caller.send(vec![Outgoing::Context { remote: [127, 0, 0, 77].into(), context: one }]);
            for hub in [&mut named, &mut there] {
                assert!(matches!(&next(hub).await.messages[..], [Message::Context(context)] if context.key.seq == 20));
            }
        }
    });
}

#[test]
fn addresses_of_agents_arrive_before_their_messages() {
    runs(async {
        let mut callee = hub(1, Some(5), &[]).await;
        let caller = hub(2, Some(5), &[callee.listen.unwrap()]).await;
        until("a session", || caller.mode() == Mode::Waits && callee.mode() == Mode::Waits).await;
        caller.send(vec![context(10)]);
        drop(caller);
        let mut all = Vec::new();
        until("it is over", || {
            all.extend(callee.receive());
            all.iter().any(|received| received.session.as_ref().is_some_and(|session| !session.up))
        })
        .await;
        let first = all.first().and_then(|received| received.session.as_ref()).unwrap();
        assert_eq!((first.up, first.dialled, &first.addresses[..]), (true, false, &[IpAddr::from([127, 0, 0, 1])][..]));
        assert!(all.iter().all(|received| received.from.number == first.agent));
    });
}

/// A greeted agent that claims `number` and connects from a loopback address.
async fn liar(
    from: [u8; 4],
    to: SocketAddr,
    number: u64,
) -> (super::super::channel::Writer, super::super::channel::ChannelReader) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let stream = socket.connect(to).await.unwrap();
    let trust = Trust::Key(Secret([5; 32]));
    let mut channel = super::super::channel::Channel::agree(stream, &trust, SessionEnd::Dialled("")).await.unwrap();
    let mut bytes = Vec::new();
    let hello = super::super::message::Hello { version: 1, least: 1, agent: number, host: "liar".into() };
    super::super::message::Encoder::default().put(&Message::Hello(hello), &mut bytes);
    channel.writer.send(&bytes).await.unwrap();
    channel.reader.receive().await.unwrap();
    (channel.writer, channel.reader)
}

#[test]
fn an_agent_that_claims_anothers_number_is_not_taken_for_it() {
    runs(async {
        let mut callee = hub(1, Some(5), &[]).await;
        let address = callee.listen.unwrap();
        let mut caller = hub(2, Some(5), &[address]).await;
        until("a session", || caller.mode() == Mode::Waits && callee.mode() == Mode::Waits).await;
        caller.send(vec![context(10)]);
        let honest = next(&mut callee).await.from.number;
        let (mut writer, _reader) = liar([127, 0, 0, 9], address, 2).await;
        let mut bytes = Vec::new();
        let Outgoing::Context { context: claim, .. } = context(20) else { return };
        super::super::message::Encoder::default().put(&Message::Context(claim), &mut bytes);
        writer.send(&bytes).await.unwrap();
        let got = next(&mut callee).await;
        assert_ne!(got.from.number, honest);
        // A summary for the honest agent still reaches it.
        callee.send(vec![summary(honest, 10)]);
        assert!(matches!(next(&mut caller).await.messages[..], [Message::Summary(_)]));
    });
}

#[test]
fn false_claims_and_floods_end_a_session() {
    runs(async {
        let callee = hub(1, Some(5), &[]).await;
        let address = callee.listen.unwrap();
        let mut bytes = Vec::new();
        let Outgoing::Summary { summary: claim, .. } = summary(1, 1) else { return };
        super::super::message::Encoder::default().put(&Message::Summary(claim), &mut bytes);
        let (mut writer, mut reader) = liar([127, 0, 0, 9], address, 9).await;
        writer.send(&bytes).await.unwrap();
        while reader.receive().await.is_ok() {}
        until("refused", || callee.outcomes().refused == 1).await;
        assert!(lock(&callee.state.bans).is_banned(Instant::now(), [127, 0, 0, 9].into()));
        // Nothing but keep-alives, as fast as it can.
        let (mut writer, _reader) = liar([127, 0, 0, 8], address, 9).await;
        let alive = [5, 0].repeat(16_000);
        let end = Instant::now() + PATIENCE;
        while writer.send(&alive).await.is_ok() {
            assert!(Instant::now() < end, "a flood goes on");
        }
        until("refused", || callee.outcomes().refused == 2).await;
        assert!(lock(&callee.state.bans).is_banned(Instant::now(), [127, 0, 0, 8].into()));
        assert_eq!(callee.mode(), Mode::Sends);
    });
}

#[test]
fn who_has_another_key_is_refused_and_kept_out() {
    runs(async {
        let callee = hub(1, Some(5), &[]).await;
        let address = callee.listen.unwrap();
        let stranger = hub(2, Some(6), &[address]).await;
        until("refused", || callee.outcomes().refused >= 2).await;
        assert!(lock(&callee.state.bans).is_banned(Instant::now(), address.ip()));
        assert_eq!((stranger.mode(), callee.mode()), (Mode::Sends, Mode::Sends));
    });
}

#[test]
fn a_refused_agent_learns_why() {
    for (callee_key, caller_key) in [(Some(5), Some(6)), (Some(5), None), (None, Some(6))] {
        runs(async move {
            let place = {
                let gone = hub(1, callee_key, &[]).await;
                gone.listen.unwrap()
            };
            // The listener is gone at first.
            let caller = hub(2, caller_key, &[place]).await;
            let error = |hub: &Hub| hub.peers().first().map(|peer| peer.error.clone()).unwrap_or_default();
            until("no listener", || error(&caller).contains("refused")).await;
            let own = Agent { number: 4, host: "host4".into() };
            let listener = Settings { listen: Some(place), ..settings(callee_key, Vec::new()) };
            let mut callee = None;
            let end = Instant::now() + PATIENCE;
            while callee.is_none() {
                callee = Hub::start(listener.clone(), own.clone()).await.ok();
                assert!(Instant::now() < end, "the address is free again");
            }
            until("the key is named", || error(&caller).contains("does not have the same key")).await;
            // While it is kept out it is hung up on, and the reason stays.
            let tries = callee.as_ref().map_or(0, |callee| callee.outcomes().refused);
            until("another try", || callee.as_ref().is_some_and(|callee| callee.outcomes().refused > tries)).await;
            assert!(error(&caller).contains("does not have the same key"), "{}", error(&caller));
        });
    }
}

#[test]
fn garbage_is_refused_and_nothing_else_happens() {
    for (secret, greeting) in [(Some(5), false), (None, false), (None, true)] {
        runs(async move {
            let mut callee = hub(1, secret, &[]).await;
            let address = callee.listen.unwrap();
            let mut stream = TcpStream::connect(address).await.unwrap();
            if greeting {
                let mut bytes = Vec::new();
                let hello = Message::Hello(super::super::message::Hello {
                    version: 1,
                    least: 1,
                    agent: 77,
                    host: "liar".into(),
                });
                super::super::message::Encoder::default().put(&hello, &mut bytes);
                stream.write_u16(bytes.len() as u16).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
                // A truncated context.
                stream.write_all(&[0, 5, 3, 3, 1, 2, 3]).await.unwrap();
            } else {
                stream.write_all(b"\0\x20GET / HTTP/1.1\r\nHost: x\r\n\r\nxxxxxxxxxxxxxxxx").await.unwrap();
            }
            until("refused", || callee.outcomes().refused == 1).await;
            // The connection is closed, and the next one gets no answer.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            let mut again = TcpStream::connect(address).await.unwrap();
            let gone = tokio::time::timeout(PATIENCE, again.read(&mut [0; 8])).await.unwrap();
            assert!(matches!(gone, Ok(0) | Err(_)));
            assert_eq!((received(&mut callee), callee.mode()), (None, Mode::Sends));
        });
    }
}

#[test]
fn a_peer_that_comes_back_is_found_again() {
    runs(async {
        let place = {
            let gone = hub(1, Some(5), &[]).await;
            gone.listen.unwrap()
        };
        let own = Agent { number: 4, host: "host4".into() };
        let caller = hub(2, Some(5), &[place]).await;
        caller.send(vec![context(1)]);
        let listener = Settings { listen: Some(place), ..settings(Some(5), Vec::new()) };
        let mut callee = None;
        let end = Instant::now() + PATIENCE;
        while callee.is_none() {
            // The previous one closes its socket asynchronously.
            callee = Hub::start(listener.clone(), own.clone()).await.ok();
            assert!(Instant::now() < end, "the address is free again");
        }
        let mut callee = callee.unwrap();
        until("a session", || caller.peers().iter().any(|peer| peer.state == "up" && peer.host == "host4")).await;
        caller.send(vec![context(2)]);
        let got = next(&mut callee).await;
        assert!(matches!(&got.messages[..], [Message::Context(context)] if context.key.seq == 2), "{got:?}");
    });
}

#[test]
fn who_meets_itself_hangs_up() {
    runs(async {
        let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listen = Some(place);
        let own = Agent { number: 1, host: "host1".into() };
        let hub = Hub::start(Settings { listen, ..settings(Some(5), vec![place.to_string()]) }, own).await.unwrap();
        until("it is no peer", || hub.peers().is_empty()).await;
        assert_eq!(hub.mode(), Mode::Sends);
    });
}
