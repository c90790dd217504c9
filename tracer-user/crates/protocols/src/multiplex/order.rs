//! Restores the byte order of operations: threads share a connection, and their records overtake each other.

use tracer_model::Direction;

use super::Multiplexed;
use crate::connection_parser::HeldOperation;
use crate::{Chunk, ExchangeEvent, Settings};

impl Multiplexed {
    /// Whether an earlier operation, or the request that this one answers, has not arrived yet.
    pub(super) fn must_wait(&mut self, chunk: &Chunk<'_>) -> bool {
        let dir = chunk.dir;
        let lane = self.lane(dir);
        if lane.lost.is_none() && chunk.pos.saturating_sub(lane.pos) > lane.left {
            return true;
        }
        // Stays in order behind a parked operation.
        if self.parked.iter().any(|held| held.dir == dir && held.pos < chunk.pos) {
            return true;
        }
        let lane = self.lane(dir);
        let fresh = lane.left == 0 && lane.buffer.is_empty() && lane.lost.is_none() && lane.pos == chunk.pos;
        fresh && self.is_early(dir, chunk.head)
    }

    pub(super) fn is_next(&self, held: &HeldOperation) -> bool {
        let lane = if held.dir == Direction::Rx { &self.rx } else { &self.tx };
        let first = !self.parked.iter().any(|other| other.dir == held.dir && other.pos < held.pos);
        let follows = held.pos.saturating_sub(lane.pos) <= lane.left || lane.lost.is_some();
        first && follows && !self.is_early(held.dir, &held.head)
    }

    /// Whether these received bytes answer a request that this end sent but whose record has not arrived.
    fn is_early(&self, dir: Direction, bytes: &[u8]) -> bool {
        let open = &self.open;
        dir == Direction::Rx
            && (self.requests == Direction::Tx || self.framed.is_mutual())
            && self.framed.is_early(bytes, &|key| open.contains_key(&key))
    }

    pub(super) fn park(&mut self, chunk: &Chunk<'_>) {
        self.parked.push(HeldOperation::from(chunk));
    }

    /// Takes the longest-parked operation, preceded by those before it in the stream and the gap before them.
    pub(super) fn release_one(&mut self, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let Some(dir) = self.parked.first().map(|held| held.dir) else { return };
        let first = self.parked.iter().enumerate().filter(|(_, held)| held.dir == dir).min_by_key(|(_, held)| held.pos);
        let Some(at) = first.map(|(at, _)| at) else { return };
        let held = self.parked.remove(at);
        self.take_held(&held, settings, out);
    }

    pub(super) fn take_held(&mut self, held: &HeldOperation, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let HeldOperation { dir, pos, len, head, tail, fragments, at, arrived } = held;
        let chunk = Chunk { dir: *dir, pos: *pos, len: *len, head, tail, fragments, at: *at, arrived: *arrived };
        self.take(&chunk, settings, out);
    }
}
