//! What frames tell about their exchange: how it begins, continues and ends.

use tracer_model::{Direction, Nanos, Outcome, ProtocolId, Side};

use super::{LIMIT, Messages, Multiplexed, Open, TOUCHED};
use crate::framed::{Frame, FrameMeaning, Way};
use crate::{ExchangeEvent, Reply, Request, Stamp, UNNAMED};

impl Multiplexed {
    /// Handles the beginning of a frame, of which `used` bytes are already read.
    pub(super) fn frame(&mut self, dir: Direction, frame: Frame, used: u64, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        let Frame { len, key, body, meaning, end } = frame;
        let (meaning, linked) = match meaning {
            FrameMeaning::Bringing(both) => (both.0, Some(both.1)),
            meaning => (meaning, None),
        };
        let way = self.way(dir);
        let lane = self.lane(dir);
        lane.misses = 0;
        let (first, arrived, pos) = lane.start.take().unwrap_or((at, 0, lane.pos));
        lane.left = len - used;
        (lane.key, lane.end) = (key, end);
        match meaning {
            FrameMeaning::Nothing => {
                lane.key = 0;
                lane.end = false;
                return;
            }
            FrameMeaning::Refused(above) => {
                lane.key = 0;
                let refused: Vec<u64> = self.open.range(above.saturating_add(1)..).map(|(key, _)| *key).collect();
                for key in refused {
                    self.done(key, Outcome::Aborted, at, out);
                }
                return;
            }
            FrameMeaning::Begun { request, protocol, length } => {
                if self.open.contains_key(&key) {
                    self.done(key, Outcome::Unfinished, at, out);
                }
                if self.open.len() >= LIMIT
                    && let Some((oldest, optional)) = self.oldest()
                {
                    // Giving up a request with an optional reply loses nothing.
                    if !optional {
                        out.push(ExchangeEvent::Crowded);
                    }
                    self.done(oldest, Outcome::Unfinished, at, out);
                }
                self.begin(dir, key, (request, protocol, length), (first, arrived, pos), at, out);
            }
            // Nested `FrameMeaning::Bringing` carries nothing more.
            FrameMeaning::Part | FrameMeaning::Bringing(_) => {}
            FrameMeaning::Message(length) => {
                if let Some(open) = self.open.get_mut(&key) {
                    let part = open.part(way) as usize;
                    let over = open.to_come[part].is_none_or(|to_come| to_come == 0);
                    if over && open.messages[part] != Messages::Unknown {
                        (open.to_come[part], open.messages[part]) = (Some(length), Messages::Known);
                    }
                }
            }
            FrameMeaning::Sized(length) => {
                if let Some(open) = self.open.get_mut(&key) {
                    open.to_come[open.part(way) as usize] = Some(length);
                }
            }
            FrameMeaning::Replied { reply, length } => {
                let Some(open) = self.open.get_mut(&key) else {
                    // A reply to a request broken off before is not unpaired.
                    let known = self.seen.is_some_and(|(lowest, highest)| (lowest..=highest).contains(&key));
                    if !reply.interim && (way == Way::Reply || self.framed.is_mutual()) && !known {
                        out.push(ExchangeEvent::Unpaired { status: reply.status });
                    }
                    return self.on_io(dir, at, out);
                };
                if !reply.interim && !open.replied {
                    open.replied = true;
                    (open.to_come[1], open.messages[1]) = (length, Messages::None);
                    let Reply { status, failure, .. } = reply;
                    out.push(ExchangeEvent::Replied { exchange: open.exchange, status, failure, first, sure: true });
                }
            }
            FrameMeaning::Judged { status, failure, protocol } => {
                if let Some(open) = self.open.get(&key) {
                    out.push(ExchangeEvent::Judged { exchange: open.exchange, status, failure, protocol });
                }
            }
            FrameMeaning::Settled { keys, status, failure } => {
                lane.key = 0;
                lane.end = false;
                self.settle(keys, (status, failure), len, (first, at), out);
                return;
            }
            FrameMeaning::Reset(verdict) => {
                lane.key = 0;
                lane.end = false;
                self.touch(key);
                if let (Some((status, failure)), Some(open)) = (verdict, self.open.get(&key)) {
                    out.push(ExchangeEvent::Judged { exchange: open.exchange, status, failure, protocol: None });
                }
                self.done(key, Outcome::Aborted, at, out);
                return;
            }
        }
        if let (Some(linked), Some(open)) = (linked, self.open.get(&key)) {
            out.push(ExchangeEvent::Linked { exchange: open.exchange, linked: Box::new(linked) });
        }
        if body > 0 && !end {
            let lane = self.lane(dir);
            lane.usual = if body >= lane.usual { body } else { lane.usual - (lane.usual - body) / 8 };
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.last = at;
            open.count(way, len, body);
            if self.framed.is_mutual() && open.to_come[open.part(way) as usize] == Some(0) {
                self.lane(dir).end = true;
            }
        }
        self.on_io(dir, at, out);
    }

    fn begin(
        &mut self,
        dir: Direction,
        key: u64,
        (request, protocol, length): (Box<Request>, ProtocolId, Option<u64>),
        (first, arrived, pos): (Stamp, Nanos, u64),
        at: Stamp,
        out: &mut Vec<ExchangeEvent>,
    ) {
        let way = self.way(dir);
        let side = if dir == Direction::Rx { Side::Server } else { Side::Client };
        let exchange = self.next;
        self.next += 1;
        let open = Open {
            exchange,
            way,
            expected: request.expected,
            request_bytes: 0,
            reply_bytes: 0,
            body_bytes: 0,
            to_come: [length, None],
            messages: [Messages::None; 2],
            replied: false,
            request_done: false,
            holes: false,
            doubtful: false,
            began: first.nanos,
            last: at,
        };
        self.open.insert(key, open);
        self.seen = Some(self.seen.map_or((key, key), |(lowest, highest)| (lowest.min(key), highest.max(key))));
        if *request.method == *UNNAMED {
            out.push(ExchangeEvent::Unnamed);
        }
        out.push(ExchangeEvent::Begun { exchange, request, first, arrived, head_at: at, pos, side, protocol });
    }

    pub(super) fn touch(&mut self, key: u64) {
        if let Some(open) = self.open.get(&key)
            && !self.touched.contains(&open.exchange)
            && self.touched.len() < TOUCHED
        {
            self.touched.push(open.exchange);
        }
    }

    /// Handles moved bytes of a direction's current frame, which ends with its last byte.
    pub(super) fn on_io(&mut self, dir: Direction, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        let way = self.way(dir);
        let lane = self.lane(dir);
        let (key, over, end) = (lane.key, lane.left == 0, lane.end);
        if key == 0 {
            return;
        }
        if over {
            lane.key = 0;
            lane.end = false;
        }
        self.touch(key);
        let Some(open) = self.open.get_mut(&key) else { return };
        open.last = at;
        if !(over && end) {
            return;
        }
        match open.part(way) {
            Way::Request if !open.request_done => {
                open.request_done = true;
                if open.expected.silent {
                    self.done(key, Outcome::Complete, at, out);
                }
            }
            Way::Request => {}
            Way::Reply => self.done(key, Outcome::Complete, at, out),
        }
    }

    pub(super) fn done(&mut self, key: u64, outcome: Outcome, at: Stamp, out: &mut Vec<ExchangeEvent>) {
        let Some(open) = self.open.remove(&key) else { return };
        // No reply was due: the exchange ended with the request.
        let unasked = open.expected.optional && !open.replied;
        let (outcome, at) = if unasked && open.request_done { (Outcome::Complete, open.last) } else { (outcome, at) };
        out.push(ExchangeEvent::Done {
            exchange: open.exchange,
            outcome,
            at,
            request_bytes: open.request_bytes,
            reply_bytes: open.reply_bytes,
            reply_body_bytes: (!open.holes).then_some(open.body_bytes),
        });
    }
}
