//! What a connection becomes after an upgrade to WebSocket (RFC 6455): a session, reported when it is over.
//!
//! The upgrade itself is a request like others. The session after it is one more, of the same path, that is told only at
//! its end: nothing stays open for it, however long it lasts. Both directions are followed from frame to frame; of what
//! they carry only the reason of a closing is read.

use std::sync::Arc;

use super::conversation::Conversation;
use super::stream::State;
use super::{Asked, Chunk, Request, Said, Stamp, Touched, Verdict, websocket};
use crate::model::{Direction, Outcome, Side};

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    request: Box<Request>,
    first: Stamp,
    rx: Way,
    tx: Way,
    /// First word of the first closing that was seen.
    closed: Option<u16>,
}

/// One direction of it.
#[derive(Debug, Default)]
struct Way {
    pos: u64,
    /// Bytes since the session began.
    bytes: u64,
    frames: websocket::Frames,
    /// Bytes left of a frame, which say nothing.
    left: u64,
    /// Frames are not followed any longer: where one begins is not known.
    lost: bool,
    last: Stamp,
}

/// What is kept of a session between two frames, beside where its directions stand.
#[derive(Debug)]
pub(super) struct RestingSession {
    request: Kept,
    first: Stamp,
    bytes: [u64; 2],
    lost: [bool; 2],
    closed: Option<u16>,
}

/// A request, in less room where it says no more than most.
#[derive(Debug)]
enum Kept {
    Plain { method: Arc<str>, path: Arc<str>, version: &'static str, asked: Asked },
    Whole(Box<Request>),
}

impl Kept {
    fn new(request: Box<Request>) -> Self {
        let plain = Self::plain(Arc::clone(&request.method), Arc::clone(&request.path), request.version, request.asked);
        if plain != request {
            return Self::Whole(request);
        }
        let Request { method, path, version, asked, .. } = *request;
        Self::Plain { method, path, version, asked }
    }

    fn plain(method: Arc<str>, path: Arc<str>, version: &'static str, asked: Asked) -> Box<Request> {
        let mut request = Request::named(method, path, asked);
        request.version = version;
        request
    }

    fn request(self) -> Box<Request> {
        match self {
            Self::Plain { method, path, version, asked } => Self::plain(method, path, version, asked),
            Self::Whole(request) => request,
        }
    }
}

impl RestingSession {
    /// As it was before it rested, with both directions at these positions after their last operations.
    pub(super) fn wake(self, rx: (u64, Stamp), tx: (u64, Stamp)) -> Box<Session> {
        let [rx_bytes, tx_bytes] = self.bytes;
        let [rx_lost, tx_lost] = self.lost;
        let way = |(pos, last), bytes, lost| Way { pos, bytes, lost, last, ..Way::default() };
        let (rx, tx) = (way(rx, rx_bytes, rx_lost), way(tx, tx_bytes, tx_lost));
        Box::new(Session { request: self.request.request(), first: self.first, rx, tx, closed: self.closed })
    }
}

impl Session {
    /// Whether frames begin with the next bytes, or are not followed.
    pub(super) fn is_quiet(&self) -> bool {
        [&self.rx, &self.tx].iter().all(|way| way.lost || way.left == 0 && way.frames.is_between())
    }

    /// What is to be kept of it then, and where both directions stand.
    pub(super) fn rest(self) -> (RestingSession, [(u64, Stamp); 2]) {
        let Self { request, first, rx, tx, closed } = self;
        let stands = [(rx.pos, rx.last), (tx.pos, tx.last)];
        let (bytes, lost) = ([rx.bytes, tx.bytes], [rx.lost, tx.lost]);
        (RestingSession { request: Kept::new(request), first, bytes, lost, closed }, stands)
    }

    /// Begins at `at`, where both directions stand at these positions.
    pub(super) fn new(request: Box<Request>, at: Stamp, rx: u64, tx: u64) -> Self {
        let way = |pos| Way { pos, last: at, ..Way::default() };
        Self { request, first: at, rx: way(rx), tx: way(tx), closed: None }
    }

    /// Takes an operation.
    fn bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Said>) {
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
            out.push(Said::Lost { dir: chunk.dir, bytes: gap });
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
                    out.push(Said::Lost { dir: chunk.dir, bytes: chunk.len - at });
                }
                break;
            };
            if let Some(fed) = way.frames.feed(captured) {
                self.closed = self.closed.or(fed.closed);
                way.left = fed.left;
                at += fed.used as u64;
            } else {
                way.lost = true;
                out.push(Said::Lost { dir: chunk.dir, bytes: chunk.len - at });
            }
        }
    }

    /// When it ended, by the last operation.
    fn last(&self) -> Stamp {
        if self.rx.last.nanos > self.tx.last.nanos { self.rx.last } else { self.tx.last }
    }
}

impl Way {
    /// Passes over bytes that were not captured; false when frames begin in them.
    fn skip(&mut self, bytes: u64) -> bool {
        if bytes > self.left && !self.lost {
            self.lost = true;
            return false;
        }
        self.left = self.left.saturating_sub(bytes);
        true
    }
}

impl Conversation {
    /// Takes an operation of a session.
    pub(super) fn session_bytes(&mut self, chunk: &Chunk<'_>, out: &mut Vec<Said>) -> Touched {
        if let Some(session) = &mut self.session {
            session.bytes(chunk, out);
        }
        Touched::default()
    }

    /// The session is over: it is reported.
    pub(super) fn session_ended(&mut self, idle: bool, out: &mut Vec<Said>) {
        let Some(session) = self.session.take() else { return };
        self.verdict = Verdict::Ignore;
        let Some(requests) = self.requests else { return };
        let (side, asked, answered) = match requests {
            Direction::Rx => (Side::Server, &session.rx, &session.tx),
            Direction::Tx => (Side::Client, &session.tx, &session.rx),
        };
        let last = session.last();
        let outcome = match session.closed {
            Some(_) => Outcome::Complete,
            None if idle || session.rx.lost || session.tx.lost => Outcome::Unfinished,
            None => Outcome::Aborted,
        };
        let (request_bytes, reply_bytes) = (asked.bytes, answered.bytes);
        let (exchange, _) = self.pair.begin(session.request.asked, true);
        let first = session.first;
        let request = session.request;
        let (protocol, pos) = (self.protocol_name(), super::NOWHERE);
        out.push(Said::Begun { exchange, request, first, arrived: 0, head_at: last, pos, side, protocol });
        if let Some(code) = session.closed {
            let failure = websocket::failure(code);
            out.push(Said::Replied { exchange, status: 0, failure, first: last, sure: false });
        }
        self.pair.end();
        let reply_body_bytes = Some(reply_bytes);
        out.push(Said::Done { exchange, outcome, at: last, request_bytes, reply_bytes, reply_body_bytes });
    }

    /// The connection goes on as a session of `request`, after `chunk`'s first `used` bytes.
    pub(super) fn begin_session(&mut self, request: Box<Request>, chunk: &Chunk<'_>, used: u64, out: &mut Vec<Said>) {
        let at = chunk.pos + used;
        let (rx, tx) = match chunk.dir {
            Direction::Rx => (at, self.tx.pos),
            Direction::Tx => (self.rx.pos, at),
        };
        self.rx.state = State::Start;
        self.tx.state = State::Start;
        self.protocol = Some(&websocket::WebSocket);
        self.session = Some(Box::new(Session::new(request, chunk.at, rx, tx)));
        if used < chunk.len {
            self.session_bytes(chunk, out);
        }
    }
}
