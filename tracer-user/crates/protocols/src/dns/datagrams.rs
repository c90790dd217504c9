//! DNS over UDP: matches questions and answers on one socket by id and question.
//!
//! A server's socket has many clients, whose addresses the eBPF program cannot see on receive. If two of them ask the
//! same question with the same id at once, a 1 in 65536 coincidence, their answers are the same as well.
//! `transactions/strategies/lookups.rs` learns at the answer which client asked, but not for these.

use std::collections::VecDeque;

use tracer_model::{Direction, Nanos, Outcome, ProtocolId, Side};

use super::{Dns, Message, digest};
use crate::mode::Mode;
use crate::{Chunk, ConnectionParser, ExchangeEvent, Settings, Stamp, Touched, Verdict};

/// Most questions per socket that wait for an answer.
const LIMIT: usize = 1024;
/// A question unanswered for this long, in nanoseconds, stays unanswered: resolvers ask again after 5 s at most.
const PATIENCE: Nanos = 10_000_000_000;
/// Failure of a question without an answer.
const TIMEOUT: &str = "timeout";

/// A question waiting for its answer.
#[derive(Debug)]
struct Open {
    exchange: u64,
    id: u16,
    question: Option<u64>,
    /// Its direction.
    dir: Direction,
    bytes: u64,
    last: Stamp,
    /// No other question with the same id and content waited at the same time.
    alone: bool,
}

impl Open {
    /// Digest of what both ends know of the question.
    fn key(&self) -> Option<u64> {
        Some(digest(self.question?, self.id.to_be_bytes().into_iter()))
    }

    /// Reports that one of its datagrams moved.
    fn report_datagram(&self, dir: Direction, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        if let Some(question) = self.key() {
            out.push(ExchangeEvent::Datagram { exchange: self.exchange, question, dir, at, sure: self.alone });
        }
    }
}

/// The open questions of one socket.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    open: VecDeque<Open>,
    next: u64,
}

impl Datagrams {
    /// Whether no question waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a datagram; returns the exchange it belongs to.
    fn take(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Option<u64> {
        let Some(message) = Message::read(chunk.head) else {
            out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: chunk.len });
            return None;
        };
        if message.is_reply { self.reply(&message, chunk, out) } else { Some(self.question(&message, chunk, out)) }
    }

    fn question(&mut self, message: &Message, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> u64 {
        let Chunk { dir, pos, at, arrived, len, .. } = *chunk;
        let same = |open: &&mut Open| open.dir == dir && open.id == message.id && open.question == message.question;
        if dir == Direction::Tx
            && let Some(open) = self.open.iter_mut().find(same)
        {
            // Repeated for lack of an answer: the same lookup continues.
            open.last = at;
            open.bytes = open.bytes.saturating_add(len);
            open.report_datagram(dir, at, out);
            return open.exchange;
        }
        let mut alone = true;
        for other in self.open.iter_mut().filter(same) {
            (alone, other.alone) = (false, false);
        }
        if self.open.len() >= LIMIT {
            out.push(ExchangeEvent::Crowded);
            self.give_up_oldest(out);
        }
        let exchange = self.next;
        self.next += 1;
        let side = if dir == Direction::Rx { Side::Server } else { Side::Client };
        let (request, protocol) = (message.request(), ProtocolId::Dns);
        out.push(ExchangeEvent::Begun { exchange, request, first: at, arrived, head_at: at, pos, side, protocol });
        let Message { id, question, .. } = *message;
        let open = Open { exchange, id, question, dir, bytes: len, last: at, alone };
        if dir == Direction::Tx {
            open.report_datagram(dir, at, out);
        }
        self.open.push_back(open);
        exchange
    }

    fn reply(&mut self, message: &Message, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Option<u64> {
        let fits = |open: &Open| open.dir != chunk.dir && message.answers(open.id, open.question);
        let Some(mut open) = self.open.iter().position(fits).and_then(|index| self.open.remove(index)) else {
            out.push(ExchangeEvent::Unpaired { status: 0 });
            return None;
        };
        // An answer that omits the question matches by its id alone.
        open.alone &= message.question.is_some() || !self.open.iter().any(fits);
        open.report_datagram(chunk.dir, chunk.at, out);
        let Open { exchange, bytes, .. } = open;
        let failure = message.failure;
        out.push(ExchangeEvent::Replied { exchange, status: 0, failure, first: chunk.at, sure: true });
        out.push(ExchangeEvent::Done {
            exchange,
            outcome: Outcome::Complete,
            at: chunk.at,
            request_bytes: bytes,
            reply_bytes: chunk.len,
            reply_body_bytes: Some(chunk.len),
        });
        Some(exchange)
    }

    fn give_up_oldest(&mut self, out: &mut Vec<ExchangeEvent>) {
        let Some(Open { exchange, bytes, last, .. }) = self.open.pop_front() else { return };
        out.push(ExchangeEvent::Judged { exchange, status: 0, failure: Some(TIMEOUT), protocol: None });
        out.push(ExchangeEvent::Done {
            exchange,
            outcome: Outcome::Unfinished,
            at: last,
            request_bytes: bytes,
            reply_bytes: 0,
            reply_body_bytes: Some(0),
        });
    }

    /// Gives up questions last seen at or before `before`.
    fn give_up(&mut self, before: Nanos, out: &mut Vec<ExchangeEvent>) {
        let (old, open) = std::mem::take(&mut self.open).into_iter().partition(|open| open.last.nanos <= before);
        self.open = old;
        while !self.open.is_empty() {
            self.give_up_oldest(out);
        }
        self.open = open;
    }
}

impl ConnectionParser {
    /// Takes one operation: part of a stream, or a datagram.
    pub fn on_io(
        &mut self,
        is_datagram: bool,
        chunk: &Chunk<'_>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> Touched {
        // A socket is either a stream or a datagram socket for life.
        let begun = self.requests.is_some() || self.last_dir.is_some();
        match (is_datagram, matches!(self.mode, Mode::Datagrams(_))) {
            (true, false) if begun => Touched::default(),
            (true, _) => self.datagram(chunk, out),
            (false, true) => Touched::default(),
            (false, false) => self.bytes(chunk, settings, out),
        }
    }

    /// Takes a datagram of a DNS socket.
    pub fn datagram(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Touched {
        if self.mode.is_ordered() {
            self.mode = Mode::Datagrams(Box::default());
        }
        let Some(datagrams) = self.mode.datagrams_mut() else { return Touched::default() };
        let before = datagrams.next;
        let exchange = datagrams.take(chunk, out);
        if datagrams.next > before {
            self.requests = Some(chunk.dir);
        }
        self.protocol = Some(&Dns);
        self.verdict = Verdict::Trace;
        Touched { exchange }
    }

    /// Whether this is a client's DNS socket that waits for no answer: most are used once, and their closing is not
    /// reported.
    pub fn is_spent(&self) -> bool {
        self.requests == Some(Direction::Tx)
            && matches!(&self.mode, Mode::Datagrams(datagrams) if datagrams.open.is_empty())
    }

    /// Gives up questions that have waited too long at `now`; all of them if the socket is `over`.
    pub(crate) fn datagrams_overdue(&mut self, now: Nanos, over: bool, out: &mut Vec<ExchangeEvent>) {
        if let Some(datagrams) = self.mode.datagrams_mut() {
            datagrams.give_up(if over { Nanos::MAX } else { now.saturating_sub(PATIENCE) }, out);
        }
    }
}
