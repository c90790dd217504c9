//! Requests and replies as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_model::Direction;

use super::records::STDIN;
use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, check, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp};

fn op(dir: Direction, parts: &[Vec<u8>]) -> Op {
    Op { dir, bytes: parts.concat(), captured: usize::MAX }
}

fn rx(parts: &[Vec<u8>]) -> Op {
    op(Direction::Rx, parts)
}

fn tx(parts: &[Vec<u8>]) -> Op {
    op(Direction::Tx, parts)
}

/// A record, padded to eight bytes as nginx and PHP do.
fn record(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let padding = (8 - content.len() % 8) % 8;
    let [id_high, id_low] = id.to_be_bytes();
    let [high, low] = (content.len() as u16).to_be_bytes();
    let mut bytes = vec![1, kind, id_high, id_low, high, low, padding as u8, 0];
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

fn begin(id: u16) -> Vec<u8> {
    record(BEGIN, id, &[0, 1, 1, 0, 0, 0, 0, 0])
}

fn variables(pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = |bytes: &mut Vec<u8>, len: usize| match u8::try_from(len) {
        Ok(short @ 0..=127) => bytes.push(short),
        _ => bytes.extend_from_slice(&(len as u32 | 1 << 31).to_be_bytes()),
    };
    for (name, value) in pairs {
        length(&mut bytes, name.len());
        length(&mut bytes, value.len());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes
}

const GET: &[(&str, &str)] =
    &[("QUERY_STRING", "secret=1"), ("REQUEST_METHOD", "GET"), ("SCRIPT_NAME", "/a.php"), ("REQUEST_URI", "/a")];

/// A request without a body.
fn ask(id: u16, pairs: &[(&str, &str)]) -> Vec<u8> {
    [begin(id), record(PARAMS, id, &variables(pairs)), record(PARAMS, id, b""), record(STDIN, id, b"")].concat()
}

fn end(id: u16, status: u8) -> Vec<u8> {
    record(END, id, &[0, 0, 0, 0, status, 0, 0, 0])
}

fn answer(id: u16, text: &str) -> Vec<u8> {
    [record(STDOUT, id, text.as_bytes()), end(id, 0)].concat()
}

const PAGE: &str = "Content-type: text/html\r\n\r\nhello";

#[test]
fn first_bytes() {
    let (request, reply) = (ask(1, GET), answer(1, PAGE));
    for n in 0..16 {
        assert_eq!(FastCgi.detect(&request[..n]), Detected::NeedMore, "{n}");
    }
    assert_eq!(FastCgi.detect(&request[..16]), Detected::Request);
    assert_eq!(FastCgi.detect(&reply[..20]), Detected::NeedMore);
    assert_eq!(FastCgi.detect(&reply), Detected::Reply);
    for other in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"\x01",
        &begin(0),
        &record(STDOUT, 1, b"no header here"),
        &record(STDIN, 1, b"x"),
        &record(BEGIN, 1, &[0, 9, 0, 0, 0, 0, 0, 0]),
        b"\x01\x01\x00\x01\x00\x09\x00\x00",
    ] {
        assert!(matches!(FastCgi.detect(other), Detected::No | Detected::NeedMore), "{other:?}");
    }
    assert_eq!(FastCgi.detect(&record(BEGIN, 1, &[0, 9, 0, 0, 0, 0, 0, 0])), Detected::No);
}

#[test]
fn requests_and_their_answers() {
    let post = [("REQUEST_METHOD", "POST"), ("SCRIPT_NAME", "/b.php"), ("CONTENT_LENGTH", "5")];
    let body = [begin(1), record(PARAMS, 1, &variables(&post)), record(PARAMS, 1, b"")].concat();
    let length = body.len() + 16 + 8;
    check(
        &[
            rx(&[ask(1, GET)]),
            tx(&[answer(1, PAGE)]),
            rx(&[body]),
            rx(&[record(STDIN, 1, b"hello"), record(STDIN, 1, b"")]),
            tx(&[record(STDERR, 1, b"PHP message: oh"), record(STDOUT, 1, b"Status: 503 No\r\n")]),
            tx(&[
                record(STDOUT, 1, b"X: y\r\n\r\nsorry"),
                record(STDOUT, 1, b"more"),
                record(STDOUT, 1, b""),
                end(1, 0),
            ]),
        ],
        &[
            "GET /a.php @1 -> 200 @2 complete 120/56/21 @2",
            &format!("POST /b.php @3 -> 503 @5 complete {length}/112/48 @6"),
        ],
    );
}

#[test]
fn answers_without_output() {
    let mut conversation = ConnectionParser::new(false);
    let events = play(
        &mut conversation,
        &[rx(&[ask(1, GET)]), tx(&[end(1, 2)]), rx(&[ask(1, GET)]), tx(&[record(STDERR, 1, b"died"), end(1, 0)])],
    );
    assert_eq!(
        summary(&events),
        ["GET /a.php @1 -> overloaded @2 complete 120/16/0 @2", "GET /a.php @3 -> no_output @4 complete 120/32/0 @4"]
    );
}

#[test]
fn connections_that_close() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(&[ask(1, GET)]), tx(&[record(STDOUT, 1, PAGE.as_bytes())])]);
    let at = Stamp { nanos: 9, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    assert_eq!(summary(&events), ["GET /a.php @1 -> 200 @2 aborted 120/40/5 @2"]);
}

#[test]
fn questions_about_the_server_and_requests_given_up() {
    check(
        &[
            rx(&[record(9, 0, &variables(&[("FCGI_MAX_CONNS", "")])), ask(1, GET)]),
            tx(&[record(10, 0, &variables(&[("FCGI_MAX_CONNS", "1")])), answer(1, PAGE)]),
            rx(&[begin(1), record(PARAMS, 1, &variables(GET)), record(PARAMS, 1, b""), record(2, 1, b"")]),
            tx(&[end(1, 0)]),
        ],
        &["GET /a.php @1 -> 200 @2 complete 120/56/21 @2", "GET /a.php @3 -> no_output @4 complete 120/16/0 @4"],
    );
}

#[test]
fn records_of_other_requests_are_not_taken() {
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[rx(&[ask(1, GET)]), tx(&[answer(2, PAGE)]), rx(&[ask(2, GET)])]);
    assert!(!events.iter().any(|event| matches!(event, ExchangeEvent::Replied { .. })), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })), "{events:?}");
}

#[test]
fn bodies_that_were_not_captured() {
    // As PHP writes: headers and a first part, parts longer than the capture limit, the end.
    let long = "x".repeat(5000);
    let first = record(STDOUT, 1, format!("Content-type: a\r\n\r\n{long}").as_bytes());
    let sizes = 120 + first.len() + record(STDOUT, 1, long.as_bytes()).len() * 2 + 16 - 120;
    let ops = [
        rx(&[ask(1, GET)]),
        cap(tx(&[first]), 1024),
        cap(tx(&[record(STDOUT, 1, long.as_bytes())]), 0),
        cap(tx(&[record(STDOUT, 1, long.as_bytes()), end(1, 0)]), 1024),
        rx(&[ask(1, GET)]),
        tx(&[answer(1, PAGE)]),
    ];
    let lines = |captured: usize| {
        let mut ops = ops.to_vec();
        ops[2].captured = captured;
        let mut conversation = ConnectionParser::new(false);
        summary(&play(&mut conversation, &ops))
    };
    let next = "GET /a.php @5 -> 200 @6 complete 120/56/21 @6";
    assert_eq!(lines(8), [&format!("GET /a.php @1 -> 200 @2 complete 120/{sizes}/{} @4", sizes - 27), next]);
    // One record's header was missing: the end shows when the client speaks again.
    let odd = lines(0);
    assert!(odd[0].starts_with(&format!("GET /a.php @1 -> 200 @2 complete 120/{sizes}/")), "{odd:?}");
    assert_eq!(odd[1..], [next]);
}

#[test]
fn variables_longer_than_what_is_captured() {
    let long = "c".repeat(9000);
    let pairs = [GET, &[("HTTP_COOKIE", long.as_str()), ("HTTP_HOST", "h")]].concat();
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[cap(rx(&[ask(1, &pairs)]), 4096), tx(&[answer(1, PAGE)])]);
    let lines = summary(&events);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("GET /a.php @1 -> 200 @2 complete 9"), "{lines:?}");
    assert_eq!(conversation.want().head_rx, 8192);
    // The name itself was not captured.
    let pairs = [&[("HTTP_COOKIE", long.as_str())], GET].concat();
    let mut conversation = ConnectionParser::new(false);
    let lines = summary(&play(&mut conversation, &[cap(rx(&[ask(1, &pairs)]), 4096), tx(&[answer(1, PAGE)])]));
    assert!(lines[0].starts_with("_UNNAMED  @1 -> 200 @2 complete"), "{lines:?}");
}

#[test]
fn lost_operations_are_reported_and_survived() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(&[ask(1, GET)]), tx(&[answer(1, PAGE)])]);
    let settings = Settings::default();
    let (request, reply) = (ask(1, GET), answer(1, PAGE));
    let chunk = |dir, pos, head: &'static [u8], nanos| crate::Chunk {
        dir,
        pos,
        len: head.len() as u64,
        head,
        tail: &[],
        fragments: &[],
        at: Stamp { nanos, pid: 1, tid: 1, reads: 0 },
        arrived: 0,
    };
    // One exchange is missing.
    conversation.bytes(&chunk(Direction::Rx, 240, request.leak(), 3), &settings, &mut events);
    conversation.bytes(&chunk(Direction::Tx, 112, reply.leak(), 4), &settings, &mut events);
    assert_eq!(
        summary(&events),
        [
            "GET /a.php @1 -> 200 @2 complete 120/56/21 @2",
            "lost Rx 120",
            "GET /a.php @3 -> 200 @4 complete 120/56/21 @4",
            "lost Tx 56"
        ]
    );
}

/// Events without times, and without the ends of heads, which depend on the operations.
fn outcomes(events: &[ExchangeEvent]) -> Vec<String> {
    events
        .iter()
        .map(|word| match word {
            ExchangeEvent::Begun { exchange, request, .. } => format!("{exchange} {} {}", request.method, request.path),
            ExchangeEvent::Replied { exchange, status, failure, .. } => format!("{exchange} {status} {failure:?}"),
            ExchangeEvent::Done { exchange, outcome, request_bytes, reply_bytes, reply_body_bytes, .. } => {
                format!("{exchange} {outcome:?} {request_bytes} {reply_bytes} {reply_body_bytes:?}")
            }
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn every_cut_gives_the_same() {
    let (long, post) = ("v".repeat(200), [("REQUEST_METHOD", "POST"), ("SCRIPT_NAME", "/b.php")]);
    let split = variables(&[GET, &[("HTTP_X", long.as_str())]].concat());
    let asked = [
        begin(7),
        record(PARAMS, 7, &split[..50]),
        record(PARAMS, 7, &split[50..]),
        record(PARAMS, 7, b""),
        record(STDIN, 7, b""),
        begin(8),
        record(PARAMS, 8, &variables(&post)),
        record(PARAMS, 8, b""),
        record(STDIN, 8, b"body"),
        record(STDIN, 8, b"more"),
        record(STDIN, 8, b""),
    ];
    let answered = [
        record(STDERR, 7, b"note"),
        record(STDOUT, 7, b"Status: 404 Not"),
        record(STDOUT, 7, b" Found\r\nA: b\r\n\r\nno"),
        record(STDERR, 7, b"late"),
        record(STDOUT, 7, b"page"),
        end(7, 0),
        end(8, 3),
    ];
    let ops = [rx(&asked), tx(&answered)];
    let expected = outcomes(&play(&mut ConnectionParser::new(false), &ops));
    assert_eq!(expected.iter().filter(|line| line.contains("Complete")).count(), 2, "{expected:?}");
    assert!(expected.iter().any(|line| line.contains("404")), "{expected:?}");
    assert_divided(&ops, |ops| outcomes(&play(&mut ConnectionParser::new(false), ops)), &expected);
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                (0u8..12, 0u16..3, proptest::collection::vec(any::<u8>(), 0..20))
                    .prop_map(|(kind, id, content)| record(kind, id, &content)),
                Just(ask(1, GET)),
                Just(answer(1, PAGE)),
            ], 0usize..200),
            0..30,
        ),
        midstream: bool,
    ) {
        let (_, begun, done) = survive(fragments, midstream);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn values_never_show(secret in "[a-zA-Z0-9]{12,30}", captured in 0usize..400) {
        let pairs = [GET, &[("HTTP_COOKIE", secret.as_str()), ("QUERY_STRING", &secret), ("HTTP_AUTHORIZATION", &secret)]];
        let ops = [
            cap(rx(&[ask(1, &pairs.concat())]), captured),
            tx(&[record(STDERR, 1, secret.as_bytes()), answer(1, &format!("Set-Cookie: {secret}\r\n\r\n{secret}"))]),
        ];
        let events = format!("{:?}", play(&mut ConnectionParser::new(true), &ops));
        prop_assert!(!events.contains(&secret), "{}", events);
    }
}
