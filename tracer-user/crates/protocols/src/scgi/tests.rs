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

fn ask(length: &str, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut content = format!("CONTENT_LENGTH\0{length}\0SCGI\x001\0");
    for (name, value) in pairs {
        content += &format!("{name}\0{value}\0");
    }
    format!("{}:{content},", content.len()).into_bytes()
}

fn get(path: &str) -> Vec<u8> {
    ask("0", &[("REQUEST_METHOD", "GET"), ("REQUEST_URI", path), ("QUERY_STRING", "secret=1")])
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

const OK: &str = "Status: 200 OK\r\nContent-Type: text/plain\r\n\r\n";

#[test]
fn first_bytes() {
    let bytes = get("/a");
    let decided = bytes.iter().position(|byte| *byte == 0).unwrap() + 1;
    for end in 0..decided {
        assert_eq!(Scgi.detect(&bytes[..end]), Detected::NeedMore, "{end}");
    }
    assert_eq!(Scgi.detect(&bytes[..decided]), Detected::Request);
    for other in
        [&b"70:CONTENT_TYPE\0"[..], b"070:CONTENT_LENGTH\0", b"1234567:CONTENT_LENGTH\0", b"3:CONTENT_LENGTH\0"]
    {
        assert_eq!(Scgi.detect(other), Detected::No, "{}", String::from_utf8_lossy(other));
    }
}

#[test]
fn requests_and_their_answers() {
    let bytes = get("/a/b?planted");
    let len = bytes.len();
    assert_eq!(lines(&[rx(&bytes), tx(OK), tx("hello")]), [format!("GET /a/b @1 -> 200 @2 complete {len}/49/5 @3")]);
    let bytes = ask("7", &[("REQUEST_METHOD", "POST"), ("SCRIPT_NAME", "/app"), ("PATH_INFO", "/p")]);
    let len = bytes.len() + 7;
    assert_eq!(
        lines(&[rx(&bytes), rx(b"one"), rx(b"more"), tx("Location: /x\n\n")]),
        [format!("POST /app/p @1 -> 302 @4 complete {len}/14/0 @4")]
    );
}

#[test]
fn requests_that_are_long_or_cut() {
    let long = "x".repeat(3000);
    let bytes = ask("3", &[("REQUEST_METHOD", "PUT"), ("REQUEST_URI", "/u"), ("HTTP_X", &long)]);
    let (front, back) = bytes.split_at(100);
    let len = bytes.len() + 3;
    assert_eq!(
        lines(&[rx(front), rx(back), rx(b"abc"), tx(OK)]),
        [format!("PUT /u @1 -> 200 @4 complete {len}/44/0 @4")]
    );
    assert_eq!(
        lines(&[cap(rx(&[&bytes[..], b"abc"].concat()), 200), tx(OK)]),
        [format!("PUT /u @1 -> 200 @2 complete {len}/44/0 @2")]
    );
    let late = ask("0", &[("HTTP_X", &long), ("REQUEST_METHOD", "GET"), ("REQUEST_URI", "/late")]);
    let len = late.len();
    assert_eq!(lines(&[cap(rx(&late), 300), tx(OK)]), [format!("_UNNAMED  @1 -> 200 @2 complete {len}/44/0 @2")]);
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
}
