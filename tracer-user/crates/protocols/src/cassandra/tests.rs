//! Connections as scripts of envelopes, bare and in segments.

use proptest::prelude::*;
use tracer_model::Direction;

use super::envelope::{packed_segment, segment};
use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, summary, survive};
use crate::{Chunk, Closed, ConnectionParser, ExchangeEvent, Stamp, Totals};

const NUMBER: &str = "0123456789abcdef";

fn envelope(version: u8, stream: i16, kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32).to_be_bytes();
    [&[version, 0][..], &stream.to_be_bytes(), &[kind], &len, body].concat()
}

fn long_text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat()
}

fn query(stream: i16, cql: &str) -> Vec<u8> {
    envelope(4, stream, QUERY, &[&long_text(cql)[..], &[0, 1, 0]].concat())
}

fn fine(stream: i16) -> Vec<u8> {
    envelope(0x84, stream, RESULT, &[0, 0, 0, 1])
}

fn failed(stream: i16, code: u32) -> Vec<u8> {
    envelope(0x84, stream, ERROR, &[&code.to_be_bytes()[..], &text("planted")].concat())
}

/// The same in version 5.
fn newer(mut envelope: Vec<u8>) -> Vec<u8> {
    envelope[0] = envelope[0] & 0x80 | 5;
    envelope
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

/// PREPARE, its reply, its EXECUTE, the reply.
fn prepared() -> Vec<Op> {
    let prepare = envelope(4, 1, PREPARE, &long_text("SELECT * FROM items WHERE id = ?"));
    let answer = envelope(0x84, 1, RESULT, &[&PREPARED.to_be_bytes()[..], &text(NUMBER), &[0; 12]].concat());
    let execute = envelope(4, 2, EXECUTE, &[&text(NUMBER)[..], &[0, 1, 0]].concat());
    vec![rx(&[prepare]), tx(&[answer]), rx(&[execute]), tx(&[fine(2)])]
}

#[test]
fn a_session_of_version_4() {
    let mut ops = vec![
        rx(&[envelope(4, 0, OPTIONS, &[])]),
        tx(&[envelope(0x84, 0, 6, &[0, 0])]),
        rx(&[envelope(4, 0, STARTUP, &[0, 0])]),
        tx(&[envelope(0x84, 0, 3, &text("authenticator"))]),
        rx(&[envelope(4, 0, 0x0f, b"\0\0\0\x06\0a\0pwd")]),
        tx(&[envelope(0x84, 0, 0x10, &[0xff; 4])]),
        rx(&[query(1, "SELECT * FROM shop.\"Orders\" WHERE owner = 'planted'")]),
        tx(&[envelope(0x84, -1, 0x0c, &text("STATUS_CHANGE")), failed(1, 0x2200)]),
        rx(&[query(2, "INSERT INTO orders (a) VALUES ('planted')")]),
        tx(&[failed(2, 0x7777)]),
    ];
    ops.extend(prepared());
    assert_eq!(
        words(&ops),
        [
            "OPTIONS OPTIONS -> ok complete",
            "STARTUP STARTUP -> ok complete",
            "AUTHENTICATE AUTHENTICATE -> ok complete",
            "SELECT SELECT shop.Orders -> 0x2200 complete",
            "INSERT INSERT orders -> _OTHER complete",
            "PREPARE PREPARE SELECT items -> ok complete",
            "SELECT SELECT items -> ok complete",
        ]
    );
}

#[test]
fn batches_and_what_is_not_known() {
    let statement = |cql: &str| [&[0][..], &long_text(cql), &[0, 1, 0, 0, 0, 1, b'p']].concat();
    let of_prepared = [&[1][..], &text(NUMBER), &[0, 1, 0xff, 0xff, 0xff, 0xff]].concat();
    let batch = |stream, all: &[Vec<u8>]| {
        let front = [0, 0, all.len() as u8];
        envelope(4, stream, BATCH, &[&front[..], &all.concat(), &[0, 1, 0]].concat())
    };
    let insert = statement("INSERT INTO a (b) VALUES (?)");
    let mut ops = prepared();
    ops.push(rx(&[
        batch(3, &[insert.clone(), insert.clone()]),
        batch(4, &[insert, statement("DELETE FROM a WHERE b = ?")]),
        batch(5, &[of_prepared.clone(), of_prepared]),
        envelope(4, 6, EXECUTE, &[&text("unknown")[..], &[0, 1, 0]].concat()),
    ]));
    assert_eq!(
        words(&ops)[2..],
        ["BATCH INSERT BATCH INSERT a", "BATCH BATCH", "BATCH SELECT BATCH SELECT items", "unnamed", "_UNNAMED "]
    );
}

#[test]
fn flags_put_something_before_the_body() {
    let payload = [&[0, 1][..], &text("key"), &[0, 0, 0, 7], b"planted"].concat();
    let mut asked = envelope(4, 1, QUERY, &[&payload[..], &long_text("SELECT * FROM a"), &[0, 1, 0]].concat());
    asked[1] = PAYLOAD;
    let mut answer = envelope(0x84, 1, ERROR, &[&[7; 16][..], &[0, 1], &text("planted"), &[0, 0, 0x20, 0]].concat());
    answer[1] = TRACING | WARNING;
    let mut packed = [query(2, "planted"), fine(2), query(3, "planted"), failed(3, 0x2000)];
    for envelope in &mut packed {
        envelope[1] = PACKED;
    }
    let [second, second_answer, third, third_answer] = packed;
    assert_eq!(
        words(&[rx(&[asked, second, third]), tx(&[answer, second_answer, third_answer])]),
        [
            "SELECT SELECT a -> 0x2000 complete",
            "_COMPRESSED _COMPRESSED -> ok complete",
            "_COMPRESSED _COMPRESSED -> _OTHER complete",
        ]
    );
}

/// A session of version 5: segments follow the startup.
fn segmented() -> Vec<Op> {
    let two = [newer(query(1, "SELECT * FROM a")), newer(query(2, "SELECT * FROM b"))].concat();
    let answers = [newer(failed(2, 0x1100)), newer(fine(1))].concat();
    let values = "p".repeat(300_000);
    let long = newer(query(3, &format!("INSERT INTO blobs (a) VALUES ('{values}')")));
    let rows = newer(envelope(0x84, 3, RESULT, &vec![0; 200_000]));
    let parts = |bytes: &[u8]| bytes.chunks(0x1_ffff).map(|part| segment(part, false)).collect::<Vec<_>>();
    vec![
        rx(&[newer(envelope(4, 0, STARTUP, &[0, 0]))]),
        tx(&[newer(envelope(0x84, 0, 2, &[]))]),
        rx(&[segment(&two, true)]),
        tx(&[segment(&answers, true)]),
        rx(&parts(&long)),
        tx(&parts(&rows)),
        rx(&[segment(&newer(query(4, "SELECT * FROM d")), true)]),
        tx(&[segment(&newer(fine(4)), true)]),
    ]
}

const SEGMENTED: [&str; 5] = [
    "STARTUP STARTUP -> ok complete",
    "SELECT SELECT a -> ok complete",
    "SELECT SELECT b -> 0x1100 complete",
    "INSERT INSERT blobs -> ok complete",
    "SELECT SELECT d -> ok complete",
];

#[test]
fn a_session_of_version_5() {
    assert_eq!(words(&segmented()), SEGMENTED);
    // In operations of `size` bytes.
    let fragments = |size: usize, captured: usize| {
        let piece = |op: &Op| {
            op.bytes
                .chunks(size)
                .map(|bytes| cap(Op { bytes: bytes.to_vec(), ..op.clone() }, captured))
                .collect::<Vec<_>>()
        };
        words(&segmented().iter().flat_map(piece).collect::<Vec<_>>())
    };
    assert_eq!(fragments(4096, usize::MAX), SEGMENTED);
    // The boundary of a segment beyond the capture limit follows from the segments before it.
    assert_eq!(fragments(5000, 1024), SEGMENTED);
    assert_eq!(fragments(usize::MAX, 1024), SEGMENTED);
}

/// A sender need not make all segments of an envelope alike: a wrong inference is dropped, and later envelopes are
/// recognised again.
#[test]
fn segments_that_stand_elsewhere() {
    let mut ops = segmented();
    let rows = newer(envelope(0x84, 3, RESULT, &vec![0; 200_000]));
    let (front, rest) = rows.split_at(50_000);
    let (middle, rest) = rest.split_at(20_000);
    let uneven = [segment(front, false), segment(middle, false), segment(rest, false)].concat();
    ops[5] = cap(tx(&[uneven[..60_000].to_vec()]), 1024);
    // The rest begins in the middle of a segment, and contains the beginning of the next.
    let tail = uneven[60_000..].chunks(5000).map(|piece| tx(&[piece.to_vec()]));
    ops.splice(6..6, tail);
    let events = words(&ops);
    assert!(events.iter().any(|line| line == SEGMENTED[4]), "{events:?}");
    assert!(
        events.iter().all(|line| line.starts_with("lost ")
            || SEGMENTED.contains(&line.as_str())
            || line.starts_with("INSERT INSERT blobs -> ok")),
        "{events:?}"
    );
}

#[test]
fn every_cut_says_the_same() {
    let more = [rx(&[query(7, "SELECT * FROM c")]), tx(&[failed(7, 0x2000)])];
    for ops in [[&prepared()[..], &more].concat(), segmented()[..4].to_vec()] {
        let expected = words(&ops);
        assert_eq!(expected.len(), 3);
        assert_divided(&ops, words, &expected);
    }
}

#[test]
fn no_reply_goes_to_another_after_a_loss() {
    for in_segments in [false, true] {
        let wrap = |envelope: Vec<u8>| if in_segments { segment(&newer(envelope), true) } else { envelope };
        let tables = ["a", "b", "c", "d", "e", "f"];
        let mut ops = vec![rx(&[wrap(query(50, "SELECT * FROM first"))]), tx(&[wrap(fine(50))])];
        for (nth, table) in tables.iter().enumerate() {
            ops.push(rx(&[wrap(query(nth as i16, &format!("SELECT * FROM {table}")))]));
            ops.push(tx(&[wrap(failed(nth as i16, 0x1000 + nth as u32 % 4))]));
        }
        for hidden in 2..ops.len() - 1 {
            let mut conversation = ConnectionParser::new(false);
            let mut out = Vec::new();
            let mut pos = [0u64; 2];
            for (nth, op) in ops.iter().enumerate() {
                let which = usize::from(op.dir == Direction::Tx);
                let at = Stamp { nanos: (nth as u64 + 1) * 1_000_000_000, pid: 1, tid: 1, reads: 0 };
                let len = op.bytes.len() as u64;
                let chunk = Chunk {
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
                if nth != hidden {
                    conversation.bytes(&chunk, &Settings::default(), &mut out);
                }
            }
            let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 0, last_tx: 0 };
            let at = Stamp { nanos: 1 << 50, ..Stamp::default() };
            conversation.closed(Closed::Both, at, Some(totals), &Settings::default(), &mut out);
            assert!(out.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })), "{out:?}");
            let events = summary(&out);
            for (nth, table) in tables.iter().enumerate() {
                let line = events.iter().find(|line| line.starts_with(&format!("SELECT SELECT {table} ")));
                assert_eq!(line.is_some(), hidden != nth * 2 + 2, "{hidden}: {table} in {events:?}");
                let failed = format!("-> 0x{:04X} @", 0x1000 + nth % 4);
                let answered = hidden != nth * 2 + 3;
                assert!(line.is_none_or(|line| line.contains(&failed) == answered), "{hidden}: {line:?}");
            }
        }
    }
}

#[test]
fn what_is_compressed_in_segments_is_passed_over() {
    let packed = packed_segment(0x20);
    let ops = [
        rx(&[newer(envelope(4, 0, STARTUP, &[0, 0]))]),
        tx(&[newer(envelope(0x84, 0, 2, &[]))]),
        rx(&[packed.clone(), packed.clone()]),
        tx(&[packed]),
    ];
    assert_eq!(words(&ops), ["STARTUP STARTUP -> ok complete"]);
}

#[test]
fn connections_are_joined_in_their_middle() {
    for ops in [
        vec![rx(&[query(5, "SELECT * FROM a")]), tx(&[fine(5)])],
        vec![tx(&[fine(4)]), rx(&[query(5, "SELECT * FROM a")]), tx(&[fine(5)])],
        vec![rx(&[segment(&newer(query(5, "SELECT * FROM a")), true)]), tx(&[segment(&newer(fine(5)), true)])],
    ] {
        let events = summary(&play(&mut ConnectionParser::new(true), &ops));
        assert!(
            events.iter().any(|line| line.starts_with("SELECT SELECT a @") && line.contains("-> ok")),
            "{events:?}"
        );
    }
}

#[test]
fn a_reply_that_is_reported_before_its_request_waits_for_it() {
    let ops = [rx(&[query(1, "SELECT * FROM a")]), tx(&[fine(1)]), tx(&[fine(2)]), rx(&[query(2, "SELECT * FROM b")])];
    let ops = ops.map(|op| Op { dir: op.dir.flip(), ..op });
    assert_eq!(words(&ops), ["SELECT SELECT a -> ok complete", "SELECT SELECT b -> ok complete"]);
}

proptest! {
    #[test]
    fn any_bytes_do_no_harm(
        fragments in proptest::collection::vec(
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200), 0..250usize), 0..20),
    ) {
        let mut all = vec![(true, query(1, "SELECT 1"), usize::MAX)];
        all.extend(fragments);
        let (_, begun, done) = survive(all, false);
        prop_assert!(begun >= 1);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn any_bodies_do_no_harm(
        all in proptest::collection::vec(
            (0..17u8, 0..32u8, proptest::collection::vec(any::<u8>(), 0..100), any::<bool>()), 0..20),
        captured in 0..300usize,
    ) {
        let mut fragments = vec![(true, newer(query(1, "SELECT 1")), usize::MAX)];
        for (nth, (kind, flags, body, whole)) in all.into_iter().enumerate() {
            let is_reply = matches!(kind, 0 | 2 | 3 | 6 | 8 | 0x0c | 0x0e | 0x10);
            let mut bytes = envelope(if is_reply { 0x85 } else { 5 }, nth as i16 % 4, kind, &body);
            bytes[1] = flags;
            let bytes = if flags % 2 == 0 { segment(&bytes, whole) } else { bytes };
            fragments.push((!is_reply, bytes, captured));
        }
        let (_, begun, done) = survive(fragments, false);
        prop_assert_eq!(begun, done);
    }
}
