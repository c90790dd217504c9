//! Any frames, cut and captured in any way, in both directions of one connection that speaks HTTP/2.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use tracer_user::model::Direction;
use tracer_user::protocols::{Chunk, Closed, Conversation, Said, Settings, Stamp};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fuzz_target!(|data: &[u8]| {
    let settings = Settings { request_id: true, host: true, headers: vec!["x-a".into()], ..Settings::default() };
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut conversation = Conversation::new(first & 1 == 1);
    let requests = if first & 2 == 0 { Direction::Rx } else { Direction::Tx };
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    let mut nanos = 1;
    if first & 4 == 0 {
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        let len = PREFACE.len() as u64;
        let chunk = Chunk { dir: requests, pos: 0, len, head: PREFACE, tail: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
        pos[usize::from(requests == Direction::Tx)] = len;
    }
    // Each operation: flags, length, captured length, then its bytes, as one frame where a flag says so.
    while let [flags, len, captured, tail @ ..] = rest {
        let len = usize::from(*len).min(tail.len());
        let (bytes, next) = tail.split_at(len);
        rest = next;
        // Time passes quickly at times: what waits is taken as it stands then.
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
        let framed;
        let bytes = match bytes {
            // Kind, flags, stream, payload.
            [kind, of_frame, key, payload @ ..] if flags & 4 != 0 => {
                let len = (payload.len() as u32).to_be_bytes();
                framed = [&len[1..], &[*kind % 12, *of_frame, 0, 0, 0, *key], payload].concat();
                &framed[..]
            }
            _ => bytes,
        };
        let captured = if *captured == 0xff { bytes.len() } else { usize::from(*captured).min(bytes.len()) };
        let unseen = if flags & 0x40 != 0 { u64::from(flags & 0x30) << 12 } else { 0 };
        let len = bytes.len() as u64 + unseen;
        let tail = &bytes[bytes.len().saturating_sub(8).max(captured)..];
        let chunk = Chunk { dir, pos: pos[which], len, head: &bytes[..captured], tail, at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
        pos[which] = pos[which].saturating_add(len);
        let _ = conversation.want();
        assert!(conversation.kept_bytes() < 1 << 20);
    }
    conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
    // Every request that began ends exactly once.
    let mut open = HashSet::new();
    let mut begun = HashSet::new();
    for word in &out {
        match word {
            Said::Begun { exchange, .. } => assert!(begun.insert(*exchange) && open.insert(*exchange)),
            Said::Done { exchange, .. } => assert!(open.remove(exchange)),
            Said::Replied { exchange, .. } | Said::Judged { exchange, .. } => assert!(open.contains(exchange)),
            _ => {}
        }
    }
    assert!(open.is_empty() || conversation.protocol().is_none() || !conversation.is_multiplexed());
});
