//! DNS over UDP: one socket, on which questions and answers are matched by number and question.
//!
//! A server's socket has many clients, whose addresses the kernel side cannot see when it receives: that two of them ask
//! the same with the same number at once is one in 65536 of a coincidence, and then their answers are the same. Which of
//! them a question came from is known when it is answered (`transactions/lookups.rs`), and of these it is not.

use std::collections::VecDeque;

use super::{Dns, Message, digest};
use crate::model::{Direction, Nanos, Outcome, Side};
use crate::protocols::{Chunk, Conversation, Protocol as _, Said, Settings, Stamp, Touched, Verdict};

/// Most questions of one socket that wait.
const LIMIT: usize = 1024;
/// A question that was not answered for so long will not be: resolvers ask again after 5 s at most. Nanoseconds.
const PATIENCE: Nanos = 10_000_000_000;
/// What a question without an answer failed by.
const TIMEOUT: &str = "timeout";

/// A question without an answer.
#[derive(Debug)]
struct Open {
    exchange: u64,
    id: u16,
    question: Option<u64>,
    /// The way it went.
    dir: Direction,
    bytes: u64,
    last: Stamp,
    /// While it waited no other one had the same number and question.
    alone: bool,
}

impl Open {
    /// What both ends know of it.
    fn key(&self) -> Option<u64> {
        Some(digest(self.question?, self.id.to_be_bytes().into_iter()))
    }

    /// A datagram of it moved.
    fn told(&self, dir: Direction, at: Stamp, out: &mut Vec<Said>) {
        if let Some(question) = self.key() {
            out.push(Said::Datagram { exchange: self.exchange, question, dir, at, sure: self.alone });
        }
    }
}

/// The questions of one socket.
#[derive(Debug, Default)]
pub(in crate::protocols) struct Datagrams {
    open: VecDeque<Open>,
    next: u64,
}

impl Datagrams {
    /// Whether none waits.
    pub(in crate::protocols) fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a datagram; gives the exchange it belongs to.
    fn take(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Said>) -> Option<u64> {
        let Some(message) = Message::read(chunk.head) else {
            out.push(Said::Lost { dir: chunk.dir, bytes: chunk.len });
            return None;
        };
        if message.is_reply { self.reply(&message, chunk, out) } else { Some(self.question(&message, chunk, out)) }
    }

    fn question(&mut self, message: &Message, chunk: &Chunk<'_>, out: &mut Vec<Said>) -> u64 {
        let Chunk { dir, pos, at, arrived, len, .. } = *chunk;
        let same = |open: &&mut Open| open.dir == dir && open.id == message.id && open.question == message.question;
        if dir == Direction::Tx
            && let Some(open) = self.open.iter_mut().find(same)
        {
            // Asked again because no answer came: the same lookup goes on.
            open.last = at;
            open.bytes = open.bytes.saturating_add(len);
            open.told(dir, at, out);
            return open.exchange;
        }
        let mut alone = true;
        for other in self.open.iter_mut().filter(same) {
            (alone, other.alone) = (false, false);
        }
        if self.open.len() >= LIMIT {
            out.push(Said::Crowded);
            self.give_up_oldest(out);
        }
        let exchange = self.next;
        self.next += 1;
        let side = if dir == Direction::Rx { Side::Server } else { Side::Client };
        let (request, protocol) = (message.request(), Dns.name());
        out.push(Said::Begun { exchange, request, first: at, arrived, head_at: at, pos, side, protocol });
        let Message { id, question, .. } = *message;
        let open = Open { exchange, id, question, dir, bytes: len, last: at, alone };
        if dir == Direction::Tx {
            open.told(dir, at, out);
        }
        self.open.push_back(open);
        exchange
    }

    fn reply(&mut self, message: &Message, chunk: &Chunk<'_>, out: &mut Vec<Said>) -> Option<u64> {
        let fits = |open: &Open| open.dir != chunk.dir && message.answers(open.id, open.question);
        let Some(mut open) = self.open.iter().position(fits).and_then(|index| self.open.remove(index)) else {
            out.push(Said::Unpaired { status: 0 });
            return None;
        };
        // An answer that leaves out what was asked is by its number alone.
        open.alone &= message.question.is_some() || !self.open.iter().any(fits);
        open.told(chunk.dir, chunk.at, out);
        let Open { exchange, bytes, .. } = open;
        let failure = message.failure;
        out.push(Said::Replied { exchange, status: 0, failure, first: chunk.at, sure: true });
        out.push(Said::Done {
            exchange,
            outcome: Outcome::Complete,
            at: chunk.at,
            request_bytes: bytes,
            reply_bytes: chunk.len,
            reply_body_bytes: Some(chunk.len),
        });
        Some(exchange)
    }

    fn give_up_oldest(&mut self, out: &mut Vec<Said>) {
        let Some(Open { exchange, bytes, last, .. }) = self.open.pop_front() else { return };
        out.push(Said::Judged { exchange, status: 0, failure: Some(TIMEOUT) });
        out.push(Said::Done {
            exchange,
            outcome: Outcome::Unfinished,
            at: last,
            request_bytes: bytes,
            reply_bytes: 0,
            reply_body_bytes: Some(0),
        });
    }

    /// Gives up questions of which nothing was seen since `before`.
    fn give_up(&mut self, before: Nanos, out: &mut Vec<Said>) {
        let (old, open) = std::mem::take(&mut self.open).into_iter().partition(|open| open.last.nanos <= before);
        self.open = old;
        while !self.open.is_empty() {
            self.give_up_oldest(out);
        }
        self.open = open;
    }
}

impl Conversation {
    /// Takes one operation: of a stream, or a datagram.
    pub fn moved(&mut self, is_datagram: bool, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<Said>) -> Touched {
        // A socket is one or the other as long as it lives.
        let begun = self.requests.is_some() || self.last_dir.is_some();
        match (is_datagram, self.datagrams.is_some()) {
            (true, false) if begun => Touched::default(),
            (true, _) => self.datagram(chunk, out),
            (false, true) => Touched::default(),
            (false, false) => self.bytes(chunk, settings, out),
        }
    }

    /// Takes a datagram of a socket that resolves names.
    pub fn datagram(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Said>) -> Touched {
        let datagrams = self.datagrams.get_or_insert_with(Box::default);
        let before = datagrams.next;
        let exchange = datagrams.take(chunk, out);
        if datagrams.next > before {
            self.requests = Some(chunk.dir);
        }
        self.protocol = Some(&Dns);
        self.verdict = Verdict::Trace;
        Touched { exchange }
    }

    /// Whether it is a socket that asked for names, and waits for none: most are used once, and their end is not told.
    pub fn is_spent(&self) -> bool {
        self.requests == Some(Direction::Tx)
            && self.datagrams.as_ref().is_some_and(|datagrams| datagrams.open.is_empty())
    }

    /// Gives up questions that have waited too long at `now`; all of them when it is over.
    pub(in crate::protocols) fn datagrams_overdue(&mut self, now: Nanos, over: bool, out: &mut Vec<Said>) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.give_up(if over { Nanos::MAX } else { now.saturating_sub(PATIENCE) }, out);
        }
    }
}
