//! Round trips: which are reported, their durations, and what the parser wants the kernel to report for them.

use super::super::connection_parser::tests::{Op, play};
use super::super::{Closed, Settings};
use super::*;

const HELLO: &[u8] = b"SSH-2.0-x\r\n";

fn op(dir: Direction, bytes: &[u8]) -> Op {
    Op { dir, bytes: bytes.to_vec(), captured: usize::MAX }
}

fn rx(bytes: &[u8]) -> Op {
    op(Direction::Rx, bytes)
}

fn tx(bytes: &[u8]) -> Op {
    op(Direction::Tx, bytes)
}

fn told(side: Option<Side>, timed: bool, ops: &[Op]) -> (Vec<(u64, u64, u64, u64)>, ConnectionParser) {
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(side, timed);
    let mut said = play(&mut conversation, ops);
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut said);
    let mut turns = Vec::new();
    let mut first_at = 0;
    for word in said {
        match word {
            ExchangeEvent::Begun { first, .. } => first_at = first.nanos,
            ExchangeEvent::Done { at, request_bytes, reply_bytes, .. } => {
                turns.push((first_at, at.nanos, request_bytes, reply_bytes));
            }
            _ => {}
        }
    }
    (turns, conversation)
}

#[test]
fn turns_are_told_when_they_are_over_and_only_when_answered() {
    let ops = [
        rx(HELLO),
        tx(HELLO),
        rx(b"one"),
        rx(b"more"),
        tx(b"answer"),
        tx(b"goes on"),
        rx(b"two"),
        tx(b"x"),
        tx(b"unasked is part of it"),
        rx(b"never answered"),
    ];
    let (turns, _) = told(Some(Side::Server), false, &ops);
    let sizes: Vec<(u64, u64)> = turns.iter().map(|(.., asked, answered)| (*asked, *answered)).collect();
    assert_eq!(sizes, [(11, 11), (7, 13), (3, 22)]);
    let times: Vec<u64> = turns.iter().map(|(first, last, ..)| last - first).collect();
    let step = times[0];
    assert_eq!(times, [step, 3 * step, 2 * step], "from the first byte asked to the last byte answered");
}

#[test]
fn who_asks_is_who_connected_and_else_nobody_knows() {
    let ops = [tx(HELLO), rx(HELLO), tx(b"a"), rx(b"b")];
    let (turns, _) = told(Some(Side::Client), false, &ops);
    assert_eq!(turns.len(), 2);
    let (turns, _) = told(Some(Side::Server), false, &ops);
    assert_eq!(turns.len(), 1, "the server's greeting answers nothing");
    let (turns, conversation) = told(None, false, &ops);
    assert_eq!((turns.len(), conversation.want().verdict), (0, Verdict::Ignore));
}

#[test]
fn what_is_not_known_is_timed_only_where_that_is_asked_for() {
    let ops: Vec<Op> = (0..8).flat_map(|_| [rx(b"\xfewhat is asked here"), tx(b"\xffever is answered")]).collect();
    let (turns, conversation) = told(Some(Side::Server), false, &ops);
    assert_eq!((turns.len(), conversation.want().verdict), (0, Verdict::Ignore));
    let (turns, _) = told(Some(Side::Server), true, &ops);
    assert!((6..=8).contains(&turns.len()), "{turns:?}");
    let (turns, _) = told(None, true, &ops);
    assert!((6..=8).contains(&turns.len()), "{turns:?}");
}

#[test]
fn only_what_turns_the_direction_is_wanted_once_nothing_is_read() {
    let mut conversation = ConnectionParser::new(false);
    conversation.opened(Some(Side::Server), false);
    let _ = play(&mut conversation, &[rx(HELLO)]);
    let want = conversation.want();
    assert_eq!((want.verdict, want.head_rx, want.head_tx), (Verdict::Turns, HEAD, HEAD));
    let mut mail = ConnectionParser::new(false);
    let _ = play(&mut mail, &[tx(b"220 a ESMTP\r\n"), rx(b"EHLO b\r\n")]);
    let want = mail.want();
    assert_eq!((want.verdict, want.head_rx), (Verdict::Turns, 0), "a command may lead to TLS");
}

/// The kernel's reduced reports for round trips give the same events as reports of every operation.
#[test]
fn ends_that_are_told_with_the_next_turn_are_as_good_as_operations() {
    let settings = Settings::default();
    let ops =
        [(Direction::Rx, 10), (Direction::Tx, 100), (Direction::Tx, 1000), (Direction::Tx, 7), (Direction::Rx, 9)];
    let run = |lean: bool| {
        let mut conversation = ConnectionParser::new(false);
        conversation.opened(Some(Side::Server), false);
        let mut said = play(&mut conversation, &[rx(HELLO), tx(HELLO)]);
        let mut pos = [11_u64, 11];
        let mut before = Direction::Tx;
        for (at, (dir, len)) in ops.iter().enumerate() {
            let nanos = 1_000_000 + at as u64;
            let which = usize::from(*dir == Direction::Tx);
            let stamp = Stamp { nanos, ..Stamp::default() };
            let chunk = Chunk {
                dir: *dir,
                pos: pos[which],
                len: *len,
                head: &[],
                tail: &[],
                fragments: &[],
                at: stamp,
                arrived: 0,
            };
            pos[which] += len;
            let turned = std::mem::replace(&mut before, *dir) != *dir;
            if lean && turned {
                let other = usize::from(*dir != Direction::Tx);
                let last = Stamp { nanos: nanos - 1, ..stamp };
                let len = pos[other];
                let rest = Chunk { dir: dir.flip(), pos: 0, len, at: last, ..chunk };
                conversation.bytes(&rest, &settings, &mut said);
            }
            if !lean || turned {
                conversation.bytes(&chunk, &settings, &mut said);
            }
        }
        let totals = Totals { rx: pos[0], tx: pos[1], last_rx: 1_000_004, last_tx: 1_000_003 };
        conversation.closed(Closed::Both, Stamp::default(), Some(totals), &settings, &mut said);
        said
    };
    let full = run(false);
    assert_eq!(full.len(), 6, "two turns: {full:?}");
    assert_eq!(run(true), full);
}
