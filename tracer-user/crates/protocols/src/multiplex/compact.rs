//! The compact state of a multiplexed connection without open exchanges.

use tracer_model::Direction;

use super::{Lane, Multiplexed};
use crate::Verdict;
use crate::compact::RestingPosition;
use crate::framed::Framed;

/// Everything kept between two exchanges.
#[derive(Debug)]
pub(crate) struct RestingLanes {
    framed: Box<dyn Framed>,
    /// Lowest key first; reversed (lowest above highest) if no key was seen.
    seen: (u64, u64),
    rx: RestingLane,
    tx: RestingLane,
}

/// One direction.
#[derive(Debug)]
struct RestingLane {
    /// Whether frame boundaries are unknown, and the bytes since then, saturating at what fits here.
    is_lost: bool,
    misses: u8,
    /// The connection's verdict, stored here because there is room.
    verdict: Verdict,
    lost: u32,
    usual: u32,
}

impl Multiplexed {
    /// Whether nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.open.is_empty() && self.parked.is_empty() && self.rx.is_quiet() && self.tx.is_quiet()
    }

    /// Splits into the compact state kept while nothing is under way, the next exchange's number, and both directions'
    /// positions.
    pub(crate) fn rest(self) -> (RestingLanes, u64, RestingPosition, RestingPosition) {
        let Self { mut framed, rx, tx, seen, next, verdict, .. } = self;
        framed.rest();
        let positions = (rx.position(), tx.position());
        let seen = seen.unwrap_or((1, 0));
        (RestingLanes { framed, seen, rx: rx.rest(verdict), tx: tx.rest(verdict) }, next, positions.0, positions.1)
    }
}

impl RestingLanes {
    /// Restores the active state.
    pub(crate) fn wake(
        self,
        next: u64,
        requests: Option<Direction>,
        rx: RestingPosition,
        tx: RestingPosition,
    ) -> Multiplexed {
        let requests = requests.unwrap_or(Direction::Rx);
        let mut made = Multiplexed::new(self.framed, requests, (0, 0), (false, false));
        let verdict = self.rx.verdict;
        (made.rx, made.tx) = (self.rx.wake(rx), self.tx.wake(tx));
        let seen = Some(self.seen).filter(|(lowest, highest)| lowest <= highest);
        (made.seen, made.next, made.verdict, made.settled) = (seen, next, verdict, true);
        made
    }

    pub(crate) fn interleaves(&self) -> bool {
        self.framed.interleaves()
    }

    pub(crate) fn kept_bytes(&self) -> usize {
        self.framed.kept_bytes()
    }
}

impl Lane {
    fn is_quiet(&self) -> bool {
        self.buffer.is_empty() && self.start.is_none() && self.left == 0 && self.reckoned.is_none()
    }

    fn rest(self, verdict: Verdict) -> RestingLane {
        let most = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        RestingLane {
            is_lost: self.lost.is_some(),
            misses: self.misses,
            verdict,
            lost: most(self.lost.unwrap_or(0)),
            usual: most(self.usual),
        }
    }

    fn position(&self) -> RestingPosition {
        RestingPosition::new(self.pos, self.last, self.head_wanted)
    }
}

impl RestingLane {
    fn wake(self, position: RestingPosition) -> Lane {
        let (pos, last, head_wanted) = position.parts();
        let lost = self.is_lost.then_some(u64::from(self.lost));
        let usual = u64::from(self.usual);
        Lane { pos, last, head_wanted, lost, usual, misses: self.misses, ..Lane::default() }
    }
}
