//! Lookups over UDP and TCP: matching, names, repeated questions and unanswered ones.

use tracer_model::{Direction, Nanos};

use super::super::connection_parser::tests::{Op, play};
use super::super::{Chunk, Closed, ConnectionParser, ExchangeEvent, Settings, Stamp};
use super::*;

/// A message with one question.
fn message(id: u16, flags: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [id, flags, 1, u16::from(flags & 0x8000 != 0), 0, 0] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&1_u16.to_be_bytes());
    if flags & 0x8000 != 0 {
        bytes.extend_from_slice(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x7f\0\0\x01");
    }
    bytes
}

const ASK: u16 = 0x0100;
const ANSWER: u16 = 0x8180;

struct Socket {
    conversation: ConnectionParser,
    events: Vec<ExchangeEvent>,
}

impl Socket {
    fn new() -> Self {
        Self { conversation: ConnectionParser::new(false), events: Vec::new() }
    }

    fn datagram(&mut self, dir: Direction, nanos: Nanos, bytes: &[u8]) {
        let at = Stamp { nanos, ..Stamp::default() };
        let chunk =
            Chunk { dir, pos: 0, len: bytes.len() as u64, head: bytes, tail: &[], fragments: &[], at, arrived: 0 };
        self.conversation.datagram(&chunk, &mut self.events);
    }

    fn stream(&mut self, dir: Direction, bytes: &[u8]) {
        let chunk = Chunk {
            dir,
            pos: 0,
            len: bytes.len() as u64,
            head: bytes,
            tail: &[],
            fragments: &[],
            at: Stamp::default(),
            arrived: 0,
        };
        self.conversation.on_io(false, &chunk, &Settings::default(), &mut self.events);
    }

    /// One line per exchange.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in &self.events {
            match word {
                ExchangeEvent::Begun { request, first, .. } => {
                    lines.push(format!("{} {} @{}", request.method, request.path, first.nanos));
                }
                ExchangeEvent::Replied { exchange, failure, .. } | ExchangeEvent::Judged { exchange, failure, .. } => {
                    lines[*exchange as usize] += &format!(" -> {}", failure.unwrap_or("ok"));
                }
                ExchangeEvent::Done { exchange, at, outcome, .. } => {
                    lines[*exchange as usize] += &format!(" {} @{}", outcome.name(), at.nanos);
                }
                ExchangeEvent::Datagram { .. } => {}
                other => lines.push(format!("{other:?}")),
            }
        }
        lines
    }
}

#[test]
fn answers_are_matched_by_number_and_question() {
    let mut socket = Socket::new();
    socket.datagram(Direction::Tx, 1, &message(7, ASK, "www.example.co.uk", 1));
    socket.datagram(Direction::Tx, 2, &message(7, ASK, "www.example.co.uk", 28));
    socket.datagram(Direction::Tx, 3, &message(8, ASK, "none.example.org", 15));
    socket.datagram(Direction::Rx, 4, &message(8, ANSWER | 3, "none.example.org", 15));
    socket.datagram(Direction::Rx, 5, &message(7, ANSWER, "wWw.eXample.co.uk", 28));
    socket.datagram(Direction::Rx, 6, &message(7, ANSWER | 2, "www.example.co.uk", 1));
    socket.datagram(Direction::Rx, 7, &message(7, ANSWER, "www.example.co.uk", 1));
    assert_eq!(
        socket.lines(),
        [
            "A A example.co.uk @1 -> SERVFAIL complete @6",
            "AAAA AAAA example.co.uk @2 -> ok complete @5",
            "MX MX example.org @3 -> NXDOMAIN complete @4",
            "Unpaired { status: 0 }",
        ]
    );
    assert!(socket.conversation.is_spent());
}

#[test]
fn who_asks_again_asks_once_and_who_is_asked_twice_answers_twice() {
    for (asked, expected) in [
        (Direction::Tx, vec!["A A example.org @1 -> ok complete @9"]),
        (Direction::Rx, vec!["A A example.org @1 -> ok complete @9", "A A example.org @5 -> ok complete @10"]),
    ] {
        let mut socket = Socket::new();
        socket.datagram(asked, 1, &message(7, ASK, "example.org", 1));
        socket.datagram(asked, 5, &message(7, ASK, "example.org", 1));
        for at in 9..9 + expected.len() as u64 {
            socket.datagram(asked.flip(), at, &message(7, ANSWER, "example.org", 1));
        }
        assert_eq!(socket.lines(), expected);
    }
}

#[test]
fn what_is_not_answered_times_out() {
    let mut socket = Socket::new();
    socket.datagram(Direction::Tx, 1, &message(7, ASK, "example.org", 1));
    socket.datagram(Direction::Tx, 6_000_000_000, &message(8, ASK, "example.org", 28));
    socket.conversation.overdue(9_000_000_000, 0, &Settings::default(), &mut socket.events);
    assert_eq!(socket.lines().len(), 2);
    socket.conversation.overdue(12_000_000_000, 0, &Settings::default(), &mut socket.events);
    assert_eq!(socket.lines()[0], "A A example.org @1 -> timeout unfinished @1");
    assert!(!socket.conversation.is_spent());
    socket.conversation.closed(Closed::Both, Stamp::default(), None, &Settings::default(), &mut socket.events);
    assert_eq!(socket.lines()[1], "AAAA AAAA example.org @6000000000 -> timeout unfinished @6000000000");
    // As many as possible, and one more.
    for id in 0..1025 {
        socket.datagram(Direction::Tx, 20_000_000_000, &message(id, ASK, "example.org", 1));
    }
    assert!(socket.events.contains(&ExchangeEvent::Crowded));
}

#[test]
fn names_are_those_somebody_registered() {
    let of = |name: &str| Message::read(&message(1, ASK, name, 1)).unwrap().domain;
    for (name, expected) in [
        ("www.Example.ORG", "example.org"),
        ("a.b.c.example.co.uk", "example.co.uk"),
        ("example.org", "example.org"),
        ("org", "org"),
        ("database", "database"),
        ("db.prod.svc.cluster.local", "cluster.local"),
        ("4.3.2.1.in-addr.arpa", "in-addr.arpa"),
        ("_sip._tcp.example.org", "example.org"),
        ("", "."),
        ("planted secret.example.org", ""),
    ] {
        assert_eq!(of(name), expected, "{name}");
    }
}

#[test]
fn pieces_of_messages_are_none() {
    let whole = message(1, ASK, "www.example.org", 1);
    for end in 0..whole.len() {
        assert_eq!(Message::read(&whole[..end]), None, "{end}");
    }
    let mut pointer = whole.clone();
    pointer[12] = 0xc0;
    assert_eq!(Message::read(&pointer), None);
    let none = b"\0\x07\x81\x81\0\0\0\0\0\0\0\0";
    let message = Message::read(none).unwrap();
    assert!(message.answers(7, Some(3)) && !message.answers(8, Some(3)));
    assert_eq!(message.failure, Some("FORMERR"));
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes(), message].concat()
}

#[test]
fn over_tcp_any_number_waits_and_every_cut_says_the_same() {
    let asked = [framed(&message(1, ASK, "a.example.org", 1)), framed(&message(2, ASK, "b.example.com", 252))].concat();
    let answered = [
        framed(&message(2, ANSWER | 5, "b.example.com", 252)),
        framed(&message(1, ANSWER, "a.example.org", 1)),
        // The rest of a zone transfer.
        framed(&message(2, ANSWER, "b.example.com", 252)),
    ]
    .concat();
    let lines = |cuts: (usize, usize)| {
        let op = |dir, bytes: &[u8]| Op { dir, bytes: bytes.to_vec(), captured: usize::MAX };
        let ops = [
            op(Direction::Rx, &asked[..cuts.0]),
            op(Direction::Rx, &asked[cuts.0..]),
            op(Direction::Tx, &answered[..cuts.1]),
            op(Direction::Tx, &answered[cuts.1..]),
        ];
        let mut conversation = ConnectionParser::new(false);
        let events = play(&mut conversation, &ops);
        assert_eq!(conversation.protocol(), Some("dns"));
        let lines = events.iter().map(|word| match word {
            ExchangeEvent::Begun { request, .. } => format!("{} {}", request.method, request.path),
            ExchangeEvent::Replied { exchange, failure, .. } => format!("{exchange} {failure:?}"),
            ExchangeEvent::Done { exchange, outcome, request_bytes, reply_bytes, .. } => {
                format!("{exchange} {} {request_bytes}/{reply_bytes}", outcome.name())
            }
            other => format!("{other:?}"),
        });
        lines.collect::<Vec<_>>()
    };
    let expected = [
        "A A example.org",
        "AXFR AXFR example.com",
        "1 Some(\"REFUSED\")",
        "1 complete 33/49",
        "0 None",
        "0 complete 33/49",
    ];
    for first in 1..asked.len() {
        assert_eq!(lines((first, answered.len())), expected, "asked, cut at {first}");
    }
    for second in 1..answered.len() {
        assert_eq!(lines((asked.len(), second)), expected, "answered, cut at {second}");
    }
}

/// Datagrams of real programs (`tests/workloads/relay.py`), at the server's end and at the client's, complete and cut.
#[test]
fn captured_datagrams_say_what_is_expected() {
    let base = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/dns");
    let text = std::fs::read_to_string(base.join("dig.datagrams")).unwrap();
    let expected = std::fs::read_to_string(base.join("dig.datagrams.expect")).unwrap();
    let datagrams: Vec<(bool, Vec<u8>)> = text
        .lines()
        .map(|line| {
            let (word, hex) = line.split_once(' ').unwrap();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            (word == "rx", (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect();
    for server in [true, false] {
        let mut socket = Socket::new();
        for (nanos, (rx, bytes)) in datagrams.iter().enumerate() {
            let dir = if *rx == server { Direction::Rx } else { Direction::Tx };
            socket.datagram(dir, nanos as Nanos + 1, bytes);
        }
        let found = socket.lines();
        assert_eq!(found, expected.lines().collect::<Vec<_>>(), "{}", found.join("\n"));
        // Wherever a datagram is cut, it belongs to its own question or to none.
        for (which, (_, bytes)) in datagrams.iter().enumerate() {
            for end in 0..bytes.len() {
                let mut socket = Socket::new();
                for (nanos, (rx, bytes)) in datagrams.iter().enumerate() {
                    let dir = if *rx == server { Direction::Rx } else { Direction::Tx };
                    let bytes = if nanos == which { &bytes[..end] } else { bytes };
                    socket.datagram(dir, nanos as Nanos + 1, bytes);
                }
                socket
                    .events
                    .retain(|word| !matches!(word, ExchangeEvent::Lost { .. } | ExchangeEvent::Unpaired { .. }));
                let mut answered = socket.lines().into_iter().filter(|line| line.contains("->"));
                assert!(answered.all(|line| found.contains(&line)), "{which} cut at {end}");
            }
        }
    }
}

/// The datagram events that join the two ends of a question.
fn datagrams(socket: &Socket) -> Vec<(u64, Direction, bool)> {
    let of = |word: &ExchangeEvent| match word {
        ExchangeEvent::Datagram { exchange, dir, sure, .. } => Some((*exchange, *dir, *sure)),
        _ => None,
    };
    socket.events.iter().filter_map(of).collect()
}

#[test]
fn whose_answer_it_is_is_not_sure_where_two_asked_the_same() {
    let (tx, rx) = (Direction::Tx, Direction::Rx);
    let ask = |name: &str| message(7, ASK, name, 1);
    let answer = |name: &str| message(7, ANSWER, name, 1);
    let mut server = Socket::new();
    for (dir, bytes) in [
        (rx, ask("a.org")),
        (rx, ask("b.org")),
        (tx, answer("a.org")),
        (tx, answer("b.org")),
        (rx, ask("c.org")),
        (rx, ask("c.org")),
        (tx, answer("c.org")),
        (tx, answer("c.org")),
    ] {
        server.datagram(dir, 1, &bytes);
    }
    assert_eq!(datagrams(&server), [(0, tx, true), (1, tx, true), (2, tx, false), (3, tx, false)]);
    // An answer without a question matches by its id alone.
    let mut server = Socket::new();
    for bytes in [ask("a.org"), ask("b.org")] {
        server.datagram(rx, 1, &bytes);
    }
    let mut bare = answer("a.org")[..HEADER].to_vec();
    bare[4..8].fill(0);
    server.datagram(tx, 2, &bare);
    server.datagram(tx, 3, &bare);
    assert_eq!(datagrams(&server), [(0, tx, false), (1, tx, true)]);
    // A client reports each question it sends, and the answer it reads.
    let mut client = Socket::new();
    for (dir, bytes) in [(tx, ask("a.org")), (tx, ask("a.org")), (rx, answer("a.org")), (rx, answer("a.org"))] {
        client.datagram(dir, 1, &bytes);
    }
    assert_eq!(datagrams(&client), [(0, tx, true), (0, tx, true), (0, rx, true)]);
}

#[test]
fn a_socket_is_of_datagrams_or_a_stream() {
    let ask = message(7, ASK, "example.org", 1);
    let mut socket = Socket::new();
    socket.datagram(Direction::Tx, 1, &ask);
    let events = socket.events.len();
    socket.stream(Direction::Rx, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(socket.events.len(), events);

    let mut socket = Socket::new();
    socket.stream(Direction::Rx, b"GET / HTTP/1.1\r\n\r\n");
    let events = socket.events.len();
    let chunk = Chunk {
        dir: Direction::Tx,
        pos: 0,
        len: ask.len() as u64,
        head: &ask,
        tail: &[],
        fragments: &[],
        at: Stamp::default(),
        arrived: 0,
    };
    socket.conversation.on_io(true, &chunk, &Settings::default(), &mut socket.events);
    assert!(events > 0 && socket.events.len() == events);
}

#[test]
fn digests_are_the_same_in_all_versions() {
    // Computed independently: FNV-1a of the name, type and class.
    let message = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03WwW\x07example\x03org\x00\x00\x01\x00\x01";
    assert_eq!(Message::read(message).unwrap().question, Some(0x1361_95f0_e255_d8b7));
    assert_eq!(digest(DIGEST, b"foobar".iter().copied()), 0x8594_4171_f739_67e8, "the published test vector");
}
