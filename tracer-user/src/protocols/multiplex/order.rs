//! Operations in the order of their bytes: threads share a connection, and records of theirs overtake each other.

use super::Multiplexed;
use crate::model::Direction;
use crate::protocols::conversation::Held;
use crate::protocols::{Chunk, Said, Settings};

impl Multiplexed {
    /// Whether an operation before this one has not come yet, or the request it answers has not.
    pub(super) fn must_wait(&mut self, chunk: &Chunk<'_>) -> bool {
        let dir = chunk.dir;
        let lane = self.lane(dir);
        if lane.lost.is_none() && chunk.pos.saturating_sub(lane.pos) > lane.left {
            return true;
        }
        // In order behind one that waits.
        if self.parked.iter().any(|held| held.dir == dir && held.pos < chunk.pos) {
            return true;
        }
        let lane = self.lane(dir);
        let fresh = lane.left == 0 && lane.buffer.is_empty() && lane.lost.is_none() && lane.pos == chunk.pos;
        fresh && self.is_early(dir, chunk.head)
    }

    pub(super) fn is_next(&self, held: &Held) -> bool {
        let lane = if held.dir == Direction::Rx { &self.rx } else { &self.tx };
        let first = !self.parked.iter().any(|other| other.dir == held.dir && other.pos < held.pos);
        let follows = held.pos.saturating_sub(lane.pos) <= lane.left || lane.lost.is_some();
        first && follows && !self.is_early(held.dir, &held.head)
    }

    /// Whether these bytes, which were read, answer what this end has sent and was not told yet.
    fn is_early(&self, dir: Direction, bytes: &[u8]) -> bool {
        let open = &self.open;
        dir == Direction::Rx
            && (self.requests == Direction::Tx || self.framed.is_mutual())
            && self.framed.is_early(bytes, &|key| open.contains_key(&key))
    }

    pub(super) fn park(&mut self, chunk: &Chunk<'_>) {
        self.parked.push(Held::from(chunk));
    }

    /// Takes what has waited longest, and what has to come before it, with the gap before it.
    pub(super) fn release_one(&mut self, settings: &Settings, out: &mut Vec<Said>) {
        let Some(dir) = self.parked.first().map(|held| held.dir) else { return };
        let first = self.parked.iter().enumerate().filter(|(_, held)| held.dir == dir).min_by_key(|(_, held)| held.pos);
        let Some(at) = first.map(|(at, _)| at) else { return };
        let held = self.parked.remove(at);
        self.take_held(&held, settings, out);
    }

    pub(super) fn take_held(&mut self, held: &Held, settings: &Settings, out: &mut Vec<Said>) {
        let Held { dir, pos, len, head, tail, pieces, at, arrived } = held;
        let chunk = Chunk { dir: *dir, pos: *pos, len: *len, head, tail, pieces, at: *at, arrived: *arrived };
        self.take(&chunk, settings, out);
    }
}
