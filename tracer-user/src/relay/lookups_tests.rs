//! Answers and words of lookups: what is a call's, what is nobody's, and what is bounded. `transactions/lookups_afar_tests.rs`
//! plays both ends.

use std::sync::Arc;

use super::*;
use crate::model::{TraceId, UnitId};
use crate::relay::Agent;
use crate::relay::message::Context;

const MS: Nanos = 1_000_000;
/// A moment long after the start.
const NOW: Nanos = 1_000_000 * MS;

fn client() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn key(question: u64) -> Key {
    Key::of_lookup(question, 4000)
}

fn answer(unit: u32, read: Nanos, told: Nanos) -> Answer<u32> {
    Answer { unit: Some(unit), tgid: 7, read, told }
}

/// A call of `question` whose answer was read at `told`, by a clock that is an hour behind.
fn word(question: u64, parent: u64, told: Nanos, sent: u8) -> Given {
    let told = told.wrapping_sub(3_600_000 * MS);
    let context = Context {
        key: key(question),
        trace: TraceId(u128::from(parent)),
        parent: UnitId(parent),
        settled: false,
        broadcast: false,
        sampled: None,
        service: "".into(),
        class: "".into(),
        carried: None,
        lookup: Some(Lookup { asker: Asker::Known(client()), told, sent }),
    };
    Given { context, from: Agent { number: 1, host: Arc::from("far") } }
}

/// What is found by `at`: units and parents.
fn found(lookups: &mut Lookups<u32>, at: Nanos) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    lookups.decide(at, &mut found);
    let met = |found| match found {
        Found::Met(unit, given) => (unit, given.context.parent.0),
        other => panic!("{other:?}"),
    };
    found.into_iter().map(met).collect()
}

#[test]
fn an_answer_is_the_calls_that_read_it() {
    for word_first in [true, false] {
        let mut lookups = Lookups::new(64);
        for first in [word_first, !word_first] {
            if first {
                assert!(lookups.word(NOW + 5 * MS, word(1, 9, NOW + MS, 1)).is_empty());
            } else {
                lookups.answered(NOW + 6 * MS, client(), key(1), answer(5, NOW - MS, NOW));
            }
        }
        assert_eq!(found(&mut lookups, NOW + 20 * MS), [], "all of its time is to be known first");
        assert_eq!(found(&mut lookups, NOW + 60 * MS), [(5, 9)]);
        assert!(lookups.word(NOW + 70 * MS, word(1, 9, NOW + MS, 1)).is_empty());
        assert!(lookups.word(NOW + 70 * MS, word(1, 8, NOW + MS, 1)).is_empty(), "somebody else's");
        let mut settled = word(1, 9, NOW + MS, 1);
        (settled.context.settled, settled.context.trace) = (true, TraceId(77));
        assert_eq!(lookups.word(NOW + 70 * MS, settled.clone()).as_slice(), [Found::More(5, settled.clone())]);
        lookups.reported(client(), key(1), |unit| *unit == 5);
        settled.context.trace = TraceId(78);
        assert_eq!(lookups.word(NOW + 70 * MS, settled.clone()).as_slice(), [Found::Late(5, settled)]);
        let outcomes = lookups.outcomes;
        assert_eq!((outcomes.received, outcomes.matched, outcomes.settled), (5, 1, 2));
        assert_eq!((outcomes.duplicate, outcomes.refused), (1, 1));
    }
}

#[test]
fn others_are_not_it() {
    let other: IpAddr = [10, 0, 0, 2].into();
    for (client, key) in [(other, key(1)), (client(), key(2)), (client(), Key::of_lookup(1, 4001))] {
        let mut lookups = Lookups::new(64);
        lookups.answered(NOW, client, key, answer(5, NOW - MS, NOW));
        lookups.word(NOW + 2 * MS, word(1, 9, NOW + MS, 1));
        assert_eq!(found(&mut lookups, NOW + 1000 * MS), []);
        lookups.expire(NOW + 20_000 * MS);
        assert_eq!((lookups.outcomes.unmatched, lookups.len()), (1, 0));
    }
    // Whom nobody can know is not looked for.
    let mut lookups: Lookups<u32> = Lookups::new(64);
    let mut unknown = word(1, 9, NOW, 1);
    unknown.context.lookup = Some(Lookup { asker: Asker::Unknown, told: 0, sent: 1 });
    lookups.word(NOW, unknown);
    assert_eq!((lookups.outcomes.unmatched, lookups.len()), (1, 0));
}

#[test]
fn of_what_was_asked_again_only_what_was_read_before_the_first_answer_is_sure() {
    // Read and written (milliseconds), times it was asked, and which are its.
    type Case = (&'static [(u64, u64)], u8, &'static [u32]);
    let cases: [Case; 7] = [
        (&[(1, 2)], 1, &[0]),
        (&[(1, 9), (2, 8)], 2, &[0, 1]),
        // The second was read after the first answer: it can be the next call's.
        (&[(1, 5), (6, 8)], 2, &[0]),
        (&[(6, 8), (1, 5)], 2, &[1]),
        // More than it asked: somebody else did.
        (&[(1, 9), (2, 8)], 1, &[]),
        // Written after its answer was read, or too long ago.
        (&[(21, 22), (1, 2)], 1, &[1]),
        (&[(21, 22)], 1, &[]),
    ];
    for (answers, sent, of_it) in cases {
        let mut lookups = Lookups::new(64);
        lookups.word(NOW + 20 * MS, word(1, 9, NOW + 19 * MS, sent));
        for (unit, (read, told)) in (0..).zip(answers) {
            lookups.answered(NOW + 22 * MS, client(), key(1), answer(unit, NOW + read * MS, NOW + told * MS));
        }
        let units: Vec<u32> = found(&mut lookups, NOW + 100 * MS).into_iter().map(|(unit, _)| unit).collect();
        assert_eq!(units, of_it, "{answers:?} {sent}");
    }
    // To which question it is is not known.
    let mut lookups = Lookups::new(64);
    lookups.answered(NOW, client(), key(1), answer(5, NOW - MS, NOW));
    lookups.answered(NOW, client(), key(1), Answer { unit: None, read: 0, ..answer(5, 0, NOW) });
    lookups.word(NOW + 2 * MS, word(1, 9, NOW + MS, 2));
    assert_eq!((found(&mut lookups, NOW + 100 * MS).len(), lookups.unclear), (0, 1));
}

#[test]
fn nothing_is_matched_around_a_loss_or_a_contradiction() {
    for (process, sure) in [(Some(7), false), (None, false), (Some(8), true)] {
        let mut lookups = Lookups::new(64);
        lookups.lose(NOW - MS, process);
        lookups.answered(NOW, client(), key(1), answer(5, NOW - MS, NOW));
        lookups.word(NOW + 2 * MS, word(1, 9, NOW + MS, 1));
        assert_eq!(found(&mut lookups, NOW + 100 * MS).len(), usize::from(sure), "{process:?}");
        // And again when it is over.
        let later = NOW + WINDOW + 50 * MS;
        lookups.answered(later, client(), key(2), answer(6, later - MS, later));
        lookups.word(later + 2 * MS, word(2, 8, later + MS, 1));
        assert_eq!(found(&mut lookups, later + 100 * MS), [(6, 8)]);
    }
    let mut lookups = Lookups::new(64);
    lookups.answered(NOW, client(), key(1), answer(5, NOW - MS, NOW));
    lookups.word(NOW + 2 * MS, word(1, 9, NOW + MS, 1));
    lookups.word(NOW + 2 * MS, word(1, 8, NOW + MS, 1));
    assert_eq!(found(&mut lookups, NOW + 100 * MS), [], "two calls by one name");
}

#[test]
fn a_word_that_was_held_up_is_not_the_next_calls() {
    let mut lookups = Lookups::new(64);
    // How quick its words are.
    lookups.answered(NOW, client(), key(1), answer(1, NOW - MS, NOW));
    lookups.word(NOW + 2 * MS, word(1, 9, NOW + MS, 1));
    assert_eq!(found(&mut lookups, NOW + 100 * MS), [(1, 9)]);
    // Its own answer is not known any more, a later one is.
    let later = NOW + 30_000 * MS;
    lookups.answered(later, client(), key(2), answer(2, later - MS, later));
    lookups.word(later + 2 * MS, word(2, 8, later - 8000 * MS, 1));
    assert_eq!(found(&mut lookups, later + 1000 * MS), []);
    // As quick as the first.
    lookups.word(later + 3 * MS, word(2, 7, later + 2 * MS, 1));
    assert_eq!(lookups.outcomes.refused, 1, "the other still waits");
}

#[test]
fn the_same_asked_again_long_after_is_told_apart() {
    let mut lookups = Lookups::new(64);
    for round in 0..9u32 {
        let at = NOW + Nanos::from(round) * 2 * WINDOW;
        lookups.answered(at, client(), key(1), answer(round, at - MS, at));
        lookups.word(at + 2 * MS, word(1, u64::from(round) + 1, at + MS, 1));
        assert_eq!(found(&mut lookups, at + 100 * MS), [(round, u64::from(round) + 1)]);
        lookups.expire(at + 100 * MS);
    }
    assert_eq!((lookups.outcomes.matched, lookups.outcomes.refused), (9, 0));
}

#[test]
fn nobody_takes_all_the_room_and_all_is_given_back() {
    let mut lookups = Lookups::new(16);
    for question in 0..100 {
        lookups.word(NOW, word(question, 9, NOW, 1));
    }
    assert_eq!((lookups.len(), lookups.outcomes.dropped), (8, 92), "half is for answers and others");
    for question in 0..100u32 {
        lookups.answered(NOW, client(), key(200 + u64::from(question)), answer(question, NOW - MS, NOW));
        assert!(lookups.len() <= 16 && lookups.order.len() <= 32 && lookups.due.len() <= 32);
    }
    assert_eq!(lookups.refused, 92 + 92);
    lookups.expire(NOW + 4 * KEEP);
    assert!(lookups.is_empty() && lookups.entries.is_empty() && lookups.order.is_empty());
    assert!(lookups.waiting.is_empty());
    assert_eq!(lookups.outcomes.unmatched, 8);
    // What was not remembered may have been the other end.
    let mut missed = Lookups::new(16);
    missed.lose(NOW, None);
    missed.answered(NOW + MS, client(), key(1), answer(5, NOW, NOW + MS));
    missed.word(NOW + 2 * MS, word(1, 9, NOW + MS, 1));
    assert_eq!(found(&mut missed, NOW + 100 * MS), []);
}

#[test]
fn addresses_that_many_have_name_nobody() {
    for address in ["10.0.0.1", "8.8.8.8", "fd00::1", "2001:db8::1"] {
        assert!(names_a_host(address.parse().unwrap()), "{address}");
    }
    for address in ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.251", "255.255.255.255", "fe80::1", "::1", "::"] {
        assert!(!names_a_host(address.parse().unwrap()), "{address}");
    }
    let lookup = |asker| Lookup { asker, told: 1, sent: 1 };
    let home = Some(Home { netns: 3, own: client() });
    assert_eq!(lookup(Asker::In(3)).from(home).asker, Asker::Known(client()));
    for (asker, home) in [(Asker::In(4), home), (Asker::In(3), None), (Asker::Unknown, home)] {
        assert_eq!(lookup(asker).from(home).asker, Asker::Unknown, "{asker:?}");
    }
}

#[test]
fn what_is_known_of_a_host_is_known_for_a_while() {
    let mut contacts = Contacts::default();
    assert_eq!(contacts.of(NOW, client()), None);
    contacts.learn(NOW, client(), true);
    assert_eq!((contacts.of(NOW, client()), contacts.of(NOW + CONTACT, client())), (Some(true), None));
    for host in 0..5 * AGENTS as u32 {
        contacts.learn(NOW, IpAddr::from(host.to_be_bytes()), false);
        assert!(contacts.known.len() <= 4 * AGENTS);
    }
}
