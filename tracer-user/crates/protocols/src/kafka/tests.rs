//! Connections as scripts of requests and replies.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, summary, survive};
use crate::{Chunk, Closed, ConnectionParser, ExchangeEvent, Stamp, Totals};

/// Text with a 16-bit length.
pub(super) fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u16).to_be_bytes()[..], value.as_bytes()].concat()
}

/// Text with a one-byte length, as in flexible versions.
fn compact(value: &str) -> Vec<u8> {
    [&[value.len() as u8 + 1][..], value.as_bytes()].concat()
}

fn message(parts: &[&[u8]]) -> Vec<u8> {
    let bytes = parts.concat();
    [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat()
}

pub(super) fn asks(api: i16, version: i16, correlation: i32, body: &[u8]) -> Vec<u8> {
    let tags: &[u8] = if names::is_flexible(api, version) { &[0] } else { &[] };
    let head = [&api.to_be_bytes()[..], &version.to_be_bytes(), &correlation.to_be_bytes()].concat();
    message(&[&head, &text("client"), tags, body])
}

pub(super) fn answers(correlation: i32, body: &[u8]) -> Vec<u8> {
    message(&[&correlation.to_be_bytes(), body])
}

const LONG: [u8; 4] = [0, 0, 0, 5];

/// PRODUCE version 3 to one partition of a topic.
fn produce(correlation: i32, topic: &str, acks: i16, records: usize) -> Vec<u8> {
    let records = [&(records as u32).to_be_bytes()[..], &vec![b'r'; records]].concat();
    let of_topic = [&[0, 0, 0, 1][..], &text(topic), &[0, 0, 0, 1], &[0, 0, 0, 7], &records].concat();
    asks(PRODUCE, 3, correlation, &[&[0xff, 0xff][..], &acks.to_be_bytes(), &LONG, &of_topic].concat())
}

fn produced(correlation: i32, topic: &str, error: i16) -> Vec<u8> {
    let partition = [&[0, 0, 0, 7][..], &error.to_be_bytes(), &[0; 16]].concat();
    answers(correlation, &[&[0, 0, 0, 1][..], &text(topic), &[0, 0, 0, 1], &partition, &LONG].concat())
}

fn heartbeat(correlation: i32) -> Vec<u8> {
    asks(12, 1, correlation, &[text("planted-group"), LONG.to_vec(), text("planted-member")].concat())
}

fn beaten(correlation: i32, error: i16) -> Vec<u8> {
    answers(correlation, &[&LONG[..], &error.to_be_bytes()].concat())
}

fn rx(bytes: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.concat(), captured: usize::MAX }
}

fn tx(bytes: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

/// Exchanges without sizes and times.
fn words(ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(false);
    let word = |line: String| {
        line.split(' ').filter(|word| !word.starts_with('@') && !word.contains('/')).collect::<Vec<_>>().join(" ")
    };
    summary(&play(&mut conversation, ops)).into_iter().map(word).collect()
}

/// The summary of a connection's only request and its reply.
fn one(api: i16, version: i16, request: &[u8], reply: &[u8]) -> String {
    let tags: &[u8] = if names::is_flexible(api, version) && api != API_VERSIONS { &[0] } else { &[] };
    let events = words(&[rx(&[asks(api, version, 9, request)]), tx(&[answers(9, &[tags, reply].concat())])]);
    assert_eq!(events.len(), 1, "{events:?}");
    events[0].strip_suffix(" complete").unwrap_or_else(|| panic!("{events:?}")).to_owned()
}

#[test]
fn topics_and_errors_in_old_and_in_flexible_versions() {
    let partition = |error: i16| [&[0, 0, 0, 7][..], &error.to_be_bytes()].concat();
    // PRODUCE, with an error in the second partition.
    let body = [&[0, 1][..], &LONG, &[0, 0, 0, 1], &text("orders"), &[0; 4]].concat();
    let reply = [&[0, 0, 0, 1][..], &text("orders"), &[0, 0, 0, 2], &partition(0), &[0; 8], &partition(10), &[0; 8]];
    assert_eq!(one(PRODUCE, 1, &body, &reply.concat()), "Produce orders -> MESSAGE_TOO_LARGE");
    let body = [&[0][..], &[0, 1], &LONG, &[3], &compact("orders"), &[1]].concat();
    let first = [&partition(0)[..], &[0; 24], &[2], &[0; 4], &compact("x"), &[0], &compact("planted"), &[0]].concat();
    let second = [&partition(87)[..], &[0; 24], &[1], &[0], &[0]].concat();
    let reply = [&[2][..], &compact("orders"), &[3], &first, &second, &[0], &LONG, &[0]].concat();
    assert_eq!(one(PRODUCE, 9, &body, &reply), "Produce orders, … -> INVALID_RECORD");

    // FETCH: records of the first partition are skipped.
    let front = [&[0xff; 4][..], &LONG, &LONG].concat();
    let fetch = |middle: &[u8], topics: &[u8]| [&front[..], middle, topics].concat();
    let body = fetch(&[0, 0, 1, 0, 0], &[&[0, 0, 0, 1][..], &text("orders")].concat());
    let part = [&partition(0)[..], &[0; 16], &[0xff; 4], &[0, 0, 0, 3], b"rrr"].concat();
    let reply = [&LONG[..], &[0, 0, 0, 1], &text("orders"), &[0, 0, 0, 2], &part, &partition(6)].concat();
    assert_eq!(one(FETCH, 4, &body, &reply), "Fetch orders -> NOT_LEADER_OR_FOLLOWER");
    let session = [&[0; 5][..], &LONG, &[0; 4]].concat();
    let body = fetch(&session, &[&[2][..], &compact("orders")].concat());
    let part = [&partition(0)[..], &[0; 24], &[2], &[0; 16], &[0], &[0; 4], &[4], b"rrr", &[0]].concat();
    let reply = [&LONG[..], &[0, 0], &LONG, &[2], &compact("orders"), &[3], &part, &partition(1)].concat();
    assert_eq!(one(FETCH, 12, &body, &reply), "Fetch orders -> OFFSET_OUT_OF_RANGE");
    assert_eq!(one(FETCH, 12, &body, &[&LONG[..], &[0, 71]].concat()), "Fetch orders -> INVALID_FETCH_SESSION_EPOCH");
    // Topics have ids.
    let body = fetch(&session, &[&[2][..], &[0x11; 16], &[1]].concat());
    assert_eq!(one(FETCH, 13, &body, &[&LONG[..], &[0, 0], &LONG, &[1], &[0]].concat()), "Fetch  -> ok");

    // METADATA: for all topics, for one.
    let broker = [&LONG[..], &text("host"), &LONG, &[0xff, 0xff]].concat();
    let reply = [&[0, 0, 0, 1][..], &broker, &[0; 4], &[0, 0, 0, 1], &[0, 5], &text("orders")].concat();
    assert_eq!(one(METADATA, 1, &[0xff; 4], &reply), "Metadata  -> LEADER_NOT_AVAILABLE");
    let broker = [&LONG[..], &compact("host"), &LONG, &[0], &[0]].concat();
    let reply = [&LONG[..], &[2], &broker, &compact("cluster"), &LONG, &[2], &[0, 3], &compact("orders")].concat();
    let body = [&[2][..], &[0; 16], &compact("orders"), &[0], &[1, 0, 0]].concat();
    assert_eq!(one(METADATA, 12, &body, &reply), "Metadata orders -> UNKNOWN_TOPIC_OR_PARTITION");

    let body = [&text("group")[..], &LONG, &text("member"), &[0xff; 8], &[0, 0, 0, 1], &text("orders")].concat();
    let reply = [&[0, 0, 0, 1][..], &text("orders"), &[0, 0, 0, 1], &partition(22)].concat();
    assert_eq!(one(OFFSET_COMMIT, 2, &body, &reply), "OffsetCommit orders -> ILLEGAL_GENERATION");
    let body = [&[0xff; 4][..], &[0], &[0, 0, 0, 1], &text("orders")].concat();
    let reply = [&LONG[..], &[0, 0, 0, 1], &text("orders"), &[0, 0, 0, 1], &partition(43)].concat();
    assert_eq!(one(LIST_OFFSETS, 2, &body, &reply), "ListOffsets orders -> UNSUPPORTED_FOR_MESSAGE_FORMAT");
    let body = [&[2][..], &compact("new"), &LONG].concat();
    let reply = [&LONG[..], &[2], &compact("new"), &[0, 36]].concat();
    assert_eq!(one(CREATE_TOPICS, 5, &body, &reply), "CreateTopics new -> TOPIC_ALREADY_EXISTS");
    let coordinator = [&compact("planted")[..], &LONG, &compact("host"), &LONG, &[0, 15]].concat();
    let reply = [&LONG[..], &[2], &coordinator].concat();
    assert_eq!(one(10, 4, &[0, 2, 8], &reply), "FindCoordinator  -> COORDINATOR_NOT_AVAILABLE");
    assert_eq!(one(API_VERSIONS, 3, &compact("x"), &[0, 35, 0]), "ApiVersions  -> UNSUPPORTED_VERSION");
    assert_eq!(one(36, 1, b"planted", &[0, 58]), "SaslAuthenticate  -> SASL_AUTHENTICATION_FAILED");
    assert_eq!(one(12, 1, &[], &[&LONG[..], &[0x12, 0]].concat()), "Heartbeat  -> _OTHER");
}

#[test]
fn what_wants_no_reply_is_over_when_it_is_sent() {
    let ops = [rx(&[produce(0, "orders", 0, 10)]), rx(&[heartbeat(1)]), tx(&[beaten(1, 0)])];
    assert_eq!(words(&ops), ["Produce orders complete", "Heartbeat  -> ok complete"]);
}

#[test]
fn several_at_once() {
    let requests = [produce(1, "a", 1, 10), heartbeat(2), produce(3, "c", -1, 10)];
    let ops = [rx(&requests), tx(&[produced(1, "a", 0), beaten(2, 27)]), tx(&[produced(3, "c", 19)])];
    assert_eq!(
        words(&ops),
        [
            "Produce a -> ok complete",
            "Heartbeat  -> REBALANCE_IN_PROGRESS complete",
            "Produce c -> NOT_ENOUGH_REPLICAS complete",
        ]
    );
}

#[test]
fn a_session_of_fetches_keeps_its_topic() {
    let fetch = |correlation, epoch: u8, topics: &[u8]| {
        let front = [&[0xff; 4][..], &LONG, &LONG, &[0; 5], &LONG, &[0, 0, 0, epoch], topics].concat();
        asks(FETCH, 7, correlation, &front)
    };
    let fetched = |correlation| answers(correlation, &[&LONG[..], &[0, 0], &LONG, &[0; 4]].concat());
    let orders = [&[0, 0, 0, 1][..], &text("orders"), &[0; 4]].concat();
    let ops = [
        rx(&[fetch(1, 0, &orders)]),
        tx(&[fetched(1)]),
        rx(&[fetch(2, 1, &[0; 4])]),
        tx(&[fetched(2)]),
        rx(&[fetch(3, 0, &[0; 4])]),
        tx(&[fetched(3)]),
    ];
    assert_eq!(words(&ops), ["Fetch orders -> ok complete", "Fetch orders -> ok complete", "Fetch  -> ok complete"]);
}

#[test]
fn what_authenticates_by_itself_is_no_request() {
    let ops = [
        rx(&[asks(SASL_HANDSHAKE, 0, 1, &text("PLAIN"))]),
        tx(&[answers(1, &[0, 0, 0, 0, 0, 0])]),
        rx(&[message(&[b"\0planted-user\0planted-password"])]),
        tx(&[vec![0; 4]]),
        rx(&[heartbeat(2)]),
        tx(&[beaten(2, 0)]),
    ];
    assert_eq!(words(&ops), ["SaslHandshake  -> ok complete", "Heartbeat  -> ok complete"]);
}

#[test]
fn names_that_are_none_are_left_out() {
    // A topic must look like one; an unknown API has no name.
    let ops = [
        rx(&[heartbeat(1)]),
        rx(&[produce(2, "planted topic", 1, 4)]),
        rx(&[asks(500, 0, 3, b"planted")]),
        rx(&[produce(4, "logs-20240105", 1, 4)]),
    ];
    let events = words(&ops);
    assert_eq!(events, ["Heartbeat ", "Produce ", "_OTHER ", "Produce logs-?"]);
}

fn session() -> Vec<Op> {
    vec![
        rx(&[asks(API_VERSIONS, 0, 0, &[])]),
        tx(&[answers(0, &[0; 6])]),
        rx(&[produce(1, "orders", 1, 100), heartbeat(2)]),
        tx(&[produced(1, "orders", 3), beaten(2, 25)]),
    ]
}

const SESSION_EVENTS: [&str; 3] = [
    "ApiVersions  -> ok complete",
    "Produce orders -> UNKNOWN_TOPIC_OR_PARTITION complete",
    "Heartbeat  -> UNKNOWN_MEMBER_ID complete",
];

#[test]
fn every_cut_says_the_same() {
    let ops = session();
    assert_eq!(words(&ops), SESSION_EVENTS);
    assert_divided(&ops, words, &SESSION_EVENTS);
}

#[test]
fn lengths_lead_over_what_is_not_captured() {
    let ops = [
        rx(&[produce(1, "orders", 1, 300_000)]),
        rx(&[heartbeat(2)]),
        tx(&[produced(1, "orders", 0)]),
        tx(&[answers(2, &[&LONG[..], &[0, 0], &vec![0; 200_000]].concat())]),
        rx(&[heartbeat(3)]),
        tx(&[beaten(3, 0)]),
    ];
    let expected = ["Produce orders", "Heartbeat ", "Heartbeat "].map(|name| format!("{name} -> ok complete"));
    for captured in [64, 1024, usize::MAX] {
        let ops: Vec<Op> = ops.iter().cloned().map(|op| cap(op, captured)).collect();
        assert_eq!(words(&ops), expected, "{captured}");
        let piece =
            |op: &Op| op.bytes.chunks(7000).map(|bytes| Op { bytes: bytes.to_vec(), ..op.clone() }).collect::<Vec<_>>();
        assert_eq!(words(&ops.iter().flat_map(piece).collect::<Vec<_>>()), expected, "{captured} in fragments");
        // As clients read: lengths separately.
        let apart = |op: &Op| [op.bytes[..4].to_vec(), op.bytes[4..].to_vec()].map(|bytes| Op { bytes, ..op.clone() });
        assert_eq!(words(&ops.iter().flat_map(apart).collect::<Vec<_>>()), expected, "{captured}, lengths apart");
    }
}

#[test]
fn no_reply_goes_to_another_after_a_loss() {
    let topics = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut ops = vec![rx(&[heartbeat(50)]), tx(&[beaten(50, 0)])];
    for (nth, topic) in topics.iter().enumerate() {
        ops.push(rx(&[produce(100 + nth as i32, topic, 1, 20)]));
        ops.push(tx(&[produced(100 + nth as i32, topic, nth as i16 + 1)]));
    }
    for hidden in 2..ops.len() - 1 {
        let mut conversation = ConnectionParser::new(false);
        let mut out = Vec::new();
        let mut pos = [0u64; 2];
        for (nth, op) in ops.iter().enumerate() {
            let which = usize::from(op.dir == Direction::Tx);
            let at = Stamp { nanos: (nth as u64 + 1) * 1_000_000_000, pid: 1, tid: 1, reads: 0 };
            let len = op.bytes.len() as u64;
            let chunk =
                Chunk { dir: op.dir, pos: pos[which], len, head: &op.bytes, tail: &[], fragments: &[], at, arrived: 0 };
            pos[which] += len;
            if nth != hidden {
                conversation.bytes(&chunk, &Settings::default(), &mut out);
            }
        }
        let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 0, last_tx: 0 };
        let at = Stamp { nanos: 1 << 50, ..Stamp::default() };
        conversation.closed(Closed::Both, at, Some(totals), &Settings::default(), &mut out);
        assert!(out.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })), "{out:?}");
        let events = summary(&out);
        for (nth, topic) in topics.iter().enumerate() {
            let (asked, answered) = (nth * 2 + 2, nth * 2 + 3);
            let line = events.iter().find(|line| line.starts_with(&format!("Produce {topic} ")));
            assert_eq!(line.is_some(), hidden != asked, "{hidden}: {topic} in {events:?}");
            let failed = format!("-> {} @", names::error(nth as i16 + 1).unwrap());
            assert!(line.is_none_or(|line| line.contains(&failed) == (hidden != answered)), "{hidden}: {line:?}");
        }
    }
}

#[test]
fn a_connection_that_is_joined_in_its_middle() {
    let mut conversation = ConnectionParser::new(true);
    let rest = Op { bytes: vec![b'x'; 300], ..rx(&[]) };
    let ops = [rest, tx(&[beaten(4, 0)]), rx(&[produce(5, "orders", 1, 9)]), tx(&[produced(5, "orders", 0)])];
    let events = summary(&play(&mut conversation, &ops));
    assert!(events.iter().any(|line| line.starts_with("Produce orders @3 -> ok @4 complete")), "{events:?}");
}

#[test]
fn a_reply_that_is_reported_before_its_request_waits_for_it() {
    let ops = [rx(&[heartbeat(1)]), tx(&[beaten(1, 0)]), tx(&[beaten(2, 22)]), rx(&[heartbeat(2)])];
    let ops = ops.map(|op| Op { dir: op.dir.flip(), ..op });
    assert_eq!(words(&ops), ["Heartbeat  -> ok complete", "Heartbeat  -> ILLEGAL_GENERATION complete"]);
}

#[test]
fn what_is_no_request_is_not_taken_for_one() {
    // A ZooKeeper session begins with zeros, and a length that can have any value.
    let connect = message(&[&[0; 12], &[0, 0, 0x75, 0x30], &[0; 8], &[0, 0, 0, 16], &[0; 17]]);
    for bytes in
        [&connect[..], b"\0\0\0\x10\0\x03\0\0user\0a\0\0\0\0\0\0", &message(&[&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]])]
    {
        for end in 0..=bytes.len() {
            assert_ne!(Kafka.detect(&bytes[..end]), Detected::Request, "{end} of {bytes:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(
        fragments in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200), 0..250usize), 0..20),
    ) {
        let mut all = vec![(true, heartbeat(1), usize::MAX)];
        all.extend(fragments);
        let (_, begun, done) = survive(all, false);
        prop_assert!(begun >= 1);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn any_bodies_do_no_harm(
        api in 0..24i16, version in 0..16i16, body in proptest::collection::vec(any::<u8>(), 0..200),
        reply in proptest::collection::vec(0..5u8, 0..200), captured in 0..300usize,
    ) {
        let fragments = vec![
            (true, heartbeat(1), usize::MAX),
            (true, asks(api, version, 2, &body), captured),
            (false, answers(2, &reply), captured),
        ];
        let (_, begun, done) = survive(fragments, false);
        prop_assert_eq!(begun, done);
    }
}
