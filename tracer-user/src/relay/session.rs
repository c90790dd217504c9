//! A session between two agents: greetings, then messages both ways in batches until one of them is silent for long.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::bell::Bell;
use super::channel::{Broken, CONTENT, Channel, End, Link, Reader, Writer};
use super::lookups::{Asker, Home};
use super::message::{CONTEXT_MOST, Context, Decoder, Encoder, Garbage, Hello, Message, VERSION, VERSION_LEAST};
use super::settings::Settings;
use super::{Agent, Received};

/// One summary in so many says when its request was read: clocks drift slowly.
const TIMED: u64 = 16;
/// A side that has nothing to say says so this often: who dialled at moments all its sessions share, so that its thread wakes
/// once for all of them; who was dialled as an answer, in the turn it was woken for.
const ALIVE: Duration = Duration::from_millis(400);
/// Who was dialled says so of itself after so long: the other end may be of a version that has other ways.
const UNASKED: Duration = Duration::from_millis(600);
/// Most messages that are made frames of at once.
const BATCH: usize = 1024;
/// A session is over when the other end was silent for so long.
const SILENCE: Duration = Duration::from_millis(1500);
/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(2);
/// Most messages taken from one agent in a tenth of a second; what is more waits in its socket. Bytes that are no messages
/// for us and frames cost, too.
const RATE: usize = 20_000;
const PERIOD: Duration = Duration::from_millis(100);
/// Bytes that count as a message, and messages a frame counts as beside its own: agents gather what they say.
const BYTES: usize = 64;
const FRAME: usize = 16;
/// Whoever says so much in so many periods one after the other floods: no agent traces that many requests.
const FLOOD: u32 = 10;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The connection, or what came over it.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// It said what no agent says.
    #[error("it sent garbage: {0}")]
    Garbage(#[from] Garbage),
    /// It is this agent.
    #[error("it is this agent itself")]
    Itself,
    /// No version is spoken by both.
    #[error("it speaks version {least} to {version}, this agent {VERSION_LEAST} to {VERSION}")]
    Version {
        /// Least version it understands.
        least: u16,
        /// Newest it speaks.
        version: u16,
    },
    /// It says more than any agent has to say.
    #[error("it floods: more than {RATE} messages in {} ms, {FLOOD} times one after the other", PERIOD.as_millis())]
    Flood,
    /// This agent ends, or hears nothing any more.
    #[error("it is not wanted any more")]
    Over,
}

impl Ended {
    /// Whether it was not an agent with the same key, or a certificate that is taken: such addresses are left alone for a while.
    pub fn is_hostile(&self) -> bool {
        matches!(self, Self::Garbage(_) | Self::Flood | Self::Broken(Broken::Key | Broken::Frame | Broken::Tls(_)))
    }

    /// Whether the other end hung up and did not say why.
    pub fn is_mute(&self) -> bool {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let Self::Broken(Broken::Io(error)) = self else { return false };
        matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
    }
}

/// What a session has moved.
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
    /// Lookups not told in all sessions: not understood there, or nobody there could know by whom they were asked.
    pub untold: Arc<AtomicU64>,
}

/// What an end of a session takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// It was dialled.
    Contexts,
    /// It dialled.
    Summaries,
}

impl Takes {
    /// Whether it takes this one. Those that are for nobody are no error: later versions may say more.
    fn take(self, message: &Message) -> Result<bool, Garbage> {
        match (self, message) {
            (_, Message::Hello(_) | Message::Alive | Message::Forwards) => Ok(false),
            (Self::Contexts, Message::Context(_)) | (Self::Summaries, Message::Summary(_)) => Ok(true),
            (_, Message::Context(_) | Message::Summary(_)) => Err(Garbage::Turn),
        }
    }
}

/// How much the other end says.
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

    /// A frame with so many bytes and messages came; gives how long to wait for the next, `None` when enough is enough.
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

/// A session whose ends know each other.
#[derive(Debug)]
pub struct Session {
    /// The other agent.
    pub agent: Agent,
    /// Addresses its certificate is for.
    pub addresses: Vec<IpAddr>,
    /// Its host forwards packets of others.
    pub forwards: bool,
    /// Where this end of it is, if both are at the ends of one connection.
    pub home: Option<Home>,
    /// Moments at which this end says that it is there are counted from here.
    pub beat: Instant,
    writer: Writer,
    reader: Reader,
    decoder: Decoder,
    encoder: Encoder,
}

impl Session {
    /// Agrees on a session over `stream`, of which this is that `end`.
    pub async fn begin(stream: impl Link, settings: &Settings, end: End<'_>, own: &Agent) -> Result<Self, Ended> {
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
        let greeting = tokio::time::timeout(GREETING, reader.receive()).await.map_err(|_| Broken::Slow)??;
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
        Ok(Self { agent, addresses, forwards, home: None, beat: Instant::now(), writer, reader, decoder, encoder })
    }

    /// Sends what is put into `outbox`, puts what comes into `inbox`; waits where that is full, and so does the
    /// other end. Whoever reads `inbox` and sleeps is woken for contexts.
    pub async fn run(
        self,
        takes: Takes,
        outbox: &mut mpsc::Receiver<Message>,
        (inbox, bell): (&mpsc::Sender<Received>, &Bell),
        traffic: &Traffic,
        heard: impl Fn(&[Message]),
    ) -> Ended {
        let Self { agent, home, beat, writer, reader, decoder, encoder, .. } = self;
        let asked = Notify::new();
        tokio::select! {
            ended = speak(writer, (encoder, home), outbox, (takes, beat, &asked), traffic) => ended,
            ended = listen((takes, &asked), (reader, decoder), agent, (inbox, bell), traffic, heard) => ended,
        }
    }
}

/// When a side that said something last at `spoke` has to say that it is there. The silence of who dialled lasts less than two
/// [`ALIVE`]s.
fn due(takes: Takes, beat: Instant, spoke: Instant) -> Instant {
    match takes {
        Takes::Contexts => spoke + UNASKED,
        Takes::Summaries => {
            let since = spoke.saturating_duration_since(beat).as_nanos();
            let past = Duration::from_nanos((since % ALIVE.as_nanos()) as u64);
            let last = spoke.checked_sub(past).unwrap_or(spoke);
            // What was said in the turn of a common moment was said for all the time up to the next.
            if past < ALIVE / 8 { last + ALIVE } else { last + 2 * ALIVE }
        }
    }
}

async fn speak(
    mut writer: Writer,
    (mut encoder, home): (Encoder, Option<Home>),
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
            // They come in batches already: see `outbox.rs`.
            taken = outbox.recv_many(&mut messages, BATCH) => if taken == 0 { return Ended::Over },
            // What it said lately is answer enough.
            () = asked.notified() => if spoke.elapsed() < ALIVE / 2 { continue } else { messages.push(Message::Alive) },
            () = tokio::time::sleep_until(due(takes, beat, spoke).into()) => messages.push(Message::Alive),
        }
        spoke = Instant::now();
        let (mut said, mut contexts, mut untold) = (0, 0, 0);
        for message in &mut messages {
            if let Message::Summary(summary) = message {
                if !summaries.is_multiple_of(TIMED) {
                    summary.start = 0;
                }
                summaries += 1;
            }
            if let Message::Context(Context { lookup: Some(lookup), .. }) = message {
                *lookup = lookup.from(home);
                if lookup.asker == Asker::Unknown || !encoder.is_understood(message) {
                    untold += 1;
                    continue;
                }
            }
            encoder.put(message, &mut bytes);
            said += u64::from(*message != Message::Alive);
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
        traffic.sent.fetch_add(said, Ordering::Relaxed);
        traffic.contexts.fetch_add(contexts, Ordering::Relaxed);
        traffic.untold.fetch_add(untold, Ordering::Relaxed);
        traffic.bytes.store(writer.bytes, Ordering::Relaxed);
    }
}

async fn listen(
    (takes, asked): (Takes, &Notify),
    (mut reader, mut decoder): (Reader, Decoder),
    agent: Agent,
    (inbox, bell): (&mpsc::Sender<Received>, &Bell),
    traffic: &Traffic,
    heard: impl Fn(&[Message]),
) -> Ended {
    let mut pace = Pace::new(Instant::now());
    // While we have no time nobody is counted as saying much: what it said meanwhile is there at once afterwards.
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
            heard(&messages);
            traffic.received.fetch_add(messages.len() as u64, Ordering::Relaxed);
            let since = Instant::now();
            if inbox.send(Received { from: agent.clone(), messages, stand: None }).await.is_err() {
                return Ended::Over;
            }
            busy += since.elapsed();
            if takes == Takes::Contexts {
                bell.ring();
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
    fn who_floods_is_told_from_who_is_busy() {
        let start = Instant::now();
        // So many frames of so many messages each, a millisecond apart; how many were taken, and how long it waited.
        let said = |frames: u32, bytes: usize, messages: usize| {
            let (mut pace, mut now, mut waited) = (Pace::new(start), start, Duration::ZERO);
            for frame in 0..frames {
                now += Duration::from_millis(1);
                let Some(wait) = pace.take(now, bytes, messages) else { return (frame, waited) };
                waited += wait;
                now += wait;
            }
            (frames, waited)
        };
        assert_eq!(said(5000, 9000, 150), (5000, Duration::ZERO), "150 000 messages a second");
        let (frames, waited) = said(5000, 32_000, 1000);
        assert!(frames < 20 * FLOOD && waited > PERIOD * (FLOOD - 2) / 2, "a million a second: {frames} {waited:?}");
        assert!(said(5000, 32_768, 0).0 < 500, "bytes that say nothing");
        // Busy for half a second and then not: throttled, and no flood.
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
        // One after the other, where nothing else is said; the thread may be late.
        let late = beat + ALIVE + Duration::from_millis(7);
        assert_eq!(due(Takes::Summaries, beat, late), beat + 2 * ALIVE);
    }

    #[test]
    fn each_end_takes_what_is_for_it() {
        let hello = Message::Hello(Hello { version: 1, least: 1, agent: 1, host: "".into() });
        for takes in [Takes::Contexts, Takes::Summaries] {
            assert_eq!((takes.take(&hello), takes.take(&Message::Alive)), (Ok(false), Ok(false)));
        }
        let (key, unit) = (crate::relay::key::Key { opener: 1, accepting: 2, seq: 3 }, crate::model::UnitId(1));
        let (duration, queue, cpu, start, status, error) = (0, 0, 0, 0, 0, false);
        let summary = super::super::message::Summary { key, unit, duration, queue, cpu, start, status, error };
        let summary = Message::Summary(summary);
        assert_eq!(Takes::Summaries.take(&summary), Ok(true));
        assert_eq!(Takes::Contexts.take(&summary), Err(Garbage::Turn));
    }
}
