//! Input handling shared by several targets.

use std::collections::HashSet;

use tracer_model::Direction;
use tracer_protocols::framed::Way;
use tracer_protocols::{Chunk, Closed, ConnectionParser, ExchangeEvent, Settings, Stamp, Verdict};

/// One serving connection: it begins with `opening`, then follows `data`, cut and captured arbitrarily. Everything
/// begun must end exactly once.
pub(crate) fn converse(opening: &[(Direction, &[u8])], data: &[u8]) {
    let settings = Settings { request_id: true, headers: vec!["x-a".into()], ..Settings::default() };
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut conversation = ConnectionParser::new(first & 1 == 1);
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    let mut nanos = 1;
    for (dir, bytes) in opening {
        let which = usize::from(*dir == Direction::Tx);
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        let len = bytes.len() as u64;
        let chunk = Chunk { dir: *dir, pos: pos[which], len, head: bytes, tail: &[], fragments: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
        pos[which] += len;
        nanos += 1;
    }
    // Each operation: flags, length, captured length, then its bytes.
    while let [flags, len, captured, tail @ ..] = rest {
        let len = usize::from(*len).min(tail.len());
        let (bytes, next) = tail.split_at(len);
        rest = next;
        nanos += 1;
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        if flags & 0x80 != 0 {
            let how = [Closed::Local, Closed::Remote, Closed::Both][usize::from(flags & 3) % 3];
            conversation.closed(how, at, None, &settings, &mut out);
            continue;
        }
        let dir = if flags & 1 == 0 { Direction::Rx } else { Direction::Tx };
        let which = usize::from(flags & 1);
        // A gap now and then, sometimes huge.
        pos[which] = pos[which].saturating_add(if flags & 2 != 0 { 1 << (flags >> 2 & 31) } else { 0 });
        let head = &bytes[..usize::from(*captured).min(bytes.len())];
        let unseen = if flags & 0x40 != 0 { u64::from(*captured) << 20 } else { 0 };
        let len = bytes.len() as u64 + unseen;
        let tail = &bytes[bytes.len().saturating_sub(8).max(head.len())..];
        conversation.bytes(
            &Chunk { dir, pos: pos[which], len, head, tail, fragments: between(*flags, bytes), at, arrived: 0 },
            &settings,
            &mut out,
        );
        pos[which] = pos[which].saturating_add(len);
        let _ = conversation.want();
    }
    if first & 2 == 0 {
        conversation.expire(u64::MAX, 0, &mut out);
    }
    conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
    let begun = out.iter().filter(|word| matches!(word, ExchangeEvent::Begun { .. })).count();
    let done = out.iter().filter(|word| matches!(word, ExchangeEvent::Done { .. })).count();
    assert_eq!(begun, done, "{out:?}");
}

/// Arbitrary bytes as captured between an operation's front and its end.
fn between(flags: u8, bytes: &[u8]) -> &[u8] {
    if flags & 0x60 == 0x60 { bytes } else { &[] }
}

/// One connection whose messages carry the number of their exchange, at either end, from its beginning or from its
/// middle: it begins with `opening`, a request, then follows `data`. `frame` turns bytes into a message, if their flags
/// say so; messages are cut, captured and lost arbitrarily. Everything begun must end exactly once.
pub(crate) fn framed(opening: &[u8], frame: fn(Way, &[u8]) -> Vec<u8>, data: &[u8]) {
    let settings = Settings { request_id: true, host: true, headers: vec!["x-a".into()], ..Settings::default() };
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut conversation = ConnectionParser::new(first & 1 == 1);
    let requests = if first & 2 == 0 { Direction::Rx } else { Direction::Tx };
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    let mut nanos = 1;
    if first & 4 == 0 {
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        let len = opening.len() as u64;
        let chunk = Chunk { dir: requests, pos: 0, len, head: opening, tail: &[], fragments: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
        assert!(conversation.protocol().is_some(), "the connection is recognised");
        pos[usize::from(requests == Direction::Tx)] = len;
    }
    // Each operation: flags, length, captured length, then its bytes, as one message if a flag says so.
    while let [flags, len, captured, tail @ ..] = rest {
        let (bytes, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        // Time sometimes passes quickly: pending work is then processed as it stands.
        nanos += if flags & 8 != 0 { 30_000_000 } else { 1 };
        let at = Stamp { nanos, pid: 1, tid: u32::from(flags & 1), reads: 0 };
        if flags & 0x80 != 0 {
            match flags & 3 {
                3 => conversation.overdue(nanos, 1000, &settings, &mut out),
                how => {
                    let how = [Closed::Local, Closed::Remote, Closed::Both][usize::from(how)];
                    conversation.closed(how, at, None, &settings, &mut out);
                }
            }
            continue;
        }
        let dir = if flags & 1 == 0 { Direction::Rx } else { Direction::Tx };
        let which = usize::from(flags & 1);
        pos[which] = pos[which].saturating_add(if flags & 2 != 0 { 1 << (flags >> 2 & 15) } else { 0 });
        let way = if dir == requests { Way::Request } else { Way::Reply };
        let bytes = if flags & 4 != 0 { frame(way, bytes) } else { bytes.to_vec() };
        let captured = if *captured == 0xff { bytes.len() } else { usize::from(*captured).min(bytes.len()) };
        let unseen = if flags & 0x40 != 0 { u64::from(flags & 0x30) << 12 } else { 0 };
        let len = bytes.len() as u64 + unseen;
        let tail = &bytes[bytes.len().saturating_sub(8).max(captured)..];
        let (head, fragments) = (&bytes[..captured], between(*flags, &bytes));
        let chunk = Chunk { dir, pos: pos[which], len, head, tail, fragments, at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
        pos[which] = pos[which].saturating_add(len);
        let _ = conversation.want();
        assert!(conversation.kept_bytes() < 1 << 20);
    }
    conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
    let (mut open, mut begun) = (HashSet::new(), HashSet::new());
    for word in &out {
        match word {
            ExchangeEvent::Begun { exchange, .. } => assert!(begun.insert(*exchange) && open.insert(*exchange)),
            ExchangeEvent::Done { exchange, .. } => assert!(open.remove(exchange)),
            ExchangeEvent::Replied { exchange, .. } | ExchangeEvent::Judged { exchange, .. } => {
                assert!(open.contains(exchange));
            }
            _ => {}
        }
    }
    assert!(open.is_empty() || conversation.want().verdict == Verdict::Ignore, "{out:?}");
}

/// One connection whose bytes are played as operations of the same process.
pub(crate) struct Playing {
    parser: ConnectionParser,
    settings: Settings,
    out: Vec<ExchangeEvent>,
    pos: [u64; 2],
    nanos: u64,
}

impl Playing {
    pub(crate) fn new() -> Self {
        let parser = ConnectionParser::new(false);
        Self { parser, settings: Settings::default(), out: Vec::new(), pos: [0; 2], nanos: 1 }
    }

    /// Bytes received (0) or sent (1), all of them captured.
    pub(crate) fn play(&mut self, which: usize, bytes: &[u8]) {
        self.captured(which, bytes, usize::MAX, 0);
    }

    /// The same after a gap, with the first `captured` and a few of the last bytes captured.
    fn captured(&mut self, which: usize, bytes: &[u8], captured: usize, gap: u64) {
        let Self { parser, settings, out, pos, nanos } = self;
        *nanos += 1;
        pos[which] = pos[which].saturating_add(gap);
        let dir = [Direction::Rx, Direction::Tx][which];
        let head = &bytes[..captured.min(bytes.len())];
        let tail = if head.len() < bytes.len() { &bytes[bytes.len().saturating_sub(8).max(head.len())..] } else { &[] };
        let at = Stamp { nanos: *nanos, pid: 1, tid: 1, reads: *nanos as u32 / 2 };
        let len = bytes.len() as u64;
        parser.bytes(&Chunk { dir, pos: pos[which], len, head, tail, fragments: &[], at, arrived: 0 }, settings, out);
        pos[which] = pos[which].saturating_add(len);
    }

    /// Plays `rest`: operations of flags, length, captured length and bytes, which `message` makes a message of this first
    /// byte unless a flag says that they are raw. Then the connection ends; returns how many exchanges began. Each must end
    /// unless the connection was given up.
    pub(crate) fn finish(mut self, mut rest: &[u8], message: fn(u8, &[u8]) -> Vec<u8>) -> usize {
        while let [flags, len, captured, tail @ ..] = rest {
            let (bytes, next) = tail.split_at(usize::from(*len).min(tail.len()));
            rest = next;
            let whole = match bytes.split_first() {
                Some((first, others)) if flags & 2 == 0 => message(*first, others).repeat(usize::from(flags >> 5) + 1),
                _ => bytes.to_vec(),
            };
            let captured = if flags & 4 == 0 { usize::MAX } else { usize::from(*captured) };
            let gap = if flags & 8 == 0 { 0 } else { u64::from(flags >> 4) };
            self.captured(usize::from(flags & 1), &whole, captured, gap);
        }
        let Self { mut parser, settings, mut out, .. } = self;
        parser.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
        let begun = out.iter().filter(|word| matches!(word, ExchangeEvent::Begun { .. })).count();
        let done = out.iter().filter(|word| matches!(word, ExchangeEvent::Done { .. })).count();
        assert!(begun == done || parser.want().verdict == Verdict::Ignore && begun > done);
        begun
    }
}
