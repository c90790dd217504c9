//! Batches of records, alone and in messages.

use proptest::prelude::*;
use tracer_model::{Direction, LINKS, SpanId, TraceId};

use super::super::tests::{answers, asks, text};
use super::super::{FETCH, Kafka, PRODUCE};
use super::*;
use crate::connection_parser::tests::{Op, play};
use crate::{ConnectionParser, ExchangeEvent, Protocol as _};

/// A record: its key, the length of its value, its headers.
type Record = (Option<u8>, usize, Vec<(String, String)>);

fn varint(value: i64) -> Vec<u8> {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    let mut out = Vec::new();
    while rest > 0x7f {
        out.push(rest as u8 & 0x7f | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&varint(bytes.len() as i64)[..], bytes].concat()
}

fn encoded((key, value, headers): &Record) -> Vec<u8> {
    let key = key.map_or_else(|| varint(-1), |len| sized(&vec![b'k'; len.into()]));
    let headers: Vec<u8> =
        headers.iter().flat_map(|(name, value)| [sized(name.as_bytes()), sized(value.as_bytes())].concat()).collect();
    let front = [vec![0], varint(-70_000), varint(3), key, sized(&vec![b'v'; *value])].concat();
    front.into_iter().chain(headers).collect()
}

fn batch(attributes: i16, magic: u8, records: &[Record]) -> Vec<u8> {
    let each = records.iter().flat_map(|record| {
        let headers = record.2.len() as i64;
        let bare = encoded(&(record.0, record.1, Vec::new()));
        let rest = encoded(record).split_off(bare.len());
        sized(&[bare, varint(headers), rest].concat())
    });
    let records_bytes: Vec<u8> = each.collect();
    let count = (records.len() as i32).to_be_bytes();
    let front = [&[0; 4][..], &[magic], &[0; 4], &attributes.to_be_bytes(), &[0; 34], &count].concat();
    let len = ((front.len() + records_bytes.len()) as i32).to_be_bytes();
    [&[0; 8][..], &len, &front, &records_bytes].concat()
}

fn context(nth: u64) -> String {
    format!("00-{:032x}-{:016x}-01", nth + 1, nth + 0x100)
}

fn name(nth: u64) -> (TraceId, SpanId) {
    (TraceId(u128::from(nth) + 1), SpanId(nth + 0x100))
}

fn of(nth: u64) -> Record {
    (Some(3), 40, vec![("a".into(), "b".into()), ("traceparent".into(), context(nth))])
}

/// Links read from a partition's records when `captured` bytes of them are captured.
fn read(records: &[u8], captured: usize) -> Linked {
    let all = [&(records.len() as u32).to_be_bytes()[..], records].concat();
    let mut linked = Linked::default();
    let _ = batches(&mut KafkaReader::new(&all[..all.len().min(captured)], false), &mut linked);
    linked
}

#[test]
fn each_record_links_to_who_made_it() {
    let two = [of(1), (None, 900, Vec::new()), of(2)];
    let more = [of(2), of(3)];
    let linked = read(&[batch(0, 2, &two), batch(0x18, 2, &more)].concat(), usize::MAX);
    assert_eq!(linked, Linked { to: [1, 2, 3].map(name).to_vec(), ..Linked::default() });
    // With two of them, neither can be trusted; an invalid one links nothing.
    let twice = (None, 0, [1, 2].map(|nth| ("traceparent".into(), context(nth))).to_vec());
    let none = (None, 0, vec![("traceparent".into(), "planted".into())]);
    assert!(read(&batch(0, 2, &[twice, none]), usize::MAX).is_empty());
}

#[test]
fn what_is_compressed_or_has_no_headers_is_not_read() {
    let records = [of(1), of(2)];
    for codec in 1..=4 {
        assert_eq!(read(&batch(codec, 2, &records), usize::MAX), Linked { unread: 2, ..Linked::default() });
    }
    // Control batches, and message sets of older versions.
    for (attributes, magic) in [(0x20, 2), (0, 1), (0, 0)] {
        assert!(read(&batch(attributes, magic, &records), usize::MAX).is_empty(), "{attributes} {magic}");
    }
}

#[test]
fn links_are_limited_and_what_is_beyond_is_counted() {
    let records: Vec<Record> = (0..LINKS as u64 + 5).map(of).collect();
    let linked = read(&batch(0, 2, &records), usize::MAX);
    assert_eq!((linked.to.len(), linked.dropped, linked.unread), (LINKS, 5, 0));
}

#[test]
fn a_batch_that_a_broker_cut_is_no_ones() {
    let whole = batch(0, 2, &[of(1)]);
    let cut = batch(0, 2, &[of(2), of(3)]);
    for len in 0..cut.len() {
        let linked = read(&[&whole, &cut[..len]].concat(), usize::MAX);
        assert_eq!(linked, Linked { to: vec![name(1)], ..Linked::default() }, "{len}");
    }
}

/// PRODUCE version 3 for two topics.
fn produce(correlation: i32) -> Vec<u8> {
    let topic = |name: &str, records: &[u8]| {
        let of_topic = [&text(name)[..], &[0, 0, 0, 1], &[0, 0, 0, 7]].concat();
        [&of_topic[..], &(records.len() as u32).to_be_bytes(), records].concat()
    };
    let topics = [topic("orders", &batch(0, 2, &[of(1), of(2)])), topic("logs", &batch(0, 2, &[of(3)]))].concat();
    asks(PRODUCE, 3, correlation, &[&[0xff, 0xff, 0, 1, 0, 0, 0, 5, 0, 0, 0, 2][..], &topics].concat())
}

fn fetch(correlation: i32) -> Vec<u8> {
    let body = [&[0xff; 4][..], &[0; 13], &[0, 0, 0, 1], &text("orders")].concat();
    asks(FETCH, 4, correlation, &body)
}

/// The reply: its first partition failed.
fn fetched(correlation: i32) -> Vec<u8> {
    let partition = |error: i16, records: &[u8]| {
        let front = [&[0, 0, 0, 7][..], &error.to_be_bytes(), &[0; 16], &[0; 4]].concat();
        [&front[..], &(records.len() as u32).to_be_bytes(), records].concat()
    };
    let records = [batch(0, 2, &[of(1)]), batch(1, 2, &[of(9)]), batch(0, 2, &[of(2), of(3)])].concat();
    let partitions = [&[0, 0, 0, 2][..], &partition(6, &[]), &partition(0, &records)].concat();
    answers(correlation, &[&[0; 4][..], &[0, 0, 0, 1], &text("orders"), &partitions].concat())
}

fn links(ops: &[Op]) -> Vec<(u64, Linked)> {
    let events = play(&mut ConnectionParser::new(false), ops);
    let linked = events.into_iter().filter_map(|word| match word {
        ExchangeEvent::Linked { exchange, linked } => Some((exchange, *linked)),
        _ => None,
    });
    linked.collect()
}

#[test]
fn requests_and_replies_say_it_however_they_are_cut() {
    assert_eq!(Kafka.name(), "kafka");
    let to = [1, 2, 3].map(name).to_vec();
    let expected = [0, 1].map(|nth| (nth, Linked { to: to.clone(), unread: nth as u32, dropped: 0 }));
    let whole = [(Direction::Rx, [produce(1), fetch(2)].concat()), (Direction::Tx, fetched(2))];
    let op = |dir, bytes: &[u8]| Op { dir, bytes: bytes.to_vec(), captured: usize::MAX };
    for (which, (_, bytes)) in whole.iter().enumerate() {
        for cut in 0..bytes.len() {
            let ops = whole.iter().enumerate().flat_map(|(nth, (dir, bytes))| {
                let (front, back) = bytes.split_at(if nth == which { cut } else { 0 });
                [op(*dir, front), op(*dir, back)].into_iter().filter(|op| !op.bytes.is_empty())
            });
            assert_eq!(links(&ops.collect::<Vec<_>>()), expected, "{which} at {cut}");
        }
    }
}

proptest! {
    /// From valid batches the reader reads exactly the captured part, and never anything else.
    #[test]
    fn what_is_captured_is_read_in_order(
        records in proptest::collection::vec(
            (proptest::option::of(0..9u8), 0..300usize, any::<bool>()), 0..20),
        captured in 0..4000usize,
    ) {
        let records: Vec<Record> = records.iter().enumerate().map(|(nth, (key, value, linked))| {
            let header = linked.then(|| ("traceparent".into(), context(nth as u64)));
            (*key, *value, header.into_iter().collect())
        }).collect();
        let all = |records: &[Record]| -> Vec<_> {
            let linked = records.iter().enumerate().filter(|(_, record)| !record.2.is_empty());
            linked.map(|(nth, _)| name(nth as u64)).collect()
        };
        let bytes = batch(0, 2, &records);
        let linked = read(&bytes, captured);
        // Everything before the first uncaptured byte.
        let whole = (0..=records.len()).rev().find(|whole| batch(0, 2, &records[..*whole]).len() + 4 <= captured);
        match whole {
            Some(whole) => {
                prop_assert_eq!(linked.to, all(&records[..whole]));
                prop_assert_eq!(linked.unread as usize, records.len() - whole);
            }
            None => prop_assert!(linked.is_empty()),
        }
    }

    #[test]
    fn any_records_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), captured in 0..400usize) {
        let linked = read(&bytes, captured);
        prop_assert!(linked.to.len() <= LINKS);
        let framed = [&batch(0, 2, &[])[..57], &[0, 0, 0, 200], &bytes].concat();
        prop_assert!(read(&framed, usize::MAX).unread <= 200);
    }
}
