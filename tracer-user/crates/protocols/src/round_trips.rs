//! Connections whose protocol is recognised but not decoded: timed by round trips.
//!
//! A round trip spans from one side's first byte until the other has answered and the first speaks again. Without
//! decoding it is unknown whether that is a request, so round trips are reported only once over; no span stays open for
//! them, no CPU is charged and no parent is certain because of them. An unanswered one is not a round trip. On TLS the
//! first is the handshake, which includes the client's messages up to its first data.
//!
//! The kernel need only report which operation changes the direction, and the position the other direction had reached
//! ([`Verdict::RoundTrips`]); long transfers cost nothing.

mod handshake;

use std::sync::Arc;

use tracer_model::{Direction, Nanos, Outcome, ProtocolId, Side};

use self::handshake::{Handshake, Took};
use super::ActiveState;
use super::connection_parser::ConnectionParser;
use super::mode::Mode;
use super::pool::Pool;
use super::recognised::Unknown;
use super::tls::{self, Hello, Tls};
use super::{Chunk, ExchangeEvent, ExpectedReply, Parser, Protocol, Request, Stamp, Totals, Touched, Verdict, Want};

/// Bytes wanted of operations once only the look of the first record matters.
const HEAD: u16 = tls::HEADER as u16;

/// State of a connection timed by round trips.
#[derive(Debug)]
pub(super) struct RoundTrips {
    protocol: &'static dyn Protocol,
    requests: Direction,
    /// Name of its round trips, if more is known than the protocol.
    name: Option<Arc<Name>>,
    requesting: Way,
    answered: Way,
    round_trip: Option<RoundTrip>,
    stage: Stage,
    next: u64,
    /// A round trip began with the latest operation.
    began: bool,
    /// Bytes may have passed before, or more than the handshake was exchanged.
    joined: bool,
    /// The protocol that was spoken in the clear before both ends agreed on TLS: they speak it inside, too.
    inside: Option<Inside>,
}

/// A protocol whose beginning was read in the clear and that goes on inside TLS.
#[derive(Debug)]
pub(super) struct Inside {
    pub(super) protocol: &'static dyn Protocol,
    pub(super) requests: Direction,
    pub(super) parser: Box<dyn Parser>,
}

/// What names round trips besides the protocol: the host a TLS client asks for (SNI), and the protocols it offers
/// (ALPN).
#[derive(Debug, PartialEq, Eq, Hash)]
struct Name {
    path: Box<str>,
    version: &'static str,
}

/// Pool of host names and offered protocols.
static NAMES: Pool<Name> = Pool::new();

/// Progress of a connection.
#[derive(Debug)]
enum Stage {
    /// TLS may follow: after a command in the clear (STARTTLS), or because both ends agreed on it already.
    Before {
        /// TLS must follow.
        agreed: bool,
    },
    /// The TLS handshake is under way.
    Handshake(Box<Handshake>),
    /// Nothing more is read.
    Settled,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// Position of the next byte.
    pos: u64,
}

/// A round trip under way.
#[derive(Debug)]
struct RoundTrip {
    is_handshake: bool,
    /// It began in the operation that ended the handshake.
    is_early: bool,
    first: Stamp,
    arrived: Nanos,
    pos: u64,
    request_bytes: u64,
    /// First and last operation of the answer.
    reply: Option<(Stamp, Stamp)>,
    reply_bytes: u64,
    /// First bytes of the request and of the answer.
    fronts: [Front; 2],
}

/// The first bytes one side sends.
#[derive(Debug, Default)]
struct Front {
    bytes: [u8; tls::HEADER],
    have: u8,
}

impl Front {
    fn take(&mut self, captured: &[u8]) {
        let room = self.bytes.get_mut(usize::from(self.have)..).unwrap_or_default();
        let taken = room.len().min(captured.len());
        room.iter_mut().zip(captured).for_each(|(place, byte)| *place = *byte);
        self.have += taken as u8;
    }

    /// Whether all `len` bytes sent are the closing of a TLS connection, which requests and answers nothing.
    fn is_farewell(&self, len: u64) -> bool {
        let record = tls::Record::read(self.bytes).filter(|_| usize::from(self.have) == tls::HEADER);
        record.is_some_and(|record| record.is_farewell() && (tls::HEADER + record.len) as u64 == len)
    }
}

impl RoundTrips {
    /// A connection with requests in direction `requests` and both directions at these positions (receive, send).
    /// `joined`: it may be in the middle of anything.
    pub(super) fn new(
        protocol: &'static dyn Protocol,
        requests: Direction,
        (rx, tx): (u64, u64),
        joined: bool,
    ) -> Self {
        let is_tls = protocol.id() == ProtocolId::Tls;
        let stage = match protocol.id() {
            _ if is_tls && !joined => Stage::Handshake(Box::default()),
            ProtocolId::Smtp | ProtocolId::Ldap => Stage::Before { agreed: false },
            _ => Stage::Settled,
        };
        let (requesting, answered) = if requests == Direction::Rx { (rx, tx) } else { (tx, rx) };
        Self {
            protocol,
            requests,
            name: None,
            requesting: Way { pos: requesting },
            answered: Way { pos: answered },
            round_trip: None,
            stage,
            next: 0,
            began: false,
            joined,
            inside: None,
        }
    }

    /// Whether the connection is encrypted by TLS, or is about to be; and whether more than the handshake may have
    /// passed.
    pub(super) fn encrypted(&self) -> Option<bool> {
        let agreed = matches!(self.stage, Stage::Before { agreed: true });
        // The answer to what came with the end of the handshake may be the rest of the server's (session tickets).
        let replied =
            |round_trip: &RoundTrip| !round_trip.is_handshake && !round_trip.is_early && round_trip.reply.is_some();
        let replied = self.round_trip.as_ref().is_some_and(replied);
        (agreed || self.protocol.id() == ProtocolId::Tls).then_some(self.joined || replied)
    }

    pub(super) fn protocol(&self) -> &'static dyn Protocol {
        self.protocol
    }

    pub(super) fn side(&self) -> Side {
        if self.requests == Direction::Rx { Side::Server } else { Side::Client }
    }

    /// Whether a round trip began with the latest operation.
    pub(super) fn began(&self) -> bool {
        self.began
    }

    /// Whether it reads bytes: a handshake is under way.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Handshake(_))
    }

    /// When the round trip under way began, and when its answer last continued.
    pub(super) fn so_far(&self) -> Option<(Nanos, Nanos)> {
        let round_trip = self.round_trip.as_ref()?;
        round_trip.reply.map(|(_, last)| (round_trip.first.nanos, last.nanos))
    }

    /// What it wants the kernel to report.
    pub(super) fn want(&self) -> Want {
        let settled = matches!(self.stage, Stage::Settled);
        let (verdict, head) = match self.stage {
            Stage::Settled => (Verdict::RoundTrips, HEAD),
            // Commands in the clear are short, and one of them may lead to TLS.
            Stage::Before { agreed: false } => (Verdict::RoundTrips, 0),
            _ => (Verdict::Trace, 0),
        };
        debug_assert!(settled || head == 0, "what is read is wanted");
        Want { verdict, head_rx: head, head_tx: head, rx_skip: 0, tx_skip: 0, frames: false }
    }

    /// Bytes kept.
    fn kept_bytes(&self) -> usize {
        let handshake = match &self.stage {
            Stage::Handshake(handshake) => handshake.kept_bytes(),
            _ => 0,
        };
        handshake + self.inside.as_ref().map_or(0, |inside| inside.parser.kept_bytes())
    }

    /// Takes an operation; `false` when the expected protocol does not follow, so that nothing more can be learned from
    /// the connection.
    fn bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> bool {
        self.began = false;
        let asks = chunk.dir == self.requests;
        let way = if asks { &mut self.requesting } else { &mut self.answered };
        let gap = chunk.pos.saturating_sub(way.pos);
        let Some(chunk) = &chunk.beyond(way.pos) else { return true };
        way.pos = chunk.end();
        let bytes = gap.saturating_add(chunk.len);
        if !asks {
            if let Stage::Handshake(handshake) = &mut self.stage {
                handshake.answered(chunk, gap);
            }
            if let Some(round_trip) = &mut self.round_trip {
                round_trip.fronts[1].take(chunk.head);
                let (first, _) = round_trip.reply.unwrap_or((chunk.at, chunk.at));
                round_trip.reply = Some((first, chunk.at));
                round_trip.reply_bytes = round_trip.reply_bytes.saturating_add(bytes);
            }
            return true;
        }
        let begins = self.round_trip.as_ref().is_none_or(|round_trip| round_trip.reply.is_some());
        if let Stage::Before { agreed } = self.stage
            && begins
            && let Some(first) = chunk.head.first()
        {
            if *first == tls::HANDSHAKE {
                self.end(out);
                self.protocol = &Tls;
                self.stage = Stage::Handshake(Box::default());
            } else if agreed {
                return false;
            }
        }
        let mut used = 0;
        if let Stage::Handshake(handshake) = &mut self.stage {
            match handshake.on_request_bytes(chunk, gap) {
                Took::All => {
                    self.handshake_goes_on(chunk, bytes);
                    return true;
                }
                Took::Part(part) => {
                    used = part;
                    if let Some(round_trip) = &mut self.round_trip {
                        round_trip.request_bytes = round_trip.request_bytes.saturating_add(gap).saturating_add(part);
                    }
                    let hello = handshake.hello();
                    certified(handshake, &hello, out);
                    self.named(&hello);
                    self.stage = Stage::Settled;
                    self.end(out);
                    if used >= chunk.len {
                        return true;
                    }
                }
            }
        }
        let bytes = if used == 0 { bytes } else { chunk.len - used };
        self.speaks(chunk, used, bytes, out);
        true
    }

    /// Accounts for bytes of the client's part of the handshake.
    fn handshake_goes_on(&mut self, chunk: &Chunk<'_>, bytes: u64) {
        let round_trip = self.round_trip.get_or_insert_with(|| {
            self.began = true;
            RoundTrip::new(true, chunk, 0)
        });
        round_trip.request_bytes = round_trip.request_bytes.saturating_add(bytes);
    }

    /// The requesting end speaks, after the first `used` bytes of an operation.
    fn speaks(&mut self, chunk: &Chunk<'_>, used: u64, bytes: u64, out: &mut Vec<ExchangeEvent>) {
        if self.round_trip.as_ref().is_some_and(|round_trip| round_trip.reply.is_some()) {
            self.end(out);
        }
        let round_trip = self.round_trip.get_or_insert_with(|| {
            self.began = true;
            RoundTrip::new(false, chunk, used)
        });
        round_trip.fronts[0].take(chunk.head.get(used as usize..).unwrap_or_default());
        round_trip.request_bytes = round_trip.request_bytes.saturating_add(bytes);
    }

    /// Takes the name from the client's first message.
    fn named(&mut self, hello: &Hello) {
        let is_known = !hello.name.is_empty() || !hello.offers.is_empty();
        self.name = is_known.then(|| NAMES.share(Name { path: Box::from(&*hello.name), version: hello.offers }));
    }

    /// Ends the round trip under way, and reports it if it was answered.
    fn end(&mut self, out: &mut Vec<ExchangeEvent>) {
        let Some(round_trip) = self.round_trip.take() else { return };
        let RoundTrip { is_handshake, is_early: _, first, arrived, pos, request_bytes, reply, reply_bytes, fronts } =
            round_trip;
        let Some((replied, last)) = reply else { return };
        let [requested, answered] = fronts;
        let tls = self.protocol.id() == ProtocolId::Tls && !is_handshake;
        if tls && (requested.is_farewell(request_bytes) || answered.is_farewell(reply_bytes)) {
            return;
        }
        self.joined |= tls;
        let exchange = self.next;
        self.next += 1;
        let protocol = self.protocol.id();
        let word = match protocol {
            _ if is_handshake => "handshake",
            ProtocolId::Tls => "TLS",
            ProtocolId::Ssh => "SSH",
            ProtocolId::Smtp => "SMTP",
            ProtocolId::Ldap => "LDAP",
            _ => "round trip",
        };
        let request = Box::new(Request {
            method: Arc::from(word),
            path: match &self.name {
                Some(name) if !name.path.is_empty() => Arc::from(format!("{word} {}", name.path)),
                _ => Arc::from(""),
            },
            version: self.name.as_ref().map_or("", |name| name.version),
            expected: ExpectedReply { timed: true, ..ExpectedReply::default() },
            session: None,
            namespace: None,
            cut: false,
            ..*Request::unnamed()
        });
        let side = self.side();
        out.push(ExchangeEvent::Begun { exchange, request, first, arrived, head_at: first, pos, side, protocol });
        out.push(ExchangeEvent::Replied { exchange, status: 0, failure: None, first: replied, sure: false });
        out.push(ExchangeEvent::Done {
            exchange,
            outcome: Outcome::Complete,
            at: last,
            request_bytes,
            reply_bytes,
            reply_body_bytes: Some(reply_bytes),
        });
    }

    /// The handshake is over.
    fn end_handshake(&mut self, out: &mut Vec<ExchangeEvent>) {
        if let Stage::Handshake(handshake) = &self.stage {
            let hello = handshake.hello();
            certified(handshake, &hello, out);
            self.named(&hello);
            self.stage = Stage::Settled;
            self.end(out);
        }
    }

    /// Nothing more comes. A handshake under way gets its name from what could be read of it.
    fn over(&mut self, out: &mut Vec<ExchangeEvent>) {
        if let Stage::Handshake(handshake) = &self.stage {
            let hello = handshake.hello();
            self.named(&hello);
        }
        self.end(out);
    }
}

/// Reports when the server's certificate expires, if the handshake showed it.
fn certified(handshake: &Handshake, hello: &Hello, out: &mut Vec<ExchangeEvent>) {
    if let Some(expires) = handshake.expires() {
        out.push(ExchangeEvent::Certificate { name: Box::from(&*hello.name), expires });
    }
}

impl RoundTrip {
    fn new(is_handshake: bool, chunk: &Chunk<'_>, used: u64) -> Self {
        Self {
            is_handshake,
            is_early: used > 0,
            first: chunk.at,
            arrived: chunk.arrived,
            pos: chunk.pos.saturating_add(used),
            request_bytes: 0,
            reply: None,
            reply_bytes: 0,
            fronts: Default::default(),
        }
    }
}

impl ConnectionParser {
    /// Whether a round trip began with the latest operation.
    pub fn round_trip_began(&self) -> bool {
        self.mode.round_trips().is_some_and(RoundTrips::began)
    }

    /// When the round trip under way began, and when its answer last continued.
    pub fn round_trip_so_far(&self) -> Option<(Nanos, Nanos)> {
        self.mode.round_trips()?.so_far()
    }

    /// Sets which end connected, if known; `timed`: round trips are timed whatever the protocol.
    pub fn opened(&mut self, side: Option<Side>, timed: bool) {
        self.connected = side;
        self.timed = timed;
    }

    /// Times the connection by round trips from here on. False if the requesting end is unknown.
    pub(super) fn time_round_trips(&mut self, protocol: &'static dyn Protocol, requests: Option<Direction>) -> bool {
        let connected = self.connected.map(|side| match side {
            Side::Server => Direction::Rx,
            Side::Client => Direction::Tx,
        });
        let Some(requests) = requests.or(connected) else { return false };
        let mut round_trips = RoundTrips::new(protocol, requests, (self.rx.pos, self.tx.pos), self.midstream);
        // Behind a tunnel, the connection had exchanges before.
        round_trips.next = self.pair.upcoming();
        self.become_timed(round_trips);
        true
    }

    /// Whether the bytes of the connection are TLS's, so that its text can take their place: `None` if they are not;
    /// else whether text may have passed already.
    pub fn encrypted(&self) -> Option<bool> {
        match &self.mode {
            Mode::RoundTrips(round_trips) => round_trips.encrypted(),
            Mode::Multiplexed(_) => None,
            // Joined in mid-stream, and no protocol was recognised so far.
            _ => self.protocol.is_none().then_some(true),
        }
    }

    /// Whether the connection is encrypted by TLS or about to be, and its text unknown so far.
    pub fn awaits_text(&self) -> bool {
        self.is_sealed() || self.mode.round_trips().is_some_and(|round_trips| round_trips.encrypted().is_some())
    }

    /// Whether it is encrypted by TLS, and neither end is known to be the client: only its text can show what it carries.
    pub(super) fn is_sealed(&self) -> bool {
        self.verdict == Verdict::RoundTrips && self.protocol.is_none()
    }

    /// Its text is of no known protocol: what else can be seen of it goes on.
    pub fn goes_on_without_text(&mut self) {
        if self.is_sealed() {
            self.verdict = Verdict::Ignore;
        }
    }

    /// Text comes to take the place of the connection's encrypted bytes: reports the handshake, which is over, and gives
    /// the state of a parser of the text. `joined`: text may have passed already.
    pub fn begin_text(&mut self, joined: bool, out: &mut Vec<ExchangeEvent>) -> ActiveState {
        let mut upcoming = self.pair.upcoming();
        let mut inside = None;
        if let Some(round_trips) = self.mode.round_trips_mut() {
            round_trips.end_handshake(out);
            upcoming = upcoming.max(round_trips.next);
            self.protocol = Some(round_trips.protocol());
            inside = round_trips.inside.take();
        } else if let (Some(protocol), Some(requests)) = (self.protocol, self.requests) {
            // Text begins anew.
            inside = self.parser.take().map(|parser| Inside { protocol, requests, parser });
        }
        let mut text = ActiveState::new(joined);
        let parser = text.awake();
        parser.inside = inside.map(Box::new);
        // If nothing can be made of the text, round trips of its encrypted bytes are timed.
        parser.opened(self.connected.or(self.side()), false);
        parser.pair.go_on(upcoming);
        text
    }

    /// Whether nothing is made of the bytes.
    pub fn is_ignored(&self) -> bool {
        self.verdict == Verdict::Ignore
    }

    /// The same for a connection whose ends have agreed that TLS follows.
    pub(super) fn time_tls(&mut self, chunk: &Chunk<'_>, left: u64) -> u64 {
        let Some(requests) = self.requests else { return left };
        self.stream(chunk.dir).pos = chunk.end();
        let mut round_trips = RoundTrips::new(&Tls, requests, (self.rx.pos, self.tx.pos), false);
        round_trips.stage = Stage::Before { agreed: true };
        round_trips.next = self.pair.upcoming();
        if let (Some(protocol), Some(parser)) = (self.protocol, self.parser.take()) {
            round_trips.inside = Some(Inside { protocol, requests, parser });
        }
        self.become_timed(round_trips);
        left
    }

    /// The same for a connection of a protocol with frames; `chunk` is the client's first message of TLS.
    pub(super) fn tls_begins(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Touched {
        let (Some(requests), Mode::Multiplexed(multiplexed)) = (self.requests, std::mem::take(&mut self.mode)) else {
            return Touched::default();
        };
        let (positions, next) = multiplexed.withdraw(out);
        (self.rx.pos, self.tx.pos) = positions;
        self.stream(chunk.dir).pos = chunk.pos;
        let mut round_trips = RoundTrips::new(&Tls, requests, (self.rx.pos, self.tx.pos), false);
        round_trips.next = next;
        self.become_timed(round_trips);
        self.turn_bytes(chunk, out)
    }

    fn become_timed(&mut self, round_trips: RoundTrips) {
        self.verdict = Verdict::Trace;
        self.protocol = Some(round_trips.protocol());
        self.requests = Some(round_trips.requests);
        self.parser = None;
        self.held = Vec::new();
        self.mode = Mode::RoundTrips(Box::new(round_trips));
    }

    /// Takes the operation that revealed the protocol, and the fragments before it.
    pub(super) fn round_trips_begin(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Touched {
        let Chunk { dir, .. } = *chunk;
        let stream = self.stream(dir);
        let (fragments, start) = (std::mem::take(&mut stream.buffer), stream.start.take());
        self.rx.restart();
        self.tx.restart();
        let pos = start.map_or(chunk.pos, |(_, _, pos)| pos);
        if let Some(round_trips) = self.mode.round_trips_mut() {
            let way = if dir == round_trips.requests { &mut round_trips.requesting } else { &mut round_trips.answered };
            way.pos = pos;
        }
        if let Some((at, arrived, pos)) = start {
            let len = fragments.len() as u64;
            self.turn_bytes(&Chunk { dir, pos, len, head: &fragments, tail: &[], fragments: &[], at, arrived }, out);
        }
        self.turn_bytes(chunk, out)
    }

    /// No known protocol: times the connection all the same if configured.
    pub(super) fn time_unknown(&mut self) -> bool {
        self.timed && self.time_round_trips(&Unknown, self.last_dir.filter(|_| self.connected.is_none()))
    }

    /// Takes an operation of a connection timed by round trips.
    pub(super) fn turn_bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Touched {
        if let Some(round_trips) = self.mode.round_trips_mut() {
            if round_trips.bytes(chunk, out) {
                self.protocol = Some(round_trips.protocol());
            } else {
                self.mode = Mode::Ordered;
                self.verdict = Verdict::Ignore;
            }
        }
        Touched::default()
    }

    /// Bytes kept for round trips.
    pub(super) fn round_trips_kept(&self) -> usize {
        self.mode.round_trips().map_or(0, RoundTrips::kept_bytes)
    }

    /// No more round trips come; `totals` give the final stream positions.
    pub(super) fn round_trips_over(&mut self, totals: Option<Totals>, out: &mut Vec<ExchangeEvent>) {
        if self.mode.round_trips().is_none() {
            return;
        }
        let Mode::RoundTrips(mut round_trips) = std::mem::take(&mut self.mode) else { return };
        self.verdict = Verdict::Ignore;
        if let Some(totals) = totals {
            let (replies, end, last) = match round_trips.requests {
                Direction::Rx => (Direction::Tx, totals.tx, totals.last_tx),
                Direction::Tx => (Direction::Rx, totals.rx, totals.last_rx),
            };
            let missed = end.saturating_sub(round_trips.answered.pos);
            if missed > 0 && last > 0 {
                let at = Stamp { nanos: last, ..Stamp::default() };
                let pos = round_trips.answered.pos;
                let rest =
                    Chunk { dir: replies, pos, len: missed, head: &[], tail: &[], fragments: &[], at, arrived: 0 };
                round_trips.bytes(&rest, out);
            }
        }
        round_trips.over(out);
        // Requests of the protocol spoken before.
        self.give_up_all(self.rx.last, out);
    }
}

#[cfg(test)]
mod tests;
