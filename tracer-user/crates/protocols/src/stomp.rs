//! STOMP 1.0 to 1.2 (stomp.github.io): header lines as in HTTP, and a body that ends with a zero byte.
//!
//! A receipt answers a frame that asks for one; without a receipt, a SEND is complete once sent, and other frames are
//! not spans. A delivery is answered by its acknowledgement or refusal if its subscription asks for one: individually,
//! or cumulatively. CONNECTED answers the login. After an ERROR the server disconnects, so an ERROR answers everything
//! a client waits for.

mod frames;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use tracer_model::ProtocolId;

use self::frames::{Head, StompCommand};
use super::framed::{Frame, FrameMeaning, Framed, Front, Way};
use super::messaging::{CONNECT, DELIVER, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, request};
use super::{Detected, ExpectedReply, Protocol, Request, Settings, context};

/// Most subscriptions remembered per connection.
const SUBSCRIPTIONS: usize = 64;
/// Most bytes of an error's text waited for.
const ERROR: usize = 512;
/// Most deliveries per connection that wait for their acknowledgement.
const UNACKNOWLEDGED: usize = 1024;

/// Kind of exchange a key stands for.
#[derive(Clone, Copy)]
enum Of {
    /// A publication without a receipt.
    Sent = 1,
    /// A delivery that is not acknowledged.
    Delivered,
    /// The client's login.
    Connect,
    /// A frame waiting for a receipt, by the receipt's name.
    Receipt,
    /// A delivery waiting for its acknowledgement: its subscription's number, then its own.
    Unacknowledged,
}

/// Bits of a delivery's number within its subscription.
const NUMBER: u32 = 44;

impl Of {
    fn key(self, rest: u64) -> u64 {
        (self as u64) << 60 | rest & ((1 << 60) - 1)
    }

    fn of(self, name: &[u8]) -> u64 {
        self.key(hash(name))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The protocol.
#[derive(Debug)]
pub struct Stomp;

impl Protocol for Stomp {
    fn id(&self) -> ProtocolId {
        ProtocolId::Stomp
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        frames::detect(bytes)
    }

    fn framed(&self, joined: bool) -> Option<Box<dyn Framed>> {
        let subscriptions = Vec::new();
        Some(Box::new(Frames { subscriptions, waiting: VecDeque::new(), whole: !joined, next: 0, unended: [None; 2] }))
    }
}

/// How a subscription's messages are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Never,
    UpTo,
    Each,
}

/// A subscription with acknowledgements.
#[derive(Debug)]
struct Subscription {
    /// Hash of its id, or of its destination if it has none (1.0).
    name: u64,
    number: u16,
    mode: Mode,
    next: u64,
}

/// A delivery waiting for its acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Hash of the name that acknowledges it: `ack` in 1.2, otherwise `message-id`.
    name: u64,
    key: u64,
}

/// Both directions of one connection.
#[derive(Debug)]
struct Frames {
    subscriptions: Vec<Subscription>,
    /// Oldest first.
    waiting: VecDeque<Waiting>,
    /// No subscription was missed.
    whole: bool,
    /// Number of the next subscription.
    next: u16,
    /// Per direction, the exchange of a body that continues to the next zero byte.
    unended: [Option<u64>; 2],
}

impl Frames {
    /// Notes a client's subscription.
    fn subscribe(&mut self, head: &Head<'_>) {
        let Some(name) = head.subscription() else { return };
        let mode = match head.get(b"ack") {
            Some(b"client") => Mode::UpTo,
            Some(b"client-individual") => Mode::Each,
            _ => Mode::Never,
        };
        let name = hash(name);
        self.subscriptions.retain(|known| known.name != name);
        if self.subscriptions.len() >= SUBSCRIPTIONS {
            self.subscriptions.remove(0);
            self.whole = false;
        }
        self.next = self.next.wrapping_add(1);
        self.subscriptions.push(Subscription { name, number: self.next, mode, next: 0 });
    }

    /// A message goes to a client; returns its key if it needs an acknowledgement.
    fn deliver(&mut self, head: &Head<'_>) -> Option<u64> {
        let name = head.get(b"ack").or_else(|| head.get(b"message-id"))?;
        let of = hash(head.get(b"subscription").or_else(|| head.get(b"destination")).unwrap_or_default());
        let key = match self.subscriptions.iter_mut().find(|known| known.name == of) {
            Some(known) if known.mode == Mode::Never => return None,
            Some(known) => {
                known.next += 1;
                Of::Unacknowledged.key(u64::from(known.number) << NUMBER | known.next & ((1 << NUMBER) - 1))
            }
            // If the subscription was missed, only version 1.2 shows that it acknowledges; its messages count
            // individually.
            None if !self.whole && head.get(b"ack").is_some() => {
                Of::Unacknowledged.key(hash(name) & ((1 << NUMBER) - 1))
            }
            None => return None,
        };
        if self.waiting.len() >= UNACKNOWLEDGED {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { name: hash(name), key });
        Some(key)
    }

    /// Handles an acknowledgement or refusal: of one message, or cumulatively if its subscription says so.
    fn acknowledge(&mut self, head: &Head<'_>, failure: Option<&'static str>) -> FrameMeaning {
        let Some(name) = acknowledged(head).map(hash) else { return FrameMeaning::Nothing };
        let Some(at) = self.waiting.iter().position(|waiting| waiting.name == name) else {
            return FrameMeaning::Nothing;
        };
        let Some(key) = self.waiting.get(at).map(|waiting| waiting.key) else { return FrameMeaning::Nothing };
        let first = key >> NUMBER << NUMBER;
        let number = (key >> NUMBER) as u16;
        let mode = self.subscriptions.iter().find(|known| known.number == number).map(|known| known.mode);
        let keys = if mode == Some(Mode::UpTo) { first..=key } else { key..=key };
        self.waiting.retain(|waiting| !keys.contains(&waiting.key));
        FrameMeaning::Settled { keys, status: 0, failure }
    }

    /// Classifies a frame by its head; returns the key of its exchange, too.
    fn meaning(&mut self, command: StompCommand, head: &Head<'_>, settings: &Settings) -> (u64, FrameMeaning) {
        let destination = head.destination();
        let receipt = head.get(b"receipt").map(|name| Of::Receipt.of(name));
        let begun = |operation: &str, silent| {
            let expected = ExpectedReply { silent, ..ExpectedReply::default() };
            let mut request = request(operation, &destination, expected, settings);
            request.traceparent = head.get(b"traceparent").and_then(context::traceparent);
            says_begun(request)
        };
        match command {
            StompCommand::Connect => (Of::Connect.key(0), begun(CONNECT, false)),
            StompCommand::Connected => (0, settled(Of::Connect.key(0), None)),
            StompCommand::Send => (receipt.unwrap_or(Of::Sent.key(0)), begun(PUBLISH, receipt.is_none())),
            StompCommand::Message => {
                let key = self.deliver(head);
                (key.unwrap_or(Of::Delivered.key(0)), begun(DELIVER, key.is_none()))
            }
            StompCommand::Receipt => match head.get(b"receipt-id") {
                Some(name) => (0, settled(Of::Receipt.of(name), None)),
                None => (0, FrameMeaning::Nothing),
            },
            StompCommand::Error => {
                let failure = Some(frames::failure(head.get(b"message").unwrap_or_default()));
                let keys = match head.get(b"receipt-id") {
                    Some(name) => Of::Receipt.of(name)..=Of::Receipt.of(name),
                    None => Of::Connect.key(0)..=Of::Receipt.key(u64::MAX),
                };
                (0, FrameMeaning::Settled { keys, status: 0, failure })
            }
            StompCommand::Ack => (0, self.acknowledge(head, None)),
            StompCommand::Nack => (0, self.acknowledge(head, Some("NACK"))),
            StompCommand::Subscribe => {
                self.subscribe(head);
                receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun(SUBSCRIBE, false)))
            }
            StompCommand::Unsubscribe => {
                if let Some(name) = head.subscription().map(hash) {
                    self.subscriptions.retain(|known| known.name != name);
                }
                receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun(UNSUBSCRIBE, false)))
            }
            StompCommand::Begin => receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun("begin", false))),
            StompCommand::Commit => receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun("commit", false))),
            StompCommand::Abort => receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun("abort", false))),
            StompCommand::Disconnect => {
                receipt.map_or((0, FrameMeaning::Nothing), |key| (key, begun("disconnect", false)))
            }
        }
    }

    /// Reads more of a body that ends with a zero byte.
    fn more(&mut self, way: Way, key: u64, bytes: &[u8], cut: bool) -> Front {
        let zero = memchr::memchr(0, bytes);
        let len = zero.map_or(bytes.len(), |at| at + 1);
        let end = zero.is_some() || cut;
        if end {
            self.unended[way as usize] = None;
        }
        let body = (len - usize::from(zero.is_some())) as u64;
        let meaning = if key == 0 { FrameMeaning::Nothing } else { FrameMeaning::Part };
        Front::Frame(Frame { len: len as u64, key, body, meaning, end })
    }
}

/// The name in an acknowledgement.
fn acknowledged<'a>(head: &Head<'a>) -> Option<&'a [u8]> {
    head.get(b"id").or_else(|| head.get(b"message-id"))
}

fn says_begun(request: Box<Request>) -> FrameMeaning {
    FrameMeaning::Begun { request, protocol: ProtocolId::Stomp, length: None }
}

fn settled(key: u64, failure: Option<&'static str>) -> FrameMeaning {
    FrameMeaning::Settled { keys: key..=key, status: 0, failure }
}

impl Framed for Frames {
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        _: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        if let Some(key) = self.unended[way as usize] {
            return self.more(way, key, bytes, cut);
        }
        if way == Way::Request && matches!(bytes, [0x16, 3, ..]) {
            return Front::Tls;
        }
        let pause = frames::pause(bytes);
        if pause > 0 {
            return Front::Frame(Frame {
                len: pause as u64,
                key: 0,
                body: 0,
                meaning: FrameMeaning::Nothing,
                end: false,
            });
        }
        let Some((command, head)) = Head::read(bytes, way) else { return Front::Invalid };
        let Some(command) = command.filter(|_| head.whole || cut) else {
            return if cut { Front::Invalid } else { Front::Line };
        };
        let body = bytes.get(head.len..).unwrap_or_default();
        // Waits for the end of an empty or short body, so that the frame has one final length.
        let room = match command {
            StompCommand::Send | StompCommand::Message => 0,
            StompCommand::Error => ERROR,
            _ => 1,
        };
        if body.len() < room && memchr::memchr(0, body).is_none() && head.length().is_none() && !cut {
            return Front::Need(bytes.len() + 1);
        }
        let (key, meaning) = self.meaning(command, &head, settings);
        let (len, end) = match (head.length(), memchr::memchr(0, body)) {
            _ if !head.whole => (0, true),
            (Some(length), _) => (length + 1, true),
            (None, Some(zero)) => (zero as u64 + 1, true),
            // Its end comes later, or is not captured.
            (None, None) => {
                self.unended[way as usize] =
                    (!cut).then_some(if matches!(meaning, FrameMeaning::Begun { .. }) { key } else { 0 });
                (body.len() as u64, cut)
            }
        };
        Front::Frame(Frame { len: head.len as u64 + len, key, body: len.saturating_sub(1), meaning, end })
    }

    fn lost(&mut self, way: Way) {
        self.unended[way as usize] = None;
        if way == Way::Request {
            self.whole = false;
        }
    }

    fn find(&self, way: Way, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> Option<usize> {
        frames::find(way, bytes)
    }

    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let bytes = bytes.get(frames::pause(bytes)..).unwrap_or_default();
        let head = |way| Head::read(bytes, way).filter(|(_, head)| head.whole);
        match head(Way::Reply).or_else(|| head(Way::Request)) {
            Some((Some(StompCommand::Receipt), head)) => {
                head.get(b"receipt-id").is_some_and(|name| !open(Of::Receipt.of(name)))
            }
            Some((Some(StompCommand::Ack | StompCommand::Nack), head)) if self.whole => {
                let name = acknowledged(&head).map(hash);
                let acknowledges = self.subscriptions.iter().any(|known| known.mode != Mode::Never);
                acknowledges && !self.waiting.iter().any(|waiting| Some(waiting.name) == name)
            }
            _ => false,
        }
    }

    fn is_padding(&self, left: u64) -> bool {
        // RabbitMQ sends a line end after each frame.
        left <= 2 && self.unended == [None; 2]
    }

    fn is_mutual(&self) -> bool {
        true
    }

    fn wants(&self) -> u16 {
        // Many messages fit in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn kept_bytes(&self) -> usize {
        self.subscriptions.capacity() * size_of::<Subscription>() + self.waiting.capacity() * size_of::<Waiting>()
    }

    fn rest(&mut self) {
        self.subscriptions.shrink_to_fit();
        self.waiting.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests;
