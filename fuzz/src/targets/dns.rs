//! The same as `http1`, on a connection already recognised as DNS; and the same bytes as datagrams.

use crate::conversation::converse;
use tracer_model::Direction::{Rx, Tx};
use tracer_protocols::{Chunk, Closed, ConnectionParser, ExchangeEvent, Settings, Stamp};

const ASKED: &[u8] = b"\0\x1d\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01";

pub(crate) fn run(data: &[u8]) {
    converse(&[(Rx, ASKED)], data);
    let mut conversation = ConnectionParser::new(false);
    let mut out = Vec::new();
    // Each datagram: direction, length, bytes.
    let mut rest = data;
    while let [flags, len, tail @ ..] = rest {
        let (bytes, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        let dir = if flags & 1 == 0 { Rx } else { Tx };
        let len = bytes.len() as u64;
        let chunk =
            Chunk { dir, pos: 0, len, head: bytes, tail: &[], fragments: &[], at: Stamp::default(), arrived: 0 };
        conversation.on_io(true, &chunk, &Settings::default(), &mut out);
    }
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut out);
    let begun = out.iter().filter(|word| matches!(word, ExchangeEvent::Begun { .. })).count();
    let done = out.iter().filter(|word| matches!(word, ExchangeEvent::Done { .. })).count();
    assert_eq!(begun, done, "{out:?}");
}
