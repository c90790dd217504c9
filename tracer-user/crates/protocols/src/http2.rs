//! HTTP/2 (RFC 9113) without encryption, and gRPC on it.
//!
//! The reader looks only at frames that begin, end or break off a stream. Header blocks are decoded in both directions
//! (`hpack.rs`); a block that was captured only in part makes the table unknown, and requests named by it from then on
//! are unnamed, never wrong. Such blocks are counted.
//!
//! Clients send `content-type: application/grpc` by its index in the table, so the head of a later call may not show that
//! it is one. What the connection's earlier heads were decides then; where both were seen, the reply does.

mod fields;
mod hpack;
mod huffman;
mod pack;

use tracer_model::ProtocolId;

use self::fields::Fields;
use self::hpack::{Ended, Table};
use super::framed::{Frame, FrameMeaning, Framed, Front, NO_STATUS, Way};
use super::grpc;
use super::{Detected, ExpectedReply, Protocol, Reply, Request, Settings};

/// The client connection preface (§3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame header (§4.1).
const HEADER: usize = 9;
/// Longest frame by default (§4.2).
const FRAME_LIMIT: u32 = 16_384;
/// Longest header block assembled: as long as an HTTP/1 head.
const BLOCK_LIMIT: usize = tracer_common::limits::HEAD_COLLECTED;
/// New streams that may have begun in uncaptured bytes.
const STREAMS_AHEAD: u64 = 4096;
/// [`ExpectedReply::note`]: the request is a gRPC call.
const NOTE_GRPC: u16 = 1;
/// [`ExpectedReply::note`]: the request may be a gRPC call: its head does not show it.
const NOTE_MAYBE_GRPC: u16 = 2;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flag of DATA and HEADERS: ends this direction of the stream.
const END_STREAM: u8 = 1;
/// Flag of HEADERS, PUSH_PROMISE and CONTINUATION: the block is complete.
const END_HEADERS: u8 = 4;
/// Flag of DATA, HEADERS and PUSH_PROMISE: padding follows.
const PADDED: u8 = 8;
/// Flag of HEADERS: a priority precedes the block.
const PRIORITISED: u8 = 0x20;

/// SETTINGS_MAX_FRAME_SIZE.
const SETTING_FRAME_SIZE: u16 = 5;

/// The protocol.
#[derive(Debug)]
pub struct Http2;

impl Protocol for Http2 {
    fn id(&self) -> ProtocolId {
        ProtocolId::Http
    }

    fn detect(&self, bytes: &[u8]) -> Detected {
        let n = bytes.len().min(PREFACE.len());
        if bytes.get(..n) == PREFACE.get(..n) {
            return if n == PREFACE.len() { Detected::Request } else { Detected::NeedMore };
        }
        detect_frames(bytes)
    }

    fn framed(&self, joined: bool) -> Option<Box<dyn Framed>> {
        Some(Box::new(Frames::new(joined)))
    }
}

/// Detects a connection joined in mid-stream by unambiguous frames.
fn detect_frames(mut bytes: &[u8]) -> Detected {
    let mut first = true;
    while let Some(header) = Http2Header::read(bytes) {
        if !header.fits(FRAME_LIMIT) || !header.is_likely() {
            return Detected::No;
        }
        let Some(payload) = bytes.get(HEADER..HEADER + header.len as usize) else {
            return if matches!(header.kind, SETTINGS | HEADERS) { Detected::NeedMore } else { Detected::No };
        };
        match header.kind {
            // A server's first frame; a client's follow its preface.
            SETTINGS if first && header.flags == 0 && settings_plausible(payload) => return Detected::Reply,
            SETTINGS | PING | WINDOW_UPDATE | PRIORITY | RST_STREAM => {}
            HEADERS if header.flags & END_HEADERS != 0 && header.key % 2 == 1 => {
                let Some(block) = block_of(header, payload) else { return Detected::No };
                let mut fields = Fields::default();
                let settings = Settings::default();
                let read =
                    Table::new(true).decode(block, true, &settings, |name, value| fields.see(name, value, &settings));
                if read == Ended::Broken {
                    return Detected::No;
                }
                return match (fields.is_request(), fields.is_reply()) {
                    (true, false) => Detected::Request,
                    (false, true) => Detected::Reply,
                    _ => Detected::No,
                };
            }
            _ => return Detected::No,
        }
        first = false;
        bytes = bytes.get(HEADER + header.len as usize..).unwrap_or_default();
    }
    // The beginning of a header that can be one of these.
    match bytes {
        [0] | [0, _] | [0, _, _] | [0, _, _, SETTINGS | HEADERS, ..] => Detected::NeedMore,
        _ => Detected::No,
    }
}

/// Whether these settings are plausible for a server: known ones with valid values.
fn settings_plausible(payload: &[u8]) -> bool {
    let mut settings = payload.chunks_exact(6);
    settings.all(|setting| matches!(setting, [0, 1..=9, ..]) || setting.first() == Some(&0xfe))
        && settings.remainder().is_empty()
        && payload.len() <= 16 * 6
}

/// A frame's header.
#[derive(Clone, Copy, Debug)]
struct Http2Header {
    len: u32,
    kind: u8,
    flags: u8,
    reserved: bool,
    key: u64,
}

impl Http2Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let [high, middle, low, kind, flags, key @ ..] = *header;
        let key = u32::from_be_bytes(key);
        Some(Self {
            len: u32::from_be_bytes([0, high, middle, low]),
            kind,
            flags,
            reserved: key >> 31 != 0,
            key: u64::from(key & 0x7fff_ffff),
        })
    }

    /// Whether a peer may send it (§6): length and stream fit the type. Unknown types may be anything (§5.5).
    fn fits(self, limit: u32) -> bool {
        let of_stream = self.key != 0;
        self.len <= limit
            && match self.kind {
                DATA | HEADERS | PUSH_PROMISE | CONTINUATION => of_stream,
                PRIORITY => of_stream && self.len == 5,
                RST_STREAM => of_stream && self.len == 4,
                SETTINGS => !of_stream && self.len.is_multiple_of(6) && (self.flags & 1 == 0 || self.len == 0),
                PING => !of_stream && self.len == 8,
                GOAWAY => !of_stream && self.len >= 8,
                WINDOW_UPDATE => self.len == 4,
                _ => true,
            }
    }

    /// Whether it looks like a frame that was sent: stricter, for positions where no frame need begin.
    fn is_likely(self) -> bool {
        let flags = match self.kind {
            DATA => END_STREAM | PADDED,
            HEADERS => END_STREAM | END_HEADERS | PADDED | PRIORITISED,
            SETTINGS | PING => 1,
            CONTINUATION => END_HEADERS,
            PRIORITY | RST_STREAM | GOAWAY | WINDOW_UPDATE => 0,
            _ => return false,
        };
        self.flags & !flags == 0 && !self.reserved && (self.key % 2 == 1 || self.key == 0)
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// The header block in the payload of a HEADERS or PUSH_PROMISE frame, without padding and the fields before it.
fn block_of(header: Http2Header, payload: &[u8]) -> Option<&[u8]> {
    let mut from = 0;
    let mut padding = 0;
    if header.has(PADDED) {
        padding = usize::from(*payload.first()?);
        from = 1;
    }
    from += match header.kind {
        PUSH_PROMISE => 4,
        HEADERS if header.has(PRIORITISED) => 5,
        _ => 0,
    };
    let whole = payload.len() == header.len as usize;
    // In a cut payload, the padding is in the missing part.
    let to = if whole { payload.len().checked_sub(padding)? } else { payload.len() };
    payload.get(from..to)
}

/// Both directions of one connection.
#[derive(Debug)]
struct Frames {
    requests: Table,
    replies: Table,
    /// Highest stream that carried a request.
    highest: u64,
    /// Longest frame a direction may send: to the server, to the client.
    limits: [u32; 2],
    /// Whether gRPC calls, and whether other requests, were seen on this connection.
    has_grpc: bool,
    has_plain: bool,
    /// Header blocks captured only in part not counted yet.
    cut: u64,
    /// The client's preface was read, and no frame of the server yet.
    offered: bool,
}

impl Frames {
    fn new(joined: bool) -> Self {
        // The settings exchanged before are unknown.
        let limit = if joined { 1 << 20 } else { FRAME_LIMIT };
        Self {
            requests: Table::new(joined),
            replies: Table::new(joined),
            highest: 0,
            limits: [limit; 2],
            has_grpc: false,
            has_plain: false,
            cut: 0,
            offered: false,
        }
    }

    /// Whether a request with these fields is a gRPC call; `None`: only its reply can show it.
    fn is_grpc(&mut self, fields: &Fields) -> Option<bool> {
        let known = fields.is_grpc();
        self.has_grpc |= known == Some(true);
        self.has_plain |= known == Some(false);
        known.or((self.has_grpc && !self.has_plain).then_some(true))
    }

    /// Reads a reply's header block, where the request's head does not show whether it is a gRPC call.
    fn maybe_grpc(&mut self, fields: &Fields, header: Http2Header) -> FrameMeaning {
        let end = header.has(END_STREAM);
        self.has_grpc |= fields.is_grpc() == Some(true);
        let trailers = !fields.is_reply() && (fields.has_grpc_status() || !fields.broken && end);
        // Almost nothing but gRPC has trailers, and trailers that cannot be read may hold a failure.
        if fields.has_grpc_status() || trailers && fields.is_incomplete() {
            self.has_grpc = true;
            let (status, failure) = fields.grpc_verdict(end).unwrap_or((NO_STATUS, None));
            return FrameMeaning::Judged { status, failure, protocol: Some(ProtocolId::Grpc) };
        }
        if !fields.is_reply() && !fields.may_be_reply() {
            return FrameMeaning::Part;
        }
        let status = match (fields.is_grpc(), fields.status()) {
            // As long as its trailers may come.
            (Some(true), Some(200)) => NO_STATUS,
            (None, Some(200)) if self.has_grpc => NO_STATUS,
            (_, status) => status.unwrap_or(NO_STATUS),
        };
        let interim = (100..200).contains(&status);
        FrameMeaning::Replied { reply: Reply { status, failure: None, interim }, length: fields.length() }
    }

    fn table(&mut self, way: Way) -> &mut Table {
        match way {
            Way::Request => &mut self.requests,
            Way::Reply => &mut self.replies,
        }
    }

    fn limit(&self, way: Way) -> u32 {
        self.limits[usize::from(way == Way::Reply)]
    }

    /// Takes one end's settings for the other.
    fn agreed(&mut self, way: Way, payload: &[u8]) {
        for setting in payload.chunks_exact(6) {
            let Some((name, value)) = setting.split_first_chunk::<2>() else { continue };
            let Some((value, _)) = value.split_first_chunk::<4>() else { continue };
            if u16::from_be_bytes(*name) == SETTING_FRAME_SIZE {
                let other = usize::from(way == Way::Request);
                let allowed = u32::from_be_bytes(*value).min((1 << 24) - 1);
                self.limits[other] = self.limits[other].max(allowed);
            }
        }
    }

    /// Handles a header block of one or several frames, of which `len` bytes are there; `whole`: all of them.
    fn head(
        &mut self,
        way: Way,
        header: Http2Header,
        (block, whole): (&[u8], bool),
        expected: Option<ExpectedReply>,
        settings: &Settings,
    ) -> FrameMeaning {
        let mut fields = Fields::default();
        let read = self.table(way).decode(block, whole, settings, |name, value| fields.see(name, value, settings));
        fields.broken = read == Ended::Broken;
        self.cut += u64::from(fields.broken);
        if header.kind == PUSH_PROMISE || header.key.is_multiple_of(2) {
            // Pushed streams answer no request.
            return FrameMeaning::Nothing;
        }
        match way {
            Way::Request => {
                let new = header.key > self.highest;
                self.highest = self.highest.max(header.key);
                // Whatever it contains, a header block on a new stream begins a request.
                if !new && !fields.is_request() {
                    return FrameMeaning::Part;
                }
                let is_grpc = self.is_grpc(&fields);
                let length = fields.length();
                let mut request = fields.request(settings);
                request.expected.note = match is_grpc {
                    Some(true) => NOTE_GRPC,
                    Some(false) => 0,
                    None => NOTE_MAYBE_GRPC,
                };
                FrameMeaning::Begun {
                    request,
                    protocol: if is_grpc == Some(true) { ProtocolId::Grpc } else { ProtocolId::Http },
                    length,
                }
            }
            Way::Reply if expected.is_some_and(|expected| expected.note == NOTE_MAYBE_GRPC) => {
                self.maybe_grpc(&fields, header)
            }
            Way::Reply => {
                let is_grpc = expected.is_some_and(|expected| expected.note == NOTE_GRPC);
                let end = header.has(END_STREAM);
                if !fields.is_reply() && !fields.may_be_reply() {
                    // Trailers.
                    return match fields.grpc_verdict(end) {
                        Some((status, failure)) if is_grpc => FrameMeaning::Judged { status, failure, protocol: None },
                        _ => FrameMeaning::Part,
                    };
                }
                let http = fields.status();
                let interim = http.is_some_and(|status| (100..200).contains(&status));
                let (status, failure) = match http {
                    _ if is_grpc && !interim => fields.grpc_reply(end).unwrap_or((NO_STATUS, None)),
                    Some(status) => (status, None),
                    None => (0, None),
                };
                FrameMeaning::Replied { reply: Reply { status, failure, interim }, length: fields.length() }
            }
        }
    }

    /// Reads a header block and the frames that continue it.
    fn block(
        &mut self,
        way: Way,
        bytes: &[u8],
        header: Http2Header,
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        let mut total = HEADER + header.len as usize;
        if bytes.len() < total && !cut {
            return Front::Need(total);
        }
        let payload = bytes.get(HEADER..total.min(bytes.len())).unwrap_or_default();
        let mut whole = bytes.len() >= total;
        let Some(first) = block_of(header, payload) else {
            self.table(way).poison();
            return Front::Invalid;
        };
        let mut gathered = Vec::new();
        let mut block = first;
        let mut complete = header.has(END_HEADERS);
        while whole && !complete {
            let rest = bytes.get(total..).unwrap_or_default();
            let Some(next) = Http2Header::read(rest) else {
                if cut {
                    break;
                }
                return Front::Need(total + HEADER);
            };
            if next.kind != CONTINUATION || next.key != header.key || !next.fits(self.limit(way)) {
                self.table(way).poison();
                return Front::Invalid;
            }
            let after = total + HEADER + next.len as usize;
            if bytes.len() < after && !cut {
                if after > BLOCK_LIMIT {
                    break;
                }
                return Front::Need(after);
            }
            if gathered.is_empty() {
                gathered.extend_from_slice(block);
            }
            gathered.extend_from_slice(bytes.get(total + HEADER..after.min(bytes.len())).unwrap_or_default());
            whole = bytes.len() >= after;
            complete = next.has(END_HEADERS);
            total = after;
        }
        if !gathered.is_empty() {
            block = &gathered;
        }
        let meaning = self.head(way, header, (block, whole && complete), expected(header.key), settings);
        let end = header.kind == HEADERS && header.has(END_STREAM);
        Front::Frame(Frame { len: total as u64, key: header.key, body: 0, meaning, end })
    }
}

/// The answer of a server that has no HTTP/2 to a client that took that for known: its HTTP/1 reply answers the first stream.
/// `None`: the bytes begin otherwise.
fn answered_by_http1(bytes: &[u8], cut: bool) -> Option<Front> {
    const BEGINS: &[u8] = b"HTTP/1.";
    /// Bytes up to the status's end: `HTTP/1.1 400`.
    const LINE: usize = 12;
    let n = bytes.len().min(BEGINS.len());
    if n == 0 || bytes.get(..n) != BEGINS.get(..n) {
        return None;
    }
    let Some(line) = bytes.get(..LINE) else { return (!cut).then_some(Front::Need(LINE)) };
    let digits = line.get(LINE - 3..).and_then(|digits| std::str::from_utf8(digits).ok());
    let status = digits.and_then(|digits| digits.parse().ok()).filter(|status| (100..600).contains(status))?;
    let reply = Reply { status, failure: None, interim: false };
    let meaning = FrameMeaning::Replied { reply, length: None };
    Some(Front::Frame(Frame { len: bytes.len() as u64, key: 1, body: 0, meaning, end: true }))
}

impl Framed for Frames {
    fn is_certain(&self) -> bool {
        self.offered
    }

    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front {
        let n = bytes.len().min(PREFACE.len());
        if way == Way::Request && n > 0 && bytes.get(..n) == PREFACE.get(..n) {
            // Read as a frame, the preface would exceed any frame limit.
            if n < PREFACE.len() && !cut {
                return Front::Need(PREFACE.len());
            }
            if n < PREFACE.len() {
                return Front::Invalid;
            }
            self.offered = true;
            return nothing(PREFACE.len() as u64);
        }
        if way == Way::Reply && self.offered {
            if let Some(front) = answered_by_http1(bytes, cut) {
                return front;
            }
            self.offered = !Http2Header::read(bytes).is_some_and(|header| header.fits(self.limit(way)));
        }
        let Some(header) = Http2Header::read(bytes) else { return Front::Need(HEADER) };
        if !header.fits(self.limit(way)) {
            return Front::Invalid;
        }
        let len = HEADER as u64 + u64::from(header.len);
        let payload = |want: usize| bytes.get(HEADER..HEADER + want);
        match header.kind {
            HEADERS | PUSH_PROMISE => self.block(way, bytes, header, cut, expected, settings),
            CONTINUATION => {
                // Continues a block that was not read.
                self.table(way).poison();
                nothing(len)
            }
            DATA => {
                let padding = match payload(1) {
                    _ if !header.has(PADDED) => 0,
                    Some([padding]) => u64::from(*padding) + 1,
                    _ if cut => 0,
                    _ => return Front::Need(HEADER + 1),
                };
                let body = u64::from(header.len).saturating_sub(padding);
                let is_grpc = padding == 0 && expected(header.key).is_some_and(|expected| expected.note == NOTE_GRPC);
                let meaning = match payload(grpc::PREFIX) {
                    Some(prefix) if is_grpc && body >= grpc::PREFIX as u64 => grpc::message(prefix),
                    None if is_grpc && body >= grpc::PREFIX as u64 && !cut => {
                        return Front::Need(HEADER + grpc::PREFIX);
                    }
                    _ => None,
                };
                let meaning = meaning.map_or(FrameMeaning::Part, FrameMeaning::Message);
                Front::Frame(Frame { len, key: header.key, body, meaning, end: header.has(END_STREAM) })
            }
            RST_STREAM | GOAWAY => {
                let want = if header.kind == GOAWAY { 8 } else { 4 };
                let Some(code) = payload(want) else {
                    return if cut { nothing(len) } else { Front::Need(HEADER + want) };
                };
                let word = code.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
                let meaning = match (header.kind, way) {
                    (GOAWAY, Way::Reply) => FrameMeaning::Refused(u64::from(word & 0x7fff_ffff)),
                    (GOAWAY, Way::Request) => FrameMeaning::Nothing,
                    (_, Way::Request) => FrameMeaning::Reset(None),
                    (..) => {
                        let is_grpc = expected(header.key).is_some_and(|expected| expected.note == NOTE_GRPC);
                        FrameMeaning::Reset(is_grpc.then(|| grpc::of_reset(word)))
                    }
                };
                Front::Frame(Frame { len, key: header.key, body: 0, meaning, end: false })
            }
            SETTINGS => match payload(header.len as usize) {
                Some(settings) => {
                    self.agreed(way, settings);
                    nothing(len)
                }
                None if cut => nothing(len),
                None => Front::Need(len as usize),
            },
            _ => nothing(len),
        }
    }

    fn lost(&mut self, way: Way) {
        self.table(way).poison();
    }

    fn take_cut(&mut self) -> u64 {
        std::mem::take(&mut self.cut)
    }

    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize> {
        let limit = self.limit(way);
        let known = |header: Http2Header, front: bool| {
            let key = header.key;
            header.fits(limit)
                && header.is_likely()
                && (key == 0
                    || open(key)
                    || front && key <= self.highest
                    || self.highest == 0 && key < STREAMS_AHEAD * 16
                    || key > self.highest && key < self.highest + STREAMS_AHEAD)
        };
        (0..bytes.len().saturating_sub(HEADER - 1)).find(|at| {
            let rest = bytes.get(*at..).unwrap_or_default();
            let Some(header) = Http2Header::read(rest).filter(|header| known(*header, *at == 0)) else { return false };
            let end = HEADER + header.len as usize;
            match rest.get(end..).and_then(Http2Header::read) {
                Some(next) => known(next, *at == 0),
                // Exactly to the end of the captured part, which is likely the operation's end.
                None if rest.len() == end => true,
                // No header after it to confirm: accept at the front of an operation, or on an open stream, but not on
                // stream 0, because small numbers all look alike.
                None => header.key != 0 && (*at == 0 || open(header.key)),
            }
        })
    }

    fn is_early(&self, bytes: &[u8], _: &dyn Fn(u64) -> bool) -> bool {
        Http2Header::read(bytes).is_some_and(|header| {
            header.kind == HEADERS && header.key % 2 == 1 && header.key > self.highest && self.highest != 0
        })
    }

    fn overhead(&self) -> u64 {
        HEADER as u64
    }

    fn is_walked(&self) -> bool {
        true
    }

    fn wants(&self) -> u16 {
        // Many frames fit in one operation.
        tracer_common::limits::HEAD_REQUEST
    }

    fn adopt(&mut self, key: u64) {
        self.highest = self.highest.max(key);
    }

    fn rest(&mut self) {
        self.requests.rest();
        self.replies.rest();
    }

    fn kept_bytes(&self) -> usize {
        self.requests.bytes() + self.replies.bytes()
    }
}

fn nothing(len: u64) -> Front {
    Front::Frame(Frame { len, key: 0, body: 0, meaning: FrameMeaning::Nothing, end: false })
}

/// A request that no captured bytes name.
fn unnamed() -> Box<Request> {
    let mut request = Request::unnamed();
    request.version = "2";
    request
}

#[cfg(test)]
mod tests;
