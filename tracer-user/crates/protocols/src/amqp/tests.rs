//! Connections as scripts of frames.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp, Verdict};

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = (payload.len() as u32).to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[text.len() as u8], text.as_bytes()].concat()
}

fn method(channel: u16, class: u16, id: u16, fields: &[u8]) -> Vec<u8> {
    frame(METHOD, channel, &[&class.to_be_bytes()[..], &id.to_be_bytes(), fields].concat())
}

/// A message's header and body, in frames of `each` bytes.
fn message(channel: u16, body: usize, each: usize, headers: &[u8]) -> Vec<u8> {
    let flags: u16 = if headers.is_empty() { 0 } else { 1 << 13 };
    let mut payload = [&60u16.to_be_bytes()[..], &[0, 0], &(body as u64).to_be_bytes(), &flags.to_be_bytes()].concat();
    if !headers.is_empty() {
        payload.extend((headers.len() as u32).to_be_bytes());
        payload.extend(headers);
    }
    let mut bytes = frame(CONTENT, channel, &payload);
    let mut left = body;
    while left > 0 {
        let some = left.min(each);
        bytes.extend(frame(BODY, channel, &vec![b'x'; some]));
        left -= some;
    }
    bytes
}

fn publish(channel: u16, exchange: &str, key: &str, body: usize) -> Vec<u8> {
    let fields = [&[0, 0][..], &text(exchange), &text(key), &[0]].concat();
    [method(channel, 60, 40, &fields), message(channel, body, 1000, &[])].concat()
}

fn deliver(channel: u16, consumer: &str, tag: u64, exchange: &str, key: &str, body: usize) -> Vec<u8> {
    let fields = [&text(consumer)[..], &tag.to_be_bytes(), &[0], &text(exchange), &text(key)].concat();
    [method(channel, 60, 60, &fields), message(channel, body, 1000, &[])].concat()
}

fn ack(channel: u16, id: u16, tag: u64, bits: u8) -> Vec<u8> {
    method(channel, 60, id, &[&tag.to_be_bytes()[..], &[bits]].concat())
}

fn consume(channel: u16, queue: &str, tag: &str, bits: u8) -> Vec<u8> {
    method(channel, 60, 20, &[&[0, 0][..], &text(queue), &text(tag), &[bits, 0, 0, 0, 0]].concat())
}

fn rx(frames: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: frames.concat(), captured: usize::MAX }
}

fn tx(frames: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(frames) }
}

fn opening() -> Vec<Op> {
    vec![
        rx(&[HEADER.to_vec()]),
        tx(&[method(0, 10, 10, b"\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US")]),
        rx(&[method(0, 10, 11, b"\0\0\0\0\x05PLAIN\0\0\0\x10\0planted\0planted\x05en_US")]),
        tx(&[method(0, 10, 30, &[0, 10, 0, 2, 0, 0, 0, 60])]),
        rx(&[method(0, 10, 31, &[0, 10, 0, 0, 16, 0, 0, 60]), method(0, 10, 40, b"\x01/\0\0")]),
        tx(&[method(0, 10, 41, &[0])]),
    ]
}

fn lines(midstream: bool, ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(midstream);
    let mut events = play(&mut conversation, ops);
    let at = Stamp { nanos: 99, ..Stamp::default() };
    conversation.closed(Closed::Both, at, None, &Settings::default(), &mut events);
    summary(&events)
}

/// A broker's view: `ops`, after the connection was opened. Bytes are left out.
fn check(ops: &[Op], expected: &[&str]) {
    let found = lines(false, &[&opening()[..], ops].concat());
    assert_eq!(found.first().map(String::as_str), Some("connect  @1 -> ok @6 complete 8/13/0 @6"), "{found:#?}");
    let plain = |line: &String| line.split(' ').filter(|word| !word.contains('/')).collect::<Vec<_>>().join(" ");
    assert_eq!(found.get(1..).unwrap_or_default().iter().map(plain).collect::<Vec<_>>(), expected);
}

#[test]
fn publications_are_confirmed_where_that_was_asked_for() {
    check(
        &[
            rx(&[publish(1, "", "queue", 2500), publish(1, "events", "user.17", 0)]),
            rx(&[method(1, 85, 10, &[0])]),
            tx(&[method(1, 85, 11, &[])]),
            rx(&[
                publish(1, "e", "k1", 1),
                publish(1, "e", "k2", 1),
                publish(1, "e", "k3", 1),
                publish(1, "e", "k4", 1),
            ]),
            tx(&[ack(1, 80, 2, 1), ack(1, 120, 3, 0)]),
        ],
        &[
            "publish queue @7 complete @7",
            "publish events:user.17 @7 complete @7",
            "confirm.select  @8 -> ok @9 complete @9",
            "publish e:k1 @10 -> ok @11 complete @11",
            "publish e:k2 @10 -> ok @11 complete @11",
            "publish e:k3 @10 -> NACK @11 complete @11",
            "publish e:k4 @10 aborted @99",
        ],
    );
}

#[test]
fn what_cannot_be_routed_comes_back() {
    let returned = [&312u16.to_be_bytes()[..], &text("NO_ROUTE"), &text("e"), &text("k1")].concat();
    check(
        &[
            rx(&[method(1, 85, 10, &[0])]),
            tx(&[method(1, 85, 11, &[])]),
            rx(&[publish(1, "e", "k1", 5), publish(1, "e", "k2", 5)]),
            tx(&[method(1, 60, 50, &returned), message(1, 5, 1000, &[]), ack(1, 80, 1, 0), ack(1, 80, 2, 0)]),
        ],
        &[
            "confirm.select  @7 -> ok @8 complete @8",
            "publish e:k1 @9 -> NO_ROUTE @10 complete @10",
            "publish e:k2 @9 -> ok @10 complete @10",
        ],
    );
}

#[test]
fn deliveries_end_by_what_the_consumer_says() {
    check(
        &[
            rx(&[consume(1, "q", "c", 0), consume(2, "q", "", 2)]),
            tx(&[method(1, 60, 21, &text("c")), method(2, 60, 21, &text("made"))]),
            tx(&[
                deliver(1, "c", 1, "e", "k.1", 2500),
                deliver(1, "c", 2, "e", "k.2", 3),
                deliver(2, "made", 1, "e", "k.3", 3),
            ]),
            tx(&[deliver(1, "c", 3, "e", "k.4", 0), deliver(1, "c", 4, "e", "k.5", 1)]),
            rx(&[ack(1, 80, 2, 1), ack(1, 90, 3, 1)]),
        ],
        &[
            "subscribe q @7 -> ok @8 complete @8",
            "subscribe q @7 -> ok @8 complete @8",
            "deliver e:k.1 @9 -> ok @11 complete @11",
            "deliver e:k.2 @9 -> ok @11 complete @11",
            "deliver e:k.3 @9 complete @9",
            "deliver e:k.4 @10 -> REJECT @11 complete @11",
            "deliver e:k.5 @10 aborted @99",
        ],
    );
}

#[test]
fn other_methods_are_units_and_channels_fail() {
    let declare = |queue: &str, bits| method(1, 50, 10, &[&[0, 0][..], &text(queue), &[bits, 0, 0, 0, 0]].concat());
    let get = method(1, 60, 70, &[&[0, 0][..], &text("q"), &[1]].concat());
    let got = [&1u64.to_be_bytes()[..], &[0], &text("e"), &text("k"), &[0, 0, 0, 0]].concat();
    let closed = [&404u16.to_be_bytes()[..], &text("NOT_FOUND - no planted queue"), &[0, 50, 0, 10]].concat();
    check(
        &[
            rx(&[method(1, 20, 10, &[0])]),
            tx(&[method(1, 20, 11, &[0, 0, 0, 0])]),
            // The second one wants no reply.
            rx(&[declare("q", 2), declare("r", 18), get.clone()]),
            tx(&[method(1, 50, 11, &[&text("q")[..], &[0; 8]].concat())]),
            tx(&[method(1, 60, 71, &got), message(1, 3000, 1000, &[])]),
            rx(&[get]),
            tx(&[method(1, 60, 72, &[0])]),
            rx(&[declare("planted", 1)]),
            tx(&[method(1, 20, 40, &closed)]),
            rx(&[method(1, 20, 41, &[])]),
        ],
        &[
            "channel.open  @7 -> ok @8 complete @8",
            "queue.declare q @9 -> ok @10 complete @10",
            "get q @9 -> ok @11 complete @11",
            "get q @12 -> ok @13 complete @13",
            "queue.declare planted @14 -> NOT_FOUND @15 complete @15",
        ],
    );
}

fn get() -> Vec<u8> {
    method(1, 60, 70, &[&[0, 0][..], &text("q"), &[0]].concat())
}

/// RabbitMQ's answer to `basic.get`.
fn got(tag: u64, body: usize) -> Vec<u8> {
    let fields = [&tag.to_be_bytes()[..], &[0], &text(""), &text("q"), &[0, 0, 0, 6]].concat();
    [method(1, 60, 71, &fields), message(1, body, 1000, &[])].concat()
}

#[test]
fn an_acknowledgement_of_what_a_get_brought_holds_nothing_up() {
    check(
        &[
            rx(&[get()]),
            tx(&[got(1, 0)]),
            // As pika sends them: each in an operation of its own.
            rx(&[ack(1, 80, 1, 0)]),
            rx(&[get()]),
            tx(&[got(2, 10)]),
            rx(&[ack(1, 80, 2, 0), get()]),
            tx(&[method(1, 60, 72, &[0])]),
            rx(&[method(1, 20, 40, &[0, 200, 0, 0, 0, 0, 0])]),
            tx(&[method(1, 20, 41, &[])]),
        ],
        &[
            "get q @7 -> ok @8 complete @8",
            "get q @10 -> ok @11 complete @11",
            "get q @12 -> ok @13 complete @13",
            "channel.close  @14 -> ok @15 complete @15",
        ],
    );
}

#[test]
fn replies_that_were_missed_move_no_later_ones() {
    check(
        &[
            rx(&[get()]),
            cap(tx(&[got(1, 10)]), 0),
            // Began while frame boundaries of the replies were unknown.
            rx(&[get()]),
            cap(tx(&[got(2, 10)]), 0),
            rx(&[get()]),
            tx(&[got(3, 10)]),
        ],
        &[
            "get q @7 unfinished @99",
            "lost Tx 68",
            "get q @9 unfinished @99",
            "lost Tx 68",
            "get q @11 -> ok @12 complete @12",
        ],
    );
}

#[test]
fn requests_that_were_missed_take_no_replies_of_others() {
    check(
        &[rx(&[get(), get()]), cap(rx(&[publish(1, "e", "hidden", 3)]), 0), tx(&[got(1, 10)]), tx(&[got(2, 10)])],
        &["get q @7 -> ok @9 complete @9", "get q @7 -> ok @10 complete @10", "lost Rx 57"],
    );
}

#[test]
fn a_connection_is_refused() {
    let mut ops = opening();
    ops.truncate(3);
    ops.push(tx(&[method(0, 10, 50, &[&403u16.to_be_bytes()[..], &text("ACCESS_REFUSED"), &[0, 0, 0, 0]].concat())]));
    let found = lines(false, &ops);
    assert!(found.len() == 1 && found[0].starts_with("connect  @1 -> ACCESS_REFUSED @4 complete"), "{found:?}");
}

#[test]
fn a_message_says_who_produced_it() {
    let context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let value = [&[b'S'][..], &(context.len() as u32).to_be_bytes(), context.as_bytes()].concat();
    let headers = [&text("n")[..], &[b'I', 0, 0, 0, 1], &text("traceparent"), &value].concat();
    let fields = [&text("c")[..], &1u64.to_be_bytes(), &[0], &text("e"), &text("k")].concat();
    let frames = [method(1, 60, 60, &fields), message(1, 3, 1000, &headers)].concat();
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[&opening()[..], &[tx(&[frames])]].concat());
    let found = events.iter().find_map(|word| match word {
        ExchangeEvent::Begun { request, .. } if *request.method == *DELIVER => request.traceparent,
        _ => None,
    });
    assert_eq!(found.unwrap().parent_id, 0xb7ad_6b71_6920_3331);
}

#[test]
fn bodies_need_not_be_captured() {
    // Frames of the negotiated length: their boundaries beyond the capture limit are inferred.
    let fields = [&[0, 0][..], &text("e"), &text("long"), &[0]].concat();
    let long = [method(1, 60, 40, &fields), message(1, 20_000, 4088, &[])].concat();
    check(
        &[
            cap(rx(std::slice::from_ref(&long)), 300),
            rx(&[publish(1, "e", "after", 3)]),
            cap(rx(&[long, publish(1, "e", "hidden", 3)]), 300),
            rx(&[publish(1, "e", "last", 3)]),
        ],
        &[
            "publish e:long @7 complete @7",
            "publish e:after @8 complete @8",
            "publish e:long @9 complete @9",
            "lost Rx 57",
            "publish e:last @10 complete @10",
        ],
    );
}

#[test]
fn a_connection_is_joined_in_its_middle() {
    let found = lines(
        true,
        &[
            rx(&[frame(HEARTBEAT, 0, &[])]),
            rx(&[publish(1, "e", "k", 3)]),
            tx(&[deliver(1, "c", 7, "e", "k", 3), deliver(1, "c", 8, "e", "k", 3)]),
            rx(&[ack(1, 80, 7, 0)]),
            tx(&[deliver(1, "c", 9, "e", "k", 3)]),
            rx(&[ack(1, 80, 9, 0)]),
        ],
    );
    let plain = |line: &String| line.split(' ').filter(|word| !word.contains('/')).collect::<Vec<_>>().join(" ");
    assert_eq!(
        found.iter().map(plain).collect::<Vec<_>>(),
        [
            "publish e:k @2 complete @2",
            "deliver e:k @3 complete @3",
            "deliver e:k @3 complete @3",
            "deliver e:k @5 -> ok @6 complete @6",
        ]
    );
}

#[test]
fn channels_are_bounded() {
    let mut frames = Frames { channels: Vec::new(), joined: false, usual: 1 };
    for id in 1..=1000 {
        frames.channel(id);
    }
    assert!(frames.channels.len() <= CHANNELS && frames.kept_bytes() < 128 * 1024, "{}", frames.kept_bytes());
}

#[test]
fn fields_of_tables_are_passed_over() {
    let table =
        [&text("a")[..], b"t\x01", &text("b"), b"F\0\0\0\x02xx", &text("traceparent"), b"S\0\0\0\x02ok"].concat();
    let bytes = [&text("text/plain")[..], &(table.len() as u32).to_be_bytes(), &table].concat();
    let found = |flags| fields::header(&mut FieldReader::new(&bytes), flags, b"traceparent");
    assert_eq!((found(1 << 15 | 1 << 13), found(1 << 15)), (Some(&b"ok"[..]), None));
}

proptest! {
    #[test]
    fn every_split_gives_the_same_events(cuts in proptest::collection::vec(1usize..60, 1..40)) {
        let mut ops = opening();
        ops.extend([
            rx(&[method(1, 85, 10, &[0]), consume(1, "q", "c", 0), publish(1, "e", "k.1", 2500)]),
            tx(&[method(1, 85, 11, &[]), method(1, 60, 21, &text("c")), ack(1, 80, 1, 0), deliver(1, "c", 1, "e", "k", 700)]),
            rx(&[ack(1, 120, 1, 0), frame(HEARTBEAT, 0, &[]), publish(1, "", "q", 0)]),
        ]);
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
                Just(HEADER.to_vec()),
                Just(method(0, 10, 41, &[0])),
                Just(method(1, 85, 10, &[0])),
                Just(publish(1, "e", "k", 2500)),
                Just(publish(1, "", "q", 0)),
                Just(deliver(1, "c", 1, "e", "k", 30)),
                Just(consume(1, "q", "c", 2)),
                Just(ack(1, 80, 1, 1)),
                Just(ack(1, 120, 1, 0)),
                Just(method(1, 60, 21, &text("c"))),
                Just(method(1, 20, 40, &[1, 148])),
                Just(method(1, 20, 41, &[])),
            ], 0usize..120),
            0..30,
        ),
        midstream: bool,
    ) {
        let (conversation, begun, done) = survive(fragments, midstream);
        prop_assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun >= done);
    }
}
