//! Messages of several parts: heads that continue after skipped bytes, and replies with an end of their own.

use tracer_model::{Direction, Outcome};

use super::connection_parser::ConnectionParser;
use super::stream::{Chunked, StreamState};
use super::{Chunk, Detected, ExchangeEvent, Protocol, Reply, ReplyEnd, Settings, Stamp, Verdict};

/// Most bytes kept of the end of a reply whose message boundaries are lost: enough for an error's usual fields.
const END_LIMIT: usize = 256;

impl ConnectionParser {
    /// The head continues: its front consists of `used` of `bytes` and `rest` more bytes after them; the first `had`
    /// bytes came before. Returns the bytes up to its continuation.
    pub(super) fn part(&mut self, dir: Direction, (used, rest): (usize, u64), (bytes, had): (&[u8], usize)) -> usize {
        let stream = self.stream(dir);
        stream.bytes += used as u64;
        stream.buffer = bytes.get(used..had).unwrap_or_default().to_vec();
        if rest > 0 {
            stream.state = StreamState::Part(rest);
        }
        used
    }

    /// The same for bytes that belong to no message.
    pub(super) fn pass(&mut self, dir: Direction, (used, rest): (usize, u64), (bytes, had): (&[u8], usize)) -> usize {
        let stream = self.stream(dir);
        stream.restart();
        stream.buffer = bytes.get(used..had).unwrap_or_default().to_vec();
        if rest > 0 {
            stream.state = StreamState::Pass(rest);
        }
        used
    }

    /// The server speaks while a request's head is incomplete: what there is may be all of it.
    pub(super) fn answered_early(
        &mut self,
        dir: Direction,
        at: Stamp,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) {
        let stream = self.stream(dir);
        if stream.bytes > 0 && stream.buffer.is_empty() {
            let nothing = Chunk { dir, pos: stream.pos, len: 0, head: &[], tail: &[], fragments: &[], at, arrived: 0 };
            self.start(&nothing, 0, &[], settings, true, out);
        }
    }

    /// The server answers with `reply` while a request's head seems incomplete: in HTTP/0.9 a line is a whole request.
    pub(super) fn answered_line(&mut self, reply: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let dir = reply.dir.flip();
        let Some(parser) = &self.parser else { return };
        let stream = if dir == Direction::Rx { &mut self.rx } else { &mut self.tx };
        if stream.buffer.is_empty() || !parser.is_whole_line(&stream.buffer, reply.head) {
            return;
        }
        let line = std::mem::take(&mut stream.buffer);
        let (pos, at) = (stream.pos.saturating_sub(line.len() as u64), stream.last);
        // One byte more than there is: the head counts as cut, so it is all that comes.
        let len = line.len() as u64 + 1;
        let chunk = Chunk { dir, pos, len, head: &line, tail: &[], fragments: &[], at, arrived: 0 };
        self.start(&chunk, 0, &line, settings, true, out);
    }

    /// The server answered before any of a request's body was sent (it refused `Expect: 100-continue`): if another request
    /// comes, the body does not.
    pub(super) fn unsent_body(&mut self, chunk: &Chunk<'_>) {
        let is_answered = self.pair.is_empty();
        let begins = |protocol: &dyn Protocol| protocol.detect(chunk.head) == Detected::Request;
        let protocol = self.protocol;
        let stream = self.stream(chunk.dir);
        let has_body = matches!(stream.state, StreamState::Body(_) | StreamState::Chunked(Chunked::BEGIN));
        let is_unsent = has_body && stream.bytes == stream.head_bytes;
        if is_answered && is_unsent && protocol.is_some_and(begins) {
            stream.restart();
        }
    }

    /// The rest of the connection cannot be read.
    pub(super) fn leave(&mut self, left: u64) -> u64 {
        self.verdict = Verdict::Ignore;
        left
    }

    /// A reply's head was read: reports which request it answers.
    pub(super) fn replied(&mut self, chunk: &Chunk<'_>, reply: &Reply, out: &mut Vec<ExchangeEvent>) {
        let first = self.stream(chunk.dir).start.map_or(chunk.at, |(first, _, _)| first);
        let waiting = self.pair.oldest().copied();
        self.unsure |= waiting.is_none();
        // With several waiting, one may have been answered before its record came.
        let sure = !self.unsure && self.pair.len() == 1;
        if let Some(waiting) = waiting.or_else(|| self.reveal(out)) {
            let Reply { status, failure, .. } = *reply;
            out.push(ExchangeEvent::Replied { exchange: waiting.exchange, status, failure, first, sure });
        } else {
            self.orphan = true;
            out.push(ExchangeEvent::Unpaired { status: reply.status });
        }
    }

    /// The beginning of a reply's next part was not captured: looks for the reply's end. With several requests waiting,
    /// that could be another reply's.
    pub(super) fn trail(&mut self, chunk: &Chunk<'_>, captured: &[u8], left: u64, out: &mut Vec<ExchangeEvent>) -> u64 {
        let several = self.pair.len() > 1;
        if several {
            self.want_more(chunk.dir, chunk.head.len());
            self.stream(chunk.dir).pieces.missed();
            return self.invalid(chunk, captured, left, out);
        }
        self.stream(chunk.dir).state = StreamState::Trailing;
        0
    }

    /// The next request comes, so a reply whose end alone could be found has ended: whether its last bytes show how.
    pub(super) fn ended_in_words(&mut self, dir: Direction, out: &mut Vec<ExchangeEvent>) -> bool {
        if self.pair.len() != 1 {
            return false;
        }
        let stream = if dir == Direction::Rx { &mut self.rx } else { &mut self.tx };
        let (end, at, pos) = (std::mem::take(&mut stream.buffer), stream.last, stream.pos);
        let Some(reply) = self.parser.as_mut().and_then(|parser| parser.ended(&end)) else { return false };
        let nothing = Chunk { dir, pos, len: 0, head: &[], tail: &[], fragments: &[], at, arrived: 0 };
        self.replied(&nothing, &reply, out);
        self.reply_ended(Outcome::Complete, at, out);
        true
    }

    /// In a reply whose end alone can be found.
    pub(super) fn trailing(
        &mut self,
        chunk: &Chunk<'_>,
        captured: &[u8],
        left: u64,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let stream = self.stream(chunk.dir);
        stream.begin(chunk, chunk.len - left);
        stream.bytes += left;
        // A server may send the last messages of a reply in operations of their own: an error, and then what ends the
        // reply.
        let mut end = std::mem::take(&mut stream.buffer);
        if captured.len() as u64 == left {
            end.extend_from_slice(captured);
        } else {
            end.clear();
            end.extend_from_slice(chunk.tail);
        }
        end.drain(..end.len().saturating_sub(END_LIMIT));
        match self.parser.as_mut().map_or(ReplyEnd::NotYet, |parser| parser.last(&end)) {
            ReplyEnd::NotYet => self.stream(chunk.dir).buffer = end,
            ReplyEnd::Is(reply) => {
                self.replied(chunk, &reply, out);
                self.reply_ended(Outcome::Complete, chunk.at, out);
            }
            ReplyEnd::Unseen => self.reply_ended(Outcome::Unfinished, chunk.at, out),
        }
        left
    }
}
