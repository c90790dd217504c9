//! Single packets: headers, and the fields that are read.

use crate::Detected;
use crate::framed::Way;

/// Packet types (§2.1.2).
pub(super) mod kind {
    pub(in super::super) const CONNECT: u8 = 1;
    pub(in super::super) const CONNACK: u8 = 2;
    pub(in super::super) const PUBLISH: u8 = 3;
    pub(in super::super) const PUBACK: u8 = 4;
    pub(in super::super) const PUBREC: u8 = 5;
    pub(in super::super) const PUBREL: u8 = 6;
    pub(in super::super) const PUBCOMP: u8 = 7;
    pub(in super::super) const SUBSCRIBE: u8 = 8;
    pub(in super::super) const SUBACK: u8 = 9;
    pub(in super::super) const UNSUBSCRIBE: u8 = 10;
    pub(in super::super) const UNSUBACK: u8 = 11;
    pub(in super::super) const PINGREQ: u8 = 12;
    pub(in super::super) const PINGRESP: u8 = 13;
    pub(in super::super) const DISCONNECT: u8 = 14;
    pub(in super::super) const AUTH: u8 = 15;
}

/// A packet, as far as captured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) kind: u8,
    flags: u8,
    /// Bytes before its payload, and of the payload.
    pub(super) header: usize,
    pub(super) remaining: usize,
    pub(super) payload: &'a [u8],
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Publish<'a> {
    pub(super) topic: &'a [u8],
    /// Packet identifier, if it needs an answer.
    pub(super) id: Option<u16>,
    pub(super) alias: Option<u16>,
    pub(super) traceparent: Option<&'a [u8]>,
}

/// A variable byte integer (§1.5.5) and its length. `Err(true)`: incomplete.
fn varint(bytes: &[u8]) -> Result<(usize, usize), bool> {
    let mut value = 0;
    for at in 0..4 {
        let Some(byte) = bytes.get(at) else { return Err(true) };
        value |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok((value, at + 1));
        }
    }
    Err(false)
}

/// Length-prefixed text or bytes, and the rest.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))
}

fn short(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

impl<'a> Packet<'a> {
    /// Reads the front of a packet. `Err`: number of bytes needed, or `None` if `way` has no such packet.
    pub(super) fn read(bytes: &'a [u8], way: Way) -> Result<Self, Option<usize>> {
        let Some(first) = bytes.first() else { return Err(Some(2)) };
        let (kind, flags) = (first >> 4, first & 15);
        let allowed = match kind {
            kind::CONNECT | kind::PINGREQ => way == Way::Request && flags == 0,
            kind::SUBSCRIBE | kind::UNSUBSCRIBE => way == Way::Request && flags == 2,
            kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP => way == Way::Reply && flags == 0,
            kind::PUBLISH => flags & 6 != 6,
            kind::PUBREL => flags == 2,
            0 => false,
            _ => flags == 0,
        };
        if !allowed {
            return Err(None);
        }
        let (remaining, used) = match varint(bytes.get(1..).unwrap_or_default()) {
            Ok(read) => read,
            Err(true) => return Err(Some(bytes.len() + 1)),
            Err(false) => return Err(None),
        };
        let least = match kind {
            kind::PINGREQ | kind::PINGRESP | kind::DISCONNECT | kind::AUTH => 0,
            kind::CONNECT => 10,
            kind::SUBSCRIBE | kind::UNSUBSCRIBE => 5,
            kind::PUBLISH | kind::SUBACK => 3,
            _ => 2,
        };
        let most = match kind {
            kind::PINGREQ | kind::PINGRESP => 0,
            _ => usize::MAX,
        };
        if remaining < least || remaining > most {
            return Err(None);
        }
        let header = 1 + used;
        let payload = bytes.get(header..).unwrap_or_default();
        Ok(Self { kind, flags, header, remaining, payload: payload.get(..remaining).unwrap_or(payload) })
    }

    /// Total bytes.
    pub(super) fn len(&self) -> u64 {
        (self.header + self.remaining) as u64
    }

    fn is_whole(&self) -> bool {
        self.payload.len() == self.remaining
    }

    /// A byte of the payload.
    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        self.payload.get(at).copied()
    }

    /// The packet identifier at the front of its payload.
    pub(super) fn id(&self) -> u16 {
        short(self.payload).unwrap_or(0)
    }

    /// The protocol level that a client requests.
    pub(super) fn version(&self) -> Option<u8> {
        let (name, rest) = text(self.payload)?;
        matches!(name, b"MQTT" | b"MQIsdp").then(|| rest.first().copied()).flatten()
    }

    /// Bytes of the payload before the message body, as far as known by now, counting at most `properties` bytes of
    /// properties; `None` if this is not a message.
    pub(super) fn publish_needs(&self, version: Option<u8>, properties: usize) -> Option<usize> {
        let Some(len) = short(self.payload) else { return Some(2) };
        let fixed = 2 + usize::from(len) + if self.flags & 6 == 0 { 0 } else { 2 };
        if fixed > self.remaining {
            return None;
        }
        if version != Some(5) {
            return Some(fixed);
        }
        match varint(self.payload.get(fixed..).unwrap_or_default()) {
            Ok((len, used)) if fixed + used + len <= self.remaining => Some(fixed + used + len.min(properties)),
            // The length field is incomplete.
            Err(true) if self.payload.len() < self.remaining => Some(self.payload.len().max(fixed) + 1),
            _ => None,
        }
    }

    /// A message's fields; `None` if its topic is missing.
    pub(super) fn publish(&self, version: Option<u8>) -> Option<Publish<'a>> {
        let (topic, mut rest) = text(self.payload)?;
        let mut id = None;
        if self.flags & 6 != 0 {
            id = Some(short(rest)?);
            rest = rest.get(2..)?;
        }
        let mut publish = Publish { topic, id, alias: None, traceparent: None };
        if version == Some(5)
            && let Ok((len, used)) = varint(rest)
        {
            let properties = rest.get(used..).unwrap_or_default();
            publish.properties(properties.get(..len).unwrap_or(properties));
        }
        Some(publish)
    }

    /// The first topic filter.
    pub(super) fn filter(&self, version: Option<u8>) -> Option<&'a [u8]> {
        let rest = self.payload.get(2..)?;
        let plain = || text(rest).map(|(filter, _)| filter).filter(|filter| !filter.is_empty());
        let after = || {
            let (len, used) = varint(rest).ok()?;
            text(rest.get(used + len..)?).map(|(filter, _)| filter)
        };
        match version {
            Some(5) => after(),
            Some(_) => plain(),
            // Read as a filter in the older form, a properties length of zero is empty.
            None => plain().or_else(after),
        }
    }

    /// The first refusal in the answer to a subscription.
    pub(super) fn refusal(&self, version: Option<u8>) -> Option<&'static str> {
        let rest = self.payload.get(2..)?;
        let codes = match version {
            Some(5) => varint(rest).ok().and_then(|(len, used)| rest.get(used + len..)).unwrap_or_default(),
            Some(_) => rest,
            None => rest.get(rest.len().saturating_sub(1)..).unwrap_or_default(),
        };
        codes.iter().find_map(|code| super::reasons::word(Some(*code)))
    }

    /// Whether it is consistent enough to be a packet when packet boundaries are unknown.
    fn is_likely(&self) -> bool {
        match self.kind {
            kind::PUBLISH => {
                let topic = text(self.payload).map(|(topic, _)| topic);
                topic.is_some_and(|topic| {
                    topic.len() > 1
                        && std::str::from_utf8(topic).is_ok_and(|topic| {
                            !topic.chars().any(|letter| letter.is_control() || matches!(letter, '+' | '#' | '\u{fffd}'))
                        })
                })
            }
            kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP => self.remaining == 2 && self.id() != 0,
            kind::SUBSCRIBE => self.is_whole() && self.id() != 0 && self.filter(None).is_some_and(|f| !f.is_empty()),
            kind::SUBACK => {
                let codes = self.payload.get(2..).unwrap_or_default();
                self.is_whole() && self.id() != 0 && codes.iter().all(|code| *code <= 2 || *code >= 0x80)
            }
            kind::PINGREQ | kind::PINGRESP => true,
            _ => false,
        }
    }
}

impl<'a> Publish<'a> {
    /// Reads a message's properties (MQTT 5 §3.3.2.3); stops at an unknown one.
    fn properties(&mut self, mut bytes: &'a [u8]) {
        while let Some((id, rest)) = bytes.split_first() {
            let after = match id {
                0x01 => rest.get(1..),
                0x02 => rest.get(4..),
                0x23 => {
                    self.alias = short(rest);
                    rest.get(2..)
                }
                0x03 | 0x08 | 0x09 => text(rest).map(|(_, rest)| rest),
                0x0b => varint(rest).ok().and_then(|(_, used)| rest.get(used..)),
                0x26 => {
                    let pair = text(rest).and_then(|(name, rest)| text(rest).map(|(value, rest)| (name, value, rest)));
                    if let Some((name, value, _)) = pair
                        && name.eq_ignore_ascii_case(b"traceparent")
                    {
                        self.traceparent = Some(value);
                    }
                    pair.map(|(.., rest)| rest)
                }
                _ => None,
            };
            let Some(after) = after else { return };
            bytes = after;
        }
    }
}

/// Classifies the first bytes of a message.
pub(super) fn detect(bytes: &[u8]) -> Detected {
    match bytes {
        [0x10] => return Detected::NeedMore,
        [0x10, rest @ ..] => {
            let Ok((len, used)) = varint(rest) else {
                return if rest.len() < 4 { Detected::NeedMore } else { Detected::No };
            };
            let rest = rest.get(used..).unwrap_or_default();
            for (name, versions) in [(&b"\0\x04MQTT"[..], 4..=5u8), (b"\0\x06MQIsdp", 3..=3)] {
                let n = rest.len().min(name.len());
                if len < 10 || rest.get(..n) != name.get(..n) {
                    continue;
                }
                return match rest.get(name.len()) {
                    None => Detected::NeedMore,
                    Some(version) if versions.contains(version) => Detected::Request,
                    Some(_) => Detected::No,
                };
            }
            return Detected::No;
        }
        [0x20, 2, 0 | 1, 0..=5] => return Detected::Reply,
        [0x20, len, 0 | 1, 0 | 0x80.., properties, rest @ ..]
            if *len < 0x80 && usize::from(*properties) == rest.len() && *len as usize == rest.len() + 3 =>
        {
            return Detected::Reply;
        }
        _ => {}
    }
    for (way, detected) in [(Way::Request, Detected::Request), (Way::Reply, Detected::Reply)] {
        let Ok(packet) = Packet::read(bytes, way) else { continue };
        if !packet.is_likely() || !packet.is_whole() || packet.len() != bytes.len() as u64 {
            continue;
        }
        return match packet.kind {
            // Either end sends these.
            kind::PUBLISH => Detected::Either,
            kind::SUBSCRIBE | kind::SUBACK | kind::PINGREQ | kind::PINGRESP => detected,
            _ => Detected::No,
        };
    }
    Detected::No
}

/// Offset of a packet's beginning when packet boundaries are unknown.
pub(super) fn find(way: Way, bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find(|at| {
        let mut rest = bytes.get(*at..).unwrap_or_default();
        let mut seen = 0;
        // Requires packets up to the end of the bytes, or three in a row.
        loop {
            let Ok(packet) = Packet::read(rest, way) else { return false };
            if !packet.is_likely() {
                return false;
            }
            seen += 1;
            if !packet.is_whole() {
                return packet.kind == kind::PUBLISH && (*at == 0 || seen > 1);
            }
            rest = rest.get(packet.header + packet.remaining..).unwrap_or_default();
            if rest.is_empty() {
                return seen > 1 || *at == 0 || packet.kind == kind::PUBLISH;
            }
            if seen == 3 {
                return true;
            }
        }
    })
}
