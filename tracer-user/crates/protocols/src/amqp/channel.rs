//! One channel: the exchanges under way on it, by key.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use super::methods::{Asks, Method};
use crate::ExpectedReply;
use crate::framed::Way;

/// Most consumers remembered per channel.
const CONSUMERS: usize = 32;

/// Kind of exchange a key stands for. The keys of a channel are contiguous, and those of one kind ordered by tag.
#[derive(Clone, Copy, Debug)]
pub(super) enum Of {
    Unconfirmed = 1,
    Unacknowledged,
    Connect,
    Publish,
    Deliver,
    Method,
}

impl Of {
    pub(super) fn key(self, channel: u16, tag: u64) -> u64 {
        u64::from(channel) << 48 | (self as u64) << 44 | tag & ((1 << 44) - 1)
    }

    /// The key of a tag, or of all tags up to it; tag 0 means all outstanding ones.
    pub(super) fn keys(self, channel: u16, tag: u64, multiple: bool) -> RangeInclusive<u64> {
        let first = if multiple { 0 } else { tag };
        let last = if multiple && tag == 0 { u64::MAX } else { tag };
        self.key(channel, first)..=self.key(channel, last)
    }
}

/// All keys of a channel.
pub(super) fn all(channel: u16) -> RangeInclusive<u64> {
    u64::from(channel) << 48..=u64::from(channel) << 48 | ((1 << 48) - 1)
}

/// State of one channel.
#[derive(Debug)]
pub(super) struct Channel {
    id: u16,
    /// Number of the last publication, in confirm mode.
    confirming: Option<u64>,
    /// Delivery tag of the last message that the broker delivered or handed out.
    delivered: u64,
    /// Methods sent, and how many of them were answered.
    expected: u64,
    replied: u64,
    /// Consumers: hashes of their names, with the lowest bit set for automatic acknowledgement; for the one being
    /// created only that flag.
    consumers: Vec<u64>,
    consuming: Option<bool>,
    /// No frame was missed.
    whole: bool,
    /// A delivery was acknowledged.
    acknowledges: bool,
    /// Destination of the message returned last.
    returned: Option<u16>,
    /// Keys of messages under way, per direction; 0: none.
    pub(super) content: [u64; 2],
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Flag of a consumer with automatic acknowledgement.
const SILENT: u64 = 1;

fn is_same(one: u64, other: u64) -> bool {
    one & !SILENT == other & !SILENT
}

impl Channel {
    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn new(id: u16, whole: bool) -> Self {
        Self {
            id,
            confirming: None,
            delivered: 0,
            expected: 0,
            replied: 0,
            consumers: Vec::new(),
            consuming: None,
            whole,
            acknowledges: false,
            returned: None,
            content: [0; 2],
        }
    }

    /// A message is published; returns its key.
    pub(super) fn publish(&mut self) -> u64 {
        match &mut self.confirming {
            Some(last) => {
                *last += 1;
                Of::Publish.key(self.id, *last)
            }
            None => Of::Unconfirmed.key(self.id, 0),
        }
    }

    /// A message is delivered; returns its key.
    pub(super) fn deliver(&mut self, consumer: &[u8], tag: u64) -> u64 {
        self.delivered = tag;
        let consumer = hash(consumer);
        let known = self.consumers.iter().find(|known| is_same(**known, consumer));
        // A consumer whose creation was missed is assumed to acknowledge once anything was acknowledged.
        let silent = known.map_or(!self.whole && !self.acknowledges, |known| known & SILENT != 0);
        if silent { Of::Unacknowledged.key(self.id, 0) } else { Of::Deliver.key(self.id, tag) }
    }

    /// Notes a message that answered a `basic.get`: its tag counts on with those of deliveries.
    pub(super) fn handed_out(&mut self, tag: u64) {
        self.delivered = self.delivered.max(tag);
    }

    /// Notes an acknowledgement by the sender of `way`.
    pub(super) fn acknowledged(&mut self, way: Way) {
        self.acknowledges |= way == Way::Request;
    }

    /// Notes a message returned to its producer.
    pub(super) fn returned(&mut self, note: u16) {
        self.returned = Some(note);
    }

    /// Whether `tag` confirms a message that was just returned.
    pub(super) fn unroutable(
        &mut self,
        way: Way,
        of: Of,
        tag: u64,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
    ) -> Option<&'static str> {
        if way == Way::Request {
            return None;
        }
        let note = self.returned.take()?;
        expected(of.key(self.id, tag)).filter(|expected| expected.note == note).map(|_| "NO_ROUTE")
    }

    /// Notes a method's effects on the channel.
    pub(super) fn begins(&mut self, method: &Method, asks: &Asks<'_>) {
        match method.name {
            "confirm.select" => self.confirming = self.confirming.or(Some(0)),
            "basic.consume" if asks.tag.is_empty() => self.consuming = Some(asks.silent),
            "basic.consume" => self.consumer(asks.tag, asks.silent),
            _ => {}
        }
    }

    /// Notes a consumer's name.
    pub(super) fn consuming(&mut self, tag: &[u8]) {
        if let Some(silent) = self.consuming.take() {
            self.consumer(tag, silent);
        }
    }

    fn consumer(&mut self, tag: &[u8], silent: bool) {
        let tag = hash(tag);
        self.consumers.retain(|known| !is_same(*known, tag));
        if self.consumers.len() < CONSUMERS {
            self.consumers.push(tag & !SILENT | u64::from(silent));
        } else {
            self.whole = false;
        }
    }

    /// A method with a reply was sent; returns its key.
    pub(super) fn ask(&mut self) -> u64 {
        self.expected += 1;
        Of::Method.key(self.id, self.expected)
    }

    /// The oldest method is answered; returns its key.
    pub(super) fn answered(&mut self) -> u64 {
        self.replied = (self.replied + 1).min(self.expected.max(1));
        Of::Method.key(self.id, self.replied)
    }

    /// Whether no method waits for its reply.
    pub(super) fn is_idle(&self) -> bool {
        self.expected == self.replied
    }

    /// Whether nothing with this tag was seen yet.
    pub(super) fn is_ahead(&self, tag: u64) -> bool {
        self.whole && tag > self.delivered && self.confirming.is_none_or(|last| tag > last)
    }

    /// Frames were missed.
    pub(super) fn lost(&mut self, way: Way) {
        self.content[way as usize] = 0;
        self.whole = false;
        self.returned = None;
        match way {
            // Publications may have been among them: the next one's number is unknown.
            Way::Request => self.confirming = None,
            // Replies may have been among them: the next one answers the newest method. The replies of methods that were
            // seen still come when only requests were missed.
            Way::Reply => self.replied = self.expected,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.consumers.capacity() * size_of::<u64>()
    }

    /// The connection goes idle: shrink kept state.
    pub(super) fn rest(&mut self) {
        self.consumers.shrink_to_fit();
    }
}
