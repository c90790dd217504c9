//! Replies reported before their request, which another thread may have read: set aside until it comes.

use super::connection_parser::{ConnectionParser, HeldOperation};
use super::stream::StreamState;
use super::{Chunk, ExchangeEvent, Settings};

/// Most operations with replies kept while the record of their request is missing (it may come later, from another thread).
const HELD_OPERATIONS: usize = 16;
/// Most bytes of them.
const HELD_BYTES: usize = 64 * 1024;

impl ConnectionParser {
    /// A request comes, or part of one: takes the set-aside replies that cannot answer it, and returns the others.
    pub(super) fn on_request_bytes(
        &mut self,
        chunk: &Chunk<'_>,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> Vec<HeldOperation> {
        let held = std::mem::take(&mut self.held);
        // A thread cannot read the answer before it has asked; and requests in a gap precede this one.
        let Some(first) = held.first() else { return held };
        if first.at.tid != chunk.at.tid && chunk.pos <= self.stream(chunk.dir).pos {
            return held;
        }
        self.feed_held(held, settings, out);
        // This request ends whatever those replies left open.
        self.turn(chunk.dir, settings, out);
        (self.turned, self.last_dir) = (true, Some(chunk.dir));
        Vec::new()
    }

    /// Takes the replies set aside.
    pub(super) fn feed_held(&mut self, held: Vec<HeldOperation>, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let Some(requests) = self.requests else { return };
        for HeldOperation { dir, pos, len, head, tail, fragments, at, arrived } in held {
            let chunk = Chunk { dir, pos, len, head: &head, tail: &tail, fragments: &fragments, at, arrived };
            // One of them began a tunnel, or took the recognition back: the rest is of another protocol.
            if self.requests != Some(requests) || self.mode.multiplexed().is_some() {
                self.bytes(&chunk, settings, out);
                continue;
            }
            debug_assert_eq!(dir, requests.flip(), "only replies are put aside");
            self.turn(chunk.dir, settings, out);
            self.last_dir = Some(chunk.dir);
            self.feed(&chunk, settings, out);
        }
    }

    /// Sets a reply aside whose request has not come; false if it must be taken now.
    pub(super) fn early(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) -> bool {
        if self.is_full(chunk) {
            // They come before this one.
            let (requests, held) = (self.requests, std::mem::take(&mut self.held));
            self.feed_held(held, settings, out);
            if self.requests != requests || self.mode.multiplexed().is_some() {
                self.bytes(chunk, settings, out);
                return true;
            }
            return false;
        }
        let starting = self.rx.state == StreamState::Start && self.rx.buffer.is_empty();
        let waiting = !self.pair.is_empty() || self.orphan;
        if starting && self.parser.as_ref().is_some_and(|parser| parser.is_unasked(chunk.head)) {
            return false;
        }
        if (waiting || !starting || self.midstream && self.pair.upcoming() == 0) && self.held.is_empty() {
            return false;
        }
        self.held.push(HeldOperation::from(chunk));
        true
    }

    /// Whether there is no room beside the replies set aside.
    fn is_full(&self, chunk: &Chunk<'_>) -> bool {
        let Some(last) = self.held.last() else { return false };
        let bytes: usize = self.held.iter().map(|held| held.head.len()).sum();
        // A long operation comes in several records.
        let operations = self.held.chunk_by(|one, next| one.at == next.at).count();
        last.at != chunk.at && operations >= HELD_OPERATIONS || bytes + chunk.head.len() > HELD_BYTES
    }
}
