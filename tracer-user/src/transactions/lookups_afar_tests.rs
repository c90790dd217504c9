//! Lookups between two hosts, both ends played: datagrams and words lost, doubled, late and out of order, the same asked
//! again by the same socket, records lost. Whatever is matched is so.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{TraceId, UnitId};
use crate::relay::Agent;
use crate::relay::lookups::Lookups;
use crate::relay::matches::Given;
use crate::relay::message::Context;

const MS: Nanos = 1_000_000;
const QUESTION: Question = (99, 4000);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// How far the client's clock is ahead, nanoseconds.
const AHEAD: Nanos = 777_000_000_000;

fn own() -> Place {
    Place { address: Some(CLIENT), netns: 1 }
}

/// A datagram of a call and what becomes of it, milliseconds.
#[derive(Clone, Debug)]
struct Sent {
    /// After the one before.
    after: u64,
    /// On its way; and that of another one it was made on its way.
    arrives: Option<u64>,
    doubled: Option<u64>,
    /// How long the server takes.
    served: u64,
    replied: Option<u64>,
    /// Its records at the server are lost, or late by so much.
    recorded: Option<u64>,
}

#[derive(Clone, Debug)]
struct Asks {
    /// After the call before was over, milliseconds.
    pause: u64,
    sent: Vec<Sent>,
    /// How long it waits after the last one.
    patience: u64,
    /// The word's delays, each once.
    words: Vec<u64>,
}

fn sents() -> impl Strategy<Value = Sent> {
    let way = || prop_oneof![6 => (0u64..20).prop_map(Some), 1 => (0u64..2000).prop_map(Some), 2 => Just(None)];
    let doubled = prop_oneof![8 => Just(None), 1 => (0u64..1000).prop_map(Some)];
    let recorded = prop_oneof![9 => (0u64..40).prop_map(Some), 1 => Just(None)];
    let served = prop_oneof![4 => 0u64..3, 1 => 0u64..990];
    (0u64..1500, way(), doubled, served, way(), recorded).prop_map(
        |(after, arrives, doubled, served, replied, recorded)| Sent {
            after,
            arrives,
            doubled,
            served,
            replied,
            recorded,
        },
    )
}

fn asks() -> impl Strategy<Value = Asks> {
    let pause = prop_oneof![5 => 0u64..5, 2 => 0u64..4000, 3 => 3900u64..9000, 1 => 60_000u64..63_000];
    let delays = prop_oneof![6 => 1u64..20, 1 => 0u64..900, 1 => 0u64..20_000];
    (pause, proptest::collection::vec(sents(), 1..4), 0u64..2000, proptest::collection::vec(delays, 0..3))
        .prop_map(|(pause, sent, patience, words)| Asks { pause, sent, patience, words })
}

/// What happens at a moment.
#[derive(Clone, Debug)]
enum Event {
    /// The server's answer of this datagram is known: its call, when it was read and written; `None` where it is lost, and
    /// the next record of the server shows that.
    Answered(Option<(usize, Nanos, Nanos)>),
    Word(usize, Nanos, u8),
}

/// Plays the calls one after the other on one socket, all of the same question; gives what the server's agent hears, in order.
fn play(all: &[Asks], asked: &mut Asked) -> Vec<(Nanos, Event)> {
    let mut now = 10_000_000 * MS;
    let mut heard = Vec::new();
    // Replies that arrive at the client: when.
    let mut replies: Vec<Nanos> = Vec::new();
    for (call, asks) in all.iter().enumerate() {
        let slot = Slot::numbered(call as u32 + 1);
        now += asks.pause * MS;
        let mut at = now;
        let mut over = None;
        // What arrived before is of nobody; a socket's queue is read when it waits.
        replies.retain(|reply| *reply > now);
        for (nth, datagram) in asks.sent.iter().enumerate() {
            at += if nth == 0 { 0 } else { datagram.after * MS };
            if let Some(first) = replies.iter().copied().filter(|reply| *reply <= at).min() {
                over = Some(first);
                break;
            }
            asked.sweep(at);
            asked.asked(QUESTION, (slot, 1), at, (SERVER, own()));
            for way in [datagram.arrives, datagram.doubled].into_iter().flatten() {
                let read = at + way * MS + 1000;
                let written = read + datagram.served * MS + 1000;
                if let Some(replied) = datagram.replied {
                    replies.push(written + replied * MS + 1000);
                }
                let known = datagram.recorded.map(|late| (late, (call, read, written)));
                let (late, known) = known.map_or((0, None), |(late, known)| (late, Some(known)));
                heard.push((written + late * MS, Event::Answered(known)));
            }
        }
        let end = at + asks.patience * MS;
        over = over.or_else(|| replies.iter().copied().filter(|reply| *reply <= end).min());
        now = over.unwrap_or(end);
        if let Some(over) = over {
            // That one is read.
            let index = replies.iter().position(|reply| *reply == over).unwrap();
            replies.remove(index);
            if let Some((sent, far, _)) = asked.answered(QUESTION, slot, over) {
                assert_eq!(far, SERVER);
                for delay in &asks.words {
                    heard.push((over + delay * MS, Event::Word(call, over, sent)));
                }
            }
        }
    }
    heard.sort_by_key(|(at, _)| *at);
    heard
}

fn word(call: usize, told: Nanos, sent: u8) -> Given {
    let context = Context {
        key: Key::of_lookup(QUESTION.0, QUESTION.1),
        trace: TraceId(1),
        parent: UnitId(call as u64 + 1),
        settled: true,
        broadcast: false,
        sampled: None,
        service: "".into(),
        class: "".into(),
        carried: None,
        lookup: Some(Lookup { asker: Asker::Known(CLIENT), told: told.wrapping_add(AHEAD), sent }),
    };
    Given { context, from: Agent { number: 1, host: Arc::from("far") } }
}

/// What the server's agent makes of it: calls and how many of their datagrams it took for theirs. Panics where one is not.
fn judged(heard: &[(Nanos, Event)]) -> (HashMap<usize, usize>, Lookups<(usize, usize)>) {
    let mut lookups: Lookups<(usize, usize)> = Lookups::new(4096);
    let mut matched = HashMap::new();
    // How quick words are is known of an agent that has said something.
    let first = heard.first().map_or(0, |(at, _)| *at).saturating_sub(20 * MS);
    let mut before = word(usize::MAX - 1, first, 1);
    before.context.key = Key::of_lookup(1, 1);
    lookups.word(first + 5 * MS, before);
    let key = Key::of_lookup(QUESTION.0, QUESTION.1);
    let mut lost = false;
    let end = heard.last().map_or(0, |(at, _)| *at) + 60_000 * MS;
    let events = heard.iter().cloned().map(Some).chain([None]).enumerate();
    for (number, event) in events {
        let at = event.as_ref().map_or(end, |(at, _)| *at);
        // Time passes between.
        for now in [at.saturating_sub(MS), at] {
            let mut found = Vec::new();
            lookups.decide(now, &mut found);
            lookups.expire(now);
            for found in found {
                let (Found::Met((call, _), given) | Found::Late((call, _), given) | Found::More((call, _), given)) =
                    found;
                assert_eq!(call as u64 + 1, given.context.parent.0, "a wrong edge");
                *matched.entry(call).or_default() += 1;
            }
        }
        match event {
            Some((_, Event::Answered(None))) => lost = true,
            Some((_, Event::Answered(Some((call, read, told))))) => {
                if std::mem::take(&mut lost) {
                    lookups.lose(at, Some(7));
                }
                let answer = Answer { unit: Some((call, number)), tgid: 7, read, told };
                lookups.answered(at, CLIENT, key, answer);
            }
            Some((_, Event::Word(call, told, sent))) => {
                let found = lookups.word(at, word(call, told, sent));
                assert!(found.is_empty(), "all were settled");
            }
            None => {}
        }
    }
    (matched, lookups)
}

proptest! {
    #[test]
    fn no_edge_is_wrong(all in proptest::collection::vec(asks(), 1..12)) {
        let mut asked = Asked::new(64);
        let heard = play(&all, &mut asked);
        let words = heard.iter().filter(|(_, event)| matches!(event, Event::Word(..))).count() as u64;
        let (_, lookups) = judged(&heard);
        let o = lookups.outcomes;
        prop_assert_eq!(o.received, words + 1);
        let ends = o.matched + o.late + o.settled + o.duplicate + o.refused + o.dropped + o.unmatched + o.elsewhere;
        prop_assert_eq!(ends, o.received, "every word has one outcome: {:?}", o);
        prop_assert!(lookups.is_empty());
        asked.sweep(Nanos::MAX);
        prop_assert_eq!(asked.len(), 0);
    }
}

/// A call whose datagrams all arrive at once, with its word.
fn plain(pause: u64, times: usize) -> Asks {
    let sent = |n| Sent {
        after: 5,
        arrives: Some(if n == 0 { 8 } else { 2 }),
        doubled: None,
        served: 4,
        replied: Some(1),
        recorded: Some(3),
    };
    Asks { pause, sent: (0..times).map(sent).collect(), patience: 2000, words: vec![4] }
}

#[test]
fn what_is_plain_is_matched() {
    let all: Vec<Asks> = (0..20).map(|call| plain(11_000 + call, 1)).collect();
    let (matched, lookups) = judged(&play(&all, &mut Asked::new(64)));
    assert_eq!((matched.len(), lookups.outcomes.matched, lookups.unclear), (20, 20, 0));
    // Asked again before the first was read: both are its. Answered meanwhile: the first is.
    let (matched, _) = judged(&play(&[plain(0, 2)], &mut Asked::new(64)));
    assert_eq!(matched, HashMap::from([(0, 2)]));
    // The same again at once: of the two the first.
    let mut asked = Asked::new(64);
    let (matched, _) = judged(&play(&[plain(0, 1), plain(0, 1), plain(61_000, 1)], &mut asked));
    assert_eq!(matched, HashMap::from([(0, 1), (2, 1)]));
    assert_eq!(asked.unclear, 1);
}

#[test]
fn what_may_be_anothers_is_not_told() {
    let slots = [1, 2].map(Slot::numbered);
    let to = (SERVER, own());
    // Two sockets with one port.
    let mut asked = Asked::new(2);
    asked.asked(QUESTION, (slots[0], 1), MS, to);
    asked.asked(QUESTION, (slots[1], 1), 2 * MS, to);
    assert_eq!(slots.map(|slot| asked.answered(QUESTION, slot, 3 * MS).is_some()), [false, false]);
    assert_eq!(asked.unclear, 2);
    // What was asked before may have been lost: by its process; or by anybody, where nothing fits any more.
    for (lost_by, asks, told) in [(Some(1), 1, false), (Some(2), 1, true), (None, 1, false)] {
        let mut asked = Asked::new(2);
        asked.lose(MS, lost_by);
        asked.asked(QUESTION, (slots[0], asks), 2 * MS, to);
        assert_eq!(asked.answered(QUESTION, slots[0], 3 * MS).is_some(), told, "{lost_by:?}");
    }
    let mut asked = Asked::new(1);
    asked.asked((1, 1), (slots[0], 1), MS, to);
    asked.asked((2, 2), (slots[0], 1), MS, to);
    assert_eq!((asked.len(), asked.refused), (1, 1));
    assert_eq!(asked.answered((2, 2), slots[0], 2 * MS), None);
    asked.sweep(MS + LEFT);
    asked.asked((2, 2), (slots[0], 1), 2 * MS, to);
    assert_eq!(asked.answered((2, 2), slots[0], 3 * MS), None, "it was asked before, unseen");
}
