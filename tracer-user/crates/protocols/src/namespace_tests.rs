//! Requests name the database that their connection or they themselves say they are for.

use tracer_model::Direction;

use super::connection_parser::tests::{Op, play};
use super::{ConnectionParser, ExchangeEvent};

fn rx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn tx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

/// Each request's method and database.
fn namespaces(ops: &[Op]) -> Vec<String> {
    let events = play(&mut ConnectionParser::new(false), ops);
    let begun = events.iter().filter_map(|event| match event {
        ExchangeEvent::Begun { request, .. } => Some(request),
        _ => None,
    });
    begun.map(|request| format!("{} {}", request.method, request.namespace.as_deref().unwrap_or("-"))).collect()
}

#[test]
fn postgresqls_is_that_of_the_first_message() {
    let message = |kind: u8, fields: &[u8]| [&[kind][..], &(fields.len() as u32 + 4).to_be_bytes(), fields].concat();
    let parameters = b"user\0alice\0database\0shop\0\0";
    let startup = [&(parameters.len() as u32 + 8).to_be_bytes()[..], &196_608u32.to_be_bytes(), parameters].concat();
    let ready = message(b'Z', b"I");
    let found = namespaces(&[
        rx(&startup),
        tx(&[message(b'R', &[0; 4]), ready.clone()].concat()),
        rx(&message(b'Q', b"SELECT 1\0")),
        tx(&[message(b'C', b"SELECT 1\0"), ready].concat()),
    ]);
    assert_eq!(found, ["CONNECT shop", "SELECT shop"]);
}

#[test]
fn mysqls_is_that_of_the_login_until_another_is_used() {
    let packet = |number: u8, payload: &[u8]| [&(payload.len() as u32).to_le_bytes()[..3], &[number], payload].concat();
    let command = |kind: u8, rest: &[u8]| rx(&packet(0, &[&[kind], rest].concat()));
    let greeting =
        [&b"\x0a8.0.36\0\x07\0\0\0saltsalt\0"[..], &[0xff, 0xf7, 33, 2, 0, 0xff, 0, 21], &[0; 10], b"saltsaltsalt\0"];
    // Version 4.1, the proof's length in one byte, a database.
    let login = [&(0x8208u32.to_le_bytes())[..], &[0; 28], b"alice\0\x02xxshop\0"].concat();
    let ok = |number| tx(&packet(number, &[0, 0, 0, 2, 0, 0, 0]));
    let denied = tx(&packet(1, b"\xff\x19\x04#42000denied"));
    let found = namespaces(&[
        tx(&packet(0, &greeting.concat())),
        rx(&packet(1, &login)),
        ok(2),
        command(3, b"DELETE FROM a"),
        ok(1),
        command(2, b"other"),
        denied,
        command(3, b"DELETE FROM a"),
        ok(1),
        command(2, b"other"),
        ok(1),
        command(3, b"DELETE FROM a"),
        ok(1),
        command(3, b"USE third"),
        ok(1),
        command(3, b"DELETE FROM a"),
        ok(1),
    ]);
    let expected =
        ["CONNECT shop", "DELETE shop", "USE shop", "DELETE shop", "USE shop", "DELETE other", "USE other", "DELETE -"];
    assert_eq!(found, expected);
}

#[test]
fn redis_is_the_number_that_was_selected() {
    let found = namespaces(&[
        rx(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
        tx(b"$-1\r\n"),
        rx(b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
        tx(b"+OK\r\n$-1\r\n"),
        rx(b"*2\r\n$6\r\nSELECT\r\n$3\r\n999\r\n"),
        tx(b"-ERR DB index is out of range\r\n"),
        rx(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
        tx(b"$-1\r\n"),
    ]);
    assert_eq!(found, ["GET -", "SELECT 3", "GET 3", "SELECT 999", "GET -"]);
}

#[test]
fn mongodbs_is_in_each_command() {
    let string = |name: &str, value: &str| {
        [&[2][..], name.as_bytes(), &[0], &(value.len() as u32 + 1).to_le_bytes(), value.as_bytes(), &[0]].concat()
    };
    let message = |id: u32, to: u32, elements: &[Vec<u8>]| {
        let inner = elements.concat();
        let document = [&(inner.len() as u32 + 5).to_le_bytes()[..], &inner, &[0]].concat();
        let words = [16 + 5 + document.len() as u32, id, to, 2013];
        [&words.map(u32::to_le_bytes).concat()[..], &[0; 5], &document].concat()
    };
    let fine = |to| tx(&message(90 + to, to, &[[&[1][..], b"ok\0", &1f64.to_le_bytes()].concat()]));
    let found = namespaces(&[
        rx(&message(1, 0, &[string("find", "orders"), string("$db", "shop")])),
        fine(1),
        rx(&message(2, 0, &[string("find", "orders"), string("$db", "other")])),
        fine(2),
        rx(&message(3, 0, &[string("find", "orders"), string("filter", &"x".repeat(2000)), string("$db", "shop")])),
        fine(3),
    ]);
    assert_eq!(found, ["find shop", "find other", "find -"]);
}
