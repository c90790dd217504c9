//! DNS (RFC 1035) over UDP and TCP: questions and their outcomes.
//!
//! Only the header and the first question of a message are read; no more is captured. Existing crates refuse a message
//! that is cut; without records and compression this small reader suffices. Over TCP, messages are frames with an id
//! (`multiplex.rs`); over UDP they are matched by id and question (`dns/datagrams.rs`).

mod datagrams;
mod names;

use std::sync::Arc;

pub(super) use self::datagrams::Datagrams;
use tracer_model::ProtocolId;

use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::{Detected, ExpectedReply, Protocol, Reply, Request, Settings};

/// The protocol.
#[derive(Debug)]
pub struct Dns;

/// Bytes of a header.
const HEADER: usize = 12;
/// Most bytes of a header and a question.
const QUESTION: usize = HEADER + 255 + 4;
/// Bytes before a message on TCP: its length.
const LENGTH: usize = 2;

impl Protocol for Dns {
    fn id(&self) -> ProtocolId {
        ProtocolId::Dns
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        detect(bytes)
    }

    fn framed(&self, _: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Stream))
    }
}

/// Content of a message's front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    id: u16,
    is_reply: bool,
    /// The question's type, or the operation if it is not a query.
    what: &'static str,
    failure: Option<&'static str>,
    /// Hash of the first question; `None` if there is none.
    question: Option<u64>,
    /// The domain it is about; empty if it cannot be displayed.
    domain: String,
}

/// Initial value of a digest.
const DIGEST: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues a digest (FNV-1a, 64 bits). Agents on several hosts compare digests of questions: name in lower case,
/// type, class, id. So the algorithm must stay the same in all versions.
fn digest(begun: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(begun, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|two| u16::from_be_bytes(*two))
}

/// A name, and the bytes after it; `None` if it is invalid or cut.
fn name(mut bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let whole = bytes;
    let mut len = 0;
    loop {
        let (&label, rest) = bytes.split_first()?;
        // A question comes before anything a compression pointer could refer to.
        if label > 63 {
            return None;
        }
        len += 1 + usize::from(label);
        if len > 255 {
            return None;
        }
        if label == 0 {
            return Some((whole.get(..len)?, rest));
        }
        bytes = rest.get(usize::from(label)..)?;
    }
}

impl Message {
    /// Reads the front of a message; `None` without a full header, or without the question that must follow.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (id, flags, questions) = (number(bytes, 0)?, number(bytes, 2)?, number(bytes, 4)?);
        bytes.get(..HEADER)?;
        let (is_reply, operation, code) = (flags & 0x8000 != 0, flags >> 11 & 15, flags & 15);
        let mut message =
            Self { id, is_reply, what: "_OTHER", failure: failure(code), question: None, domain: String::new() };
        if questions > 0 {
            let (labels, rest) = name(bytes.get(HEADER..)?)?;
            let kind = number(rest, 0)?;
            // Some clients vary the case, and expect it back.
            let named = digest(DIGEST, labels.iter().map(u8::to_ascii_lowercase));
            let [high, low] = kind.to_be_bytes();
            let [class_high, class_low] = number(rest, 2)?.to_be_bytes();
            message.question = Some(digest(named, [high, low, class_high, class_low].into_iter()));
            message.what = kind_name(kind);
            message.domain = names::domain(labels);
        }
        match operation {
            0 => {}
            4 => message.what = "NOTIFY",
            5 => message.what = "UPDATE",
            _ => message.what = "_OTHER",
        }
        Some(message)
    }

    /// Whether `self`, a reply, answers a question with this id and hash.
    fn answers(&self, id: u16, question: Option<u64>) -> bool {
        // A server that could not read the question omits it.
        self.id == id && (self.question.is_none() || self.question == question)
    }

    fn request(&self) -> Box<Request> {
        let path = if self.domain.is_empty() { String::new() } else { format!("{} {}", self.what, self.domain) };
        Box::new(Request { method: Arc::from(self.what), path: Arc::from(path), cut: false, ..*Request::unnamed() })
    }
}

/// Types by number (IANA's registry); others share one name.
fn kind_name(kind: u16) -> &'static str {
    match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        35 => "NAPTR",
        39 => "DNAME",
        43 => "DS",
        44 => "SSHFP",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        52 => "TLSA",
        64 => "SVCB",
        65 => "HTTPS",
        99 => "SPF",
        251 => "IXFR",
        252 => "AXFR",
        255 => "ANY",
        256 => "URI",
        257 => "CAA",
        _ => "_OTHER",
    }
}

/// Name of a response code that is a failure (RFC 6895 §2.3).
fn failure(code: u16) -> Option<&'static str> {
    Some(match code {
        0 => return None,
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        6 => "YXDOMAIN",
        7 => "YXRRSET",
        8 => "NXRRSET",
        9 => "NOTAUTH",
        10 => "NOTZONE",
        _ => "_OTHER",
    })
}

/// Whether these are the first bytes of a message on TCP: its length, a header most bits of which must be zero, and a
/// question.
fn detect(bytes: &[u8]) -> Detected {
    let Some(len) = number(bytes, 0).map(usize::from) else {
        // Longer questions do not exist.
        return if bytes.first().is_none_or(|high| *high <= 2) { Detected::NeedMore } else { Detected::No };
    };
    let short = bytes.len() < LENGTH + HEADER;
    if len < HEADER + 5 || (short && len > 3 * 256) {
        return Detected::No;
    }
    let field = |at: usize| number(bytes, LENGTH + at);
    let flags = field(2);
    let is_reply = flags.is_some_and(|flags| flags & 0x8000 != 0);
    let fits = flags.is_none_or(|flags| {
        let (operation, reserved, code) = (flags >> 11 & 15, flags >> 6 & 1, flags & 15);
        matches!(operation, 0 | 4 | 5) && reserved == 0 && code <= 10 && (is_reply || flags & 0x068f == 0)
    });
    let counts = field(4).is_none_or(|questions| questions == 1)
        && (is_reply || field(6).is_none_or(|answers| answers == 0) && field(8).is_none_or(|records| records <= 1))
        && field(10).is_none_or(|more| more <= if is_reply { 64 } else { 2 });
    if !fits || !counts {
        return Detected::No;
    }
    if short {
        return Detected::NeedMore;
    }
    let message = bytes.get(LENGTH..).unwrap_or_default();
    let message = message.get(..len).unwrap_or(message);
    let question = message.get(HEADER..).unwrap_or_default();
    let Some((labels, rest)) = name(question) else {
        // The name may be cut here, but its captured part must be valid.
        let could = message.len() < len.min(QUESTION) && names::could_go_on(question);
        return if could { Detected::NeedMore } else { Detected::No };
    };
    if !names::is_plain(labels) {
        return Detected::No;
    }
    let alone = !is_reply && field(8) == Some(0) && field(10) == Some(0);
    match (number(rest, 0), number(rest, 2)) {
        (Some(1..), Some(1 | 3 | 4 | 254 | 255)) if !alone || len == HEADER + labels.len() + 4 => {
            if is_reply {
                Detected::Reply
            } else {
                Detected::Request
            }
        }
        (Some(_), Some(_)) => Detected::No,
        _ if message.len() < len => Detected::NeedMore,
        _ => Detected::No,
    }
}

/// Messages on TCP (RFC 7766): any number of questions may wait, distinguished by their ids.
#[derive(Debug)]
struct Stream;

impl Framed for Stream {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        _: &Settings,
    ) -> Front {
        let Some(len) = number(bytes, 0).map(usize::from) else {
            return if cut { Front::Invalid } else { Front::Need(LENGTH) };
        };
        if len < HEADER {
            return Front::Invalid;
        }
        let wanted = LENGTH + len.min(QUESTION);
        if bytes.len() < wanted && !cut {
            return Front::Need(wanted);
        }
        let content = bytes.get(LENGTH..).unwrap_or_default();
        let message = Message::read(content.get(..len).unwrap_or(content));
        let (Some(id), Some(flags)) = (number(content, 0), number(content, 2)) else { return Front::Invalid };
        if (flags & 0x8000 != 0) != (way == Way::Reply) {
            return Front::Invalid;
        }
        let key = u64::from(id) + 1;
        let meaning = match (way, message) {
            (Way::Request, Some(message)) => {
                FrameMeaning::Begun { request: message.request(), protocol: ProtocolId::Dns, length: None }
            }
            (Way::Request, None) => {
                FrameMeaning::Begun { request: Request::unnamed(), protocol: ProtocolId::Dns, length: None }
            }
            // A zone transfer in several messages: the first message has already answered the request.
            (Way::Reply, _) if expected(key).is_none() => FrameMeaning::Nothing,
            (Way::Reply, _) => {
                let reply = Reply { status: 0, failure: failure(flags & 15), interim: false };
                FrameMeaning::Replied { reply, length: None }
            }
        };
        let key = if matches!(meaning, FrameMeaning::Nothing) { 0 } else { key };
        Front::Frame(Frame { len: (LENGTH + len) as u64, key, body: 0, meaning, end: true })
    }

    fn lost(&mut self, _: Way) {}

    fn find(&self, way: Way, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> Option<usize> {
        let wanted = if way == Way::Request { Detected::Request } else { Detected::Reply };
        (0..bytes.len()).find(|at| bytes.get(*at..).is_some_and(|rest| detect(rest) == wanted))
    }

    fn overhead(&self) -> u64 {
        LENGTH as u64
    }
}

#[cfg(test)]
mod tests;
