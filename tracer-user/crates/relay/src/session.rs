//! A session between two agents: greetings, then batches of messages both ways until one end is silent for too long.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tracer_host::guard::wakeup_fd::WakeupFd;

use super::channel::{Broken, CONTENT, Channel, ChannelReader, Link, SessionEnd, Writer, is_mute};
use super::message::{CONTEXT_MOST, Decoder, Encoder, Garbage, Hello, Message, VERSION, VERSION_LEAST};
use super::settings::Settings;
use super::{Agent, Received};

/// One summary in this many carries the time its request was read: clocks drift slowly.
const TIMED: u64 = 16;
/// How often an idle side sends a keep-alive. The dialling side does so at moments that all its sessions share, so that
/// its thread wakes once for all of them; the dialled side does so in answer, in the iteration that woke it.
const ALIVE: Duration = Duration::from_millis(400);
/// After how long the dialled side sends a keep-alive of its own accord: the other end may be of a version with other
/// timing.
const UNASKED: Duration = Duration::from_millis(600);
/// Most messages encoded at once.
const BATCH: usize = 1024;
/// The session ends when the other end has been silent this long.
const SILENCE: Duration = Duration::from_millis(1500);
/// Timeout for the greeting.
const GREETING: Duration = Duration::from_secs(2);
/// Most messages taken from one agent per tenth of a second; more wait in its socket. Frames, and bytes that hold no
/// messages for this end, count too because they cost CPU.
const RATE: usize = 20_000;
const PERIOD: Duration = Duration::from_millis(100);
/// Bytes that count as one message, and messages that a frame adds to its own: agents batch their messages.
const BYTES: usize = 64;
const FRAME: usize = 16;
/// An agent that exceeds the rate in this many consecutive periods floods: no agent traces that many requests.
const FLOOD: u32 = 10;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection or its framing failed.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// It sent what no agent sends.
    #[error("it sent garbage: {0}")]
    Garbage(#[from] Garbage),
    /// The other end is this agent.
    #[error("it is this agent itself")]
    Itself,
    /// The two agents have no version in common.
    #[error("it speaks version {least} to {version}, this agent {VERSION_LEAST} to {VERSION}")]
    Version {
        /// Oldest version it understands.
        least: u16,
        /// Newest version it speaks.
        version: u16,
    },
    /// It sends more than any agent needs to.
    #[error("it floods: more than {RATE} messages in {} ms, {FLOOD} times one after the other", PERIOD.as_millis())]
    Flood,
    /// This agent ends, or its pipeline stopped reading.
    #[error("it is not wanted any more")]
    Over,
}

impl Ended {
    /// Whether the peer was no agent with the same key or an accepted certificate: its address is banned for a while.
    pub fn is_hostile(&self) -> bool {
        matches!(self, Self::Garbage(_) | Self::Flood | Self::Broken(Broken::Key | Broken::Frame | Broken::Tls(_)))
    }

    /// Whether the other end hung up without saying why.
    pub fn is_mute(&self) -> bool {
        match self {
            Self::Broken(Broken::Io(error)) => is_mute(error),
            Self::Broken(Broken::HungUp) => true,
            _ => false,
        }
    }

    /// Whether the other end is there and reported, or showed, why there is no session.
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Broken(Broken::Io(_) | Broken::Slow | Broken::HungUp) | Self::Over | Self::Itself)
    }
}

/// A session's traffic.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes sent, frames and encryption included.
    pub bytes: AtomicU64,
    /// Contexts and summaries sent.
    pub sent: AtomicU64,
    /// Contexts and summaries received.
    pub received: AtomicU64,
    /// Contexts sent in all sessions.
    pub contexts: Arc<AtomicU64>,
    /// Contexts ignored in all sessions; see [`Decoder::take_ignored`].
    pub refused: Arc<AtomicU64>,
}

/// What this end of a session takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It was dialled and takes contexts.
    Contexts,
    /// It dialled and takes summaries.
    Summaries,
}

impl Takes {
    /// Whether this end takes the message. Messages for neither end are no error: later versions may add some.
    fn take(self, message: &Message) -> Result<bool, Garbage> {
        match (self, message) {
            (_, Message::Hello(_) | Message::Alive | Message::Forwards) => Ok(false),
            (Self::Contexts, Message::Context(_)) | (Self::Summaries, Message::Summary(_)) => Ok(true),
            (_, Message::Context(_) | Message::Summary(_)) => Err(Garbage::Turn),
        }
    }
}

/// Rate limiter for the other end.
#[derive(Debug)]
struct Pace {
    since: Instant,
    taken: usize,
    full: u32,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { since: now, taken: 0, full: 0 }
    }

    /// Counts a frame of `bytes` and `messages`; returns how long to wait before the next, `None` for a flood.
    fn take(&mut self, now: Instant, bytes: usize, messages: usize) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.since);
        if passed >= PERIOD {
            self.full = if self.taken > RATE && passed < 2 * PERIOD { self.full } else { 0 };
            (self.since, self.taken) = (now, 0);
        }
        let before = self.taken;
        self.taken += FRAME + messages.max(bytes / BYTES);
        if self.taken <= RATE {
            return Some(Duration::ZERO);
        }
        if before <= RATE {
            self.full += 1;
        }
        let left = PERIOD.saturating_sub(now.saturating_duration_since(self.since));
        (self.full < FLOOD).then_some(left)
    }
}

/// A session after its greeting.
#[derive(Debug)]
pub struct Session {
    /// The other agent.
    pub agent: Agent,
    /// Addresses in its certificate.
    pub addresses: Vec<IpAddr>,
    /// Its host forwards packets of other hosts.
    pub forwards: bool,
    /// Origin of the shared keep-alive moments.
    pub beat: Instant,
    writer: Writer,
    reader: ChannelReader,
    decoder: Decoder,
    encoder: Encoder,
}

impl Session {
    /// Opens a session over `stream`, where this agent is `end`.
    pub async fn begin(
        stream: impl Link,
        settings: &Settings,
        end: SessionEnd<'_>,
        own: &Agent,
    ) -> Result<Self, Ended> {
        let (trust, mut bytes) = (&settings.trust, Vec::new());
        let Channel { mut writer, mut reader, addresses } = Channel::agree(stream, trust, end).await?;
        let mut encoder = Encoder::default();
        let (agent, host) = (own.number, Arc::clone(&own.host));
        encoder.put(&Message::Hello(Hello { version: VERSION, least: VERSION_LEAST, agent, host }), &mut bytes);
        if settings.forwards {
            encoder.put(&Message::Forwards, &mut bytes);
        }
        writer.send(&bytes).await?;
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        let greeting = tokio::time::timeout(GREETING, reader.receive()).await.map_err(|_| Broken::Slow)?;
        let greeting = greeting.map_err(Broken::before_a_session)?;
        if greeting.is_empty() {
            // No greeting is: it wants a key.
            return Err(Broken::Key.into());
        }
        decoder.read(greeting, &mut found)?;
        let forwards = found.contains(&Message::Forwards);
        let Some(Message::Hello(hello)) = found.into_iter().next() else { return Err(Garbage::Magic.into()) };
        if hello.agent == own.number {
            return Err(Ended::Itself);
        }
        if hello.version.min(VERSION) < hello.least.max(VERSION_LEAST) {
            return Err(Ended::Version { least: hello.least, version: hello.version });
        }
        encoder.speak(hello.version.min(VERSION));
        let agent = Agent { number: hello.agent, host: hello.host };
        Ok(Self { agent, addresses, forwards, beat: Instant::now(), writer, reader, decoder, encoder })
    }

    /// Sends the messages of `outbox` and puts received ones into `inbox`; waits while `inbox` is full, and so does the
    /// other end. Wakes the reader of `inbox` for contexts.
    pub async fn run(
        self,
        takes: Takes,
        outbox: &mut mpsc::Receiver<Message>,
        (inbox, wakeup): (&mpsc::Sender<Received>, &WakeupFd),
        traffic: &Traffic,
        on_messages: impl Fn(&[Message]),
    ) -> Ended {
        let Self { agent, beat, writer, reader, decoder, encoder, .. } = self;
        let asked = Notify::new();
        tokio::select! {
            ended = speak(writer, encoder, outbox, (takes, beat, &asked), traffic) => ended,
            ended = listen((takes, &asked), (reader, decoder), agent, (inbox, wakeup), traffic, on_messages) => ended,
        }
    }
}

/// When a side that last sent at `spoke` must send a keep-alive. The dialling side is silent for less than two
/// [`ALIVE`]s.
fn due(takes: Takes, beat: Instant, spoke: Instant) -> Instant {
    match takes {
        Takes::Contexts => spoke + UNASKED,
        Takes::Summaries => {
            let since = spoke.saturating_duration_since(beat).as_nanos();
            let past = Duration::from_nanos((since % ALIVE.as_nanos()) as u64);
            let last = spoke.checked_sub(past).unwrap_or(spoke);
            // A message sent right at a shared moment counts for all the time up to the next.
            if past < ALIVE / 8 { last + ALIVE } else { last + 2 * ALIVE }
        }
    }
}

async fn speak(
    mut writer: Writer,
    mut encoder: Encoder,
    outbox: &mut mpsc::Receiver<Message>,
    (takes, beat, asked): (Takes, Instant, &Notify),
    traffic: &Traffic,
) -> Ended {
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    let mut summaries = 0u64;
    let mut spoke = Instant::now();
    loop {
        messages.clear();
        tokio::select! {
            biased;
            // They come in batches already; see `outbox.rs`.
            taken = outbox.recv_many(&mut messages, BATCH) => if taken == 0 { return Ended::Over },
            // A recent message is answer enough.
            () = asked.notified() => if spoke.elapsed() < ALIVE / 2 { continue } else { messages.push(Message::Alive) },
            () = tokio::time::sleep_until(due(takes, beat, spoke).into()) => messages.push(Message::Alive),
        }
        spoke = Instant::now();
        let (mut sent, mut contexts) = (0, 0);
        for message in &mut messages {
            if let Message::Summary(summary) = message {
                if !summaries.is_multiple_of(TIMED) {
                    summary.start = 0;
                }
                summaries += 1;
            }
            encoder.put(message, &mut bytes);
            sent += u64::from(*message != Message::Alive);
            contexts += u64::from(matches!(message, Message::Context(_)));
            if bytes.len() > CONTENT - CONTEXT_MOST {
                if let Err(why) = writer.send(&bytes).await {
                    return why.into();
                }
                bytes.clear();
            }
        }
        if !bytes.is_empty() {
            if let Err(why) = writer.send(&bytes).await {
                return why.into();
            }
            bytes.clear();
        }
        traffic.sent.fetch_add(sent, Ordering::Relaxed);
        traffic.contexts.fetch_add(contexts, Ordering::Relaxed);
        traffic.bytes.store(writer.bytes, Ordering::Relaxed);
    }
}

async fn listen(
    (takes, asked): (Takes, &Notify),
    (mut reader, mut decoder): (ChannelReader, Decoder),
    agent: Agent,
    (inbox, wakeup): (&mpsc::Sender<Received>, &WakeupFd),
    traffic: &Traffic,
    on_messages: impl Fn(&[Message]),
) -> Ended {
    let mut pace = Pace::new(Instant::now());
    // Time this end was too busy to read does not count towards the rate: what queued up meanwhile arrives at once.
    let mut busy = Duration::ZERO;
    loop {
        let mut messages = Vec::new();
        let content = match tokio::time::timeout(SILENCE, reader.receive()).await {
            Err(_) => return Broken::Slow.into(),
            Ok(Err(why)) => return why.into(),
            Ok(Ok(content)) => content,
        };
        if let Err(garbage) = decoder.read(content, &mut messages) {
            return garbage.into();
        }
        traffic.refused.fetch_add(decoder.take_ignored(), Ordering::Relaxed);
        if takes == Takes::Contexts && messages.contains(&Message::Alive) {
            asked.notify_one();
        }
        let now = Instant::now().checked_sub(busy).unwrap_or_else(Instant::now);
        let Some(wait) = pace.take(now, content.len(), messages.len()) else { return Ended::Flood };
        let mut wrong = None;
        messages.retain(|message| takes.take(message).unwrap_or_else(|garbage| wrong.replace(garbage).is_some()));
        if let Some(garbage) = wrong {
            return garbage.into();
        }
        if !messages.is_empty() {
            on_messages(&messages);
            traffic.received.fetch_add(messages.len() as u64, Ordering::Relaxed);
            let since = Instant::now();
            if inbox.send(Received { from: agent.clone(), messages, session: None }).await.is_err() {
                return Ended::Over;
            }
            busy += since.elapsed();
            if takes == Takes::Contexts {
                wakeup.wake();
            }
        }
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_are_distinguished_from_busy_agents() {
        let start = Instant::now();
        // This many frames of this many messages each, a millisecond apart; returns how many were taken, and the total
        // wait.
        let taken = |frames: u32, bytes: usize, messages: usize| {
            let (mut pace, mut now, mut waited) = (Pace::new(start), start, Duration::ZERO);
            for frame in 0..frames {
                now += Duration::from_millis(1);
                let Some(wait) = pace.take(now, bytes, messages) else { return (frame, waited) };
                waited += wait;
                now += wait;
            }
            (frames, waited)
        };
        assert_eq!(taken(5000, 9000, 150), (5000, Duration::ZERO), "150 000 messages a second");
        let (frames, waited) = taken(5000, 32_000, 1000);
        assert!(frames < 20 * FLOOD && waited > PERIOD * (FLOOD - 2) / 2, "a million a second: {frames} {waited:?}");
        assert!(taken(5000, 32_768, 0).0 < 500, "bytes that say nothing");
        // A reader that is busy for half a second now and then: throttled, but no flood.
        let (mut pace, mut now, mut waited) = (Pace::new(start), start, Duration::ZERO);
        for second in 0..20u64 {
            now = now.max(start + Duration::from_secs(second));
            for _ in 0..100 {
                let wait = pace.take(now, 32_000, 1000).expect("no flood");
                (now, waited) = (now + wait, waited + wait);
            }
        }
        assert!(waited > Duration::from_secs(1), "{waited:?}");
    }

    #[test]
    fn who_dialled_says_that_it_is_there_at_common_moments() {
        let beat = Instant::now();
        for spoke in (0..2000u32).map(|ms| beat + Duration::from_millis(1) * ms) {
            let at = due(Takes::Summaries, beat, spoke);
            let wait = at.saturating_duration_since(spoke);
            assert!(wait > ALIVE / 2 && wait < 2 * ALIVE, "{wait:?}");
            assert_eq!((at - beat).as_nanos() % ALIVE.as_nanos(), 0);
            assert_eq!(due(Takes::Contexts, beat, spoke), spoke + UNASKED);
        }
        // One after the other if nothing else is sent; the thread may be late.
        let late = beat + ALIVE + Duration::from_millis(7);
        assert_eq!(due(Takes::Summaries, beat, late), beat + 2 * ALIVE);
    }

    #[test]
    fn each_end_takes_what_is_for_it() {
        let hello = Message::Hello(Hello { version: 1, least: 1, agent: 1, host: "".into() });
        for takes in [Takes::Contexts, Takes::Summaries] {
            assert_eq!((takes.take(&hello), takes.take(&Message::Alive)), (Ok(false), Ok(false)));
        }
        let (key, span) = (crate::key::RequestKey { opener: 1, accepting: 2, seq: 3 }, tracer_model::SpanId(1));
        let (duration, queue, cpu, start, status, error) = (0, 0, 0, 0, 0, false);
        let summary = super::super::message::Summary { key, span, duration, queue, cpu, start, status, error };
        let summary = Message::Summary(summary);
        assert_eq!(Takes::Summaries.take(&summary), Ok(true));
        assert_eq!(Takes::Contexts.take(&summary), Err(Garbage::Turn));
    }
}
