//! How messages and connections end.

use super::conversation::Conversation;
use super::pair::Waiting;
use super::stream::State;
use super::{Said, Settings, Stamp, Step, Verdict};
use crate::model::{Direction, Nanos, Outcome, Side};

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// This end sends no more.
    Local,
    /// The far end sends no more, and everything it sent was read.
    Remote,
    /// It is gone.
    Both,
}

/// Where the streams stood when a connection ended: operations the kernel did not report are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes received.
    pub rx: u64,
    /// Bytes sent.
    pub tx: u64,
    /// Last receive, 0 none.
    pub last_rx: Nanos,
    /// Last send, 0 none.
    pub last_tx: Nanos,
}

impl Conversation {
    /// Bytes of heads that are being put together and of replies that were put aside.
    pub fn kept_bytes(&self) -> usize {
        if let Some(multiplexed) = &self.multiplexed {
            return multiplexed.kept_bytes();
        }
        let held: usize = self.held.iter().map(|held| held.head.capacity()).sum();
        let parser = self.parser.as_ref().map_or(0, |parser| parser.kept_bytes());
        self.rx.buffer.capacity() + self.tx.buffer.capacity() + held + parser + self.turns_kept()
    }

    /// Gives those up: what they would have begun is not seen, as if its bytes had been lost.
    pub fn give_up_kept(&mut self, out: &mut Vec<Said>) {
        if let Some(multiplexed) = &mut self.multiplexed {
            return multiplexed.give_up_kept(out);
        }
        for dir in [Direction::Rx, Direction::Tx] {
            let stream = self.stream(dir);
            let bytes = stream.buffer.len() as u64;
            if bytes > 0 {
                stream.restart();
                stream.state = State::Lost;
                out.push(Said::Lost { dir, bytes });
            }
        }
        if let Some(parser) = &mut self.parser {
            parser.forget();
        }
        // Their stream's position stays before them: what comes next shows the gap.
        self.held = Vec::new();
    }

    pub(super) fn ended(&mut self, is_request: bool, at: Stamp, out: &mut Vec<Said>) {
        if is_request {
            self.request_ended(at, out);
        } else {
            self.reply_ended(Outcome::Complete, at, out);
        }
    }

    pub(super) fn request_ended(&mut self, at: Stamp, out: &mut Vec<Said>) {
        let Some(dir) = self.requests else { return };
        let bytes = self.stream(dir).bytes;
        self.stream(dir).restart();
        if let Some(waiting) = self.pair.newest()
            && !waiting.done
        {
            waiting.bytes = bytes;
            waiting.done = true;
            out.push(Said::RequestDone { exchange: waiting.exchange, at });
            if waiting.asked.silent
                && let Some(waiting) = self.pair.end_newest()
            {
                out.push(Said::Done {
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

    pub(super) fn reply_ended(&mut self, outcome: Outcome, at: Stamp, out: &mut Vec<Said>) {
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
            // None was to come.
            let outcome = if waiting.asked.optional && bytes == 0 { Outcome::Complete } else { outcome };
            out.push(Said::Done {
                exchange: waiting.exchange,
                outcome,
                at,
                request_bytes: if waiting.done { waiting.bytes } else { unfinished },
                reply_bytes: bytes,
                reply_body_bytes: body,
            });
        }
    }

    /// The connection ended, one way or both. `totals` say where the streams stood.
    pub fn closed(&mut self, how: Closed, at: Stamp, totals: Option<Totals>, settings: &Settings, out: &mut Vec<Said>) {
        if let Some(multiplexed) = &mut self.multiplexed {
            return multiplexed.closed(how, at, totals, settings, out);
        }
        if self.datagrams.is_some() {
            return self.datagrams_overdue(at.nanos, how == Closed::Both, out);
        }
        if self.verdict == Verdict::Ignore {
            return;
        }
        if self.session.is_some() {
            if how == Closed::Both {
                self.session_ended(false, out);
            }
            return;
        }
        if self.turns.is_some() {
            if how == Closed::Both {
                self.turns_over(totals, out);
            }
            return;
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
        // Who sends requests can send no more: one that was begun stays a piece.
        if how == Closed::Both || (how == Closed::Local) == (requests == Direction::Tx) {
            self.cut_off(requests, at, settings, out);
        }
        // Who sends replies can send no more.
        let over = match how {
            Closed::Local => replies == Direction::Tx,
            Closed::Remote => replies == Direction::Rx,
            Closed::Both => true,
        };
        if !over {
            return;
        }
        let stream = self.stream(replies);
        let (state, last, started) = (stream.state, stream.last, stream.bytes > 0);
        match state {
            // Read to the end by whoever asked, or sent to the end by whoever answered; else it was torn down.
            State::UntilClose if how != Closed::Both => self.reply_ended(Outcome::Complete, last, out),
            State::UntilTurn | State::ChunkedLost if how != Closed::Both => {
                self.reply_ended(Outcome::Complete, last, out);
            }
            // Where it should have ended is not known.
            State::UntilTurn | State::ChunkedLost | State::Trailing if started => {
                self.reply_ended(Outcome::Unfinished, last, out);
            }
            State::UntilClose
            | State::Body(_)
            | State::Part(_)
            | State::Chunked(_)
            | State::Elements(_)
            | State::Own(_)
                if started =>
            {
                self.reply_ended(Outcome::Aborted, if last.nanos == 0 { at } else { last }, out);
            }
            _ => {}
        }
        // Nothing of these replies was seen: there were none, or they were in bytes that were not captured.
        let outcome = if state == State::Lost { Outcome::Unfinished } else { Outcome::Aborted };
        while !self.pair.is_empty() {
            self.stream(replies).restart();
            self.reply_ended(outcome, at, out);
        }
        if how == Closed::Both {
            self.verdict = Verdict::Ignore;
        }
    }

    /// A request whose head will never be whole is reported when its first line is.
    fn cut_off(&mut self, requests: Direction, at: Stamp, settings: &Settings, out: &mut Vec<Said>) {
        let stream = self.stream(requests);
        if stream.state != State::Start || stream.buffer.is_empty() {
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
        let (exchange, dropped) = self.pair.begin(message.asked, false);
        if let Some(dropped) = dropped {
            give_up(&dropped, at, out);
        }
        let side = if requests == Direction::Rx { Side::Server } else { Side::Client };
        let protocol = self.protocol_name();
        out.push(Said::Begun { exchange, request: message, first, arrived, head_at: last, pos, side, protocol });
        if let Some(waiting) = self.pair.newest() {
            waiting.bytes = piece.len() as u64;
            waiting.done = true;
        }
    }

    /// Operations up to `total` were not reported because they were asked not to be.
    pub(super) fn catch_up(&mut self, dir: Direction, total: u64, last: Nanos, out: &mut Vec<Said>) {
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
            State::Body(n) => {
                stream.bytes += n.min(missed);
                stream.state = State::Body(n.saturating_sub(missed));
                if n <= missed {
                    self.ended(is_request, at, out);
                }
            }
            State::Own(unread) if unread >= missed => {
                stream.bytes += missed;
                stream.state = State::Own(unread - missed);
            }
            State::Own(_) => {
                stream.bytes += missed;
                stream.state = State::UntilTurn;
            }
            State::Chunked(_)
            | State::Elements(_)
            | State::ChunkedLost
            | State::UntilClose
            | State::UntilTurn
            | State::Trailing => stream.bytes += missed,
            State::Part(left) | State::Pass(left) if left >= missed => {
                stream.pass(missed);
            }
            State::Part(_) | State::Pass(_) | State::Start | State::Lost => {
                out.push(Said::Lost { dir, bytes: missed });
                if !is_request {
                    // There were replies, and they were not seen: whoever waits for one was not left without.
                    stream.state = State::Lost;
                }
            }
        }
    }

    /// Replies that were put aside for a request that never came.
    pub(super) fn release(&mut self, out: &mut Vec<Said>) {
        for held in std::mem::take(&mut self.held) {
            if let (Some(parser), Some(_)) = (&mut self.parser, self.requests)
                && let Step::Head { message, .. } = parser.reply(&held.head, true, &super::Asked::default())
            {
                out.push(Said::Unpaired { status: message.status });
            }
        }
    }

    /// Since when a reply is under way that is to be reported when it is over.
    pub fn replying_since(&self) -> Option<Nanos> {
        let replies = match self.requests? {
            Direction::Rx => &self.tx,
            Direction::Tx => &self.rx,
        };
        let begun = replies.bytes > 0 && !self.orphan && self.pair.oldest().is_some();
        replies.start.filter(|_| begun).map(|(first, ..)| first.nanos)
    }

    /// Reports the reply that is under way as it stands at `now`; the rest of it answers nothing.
    pub fn report_so_far(&mut self, now: Nanos, out: &mut Vec<Said>) {
        let (Some(_), Some(requests)) = (self.replying_since(), self.requests) else { return };
        let stream = self.stream(requests.flip());
        let (reply_bytes, body) = (stream.bytes, stream.bytes.saturating_sub(stream.head_bytes));
        let body = (!stream.head_cut).then_some(body);
        let at = Stamp { nanos: now, ..stream.last };
        let Some(waiting) = self.pair.end() else { return };
        self.orphan = true;
        out.push(Said::Done {
            exchange: waiting.exchange,
            outcome: Outcome::Unfinished,
            at,
            request_bytes: waiting.bytes,
            reply_bytes,
            reply_body_bytes: body,
        });
    }

    /// Nothing happened for `idle` nanoseconds: what cannot end otherwise is over as it stands.
    pub fn expire(&mut self, now: Nanos, idle: u64, out: &mut Vec<Said>) {
        if let Some(multiplexed) = &mut self.multiplexed {
            return multiplexed.expire(now, idle, out);
        }
        self.datagrams_overdue(now, true, out);
        let Some(requests) = self.requests else { return };
        let newest = self.rx.last.nanos.max(self.tx.last.nanos);
        if now.saturating_sub(newest) < idle {
            return;
        }
        self.session_ended(true, out);
        self.turns_over(None, out);
        self.release(out);
        let replies = requests.flip();
        let stream = self.stream(replies);
        let (state, last) = (stream.state, stream.last);
        if matches!(state, State::UntilTurn | State::ChunkedLost) {
            self.reply_ended(Outcome::Complete, last, out);
        }
        while !self.pair.is_empty() {
            let at = Stamp { nanos: newest, ..last };
            self.reply_ended(Outcome::Unfinished, at, out);
        }
    }
}

impl Conversation {
    /// Now and then, while the connection lives: what waited too long, and requests that are open too long beside others.
    pub fn overdue(&mut self, now: Nanos, idle: u64, settings: &Settings, out: &mut Vec<Said>) {
        if let Some(multiplexed) = &mut self.multiplexed {
            multiplexed.overdue(now, idle, settings, out);
        }
        self.datagrams_overdue(now, false, out);
    }
}

pub(super) fn give_up(waiting: &Waiting, at: Stamp, out: &mut Vec<Said>) {
    out.push(Said::Done {
        exchange: waiting.exchange,
        outcome: if waiting.asked.optional { Outcome::Complete } else { Outcome::Unfinished },
        at,
        request_bytes: waiting.bytes,
        reply_bytes: 0,
        reply_body_bytes: Some(0),
    });
}

#[cfg(test)]
#[path = "left_tests.rs"]
mod left_tests;
