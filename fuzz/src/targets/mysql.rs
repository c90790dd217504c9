//! Arbitrary bytes and packets, cut and captured arbitrarily, in both directions of a MySQL or MariaDB connection.
use tracer_user::model::Direction;
use tracer_user::protocols::{Chunk, Closed, ConnectionParser, ExchangeEvent, Settings, Stamp, Verdict};

/// The start of a connection: the greeting, its answer, OK. The answer's second and third bytes hold the negotiated
/// capabilities.
const GREETING: &[u8] = b"\x45\0\0\0\x0a8.0.36\0\x07\0\0\0saltsalt\0\xff\xff\x21\x02\0\xff\xff\x15\0\0\0\0\0\0\0\0\0\0saltsaltsalt\0mysql_native_pas\0";
const OK: &[u8] = b"\x07\0\0\x02\0\0\0\x02\0\0\0";

pub(crate) fn run(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
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
    play(1, GREETING, usize::MAX, 0, &mut out);
    let login = [&[0x22, 0, 0, 1, 0x85, 0xa6, 0xff, first & 1][..], &[0; 28], b"a\0"].concat();
    play(0, &login, usize::MAX, 0, &mut out);
    play(1, OK, usize::MAX, 0, &mut out);
    // Each operation: flags, length, captured length, then its bytes: a numbered packet, or raw bytes.
    while let [flags, len, captured, tail @ ..] = rest {
        let (bytes, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        let whole = match bytes.split_first() {
            Some((number, payload)) if flags & 2 == 0 => {
                [&[payload.len() as u8, 0, 0, *number][..], payload].concat().repeat(usize::from(flags >> 5) + 1)
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
    assert!(begun > 0, "the connection is recognised");
    assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun > done);
}
