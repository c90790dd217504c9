//! Long sessions: requests beyond the capture limit of an operation, and more statements than are remembered.

use super::*;
use crate::connection_parser::tests::play_with;

/// Summary when the first 4096 bytes and the last 64 of each operation are captured.
fn of_long(requests: &[Vec<u8>]) -> Vec<String> {
    let mut ops = Vec::new();
    for request in requests {
        ops.extend([cap(rx(std::slice::from_ref(request)), 4096), tx(&[ran(1), ready(b'I')])]);
    }
    let mut conversation = ConnectionParser::new(true);
    summary(&play_with(&mut conversation, &ops, 64))
}

#[test]
fn a_long_statement_that_is_executed_at_once_is_no_preparation() {
    let sql = format!("SELECT a FROM t WHERE b IN ({} $1)", "1000,".repeat(1200));
    let ending = [describe(b'P', ""), execute(""), sync()].concat();
    // The messages after the statement were captured with the operation's end, or only their own end was.
    for value in [&b"v"[..], &[b'v'; 300]] {
        for portal in ["", "named"] {
            let ending = if portal.is_empty() { ending.clone() } else { [execute(portal), sync()].concat() };
            let request = [parse("", &sql), bind(portal, "", value), ending].concat();
            let len = request.len();
            let events = of_long(&[request.clone(), request]);
            assert_eq!(events.len(), 2, "{events:?}");
            for (line, at) in events.iter().zip([1, 3]) {
                let expected = format!("SELECT SELECT t @{at} -> ok @{} complete {len}/", at + 1);
                assert!(line.starts_with(&expected), "{events:?}, not {expected}");
            }
        }
    }
    // A long value for a statement prepared before; and a request that only prepares one.
    let request = [bind("", "known", &[b'v'; 9000]), ending].concat();
    let first = [parse("known", "SELECT a FROM t"), describe(b'S', "known"), sync()].concat();
    let events = of_long(&[first, request.clone()]);
    assert!(events[1].starts_with(&format!("SELECT SELECT t @3 -> ok @4 complete {}/", request.len())), "{events:?}");
    let prepares = [parse("known", &sql), describe(b'S', "known"), sync()].concat();
    let events = of_long(&[prepares]);
    assert!(events[0].starts_with("PREPARE PREPARE SELECT t @1"), "{events:?}");
}

#[test]
fn evicted_statements_are_reported() {
    let mut ops = vec![];
    for i in 0..1027 {
        ops.push(rx(&[parse(&format!("s{i}"), "SELECT 1"), message(b'S', b"")]));
        ops.push(tx(&[message(b'1', b""), ready(b'I')]));
    }
    let events = play(&mut ConnectionParser::new(true), &ops);
    let names: u64 =
        events.iter().map(|word| if let ExchangeEvent::Forgotten { names } = word { *names } else { 0 }).sum();
    assert_eq!(names, 3);
}
