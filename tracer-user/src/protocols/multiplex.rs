//! One connection of a protocol whose messages carry the number of their exchange: replies come in any order, and
//! messages in pieces between those of others.
//!
//! Frames are read by a [`Framed`]; bodies are passed over by their lengths. A frame whose beginning was not captured
//! ends what is known of where frames begin: the next one is looked for, and what may have been in between is said to
//! be lost. Operations that overtake each other on their way are put in order first: a gap that is none would cost the
//! names of all later requests where heads are compressed.

mod ending;
mod order;
mod reckon;
mod rest;
mod told;

use std::collections::BTreeMap;

pub(super) use self::rest::RestingLanes;
use super::conversation::{HEAD_MAX, Held};
use super::framed::{Framed, Front, Way};
use super::{Asked, Chunk, Said, Settings, Stamp, Touched, Verdict, Want};
use crate::model::{Direction, Nanos};

/// Most requests of one connection that are followed at once; beyond it the oldest is given up, visibly.
pub(super) const LIMIT: usize = 1024;
/// Operations kept until the one before them has come, and how long, nanoseconds.
const PARKED: usize = 16;
const PARKED_BYTES: usize = 64 * 1024;
const PATIENCE: Nanos = 20_000_000;
/// [`Lane::need`] of a line.
const LINE: usize = usize::MAX;
/// A frame of which at least this much is to come need not be reported till its end.
const LONG: u64 = 64 * 1024;
/// Operations in which no frame was found before a connection is left alone.
const MISSES: u8 = 64;
/// Most exchanges told for one operation.
const TOUCHED: usize = 64;
/// A request that is open longer is reported with the duration so far.
pub(super) const LONGEST: Nanos = 600_000_000_000;

/// What is known of a body by the messages in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Messages {
    /// It is none of messages, as far as is known.
    #[default]
    None,
    /// Where the last of them that began ends is known.
    Known,
    /// Several were in one frame: where they begin is not.
    Unknown,
}

/// A request without its whole reply.
#[derive(Debug)]
struct Open {
    exchange: u64,
    /// Which way it was sent: either end may ask where the protocol is mutual.
    way: Way,
    asked: Asked,
    request_bytes: u64,
    reply_bytes: u64,
    body_bytes: u64,
    /// Bytes of the bodies that have not moved yet, of the request and of the reply, where their heads said how many
    /// there are.
    to_come: [Option<u64>; 2],
    /// Bodies are of messages, of which each says how long it is, and none how many there are; where one ends is known.
    messages: [Messages; 2],
    replied: bool,
    request_done: bool,
    /// Parts of the reply may have been in what was not seen; its end as well.
    holes: bool,
    doubtful: bool,
    began: Nanos,
    last: Stamp,
}

impl Open {
    /// What a frame that goes `way` is of.
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
    /// Front of a frame that is being collected, and how long it has to be.
    buffer: Vec<u8>,
    need: usize,
    /// First byte of it: operation, arrival, position.
    start: Option<(Stamp, Nanos, u64)>,
    /// What is left of the current frame; its key, and whether the direction is over with it.
    left: u64,
    key: u64,
    end: bool,
    /// Where frames begin is not known: bytes since then.
    lost: Option<u64>,
    /// Where they begin is reckoned, not read: bytes since then.
    reckoned: Option<u64>,
    /// Body bytes of the largest of the last frames.
    usual: u64,
    misses: u8,
    last: Stamp,
    head_wanted: u16,
}

/// What a connection's frames say.
#[derive(Debug)]
pub(super) struct Multiplexed {
    framed: Box<dyn Framed>,
    requests: Direction,
    rx: Lane,
    tx: Lane,
    open: BTreeMap<u64, Open>,
    /// Lowest and highest key of a request that was seen.
    seen: Option<(u64, u64)>,
    /// Number of the next exchange.
    next: u64,
    parked: Vec<Held>,
    touched: Vec<u64>,
    verdict: Verdict,
}

impl Multiplexed {
    /// A connection whose requests go `requests`; the next bytes are at these positions (received, sent), `lost` says in
    /// which directions frames went by before.
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
        };
        for dir in [Direction::Rx, Direction::Tx] {
            if made.lane(dir).lost.is_some() {
                made.framed.lost(made.way(dir));
            }
        }
        made
    }

    /// The request `exchange` was made before the connection changed to this protocol, and is answered in it as `key`; the
    /// exchanges that follow count from `next`.
    pub(super) fn adopt(&mut self, key: u64, (exchange, next): (u64, u64), asked: Asked, bytes: u64, at: Stamp) {
        self.framed.adopt(key);
        self.seen = Some((key, key));
        self.next = next;
        let open = Open {
            exchange,
            way: Way::Request,
            // Its note was for the protocol before.
            asked: Asked { note: 0, ..asked },
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

    pub(super) fn want(&self) -> Want {
        let (head_rx, head_tx) = (self.rx.head_wanted, self.tx.head_wanted);
        let skip = |lane: &Lane| if lane.left >= LONG { lane.pos.saturating_add(lane.left) } else { 0 };
        let frames = self.framed.is_walked();
        Want { verdict: self.verdict, head_rx, head_tx, rx_skip: skip(&self.rx), tx_skip: skip(&self.tx), frames }
    }

    /// Whether a server works on several requests at a time.
    pub(super) fn interleaves(&self) -> bool {
        self.framed.interleaves()
    }

    /// Exchanges the last operation had bytes of.
    pub(super) fn touched(&self) -> &[u64] {
        &self.touched
    }

    pub(super) fn kept_bytes(&self) -> usize {
        let parked: usize = self.parked.iter().map(|held| held.head.capacity()).sum();
        self.rx.buffer.capacity() + self.tx.buffer.capacity() + parked + self.framed.kept_bytes()
    }

    /// Gives up heads in pieces, operations put aside and what heads refer to, as if their bytes had been lost.
    pub(super) fn give_up_kept(&mut self, out: &mut Vec<Said>) {
        self.framed.lost(Way::Request);
        self.framed.lost(Way::Reply);
        for dir in [Direction::Rx, Direction::Tx] {
            let bytes = self.lane(dir).buffer.len() as u64;
            if bytes > 0 {
                self.lose(dir, bytes, out);
            }
        }
        // Their stream's position stays before them: what comes next shows the gap.
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
    pub(super) fn bytes(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<Said>) -> Touched {
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
            let bytes: usize = self.parked.iter().map(|held| held.head.len()).sum();
            if bytes + chunk.head.len() > PARKED_BYTES || self.parked.len() >= PARKED {
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
        // What was kept is not of this operation.
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
        self.give_up_left(chunk.at, out);
        Touched { exchange: if let [one] = self.touched[..] { Some(one) } else { None } }
    }

    /// Takes an operation in its turn.
    fn take(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<Said>) {
        let dir = chunk.dir;
        let lane = self.lane(dir);
        if lane.lost == Some(0) && lane.last == Stamp::default() {
            // What went by before the connection was joined is nobody's loss.
            lane.pos = chunk.pos;
        }
        let Some(chunk) = chunk.beyond(lane.pos) else { return };
        let gap = chunk.pos.saturating_sub(self.lane(dir).pos);
        if gap > 0 {
            self.pass(dir, gap, settings, out);
        }
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
                self.moved(dir, chunk.at, out);
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
    }

    /// Reads the frame at the front of what was captured; gives the bytes of the operation that were used.
    fn front(
        &mut self,
        dir: Direction,
        chunk: &Chunk<'_>,
        captured: &[u8],
        left: u64,
        settings: &Settings,
        out: &mut Vec<Said>,
    ) -> u64 {
        let way = self.way(dir);
        let cut = (captured.len() as u64) < left;
        let lane = self.lane(dir);
        let had = lane.buffer.len();
        let gathered;
        let bytes = if had == 0 {
            captured
        } else {
            // As much as the frame needs, not all that is there: it may be copied again and again.
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
        let read = self.framed.frame(way, bytes, (cut && all) || limited, &asked(&self.open), settings);
        match read {
            Front::Frame(frame) => {
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
            Front::Leave => {
                self.verdict = Verdict::Ignore;
                left
            }
            Front::Need(_) | Front::Line => {
                // Its beginning was captured and not enough of it.
                self.lose(dir, left, out);
                left
            }
            Front::Invalid => {
                let lane = self.lane(dir);
                lane.misses += 1;
                if lane.misses >= MISSES {
                    self.verdict = Verdict::Ignore;
                }
                self.lose(dir, 0, out);
                // What stands at the front is none.
                let Some(found) = self.look(dir, captured.get(1..).unwrap_or_default(), left - 1, out) else {
                    return left;
                };
                found + 1
            }
        }
    }

    /// Looks for a frame where it is not known where one begins; gives the bytes before it. `None`: there is none.
    fn look(&mut self, dir: Direction, captured: &[u8], left: u64, out: &mut Vec<Said>) -> Option<u64> {
        let way = self.way(dir);
        let open = &self.open;
        let found = self.framed.find(way, captured, &|key| open.contains_key(&key));
        let passed = found.map_or(left, |found| found as u64);
        let lane = self.lane(dir);
        let lost = lane.lost.unwrap_or(0) + passed;
        lane.lost = Some(lost);
        if passed > 0 {
            out.push(Said::Lost { dir, bytes: passed });
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
        found.map(|found| found as u64)
    }

    /// Where frames begin is not known any more.
    fn lose(&mut self, dir: Direction, bytes: u64, out: &mut Vec<Said>) {
        let way = self.way(dir);
        let lane = self.lane(dir);
        lane.buffer = Vec::new();
        lane.start = None;
        lane.left = 0;
        lane.end = false;
        // Where frames are short, others lay beyond what was captured.
        lane.head_wanted = if lane.head_wanted > 0 { HEAD_MAX } else { 0 };
        lane.reckoned = None;
        lane.lost = Some(lane.lost.unwrap_or(0) + bytes);
        if bytes > 0 {
            out.push(Said::Lost { dir, bytes });
        }
        for open in self.open.values_mut() {
            // Messages may have begun in it.
            let part = open.part(way) as usize;
            if open.messages[part] != Messages::None || open.to_come[part].is_none() {
                (open.messages[part], open.to_come[part]) = (Messages::Unknown, None);
            }
        }
        for open in self.open.values_mut().filter(|open| open.way != way) {
            (open.holes, open.doubtful) = (true, true);
        }
        // Where nobody waits for a reply, none can have been in it.
        if way == Way::Request || !self.open.is_empty() || self.framed.is_mutual() {
            self.framed.lost(way);
        }
    }

    /// `bytes` bytes passed that no operation told of.
    fn pass(&mut self, dir: Direction, bytes: u64, settings: &Settings, out: &mut Vec<Said>) {
        let way = self.way(dir);
        let lane = self.lane(dir);
        let before = lane.last;
        lane.pos += bytes;
        if !lane.buffer.is_empty() {
            // The rest of a head that had begun.
            let piece = std::mem::take(&mut lane.buffer);
            let read = self.framed.frame(way, &piece, true, &asked(&self.open), settings);
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
                self.moved(dir, before, out);
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

/// What requests noted for their replies.
fn asked(open: &BTreeMap<u64, Open>) -> impl Fn(u64) -> Option<Asked> + '_ {
    |key| open.get(&key).map(|open| open.asked)
}
