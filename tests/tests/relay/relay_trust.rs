//! Which peers agents trust. With certificates: a peer without one of theirs is refused. And a peer that has the key
//! and lies, floods and sends garbage, beside agents with traffic: it is refused and counted, without any other effect.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracer_model::{SpanId, TraceId};
use tracer_relay::channel::{Broken, Channel, ChannelReader, Secret, SessionEnd, Writer};
use tracer_relay::key::RequestKey;
use tracer_relay::message::{Context, ContextRoot, Decoder, Encoder, Hello, Message, Summary, VERSION};
use tracer_relay::settings::Trust;
use tracer_relay::tls::{Files, Identity};
use tracer_tests::agent::Agent;
use tracer_tests::chain::{Chain, PROGRAMS, as_before, connected, during, none_wrong, outcomes, refused};
use tracer_tests::hosts::{Hosts, KEY, Nat, secret};
use tracer_tests::vitals::Vitals;
use tracer_tests::{begin, figure, find, say, scratch, wait};

const NAMES: [&str; 4] = ["client", "proxy", "application-host", "origin-host"];
const NAT: Nat = Nat { destination: true, source: true };

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new([]).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// Files of an agent reachable at `address`.
fn issue(dir: &Path, name: &str, by: &Authority, address: IpAddr, trusted: &str) -> Files {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([address.to_string()]).expect("an address");
    let own = params.signed_by(&key, by).expect("signed");
    Files {
        cert: secret(&dir.join(format!("{name}.pem")), &own.pem()),
        key: secret(&dir.join(format!("{name}.key.pem")), &key.serialize_pem()),
        ca: secret(&dir.join(format!("{name}.ca.pem")), trusted),
    }
}

/// Runs a conversation with an agent from a host, in a thread of its own.
fn speaking<T: Send>(hosts: &Hosts, host: u8, act: impl Future<Output = T> + Send) -> T {
    hosts.inside(host, || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(act)
    })
}

#[test]
fn certificates() {
    let Some(_turn) = begin("certificates", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(4, NAT);
    let chain = Chain::start(&hosts, dir.path());
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let start = |(host, name): (u8, &str)| {
        let files = issue(dir.path(), name, &ours, hosts.own(host).into(), &ours.pem());
        let [cert, key, ca] = [&files.cert, &files.key, &files.ca].map(|file| file.display().to_string());
        let trust = ["--relay-cert", &cert, "--relay-cert-key", &key, "--relay-ca", &ca];
        let others: Vec<SocketAddr> = (1..=4).filter(|other| *other != host).map(|other| hosts.relay(other)).collect();
        hosts.speaking(host, name, dir.path(), (&trust, &others), &["--hertz", "0"])
    };
    let agents: Vec<Agent> = (1..).zip(NAMES).map(start).collect();
    connected(&hosts, &agents);
    as_before(&hosts, &chain, &agents, "certified");

    // A peer that trusts our authority but has another's certificate, one with the key of the other test, and one with
    // neither.
    let router: IpAddr = Ipv4Addr::new(10, 211, 3, 1).into();
    let both = ours.pem() + &theirs.pem();
    let stranger = Identity::read(issue(dir.path(), "stranger", &theirs, router, &both)).expect("certificates");
    let place = hosts.relay(3);
    let peers = |trust: Trust| {
        speaking(&hosts, 0, async move {
            let stream = TcpStream::connect(place).await.expect("a connection");
            let mut channel = Channel::agree(stream, &trust, SessionEnd::Dialled(&place.to_string())).await?;
            // Refused after its own part of the handshake: the refusal arrives in place of a greeting.
            channel.reader.receive().await.map(<[u8]>::to_vec)
        })
    };
    let before = refused(&hosts, &agents);
    let ((), prefixes) = during(&hosts, &chain, "strangers", || {
        let result = peers(Trust::Certificates(Arc::new(stranger)));
        let Err(Broken::Tls(why)) = &result else { panic!("no reason: {result:?}") };
        assert!(why.contains("does not take this agent's certificate"), "{why}");
        wait("a stranger to be counted", Duration::from_secs(10), || (refused(&hosts, &agents) > before).then_some(()));
        // Blocked from then on, with any credentials.
        assert!(peers(Trust::Key(Secret([KEY; 32]))).is_err());
    });
    figure("relay: peers without our certificates refused", &(refused(&hosts, &agents) - before).to_string());
    connected(&hosts, &agents);
    let spans = as_before(&hosts, &chain, &agents, "certified-still");
    for prefix in prefixes {
        assert!(none_wrong(&spans, &prefix) > 0, "{prefix}");
    }
    for agent in agents {
        agent.stop();
    }
}

/// A peer with the key that sends arbitrary messages.
struct Liar {
    writer: Writer,
    reader: ChannelReader,
    encoder: Encoder,
}

impl Liar {
    /// Dials an agent and greets it.
    async fn dial(from: Ipv4Addr, to: SocketAddr, number: u64, version: u16) -> Result<Self, Broken> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((from, 0).into())?;
        let stream = socket.connect(to).await?;
        Self::greet(stream, SessionEnd::Dialled(""), number, version).await
    }

    async fn greet(stream: TcpStream, end: SessionEnd<'_>, number: u64, version: u16) -> Result<Self, Broken> {
        let Channel { writer, mut reader, .. } = Channel::agree(stream, &Trust::Key(Secret([KEY; 32])), end).await?;
        let mut liar = Self {
            writer,
            encoder: Encoder::default(),
            reader: {
                reader.receive().await?;
                reader
            },
        };
        let hello = Hello { version, least: version, agent: number, host: "liar".into() };
        liar.say(&[Message::Hello(hello)]).await?;
        Ok(liar)
    }

    async fn say(&mut self, messages: &[Message]) -> Result<(), Broken> {
        let mut bytes = Vec::new();
        for message in messages {
            self.encoder.put(message, &mut bytes);
        }
        self.writer.send(&bytes).await
    }

    /// Reads until the agent closes the connection.
    async fn over(mut self) {
        let end = Instant::now() + PATIENCE;
        while self.reader.receive().await.is_ok() {
            assert!(Instant::now() < end, "it is still spoken to");
        }
    }
}

/// Limit for a condition to come true.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most memory growth of an agent in total, bytes.
const GROWTH: f64 = 96e6;

/// A context for a request that never happened; deterministic by number.
fn lie(number: u64) -> Message {
    let some = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Message::Context(Context {
        key: RequestKey { opener: some as u32, accepting: (some >> 32) as u32, seq: some as u32 },
        trace: TraceId(u128::from(some) + 1),
        parent: SpanId(some | 1),
        settled: true,
        broadcast: false,
        trace_flags: None,
        service: "liar".into(),
        class: "GET /nothing".into(),
        carried: None,
        root: ContextRoot::Unknown,
    })
}

/// Accepts agents' sessions, keeps the contexts received, and sends `count` answers for calls that never happened.
async fn answers(listener: TcpListener, count: u64) -> (u64, Vec<Context>) {
    let trust = Trust::Key(Secret([KEY; 32]));
    let channel = loop {
        let (stream, _) = listener.accept().await.expect("an agent");
        // Skips connections that ended before we listened.
        if let Ok(channel) = Channel::agree(stream, &trust, SessionEnd::Accepted).await {
            break channel;
        }
    };
    let (mut writer, mut reader) = (channel.writer, channel.reader);
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let mut found = Vec::new();
    decoder.read(reader.receive().await.expect("a greeting"), &mut found).expect("messages");
    let Some(Message::Hello(hello)) = found.first() else { panic!("{found:?}") };
    let number = hello.agent;
    let mut bytes = Vec::new();
    let hello = Hello { version: VERSION, least: VERSION, agent: 0xdead, host: "liar".into() };
    encoder.put(&Message::Hello(hello), &mut bytes);
    writer.send(&bytes).await.expect("it listens");
    for batch in 0..count / 100 {
        bytes.clear();
        for n in 0..100 {
            let Message::Context(context) = lie(1 << 40 | (batch * 100 + n)) else { continue };
            let (key, span) = (context.key, SpanId(n + 1));
            let (duration, queue, cpu, start, status, error) = (1, 1, 1, 1, 500, true);
            let summary = Summary { key, span, duration, queue, cpu, start, status, error };
            encoder.put(&Message::Summary(summary), &mut bytes);
        }
        writer.send(&bytes).await.expect("it listens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut messages = Vec::new();
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        bytes.clear();
        encoder.put(&Message::Alive, &mut bytes);
        writer.send(&bytes).await.expect("it listens");
        // An agent sends something at least every 0.4 s.
        decoder.read(reader.receive().await.expect("it speaks"), &mut messages).expect("messages");
    }
    let contexts = messages.into_iter().filter_map(|message| match message {
        Message::Context(context) => Some(context),
        _ => None,
    });
    (number, contexts.collect())
}

fn outcome(hosts: &Hosts, agents: &[Agent], name: &str) -> u64 {
    outcomes(hosts, agents).iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

#[test]
fn lies() {
    let Some(_turn) = begin("lies", &PROGRAMS) else { return };
    let dir = scratch();
    let hosts = Hosts::new(5, NAT);
    let chain = Chain::start(&hosts, dir.path());
    // The liar uses a new address each time: its earlier behaviour blocks it.
    let ip = find("ip").expect("ip");
    let own = |n: u8| Ipv4Addr::new(10, 211, 5, 10 + n);
    for n in 0..8 {
        let mut command: Command = hosts.command(5, &ip);
        let added = command.args(["addr", "add", &format!("{}/24", own(n)), "dev", "eth0"]).status();
        assert!(added.is_ok_and(|status| status.success()), "an address");
    }
    let key = secret(&dir.path().join("key"), &format!("{KEY:02x}").repeat(32)).display().to_string();
    let start = |(host, name): (u8, &str)| {
        let others: Vec<SocketAddr> = (1..=4).filter(|other| *other != host).map(|other| hosts.relay(other)).collect();
        hosts.speaking(host, name, dir.path(), (&["--relay-key", &key], &others), &["--hertz", "0"])
    };
    let mut agents: Vec<Agent> = (1..).zip(NAMES).map(start).collect();
    connected(&hosts, &agents);
    as_before(&hosts, &chain, &agents, "before");
    let memory: Vec<f64> = agents.iter_mut().map(|agent| Vitals::of(agent.process().pid()).rss).collect();
    let place = hosts.relay(3);
    let counts = |name: &str| outcome(&hosts, &agents, name);
    let mut prefixes = Vec::new();

    // Another version: no session, and no reason for a block. Then garbage, and messages it may not send.
    let before = counts("refused");
    let ((), found) = during(&hosts, &chain, "garbage", || {
        speaking(&hosts, 5, async {
            Liar::dial(own(0), place, 77, VERSION + 8).await.expect("greeted").over().await;
            let mut liar = Liar::dial(own(0), place, 77, VERSION).await.expect("still let in");
            liar.writer.send(&[3, 200, 1, 2, 3]).await.expect("sent");
            liar.over().await;
            assert!(Liar::dial(own(0), place, 77, VERSION).await.is_err(), "kept out");
            let mut liar = Liar::dial(own(1), place, 77, VERSION).await.expect("let in");
            let Message::Context(context) = lie(1) else { return };
            let (key, span) = (context.key, SpanId(1));
            let (duration, queue, cpu, start, status, error) = (1, 1, 1, 1, 200, false);
            let summary = Summary { key, span, duration, queue, cpu, start, status, error };
            liar.say(&[Message::Summary(summary)]).await.expect("sent");
            liar.over().await;
        });
    });
    prefixes.extend(found);
    wait("all of it to be counted", PATIENCE, || (counts("refused") >= before + 4).then_some(()));

    // Lies at an accepted rate, each sent twice, by three peers that claim to be different agents.
    let (before, had) = (counts("received"), counts("duplicate"));
    let ((), found) = during(&hosts, &chain, "lies", || {
        speaking(&hosts, 5, async {
            for number in 1..=3 {
                let mut liar = Liar::dial(own(2), place, number, VERSION).await.expect("let in");
                for batch in 0..150u64 {
                    let lies: Vec<Message> = (0..200).map(|n| lie((number << 32) + batch * 100 + n / 2)).collect();
                    liar.say(&lies).await.expect("it is an agent so far as is known");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // Silent from here on: the agent closes once it has read everything.
                liar.over().await;
            }
        });
    });
    prefixes.extend(found);
    wait("lies to be counted", PATIENCE, || (counts("received") >= before + 90_000).then_some(()));
    wait("duplicates to be counted", PATIENCE, || (counts("duplicate") >= had + 30_000).then_some(()));
    let lied = counts("received") - before;
    say(&format!("{lied} contexts received while 90 000 lies were sent, {} twice", counts("duplicate") - had));

    // A million per second, as far as they get.
    let before = counts("refused");
    let ((sent, took), found) = during(&hosts, &chain, "flood", || {
        speaking(&hosts, 5, async {
            let mut liar = Liar::dial(own(3), place, 9, VERSION).await.expect("let in");
            let (begun, mut sent) = (Instant::now(), 0u64);
            let lies = |from: u64| (from..from + 400).map(|n| lie(1 << 50 | n)).collect::<Vec<Message>>();
            while liar.say(&lies(sent)).await.is_ok() {
                sent += 400;
                assert!(begun.elapsed() < PATIENCE, "a flood goes on: {sent}");
            }
            assert!(Liar::dial(own(3), place, 9, VERSION).await.is_err(), "kept out");
            (sent, begun.elapsed())
        })
    });
    prefixes.extend(found);
    figure("relay: a flood with the key ended after", &format!("{:.1} s, {sent} contexts", took.as_secs_f64()));
    wait("a flood to be counted", PATIENCE, || (counts("refused") > before).then_some(()));
    for agent in agents.iter_mut().zip(&memory) {
        let (agent, before) = agent;
        let now = Vitals::of(agent.process().pid()).rss;
        say(&format!("memory: {:.1} MB more", (now - before) / 1e6));
        assert!(now <= before + GROWTH, "an agent grew from {before} to {now} bytes");
    }

    // A peer configured by mistake: it answers for calls that never happened, and later claims received contexts as its
    // own, with the number of the agent that sent them.
    let first = agents.remove(1);
    let kept = first.transactions.clone();
    first.stop();
    let others: Vec<SocketAddr> = [1, 3, 4, 5].map(|other| hosts.relay(other)).into();
    let listener = hosts.inside(5, || std::net::TcpListener::bind(hosts.relay(5)).expect("a port"));
    listener.set_nonblocking(true).expect("set");
    let trust: (&[&str], &[SocketAddr]) = (&["--relay-key", &key], &others);
    agents.insert(1, hosts.speaking(2, "proxy-again", dir.path(), trust, &["--hertz", "0"]));
    let counts = |name: &str| outcome(&hosts, &agents, name);
    let before = counts("answer_late");
    let ((number, calls), found) = during(&hosts, &chain, "answers", || {
        speaking(&hosts, 5, async { answers(TcpListener::from_std(listener).expect("a socket"), 20_000).await })
    });
    prefixes.extend(found);
    say(&format!("it received {} calls", calls.len()));
    wait("answers for nothing to be counted", PATIENCE, || (counts("answer_late") >= before + 20_000).then_some(()));
    assert!(!calls.is_empty(), "it received nothing");
    let before = counts("refused") + counts("unmatched") + counts("dropped");
    let claims = calls.len() as u64;
    speaking(&hosts, 5, async {
        let mut liar = Liar::dial(own(4), place, number, VERSION).await.expect("let in");
        for context in calls {
            let parent = SpanId(context.parent.0 ^ 1);
            let context = Context { parent, settled: true, trace: TraceId(7), ..context };
            liar.say(&[Message::Context(context)]).await.expect("sent");
        }
        // Long enough for pending matches to be given up.
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            liar.say(&[Message::Alive]).await.expect("sent");
        }
    });
    wait("claims about others' calls to be counted", PATIENCE, || {
        (counts("refused") + counts("unmatched") + counts("dropped") >= before + claims).then_some(())
    });
    say(&format!("{:?}", outcomes(&hosts, &agents)));

    let mut spans = as_before(&hosts, &chain, &agents, "last");
    spans.extend(tracer_tests::spans::read(&kept));
    let mut matched = 0;
    for prefix in &prefixes {
        let found = none_wrong(&spans, prefix);
        assert!(found > 0, "{prefix}: nothing was joined while it lied");
        matched += found;
    }
    figure("relay: edges while a peer with the key lied", &format!("{matched} matched, 0 wrong"));
    assert!(spans.iter().all(|span| span.trace != format!("{:032x}", 7)), "a span has the liar's transaction");
    for agent in agents {
        agent.stop();
    }
}
