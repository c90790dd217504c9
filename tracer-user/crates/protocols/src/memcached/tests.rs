//! Commands and replies as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, check, play, rx, summary, survive, tx};
use crate::{Closed, ConnectionParser, ExchangeEvent, Stamp};

/// A packet of the binary protocol.
fn packet(magic: u8, opcode: u8, status: u16, opaque: u32, extra: usize, key: &str, value: &str) -> Vec<u8> {
    let body = (extra + key.len() + value.len()) as u32;
    let mut bytes = vec![magic, opcode];
    bytes.extend_from_slice(&(key.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[extra as u8, 0]);
    bytes.extend_from_slice(&status.to_be_bytes());
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.resize(bytes.len() + extra, 0);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

fn ask(opcode: u8, opaque: u32, extra: usize, key: &str, value: &str) -> Vec<u8> {
    packet(0x80, opcode, 0, opaque, extra, key, value)
}

fn say(opcode: u8, status: u16, opaque: u32, extra: usize, value: &str) -> Vec<u8> {
    packet(0x81, opcode, status, opaque, extra, "", value)
}

fn op(dir: Direction, parts: &[Vec<u8>]) -> Op {
    Op { dir, bytes: parts.concat(), captured: usize::MAX }
}

#[test]
fn first_bytes() {
    for (bytes, expected) in [
        (&b"set k 0 60 5\r\nhello\r\n"[..], Detected::Request),
        (b"cas k 0 -1 5 77 noreply\r\n", Detected::Request),
        (b"ms k 5 T60\r\nhello\r\n", Detected::Request),
        (b"VALUE k 0 5\r\nhello", Detected::Reply),
        (b"VALUE k 0 5 77\r\n", Detected::Reply),
        (b"get k\r\n", Detected::NeedMore),
        (b"mn\r\n", Detected::NeedMore),
        (b"ge", Detected::NeedMore),
        (b"get ke", Detected::NeedMore),
        (b"version\r", Detected::NeedMore),
        (b"", Detected::NeedMore),
        (b"get\r\n", Detected::No),
        (b"set k v\r\n", Detected::No),
        (b"SET k 0 60 5\r\n", Detected::No),
        (b"getting k\r\n", Detected::No),
        (b"get k\x01\r\n", Detected::No),
        (b"GET / HTTP/1.1\r\n", Detected::No),
        (b"VALUE of things\r\n", Detected::No),
        (b"*1\r\n$4\r\nPING\r\n", Detected::No),
        (b"\x16\x03\x01\x02\x00", Detected::No),
        // SSL 2.0.
        (
            b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10\x01\x00\x80\x03\x00\x80\x07\x00\xc0\x06\x00\x40\x00",
            Detected::No,
        ),
        // A call of Sun RPC.
        (
            b"\x80\x00\x00\x28\x12\x34\x56\x78\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01\x86\xa0\x00\x00\x00\x02",
            Detected::No,
        ),
    ] {
        assert_eq!(Memcached.detect(bytes), expected, "{}", String::from_utf8_lossy(bytes));
    }
    let get = ask(0, 7, 0, "k", "");
    (1..24).for_each(|n| assert_eq!(Memcached.detect(&get[..n]), Detected::NeedMore, "{n}"));
    assert_eq!(Memcached.detect(&get), Detected::Request);
    assert_eq!(Memcached.detect(&say(0, 1, 7, 0, "Not found")), Detected::Reply);
    assert_eq!(Memcached.detect(&ask(0, 7, 8, "k", "")), Detected::No);
    for (asked, answer, expected) in [
        (&b"get k\r\n"[..], &b"END\r\n"[..], true),
        (b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n", true),
        (b"incr k 1\r\n", b"2\r\n", true),
        (b"version\r\n", b"VERSION 1.6\r\n", true),
        (b"get k\r\n", b"$1\r\nv\r\n", false),
        (b"get k\r\n", b"hello\r\n", false),
        (b"quit\r\n", b"221 bye\r\n", false),
    ] {
        assert_eq!(Memcached.answers(asked, answer), expected, "{}", String::from_utf8_lossy(asked));
    }
}

/// beanstalkd has `stats`, `delete` and `touch`, too; what it answers, as it sent it.
#[test]
fn a_job_queue_is_no_cache() {
    let stats = "OK 58\r\n---\ncurrent-jobs-urgent: 0\ncurrent-jobs-ready: 0\nuptime: 3\n\r\n";
    for ops in [
        vec![
            rx("stats\r\n"),
            tx(stats),
            rx("stats-tube default\r\n"),
            tx(stats),
            rx("list-tubes\r\n"),
            tx("OK 14\r\n---\n- default\n\r\n"),
        ],
        vec![
            rx("delete 999\r\n"),
            tx("NOT_FOUND\r\n"),
            rx("touch 999\r\n"),
            tx("NOT_FOUND\r\n"),
            rx("peek 1\r\n"),
            tx("NOT_FOUND\r\n"),
        ],
        vec![rx("touch 999\r\n"), tx("NOT_FOUND\r\n"), rx("stats\r\n"), tx(stats)],
    ] {
        assert_eq!(summary(&play(&mut ConnectionParser::new(false), &ops)), [""; 0]);
    }
    // The same words, and then one that only Memcached has: nothing is missing.
    let ops = [
        rx("delete 999\r\n"),
        tx("NOT_FOUND\r\n"),
        rx("delete 1000\r\n"),
        tx("DELETED\r\n"),
        rx("get k\r\n"),
        tx("END\r\n"),
    ];
    let found = summary(&play(&mut ConnectionParser::new(false), &ops));
    let names: Vec<&str> = found.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["delete", "delete", "get"], "{found:?}");
}

/// A command that Memcached alone has decides by itself, without its answer.
#[test]
fn what_came_before_a_command_that_decides_is_not_missing() {
    let ops = [
        rx("delete 999\r\n"),
        tx("NOT_FOUND\r\n"),
        rx("set k 0 0 5\r\nhello\r\n"),
        tx("STORED\r\n"),
        rx("delete 999\r\n"),
        tx("NOT_FOUND\r\n"),
    ];
    let found = summary(&play(&mut ConnectionParser::new(false), &ops));
    let lines: Vec<String> = found.iter().map(|line| line.split(' ').take(5).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(lines[0].starts_with("delete") && lines[0].contains("@1"), "{found:?}");
    assert!(lines[1].starts_with("set") && lines[2].starts_with("delete"), "{found:?}");
}

#[test]
fn commands_and_their_replies() {
    check(
        &[
            rx("get k\r\n"),
            tx("END\r\n"),
            rx("set k 0 0 5\r\nhello\r\n"),
            tx("STORED\r\n"),
            rx("gets k l\r\n"),
            tx("VALUE k 0 5 7\r\nhello\r\nVALUE l 1 7 8\r\na\r\nEND\r\r\nEND\r\n"),
            rx("add k 0 0 1\r\nx\r\n"),
            tx("NOT_STORED\r\n"),
            rx("incr k 1\r\n"),
            tx("CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            rx("nonsense secret\r\n"),
            tx("ERROR\r\n"),
            rx("stats\r\n"),
            tx("STAT pid 1\r\nSTAT VALUE 5\r\nEND\r\n"),
            rx("set big 0 0 3\r\nabc\r\n"),
            tx("SERVER_ERROR object too large for cache\r\n"),
        ],
        &[
            "get  @1 -> ok @2 complete 7/5/0 @2",
            "set  @3 -> ok @4 complete 20/8/0 @4",
            "gets  @5 -> ok @6 complete 10/51/36 @6",
            "add  @7 -> ok @8 complete 16/12/0 @8",
            "incr  @9 -> CLIENT_ERROR @10 complete 10/62/0 @10",
            "_OTHER  @11 -> ERROR @12 complete 17/7/0 @12",
            "stats  @13 -> ok @14 complete 7/31/19 @14",
            "set  @15 -> SERVER_ERROR @16 complete 20/41/0 @16",
        ],
    );
}

#[test]
fn requests_without_replies() {
    check(
        &[rx("set k 0 0 1 noreply\r\nx\r\ndelete k noreply\r\nget k\r\n"), tx("END\r\n"), rx("quit\r\n")],
        &[
            "set  @1 complete 24/0/0 @1",
            "delete  @1 complete 18/0/0 @1",
            "get  @1 -> ok @2 complete 7/5/0 @2",
            "quit  @3 complete 6/0/0 @3",
        ],
    );
}

#[test]
fn meta_commands() {
    check(
        &[
            rx("ms k 5 T0\r\nhello\r\nmg k v\r\nmg none v\r\n"),
            tx("HD\r\nVA 5\r\nhello\r\nEN\r\n"),
            // Quiet ones: distinguished by their opaque tokens, or by the replies.
            rx("mg a v q O1\r\nmg b v q O2\r\nmg c v q O3\r\nmn\r\n"),
            tx("VA 1 O2\r\nx\r\nMN\r\n"),
            rx("md a q\r\nmd b q\r\nmn\r\n"),
            tx("NF\r\nMN\r\n"),
        ],
        &[
            "ms  @1 -> ok @2 complete 18/4/0 @2",
            "mg  @1 -> ok @2 complete 8/13/7 @2",
            "mg  @1 -> ok @2 complete 11/4/0 @2",
            "mg  @3 complete 13/0/0 @4",
            "mg  @3 -> ok @4 complete 13/12/3 @4",
            "mg  @3 complete 13/0/0 @4",
            "mn  @3 -> ok @4 complete 4/4/0 @4",
            "md  @5 -> ok @6 complete 8/4/0 @6",
            "md  @5 complete 8/0/0 @6",
            "mn  @5 -> ok @6 complete 4/4/0 @6",
        ],
    );
}

#[test]
fn the_binary_protocol() {
    let mut conversation = ConnectionParser::new(false);
    let events = play(
        &mut conversation,
        &[
            op(Direction::Rx, &[ask(0x21, 0, 0, "PLAIN", "\0user\0secret")]),
            op(Direction::Tx, &[say(0x21, 0x20, 0, 0, "Auth failure")]),
            op(Direction::Rx, &[ask(1, 1, 8, "k", "hello")]),
            op(Direction::Tx, &[say(1, 0, 1, 0, "")]),
            // Two of four quiet ones are answered.
            op(
                Direction::Rx,
                &[
                    ask(0x0d, 5, 0, "a", ""),
                    ask(0x0d, 6, 0, "b", ""),
                    ask(0x11, 7, 8, "c", "v"),
                    ask(0x0d, 8, 0, "d", ""),
                    ask(0x0a, 9, 0, "", ""),
                ],
            ),
            op(
                Direction::Tx,
                &[say(0x0d, 0, 6, 4, "value"), say(0x11, 0x82, 7, 0, "Out of memory"), say(0x0a, 0, 9, 0, "")],
            ),
            op(Direction::Rx, &[ask(0x10, 3, 0, "", "")]),
            op(
                Direction::Tx,
                &[
                    packet(0x81, 0x10, 0, 3, 0, "pid", "1"),
                    packet(0x81, 0x10, 0, 3, 0, "x", "2"),
                    say(0x10, 0, 3, 0, ""),
                ],
            ),
            op(Direction::Rx, &[ask(0x17, 4, 0, "", "")]),
        ],
    );
    assert_eq!(
        summary(&events),
        [
            "sasl_auth  @1 -> auth_error @2 complete 41/36/12 @2",
            "set  @3 -> ok @4 complete 38/24/0 @4",
            "get  @5 complete 25/0/0 @6",
            "get  @5 -> ok @6 complete 25/33/9 @6",
            "set  @5 -> out_of_memory @6 complete 34/37/13 @6",
            "get  @5 complete 25/0/0 @6",
            "noop  @5 -> ok @6 complete 24/24/0 @6",
            "stats  @7 -> ok @8 complete 24/24/0 @8",
            "quit  @9 complete 24/0/0 @9",
        ]
    );
}

#[test]
fn quiet_requests_that_nothing_follows_are_complete() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[op(Direction::Rx, &vec![ask(0x11, 1, 8, "k", "v"); 3000])]);
    let reported = events.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count();
    assert!((1900..3000).contains(&reported), "not all are waited for: {reported}");
    conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut events);
    let done = events
        .iter()
        .filter(|event| matches!(event, ExchangeEvent::Done { outcome, .. } if outcome.name() == "complete"));
    assert_eq!(done.count(), 3000);
}

#[test]
fn values_that_were_not_captured() {
    let value = "v".repeat(5000);
    let got = format!("VALUE k 0 5000\r\n{value}\r\nEND\r\n");
    let both = format!("VALUE k 0 5000\r\n{value}\r\nVALUE l 0 5000\r\n{value}\r\nEND\r\n");
    check(
        &[
            cap(rx(&format!("set k 0 0 5000\r\n{value}\r\n")), 100),
            tx("STORED\r\n"),
            rx("get k\r\n"),
            cap(tx(&got), 100),
            rx("get k l\r\n"),
            cap(tx(&both), 100),
            rx("get k\r\n"),
            tx("END\r\n"),
        ],
        &[
            "set  @1 -> ok @2 complete 5018/8/0 @2",
            "get  @3 -> ok @4 complete 7/5023/5007 @4",
            "get  @5 -> ok @6 complete 9/10041/10025 @6",
            "get  @7 -> ok @8 complete 7/5/0 @8",
        ],
    );
}

#[test]
fn joining_in_the_middle() {
    let mut conversation = ConnectionParser::new(true);
    let events = play(
        &mut conversation,
        &[tx("the rest of a value\r\nEND\r\n"), rx("get k\r\n"), tx("END\r\n"), rx("touch k 1\r\n"), tx("TOUCHED\r\n")],
    );
    assert_eq!(summary(&events), ["get  @2 -> ok @3 complete 7/5/0 @3", "touch  @4 -> ok @5 complete 11/9/0 @5"]);
}

#[test]
fn lost_operations_are_reported_and_survived() {
    let mut conversation = ConnectionParser::new(false);
    let mut events = play(&mut conversation, &[rx("set k 0 0 1\r\nx\r\n"), tx("STORED\r\n")]);
    let chunk = |dir, pos, head: &'static [u8], nanos| crate::Chunk {
        dir,
        pos,
        len: head.len() as u64,
        head,
        tail: &[],
        fragments: &[],
        at: Stamp { nanos, pid: 1, tid: 1, reads: 0 },
        arrived: 0,
    };
    let settings = Settings::default();
    conversation.bytes(&chunk(Direction::Rx, 32, b"set k 0 0 1\r\ny\r\n", 3), &settings, &mut events);
    conversation.bytes(&chunk(Direction::Tx, 16, b"STORED\r\n", 4), &settings, &mut events);
    let lines = summary(&events);
    assert_eq!(lines[0], "set  @1 -> ok @2 complete 16/8/0 @2");
    assert!(lines.iter().any(|line| line == "lost Rx 16") && lines.iter().any(|line| line == "lost Tx 8"), "{lines:?}");
}

#[test]
fn errors_are_of_the_oldest_and_logs_are_left_alone() {
    check(
        &[rx("mg a v q\r\nmn\r\n"), tx("CLIENT_ERROR bad\r\nMN\r\n"), rx("watch\r\n"), tx("OK\r\n")],
        &[
            "mg  @1 -> CLIENT_ERROR @2 complete 10/18/0 @2",
            "mn  @1 -> ok @2 complete 4/4/0 @2",
            "watch  @3 -> ok @4 upgraded 7/4/0 @4",
        ],
    );
}

/// Events without times, and without the ends of heads, which depend on the operations.
fn outcomes(events: &[ExchangeEvent]) -> Vec<String> {
    events
        .iter()
        .map(|word| match word {
            ExchangeEvent::Begun { exchange, request, .. } => format!("{exchange} {}", request.method),
            ExchangeEvent::Replied { exchange, failure, .. } => format!("{exchange} {failure:?}"),
            ExchangeEvent::Done { exchange, outcome, request_bytes, reply_bytes, .. } => {
                format!("{exchange} {outcome:?} {request_bytes} {reply_bytes}")
            }
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn every_cut_gives_the_same() {
    let text = [
        rx(
            "set k 0 0 7\r\nget k\r\n\r\nget k l\r\nms m 2 q O5\r\nxy\r\nmg m v O6\r\nincr k 1 noreply\r\nstats items\r\n",
        ),
        tx(
            "STORED\r\nVALUE k 12 7\r\nget k\r\n\r\nVALUE l 0 0 12\r\n\r\nEND\r\nVA 2 O6\r\nxy\r\nSTAT a VALUE\r\nEND\r\n",
        ),
    ];
    let binary = [
        op(
            Direction::Rx,
            &[ask(1, 1, 8, "k", "hello"), ask(9, 2, 0, "a", ""), ask(9, 3, 0, "b", ""), ask(10, 4, 0, "", "")],
        ),
        op(Direction::Tx, &[say(1, 0, 1, 0, ""), say(9, 0, 3, 4, "value"), say(10, 0, 4, 0, "")]),
    ];
    for (ops, count) in [(text, 6), (binary, 4)] {
        let expected = outcomes(&play(&mut ConnectionParser::new(false), &ops));
        assert_eq!(expected.iter().filter(|line| line.contains("Complete")).count(), count, "{expected:?}");
        assert!(!expected.iter().any(|line| line.contains("Lost") || line.contains("Unpaired")), "{expected:?}");
        assert_divided(&ops, |ops| outcomes(&play(&mut ConnectionParser::new(false), ops)), &expected);
    }
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "(get|set|mg|ms|VALUE|VA|HD|END|STAT) [a-z0-9 ]{0,9}\r\n".prop_map(String::into_bytes),
                Just(b"set k 0 0 1\r\nx\r\n".to_vec()),
                Just(ask(9, 1, 0, "k", "")),
                Just(say(10, 0, 1, 0, "")),
            ], 0usize..80),
            0..30,
        ),
        midstream: bool,
    ) {
        let (_, begun, done) = survive(fragments, midstream);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn arguments_never_show(secret in "[a-zA-Z0-9]{12,30}", captured in 0usize..200) {
        let ops = [
            rx("set k 0 0 1\r\nx\r\n"),
            tx("STORED\r\n"),
            cap(rx(&format!("set {secret} 0 0 {}\r\n{secret}\r\n", secret.len())), captured),
            tx("STORED\r\n"),
            rx(&format!("{secret} {secret}\r\n")),
            tx(&format!("CLIENT_ERROR {secret}\r\n")),
            op(Direction::Rx, &[ask(0x21, 0, 0, "PLAIN", &secret)]),
        ];
        let events = format!("{:?}", play(&mut ConnectionParser::new(true), &ops));
        prop_assert!(!events.contains(&secret), "{}", events);
    }
}
