//! What was not seen, or not in its order: replies that come before their request's record, and bytes that no record
//! showed. What is paired afterwards must be right.

use super::closing::give_up;
use super::conversation::{Conversation, Held};
use super::stream::{Chunked, Fed, State};
use super::{Chunk, Detected, Said, Settings, Stamp};
use crate::model::Direction;

/// Replies kept while their request's record has not come (it can come later, from another thread).
const HELD_CHUNKS: usize = 16;
/// Bytes of them.
const HELD_BYTES: usize = 64 * 1024;

impl Conversation {
    /// Takes the replies that were put aside.
    pub(super) fn feed_held(&mut self, held: Vec<Held>, settings: &Settings, out: &mut Vec<Said>) {
        let Some(requests) = self.requests else { return };
        for Held { pos, len, head, tail, at, arrived } in held {
            let chunk = Chunk { dir: requests.flip(), pos, len, head: &head, tail: &tail, at, arrived };
            self.turn(chunk.dir, out);
            self.last_dir = Some(chunk.dir);
            self.feed(&chunk, settings, out);
        }
    }

    /// Puts a reply aside whose request has not come; false when it is to be taken now.
    pub(super) fn early(&mut self, chunk: &Chunk<'_>) -> bool {
        let starting = self.rx.state == State::Start && self.rx.buffer.is_empty();
        let waiting = !self.pair.is_empty() || self.orphan;
        if starting && self.parser.as_ref().is_some_and(|parser| parser.is_unasked(chunk.head)) {
            return false;
        }
        let bytes: usize = self.held.iter().map(|held| held.head.len()).sum();
        if (waiting || !starting || self.midstream && self.pair.upcoming() == 0) && self.held.is_empty()
            || self.held.len() >= HELD_CHUNKS
            || bytes + chunk.head.len() > HELD_BYTES
        {
            return false;
        }
        self.held.push(Held {
            pos: chunk.pos,
            len: chunk.len,
            head: chunk.head.to_vec(),
            tail: chunk.tail.to_vec(),
            at: chunk.at,
            arrived: chunk.arrived,
        });
        true
    }

    /// `gap` bytes before this operation were not reported.
    pub(super) fn gap(&mut self, chunk: &Chunk<'_>, gap: u64, out: &mut Vec<Said>) {
        let is_request = self.requests == Some(chunk.dir);
        let protocol = self.protocol;
        let stream = self.stream(chunk.dir);
        let before = stream.last;
        let lost = match stream.state {
            State::Body(n) => {
                let take = n.min(gap);
                stream.state = State::Body(n - take);
                stream.bytes += take;
                if n <= gap {
                    self.ended(is_request, before, out);
                }
                gap - take
            }
            State::Chunked(Chunked::Data(n)) if n > gap => {
                stream.state = State::Chunked(Chunked::Data(n - gap));
                stream.bytes += gap;
                0
            }
            State::Chunked(_) => {
                stream.state = State::ChunkedLost;
                stream.bytes += gap;
                gap
            }
            State::Elements(elements) => match elements.skip(gap) {
                Fed::More(next) => {
                    stream.bytes += gap;
                    stream.state = State::Elements(next);
                    0
                }
                Fed::End(used) => {
                    stream.bytes += used as u64;
                    self.ended(is_request, before, out);
                    gap - used as u64
                }
                Fed::Invalid => {
                    stream.bytes += gap;
                    stream.state = State::UntilTurn;
                    gap
                }
            },
            State::ChunkedLost | State::UntilClose | State::UntilTurn => {
                stream.bytes += gap;
                0
            }
            State::Start | State::Lost => gap,
        };
        if lost == 0 {
            return;
        }
        out.push(Said::Lost { dir: chunk.dir, bytes: lost });
        if !is_request {
            self.unsure = true;
            // Whole replies may have been in what was not seen, and requests in what was not seen the other way. What
            // follows answers the newest request that was seen if its thread has read nothing in between: who asks by
            // HTTP/1 waits for the answer, but for the few who do not. Else nobody's: a wrong pair would be worse than
            // none.
            let several = self.pipelines() && self.pair.len() > 1;
            let keep = usize::from(!several && self.answers_newest(&chunk.at));
            while self.pair.len() > keep {
                let Some(waiting) = self.pair.end() else { break };
                give_up(&waiting, before, out);
            }
        } else if self.pipelines() && !self.turned {
            // What was sent before replies came was answered by them.
            self.pair.unseen(chunk.at, chunk.arrived);
        }
        let stream = self.stream(chunk.dir);
        if matches!(stream.state, State::Start | State::Lost) {
            stream.restart();
            // Where the record resumes, a message may begin.
            let fits = match protocol.map(|protocol| protocol.detect(chunk.head)) {
                Some(Detected::Request) => is_request,
                Some(Detected::Reply) => !is_request,
                _ => false,
            };
            if !fits {
                stream.state = State::Lost;
            }
        }
    }

    /// Whether an operation in the direction of replies directly follows the newest one in that of requests: by the same
    /// thread, which has read no socket in between but to get this very reply.
    fn answers_newest(&self, at: &Stamp) -> bool {
        let (asked, own) = match self.requests {
            Some(Direction::Rx) => (&self.rx.last, 0),
            Some(Direction::Tx) => (&self.tx.last, 1),
            None => return false,
        };
        asked.tid == at.tid && asked.reads.wrapping_add(own) == at.reads
    }
}
