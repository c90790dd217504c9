//! The two ends of lookups: what fits, what is not clear, and what comes late.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const KEY: QuestionKey = (99, 4000);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn remote(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn slots() -> [Slot; 4] {
    [1, 2, 3, 4].map(Slot::numbered)
}

fn call(slot: Slot, from: Nanos) -> Call {
    let own = Place { address: Some(LOOPBACK), netns: 1 };
    Call { slot, from, end: 0, last: from, sent: 1, served: 0, own, to: (LOOPBACK, 53) }
}

fn answer(slot: Slot, read: Nanos) -> AnsweredQuestion {
    AnsweredQuestion { slot, read, reported: read, own: Place { address: None, netns: 1 }, port: 53, to: LOOPBACK }
}

#[test]
fn either_end_may_be_reported_first() {
    let [one, two, ..] = slots();
    let mut lookups = Lookups::default();
    assert!(lookups.asked(KEY, call(one, 10)).is_empty());
    assert_eq!(lookups.answered(KEY, answer(two, 11)), Some(one));
    // Twice is once too often: it was sent once.
    assert_eq!(lookups.answered(KEY, answer(two, 12)), None);
    assert_eq!(lookups.unclear, 1);
    let mut lookups = Lookups::default();
    assert_eq!(lookups.answered(KEY, answer(two, 11)), None);
    assert_eq!(lookups.asked(KEY, call(one, 10)).as_slice(), [(one, two)]);
    assert_eq!((lookups.waiting(), lookups.unclear), (1, 0));
    // Read before its thread did what it did before it asked.
    let mut lookups = Lookups::default();
    assert_eq!(lookups.answered(KEY, answer(two, 9)), None);
    assert!(lookups.asked(KEY, call(one, 10)).is_empty());
    assert_eq!(lookups.unclear, 0);
}

#[test]
fn addresses_have_to_agree_and_one_has_to_tell() {
    let [one, two, ..] = slots();
    let place = |address, netns| Place { address, netns };
    let asks = |own, to| Call { own, to: (to, 53), ..call(one, 10) };
    let answers = |own, to| AnsweredQuestion { own, to, ..answer(two, 11) };
    let (nowhere, elsewhere) = (place(None, 1), place(None, 2));
    for (call, answer, joined, unclear) in [
        // Each is where the other says.
        (asks(place(Some(remote(1)), 1), remote(2)), answers(place(Some(remote(2)), 2), remote(1)), true, 0),
        (asks(nowhere, remote(2)), answers(place(Some(remote(2)), 2), remote(1)), true, 0),
        (asks(place(Some(remote(1)), 1), remote(2)), answers(elsewhere, remote(1)), true, 0),
        (asks(nowhere, remote(2)), answers(nowhere, remote(2)), true, 0),
        (asks(nowhere, LOOPBACK), answers(nowhere, LOOPBACK), true, 0),
        // Nothing says that it is the same.
        (asks(nowhere, remote(2)), answers(nowhere, remote(1)), false, 1),
        // Something says that it is not.
        (asks(place(Some(remote(3)), 1), remote(2)), answers(nowhere, remote(1)), false, 0),
        (asks(nowhere, remote(3)), answers(place(Some(remote(2)), 1), remote(1)), false, 0),
        (asks(nowhere, LOOPBACK), answers(elsewhere, LOOPBACK), false, 0),
        (asks(nowhere, remote(2)), AnsweredQuestion { port: 54, ..answers(nowhere, remote(2)) }, false, 0),
    ] {
        let shown = format!("{call:?} {answer:?}");
        let mut lookups = Lookups::default();
        lookups.asked(KEY, call);
        assert_eq!((lookups.answered(KEY, answer).is_some(), lookups.unclear), (joined, unclear), "{shown}");
    }
}

#[test]
fn a_repeated_question_is_joined_only_while_no_other_socket_can_have_sent_it() {
    let [one, two, three, four] = slots();
    let mut lookups = Lookups::default();
    lookups.asked(KEY, call(one, 10));
    lookups.asked(KEY, Call { last: 20, ..call(one, 10) });
    assert_eq!(lookups.answered(KEY, answer(two, 21)), Some(one));
    lookups.over(KEY, one, 30);
    // The other datagram is still somewhere: what is read from now on may be that, or the next call's.
    assert_eq!(lookups.answered(KEY, answer(three, 31)), None);
    lookups.asked(KEY, call(four, 35));
    assert_eq!(lookups.answered(KEY, answer(three, 36)), None);
    assert_eq!(lookups.unclear, 2);
    // What was sent once and answered leaves nothing behind.
    let mut lookups = Lookups::default();
    lookups.asked(KEY, call(one, 10));
    lookups.over(KEY, one, 30);
    lookups.asked(KEY, call(four, 30));
    assert_eq!(lookups.answered(KEY, answer(three, 36)), Some(four));
    // The first one's answer may be reported after the client read it.
    assert_eq!(lookups.answered(KEY, answer(two, 15)), Some(one));
    assert_eq!(lookups.unclear, 0);
    // Two sockets with one port: either may have asked.
    let mut lookups = Lookups::default();
    lookups.asked(KEY, call(one, 10));
    lookups.asked(KEY, call(two, 11));
    assert_eq!((lookups.answered(KEY, answer(three, 12)), lookups.unclear), (None, 1));
}

#[test]
fn what_is_remembered_is_bounded_and_goes() {
    let [one, two, three, _] = slots();
    let mut lookups = Lookups::default();
    lookups.asked((1, 1), call(one, 10));
    lookups.over((1, 1), one, 20);
    lookups.asked((2, 1), call(two, 10));
    lookups.answered((3, 1), answer(three, 10));
    lookups.sweep(LATE);
    assert_eq!(lookups.waiting(), 3);
    lookups.sweep(LATE + 20);
    assert_eq!(lookups.waiting(), 1, "its answer is still missing");
    lookups.sweep(LEFT + 10);
    assert_eq!(lookups.waiting(), 0);
    for question in 0..=LIMIT as u64 {
        lookups.asked((question, 1), call(one, 10));
        lookups.answered((question, 2), answer(two, 10));
    }
    assert_eq!((lookups.waiting(), lookups.refused), (2 * LIMIT, 2));
}
