//! Sessions through a NATS server, for networks where agents reach the server but not each other.
//!
//! Each agent subscribes to a subject for every address of its host and one for the host's name. An agent that opens a
//! session publishes to that subject the inbox it listens at, and gets another inbox in reply; what both then publish
//! to the other's inbox, numbered, is the byte stream of the session. Handshake, encryption and authentication are end
//! to end as over TCP, so the server only sees which agents communicate and how much. A message the server loses ends the
//! session, which is then opened again.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, Message, RequestErrorKind, ServerAddr, Subject, Subscriber};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::SelectAll;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::addresses;

/// Prefix of the subjects; the number is the version of this scheme.
const SUBJECTS: &str = "tracer.relay.1";
/// Prefix of the sessions' subjects, as the library makes them. Peers cannot make this agent publish anywhere else.
const INBOX: &str = "_INBOX.";
/// Most bytes of a message, not counting its number; also the buffer between a session and the server.
const CHUNK: usize = 32 * 1024;
/// Most messages queued for a session; more are lost, and the session ends.
const WAITING: usize = 64;
/// Most messages queued while the server is away.
const QUEUE: usize = 256;
/// Waits between attempts to reach the server: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How often the host's addresses are read again.
const LOOK: Duration = Duration::from_secs(10);
/// Most subjects subscribed to.
const SUBJECTS_MOST: usize = 256;

/// The connection to the server.
#[derive(Clone, Debug)]
pub struct Nats {
    client: Client,
    /// The server's address without user and password.
    server: String,
}

impl Nats {
    /// Starts to connect and retries for ever; fails only on a malformed address.
    pub async fn connect(url: &str) -> io::Result<Self> {
        let server = shown(url);
        let (named, logged) = (server.clone(), Arc::new(Mutex::new(String::new())));
        let place: ServerAddr = url.parse().map_err(|error| {
            io::Error::other(format!("NATS server {server}: {error}; expected nats://HOST:4222 or tls://HOST:4222"))
        })?;
        let options = ConnectOptions::new()
            .name("tracer")
            .retry_on_initial_connect()
            .ignore_discovered_servers()
            .max_reconnects(None)
            .connection_timeout(Duration::from_secs(2))
            .ping_interval(Duration::from_secs(2))
            .subscription_capacity(WAITING)
            .client_capacity(QUEUE)
            .reconnect_delay_callback(|tries| {
                (FIRST_WAIT * 2u32.saturating_pow(tries.min(16) as u32)).min(LONGEST_WAIT)
            })
            .event_callback(move |event| {
                // Log a repeated error once. A slow consumer ends its session anyway.
                let text = event.to_string();
                let mut last = logged.lock().unwrap_or_else(PoisonError::into_inner);
                if *last != text && !matches!(event, Event::SlowConsumer(_)) {
                    let level = if event == Event::Connected { log::Level::Info } else { log::Level::Warn };
                    log::log!(level, "relay: NATS server {named}: {text}");
                    *last = text;
                }
                std::future::ready(())
            });
        let plain = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let options = match (place.username(), place.password()) {
            (Some(user), Some(password)) => options.user_and_password(plain(user), plain(password)),
            (Some(token), None) => options.token(plain(token)),
            (None, _) => options,
        };
        let client =
            options.connect(place).await.map_err(|error| io::Error::other(format!("NATS server {server}: {error}")))?;
        Ok(Self { client, server })
    }

    /// Opens a stream to the agent of the host in `place` (`HOST:PORT`).
    pub(super) async fn dial(&self, place: &str) -> io::Result<DuplexStream> {
        if self.client.connection_state() != State::Connected {
            return Err(io::Error::other(format!("the NATS server {} is not reached", self.server)));
        }
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let inbox = self.client.new_inbox();
        let subscription = self.client.subscribe(inbox.clone()).await.map_err(io::Error::other)?;
        let reply = self.client.request(subject(host), Bytes::from(inbox)).await.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => io::Error::other(format!(
                "no agent of {host} is at the NATS server {}; agents are there by their hosts' own addresses and names",
                self.server
            )),
            _ => io::Error::other(format!("NATS server {}: {error}", self.server)),
        })?;
        let to = inbox_of(&reply.payload).ok_or_else(|| io::Error::other("not an agent's answer"))?;
        Ok(self.tunnel(to, subscription))
    }

    /// Yields a stream for each agent that asks for this host, for ever.
    pub(super) async fn listen(&self, host: &str, found: mpsc::Sender<DuplexStream>) -> io::Result<()> {
        let mut subjects = HashSet::new();
        let mut asked: SelectAll<Subscriber> = SelectAll::new();
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    let addresses = addresses::own().into_iter().filter(is_announced).map(|address| address.to_string());
                    for name in addresses.chain([host.to_owned()]) {
                        let subject = subject(&name);
                        if subjects.len() < SUBJECTS_MOST && !subjects.contains(&subject) {
                            asked.push(self.client.subscribe(subject.clone()).await.map_err(io::Error::other)?);
                            subjects.insert(subject);
                        }
                    }
                }
                Some(ask) = asked.next() => {
                    let Message { reply: Some(reply), payload, .. } = ask else { continue };
                    let Some(to) = inbox_of(&payload).filter(|_| inbox_of(reply.as_bytes()).is_some()) else { continue };
                    let Ok(place) = found.try_reserve() else { continue };
                    let inbox = self.client.new_inbox();
                    // Subscribe before publishing the inbox: the server handles both in order.
                    let subscription = self.client.subscribe(inbox.clone()).await.map_err(io::Error::other)?;
                    self.client.publish(reply, Bytes::from(inbox)).await.map_err(io::Error::other)?;
                    place.send(self.tunnel(to, subscription));
                }
            }
        }
    }

    /// The server's address, as shown with peers.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// A byte stream to and from an inbox.
    fn tunnel(&self, to: Subject, subscription: Subscriber) -> DuplexStream {
        let (near, far) = tokio::io::duplex(CHUNK);
        tokio::spawn(pump(self.client.clone(), to, subscription, far));
        near
    }
}

/// Copies bytes until either side ends.
async fn pump(client: Client, to: Subject, mut subscription: Subscriber, stream: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut sent = 0u32;
    let speak = async {
        loop {
            let mut message = BytesMut::with_capacity(4 + CHUNK);
            message.put_u32(sent);
            match read.read_buf(&mut message).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if client.publish(to.clone(), message.freeze()).await.is_err() {
                return;
            }
            sent = sent.wrapping_add(1);
        }
    };
    let listen = async {
        let mut expected = 0u32;
        while let Some(message) = subscription.next().await {
            // An empty payload means that the other end hung up; a wrong number means that a message was lost.
            let Some((number, bytes)) = message.payload.split_first_chunk() else { return };
            if u32::from_be_bytes(*number) != expected || bytes.is_empty() || write.write_all(bytes).await.is_err() {
                return;
            }
            expected = expected.wrapping_add(1);
        }
    };
    tokio::select! {
        () = speak => {}
        () = listen => {}
    }
    // Tell the other end at once, so that it need not time out.
    let _ = client.publish(to, Bytes::new()).await;
}

/// Whether other agents may ask for this address: it must be unique to this host.
fn is_announced(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_unspecified() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unspecified() && !v6.is_unicast_link_local(),
    }
}

/// The subject for a host's name or address.
fn subject(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c.to_ascii_lowercase() } else { '_' };
    format!("{SUBJECTS}.{}", host.chars().take(253).map(plain).collect::<String>())
}

/// An inbox received from a peer, if it is well-formed.
fn inbox_of(bytes: &[u8]) -> Option<Subject> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= 128)?;
    let rest = text.strip_prefix(INBOX)?;
    let words = rest.split('.').all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    words.then(|| Subject::from(text))
}

/// A server's address without user and password.
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{place}"),
        (None, Some((_, place))) => place.to_owned(),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_one_word_of_a_host() {
        for (host, expected) in [
            ("10.0.0.5", "tracer.relay.1.10_0_0_5"),
            ("[fd00::5]", "tracer.relay.1.fd00__5"),
            ("DB1.internal", "tracer.relay.1.db1_internal"),
            ("a.>.*  \r\nPUB x", "tracer.relay.1.a________pub_x"),
        ] {
            assert_eq!(subject(host), expected);
        }
    }

    #[test]
    fn nothing_but_inboxes_is_published_to() {
        for (text, good) in [
            ("_INBOX.abc123.0", true),
            ("_INBOX.", false),
            ("_INBOX.a..b", false),
            ("_INBOX.a.>", false),
            ("_INBOX.a b", false),
            ("orders.new", false),
            ("$SYS.REQ.SERVER.PING", false),
        ] {
            assert_eq!(inbox_of(text.as_bytes()).is_some(), good, "{text}");
        }
        assert!(
            inbox_of(&[0xff, 0xfe]).is_none() && inbox_of(format!("_INBOX.{}", "a".repeat(200)).as_bytes()).is_none()
        );
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, expected) in [
            ("nats://me:secret@bus:4222", "nats://bus:4222"),
            ("nats://bus:4222", "nats://bus:4222"),
            ("me:secret@bus", "bus"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
