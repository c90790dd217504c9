//! Connections as scripts of messages.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, summary, survive};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp};

/// An element of any type.
fn element(kind: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [&[kind][..], name.as_bytes(), &[0], value].concat()
}

fn string(name: &str, value: &str) -> Vec<u8> {
    element(2, name, &[&(value.len() as u32 + 1).to_le_bytes()[..], value.as_bytes(), &[0]].concat())
}

fn number(name: &str, value: i32) -> Vec<u8> {
    element(0x10, name, &value.to_le_bytes())
}

fn double(name: &str, value: f64) -> Vec<u8> {
    element(1, name, &value.to_le_bytes())
}

fn document(elements: &[Vec<u8>]) -> Vec<u8> {
    let inner = elements.concat();
    [&(inner.len() as u32 + 5).to_le_bytes()[..], &inner, &[0]].concat()
}

fn message(kind: i32, id: u32, to: u32, body: &[u8]) -> Vec<u8> {
    let words = [16 + body.len() as u32, id, to, kind.cast_unsigned()];
    [&words.map(u32::to_le_bytes).concat()[..], body].concat()
}

fn op_msg(id: u32, to: u32, flags: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    message(MESSAGE, id, to, &[&flags.to_le_bytes()[..], &[0], &document(elements)].concat())
}

/// A command on a collection.
fn asks(id: u32, name: &str, collection: &str) -> Vec<u8> {
    op_msg(id, 0, 0, &[string(name, collection), string("$db", "shop")])
}

fn fine(to: u32) -> Vec<u8> {
    op_msg(90_000 + to, to, 0, &[number("n", 1), double("ok", 1.0)])
}

fn sequence(name: &str, documents: &[u8]) -> Vec<u8> {
    let len = 4 + name.len() + 1 + documents.len();
    [&[1][..], &(len as u32).to_le_bytes(), name.as_bytes(), &[0], documents].concat()
}

fn rx(bytes: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: bytes.concat(), captured: usize::MAX }
}

fn tx(bytes: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(bytes) }
}

fn events_of(midstream: bool, ops: &[Op]) -> Vec<String> {
    let mut conversation = ConnectionParser::new(midstream);
    summary(&play(&mut conversation, ops))
}

/// Exchanges without sizes and times.
fn words(ops: &[Op]) -> Vec<String> {
    let word = |line: String| {
        line.split(' ').filter(|word| !word.starts_with('@') && !word.contains('/')).collect::<Vec<_>>().join(" ")
    };
    events_of(false, ops).into_iter().map(word).collect()
}

#[test]
fn commands_and_their_collections() {
    let one = |request: Vec<u8>| {
        let events = words(&[rx(&[request]), tx(&[fine(7)])]);
        assert_eq!(events.len(), 1, "{events:?}");
        events[0].strip_suffix(" -> ok complete").unwrap_or_else(|| panic!("{events:?}")).to_owned()
    };
    assert_eq!(one(asks(7, "find", "orders")), "find find orders");
    assert_eq!(one(asks(7, "insert", "fs.chunks")), "insert insert fs.chunks");
    assert_eq!(one(asks(7, "aggregate", "logs-20240105")), "aggregate aggregate logs-?");
    assert_eq!(one(op_msg(7, 0, 0, &[number("aggregate", 1)])), "aggregate aggregate");
    let more = [element(0x12, "getMore", &[1; 8]), string("collection", "orders")];
    assert_eq!(one(op_msg(7, 0, 0, &more)), "getMore getMore orders");
    assert_eq!(one(op_msg(7, 0, 1 << 16, &[number("ping", 1)])), "ping ping");
    // The value is a user's name, or the command is unknown.
    assert_eq!(one(asks(7, "createUser", "planted")), "createUser createUser");
    assert_eq!(one(asks(7, "planted", "planted")), "_OTHER _OTHER");
    let nothing = words(&[rx(&[op_msg(7, 0, 0, &[])]), tx(&[fine(7)])]);
    assert_eq!(nothing, ["unnamed", "_UNNAMED  -> ok complete"]);
}

#[test]
fn documents_before_their_command() {
    let body = |documents: &[u8]| {
        let command = document(&[string("insert", "orders"), string("$db", "shop")]);
        message(MESSAGE, 7, 0, &[&[0; 4][..], &sequence("documents", documents), &[0], &command].concat())
    };
    let small = document(&[string("_id", "planted")]);
    assert_eq!(words(&[rx(&[body(&small)]), tx(&[fine(7)])]), ["insert insert orders -> ok complete"]);
    // Beyond the part that is read.
    assert_eq!(words(&[rx(&[body(&small.repeat(100))]), tx(&[fine(7)])]), ["insert insert -> ok complete"]);
}

#[test]
fn errors_are_numbers_that_are_known() {
    let one = |elements: &[Vec<u8>]| {
        let events = words(&[rx(&[asks(7, "update", "a")]), tx(&[op_msg(8, 7, 0, elements)])]);
        events[0].strip_prefix("update update a -> ").unwrap().strip_suffix(" complete").unwrap().to_owned()
    };
    let failed = |code| [double("ok", 0.0), string("errmsg", "planted"), number("code", code), string("codeName", "X")];
    assert_eq!(one(&failed(59)), "59");
    assert_eq!(one(&failed(11_000)), "11000");
    assert_eq!(one(&failed(5_107_200)), "_OTHER");
    assert_eq!(one(&failed(-1)), "_OTHER");
    assert_eq!(one(&[double("ok", 0.0)]), "_OTHER");
    assert_eq!(one(&[element(8, "ok", &[0]), number("code", 13)]), "13");
    let of_write = document(&[number("index", 0), number("code", 11_000), string("errmsg", "planted")]);
    let each = element(4, "writeErrors", &document(&[element(3, "0", &of_write)]));
    assert_eq!(one(&[number("n", 0), each, double("ok", 1.0)]), "11000");
    let concern = element(3, "writeConcernError", &document(&[number("code", 64)]));
    assert_eq!(one(&[number("n", 1), concern, double("ok", 1.0)]), "64");
    assert_eq!(one(&[element(4, "writeErrors", &document(&[])), double("ok", 1.0)]), "ok");
}

#[test]
fn an_old_handshake_and_what_came_before_messages() {
    let query = |collection: &str, elements: &[Vec<u8>]| {
        let front = [&[0; 4][..], collection.as_bytes(), &[0], &[0; 4], &[0xff; 4]].concat();
        message(QUERY, 7, 0, &[&front[..], &document(elements)].concat())
    };
    let reply = |elements: &[Vec<u8>]| {
        message(REPLY, 8, 7, &[&[8, 0, 0, 0][..], &[0; 12], &[1, 0, 0, 0], &document(elements)].concat())
    };
    let wrapped = element(3, "$query", &document(&[number("ismaster", 1)]));
    let ops = [
        rx(&[query("admin.$cmd", &[number("isMaster", 1)])]),
        tx(&[reply(&[element(8, "ismaster", &[1]), double("ok", 1.0)])]),
        rx(&[query("admin.$cmd", &[wrapped])]),
        tx(&[reply(&[double("ok", 0.0), number("code", 18)])]),
        rx(&[query("shop.orders", &[string("owner", "planted")])]),
        tx(&[reply(&[string("$err", "planted"), number("code", 17_280)])]),
        rx(&[message(INSERT, 9, 0, &[&[0; 4][..], b"shop.orders\0", &document(&[])].concat())]),
        rx(&[message(KILL_CURSORS, 10, 0, &[&[0; 4][..], &[1, 0, 0, 0], &[7; 8]].concat())]),
    ];
    assert_eq!(
        words(&ops),
        [
            "isMaster isMaster -> ok complete",
            "ismaster ismaster -> 18 complete",
            "find find orders -> 17280 complete",
            "insert insert orders complete",
            "killCursors killCursors complete",
        ]
    );
}

#[test]
fn replies_go_to_what_they_say_they_answer() {
    let events = events_of(
        false,
        &[
            rx(&[asks(5, "find", "a"), asks(900, "find", "b"), asks(2, "find", "c")]),
            tx(&[fine(2)]),
            tx(&[fine(900), fine(5)]),
        ],
    );
    let bytes = format!("{}/{}/{}", asks(5, "find", "a").len(), fine(5).len(), fine(5).len() - HEADER);
    assert_eq!(
        events,
        [
            format!("find find a @1 -> ok @3 complete {bytes} @3"),
            format!("find find b @1 -> ok @3 complete {bytes} @3"),
            format!("find find c @1 -> ok @2 complete {bytes} @2"),
        ]
    );
}

#[test]
fn what_wants_no_reply_is_over_when_it_is_sent() {
    let silent = op_msg(7, 0, 2, &[string("insert", "orders")]);
    assert_eq!(
        words(&[rx(&[silent]), rx(&[asks(8, "find", "a")]), tx(&[fine(8)])]),
        ["insert insert orders complete", "find find a -> ok complete"]
    );
}

#[test]
fn replies_that_follow_unasked() {
    let more = |id, to| op_msg(id, to, 2, &[number("n", 1), double("ok", 1.0)]);
    let get_more = [element(0x12, "getMore", &[1; 8]), string("collection", "a")];
    let last = op_msg(23, 22, 0, &[double("ok", 0.0), number("code", 43)]);
    let ops = [
        rx(&[op_msg(7, 0, 1 << 16, &get_more)]),
        tx(&[more(21, 7)]),
        tx(&[more(22, 21)]),
        tx(&[last]),
        rx(&[asks(8, "find", "a")]),
        tx(&[fine(8)]),
    ];
    let events = events_of(false, &ops);
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(events[0].starts_with("getMore getMore a @1 -> ok @2 = 0 43 complete"), "{events:?}");
    assert!(events[0].ends_with("@4"), "{events:?}");
    // hello: asked once, the server answers again and again.
    let ops = [
        rx(&[op_msg(7, 0, 1 << 16, &[number("hello", 1)])]),
        tx(&[more(21, 7)]),
        tx(&[more(22, 21)]),
        tx(&[more(23, 22)]),
    ];
    assert_eq!(words(&ops), ["hello hello -> ok complete"]);
}

#[test]
fn what_is_compressed_is_named_so() {
    let packed =
        |id, to| message(COMPRESSED, id, to, &[&MESSAGE.to_le_bytes()[..], &[90, 0, 0, 0, 2], b"packed"].concat());
    assert_eq!(words(&[rx(&[packed(7, 0)]), tx(&[packed(8, 7)])]), ["_COMPRESSED _COMPRESSED -> ok complete"]);
}

/// A long request, a long reply, and others after them.
fn long_ones() -> Vec<Op> {
    let rows = element(4, "firstBatch", &document(&vec![string("0", &"planted".repeat(20)); 2000]));
    let insert =
        [string("insert", "orders"), element(4, "documents", &document(&vec![string("0", "planted"); 20_000]))];
    vec![
        rx(&[op_msg(5, 0, 0, &insert)]),
        tx(&[fine(5)]),
        rx(&[asks(6, "find", "a")]),
        tx(&[op_msg(50, 6, 0, &[rows, double("ok", 1.0)])]),
        rx(&[asks(7, "count", "a")]),
        tx(&[op_msg(51, 7, 0, &[double("ok", 0.0), number("code", 26)])]),
    ]
}

const LONG_EVENTS: [&str; 3] =
    ["insert insert orders -> ok complete", "find find a -> ok complete", "count count a -> 26 complete"];

#[test]
fn lengths_lead_over_what_is_not_captured() {
    for captured in [64, 1024, 4096, usize::MAX] {
        let ops: Vec<Op> = long_ones().into_iter().map(|op| cap(op, captured)).collect();
        assert_eq!(words(&ops), LONG_EVENTS, "{captured}");
        // In operations of 8000 bytes, with the same capture limit for each.
        let fragments =
            ops.iter().flat_map(|op| op.bytes.chunks(8000).map(|bytes| Op { bytes: bytes.to_vec(), ..op.clone() }));
        assert_eq!(words(&fragments.collect::<Vec<_>>()), LONG_EVENTS, "{captured} in fragments");
        // As drivers read: headers separately.
        let apart = ops
            .iter()
            .flat_map(|op| [op.bytes[..16].to_vec(), op.bytes[16..].to_vec()].map(|bytes| Op { bytes, ..op.clone() }));
        assert_eq!(words(&apart.collect::<Vec<_>>()), LONG_EVENTS, "{captured}, headers apart");
    }
}

#[test]
fn the_rest_of_a_long_message_need_not_be_reported() {
    let mut conversation = ConnectionParser::new(false);
    let ops = long_ones();
    let front = Op { bytes: ops[0].bytes[..4096].to_vec(), ..ops[0].clone() };
    play(&mut conversation, &[front]);
    assert_eq!(conversation.want().rx_skip, ops[0].bytes.len() as u64);
}

#[test]
fn every_cut_says_the_same() {
    let ops = [
        rx(&[op_msg(1, 0, 0, &[number("hello", 1)])]),
        tx(&[fine(1)]),
        rx(&[asks(5, "find", "a"), asks(6, "find", "b")]),
        tx(&[op_msg(7, 5, 0, &[double("ok", 0.0), number("code", 26)]), fine(6)]),
    ];
    let expected = words(&ops);
    assert_eq!(expected.len(), 3);
    assert_divided(&ops, words, &expected);
}

/// Plays operations, some of which are not reported; `after`: the last stamp.
fn with_gaps(ops: &[Op], hidden: impl Fn(usize) -> bool) -> Vec<String> {
    let mut conversation = ConnectionParser::new(false);
    let mut out = Vec::new();
    let mut pos = [0u64; 2];
    for (nth, op) in ops.iter().enumerate() {
        let which = usize::from(op.dir == Direction::Tx);
        let at = Stamp { nanos: (nth as u64 + 1) * 1_000_000_000, pid: 1, tid: 1, reads: 0 };
        let len = op.bytes.len() as u64;
        let chunk = crate::Chunk {
            dir: op.dir,
            pos: pos[which],
            len,
            head: &op.bytes,
            tail: &[],
            fragments: &[],
            at,
            arrived: 0,
        };
        pos[which] += len;
        if !hidden(nth) {
            conversation.bytes(&chunk, &Settings::default(), &mut out);
        }
    }
    let totals = crate::Totals { rx: pos[0], tx: pos[1], last_rx: 0, last_tx: 0 };
    let at = Stamp { nanos: 1 << 50, ..Stamp::default() };
    conversation.closed(Closed::Both, at, Some(totals), &Settings::default(), &mut out);
    assert!(out.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })), "{out:?}");
    summary(&out)
}

#[test]
fn no_reply_goes_to_another_after_a_loss() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut ops = Vec::new();
    for (nth, name) in names.iter().enumerate() {
        let id = 100 + nth as u32;
        ops.push(rx(&[asks(id, "find", name)]));
        ops.push(tx(&[op_msg(7, id, 0, &[double("ok", 0.0), number("code", nth as i32 + 1)])]));
    }
    for hidden in 2..ops.len() - 1 {
        let events = with_gaps(&ops, |nth| nth == hidden);
        for (nth, name) in names.iter().enumerate() {
            let begin = format!("find find {name} ");
            let line = events.iter().find(|line| line.starts_with(&begin));
            if hidden == nth * 2 {
                assert_eq!(line, None, "{events:?}");
                continue;
            }
            let line = line.unwrap_or_else(|| panic!("{hidden}: {name} is not in {events:?}"));
            let failed = format!(" -> {} @", nth + 1);
            assert!(line.contains(&failed) == (hidden != nth * 2 + 1), "{hidden}: {line}");
        }
    }
}

#[test]
fn a_connection_that_is_joined_in_its_middle() {
    let rest = Op { bytes: vec![b'x'; 300], ..rx(&[]) };
    let ops = [rest, tx(&[fine(4)]), rx(&[asks(5, "find", "a")]), tx(&[fine(5)])];
    let events = events_of(true, &ops);
    assert!(events.iter().any(|line| line.starts_with("find find a @3 -> ok @4 complete")), "{events:?}");
}

#[test]
fn a_reply_that_is_reported_before_its_request_waits_for_it() {
    let flip = |op: Op| Op { dir: op.dir.flip(), ..op };
    let ops = [rx(&[asks(5, "find", "a")]), tx(&[fine(5)]), tx(&[fine(6)]), rx(&[asks(6, "find", "b")])].map(flip);
    assert_eq!(words(&ops), ["find find a -> ok complete", "find find b -> ok complete"]);
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(
        fragments in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200), 0..250usize), 0..20),
    ) {
        let mut all = vec![(true, asks(5, "find", "a"), usize::MAX)];
        all.extend(fragments);
        let (_, begun, done) = survive(all, false);
        prop_assert!(begun >= 1);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn any_documents_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200), flags in 0..4u32, captured in 0..300usize) {
        let len = (bytes.len() as u32 + 4).to_le_bytes();
        let body = [&flags.to_le_bytes()[..], &[0], &len, &bytes].concat();
        let fragments = vec![
            (true, message(MESSAGE, 5, 0, &body), captured),
            (false, message(MESSAGE, 6, 5, &body), captured),
            (true, asks(7, "find", "a"), usize::MAX),
        ];
        let (_, begun, done) = survive(fragments, true);
        prop_assert_eq!(begun, done);
    }
}
