//! CQL's native protocol (Apache Cassandra's `native_protocol_v3.spec` to `v5.spec`), as Cassandra and ScyllaDB speak
//! it.
//!
//! A span is a request with its reply, paired by the stream id. Of statements only summaries are kept ([`super::sql`];
//! CQL looks like SQL), of errors the number; values, passwords and compressed bodies are skipped unread.

mod envelope;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_model::ProtocolId;

use self::envelope::{BEFORE, BEHIND, Envelope, HEADER, PACKED, PAYLOAD, Segment, TRACING, WARNING};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::sql::{Dialect, OTHER, SQL_LIMIT, Summary, shared, summarize};
use super::{Detected, ExpectedReply, Protocol, Reply, Request, Settings};

/// Opcodes of envelopes.
const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const OPTIONS: u8 = 0x05;
const QUERY: u8 = 0x07;
const RESULT: u8 = 0x08;
const PREPARE: u8 = 0x09;
const EXECUTE: u8 = 0x0a;
const REGISTER: u8 = 0x0b;
const BATCH: u8 = 0x0d;

/// RESULT of PREPARE.
const PREPARED: i32 = 4;
/// Bytes of an envelope that are read.
const LOOK: usize = SQL_LIMIT + 64;
/// Name of a compressed statement.
const PACKED_NAME: &str = "_COMPRESSED";
/// Most prepared statements remembered per connection, and most that wait for their id.
const STATEMENTS: usize = 1024;
const PREPARING: usize = 64;
/// Approximate size of one, in bytes.
const EACH: usize = 32;
/// Longest id of a prepared statement remembered, in bytes; servers use 16.
const NUMBER: usize = 32;
/// Most statements of a batch that are read.
const IN_BATCH: usize = 64;

/// Errors by number (§9, "Error codes"), formatted as in the specification.
const ERRORS: &[(i32, &str)] = &[
    (0x0000, "0x0000"),
    (0x000a, "0x000A"),
    (0x0100, "0x0100"),
    (0x1000, "0x1000"),
    (0x1001, "0x1001"),
    (0x1002, "0x1002"),
    (0x1003, "0x1003"),
    (0x1100, "0x1100"),
    (0x1200, "0x1200"),
    (0x1300, "0x1300"),
    (0x1400, "0x1400"),
    (0x1500, "0x1500"),
    (0x1600, "0x1600"),
    (0x1700, "0x1700"),
    (0x2000, "0x2000"),
    (0x2100, "0x2100"),
    (0x2200, "0x2200"),
    (0x2300, "0x2300"),
    (0x2400, "0x2400"),
    (0x2500, "0x2500"),
];

/// The protocol.
#[derive(Debug)]
pub struct Cassandra;

impl Protocol for Cassandra {
    fn id(&self) -> ProtocolId {
        ProtocolId::Cassandra
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let found = match Segment::read(bytes) {
            Some(Segment::Plain { whole: true, .. }) => {
                let inner = bytes.get(BEFORE..).unwrap_or_default();
                if inner.len() < HEADER {
                    return Detected::NeedMore;
                }
                Envelope::read(inner).filter(|envelope| envelope.version == 5)
            }
            _ => Envelope::read(bytes),
        };
        match found {
            Some(envelope) if envelope.is_reply => Detected::Reply,
            Some(_) => Detected::Request,
            None if bytes.len() >= HEADER + BEFORE => Detected::No,
            None if bytes.len() >= HEADER && !matches!(Segment::read(bytes), Some(Segment::Plain { .. })) => {
                Detected::No
            }
            // Bytes that begin with neither a version nor a segment header with a valid checksum are something else,
            // however few.
            None if bytes.first().is_none_or(|version| matches!(version & 0x7f, 3..=5)) => Detected::NeedMore,
            None if matches!(Segment::read(bytes), Some(Segment::Plain { .. })) => Detected::NeedMore,
            None => Detected::No,
        }
    }

    fn framed(&self, _: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Streams::default()))
    }
}

/// Reads consecutive values; `None` if one is cut.
struct CassandraReader<'a>(&'a [u8]);

impl<'a> CassandraReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn short(&mut self) -> Option<usize> {
        self.take(2)?.first_chunk().map(|bytes| usize::from(u16::from_be_bytes(*bytes)))
    }

    fn long(&mut self) -> Option<i32> {
        self.take(4)?.first_chunk().map(|bytes| i32::from_be_bytes(*bytes))
    }

    /// Bytes or text with a 16-bit length.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.short()?;
        self.take(len)
    }

    /// A value; null counts as empty.
    fn value(&mut self) -> Option<()> {
        let len = usize::try_from(self.long()?).unwrap_or_default();
        self.take(len).map(|_| ())
    }

    /// A statement, and whether it is cut.
    fn statement(&mut self) -> Option<(&'a [u8], bool)> {
        let len = usize::try_from(self.long()?).ok()?;
        let there = len.min(self.0.len());
        let text = self.take(there)?;
        Some((text, there < len))
    }

    /// Skips the fields before a body, according to its envelope's flags.
    fn preamble(&mut self, envelope: Envelope) -> Option<()> {
        if envelope.is_reply && envelope.flags & TRACING != 0 {
            self.take(16)?;
        }
        if envelope.is_reply && envelope.flags & WARNING != 0 {
            for _ in 0..self.short()? {
                self.text()?;
            }
        }
        if envelope.flags & PAYLOAD != 0 {
            for _ in 0..self.short()? {
                self.text()?;
                self.value()?;
            }
        }
        Some(())
    }
}

/// Connection state from earlier envelopes that later ones depend on.
#[derive(Debug, Default)]
struct Streams {
    /// Prepared statements by the hash of their id.
    statements: FxHashMap<u64, Arc<Summary>>,
    /// Statements that wait for their id, by stream.
    preparing: FxHashMap<u64, Arc<Summary>>,
    requests: Lane,
    replies: Lane,
}

/// Position of a direction in its segments.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Bytes left of the current segment, filled by other envelopes.
    left: u32,
    /// The envelope that continues in the next segment, and its bytes still to come; 0: none.
    key: u32,
    rest: u32,
    /// Bytes of it in each segment but the last.
    size: u32,
}

impl Lane {
    /// Numbers beyond 32 bits become 0: lengths never need more.
    fn new(left: u64, key: u64, rest: u64, size: u64) -> Self {
        let [left, key, rest, size] = [left, key, rest, size].map(|number| u32::try_from(number).unwrap_or(0));
        Self { left, key, rest, size }
    }
}

fn key(stream: i16) -> u64 {
    u64::try_from(i32::from(stream) + 1).unwrap_or_default()
}

fn named(method: Arc<str>, path: Arc<str>) -> Box<Request> {
    Box::new(Request { method, path, cut: false, ..*Request::unnamed() })
}

fn plain(name: &str) -> Box<Request> {
    named(shared(name), shared(name))
}

fn of(Summary { operation, text }: Summary) -> Box<Request> {
    named(operation, text)
}

fn summary((text, cut): (&[u8], bool)) -> Summary {
    summarize(text, cut, Dialect::PostgreSql)
}

/// Hash of a statement id, which usually has 16 bytes.
fn hash(number: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    number.hash(&mut hasher);
    hasher.finish()
}

impl Streams {
    /// The statement prepared under an id.
    fn statement(&self, number: &[u8]) -> Option<Summary> {
        self.statements.get(&hash(number)).map(|summary| Summary::clone(summary))
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        match way {
            Way::Request => &mut self.requests,
            Way::Reply => &mut self.replies,
        }
    }

    fn request(&mut self, envelope: Envelope, body: &[u8]) -> Box<Request> {
        match envelope.kind {
            STARTUP => return plain("STARTUP"),
            OPTIONS => return plain("OPTIONS"),
            REGISTER => return plain("REGISTER"),
            QUERY | PREPARE | EXECUTE | BATCH if envelope.flags & PACKED != 0 => return plain(PACKED_NAME),
            QUERY | PREPARE | EXECUTE | BATCH => {}
            _ => return plain("AUTHENTICATE"),
        }
        let mut body = CassandraReader(body);
        let found = body.preamble(envelope).and_then(|()| match envelope.kind {
            QUERY => body.statement().map(|statement| of(summary(statement))),
            PREPARE => {
                let summary = summary(body.statement()?);
                let text = Arc::from(format!("PREPARE {}", summary.text));
                if self.preparing.len() < PREPARING {
                    self.preparing.insert(key(envelope.stream), summary.prepared());
                }
                Some(named(shared("PREPARE"), text))
            }
            EXECUTE => self.statement(body.text()?).map(of),
            _ => self.batch(&mut body),
        });
        found.unwrap_or_else(|| Box::new(Request { cut: false, ..*Request::unnamed() }))
    }

    /// Statements run as a batch: named by what all of them do, as far as captured.
    fn batch(&self, body: &mut CassandraReader<'_>) -> Option<Box<Request>> {
        body.byte()?;
        let count = body.short()?;
        let mut first: Option<Summary> = None;
        let mut same = true;
        for _ in 0..count.min(IN_BATCH) {
            let next = match body.byte() {
                Some(0) => body.statement().map(summary),
                Some(_) => body.text().and_then(|number| self.statement(number)),
                None => break,
            };
            match (&first, next) {
                (None, next) => first = Some(next?),
                (Some(first), Some(next)) => same &= next.text == first.text,
                (Some(_), None) => break,
            }
            let values = (|| {
                for _ in 0..body.short()? {
                    body.value()?;
                }
                Some(())
            })();
            if values.is_none() {
                break;
            }
        }
        let first = first?;
        let text = if same { Arc::from(format!("BATCH {}", first.text)) } else { shared("BATCH") };
        let operation = if same { shared(&format!("BATCH {}", first.operation)) } else { shared("BATCH") };
        Some(named(operation, text))
    }

    /// A segment with the next `payload` bytes of the envelope that continues.
    fn part(&mut self, way: Way, payload: u64) -> Frame {
        let lane = self.lane(way);
        let key = u64::from(lane.key);
        let rest = lane.rest.saturating_sub(u32::try_from(payload).unwrap_or(u32::MAX));
        lane.rest = rest;
        Frame { len: BEFORE as u64 + payload + BEHIND, key, body: payload, meaning: FrameMeaning::Part, end: rest == 0 }
    }

    /// The failure reported in a reply.
    fn reply(&mut self, envelope: Envelope, body: &[u8]) -> Option<&'static str> {
        let preparing = self.preparing.remove(&key(envelope.stream));
        if envelope.flags & PACKED != 0 {
            return (envelope.kind == ERROR).then_some(OTHER);
        }
        let mut body = CassandraReader(body);
        let before = body.preamble(envelope);
        match envelope.kind {
            ERROR => {
                let code = before.and_then(|()| body.long());
                let known = code.and_then(|code| ERRORS.iter().find(|(known, _)| *known == code));
                Some(known.map_or(OTHER, |(_, name)| name))
            }
            RESULT if body.long() == Some(PREPARED) => {
                if let (Some(number), Some(summary)) = (body.text().filter(|number| number.len() <= NUMBER), preparing)
                    && self.statements.len() < STATEMENTS
                {
                    self.statements.insert(hash(number), summary);
                }
                None
            }
            _ => None,
        }
    }

    /// Classifies an envelope, whose part to read is in `bytes`.
    fn meaning(&mut self, envelope: Envelope, bytes: &[u8]) -> (u64, FrameMeaning) {
        let body = bytes.get(HEADER..).unwrap_or_default();
        let body = body.get(..body.len().min((envelope.len as usize).min(LOOK) - HEADER)).unwrap_or_default();
        if !envelope.is_reply {
            let request = self.request(envelope, body);
            return (
                key(envelope.stream),
                FrameMeaning::Begun { request, protocol: ProtocolId::Cassandra, length: None },
            );
        }
        if envelope.stream < 0 {
            return (0, FrameMeaning::Nothing);
        }
        let failure = self.reply(envelope, body);
        (
            key(envelope.stream),
            FrameMeaning::Replied { reply: Reply { status: 0, failure, interim: false }, length: None },
        )
    }
}

fn nothing(len: u64) -> Front {
    Front::Frame(Frame { len, key: 0, body: 0, meaning: FrameMeaning::Nothing, end: false })
}

impl Framed for Streams {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        _: &dyn Fn(u64) -> Option<ExpectedReply>,
        _: &Settings,
    ) -> Front {
        let lane = *self.lane(way);
        if bytes.len() < HEADER {
            return Front::Need(HEADER);
        }
        // At a segment's beginning: bytes before the envelope, and those left after it.
        let lane_left = u64::from(lane.left);
        let segment = if lane_left == 0 { Segment::read(bytes) } else { None };
        let (before, payload, whole) = match segment {
            Some(Segment::Packed(len)) => return nothing(len),
            Some(Segment::Plain { payload, whole }) => (BEFORE, Some(payload), whole),
            None => (0, Some(lane_left).filter(|left| *left > 0), true),
        };
        if let (Some(payload), false, 1..) = (payload, whole, lane.rest) {
            return Front::Frame(self.part(way, payload));
        }
        if bytes.len() < before + HEADER {
            return if cut { Front::Invalid } else { Front::Need(before + HEADER) };
        }
        let inner = bytes.get(before..).unwrap_or_default();
        let Some(envelope) = Envelope::read(inner).filter(|envelope| envelope.is_reply == (way == Way::Reply)) else {
            return Front::Invalid;
        };
        // At most to the end of the segment.
        let look = envelope.len.min(LOOK as u64).min(if whole { u64::MAX } else { payload.unwrap_or(u64::MAX) });
        let need = before + look as usize;
        if bytes.len() < need && !cut {
            return Front::Need(need);
        }
        let front = inner.get(..inner.len().min(look as usize)).unwrap_or_default();
        let (key, meaning) = self.meaning(envelope, front);
        let held = payload.map_or(envelope.len, |payload| envelope.len.min(payload));
        let left = payload.map_or(0, |payload| payload - held);
        let rest = envelope.len - held;
        *self.lane(way) = Lane::new(left, key, rest, held);
        let behind = if payload.is_some() && left == 0 { BEHIND } else { 0 };
        let body = if way == Way::Reply { held.saturating_sub(HEADER as u64) } else { 0 };
        Front::Frame(Frame { len: before as u64 + held + behind, key, body, meaning, end: rest == 0 })
    }

    fn goes_on(&mut self, way: Way) -> Option<Frame> {
        let Lane { left, rest, size, .. } = *self.lane(way);
        // The segments of one envelope follow each other directly.
        (left == 0 && rest > 0 && size > 0).then(|| self.part(way, u64::from(rest.min(size))))
    }

    fn lost(&mut self, way: Way) {
        *self.lane(way) = Lane::default();
        if way == Way::Request {
            // A stream id may be reused for another statement.
            self.preparing.clear();
        }
    }

    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize> {
        let lane = if way == Way::Request { &self.requests } else { &self.replies };
        let goes_on = lane.rest > 0;
        let fits = |at: usize| -> Option<u64> {
            let envelope = Envelope::read(bytes.get(at..)?)?;
            let known = way == Way::Request || envelope.stream < 0 || open(key(envelope.stream));
            (known && envelope.is_reply == (way == Way::Reply)).then_some(envelope.len)
        };
        (0..bytes.len().saturating_sub(HEADER - 1)).find(|at| {
            match Segment::read(bytes.get(*at..).unwrap_or_default()) {
                Some(Segment::Plain { whole, .. }) => {
                    // Of an envelope that continues, only the next segment is known.
                    return fits(at + BEFORE).is_some() || *at == 0 && !whole && goes_on;
                }
                Some(Segment::Packed(_)) => return true,
                None => {}
            }
            fits(*at).is_some_and(|len| {
                let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len));
                *at == 0 || end.is_some_and(|end| end == bytes.len() || fits(end).is_some())
            })
        })
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let before = if Segment::read(bytes).is_some() { BEFORE } else { 0 };
        let envelope = bytes.get(before..).and_then(Envelope::read);
        envelope.is_some_and(|envelope| envelope.is_reply && envelope.stream >= 0 && !open(key(envelope.stream)))
    }

    fn wants(&self) -> u16 {
        // Clients and servers put many envelopes into one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn kept_bytes(&self) -> usize {
        (self.statements.len() + self.preparing.len()) * EACH
    }

    fn rest(&mut self) {
        self.statements.shrink_to_fit();
        self.preparing.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
