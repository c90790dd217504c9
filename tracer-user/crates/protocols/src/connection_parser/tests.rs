//! Connections as scripts: who sends which bytes, how much of them is captured, and the expected events.

use proptest::prelude::*;

use super::*;
use crate::{Closed, Totals};

/// One operation of a script.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) dir: Direction,
    pub(crate) bytes: Vec<u8>,
    pub(crate) captured: usize,
}

pub(crate) fn rx(bytes: &str) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.as_bytes().to_vec(), captured: usize::MAX }
}

pub(crate) fn tx(bytes: &str) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

pub(crate) fn cap(op: Op, captured: usize) -> Op {
    Op { captured, ..op }
}

/// Plays operations of arbitrary bytes, partly captured, on a connection that then ends. Returns its parser, and how
/// many exchanges began and ended.
pub(crate) fn survive(fragments: Vec<(bool, Vec<u8>, usize)>, midstream: bool) -> (ConnectionParser, usize, usize) {
    let dir = |receive| if receive { Direction::Rx } else { Direction::Tx };
    let ops: Vec<Op> = fragments
        .into_iter()
        .filter(|(_, bytes, _)| !bytes.is_empty())
        .map(|(receive, bytes, captured)| Op { dir: dir(receive), bytes, captured })
        .collect();
    let mut conversation = ConnectionParser::new(midstream);
    let mut events = play(&mut conversation, &ops);
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    let begun = events.iter().filter(|event| matches!(event, ExchangeEvent::Begun { .. })).count();
    let over = |event: &&ExchangeEvent| matches!(event, ExchangeEvent::Done { .. } | ExchangeEvent::Withdrawn { .. });
    let done = events.iter().filter(over).count();
    (conversation, begun, done)
}

/// Feeds a script; operation `i` happens at time `i + 1`. Captures only a little of the operations' ends, so bytes in
/// between are missing.
pub(crate) fn play(conversation: &mut ConnectionParser, ops: &[Op]) -> Vec<ExchangeEvent> {
    play_with(conversation, ops, 8)
}

/// The same, capturing `last` bytes of each operation's end.
pub(crate) fn play_with(conversation: &mut ConnectionParser, ops: &[Op], last: usize) -> Vec<ExchangeEvent> {
    let settings = Settings::default();
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    for (i, op) in ops.iter().enumerate() {
        let captured = op.captured.min(op.bytes.len());
        let tail = if captured < op.bytes.len() {
            &op.bytes[op.bytes.len().saturating_sub(last).max(captured)..]
        } else {
            &[]
        };
        let which = usize::from(op.dir == Direction::Tx);
        // One thread per direction: reads of one can be reported before earlier sends of the other.
        let at = Stamp { nanos: i as u64 + 1, pid: 1, tid: 1 + which as u32, reads: 0 };
        let chunk = Chunk {
            dir: op.dir,
            pos: pos[which],
            len: op.bytes.len() as u64,
            head: &op.bytes[..captured],
            tail,
            fragments: &[],
            at,
            arrived: 0,
        };
        pos[which] += op.bytes.len() as u64;
        conversation.bytes(&chunk, &settings, &mut out);
    }
    out
}

/// Asserts that `found` finds the same in a script whichever of its operations is cut in two, and wherever, and when every byte
/// is an operation of its own.
pub(crate) fn assert_divided<T, U>(ops: &[Op], found: impl Fn(&[Op]) -> T, expected: &U)
where
    T: PartialEq<U> + std::fmt::Debug,
    U: std::fmt::Debug,
{
    let piece = |op: &Op, bytes: &[u8]| Op { bytes: bytes.to_vec(), ..op.clone() };
    for (which, op) in ops.iter().enumerate() {
        for cut in 1..op.bytes.len() {
            let (front, back) = op.bytes.split_at(cut);
            let mut divided = ops.to_vec();
            divided.splice(which..=which, [piece(op, front), piece(op, back)]);
            assert_eq!(found(&divided), *expected, "operation {which} cut at {cut}");
        }
    }
    let bytes: Vec<Op> = ops.iter().flat_map(|op| op.bytes.chunks(1).map(|byte| piece(op, byte))).collect();
    assert_eq!(found(&bytes), *expected, "byte by byte");
}

/// One line per exchange: `METHOD path -> status outcome req/reply/body bytes @first..last`.
pub(crate) fn summary(events: &[ExchangeEvent]) -> Vec<String> {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for event in events {
        match event {
            ExchangeEvent::Begun { exchange, request, first, .. } => {
                lines.push((*exchange, format!("{} {} @{}", request.method, request.path, first.nanos)));
            }
            ExchangeEvent::Replied { exchange, status, failure, first, .. } => {
                let status = match (status, failure) {
                    (0, failure) => failure.unwrap_or("ok").to_owned(),
                    (status, _) => status.to_string(),
                };
                let line = lines.iter_mut().find(|(number, _)| number == exchange).unwrap();
                line.1 += &format!(" -> {status} @{}", first.nanos);
            }
            ExchangeEvent::Done { exchange, outcome, at, request_bytes, reply_bytes, reply_body_bytes } => {
                let line = lines.iter_mut().find(|(number, _)| number == exchange).unwrap();
                let outcome = outcome.name();
                let reply_body_bytes = reply_body_bytes.map_or_else(|| "?".into(), |bytes| bytes.to_string());
                line.1 += &format!(" {outcome} {request_bytes}/{reply_bytes}/{reply_body_bytes} @{}", at.nanos);
            }
            ExchangeEvent::Unpaired { status } => lines.push((u64::MAX, format!("unpaired {status}"))),
            ExchangeEvent::Lost { dir, bytes } => lines.push((u64::MAX, format!("lost {dir:?} {bytes}"))),
            ExchangeEvent::Judged { exchange, status, failure, protocol } => {
                let line = lines.iter_mut().find(|(number, _)| number == exchange).unwrap();
                line.1 += &format!(" = {status} {}", failure.unwrap_or("ok"));
                if let Some(protocol) = protocol {
                    line.1 += &format!(" of {}", protocol.name());
                }
            }
            ExchangeEvent::Withdrawn { exchange } => lines.retain(|(number, _)| number != exchange),
            ExchangeEvent::Unnamed => lines.push((u64::MAX, "unnamed".into())),
            ExchangeEvent::Forgotten { names } => lines.push((u64::MAX, format!("forgotten {names}"))),
            ExchangeEvent::HeadsCut { heads } => lines.push((u64::MAX, format!("cut {heads}"))),
            ExchangeEvent::Crowded => lines.push((u64::MAX, "crowded".into())),
            ExchangeEvent::Linked { .. }
            | ExchangeEvent::Job { .. }
            | ExchangeEvent::Datagram { .. }
            | ExchangeEvent::Certificate { .. } => {}
        }
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

pub(crate) fn check(ops: &[Op], expected: &[&str]) {
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, ops);
    assert_eq!(summary(&events), expected, "{ops:?}");
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const OK5: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn keep_alive() {
    check(
        &[rx(GET), tx(OK5), rx(GET), tx(OK5)],
        &["GET /a @1 -> 200 @2 complete 28/43/5 @2", "GET /a @3 -> 200 @4 complete 28/43/5 @4"],
    );
}

#[test]
fn pipelined_in_one_read_and_answered_in_one_write() {
    check(
        &[rx(&[GET, GET].concat()), tx(&[OK5, OK5].concat())],
        &["GET /a @1 -> 200 @2 complete 28/43/5 @2", "GET /a @1 -> 200 @2 complete 28/43/5 @2"],
    );
}

#[test]
fn bodies_are_followed_to_their_last_byte() {
    check(
        &[
            rx("POST /p HTTP/1.1\r\nContent-Length: 6\r\n\r\nab"),
            rx("cdef"),
            tx("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            tx("5\r\nhello\r\n"),
            tx("0\r\nX: y\r\n\r\n"),
        ],
        &["POST /p @1 -> 200 @3 complete 45/68/21 @5"],
    );
}

#[test]
fn sendfile_bodies_carry_no_bytes() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
    let body = "x".repeat(500_000);
    check(
        &[rx(GET), tx(head), cap(tx(&body), 0), cap(tx(&body), 0), rx(GET), tx(OK5)],
        &["GET /a @1 -> 200 @2 complete 28/1000044/1000000 @4", "GET /a @5 -> 200 @6 complete 28/43/5 @6"],
    );
}

#[test]
fn head_204_304_have_no_body() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    check(
        &[
            rx("HEAD /h HTTP/1.1\r\n\r\n"),
            tx(head),
            rx(GET),
            tx("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n"),
            rx(GET),
            tx("HTTP/1.1 204 No Content\r\n\r\n"),
        ],
        &[
            "HEAD /h @1 -> 200 @2 complete 20/38/0 @2",
            "GET /a @3 -> 304 @4 complete 28/48/0 @4",
            "GET /a @5 -> 204 @6 complete 28/27/0 @6",
        ],
    );
}

#[test]
fn interim_replies_are_not_the_reply() {
    check(
        &[
            rx("POST /p HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"),
            tx("HTTP/1.1 100 Continue\r\n\r\n"),
            rx("abc"),
            tx(OK5),
        ],
        &["POST /p @1 -> 200 @4 complete 64/43/5 @4"],
    );
}

#[test]
fn upgrades_are_reported_and_left() {
    let request = "GET /ws HTTP/1.1\r\nUpgrade: something\r\n\r\n";
    let reply = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[rx(request), tx(reply), rx("\x16\x03\x01"), tx("GET / HTTP/1.1\r\n\r\n")]);
    let lines = summary(&events);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("upgraded"), "{lines:?}");
    assert_eq!(conversation.want().verdict, Verdict::Ignore);
}

#[test]
fn replies_that_end_by_close() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(GET), tx("HTTP/1.0 200 OK\r\n\r\nabc"), tx("def")]);
    conversation.closed(
        Closed::Local,
        Stamp { nanos: 99, pid: 1, tid: 1, reads: 0 },
        None,
        &Settings::default(),
        &mut events,
    );
    // The duration ends with the last byte, not with the close.
    assert_eq!(summary(&events), ["GET /a @1 -> 200 @2 complete 28/25/6 @3"]);
}

#[test]
fn clients_that_go_away() {
    let mut conversation = ConnectionParser::new(false);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n";
    let mut events = play(&mut conversation, &[rx(GET), tx(head), tx("1234567890")]);
    conversation.closed(
        Closed::Both,
        Stamp { nanos: 9, pid: 1, tid: 1, reads: 0 },
        None,
        &Settings::default(),
        &mut events,
    );
    assert_eq!(summary(&events), ["GET /a @1 -> 200 @2 aborted 28/49/10 @3"]);

    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(GET)]);
    conversation.closed(
        Closed::Both,
        Stamp { nanos: 9, pid: 1, tid: 1, reads: 0 },
        None,
        &Settings::default(),
        &mut events,
    );
    assert_eq!(summary(&events), ["GET /a @1 aborted 28/0/0 @9"]);
}

#[test]
fn a_reply_that_was_not_seen_does_not_shift_the_others() {
    let mut conversation = ConnectionParser::new(false);
    let (settings, mut events) = (Settings::default(), Vec::new());
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let mut pos = (0, 0);
    for (nanos, dir, text, seen) in [
        (1, Direction::Rx, GET, true),
        (2, Direction::Tx, ok, false),
        (3, Direction::Rx, GET, true),
        (4, Direction::Tx, "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", true),
    ] {
        let at = Stamp { nanos, pid: 1, tid: 1, reads: 0 };
        let position = if dir == Direction::Rx { &mut pos.0 } else { &mut pos.1 };
        let len = text.len() as u64;
        if seen {
            let chunk =
                Chunk { dir, pos: *position, len, head: text.as_bytes(), tail: b"", fragments: &[], at, arrived: 0 };
            conversation.bytes(&chunk, &settings, &mut events);
        }
        *position += len;
    }
    let lines = summary(&events);
    assert!(lines[0].starts_with("GET /a @1 unfinished"), "{lines:?}");
    assert!(lines[1].starts_with("GET /a @3 -> 404 @4 complete"), "{lines:?}");
}

#[test]
fn the_end_of_a_reply_that_was_not_followed() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[tx(GET), rx("HTTP/1.0 200 OK\r\n\r\n")]);
    let totals = Totals { rx: 1019, tx: 0, last_rx: 7, last_tx: 0 };
    let at = Stamp { nanos: 99, pid: 1, tid: 1, reads: 0 };
    conversation.closed(Closed::Remote, at, Some(totals), &Settings::default(), &mut events);
    assert_eq!(summary(&events), ["GET /a @1 -> 200 @2 complete 28/1019/1000 @7"]);
}

#[test]
fn requests_that_stay_pieces() {
    let end = |piece: &str, how| {
        let mut conversation = ConnectionParser::new(false);
        let mut events = play(&mut conversation, &[rx(piece)]);
        let at = Stamp { nanos: 9, pid: 1, tid: 1, reads: 0 };
        conversation.closed(how, at, None, &Settings::default(), &mut events);
        (conversation, events)
    };
    let (_, events) = end("GET /a HTTP/1.1\r\nHost", Closed::Both);
    assert_eq!(summary(&events), ["GET /a @1 aborted 21/0/0 @9"]);
    // Its target may continue in the missing part.
    assert!(summary(&end("GET /a", Closed::Both).1).is_empty());
    // The client announced that it sends no more; the server may still refuse.
    let (mut conversation, mut events) = end("GET /a HTTP/1.1\r\nHost", Closed::Remote);
    assert_eq!(summary(&events), ["GET /a @1"]);
    let refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let at = Stamp { nanos: 10, pid: 1, tid: 1, reads: 0 };
    let chunk = Chunk {
        dir: Direction::Tx,
        pos: 0,
        len: refusal.len() as u64,
        head: refusal,
        tail: b"",
        fragments: &[],
        at,
        arrived: 0,
    };
    conversation.bytes(&chunk, &Settings::default(), &mut events);
    assert_eq!(summary(&events), ["GET /a @1 -> 400 @10 complete 21/47/0 @10"]);
}

#[test]
fn suppressed_operations_are_caught_up_with() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(GET), tx("HTTP/1.0 200 OK\r\n\r\n")]);
    assert_eq!(conversation.want().tx_skip, u64::MAX);
    let totals = Totals { rx: 28, tx: 1019, last_rx: 1, last_tx: 7 };
    conversation.closed(
        Closed::Local,
        Stamp { nanos: 99, pid: 1, tid: 1, reads: 0 },
        Some(totals),
        &Settings::default(),
        &mut events,
    );
    assert_eq!(summary(&events), ["GET /a @1 -> 200 @2 complete 28/1019/1000 @7"]);
}

#[test]
fn heads_longer_than_the_capture() {
    let long = format!("GET /long HTTP/1.1\r\nCookie: {}\r\n\r\n", "c".repeat(5000));
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[cap(rx(&long), 1024), tx(OK5), rx(GET), tx(OK5)]);
    assert_eq!(
        summary(&events),
        ["GET /long @1 -> 200 @2 complete 5032/43/5 @2", "GET /a @3 -> 200 @4 complete 28/43/5 @4"]
    );
    assert!(conversation.want().head_rx >= 2048, "asks for more");
}

#[test]
fn chunked_bodies_whose_framing_was_not_captured() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let middle = format!("5\r\nhello\r\n10\r\n{}\r\n5\r\nhel", "y".repeat(16));
    check(
        &[rx(GET), tx(head), cap(tx(&middle), 4), cap(tx("lo\r\n0\r\n\r\n"), 0), rx(GET), tx(OK5)],
        &["GET /a @1 -> 200 @2 complete 28/94/47 @4", "lost Tx 34", "GET /a @5 -> 200 @6 complete 28/43/5 @6"],
    );
}

#[test]
fn early_replies() {
    check(
        &[
            rx("POST /big HTTP/1.1\r\nContent-Length: 1000\r\n\r\npart"),
            tx("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        ],
        &["POST /big @1 -> 413 @2 complete 48/64/0 @2"],
    );
}

#[test]
fn other_protocols_are_left_alone() {
    for bytes in ["\x16\x03\x01\x02\x00\x01", "SSH-2.0-x\r\n"] {
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &[rx(bytes), tx("+PONG\r\n"), rx(bytes), tx("+PONG\r\n")]);
        assert!(summary(&events).is_empty());
        assert_eq!(conversation.want().verdict, Verdict::Ignore, "{bytes}");
    }
}

#[test]
fn joining_in_the_middle_waits_for_a_head() {
    let mut conversation = ConnectionParser::new(true);
    let events = play(&mut conversation, &[tx("...the rest of a body"), tx("and more"), rx(GET), tx(OK5)]);
    assert_eq!(summary(&events), ["GET /a @3 -> 200 @4 complete 28/43/5 @4"]);
}

#[test]
fn a_reply_whose_request_passed_before_is_unpaired() {
    let mut conversation = ConnectionParser::new(true);
    let events = play(&mut conversation, &[tx(OK5), rx(GET), tx(OK5)]);
    assert_eq!(summary(&events), ["unpaired 200", "GET /a @2 -> 200 @3 complete 28/43/5 @3"]);
}

#[test]
fn a_clients_reply_can_be_reported_before_its_request() {
    check(
        &[tx(GET), rx(OK5), rx(OK5), tx(GET), tx(GET), rx(OK5)],
        &[
            "GET /a @1 -> 200 @2 complete 28/43/5 @2",
            "GET /a @4 -> 200 @3 complete 28/43/5 @3",
            "GET /a @5 -> 200 @6 complete 28/43/5 @6",
        ],
    );
}

#[test]
fn lost_operations_are_reported_and_survived() {
    let settings = Settings::default();
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(GET), tx(OK5)]);
    let at = |nanos| Stamp { nanos, pid: 1, tid: 1, reads: 0 };
    let mut feed = |dir, pos, bytes: &str, nanos| {
        let chunk = Chunk {
            dir,
            pos,
            len: bytes.len() as u64,
            head: bytes.as_bytes(),
            tail: &[],
            fragments: &[],
            at: at(nanos),
            arrived: 0,
        };
        conversation.bytes(&chunk, &settings, &mut events);
    };
    // A complete exchange was lost in between.
    feed(Direction::Rx, 56, GET, 3);
    feed(Direction::Tx, 86, OK5, 4);
    let lines = summary(&events);
    assert_eq!(
        lines,
        [
            "GET /a @1 -> 200 @2 complete 28/43/5 @2",
            "lost Rx 28",
            "GET /a @3 -> 200 @4 complete 28/43/5 @4",
            "lost Tx 43"
        ]
    );
}

/// A server connection: several exchanges with every kind of framing.
fn script() -> (Vec<u8>, Vec<u8>, Vec<&'static str>) {
    let requests = [
        "GET /one HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /two HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        "POST /three HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "HEAD /four HTTP/1.1\r\n\r\n",
    ];
    let replies = [
        OK5,
        "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\n5\r\npedia\r\n0\r\nT: 1\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
    ];
    let expected = vec!["GET /one 200", "POST /two 201", "POST /three 204", "HEAD /four 200"];
    (requests.concat().into_bytes(), replies.concat().into_bytes(), expected)
}

fn cut(bytes: &[u8], cuts: &[usize], dir: Direction) -> Vec<Op> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut % bytes.len()).chain([0, bytes.len()]).collect();
    at.sort_unstable();
    at.dedup();
    at.windows(2).map(|pair| Op { dir, bytes: bytes[pair[0]..pair[1]].to_vec(), captured: usize::MAX }).collect()
}

proptest! {
    /// Pipelined requests, then replies: same result however the bytes are split into operations.
    #[test]
    fn every_split_gives_the_same_events(cuts in proptest::collection::vec(0usize..1000, 0..60)) {
        let (requests, replies, expected) = script();
        let mut ops = cut(&requests, &cuts, Direction::Rx);
        ops.extend(cut(&replies, &cuts, Direction::Tx));
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &ops);
        let mut got = Vec::new();
        let mut totals = (0, 0);
        for event in &events {
            match event {
                ExchangeEvent::Begun { request, .. } => got.push(format!("{} {}", request.method, request.path)),
                ExchangeEvent::Replied { exchange, status, .. } => {
                    let line: &mut String = &mut got[*exchange as usize];
                    line.push_str(&format!(" {status}"));
                }
                ExchangeEvent::Done { request_bytes, reply_bytes, outcome, .. } => {
                    prop_assert_eq!(*outcome, Outcome::Complete);
                    totals.0 += request_bytes;
                    totals.1 += reply_bytes;
                }
                ExchangeEvent::Lost { .. } | ExchangeEvent::Unpaired { .. } | ExchangeEvent::Withdrawn { .. } => prop_assert!(false, "{:?}", event),
                ExchangeEvent::Judged { .. }
                | ExchangeEvent::Linked { .. }
                | ExchangeEvent::Job { .. }
                | ExchangeEvent::Certificate { .. }
                | ExchangeEvent::Unnamed
                | ExchangeEvent::Crowded
                | ExchangeEvent::HeadsCut { .. }
                | ExchangeEvent::Datagram { .. }
                | ExchangeEvent::Forgotten { .. } => {}
            }
        }
        prop_assert_eq!(got, expected);
        prop_assert_eq!(totals, (requests.len() as u64, replies.len() as u64 - 25));
    }

    /// Arbitrary bytes, partly captured: no panic, bounded memory, every exchange ends once.
    #[test]
    fn never_panics_on_arbitrary_operations(
        ops in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                Just(GET.as_bytes().to_vec()),
                Just(OK5.as_bytes().to_vec()),
                Just(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffff".to_vec()),
                Just(b"POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n".to_vec()),
            ], 0usize..300, 0u64..50),
            0..40,
        ),
        midstream in any::<bool>(),
    ) {
        let mut conversation = ConnectionParser::new(midstream);
        let settings = Settings::default();
        let mut events = Vec::new();
        let mut pos = [0u64; 2];
        for (i, (tx, bytes, captured, gap)) in ops.iter().enumerate() {
            let dir = if *tx { Direction::Tx } else { Direction::Rx };
            let which = usize::from(*tx);
            // Some operations are lost, or reported twice.
            pos[which] = pos[which].saturating_add(gap / 40 * gap).saturating_sub(gap / 45);
            let head = &bytes[..(*captured).min(bytes.len())];
            let at = Stamp { nanos: i as u64 + 1, pid: 1, tid: 1, reads: 0 };
            let chunk = Chunk { dir, pos: pos[which], len: bytes.len() as u64, head, tail: &[], fragments: &[], at, arrived: 0 };
            conversation.bytes(&chunk, &settings, &mut events);
            pos[which] += bytes.len() as u64;
            let _ = conversation.want();
        }
        conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
        let begun = events.iter().filter(|event| matches!(event, ExchangeEvent::Begun { .. })).count();
        let done = events.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count();
        if conversation.want().verdict != Verdict::Ignore || begun > 0 {
            prop_assert!(done <= begun);
        }
    }
}

/// A reply with a head of `head` bytes, `first` among its first lines.
fn long(status: &str, first: &str, head: usize, body: &str) -> String {
    let begin = format!("HTTP/1.1 {status}\r\n{first}Set-Cookie: ");
    format!("{begin}{}\r\n\r\n{body}", "c".repeat(head - begin.len() - 4))
}

#[test]
fn a_reply_whose_head_is_longer_than_what_was_captured_ends_where_it_does() {
    let not_modified = long("304 Not Modified", "Content-Length: 70\r\n", 3000, "");
    let cases: [(&[&str], &str); 9] = [
        // Front and end were captured separately, and cover all of it.
        (&[&long("302 Found", "Content-Length: 0\r\n", 1059, "")], "302 @2 complete 28/1059/0 @2"),
        (&[&long("302 Found", "Transfer-Encoding: chunked\r\n", 1059, "0\r\n\r\n")], "302 @2 complete 28/1064/5 @2"),
        (&[&long("302 Found", "Content-Length: 0\r\n", 3000, "")], "302 @2 complete 28/3000/? @2"),
        (&[&not_modified], "304 @2 complete 28/3000/? @2"),
        (&[&long("200 OK", "Content-Length: 500\r\n", 3000, &"b".repeat(500))], "200 @2 complete 28/3500/? @2"),
        (
            &[&long("200 OK", "Content-Length: 9000\r\n", 3000, &"b".repeat(1000)), &"b".repeat(8000)],
            "200 @2 complete 28/12000/? @3",
        ),
        (&[&long("200 OK", "Content-Length: 500\r\n", 3000, ""), &"b".repeat(500)], "200 @2 complete 28/3500/? @3"),
        (
            &[&long("200 OK", "Transfer-Encoding: chunked\r\n", 3000, "5\r\nhello\r\n0\r\n\r\n")],
            "200 @2 complete 28/3015/? @2",
        ),
        (
            &[&long("200 OK", "Transfer-Encoding: chunked\r\n", 3000, ""), "5\r\nhello\r\n0\r\n\r\n"],
            "200 @2 complete 28/3015/? @3",
        ),
    ];
    for (replies, expected) in cases {
        let mut ops = vec![rx(GET)];
        ops.extend(replies.iter().map(|reply| cap(tx(reply), 1024)));
        let mut conversation = ConnectionParser::new(false);
        let events = play_with(&mut conversation, &ops, 64);
        // No part of it waits for the next request.
        assert_eq!(summary(&events), [format!("GET /a @1 -> {expected}")]);
        // The next exchange is reported correctly.
        ops.extend([rx(GET), tx(OK5)]);
        let (next, at) = (ops.len() - 1, ops.len());
        let events = play_with(&mut ConnectionParser::new(false), &ops, 64);
        let after = format!("GET /a @{next} -> 200 @{at} complete 28/43/5 @{at}");
        assert!(summary(&events).contains(&after), "{:?} after {expected}", summary(&events));
    }
}

/// Recognised by its request; what answers is none of the protocol's.
#[test]
fn an_answer_that_does_not_fit_takes_the_recognition_back() {
    let queries = [
        // In order.
        (rx("*1\r\n$4\r\nPING\r\n"), tx("hello, who is there?\r\n")),
        // With numbered exchanges.
        (rx("CONNECT {\"verbose\":false}\r\nPING\r\n"), tx("\x01\x02 what is this\r\n\x01\x02\r\n")),
    ];
    for (asked, answer) in queries {
        let mut parser = ConnectionParser::new(false);
        let events = play(&mut parser, &[asked.clone(), answer.clone(), asked, answer]);
        let done =
            events.iter().any(|event| matches!(event, ExchangeEvent::Done { .. } | ExchangeEvent::Replied { .. }));
        let begun = events.iter().filter(|event| matches!(event, ExchangeEvent::Begun { .. })).count();
        let withdrawn = events.iter().filter(|event| matches!(event, ExchangeEvent::Withdrawn { .. })).count();
        assert!(!done && begun == withdrawn && begun > 0, "{events:?}");
        assert_eq!(parser.protocol(), None);
    }
}
