//! One channel: what is under way on it, by keys.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use super::methods::{Asks, Method};
use crate::protocols::Asked;
use crate::protocols::framed::Way;

/// Consumers remembered of one channel.
const CONSUMERS: usize = 32;

/// What a key is of. All keys of a channel are next to each other, and of a kind in the order of their tags.
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

    /// The key of a tag, or of all up to it; of all there are where it is zero.
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

/// What is known of one.
#[derive(Debug)]
pub(super) struct Channel {
    id: u16,
    /// Number of the last publication, where the server confirms them.
    confirming: Option<u64>,
    /// Tag of the last delivery.
    delivered: u64,
    /// Methods that were sent, and of them answered.
    asked: u64,
    replied: u64,
    /// Consumers: their names as numbers, of which the lowest bit says that they acknowledge nothing; of the one that is
    /// being made only that.
    consumers: Vec<u64>,
    consuming: Option<bool>,
    /// Everything was seen.
    whole: bool,
    /// Something delivered was acknowledged.
    acknowledges: bool,
    /// Destination of the message that came back last.
    returned: Option<u16>,
    /// Keys whose message is under way, in either direction; 0 none.
    pub(super) content: [u64; 2],
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The bit of a consumer that acknowledges nothing.
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
            asked: 0,
            replied: 0,
            consumers: Vec::new(),
            consuming: None,
            whole,
            acknowledges: false,
            returned: None,
            content: [0; 2],
        }
    }

    /// A message is published: its key.
    pub(super) fn publish(&mut self) -> u64 {
        match &mut self.confirming {
            Some(last) => {
                *last += 1;
                Of::Publish.key(self.id, *last)
            }
            None => Of::Unconfirmed.key(self.id, 0),
        }
    }

    /// A message is delivered: its key.
    pub(super) fn deliver(&mut self, consumer: &[u8], tag: u64) -> u64 {
        self.delivered = tag;
        let consumer = hash(consumer);
        let known = self.consumers.iter().find(|known| is_same(**known, consumer));
        // Of a consumer nobody saw begin it is believed that it acknowledges once something was.
        let silent = known.map_or(!self.whole && !self.acknowledges, |known| known & SILENT != 0);
        if silent { Of::Unacknowledged.key(self.id, 0) } else { Of::Deliver.key(self.id, tag) }
    }

    /// Something was acknowledged by whoever sends `way`.
    pub(super) fn acknowledged(&mut self, way: Way) {
        self.acknowledges |= way == Way::Request;
    }

    /// A message came back to its producer.
    pub(super) fn returned(&mut self, note: u16) {
        self.returned = Some(note);
    }

    /// Whether the confirmation of `tag` is that of a message that just came back.
    pub(super) fn unroutable(
        &mut self,
        way: Way,
        of: Of,
        tag: u64,
        asked: &dyn Fn(u64) -> Option<Asked>,
    ) -> Option<&'static str> {
        if way == Way::Request {
            return None;
        }
        let note = self.returned.take()?;
        asked(of.key(self.id, tag)).filter(|asked| asked.note == note).map(|_| "NO_ROUTE")
    }

    /// What a method that was sent changes here.
    pub(super) fn begins(&mut self, method: &Method, asks: &Asks<'_>) {
        match method.name {
            "confirm.select" => self.confirming = self.confirming.or(Some(0)),
            "basic.consume" if asks.tag.is_empty() => self.consuming = Some(asks.silent),
            "basic.consume" => self.consumer(asks.tag, asks.silent),
            _ => {}
        }
    }

    /// A consumer got its name.
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

    /// A method with a reply was sent: its key.
    pub(super) fn ask(&mut self) -> u64 {
        self.asked += 1;
        Of::Method.key(self.id, self.asked)
    }

    /// The oldest of them is answered: its key.
    pub(super) fn answered(&mut self) -> u64 {
        self.replied = (self.replied + 1).min(self.asked.max(1));
        Of::Method.key(self.id, self.replied)
    }

    /// Whether no method waits for its reply.
    pub(super) fn is_idle(&self) -> bool {
        self.asked == self.replied
    }

    /// Whether nothing with this tag was seen yet.
    pub(super) fn is_ahead(&self, tag: u64) -> bool {
        self.whole && tag > self.delivered && self.confirming.is_none_or(|last| tag > last)
    }

    /// Frames were not seen.
    pub(super) fn lost(&mut self, way: Way) {
        self.content[way as usize] = 0;
        self.replied = self.asked;
        self.whole = false;
        self.returned = None;
        if way == Way::Request {
            // Publications may have been among them: the next one's number is not known.
            self.confirming = None;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.consumers.capacity() * size_of::<u64>()
    }

    /// Nothing moves for a while.
    pub(super) fn rest(&mut self) {
        self.consumers.shrink_to_fit();
    }
}
