//! Connections as scripts of packets.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp, Verdict};

fn packet(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut len = payload.len();
    loop {
        let low = (len % 128) as u8;
        len /= 128;
        bytes.push(if len > 0 { low | 0x80 } else { low });
        if len == 0 {
            break;
        }
    }
    [&bytes, payload].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

fn connect(version: u8) -> Vec<u8> {
    let properties: &[u8] = if version == 5 { &[0] } else { &[] };
    let head = [&text("MQTT")[..], &[version, 0xc2, 0, 60], properties].concat();
    packet(0x10, &[&head[..], &text("id"), &text("planted"), &text("planted")].concat())
}

/// A message with QoS `qos`, and its packet identifier if it has one.
fn publish(topic: &str, qos: u8, id: u16, properties: Option<&[u8]>, body: usize) -> Vec<u8> {
    let mut payload = text(topic);
    if qos > 0 {
        payload.extend(id.to_be_bytes());
    }
    if let Some(properties) = properties {
        payload.push(properties.len() as u8);
        payload.extend(properties);
    }
    payload.extend(vec![b'x'; body]);
    packet(0x30 | qos << 1, &payload)
}

fn ack(first: u8, id: u16, more: &[u8]) -> Vec<u8> {
    packet(first, &[&id.to_be_bytes(), more].concat())
}

fn rx(packets: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: packets.concat(), captured: usize::MAX }
}

fn tx(packets: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(packets) }
}

fn lines(midstream: bool, ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(midstream);
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 99, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    summary(&events)
}

/// A broker's view of a client of `version`, after the login.
fn check(version: u8, ops: &[Op], expected: &[&str]) {
    let accepted = if version == 5 { packet(0x20, &[0, 0, 0]) } else { packet(0x20, &[0, 0]) };
    let found = lines(false, &[&[rx(&[connect(version)]), tx(&[accepted])], ops].concat());
    assert!(found.first().is_some_and(|line| line.starts_with("connect  @1 -> ok @2 complete")), "{found:#?}");
    assert_eq!(found.get(1..).unwrap_or_default(), expected);
}

#[test]
fn publications_end_as_their_quality_asks() {
    check(
        4,
        &[
            rx(&[publish("a/0", 0, 0, None, 300), publish("a/1", 1, 7, None, 2), publish("a/2", 2, 8, None, 2)]),
            tx(&[ack(0x40, 7, &[]), ack(0x50, 8, &[])]),
            rx(&[ack(0x62, 8, &[]), publish("a/3", 1, 9, None, 0)]),
            tx(&[ack(0x70, 8, &[])]),
        ],
        &[
            "publish a/0 @3 complete 308/0/0 @3",
            "publish a/1 @3 -> ok @4 complete 11/4/0 @4",
            "publish a/2 @3 -> ok @6 complete 15/8/0 @6",
            "publish a/3 @5 aborted 9/0/0 @99",
        ],
    );
}

#[test]
fn deliveries_and_publications_of_one_number_are_distinguished() {
    check(
        4,
        &[
            rx(&[publish("up", 1, 1, None, 1)]),
            tx(&[publish("down", 1, 1, None, 1), publish("down/0", 0, 0, None, 1), publish("down/2", 2, 2, None, 1)]),
            tx(&[ack(0x40, 1, &[])]),
            rx(&[ack(0x40, 1, &[]), ack(0x50, 2, &[])]),
            tx(&[ack(0x62, 2, &[])]),
            rx(&[ack(0x70, 2, &[])]),
        ],
        &[
            "publish up @3 -> ok @5 complete 9/4/0 @5",
            "deliver down @4 -> ok @6 complete 11/4/0 @6",
            "deliver down/0 @4 complete 11/0/0 @4",
            "deliver down/2 @4 -> ok @8 complete 17/8/0 @8",
        ],
    );
}

#[test]
fn version_five_says_why_and_names_topics_by_alias() {
    let alias = |topic, id| publish(topic, 1, id, Some(&[0x23, 0, 5]), 1);
    check(
        5,
        &[
            rx(&[alias("deep/topic", 1), alias("", 2), publish("", 1, 3, Some(&[0x23, 0, 6]), 1)]),
            tx(&[ack(0x40, 1, &[0x10]), ack(0x40, 2, &[0x97, 0]), ack(0x40, 3, &[])]),
            rx(&[publish("b", 2, 4, Some(&[]), 1)]),
            tx(&[ack(0x50, 4, &[0x87])]),
        ],
        &[
            "publish deep/topic @3 -> ok @4 complete 21/5/0 @4",
            "publish deep/topic @3 -> QUOTA_EXCEEDED @4 complete 11/6/0 @4",
            "unnamed",
            "_UNNAMED  @3 -> ok @4 complete 11/4/0 @4",
            "publish b @5 -> NOT_AUTHORIZED @6 complete 9/5/0 @6",
        ],
    );
}

#[test]
fn connections_and_subscriptions_are_answered() {
    for (version, code, word) in
        [(4, 5, "NOT_AUTHORIZED"), (4, 4, "BAD_USER_NAME_OR_PASSWORD"), (5, 0x86, "BAD_USER_NAME_OR_PASSWORD")]
    {
        let refused = if version == 5 { packet(0x20, &[0, code, 0]) } else { packet(0x20, &[0, code]) };
        let found = lines(false, &[rx(&[connect(version)]), tx(&[refused])]);
        assert!(found.len() == 1 && found[0].contains(&format!("-> {word} @2 complete")), "{found:?}");
    }
    let filter = |qos: u8| [&text("a/+/b")[..], &[qos]].concat();
    check(
        4,
        &[
            rx(&[
                packet(0x82, &[&[0, 1][..], &filter(1)].concat()),
                packet(0xa2, &[&[0, 2][..], &text("a/#")].concat()),
            ]),
            tx(&[ack(0x90, 1, &[0x80]), ack(0xb0, 2, &[])]),
            rx(&[vec![0xc0, 0]]),
            tx(&[vec![0xd0, 0]]),
        ],
        &[
            "subscribe a/+/b @3 -> UNSPECIFIED_ERROR @4 complete 12/5/0 @4",
            "unsubscribe a/# @3 -> ok @4 complete 9/4/0 @4",
        ],
    );
    check(
        5,
        &[rx(&[packet(0x82, &[&[0, 1, 0][..], &filter(1)].concat())]), tx(&[ack(0x90, 1, &[0, 0x87])])],
        &["subscribe a/+/b @3 -> NOT_AUTHORIZED @4 complete 13/6/0 @4"],
    );
}

#[test]
fn a_message_says_who_produced_it() {
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let properties = [&[0x01, 1, 0x26][..], &text("traceparent"), &text(context)].concat();
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[rx(&[connect(5)]), tx(&[publish("a", 0, 0, Some(&properties), 3)])]);
    let found = events.iter().find_map(|word| match word {
        ExchangeEvent::Begun { request, .. } if *request.method == *DELIVER => request.traceparent,
        _ => None,
    });
    assert_eq!(found.unwrap().parent_id, 0xb7ad_6b71_6920_3331);
}

#[test]
fn gaps_are_reported_and_the_next_message_is_found() {
    check(
        4,
        &[
            cap(rx(&[publish("long", 0, 0, None, 3000), publish("lost", 0, 0, None, 3)]), 100),
            rx(&[publish("after", 0, 0, None, 3)]),
        ],
        &["publish long @3 complete 3009/0/0 @3", "lost Rx 11", "publish after @4 complete 12/0/0 @4"],
    );
}

#[test]
fn which_end_is_the_client_shows_later() {
    let mut ops: Vec<Op> = (0..40).map(|_| rx(&[publish("a/b", 0, 0, None, 3)])).collect();
    let mut conversation = ConnectionParser::new(true);
    play(&mut conversation, &ops);
    assert_eq!((conversation.protocol(), conversation.want().verdict), (None, Verdict::Unknown));
    ops.extend([tx(&[vec![0xd0, 0]]), rx(&[publish("a/b", 1, 3, None, 3)]), tx(&[ack(0x40, 3, &[])])]);
    assert_eq!(lines(true, &ops), ["publish a/b @42 -> ok @43 complete 12/4/0 @43"]);
}

proptest! {
    #[test]
    fn every_split_gives_the_same_events(cuts in proptest::collection::vec(1usize..40, 1..40)) {
        let ops = [
            rx(&[connect(5)]),
            tx(&[packet(0x20, &[0, 0, 0])]),
            rx(&[publish("a/17/b", 1, 1, Some(&[0x23, 0, 1]), 200), publish("", 2, 2, Some(&[0x23, 0, 1]), 0)]),
            tx(&[ack(0x40, 1, &[]), ack(0x50, 2, &[]), publish("c", 1, 1, Some(&[]), 9)]),
            rx(&[ack(0x62, 2, &[]), ack(0x40, 1, &[0x99])]),
            tx(&[ack(0x70, 2, &[])]),
        ];
        let plain = |line: String| line.split(' ').filter(|word| !word.starts_with('@')).collect::<Vec<_>>().join(" ");
        let of = |ops: &[Op]| lines(false, ops).into_iter().map(plain).collect::<Vec<_>>();
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
                Just(connect(4)),
                Just(connect(5)),
                Just(packet(0x20, &[0, 0])),
                Just(publish("a/b", 0, 0, None, 3)),
                Just(publish("a/b", 1, 1, None, 200)),
                Just(publish("", 1, 2, Some(&[0x23, 0, 1]), 3)),
                Just(publish("a", 2, 1, Some(&[0x23, 0, 1]), 3)),
                Just(ack(0x40, 1, &[])),
                Just(ack(0x50, 1, &[0x87])),
                Just(ack(0x62, 1, &[])),
                Just(ack(0x70, 1, &[])),
                Just(vec![0xc0, 0]),
            ], 0usize..120),
            0..30,
        ),
        midstream: bool,
    ) {
        let (conversation, begun, done) = survive(fragments, midstream);
        prop_assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun >= done);
    }
}
