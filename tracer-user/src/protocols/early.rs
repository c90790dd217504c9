//! Replies that are reported before their request, which another thread may have read: they are put aside until it comes.

use super::conversation::{Conversation, Held};
use super::stream::State;
use super::{Chunk, Said, Settings};

/// Replies kept while their request's record has not come (it can come later, from another thread).
const HELD_CHUNKS: usize = 16;
/// Bytes of them.
const HELD_BYTES: usize = 64 * 1024;

impl Conversation {
    /// A request comes, or a part of one: takes the replies put aside that cannot be its own, and gives the others.
    pub(super) fn asked(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<Said>) -> Vec<Held> {
        let held = std::mem::take(&mut self.held);
        // A thread cannot read the answer before it has asked; and what lies in a gap was asked before this.
        let Some(first) = held.first() else { return held };
        if first.at.tid != chunk.at.tid && chunk.pos <= self.stream(chunk.dir).pos {
            return held;
        }
        self.feed_held(held, settings, out);
        // What they left open ends with this.
        self.turn(chunk.dir, settings, out);
        (self.turned, self.last_dir) = (true, Some(chunk.dir));
        Vec::new()
    }

    /// Takes the replies that were put aside.
    pub(super) fn feed_held(&mut self, held: Vec<Held>, settings: &Settings, out: &mut Vec<Said>) {
        let Some(requests) = self.requests else { return };
        for Held { dir, pos, len, head, tail, pieces, at, arrived } in held {
            debug_assert_eq!(dir, requests.flip(), "only replies are put aside");
            let chunk = Chunk { dir, pos, len, head: &head, tail: &tail, pieces: &pieces, at, arrived };
            self.turn(chunk.dir, settings, out);
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
        self.held.push(Held::from(chunk));
        true
    }
}
