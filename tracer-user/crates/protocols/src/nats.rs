//! NATS (client protocol): lines, some followed by messages.
//!
//! A publication is only answered in verbose mode (`+OK`); otherwise it is complete once sent. A publication whose
//! reply subject this connection subscribes to is a request: the message to that subject answers it. A delivery with a
//! reply subject is answered by a publication to that subject, as JetStream's acknowledgements are; without one, it is
//! complete on arrival. A message that carries an answer is not a span of its own.

mod inboxes;
mod lines;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use tracer_model::ProtocolId;

use self::inboxes::Inboxes;
use self::lines::{Line, Sent, header, status};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::messaging::{CONNECT, DELIVER, PUBLISH, REQUEST, request};
use super::{Detected, ExpectedReply, Protocol, Reply, Settings, context};

/// Longest message header waited for, in bytes.
const HEADER: usize = 4096;
/// Most operations that wait for their `+OK`.
const VERBOSE: usize = 1024;
/// Subject of requests for JetStream messages: these arrive under their own subjects, as deliveries.
const PULL: &[u8] = b"$JS.API.CONSUMER.MSG.NEXT.";
/// Subject prefix of answers that acknowledge a JetStream message.
const ACK: &[u8] = b"$JS.ACK.";

/// Kind of exchange a key stands for.
#[derive(Clone, Copy)]
enum ExchangeKind {
    /// Unanswered publication.
    Publish = 1,
    /// Unanswered delivery.
    Deliver,
    /// The client's CONNECT.
    Connect,
    /// A publication waiting for `+OK`.
    Verbose,
    /// A publication answered by a message, matched by subject.
    Request,
    /// A delivery answered by a message, matched by subject.
    Answered,
}

impl ExchangeKind {
    fn key(self, rest: u64) -> u64 {
        (self as u64) << 60 | rest & ((1 << 60) - 1)
    }

    fn of(self, subject: &[u8]) -> u64 {
        self.key(hash(subject))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The protocol.
#[derive(Debug)]
pub struct Nats;

impl Protocol for Nats {
    fn id(&self) -> ProtocolId {
        ProtocolId::Nats
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        lines::detect(bytes)
    }

    fn framed(&self, joined: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Lines { verbose: !joined, inboxes: Inboxes::new(joined), pending: VecDeque::new(), next: 0 }))
    }
}

/// Both directions of one connection.
#[derive(Debug)]
struct Lines {
    /// Whether the server confirms client operations: until the client disables it.
    verbose: bool,
    inboxes: Inboxes,
    /// Keys of operations waiting for a confirmation, oldest first; 0 for those without a span.
    pending: VecDeque<u64>,
    next: u64,
}

impl Lines {
    /// Notes a client operation that is confirmed in verbose mode.
    fn expect(&mut self, key: u64) {
        if self.verbose && self.pending.len() < VERBOSE {
            self.pending.push_back(key);
        } else if self.verbose {
            // Which of them is confirmed next is no longer known.
            self.verbose = false;
            self.pending = VecDeque::new();
        }
    }

    /// Handles a message to the server, or from it to a client.
    fn message(
        &mut self,
        way: Way,
        sent: &Sent<'_>,
        payload: &[u8],
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> (u64, FrameMeaning) {
        let head = payload.get(..payload.len().min(sent.header)).unwrap_or_default();
        let (answered, answers, plain) = match way {
            Way::Request => (ExchangeKind::Request, ExchangeKind::Answered, ExchangeKind::Publish),
            Way::Reply => (ExchangeKind::Answered, ExchangeKind::Request, ExchangeKind::Deliver),
        };
        let to = answers.of(sent.subject);
        if expected(to).is_some() {
            let failure = match way {
                Way::Request if sent.subject.starts_with(ACK) => lines::refusal(payload),
                _ => status(head),
            };
            if way == Way::Request {
                self.expect(0);
            }
            return (to, FrameMeaning::Replied { reply: Reply { status: 0, failure, interim: false }, length: None });
        }
        if way == Way::Reply && sent.header == sent.total && lines::is_status(head) {
            // A status reply from the server itself, for no particular span.
            return (0, FrameMeaning::Nothing);
        }
        let awaited = sent.reply.filter(|reply| match way {
            Way::Request => !sent.subject.starts_with(PULL) && self.inboxes.take(reply),
            Way::Reply => true,
        });
        // Two subscriptions of a connection get the same message.
        let key = awaited.map(|reply| answered.of(reply)).filter(|key| expected(*key).is_none());
        let confirmed = way == Way::Request && self.verbose;
        let key = match key {
            None if confirmed => {
                self.next += 1;
                ExchangeKind::Verbose.key(self.next)
            }
            None => plain.key(0),
            Some(key) => key,
        };
        if way == Way::Request {
            self.expect(if key >> 60 == ExchangeKind::Verbose as u64 { key } else { 0 });
        }
        let operation = match way {
            Way::Reply => DELIVER,
            Way::Request if awaited.is_some() => REQUEST,
            Way::Request => PUBLISH,
        };
        let plain = key == plain.key(0);
        let expected =
            ExpectedReply { silent: plain, optional: way == Way::Reply && !plain, ..ExpectedReply::default() };
        let mut request = request(operation, sent.subject, expected, settings);
        request.traceparent = header(head, b"traceparent").and_then(context::traceparent);
        (key, FrameMeaning::Begun { request, protocol: ProtocolId::Nats, length: None })
    }

    /// Handles a refusal from the server.
    fn refused(&mut self, text: &[u8], expected: &dyn Fn(u64) -> Option<ExpectedReply>) -> FrameMeaning {
        let connect = ExchangeKind::Connect.key(0);
        let key = if expected(connect).is_some() { connect } else { self.pending.pop_front().unwrap_or(0) };
        settled(key, Some(lines::error(text)))
    }
}

fn settled(key: u64, failure: Option<&'static str>) -> FrameMeaning {
    if key == 0 { FrameMeaning::Nothing } else { FrameMeaning::Settled { keys: key..=key, status: 0, failure } }
}

impl Framed for Lines {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        if way == Way::Request && matches!(bytes, [0x16, 3, ..]) {
            return Front::Tls;
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return if lines::may_begin(way, bytes) { Front::Line } else { Front::Invalid };
        };
        let (front, payload) = bytes.split_at(end + 1);
        let Some(line) = Line::read(front, way) else { return Front::Invalid };
        let mut len = front.len() as u64;
        let (key, meaning) = match line {
            Line::Sent(sent) => {
                // Needed of the message: its header, and whether an acknowledgement asks JetStream to deliver again.
                let acks = way == Way::Request && sent.subject.starts_with(ACK);
                let wanted = if acks { sent.total.min(8) } else { sent.header.min(HEADER) };
                if payload.len() < wanted && !cut {
                    return Front::Need(front.len() + wanted);
                }
                len += sent.total as u64 + 2;
                let payload = payload.get(..payload.len().min(sent.total)).unwrap_or_default();
                self.message(way, &sent, payload, expected, settings)
            }
            Line::Connect(options) => {
                self.verbose = lines::is_verbose(options);
                let key = ExchangeKind::Connect.key(0);
                self.pending = VecDeque::new();
                self.expect(key);
                // A client that does not request verbose mode gets no answer.
                let expected = ExpectedReply { optional: true, ..ExpectedReply::default() };
                let request = request(CONNECT, b"", expected, settings);
                (key, FrameMeaning::Begun { request, protocol: ProtocolId::Nats, length: None })
            }
            Line::Subscribe(subject) => {
                self.inboxes.listen(subject);
                self.expect(0);
                (0, FrameMeaning::Nothing)
            }
            Line::Unsubscribe => {
                self.expect(0);
                (0, FrameMeaning::Nothing)
            }
            Line::Pong if way == Way::Reply => (0, settled(ExchangeKind::Connect.key(0), None)),
            Line::Confirmed => (0, settled(self.pending.pop_front().unwrap_or(0), None)),
            Line::Refused(text) => (0, self.refused(text, expected)),
            Line::Other | Line::Pong => (0, FrameMeaning::Nothing),
        };
        let end = matches!(meaning, FrameMeaning::Begun { .. } | FrameMeaning::Replied { .. });
        Front::Frame(Frame { len, key, body: len - front.len() as u64, meaning, end })
    }

    fn lost(&mut self, way: Way) {
        // Which operation the next confirmation answers is unknown, and so are the subscriptions.
        self.verbose = false;
        self.pending = VecDeque::new();
        if way == Way::Request {
            self.inboxes.miss();
        }
    }

    fn find(&self, way: Way, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> Option<usize> {
        lines::find(way, bytes)
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        // An answer to a client, in a message.
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return false };
        match Line::read(bytes.get(..=end).unwrap_or_default(), Way::Reply) {
            Some(Line::Sent(sent)) => {
                sent.subject.starts_with(inboxes::USUAL)
                    && self.inboxes.take(sent.subject)
                    && !open(ExchangeKind::Request.of(sent.subject))
            }
            _ => false,
        }
    }

    fn is_mutual(&self) -> bool {
        true
    }

    fn wants(&self) -> u16 {
        // Many messages fit in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn rest(&mut self) {
        self.inboxes.rest();
        self.pending.shrink_to_fit();
    }

    fn kept_bytes(&self) -> usize {
        self.inboxes.bytes() + self.pending.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests;
