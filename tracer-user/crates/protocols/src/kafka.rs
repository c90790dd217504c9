//! Kafka's protocol (its protocol guide, "Kafka protocol guide"; flexible versions by KIP-482).
//!
//! A span is a request with its reply, paired by the correlation id. Of requests the API and the first topic are read,
//! of replies the first error, of records the `traceparent` in their headers; keys, values and credentials are skipped
//! unread.
//!
//! A small hand-written reader: libraries for the full protocol need whole messages, of which only the first bytes are
//! captured.

mod names;
mod read;
mod records;
mod replies;
mod requests;

use std::sync::{Arc, LazyLock};

use tracer_model::ProtocolId;

use self::read::KafkaReader;
use self::requests::{Subject, has_topics, subject};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::sql::{dotted, shared};
use super::{Detected, ExpectedReply, Protocol, Reply, Request, Settings};

/// APIs that are read beyond their header.
const PRODUCE: i16 = 0;
const FETCH: i16 = 1;
const LIST_OFFSETS: i16 = 2;
const METADATA: i16 = 3;
const OFFSET_COMMIT: i16 = 8;
const SASL_HANDSHAKE: i16 = 17;
const API_VERSIONS: i16 = 18;
const CREATE_TOPICS: i16 = 19;
const DELETE_TOPICS: i16 = 20;

/// Bytes of the length field, which it does not count.
const LENGTH: usize = 4;
/// Longest message: twice the brokers' default limits for requests (`socket.request.max.bytes`) and for fetches
/// (`fetch.max.bytes`).
const MESSAGE_LIMIT: i32 = 200 << 20;
/// Bytes of a message that are read.
const LOOK: usize = 1024;
/// The same for a message with records: as many as two operations can carry.
const LOOK_RECORDS: usize = 2 * tracer_common::limits::HEAD_REQUEST as usize;
/// Longest client id accepted when searching for the beginning of a request.
const CLIENT: usize = 200;
/// Highest API version accepted in such a search.
const VERSION: i16 = 30;

/// The destination of requests that name none.
static NOWHERE: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(""));

/// The protocol.
#[derive(Debug)]
pub struct Kafka;

impl Protocol for Kafka {
    fn id(&self) -> ProtocolId {
        ProtocolId::Kafka
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        // Replies have no distinctive bytes.
        match likely(bytes) {
            Some(true) => Detected::Request,
            Some(false) => Detected::No,
            None => Detected::NeedMore,
        }
    }

    fn framed(&self, _: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Calls::default()))
    }
}

fn long(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..)?.first_chunk().map(|four| i32::from_be_bytes(*four))
}

fn short(bytes: &[u8], at: usize) -> Option<i16> {
    bytes.get(at..)?.first_chunk().map(|two| i16::from_be_bytes(*two))
}

/// A request's header, in the form all versions share.
#[derive(Clone, Copy, Debug)]
struct KafkaHeader {
    api: i16,
    version: i16,
    correlation: i32,
}

impl KafkaHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            api: short(bytes, LENGTH)?,
            version: short(bytes, LENGTH + 2)?,
            correlation: long(bytes, LENGTH + 4)?,
        })
    }

    /// The bytes after the header of the request at the front of `bytes`.
    fn body(self, bytes: &[u8]) -> Option<KafkaReader<'_>> {
        // The client id is never compact.
        let client = usize::try_from(short(bytes, LENGTH + 8)?).unwrap_or_default();
        let mut body = KafkaReader::new(bytes.get(LENGTH + 10 + client..)?, names::is_flexible(self.api, self.version));
        body.tags()?;
        Some(body)
    }
}

/// Length of the message that begins here, including the length field; `None`: not a message, or incomplete.
fn length(bytes: &[u8], least: i32) -> Option<u64> {
    let len = long(bytes, 0).filter(|len| (least..=MESSAGE_LIMIT).contains(len))?;
    u64::try_from(len).ok().map(|len| len + LENGTH as u64)
}

/// Whether a request begins here, by its available bytes; `None` if more are needed.
fn likely(bytes: &[u8]) -> Option<bool> {
    if bytes.first().is_some_and(|first| *first > 0x0c) {
        return Some(false);
    }
    let Some(len) = length(bytes, 10) else { return (bytes.len() >= LENGTH).then_some(false) };
    let rest = bytes.get(LENGTH..bytes.len().min(len as usize)).unwrap_or_default();
    let api = short(rest, 0)?;
    if !names::is_known(api) {
        return Some(false);
    }
    let version = short(rest, 2)?;
    if !(0..=VERSION).contains(&version) {
        return Some(false);
    }
    let client = short(rest, 8)?;
    let size = match client {
        -1 => 0,
        _ => match usize::try_from(client).ok().filter(|size| *size <= CLIENT) {
            Some(size) if size as u64 + 14 <= len => size,
            _ => return Some(false),
        },
    };
    let name = rest.get(10..rest.len().min(10 + size)).unwrap_or_default();
    if !name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        return Some(false);
    }
    if name.len() < size {
        return None;
    }
    let flexible = names::is_flexible(api, version);
    let named = size > 0;
    if api == API_VERSIONS && !flexible {
        return Some(len == 14 + size as u64);
    }
    if !has_topics(api) {
        return Some(named);
    }
    let header = KafkaHeader { api, version, correlation: 0 };
    match header.body(bytes).and_then(|body| subject(api, version, body)) {
        Some(Subject { topic: Some(topic), .. }) => Some(is_topic(topic)),
        Some(_) => Some(named),
        // Cut, or not such a request.
        None if bytes.len() < (len as usize).min(LOOK) => None,
        None => Some(false),
    }
}

/// Whether this is a valid topic name.
fn is_topic(name: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..250).contains(&name.len()) && name.iter().all(fits)
}

/// The key of a correlation id.
fn key(correlation: i32) -> u64 {
    u64::from(correlation.cast_unsigned()) + 1
}

/// [`ExpectedReply::note`]: the API and its version, which replies do not repeat.
fn note(header: KafkaHeader) -> u16 {
    let [_, api] = header.api.to_be_bytes();
    let [_, version] = header.version.to_be_bytes();
    u16::from_be_bytes([api, version])
}

/// The API and the version in a [`note`].
fn noted(expected: ExpectedReply) -> (i16, i16) {
    let [api, version] = expected.note.to_be_bytes().map(i16::from);
    (api, version)
}

/// Connection state from earlier messages that later ones depend on.
#[derive(Debug, Default)]
struct Calls {
    /// Messages may be raw SASL without headers, after a version 0 handshake.
    bare: bool,
    /// The topic fetched, for requests that only continue a fetch session.
    fetched: Option<Arc<str>>,
}

impl Calls {
    /// How many bytes to read of the message of `len` bytes at the front of `bytes`.
    fn look(way: Way, bytes: &[u8], len: u64, expected: &dyn Fn(u64) -> Option<ExpectedReply>) -> usize {
        let has_records = match way {
            Way::Request => short(bytes, LENGTH) == Some(PRODUCE),
            Way::Reply => {
                let of = long(bytes, LENGTH).and_then(|correlation| expected(key(correlation)));
                of.is_some_and(|expected| noted(expected).0 == FETCH)
            }
        };
        (len as usize).min(if has_records { LOOK_RECORDS } else { LOOK })
    }

    /// The request at the front of `bytes`.
    fn request(&mut self, header: KafkaHeader, bytes: &[u8], cut: bool) -> Box<Request> {
        let KafkaHeader { api, version, .. } = header;
        let method = names::name(api).unwrap_or_else(|| shared(names::OTHER));
        let found = header.body(bytes).and_then(|body| subject(api, version, body));
        let about = found.unwrap_or_default();
        let topic = about.topic.filter(|topic| is_topic(topic)).map(dotted);
        let mut path = match topic {
            Some(topic) if about.topics > 1 => Arc::from(format!("{topic}, …")),
            Some(topic) => Arc::from(&*topic),
            None => Arc::clone(&NOWHERE),
        };
        if api == FETCH {
            if about.goes_on && about.topics == 0 {
                path = self.fetched.clone().unwrap_or(path);
            } else if found.is_some() && !about.goes_on {
                self.fetched = Some(Arc::clone(&path));
            }
        }
        if api == SASL_HANDSHAKE {
            self.bare = version == 0;
        }
        let expected = ExpectedReply { silent: about.silent, note: note(header), ..ExpectedReply::default() };
        let cut = cut && found.is_none() && has_topics(api);
        Box::new(Request { method, path, expected, cut, ..*Request::unnamed() })
    }
}

fn nothing(len: u64) -> Front {
    Front::Frame(Frame { len, key: 0, body: 0, meaning: FrameMeaning::Nothing, end: false })
}

impl Framed for Calls {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        _: &Settings,
    ) -> Front {
        if bytes.len() < LENGTH {
            return Front::Need(LENGTH);
        }
        let Some(len) = length(bytes, 0) else { return Front::Invalid };
        let look = Self::look(way, bytes, len, expected);
        if bytes.len() < look && !cut {
            return Front::Need(look);
        }
        let front = bytes.get(..look.min(bytes.len())).unwrap_or_default();
        match way {
            Way::Request => {
                if self.bare && likely(front) != Some(true) {
                    return nothing(len);
                }
                let Some(header) = KafkaHeader::read(front).filter(|header| header.api >= 0 && header.version >= 0)
                else {
                    return Front::Invalid;
                };
                self.bare = false;
                let request = self.request(header, front, front.len() < look);
                let meaning = FrameMeaning::Begun { request, protocol: ProtocolId::Kafka, length: None };
                let body = header.body(front).filter(|_| header.api == PRODUCE);
                let meaning = meaning.with(body.map(|body| records::sent(header.version, body)).unwrap_or_default());
                Front::Frame(Frame { len, key: key(header.correlation), body: 0, meaning, end: true })
            }
            Way::Reply => {
                let correlation = long(front, LENGTH);
                let of = correlation.and_then(|correlation| expected(key(correlation)));
                let (Some(correlation), false) = (correlation, self.bare && of.is_none()) else {
                    return if self.bare { nothing(len) } else { Front::Invalid };
                };
                let outcome = of.and_then(|expected| {
                    let (api, version) = noted(expected);
                    let flexible = names::is_flexible(api, version);
                    // A client that asks for versions need not know any, so this header is never flexible.
                    let mut header = KafkaReader::new(front.get(LENGTH + 4..)?, flexible && api != API_VERSIONS);
                    header.tags()?;
                    Some(replies::outcome(api, version, header.with(flexible)))
                });
                let replies::ReplyOutcome { failure, linked } = outcome.unwrap_or_default();
                let reply = Reply { status: 0, failure, interim: false };
                let meaning = FrameMeaning::Replied { reply, length: None }.with(linked);
                let body = len.saturating_sub(LENGTH as u64 * 2);
                Front::Frame(Frame { len, key: key(correlation), body, meaning, end: true })
            }
        }
    }

    fn wants(&self) -> u16 {
        // Records lie behind many other fields, and many messages in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn lost(&mut self, way: Way) {
        if way == Way::Request {
            self.fetched = None;
        }
    }

    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize> {
        let reply = |at: usize| -> Option<u64> {
            let rest = bytes.get(at..)?;
            let len = length(rest, 4)?;
            open(key(long(rest, LENGTH)?)).then_some(len)
        };
        (0..bytes.len().saturating_sub(LENGTH + 3)).find(|at| match way {
            Way::Request => likely(bytes.get(*at..).unwrap_or_default()) == Some(true),
            // A length and a small number are not distinctive when searching for the beginning of a message.
            Way::Reply => reply(*at).is_some_and(|len| {
                let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len));
                *at == 0 || end.is_some_and(|end| end == bytes.len() || reply(end).is_some())
            }),
        })
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let correlation = length(bytes, 4).and(long(bytes, LENGTH));
        correlation.is_some_and(|correlation| !self.bare && !open(key(correlation)))
    }

    fn kept_bytes(&self) -> usize {
        self.fetched.as_ref().map_or(0, |fetched| fetched.len())
    }
}

#[cfg(test)]
mod tests;
