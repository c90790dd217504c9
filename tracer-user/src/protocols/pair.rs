//! Matches replies to requests: in order. The only place that does.

use std::collections::VecDeque;

use super::Asked;

/// Most requests of one connection that wait for a reply.
const LIMIT: usize = 1024;

/// A request that has no complete reply yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) exchange: u64,
    pub(super) asked: Asked,
    pub(super) bytes: u64,
    /// Its body is complete.
    pub(super) done: bool,
}

/// The requests of a connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pair {
    waiting: VecDeque<Waiting>,
    next: u64,
}

impl Pair {
    /// A request began; gives its number and, when too many wait, the oldest, given up.
    pub(super) fn begin(&mut self, asked: Asked) -> (u64, Option<Waiting>) {
        let dropped = if self.waiting.len() >= LIMIT { self.waiting.pop_front() } else { None };
        let exchange = self.next;
        self.next += 1;
        self.waiting.push_back(Waiting { exchange, asked, bytes: 0, done: false });
        (exchange, dropped)
    }

    /// The request that is being sent.
    pub(super) fn newest(&mut self) -> Option<&mut Waiting> {
        self.waiting.back_mut()
    }

    /// The request the next reply answers.
    pub(super) fn oldest(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// It was answered.
    pub(super) fn end(&mut self) -> Option<Waiting> {
        let ended = self.waiting.pop_front();
        if self.waiting.is_empty() && self.waiting.capacity() > 4 {
            self.waiting = VecDeque::new();
        }
        ended
    }

    /// The number the next request will get.
    pub(super) fn upcoming(&self) -> u64 {
        self.next
    }
}
