//! Workers that serve one request at a time, scripted: how their connections end, and what they do after the reply.

use tracer_common::event::{OP_EOF, ROLE_ACTIVE};
use tracer_model::ProtocolId;

use super::*;

/// A FastCGI record.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    bytes.extend_from_slice(content);
    bytes
}

/// A request for `path`, without the empty record that ends its body.
fn fastcgi(path: &str) -> Vec<u8> {
    let mut variables = Vec::new();
    for (name, value) in [("REQUEST_METHOD", "GET"), ("SCRIPT_NAME", path), ("REQUEST_URI", path)] {
        variables.extend([name.len() as u8, value.len() as u8]);
        variables.extend_from_slice(name.as_bytes());
        variables.extend_from_slice(value.as_bytes());
    }
    [record(1, &[0, 1, 0, 0, 0, 0, 0, 0]), record(4, &variables), record(4, b"")].concat()
}

/// The empty record that ends a request's body.
fn no_more() -> Vec<u8> {
    record(5, b"")
}

fn answer() -> Vec<u8> {
    [record(6, b"Status: 200 OK\r\n\r\nok"), record(3, &[0; 8])].concat()
}

impl Host {
    /// A thread reads the end of stream.
    fn reads_the_end(&mut self, tid: u32, cookie: u64) -> &mut Self {
        let nth = self.numbers.entry(tid).or_default();
        *nth += 1;
        let nth = *nth;
        let counters = *self.counters.entry(tid).or_default();
        let header =
            Header { kind: Kind::Op as u8, flags: OP_EOF, nanos: self.nanos, tgid: 1, tid, ..Header::default() };
        let pos = self.positions.get(&(cookie, false)).copied().unwrap_or_default();
        let op = Op { header, cookie, pos, nth, counters, ..Op::default() };
        self.engine.record(&Record::Op { op, head: &[], tail: &[], fragments: &[] }, &mut self.out);
        self.nanos += 10;
        self
    }

    /// A thread answers on a TCP connection, shuts it down, and reads what the web server had sent beyond what it
    /// needed.
    fn answers_and_shuts(&mut self, tid: u32, cookie: u64) -> &mut Self {
        self.sends(tid, cookie, answer()).state(cookie, tcp_state::FIN_WAIT1);
        self.reads(tid, cookie, no_more()).reads_the_end(tid, cookie).state(cookie, tcp_state::CLOSE)
    }
}

#[test]
fn what_is_left_of_a_request_is_read_after_the_reply_and_hides_no_other() {
    let mut host = Host::new(Limits::default());
    for request in 0..4 {
        let (cookie, call) = (10 + request, 20 + request);
        host.opens(cookie, (0, 0)).opens(call, (0, 0)).waits(5, true);
        host.reads(5, cookie, fastcgi("/a.php")).works(5, 100).sends(5, call, "GET /down HTTP/1.1\r\n\r\n");
        host.waits(5, false).reads(5, call, OK).works(5, 50).answers_and_shuts(5, cookie);
    }
    assert_eq!(host.engine.world.counters.threads_doubted, 0);
    let spans = host.finish();
    let ids: Vec<_> = spans.iter().filter(|(live, _)| live.protocol == ProtocolId::FastCgi).collect();
    assert_eq!(ids.len(), 4);
    for (live, verdicts) in &ids {
        assert_eq!((verdicts.grade, live.cost.cpu, live.outcome), (Grade::Certain, 150, Some(Outcome::Complete)));
        assert_eq!(&*live.request.path, "/a.php");
    }
    for (live, verdicts) in spans.iter().filter(|(live, _)| live.protocol == ProtocolId::Http) {
        let above = ids.iter().find(|(above, _)| Some(above.id) == verdicts.parent);
        assert!(above.is_some_and(|(above, _)| above.start < live.start && live.start < above.end), "{verdicts:?}");
        assert_eq!(verdicts.grade, Grade::Certain);
    }
}

const DOWN: &str = "GET /down HTTP/1.1\r\n\r\n";

/// Verdicts of the calls in order of their start: grade and parent path.
fn calls(spans: &[(Box<OpenSpan>, Verdicts)]) -> Vec<(Grade, Option<String>)> {
    let calls = spans.iter().filter(|(live, _)| live.request.path.starts_with("/down"));
    let above = |verdicts: &Verdicts| spans.iter().find(|(live, _)| Some(live.id) == verdicts.parent);
    calls.map(|(_, events)| (events.grade, above(events).map(|(live, _)| live.request.path.to_string()))).collect()
}

/// A thread makes a call and polls for its reply.
fn asks(host: &mut Host, tid: u32, cookie: u64) {
    host.sends(tid, cookie, DOWN).works(tid, 5).waits(tid, true).reads(tid, cookie, OK).works(tid, 20);
}

const SURE: Grade = Grade::Certain;

fn of(path: &str) -> (Grade, Option<String>) {
    (SURE, Some(path.into()))
}

#[test]
fn a_worker_goes_on_for_its_request_after_the_reply() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (0, 0));
    for path in ["/a", "/b"] {
        host.waits(1, true).reads(1, 1, format!("GET {path} HTTP/1.1\r\n\r\n")).works(1, 100).sends(1, 1, OK);
        // The process's first thread may also sleep.
        host.works(1, 30).waits(1, false);
        asks(&mut host, 1, 2);
        asks(&mut host, 1, 3);
        host.works(1, 7);
    }
    let spans = host.finish();
    assert_eq!(calls(&spans), [of("/a"), of("/a"), of("/b"), of("/b")]);
    let requests: Vec<_> = spans.iter().filter(|(live, _)| live.cookie == 1).map(|(live, _)| live).collect();
    // Work after the last operation is charged with the next one.
    assert_eq!(requests.iter().map(|live| live.cost.cpu).collect::<Vec<_>>(), [187, 160]);
    let after: Vec<_> = requests.iter().filter_map(|live| live.after_reply()).collect();
    assert_eq!(after.iter().map(|after| after.cpu).collect::<Vec<_>>(), [87, 60]);
    assert!(after.iter().all(|after| after.time > 80), "{after:?}");
    assert!(requests.iter().all(|live| live.downstream() == 0 && live.end - live.start <= 120));
    assert_eq!(host.overhead(), 0);
}

#[test]
fn what_it_does_for_a_reported_request_keeps_its_transaction_and_class() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(1, 1, GET);
    let Some(Output::Begun(slot)) = host.out.first() else { panic!("nothing begun") };
    host.engine.classify(*slot, ClassId(3), None);
    host.works(1, 100).sends(1, 1, OK);
    let now = host.engine.world.now + 60_000_000_000;
    host.engine.report(now, &mut host.out);
    let reported: Vec<_> = host
        .out
        .drain(..)
        .filter_map(
            |output| if let Output::Finished(live, events) = output { Some((live.id, events.trace)) } else { None },
        )
        .collect();
    host.engine.take_costs();
    host.nanos += 61_000_000_000;
    asks(&mut host, 1, 2);
    let spans = host.finish();
    let [(_, events)] = &spans[..] else { panic!("{} spans", spans.len()) };
    assert_eq!((events.parent.map(|parent| (parent, events.trace)), events.grade), (reported.first().copied(), SURE));
    let (classes, overhead) = host.engine.take_costs();
    assert_eq!(classes.iter().map(|(class, cost)| (*class, cost.cpu)).collect::<Vec<_>>(), [(3, 5)]);
    assert!(overhead.is_empty());
}

#[test]
fn what_ends_work_after_the_reply() {
    type Step = fn(&mut Host);
    let cases: [(&str, Step); 6] = [
        ("a wait in a poller", |host| {
            host.waits(5, true);
        }),
        ("a wait of a pool's thread", |host| {
            host.waits(5, false);
        }),
        ("the next request", |host| {
            host.opens(7, (0, 0)).reads(5, 7, GET).sends(5, 7, OK).waits(5, true);
        }),
        ("bytes that may be one", |host| {
            host.opens(7, (0, 0)).reads(5, 7, "GE");
        }),
        ("a receive that was not reported", |host| host.counters.entry(5).or_default().reads += 1),
        ("a lost operation", |host| {
            host.recorded(0, |host| {
                host.sends(5, 7, "?");
            });
        }),
    ];
    for (what, step) in cases {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).opens(2, (0, 0)).reads(5, 1, GET).works(5, 10).sends(5, 1, OK);
        step(&mut host);
        asks(&mut host, 5, 2);
        assert_eq!(calls(&host.finish()), [(Grade::Orphan, None)], "{what}");
    }
}

#[test]
fn an_event_loop_does_nothing_after_the_reply_that_is_known_to_be_for_it() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (0, 0));
    // It answers each request at once, on connections that alternate.
    for _ in 0..3 {
        for cookie in [1, 3] {
            host.waits(5, true).reads(5, cookie, GET).works(5, 10).sends(5, cookie, OK);
        }
    }
    asks(&mut host, 5, 2);
    assert_eq!(calls(&host.finish()), [(Grade::Orphan, None)]);
}

#[test]
fn who_connects_after_the_reply_does_so_for_the_request() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 10).sends(5, 1, OK).works(5, 20);
    let counters = host.counters[&5];
    let header =
        Header { kind: Kind::State as u8, flags: STATE_OWN, nanos: host.nanos, tgid: 1, tid: 5, ..Header::default() };
    let state = State { header, cookie: 2, new: tcp_state::SYN_SENT, counters, ..State::default() };
    host.engine.record(&Record::State(state), &mut host.out);
    // Until the connection is established.
    host.waits(5, true);
    let header = Header { kind: Kind::Open as u8, nanos: host.nanos, tgid: 1, tid: 5, ..Header::default() };
    let open = Open { header, cookie: 2, family: FAMILY_INET, role: ROLE_ACTIVE, ..Open::default() };
    host.engine.record(&Record::Open(open), &mut host.out);
    asks(&mut host, 5, 2);
    assert_eq!(calls(&host.finish()), [of("/a")]);
}
