//! How messages and connections end.

use tracer_model::{Direction, Nanos, Outcome, Side};

use super::connection_parser::{ConnectionParser, HeldOperation};
use super::mode::Mode;
use super::pair::Waiting;
use super::stream::StreamState;
use super::{Beyond, Chunk, ExchangeEvent, Settings, Stamp, Step, Verdict};

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// This end sends no more.
    Local,
    /// The remote sends no more, and everything it sent was read.
    Remote,
    /// The connection is gone.
    Both,
}

/// Stream positions when a connection ended, including operations the kernel did not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes received.
    pub rx: u64,
    /// Bytes sent.
    pub tx: u64,
    /// Last receive; 0: none.
    pub last_rx: Nanos,
    /// Last send; 0: none.
    pub last_tx: Nanos,
}

impl ConnectionParser {
    /// Bytes of heads being assembled and of replies set aside.
    pub fn kept_bytes(&self) -> usize {
        if let Some(multiplexed) = self.mode.multiplexed() {
            return multiplexed.kept_bytes();
        }
        let sizes = |held: &HeldOperation| held.head.capacity() + held.tail.capacity() + held.fragments.capacity();
        let undecided: usize = self.standing.undecided.iter().map(sizes).sum();
        let held: usize = self.held.iter().map(|held| held.head.capacity()).sum::<usize>() + undecided;
        let inside = self.inside.as_ref().map(|inside| &inside.parser);
        let parser: usize = self.parser.iter().chain(inside).map(|parser| parser.kept_bytes()).sum();
        self.rx.buffer.capacity() + self.tx.buffer.capacity() + held + parser + self.round_trips_kept()
    }

    /// Drops them: the messages they would have begun go unseen, as if their bytes had been lost.
    pub fn give_up_kept(&mut self, out: &mut Vec<ExchangeEvent>) {
        if let Some(multiplexed) = self.mode.multiplexed_mut() {
            return multiplexed.give_up_kept(out);
        }
        for dir in [Direction::Rx, Direction::Tx] {
            let stream = self.stream(dir);
            let bytes = stream.buffer.len() as u64;
            if stream.state == StreamState::Trailing {
                stream.buffer = Vec::new();
            } else if bytes > 0 {
                stream.restart();
                stream.state = StreamState::Lost;
                out.push(ExchangeEvent::Lost { dir, bytes });
            }
        }
        if let Some(parser) = &mut self.parser {
            parser.forget();
        }
        if let Some(inside) = &mut self.inside {
            inside.parser.forget();
        }
        self.standing.undecided = Vec::new();
        // The stream's position stays before the held replies: the next operation reveals the gap.
        self.held = Vec::new();
    }

    pub(super) fn ended(&mut self, is_request: bool, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        if is_request {
            self.request_ended(at, out);
        } else {
            self.reply_ended(Outcome::Complete, at, out);
        }
    }

    pub(super) fn request_ended(&mut self, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        let Some(dir) = self.requests else { return };
        let bytes = self.stream(dir).bytes;
        self.stream(dir).restart();
        if let Some(waiting) = self.pair.newest()
            && !waiting.done
        {
            waiting.bytes = bytes;
            waiting.done = true;
            if waiting.expected.silent
                && let Some(waiting) = self.pair.end_newest()
            {
                out.push(ExchangeEvent::Done {
                    exchange: waiting.exchange,
                    outcome: Outcome::Complete,
                    at,
                    request_bytes: bytes,
                    reply_bytes: 0,
                    reply_body_bytes: Some(0),
                });
            }
        }
    }

    /// A reply's head continues in the last `unread` bytes of an operation, captured only at their end. Decides whether
    /// the reply ends with the operation, or how its end will be recognised; never assumes a reply longer than it is,
    /// because that would lose the next one.
    pub(super) fn end_beyond(&mut self, chunk: &Chunk<'_>, unread: u64, beyond: Beyond, out: &mut Vec<ExchangeEvent>) {
        let stream = self.stream(chunk.dir);
        stream.bytes += unread;
        let ends_head = chunk.last().ends_with(b"\r\n\r\n");
        let over = match beyond {
            Beyond::Nothing => ends_head,
            Beyond::Chunks => {
                stream.state = StreamState::ChunkedLost;
                chunk.last().ends_with(b"\r\n0\r\n\r\n")
            }
            Beyond::Length(0) => true,
            // A body can end like a head: then the change of direction ends this reply.
            Beyond::Length(n) if ends_head => {
                stream.ends_within = n;
                false
            }
            Beyond::Length(n) => {
                stream.ends_within = n.saturating_sub(unread);
                stream.ends_within == 0
            }
        };
        if over {
            self.reply_ended(Outcome::Complete, chunk.at, out);
        }
    }

    pub(super) fn reply_ended(&mut self, outcome: Outcome, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        let Some(dir) = self.requests else { return };
        let stream = self.stream(dir.flip());
        let (bytes, body) = (stream.bytes, stream.bytes.saturating_sub(stream.head_bytes));
        let body = (!stream.head_cut).then_some(body);
        stream.restart();
        if std::mem::take(&mut self.orphan) {
            return;
        }
        let unfinished = self.stream(dir).bytes;
        if let Some(waiting) = self.pair.end() {
            self.unsure &= !self.pair.is_empty();
            // No reply was due.
            let outcome = if waiting.expected.optional && bytes == 0 { Outcome::Complete } else { outcome };
            out.push(ExchangeEvent::Done {
                exchange: waiting.exchange,
                outcome,
                at,
                request_bytes: if waiting.done { waiting.bytes } else { unfinished },
                reply_bytes: bytes,
                reply_body_bytes: body,
            });
        }
    }

    /// A signal kills the process: a reply that ends with its connection is not whole. Precedes [`ConnectionParser::closed`].
    pub fn killed(&mut self, totals: Option<Totals>, out: &mut Vec<ExchangeEvent>) {
        let (Mode::Ordered, Some(Direction::Rx)) = (&self.mode, self.requests) else { return };
        if self.verdict == Verdict::Ignore || self.tx.state != StreamState::UntilClose {
            return;
        }
        if let Some(totals) = totals {
            self.catch_up(Direction::Tx, totals.tx, totals.last_tx, out);
        }
        if self.tx.bytes > 0 && !self.tx.has_sentinel {
            let last = self.tx.last;
            self.reply_ended(Outcome::Aborted, last, out);
        }
    }

    /// The connection ended, in one direction or both; `totals` are the final stream positions.
    pub fn closed(
        &mut self,
        how: Closed,
        at: Stamp,
        totals: Option<Totals>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) {
        match &mut self.mode {
            Mode::Multiplexed(multiplexed) => return multiplexed.closed(how, at, totals, settings, out),
            Mode::Datagrams(_) => return self.datagrams_overdue(at.nanos, how == Closed::Both, out),
            _ if self.verdict == Verdict::Ignore => return,
            Mode::Session(_) | Mode::RoundTrips(_) if how != Closed::Both => return,
            Mode::Session(_) => return self.session_ended(false, out),
            Mode::RoundTrips(_) => return self.round_trips_over(totals, out),
            Mode::Ordered => {}
        }
        let Some(requests) = self.requests else {
            if how != Closed::Local {
                self.held = Vec::new();
            }
            return;
        };
        self.release(out);
        if let Some(totals) = totals {
            self.catch_up(Direction::Rx, totals.rx, totals.last_rx, out);
            self.catch_up(Direction::Tx, totals.tx, totals.last_tx, out);
        }
        let replies = requests.flip();
        // The requesting end can send no more: a request in progress stays incomplete.
        if how == Closed::Both || (how == Closed::Local) == (requests == Direction::Tx) {
            self.cut_off(requests, at, settings, out);
        }
        // The replying end can send no more.
        let over = match how {
            Closed::Local => replies == Direction::Tx,
            Closed::Remote => replies == Direction::Rx,
            Closed::Both => true,
        };
        if !over {
            return;
        }
        let stream = self.stream(replies);
        let (state, last, started, has_sentinel) = (stream.state, stream.last, stream.bytes > 0, stream.has_sentinel);
        match state {
            _ if has_sentinel && started => self.reply_ended(Outcome::Complete, last, out),
            // The client read to the end, or the server sent to the end; otherwise the connection was torn down.
            StreamState::UntilClose if how != Closed::Both => self.reply_ended(Outcome::Complete, last, out),
            StreamState::UntilTurn | StreamState::ChunkedLost if how != Closed::Both => {
                self.reply_ended(Outcome::Complete, last, out);
            }
            // Where the reply should have ended is unknown.
            StreamState::UntilTurn | StreamState::ChunkedLost | StreamState::Trailing if started => {
                self.reply_ended(Outcome::Unfinished, last, out);
            }
            StreamState::UntilClose
            | StreamState::Body(_)
            | StreamState::Part(_)
            | StreamState::Chunked(_)
            | StreamState::Elements(_)
            | StreamState::Own(_)
                if started =>
            {
                self.reply_ended(Outcome::Aborted, if last.nanos == 0 { at } else { last }, out);
            }
            _ => {}
        }
        // None of these replies was seen: there were none, or they were among uncaptured bytes.
        let outcome = if state == StreamState::Lost { Outcome::Unfinished } else { Outcome::Aborted };
        while !self.pair.is_empty() {
            self.stream(replies).restart();
            self.reply_ended(outcome, at, out);
        }
        if how == Closed::Both {
            self.verdict = Verdict::Ignore;
        }
    }

    /// Reports a request whose head will never be complete if its first line is.
    fn cut_off(&mut self, requests: Direction, at: Stamp, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let stream = self.stream(requests);
        if stream.state != StreamState::Start || stream.buffer.is_empty() {
            return;
        }
        let piece = std::mem::take(&mut stream.buffer);
        let (first, arrived, pos) = stream.start.unwrap_or((at, 0, stream.pos));
        let last = stream.last;
        stream.restart();
        let Some(parser) = &mut self.parser else { return };
        let Step::Head { message, .. } = parser.request(&piece, true, settings) else { return };
        if message.version.is_empty() {
            return;
        }
        let (exchange, dropped) = self.pair.begin(message.expected, false);
        if let Some(dropped) = dropped {
            give_up(&dropped, at, out);
        }
        let side = if requests == Direction::Rx { Side::Server } else { Side::Client };
        let protocol = self.protocol_id();
        out.push(ExchangeEvent::Begun {
            exchange,
            request: message,
            first,
            arrived,
            head_at: last,
            pos,
            side,
            protocol,
        });
        if let Some(waiting) = self.pair.newest() {
            waiting.bytes = piece.len() as u64;
            waiting.done = true;
        }
    }

    /// Accounts for operations up to `total` that the kernel was asked not to report.
    pub(super) fn catch_up(&mut self, dir: Direction, total: u64, last: Nanos, out: &mut Vec<ExchangeEvent>) {
        let is_request = self.requests == Some(dir);
        let stream = self.stream(dir);
        let missed = total.saturating_sub(stream.pos);
        if missed == 0 {
            return;
        }
        stream.pos = total;
        stream.last.nanos = stream.last.nanos.max(last);
        let at = stream.last;
        match stream.state {
            StreamState::Body(n) => {
                stream.bytes += n.min(missed);
                stream.state = StreamState::Body(n.saturating_sub(missed));
                if n <= missed {
                    self.ended(is_request, at, out);
                }
            }
            StreamState::Own(unread) if unread >= missed => {
                stream.bytes += missed;
                stream.state = StreamState::Own(unread - missed);
            }
            StreamState::Own(_) => {
                stream.bytes += missed;
                stream.state = StreamState::UntilTurn;
            }
            StreamState::Chunked(_)
            | StreamState::Elements(_)
            | StreamState::ChunkedLost
            | StreamState::UntilClose
            | StreamState::UntilTurn
            | StreamState::Trailing => stream.bytes += missed,
            StreamState::Part(left) | StreamState::Pass(left) if left >= missed => {
                stream.pass(missed);
            }
            StreamState::Part(_) | StreamState::Pass(_) | StreamState::Start | StreamState::Lost => {
                out.push(ExchangeEvent::Lost { dir, bytes: missed });
                if !is_request {
                    // There were replies, only unseen: their requests were not left unanswered.
                    stream.state = StreamState::Lost;
                }
            }
        }
    }

    /// Reports the replies set aside for a request that never came.
    pub(super) fn release(&mut self, out: &mut Vec<ExchangeEvent>) {
        for held in std::mem::take(&mut self.held) {
            if let (Some(parser), Some(_)) = (&mut self.parser, self.requests)
                && let Step::Head { message, .. } = parser.reply(&held.head, true, &super::ExpectedReply::default())
            {
                out.push(ExchangeEvent::Unpaired { status: message.status });
            }
        }
    }

    /// When the reply began that is under way and will be reported at its end.
    pub fn replying_since(&self) -> Option<Nanos> {
        let replies = match self.requests? {
            Direction::Rx => &self.tx,
            Direction::Tx => &self.rx,
        };
        let begun = replies.bytes > 0 && !self.orphan && self.pair.oldest().is_some();
        replies.start.filter(|_| begun).map(|(first, ..)| first.nanos)
    }

    /// Reports the reply under way as it stands at `now`; the rest of it belongs to no request.
    pub fn report_so_far(&mut self, now: Nanos, out: &mut Vec<ExchangeEvent>) {
        let (Some(_), Some(requests)) = (self.replying_since(), self.requests) else { return };
        let stream = self.stream(requests.flip());
        let (reply_bytes, body) = (stream.bytes, stream.bytes.saturating_sub(stream.head_bytes));
        let body = (!stream.head_cut).then_some(body);
        let at = Stamp { nanos: now, ..stream.last };
        let Some(waiting) = self.pair.end() else { return };
        self.orphan = true;
        out.push(ExchangeEvent::Done {
            exchange: waiting.exchange,
            outcome: Outcome::Unfinished,
            at,
            request_bytes: waiting.bytes,
            reply_bytes,
            reply_body_bytes: body,
        });
    }

    /// After `idle` nanoseconds without any operation, ends everything as it stands.
    pub fn expire(&mut self, now: Nanos, idle: u64, out: &mut Vec<ExchangeEvent>) {
        if let Some(multiplexed) = self.mode.multiplexed_mut() {
            return multiplexed.expire(now, idle, out);
        }
        self.datagrams_overdue(now, true, out);
        let Some(requests) = self.requests else { return };
        let newest = self.rx.last.nanos.max(self.tx.last.nanos);
        if now.saturating_sub(newest) < idle {
            return;
        }
        self.session_ended(true, out);
        self.round_trips_over(None, out);
        self.release(out);
        let replies = requests.flip();
        let stream = self.stream(replies);
        let (state, last) = (stream.state, stream.last);
        if matches!(state, StreamState::UntilTurn | StreamState::ChunkedLost) {
            self.reply_ended(Outcome::Complete, last, out);
        }
        while !self.pair.is_empty() {
            let at = Stamp { nanos: newest, ..last };
            self.reply_ended(Outcome::Unfinished, at, out);
        }
    }
}

impl ConnectionParser {
    /// Runs periodically on open connections: releases operations that waited too long, and reports requests open for
    /// too long beside others.
    pub fn overdue(&mut self, now: Nanos, idle: u64, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        if let Some(multiplexed) = self.mode.multiplexed_mut() {
            multiplexed.overdue(now, idle, settings, out);
        }
        self.datagrams_overdue(now, false, out);
    }
}

pub(super) fn give_up(waiting: &Waiting, at: Stamp, out: &mut Vec<ExchangeEvent>) {
    out.push(ExchangeEvent::Done {
        exchange: waiting.exchange,
        outcome: if waiting.expected.optional { Outcome::Complete } else { Outcome::Unfinished },
        at,
        request_bytes: waiting.bytes,
        reply_bytes: 0,
        reply_body_bytes: Some(0),
    });
}

#[cfg(test)]
mod left_tests;
