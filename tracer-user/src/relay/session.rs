//! A session between two agents: greetings, then messages both ways in batches until one of them is silent for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::channel::{Broken, CONTENT, Channel, Reader, Secret, Writer};
use super::hold::Hold;
use super::message::{Decoder, Encoder, Garbage, Hello, Message, VERSION, VERSION_LEAST};
use super::{Agent, Received};

/// How long a message waits for others to go with it: a frame has 18 bytes of its own and costs a wake-up at each end.
const GATHER: Duration = Duration::from_millis(2);
/// One summary in so many says when its request was read: clocks drift slowly.
const TIMED: u64 = 16;
/// A side that has nothing to say says so this often.
const ALIVE: Duration = Duration::from_millis(400);
/// A session is over when the other end was silent for so long.
const SILENCE: Duration = Duration::from_millis(1500);
/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(2);
/// Most messages taken from one agent in a tenth of a second; what is more waits in its socket.
const RATE: usize = 20_000;
const PERIOD: Duration = Duration::from_millis(100);

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
    /// This agent ends, or hears nothing any more.
    #[error("it is not wanted any more")]
    Over,
}

impl Ended {
    /// Whether it was not an agent with the same key: such addresses are left alone for a while.
    pub fn is_hostile(&self) -> bool {
        matches!(self, Self::Garbage(_) | Self::Broken(Broken::Key | Broken::Frame))
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
}

/// A session whose ends know each other.
#[derive(Debug)]
pub struct Session {
    /// The other agent.
    pub agent: Agent,
    writer: Writer,
    reader: Reader,
    decoder: Decoder,
    encoder: Encoder,
}

impl Session {
    /// Agrees on a session over `stream`, which this end `opened` or accepted.
    pub async fn begin(stream: TcpStream, secret: Option<&Secret>, opened: bool, own: &Agent) -> Result<Self, Ended> {
        let Channel { mut writer, mut reader } = Channel::agree(stream, secret, opened).await?;
        let mut encoder = Encoder::default();
        let mut bytes = Vec::new();
        let (agent, host) = (own.number, Arc::clone(&own.host));
        encoder.put(&Message::Hello(Hello { version: VERSION, least: VERSION_LEAST, agent, host }), &mut bytes);
        writer.send(&bytes).await?;
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        let greeting = tokio::time::timeout(GREETING, reader.receive()).await.map_err(|_| Broken::Slow)??;
        decoder.read(greeting, &mut found)?;
        let Some(Message::Hello(hello)) = found.into_iter().next() else { return Err(Garbage::Magic.into()) };
        if hello.agent == own.number {
            return Err(Ended::Itself);
        }
        if hello.version.min(VERSION) < hello.least.max(VERSION_LEAST) {
            return Err(Ended::Version { least: hello.least, version: hello.version });
        }
        let agent = Agent { number: hello.agent, host: hello.host };
        Ok(Self { agent, writer, reader, decoder, encoder })
    }

    /// Sends what is put into `outbox`, puts what comes into `inbox`; waits where that is full, and so does the other end.
    pub async fn run(
        self,
        outbox: &mut mpsc::Receiver<Message>,
        inbox: &mpsc::Sender<Received>,
        traffic: &Traffic,
        heard: impl Fn(&[Message]),
    ) -> Ended {
        let Self { agent, writer, reader, decoder, encoder } = self;
        tokio::select! {
            ended = speak(writer, encoder, outbox, traffic) => ended,
            ended = listen(reader, decoder, agent, inbox, traffic, heard) => ended,
        }
    }
}

async fn speak(
    mut writer: Writer,
    mut encoder: Encoder,
    outbox: &mut mpsc::Receiver<Message>,
    traffic: &Traffic,
) -> Ended {
    let (mut messages, mut bytes) = (Vec::new(), Vec::new());
    let (mut hold, mut summaries) = (Hold::default(), 0u64);
    loop {
        messages.clear();
        let patience = hold.due().map_or(ALIVE, |due| due.saturating_duration_since(Instant::now()).min(ALIVE));
        let idle = match tokio::time::timeout(patience, outbox.recv_many(&mut messages, 256)).await {
            Err(_) => patience == ALIVE,
            Ok(0) => return Ended::Over,
            Ok(_) => {
                tokio::time::sleep(GATHER).await;
                while messages.len() < 4096
                    && let Ok(message) = outbox.try_recv()
                {
                    messages.push(message);
                }
                false
            }
        };
        hold.pass(Instant::now(), &mut messages);
        if idle && messages.is_empty() {
            messages.push(Message::Alive);
        }
        let (mut said, mut contexts) = (0, 0);
        for message in &mut messages {
            if let Message::Summary(summary) = message {
                if summaries % TIMED != 0 {
                    summary.start = 0;
                }
                summaries += 1;
            }
            encoder.put(message, &mut bytes);
            said += u64::from(*message != Message::Alive);
            contexts += u64::from(matches!(message, Message::Context(_)));
            // A message and the names before it are shorter than a thousand bytes.
            if bytes.len() > CONTENT - 1024 {
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
        traffic.bytes.store(writer.bytes, Ordering::Relaxed);
    }
}

async fn listen(
    mut reader: Reader,
    mut decoder: Decoder,
    agent: Agent,
    inbox: &mpsc::Sender<Received>,
    traffic: &Traffic,
    heard: impl Fn(&[Message]),
) -> Ended {
    let (mut period, mut taken) = (Instant::now(), 0);
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
        messages.retain(|message| matches!(message, Message::Context(_) | Message::Summary(_)));
        if messages.is_empty() {
            continue;
        }
        heard(&messages);
        taken += messages.len();
        traffic.received.fetch_add(messages.len() as u64, Ordering::Relaxed);
        if inbox.send(Received { from: agent.clone(), messages }).await.is_err() {
            return Ended::Over;
        }
        if period.elapsed() > PERIOD {
            (period, taken) = (Instant::now(), 0);
        } else if taken > RATE {
            tokio::time::sleep(PERIOD).await;
        }
    }
}
