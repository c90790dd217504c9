//! Sessions as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, rx, summary, tx};
use crate::{Chunk, Closed, ConnectionParser, ExchangeEvent, Stamp};

const ASKED: &str = "GET /chat/5?token=secret HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const GIVEN: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";

/// A frame; clients mask theirs.
fn frame(opcode: u8, masked: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | opcode];
    let mask = if masked { 0x80 } else { 0 };
    match payload.len() {
        short @ 0..126 => bytes.push(mask | short as u8),
        long @ 126..65536 => {
            bytes.push(mask + 126);
            bytes.extend_from_slice(&(long as u16).to_be_bytes());
        }
        long => {
            bytes.push(mask + 127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    let key: &[u8] = if masked { &[0x11, 0x22, 0x33, 0x44] } else { &[] };
    bytes.extend_from_slice(key);
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ key.get(at % 4).copied().unwrap_or_default()));
    bytes
}

fn op(dir: Direction, bytes: Vec<u8>) -> Op {
    Op { dir, bytes, captured: usize::MAX }
}

fn asks(opcode: u8, payload: &[u8]) -> Op {
    op(Direction::Rx, frame(opcode, true, payload))
}

fn says(opcode: u8, payload: &[u8]) -> Op {
    op(Direction::Tx, frame(opcode, false, payload))
}

fn closing(code: u16) -> Vec<u8> {
    [&code.to_be_bytes()[..], b"secret"].concat()
}

/// Plays a session after its upgrade and ends the connection.
fn session(ops: &[Op]) -> Vec<ExchangeEvent> {
    let mut conversation = ConnectionParser::new(false);
    let all = [&[rx(ASKED), tx(GIVEN)], ops].concat();
    let mut events = play(&mut conversation, &all);
    let at = Stamp { nanos: 99, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    assert!(!format!("{events:?}").contains("secret"), "{events:?}");
    events
}

const UPGRADE: &str = "GET /chat/5 @1 -> 101 @2 upgraded 78/56/0 @2";

#[test]
fn sessions_end_with_their_code() {
    for (code, word) in [(1000, "ok"), (1001, "ok"), (1011, "1011"), (4123, "4xxx"), (999, "_OTHER")] {
        let events = session(&[
            asks(1, b"hello"),
            says(2, &vec![7; 300]),
            says(9, b"ping"),
            asks(10, b"ping"),
            says(8, &closing(code)),
            asks(8, &closing(1000)),
        ]);
        let lines = summary(&events);
        assert_eq!(lines, [UPGRADE, &format!("GET /chat/5 @2 -> {word} @8 complete 35/320/320 @8")], "{code}");
    }
    assert!(summary(&session(&[asks(8, b"")]))[1].contains("-> ok @3 complete 6/0/0"));
    // No close frame.
    assert_eq!(summary(&session(&[asks(1, b"hello")]))[1], "GET /chat/5 @2 aborted 11/0/0 @3");
    assert_eq!(summary(&session(&[]))[1], "GET /chat/5 @2 aborted 0/0/0 @2");
}

#[test]
fn refused_upgrades_are_no_sessions() {
    let mut conversation = ConnectionParser::new(false);
    let refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let events = play(&mut conversation, &[rx(ASKED), tx(refused), rx("GET /a HTTP/1.1\r\n\r\n"), tx(refused)]);
    assert_eq!(conversation.protocol(), Some("http"));
    assert_eq!(summary(&events).len(), 2, "{events:?}");
}

#[test]
fn frames_longer_than_what_is_captured() {
    let long = asks(2, &vec![5; 70_000]);
    let events = session(&[cap(long.clone(), 1024), cap(long, 3), asks(8, &closing(1008))]);
    // The second one's length was not captured: frames are found again where an operation consists of whole ones.
    let lines = summary(&events);
    assert_eq!(lines.last().unwrap(), "GET /chat/5 @2 -> 1008 @5 complete 140042/0/0 @5", "{lines:?}");
    assert!(events.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })));
}

#[test]
fn lost_operations_are_reported_and_survived() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(ASKED), tx(GIVEN), asks(1, b"hello")]);
    let bytes = frame(8, true, &closing(1000));
    let at = Stamp { nanos: 9, pid: 1, tid: 1, reads: 0 };
    let pos = 78 + 11 + 500;
    let chunk = Chunk {
        dir: Direction::Rx,
        pos,
        len: bytes.len() as u64,
        head: &bytes,
        tail: &[],
        fragments: &[],
        at,
        arrived: 0,
    };
    conversation.bytes(&chunk, &Settings::default(), &mut events);
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    assert_eq!(summary(&events), [UPGRADE, "lost Rx 500", "GET /chat/5 @2 -> ok @9 complete 525/0/0 @9"]);
}

#[test]
fn idle_sessions_are_reported_as_they_stand() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(ASKED), tx(GIVEN), asks(1, b"hello")]);
    conversation.expire(1 << 40, 1, &mut events);
    assert_eq!(summary(&events)[1], "GET /chat/5 @2 unfinished 11/0/0 @3");
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    assert_eq!(summary(&events).len(), 2);
}

#[test]
fn streams_are_reported_while_they_last() {
    let mut conversation = ConnectionParser::new(false);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let get = "GET /events HTTP/1.1\r\n\r\n";
    let mut events = play(&mut conversation, &[rx(get), tx(head), tx("8\r\ndata: a\n\r\n")]);
    assert_eq!(conversation.replying_since(), Some(2));
    conversation.report_so_far(1000, &mut events);
    assert_eq!(summary(&events), ["GET /events @1 -> 200 @2 unfinished 24/93/13 @1000"]);
    // The rest of the reply belongs to no request, and the next request is recognised.
    assert_eq!(conversation.replying_since(), None);
    conversation.report_so_far(2000, &mut events);
    let mut pos = [24, 93];
    for (dir, bytes) in [
        (Direction::Tx, "8\r\ndata: b\n\r\n0\r\n\r\n"),
        (Direction::Rx, get),
        (Direction::Tx, "HTTP/1.1 204 No Content\r\n\r\n"),
    ] {
        let which = usize::from(dir == Direction::Tx);
        let at = Stamp { nanos: 3000, pid: 1, tid: 1, reads: 0 };
        let head = bytes.as_bytes();
        let chunk =
            Chunk { dir, pos: pos[which], len: head.len() as u64, head, tail: &[], fragments: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &Settings::default(), &mut events);
        pos[which] += head.len() as u64;
    }
    assert_eq!(summary(&events)[1..], ["GET /events @3000 -> 204 @3000 complete 24/27/0 @3000"]);
}

#[test]
fn every_cut_gives_the_same() {
    let ops = [
        op(
            Direction::Rx,
            [frame(1, true, b"hello"), frame(2, true, &[9; 200]), frame(8, true, &closing(4000))].concat(),
        ),
        op(
            Direction::Tx,
            [frame(2, false, &[8; 130]), frame(10, false, b""), frame(8, false, &closing(1000))].concat(),
        ),
    ];
    // Times depend on the operations.
    let lines = |events: &[ExchangeEvent]| -> Vec<String> {
        summary(events)
            .iter()
            .map(|line| line.split('@').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect())
            .collect()
    };
    let expected = lines(&session(&ops));
    assert!(expected[1].contains("4xxx"), "{expected:?}");
    assert_divided(&ops, |ops| lines(&session(ops)), &expected);
}

proptest! {
    #[test]
    fn any_bytes(fragments in proptest::collection::vec(
        (any::<bool>(), prop_oneof![
            proptest::collection::vec(any::<u8>(), 1..60),
            (0u8..16, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200))
                .prop_map(|(opcode, masked, payload)| frame(opcode, masked, &payload)),
        ], 0usize..80), 0..30)
    ) {
        let ops: Vec<Op> = fragments
            .into_iter()
            .map(|(receive, bytes, captured)| {
                Op { dir: if receive { Direction::Rx } else { Direction::Tx }, bytes, captured }
            })
            .collect();
        let events = session(&ops);
        let done = events.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count();
        prop_assert_eq!(done, 2);
    }
}
