//! A connection that goes compact between operations yields the same events as one that does not.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::connection_parser::tests::{Op, play};
use crate::fixtures_tests::connections;
use crate::{Chunk, Closed, ExchangeEvent, Settings};

/// Plays operations; between any two of them the connection may go compact. Returns the events, and how often it did.
fn play_resting(ops: &[Op], midstream: bool) -> (Vec<ExchangeEvent>, usize) {
    let (mut talk, settings, mut events, mut rested) =
        (ActiveState::new(midstream), Settings::default(), Vec::new(), 0);
    let mut pos = [0u64; 2];
    for (i, op) in ops.iter().enumerate() {
        talk.rest();
        rested += usize::from(talk.resting.is_some());
        let which = usize::from(op.dir == Direction::Tx);
        let captured = op.captured.min(op.bytes.len());
        let tail =
            if captured < op.bytes.len() { &op.bytes[op.bytes.len().saturating_sub(8).max(captured)..] } else { &[] };
        let at = Stamp { nanos: i as u64 + 1, pid: 1, tid: 1 + which as u32, reads: 0 };
        let len = op.bytes.len() as u64;
        let chunk = Chunk {
            dir: op.dir,
            pos: pos[which],
            len,
            head: &op.bytes[..captured],
            tail,
            fragments: &[],
            at,
            arrived: 0,
        };
        pos[which] += len;
        talk.awake().bytes(&chunk, &settings, &mut events);
        let (side, several) = (talk.side(), talk.is_multiplexed());
        talk.rest();
        assert_eq!((talk.side(), talk.is_multiplexed()), (side, several));
    }
    rested += usize::from(talk.resting.is_some());
    talk.awake().closed(Closed::Both, Stamp::default(), None, &settings, &mut events);
    (events, rested)
}

fn played(ops: &[Op], midstream: bool) -> Vec<ExchangeEvent> {
    let mut conversation = ConnectionParser::new(midstream);
    let mut events = play(&mut conversation, ops);
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    events
}

/// There are a hundred thousand of them: anything added here multiplies.
#[test]
fn it_is_small() {
    assert!(
        size_of::<Resting>() <= 104 && size_of::<ActiveState>() <= 24,
        "{} {}",
        size_of::<Resting>(),
        size_of::<ActiveState>()
    );
}

#[test]
fn captured_connections_say_the_same_when_they_rest() {
    let mut rests = std::collections::BTreeMap::new();
    for (name, ops) in connections() {
        let (events, rested) = play_resting(&ops, false);
        assert_eq!(events, played(&ops, false), "{name}");
        // Counted per protocol: a single connection may wait for something all the time.
        *rests.entry(std::path::Path::new(&name).parent().map(std::path::Path::to_path_buf)).or_insert(0) += rested;
        let late = &ops[ops.len() / 2..];
        assert_eq!(play_resting(late, true).0, played(late, true), "{name}, joined in its middle");
    }
    // Except where a connection serves a single request, which lasts as long as it does.
    rests.retain(|dir, _| !dir.as_ref().is_some_and(|dir| dir.ends_with("scgi") || dir.ends_with("uwsgi")));
    assert!(rests.values().all(|rested| *rested > 0), "{rests:?}");
}

/// Read once for all cases.
static CAPTURED: LazyLock<Vec<(String, Vec<Op>)>> = LazyLock::new(connections);

proptest! {
    #[test]
    fn so_do_connections_of_which_parts_are_missing(
        which in any::<prop::sample::Index>(),
        captured in proptest::collection::vec(prop_oneof![Just(usize::MAX), 0usize..64], 40),
        midstream in any::<bool>(),
    ) {
        let (_, ops) = &CAPTURED[which.index(CAPTURED.len())];
        let ops: Vec<Op> = ops.iter().enumerate().map(|(i, op)| {
            Op { captured: captured[i % captured.len()], ..op.clone() }
        }).collect();
        prop_assert_eq!(play_resting(&ops, midstream).0, played(&ops, midstream));
    }
}
