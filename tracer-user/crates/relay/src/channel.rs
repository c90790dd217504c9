//! A session's byte stream: frames over TCP or another [`Link`]; plain, or encrypted and authenticated by a shared key
//! or by certificates (`tls.rs`).
//!
//! With a shared key every frame is a Noise message (`Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, revision 34): a peer
//! without the key fails at the first frame, each session has its own keys, and frames cannot be replayed. A frame is
//! two bytes of length followed by that many bytes.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use snow::{Builder, TransportState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::settings::Trust;
use super::tls;

/// The Noise protocol name; both ends must use the same.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bound into the handshake by both ends, so that another protocol, or another version of this one, fails at once.
const PROLOGUE: &[u8] = b"tracer relay 1";
/// Longest frame, bytes.
const FRAME: usize = 65_535;
/// Bytes of a frame that are not content: the authentication tag.
const TAG: usize = 16;
/// Most content of a frame, bytes.
pub const CONTENT: usize = 32 * 1024;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// The key all agents share.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The connection failed.
    #[error("{0}")]
    Io(io::Error),
    /// TLS failed: a certificate was not accepted, or the other end is no agent.
    #[error("{0}")]
    Tls(String),
    /// The other end does not have the key, or is no agent.
    #[error("the other end does not have the same key, or is no agent")]
    Key,
    /// The other end hung up before there was a session, and did not say why.
    #[error(
        "the other end hung up before there was a session: it has another key or none, keeps this host out after failed tries, \
         or is no agent"
    )]
    HungUp,
    /// What it sent is no frame.
    #[error("not a frame")]
    Frame,
    /// The handshake took too long.
    #[error("it did not answer in time")]
    Slow,
}

impl Broken {
    /// What a connection that broke before there was a session means.
    pub(super) fn before_a_session(self) -> Self {
        match self {
            Self::Io(error) if is_mute(&error) => Self::HungUp,
            other => other,
        }
    }
}

/// Whether the other end hung up.
pub(super) fn is_mute(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Reports a wrong key to the agent that dialled: sends an empty frame, which is no handshake message, so agents of any
/// version take it for a wrong key. Without it they see only the end of the connection.
async fn refuse(stream: &mut impl Link) -> io::Result<()> {
    stream.write_u16(0).await?;
    stream.shutdown().await
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        tls::advice(&error).map_or(Self::Io(error), Self::Tls)
    }
}

/// Which end of the connection this agent is.
#[derive(Clone, Copy, Debug)]
pub enum SessionEnd<'a> {
    /// This agent dialled this `HOST:PORT`.
    Dialled(&'a str),
    /// This agent was dialled.
    Accepted,
}

/// Both halves of a session.
#[derive(Debug)]
pub struct Channel {
    /// Sends frames.
    pub writer: Writer,
    /// Receives frames.
    pub reader: ChannelReader,
    /// Addresses in the other end's certificate.
    pub addresses: Vec<IpAddr>,
}

type Shared = std::sync::Arc<std::sync::Mutex<TransportState>>;

/// An ordered, reliable byte stream in both directions.
pub trait Link: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + std::fmt::Debug + Send + Unpin + 'static> Link for T {}

trait Reads: AsyncRead + std::fmt::Debug + Send + Unpin {}
impl<T: AsyncRead + std::fmt::Debug + Send + Unpin> Reads for T {}
trait Writes: AsyncWrite + std::fmt::Debug + Send + Unpin {}
impl<T: AsyncWrite + std::fmt::Debug + Send + Unpin> Writes for T {}

/// The sending half.
#[derive(Debug)]
pub struct Writer {
    half: Box<dyn Writes>,
    noise: Option<Shared>,
    frame: Vec<u8>,
    /// Bytes the transport adds to a frame.
    added: u64,
    /// Bytes sent.
    pub bytes: u64,
}

/// The receiving half.
#[derive(Debug)]
pub struct ChannelReader {
    half: Box<dyn Reads>,
    noise: Option<Shared>,
    frame: Vec<u8>,
    content: Vec<u8>,
}

impl Channel {
    /// Performs the handshake with the other end of `stream`.
    pub async fn agree(stream: impl Link, trust: &Trust, end: SessionEnd<'_>) -> Result<Self, Broken> {
        tokio::time::timeout(HANDSHAKE, Self::handshake(stream, trust, end)).await.map_err(|_| Broken::Slow)?
    }

    async fn handshake(mut stream: impl Link, trust: &Trust, end: SessionEnd<'_>) -> Result<Self, Broken> {
        let noise = match trust {
            Trust::Anybody => None,
            Trust::Key(secret) => {
                let dialled = matches!(end, SessionEnd::Dialled(_));
                let agreed = agree_on_keys(&mut stream, secret, dialled).await;
                if !dialled && matches!(agreed, Err(Broken::Key)) {
                    // It may be gone.
                    let _ = refuse(&mut stream).await;
                }
                Some(agreed.map_err(Broken::before_a_session)?)
            }
            Trust::Certificates(identity) => {
                let stream = match end {
                    SessionEnd::Dialled(place) => identity.dialled(stream, place).await?,
                    SessionEnd::Accepted => identity.accepted(stream).await?,
                };
                let addresses = tls::addresses(&stream);
                let (read, write) = tokio::io::split(stream);
                return Ok(Self { addresses, ..Self::of(Box::new(read), Box::new(write), None, tls::RECORD) });
            }
        };
        let (read, write) = tokio::io::split(stream);
        Ok(Self::of(Box::new(BufReader::new(read)), Box::new(write), noise, 0))
    }

    fn of(read: Box<dyn Reads>, write: Box<dyn Writes>, noise: Option<Shared>, added: u64) -> Self {
        Self {
            writer: Writer { half: write, noise: noise.clone(), frame: Vec::new(), added, bytes: 0 },
            reader: ChannelReader { half: read, noise, frame: Vec::new(), content: Vec::new() },
            addresses: Vec::new(),
        }
    }
}

/// The Noise handshake.
async fn agree_on_keys(stream: &mut impl Link, secret: &Secret, dialled: bool) -> Result<Shared, Broken> {
    let pattern = PATTERN.parse().map_err(|_| Broken::Key)?;
    let builder = Builder::new(pattern).prologue(PROLOGUE).and_then(|builder| builder.psk(0, &secret.0));
    let builder = builder.map_err(|_| Broken::Key)?;
    let state = if dialled { builder.build_initiator() } else { builder.build_responder() };
    let mut state = state.map_err(|_| Broken::Key)?;
    let (mut ours, mut content) = ([0; 128], [0; 128]);
    for sends in [dialled, !dialled] {
        if sends {
            let len = state.write_message(&[], &mut ours).map_err(|_| Broken::Key)?;
            stream.write_u16(len as u16).await?;
            stream.write_all(ours.get(..len).unwrap_or_default()).await?;
        } else {
            let len = usize::from(stream.read_u16().await?);
            let mut theirs = [0; 128];
            let theirs = theirs.get_mut(..len).ok_or(Broken::Key)?;
            stream.read_exact(theirs).await?;
            state.read_message(theirs, &mut content).map_err(|_| Broken::Key)?;
        }
    }
    let state = state.into_transport_mode().map_err(|_| Broken::Key)?;
    Ok(Shared::new(std::sync::Mutex::new(state)))
}

impl Writer {
    /// Sends `content`, at most [`CONTENT`] bytes, as one frame.
    pub async fn send(&mut self, content: &[u8]) -> Result<(), Broken> {
        self.frame.clear();
        match &self.noise {
            None => {
                self.frame.extend((content.len() as u16).to_be_bytes());
                self.frame.extend(content);
            }
            Some(noise) => {
                self.frame.resize(2 + content.len() + TAG, 0);
                let (head, body) = self.frame.split_at_mut(2);
                let mut noise = noise.lock().map_err(|_| Broken::Key)?;
                let len = noise.write_message(content, body).map_err(|_| Broken::Frame)?;
                head.copy_from_slice(&(len as u16).to_be_bytes());
            }
        }
        self.half.write_all(&self.frame).await?;
        // TLS may have buffered part of the frame.
        self.half.flush().await?;
        self.bytes += self.frame.len() as u64 + self.added;
        Ok(())
    }
}

impl ChannelReader {
    /// The content of the next frame. Not cancel-safe.
    pub async fn receive(&mut self) -> Result<&[u8], Broken> {
        let len = usize::from(self.half.read_u16().await?);
        if len > FRAME.min(CONTENT + TAG) {
            return Err(Broken::Frame);
        }
        self.frame.resize(len, 0);
        self.half.read_exact(&mut self.frame).await?;
        let Some(noise) = &self.noise else { return Ok(&self.frame) };
        self.content.resize(len, 0);
        let mut noise = noise.lock().map_err(|_| Broken::Key)?;
        let len = noise.read_message(&self.frame, &mut self.content).map_err(|_| Broken::Key)?;
        Ok(self.content.get(..len).unwrap_or_default())
    }
}
