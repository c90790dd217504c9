//! Connections that become unreadable, or change protocol, while requests are open.

use tracer_model::Direction;

use crate::connection_parser::tests::{Op, play, summary};
use crate::{Closed, ConnectionParser, Settings, Stamp};

fn rx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn tx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

/// Events before the connection ends; its end must add none.
fn before_its_end(ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, ops);
    let lines = summary(&events);
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    assert_eq!(summary(&events), lines);
    lines
}

/// The beginning of a TLS handshake.
const HELLO: &[u8] = &[0x16, 3, 1, 0, 5];

#[test]
fn messages_with_keys() {
    let lines = before_its_end(&[rx(b"CONNECT\nhost:a\n\n\0"), rx(HELLO)]);
    assert_eq!(lines, ["connect  @1 unfinished 17/0/0 @2"]);
}

#[test]
fn replies_in_turn() {
    let offer = "GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: planted\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    let taken = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: planted\r\n\r\n";
    let lines = before_its_end(&[rx(offer.as_bytes()), tx(taken.as_bytes()), tx(b"planted")]);
    assert_eq!(lines, ["GET /a @1 -> 101 @2 upgraded 58/54/0 @2", "GET /b @1 unfinished 19/0/0 @2"]);
}

#[test]
fn an_upgrade_to_messages_with_keys() {
    let offer = "GET /a HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n\
                 GET /b HTTP/1.1\r\n\r\n";
    let taken = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n";
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx(offer.as_bytes()), tx(taken.as_bytes())]);
    assert_eq!(summary(&events)[1], "GET /b @1 unfinished 19/0/0 @2");
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    assert!(summary(&events)[0].starts_with("GET /a @1 aborted"), "{:?}", summary(&events));
}

#[test]
fn an_upgrade_to_a_session() {
    let offer = "GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: cGxhbnRlZHBsYW50ZWQwMA==\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
    let taken = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[rx(offer.as_bytes()), tx(taken.as_bytes())]);
    assert_eq!(summary(&events)[1], "GET /b @1 unfinished 19/0/0 @2");
}
