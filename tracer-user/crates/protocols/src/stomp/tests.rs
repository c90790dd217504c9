//! Connections as scripts of frames.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp};

const CONNECT_FRAME: &str = "CONNECT\naccept-version:1.2\nlogin:planted\npasscode:planted\n\n\0";
const CONNECTED: &str = "CONNECTED\nversion:1.2\n\n\0\n";

fn rx(text: &str) -> Op {
    Op { dir: Direction::Rx, bytes: text.as_bytes().to_vec(), captured: usize::MAX }
}

fn tx(text: &str) -> Op {
    Op { dir: Direction::Tx, ..rx(text) }
}

fn lines_of(mut conversation: ConnectionParser, ops: &[Op]) -> Vec<String> {
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 99, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    summary(&events)
}

/// A server's view: `ops`, after the login.
fn check(ops: &[Op], expected: &[&str]) {
    let all = [&[rx(CONNECT_FRAME), tx(CONNECTED)], ops].concat();
    let found = lines_of(ConnectionParser::new(false), &all);
    assert_eq!(found.first().map(String::as_str), Some("connect  @1 -> ok @2 complete 60/24/0 @2"), "{found:#?}");
    assert_eq!(found.get(1..).unwrap_or_default(), expected);
}

#[test]
fn messages_are_complete_when_they_were_sent_or_by_their_receipt() {
    check(
        &[
            rx(
                "SEND\ndestination:/queue/a\n\nhello\0\n\nSEND\r\ndestination:/queue/b\r\ncontent-length:3\r\n\r\na\0b\0",
            ),
            rx("SEND\ndestination:/queue/a\\cb\nreceipt:r1\n\n\0"),
            rx("SEND\ndestination:/queue/d\nreceipt:r2\n\n\0"),
            tx("RECEIPT\nreceipt-id:r2\n\n\0\n"),
            tx("RECEIPT\nreceipt-id:r1\n\n\0\n"),
        ],
        &[
            "publish /queue/a @3 complete 33/0/0 @3",
            "publish /queue/b @3 complete 52/0/0 @3",
            "publish /queue/a:b @4 -> ok @7 complete 42/24/0 @7",
            "publish /queue/d @5 -> ok @6 complete 39/24/0 @6",
        ],
    );
}

#[test]
fn bodies_end_with_a_zero_wherever_that_comes() {
    check(
        &[rx("SEND\ndestination:/a\n\nhel"), rx("lo"), rx("you\0SEND\ndestination:/b\n\n"), rx("\0")],
        &["publish /a @3 complete 30/0/0 @5", "publish /b @5 complete 22/0/0 @6"],
    );
}

fn deliver(subscription: u8, name: &str) -> String {
    format!("MESSAGE\nsubscription:{subscription}\nmessage-id:m{name}\nack:a{name}\ndestination:/q\n\nhi\0\n")
}

#[test]
fn deliveries_are_acknowledged_one_by_one_or_all_up_to_one() {
    check(
        &[
            rx(
                "SUBSCRIBE\nid:1\ndestination:/q\nack:client-individual\n\n\0SUBSCRIBE\nid:2\ndestination:/q\nack:client\n\n\0",
            ),
            rx("SUBSCRIBE\nid:3\ndestination:/q\nreceipt:s\n\n\0"),
            tx("RECEIPT\nreceipt-id:s\n\n\0\n"),
            tx(&[deliver(1, "1"), deliver(1, "2"), deliver(2, "3"), deliver(2, "4"), deliver(2, "5"), deliver(3, "6")]
                .concat()),
            rx("ACK\nid:a2\n\n\0"),
            rx("NACK\nid:a1\n\n\0ACK\nid:a4\n\n\0"),
            rx("UNSUBSCRIBE\nid:2\nreceipt:u\n\n\0"),
            tx("RECEIPT\nreceipt-id:u\n\n\0\n"),
        ],
        &[
            "subscribe /q @4 -> ok @5 complete 42/23/0 @5",
            "deliver /q @6 -> NACK @8 complete 63/13/0 @8",
            "deliver /q @6 -> ok @7 complete 63/12/0 @7",
            "deliver /q @6 -> ok @8 complete 63/6/0 @8",
            "deliver /q @6 -> ok @8 complete 63/6/0 @8",
            "deliver /q @6 aborted 63/0/0 @99",
            "deliver /q @6 complete 63/0/0 @6",
            "unsubscribe  @9 -> ok @10 complete 29/23/0 @10",
        ],
    );
}

#[test]
fn the_oldest_version_acknowledges_by_message() {
    let ops = [
        rx("CONNECT\nlogin: planted\n\n\0\n"),
        tx("CONNECTED\nsession: 1\n\n\0\n"),
        rx("SUBSCRIBE\ndestination: /q\nack: client\n\n\0\n"),
        tx("MESSAGE\ndestination: /q\nmessage-id: 7\n\nhi\0\n"),
        rx("ACK\nmessage-id: 7\ntransaction: t\n\n\0\n"),
    ];
    assert_eq!(
        lines_of(ConnectionParser::new(false), &ops),
        ["connect  @1 -> ok @2 complete 25/23/0 @2", "deliver /q @4 -> ok @5 complete 42/35/0 @5"]
    );
}

#[test]
fn errors_answer_what_they_name_or_everything() {
    check(
        &[
            rx(
                "SEND\ndestination:/a\nreceipt:1\n\n\0SEND\ndestination:/b\nreceipt:2\n\n\0BEGIN\ntransaction:t\nreceipt:3\n\n\0",
            ),
            tx("ERROR\nreceipt-id:2\nmessage:Access refused for planted\n\nplanted\0"),
            tx("ERROR\nmessage:planted\ncontent-length:2\n\n\0\0\0"),
        ],
        &[
            "publish /a @3 -> _OTHER @5 complete 32/21/0 @5",
            "publish /b @3 -> ACCESS_REFUSED @4 complete 32/63/0 @4",
            "begin  @3 -> _OTHER @5 complete 32/21/0 @5",
        ],
    );
    let found =
        lines_of(ConnectionParser::new(false), &[rx(CONNECT_FRAME), tx("ERROR\nmessage:Bad CONNECT\n\nplanted\0")]);
    assert_eq!(found, ["connect  @1 -> BAD_CONNECT @2 complete 60/35/0 @2"]);
}

#[test]
fn messages_name_what_they_belong_to() {
    let text = "SEND\ndestination:/a\ntraceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n\n\0";
    let events = play(&mut ConnectionParser::new(false), &[rx(CONNECT_FRAME), tx(CONNECTED), rx(text)]);
    let parents: Vec<bool> = events
        .iter()
        .filter_map(|word| match word {
            ExchangeEvent::Begun { request, .. } => Some(request.traceparent.is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(parents, [false, true]);
}

#[test]
fn uncaptured_bytes_are_reported_and_the_next_frame_is_found() {
    let long = "x".repeat(400);
    let sized = format!("SEND\ndestination:/a\ncontent-length:400\nreceipt:1\n\n{long}\0");
    let plain = format!("SEND\ndestination:/b\n\n{long}\0");
    let found = lines_of(
        ConnectionParser::new(false),
        &[
            rx(CONNECT_FRAME),
            tx(CONNECTED),
            // The line end after it does not matter.
            cap(rx(&(sized + "\n")), 100),
            tx("RECEIPT\nreceipt-id:1\n\n\0\n"),
            // The end of this one does not show.
            cap(rx(&plain), 100),
            rx("SEND\ndestination:/c\n\n\0"),
        ],
    );
    assert_eq!(
        found,
        [
            "connect  @1 -> ok @2 complete 60/24/0 @2",
            "publish /a @3 -> ok @4 complete 451/23/0 @4",
            "publish /b @5 complete 100/0/0 @5",
            "lost Rx 322",
            "publish /c @6 complete 22/0/0 @6",
        ]
    );
}

#[test]
fn connections_that_are_joined_in_their_middle() {
    let found = lines_of(
        ConnectionParser::new(true),
        &[
            tx("MESSAGE\nsubscription:1\nmessage-id:m\nack:a1\ndestination:/q\n\nhi\0\n"),
            rx("ACK\nid:a1\n\n\0SEND\ndestination:/a\n\nx\0"),
            rx("\n"),
            tx("\n"),
        ],
    );
    assert_eq!(found, ["deliver /q @1 -> ok @2 complete 62/12/0 @2", "publish /a @2 complete 23/0/0 @2"]);
}

#[test]
fn tls_behind_the_first_frames_is_timed() {
    let mut conversation = ConnectionParser::new(false);
    play(&mut conversation, &[rx(CONNECT_FRAME), tx(CONNECTED), rx("\x16\x03\x01\x02")]);
    assert!(conversation.awaits_text(), "{:?}", conversation.protocol());
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut frames = Stomp.framed(false).unwrap();
    let mut send = |way, text: &str| {
        frames.frame(way, text.as_bytes(), false, &|_| None, &Settings::default());
        frames.kept_bytes()
    };
    let mut most = 0;
    for i in 0..4000 {
        send(Way::Request, &format!("SUBSCRIBE\nid:{i}\ndestination:/q\nack:client\n\n\0"));
        most = most.max(send(Way::Reply, &deliver_of(i)));
    }
    assert!(most < 64 * 1024, "{most}");
}

fn deliver_of(subscription: usize) -> String {
    format!("MESSAGE\nsubscription:{subscription}\nmessage-id:{subscription}\ndestination:/q\n\n\0")
}

#[test]
fn destinations_errors_and_heads_of_all_kinds() {
    assert_eq!(frames::failure(b"not_found"), "NOT_FOUND");
    assert_eq!(frames::failure(b"planted"), "_OTHER");
    for (bytes, expected) in [
        (&b"SEND\nx y:1\n"[..], Detected::No),
        (b"SEND\n:1\n", Detected::No),
        (b"SEND\n\n\0", Detected::No),
        (b"SEND\ndest", Detected::NeedMore),
        (b"SEN", Detected::NeedMore),
        (b"SENDER\n", Detected::No),
        (b"\n", Detected::No),
        (b"\n\nERROR\nmessage:", Detected::Reply),
        (b"STOMP\r\nhost:", Detected::Request),
    ] {
        assert_eq!(Stomp.detect(bytes), expected, "{}", String::from_utf8_lossy(bytes));
    }
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..80), 0usize..90), 0..12),
        midstream: bool,
    ) {
        let mut all = vec![(true, CONNECT_FRAME.as_bytes().to_vec(), usize::MAX)];
        all.extend(fragments);
        let (_, begun, done) = survive(all, midstream);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn every_cut_of_the_stream_says_the_same(cuts in prop::collection::vec(1usize..40, 1..12)) {
        let stream = "SEND\ndestination:/a\n\nhello\0\nSEND\ndestination:/b\ncontent-length:3\n\na\0b\0\n\nSEND\r\ndestination:/c\r\n\r\n\0";
        let mut ops = vec![rx(CONNECT_FRAME), tx(CONNECTED)];
        let mut rest = stream;
        for cut in cuts {
            let (front, back) = rest.split_at(cut.min(rest.len()));
            ops.push(rx(front));
            rest = back;
        }
        ops.push(rx(rest));
        ops.retain(|op| !op.bytes.is_empty());
        let lines = lines_of(ConnectionParser::new(false), &ops);
        let plain = |line: &String| line.split(" @").map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned()).collect::<String>();
        let found: Vec<String> = lines.iter().skip(1).map(plain).collect();
        prop_assert_eq!(found, ["publish /a complete 27/0/0", "publish /b complete 42/0/0", "publish /c complete 25/0/0"]);
    }
}
