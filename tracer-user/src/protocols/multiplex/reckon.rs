//! Where frames must begin that were not captured: the one message under way says how long it is, and its sender cuts it
//! as before. What is reckoned is believed when a frame stands where one should; till then nothing else is built on it
//! but the message's own end.

use super::{Messages, Multiplexed};
use crate::model::Direction;
use crate::protocols::framed::Way;
use crate::protocols::{Said, Stamp};

impl Multiplexed {
    /// Takes the next frame, none of which was captured, for what the protocol says must stand there; `false` when that
    /// could be any.
    pub(super) fn goes_on(&mut self, dir: Direction, at: Stamp, out: &mut Vec<Said>) -> bool {
        let Some(frame) = self.framed.goes_on(self.way(dir)) else { return false };
        let lane = self.lane(dir);
        lane.reckoned = Some(lane.reckoned.unwrap_or(0) + frame.len);
        self.frame(dir, frame, 0, at, out);
        true
    }

    /// Takes the next frame, none of which was captured, for the next part of the only message under way; `false` when
    /// there is more than one, or none whose length is known.
    pub(super) fn reckon(&mut self, dir: Direction) -> bool {
        let way = self.way(dir);
        let overhead = self.framed.overhead();
        let mutual = self.framed.is_mutual();
        let mut running = self.open.iter_mut().filter(|(_, open)| {
            let part = open.part(way);
            // Where either end asks, a message without a body to come is none that goes on.
            // So is one of which all messages that began have come: a reply still has its end to come.
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
        // The last of a body is shorter, and tells nothing of the next one's.
        let usual = if usual < 256 { self.framed.usual() } else { usual };
        let body = to_come.min(usual);
        open.count(way, overhead + body, body);
        let lane = self.lane(dir);
        lane.left = overhead + body;
        lane.key = key;
        // Behind a message more may follow, trailers too: the end is said by a frame, or by the reply.
        lane.end = body == to_come && !of_messages;
        lane.reckoned = Some(lane.reckoned.unwrap_or(0) + lane.left);
        true
    }

    /// Whether a frame begins with this operation, in the middle of one that was reckoned: where frames begin is not known
    /// then.
    pub(super) fn contradicted(&mut self, dir: Direction, captured: &[u8], out: &mut Vec<Said>) -> bool {
        let Some(reckoned) = self.lane(dir).reckoned else { return false };
        let left = self.lane(dir).left;
        let stands = self.stands(dir, captured);
        if stands {
            self.lose(dir, reckoned.saturating_sub(left), out);
        }
        stands
    }

    /// Whether a frame stands at the front of `captured`.
    fn stands(&self, dir: Direction, captured: &[u8]) -> bool {
        let open = &self.open;
        let front = captured.get(..captured.len().min(64)).unwrap_or_default();
        self.framed.find(self.way(dir), front, &|key| open.contains_key(&key)) == Some(0)
    }

    /// Whether a frame stands at the front of `captured`, where one should by reckoning. If not, where frames begin is not
    /// known, nor what was in those that were reckoned.
    pub(super) fn confirm(&mut self, dir: Direction, captured: &[u8], out: &mut Vec<Said>) -> bool {
        let stands = self.stands(dir, captured);
        let lane = self.lane(dir);
        let reckoned = lane.reckoned.take().unwrap_or(0);
        if !stands {
            self.lose(dir, reckoned, out);
        }
        stands
    }
}
