//! AMQP 0-9-1, as RabbitMQ speaks it.
//!
//! A publication is answered if its channel is in confirm mode (by delivery tag, sometimes several at once); otherwise
//! it is complete once sent. A delivery is answered by the consumer's acknowledgement or refusal, unless the consumer
//! uses automatic acknowledgement. Every other method with a reply is a span of that name; of the connection's own
//! methods only the handshake is, from the protocol header to the reply to `connection.open`. Channels are separate,
//! and so are both directions' delivery tags.

mod channel;
mod fields;
mod methods;

use tracer_model::ProtocolId;

use self::channel::{Channel, Of};
use self::fields::FieldReader;
use self::methods::{Method, Role};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::messaging::{CONNECT, DELIVER, PUBLISH, request};
use super::{Detected, ExpectedReply, Protocol, Reply, Settings, context};

/// The client's first bytes.
const HEADER: &[u8] = b"AMQP\0\0\x09\x01";
/// Bytes before a frame's payload, and the one after it.
const FRONT: usize = 7;
const END: u8 = 0xce;
/// Longest payload accepted.
const LONGEST: usize = 16 << 20;
/// Most bytes of a method, and of a message's properties, waited for.
const WANTED: usize = 4096;
/// Most channels remembered.
const CHANNELS: usize = 256;

const METHOD: u8 = 1;
const CONTENT: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// The protocol.
#[derive(Debug)]
pub struct Amqp;

impl Protocol for Amqp {
    fn id(&self) -> ProtocolId {
        ProtocolId::Amqp
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let n = bytes.len().min(HEADER.len());
        if bytes.get(..n) == HEADER.get(..n) {
            return if n == HEADER.len() { Detected::Request } else { Detected::NeedMore };
        }
        let Some(header) = AmqpHeader::read(bytes).filter(|header| header.stands(bytes) == Some(true)) else {
            return Detected::No;
        };
        match header.method(bytes).map(|method| method.role) {
            Some(Role::Client) => Detected::Request,
            Some(Role::Server) => Detected::Reply,
            None if header.kind == METHOD => Detected::No,
            Some(Role::Either) | None => Detected::Either,
        }
    }

    fn framed(&self, joined: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Frames { channels: Vec::new(), joined, usual: 131_064 }))
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug)]
struct AmqpHeader {
    kind: u8,
    channel: u16,
    size: usize,
}

impl AmqpHeader {
    /// `None`: too short, or not a frame.
    fn read(bytes: &[u8]) -> Option<Self> {
        let ([kind, high, low, size @ ..], _) = bytes.split_first_chunk::<FRONT>()?;
        let size = u32::from_be_bytes(*size) as usize;
        let channel = u16::from_be_bytes([*high, *low]);
        let fits = match *kind {
            METHOD => size >= 4,
            CONTENT => size >= 14 && channel > 0,
            BODY => size > 0 && channel > 0,
            HEARTBEAT => size == 0 && channel == 0,
            _ => false,
        };
        (fits && size <= LONGEST).then_some(Self { kind: *kind, channel, size })
    }

    /// Total bytes of the frame.
    fn len(self) -> usize {
        FRONT + self.size + 1
    }

    fn payload(self, bytes: &[u8]) -> &[u8] {
        bytes.get(FRONT..bytes.len().min(FRONT + self.size)).unwrap_or_default()
    }

    /// Whether the frame has a valid end byte; `None` if that is not there.
    fn stands(self, bytes: &[u8]) -> Option<bool> {
        bytes.get(self.len() - 1).map(|end| *end == END)
    }

    fn method(self, bytes: &[u8]) -> Option<&'static Method> {
        let (class, rest) = self.payload(bytes).split_first_chunk::<2>()?;
        let (method, _) = rest.split_first_chunk::<2>()?;
        (self.kind == METHOD).then(|| methods::find(u16::from_be_bytes(*class), u16::from_be_bytes(*method))).flatten()
    }
}

/// Both directions of one connection.
#[derive(Debug)]
struct Frames {
    /// Sorted by number: most connections have few.
    channels: Vec<Channel>,
    /// Earlier state of the channels was missed.
    joined: bool,
    /// Payload of the largest frames seen.
    usual: u64,
}

impl Frames {
    /// State of a channel. With too many channels one is forgotten; from then on, new ones may really be old.
    fn channel(&mut self, id: u16) -> &mut Channel {
        let mut place = self.channels.binary_search_by_key(&id, Channel::id);
        if place.is_err() && self.channels.len() >= CHANNELS {
            self.channels.remove(0);
            self.joined = true;
            place = self.channels.binary_search_by_key(&id, Channel::id);
        }
        let at = match place {
            Ok(at) => at,
            Err(at) => {
                self.channels.insert(at, Channel::new(id, !self.joined));
                at
            }
        };
        &mut self.channels[at]
    }

    /// State of a channel, if any is known.
    fn known(&self, id: u16) -> Option<&Channel> {
        let at = self.channels.binary_search_by_key(&id, Channel::id).ok()?;
        self.channels.get(at)
    }

    /// Removes a closed channel.
    fn forget(&mut self, id: u16) {
        self.channels.retain(|channel| channel.id() != id);
    }

    /// For a method followed by message content: the content header after it. `Err`: more bytes are needed.
    fn content(bytes: &[u8], header: AmqpHeader, cut: bool) -> Result<Option<(usize, Content<'_>)>, usize> {
        let rest = bytes.get(header.len()..).unwrap_or_default();
        let Some(next) = AmqpHeader::read(rest) else {
            return if rest.len() < FRONT && !cut { Err(header.len() + FRONT) } else { Ok(None) };
        };
        if next.kind != CONTENT || next.channel != header.channel {
            return Ok(None);
        }
        if rest.len() < FRONT + next.size.min(WANTED) && !cut {
            return Err(header.len() + FRONT + next.size.min(WANTED));
        }
        Ok(Content::read(next.payload(rest)).map(|content| (next.len(), content)))
    }

    /// Handles the beginning of a method.
    fn method(
        &mut self,
        way: Way,
        (header, method): (AmqpHeader, &'static Method),
        content: Option<&Content<'_>>,
        payload: &[u8],
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> (u64, FrameMeaning) {
        let mut fields = FieldReader::new(payload.get(4..).unwrap_or_default());
        let length = content.map(|content| content.size);
        let protocol = ProtocolId::Amqp;
        let wrong_way = match method.role {
            Role::Client => way == Way::Reply,
            Role::Server => way == Way::Request,
            Role::Either => false,
        };
        if wrong_way {
            return (0, FrameMeaning::Nothing);
        }
        let channel = self.channel(header.channel);
        match (method.class, method.id) {
            (60, 40) => {
                fields.short();
                let destination = fields::destination(&mut fields);
                let key = channel.publish();
                channel.content[way as usize] = key;
                let silent = key == Of::Unconfirmed.key(header.channel, 0);
                let expected = ExpectedReply { silent, note: fields::note(&destination), ..ExpectedReply::default() };
                (
                    key,
                    FrameMeaning::Begun {
                        request: request(PUBLISH, &destination, expected, settings),
                        protocol,
                        length,
                    },
                )
            }
            (60, 60) => {
                let consumer = fields.text().unwrap_or_default();
                let tag = fields.long().unwrap_or(0);
                fields.byte();
                let destination = fields::destination(&mut fields);
                let key = channel.deliver(consumer, tag);
                channel.content[way as usize] = key;
                let silent = key == Of::Unacknowledged.key(header.channel, 0);
                let expected = ExpectedReply { silent, ..ExpectedReply::default() };
                let mut request = request(DELIVER, &destination, expected, settings);
                request.traceparent = content.and_then(|content| content.traceparent).and_then(context::traceparent);
                (key, FrameMeaning::Begun { request, protocol, length })
            }
            (60, 71) => {
                channel.handed_out(fields.long().unwrap_or(0));
                let key = channel.answered();
                channel.content[way as usize] = key;
                (key, FrameMeaning::Replied { reply: Reply { status: 0, failure: None, interim: false }, length })
            }
            (60, 50) => {
                fields.short();
                fields.text();
                channel.returned(fields::note(&fields::destination(&mut fields)));
                channel.content[way as usize] = 0;
                (0, FrameMeaning::Nothing)
            }
            (60, 80 | 90 | 120) => {
                let tag = fields.long().unwrap_or(0);
                let multiple = method.id != 90 && fields.byte().unwrap_or(0) & 1 != 0;
                let of = if way == Way::Request { Of::Deliver } else { Of::Publish };
                let failure = match method.id {
                    80 if multiple => None,
                    80 => channel.unroutable(way, of, tag, expected),
                    90 => Some("REJECT"),
                    _ => Some("NACK"),
                };
                channel.acknowledged(way);
                (0, FrameMeaning::Settled { keys: of.keys(header.channel, tag, multiple), status: 0, failure })
            }
            (20, 40) if way == Way::Reply => {
                let code = fields.short().unwrap_or(0);
                let id = header.channel;
                self.forget(id);
                (0, FrameMeaning::Settled { keys: channel::all(id), status: 0, failure: Some(methods::failure(code)) })
            }
            (10, 50) if way == Way::Reply => {
                let code = fields.short().unwrap_or(0);
                (0, FrameMeaning::Settled { keys: 0..=u64::MAX, status: 0, failure: Some(methods::failure(code)) })
            }
            (10, 31) => {
                fields.short();
                let frame = fields.word().unwrap_or(0);
                self.usual = u64::from(frame).checked_sub(8).filter(|usual| *usual > 0).unwrap_or(self.usual);
                (0, FrameMeaning::Nothing)
            }
            (10, 41) => {
                let key = Of::Connect.key(0, 0);
                (0, FrameMeaning::Settled { keys: key..=key, status: 0, failure: None })
            }
            (10, _) => (0, FrameMeaning::Nothing),
            _ if method.is_reply => {
                if method.name == "basic.consume-ok" {
                    channel.consuming(fields.text().unwrap_or_default());
                }
                let key = channel.answered();
                if method.name == "channel.close-ok" {
                    self.forget(header.channel);
                }
                (0, FrameMeaning::Settled { keys: key..=key, status: 0, failure: None })
            }
            // The server cancels a consumer, or tells a client to pause.
            _ if way == Way::Reply => (0, FrameMeaning::Nothing),
            _ => {
                let asks = method.asks(&mut fields);
                channel.begins(method, &asks);
                if asks.nowait || !method.has_reply {
                    return (0, FrameMeaning::Nothing);
                }
                let key = channel.ask();
                let request = request(method.operation(), asks.name, ExpectedReply::default(), settings);
                (key, FrameMeaning::Begun { request, protocol, length: Some(0) })
            }
        }
    }
}

/// A message's content header.
#[derive(Debug)]
struct Content<'a> {
    size: u64,
    traceparent: Option<&'a [u8]>,
}

impl<'a> Content<'a> {
    fn read(payload: &'a [u8]) -> Option<Self> {
        let mut fields = FieldReader::new(payload);
        fields.short()?;
        fields.short()?;
        let size = fields.long()?;
        let flags = fields.short()?;
        Some(Self { size, traceparent: fields::header(&mut fields, flags, b"traceparent") })
    }
}

impl Framed for Frames {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        let n = bytes.len().min(HEADER.len());
        if way == Way::Request && n > 0 && bytes.get(..n) == HEADER.get(..n) {
            if n < HEADER.len() {
                return if cut { Front::Invalid } else { Front::Need(HEADER.len()) };
            }
            self.joined = false;
            let request = request(CONNECT, b"", ExpectedReply::default(), settings);
            let meaning = FrameMeaning::Begun { request, protocol: ProtocolId::Amqp, length: Some(0) };
            return Front::Frame(Frame { len: n as u64, key: Of::Connect.key(0, 0), body: 0, meaning, end: true });
        }
        let Some(header) = AmqpHeader::read(bytes) else {
            return if bytes.len() < FRONT { Front::Need(FRONT) } else { Front::Invalid };
        };
        if header.stands(bytes) == Some(false) {
            return Front::Invalid;
        }
        let mut len = header.len() as u64;
        let (key, body, meaning) = match header.kind {
            METHOD => {
                let wanted = header.len().min(FRONT + WANTED);
                if bytes.len() < wanted && !cut {
                    return Front::Need(wanted);
                }
                let Some(method) = header.method(bytes) else {
                    return Front::Frame(Frame { len, key: 0, body: 0, meaning: FrameMeaning::Nothing, end: false });
                };
                let mut content = None;
                if method.carries() {
                    content = match Self::content(bytes, header, cut) {
                        Ok(content) => content,
                        Err(need) => return Front::Need(need),
                    };
                }
                len += content.as_ref().map_or(0, |(len, _)| *len as u64);
                let content = content.as_ref().map(|(_, content)| content);
                let (key, meaning) =
                    self.method(way, (header, method), content, header.payload(bytes), expected, settings);
                (key, 0, meaning)
            }
            BODY => {
                let key = self.known(header.channel).map_or(0, |channel| channel.content[way as usize]);
                (key, header.size as u64, if key == 0 { FrameMeaning::Nothing } else { FrameMeaning::Part })
            }
            CONTENT => {
                // Not directly after its method: frames of other channels came between.
                let wanted = header.len().min(FRONT + WANTED);
                if bytes.len() < wanted && !cut {
                    return Front::Need(wanted);
                }
                let key = self.known(header.channel).map_or(0, |channel| channel.content[way as usize]);
                match Content::read(header.payload(bytes)) {
                    Some(content) if key != 0 => (key, 0, FrameMeaning::Sized(content.size)),
                    _ => (0, 0, FrameMeaning::Nothing),
                }
            }
            _ => (0, 0, FrameMeaning::Nothing),
        };
        // A message ends with its body, of known length: `Open::to_come` tracks that.
        Front::Frame(Frame { len, key, body, meaning, end: false })
    }

    fn lost(&mut self, way: Way) {
        for channel in &mut self.channels {
            channel.lost(way);
        }
    }

    fn find(&self, way: Way, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> Option<usize> {
        (0..bytes.len().saturating_sub(FRONT - 1)).find(|at| {
            let rest = bytes.get(*at..).unwrap_or_default();
            let Some(header) = AmqpHeader::read(rest) else { return false };
            let known = self.known(header.channel);
            let method = header.method(rest);
            match (header.stands(rest), header.kind) {
                (Some(stands), METHOD) => stands && method.is_some(),
                (Some(stands), _) => stands,
                // The end was not captured: accept a method at the front of an operation, or a body under way.
                (None, METHOD) => *at == 0 && method.is_some(),
                (None, BODY) => *at == 0 && known.is_some_and(|channel| channel.content[way as usize] != 0),
                _ => false,
            }
        })
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let Some(header) = AmqpHeader::read(bytes) else { return false };
        let (Some(channel), Some(method)) = (self.known(header.channel), header.method(bytes)) else {
            return false;
        };
        let mut fields = FieldReader::new(header.payload(bytes).get(4..).unwrap_or_default());
        match (method.class, method.id) {
            (60, 80 | 90 | 120) => {
                let tag = fields.long().unwrap_or(0);
                channel.is_ahead(tag) && ![Of::Publish, Of::Deliver].iter().any(|of| open(of.key(header.channel, tag)))
            }
            (10, _) => false,
            _ => method.is_reply && method.role == Role::Server && channel.is_idle(),
        }
    }

    fn is_mutual(&self) -> bool {
        true
    }

    fn wants(&self) -> u16 {
        // Many messages fit in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn overhead(&self) -> u64 {
        FRONT as u64 + 1
    }

    fn usual(&self) -> u64 {
        self.usual
    }

    fn kept_bytes(&self) -> usize {
        self.channels.iter().map(Channel::bytes).sum()
    }

    fn rest(&mut self) {
        self.channels.iter_mut().for_each(Channel::rest);
        self.channels.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
