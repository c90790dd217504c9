//! One connection of a protocol whose messages carry the number of their exchange: replies come in any order, and
//! messages in fragments interleaved with others.
//!
//! A [`Framed`] reads the frames; bodies are skipped by their lengths. After a frame whose beginning was not captured,
//! frame boundaries are unknown: the reader looks for the next frame and reports the bytes in between as lost.
//! Operations that overtake each other are put in order first: with compressed heads, a false gap would cost the names
//! of all later requests.

mod compact;
mod ending;
mod frame_events;
mod order;
mod reckon;

use std::collections::BTreeMap;

pub(super) use self::compact::RestingLanes;
use tracer_common::limits::{HEAD_REPLY_WHOLE, HEAD_REQUEST};
use tracer_model::{Direction, Nanos};

use super::connection_parser::{HEAD_MAX, HeldOperation};
use super::framed::{Framed, Front, Way};
use super::pieces::{LASTING, Pieces};
use super::{Chunk, ExchangeEvent, ExpectedReply, Settings, Stamp, Touched, Verdict, Want};

/// Most requests of one connection followed at once; beyond it the oldest is given up and counted.
pub(super) const LIMIT: usize = 1024;
/// Most operations parked until the one before them arrives, and how long they wait, in nanoseconds.
const PARKED: usize = 16;
const PARKED_BYTES: usize = 64 * 1024;
const PATIENCE: Nanos = 20_000_000;
/// [`Lane::need`] of a line.
const LINE: usize = usize::MAX;
/// A frame with at least this much still to come need not be reported until its end.
const LONG: u64 = 64 * 1024;
/// Operations without any frame before the connection is ignored.
const MISSES: u8 = 64;
/// Most exchanges reported as touched by one operation.
const TOUCHED: usize = 64;
/// A request open for longer is reported with its duration so far.
pub(super) const LONGEST: Nanos = 600_000_000_000;

/// What the messages inside a body tell about its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Messages {
    /// The body consists of no messages, as far as is known.
    #[default]
    None,
    /// The end of the newest message is known.
    Known,
    /// One frame held several: their beginnings are unknown.
    Unknown,
}

/// A request whose reply is incomplete.
#[derive(Debug)]
struct Open {
    exchange: u64,
    /// The way it was sent: in a mutual protocol either end may send requests.
    way: Way,
    expected: ExpectedReply,
    request_bytes: u64,
    reply_bytes: u64,
    body_bytes: u64,
    /// Body bytes still to come, of the request and of the reply, where their heads gave the length.
    to_come: [Option<u64>; 2],
    /// Whether bodies consist of messages that each give their own length, without a total; and whether the end of one
    /// is known.
    messages: [Messages; 2],
    replied: bool,
    request_done: bool,
    /// Parts of the reply, and its end, may have been among bytes that were missed.
    holes: bool,
    doubtful: bool,
    began: Nanos,
    last: Stamp,
}

impl Open {
    /// Whether a frame that goes `way` belongs to the request or to the reply.
    fn part(&self, way: Way) -> Way {
        if way == self.way { Way::Request } else { Way::Reply }
    }

    /// Counts a frame.
    fn count(&mut self, way: Way, len: u64, body: u64) {
        let way = self.part(way);
        match way {
            Way::Request => self.request_bytes += len,
            Way::Reply => {
                self.doubtful = false;
                self.reply_bytes += len;
                self.body_bytes += body;
            }
        }
        if let Some(to_come) = &mut self.to_come[way as usize] {
            if body > *to_come && self.messages[way as usize] == Messages::Known {
                self.messages[way as usize] = Messages::Unknown;
                self.to_come[way as usize] = None;
                return;
            }
            *to_come = to_come.saturating_sub(body);
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    /// Position of the next byte.
    pos: u64,
    /// Front of a frame being collected, and the length it needs.
    buffer: Vec<u8>,
    need: usize,
    /// The frame's first byte: operation, arrival, position.
    start: Option<(Stamp, Nanos, u64)>,
    /// Bytes left of the current frame; its key, and whether the frame ends this direction of the exchange.
    left: u64,
    key: u64,
    end: bool,
    /// Frame boundaries are unknown: bytes since then.
    lost: Option<u64>,
    /// Frame boundaries are inferred, not read: bytes since then.
    reckoned: Option<u64>,
    /// Body bytes of the largest recent frames.
    usual: u64,
    misses: u8,
    last: Stamp,
    head_wanted: u16,
    /// Whether all of an operation is worth carrying.
    pieces: Pieces,
}

/// State of one connection's frames.
#[derive(Debug)]
pub(super) struct Multiplexed {
    framed: Box<dyn Framed>,
    requests: Direction,
    rx: Lane,
    tx: Lane,
    open: BTreeMap<u64, Open>,
    /// Lowest and highest key of the requests seen.
    seen: Option<(u64, u64)>,
    /// Number of the next exchange.
    next: u64,
    parked: Vec<HeldOperation>,
    touched: Vec<u64>,
    verdict: Verdict,
    /// A reply was one of this protocol's, or bytes were missed.
    settled: bool,
    /// The first reply is none of this protocol's.
    refuted: bool,
    /// A client's first message of TLS was read.
    turns_to_tls: bool,
}

impl Multiplexed {
    /// A connection whose requests go in direction `requests`; the next bytes are at positions `pos` (received, sent),
    /// and `lost` tells in which directions frames passed unseen before.
    pub(super) fn new(framed: Box<dyn Framed>, requests: Direction, pos: (u64, u64), lost: (bool, bool)) -> Self {
        let head_wanted = framed.wants();
        let lane = |pos, lost: bool| Lane { pos, lost: lost.then_some(0), head_wanted, ..Lane::default() };
        let (rx, tx) = (lane(pos.0, lost.0), lane(pos.1, lost.1));
        let mut made = Self {
            framed,
            requests,
            rx,
            tx,
            open: BTreeMap::new(),
            seen: None,
            next: 0,
            parked: Vec::new(),
            touched: Vec::new(),
            verdict: Verdict::Trace,
            settled: lost.0 || lost.1,
            refuted: false,
            turns_to_tls: false,
        };
        for dir in [Direction::Rx, Direction::Tx] {
            if made.lane(dir).lost.is_some() {
                made.framed.lost(made.way(dir));
            }
        }
        made
    }

    /// Adopts the request `exchange`, which was made before the connection changed to this protocol and is answered as
    /// `key`; later exchanges are numbered from `next`.
    pub(super) fn adopt(
        &mut self,
        key: u64,
        (exchange, next): (u64, u64),
        expected: ExpectedReply,
        bytes: u64,
        at: Stamp,
    ) {
        self.framed.adopt(key);
        self.settled = true;
        self.seen = Some((key, key));
        self.next = next;
        let open = Open {
            exchange,
            way: Way::Request,
            // The note was for the previous protocol.
            expected: ExpectedReply { note: 0, ..expected },
            request_bytes: bytes,
            reply_bytes: 0,
            body_bytes: 0,
            to_come: [Some(0), None],
            messages: [Messages::None; 2],
            replied: false,
            request_done: true,
            holes: false,
            doubtful: false,
            began: at.nanos,
            last: at,
        };
        self.open.insert(key, open);
    }

    /// Numbers exchanges from `next` on: the connection had some before it spoke this protocol.
    pub(super) fn go_on(&mut self, next: u64) {
        self.next = next;
    }

    pub(super) fn want(&self) -> Want {
        let skip = |lane: &Lane| if lane.left >= LONG { lane.pos.saturating_add(lane.left) } else { 0 };
        // The first operations of a connection come whole without a policy, and of HTTP/2 the kernel follows the frames.
        let asks = |lane: &Lane| lane.pieces.need_policy(lane.head_wanted, skip(lane));
        let whole = !self.framed.is_walked() && (self.next >= LASTING || asks(&self.rx) || asks(&self.tx));
        let head = |dir, lane: &Lane| {
            let front = if self.way(dir) == Way::Request { HEAD_REQUEST } else { HEAD_REPLY_WHOLE };
            if whole { lane.pieces.wanted(lane.head_wanted.max(front)) } else { lane.head_wanted }
        };
        let (head_rx, head_tx) = (head(Direction::Rx, &self.rx), head(Direction::Tx, &self.tx));
        let frames = self.framed.is_walked();
        Want { verdict: self.verdict, head_rx, head_tx, rx_skip: skip(&self.rx), tx_skip: skip(&self.tx), frames }
    }

    /// Whether the first reply shows that this is another protocol.
    pub(super) fn is_refuted(&self) -> bool {
        self.refuted
    }

    /// Whether the connection goes on encrypted, from the latest operation on.
    pub(super) fn turns_to_tls(&self) -> bool {
        self.turns_to_tls
    }

    /// Takes every open exchange back; returns the positions reached (received, sent), and the number of the next exchange.
    pub(super) fn withdraw(self, out: &mut Vec<ExchangeEvent>) -> ((u64, u64), u64) {
        out.extend(self.open.into_values().map(|open| ExchangeEvent::Withdrawn { exchange: open.exchange }));
        ((self.rx.pos, self.tx.pos), self.next)
    }

    /// Whether a server works on several requests of this connection at a time.
    pub(super) fn interleaves(&self) -> bool {
        self.framed.interleaves()
    }

    /// Exchanges that the last operation carried bytes of.
    pub(super) fn touched(&self) -> &[u64] {
        &self.touched
    }

    pub(super) fn kept_bytes(&self) -> usize {
        let parked: usize = self.parked.iter().map(|held| held.head.capacity() + held.fragments.capacity()).sum();
        self.rx.buffer.capacity() + self.tx.buffer.capacity() + parked + self.framed.kept_bytes()
    }

    /// Drops fragments of heads, parked operations and compression state, as if their bytes had been lost.
    pub(super) fn give_up_kept(&mut self, out: &mut Vec<ExchangeEvent>) {
        self.framed.lost(Way::Request);
        self.framed.lost(Way::Reply);
        for dir in [Direction::Rx, Direction::Tx] {
            let bytes = self.lane(dir).buffer.len() as u64;
            if bytes > 0 {
                self.lose(dir, bytes, out);
            }
        }
        // The stream's position stays before the parked operations: the next operation reveals the gap.
        self.parked = Vec::new();
    }

    fn lane(&mut self, dir: Direction) -> &mut Lane {
        match dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        }
    }

    fn way(&self, dir: Direction) -> Way {
        if dir == self.requests { Way::Request } else { Way::Reply }
    }

    /// Takes one operation.
    pub(super) fn bytes(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) -> Touched {
        self.touched.clear();
        if self.verdict == Verdict::Ignore {
            return Touched::default();
        }
        let now = chunk.at.nanos;
        while let Some(oldest) = self.parked.first()
            && oldest.at.nanos.saturating_add(PATIENCE) < now
        {
            self.release_one(settings, out);
        }
        if self.must_wait(chunk) {
            let bytes: usize = self.parked.iter().map(|held| held.head.len() + held.fragments.len()).sum();
            if bytes + chunk.head.len() + chunk.fragments.len() > PARKED_BYTES || self.parked.len() >= PARKED {
                while !self.parked.is_empty() {
                    self.release_one(settings, out);
                }
            }
            if self.must_wait(chunk) {
                self.park(chunk);
                self.touched.clear();
                return Touched::default();
            }
        }
        // Released operations are not part of this one.
        self.touched.clear();
        self.take(chunk, settings, out);
        let touched = std::mem::take(&mut self.touched);
        while let Some(at) =
            (0..self.parked.len()).find(|at| self.parked.get(*at).is_some_and(|held| self.is_next(held)))
        {
            let held = self.parked.remove(at);
            self.take_held(&held, settings, out);
        }
        self.touched = touched;
        if !self.refuted {
            self.give_up_left(chunk.at, out);
        }
        Touched { exchange: if let [one] = self.touched[..] { Some(one) } else { None } }
    }

    /// Takes one operation, in stream order.
    fn take(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let dir = chunk.dir;
        let lane = self.lane(dir);
        if lane.lost == Some(0) && lane.last == Stamp::default() {
            // Bytes from before the connection was joined do not count as lost.
            lane.pos = chunk.pos;
        }
        let Some(chunk) = chunk.beyond(lane.pos) else { return };
        let gap = chunk.pos.saturating_sub(self.lane(dir).pos);
        if gap > 0 {
            self.pass(dir, gap, settings, out);
        }
        let lane = self.lane(dir);
        let before = Pieces::goes_on(&chunk, lane.pos, lane.last).then_some(out.len());
        let mut at = 0;
        while at < chunk.len && self.verdict != Verdict::Ignore {
            let captured = chunk.captured(at);
            let left = chunk.len - at;
            let lane = self.lane(dir);
            lane.last = chunk.at;
            if lane.left > 0 {
                if at == 0 && self.contradicted(dir, captured, out) {
                    continue;
                }
                let lane = self.lane(dir);
                let take = lane.left.min(left);
                lane.left -= take;
                at += take;
                self.on_io(dir, chunk.at, out);
                continue;
            }
            if lane.lost.is_some() {
                let Some(found) = self.look(dir, captured, left, out) else { break };
                at += found;
                continue;
            }
            if captured.is_empty() && lane.buffer.is_empty() {
                if self.framed.is_padding(left) {
                    break;
                }
                if self.goes_on(dir, chunk.at, out) || self.reckon(dir) {
                    continue;
                }
                self.lane(dir).head_wanted = HEAD_MAX;
                self.lane(dir).pieces.missed();
                self.lose(dir, left, out);
                break;
            }
            if lane.reckoned.is_some() && !self.confirm(dir, captured, out) {
                continue;
            }
            let lane = self.lane(dir);
            if lane.start.is_none() {
                lane.start = Some((chunk.at, chunk.arrived, chunk.pos + at));
            }
            at += self.front(dir, &chunk, captured, left, settings, out);
        }
        let lane = self.lane(dir);
        lane.pos = chunk.end();
        lane.last = chunk.at;
        if let Some(before) = before {
            lane.pieces.note(false, out.get(before..).unwrap_or_default());
        }
    }

    /// Reads the frame at the front of `captured`; returns how many bytes of the operation it used.
    fn front(
        &mut self,
        dir: Direction,
        chunk: &Chunk<'_>,
        captured: &[u8],
        left: u64,
        settings: &Settings,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let way = self.way(dir);
        // What was captured may go on in a piece of its own: a long head takes several frames.
        let behind = chunk.len - left + captured.len() as u64;
        let cut = (captured.len() as u64) < left && !chunk.has_fragment(behind);
        let lane = self.lane(dir);
        let had = lane.buffer.len();
        let gathered;
        let bytes = if had == 0 {
            captured
        } else {
            // Only as much as the frame needs, not everything available: the buffer may be copied again and again.
            let missing = match lane.need {
                LINE => captured.iter().position(|byte| *byte == b'\n').map_or(captured.len(), |at| at + 1),
                need => need.saturating_sub(had).min(captured.len()),
            };
            lane.buffer.extend_from_slice(captured.get(..missing).unwrap_or_default());
            let enough = match lane.need {
                LINE => lane.buffer.ends_with(b"\n"),
                need => lane.buffer.len() >= need,
            };
            if !enough && !cut && lane.buffer.len() < settings.head_limit {
                return left;
            }
            gathered = std::mem::take(&mut lane.buffer);
            &gathered
        };
        let all = had == 0 || bytes.len() - had == captured.len();
        let limited = bytes.len() >= settings.head_limit;
        let read = self.framed.frame(way, bytes, (cut && all) || limited, &expected(&self.open), settings);
        let heads = self.framed.take_cut();
        if heads > 0 {
            out.push(ExchangeEvent::HeadsCut { heads });
            let lane = self.lane(dir);
            lane.head_wanted = if lane.head_wanted > 0 { HEAD_MAX } else { 0 };
        }
        match read {
            Front::Frame(frame) => {
                self.settled |= way == Way::Reply;
                let used = (bytes.len() as u64).min(frame.len);
                self.frame(dir, frame, used, chunk.at, out);
                used.saturating_sub(had as u64)
            }
            Front::Need(need) if need > bytes.len() && !limited && !(cut && all) => {
                let used = (bytes.len() - had) as u64;
                let lane = self.lane(dir);
                lane.need = need;
                if had == 0 {
                    lane.buffer = captured.get(..need.min(captured.len())).unwrap_or_default().to_vec();
                    return lane.buffer.len() as u64;
                }
                lane.buffer = bytes.to_vec();
                used
            }
            Front::Line if !(limited || cut && all) => {
                let used = (bytes.len() - had) as u64;
                let kept = bytes.to_vec();
                let lane = self.lane(dir);
                lane.need = LINE;
                lane.buffer = kept;
                used
            }
            Front::Tls => {
                self.turns_to_tls = true;
                self.verdict = Verdict::Ignore;
                left
            }
            Front::Need(_) | Front::Line => {
                // The beginning was captured, but not enough of it.
                self.lose(dir, left, out);
                left
            }
            Front::Invalid if way == Way::Reply && !self.settled && !self.framed.is_certain() => {
                self.refuted = true;
                self.verdict = Verdict::Ignore;
                left
            }
            Front::Invalid => {
                let lane = self.lane(dir);
                lane.misses += 1;
                if lane.misses >= MISSES {
                    self.verdict = Verdict::Ignore;
                }
                self.lose(dir, 0, out);
                // No frame begins at the first byte.
                let Some(found) = self.look(dir, captured.get(1..).unwrap_or_default(), left - 1, out) else {
                    return left;
                };
                found + 1
            }
        }
    }

    /// Looks for a frame while boundaries are unknown; returns the number of bytes before it. `None`: no frame found.
    fn look(&mut self, dir: Direction, captured: &[u8], left: u64, out: &mut Vec<ExchangeEvent>) -> Option<u64> {
        let way = self.way(dir);
        let open = &self.open;
        let found = self.framed.find(way, captured, &|key| open.contains_key(&key));
        let passed = found.map_or(left, |found| found as u64);
        let lane = self.lane(dir);
        let lost = lane.lost.unwrap_or(0) + passed;
        lane.lost = Some(lost);
        if passed > 0 {
            out.push(ExchangeEvent::Lost { dir, bytes: passed });
        }
        if found.is_none() {
            lane.misses = lane.misses.saturating_add(1);
            if lane.misses >= MISSES && self.open.is_empty() {
                self.verdict = Verdict::Ignore;
            }
            return None;
        }
        lane.lost = None;
        lane.misses = 0;
        lane.start = None;
        if lost > 0 {
            // Requests may have begun since the first bytes were missed.
            self.missed(way);
        }
        found.map(|found| found as u64)
    }

    /// Frame boundaries are unknown from here on.
    fn lose(&mut self, dir: Direction, bytes: u64, out: &mut Vec<ExchangeEvent>) {
        let way = self.way(dir);
        self.settled = true;
        let lane = self.lane(dir);
        lane.buffer = Vec::new();
        lane.start = None;
        lane.left = 0;
        lane.end = false;
        // Short frames: others lay beyond the captured part.
        lane.head_wanted = if lane.head_wanted > 0 { HEAD_MAX } else { 0 };
        lane.pieces.missed();
        lane.reckoned = None;
        lane.lost = Some(lane.lost.unwrap_or(0) + bytes);
        if bytes > 0 {
            out.push(ExchangeEvent::Lost { dir, bytes });
        }
        self.missed(way);
    }

    /// Frames of a direction were missed: what they may have changed is unknown.
    fn missed(&mut self, way: Way) {
        for open in self.open.values_mut() {
            // Messages may have begun in the lost bytes.
            let part = open.part(way) as usize;
            if open.messages[part] != Messages::None || open.to_come[part].is_none() {
                (open.messages[part], open.to_come[part]) = (Messages::Unknown, None);
            }
        }
        for open in self.open.values_mut().filter(|open| open.way != way) {
            (open.holes, open.doubtful) = (true, true);
        }
        // If no request awaits a reply, the lost bytes held none.
        if way == Way::Request || !self.open.is_empty() || self.framed.is_mutual() {
            self.framed.lost(way);
        }
    }

    /// Accounts for `bytes` bytes that no operation reported.
    fn pass(&mut self, dir: Direction, bytes: u64, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let way = self.way(dir);
        let lane = self.lane(dir);
        let before = lane.last;
        lane.pos += bytes;
        if !lane.buffer.is_empty() {
            // The missing bytes continue a head that had begun.
            let piece = std::mem::take(&mut lane.buffer);
            let read = self.framed.frame(way, &piece, true, &expected(&self.open), settings);
            match read {
                Front::Frame(frame) => {
                    let used = (piece.len() as u64).min(frame.len);
                    self.frame(dir, frame, used, before, out);
                }
                _ => return self.lose(dir, bytes, out),
            }
        }
        let mut rest = bytes;
        loop {
            let lane = self.lane(dir);
            let take = lane.left.min(rest);
            lane.left -= take;
            rest -= take;
            if take > 0 {
                self.on_io(dir, before, out);
            }
            if rest == 0 {
                return;
            }
            if self.lane(dir).lost.is_some() || !self.goes_on(dir, before, out) && !self.reckon(dir) {
                return self.lose(dir, rest, out);
            }
        }
    }
}

/// Looks up the facts that open requests noted for their replies.
fn expected(open: &BTreeMap<u64, Open>) -> impl Fn(u64) -> Option<ExpectedReply> + '_ {
    |key| open.get(&key).map(|open| open.expected)
}
