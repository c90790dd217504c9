//! Sessions as scripts; `connection_parser/tests.rs` explains how to read them.

use proptest::prelude::*;
use tracer_common::limits::TAIL_MAX;
use tracer_model::{Direction, Side};

use super::*;
use crate::connection_parser::tests::{Op, assert_divided, cap, play, play_with, summary, survive};
use crate::{ConnectionParser, ExchangeEvent, Verdict};

const PLAIN: u32 = 0x0000_f7df & !TLS & !COMPRESS;
const MORE_RESULTS: u8 = 8;

/// A packet.
fn packet_of(number: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&length[..3], &[number], payload].concat()
}

fn greeting(version: &str, capabilities: u32) -> Vec<u8> {
    let [a, b, c, d] = capabilities.to_le_bytes();
    let front = [&[10], version.as_bytes(), &[0, 7, 0, 0, 0], b"saltsalt", &[0, a, b, 33, 2, 0, c, d, 21]].concat();
    packet_of(0, &[&front[..], &[0; 10], b"planted-salt\0", b"mysql_native_password\0"].concat())
}

fn login(capabilities: u32) -> Vec<u8> {
    packet_of(1, &[&capabilities.to_le_bytes()[..], &[0; 28], b"planted\0\x07planted\0"].concat())
}

fn command(kind: u8, rest: &[u8]) -> Vec<u8> {
    packet_of(0, &[&[kind], rest].concat())
}

fn query(sql: &str) -> Vec<u8> {
    command(QUERY, sql.as_bytes())
}

fn ok(number: u8, status: u8) -> Vec<u8> {
    packet_of(number, &[0, 1, 0, status, 0, 0, 0])
}

fn eof(number: u8, status: u8) -> Vec<u8> {
    packet_of(number, &[0xfe, 0, 0, status, 0])
}

fn error(number: u8, code: u16) -> Vec<u8> {
    packet_of(number, &[&[0xff][..], &code.to_le_bytes(), b"#42000planted message"].concat())
}

/// The beginning of a result with one column.
fn columns(lean: bool) -> Vec<u8> {
    let mut all = [packet_of(1, &[1]), packet_of(2, b"\x03def\0\0\0\x01a\0\x0c\x21\0\0\0\0\0\x08\0\0\0\0\0")].concat();
    if !lean {
        all.extend(eof(3, 2));
    }
    all
}

/// A result with one column; `lean`: in the new form.
fn result(rows: usize, lean: bool, status: u8) -> Vec<u8> {
    let mut all = columns(lean);
    (0..rows).for_each(|row| all.extend(packet_of(4 + row as u8, b"\x07planted")));
    all.extend(if lean { packet_of(9, &[0xfe, 0, 0, 2 | status, 0, 0, 0]) } else { eof(9, 2 | status) });
    all
}

fn execute(statement: u32) -> Vec<u8> {
    command(EXECUTE, &[&statement.to_le_bytes()[..], &[0, 1, 0, 0, 0], b"\0\x01\xfe\0\x07planted"].concat())
}

fn prepared(statement: u32, columns: u8, parameters: u8, lean: bool) -> Vec<u8> {
    let [a, b, c, d] = statement.to_le_bytes();
    let mut all = packet_of(1, &[0, a, b, c, d, columns, 0, parameters, 0, 0, 0, 0]);
    for count in [parameters, columns] {
        (0..count).for_each(|_| all.extend(packet_of(2, b"\x03def")));
        if count > 0 && !lean {
            all.extend(eof(3, 2));
        }
    }
    all
}

fn rx(parts: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Rx, bytes: parts.concat(), captured: usize::MAX }
}

fn tx(parts: &[Vec<u8>]) -> Op {
    Op { dir: Direction::Tx, ..rx(parts) }
}

/// Events without bytes: names, replies, ends.
fn event_lines(events: &[ExchangeEvent]) -> Vec<String> {
    let short = |line: String| line.split(' ').filter(|word| !word.contains('/')).collect::<Vec<_>>().join(" ");
    summary(events).into_iter().map(short).collect()
}

fn lines(ops: &[Op]) -> Vec<String> {
    event_lines(&play(&mut ConnectionParser::new(false), ops))
}

/// The beginning of a session with these capabilities.
fn begun(capabilities: u32, then: &[Op]) -> Vec<Op> {
    let meet = [
        tx(&[greeting("5.5.5-10.11.6-MariaDB-0+deb12u1", u32::MAX)]),
        rx(&[login(capabilities)]),
        tx(&[packet_of(2, b"\xfeclient_ed25519\0planted")]),
        rx(&[packet_of(3, b"planted")]),
        tx(&[ok(4, 2)]),
    ];
    [&meet, then].concat()
}

const CONNECT: &str = "CONNECT CONNECT @2 -> ok @3 complete @5";

#[test]
fn first_bytes() {
    let maria = greeting("5.5.5-10.11.6-MariaDB", PLAIN);
    let mysql = greeting("8.0.36", PLAIN);
    let debian = greeting("11.8.9-MariaDB-0+deb13u1 from Debian", PLAIN);
    let salted = |byte: u8| {
        let mut changed = debian.clone();
        changed[4 + 1 + "11.8.9-MariaDB-0+deb13u1 from Debian".len() + 1 + 4 + 8] = byte;
        changed
    };
    for (bytes, my, maria) in [
        (debian.clone(), Detected::No, Detected::Reply),
        (debian[..20].to_vec(), Detected::NeedMore, Detected::NeedMore),
        (greeting("8.4.0 (Source distribution)", PLAIN), Detected::Reply, Detected::No),
        (greeting("8.4.0\n", PLAIN), Detected::No, Detected::No),
        (salted(7), Detected::No, Detected::No),
        (mysql.clone(), Detected::Reply, Detected::No),
        (maria, Detected::No, Detected::Reply),
        (mysql[..8].to_vec(), Detected::NeedMore, Detected::NeedMore),
        (query("SELECT 1"), Detected::Request, Detected::No),
        (execute(5), Detected::Request, Detected::No),
        ([query("SELECT 1"), query("SELECT 1")].concat(), Detected::No, Detected::No),
        (command(QUERY, b"\x01\x02"), Detected::No, Detected::No),
        (command(PING, b""), Detected::No, Detected::No),
        (result(1, true, 0), Detected::No, Detected::No),
        (b"GET / HTTP/1.1\r\n".to_vec(), Detected::No, Detected::No),
        (b"\x16\x03\x01\x02\0\x01".to_vec(), Detected::No, Detected::No),
        (b"Q\0\0\0\x16SELECT 1 FROM abcdef\0".to_vec(), Detected::No, Detected::No),
    ] {
        assert_eq!((MySql.detect(&bytes), MariaDb.detect(&bytes)), (my, maria), "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_session_from_its_beginning() {
    for lean in [false, true] {
        let capabilities = if lean { PLAIN | DEPRECATE_EOF } else { PLAIN };
        let several = [result(2, lean, MORE_RESULTS), ok(1, MORE_RESULTS), result(0, lean, 0)];
        let found = lines(&begun(
            capabilities,
            &[
                rx(&[query("SELECT * FROM a WHERE b = 'planted'")]),
                tx(&[result(3, lean, 0)]),
                rx(&[query("INSERT INTO a VALUES (\"planted\")")]),
                tx(&[error(1, 1062)]),
                rx(&[query("SELECT * FROM a; UPDATE b SET c = 1; SELECT 2")]),
                tx(&several),
                rx(&[command(PING, b"")]),
                tx(&[ok(1, 2)]),
                rx(&[command(USE, b"planted")]),
                tx(&[error(1, 1049)]),
                rx(&[command(STATISTICS, b"")]),
                tx(&[packet_of(1, b"Uptime: 5")]),
                rx(&[query("LOAD DATA LOCAL INFILE 'planted' INTO TABLE a")]),
                tx(&[packet_of(1, b"\xfbplanted")]),
                rx(&[packet_of(2, b"planted\n"), packet_of(3, b"")]),
                tx(&[ok(4, 2)]),
                rx(&[command(PREPARE, b"SELECT * FROM c WHERE d = ? AND e = 'planted'")]),
                tx(&[prepared(1, 2, 1, lean)]),
                rx(&[execute(1)]),
                tx(&[result(5, lean, 0)]),
                rx(&[command(CLOSE, &[1, 0, 0, 0]), execute(1)]),
                tx(&[error(1, 1243)]),
                rx(&[query("SELECT a FROM b")]),
                tx(&[
                    packet_of(1, &[1]),
                    packet_of(2, b"\x03def"),
                    if lean { Vec::new() } else { eof(3, 2) },
                    error(4, 1317),
                ]),
                rx(&[command(QUIT, b"")]),
            ],
        ));
        assert_eq!(
            found,
            [
                CONNECT,
                "SELECT SELECT a @6 -> ok @7 complete @7",
                "INSERT INSERT a @8 -> 1062 @9 complete @9",
                "BATCH SELECT a; UPDATE b; SELECT @10 -> ok @11 complete @11",
                "PING PING @12 -> ok @13 complete @13",
                "USE USE @14 -> 1049 @15 complete @15",
                "STATISTICS STATISTICS @16 -> ok @17 complete @17",
                "LOAD LOAD @18 -> ok @19 complete @21",
                "PREPARE PREPARE SELECT c @22 -> ok @23 complete @23",
                "SELECT SELECT c @24 -> ok @25 complete @25",
                "_UNNAMED  @26 -> 1243 @27 complete @27",
                "SELECT SELECT b @28 -> 1317 @29 complete @29",
            ],
            "lean {lean}"
        );
    }
}

#[test]
fn both_ends_and_both_names() {
    for (version, name) in [("8.0.36", "mysql"), ("5.5.5-10.11.6-MariaDB", "mariadb")] {
        for (from, to, side) in
            [(Direction::Tx, Direction::Rx, Side::Server), (Direction::Rx, Direction::Tx, Side::Client)]
        {
            let mut conversation = ConnectionParser::new(false);
            let ops = [
                Op { dir: from, ..rx(&[greeting(version, PLAIN)]) },
                Op { dir: to, ..rx(&[login(PLAIN)]) },
                Op { dir: from, ..rx(&[ok(2, 2)]) },
                Op { dir: to, ..rx(&[query("SELECT 1")]) },
                Op { dir: from, ..rx(&[result(1, false, 0)]) },
            ];
            let found = event_lines(&play(&mut conversation, &ops));
            assert_eq!(
                found,
                ["CONNECT CONNECT @2 -> ok @3 complete @3", "SELECT SELECT @4 -> ok @5 complete @5"],
                "{name} {side:?}"
            );
            assert_eq!((conversation.protocol(), conversation.side()), (Some(name), Some(side)));
        }
    }
}

#[test]
fn a_proxy_may_introduce_its_client_before_the_greeting_or_behind_it() {
    let first = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 3306\r\n".to_vec();
    let second = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[127, 0, 0, 1, 127, 0, 0, 2, 1, 2, 3, 4]].concat();
    for header in [first, second] {
        let hello = || tx(&[greeting("5.5.5-10.11.6-MariaDB", PLAIN)]);
        let then = [tx(&[ok(2, 2)]), rx(&[query("SELECT 1")]), tx(&[result(1, false, 0)])];
        let whole = [header.clone(), login(PLAIN)].concat();
        for cut in 1..whole.len() {
            let [front, rest] = [&whole[..cut], &whole[cut..]].map(|part| rx(&[part.to_vec()]));
            let found = lines(&[&[hello(), front, rest][..], &then].concat());
            // The login's first byte is in the first part or in the second.
            let at = if cut > header.len() { 2 } else { 3 };
            let connect = format!("CONNECT CONNECT @{at} -> ok @4 complete @4");
            assert_eq!(found, [connect.as_str(), "SELECT SELECT @5 -> ok @6 complete @6"], "behind it, cut at {cut}");
        }
        let found = lines(&[&[rx(&[header]), hello(), rx(&[login(PLAIN)])][..], &then].concat());
        assert_eq!(found, ["CONNECT CONNECT @3 -> ok @4 complete @4", "SELECT SELECT @5 -> ok @6 complete @6"]);
    }
}

/// The client's request for TLS, in place of its login.
fn tls_request(capabilities: u32) -> Vec<u8> {
    packet_of(1, &[&(capabilities | TLS).to_le_bytes()[..], &[0; 28]].concat())
}

#[test]
fn a_session_goes_on_inside_tls() {
    for (version, name) in [("8.0.36", "mysql"), ("11.8.9-MariaDB-0+deb13u1 from Debian", "mariadb")] {
        for (requests, side) in [(Direction::Rx, Side::Server), (Direction::Tx, Side::Client)] {
            for joined in [false, true] {
                let to = |op: Op| if side == Side::Client { Op { dir: op.dir.flip(), ..op } } else { op };
                let mut clear = ConnectionParser::new(false);
                let begun = [tx(&[greeting(version, u32::MAX)]), rx(&[tls_request(PLAIN | DEPRECATE_EOF)])].map(to);
                assert_eq!(event_lines(&play(&mut clear, &begun)), [] as [&str; 0]);
                assert_eq!(clear.encrypted(), Some(false));
                let mut text = clear.begin_text(joined, &mut Vec::new());
                let login = packet_of(2, &login(PLAIN | TLS | DEPRECATE_EOF)[4..]);
                let session = [
                    rx(&[login]),
                    tx(&[ok(3, 2)]),
                    rx(&[query("SELECT * FROM a WHERE b = 'planted'")]),
                    tx(&[result(3, true, 0)]),
                    rx(&[query("DELETE FROM c")]),
                    tx(&[error(1, 1451)]),
                ];
                // Where text is joined in its middle, the login passed unseen.
                let ops: Vec<Op> = session.into_iter().skip(if joined { 2 } else { 0 }).map(to).collect();
                let found = event_lines(&play(text.awake(), &ops));
                let expected: &[&str] = if joined {
                    &["SELECT SELECT a @1 -> ok @2 complete @2", "DELETE DELETE c @3 -> 1451 @4 complete @4"]
                } else {
                    &[
                        "CONNECT CONNECT @1 -> ok @2 complete @2",
                        "SELECT SELECT a @3 -> ok @4 complete @4",
                        "DELETE DELETE c @5 -> 1451 @6 complete @6",
                    ]
                };
                assert_eq!(found, expected, "{name} {requests:?} {joined}");
                assert_eq!((text.awake().protocol(), text.side()), (Some(name), Some(side)));
            }
        }
    }
}

#[test]
fn text_that_begins_anew_is_that_of_the_same_session() {
    let mut clear = ConnectionParser::new(false);
    play(&mut clear, &[tx(&[greeting("11.8.9-MariaDB from Debian", u32::MAX)]), rx(&[tls_request(PLAIN)])]);
    let mut text = clear.begin_text(false, &mut Vec::new());
    let prepare = [
        rx(&[packet_of(2, &login(PLAIN | TLS)[4..])]),
        tx(&[ok(3, 2)]),
        rx(&[command(PREPARE, b"SELECT * FROM c WHERE d = ?")]),
        tx(&[prepared(1, 2, 1, false)]),
    ];
    assert_eq!(event_lines(&play(text.awake(), &prepare)).len(), 2);
    let mut again = text.awake().begin_text(true, &mut Vec::new());
    let ops = [tx(&[packet_of(6, b"\x07planted")]), rx(&[execute(1)]), tx(&[result(1, false, 0)])];
    assert_eq!(event_lines(&play(again.awake(), &ops)), ["SELECT SELECT c @2 -> ok @3 complete @3"]);
    assert_eq!(again.awake().protocol(), Some("mariadb"));
}

/// A result whose beginning and end alone are captured.
fn long_rows() -> Vec<u8> {
    [columns(true), vec![packet_of(4, &[b'z'; 90]); 40].concat()].concat()
}

#[test]
fn an_error_behind_long_rows_fails_its_statement_and_no_other() {
    let failed = || error(44, 1242);
    // In one operation with the rows, in one of its own, and cut anywhere.
    let whole = [long_rows(), failed()].concat();
    let mut cases = vec![vec![cap(tx(&[whole]), 1024)], vec![cap(tx(&[long_rows()]), 1024), tx(&[failed()])]];
    for cut in 1..failed().len() {
        let (front, rest) = (failed()[..cut].to_vec(), failed()[cut..].to_vec());
        cases.push(vec![cap(tx(&[long_rows(), front]), 1024), tx(&[rest])]);
    }
    for answer in cases {
        let last = 6 + answer.len();
        let mut ops = vec![rx(&[query("SELECT * FROM a")])];
        ops.extend(answer);
        ops.extend([rx(&[query("SELECT * FROM b")]), tx(&[result(1, true, 0)])]);
        let ops = begun(PLAIN | DEPRECATE_EOF, &ops);
        let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
        let expected = [
            CONNECT.to_owned(),
            format!("SELECT SELECT a @6 -> 1242 @7 complete @{last}"),
            format!("SELECT SELECT b @{} -> ok @{} complete @{}", last + 1, last + 2, last + 2),
        ];
        assert_eq!(found, expected);
    }
}

/// The number of an error whose message is longer than what is captured of an operation's end is not known; that it was one is.
#[test]
fn an_error_whose_beginning_is_not_captured_is_an_error() {
    let message = |text: &str| packet_of(44, &[&[0xff, 0xd7, 17][..], b"#45000", text.as_bytes()].concat());
    let end = |last: Vec<u8>| {
        let whole = [long_rows(), last].concat();
        let ops = [
            rx(&[query("SELECT * FROM a")]),
            cap(tx(&[whole]), 1024),
            rx(&[query("SELECT * FROM b")]),
            tx(&[result(1, true, 0)]),
        ];
        let ops = begun(PLAIN | DEPRECATE_EOF, &ops);
        let found = event_lines(&play_with(&mut ConnectionParser::new(false), &ops, TAIL_MAX));
        assert_eq!(found[2], "SELECT SELECT b @8 -> ok @9 complete @9", "{found:?}");
        found[1].clone()
    };
    let long = "a message that is longer than what is captured of the end of an operation, and goes on for a while";
    assert_eq!(end(message(long)), "SELECT SELECT a @6 -> _OTHER @7 complete @7");
    // What a statement changed, behind rows of another one; and a row, whose end was not seen.
    let changed =
        [&[0, 3, 0, 2, 0, 0, 0][..], b"\x28Records: 30000000000  Duplicates: 000000000000  Warnings: 0"].concat();
    for last in [packet_of(44, &changed), packet_of(44, &[&[0; 20][..], &[b'z'; 20]].concat())] {
        assert!(!end(last.clone()).contains("_OTHER"), "{last:?}");
    }
}

#[test]
fn what_cannot_be_read_is_named_and_left_alone() {
    // TLS, compression, replication.
    let tls = [
        tx(&[greeting("8.0.36", u32::MAX)]),
        rx(&[packet_of(1, &[&(PLAIN | TLS).to_le_bytes()[..], &[0; 28]].concat())]),
    ];
    let compressed = [
        tx(&[greeting("8.0.36", u32::MAX)]),
        rx(&[login(PLAIN | COMPRESS)]),
        tx(&[ok(2, 2)]),
        rx(&[b"xxxxxxxxxx".to_vec()]),
    ];
    let replicated = [
        tx(&[greeting("8.0.36", u32::MAX)]),
        rx(&[login(PLAIN)]),
        tx(&[ok(2, 2)]),
        rx(&[command(BINLOG_DUMP, &[0; 10])]),
    ];
    for (ops, expected) in [
        (&tls[..], &[][..]),
        (&compressed, &["CONNECT CONNECT @2 -> ok @3 upgraded @3"]),
        (&replicated, &["CONNECT CONNECT @2 -> ok @3 complete @3"]),
    ] {
        let mut conversation = ConnectionParser::new(false);
        assert_eq!(event_lines(&play(&mut conversation, ops)), expected);
        let encrypted = expected.is_empty();
        let left = if encrypted { (Verdict::Trace, Some("tls")) } else { (Verdict::Ignore, Some("mysql")) };
        assert_eq!((conversation.want().verdict, conversation.protocol()), left);
    }
}

#[test]
fn what_is_not_captured_is_passed_over() {
    let text = format!("INSERT INTO t VALUES ('{}')", "y".repeat(50_000));
    for lean in [false, true] {
        let capabilities = if lean { PLAIN | DEPRECATE_EOF } else { PLAIN };
        let long = packet_of(4, &[&[0xfd, 0x20, 0x4e, 0][..], &vec![b'x'; 20_000]].concat());
        let rows = vec![packet_of(4, &[b'z'; 200]); 20].concat();
        let front = columns(lean);
        let end = if lean { packet_of(9, &[0xfe, 0, 0, 2, 0, 0, 0]) } else { eof(9, 2) };
        let found = lines(&begun(
            capabilities,
            &[
                cap(rx(&[query(&text)]), 4096),
                tx(&[ok(1, 2)]),
                rx(&[query("SELECT * FROM a")]),
                cap(tx(&[front.clone(), long, end.clone()]), 1000),
                rx(&[query("SELECT * FROM b")]),
                cap(tx(&[front.clone(), rows.clone()]), 1000),
                cap(tx(&[rows.clone(), end.clone()]), 1000),
                rx(&[query("SELECT * FROM c")]),
                cap(tx(&[front, rows]), 1000),
                tx(&[packet_of(5, b"\x01x"), error(9, 1317)]),
                rx(&[query("SELECT 1")]),
                tx(&[result(1, lean, 0)]),
            ],
        ));
        assert_eq!(
            found,
            [
                CONNECT,
                "INSERT INSERT t @6 -> ok @7 complete @7",
                "SELECT SELECT a @8 -> ok @9 complete @9",
                "SELECT SELECT b @10 -> ok @11 complete @12",
                "SELECT SELECT c @13 -> 1317 @14 complete @15",
                "SELECT SELECT @16 -> ok @17 complete @17",
            ],
            "lean {lean}"
        );
    }
}

#[test]
fn connections_are_joined_in_their_middle() {
    let mut conversation = ConnectionParser::new(true);
    let ops = [
        tx(&[packet_of(7, b"\x07planted")]),
        tx(&[eof(8, 2)]),
        rx(&[execute(3)]),
        tx(&[result(2, true, 0)]),
        rx(&[query("SELECT * FROM a")]),
        tx(&[result(2, true, 0)]),
    ];
    assert_eq!(
        event_lines(&play(&mut conversation, &ops)),
        ["_UNNAMED  @3 -> ok @4 complete @4", "SELECT SELECT a @5 -> ok @6 complete @6"]
    );
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
    for lean in [false, true] {
        let capabilities = if lean { PLAIN | DEPRECATE_EOF } else { PLAIN };
        let long = format!("SELECT '{}' FROM late", "x".repeat(SQL_LIMIT));
        let ops = begun(
            capabilities,
            &[
                rx(&[query("SELECT * FROM a")]),
                tx(&[result(3, lean, MORE_RESULTS), error(1, 1064)]),
                rx(&[query(&long)]),
                tx(&[result(0, lean, 0)]),
                rx(&[command(PREPARE, b"UPDATE b SET c = ?")]),
                tx(&[prepared(9, 0, 1, lean)]),
                rx(&[command(LONG_DATA, b"\x09\0\0\0\0\0planted"), execute(9)]),
                tx(&[ok(1, 2)]),
            ],
        );
        let expected = outcomes(&play(&mut ConnectionParser::new(false), &ops));
        assert!(!expected.iter().any(|line| line.contains("Unpaired") || line.contains("Lost")), "{expected:#?}");
        assert!(expected.iter().any(|line| line == "4 UPDATE b"), "{expected:#?}");
        assert_divided(&ops, |ops| outcomes(&play(&mut ConnectionParser::new(false), ops)), &expected);
    }
}

#[test]
fn evicted_statements_are_reported() {
    let mut session = Session { server: Some(0), agreed: 1, ..Session::default() };
    let settings = Settings::default();
    for number in 0..1026 {
        let asked = command(PREPARE, b"SELECT 1");
        let Step::Head { message, .. } = session.request(&asked, false, &settings) else { panic!("a head") };
        let answer = prepared(number, 0, 0, true);
        assert!(matches!(session.reply(&answer, false, &message.expected), Step::Head { .. }), "{number}");
    }
    assert_eq!((session.take_refused(), session.take_refused()), (2, 0));
}

proptest! {
    #[test]
    fn any_bytes(
        fragments in proptest::collection::vec(
            (any::<bool>(), prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..60),
                (any::<u8>(), any::<u8>(), 0u8..20).prop_map(|(number, kind, length)| vec![length, 0, 0, number, kind]),
                Just(query("SELECT * FROM a")),
                Just(greeting("8.0.36", u32::MAX)),
                Just(login(PLAIN)),
                Just(command(PREPARE, b"SELECT 1")),
                Just(execute(1)),
                Just(prepared(1, 1, 1, false)),
                Just(result(2, true, 0)),
                Just(result(2, false, MORE_RESULTS)),
                Just(error(1, 1064)),
                Just(ok(1, 2)),
            ], 0usize..120),
            0..30,
        ),
        midstream: bool,
    ) {
        let (conversation, begun, done) = survive(fragments, midstream);
        prop_assert!(begun == done || conversation.want().verdict == Verdict::Ignore && begun >= done);
    }

    #[test]
    fn values_never_show(secret in "[a-zA-Z]{12,20}", captured in 0usize..200) {
        let failed = packet_of(1, &[&[0xff, 0x28, 0x04][..], format!("#42000{secret}").as_bytes()].concat());
        let ops = begun(PLAIN, &[
            cap(rx(&[query(&format!("UPDATE t SET a = '{secret}', b = \"{secret}\" /* {secret} */"))]), captured),
            tx(std::slice::from_ref(&failed)),
            cap(rx(&[command(PREPARE, format!("SELECT '{secret}'").as_bytes())]), captured),
            tx(std::slice::from_ref(&failed)),
            rx(&[command(EXECUTE, secret.as_bytes())]),
            tx(&[failed]),
            rx(&[query(&secret)]),
            tx(&[packet_of(1, format!("\u{1}{secret}").as_bytes())]),
        ]);
        let events = format!("{:?}", play(&mut ConnectionParser::new(false), &ops)).to_lowercase();
        prop_assert!(!events.contains(&secret.to_lowercase()), "{}", events);
    }
}

#[test]
fn an_idle_connection_takes_little() {
    let bytes = std::mem::size_of::<Session>();
    assert!(bytes <= 256, "{bytes} bytes");
}
