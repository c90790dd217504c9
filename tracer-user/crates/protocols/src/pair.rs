//! Matches replies to requests, in order. No other code does.

use std::collections::VecDeque;

use tracer_model::Nanos;

use super::{ExpectedReply, Stamp};

/// Most requests of one connection that wait for a reply.
const LIMIT: usize = 1024;
/// The same where clients send thousands of requests before they read.
const LIMIT_PIPELINED: usize = 4096;

/// A request without a complete reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) exchange: u64,
    pub(super) expected: ExpectedReply,
    pub(super) bytes: u64,
    /// Its body is complete.
    pub(super) done: bool,
}

/// Requests that must exist but were not read: their bytes were not captured, or too many waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    /// The operation that carried them.
    pub(super) at: Stamp,
    /// When that operation's bytes arrived.
    pub(super) arrived: Nanos,
    /// How many; `None` if unknown.
    count: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Seen(Waiting),
    Unseen(Unseen),
}

/// The requests of a connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pair {
    entries: VecDeque<Entry>,
    next: u64,
    /// Requests for which there was no room.
    overflowed: u64,
}

impl Pair {
    /// A request began; returns its number. Over the limit, unless `pipelined`, it gives up the oldest request and
    /// returns that too.
    pub(super) fn begin(&mut self, expected: ExpectedReply, pipelined: bool) -> (u64, Option<Waiting>) {
        let dropped = if self.entries.len() >= LIMIT && !pipelined { self.end() } else { None };
        (self.push(expected), dropped)
    }

    /// Whether a pipelined request can be tracked individually: not when too many wait, nor behind an unknown number of
    /// unseen ones.
    pub(super) fn has_room(&self) -> bool {
        self.entries.len() < LIMIT_PIPELINED
            && !matches!(self.entries.back(), Some(Entry::Unseen(Unseen { count: None, .. })))
    }

    /// Whether the reply to the oldest request is optional.
    pub(super) fn is_patient(&self) -> bool {
        self.oldest().is_some_and(|oldest| oldest.expected.optional)
    }

    fn push(&mut self, expected: ExpectedReply) -> u64 {
        let exchange = self.number();
        self.entries.push_back(Entry::Seen(Waiting { exchange, expected, bytes: 0, done: false }));
        exchange
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A request began for which there is no room: its reply will be counted and reported as an unnamed request's.
    pub(super) fn overflow(&mut self, at: Stamp, arrived: Nanos) {
        self.overflowed += 1;
        match self.entries.back_mut() {
            Some(Entry::Unseen(Unseen { count: Some(count), .. })) => *count += 1,
            Some(Entry::Unseen(_)) => {}
            _ => self.entries.push_back(Entry::Unseen(Unseen { at, arrived, count: Some(1) })),
        }
    }

    /// Requests that began so far, those for which there was no room included.
    pub(super) fn begun(&self) -> u64 {
        self.next + self.overflowed
    }

    /// Bytes of requests were not captured: they may hold any number of requests.
    pub(super) fn unseen(&mut self, at: Stamp, arrived: Nanos) {
        match self.entries.back_mut() {
            Some(Entry::Unseen(unseen)) => unseen.count = None,
            _ => self.entries.push_back(Entry::Unseen(Unseen { at, arrived, count: None })),
        }
    }

    /// The next reply answers an unseen request: assigns it a number.
    pub(super) fn reveal(&mut self) -> Option<(Waiting, Unseen)> {
        let Some(Entry::Unseen(unseen)) = self.entries.front_mut() else { return None };
        let found = *unseen;
        if let Some(count) = &mut unseen.count {
            *count -= 1;
            if *count == 0 {
                self.entries.pop_front();
            }
        }
        let waiting = Waiting { exchange: self.number(), expected: ExpectedReply::default(), bytes: 0, done: true };
        self.entries.push_front(Entry::Seen(waiting));
        Some((waiting, found))
    }

    /// Requests are sent again after replies: unseen ones count as answered, as far as replies reached them.
    pub(super) fn turned(&mut self) {
        while let Some(Entry::Unseen(Unseen { count: None, .. })) = self.entries.front() {
            self.entries.pop_front();
        }
    }

    /// The request being sent.
    pub(super) fn newest(&mut self) -> Option<&mut Waiting> {
        match self.entries.back_mut() {
            Some(Entry::Seen(waiting)) => Some(waiting),
            _ => None,
        }
    }

    /// The request the next reply answers, if it was seen.
    pub(super) fn oldest(&self) -> Option<&Waiting> {
        match self.entries.front() {
            Some(Entry::Seen(waiting)) => Some(waiting),
            _ => None,
        }
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The oldest seen request was answered, or never will be; drops unseen ones before it.
    pub(super) fn end(&mut self) -> Option<Waiting> {
        let ended = loop {
            match self.entries.pop_front() {
                Some(Entry::Seen(waiting)) => break Some(waiting),
                Some(Entry::Unseen(_)) => {}
                None => break None,
            }
        };
        if self.entries.is_empty() && self.entries.capacity() > 64 {
            self.entries = VecDeque::new();
        }
        ended
    }

    /// The request just sent gets no reply.
    pub(super) fn end_newest(&mut self) -> Option<Waiting> {
        match self.entries.pop_back() {
            Some(Entry::Seen(waiting)) => Some(waiting),
            Some(other) => {
                self.entries.push_back(other);
                None
            }
            None => None,
        }
    }

    /// Sets the number of the next request.
    pub(super) fn go_on(&mut self, next: u64) {
        self.next = next;
    }

    /// The number the next request will get.
    pub(super) fn upcoming(&self) -> u64 {
        self.next
    }
}
