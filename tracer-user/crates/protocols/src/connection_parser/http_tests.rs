//! HTTP/1 connections that change: tunnels, bodies that never come, requests of one line, streams left at their sentinel.

use super::tests::{Op, cap, play, play_with, summary};
use super::*;
use crate::Closed;

fn op(dir: Direction, text: &str) -> Op {
    Op { dir, bytes: text.as_bytes().to_vec(), captured: usize::MAX }
}

fn rx(text: &str) -> Op {
    op(Direction::Rx, text)
}

fn tx(text: &str) -> Op {
    op(Direction::Tx, text)
}

/// The same operations at the other end of the connection.
fn other_end(ops: &[Op]) -> Vec<Op> {
    ops.iter().map(|op| Op { dir: op.dir.flip(), ..op.clone() }).collect()
}

fn closed(conversation: &mut ConnectionParser, how: Closed, out: &mut Vec<ExchangeEvent>) {
    let at = Stamp { nanos: 99, pid: 1, tid: 1, reads: 0 };
    conversation.closed(how, at, None, &Settings::default(), out);
}

const CONNECT: &str = "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n";
const ESTABLISHED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";
const OK5: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn requests_inside_a_tunnel_are_requests_of_their_own() {
    let ops = [
        rx(CONNECT),
        tx(ESTABLISHED),
        rx("GET /a HTTP/1.1\r\nHost: h\r\n\r\n"),
        tx(OK5),
        rx("GET /b HTTP/1.1\r\nHost: h\r\n\r\n"),
        tx(OK5),
    ];
    for ops in [ops.to_vec(), other_end(&ops)] {
        let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
        assert_eq!(
            lines,
            [
                "CONNECT h:80 @1 -> 200 @2 upgraded 37/39/0 @2",
                "GET /a @3 -> 200 @4 complete 28/43/5 @4",
                "GET /b @5 -> 200 @6 complete 28/43/5 @6",
            ]
        );
    }
    // The answer and what the server behind the proxy says first in one operation.
    let pushed = "\0\0\0\x04\0\0\0\0\0";
    let ops = [rx(CONNECT), tx(&format!("{ESTABLISHED}{pushed}")), rx("GET /a HTTP/1.1\r\nHost: h\r\n\r\n")];
    let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
    assert!(lines[0].starts_with("CONNECT h:80 @1 -> 200 @2 upgraded"), "{lines:?}");
}

#[test]
fn http_2_inside_a_tunnel_goes_on_counting() {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut head = Op { captured: usize::MAX, ..rx(preface) };
    head.bytes.extend([0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x04, 2, b'/', b'a']);
    let mut reply = tx("");
    reply.bytes = vec![0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88];
    let lines = summary(&play(&mut ConnectionParser::new(false), &[rx(CONNECT), tx(ESTABLISHED), head, reply]));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].starts_with("GET /a @3 -> 200 @4 complete"), "{lines:?}");
}

/// What the server says of its table of fields is read from its first byte on.
#[test]
fn http_2_inside_a_tunnel_is_not_joined_in_its_middle() {
    let request = |stream: u8| [&[0, 0, 6, 1, 5, 0, 0, 0, stream][..], &[0x82, 0x86, 0x04, 2, b'/', b'a']].concat();
    let bytes = |op: Op, bytes: &[&[u8]]| Op { bytes: bytes.concat(), ..op };
    let ops = [
        rx(CONNECT),
        tx(ESTABLISHED),
        bytes(rx(""), &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", &request(1)]),
        // `:status: 418`, to be remembered; then the same by its place in the table.
        bytes(tx(""), &[b"\0\0\0\x04\0\0\0\0\0", &[0, 0, 5, 1, 5, 0, 0, 0, 1, 0x48, 3], b"418"]),
        bytes(rx(""), &[&request(3)]),
        bytes(tx(""), &[&[0, 0, 1, 1, 5, 0, 0, 0, 3, 0xbe]]),
    ];
    for ops in [ops.to_vec(), other_end(&ops)] {
        let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1..].iter().all(|line| line.contains("-> 418 ")), "{lines:?}");
    }
}

/// A client that takes HTTP/2 for known asks a server that does not have it.
#[test]
fn http_2_that_http_1_answers_is_a_request_with_that_status() {
    let ask = |asks: u8| {
        let mut op = rx("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        op.bytes.extend([0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x86, 0x04, 2, b'/', asks]);
        op
    };
    let refused = "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry";
    for ops in [vec![ask(b'a'), tx(refused)], other_end(&[ask(b'a'), tx(refused)])] {
        let mut conversation = ConnectionParser::new(false);
        let mut events = play(&mut conversation, &ops);
        closed(&mut conversation, Closed::Both, &mut events);
        let lines = summary(&events);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("GET /a @1 -> 505 @2 complete"), "{lines:?}");
    }
    // Whatever else answers: the request is not taken back.
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[ask(b'a'), tx("-ERR unknown command 'PRI'\r\n")]);
    closed(&mut conversation, Closed::Both, &mut events);
    assert!(!events.iter().any(|event| matches!(event, ExchangeEvent::Withdrawn { .. })), "{events:?}");
    assert!(summary(&events)[0].starts_with("GET /a @1"), "{events:?}");
}

#[test]
fn tls_inside_a_tunnel_is_tls() {
    let mut hello = rx("");
    hello.bytes = [&[0x16, 3, 1, 0, 64, 1, 0, 0, 60, 3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &[0; 24]].concat();
    for ops in [vec![rx(CONNECT), tx(ESTABLISHED), hello.clone()], other_end(&[rx(CONNECT), tx(ESTABLISHED), hello])] {
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &ops);
        assert!(conversation.awaits_text(), "{:?}", conversation.protocol());
        assert_eq!(conversation.encrypted(), Some(false), "its text comes from the first byte on");
        // The text goes on counting.
        let mut text = conversation.begin_text(false, &mut Vec::new());
        let mut inside = play(text.awake(), &[op(ops[0].dir, "GET /a HTTP/1.1\r\n\r\n")]);
        let mut all = events;
        all.append(&mut inside);
        let exchanges = all.iter().filter_map(|event| match event {
            ExchangeEvent::Begun { exchange, .. } => Some(*exchange),
            _ => None,
        });
        let exchanges: Vec<u64> = exchanges.collect();
        assert!(exchanges.windows(2).all(|pair| pair[0] < pair[1]) && exchanges.len() >= 2, "{exchanges:?}");
    }
}

#[test]
fn what_nothing_knows_inside_a_tunnel_is_left() {
    let mut ops = vec![rx(CONNECT), tx(ESTABLISHED)];
    ops.extend((0..8u8).flat_map(|n| [rx(&format!("\x01\x7f{n}zz")), tx(&format!("\x02\x7f{n}yy"))]));
    let mut conversation = ConnectionParser::new(false);
    let lines = summary(&play(&mut conversation, &ops));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(conversation.want().verdict, Verdict::Ignore);
}

#[test]
fn a_refused_body_does_not_swallow_the_next_request() {
    let expecting = |length: &str| format!("PUT /p HTTP/1.1\r\nExpect: 100-continue\r\n{length}\r\n\r\n");
    let refused = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n";
    for length in ["Content-Length: 100", "Content-Length: 1000000", "Transfer-Encoding: chunked"] {
        let ops = [rx(&expecting(length)), tx(refused), rx("GET /a HTTP/1.1\r\n\r\n"), tx(OK5)];
        for ops in [ops.to_vec(), other_end(&ops)] {
            let mut conversation = ConnectionParser::new(false);
            let head = play(&mut conversation, &ops[..1]);
            assert_eq!((conversation.want().rx_skip, conversation.want().tx_skip), (0, 0), "another request may come");
            drop(head);
            let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
            assert_eq!(lines.len(), 2, "{lines:?}");
            assert!(lines[0].contains("-> 417 @2 complete"), "{lines:?}");
            assert!(lines[1].starts_with("GET /a @3 -> 200 @4 complete"), "{lines:?}");
        }
    }
    // A client may send its body all the same.
    let ops = [rx(&expecting("Content-Length: 5")), tx(refused), rx("GET a"), rx("GET /a HTTP/1.1\r\n\r\n"), tx(OK5)];
    let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
    assert!(lines[1].starts_with("GET /a @4 -> 200 @5 complete"), "{lines:?}");
}

#[test]
fn a_line_is_a_whole_request_of_http_0_9() {
    let ops = [rx("GET /a\r\n"), tx("<html>one"), tx("two</html>")];
    for (ops, how) in [(ops.to_vec(), Closed::Local), (other_end(&ops), Closed::Remote)] {
        let mut conversation = ConnectionParser::new(false);
        let mut events = play(&mut conversation, &ops);
        closed(&mut conversation, how, &mut events);
        assert_eq!(summary(&events), ["GET /a @1 -> 65535 @2 complete 8/19/19 @3"]);
    }
    // Redis.
    let lines = summary(&play(&mut ConnectionParser::new(false), &[rx("GET /a\r\n"), tx("$3\r\nfoo\r\n")]));
    assert!(lines.iter().all(|line| !line.starts_with("GET")), "{lines:?}");
    // The beginning of a head.
    let ops = [rx("GET /a HTTP/1.1\r\n"), rx("Host: h\r\n\r\n"), tx(OK5)];
    let lines = summary(&play(&mut ConnectionParser::new(false), &ops));
    assert_eq!(lines, ["GET /a @1 -> 200 @3 complete 28/43/5 @3"]);
}

#[test]
fn a_client_that_leaves_at_the_sentinel_has_read_everything() {
    let get = "GET /v1 HTTP/1.1\r\n\r\n";
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (event, done) = ("b\r\ndata: one\n\n\r\n", "e\r\ndata: [DONE]\n\n\r\n");
    let padded = format!("{:x}\r\n{}\r\n", 900, "x".repeat(886) + "data: [DONE]\n\n");
    for (last, complete) in
        [(tx(done), true), (tx(event), false), (cap(tx(&padded), 100), true), (tx(&format!("{done}{event}")), false)]
    {
        let ops = [rx(get), tx(head), tx(event), last];
        let ops = other_end(&ops);
        let mut conversation = ConnectionParser::new(false);
        let mut events = play_with(&mut conversation, &ops, 64);
        closed(&mut conversation, Closed::Both, &mut events);
        let lines = summary(&events);
        assert_eq!(lines[0].contains(" complete "), complete, "{lines:?}");
        assert_eq!(lines[0].contains(" aborted "), !complete, "{lines:?}");
    }
}
