//! Contexts and requests in any order, late, twice and never.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use tracer_model::{SpanId, TraceId};

use super::*;

fn key(request: u32) -> RequestKey {
    RequestKey { opener: 77, accepting: 99, seq: request.wrapping_mul(100) }
}

fn agent(number: u64) -> Agent {
    Agent { number, host: Arc::from("far") }
}

fn given(request: u32, parent: u64, from: u64, settled: bool) -> Given {
    let context = Context {
        key: key(request),
        trace: TraceId(if settled { u128::from(parent) << 8 } else { 1 }),
        parent: SpanId(parent),
        settled,
        broadcast: false,
        trace_flags: None,
        service: Arc::from(""),
        class: Arc::from(""),
        carried: None,
        root: crate::message::ContextRoot::Unknown,
    };
    Given { context, from: agent(from) }
}

#[test]
fn either_may_come_first() {
    for context_first in [true, false] {
        let mut matches = Matches::new(16);
        if context_first {
            assert_eq!(matches.context(1, given(1, 7, 1, true), |_, _| true), Effect::Waits);
            assert_eq!(matches.span(2, key(1), 5u32, |_| true).unwrap().context.parent, SpanId(7));
        } else {
            assert!(matches.span(1, key(1), 5u32, |_| true).is_none());
            assert_eq!(matches.context(2, given(1, 7, 1, true), |_, _| true), Effect::Met(5));
        }
        assert_eq!(matches.context(3, given(1, 7, 1, true), |_, _| true), Effect::Nothing, "again");
        assert_eq!(matches.context(3, given(1, 8, 1, true), |_, _| true), Effect::Nothing, "another parent");
        assert_eq!(matches.context(3, given(1, 7, 2, true), |_, _| true), Effect::Nothing, "another agent's word");
        let outcomes = &matches.outcomes;
        assert_eq!((outcomes.matched, outcomes.duplicate, outcomes.refused), (1, 1, 2));
    }
}

#[test]
fn who_may_not_say_so_is_refused_whoever_is_first() {
    let may = |_: u32, given: &Given| given.from.number == 1;
    for liar_first in [true, false] {
        // Both before the request.
        let mut matches = Matches::new(16);
        let (mut first, mut second) = (given(1, 8, 2, true), given(1, 7, 1, false));
        if !liar_first {
            std::mem::swap(&mut first, &mut second);
        }
        assert_eq!(matches.context(1, first, may), Effect::Waits);
        assert_eq!(matches.context(1, second, may), Effect::Waits);
        assert_eq!(matches.context(1, given(1, 9, 3, true), may), Effect::Nothing, "no third");
        assert_eq!(matches.context(1, given(1, 7, 1, true), may), Effect::Waits);
        let met = matches.span(2, key(1), 5, |given| may(5, given)).unwrap();
        assert_eq!((met.context.parent, met.context.settled), (SpanId(7), true));
        let Outcomes { received, matched, settled, refused, .. } = matches.outcomes;
        assert_eq!((received, matched, settled, refused), (4, 1, 1, 2));
        assert!(matches.waiting.is_empty());
        // After it.
        assert!(matches.span(3, key(2), 6, |given| may(6, given)).is_none());
        assert_eq!(matches.context(4, given(2, 8, 2, true), may), Effect::Nothing);
        assert_eq!(matches.context(4, given(2, 7, 1, true), may), Effect::Met(6));
        assert_eq!(matches.outcomes.refused, 3);
    }
    // A false context alone; and a false and a true one for a request that is never read.
    let mut matches = Matches::new(16);
    matches.context(1, given(1, 8, 2, true), may);
    assert!(matches.span(2, key(1), 5, |given| may(5, given)).is_none());
    assert_eq!(matches.context(3, given(1, 7, 1, true), may), Effect::Met(5));
    matches.context(3, given(2, 8, 2, true), may);
    matches.context(3, given(2, 7, 1, true), may);
    matches.expire(4 + KEEP, |_| false);
    let Outcomes { matched, refused, unmatched, .. } = matches.outcomes;
    assert_eq!((matched, refused, unmatched), (1, 1, 2));
    assert!(matches.waiting.is_empty() && matches.is_empty());
}

#[test]
fn a_later_context_replaces_one_that_was_not_final() {
    let mut matches = Matches::new(16);
    matches.context(1, given(1, 7, 1, false), |_, _| true);
    assert!(!matches.span(2, key(1), 5u32, |_| true).unwrap().context.settled);
    assert_eq!(matches.context(3, given(1, 7, 1, true), |_, _| true), Effect::More(5));
    assert_eq!(matches.context(4, given(1, 7, 1, false), |_, _| true), Effect::Nothing, "overtaken by what is sure");
    matches.reported(key(1));
    assert!(matches.span(5, key(2), 6u32, |_| true).is_none());
    matches.reported(key(2));
    assert_eq!(matches.context(6, given(2, 9, 1, true), |_, _| true), Effect::Late(6));
    assert_eq!(matches.outcomes.late, 1);
}

#[test]
fn a_key_that_comes_again_is_another_request() {
    let mut matches = Matches::new(16);
    matches.context(1, given(1, 7, 1, true), |_, _| true);
    assert!(matches.span(2, key(1), 5u32, |_| true).is_some());
    // Four gigabytes later.
    assert!(matches.span(3, key(1), 6u32, |_| true).is_none());
    assert_eq!(matches.context(4, given(1, 8, 1, true), |_, _| true), Effect::Met(6));
}

#[test]
fn no_agent_takes_all_the_room() {
    let mut matches: Matches<u32> = Matches::new(16);
    for request in 0..100 {
        matches.context(1, given(request, 7, 1, true), |_, _| true);
    }
    assert_eq!((matches.len(), matches.outcomes.dropped), (8, 92));
    assert_eq!(matches.context(1, given(200, 7, 2, true), |_, _| true), Effect::Waits, "another agent finds room");
    for request in 300..400 {
        matches.span(2, key(request), request, |_| true);
    }
    assert!(matches.len() <= 16);
    matches.expire(KEEP * 3, |_| false);
    assert!(matches.is_empty() && matches.order.is_empty() && matches.waiting.is_empty());
    assert_eq!(matches.outcomes.unmatched, 9);
}

#[test]
fn whoever_says_little_is_heard_when_others_fill_the_table() {
    let mut matches: Matches<u32> = Matches::new(64);
    for (at, request) in (0..1000).enumerate() {
        // Two agents send contexts that match no request, as many as they can.
        matches.context(1, given(1000 + request, 5, 2 + at as u64 % 2, true), |_, _| true);
    }
    assert_eq!(matches.len(), 64);
    let mut met = 0;
    for request in 0..500 {
        let honest = given(request, 7, 9, true);
        assert_eq!(matches.context(2, honest, |_, _| true), Effect::Waits, "{request}");
        matches.context(2, given(5000 + request, 5, 2, true), |_, _| true);
        met += u32::from(matches.span(2, key(request), request, |_| true).is_some());
        matches.reported(key(request));
        assert!(matches.len() <= 64);
    }
    assert_eq!(met, 500);
    // A request that is being served is not evicted for a context.
    let mut matches: Matches<u32> = Matches::new(8);
    (0..8).for_each(|request| drop(matches.span(1, key(request), request, |_| true).cloned()));
    assert_eq!(matches.context(2, given(100, 7, 1, true), |_, _| true), Effect::Nothing);
    assert_eq!(matches.context(2, given(3, 7, 1, true), |_, _| true), Effect::Met(3));
}

#[test]
fn an_open_request_is_not_forgotten() {
    let mut matches = Matches::new(16);
    matches.span(1, key(1), 5u32, |_| true);
    matches.expire(KEEP * 2, |span| span == 5);
    assert_eq!(matches.context(KEEP * 2, given(1, 7, 1, true), |_, _| true), Effect::Met(5));
    matches.reported(key(1));
    matches.expire(KEEP * 4, |span| span == 5);
    assert!(matches.is_empty());
}

/// A context or a request of the schedule.
#[derive(Clone, Debug)]
enum Event {
    Context { request: u32, settled: bool },
    Span { request: u32 },
    Report { request: u32 },
    Lie { request: u32 },
    Later,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let request = 0u32..24;
    let event = prop_oneof![
        4 => (request.clone(), any::<bool>()).prop_map(|(request, settled)| Event::Context { request, settled }),
        4 => request.clone().prop_map(|request| Event::Span { request }),
        2 => request.clone().prop_map(|request| Event::Report { request }),
        1 => request.prop_map(|request| Event::Lie { request }),
        1 => Just(Event::Later),
    ];
    proptest::collection::vec(event, 0..300)
}

proptest! {
    /// Whatever is lost, duplicated or late: a request's parent is the call that was sent for it. An agent that guesses
    /// requests is believed only if no context came before; it never changes one that did.
    #[test]
    fn no_edge_is_wrong(events in events(), limit in 4usize..20) {
        let mut matches: Matches<u32> = Matches::new(limit);
        let mut now = 0;
        let mut read = HashSet::new();
        let mut parents: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut lied = HashSet::new();
        let mut contexts = 0;
        for event in events {
            now += 1;
            match event {
                Event::Context { request, settled } => {
                    contexts += 1;
                    let given = given(request, 1000 + u64::from(request), 1, settled);
                    match matches.context(now, given, |_, _| true) {
                        Effect::Met(span) | Effect::Late(span) | Effect::More(span) => {
                            prop_assert_eq!(span, request);
                            let parent = parents.entry(span).or_insert((1000 + u64::from(request), 1));
                            prop_assert_eq!(*parent, (1000 + u64::from(request), 1));
                        }
                        Effect::Waits | Effect::Nothing => {}
                    }
                }
                Event::Lie { request } => {
                    contexts += 1;
                    lied.insert(request);
                    if let Effect::Met(span) | Effect::Late(span) = matches.context(now, given(request, 5, 2, true), |_, _| true) {
                        prop_assert!(parents.insert(span, (5, 2)).is_none(), "a lie replaced the truth");
                    }
                }
                Event::Span { request } => {
                    if !read.insert(request) {
                        continue;
                    }
                    if let Some(known) = matches.span(now, key(request), request, |_| true) {
                        let parent = known.context.parent.0;
                        prop_assert!(parent == 1000 + u64::from(request) || lied.contains(&request));
                        parents.insert(request, (parent, known.from.number));
                    }
                }
                Event::Report { request } => matches.reported(key(request)),
                Event::Later => now += KEEP / 3,
            }
            matches.expire(now, |span| span % 2 == 0);
            prop_assert!(matches.len() <= limit);
            prop_assert!(matches.order.len() <= 2 * limit);
        }
        matches.expire(now + 3 * KEEP, |_| false);
        matches.expire(now + 6 * KEEP, |_| false);
        prop_assert!(matches.is_empty());
        let o = matches.outcomes;
        prop_assert_eq!(o.received, contexts);
        let ends = o.matched + o.late + o.settled + o.duplicate + o.refused + o.dropped + o.unmatched + o.elsewhere;
        prop_assert_eq!(ends, contexts, "every context has one outcome");
    }
}
