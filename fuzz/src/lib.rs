//! What several targets do with their input.

use tracer_user::model::Direction;
use tracer_user::protocols::{Chunk, Closed, Conversation, Said, Settings, Stamp};

/// One connection that serves: it begins with `opening`, then does what `data` says, cut and captured in any way. What
/// was begun must end once.
pub fn converse(opening: &[(Direction, &[u8])], data: &[u8]) {
    let settings = Settings { request_id: true, headers: vec!["x-a".into()], ..Settings::default() };
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut conversation = Conversation::new(first & 1 == 1);
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    let mut nanos = 1;
    for (dir, bytes) in opening {
        let which = usize::from(*dir == Direction::Tx);
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        let len = bytes.len() as u64;
        let chunk = Chunk { dir: *dir, pos: pos[which], len, head: bytes, tail: &[], at, arrived: 0 };
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
        // A gap now and then, huge at times.
        pos[which] = pos[which].saturating_add(if flags & 2 != 0 { 1 << (flags >> 2 & 31) } else { 0 });
        let head = &bytes[..usize::from(*captured).min(bytes.len())];
        let unseen = if flags & 0x40 != 0 { u64::from(*captured) << 20 } else { 0 };
        let len = bytes.len() as u64 + unseen;
        let tail = &bytes[bytes.len().saturating_sub(8).max(head.len())..];
        conversation.bytes(&Chunk { dir, pos: pos[which], len, head, tail, at, arrived: 0 }, &settings, &mut out);
        pos[which] = pos[which].saturating_add(len);
        let _ = conversation.want();
    }
    conversation.expire(u64::MAX, 0, &mut out);
    conversation.closed(Closed::Both, Stamp::default(), None, &settings, &mut out);
    let begun = out.iter().filter(|word| matches!(word, Said::Begun { .. })).count();
    let done = out.iter().filter(|word| matches!(word, Said::Done { .. })).count();
    assert_eq!(begun, done, "{out:?}");
}
