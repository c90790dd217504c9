//! Infers boundaries of frames that were not captured: the one message under way gives its length, and its sender
//! splits it as before. An inferred boundary is trusted only once a frame is found where one should be; until then
//! nothing else but the end of that message rests on it.

use tracer_model::Direction;

use super::{Messages, Multiplexed};
use crate::framed::Way;
use crate::{ExchangeEvent, Stamp};

impl Multiplexed {
    /// Takes the next, uncaptured frame for the only one the protocol allows there; `false` when any frame may follow.
    pub(super) fn goes_on(&mut self, dir: Direction, at: Stamp, out: &mut Vec<ExchangeEvent>) -> bool {
        let Some(frame) = self.framed.goes_on(self.way(dir)) else { return false };
        let lane = self.lane(dir);
        lane.reckoned = Some(lane.reckoned.unwrap_or(0) + frame.len);
        self.frame(dir, frame, 0, at, out);
        true
    }

    /// Takes the next, uncaptured frame for the next part of the only message under way; `false` when there are
    /// several, or none with a known length.
    pub(super) fn reckon(&mut self, dir: Direction) -> bool {
        let way = self.way(dir);
        let overhead = self.framed.overhead();
        let mutual = self.framed.is_mutual();
        let mut running = self.open.iter_mut().filter(|(_, open)| {
            let part = open.part(way);
            // In a mutual protocol a message without a body to come does not continue. Neither does a request whose
            // messages so far are complete; a reply in that state still awaits its end.
            let idle = part == Way::Request && open.messages[part as usize] == Messages::Known;
            let over = match open.to_come[part as usize] {
                None => mutual,
                Some(to_come) => (mutual || idle) && to_come == 0,
            };
            (part == Way::Reply || !open.request_done) && !over
        });
        let (Some((key, open)), None) = (running.next(), running.next()) else { return false };
        let Some(to_come) = open.to_come[open.part(way) as usize].filter(|to_come| *to_come > 0) else { return false };
        let key = *key;
        let of_messages = open.messages[open.part(way) as usize] != Messages::None;
        let usual = if dir == Direction::Rx { self.rx.usual } else { self.tx.usual };
        // A body's last frame is shorter, and says nothing about the next body's frames.
        let usual = if usual < 256 { self.framed.usual() } else { usual };
        let body = to_come.min(usual);
        open.count(way, overhead + body, body);
        let lane = self.lane(dir);
        lane.left = overhead + body;
        lane.key = key;
        // After a message more may follow, trailers too: a frame or the reply marks the end.
        lane.end = body == to_come && !of_messages;
        lane.reckoned = Some(lane.reckoned.unwrap_or(0) + lane.left);
        true
    }

    /// Whether a frame begins with this operation, in the middle of an inferred one: the inferred boundaries are wrong
    /// then, and boundaries are unknown.
    pub(super) fn contradicted(&mut self, dir: Direction, captured: &[u8], out: &mut Vec<ExchangeEvent>) -> bool {
        let Some(reckoned) = self.lane(dir).reckoned else { return false };
        let left = self.lane(dir).left;
        let stands = self.stands(dir, captured);
        if stands {
            self.lose(dir, reckoned.saturating_sub(left), out);
        }
        stands
    }

    /// Whether a frame begins at the front of `captured`.
    fn stands(&self, dir: Direction, captured: &[u8]) -> bool {
        let open = &self.open;
        let front = captured.get(..captured.len().min(64)).unwrap_or_default();
        self.framed.find(self.way(dir), front, &|key| open.contains_key(&key)) == Some(0)
    }

    /// Whether a frame begins at the front of `captured`, as inferred. If not, frame boundaries are unknown, and so is
    /// what the inferred frames held.
    pub(super) fn confirm(&mut self, dir: Direction, captured: &[u8], out: &mut Vec<ExchangeEvent>) -> bool {
        let stands = self.stands(dir, captured);
        let lane = self.lane(dir);
        let reckoned = lane.reckoned.take().unwrap_or(0);
        if !stands {
            self.lose(dir, reckoned, out);
        }
        stands
    }
}
