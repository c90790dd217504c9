//! Parses one connection: two streams, a parser and the requests that wait for replies.

use tracer_common::limits::{HEAD_REPLY_WHOLE, HEAD_REQUEST};
use tracer_model::{Direction, Nanos, Outcome, ProtocolId, Side};

use super::closing::give_up;
use super::jobs::JobEvent;
use super::mode::Mode;
use super::multiplex::Multiplexed;
use super::pair::Pair;
use super::pieces::{LASTING, Pieces};
use super::round_trips::Inside;
use super::stream::{Stream, StreamState};
use super::take_back::Standing;
use super::{Body, Chunk, ExchangeEvent, Parser, Protocol, Request, Settings, Stamp, Step, Touched, Verdict, Want};

/// With this many requests waiting at once more will follow: the kernel is asked for all the payload it can carry.
const PIPELINE: usize = 8;
/// Most payload the kernel can carry; requested step by step.
pub(super) const HEAD_MAX: u16 = tracer_common::limits::HEAD_MAX as u16;

/// An operation set aside.
#[derive(Debug)]
pub(super) struct HeldOperation {
    pub(super) dir: Direction,
    pub(super) pos: u64,
    pub(super) len: u64,
    pub(super) head: Vec<u8>,
    pub(super) tail: Vec<u8>,
    pub(super) fragments: Vec<u8>,
    pub(super) at: Stamp,
    pub(super) arrived: Nanos,
}

impl From<&Chunk<'_>> for HeldOperation {
    fn from(chunk: &Chunk<'_>) -> Self {
        let Chunk { dir, pos, len, head, tail, fragments, at, arrived } = *chunk;
        let [head, tail, fragments] = [head, tail, fragments].map(<[u8]>::to_vec);
        Self { dir, pos, len, head, tail, fragments, at, arrived }
    }
}

/// Parser state of one connection.
#[derive(Debug)]
pub struct ConnectionParser {
    pub(super) protocol: Option<&'static dyn Protocol>,
    pub(super) parser: Option<Box<dyn Parser>>,
    /// Direction of requests.
    pub(super) requests: Option<Direction>,
    pub(super) rx: Stream,
    pub(super) tx: Stream,
    pub(super) pair: Pair,
    pub(super) verdict: Verdict,
    pub(super) midstream: bool,
    pub(super) misses: u8,
    pub(super) held: Vec<HeldOperation>,
    pub(super) last_dir: Option<Direction>,
    /// The current operation goes the other way than the one before it.
    pub(super) turned: bool,
    /// The reply in progress belongs to no request the tracer saw.
    pub(super) orphan: bool,
    /// A reply or its request was missed, or the request's record came after the reply's: the next replies may answer
    /// other requests than they seem to, until a reply leaves no request waiting.
    pub(super) unsure: bool,
    /// The latest upgrade request.
    pub(super) upgrade: Option<Box<Request>>,
    /// How exchanges are found; anything but [`Mode::Ordered`] takes over all operations.
    pub(super) mode: Mode,
    /// The protocol to expect: the connection spoke it before its bytes became those of TLS, whose text this parser reads.
    pub(super) inside: Option<Box<Inside>>,
    /// This end's side, if the tracer saw it connect or accept.
    pub(super) connected: Option<Side>,
    /// Round trips are timed whatever the protocol.
    pub(super) timed: bool,
    /// How well the recognition stands.
    pub(super) standing: Standing,
    /// Where the connection's protocol begins (received, sent): at its first bytes, or behind what opened a tunnel.
    pub(super) origin: (u64, u64),
}

impl ConnectionParser {
    /// A new connection; `midstream`: bytes passed before the tracer saw it.
    pub fn new(midstream: bool) -> Self {
        Self {
            protocol: None,
            parser: None,
            requests: None,
            rx: Stream::new(),
            tx: Stream::new(),
            pair: Pair::default(),
            verdict: Verdict::Unknown,
            midstream,
            misses: 0,
            held: Vec::new(),
            last_dir: None,
            turned: false,
            orphan: false,
            unsure: false,
            upgrade: None,
            mode: Mode::Ordered,
            inside: None,
            connected: None,
            timed: false,
            standing: Standing::default(),
            origin: (0, 0),
        }
    }

    /// The protocol, once known.
    pub fn protocol(&self) -> Option<&'static str> {
        self.protocol.map(Protocol::name)
    }

    pub(super) fn protocol_id(&self) -> ProtocolId {
        self.protocol.map_or(ProtocolId::Unknown, Protocol::id)
    }

    /// Whether replies may come in any order.
    pub fn is_multiplexed(&self) -> bool {
        matches!(self.mode, Mode::Multiplexed(_) | Mode::Datagrams(_))
    }

    /// Whether a server works on several requests of this connection at a time.
    pub fn interleaves(&self) -> bool {
        self.mode.multiplexed().is_some_and(Multiplexed::interleaves)
    }

    /// Exchanges that the last operation carried bytes of, where there can be several.
    pub fn touched(&self) -> &[u64] {
        self.mode.multiplexed().map_or(&[], Multiplexed::touched)
    }

    /// Whether this end is the server or the client, once known.
    pub fn side(&self) -> Option<Side> {
        self.requests.map(|dir| if dir == Direction::Rx { Side::Server } else { Side::Client })
    }

    /// Stream position up to which this end's incoming requests are known: read, or accounted for when the connection
    /// ended. `None` if the parser does not read bytes in sequence, or ignores them.
    pub fn read_up_to(&self) -> Option<u64> {
        let is_ordered = matches!(self.mode, Mode::Ordered | Mode::Datagrams(_));
        let reads = is_ordered && self.verdict != Verdict::Ignore && self.requests == Some(Direction::Rx);
        reads.then_some(self.rx.pos)
    }

    /// Whether this end is reading a request: its beginning is known, its end not yet.
    pub fn is_inside_request(&self) -> bool {
        self.read_up_to().is_some() && !matches!(self.rx.state, StreamState::Start | StreamState::Lost)
    }

    /// Whether this end is known to have connected, or to be the client.
    pub(super) fn dialled_or_asks(&self) -> bool {
        self.side().or(self.connected) == Some(Side::Client)
    }

    /// Whether a second request came on the connection, in a protocol without pipelining: its needs are known then.
    pub fn is_used_again(&self) -> bool {
        self.mode.multiplexed().is_none() && self.protocol.is_some() && !self.pipelines() && self.pair.upcoming() >= 2
    }

    /// What the parser wants the kernel to report.
    pub fn want(&self) -> Want {
        match &self.mode {
            Mode::Multiplexed(multiplexed) => return multiplexed.want(),
            Mode::RoundTrips(round_trips) if self.verdict != Verdict::Ignore => return round_trips.want(),
            _ => {}
        }
        let (rx_skip, tx_skip) = (self.rx.skip(), self.tx.skip());
        let (head_rx, head_tx) = (self.head_wanted(Direction::Rx), self.head_wanted(Direction::Tx));
        Want { verdict: self.verdict, head_rx, head_tx, rx_skip, tx_skip, frames: false }
    }

    /// Bytes wanted from the front of operations in this direction; 0: the default suffices.
    fn head_wanted(&self, dir: Direction) -> u16 {
        let stream = if dir == Direction::Rx { &self.rx } else { &self.tx };
        if !self.pipelines() {
            return stream.head_wanted;
        }
        let front = if self.requests == Some(dir) { HEAD_REQUEST } else { HEAD_REPLY_WHOLE };
        let wanted = stream.pieces.wanted(stream.head_wanted.max(front));
        // The first operations of a connection come whole without a policy.
        let lasts = self.pair.upcoming() >= LASTING;
        let others = |stream: &Stream| stream.pieces.need_policy(stream.head_wanted, stream.skip());
        if lasts || others(&self.rx) || others(&self.tx) { wanted } else { 0 }
    }

    pub(super) fn stream(&mut self, dir: Direction) -> &mut Stream {
        match dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        }
    }

    /// Takes one operation.
    pub fn bytes(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) -> Touched {
        if let Mode::Multiplexed(multiplexed) = &mut self.mode {
            let touched = multiplexed.bytes(chunk, settings, out);
            if multiplexed.is_refuted() {
                self.take_back(out);
                return Touched::default();
            }
            if multiplexed.turns_to_tls() {
                return self.tls_begins(chunk, out);
            }
            return touched;
        }
        if self.verdict == Verdict::Ignore || chunk.len == 0 {
            return Touched::default();
        }
        match self.mode {
            Mode::Session(_) => return self.session_bytes(chunk, out),
            Mode::RoundTrips(_) => return self.turn_bytes(chunk, out),
            _ if self.is_sealed() => return Touched::default(),
            _ => {}
        }
        let Some(chunk) = &chunk.beyond(self.stream(chunk.dir).pos) else { return Touched::default() };
        let Some(chunk) = &self.introduced(chunk) else { return Touched::default() };
        // A connection that begins with a gap is joined in mid-stream.
        self.midstream |= self.requests.is_none() && chunk.pos > self.stream(chunk.dir).pos;
        let turned = self.last_dir.is_some_and(|last| last != chunk.dir);
        let stream = self.stream(chunk.dir);
        // Nothing begins in the middle of an operation, and what no protocol fits is one operation, however long.
        let goes_on = Pieces::goes_on(chunk, stream.pos, stream.last);
        let passes = goes_on && stream.buffer.is_empty();
        if self.requests.is_none()
            && (passes || !self.detect(chunk, turned, settings, out))
            && (goes_on || !self.detect_pair(chunk, settings, out))
        {
            self.last_dir = Some(chunk.dir);
            let stream = self.stream(chunk.dir);
            stream.pos = chunk.end();
            stream.last = chunk.at;
            return Touched::default();
        }
        let Some(requests) = self.requests else { return Touched::default() };
        match self.mode {
            Mode::Multiplexed(_) => return self.hand_over(chunk, settings, out),
            Mode::RoundTrips(_) => return self.round_trips_begin(chunk, out),
            _ => {}
        }
        if chunk.dir == requests {
            self.unsent_body(chunk);
        } else {
            self.answered_line(chunk, settings, out);
        }
        if chunk.dir != requests && requests == Direction::Tx && self.early(chunk, settings, out) {
            return Touched::default();
        }
        self.last_dir = Some(chunk.dir);
        self.turned = turned;
        if turned {
            self.turn(chunk.dir, settings, out);
        }
        let held = if chunk.dir == requests { self.on_request_bytes(chunk, settings, out) } else { Vec::new() };
        let touched = self.feed(chunk, settings, out);
        if !held.is_empty() {
            self.feed_held(held, settings, out);
        }
        touched
    }

    /// Whether clients send requests before earlier ones are answered.
    pub(super) fn pipelines(&self) -> bool {
        self.protocol.is_some_and(Protocol::pipelines)
    }

    /// The other direction begins to speak: ends whatever only a change of direction can end.
    pub(super) fn turn(&mut self, to: Direction, settings: &Settings, out: &mut Vec<ExchangeEvent>) {
        let from = to.flip();
        let is_request = self.requests == Some(from);
        let stream = self.stream(from);
        let (state, last) = (stream.state, stream.last);
        match state {
            StreamState::Trailing if !is_request && self.ended_in_words(from, out) => {}
            // A trailing reply may continue, or may have ended unnoticed.
            StreamState::Lost | StreamState::Trailing => {
                self.stream(from).restart();
                if !is_request {
                    // The replies to these requests were among the lost bytes.
                    self.give_up_all(last, out);
                }
            }
            StreamState::UntilTurn | StreamState::ChunkedLost if is_request => self.request_ended(last, out),
            StreamState::Start if is_request => self.answered_early(from, last, settings, out),

            StreamState::UntilTurn | StreamState::ChunkedLost => {
                self.reply_ended(Outcome::Complete, last, out);
                if self.pipelines() {
                    // Other replies may have followed in the bytes that were missed.
                    self.give_up_all(last, out);
                }
            }
            _ => {}
        }
        if !is_request {
            self.pair.turned();
        }
    }

    /// Takes an operation of a known protocol.
    pub(super) fn feed(&mut self, chunk: &Chunk<'_>, settings: &Settings, out: &mut Vec<ExchangeEvent>) -> Touched {
        let is_request = self.requests == Some(chunk.dir);
        let Some(chunk) = &chunk.beyond(self.stream(chunk.dir).pos) else { return Touched::default() };
        let gap = chunk.pos.saturating_sub(self.stream(chunk.dir).pos);
        if gap > 0 {
            self.gap(chunk, gap, out);
        }
        let touched = Touched { exchange: self.exchange(is_request) };
        let upcoming = self.pair.upcoming();
        let stream = self.stream(chunk.dir);
        let before = Pieces::goes_on(chunk, stream.pos, stream.last).then_some(out.len());
        let begun = self.pair.begun();
        let mut at = 0;
        let mut stalls = 0;
        // A step may change the state only, taking no bytes; the bound on consecutive such steps prevents an endless
        // loop.
        while at < chunk.len && self.verdict != Verdict::Ignore && self.mode.round_trips().is_none() && stalls < 3 {
            let stream = self.stream(chunk.dir);
            stream.last = chunk.at;
            let captured = chunk.front(at);
            let left = chunk.len - at;
            let (state, waiting) = (stream.state, self.pair.len());
            let stream = self.stream(chunk.dir);
            let taken = match state {
                StreamState::Start => self.start(chunk, at, captured, settings, is_request, out),
                StreamState::Body(n) => {
                    let take = n.min(left);
                    stream.state = StreamState::Body(n - take);
                    stream.bytes += take;
                    if n == take {
                        self.ended(is_request, chunk.at, out);
                    }
                    take
                }
                StreamState::Chunked(chunked) => self.chunked(chunk, chunked, captured, left, is_request, out),
                StreamState::Elements(elements) => self.elements(chunk, elements, captured, left, is_request, out),
                StreamState::Own(unread) => self.own(chunk, unread, captured, left, is_request, out),
                StreamState::ChunkedLost => {
                    stream.bytes += left;
                    let last = if chunk.tail.is_empty() { captured } else { chunk.last() };
                    if last.ends_with(b"\r\n0\r\n\r\n") || last == b"0\r\n\r\n" {
                        self.ended(is_request, chunk.at, out);
                    }
                    left
                }
                StreamState::UntilTurn if stream.ends_within > 0 => {
                    stream.bytes += left;
                    stream.ends_within = stream.ends_within.saturating_sub(left);
                    if stream.ends_within == 0 {
                        self.ended(is_request, chunk.at, out);
                    }
                    left
                }
                StreamState::UntilClose | StreamState::UntilTurn => {
                    stream.bytes += left;
                    left
                }
                StreamState::Part(_) | StreamState::Pass(_) => stream.pass(left),
                StreamState::Trailing => self.trailing(chunk, captured, left, out),
                StreamState::Lost => {
                    out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
                    left
                }
            };
            // A message without bytes of its own counts as progress.
            let ended = self.pair.len() != waiting;
            stalls = if taken == 0 && !ended { stalls + 1 } else { 0 };
            at += taken;
        }
        if let Some(names) = self.parser.as_mut().map(|parser| parser.take_refused()).filter(|names| *names > 0) {
            out.push(ExchangeEvent::Forgotten { names });
        }
        let begun = self.pair.begun() > begun;
        let stream = self.stream(chunk.dir);
        stream.pos = chunk.end();
        stream.last = chunk.at;
        stream.note_sentinel(chunk);
        if let Some(before) = before {
            stream.pieces.note(begun, out.get(before..).unwrap_or_default());
        }
        if !self.pair.is_empty() && !self.is_paired() {
            // Whatever the connection changed to answers none of these requests.
            self.give_up_all(chunk.at, out);
        }
        match touched.exchange {
            // A request that began in this operation, and may be complete already.
            None if is_request && self.pair.upcoming() > upcoming => Touched { exchange: Some(upcoming) },
            None => Touched { exchange: self.exchange(is_request) },
            Some(_) => touched,
        }
    }

    /// Whether the parser still pairs replies with requests in order.
    fn is_paired(&self) -> bool {
        self.verdict != Verdict::Ignore && self.mode.is_ordered()
    }

    /// The exchange that the next bytes of a direction belong to.
    fn exchange(&mut self, is_request: bool) -> Option<u64> {
        if is_request {
            let starting = self.requests.is_some_and(|dir| self.stream(dir).state == StreamState::Start);
            if starting { None } else { self.pair.newest().map(|waiting| waiting.exchange) }
        } else if self.orphan {
            None
        } else {
            self.pair.oldest().map(|waiting| waiting.exchange)
        }
    }

    /// Handles the beginning of a message; returns how many bytes of the operation it used.
    pub(super) fn start(
        &mut self,
        chunk: &Chunk<'_>,
        at: u64,
        captured: &[u8],
        settings: &Settings,
        is_request: bool,
        out: &mut Vec<ExchangeEvent>,
    ) -> u64 {
        let left = chunk.len - at;
        let all;
        let captured = if !chunk.tail.is_empty()
            && (captured.len() + chunk.tail.len()) as u64 == left
            && at < chunk.head.len() as u64
        {
            // Front and end were captured separately, with nothing between them.
            all = [captured, chunk.tail].concat();
            &all
        } else if captured.is_empty() && (is_request || self.stream(chunk.dir).bytes > 0) {
            chunk.captured(at)
        } else {
            captured
        };
        let cut = (captured.len() as u64) < left;
        let stream = match chunk.dir {
            Direction::Rx => &mut self.rx,
            Direction::Tx => &mut self.tx,
        };
        if captured.is_empty() && stream.buffer.is_empty() && stream.bytes == 0 {
            // The end of the reply to the only waiting request may still show.
            if !is_request && self.pair.len() == 1 && self.protocol.is_some_and(Protocol::trails) {
                stream.state = StreamState::Trailing;
                return 0;
            }
            out.push(ExchangeEvent::Lost { dir: chunk.dir, bytes: left });
            stream.state = StreamState::Lost;
            if let Some(parser) = self.parser.as_mut().filter(|_| is_request) {
                parser.broken(true);
            }
            if self.pipelines() {
                self.want_more(chunk.dir, chunk.head.len());
                self.stream(chunk.dir).pieces.missed();
                if is_request {
                    self.pair.unseen(chunk.at, chunk.arrived);
                }
            }
            return left;
        }
        let pipelines = self.protocol.is_some_and(Protocol::pipelines);
        stream.begin(chunk, at);
        let had = stream.buffer.len();
        let gathered;
        let bytes = if had == 0 {
            captured
        } else {
            // With fragments that arrive byte by byte, search only the new bytes for the end of the head.
            let from = had.saturating_sub(3);
            stream.buffer.extend_from_slice(captured);
            let fresh = stream.buffer.get(from..).unwrap_or_default();
            let complete = self.parser.as_ref().is_none_or(|parser| parser.may_be_whole(fresh));
            if !complete && !cut && stream.buffer.len() < settings.head_limit {
                return left;
            }
            gathered = std::mem::take(&mut stream.buffer);
            &gathered
        };
        let cut = cut || bytes.len() >= settings.head_limit;
        let Some(parser) = &mut self.parser else { return left };
        // After the parts that were read, only the end was captured.
        let ended = if is_request && cut { parser.request_ends_with(bytes, chunk.tail) } else { None };
        let unread = ended.is_some();
        let used = if is_request {
            let whole = |message| Step::Head { used: 0, message, body: Body::Length(left) };
            match ended.map_or_else(|| parser.request(bytes, cut, settings), whole) {
                Step::Head { used, message, body } => {
                    if message.cut {
                        self.want_more(chunk.dir, captured.len());
                    }
                    // No other protocol begins so: whatever the answer is, this was a request.
                    self.standing.proven |= matches!(message.version, "1.0" | "1.1");
                    let stream = self.stream(chunk.dir);
                    let (first, arrived, pos) = stream.start.unwrap_or((chunk.at, chunk.arrived, chunk.pos + at));
                    stream.bytes += used as u64;
                    stream.head_bytes = stream.bytes;
                    stream.enter(body);
                    // If this record arrived after that of a later reply, that reply or the next is matched to the
                    // wrong request.
                    self.unsure |= chunk.at.nanos < self.stream(chunk.dir.flip()).last.nanos;
                    let job = self.parser.as_mut().and_then(|parser| parser.take_job());
                    if pipelines && !self.pair.has_room() {
                        self.pair.overflow(first, arrived);
                    } else {
                        // Over the limit, requests with optional replies need not all wait: the oldest is dropped.
                        let (exchange, dropped) =
                            self.pair.begin(message.expected, pipelines && !self.pair.is_patient());
                        if let Some(dropped) = dropped {
                            give_up(&dropped, chunk.at, out);
                        }
                        let side = if chunk.dir == Direction::Rx { Side::Server } else { Side::Client };
                        let (request, protocol, head_at) = (message, self.protocol_id(), chunk.at);
                        if request.expected.websocket {
                            self.upgrade = Some(request.clone());
                        }
                        let job = job.map(|job| ExchangeEvent::Job { exchange, job });
                        // What asks for the next job is not part of the one before.
                        let asks =
                            |job: &ExchangeEvent| matches!(job, ExchangeEvent::Job { job: JobEvent::Asks(_), .. });
                        let (before, after) = if job.as_ref().is_some_and(asks) { (job, None) } else { (None, job) };
                        out.extend(before);
                        out.push(ExchangeEvent::Begun {
                            exchange,
                            request,
                            first,
                            arrived,
                            head_at,
                            pos,
                            side,
                            protocol,
                        });
                        out.extend(after);
                    }
                    if pipelines && self.pair.len() == PIPELINE {
                        self.rx.head_wanted = HEAD_MAX;
                        self.tx.head_wanted = HEAD_MAX;
                        self.rx.pieces.missed();
                        self.tx.pieces.missed();
                    }
                    if pipelines && body == Body::UntilTurn {
                        self.pair.unseen(chunk.at, chunk.arrived);
                    }
                    if body == Body::Length(0) {
                        self.request_ended(chunk.at, out);
                    }
                    if unread {
                        self.stream(chunk.dir).bytes += left + had as u64;
                        self.request_ended(chunk.at, out);
                        // Other requests may have been among the uncaptured bytes.
                        self.pair.unseen(chunk.at, chunk.arrived);
                        return left;
                    }
                    used
                }
                Step::Skip { used } => {
                    stream.start = None;
                    stream.buffer = bytes.get(used..had).unwrap_or_default().to_vec();
                    used
                }
                Step::Part { used, rest } => self.part(chunk.dir, (used, rest), (bytes, had)),
                Step::Pass { used, rest } => self.pass(chunk.dir, (used, rest), (bytes, had)),
                Step::Leave => return self.leave(left),
                Step::Tls => return self.time_tls(chunk, left),
                Step::NeedMore => {
                    stream.buffer = bytes.to_vec();
                    return left;
                }
                Step::Invalid | Step::Trailing => return self.invalid(chunk, captured, left, out),
            }
        } else {
            while let Some(oldest) = self.pair.oldest().copied().filter(|oldest| oldest.expected.optional) {
                match parser.passes(bytes, &oldest.expected) {
                    Some(false) => break,
                    None if !cut => {
                        stream.buffer = bytes.to_vec();
                        return left;
                    }
                    _ => {
                        self.pair.end();
                        give_up(&oldest, chunk.at, out);
                    }
                }
            }
            let waiting = self.pair.oldest().copied();
            let expected = waiting.map(|waiting| waiting.expected).unwrap_or_default();
            let step = parser.reply(bytes, cut, &expected);
            self.standing.proven |= !matches!(step, Step::NeedMore | Step::Invalid);
            match step {
                Step::Head { used, message, body } => {
                    if message.interim && body == Body::Length(0) {
                        // Interim: not the reply yet.
                        stream.start = None;
                        stream.buffer = bytes.get(used..had).unwrap_or_default().to_vec();
                        used
                    } else if message.interim {
                        // The interim reply's body is not the reply either.
                        stream.bytes = used as u64;
                        stream.enter(body);
                        self.orphan = true;
                        used
                    } else {
                        if matches!(body, Body::UntilTurn | Body::Beyond(_)) {
                            self.want_more(chunk.dir, captured.len());
                        }
                        if body != Body::Switch {
                            self.upgrade = None;
                        }
                        let stream = self.stream(chunk.dir);
                        stream.bytes += used as u64;
                        stream.head_bytes = stream.bytes;
                        stream.enter(body);
                        if body == Body::Switch
                            && let Some(protocol) = self.parser.as_ref().and_then(|parser| parser.switched(&expected))
                            && let Some(rest) = chunk.beyond(chunk.pos + at + (used - had) as u64).or(Some(Chunk {
                                pos: chunk.end(),
                                len: 0,
                                head: &[],
                                ..*chunk
                            }))
                            && self.switch(protocol, &rest, settings, out)
                        {
                            return left;
                        }
                        self.replied(chunk, &message, out);
                        let job = self.parser.as_mut().and_then(|parser| parser.take_job());
                        if let (Some(waiting), Some(job)) = (waiting, job) {
                            out.push(ExchangeEvent::Job { exchange: waiting.exchange, job });
                        }
                        match body {
                            Body::Length(0) => self.reply_ended(Outcome::Complete, chunk.at, out),
                            Body::Beyond(beyond) => {
                                let unread = left.saturating_sub(captured.len() as u64);
                                self.end_beyond(chunk, unread, beyond, out);
                                return left;
                            }
                            Body::Switch => {
                                let protocol = self.protocol_id();
                                self.reply_ended(Outcome::Upgraded, chunk.at, out);
                                let used = used.saturating_sub(had) as u64;
                                match self.upgrade.take().filter(|_| expected.websocket) {
                                    Some(request) => self.begin_session(request, chunk, at + used, out),
                                    None if expected.tunnel && protocol == ProtocolId::Http => {
                                        self.begin_tunnel(chunk, at + used, settings, out);
                                    }
                                    None => self.verdict = Verdict::Ignore,
                                }
                                return left;
                            }
                            _ => {}
                        }
                        used
                    }
                }
                Step::Skip { used } => {
                    stream.start = None;
                    stream.buffer = bytes.get(used..had).unwrap_or_default().to_vec();
                    used
                }
                Step::Part { used, rest } => self.part(chunk.dir, (used, rest), (bytes, had)),
                Step::Pass { used, rest } => self.pass(chunk.dir, (used, rest), (bytes, had)),
                Step::Leave => return self.leave(left),
                Step::Tls => return self.time_tls(chunk, left),
                Step::Trailing => return self.trail(chunk, captured, left, out),
                Step::NeedMore => {
                    stream.buffer = bytes.to_vec();
                    return left;
                }
                Step::Invalid if self.is_refuted(bytes) => {
                    self.take_back(out);
                    return left;
                }
                Step::Invalid => return self.invalid(chunk, captured, left, out),
            }
        };
        (used.saturating_sub(had)) as u64
    }
}

mod detect;

#[cfg(test)]
pub(super) mod tests;

#[cfg(test)]
mod loss;

#[cfg(test)]
mod http_tests;
