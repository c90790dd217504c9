//! What is kept of a connection that has nothing to do: positions, what was found out, and what the parser remembers.
//! Most connections of a host are such at any moment; what they say while they are busy takes four times as much.

use super::conversation::Conversation;
use super::dns::Datagrams;
use super::multiplex::RestingLanes;
use super::session::RestingSession;
use super::stream::{State, Stream};
use super::turns::Turns;
use super::{PROTOCOLS, Parser, Protocol, Stamp, Verdict};
use crate::model::{Direction, Nanos, Side};

/// What a connection's bytes say, in as little room as it needs now.
#[derive(Debug)]
pub struct Talk {
    /// As it is while bytes move.
    awake: Option<Box<Conversation>>,
    /// Between two messages, for a while.
    resting: Option<Box<Resting>>,
}

/// All that is known of a conversation between two messages.
#[derive(Debug)]
pub(super) struct Resting {
    /// Its place in the list, and one more; 0 none.
    protocol: u8,
    memory: Memory,
    /// Number of the next exchange.
    next: u64,
    rx: Stand,
    tx: Stand,
    requests: Option<Direction>,
    last_dir: Option<Direction>,
    verdict: Verdict,
    misses: u8,
    /// `midstream`, `turned`, `unsure` and `timed`, a bit each.
    flags: u8,
    connected: Option<Side>,
}

/// What its reader remembers.
#[derive(Debug)]
enum Memory {
    None,
    Parser(Box<dyn Parser>),
    Session(Box<RestingSession>),
    Lanes(Box<RestingLanes>),
    Turns(Box<Turns>),
    Datagrams(Box<Datagrams>),
}

/// Where a direction stands, in as little room as that takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stand {
    pos: u64,
    nanos: Nanos,
    pid: u32,
    tid: u32,
    reads: u32,
    head_wanted: u16,
}

impl Stand {
    pub(super) fn new(pos: u64, last: Stamp, head_wanted: u16) -> Self {
        let Stamp { nanos, pid, tid, reads } = last;
        Self { pos, nanos, pid, tid, reads, head_wanted }
    }

    /// Its position, its last operation, and what is wanted of the front of the next.
    pub(super) fn parts(self) -> (u64, Stamp, u16) {
        let Self { pos, nanos, pid, tid, reads, head_wanted } = self;
        (pos, Stamp { nanos, pid, tid, reads }, head_wanted)
    }
}

impl Talk {
    /// A new connection; `midstream` when bytes passed before.
    pub fn new(midstream: bool) -> Self {
        // Most begin with their first byte, and of these nothing need be kept before it moves.
        Self { awake: midstream.then(|| Box::new(Conversation::new(true))), resting: None }
    }

    /// What the bytes say, to be told more.
    pub fn awake(&mut self) -> &mut Conversation {
        let Self { awake, resting } = self;
        awake.get_or_insert_with(|| match resting.take() {
            Some(resting) => Box::new(Conversation::wake(*resting)),
            None => Box::new(Conversation::new(false)),
        })
    }

    /// The same, unless it rests.
    pub fn if_awake(&mut self) -> Option<&mut Conversation> {
        self.awake.as_deref_mut()
    }

    /// Keeps no more than it must, where no message is under way.
    pub fn rest(&mut self) {
        if let Some(resting) = self.awake.as_mut().and_then(|conversation| conversation.rest()) {
            self.awake = None;
            self.resting = Some(Box::new(resting));
        }
    }

    /// Whether replies come in any order.
    pub fn is_multiplexed(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.is_multiplexed(),
            (None, Some(resting)) => matches!(resting.memory, Memory::Lanes(_) | Memory::Datagrams(_)),
            (None, None) => false,
        }
    }

    /// Whether a server works on several of its requests at a time.
    pub fn interleaves(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.interleaves(),
            (None, Some(resting)) => matches!(&resting.memory, Memory::Lanes(lanes) if lanes.interleaves()),
            (None, None) => false,
        }
    }

    /// Exchanges the last operation had bytes of, where those can be several.
    pub fn touched(&self) -> &[u64] {
        self.awake.as_ref().map_or(&[], |conversation| conversation.touched())
    }

    /// Whether this end serves or asks, once known.
    pub fn side(&self) -> Option<Side> {
        let side = |dir| if dir == Direction::Rx { Side::Server } else { Side::Client };
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.side(),
            (None, Some(resting)) => resting.requests.map(side),
            (None, None) => None,
        }
    }

    /// Bytes of heads that are being put together, of replies that were put aside, and of what the parser remembers.
    pub fn kept_bytes(&self) -> usize {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.kept_bytes(),
            (None, Some(resting)) => match &resting.memory {
                Memory::None | Memory::Session(_) | Memory::Turns(_) | Memory::Datagrams(_) => 0,
                Memory::Parser(parser) => parser.kept_bytes(),
                Memory::Lanes(lanes) => lanes.kept_bytes(),
            },
            (None, None) => 0,
        }
    }

    /// Whether a turn began with the latest operation.
    pub fn turn_began(&self) -> bool {
        self.awake.as_ref().is_some_and(|conversation| conversation.turn_began())
    }

    /// When the turn under way began, and when its answer was last seen to go on.
    pub fn turn_so_far(&self) -> Option<(Nanos, Nanos)> {
        match (&self.awake, self.resting.as_ref().map(|resting| &resting.memory)) {
            (Some(conversation), _) => conversation.turn_so_far(),
            (None, Some(Memory::Turns(turns))) => turns.so_far(),
            _ => None,
        }
    }

    /// Whether it is a socket that asked for names, and waits for none.
    pub fn is_spent(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.is_spent(),
            (None, Some(resting)) => {
                matches!(resting.memory, Memory::Datagrams(_)) && resting.requests == Some(Direction::Tx)
            }
            (None, None) => false,
        }
    }

    /// Since when a reply is under way that is to be reported when it is over.
    pub fn replying_since(&self) -> Option<Nanos> {
        self.awake.as_ref().and_then(|conversation| conversation.replying_since())
    }
}

/// A protocol's place in the list, and one more.
fn place(protocol: &'static dyn Protocol) -> u8 {
    let place = PROTOCOLS.iter().position(|known| known.name() == protocol.name());
    place.map_or(0, |place| place as u8 + 1)
}

impl Conversation {
    /// What is to be kept of it when no message is under way, and nothing else is needed then; `None` when one is, or
    /// might be.
    fn rest(&mut self) -> Option<Resting> {
        let ignored = self.verdict == Verdict::Ignore;
        let quiet = ignored || (self.rx.is_quiet() && self.tx.is_quiet());
        let free = self.pair.is_empty() && self.held.is_empty() && self.upgrade.is_none() && !self.orphan;
        if !quiet || !free {
            return None;
        }
        if self.multiplexed.as_ref().is_some_and(|multiplexed| !multiplexed.is_quiet()) {
            return None;
        }
        let busy = self.session.as_ref().is_some_and(|session| !session.is_quiet())
            || self.turns.as_ref().is_some_and(|turns| turns.is_reading())
            || self.datagrams.as_ref().is_some_and(|datagrams| !datagrams.is_quiet());
        if busy {
            return None;
        }
        let (mut next, mut rx, mut tx) = (self.pair.upcoming(), self.rx.stand(), self.tx.stand());
        let memory = if let Some(multiplexed) = self.multiplexed.take() {
            let lanes;
            (lanes, next, rx, tx) = multiplexed.rest();
            Memory::Lanes(Box::new(lanes))
        } else if let Some(turns) = self.turns.take() {
            Memory::Turns(turns)
        } else if let Some(datagrams) = self.datagrams.take() {
            Memory::Datagrams(datagrams)
        } else if let Some(session) = self.session.take() {
            // What was spoken before it does not come back.
            let (session, [at_rx, at_tx]) = session.rest();
            rx = Stand::new(at_rx.0, at_rx.1, self.rx.head_wanted);
            tx = Stand::new(at_tx.0, at_tx.1, self.tx.head_wanted);
            Memory::Session(Box::new(session))
        } else if ignored {
            Memory::None
        } else if let Some(mut parser) = self.parser.take() {
            parser.rest();
            Memory::Parser(parser)
        } else {
            Memory::None
        };
        Some(Resting {
            protocol: self.protocol.map_or(0, place),
            memory,
            next,
            rx,
            tx,
            requests: self.requests,
            last_dir: self.last_dir,
            verdict: self.verdict,
            misses: self.misses,
            flags: [self.midstream, self.turned, self.unsure, self.timed]
                .into_iter()
                .fold(0, |flags, flag| flags << 1 | u8::from(flag)),
            connected: self.connected,
        })
    }

    /// As it was before it rested.
    fn wake(resting: Resting) -> Self {
        let Resting { protocol, memory, next, rx, tx, requests, last_dir, verdict, misses, .. } = resting;
        let Resting { flags, connected, .. } = resting;
        let [midstream, turned, unsure, timed] = [8, 4, 2, 1].map(|bit| flags & bit != 0);
        let place = usize::from(protocol).checked_sub(1);
        let mut made = Self {
            connected,
            timed,
            protocol: place.and_then(|place| PROTOCOLS.get(place).copied()),
            requests,
            verdict,
            misses,
            last_dir,
            turned,
            unsure,
            rx: Stream::standing(rx),
            tx: Stream::standing(tx),
            ..Self::new(midstream)
        };
        made.pair.go_on(next);
        match memory {
            Memory::None => {}
            Memory::Parser(parser) => made.parser = Some(parser),
            Memory::Session(session) => {
                let at = |stand: Stand| (stand.pos, stand.parts().1);
                made.session = Some(session.wake(at(rx), at(tx)));
            }
            Memory::Turns(turns) => made.turns = Some(turns),
            Memory::Datagrams(datagrams) => made.datagrams = Some(datagrams),
            Memory::Lanes(lanes) => made.multiplexed = Some(Box::new(lanes.wake(next, requests, rx, tx))),
        }
        made
    }
}

impl Stream {
    /// Whether nothing is under way.
    fn is_quiet(&self) -> bool {
        self.state == State::Start
            && self.buffer.is_empty()
            && self.start.is_none()
            && self.bytes == 0
            && !self.introducing
    }

    fn stand(&self) -> Stand {
        Stand::new(self.pos, self.last, self.head_wanted)
    }

    fn standing(stand: Stand) -> Self {
        let (pos, last, head_wanted) = stand.parts();
        Self { pos, last, head_wanted, ..Self::new() }
    }
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
