//! Round trips: which are reported, their durations, and what the parser wants the kernel to report for them.

use super::super::connection_parser::tests::{Op, play};
use super::super::{Closed, Settings};
use super::*;

const HELLO: &[u8] = b"SSH-2.0-x\r\n";

fn op(dir: Direction, bytes: &[u8]) -> Op {
    Op { dir, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn rx(bytes: &[u8]) -> Op {
    op(Direction::Rx, bytes)
}

fn tx(bytes: &[u8]) -> Op {
    op(Direction::Tx, bytes)
}

fn round_trips(side: Option<Side>, timed: bool, ops: &[Op]) -> (Vec<(u64, u64, u64, u64)>, ConnectionParser) {
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(side, timed);
    let mut events = play(&mut conversation, ops);
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    let mut trips = Vec::new();
    let mut first_at = 0;
    for event in events {
        match event {
            ExchangeEvent::Begun { first, .. } => first_at = first.nanos,
            ExchangeEvent::Done { at, request_bytes, reply_bytes, .. } => {
                trips.push((first_at, at.nanos, request_bytes, reply_bytes));
            }
            _ => {}
        }
    }
    (trips, conversation)
}

#[test]
fn round_trips_are_reported_when_they_end_and_only_if_answered() {
    let ops = [
        rx(HELLO),
        tx(HELLO),
        rx(b"one"),
        rx(b"more"),
        tx(b"answer"),
        tx(b"goes on"),
        rx(b"two"),
        tx(b"x"),
        tx(b"unasked is part of it"),
        rx(b"never answered"),
    ];
    let (trips, _) = round_trips(Some(Side::Server), false, &ops);
    let sizes: Vec<(u64, u64)> = trips.iter().map(|(.., asked, answered)| (*asked, *answered)).collect();
    assert_eq!(sizes, [(11, 11), (7, 13), (3, 22)]);
    let times: Vec<u64> = trips.iter().map(|(first, last, ..)| last - first).collect();
    let step = times[0];
    assert_eq!(times, [step, 3 * step, 2 * step], "from the first byte asked to the last byte answered");
}

#[test]
fn the_end_that_connected_asks_and_an_unknown_end_is_ignored() {
    let ops = [tx(HELLO), rx(HELLO), tx(b"a"), rx(b"b")];
    let (trips, _) = round_trips(Some(Side::Client), false, &ops);
    assert_eq!(trips.len(), 2);
    let (trips, _) = round_trips(Some(Side::Server), false, &ops);
    assert_eq!(trips.len(), 1, "the server's greeting answers nothing");
    let (trips, conversation) = round_trips(None, false, &ops);
    assert_eq!((trips.len(), conversation.want().verdict), (0, Verdict::Ignore));
}

#[test]
fn what_is_not_known_is_timed_only_where_that_is_asked_for() {
    let ops: Vec<Op> = (0..8).flat_map(|_| [rx(b"\xfewhat is asked here"), tx(b"\xffever is answered")]).collect();
    let (trips, conversation) = round_trips(Some(Side::Server), false, &ops);
    assert_eq!((trips.len(), conversation.want().verdict), (0, Verdict::Ignore));
    let (trips, _) = round_trips(Some(Side::Server), true, &ops);
    assert!((6..=8).contains(&trips.len()), "{trips:?}");
    let (trips, _) = round_trips(None, true, &ops);
    assert!((6..=8).contains(&trips.len()), "{trips:?}");
}

#[test]
fn only_what_turns_the_direction_is_wanted_once_nothing_is_read() {
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(Some(Side::Server), false);
    let _ = play(&mut conversation, &[rx(HELLO)]);
    let want = conversation.want();
    assert_eq!((want.verdict, want.head_rx, want.head_tx), (Verdict::RoundTrips, HEAD, HEAD));
    let mut mail = ConnectionParser::new(false);
    let _ = play(&mut mail, &[tx(b"220 a ESMTP\r\n"), rx(b"EHLO b\r\n")]);
    let want = mail.want();
    assert_eq!((want.verdict, want.head_rx), (Verdict::RoundTrips, 0), "a command may lead to TLS");
}

/// The kernel's reduced reports for round trips give the same events as reports of every operation.
#[test]
fn ends_reported_with_the_next_round_trip_equal_single_operations() {
    let settings = Settings::default();
    let ops =
        [(Direction::Rx, 10), (Direction::Tx, 100), (Direction::Tx, 1000), (Direction::Tx, 7), (Direction::Rx, 9)];
    let run = |lean: bool| {
        let mut conversation = ConnectionParser::new(false);
        conversation.opened(Some(Side::Server), false);
        let mut events = play(&mut conversation, &[rx(HELLO), tx(HELLO)]);
        let mut pos = [11_u64, 11];
        let mut before = Direction::Tx;
        for (at, (dir, len)) in ops.iter().enumerate() {
            let nanos = 1_000_000 + at as u64;
            let which = usize::from(*dir == Direction::Tx);
            let stamp = Stamp { nanos, ..Stamp::default() };
            let chunk = Chunk {
                dir: *dir,
                pos: pos[which],
                len: *len,
                head: &[],
                tail: &[],
                fragments: &[],
                at: stamp,
                arrived: 0,
            };
            pos[which] += len;
            let turned = std::mem::replace(&mut before, *dir) != *dir;
            if lean && turned {
                let other = usize::from(*dir != Direction::Tx);
                let last = Stamp { nanos: nanos - 1, ..stamp };
                let len = pos[other];
                let rest = Chunk { dir: dir.flip(), pos: 0, len, at: last, ..chunk };
                conversation.bytes(&rest, &settings, &mut events);
            }
            if !lean || turned {
                conversation.bytes(&chunk, &settings, &mut events);
            }
        }
        let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 1_000_004, last_tx: 1_000_003 };
        conversation.closed(Closed::Both, Stamp::default(), Some(totals), &settings, &mut events);
        events
    };
    let full = run(false);
    assert_eq!(full.len(), 6, "two round trips: {full:?}");
    assert_eq!(run(true), full);
}

/// A handshake of TLS 1.2 shows the certificate, whether its messages share records or not; a resumed one shows none.
#[test]
fn a_certificate_is_read_where_it_is_in_the_clear() {
    use super::super::tls::certificate::tests::message;
    let record =
        |kind: u8, content: &[u8]| [&[kind, 3, 3][..], &(content.len() as u16).to_be_bytes(), content].concat();
    let hello = |kind: u8| [&[kind, 0, 0, 38, 3, 3][..], &[7; 32], &[0, 0xc0, 0x2b, 0]].concat();
    let certificate = message((2027, 9, 19));
    let apart = [record(22, &hello(2)), record(22, &certificate)].concat();
    let together = record(22, &[hello(2), certificate.clone()].concat());
    let resumed = [record(22, &hello(2)), record(20, &[1]), record(22, &[9; 40])].concat();
    let in_parts: Vec<Op> = apart.chunks(100).map(tx).collect();
    // What is captured of it is enough.
    let cut = Op { dir: Direction::Tx, bytes: apart.clone(), captured: 400 };
    let too_little = Op { dir: Direction::Tx, bytes: apart.clone(), captured: 120 };
    let at = Some(1_821_312_000);
    for (answer, expected) in [
        (vec![tx(&apart)], at),
        (vec![tx(&together)], at),
        (in_parts, at),
        (vec![cut], at),
        (vec![too_little], None),
        (vec![tx(&resumed)], None),
    ] {
        let mut conversation = ConnectionParser::new(false);
        conversation.opened(Some(Side::Server), false);
        let client = [hello(1), vec![0; 10]].concat();
        let ops = [vec![rx(&record(22, &client))], answer, vec![rx(&record(23, &[1; 40])), tx(&record(23, &[1; 40]))]];
        let mut events = play(&mut conversation, &ops.concat());
        conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
        let found: Vec<i64> = events
            .iter()
            .filter_map(
                |event| if let ExchangeEvent::Certificate { expires, .. } = event { Some(*expires) } else { None },
            )
            .collect();
        assert_eq!(found.first().copied(), expected);
        assert!(found.len() <= 1);
    }
}
