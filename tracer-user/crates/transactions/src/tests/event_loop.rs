//! Event loops with distinguishable callbacks: how callbacks tie spans together, and what the async ids show in timers.

use tracer_common::event::{ENTITY_BITS, ROLE_PASSIVE, TASK_EDGE_TURNED, TaskEdge};
use tracer_common::runtime::{KIND_NODE, NODE_ID_BITS, NODE_SURE};

use super::*;

/// The loop's thread, its client connections and its upstream connections.
const LOOP: u32 = 5;
const CLIENTS: [u64; 3] = [1, 2, 3];
const SERVERS: [u64; 3] = [70, 71, 72];

const SURE: u64 = (KIND_NODE as u64) << ENTITY_BITS | NODE_SURE;
const BLIND: u64 = (KIND_NODE as u64) << ENTITY_BITS;

/// A loop and its async id counter.
struct Node {
    host: Host,
    counter: u64,
    kind: u64,
}

impl Node {
    /// A loop whose process has answered enough requests with calls to be trusted.
    fn new() -> Self {
        let mut node = Self::fresh(SURE);
        for number in 0..20 {
            node.reads(0, &format!("/warm/{number}")).asks(0, "/w").turns().replies(0).answers(0).turns();
        }
        node
    }

    fn fresh(kind: u64) -> Self {
        let mut node = Self { host: Host::new(Limits::default()), counter: 100, kind };
        for cookie in CLIENTS.into_iter().chain(SERVERS) {
            node.host.opens(cookie, (0, 0));
        }
        for server in 0..3 {
            // The connections are in use already.
            node.asks(server, "/first").turns().replies(server).turns();
        }
        node
    }

    fn receives(&mut self) {
        self.host.entity = self.kind | self.counter;
    }

    fn sends(&mut self, (execution, trigger): (u64, u64)) {
        let mask = (1 << NODE_ID_BITS) - 1;
        self.host.entity = self.kind | (execution & mask) << NODE_ID_BITS | (trigger & mask);
    }

    /// Reads a request.
    fn reads(&mut self, client: usize, path: &str) -> &mut Self {
        self.receives();
        self.host.reads(LOOP, CLIENTS[client], format!("GET {path} HTTP/1.1\r\n\r\n"));
        self
    }

    /// Creates an async id in the current callback.
    fn made(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn asks(&mut self, server: usize, path: &str) -> &mut Self {
        self.asks_by((0, 0), server, path)
    }

    fn asks_by(&mut self, ids: (u64, u64), server: usize, path: &str) -> &mut Self {
        self.sends(ids);
        self.host.sends(LOOP, SERVERS[server], format!("GET {path} HTTP/1.1\r\n\r\n"));
        self
    }

    fn replies(&mut self, server: usize) -> &mut Self {
        self.receives();
        self.host.reads(LOOP, SERVERS[server], OK);
        self
    }

    /// One receive brings `text`, in records of up to `piece` bytes.
    fn receives_in(&mut self, server: usize, text: &[u8], piece: usize) -> &mut Self {
        self.receives();
        let now = self.host.nanos;
        for (place, part) in text.chunks(piece).enumerate() {
            self.host.nanos = now;
            // It counts once.
            self.host.counters.entry(LOOP).or_default().reads -= u32::from(place > 0);
            self.host.moves(1, LOOP, SERVERS[server], false, 0, part);
        }
        self
    }

    fn answers(&mut self, client: usize) -> &mut Self {
        self.answers_by((0, 0), client)
    }

    fn answers_by(&mut self, ids: (u64, u64), client: usize) -> &mut Self {
        self.sends(ids);
        self.host.sends(LOOP, CLIENTS[client], OK);
        self
    }

    /// Receives or sends a record of TLS, whose content begins like this.
    fn encrypted(&mut self, cookie: u64, sends: bool, kind: u8, begin: &[u8], len: usize) -> &mut Self {
        let mut bytes = vec![kind, 3, 3, (len >> 8) as u8, len as u8];
        bytes.extend_from_slice(begin);
        bytes.resize(5 + len, 0);
        if sends {
            self.sends((0, 0));
        } else {
            self.receives();
        }
        self.host.moves(1, LOOP, cookie, sends, 0, bytes);
        self
    }

    /// The TLS library gives its reader text of the connection.
    fn reads_text(&mut self, cookie: u64, path: &str) -> &mut Self {
        self.receives();
        let head = format!("GET {path} HTTP/1.1\r\n\r\n");
        let nth = self.host.numbers.entry(LOOP).or_default();
        *nth += 1;
        let header = Header { kind: Kind::Text as u8, nanos: self.host.nanos, tgid: 1, tid: LOOP, ..Header::default() };
        // Positions of text are others than the socket's.
        let pos = self.host.positions.entry((cookie + 1000, false)).or_default();
        let op = Op {
            header,
            cookie,
            pos: *pos,
            bytes: head.len() as u32,
            nth: *nth,
            counters: self.host.counters[&LOOP],
            entity: self.host.entity,
            edge_seq: self.host.edge_seq,
            ..Op::default()
        };
        *pos += head.len() as u64;
        let record = Record::Text { op, head: head.as_bytes(), tail: &[], fragments: &[] };
        self.host.engine.record(&record, &mut self.host.out);
        self.host.nanos += 10;
        self
    }

    /// Runs timers or immediates; the kernel side counts a turn as a poll.
    fn turns(&mut self) -> &mut Self {
        self.host.edge_seq += 1;
        self.host.counters.entry(LOOP).or_default().polls += 1;
        let header =
            Header { kind: Kind::TaskEdge as u8, nanos: self.host.nanos, tgid: 1, tid: LOOP, ..Header::default() };
        let task_edge = TaskEdge {
            header,
            child: self.kind | self.counter,
            nth: self.host.edge_seq,
            relation: TASK_EDGE_TURNED,
            ..TaskEdge::default()
        };
        for _ in 0..self.host.times {
            self.host.engine.record(&Record::TaskEdge(task_edge), &mut self.host.out);
        }
        self
    }

    /// Final grade and parent path of each of these calls.
    fn verdicts(&mut self, calls: &[&str]) -> Vec<(Grade, Option<String>)> {
        let spans = self.host.finish();
        let find = |path: &&str| {
            let (_, verdicts) = spans.iter().find(|(live, _)| *live.request.path == **path).expect("the call");
            let parent = spans.iter().find(|(live, _)| Some(live.id) == verdicts.parent);
            (verdicts.grade, parent.map(|(live, _)| live.request.path.to_string()))
        };
        calls.iter().map(find).collect()
    }
}

fn of(path: &str) -> (Grade, Option<String>) {
    (Grade::Confirmed, Some(path.to_owned()))
}

#[test]
fn calls_in_a_row_are_tied_by_their_replies() {
    let mut node = Node::new();
    node.reads(0, "/1").asks(0, "/1/a").reads(1, "/2").asks(1, "/2/a").turns();
    node.replies(1).asks(1, "/2/b").replies(0).asks(0, "/1/b").turns();
    node.replies(0).answers(0).replies(1).answers(1).turns();
    assert_eq!(node.verdicts(&["/1/a", "/1/b", "/2/a", "/2/b"]), [of("/1"), of("/1"), of("/2"), of("/2")]);
}

#[test]
fn a_timers_call_belongs_to_the_request_its_reply_answers_or_to_none() {
    let mut node = Node::new();
    node.reads(0, "/1").reads(1, "/2").turns().asks(0, "/1/a").asks(1, "/2/a").turns();
    // One reply leads to an answer; another sleep follows the other reply.
    node.replies(1).answers(1).replies(0).turns().answers(0).turns();
    assert_eq!(node.verdicts(&["/1/a", "/2/a"]), [(Grade::Orphan, None), of("/2")]);
}

#[test]
fn ids_say_whose_a_timer_is() {
    for (lost, task_edge) in [(false, true), (true, true), (false, false)] {
        let mut node = Node::new();
        node.reads(0, "/1");
        let first = node.made();
        node.reads(1, "/2");
        let second = node.made();
        node.host.times = u32::from(task_edge);
        node.turns();
        let third = node.made();
        node.host.times = u32::from(!lost);
        node.reads(2, "/3");
        node.host.times = 1;
        node.asks_by((first, 0), 0, "/a");
        node.turns().asks_by((second, 0), 1, "/b").asks_by((third, second), 2, "/c");
        let verdicts = node.verdicts(&["/b", "/c"]);
        if task_edge && !lost {
            assert_eq!(verdicts, [of("/2"), of("/2")]);
        } else {
            // A record is missing: ids created since the last read may belong to other callbacks.
            assert_eq!(verdicts, [(Grade::Orphan, None), (Grade::Orphan, None)], "lost {lost}, reported {task_edge}");
        }
    }
}

#[test]
fn ids_wrap_and_old_ones_belong_to_no_request() {
    let mut node = Node::new();
    node.counter = (3 << NODE_ID_BITS) - 2;
    node.reads(0, "/1");
    let (early, _) = (node.made(), node.made());
    let late = node.made();
    assert_eq!((early >> NODE_ID_BITS, late >> NODE_ID_BITS), (2, 3));
    node.turns().asks_by((early, 0), 0, "/a").asks_by((late + 1, late + 1), 1, "/late");
    node.asks_by((5, 7), 2, "/old");
    let verdicts = node.verdicts(&["/a", "/late", "/old"]);
    assert_eq!(verdicts, [of("/1"), (Grade::Orphan, None), (Grade::Orphan, None)]);
}

#[test]
fn requests_that_meet_are_ambiguous_and_make_their_process_doubtful() {
    let mut node = Node::new();
    // A pool of one connection: the reply of the first call releases the other request's call.
    node.reads(0, "/1").asks(0, "/1/a").reads(1, "/2").turns();
    node.replies(0).answers(0).asks(0, "/2/a").turns().replies(0).answers(1).turns();
    // From now on only calls sent in the callback that read the request are trusted.
    node.reads(0, "/3").asks(0, "/3/a").turns().replies(0).asks(0, "/3/b").turns().replies(0).answers(0).turns();
    let verdicts = node.verdicts(&["/1/a", "/2/a", "/3/a", "/3/b"]);
    assert!(verdicts[..2].iter().all(|(grade, _)| *grade == Grade::Ambiguous), "{verdicts:?}");
    assert_eq!(verdicts[2..], [of("/3"), (Grade::Ambiguous, None)]);
}

#[test]
fn what_waited_for_a_connection_is_of_whoever_asked_for_it() {
    let mut node = Node::new();
    node.reads(0, "/1").asks(0, "/1/a").reads(1, "/2");
    let waits = node.made();
    node.turns();
    let timer = node.made();
    // The reply's callback answers and releases the call the other request waits to send; its own id is the first
    // request's.
    node.replies(0).answers(0).asks_by((0, waits), 0, "/2/a").turns();
    node.replies(0).asks_by((0, timer), 0, "/timer").answers(1).turns();
    let verdicts = node.verdicts(&["/1/a", "/2/a", "/timer"]);
    assert_eq!(verdicts, [of("/1"), of("/2"), (Grade::Orphan, None)]);
}

#[test]
fn an_answer_ties_the_call_that_ended_where_continuations_have_ids() {
    let mut node = Node::new();
    // As with `AsyncLocalStorage`: a call sent on a new connection after a sleep has the ids of the timer's callback,
    // which no request owns. The answer has the request's ids, which the callback that sent the second call does not.
    node.reads(0, "/1");
    let first = node.made();
    node.turns();
    let (connected, again) = (node.made(), node.made());
    node.turns().asks_by((again, connected), 0, "/1/a").turns().replies(0);
    let own = node.made();
    node.turns().asks_by((0, own), 1, "/1/b").turns().replies(1).answers_by((first, first), 0).turns();
    assert_eq!(node.verdicts(&["/1/a", "/1/b"]), [of("/1"), of("/1")]);
}

#[test]
fn an_answer_does_not_tie_what_ended_for_another() {
    let mut node = Node::new();
    // The first request's answer waited for the end of the other's call, as for a lock, and the ids show it.
    node.reads(0, "/1");
    let first = node.made();
    node.reads(1, "/2").asks(1, "/2/a").turns();
    node.replies(1).answers_by((first, first), 0).answers_by((0, 0), 1).turns();
    assert_eq!(node.verdicts(&["/2/a"]), [of("/2")]);
}

#[test]
fn what_goes_on_may_meet_another_request_yet() {
    let mut node = Node::new();
    // Two tied calls from timers; the second one's reply answers one request and continues with another's call.
    node.reads(0, "/1").reads(1, "/2").turns().asks(0, "/a").turns();
    node.replies(0).asks(0, "/b").turns().replies(0).answers(1).asks(0, "/c").turns();
    // Long after the first has ended.
    node.host.nanos += 100_000_000;
    node.asks(1, "/later").turns();
    node.host.engine.report(node.host.nanos, &mut node.host.out);
    node.replies(0).answers(0).turns();
    let verdicts = node.verdicts(&["/a", "/b", "/c"]);
    assert!(verdicts.iter().all(|(grade, _)| *grade == Grade::Ambiguous), "{verdicts:?}");
}

#[test]
fn a_new_connection_is_of_the_callback_that_connected() {
    let mut node = Node::new();
    node.reads(0, "/1");
    let header = Header { kind: Kind::State as u8, flags: STATE_OWN, tgid: 1, tid: LOOP, ..Header::default() };
    let header = Header { nanos: node.host.nanos, ..header };
    let counters = node.host.counters[&LOOP];
    let state = State { header, cookie: 90, new: tcp_state::SYN_SENT, counters, ..State::default() };
    node.host.engine.record(&Record::State(state), &mut node.host.out);
    node.reads(1, "/2");
    node.sends((0, 0));
    node.host.sends(LOOP, 90, "GET /1/a HTTP/1.1\r\n\r\n");
    // The opener of the other connection was not seen.
    node.host.sends(LOOP, 91, "GET /x HTTP/1.1\r\n\r\n");
    assert_eq!(node.verdicts(&["/1/a", "/x"]), [of("/1"), (Grade::Orphan, None)]);
}

#[test]
fn without_the_ends_of_callbacks_nothing_is_sure() {
    let mut node = Node::fresh(BLIND);
    for number in 0..40 {
        node.reads(0, &format!("/{number}")).asks(0, &format!("/{number}/a")).turns().replies(0).answers(0).turns();
    }
    let verdicts = node.verdicts(&["/3/a", "/39/a"]);
    assert!(verdicts.iter().all(|(grade, parent)| *grade == Grade::Ambiguous && parent.is_none()), "{verdicts:?}");
}

#[test]
fn a_reply_that_was_asked_for_before_is_not_the_request_s() {
    let mut node = Node::new();
    // A background call; a request later waits for the same result.
    node.turns().asks(0, "/background").turns().reads(0, "/1").turns().replies(0).answers(0).turns();
    let verdicts = node.verdicts(&["/background"]);
    assert_eq!(verdicts, [(Grade::Ambiguous, None)]);
}

#[test]
fn everything_that_ties_is_given_back() {
    let mut node = Node::new();
    node.reads(0, "/1").asks(0, "/1/a").turns().replies(0).asks(0, "/1/b").turns().replies(0).answers(0).turns();
    node.host.finish();
    node.host.engine.forget_process(1);
    assert!(node.host.engine.loops.is_empty());
}

#[test]
fn a_receive_of_encrypted_bytes_belongs_to_the_texts_that_it_brings() {
    const CLIENT: u64 = 95;
    let mut node = Node::new();
    let header = Header { kind: Kind::Open as u8, nanos: node.host.nanos, tgid: 1, tid: LOOP, ..Header::default() };
    let open = Open { header, cookie: CLIENT, family: FAMILY_INET, role: ROLE_PASSIVE, ..Open::default() };
    node.host.engine.record(&Record::Open(open), &mut node.host.out);
    node.encrypted(CLIENT, false, 22, &[1, 0, 0, 96, 3, 3], 100).encrypted(CLIENT, true, 22, &[2, 0, 0, 76, 3, 3], 80);
    node.encrypted(CLIENT, false, 20, &[1], 1).encrypted(CLIENT, false, 22, &[0x5a], 40);
    node.encrypted(CLIENT, true, 22, &[0x5a], 40).turns();
    // One text; two at once; none.
    node.encrypted(CLIENT, false, 23, &[], 60).reads_text(CLIENT, "/1").asks(0, "/1/a");
    node.encrypted(CLIENT, false, 23, &[], 60).reads_text(CLIENT, "/2").asks(1, "/2/a");
    node.reads_text(CLIENT, "/3").asks(2, "/3/a").turns();
    node.replies(0).replies(1).replies(2).encrypted(CLIENT, false, 21, &[], 30).asks(0, "/x").turns();
    let expected = [of("/1"), of("/2"), of("/3"), (Grade::Orphan, None)];
    assert_eq!(node.verdicts(&["/1/a", "/2/a", "/3/a", "/x"]), expected);
}

#[test]
fn a_receive_in_several_records_ties_what_it_would_tie_in_one() {
    // Replies for three requests, whose next call may be of any of them.
    let replies = OK.repeat(3);
    for piece in [replies.len(), 2 * OK.len(), OK.len(), OK.len() + 20] {
        let mut node = Node::new();
        for (client, path) in ["/1", "/2", "/3"].into_iter().enumerate() {
            node.reads(client, path).asks(0, &format!("{path}/a"));
        }
        node.turns().receives_in(0, replies.as_bytes(), piece).asks(1, "/next").turns();
        node.replies(1).answers(0).answers(1).answers(2).turns();
        let [(grade, _)] = node.verdicts(&["/next"])[..] else { panic!("one call") };
        assert_eq!(grade, Grade::Ambiguous, "in records of {piece}");
    }
}

#[test]
fn a_long_reply_in_several_records_is_one_receive() {
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n{}", "x".repeat(20_000));
    for piece in [reply.len(), 8192] {
        let mut node = Node::new();
        node.reads(0, "/1").asks(0, "/1/a").turns().receives_in(0, reply.as_bytes(), piece);
        let own = node.made();
        node.turns().asks_by((own, 0), 1, "/1/b").turns().replies(1).answers(0).turns();
        assert_eq!(node.verdicts(&["/1/a", "/1/b"]), [of("/1"), of("/1")], "in records of {piece}");
    }
}

/// A span that was written to a file cannot be corrected: what is below a call is reported once the call is.
#[test]
fn the_request_below_a_call_is_reported_when_the_call_has_its_request() {
    let mut node = Node::new();
    node.host.opens(4, (600, 700)).opens(5, (700, 600));
    node.reads(0, "/1").turns();
    // Nothing ties this timer's call to the request yet.
    node.sends((0, 0));
    node.host.moves(1, LOOP, 4, true, 601, "GET /1/a HTTP/1.1\r\n\r\n");
    node.turns().host.entity = 0;
    node.host.moves(3, 8, 5, false, 601, "GET /1/a HTTP/1.1\r\n\r\n").moves(3, 8, 5, true, 701, OK);
    let served = node.host.nanos;
    node.host.nanos += 10_000_000;
    node.receives();
    node.host.moves(1, LOOP, 4, false, 701, OK);
    let made = node.made();
    // The grace time of the served request is over, and that of the call is not.
    node.turns().host.nanos = served + node.host.engine.world.limits.grace + 1_000_000;
    node.host.engine.world.now = node.host.nanos;
    node.host.engine.report(node.host.nanos, &mut node.host.out);
    // What the reply had started makes the call whose reply is the answer.
    node.asks_by((made, 0), 0, "/1/b").turns().replies(0).answers(0).turns();
    let corrected = |output: &Output| matches!(output, Output::Renamed { .. });
    node.host.engine.expire(true, &mut node.host.out);
    assert!(!node.host.out.iter().any(corrected));
    let spans = node.host.finish();
    let find = |path: &str, side| {
        let is_it = |(live, _): &&(Box<OpenSpan>, Verdicts)| *live.request.path == *path && live.side == side;
        spans.iter().find(is_it).expect("it was reported")
    };
    let (request, call, served) = (find("/1", Side::Server), find("/1/a", Side::Client), find("/1/a", Side::Server));
    assert_eq!((call.1.parent, served.1.parent), (Some(request.0.id), Some(call.0.id)));
    assert!(call.1.trace == request.1.trace && served.1.trace == request.1.trace);
}
