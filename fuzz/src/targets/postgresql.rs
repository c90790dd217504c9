//! Arbitrary bytes and messages, cut and captured arbitrarily, in both directions of a PostgreSQL connection.
use tracer_user::model::Direction;
use tracer_user::protocols::{Chunk, Closed, ConnectionParser, ExchangeEvent, Settings, Stamp, Verdict};

/// A connection's first message.
const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";

pub(crate) fn run(data: &[u8]) {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    let mut nanos = 1;
    let mut play = |which: usize, bytes: &[u8], captured: usize, gap: u64, out: &mut Vec<ExchangeEvent>| {
        nanos += 1;
        pos[which] = pos[which].saturating_add(gap);
        let dir = [Direction::Rx, Direction::Tx][which];
        let head = &bytes[..captured.min(bytes.len())];
        let tail = if head.len() < bytes.len() { &bytes[bytes.len().saturating_sub(8).max(head.len())..] } else { &[] };
        let at = Stamp { nanos, pid: 1, tid: 1, reads: nanos as u32 / 2 };
        let len = bytes.len() as u64;
        conversation.bytes(
            &Chunk { dir, pos: pos[which], len, head, tail, fragments: &[], at, arrived: 0 },
            &settings,
            out,
        );
        pos[which] = pos[which].saturating_add(len);
    };
    play(0, STARTUP, usize::MAX, 0, &mut out);
    let mut rest = data;
    // Each operation: flags, length, captured length, then its bytes: a message of this kind, or raw bytes.
    while let [flags, len, captured, tail @ ..] = rest {
        let (bytes, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        let whole = match bytes.split_first() {
            Some((kind, fields)) if flags & 2 == 0 => {
                let length = (fields.len() as u32 + 4).to_be_bytes();
                [&[*kind][..], &length, fields].concat().repeat(usize::from(flags >> 5) + 1)
            }
            _ => bytes.to_vec(),
        };
        let captured = if flags & 4 == 0 { usize::MAX } else { usize::from(*captured) };
        let gap = if flags & 8 == 0 { 0 } else { u64::from(flags >> 4) };
        play(usize::from(flags & 1), &whole, captured, gap, &mut out);
    }
    conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
    let begun = out.iter().filter(|word| matches!(word, ExchangeEvent::Begun { .. })).count();
    let done = out.iter().filter(|word| matches!(word, ExchangeEvent::Done { .. })).count();
    assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun > done);
}
