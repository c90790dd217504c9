//! What the store keeps and drops, and that its size stays bounded.

use std::sync::Arc;

use proptest::prelude::*;
use tracer_model::sample_span::span;
use tracer_model::{ClassInfo, ProtocolId, ServiceId};

use super::*;

/// Checks the running counts against recounts.
fn consistent(store: &Store) {
    assert_eq!(store.spans, store.traces.values().map(|kept| kept.spans.len()).sum::<usize>());
    assert_eq!(store.entries, store.classes.values().map(Class::len).sum::<usize>());
    assert_eq!(store.entries, store.traces.values().map(|kept| kept.wanted as usize).sum::<usize>());
    assert_eq!(store.recent.len(), store.traces.values().filter(|kept| kept.recent).count());
    assert!(store.traces.values().all(|kept| kept.recent || kept.wanted > 0), "held by nothing");
    assert!(store.traces.values().all(|kept| !kept.spans.is_empty() && kept.spans.len() <= UNITS));
    assert!(store.entries <= store.keep && store.recent.len() <= RECENT);
    assert!(store.spans <= store.spans_most() && store.entries <= store.keep_most());
    let [spans, wanted, _] = store.table_use();
    assert_eq!((spans.entries, wanted.entries), (store.spans as u64, store.entries as u64));
}

const ALL: Filter = Filter {
    service: None,
    class: None,
    min_ms: None,
    max_ms: None,
    range: None,
    status: None,
    limit: usize::MAX,
    order: ListOrder::Newest,
    after: None,
};

#[test]
fn the_slow_and_the_failed_outlive_the_many() {
    let (names, mut store) = (Names::default(), Store::new(0, "h", 200));
    store.take(span(1, 0, 1_000_000, false));
    store.take(span(2, 1, 5, true));
    for i in 0..10_000u64 {
        store.take(span(u128::from(i) + 10, i + 2, 10, false));
    }
    consistent(&store);
    assert!(store.len() <= RECENT + 3 * QUOTA, "{}", store.len());
    let found = store.list(&names, &ALL).rows;
    assert!(found.is_sorted_by(|a, b| a.start_ns >= b.start_ns));
    let slowest = Filter { order: ListOrder::Slowest, limit: 1, ..ALL };
    assert!((store.list(&names, &slowest).rows[0].duration_s - 0.001).abs() < 1e-9);
    for (status, count) in [("error", 1), ("5xx", 1), ("500", 1), ("4xx", 0), ("404", 0)] {
        let filter = Filter { status: Status::parse(status), ..ALL };
        assert_eq!(store.list(&names, &filter).rows.len(), count, "{status}");
    }
    assert_eq!(store.list(&names, &Filter { min_ms: Some(0.5), ..ALL }).rows.len(), 1);
    let sampled = found.iter().filter(|summary| summary.start_ns < 5000).count();
    assert!(sampled > 2, "the sample is of the whole time, not of its end: {sampled}");
}

#[test]
fn a_class_with_few_requests_keeps_its_place_beside_a_busy_one() {
    let mut store = Store::new(0, "h", 100);
    for i in 0..40_000u64 {
        let class = ClassId(u32::from(i % 1000 == 0));
        store.take(Span { class, ..span(u128::from(i), i, i % 77, true) });
    }
    consistent(&store);
    assert!(store.classes[&ClassId(1)].len() >= 3 * QUOTA - 2);
}

#[test]
fn the_slowest_of_long_ago_is_let_go() {
    let (names, mut store) = (Names::default(), Store::new(0, "h", 100));
    store.take(span(1, 0, 1_000_000_000, true));
    for i in 0..RECENT as u128 {
        store.take(span(i + 2, 5, 1, false));
    }
    store.tick(600_000_000_000);
    assert!(store.transaction(&names, TraceId(1)).is_some());
    store.tick(1_200_000_000_000);
    assert!(store.transaction(&names, TraceId(1)).is_none());
    consistent(&store);
}

#[test]
fn spans_of_a_transaction_come_together() {
    let (names, mut store) = (Names::default(), Store::new(1000, "h", 200));
    for i in 0..300 {
        // Interleaved with another transaction.
        store.take(span(7 + u128::from(i % 2), i, 1, false));
        store.take(span(7, i, 1, false));
    }
    consistent(&store);
    let spans = store.transaction(&names, TraceId(7)).unwrap();
    assert_eq!((spans.len(), store.spans_dropped), (UNITS, 450 - UNITS as u64));
    assert_eq!(store.transaction(&names, TraceId(8)).unwrap().len(), 150);
    assert_eq!(spans[0].start_ns(), 1000);
    assert!(store.transaction(&names, TraceId(9)).is_none());
}

#[test]
fn a_call_that_ended_long_before_its_request_is_still_there() {
    let (names, mut store) = (Names::default(), Store::new(0, "h", 200));
    store.take(span(1, 10, 1, false));
    for i in 0..RECENT as u128 - 2 {
        store.take(span(i + 2, 20, 5, false));
    }
    store.take(span(1, 0, 1_000_000_000, false));
    assert_eq!(store.transaction(&names, TraceId(1)).unwrap().len(), 2);
}

#[test]
fn a_row_is_the_topmost_unit_that_fits() {
    let class = |name: &str, side| ClassInfo {
        service: ServiceId(0),
        service_name: Arc::from("shop"),
        protocol: ProtocolId::Http,
        side,
        name: Arc::from(name),
        route: Arc::from(""),
    };
    let names = Names {
        services: vec![Arc::from("shop"), Arc::from("stock")],
        classes: vec![class("GET /", Side::Server), class("GET /db", Side::Client), class("GET /db", Side::Server)],
    };
    let mut store = Store::new(0, "h", 200);
    let root = span(1, 0, 9, false);
    let call = Span { class: ClassId(1), side: Side::Client, parent: Some(root.id), ..span(1, 2, 5, true) };
    let callee = Span { class: ClassId(2), service: ServiceId(1), parent: Some(call.id), ..span(1, 3, 3, true) };
    for span in [&callee, &call, &root] {
        store.take(span.clone());
    }
    let row = |service: Option<&str>, class: Option<&str>| {
        let filter = Filter { service: service.map(Into::into), class: class.map(Into::into), ..ALL };
        let found = store.list(&names, &filter).rows;
        found.first().map(|row| (row.service_name.clone(), row.start_ns, row.spans))
    };
    assert_eq!(row(None, None), Some(("shop".into(), 0, 3)));
    assert_eq!(row(Some("stock"), None), Some(("stock".into(), 3, 3)));
    assert_eq!(row(Some("shop"), Some("GET /db")), Some(("shop".into(), 2, 3)));
    assert_eq!(row(Some("nobody"), None), None);
    let spans = store.transaction(&names, TraceId(1)).unwrap();
    assert_eq!(spans[1].attributes().text("server.address"), "127.0.0.1");
    assert_eq!(spans[1].attributes().text("error.type"), "500");
}

#[test]
fn statuses_are_words_hundreds_and_codes() {
    for (text, want) in [
        ("ok", Some(Status::Ok)),
        ("error", Some(Status::Error)),
        ("5xx", Some(Status::Hundred(5))),
        ("404", Some(Status::Code(404))),
        ("", None),
        ("xx", None),
        ("55xx", None),
        ("+55", None),
        ("4040", None),
        ("bad", None),
    ] {
        assert_eq!(Status::parse(text), want, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_grows_without_bound(
        keep in 1usize..60,
        spans in proptest::collection::vec((0u128..400, 0u32..40, 0u64..2_000_000_000, any::<bool>(), 0u64..40_000_000_000), 1..3000),
        wide in any::<bool>(),
        shed in any::<bool>(),
    ) {
        let mut store = Store::new(0, "h", keep).for_memory(256 << 20);
        let mut now = 0;
        for (index, (trace, class, duration, error, step)) in spans.into_iter().enumerate() {
            now += step / 10;
            // Either few transactions with many spans, or many with one.
            let trace = if wide { trace + index as u128 * 1000 } else { trace };
            store.take(Span { class: ClassId(class), ..span(trace, now, duration, error) });
            if shed && index % 70 == 0 {
                let part = [4, 0, 1, 4, 1][index / 70 % 5];
                store.keep_part(part);
                consistent(&store);
                assert!(part > 0 || store.is_empty());
            }
            if index % 50 == 0 {
                store.tick(now);
                consistent(&store);
            }
        }
        consistent(&store);
    }
}

/// Handed out are the transactions a class selected, complete, and again when more of them was reported.
#[test]
fn noteworthy_ones_are_handed_out_when_they_stand_still() {
    const SECOND: u64 = 1_000_000_000;
    let names = Names::default();
    let mut store = Store::new(0, "h", 100);
    store.take(span(1, 10, 5, false));
    store.tick(10 * SECOND);
    assert!(store.settled(&names, true).is_none(), "none was requested");

    let mut store = Store::new(0, "h", 100);
    store.hand_out();
    store.take(span(1, SECOND, 5, false));
    store.take(span(1, SECOND + 1, 5, true));
    assert!(store.settled(&names, false).is_none(), "it may go on");
    store.tick(4 * SECOND);
    assert_eq!(store.settled(&names, false).map(|spans| spans.len()), Some(2));
    assert!(store.settled(&names, false).is_none(), "once");
    store.take(span(1, SECOND + 2, 5, false));
    assert_eq!(store.settled(&names, true).map(|spans| spans.len()), Some(3), "more of it came");
    // Hundreds of one class, none slower than the first ones: only as many as its lists hold.
    for trace in 2..500 {
        store.take(span(trace, 2 * SECOND, 1, false));
    }
    let mut saved = 0;
    while store.settled(&names, true).is_some() {
        saved += 1;
    }
    assert!((QUOTA..=2 * QUOTA).contains(&saved), "{saved}");
    assert!(store.unsettled() > 0, "some were wanted for a while only");
    consistent(&store);
}
