//! Sessions as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_common::limits::TAIL_MAX;
use tracer_model::Direction;

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, play_with, summary, survive};
use crate::{Chunk, ConnectionParser, ExchangeEvent, Settings, Stamp, Verdict};

mod long_replies;

/// A message.
fn message(kind: u8, fields: &[u8]) -> Vec<u8> {
    let length = (fields.len() as u32 + 4).to_be_bytes();
    [&[kind][..], &length, fields].concat()
}

/// Names with a terminating zero each, then `rest`.
fn fields(names: &[&str], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = names.iter().flat_map(|name| [name.as_bytes(), &[0]].concat()).collect();
    bytes.extend_from_slice(rest);
    bytes
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &fields(&[sql], b""))
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &fields(&[name, sql], &[0, 0]))
}

fn bind(portal: &str, statement: &str, value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u32).to_be_bytes();
    message(b'B', &fields(&[portal, statement], &[&[0, 0, 0, 1][..], &length, value, &[0, 0]].concat()))
}

fn describe(kind: u8, name: &str) -> Vec<u8> {
    message(b'D', &[&[kind], &fields(&[name], b"")[..]].concat())
}

fn execute(portal: &str) -> Vec<u8> {
    message(b'E', &fields(&[portal], &[0; 4]))
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

/// The messages that prepare and run an unnamed statement.
fn run(sql: &str) -> Vec<u8> {
    [parse("", sql), bind("", "", b"v"), describe(b'P', ""), execute("")].concat()
}

fn columns() -> Vec<u8> {
    message(b'T', &[&[0, 1][..], b"a\0", &[0; 18]].concat())
}

fn row(value: &[u8]) -> Vec<u8> {
    message(b'D', &[&[0, 1][..], &(value.len() as u32).to_be_bytes(), value].concat())
}

fn complete(tag: &str) -> Vec<u8> {
    message(b'C', &fields(&[tag], b""))
}

fn ready(state: u8) -> Vec<u8> {
    message(b'Z', &[state])
}

fn error(severity: &str, code: &str) -> Vec<u8> {
    let text = format!("S{severity}\0V{severity}\0C{code}\0Mplanted message\0\0");
    message(b'E', text.as_bytes())
}

/// The reply to [`run`].
fn ran(rows: usize) -> Vec<u8> {
    let rows: Vec<u8> = (0..rows).flat_map(|_| row(b"x")).collect();
    [message(b'1', b""), message(b'2', b""), columns(), rows, complete("SELECT 1")].concat()
}

fn rx(parts: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: parts.concat(), captured: usize::MAX }
}

fn tx(parts: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(parts) }
}

fn startup() -> Vec<u8> {
    let rest = fields(&["user", "planted", "database", "planted", ""], b"");
    [&(rest.len() as u32 + 8).to_be_bytes()[..], &196_608_u32.to_be_bytes(), &rest].concat()
}

fn code(code: u32) -> Vec<u8> {
    [8_u32.to_be_bytes(), code.to_be_bytes()].concat()
}

fn welcome() -> Vec<u8> {
    [
        message(b'R', &[0; 4]),
        message(b'S', &fields(&["server_version", "15"], b"")),
        message(b'K', &[0; 8]),
        ready(b'I'),
    ]
    .concat()
}

/// Events without bytes: names, replies, ends.
fn lines(ops: &[Op]) -> Vec<String> {
    event_lines(&play(&mut ConnectionParser::new(false), ops))
}

fn event_lines(events: &[ExchangeEvent]) -> Vec<String> {
    let short = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        let kept: Vec<&str> = words.iter().copied().filter(|word| !word.contains('/')).collect();
        kept.join(" ")
    };
    summary(events).into_iter().map(short).collect()
}

#[test]
fn first_bytes() {
    for (bytes, expected) in [
        (startup(), Detected::Request),
        (code(TLS), Detected::Request),
        (code(GSS), Detected::Request),
        (code(CANCEL), Detected::No),
        (code(1), Detected::No),
        (vec![0, 0, 0], Detected::NeedMore),
        (query("SELECT 1"), Detected::Request),
        (query("SELECT 1")[..7].to_vec(), Detected::Request),
        (b"Q".to_vec(), Detected::NeedMore),
        (b"QUIT\r\n".to_vec(), Detected::No),
        (message(b'Q', b"\x01\x02\0"), Detected::No),
        ([run("SELECT 1"), sync()].concat(), Detected::Request),
        ([bind("", "s", b"\0\x01"), execute(""), sync()].concat(), Detected::Request),
        (sync(), Detected::No),
        ([columns(), row(b"x"), complete("SELECT 1"), ready(b'I')].concat(), Detected::Reply),
        ([error("ERROR", "42601"), ready(b'I')].concat(), Detected::Reply),
        ([complete("BEGIN"), ready(b'T')].concat(), Detected::Reply),
        (ready(b'I'), Detected::Reply),
        (ready(b'x'), Detected::No),
        (b"*1\r\n$4\r\nPING\r\n".to_vec(), Detected::No),
        (b"\x16\x03\x01\x02\0\x01".to_vec(), Detected::No),
        (b"P\0\0\0\x03SELECT 1".to_vec(), Detected::No),
    ] {
        assert_eq!(PostgreSql.detect(&bytes), expected, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_session_from_its_beginning() {
    assert_eq!(
        lines(&[
            rx(&[code(GSS)]),
            tx(&[b"N".to_vec()]),
            rx(&[code(TLS)]),
            tx(&[b"N".to_vec()]),
            rx(&[startup()]),
            tx(&[message(b'R', &[0, 0, 0, 5, 1, 2, 3, 4])]),
            rx(&[message(b'p', b"planted\0")]),
            tx(&[welcome()]),
            rx(&[query("SELECT * FROM a; UPDATE b SET x = 'planted'")]),
            tx(&[columns(), row(b"planted"), complete("SELECT 1"), complete("UPDATE 5"), ready(b'I')]),
            tx(&[message(b'A', &fields(&["channel", "planted"], &[0; 4]))]),
            tx(&[message(b'N', b"SNOTICE\0C00000\0\0")]),
            rx(&[query("")]),
            tx(&[message(b'I', b""), ready(b'I')]),
            rx(&[query("SELECT 1/0")]),
            tx(&[columns(), error("ERROR", "22012"), ready(b'I')]),
            rx(&[query("CALL raise()")]),
            tx(&[error("ERROR", "PLANT"), ready(b'E')]),
            rx(&[message(b'F', &[0; 12])]),
            tx(&[message(b'V', &[0; 4]), ready(b'I')]),
            rx(&[message(b'X', b"")]),
        ]),
        [
            "CONNECT CONNECT @1 -> ok @6 complete @8",
            "BATCH SELECT a; UPDATE b @9 -> ok @10 complete @10",
            "_EMPTY _EMPTY @13 -> ok @14 complete @14",
            "SELECT SELECT @15 -> 22012 @16 complete @16",
            "CALL CALL raise @17 -> _OTHER @18 complete @18",
            "FUNCTION CALL FUNCTION CALL @19 -> ok @20 complete @20",
        ]
    );
}

#[test]
fn a_connection_that_turns_to_tls_is_left_alone() {
    for (asked, answer) in [(TLS, b"S"), (GSS, b"G")] {
        for (first, second) in [(Direction::Rx, Direction::Tx), (Direction::Tx, Direction::Rx)] {
            let mut conversation = ConnectionParser::new(false);
            let ops = [
                Op { dir: first, ..rx(&[code(asked)]) },
                Op { dir: second, ..rx(&[answer.to_vec()]) },
                Op { dir: first, ..rx(&[b"\x16\x03\x01".to_vec()]) },
            ];
            assert_eq!(play(&mut conversation, &ops), []);
            // TLS is timed by round trips.
            let left = if asked == TLS { (Verdict::Trace, Some("tls")) } else { (Verdict::Ignore, Some("postgresql")) };
            assert_eq!((conversation.want().verdict, conversation.protocol()), left);
        }
    }
}

#[test]
fn refused_and_ended_connections() {
    assert_eq!(
        lines(&[rx(&[startup()]), tx(&[error("FATAL", "28P01")])]),
        ["CONNECT CONNECT @1 -> 28P01 @2 complete @2"]
    );
    // Ended by the administrator, while a request is open and while none is.
    let ended = error("FATAL", "57P01");
    assert_eq!(
        lines(&[rx(&[startup()]), tx(&[welcome()]), tx(std::slice::from_ref(&ended))]),
        ["CONNECT CONNECT @1 -> ok @2 complete @2"]
    );
    assert_eq!(
        lines(&[rx(&[query("SELECT pg_sleep(9)")]), tx(&[ended])]),
        ["SELECT SELECT @1 -> 57P01 @2 complete @2"]
    );
    let cancel = [&16_u32.to_be_bytes()[..], &CANCEL.to_be_bytes(), &[7; 8]].concat();
    assert_eq!(lines(&[rx(&[cancel])]), ["CANCEL CANCEL @1 complete @1"]);
}

#[test]
fn prepared_statements_have_their_query_s_name() {
    assert_eq!(
        lines(&[
            rx(&[parse("s1", "UPDATE t SET a = $1"), describe(b'S', "s1"), sync()]),
            tx(&[message(b'1', b""), message(b't', &[0, 0]), message(b'n', b""), ready(b'I')]),
            rx(&[bind("", "s1", b"planted"), execute(""), sync()]),
            tx(&[message(b'2', b""), complete("UPDATE 1"), ready(b'I')]),
            rx(&[bind("c", "s1", b""), execute("c"), sync()]),
            tx(&[message(b'2', b""), error("ERROR", "40001"), ready(b'I')]),
            rx(&[message(b'C', &fields(&["Ss1"], b"")), sync()]),
            tx(&[message(b'3', b""), ready(b'I')]),
            rx(&[bind("", "s1", b""), execute(""), sync()]),
            tx(&[error("ERROR", "26000"), ready(b'I')]),
            rx(&[run("SELECT * FROM u"), sync()]),
            tx(&[ran(5), ready(b'I')]),
            rx(&[sync()]),
            tx(&[ready(b'I')]),
        ]),
        [
            "PREPARE PREPARE UPDATE t @1 -> ok @2 complete @2",
            "UPDATE UPDATE t @3 -> ok @4 complete @4",
            "UPDATE UPDATE t @5 -> 40001 @6 complete @6",
            "CLOSE CLOSE @7 -> ok @8 complete @8",
            "_UNNAMED  @9 -> 26000 @10 complete @10",
            "SELECT SELECT u @11 -> ok @12 complete @12",
            "SYNC SYNC @13 -> ok @14 complete @14",
        ]
    );
}

#[test]
fn pipelines() {
    // Three before one Sync.
    let three = [run("SELECT * FROM a"), run("SELECT * FROM b"), run("SELECT * FROM c"), sync()];
    assert_eq!(
        lines(&[rx(&three), tx(&[ran(1), ran(0), ran(2), ready(b'I')])]),
        [
            "SELECT SELECT a @1 -> ok @2 complete @2",
            "SELECT SELECT b @1 -> ok @2 complete @2",
            "SELECT SELECT c @1 -> ok @2 complete @2",
        ]
    );
    // The first one fails: the server skips the others.
    let failed = [message(b'1', b""), error("ERROR", "23505"), ready(b'I')];
    assert_eq!(
        lines(&[rx(&three), tx(&failed), rx(&[query("SELECT 1")]), tx(&[ran(0), ready(b'I')])]),
        [
            "SELECT SELECT a @1 -> 23505 @2 complete @2",
            "SELECT SELECT b @1 -> pipeline_aborted @2 complete @2",
            "SELECT SELECT c @1 -> pipeline_aborted @2 complete @2",
            "SELECT SELECT @3 -> ok @4 complete @4",
        ]
    );
    // A hundred fail with the first.
    let many = [vec![run("SELECT * FROM a"); 100].concat(), sync()];
    let found = lines(&[rx(&many), tx(&failed)]);
    assert_eq!(found.iter().filter(|line| line.contains("pipeline_aborted @2 complete")).count(), 99);
    // Each with its own Sync; and with Flush instead, the Sync later.
    assert_eq!(
        lines(&[
            rx(&[run("SELECT * FROM a"), sync(), run("SELECT * FROM b"), sync()]),
            tx(&[message(b'1', b""), error("ERROR", "23505"), ready(b'I'), ran(0), ready(b'I')]),
            rx(&[run("SELECT * FROM c"), message(b'H', b"")]),
            tx(&[ran(3)]),
            rx(&[parse("x", "SELECT * FROM d"), describe(b'S', "x"), message(b'H', b"")]),
            tx(&[message(b'1', b""), message(b't', &[0, 0]), columns()]),
            rx(&[sync()]),
            tx(&[ready(b'I')]),
        ]),
        [
            "SELECT SELECT a @1 -> 23505 @2 complete @2",
            "SELECT SELECT b @1 -> ok @2 complete @2",
            "SELECT SELECT c @3 -> ok @4 complete @4",
            "PREPARE PREPARE SELECT d @5 -> ok @6 complete @6",
            "SYNC SYNC @7 -> ok @8 complete @8",
        ]
    );
}

#[test]
fn what_is_sent_before_the_sync_can_be_answered_before_it() {
    let failed = [ran(1), message(b'1', b""), error("ERROR", "23505")];
    assert_eq!(
        lines(&[
            rx(&[run("SELECT * FROM a")]),
            rx(&[run("SELECT * FROM b")]),
            tx(&failed),
            rx(&[run("SELECT * FROM c")]),
            rx(&[run("SELECT * FROM d")]),
            rx(&[sync()]),
            tx(&[ready(b'I')]),
            // The last one fails, or has so many rows that the first of them come before the Sync.
            rx(&[run("SELECT * FROM e")]),
            tx(&[error("ERROR", "22012")]),
            rx(&[sync()]),
            tx(&[ready(b'I')]),
            rx(&[run("SELECT * FROM f")]),
            tx(&[message(b'1', b""), message(b'2', b""), columns(), row(b"x")]),
            rx(&[sync()]),
            tx(&[row(b"y"), complete("SELECT 2"), ready(b'I')]),
        ]),
        [
            "SELECT SELECT a @1 -> ok @3 complete @3",
            "SELECT SELECT b @2 -> 23505 @3 complete @3",
            "SELECT SELECT c @4 -> pipeline_aborted @7 complete @7",
            "SELECT SELECT d @5 -> pipeline_aborted @7 complete @7",
            "SELECT SELECT e @8 -> 22012 @9 complete @9",
            "SYNC SYNC @10 -> ok @11 complete @11",
            "SELECT SELECT f @12 -> ok @13 complete @15",
            "SYNC SYNC @14 -> ok @15 complete @15",
        ]
    );
}

#[test]
fn copies() {
    let data = message(b'd', b"planted\t5\n");
    let done = message(b'c', b"");
    assert_eq!(
        lines(&[
            rx(&[query("COPY t FROM STDIN")]),
            tx(&[message(b'G', &[0, 0, 0])]),
            rx(&[data.clone(), data.clone()]),
            rx(&[data.clone(), done.clone()]),
            tx(&[complete("COPY 3"), ready(b'I')]),
            rx(&[query("COPY t TO STDOUT")]),
            tx(&[message(b'H', &[0, 0, 0]), data.clone()]),
            tx(&[data.clone(), done.clone(), complete("COPY 2"), ready(b'I')]),
            // Extended: the server skips the Sync after the Execute; the one after the data counts.
            rx(&[parse("", "COPY t FROM STDIN"), bind("", "", b""), execute(""), sync()]),
            tx(&[message(b'1', b""), message(b'2', b""), message(b'G', &[0, 0, 0])]),
            rx(&[data, message(b'f', b"planted\0"), sync()]),
            tx(&[error("ERROR", "57014"), ready(b'I')]),
            rx(&[query("START_REPLICATION SLOT x LOGICAL 0/0")]),
            tx(&[message(b'W', &[0, 0, 0])]),
        ]),
        [
            "COPY COPY t @1 -> ok @2 complete @5",
            "COPY COPY t @6 -> ok @7 complete @8",
            "COPY COPY t @9 -> 57014 @10 complete @12",
            "START_REPLICATION START_REPLICATION @13 -> ok @14 upgraded @14",
        ]
    );
}

#[test]
fn what_is_not_captured_is_passed_over() {
    let long = vec![b'x'; 100_000];
    // A parameter and a row longer than the capture limit, and a statement.
    let insert = [parse("", "INSERT INTO t VALUES ($1)"), bind("", "", &long), execute(""), sync()];
    let text = format!("SELECT * FROM u WHERE a = '{}' AND b IN (SELECT c FROM w)", "y".repeat(50_000));
    let ops = [
        cap(rx(&insert), 60),
        tx(&[message(b'1', b""), message(b'2', b""), complete("INSERT 0 1"), ready(b'I')]),
        cap(rx(&[query(&text)]), 4096),
        cap(tx(&[columns(), row(&long), complete("SELECT 1"), ready(b'I')]), 1000),
        // Many rows: the last bytes reveal their end, the last operation an error.
        rx(&[query("SELECT * FROM v")]),
        cap(tx(&[columns(), vec![row(&[b'z'; 500]); 10].concat()]), 1000),
        cap(tx(&[vec![row(&[b'z'; 500]); 10].concat()]), 1000),
        tx(&[row(b"Z\0\0\0\x05I"), error("ERROR", "22012"), ready(b'I')]),
        rx(&[query("SELECT 1")]),
        tx(&[ran(0), ready(b'I')]),
    ];
    assert_eq!(
        event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX)),
        [
            "INSERT INSERT t @1 -> ok @2 complete @2",
            "SELECT SELECT u @3 -> ok @4 complete @4",
            "SELECT SELECT v @5 -> 22012 @6 complete @8",
            "SELECT SELECT @9 -> ok @10 complete @10",
        ]
    );
}

#[test]
fn executions_that_were_not_captured_are_counted_by_their_answers() {
    let one = [bind("", "s", &[b'x'; 1000]), execute("")].concat();
    let answer = [message(b'2', b""), complete("INSERT 0 1")].concat();
    for captured in [0, 3, 500, 1020, 1030, 3500] {
        let found = lines(&[
            rx(&[parse("s", "INSERT INTO t VALUES ($1)"), sync()]),
            tx(&[message(b'1', b""), ready(b'I')]),
            cap(rx(&[one.repeat(10), sync()]), captured),
            tx(&[answer.repeat(10), ready(b'I')]),
            rx(&[query("SELECT 1")]),
            tx(&[ran(0), ready(b'I')]),
        ]);
        let count = |name: &str| {
            found.iter().filter(|line| line.starts_with(name) && line.contains("-> ok @4 complete @4")).count()
        };
        // Where the statement's name was captured.
        let named = (captured + one.len() - 8) / one.len();
        assert_eq!((count("INSERT INSERT t"), count("_UNNAMED")), (named, 10 - named), "{captured}: {found:#?}");
        assert_eq!(found.last().map(String::as_str), Some("SELECT SELECT @5 -> ok @6 complete @6"), "{found:#?}");
    }
}

#[test]
fn connections_are_joined_in_their_middle() {
    let mut conversation = ConnectionParser::new(true);
    let events = play(
        &mut conversation,
        &[
            tx(&[row(b"x"), row(b"y")]),
            tx(&[row(b"x"), complete("SELECT 5"), ready(b'I')]),
            rx(&[bind("", "s1", b"planted"), execute(""), sync()]),
            tx(&[message(b'2', b""), complete("UPDATE 1"), ready(b'I')]),
            rx(&[query("SELECT * FROM a")]),
            tx(&[ran(1), ready(b'I')]),
        ],
    );
    let found = event_lines(&events);
    assert_eq!(
        found[found.len() - 2..],
        ["_UNNAMED  @3 -> ok @4 complete @4", "SELECT SELECT a @5 -> ok @6 complete @6"],
        "{found:?}"
    );
}

#[test]
fn names_are_bounded() {
    let mut named = Named::default();
    let summary = Arc::new(summarize(b"SELECT 1", false, Dialect::PostgreSql));
    for i in 0..100_000 {
        named.set(format!("s{i}").as_bytes(), Some(summary.clone()));
    }
    named.set(&[b'x'; NAME + 1], Some(summary.clone()));
    assert_eq!((named.get(b"s5"), named.get(b"s99999"), named.get(&[b'x'; NAME + 1])), (Some(summary), None, None));
    assert!(named.bytes() < 200_000, "{}", named.bytes());
    assert_eq!((named.take_refused(), named.take_refused()), (100_000 - 1024 + 1, 0));
    named.clear();
    assert_eq!((named.get(b"s5"), named.bytes()), (None, 0));
}

/// Events without times, and without the ends of heads, which depend on the operations.
fn outcomes(events: &[ExchangeEvent]) -> Vec<String> {
    events
        .iter()
        .map(|word| match word {
            ExchangeEvent::Begun { exchange, request, .. } => format!("{exchange} {}", request.path),
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
    let ops = session();
    let whole = play(&mut ConnectionParser::new(false), &ops);
    let expected = outcomes(&whole);
    assert_eq!(whole.iter().filter(|event| matches!(event, ExchangeEvent::Done { .. })).count(), 11, "{expected:#?}");
    assert!(
        !whole.iter().any(|event| matches!(event, ExchangeEvent::Unpaired { .. } | ExchangeEvent::Lost { .. })),
        "{expected:#?}"
    );
    assert!(expected.iter().any(|line| line.contains("pipeline_aborted")), "{expected:#?}");
    assert_divided(&ops, |ops| outcomes(&play(&mut ConnectionParser::new(false), ops)), &expected);
    let fragments = |size: usize| -> Vec<Op> {
        let fragments =
            |op: &Op| op.bytes.chunks(size).map(|piece| Op { bytes: piece.to_vec(), ..op.clone() }).collect();
        ops.iter().flat_map(|op| -> Vec<Op> { fragments(op) }).collect()
    };
    for size in [1, 2, 3, 5, 7, 64, 1000] {
        assert_eq!(
            outcomes(&play(&mut ConnectionParser::new(false), &fragments(size))),
            expected,
            "fragments of {size}"
        );
    }
}

#[test]
fn a_gap_shifts_no_reply() {
    // Each operation in turn is lost: the last query's result never changes.
    let queries = ["a", "b", "c", "d"].map(|table| query(&format!("SELECT * FROM {table}")));
    for lost in 0..6 {
        let mut ops = Vec::new();
        for (i, query) in queries.iter().enumerate() {
            ops.push(rx(std::slice::from_ref(query)));
            let kind = if i == 3 { "22012" } else { "42P01" };
            ops.push(tx(&[error("ERROR", kind), ready(b'I')]));
        }
        let mut conversation = ConnectionParser::new(false);
        let settings = Settings::default();
        let (mut events, mut pos) = (Vec::new(), [0u64; 2]);
        for (i, op) in ops.iter().enumerate() {
            let which = usize::from(op.dir == Direction::Tx);
            let at = Stamp { nanos: i as u64 + 1, pid: 1, tid: 1, reads: i as u32 / 2 + 1 };
            let (len, head) = (op.bytes.len() as u64, &op.bytes[..]);
            let (dir, pos_of) = (op.dir, pos[which]);
            let chunk = Chunk { dir, pos: pos_of, len, head, tail: &[], fragments: &[], at, arrived: 0 };
            pos[which] += len;
            if i != lost {
                conversation.bytes(&chunk, &settings, &mut events);
            }
        }
        let found = event_lines(&events);
        let last = found.iter().find(|line| line.starts_with("SELECT SELECT d")).unwrap();
        // The reply after a lost one could answer either of two waiting requests.
        let expected = if lost == 5 { "unfinished @4" } else { "-> 22012 @8 complete @8" };
        assert_eq!(*last, format!("SELECT SELECT d @7 {expected}"), "{lost}: {found:?}");
        for line in &found {
            assert!(!line.contains("22012") || line.contains(" d "), "{lost}: {line}");
        }
        if lost != 0 && lost != 1 {
            assert!(found.iter().any(|line| line.starts_with("lost")), "it says so: {lost}: {found:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                (any::<u8>(), 0u8..20).prop_map(|(kind, length)| vec![kind, 0, 0, 0, length]),
                Just(query("SELECT * FROM a")),
                Just(startup()),
                Just(code(TLS)),
                Just(run("SELECT * FROM b")),
                Just(bind("p", "s", b"x")),
                Just(execute("p")),
                Just(sync()),
                Just(message(b'c', b"")),
                Just(b"N".to_vec()),
                Just(ran(2)),
                Just(error("ERROR", "23505")),
                Just(error("FATAL", "57P01")),
                Just(ready(b'I')),
                Just(welcome()),
            ], 0usize..120),
            0..30,
        ),
        midstream: bool,
    ) {
        let (conversation, begun, done) = survive(fragments, midstream);
        // A connection that changed to TLS or replication is not followed to its end.
        prop_assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun >= done);
    }

    #[test]
    fn values_never_show(secret in "[a-zA-Z]{12,20}", captured in 0usize..300) {
        let startup = {
            let rest = fields(&["user", &secret, "database", "shop", "options", &secret, ""], b"");
            [&(rest.len() as u32 + 8).to_be_bytes()[..], &196_608_u32.to_be_bytes(), &rest].concat()
        };
        let notice = format!("SERROR\0C{secret}\0M{secret}\0\0");
        let ops = [
            rx(&[startup]),
            rx(&[message(b'p', &fields(&[&secret], b""))]),
            tx(&[welcome()]),
            cap(rx(&[query(&format!("UPDATE t SET a = '{secret}' WHERE b = $${secret}$$"))]), captured),
            tx(&[message(b'E', notice.as_bytes()), ready(b'I')]),
            cap(rx(&[parse(&secret, &format!("SELECT '{secret}'")), bind(&secret, &secret, secret.as_bytes()), execute(&secret), sync()]), captured),
            tx(&[row(secret.as_bytes()), complete(&secret), ready(b'I')]),
            rx(&[query(&secret)]),
            tx(&[message(b'A', &fields(&[&secret, &secret], &[0; 4])), ready(b'I')]),
        ];
        // But for the user of the first message, in a type that does not print it. The database is no secret.
        let events = format!("{:?}", play(&mut ConnectionParser::new(false), &ops)).to_lowercase();
        prop_assert!(!events.contains(&secret.to_lowercase()), "{}", events);
    }
}

#[test]
fn an_idle_connection_takes_little() {
    let bytes = std::mem::size_of::<Session>();
    assert!(bytes <= 384, "{bytes} bytes");
}

/// A session with every kind of message.
fn session() -> Vec<Op> {
    let asked = [
        code(TLS),
        startup(),
        message(b'p', b"planted\0"),
        query("SELECT * FROM a; SELECT 2"),
        query(&format!("SELECT '{}' FROM late", "x".repeat(SQL_LIMIT))),
        query(&format!("SELECT * FROM b {} c", " ".repeat(SQL_LIMIT - 17))),
        query("COPY t FROM STDIN"),
        message(b'd', b"planted\n"),
        message(b'c', b""),
        parse("s", "SELECT * FROM c WHERE x = $1"),
        bind("", "s", b"planted"),
        execute(""),
        bind("p", "s", &[7; 3000]),
        describe(b'P', "p"),
        execute("p"),
        sync(),
        run("INSERT INTO d VALUES ($1)"),
        run("INSERT INTO e VALUES ($1)"),
        message(b'H', b""),
        run("INSERT INTO f VALUES ($1)"),
        sync(),
        message(b'C', &fields(&["Ss"], b"")),
        sync(),
        message(b'X', b""),
    ];
    let replies = [
        b"N".to_vec(),
        welcome(),
        message(b'N', b"SNOTICE\0C00000\0\0"),
        columns(),
        row(b"x"),
        message(b'S', &fields(&["TimeZone", "UTC"], b"")),
        complete("SELECT 1"),
        complete("SELECT 1"),
        ready(b'I'),
        columns(),
        error("ERROR", "42P01"),
        ready(b'I'),
        ran(3),
        ready(b'I'),
        message(b'G', &[0, 0, 0]),
        complete("COPY 1"),
        ready(b'I'),
        message(b'1', b""),
        message(b'2', b""),
        complete("SELECT 0"),
        message(b'2', b""),
        columns(),
        row(&[1; 2000]),
        message(b's', b""),
        ready(b'I'),
        ran(0),
        message(b'1', b""),
        error("ERROR", "23505"),
        ready(b'I'),
        message(b'3', b""),
        ready(b'I'),
    ];
    // The server's one byte comes before the client continues.
    vec![rx(&asked[..1]), tx(&replies[..1]), rx(&asked[1..]), tx(&replies[1..])]
}

mod long;
