//! A connection after an upgrade to WebSocket (RFC 6455): a session, reported when it is over.
//!
//! The upgrade itself is an ordinary request. The session after it is another one with the same path, reported only at
//! its end: no span stays open for it, however long it lasts. Both directions are followed from frame to frame; of
//! their content only the reason in a close frame is read.

use std::sync::Arc;

use tracer_model::{Direction, Outcome, Side};

use super::connection_parser::ConnectionParser;
use super::context::TraceParent;
use super::mode::Mode;
use super::stream::StreamState;
use super::{Chunk, ExchangeEvent, ExpectedReply, Request, Stamp, Touched, Verdict, websocket};

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    request: Box<Request>,
    first: Stamp,
    rx: Way,
    tx: Way,
    /// Status code of the first close frame seen.
    closed: Option<u16>,
}

/// One direction of it.
#[derive(Debug, Default)]
struct Way {
    pos: u64,
    /// Bytes since the session began.
    bytes: u64,
    frames: websocket::Frames,
    /// Bytes left of a frame, which need not be read.
    left: u64,
    /// Frame boundaries are unknown, so frames are no longer followed.
    lost: bool,
    last: Stamp,
}

/// Compact form of a session between two frames, without the positions of its directions.
#[derive(Debug)]
pub(super) struct RestingSession {
    request: StoredRequest,
    first: Stamp,
    bytes: [u64; 2],
    lost: [bool; 2],
    closed: Option<u16>,
}

/// A request, stored compactly if it has only the common parts.
#[derive(Debug)]
enum StoredRequest {
    Plain { method: Arc<str>, path: Arc<str>, version: &'static str, expected: ExpectedReply },
    Whole(Box<Request>),
}

impl StoredRequest {
    fn new(request: Box<Request>) -> Self {
        let plain =
            Self::plain(Arc::clone(&request.method), Arc::clone(&request.path), request.version, request.expected);
        if plain != request {
            return Self::Whole(request);
        }
        let Request { method, path, version, expected, .. } = *request;
        Self::Plain { method, path, version, expected }
    }

    fn plain(method: Arc<str>, path: Arc<str>, version: &'static str, expected: ExpectedReply) -> Box<Request> {
        let mut request = Request::named(method, path, expected);
        request.version = version;
        request
    }

    fn request(self) -> Box<Request> {
        match self {
            Self::Plain { method, path, version, expected } => Self::plain(method, path, version, expected),
            Self::Whole(request) => request,
        }
    }
}

impl RestingSession {
    /// Restores the active form, with both directions' positions and last operations.
    pub(super) fn wake(self, rx: (u64, Stamp), tx: (u64, Stamp)) -> Box<Session> {
        let [rx_bytes, tx_bytes] = self.bytes;
        let [rx_lost, tx_lost] = self.lost;
        let way = |(pos, last), bytes, lost| Way { pos, bytes, lost, last, ..Way::default() };
        let (rx, tx) = (way(rx, rx_bytes, rx_lost), way(tx, tx_bytes, tx_lost));
        Box::new(Session { request: self.request.request(), first: self.first, rx, tx, closed: self.closed })
    }
}

impl Session {
    /// Whether both directions are between frames, or not followed.
    pub(super) fn is_quiet(&self) -> bool {
        [&self.rx, &self.tx].iter().all(|way| way.lost || way.left == 0 && way.frames.is_between())
    }

    /// The compact form, and both directions' positions.
    pub(super) fn rest(self) -> (RestingSession, [(u64, Stamp); 2]) {
        let Self { request, first, rx, tx, closed } = self;
        let stands = [(rx.pos, rx.last), (tx.pos, tx.last)];
        let (bytes, lost) = ([rx.bytes, tx.bytes], [rx.lost, tx.lost]);
        (RestingSession { request: StoredRequest::new(request), first, bytes, lost, closed }, stands)
    }

    /// Begins at `at`, with both directions at these positions.
    pub(super) fn new(request: Box<Request>, at: Stamp, rx: u64, tx: u64) -> Self {
        let way = |pos| Way { pos, last: at, ..Way::default() };
        Self { request, first: at, rx: way(rx), tx: way(tx), closed: None }
    }

    /// Takes an operation.
    fn bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) {
        let way = match chunk.dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        let gap = chunk.pos.saturating_sub(way.pos);
        let Some(chunk) = chunk.beyond(way.pos) else { return };
        way.pos = chunk.end();
        way.last = chunk.at;
        way.bytes = way.bytes.saturating_add(gap).saturating_add(chunk.len);
        if !way.skip(gap) {
            out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: gap });
        }
        if way.lost && websocket::fits(chunk.head, chunk.len) {
            (way.lost, way.left, way.frames) = (false, 0, websocket::Frames::default());
        }
        let mut at = 0;
        while !way.lost && at < chunk.len {
            let take = way.left.min(chunk.len - at);
            way.left -= take;
            at += take;
            let Some(captured) = chunk.head.get(at as usize..).filter(|bytes| !bytes.is_empty()) else {
                if at < chunk.len && !way.skip(chunk.len - at) {
                    out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: chunk.len - at });
                }
                break;
            };
            if let Some(fed) = way.frames.feed(captured) {
                self.closed = self.closed.or(fed.closed);
                way.left = fed.left;
                at += fed.used as u64;
            } else {
                way.lost = true;
                out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: chunk.len - at });
            }
        }
    }

    /// The last operation, at which the session ended.
    fn last(&self) -> Stamp {
        if self.rx.last.nanos > self.tx.last.nanos { self.rx.last } else { self.tx.last }
    }
}

impl Way {
    /// Skips uncaptured bytes; false if a frame begins among them.
    fn skip(&mut self, bytes: u64) -> bool {
        if bytes > self.left && !self.lost {
            self.lost = true;
            return false;
        }
        self.left = self.left.saturating_sub(bytes);
        true
    }
}

impl ConnectionParser {
    /// Takes an operation of a session.
    pub(super) fn session_bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<ExchangeEvent>) -> Touched {
        if let Some(session) = self.mode.session_mut() {
            session.bytes(chunk, out);
        }
        Touched::default()
    }

    /// Names the span of the upgrade that began the session: its parent.
    pub fn began_with(&mut self, upgrade: TraceParent) {
        if let Some(session) = self.mode.session_mut() {
            session.request.traceparent = Some(upgrade);
        }
    }

    /// Reports the session at its end.
    pub(super) fn session_ended(&mut self, idle: bool, out: &mut Vec<ExchangeEvent>) {
        if self.mode.session_mut().is_none() {
            return;
        }
        let Mode::Session(session) = std::mem::take(&mut self.mode) else { return };
        self.verdict = Verdict::Ignore;
        let Some(requests) = self.requests else { return };
        let (side, requested, answered) = match requests {
            Direction::Rx => (Side::Server, &session.rx, &session.tx),
            Direction::Tx => (Side::Client, &session.tx, &session.rx),
        };
        let last = session.last();
        let outcome = match session.closed {
            Some(_) => Outcome::Complete,
            None if idle || session.rx.lost || session.tx.lost => Outcome::Unfinished,
            None => Outcome::Aborted,
        };
        let (request_bytes, reply_bytes) = (requested.bytes, answered.bytes);
        let (exchange, _) = self.pair.begin(session.request.expected, true);
        let first = session.first;
        let request = session.request;
        let (protocol, pos) = (self.protocol_id(), super::NOWHERE);
        out.push(ExchangeEvent::Begun { exchange, request, first, arrived: 0, head_at: last, pos, side, protocol });
        if let Some(code) = session.closed {
            let failure = websocket::failure(code);
            out.push(ExchangeEvent::Replied { exchange, status: 0, failure, first: last, sure: false });
        }
        self.pair.end();
        let reply_body_bytes = Some(reply_bytes);
        out.push(ExchangeEvent::Done { exchange, outcome, at: last, request_bytes, reply_bytes, reply_body_bytes });
    }

    /// The connection continues as a session of `request`, after `chunk`'s first `used` bytes.
    pub(super) fn begin_session(
        &mut self,
        request: Box<Request>,
        chunk: &Chunk<'_>,
        used: u64,
        out: &mut Vec<ExchangeEvent>,
    ) {
        let at = chunk.pos + used;
        let (rx, tx) = match chunk.dir {
            Direction::Rx => (at, self.tx.pos),
            Direction::Tx => (self.rx.pos, at),
        };
        self.rx.state = StreamState::Start;
        self.tx.state = StreamState::Start;
        self.protocol = Some(&websocket::WebSocket);
        self.mode = Mode::Session(Box::new(Session::new(request, chunk.at, rx, tx)));
        if used < chunk.len {
            self.session_bytes(chunk, out);
        }
    }
}
