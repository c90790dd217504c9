//! Connections as scripts of lines.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp, Verdict};

const INFO: &[u8] = b"INFO {\"server_id\":\"NA\",\"version\":\"2.9.10\",\"headers\":true} \r\n";
const QUIET: &[u8] = b"CONNECT {\"verbose\": false,\"user\":\"planted\",\"pass\":\"planted\"}\r\nPING\r\n";
const LISTEN: &[u8] = b"SUB _INBOX.abc.* 1\r\n";

fn rx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn tx(bytes: &[u8]) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

fn lines_of(mut conversation: ConnectionParser, ops: &[Op]) -> Vec<String> {
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 99, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    summary(&events)
}

/// A server's view: `ops`, after INFO and CONNECT.
fn check(ops: &[Op], expected: &[&str]) {
    let all = [&[tx(INFO), rx(QUIET), tx(b"PONG\r\n")], ops].concat();
    let found = lines_of(ConnectionParser::new(false), &all);
    assert_eq!(found.first().map(String::as_str), Some("connect  @2 -> ok @3 complete 62/6/0 @3"), "{found:#?}");
    assert_eq!(found.get(1..).unwrap_or_default(), expected);
}

#[test]
fn publications_are_complete_when_they_were_sent() {
    check(
        &[
            rx(b"PUB orders.17 5\r\nhello\r\nPUB a 0\r\n\r\n"),
            rx(b"hpub b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"),
            rx(b"PING\r\n"),
        ],
        &[
            "publish orders.17 @4 complete 24/0/0 @4",
            "publish a @4 complete 11/0/0 @4",
            "publish b @5 complete 30/0/0 @5",
        ],
    );
}

#[test]
fn a_request_is_answered_by_a_message() {
    check(
        &[
            rx(LISTEN),
            rx(b"PUB ask.7 _INBOX.abc.1 2\r\nhi\r\n"),
            rx(b"PUB ask.8 _INBOX.abc.2 2\r\nhi\r\n"),
            tx(b"HMSG _INBOX.abc.2 1 30 30\r\nNATS/1.0 503 No Responders\r\n\r\n\r\n"),
            tx(b"MSG _INBOX.abc.1 1 3\r\nyes\r\n"),
            // This connection does not subscribe to it.
            rx(b"PUB ask.9 elsewhere 2\r\nhi\r\n"),
            rx(b"PUB ask.10 _INBOX.abc.3 2\r\nhi\r\n"),
        ],
        &[
            "request ask.7 @5 -> ok @8 complete 30/27/5 @8",
            "request ask.8 @6 -> NO_RESPONDERS @7 complete 30/59/32 @7",
            "publish ask.9 @9 complete 27/0/0 @9",
            "request ask.10 @10 aborted 31/0/0 @99",
        ],
    );
}

#[test]
fn a_delivery_is_answered_where_it_asks_for_it() {
    check(
        &[
            tx(b"MSG work.1 4 _INBOX.x.1 2\r\nhi\r\nMSG work.2 4 2\r\nhi\r\n"),
            tx(b"MSG work.3 4 $JS.ACK.S.C.1.1.1.1.0 2\r\nhi\r\nMSG work.4 4 $JS.ACK.S.C.1.2.2.1.0 2\r\nhi\r\n"),
            rx(b"PUB _INBOX.x.1 3\r\nyes\r\n"),
            rx(b"PUB $JS.ACK.S.C.1.2.2.1.0 4\r\n-NAK\r\nPUB $JS.ACK.S.C.1.1.1.1.0 0\r\n\r\n"),
            // The same message through two subscriptions, unanswered.
            tx(b"MSG work.5 4 _INBOX.x.9 2\r\nhi\r\nMSG work.5 5 _INBOX.x.9 2\r\nhi\r\n"),
        ],
        &[
            "deliver work.1 @4 -> ok @6 complete 31/23/5 @6",
            "deliver work.2 @4 complete 20/0/0 @4",
            "deliver work.3 @5 -> ok @7 complete 42/31/2 @7",
            "deliver work.4 @5 -> NAK @7 complete 42/35/6 @7",
            "deliver work.5 @8 complete 31/0/0 @8",
            "deliver work.5 @8 complete 31/0/0 @8",
        ],
    );
}

#[test]
fn pulled_messages_are_deliveries() {
    check(
        &[
            rx(LISTEN),
            rx(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.d _INBOX.abc.1 0\r\n\r\n"),
            tx(b"MSG jobs.1 1 $JS.ACK.S.d.1.1.1.9.0 2\r\nhi\r\nHMSG _INBOX.abc.1 1 32 32\r\nNATS/1.0 408 Request Timeout\r\n\r\n\r\n"),
            rx(b"PUB $JS.ACK.S.d.1.1.1.9.0 0\r\n\r\n"),
        ],
        &[
            "publish $JS.API.CONSUMER.MSG.NEXT.S.d @5 complete 52/0/0 @5",
            "deliver jobs.1 @6 -> ok @7 complete 42/31/2 @7",
        ],
    );
}

#[test]
fn verbose_servers_confirm() {
    let found = lines_of(
        ConnectionParser::new(false),
        &[
            tx(INFO),
            rx(b"CONNECT {}\r\nSUB a 1\r\nPUB a 1\r\nx\r\nPUB b 1\r\nx\r\n"),
            tx(b"+OK\r\n+OK\r\n+OK\r\nMSG a 1 1\r\nx\r\n"),
            tx(b"-ERR 'Permissions Violation for Publish to \"b\"'\r\n"),
        ],
    );
    assert_eq!(
        found,
        [
            "connect  @2 -> ok @3 complete 12/5/0 @3",
            "publish a @2 -> ok @3 complete 12/5/0 @3",
            "publish b @2 -> PERMISSIONS_VIOLATION @4 complete 12/49/0 @4",
            "deliver a @3 complete 14/0/0 @3",
        ]
    );
}

#[test]
fn a_connection_is_refused() {
    let found =
        lines_of(ConnectionParser::new(false), &[tx(INFO), rx(QUIET), tx(b"-ERR 'Authorization Violation'\r\n")]);
    assert_eq!(found, ["connect  @2 -> AUTHORIZATION_VIOLATION @3 complete 62/32/0 @3"]);
}

#[test]
fn a_message_says_who_produced_it() {
    let head = "NATS/1.0\r\nTraceParent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
    let line = format!("HMSG a.b 7 {} {}\r\n{head}hello\r\n", head.len(), head.len() + 5);
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[tx(INFO), rx(QUIET), tx(line.as_bytes())]);
    let found = events.iter().find_map(|word| match word {
        ExchangeEvent::Begun { request, side, .. } if *request.method == *DELIVER => Some((request.traceparent, *side)),
        _ => None,
    });
    let (context, side) = found.unwrap();
    assert_eq!(context.unwrap().parent_id, 0xb7ad_6b71_6920_3331);
    assert_eq!(side, tracer_model::Side::Client, "the broker asks the consumer");
}

#[test]
fn gaps_are_reported_and_the_next_message_is_found() {
    // A message whose rest was not captured, and one that began in uncaptured bytes.
    let long = [b"PUB long 3000\r\n".as_slice(), &[b'x'; 3000], b"\r\nPUB next 1\r\nx\r\n"].concat();
    check(
        &[cap(rx(&long), 100), rx(b"PUB after 1\r\nx\r\n")],
        &["publish long @4 complete 3017/0/0 @4", "lost Rx 15", "publish after @5 complete 16/0/0 @5"],
    );
    check(
        &[cap(rx(b"PUB cut 1\r\nx\r\n"), 6), rx(b"rest of it\r\nPUB after 1\r\nx\r\n")],
        &["lost Rx 14", "lost Rx 12", "publish after @5 complete 16/0/0 @5"],
    );
}

#[test]
fn a_connection_is_joined_in_its_middle() {
    let found = lines_of(
        ConnectionParser::new(true),
        &[
            tx(b"PING\r\n"),
            rx(b"PONG\r\nPUB a.b _INBOX.q.1 2\r\nhi\r\n"),
            rx(b"PUB a.b _INBOX.q.2 2\r\nhi\r\n"),
            tx(b"MSG _INBOX.q.2 1 2\r\nok\r\n"),
        ],
    );
    assert_eq!(found, ["request a.b @3 -> ok @4 complete 26/24/4 @4"]);
}

#[test]
fn too_many_requests_are_given_up_visibly() {
    let mut ops = vec![rx(LISTEN)];
    for i in 0..1100 {
        ops.push(rx(format!("PUB a _INBOX.abc.{i} 0\r\n\r\n").as_bytes()));
    }
    let all = [&[tx(INFO), rx(QUIET), tx(b"PONG\r\n")][..], &ops].concat();
    let found = lines_of(ConnectionParser::new(false), &all);
    assert_eq!(found.iter().filter(|line| *line == "crowded").count(), 1100 - 1024);
    assert_eq!(found.iter().filter(|line| line.starts_with("request a")).count(), 1100);
}

#[test]
fn verbose_is_recognised_where_the_client_asks_for_it() {
    for (options, verbose) in [
        (&b" {\"verbose\":false}"[..], false),
        (b" {\"verbose\" : false ,\"a\":1}", false),
        (b" {\"verbose\":true}", true),
        (b" {}", true),
        (b" {\"pass\":\"\\\"verbose\\\":false\"}", true),
    ] {
        assert_eq!(lines::is_verbose(options), verbose, "{}", String::from_utf8_lossy(options));
    }
}

proptest! {
    #[test]
    fn every_split_gives_the_same_events(cuts in proptest::collection::vec(1usize..40, 0..40)) {
        let ops = [
            tx(INFO),
            rx(QUIET),
            tx(b"PONG\r\n"),
            rx(b"SUB _INBOX.abc.* 1\r\nHPUB ask.7 _INBOX.abc.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB x 3\r\na\r\n\r\n"),
            tx(b"MSG work 4 $JS.ACK.a 2\r\nhi\r\nMSG _INBOX.abc.1 1 3\r\nyes\r\n"),
            rx(b"PUB $JS.ACK.a 4\r\n-NAK\r\n"),
        ];
        let plain = |line: String| line.split(' ').filter(|word| !word.starts_with('@')).collect::<Vec<_>>().join(" ");
        let of = |ops: &[Op]| lines_of(ConnectionParser::new(false), ops).into_iter().map(plain).collect::<Vec<_>>();
        let mut cuts = cuts.into_iter().cycle();
        let mut fragments = Vec::new();
        for op in &ops {
            let mut rest = op.bytes.as_slice();
            while !rest.is_empty() {
                let (front, back) = rest.split_at(cuts.next().unwrap_or(usize::MAX).min(rest.len()));
                fragments.push(Op { bytes: front.to_vec(), ..op.clone() });
                rest = back;
            }
        }
        prop_assert_eq!(of(&fragments), of(&ops));
    }

    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                Just(INFO.to_vec()),
                Just(QUIET.to_vec()),
                Just(b"CONNECT {}\r\n".to_vec()),
                Just(LISTEN.to_vec()),
                Just(b"PUB a _INBOX.abc.1 1\r\nx\r\n".to_vec()),
                Just(b"PUB $JS.ACK.1 4\r\n-NAK\r\n".to_vec()),
                Just(b"MSG a 1 $JS.ACK.1 1\r\nx\r\n".to_vec()),
                Just(b"HMSG _INBOX.abc.1 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n".to_vec()),
                Just(b"+OK\r\n".to_vec()),
                Just(b"-ERR 'x'\r\n".to_vec()),
            ], 0usize..120),
            0..30,
        ),
        midstream: bool,
    ) {
        let (conversation, begun, done) = survive(fragments, midstream);
        prop_assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun >= done);
    }
}

/// The server's first line is in the clear; a client that the server asks for TLS, or that wants it, shakes hands behind it.
#[test]
fn a_connection_goes_on_inside_tls() {
    let hello = [&[0x16, 3, 1, 0, 64, 1, 0, 0, 60, 3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &[0; 24]].concat();
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[tx(INFO), rx(&hello)]);
    assert!(conversation.awaits_text(), "{:?}", conversation.protocol());
    assert_eq!(conversation.encrypted(), Some(false), "its text comes from the first byte on");
    let mut text = conversation.begin_text(false, &mut events);
    let inside = play(text.awake(), &[rx(QUIET), tx(b"PONG\r\n"), rx(b"PUB orders.17 5\r\nhello\r\n")]);
    let found = summary(&inside);
    assert!(found.iter().any(|line| line.starts_with("publish orders.17")), "{found:#?}");
}
