//! Operations are lost at random: pairs must be right, and each loss may cost at most one exchange.

use proptest::prelude::*;

use super::*;
use crate::{Closed, Totals};

/// Threads that use one end of a connection: one, or one per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    One,
    Two,
}

struct Played {
    /// Exchanges reported with a reply, as (asked, answered).
    pairs: Vec<(u16, u16)>,
    begun: usize,
    complete: usize,
}

/// Plays requests `/0`, `/1`, …, answered in order with status 400, 401, …; operation `i` is not reported if `lost[i]`.
fn play(side: Side, threads: Threads, lost: &[bool]) -> Played {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    let mut events = Vec::new();
    let mut pos = [0u64; 2];
    let mut reads = 0;
    for (i, lost) in lost.iter().enumerate() {
        let is_request = i % 2 == 0;
        let number = i / 2;
        let dir = if is_request == (side == Side::Server) { Direction::Rx } else { Direction::Tx };
        let bytes = if is_request {
            format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n")
        } else {
            format!("HTTP/1.1 {} x\r\nContent-Length: 2\r\n\r\nok", 400 + number)
        };
        reads += u32::from(dir == Direction::Rx);
        let tid = if threads == Threads::Two && dir == Direction::Rx { 2 } else { 1 };
        let at = Stamp {
            nanos: i as u64 + 1,
            pid: 1,
            tid,
            reads: if tid == 1 && threads == Threads::Two { 0 } else { reads },
        };
        let which = usize::from(dir == Direction::Tx);
        let chunk = Chunk {
            dir,
            pos: pos[which],
            len: bytes.len() as u64,
            head: bytes.as_bytes(),
            tail: &[],
            fragments: &[],
            at,
            arrived: 0,
        };
        pos[which] += bytes.len() as u64;
        if !lost {
            conversation.bytes(&chunk, &settings, &mut events);
        }
    }
    let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 1000, last_tx: 1000 };
    conversation.closed(Closed::Both, Stamp { nanos: 1000, ..Stamp::default() }, Some(totals), &settings, &mut events);
    let mut asked = std::collections::HashMap::new();
    let (mut pairs, mut complete) = (Vec::new(), 0);
    for event in &events {
        match event {
            ExchangeEvent::Begun { exchange, request, .. } => {
                asked.insert(*exchange, request.path.trim_start_matches('/').parse().unwrap());
            }
            ExchangeEvent::Replied { exchange, status, .. } => pairs.push((asked[exchange], *status)),
            ExchangeEvent::Done { outcome: Outcome::Complete, .. } => complete += 1,
            ExchangeEvent::Done { outcome, .. } => assert_eq!(*outcome, Outcome::Unfinished, "there was a reply"),
            _ => {}
        }
    }
    Played { pairs, begun: asked.len(), complete }
}

proptest! {
    #[test]
    fn losses_cost_and_never_lie(
        server in any::<bool>(),
        two in any::<bool>(),
        lost in proptest::collection::vec(proptest::bool::weighted(0.3), 2..60),
    ) {
        let (side, threads) = (if server { Side::Server } else { Side::Client }, if two { Threads::Two } else { Threads::One });
        let lost = if lost.len() % 2 == 0 { lost } else { lost[1..].to_vec() };
        let played = play(side, threads, &lost);
        for (asked, answered) in &played.pairs {
            prop_assert_eq!(asked + 400, *answered, "of {:?}", played.pairs);
        }
        let seen = lost.iter().step_by(2).filter(|lost| !**lost).count();
        prop_assert_eq!(played.begun, seen, "every request that was seen is reported");
        if threads == Threads::One {
            // One thread leaves no doubt: every exchange seen whole is paired.
            let whole = lost.chunks(2).filter(|pair| pair.iter().all(|lost| !lost)).count();
            prop_assert_eq!(played.complete, whole);
        }
    }
}

#[test]
fn without_losses_nothing_is_missing() {
    for (side, threads) in [(Side::Server, Threads::One), (Side::Client, Threads::One), (Side::Client, Threads::Two)] {
        let played = play(side, threads, &[false; 20]);
        assert_eq!((played.begun, played.complete, played.pairs.len()), (10, 10, 10), "{side:?} {threads:?}");
    }
}

proptest! {
    /// Whole exchanges that were counted elsewhere leave the others as they are.
    #[test]
    fn exchanges_that_were_counted_elsewhere_leave_no_trace(
        server in any::<bool>(),
        counted in proptest::collection::vec(any::<bool>(), 1..40),
    ) {
        let side = if server { Side::Server } else { Side::Client };
        let settings = Settings::default();
        let mut conversation = ConnectionParser::new(false);
        let (mut events, mut pos, mut pending) = (Vec::new(), [0_u64; 2], false);
        for (i, is_counted) in counted.iter().enumerate() {
            for is_request in [true, false] {
                let dir = if is_request == (side == Side::Server) { Direction::Rx } else { Direction::Tx };
                let bytes = if is_request {
                    format!("GET /{i} HTTP/1.1\r\nHost: h\r\n\r\n")
                } else {
                    format!("HTTP/1.1 {} x\r\nContent-Length: 2\r\n\r\nok", 400 + i)
                };
                let at = Stamp { nanos: i as u64 * 2 + u64::from(!is_request) + 1, pid: 1, tid: 1, reads: i as u32 };
                if !is_counted {
                    if std::mem::take(&mut pending) {
                        conversation.pass_over((pos[0], pos[1]), at, &mut events);
                    }
                    let at_byte = pos[usize::from(dir == Direction::Tx)];
                    let (head, tail, fragments) = (bytes.as_bytes(), &[][..], &[][..]);
                    let chunk =
                        Chunk { dir, pos: at_byte, len: bytes.len() as u64, head, tail, fragments, at, arrived: 0 };
                    conversation.bytes(&chunk, &settings, &mut events);
                }
                pos[usize::from(dir == Direction::Tx)] += bytes.len() as u64;
                pending |= is_counted;
            }
        }
        let complete =
            events.iter().filter(|event| matches!(event, ExchangeEvent::Done { outcome: Outcome::Complete, .. })).count();
        prop_assert_eq!(complete, counted.iter().filter(|is_counted| !**is_counted).count());
        let is_missing = events.iter().any(|event| {
            matches!(event, ExchangeEvent::Lost { .. } | ExchangeEvent::Unpaired { .. } | ExchangeEvent::Unnamed)
        });
        prop_assert!(!is_missing, "{:?}", events);
    }
}

/// PostgreSQL's server notifies an idle client of more than is captured; the client's next request, by the same thread,
/// is answered as ever.
#[test]
fn what_came_unasked_and_was_not_captured_ends_with_the_next_request() {
    let message = |kind: u8, fields: &[u8]| [&[kind][..], &(fields.len() as u32 + 4).to_be_bytes(), fields].concat();
    let query = message(b'Q', b"SELECT 1 FROM asked\0");
    let reply = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    let notified = message(b'A', &[&b"\0\0\0\x07channel\0"[..], &[b'p'; 900], b"\0"].concat());
    // The parser holds a few until it knows whether they answer something, but no more.
    for (count, tids) in [1, 5, 40].into_iter().flat_map(|count| [(count, [1, 1]), (count, [1, 2])]) {
        let mut ops = vec![(false, query.clone(), usize::MAX), (true, reply.clone(), usize::MAX)];
        for piece in notified.repeat(count).chunks(1500) {
            ops.push((true, piece.to_vec(), 200));
        }
        for _ in 0..3 {
            ops.extend([(false, query.clone(), usize::MAX), (true, reply.clone(), usize::MAX)]);
        }
        let mut conversation = ConnectionParser::new(false);
        let (mut events, mut pos, mut reads) = (Vec::new(), [0_u64; 2], 0);
        for (n, (receive, bytes, captured)) in ops.iter().enumerate() {
            let dir = if *receive { Direction::Rx } else { Direction::Tx };
            let which = usize::from(*receive);
            reads += u32::from(*receive);
            let at = Stamp { nanos: n as u64 + 1, pid: 1, tid: tids[which], reads };
            let head = &bytes[..bytes.len().min(*captured)];
            let tail = &bytes[bytes.len().saturating_sub(8).max(head.len())..];
            let chunk =
                Chunk { dir, pos: pos[which], len: bytes.len() as u64, head, tail, fragments: &[], at, arrived: 0 };
            pos[which] += bytes.len() as u64;
            conversation.bytes(&chunk, &Settings::default(), &mut events);
        }
        let complete = events
            .iter()
            .filter(|event| matches!(event, ExchangeEvent::Done { outcome: Outcome::Complete, .. }))
            .count();
        let failed =
            events.iter().filter(|event| matches!(event, ExchangeEvent::Replied { failure: Some(_), .. })).count();
        assert_eq!((complete, failed), (4, 0), "{count} by threads {tids:?}: {events:?}");
    }
}
