//! Connections as scripts of frames.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, play_with, summary};
use crate::{Chunk, Closed, ConnectionParser, ExchangeEvent, Stamp};

mod bodies;
mod grpc;

/// A frame.
fn frame(kind: u8, flags: u8, key: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(key.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A field by name and value, added to the table.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x40, name.len() as u8];
    bytes.extend(name.bytes());
    bytes.push(value.len() as u8);
    bytes.extend(value.bytes());
    bytes
}

/// `GET path` over http; the path is not added to the table.
fn get(path: &str) -> Vec<u8> {
    let mut bytes = vec![0x82, 0x86, 0x04, path.len() as u8];
    bytes.extend(path.bytes());
    bytes
}

/// A gRPC call.
fn call(path: &str) -> Vec<u8> {
    [&[0x83, 0x86][..], &field(":path", path), &field("content-type", "application/grpc+proto")].concat()
}

fn headers(flags: u8, key: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, key, block)
}

fn data(end: bool, key: u32, bytes: usize) -> Vec<u8> {
    frame(DATA, u8::from(end), key, &vec![b'd'; bytes])
}

fn preface() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

fn rx(frames: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: frames.concat(), captured: usize::MAX }
}

fn tx(frames: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(frames) }
}

const OK: &[u8] = &[0x88];

fn check(ops: &[Op], expected: &[&str]) {
    check_from(false, ops, expected);
}

fn check_from(midstream: bool, ops: &[Op], expected: &[&str]) {
    let mut conversation = ConnectionParser::new(midstream);
    let events = play(&mut conversation, ops);
    assert_eq!(summary(&events), expected);
}

#[test]
fn one_after_the_other() {
    check(
        &[
            rx(&[preface(), headers(END_STREAM, 1, &get("/a"))]),
            tx(&[frame(SETTINGS, 0, 0, &[]), headers(0, 1, OK), data(true, 1, 5)]),
            rx(&[headers(0, 3, &get("/b")), data(true, 3, 7)]),
            tx(&[headers(END_STREAM, 3, &[0x89])]),
        ],
        &["GET /a @1 -> 200 @2 complete 15/24/5 @2", "GET /b @3 -> 204 @4 complete 31/10/0 @4"],
    );
}

#[test]
fn replies_in_any_order_and_in_pieces() {
    check(
        &[
            rx(&[preface(), headers(END_STREAM, 1, &get("/a")), headers(END_STREAM, 3, &get("/b"))]),
            tx(&[headers(0, 3, OK), data(false, 3, 5), headers(0, 1, OK)]),
            tx(&[data(true, 3, 5)]),
            tx(&[data(false, 1, 4), data(true, 1, 0)]),
        ],
        &["GET /a @1 -> 200 @2 complete 15/32/4 @4", "GET /b @1 -> 200 @2 complete 15/38/10 @3"],
    );
}

#[test]
fn padding_priority_and_continued_heads() {
    let block = get("/abc");
    let padded = [&[3][..], &block, &[0; 3]].concat();
    let prioritised = [&[0, 0, 0, 0, 16][..], &block].concat();
    let both = [&[2, 0, 0, 0, 0, 16][..], &block, &[0; 2]].concat();
    check(
        &[
            rx(&[preface(), headers(END_STREAM | PADDED, 1, &padded)]),
            rx(&[headers(END_STREAM | PRIORITISED, 3, &prioritised)]),
            rx(&[headers(END_STREAM | PADDED | PRIORITISED, 5, &both)]),
            rx(&[
                frame(HEADERS, END_STREAM, 7, &block[..3]),
                frame(CONTINUATION, 0, 7, &block[3..4]),
                frame(CONTINUATION, END_HEADERS, 7, &block[4..]),
            ]),
            tx(&[headers(END_STREAM, 1, OK), headers(END_STREAM, 3, OK), headers(END_STREAM, 5, OK)]),
            tx(&[headers(0, 7, OK), frame(DATA, PADDED | END_STREAM, 7, &[[2, b'x'].as_slice(), &[0; 2]].concat())]),
        ],
        &[
            "GET /abc @1 -> 200 @5 complete 21/10/0 @5",
            "GET /abc @2 -> 200 @5 complete 22/10/0 @5",
            "GET /abc @3 -> 200 @5 complete 25/10/0 @5",
            "GET /abc @4 -> 200 @6 complete 35/23/1 @6",
        ],
    );
}

#[test]
fn interim_replies_trailers_and_pushes() {
    check(
        &[
            rx(&[preface(), headers(0, 1, &get("/a"))]),
            tx(&[headers(0, 1, &field(":status", "100"))]),
            rx(&[data(false, 1, 3), headers(END_STREAM, 1, &field("x-sum", "1"))]),
            // A push, whose head the table needs: the reply refers to the entry it adds.
            tx(&[
                frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &get("/pushed")].concat()),
                headers(0, 2, &field(":status", "201")),
                data(true, 2, 9),
                headers(0, 1, &[0xbe]),
            ]),
            tx(&[data(false, 1, 2), headers(END_STREAM, 1, &field("x-sum", "2"))]),
        ],
        &["GET /a @1 -> 201 @4 complete 45/61/2 @5"],
    );
}

#[test]
fn resets_and_refusals_break_off() {
    let goaway = |last: u32| frame(GOAWAY, 0, 0, &[last.to_be_bytes(), 0u32.to_be_bytes()].concat());
    check(
        &[
            rx(&[preface(), headers(END_STREAM, 1, &get("/a")), headers(END_STREAM, 3, &get("/b"))]),
            rx(&[headers(END_STREAM, 5, &get("/c")), headers(END_STREAM, 7, &get("/d"))]),
            rx(&[frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])]),
            tx(&[headers(0, 3, OK), frame(RST_STREAM, 0, 3, &[0, 0, 0, 2])]),
            tx(&[goaway(5), headers(END_STREAM, 5, OK)]),
        ],
        &[
            "GET /a @1 aborted 15/0/0 @3",
            "GET /b @1 -> 200 @4 aborted 15/10/0 @4",
            "GET /c @2 -> 200 @5 complete 15/10/0 @5",
            "GET /d @2 aborted 15/0/0 @5",
        ],
    );
}

#[test]
fn calls_and_what_came_of_them() {
    let path = "/shop.Cart/Add";
    let trailers = |code: &str| headers(END_STREAM, 1, &field("grpc-status", code));
    let begin = || rx(&[preface(), headers(0, 1, &call(path)), data(true, 1, 10)]);
    for (reply, expected) in [
        (vec![headers(0, 1, OK), data(false, 1, 7), trailers("0")], "-> 65535 @2 = 0 ok complete 89/50/7 @2"),
        (vec![headers(0, 1, OK), trailers("5")], "-> 65535 @2 = 5 NOT_FOUND complete 89/34/0 @2"),
        (
            vec![headers(END_STREAM, 1, &[OK, &field("grpc-status", "12")].concat())],
            "-> UNIMPLEMENTED @2 complete 89/26/0 @2",
        ),
        (
            vec![headers(0, 1, OK), headers(END_STREAM, 1, &field("x", "1"))],
            "-> 65535 @2 = 2 UNKNOWN complete 89/24/0 @2",
        ),
        (vec![headers(0, 1, &field(":status", "503")), data(true, 1, 3)], "-> UNAVAILABLE @2 complete 89/34/3 @2"),
        (vec![frame(RST_STREAM, 0, 1, &[0, 0, 0, 7])], "= 14 UNAVAILABLE aborted 89/0/0 @2"),
    ] {
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &[begin(), tx(&reply)]);
        // Call statuses have names; a script shows the number if it is no failure.
        let lines: Vec<String> = summary(&events)
            .iter()
            .map(|line| line.replace("-> 12 @", "-> UNIMPLEMENTED @").replace("-> 14 @", "-> UNAVAILABLE @"))
            .collect();
        assert_eq!(lines, [format!("POST {path} @1 {expected}")]);
        assert!(events.iter().any(|event| matches!(event, ExchangeEvent::Begun { protocol: ProtocolId::Grpc, .. })));
    }
}

#[test]
fn a_connection_joined_in_its_middle() {
    // The path entered the table earlier: unnamed, but counted; literal fields are known.
    let known = [&[0x82, 0x86][..], &field(":path", "/known")].concat();
    check_from(
        true,
        &[
            rx(&[headers(END_STREAM, 101, &get("/a"))]),
            tx(&[headers(END_STREAM, 101, OK)]),
            rx(&[headers(END_STREAM, 103, &[0x82, 0x86, 0xc0])]),
            tx(&[headers(END_STREAM, 103, &[0xc1])]),
            rx(&[headers(END_STREAM, 105, &known)]),
            rx(&[headers(END_STREAM, 107, &[0x82, 0x86, 0xbe])]),
            tx(&[headers(END_STREAM, 105, OK), headers(END_STREAM, 107, OK)]),
        ],
        &[
            "GET /a @1 -> 200 @2 complete 15/10/0 @2",
            "unnamed",
            "_UNNAMED  @3 -> ok @4 complete 12/10/0 @4",
            "GET /known @5 -> 200 @7 complete 25/10/0 @7",
            "GET /known @6 -> 200 @7 complete 12/10/0 @7",
        ],
    );
}

#[test]
fn a_lost_head_makes_what_it_may_have_named_unknown() {
    let named = [&[0x82, 0x86][..], &field(":path", "/a")].concat();
    let ops = [
        rx(&[preface(), headers(END_STREAM, 1, &named)]),
        tx(&[headers(END_STREAM, 1, OK)]),
        // Its beginning was not captured.
        cap(rx(&[headers(END_STREAM, 3, &named)]), 0),
        tx(&[headers(END_STREAM, 3, OK)]),
        rx(&[headers(END_STREAM, 5, &[0x82, 0x86, 0xbe])]),
        tx(&[headers(END_STREAM, 5, OK)]),
    ];
    check(
        &ops,
        &[
            "GET /a @1 -> 200 @2 complete 21/10/0 @2",
            "lost Rx 21",
            "unpaired 200",
            "unnamed",
            "_UNNAMED  @5 -> 200 @6 complete 12/10/0 @6",
        ],
    );
}

#[test]
fn frames_are_found_again_after_bytes_that_were_not_captured() {
    check(
        &[
            rx(&[preface(), headers(END_STREAM, 1, &get("/a")), headers(END_STREAM, 3, &get("/b"))]),
            // The second frame's header lies beyond the capture limit.
            cap(tx(&[headers(0, 1, OK), data(false, 1, 8000), data(false, 1, 3000)]), 1024),
            tx(&[data(true, 1, 20), headers(0, 3, OK), data(true, 3, 2)]),
        ],
        &["GET /a @1 -> 200 @2 complete 15/8048/? @3", "GET /b @1 -> 200 @3 complete 15/21/? @3", "lost Tx 3009"],
    );
}

#[test]
fn a_body_of_known_length_is_followed_through_frames_that_were_not_captured() {
    let begin = || rx(&[preface(), headers(END_STREAM, 1, &get("/a"))]);
    let head = |length: usize| {
        headers(0, 1, &[field(":status", "201"), field("content-length", &length.to_string())].concat())
    };
    let body = |length: usize| -> Vec<Vec<u8>> {
        let whole = vec![16_384; length / 16_384];
        let sizes: Vec<usize> = whole.into_iter().chain([length % 16_384]).collect();
        let last = sizes.len() - 1;
        sizes.iter().enumerate().map(|(at, size)| data(at == last, 1, *size)).collect()
    };
    let next = || [rx(&[headers(END_STREAM, 3, &get("/b"))]), tx(&[headers(END_STREAM, 3, &[0xbf])])];
    for length in [20_000, 100_000, 1_000_000] {
        let bytes = [vec![head(length)], body(length)].concat().concat();
        let frames = length / 16_384 + 1;
        let line = format!(
            "GET /a @1 -> 201 @2 complete 15/{}/{length} @#",
            9 * (frames + 1) + head(length).len() - 9 + length
        );
        // However it is split into operations: none of the later frames' beginnings is captured, or some are.
        for size in [bytes.len(), 30_000, 16_393, 9_999] {
            let fragments = bytes.chunks(size).map(|piece| cap(tx(&[piece.to_vec()]), 1024));
            let ops: Vec<Op> = [begin()].into_iter().chain(fragments).chain(next()).collect();
            let end = ops.len() - 2;
            let mut conversation = ConnectionParser::new(false);
            let events = play(&mut conversation, &ops);
            // The table is unchanged: only bytes of the body were missed.
            let second = format!("GET /b @{} -> 201 @{} complete 15/10/0 @{}", end + 1, end + 2, end + 2);
            let lines = summary(&events);
            assert_eq!(lines[0], line.replace('#', &end.to_string()), "{size}");
            assert_eq!(lines[1], second, "{size} {lines:?}");
            assert_eq!(lines.len(), 2, "{size} {lines:?}");
        }
    }
}

/// A gRPC message of this many bytes, in frames of at most 16 KiB.
fn message(end: bool, key: u32, bytes: usize) -> Vec<u8> {
    let prefix = [&[0][..], &(bytes as u32).to_be_bytes()].concat();
    let all = [prefix, vec![b'm'; bytes]].concat();
    let fragments: Vec<&[u8]> = all.chunks(16_384).collect();
    let last = fragments.len() - 1;
    let each = fragments.iter().enumerate().map(|(at, piece)| frame(DATA, u8::from(end && at == last), key, piece));
    each.collect::<Vec<_>>().concat()
}

#[test]
fn long_messages_are_followed_to_what_stands_behind_them() {
    let trailers = |key| headers(END_STREAM, key, &[0xbe]);
    let ping = frame(6, 0, 0, &[7; 8]);
    for (sizes, size) in [(vec![70_000], 1 << 20), (vec![70_000], 30_000), (vec![100_000], 65_536)] {
        let ask = |key: u32, path: &str| {
            let head = headers(0, key, &call(path));
            let bodies = sizes.iter().enumerate().map(|(at, bytes)| message(at + 1 == sizes.len(), key, *bytes));
            // The client's PING after a body.
            [head].into_iter().chain(bodies).chain([ping.clone()]).collect::<Vec<_>>().concat()
        };
        let answer = |key: u32, first: bool| {
            let bodies = sizes.iter().map(|bytes| message(false, key, *bytes));
            let end = if first { headers(END_STREAM, key, &field("grpc-status", "0")) } else { trailers(key) };
            [headers(0, key, OK)].into_iter().chain(bodies).chain([end]).collect::<Vec<_>>().concat()
        };
        let cut = |op: Op| {
            op.bytes.chunks(size).map(|piece| cap(Op { bytes: piece.to_vec(), ..op.clone() }, 1024)).collect::<Vec<_>>()
        };
        let mut ops = vec![rx(&[preface()])];
        for (key, path) in [(1, "/a.B/One"), (3, "/a.B/Two"), (5, "/a.B/Three")] {
            ops.extend(cut(rx(&[ask(key, path)])));
            ops.extend(cut(tx(&[answer(key, key == 1)])));
        }
        let lines = summary(&play_with(&mut ConnectionParser::new(false), &ops, tracer_common::limits::TAIL_MAX));
        assert_eq!(lines.len(), 3, "{sizes:?} {size}: {lines:?}");
        for (line, path) in lines.iter().zip(["/a.B/One", "/a.B/Two", "/a.B/Three"]) {
            assert!(line.starts_with(&format!("POST {path} @")) && line.contains("= 0 ok complete"), "{lines:?}");
        }
    }
}

#[test]
fn a_reckoning_that_is_wrong_is_given_up() {
    // Other frames than inferred, including another stream's head.
    let length = field("content-length", "40000");
    let ops = [
        rx(&[preface(), headers(END_STREAM, 1, &get("/a"))]),
        cap(tx(&[headers(0, 1, &[OK, &length].concat()), data(false, 1, 10_000), data(false, 1, 9_000)]), 1024),
        rx(&[headers(END_STREAM, 3, &get("/b"))]),
        tx(&[headers(END_STREAM, 3, &field(":status", "201"))]),
        tx(&[data(false, 1, 21_000)]),
        tx(&[data(true, 1, 0)]),
    ];
    let mut conversation = ConnectionParser::new(false);
    let lines = summary(&play(&mut conversation, &ops));
    assert!(lines.iter().any(|line| line.starts_with("lost Tx")), "{lines:?}");
    assert!(lines[0].starts_with("GET /a @1 -> 200 @2") && lines[0].contains("/? @"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("GET /b @3 -> 201 @4 complete")), "{lines:?}");
}

#[test]
fn operations_that_overtake_each_other_are_put_in_order() {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    let mut out = Vec::new();
    let begin = [preface(), headers(END_STREAM, 1, &get("/a")), headers(END_STREAM, 3, &get("/b"))].concat();
    let first = [headers(0, 1, &field(":status", "201")), data(true, 1, 5)].concat();
    let second = headers(END_STREAM, 3, &[0xbe]);
    let after = first.len() as u64;
    for (nanos, dir, pos, bytes) in
        [(1, Direction::Rx, 0, &begin), (3, Direction::Tx, after, &second), (2, Direction::Tx, 0, &first)]
    {
        let at = Stamp { nanos, pid: 1, tid: nanos as u32, reads: 0 };
        let chunk = Chunk { dir, pos, len: bytes.len() as u64, head: bytes, tail: &[], fragments: &[], at, arrived: 0 };
        conversation.bytes(&chunk, &settings, &mut out);
    }
    assert_eq!(summary(&out), ["GET /a @1 -> 201 @2 complete 15/36/5 @2", "GET /b @1 -> 201 @3 complete 15/10/0 @3"]);
}

#[test]
fn a_reply_that_was_read_before_its_request_was_reported_waits_for_it() {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    let mut out = Vec::new();
    let begin = [preface(), headers(END_STREAM, 1, &get("/a"))].concat();
    let next = headers(END_STREAM, 3, &get("/b"));
    let replies = [headers(END_STREAM, 1, OK), headers(END_STREAM, 3, OK)].map(|bytes| (Direction::Rx, bytes));
    let [first, second] = replies;
    let mut pos = [0, 0];
    for (nanos, (dir, bytes)) in [(Direction::Tx, begin), first, second, (Direction::Tx, next)].into_iter().enumerate()
    {
        let at = Stamp { nanos: nanos as u64 + 1, pid: 1, tid: 1 + u32::from(dir == Direction::Rx), reads: 0 };
        let pos = &mut pos[usize::from(dir == Direction::Rx)];
        let chunk =
            Chunk { dir, pos: *pos, len: bytes.len() as u64, head: &bytes, tail: &[], fragments: &[], at, arrived: 0 };
        *pos += bytes.len() as u64;
        conversation.bytes(&chunk, &settings, &mut out);
    }
    assert_eq!(summary(&out), ["GET /a @1 -> 200 @2 complete 15/10/0 @2", "GET /b @4 -> 200 @3 complete 15/10/0 @3"]);
}

#[test]
fn an_upgrade_goes_on_as_stream_1() {
    let text = |dir, text: &str| Op { dir, bytes: text.as_bytes().to_vec(), captured: usize::MAX };
    let offer = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    let taken = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let frames = [frame(SETTINGS, 0, 0, &[]), headers(0, 1, OK), data(true, 1, 5)].concat();
    let later = [rx(&[preface(), headers(END_STREAM, 3, &get("/b"))]), tx(&[headers(END_STREAM, 3, OK)])];
    let expected = |reply: u32, after: u32| {
        [
            format!("GET /a @1 -> 200 @{reply} complete 105/24/5 @{reply}"),
            format!("GET /b @{after} -> 200 @{} complete 15/10/0 @{}", after + 1, after + 1),
        ]
    };
    // The server's frames together with its answer, and after it.
    let mut together = taken.as_bytes().to_vec();
    together.extend(&frames);
    let at_once = [text(Direction::Rx, offer), Op { bytes: together, ..tx(&[]) }];
    let after = [text(Direction::Rx, offer), text(Direction::Tx, taken), tx(&[frames])];
    for (first, reply) in [(&at_once[..], 2), (&after[..], 3)] {
        let ops = [first, &later[..]].concat();
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &ops);
        assert_eq!(summary(&events), expected(reply, reply + 1));
    }
    // An offer that is declined.
    check(
        &[text(Direction::Rx, offer), text(Direction::Tx, "HTTP/1.1 204 No Content\r\n\r\n")],
        &["GET /a @1 -> 204 @2 complete 105/27/0 @2"],
    );
}

#[test]
fn a_proxy_may_introduce_its_client() {
    let line = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n".to_vec();
    let get1 = b"GET /a HTTP/1.1\r\n\r\n".to_vec();
    let ok1 = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
    let begin = [preface(), headers(END_STREAM, 1, &get("/a"))].concat();
    for (request, reply, expected) in [
        (get1, ok1, "-> 204 @R complete 19/27/0 @R"),
        (begin, headers(END_STREAM, 1, &[0x89]), "-> 204 @R complete 15/10/0 @R"),
    ] {
        let whole = [line.clone(), request].concat();
        for cut in 0..whole.len() {
            let fragments =
                [rx(&[whole[..cut].to_vec()]), rx(&[whole[cut..].to_vec()]), tx(std::slice::from_ref(&reply))];
            let mut conversation = ConnectionParser::new(false);
            let events = play(&mut conversation, &fragments);
            let lines = summary(&events);
            assert_eq!(lines.len(), 1, "{cut} {lines:?}");
            assert!(lines[0].starts_with("GET /a @"), "{cut} {lines:?}");
            assert!(lines[0].ends_with(&expected.replace('R', "3")), "{cut} {lines:?}");
        }
    }
}

#[test]
fn what_ends_with_the_connection_and_what_is_open_too_long() {
    let begin = || rx(&[preface(), headers(END_STREAM, 1, &get("/a")), headers(0, 3, &get("/b"))]);
    let mut conversation = ConnectionParser::new(false);
    let mut out = play(&mut conversation, &[begin(), tx(&[headers(END_STREAM, 1, OK), headers(0, 3, OK)])]);
    let mut again = ConnectionParser::new(false);
    let mut stale = play(&mut again, &[begin(), tx(&[headers(0, 3, OK), headers(0, 1, OK)])]);
    conversation.closed(Closed::Both, Stamp { nanos: 9, ..Stamp::default() }, None, &Settings::default(), &mut out);
    assert_eq!(summary(&out), ["GET /a @1 -> 200 @2 complete 15/10/0 @2", "GET /b @1 -> 200 @2 aborted 15/10/0 @9"]);
    again.overdue(100, 1000, &Settings::default(), &mut stale);
    assert!(!stale.iter().any(|event| matches!(event, ExchangeEvent::Done { .. })));
    again.overdue(2000, 1000, &Settings::default(), &mut stale);
    let done = ["GET /a @1 -> 200 @2 unfinished 15/10/0 @2", "GET /b @1 -> 200 @2 unfinished 15/10/0 @2"];
    assert_eq!(summary(&stale), done);
    // Later frames for them belong to no exchange.
    let more = data(true, 3, 5);
    let chunk = Chunk {
        dir: Direction::Tx,
        pos: 20,
        len: more.len() as u64,
        head: &more,
        tail: &[],
        fragments: &[],
        at: Stamp { nanos: 3000, ..Stamp::default() },
        arrived: 0,
    };
    again.bytes(&chunk, &Settings::default(), &mut stale);
    assert_eq!(summary(&stale), done);
}

#[test]
fn too_many_at_once_are_given_up_visibly() {
    let mut ops = vec![rx(&[preface()])];
    let most = crate::multiplex::LIMIT as u32;
    ops.extend((0..most + 5).map(|n| rx(&[headers(END_STREAM, 1 + 2 * n, &get("/a"))])));
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &ops);
    assert_eq!(events.iter().filter(|event| matches!(event, ExchangeEvent::Crowded)).count(), 5);
    assert_eq!(events.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count(), 5);
}

#[test]
fn first_bytes() {
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 128]);
    let request = headers(END_STREAM, 77, &get("/a"));
    let update = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
    for (bytes, expected) in [
        (PREFACE.to_vec(), Detected::Request),
        (preface(), Detected::Request),
        (PREFACE[..10].to_vec(), Detected::NeedMore),
        (settings.clone(), Detected::Reply),
        ([update.clone(), request.clone()].concat(), Detected::Request),
        (request, Detected::Request),
        (headers(0, 77, OK), Detected::Reply),
        (update, Detected::No),
        (data(false, 77, 50), Detected::No),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), Detected::No),
        (b"*1\r\n$4\r\nPING\r\n".to_vec(), Detected::No),
        // MySQL's first packet and an authentication of PostgreSQL.
        (b"\x4a\x00\x00\x00\x0a5.5.5-10.11.6-MariaDB-0+deb12u1\x00".to_vec(), Detected::No),
        (b"R\x00\x00\x00\x08\x00\x00\x00\x00".to_vec(), Detected::No),
        (vec![0; 64], Detected::No),
        (Vec::new(), Detected::NeedMore),
    ] {
        assert_eq!(Http2.detect(&bytes), expected, "{bytes:02x?}");
    }
}

/// A connection of several streams each way, without times.
fn sample() -> (Vec<u8>, Vec<u8>) {
    let requests = [
        preface(),
        headers(END_STREAM, 1, &[&[0x82, 0x86][..], &field(":path", "/a")].concat()),
        headers(0, 3, &call("/s.S/M")),
        data(false, 3, 40),
        frame(PING, 0, 0, &[7; 8]),
        frame(HEADERS, END_STREAM, 5, &[0x82, 0x86]),
        frame(CONTINUATION, END_HEADERS, 5, &field(":path", "/b")),
        data(true, 3, 3),
        headers(END_STREAM, 7, &[0x82, 0x86, 0xbe]),
    ];
    let replies = [
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        headers(0, 3, OK),
        data(false, 3, 30),
        headers(0, 1, &field(":status", "201")),
        data(true, 1, 11),
        headers(END_STREAM, 3, &field("grpc-status", "9")),
        headers(END_STREAM, 5, &[0xbf]),
        frame(RST_STREAM, 0, 7, &[0, 0, 0, 1]),
    ];
    (requests.concat(), replies.concat())
}

/// Events without times.
fn timeless(events: &[ExchangeEvent]) -> Vec<String> {
    let at = |text: &str| {
        let mut out = String::new();
        let mut skip = false;
        for letter in text.chars() {
            skip = letter == '@' || skip && letter.is_ascii_digit();
            if !skip {
                out.push(letter);
            }
        }
        out
    };
    summary(events).iter().map(|line| at(line)).collect()
}

fn fragments(bytes: &[u8], cuts: &[usize], dir: Direction) -> Vec<Op> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % bytes.len()).chain([bytes.len()]).collect();
    cuts.sort_unstable();
    let mut from = 0;
    let piece = |to| {
        let op = Op { dir, bytes: bytes[from..to].to_vec(), captured: usize::MAX };
        from = to;
        op
    };
    cuts.into_iter().map(piece).filter(|op| !op.bytes.is_empty()).collect()
}

proptest! {
    #[test]
    fn every_split_gives_the_same(a in prop::collection::vec(any::<usize>(), 0..12), b in prop::collection::vec(any::<usize>(), 0..12)) {
        let (requests, replies) = sample();
        let whole = [rx(std::slice::from_ref(&requests)), tx(std::slice::from_ref(&replies))];
        let expected = timeless(&play(&mut ConnectionParser::new(false), &whole));
        prop_assert_eq!(expected.len(), 4);
        let ops = [fragments(&requests, &a, Direction::Rx), fragments(&replies, &b, Direction::Tx)].concat();
        prop_assert_eq!(timeless(&play(&mut ConnectionParser::new(false), &ops)), expected);
    }

    /// With arbitrary gaps: everything reported about an exchange is true or missing.
    #[test]
    fn gaps_lose_and_do_not_lie(
        a in prop::collection::vec(any::<usize>(), 1..8),
        b in prop::collection::vec(any::<usize>(), 1..8),
        captured in prop::collection::vec(prop_oneof![Just(usize::MAX), 0..60usize], 20),
    ) {
        let (requests, replies) = sample();
        let truth = [("GET", "/a"), ("POST", "/s.S/M"), ("GET", "/b"), ("_UNNAMED", "")];
        let mut ops = [fragments(&requests, &a, Direction::Rx), fragments(&replies, &b, Direction::Tx)].concat();
        for (op, captured) in ops.iter_mut().zip(&captured) {
            op.captured = *captured;
        }
        let mut conversation = ConnectionParser::new(false);
        let mut events = play(&mut conversation, &ops);
        conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
        let mut open = std::collections::HashSet::new();
        for event in &events {
            match event {
                ExchangeEvent::Begun { exchange, request, .. } => {
                    prop_assert!(truth.contains(&(&*request.method, &*request.path)), "{:?}", request);
                    prop_assert!(open.insert(*exchange));
                }
                ExchangeEvent::Done { exchange, .. } => prop_assert!(open.remove(exchange)),
                _ => {}
            }
        }
        prop_assert!(open.is_empty());
    }
}

/// Operations recorded by `tracer record` from real programs, and the expected events.
const FIXTURES: [(&str, &str, &str); 3] = [
    ("grpcio", include_str!("fixtures/grpcio.txt"), include_str!("fixtures/grpcio.expected")),
    ("node", include_str!("fixtures/node.txt"), include_str!("fixtures/node.expected")),
    ("upgrade", include_str!("fixtures/upgrade.txt"), include_str!("fixtures/upgrade.expected")),
];

fn recorded(text: &str) -> Vec<Op> {
    let op = |line: &str| {
        let mut words = line.split(' ');
        let dir = if words.next() == Some("rx") { Direction::Rx } else { Direction::Tx };
        let (_, length) = (words.next(), words.next().unwrap().parse::<usize>().unwrap());
        let hex = words.next().unwrap_or_default();
        let byte = |at: usize| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len() / 2).map(byte).collect();
        assert_eq!(bytes.len(), length, "all of it was captured");
        Op { dir, bytes, captured: usize::MAX }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(op).collect()
}

#[test]
fn what_real_programs_say() {
    for (name, text, expected) in FIXTURES {
        let ops = recorded(text);
        let events = summary(&play(&mut ConnectionParser::new(false), &ops)).join("\n") + "\n";
        assert_eq!(events, expected, "{name}:\n{events}");
        // The same in small parts.
        let whole = timeless(&play(&mut ConnectionParser::new(false), &ops));
        for size in [1, 5, 9, 100] {
            let cut = |op: &Op| -> Vec<Op> {
                op.bytes.chunks(size).map(|bytes| Op { bytes: bytes.to_vec(), ..op.clone() }).collect()
            };
            let fragments: Vec<Op> = ops.iter().flat_map(cut).collect();
            assert_eq!(
                timeless(&play(&mut ConnectionParser::new(false), &fragments)),
                whole,
                "{name} in fragments of {size}"
            );
        }
    }
}
