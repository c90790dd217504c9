//! Commands and replies as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, check, play, rx, summary, survive, tx};
use crate::{ConnectionParser, ExchangeEvent, Verdict};

/// A command as clients send it.
fn command(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text
}

fn ask(words: &[&str]) -> Op {
    rx(&command(words))
}

#[test]
fn first_bytes() {
    for (bytes, expected) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], Detected::Request),
        (b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$5\r\nva", Detected::Request),
        (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", Detected::Request),
        (b"*2\r\n$8\r\nJSON.GET\r\n$1\r\nk\r\n", Detected::Request),
        (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", Detected::Reply),
        (b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", Detected::Reply),
        (b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", Detected::Reply),
        (b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n$1\r\nd\r\n", Detected::Request),
        (b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n", Detected::Reply),
        (b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc", Detected::NeedMore),
        (b"*", Detected::NeedMore),
        (b"*1\r\n$4\r\nPI", Detected::NeedMore),
        (b"PING\r\n", Detected::NeedMore),
        (b"PIN", Detected::NeedMore),
        (b"", Detected::NeedMore),
        (b"*1\r\n$7\r\nhunter2\r\n", Detected::No),
        (b"*0\r\n", Detected::No),
        (b"*x", Detected::No),
        (b"+OK\r\n", Detected::No),
        (b"EHLO host\r\n", Detected::No),
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n\0", Detected::No),
        (b"\x16\x03\x01\x02\x00", Detected::No),
    ] {
        assert_eq!(Redis.detect(bytes), expected, "{}", String::from_utf8_lossy(bytes));
    }
    for (asked, answer, expected) in [
        (&b"PING\r\n"[..], &b"+PONG\r\n"[..], true),
        (b"get k\n", b"$-1\r\n", true),
        (b"get k\r\n", b"VALUE k 0 1\r\n", false),
        (b"+OK ready\r\n", b"+OK\r\n", false),
        (b"", b"+OK\r\n", false),
    ] {
        assert_eq!(Redis.answers(asked, answer), expected, "{}", String::from_utf8_lossy(asked));
    }
}

#[test]
fn commands_and_their_replies() {
    check(
        &[
            ask(&["SET", "k", "v"]),
            tx("+OK\r\n"),
            ask(&["get", "k"]),
            tx("$1\r\nv\r\n"),
            ask(&["CONFIG", "Set", "requirepass", "x"]),
            tx("+OK\r\n"),
            ask(&["HGETALL", "k"]),
            tx("-WRONGTYPE Operation against a key\r\n"),
            ask(&["NOSUCH", "k"]),
            tx("-ERR unknown command\r\n"),
            ask(&["EVAL", "return x", "0"]),
            tx("-MINE at heart\r\n"),
        ],
        &[
            "SET  @1 -> ok @2 complete 27/5/0 @2",
            "GET  @3 -> ok @4 complete 20/7/0 @4",
            "CONFIG SET  @5 -> ok @6 complete 50/5/0 @6",
            "HGETALL  @7 -> WRONGTYPE @8 complete 24/36/0 @8",
            "_OTHER  @9 -> ERR @10 complete 23/22/0 @10",
            "EVAL  @11 -> _OTHER @12 complete 35/16/0 @12",
        ],
    );
}

#[test]
fn pipelines_in_one_operation() {
    let asked = [command(&["SET", "k", "v"]), command(&["INCR", "n"]), command(&["LRANGE", "l", "0", "-1"])].concat();
    check(
        &[rx(&asked), tx("+OK\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n")],
        &[
            "SET  @1 -> ok @2 complete 27/5/0 @2",
            "INCR  @1 -> ok @2 complete 21/4/0 @2",
            "LRANGE  @1 -> ok @2 complete 38/16/0 @2",
        ],
    );
}

#[test]
fn queued_commands_and_errors_inside() {
    check(
        &[
            ask(&["MULTI"]),
            tx("+OK\r\n"),
            ask(&["LPUSH", "k", "v"]),
            tx("+QUEUED\r\n"),
            ask(&["EXEC"]),
            tx("*2\r\n:1\r\n-WRONGTYPE Operation\r\n"),
            ask(&["EXEC"]),
            tx("-EXECABORT Transaction discarded\r\n"),
        ],
        &[
            "MULTI  @1 -> ok @2 complete 15/5/0 @2",
            "LPUSH  @3 -> ok @4 complete 29/9/0 @4",
            "EXEC  @5 -> WRONGTYPE @6 complete 14/30/0 @6",
            "EXEC  @7 -> EXECABORT @8 complete 14/34/0 @8",
        ],
    );
}

/// What Redis 7 sends: the array of a transaction's reply counts commands, but each channel is confirmed.
#[test]
fn subscriptions_of_a_transaction_move_no_later_reply() {
    let resp2 = "*3\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n\
                 *2\r\n$4\r\npong\r\n$0\r\n\r\n*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n\
                 *3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n";
    let resp3 = "*3\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n\
                 +PONG\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:1\r\n>3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:0\r\n";
    for executed in [resp2, resp3] {
        let commands = [
            &["MULTI"][..],
            &["SUBSCRIBE", "a", "b"],
            &["PING"],
            &["UNSUBSCRIBE", "a", "b"],
            &["EXEC"],
            &["GET", "k"],
            &["INCR", "n"],
            &["LPUSH", "n", "1"],
        ];
        let asked: String = commands.iter().map(|words| command(words)).collect();
        let rest = "$-1\r\n:1\r\n-WRONGTYPE Operation against a key\r\n";
        let ops = [rx(&asked), tx(&format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n{executed}{rest}"))];
        let found = |ops: &[Op]| -> Vec<String> {
            let found = summary(&play(&mut ConnectionParser::new(false), ops));
            let plain =
                |line: &String| line.split(' ').filter(|word| !word.contains(['@', '/'])).collect::<Vec<_>>().join(" ");
            found.iter().map(plain).collect()
        };
        let expected: Vec<String> = [
            "MULTI  -> ok complete",
            "SUBSCRIBE  -> ok complete",
            "PING  -> ok complete",
            "UNSUBSCRIBE  -> ok complete",
            "EXEC  -> ok complete",
            "GET  -> ok complete",
            "INCR  -> ok complete",
            "LPUSH  -> WRONGTYPE complete",
        ]
        .map(String::from)
        .to_vec();
        assert_eq!(found(&ops), expected);
        assert_divided(&ops, found, &expected);
    }
}

#[test]
fn subscriptions_end_with_their_confirmations_and_messages_answer_nothing() {
    for kind in ["*", ">"] {
        let confirm = |word: &str, channel: &str, n: u32| {
            format!("{kind}3\r\n${}\r\n{word}\r\n$1\r\n{channel}\r\n:{n}\r\n", word.len())
        };
        let message = format!("{kind}3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n");
        let mut conversation = ConnectionParser::new(false);
        let events = play(
            &mut conversation,
            &[
                ask(&["SUBSCRIBE", "a", "b"]),
                tx(&confirm("subscribe", "a", 1)),
                tx(&[confirm("subscribe", "b", 2), message.clone()].concat()),
                tx(&message),
                ask(&["PING"]),
                tx(&[message.as_str(), "*2\r\n$4\r\npong\r\n$0\r\n\r\n"].concat()),
                ask(&["UNSUBSCRIBE"]),
                tx(&[confirm("unsubscribe", "a", 1), confirm("unsubscribe", "b", 0)].concat()),
                ask(&["GET", "k"]),
                tx("$-1\r\n"),
            ],
        );
        let lines = summary(&events);
        let starts = [
            "SUBSCRIBE  @1 -> ok @3 complete",
            "PING  @5 -> ok @6 complete",
            "UNSUBSCRIBE  @7 -> ok @8",
            "GET  @9 -> ok @10",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line} for {start}");
        }
    }
}

#[test]
fn a_subscriber_joined_in_its_middle_waits_for_nothing() {
    let mut conversation = ConnectionParser::new(true);
    let message = "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n";
    let events = play(&mut conversation, &[rx(message), rx(message), rx(message)]);
    assert_eq!(events, []);
    assert_eq!(conversation.side(), Some(tracer_model::Side::Client));
}

#[test]
fn silence_is_asked_for() {
    check(
        &[
            ask(&["CLIENT", "REPLY", "SKIP"]),
            ask(&["SET", "k", "v"]),
            ask(&["GET", "k"]),
            tx("$1\r\nv\r\n"),
            ask(&["CLIENT", "REPLY", "OFF"]),
            ask(&["SET", "k", "v"]),
            ask(&["CLIENT", "REPLY", "ON"]),
            tx("+OK\r\n"),
        ],
        &[
            "CLIENT REPLY  @1 complete 37/0/0 @1",
            "SET  @2 complete 27/0/0 @2",
            "GET  @3 -> ok @4 complete 20/7/0 @4",
            "CLIENT REPLY  @5 complete 36/0/0 @5",
            "SET  @6 complete 27/0/0 @6",
            "CLIENT REPLY  @7 -> ok @8 complete 35/5/0 @8",
        ],
    );
}

#[test]
fn inline_commands_need_their_reply_to_be_believed() {
    check(
        &[rx("PING\r\n"), tx("+PONG\r\n"), rx("set k v\r\n\r\nfoo\r\n"), tx("+OK\r\n-ERR unknown\r\n")],
        &[
            "PING  @1 -> ok @2 complete 6/7/0 @2",
            "SET  @3 -> ok @4 complete 9/5/0 @4",
            "_OTHER  @3 -> ERR @4 complete 5/14/0 @4",
        ],
    );
    // Other protocols with similar commands.
    for ops in [
        [rx("get k\r\n"), tx("200 ok\r\n"), rx("get k\r\n"), tx("200 ok\r\n")],
        [tx("+OK POP3\r\n"), rx("USER a\r\n"), tx("+OK\r\n"), rx("QUIT\r\n")],
    ] {
        check(&ops, &[]);
    }
    let mut conversation = ConnectionParser::new(false);
    play(&mut conversation, &[rx("get k\r\n"), tx("END\r\n")]);
    assert_eq!(conversation.protocol(), Some("memcached"));
}

/// What `redis-cli --pipe` sends of a file of lines, and what Redis 7.0 answers; sent in operations of 16 KiB, answered as it reads.
fn piped_lines(captured: usize) -> (Vec<Op>, usize) {
    let mut asked = (0..2000).map(|number| format!("SET key{number} value{number}\r\n")).collect::<Vec<_>>().concat();
    asked += "PING\r\nNOSUCH a b\r\nget key1\r\n\r\n*2\r\n$4\r\nECHO\r\n$20\r\n01234567890123456789\r\n";
    let last = "+PONG\r\n-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n$6\r\nvalue1\r\n$20\r\n01234567890123456789\r\n";
    let mut ops = Vec::new();
    let mut answered = 0;
    let mut sent = 0;
    for piece in asked.as_bytes().chunks(16384) {
        let piece = std::str::from_utf8(piece).expect("ASCII");
        ops.push(cap(rx(piece), captured));
        // The first two arrive before the first answer.
        sent += piece.len();
        let whole = asked[..sent].matches('\n').count().min(2000);
        if sent > 16384 && whole > answered {
            ops.push(tx(&"+OK\r\n".repeat(whole - answered)));
            answered = whole;
        }
    }
    ops.push(tx(last));
    (ops, 2004)
}

#[test]
fn every_line_of_a_pipe_counts() {
    // How much of an operation is captured, and how many of the first operation's commands are named by that.
    for (captured, named) in [(usize::MAX, 724), (4096, 189), (256, 13), (128, 6), (20, 1)] {
        let (ops, expected) = piped_lines(captured);
        let mut conversation = ConnectionParser::new(false);
        let lines = summary(&play(&mut conversation, &ops));
        assert_eq!(conversation.protocol(), Some("redis"), "{captured}");
        let answered: Vec<&String> = lines.iter().filter(|line| line.contains(" -> ")).collect();
        let count = |name: &str| answered.iter().filter(|line| line.starts_with(name)).count();
        assert_eq!(answered.len(), expected, "{captured}");
        assert!(count("SET  ") >= named, "{captured}: {} SET", count("SET  "));
        // The only unknown command; no piece of another one has its name.
        assert!(count("_OTHER") <= 1, "{captured}: {} _OTHER", count("_OTHER"));
        let names = ["SET", "_UNNAMED", "PING", "GET", "ECHO", "_OTHER"].map(count);
        assert_eq!(names.iter().sum::<usize>(), expected, "{captured}: {names:?}");
        if captured == usize::MAX {
            assert_eq!(names[2..], [1, 1, 1, 1], "what was captured is named");
        }
    }
}

#[test]
fn lines_of_other_protocols_are_not_taken_for_commands() {
    let lines = (0..2000).map(|number| format!("get key{number}\r\n")).collect::<Vec<_>>().concat();
    for (answer, expected) in
        [("200 ok\r\n", None), ("END\r\n", Some("memcached")), ("hello\r\n", None), ("$-1\r\n", Some("redis"))]
    {
        let mut ops: Vec<Op> = lines
            .as_bytes()
            .chunks(16384)
            .map(|piece| cap(rx(std::str::from_utf8(piece).expect("ASCII")), 256))
            .collect();
        ops.push(tx(&answer.repeat(2000)));
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &ops);
        assert_eq!(conversation.protocol(), expected, "{answer}");
        let answered = summary(&events).iter().filter(|line| line.contains(" -> ")).count();
        assert_eq!(answered, if expected.is_some() { 2000 } else { 0 }, "{answer}");
    }
    // A connection that begins so and is another protocol's from its second message on.
    let mut conversation = ConnectionParser::new(false);
    let http = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    play(
        &mut conversation,
        &[cap(rx(&lines), 256), tx("what?\r\n"), rx(http), tx("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")],
    );
    assert_eq!(conversation.protocol(), Some("http"));
}

#[test]
fn values_need_not_be_captured() {
    let big = "x".repeat(100_000);
    let set = command(&["SET", "k", &big]);
    let found = format!("${}\r\n{big}\r\n", big.len());
    check(
        &[cap(rx(&set), 60), tx("+OK\r\n"), ask(&["GET", "k"]), cap(tx(&found), 20), ask(&["PING"]), tx("+PONG\r\n")],
        &[
            "SET  @1 -> ok @2 complete 100031/5/0 @2",
            "GET  @3 -> ok @4 complete 20/100011/99991 @4",
            "PING  @5 -> ok @6 complete 14/7/0 @6",
        ],
    );
    // Its end is in an operation of its own.
    let (front, back) = set.split_at(50_000);
    check(&[cap(rx(front), 60), cap(rx(back), 10), tx("+OK\r\n")], &["SET  @1 -> ok @3 complete 100031/5/0 @3"]);
}

#[test]
fn commands_that_were_not_captured_are_counted_by_their_replies() {
    let get = command(&["GET", "k"]);
    let asked = get.repeat(100);
    let replies = "$1\r\nv\r\n".repeat(100);
    for captured in [0, 1, get.len(), get.len() * 10, get.len() * 10 + 7, get.len() * 10 + 18] {
        let mut conversation = ConnectionParser::new(false);
        let events = play(
            &mut conversation,
            &[ask(&["PING"]), tx("+PONG\r\n"), cap(rx(&asked), captured), tx(&replies), rx(&get), tx("$-1\r\n")],
        );
        let lines = summary(&events);
        let count = |start: &str| lines.iter().filter(|line| line.starts_with(start) && line.contains("-> ok")).count();
        assert_eq!((count("PING"), count("GET") + count("_UNNAMED")), (1, 101), "{captured}: {lines:?}");
        assert_eq!(count("GET"), 1 + (captured + 5) / get.len(), "{captured}: {lines:?}");
        // The next round is complete again.
        assert!(lines.iter().any(|line| line == "GET  @5 -> ok @6 complete 20/5/0 @6"), "{captured}: {lines:?}");
        assert!(conversation.want().head_rx > 0, "more is asked for");
    }
}

#[test]
fn an_empty_line_between_commands_is_none() {
    // As `redis-cli --pipe` asks whether all was read.
    let asked = [command(&["SET", "k", "v"]), format!("\r\n{}", command(&["ECHO", "x"]))].concat();
    for cut in 1..asked.len() {
        let (front, back) = asked.split_at(cut);
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &[rx(front), rx(back), tx("+OK\r\n$1\r\nx\r\n")]);
        let names: Vec<_> = summary(&events).iter().map(|line| line[..4].to_owned()).collect();
        assert_eq!(names, ["SET ", "ECHO"], "{cut}");
        assert!(!events.iter().any(|event| matches!(event, ExchangeEvent::Lost { .. })), "{cut}");
    }
}

#[test]
fn the_rest_of_a_command_is_no_command() {
    let incr = command(&["INCR", "n"]);
    // A command that begins in uncaptured bytes, for every position where the next operation can begin in it.
    for cut in 1..incr.len() {
        let (front, back) = incr.split_at(cut);
        let mut conversation = ConnectionParser::new(false);
        let events = play(
            &mut conversation,
            &[
                rx(&incr),
                tx(":1\r\n"),
                cap(rx(&[incr.as_str(), &incr, front].concat()), incr.len()),
                tx(":2\r\n:3\r\n"),
                rx(&[back, &incr].concat()),
                tx(":4\r\n:5\r\n"),
            ],
        );
        let lines = summary(&events);
        let count = |name: &str| lines.iter().filter(|line| line.starts_with(name) && line.contains("-> ok")).count();
        assert_eq!((count("INCR"), count("_UNNAMED")), (3, 2), "{cut}: {lines:?}");
    }
}

#[test]
fn a_pipeline_of_more_than_can_wait_is_counted() {
    let asked = command(&["GET", "k"]).repeat(20_000);
    let mut conversation = ConnectionParser::new(false);
    let events =
        play(&mut conversation, &[tx(&asked), rx(&"$-1\r\n".repeat(20_000)), tx(&command(&["PING"])), rx("+PONG\r\n")]);
    let lines = summary(&events);
    assert_eq!(lines.iter().filter(|line| line.contains("-> ok")).count(), 20_001);
    assert!(lines.iter().filter(|line| line.starts_with("GET")).count() >= 4096);
    assert_eq!(lines.last().map(String::as_str), Some("PING  @3 -> ok @4 complete 14/7/0 @4"));
}

#[test]
fn replies_that_were_not_captured_shift_no_others() {
    let mut conversation = ConnectionParser::new(false);
    let asked = [command(&["SET", "k", "v"]), command(&["GET", "k"]), command(&["INCR", "n"])].concat();
    let events = play(
        &mut conversation,
        &[rx(&asked), cap(tx("+OK\r\n$1\r\nv\r\n:1\r\n"), 5), ask(&["LLEN", "l"]), tx("-WRONGTYPE no\r\n")],
    );
    assert_eq!(
        summary(&events),
        [
            "SET  @1 -> ok @2 complete 27/5/0 @2",
            "GET  @1 unfinished 20/0/0 @2",
            "INCR  @1 unfinished 21/0/0 @2",
            "lost Tx 11",
            "LLEN  @3 -> WRONGTYPE @4 complete 21/15/0 @4",
        ]
    );
}

#[test]
fn replication_is_left_alone() {
    let mut conversation = ConnectionParser::new(false);
    let events = play(&mut conversation, &[ask(&["PSYNC", "?", "-1"]), tx("+FULLRESYNC abc 0\r\n"), tx("$5\r\nREDIS")]);
    assert!(summary(&events)[0].contains("upgraded"), "{events:?}");
    assert_eq!(conversation.want().verdict, Verdict::Ignore);
}

#[test]
fn monitors_end_with_their_reply() {
    check(
        &[
            ask(&["MONITOR"]),
            tx("+OK\r\n"),
            tx("+1700000000.1 [0 127.0.0.1:5] \"GET\" \"k\"\r\n"),
            ask(&["QUIT"]),
            tx("+OK\r\n"),
        ],
        &["MONITOR  @1 -> ok @2 complete 17/5/0 @2", "QUIT  @4 -> ok @5 complete 14/5/0 @5"],
    );
}

/// A session with every kind of message, and the number of its exchanges.
fn session() -> (Vec<Op>, usize) {
    let asked = [
        command(&["HELLO", "3", "AUTH", "user", "secret"]),
        "*0\r\n".into(),
        command(&["CLIENT", "SETNAME", "x"]),
        command(&["SET", "k", "*1\r\n$4\r\nPING\r\n"]),
        command(&["GET", "k"]),
        command(&["HGETALL", "h"]),
        command(&["SUBSCRIBE", "a", "b"]),
        command(&["EXEC"]),
    ]
    .concat();
    let replies = [
        "%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n",
        "+OK\r\n",
        "-OOM command not allowed\r\n",
        "$14\r\n*1\r\n$4\r\nPING\r\n\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n",
        "|1\r\n+ttl\r\n:5\r\n%1\r\n$1\r\na\r\n,1.5\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n",
        "*2\r\n-ERR no\r\n+OK\r\n",
    ]
    .concat();
    (vec![rx(&asked), tx(&replies)], 7)
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
    let (ops, count) = session();
    let whole = play(&mut ConnectionParser::new(false), &ops);
    let expected = outcomes(&whole);
    assert_eq!(whole.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count(), count, "{expected:?}");
    assert!(
        !whole.iter().any(|event| matches!(event, ExchangeEvent::Unpaired { .. } | ExchangeEvent::Lost { .. })),
        "{whole:?}"
    );
    assert_divided(&ops, |ops| outcomes(&play(&mut ConnectionParser::new(false), ops)), &expected);
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                "[*$+>%-][0-9-]{0,3}\r\n".prop_map(String::into_bytes),
                Just(command(&["GET", "k"]).into_bytes()),
                Just(command(&["SUBSCRIBE", "a"]).into_bytes()),
                Just(b"+OK\r\n".to_vec()),
            ], 0usize..80),
            0..30,
        ),
        midstream: bool,
    ) {
        let (_, begun, done) = survive(fragments, midstream);
        prop_assert_eq!(begun, done);
    }

    #[test]
    fn arguments_never_show(secret in "[a-zA-Z0-9]{12,30}", captured in 0usize..200, wrong: bool) {
        let first = if wrong { secret.as_str() } else { "AUTH" };
        let ops = [
            cap(ask(&[first, &secret, &secret]), captured),
            tx(&format!("-ERR {secret}\r\n")),
            cap(ask(&["CONFIG", &secret, &secret]), captured),
            tx(&format!("-{} no\r\n", secret.to_uppercase())),
            rx(&format!("PING {secret}\r\n")),
            tx(&format!("${}\r\n{secret}\r\n", secret.len())),
        ];
        let events = format!("{:?}", play(&mut ConnectionParser::new(true), &ops)).to_lowercase();
        prop_assert!(!events.contains(&secret.to_lowercase()), "{}", events);
    }
}

/// Jobs that a connection's messages show, without the requests that ask for them.
fn jobs(ops: &[Op]) -> Vec<JobEvent> {
    let mut parser = ConnectionParser::new(false);
    let events = play(&mut parser, ops).into_iter();
    events
        .filter_map(|event| match event {
            ExchangeEvent::Job { job, .. } if !matches!(job, JobEvent::Asks(_)) => Some(job),
            _ => None,
        })
        .collect()
}

#[test]
fn a_reply_in_a_pipeline_is_read_as_its_own_requests() {
    let ask = |words: &[&str]| tx(&command(words));
    // The first two replies are not read: what they may contain is not kept. The third is read as the third request's.
    let ops = [
        ask(&["BLMOVE", "queue:one", "to", "LEFT", "LEFT", "0"]),
        ask(&["HGETALL", "rq:job:1"]),
        ask(&["BLMOVE", "queue:three", "to", "LEFT", "LEFT", "0"]),
        rx("$5\r\nfirst\r\n*2\r\n$11\r\ndescription\r\n$5\r\na.b()\r\n$5\r\nthird\r\n"),
        ask(&["BLMOVE", "queue:four", "to", "LEFT", "LEFT", "0"]),
        rx("$6\r\nfourth\r\n"),
    ];
    let names: Vec<String> = jobs(&ops)
        .iter()
        .map(|job| match job {
            JobEvent::Taken(job) => job.name.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["three", "four"]);
}

#[test]
fn what_has_no_room_puts_nothing_into_a_queue_later() {
    let push = command(&["LPUSH", "q", "x"]);
    let get = command(&["GET", "k"]);
    let mut parser = ConnectionParser::new(false);
    let mut events = play(&mut parser, &[tx(&push.repeat(5_000))]);
    let begun = events.iter().filter(|event| matches!(event, ExchangeEvent::Begun { .. })).count();
    let pushed =
        |events: &[ExchangeEvent]| events.iter().filter(|event| matches!(event, ExchangeEvent::Job { .. })).count();
    assert!(begun < 5_000 && pushed(&events) == begun, "{begun}");
    events = play(&mut parser, &[rx(&":1\r\n".repeat(5_000)), tx(&get), rx("$1\r\nx\r\n")]);
    assert_eq!(pushed(&events), 0);
}
