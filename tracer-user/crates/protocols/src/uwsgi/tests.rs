//! Requests and replies as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, Stamp};

fn rx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn tx(text: &str) -> Op {
    Op { dir: Direction::Tx, ..rx(text.as_bytes()) }
}

fn packet(modifier: u8, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut content = Vec::new();
    for text in pairs.iter().flat_map(|(name, value)| [name, value]) {
        content.extend_from_slice(&(text.len() as u16).to_le_bytes());
        content.extend_from_slice(text.as_bytes());
    }
    let [low, high] = (content.len() as u16).to_le_bytes();
    [&[modifier, low, high, 0], &content[..]].concat()
}

fn get(path: &str) -> Vec<u8> {
    packet(0, &[("QUERY_STRING", "secret=1"), ("REQUEST_METHOD", "GET"), ("CONTENT_LENGTH", ""), ("PATH_INFO", path)])
}

fn post(length: usize, rest: &str) -> Vec<u8> {
    let length = length.to_string();
    packet(
        5,
        &[
            ("REQUEST_METHOD", "POST"),
            ("CONTENT_LENGTH", &length),
            ("SCRIPT_NAME", "/app"),
            ("PATH_INFO", "/p"),
            ("HTTP_X", rest),
        ],
    )
}

/// Summary of one connection that the server closes.
fn lines(ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 9, ..Stamp::default() };
    conversation.closed(Closed::Local, at, None, &Settings::default(), &mut events);
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    summary(&events)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n";

#[test]
fn first_bytes() {
    let bytes = get("/a");
    for end in 0..20 {
        assert_eq!(Uwsgi.detect(&bytes[..end]), Detected::NeedMore, "{end}");
    }
    assert_eq!(Uwsgi.detect(&bytes[..20]), Detected::Request);
    for (what, bytes) in [
        ("another language", packet(32, &[("REQUEST_METHOD", "GET")])),
        ("no name of a variable", packet(0, &[("SOMETHING", "GET")])),
        ("a name in lower case", packet(0, &[("HTTP_host", "x")])),
        ("nothing", packet(0, &[])),
        ("more than there is", b"\0\x10\0\0\x0c\0QUERY_STRING\xff\0".to_vec()),
    ] {
        assert_eq!(Uwsgi.detect(&bytes), Detected::No, "{what}");
    }
}

#[test]
fn requests_and_their_answers() {
    let ask = get("/a/b?planted");
    let len = ask.len();
    assert_eq!(lines(&[rx(&ask), tx(OK), tx("hello")]), [format!("GET /a/b @1 -> 200 @2 complete {len}/50/5 @3")]);
    let ask = post(7, "");
    let len = ask.len() + 7;
    assert_eq!(
        lines(&[rx(&ask), rx(b"one"), rx(b"more"), tx("HTTP/1.0 502 Bad Gateway\r\n\r\n")]),
        [format!("POST /app/p @1 -> 502 @4 complete {len}/28/0 @4")]
    );
}

#[test]
fn requests_that_are_long_or_cut() {
    // In two reads, neither of them complete.
    let ask = post(3, &"x".repeat(5000));
    let (front, back) = ask.split_at(100);
    let len = ask.len() + 3;
    assert_eq!(
        lines(&[rx(front), rx(back), rx(b"abc"), tx(OK)]),
        [format!("POST /app/p @1 -> 200 @4 complete {len}/45/0 @4")]
    );
    assert_eq!(
        lines(&[cap(rx(&[&ask[..], b"abc"].concat()), 200), tx(OK)]),
        [format!("POST /app/p @1 -> 200 @2 complete {len}/45/0 @2")]
    );
    // The name was not captured.
    let late = packet(0, &[("HTTP_X", &"x".repeat(500)), ("REQUEST_METHOD", "GET"), ("PATH_INFO", "/late")]);
    let len = late.len();
    assert_eq!(lines(&[cap(rx(&late), 300), tx(OK)]), [format!("_UNNAMED  @1 -> 200 @2 complete {len}/45/0 @2")]);
}

#[test]
fn connections_that_end_early() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(&get("/a"))]);
    let at = Stamp { nanos: 9, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    assert_eq!(summary(&events), [format!("GET /a @1 aborted {}/0/0 @9", get("/a").len())]);
}

#[test]
fn answers_end_where_they_say_and_what_is_more_is_passed_over() {
    let mut conversation = ConnectionParser::new(false);
    let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let mut events = play(&mut conversation, &[rx(&get("/a")), tx(sized), tx("and more"), tx("x")]);
    let at = Stamp { nanos: 9, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    assert_eq!(summary(&events), [format!("GET /a @1 -> 200 @2 complete {}/43/5 @2", get("/a").len())]);
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..80), 0usize..90), 0..12),
        midstream: bool,
    ) {
        let mut all = vec![(true, get("/a"), usize::MAX)];
        all.extend(fragments);
        let (_, begun, done) = survive(all, midstream);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn every_cut_says_the_same(length in 0usize..40, at in 1usize..200, pad in 0usize..80) {
        let ask = [post(length, &"x".repeat(pad)), vec![b'b'; length]].concat();
        let whole = [rx(&ask), tx(OK), tx("body")];
        let at = at.min(ask.len() - 1);
        let cuts = [rx(&ask[..at]), rx(&ask[at..]), tx(&OK[..at.min(OK.len() - 1)]), tx(&OK[at.min(OK.len() - 1)..]), tx("body")];
        let plain = |lines: Vec<String>| lines.iter().map(|line| line.split('@').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned()).collect::<String>()).collect::<Vec<_>>();
        prop_assert_eq!(plain(lines(&whole)), plain(lines(&cuts)));
    }
}
