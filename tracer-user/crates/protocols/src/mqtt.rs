//! MQTT 3.1, 3.1.1 and 5.
//!
//! A publication with QoS 0 is complete once sent; PUBACK answers one with QoS 1, PUBCOMP (or a refusing PUBREC) one
//! with QoS 2. The same applies to deliveries by a broker: the two directions have separate packet identifiers.
//! Connecting, subscribing and unsubscribing are spans with an answer, too; keep-alives are not.

mod packets;
mod reasons;

use tracer_model::ProtocolId;

use self::packets::{Packet, Publish, kind};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::messaging::{CONNECT, DELIVER, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, request};
use super::{Detected, ExpectedReply, Protocol, Request, Settings, UNNAMED, context};

/// Most bytes of properties waited for.
const PROPERTIES: usize = 4096;
/// Most topic aliases remembered per direction, and longest topic, in bytes.
const ALIASES: usize = 32;
const TOPIC: usize = 256;

/// Kind of exchange a key stands for; the packet identifier is the rest of the key.
#[derive(Clone, Copy)]
enum Of {
    Unanswered = 1,
    Delivered,
    Connect,
    Publish,
    Deliver,
    Subscribe,
    Unsubscribe,
}

impl Of {
    fn key(self, id: u16) -> u64 {
        (self as u64) << 60 | u64::from(id)
    }
}

/// The protocol.
#[derive(Debug)]
pub struct Mqtt;

impl Protocol for Mqtt {
    fn id(&self) -> ProtocolId {
        ProtocolId::Mqtt
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        packets::detect(bytes)
    }

    fn framed(&self, _: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Packets { version: None, aliases: [Vec::new(), Vec::new()] }))
    }
}

/// Both directions of one connection.
#[derive(Debug)]
struct Packets {
    /// Protocol level the client asked for, once seen.
    version: Option<u8>,
    /// Topics by alias: to the server, and from it.
    aliases: [Vec<(u16, Box<[u8]>)>; 2],
}

impl Packets {
    /// The topic of a message: its own, or the one its alias stands for.
    fn topic<'a>(&'a mut self, way: Way, publish: &Publish<'a>) -> Option<&'a [u8]> {
        let aliases = &mut self.aliases[way as usize];
        let Some(alias) = publish.alias else { return Some(publish.topic).filter(|topic| !topic.is_empty()) };
        if publish.topic.is_empty() {
            return aliases.iter().find(|(known, _)| *known == alias).map(|(_, topic)| &**topic);
        }
        aliases.retain(|(known, _)| *known != alias);
        if aliases.len() < ALIASES && publish.topic.len() <= TOPIC {
            aliases.push((alias, publish.topic.into()));
        }
        Some(publish.topic)
    }

    fn publish(&mut self, way: Way, publish: &Publish<'_>, settings: &Settings) -> (u64, FrameMeaning) {
        let (operation, silent, answered) = match way {
            Way::Request => (PUBLISH, Of::Unanswered, Of::Publish),
            Way::Reply => (DELIVER, Of::Delivered, Of::Deliver),
        };
        let key = publish.id.map_or(silent.key(0), |id| answered.key(id));
        let expected = ExpectedReply { silent: publish.id.is_none(), ..ExpectedReply::default() };
        let mut request = match self.topic(way, publish) {
            Some(topic) => request(operation, topic, expected, settings),
            None => Box::new(Request { expected, ..*Request::unnamed() }),
        };
        request.traceparent = publish.traceparent.and_then(context::traceparent);
        debug_assert!(*request.method != *UNNAMED || request.path.is_empty(), "what is unnamed has no destination");
        (key, FrameMeaning::Begun { request, protocol: ProtocolId::Mqtt, length: None })
    }
}

/// An answer to the packet `id` of the other direction.
fn settled(of: Of, id: u16, failure: Option<&'static str>) -> FrameMeaning {
    FrameMeaning::Settled { keys: of.key(id)..=of.key(id), status: 0, failure }
}

/// A request with an answer of its own.
fn begun(operation: &str, destination: &[u8], settings: &Settings) -> FrameMeaning {
    let request = request(operation, destination, ExpectedReply::default(), settings);
    FrameMeaning::Begun { request, protocol: ProtocolId::Mqtt, length: None }
}

impl Framed for Packets {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        _: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        if way == Way::Request && matches!(bytes, [0x16, 3, ..]) && self.version.is_none() {
            return Front::Tls;
        }
        let packet = match Packet::read(bytes, way) {
            Ok(packet) => packet,
            Err(Some(need)) => return Front::Need(need),
            Err(None) => return Front::Invalid,
        };
        let len = packet.len();
        let wanted = match packet.kind {
            kind::CONNECT => 9,
            kind::PUBLISH => match packet.publish_needs(self.version, PROPERTIES) {
                Some(wanted) => wanted,
                None => return Front::Invalid,
            },
            kind::PINGREQ | kind::PINGRESP | kind::DISCONNECT | kind::AUTH => 0,
            _ => packet.remaining.min(PROPERTIES),
        };
        if packet.payload.len() < wanted.min(packet.remaining) && !cut {
            return Front::Need(packet.header + wanted.min(packet.remaining));
        }
        let other = if way == Way::Request { Of::Deliver } else { Of::Publish };
        let own = if way == Way::Request { Of::Publish } else { Of::Deliver };
        let (key, meaning) = match packet.kind {
            kind::CONNECT => {
                self.version = packet.version();
                self.aliases = [Vec::new(), Vec::new()];
                (Of::Connect.key(0), begun(CONNECT, b"", settings))
            }
            kind::CONNACK => (0, settled(Of::Connect, 0, reasons::connection(packet.byte(1), self.version))),
            kind::PUBLISH => {
                let Some(publish) = packet.publish(self.version) else { return Front::Invalid };
                self.publish(way, &publish, settings)
            }
            kind::PUBACK | kind::PUBCOMP => (0, settled(other, packet.id(), reasons::word(packet.byte(2)))),
            kind::PUBREC => match reasons::word(packet.byte(2)) {
                // It refuses, and nothing more comes.
                failure @ Some(_) => (0, settled(other, packet.id(), failure)),
                None => (other.key(packet.id()), FrameMeaning::Part),
            },
            kind::PUBREL => (own.key(packet.id()), FrameMeaning::Part),
            kind::SUBSCRIBE | kind::UNSUBSCRIBE => {
                let of = if packet.kind == kind::SUBSCRIBE { Of::Subscribe } else { Of::Unsubscribe };
                let operation = if packet.kind == kind::SUBSCRIBE { SUBSCRIBE } else { UNSUBSCRIBE };
                let filter = packet.filter(self.version).unwrap_or_default();
                (of.key(packet.id()), begun(operation, filter, settings))
            }
            kind::SUBACK => (0, settled(Of::Subscribe, packet.id(), packet.refusal(self.version))),
            kind::UNSUBACK => (0, settled(Of::Unsubscribe, packet.id(), packet.refusal(self.version))),
            _ => (0, FrameMeaning::Nothing),
        };
        let end = matches!(meaning, FrameMeaning::Begun { .. });
        let body = if packet.kind == kind::PUBLISH { packet.remaining as u64 } else { 0 };
        Front::Frame(Frame { len, key, body, meaning, end })
    }

    fn lost(&mut self, way: Way) {
        // Aliases may have been redefined.
        self.aliases[way as usize] = Vec::new();
    }

    fn find(&self, way: Way, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> Option<usize> {
        packets::find(way, bytes)
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        // Either end sends these: open exchanges tell which one they answer.
        let Ok(packet) = Packet::read(bytes, Way::Reply) else { return false };
        let of: &[Of] = match packet.kind {
            kind::PUBACK | kind::PUBREC | kind::PUBCOMP => &[Of::Publish, Of::Deliver],
            kind::SUBACK => &[Of::Subscribe],
            kind::UNSUBACK => &[Of::Unsubscribe],
            _ => return false,
        };
        packet.payload.len() >= 2 && !of.iter().any(|of| open(of.key(packet.id())))
    }

    fn is_mutual(&self) -> bool {
        true
    }

    fn wants(&self) -> u16 {
        // Many messages fit in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn kept_bytes(&self) -> usize {
        self.aliases.iter().flatten().map(|(_, topic)| topic.len() + 32).sum()
    }
}

#[cfg(test)]
mod tests;
