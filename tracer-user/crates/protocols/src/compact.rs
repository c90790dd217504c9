//! The compact form of an idle connection: positions, detection results and the parser's state. Most connections of a
//! host are idle at any moment; the active form takes four times as much memory.

use tracer_model::{Direction, Nanos, Side};

use super::connection_parser::ConnectionParser;
use super::dns::Datagrams;
use super::mode::Mode;
use super::multiplex::RestingLanes;
use super::round_trips::RoundTrips;
use super::session::RestingSession;
use super::stream::{Stream, StreamState};
use super::take_back::Standing;
use super::{PROTOCOLS, Parser, Protocol, Stamp, Verdict};

/// Parser state of one connection, active or compact.
#[derive(Debug)]
pub struct ActiveState {
    /// The active form, while bytes move.
    awake: Option<Box<ConnectionParser>>,
    /// The compact form, between two messages.
    resting: Option<Box<Resting>>,
}

/// Everything known of a connection between two messages.
#[derive(Debug)]
pub(super) struct Resting {
    /// One more than its index in [`PROTOCOLS`]; 0: none.
    protocol: u8,
    memory: Memory,
    /// Number of the next exchange.
    next: u64,
    rx: RestingPosition,
    tx: RestingPosition,
    requests: Option<Direction>,
    last_dir: Option<Direction>,
    verdict: Verdict,
    misses: u8,
    /// `midstream`, `turned`, `unsure` and `timed`, one bit each.
    flags: u8,
    connected: Option<Side>,
}

/// State of whatever reads the connection.
#[derive(Debug)]
enum Memory {
    None,
    Parser(Box<dyn Parser>),
    Session(Box<RestingSession>),
    Lanes(Box<RestingLanes>),
    RoundTrips(Box<RoundTrips>),
    Datagrams(Box<Datagrams>),
}

/// Position of one direction, stored compactly.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RestingPosition {
    pos: u64,
    nanos: Nanos,
    pid: u32,
    tid: u32,
    reads: u32,
    head_wanted: u16,
}

impl RestingPosition {
    pub(super) fn new(pos: u64, last: Stamp, head_wanted: u16) -> Self {
        let Stamp { nanos, pid, tid, reads } = last;
        Self { pos, nanos, pid, tid, reads, head_wanted }
    }

    /// Position, last operation, and the bytes wanted from the front of the next.
    pub(super) fn parts(self) -> (u64, Stamp, u16) {
        let Self { pos, nanos, pid, tid, reads, head_wanted } = self;
        (pos, Stamp { nanos, pid, tid, reads }, head_wanted)
    }
}

impl ActiveState {
    /// A new connection; `midstream`: bytes passed before the tracer saw it.
    pub fn new(midstream: bool) -> Self {
        // Most are seen from their first byte on; nothing need be kept of these until it moves.
        Self { awake: midstream.then(|| Box::new(ConnectionParser::new(true))), resting: None }
    }

    /// The active parser, restored from the compact form if necessary.
    pub fn awake(&mut self) -> &mut ConnectionParser {
        let Self { awake, resting } = self;
        awake.get_or_insert_with(|| match resting.take() {
            Some(resting) => Box::new(ConnectionParser::wake(*resting)),
            None => Box::new(ConnectionParser::new(false)),
        })
    }

    /// The active parser; `None` while compact.
    pub fn if_awake(&mut self) -> Option<&mut ConnectionParser> {
        self.awake.as_deref_mut()
    }

    /// Switches to the compact form if no message is under way.
    pub fn rest(&mut self) {
        if let Some(resting) = self.awake.as_mut().and_then(|conversation| conversation.rest()) {
            self.awake = None;
            self.resting = Some(Box::new(resting));
        }
    }

    /// Whether replies may come in any order.
    pub fn is_multiplexed(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.is_multiplexed(),
            (None, Some(resting)) => matches!(resting.memory, Memory::Lanes(_) | Memory::Datagrams(_)),
            (None, None) => false,
        }
    }

    /// Whether a server works on several requests of this connection at a time.
    pub fn interleaves(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.interleaves(),
            (None, Some(resting)) => matches!(&resting.memory, Memory::Lanes(lanes) if lanes.interleaves()),
            (None, None) => false,
        }
    }

    /// Exchanges that the last operation carried bytes of, where there can be several.
    pub fn touched(&self) -> &[u64] {
        self.awake.as_ref().map_or(&[], |conversation| conversation.touched())
    }

    /// Whether this end is the server or the client, once known.
    pub fn side(&self) -> Option<Side> {
        let side = |dir| if dir == Direction::Rx { Side::Server } else { Side::Client };
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.side(),
            (None, Some(resting)) => resting.requests.map(side),
            (None, None) => None,
        }
    }

    /// Whether this end is known to have connected, or to be the client.
    pub fn dialled_or_asks(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.dialled_or_asks(),
            (None, Some(resting)) => {
                resting.requests.map_or(resting.connected == Some(Side::Client), |dir| dir == Direction::Tx)
            }
            (None, None) => false,
        }
    }

    /// Bytes of heads being assembled, of replies set aside, and of the parser's state.
    pub fn kept_bytes(&self) -> usize {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.kept_bytes(),
            (None, Some(resting)) => match &resting.memory {
                Memory::None | Memory::Session(_) | Memory::RoundTrips(_) | Memory::Datagrams(_) => 0,
                Memory::Parser(parser) => parser.kept_bytes(),
                Memory::Lanes(lanes) => lanes.kept_bytes(),
            },
            (None, None) => 0,
        }
    }

    /// Whether a round trip began with the latest operation.
    pub fn round_trip_began(&self) -> bool {
        self.awake.as_ref().is_some_and(|conversation| conversation.round_trip_began())
    }

    /// When the round trip under way began, and when its answer last continued.
    pub fn round_trip_so_far(&self) -> Option<(Nanos, Nanos)> {
        match (&self.awake, self.resting.as_ref().map(|resting| &resting.memory)) {
            (Some(conversation), _) => conversation.round_trip_so_far(),
            (None, Some(Memory::RoundTrips(round_trips))) => round_trips.so_far(),
            _ => None,
        }
    }

    /// Whether this is a client's DNS socket that waits for no answer.
    pub fn is_spent(&self) -> bool {
        match (&self.awake, &self.resting) {
            (Some(conversation), _) => conversation.is_spent(),
            (None, Some(resting)) => {
                matches!(resting.memory, Memory::Datagrams(_)) && resting.requests == Some(Direction::Tx)
            }
            (None, None) => false,
        }
    }

    /// When the reply began that is under way and will be reported at its end.
    pub fn replying_since(&self) -> Option<Nanos> {
        self.awake.as_ref().and_then(|conversation| conversation.replying_since())
    }
}

/// One more than the protocol's index in [`PROTOCOLS`].
fn place(protocol: &'static dyn Protocol) -> u8 {
    let place = PROTOCOLS.iter().position(|known| known.id() == protocol.id());
    place.map_or(0, |place| place as u8 + 1)
}

impl ConnectionParser {
    /// The compact form, if no message is under way, or could be, and nothing else is needed; otherwise `None`.
    fn rest(&mut self) -> Option<Resting> {
        let ignored = self.verdict == Verdict::Ignore;
        let quiet = ignored || (self.rx.is_quiet() && self.tx.is_quiet());
        let free = self.pair.is_empty() && self.held.is_empty() && self.upgrade.is_none() && !self.orphan;
        if !quiet || !free {
            return None;
        }
        let is_busy = match &self.mode {
            Mode::Ordered => false,
            Mode::Multiplexed(multiplexed) => !multiplexed.is_quiet(),
            Mode::Session(session) => !session.is_quiet(),
            Mode::RoundTrips(round_trips) => round_trips.is_reading(),
            Mode::Datagrams(datagrams) => !datagrams.is_quiet(),
        };
        if is_busy || !ignored && (self.inside.is_some() || self.standing.is_open()) {
            return None;
        }
        let (mut next, mut rx, mut tx) = (self.pair.upcoming(), self.rx.position(), self.tx.position());
        let memory = match std::mem::take(&mut self.mode) {
            Mode::Multiplexed(multiplexed) => {
                let lanes;
                (lanes, next, rx, tx) = multiplexed.rest();
                Memory::Lanes(Box::new(lanes))
            }
            Mode::RoundTrips(round_trips) => Memory::RoundTrips(round_trips),
            Mode::Datagrams(datagrams) => Memory::Datagrams(datagrams),
            Mode::Session(session) => {
                // The protocol before the session does not come back.
                let (session, [at_rx, at_tx]) = session.rest();
                rx = RestingPosition::new(at_rx.0, at_rx.1, self.rx.head_wanted);
                tx = RestingPosition::new(at_tx.0, at_tx.1, self.tx.head_wanted);
                Memory::Session(Box::new(session))
            }
            Mode::Ordered => match self.parser.take().filter(|_| !ignored) {
                Some(mut parser) => {
                    parser.rest();
                    Memory::Parser(parser)
                }
                None => Memory::None,
            },
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

    /// Restores the active form.
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
            rx: Stream::resting_at(rx),
            tx: Stream::resting_at(tx),
            // Between two messages of a known protocol an answer has come, or nothing did.
            standing: Standing { proven: place.is_some(), ..Standing::default() },
            ..Self::new(midstream)
        };
        made.pair.go_on(next);
        match memory {
            Memory::None => {}
            Memory::Parser(parser) => made.parser = Some(parser),
            Memory::Session(session) => {
                let at = |position: RestingPosition| (position.pos, position.parts().1);
                made.mode = Mode::Session(session.wake(at(rx), at(tx)));
            }
            Memory::RoundTrips(round_trips) => made.mode = Mode::RoundTrips(round_trips),
            Memory::Datagrams(datagrams) => made.mode = Mode::Datagrams(datagrams),
            Memory::Lanes(lanes) => made.mode = Mode::Multiplexed(Box::new(lanes.wake(next, requests, rx, tx))),
        }
        made
    }
}

impl Stream {
    /// Whether nothing is under way.
    fn is_quiet(&self) -> bool {
        self.state == StreamState::Start
            && self.buffer.is_empty()
            && self.start.is_none()
            && self.bytes == 0
            && !self.introducing
    }

    fn position(&self) -> RestingPosition {
        RestingPosition::new(self.pos, self.last, self.head_wanted)
    }

    fn resting_at(position: RestingPosition) -> Self {
        let (pos, last, head_wanted) = position.parts();
        Self { pos, last, head_wanted, ..Self::new() }
    }
}

#[cfg(test)]
mod tests;
