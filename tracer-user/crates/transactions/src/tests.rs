//! The engine, scripted: operations of threads on sockets with the threads' counters, and the expected results.

use std::collections::HashMap;

use tracer_common::event::{
    FAMILY_INET, Header, Kind, NetworkPath, OP_TX, OPEN_QUEUED, OffCpu, Op, Open, STATE_OWN, Sample, State,
    THREAD_STATS_DEAD, ThreadCounters, ThreadStats, WaitEnd, tcp_state,
};
use tracer_common::off_cpu::Reason;
use tracer_model::decode::Record;
use tracer_model::{Accepted, ClassId, Grade, Interpreted, Nanos, Outcome, ServiceId, Side, StackSample, Wait};
use tracer_protocols::Settings;

use super::connection::Connection;
use super::engine::{Engine, Limits};
use super::open_span::OpenSpan;
use super::output::{Output, Verdicts};

const GET: &str = "GET /a HTTP/1.1\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// A host on which one process (1) runs threads.
struct Host {
    engine: Engine,
    out: Vec<Output>,
    positions: HashMap<(u64, bool), u64>,
    counters: HashMap<u32, ThreadCounters>,
    /// Operations of each thread so far, lost ones included.
    numbers: HashMap<u32, u32>,
    /// How often a record of an operation arrives.
    times: u32,
    /// When the first byte of the next read arrived; 0: unknown.
    arrived: Nanos,
    nanos: Nanos,
    /// The runtime task of the following operations, and the number of task edges reported so far.
    entity: u64,
    edge_seq: u32,
    /// What TCP says of the connections of the following operations.
    path: NetworkPath,
}

impl Host {
    fn new(limits: Limits) -> Self {
        let mut engine = Engine::new(Settings::default(), limits, 7);
        for tgid in 1..4 {
            engine.process(tgid, ServiceId(tgid));
        }
        Self {
            engine,
            out: Vec::new(),
            positions: HashMap::new(),
            counters: HashMap::new(),
            numbers: HashMap::new(),
            times: 1,
            arrived: 0,
            nanos: 1_000,
            entity: 0,
            edge_seq: 0,
            path: NetworkPath::default(),
        }
    }

    /// The thread uses `cpu` more CPU time.
    fn works(&mut self, tid: u32, cpu: u64) -> &mut Self {
        self.counters.entry(tid).or_default().cpu += cpu;
        self.nanos += cpu;
        self
    }

    /// The thread waits for work, in `poll` or in a blocking read.
    fn waits(&mut self, tid: u32, poll: bool) -> &mut Self {
        self.nanos += 1_000;
        let (nanos, counters) = (self.nanos, self.counters.entry(tid).or_default());
        counters.idle_cpu = counters.cpu;
        counters.idle_end = nanos;
        counters.idles += 1;
        counters.polls += u32::from(poll);
        self
    }

    fn opens(&mut self, cookie: u64, ends: (u32, u32)) -> &mut Self {
        let header = Header { kind: Kind::Open as u8, nanos: self.nanos, tgid: 1, tid: 1, ..Header::default() };
        let (isn_local, isn_remote) = ends;
        let open = Open { header, cookie, family: FAMILY_INET, isn_local, isn_remote, ..Open::default() };
        self.engine.record(&Record::Open(open), &mut self.out);
        self
    }

    /// A thread of process `tgid` sends or receives `text` on a socket; `seq` numbers its first byte (0: not TCP).
    fn moves(&mut self, tgid: u32, tid: u32, cookie: u64, sends: bool, seq: u32, text: impl AsRef<[u8]>) -> &mut Self {
        let text = text.as_ref();
        let counters = self.counters.entry(tid).or_default();
        counters.reads += u32::from(!sends);
        let counters = *counters;
        let nth = self.numbers.entry(tid).or_default();
        *nth += 1;
        let nth = *nth;
        let flags = if sends { OP_TX } else { 0 };
        let header = Header { kind: Kind::Op as u8, flags, nanos: self.nanos, tgid, tid, ..Header::default() };
        let pos = self.positions.entry((cookie, sends)).or_default();
        let arrived = if sends { 0 } else { std::mem::take(&mut self.arrived) };
        let bytes = text.len() as u32;
        let (entity, edge_seq, path) = (self.entity, self.edge_seq, self.path);
        let op = Op {
            header,
            cookie,
            pos: *pos,
            bytes,
            seq,
            nth,
            counters,
            arrived,
            entity,
            edge_seq,
            path,
            ..Op::default()
        };
        *pos += text.len() as u64;
        for _ in 0..self.times {
            self.engine.record(&Record::Op { op, head: text, tail: &[], fragments: &[] }, &mut self.out);
        }
        self.nanos += 10;
        self
    }

    /// Records everything in `what` `times` times: 0 loses it, 2 duplicates it.
    fn recorded(&mut self, times: u32, what: impl FnOnce(&mut Self)) -> &mut Self {
        self.times = times;
        what(self);
        self.times = 1;
        self
    }

    fn reads(&mut self, tid: u32, cookie: u64, text: impl AsRef<[u8]>) -> &mut Self {
        self.moves(1, tid, cookie, false, 0, text)
    }

    fn sends(&mut self, tid: u32, cookie: u64, text: impl AsRef<[u8]>) -> &mut Self {
        self.moves(1, tid, cookie, true, 0, text)
    }

    fn state(&mut self, cookie: u64, new: u8) -> &mut Self {
        let flags = if new == tcp_state::SYN_SENT { STATE_OWN } else { 0 };
        let header = Header { kind: Kind::State as u8, flags, nanos: self.nanos, tgid: 1, ..Header::default() };
        self.engine.record(&Record::State(State { header, cookie, new, ..State::default() }), &mut self.out);
        self
    }

    fn ends(&mut self, tid: u32) -> &mut Self {
        let counters = *self.counters.entry(tid).or_default();
        let header = Header {
            kind: Kind::ThreadStats as u8,
            flags: THREAD_STATS_DEAD,
            nanos: self.nanos,
            tgid: 1,
            tid,
            ..Header::default()
        };
        self.engine
            .record(&Record::ThreadStats(ThreadStats { header, counters, ..ThreadStats::default() }), &mut self.out);
        self
    }

    /// All finished spans, in order of their start.
    fn finish(&mut self) -> Vec<(Box<OpenSpan>, Verdicts)> {
        self.engine.expire(true, &mut self.out);
        let mut spans: Vec<(Box<OpenSpan>, Verdicts)> = std::mem::take(&mut self.out)
            .into_iter()
            .filter_map(|output| match output {
                Output::Finished(live, verdicts) => Some((live, verdicts)),
                _ => None,
            })
            .collect();
        spans.sort_by_key(|(live, _)| (live.start, live.cookie));
        spans
    }

    fn overhead(&mut self) -> u64 {
        self.engine.take_costs().1.iter().map(|(_, cost)| cost.cpu).sum()
    }
}

#[test]
fn work_between_waits_belongs_to_the_request() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 100).sends(5, 1, OK);
    // Work between the reply and the wait is still the first request's; work after the wait belongs to the request whose
    // read ends the interval.
    host.works(5, 30).waits(5, false).works(5, 7).reads(5, 1, GET).works(5, 200).sends(5, 1, OK);
    let spans = host.finish();
    assert_eq!(spans.iter().map(|(live, _)| live.cost.cpu).collect::<Vec<_>>(), [130, 207]);
    assert!(spans.iter().all(|(live, v)| v.grade == Grade::Certain && live.outcome == Some(Outcome::Complete)));
    assert_eq!(host.overhead(), 0);
}

#[test]
fn books_that_run_ahead_are_not_charged_twice() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 100).sends(5, 1, OK);
    // A running slice was estimated 20 too high; the scheduler's figure follows when it ends.
    host.counters.entry(5).or_default().cpu -= 20;
    host.waits(5, false).reads(5, 1, GET).works(5, 50).sends(5, 1, OK);
    let total: u64 = host.finish().iter().map(|(live, _)| live.cost.cpu).sum();
    assert_eq!(total + host.overhead(), 130);
}

#[test]
fn no_request_waits_for_a_cpu_before_it_arrived() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).sends(5, 1, OK).waits(5, false);
    // The thread waited 5000 for a CPU, and the request arrived in the last 200 of that.
    host.counters.entry(5).or_default().runq += 5_000;
    host.nanos += 5_000;
    host.arrived = host.nanos - 200;
    host.reads(5, 1, GET);
    host.counters.entry(5).or_default().runq += 70;
    host.works(5, 10).sends(5, 1, OK);
    let runq: Vec<u64> = host.finish().iter().map(|(live, _)| live.cost.runq).collect();
    assert_eq!(runq, [0, 270]);
}

#[test]
fn what_arrived_before_it_was_accepted_waited_for_that_first() {
    for (seen, early) in [(0, Accepted::Unseen), (1_500, Accepted::At(1_500))] {
        let mut host = Host::new(Limits::default());
        host.nanos = 2_000;
        let header = Header { kind: Kind::Open as u8, flags: OPEN_QUEUED, nanos: 2_000, tgid: 1, ..Header::default() };
        let open = Open { header, cookie: 1, accepted: seen, family: FAMILY_INET, ..Open::default() };
        host.engine.record(&Record::Open(open), &mut host.out);
        // The first read left the second request in the socket; the third came later.
        for arrived in [1_200, 1_200, 3_000] {
            host.nanos = host.nanos.max(arrived);
            host.arrived = arrived;
            host.reads(5, 1, GET).sends(5, 1, OK);
        }
        let accepted: Vec<Accepted> = host.finish().iter().map(|(live, _)| live.accepted()).collect();
        assert_eq!(accepted, [early, early, Accepted::Before], "accepted at {seen}");
    }
}

#[test]
fn a_call_of_a_thread_with_one_request_is_certain() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(5, 1, GET).works(5, 10);
    host.sends(5, 2, "GET /down HTTP/1.1\r\n\r\n").works(5, 5).waits(5, false).reads(5, 2, OK).works(5, 20);
    host.sends(5, 1, OK);
    let spans = host.finish();
    let [(request, _), (call, verdicts)] = &spans[..] else { panic!("{} spans", spans.len()) };
    assert_eq!((verdicts.parent, verdicts.grade), (Some(request.id), Grade::Certain));
    assert_eq!((verdicts.trace, request.cost.cpu), (request.trace, 35));
    assert_eq!(request.downstream(), call.end - call.start);
}

#[test]
fn a_call_made_before_its_process_is_known_shows_no_guess() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(5, 1, GET).sends(5, 2, "GET /down HTTP/1.1\r\n\r\n");
    // Only now is the process known to run goroutines: another one may have continued on the thread.
    host.engine.has_loops(1);
    host.works(5, 5).waits(5, false).reads(5, 2, OK).works(5, 20).sends(5, 1, OK);
    let spans = host.finish();
    let [(request, above), (_, verdicts)] = &spans[..] else { panic!("{} spans", spans.len()) };
    assert_eq!((verdicts.parent, verdicts.grade), (None, Grade::Ambiguous));
    assert_ne!(verdicts.trace, above.trace);
    assert_eq!(request.downstream(), 0);
}

/// An event loop with two requests that make one call each; the replies come back in the other order.
fn event_loop(host: &mut Host, swapped: bool) {
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(11, (0, 0)).opens(12, (0, 0));
    host.reads(9, 1, "GET /1 HTTP/1.1\r\n\r\n").works(9, 10).sends(9, 11, "GET /d1 HTTP/1.1\r\n\r\n").waits(9, true);
    host.reads(9, 2, "GET /2 HTTP/1.1\r\n\r\n").works(9, 20).sends(9, 12, "GET /d2 HTTP/1.1\r\n\r\n").waits(9, true);
    let (first, second) = if swapped { (1, 2) } else { (2, 1) };
    host.reads(9, 12, OK).works(9, 3).sends(9, first, OK).waits(9, true);
    host.reads(9, 11, OK).works(9, 4).sends(9, second, OK).waits(9, true);
}

#[test]
fn calls_of_an_event_loop_are_confirmed_by_both_sides() {
    let mut host = Host::new(Limits::default());
    event_loop(&mut host, false);
    // The first pair of requests shows that this thread runs several at once; the second pair is handled accordingly.
    event_loop(&mut host, false);
    let spans = host.finish();
    for (path, parent) in [("/d1", "/1"), ("/d2", "/2")] {
        let calls: Vec<_> = spans.iter().filter(|(live, _)| &*live.request.path == path).collect();
        assert_eq!(calls.len(), 2);
        let (_, verdicts) = calls[1];
        let above = spans.iter().find(|(live, _)| Some(live.id) == verdicts.parent).expect("a parent");
        assert_eq!((&*above.0.request.path, verdicts.grade), (parent, Grade::Confirmed));
    }
}

#[test]
fn sides_that_disagree_are_not_confirmed() {
    let mut host = Host::new(Limits::default());
    event_loop(&mut host, false);
    event_loop(&mut host, true);
    let spans = host.finish();
    let sure: Vec<_> = spans
        .iter()
        .filter(|(live, v)| live.request.path.starts_with("/d") && v.grade == Grade::Confirmed)
        .map(|(live, _)| live.start)
        .collect();
    let second_half = spans[spans.len() / 2].0.start;
    assert!(sure.iter().all(|start| *start < second_half), "{sure:?}");
}

#[test]
fn both_ends_on_one_host_are_one_transaction() {
    for caller_first in [true, false] {
        let mut host = Host::new(Limits::default());
        // Both ends know the accepting end's initial sequence number: 700.
        host.opens(1, (600, 700)).opens(2, (700, 600));
        let call = |host: &mut Host| {
            host.moves(1, 5, 1, true, 601, GET);
        };
        let serve = |host: &mut Host| {
            host.moves(2, 6, 2, false, 601, GET);
        };
        if caller_first {
            call(&mut host);
            serve(&mut host);
        } else {
            serve(&mut host);
            call(&mut host);
        }
        host.moves(2, 6, 2, true, 701, OK).moves(1, 5, 1, false, 701, OK);
        let mut spans = host.finish();
        spans.sort_by_key(|(live, _)| live.cookie);
        let [(call, above), (request, below)] = &spans[..] else { panic!("{} spans", spans.len()) };
        assert_eq!((below.parent, below.trace), (Some(call.id), above.trace), "{caller_first}");
        assert_eq!((call.service, request.service), (ServiceId(1), ServiceId(2)));
    }
}

#[test]
fn an_incoming_traceparent_names_the_transaction() {
    let mut host = Host::new(Limits::default());
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let text = format!("GET /a HTTP/1.1\r\ntraceparent: 00-{id}-00f067aa0ba902b7-01\r\n\r\n");
    host.opens(1, (0, 0)).reads(5, 1, &text).sends(5, 1, OK);
    let spans = host.finish();
    assert_eq!(spans[0].1.trace.to_string(), id);
    assert_eq!(spans[0].1.parent.map(|parent| parent.to_string()).as_deref(), Some("00f067aa0ba902b7"));
}

#[test]
fn a_reset_that_overtakes_an_operation_ends_nothing_early() {
    let mut host = Host::new(Limits::default());
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1234";
    host.opens(1, (0, 0)).reads(5, 1, GET).sends(5, 1, head).state(1, tcp_state::CLOSE).sends(5, 1, "56789");
    let spans = host.finish();
    assert_eq!(spans.len(), 1);
    assert_eq!((spans[0].0.outcome, spans[0].0.reply_body_bytes()), (Some(Outcome::Complete), Some(9)));
    assert_eq!(host.engine.world.counters.unpaired, 0);
}

#[test]
fn a_thread_that_ends_leaves_its_last_work_to_its_request() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 10).sends(5, 1, OK).works(5, 40).ends(5);
    assert_eq!(host.finish()[0].0.cost.cpu, 50);
}

#[test]
fn samples_that_come_before_their_operations_wait_for_them() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET);
    host.engine.catch_up(host.nanos);
    // The agent was held up: it reads the samples of two requests before the operations between them.
    let begin = host.nanos;
    for nanos in (begin..begin + 100).chain(begin + 300..begin + 360) {
        let header = Header { kind: Kind::Sample as u8, nanos, tgid: 1, tid: 5, ..Header::default() };
        let sample = Sample { header, period: 1, ..Sample::default() };
        let (user, kernel, interpreted) = (vec![1], Vec::new(), Interpreted::default());
        host.engine.record(&Record::Sample { sample, user, kernel, interpreted }, &mut host.out);
    }
    host.works(5, 200).sends(5, 1, OK).reads(5, 1, GET).works(5, 200).sends(5, 1, OK);
    let found: Vec<usize> = host.finish().iter().map(|(live, _)| live.rare.samples.len()).collect();
    assert_eq!(found, [100, 60]);
}

#[test]
fn the_end_of_one_wait_is_not_that_of_the_next() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET);
    let begin = host.nanos;
    let (user, interpreted) = (vec![7], Interpreted::default());
    let mut wait = |left: u64, ended: Option<u64>| {
        if let Some(left) = ended {
            let header = Header { kind: Kind::WaitEnd as u8, nanos: left + 20, tgid: 1, tid: 6, ..Header::default() };
            let end = WaitEnd { header, left, wakee: 5, wakee_tgid: 1, user: 1, ..WaitEnd::default() };
            let (user, interpreted) = (user.clone(), interpreted.clone());
            host.engine.record(&Record::WaitEnd { end, user, interpreted }, &mut host.out);
        }
        let header = Header { kind: Kind::OffCpu as u8, nanos: left + 25, tgid: 1, tid: 5, ..Header::default() };
        let futex = if cfg!(target_arch = "aarch64") { 98 } else { 202 };
        let wait = OffCpu { header, blocked: 20, run_queue: 5, syscall: futex, ..OffCpu::default() };
        let (user, interpreted) = (Vec::new(), interpreted.clone());
        host.engine.record(&Record::OffCpu { wait, user, interpreted }, &mut host.out);
    };
    // The second one's end was not seen, and what is known of the third is of one before it.
    wait(begin, Some(begin));
    wait(begin + 30, None);
    wait(begin + 60, Some(begin + 29));
    host.works(5, 100).sends(5, 1, OK);
    let spans = host.finish();
    let of = |sample: &StackSample| (sample.off_cpu.clone(), sample.waker.as_ref().map(|waker| waker.user.clone()));
    let [blocked, queued] = [Reason::Futex, Reason::RunQueue].map(|reason| Some(Wait::of(reason)));
    let found: Vec<_> = spans[0].0.rare.samples.iter().map(of).collect();
    let of = |wait: &Option<Wait>, waker: Option<Vec<u64>>| (wait.clone(), waker);
    let ended = [Some(vec![7]), None, None];
    let expected: Vec<_> = ended.into_iter().flat_map(|waker| [of(&blocked, waker), of(&queued, None)]).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_long_request_of_an_event_loop_keeps_the_samples_of_its_beginning() {
    let mut host = Host::new(Limits::default());
    // It holds two requests at once: from here on only its operations show which one it works for.
    host.opens(1, (0, 0)).opens(2, (0, 0)).reads(5, 1, GET).reads(5, 2, GET).sends(5, 1, OK).sends(5, 2, OK);
    host.reads(5, 1, GET);
    let begin = host.nanos;
    for nanos in begin..begin + 500 {
        host.engine.catch_up(nanos);
        let header = Header { kind: Kind::Sample as u8, nanos, tgid: 1, tid: 5, ..Header::default() };
        let sample = Sample { header, period: 1, ..Sample::default() };
        let (user, kernel, interpreted) = (vec![1], Vec::new(), Interpreted::default());
        host.engine.record(&Record::Sample { sample, user, kernel, interpreted }, &mut host.out);
    }
    host.works(5, 500).sends(5, 1, OK);
    let found: Vec<usize> = host.finish().iter().map(|(live, _)| live.rare.samples.len()).collect();
    assert_eq!(found, [0, 0, 500]);
}

#[test]
fn what_is_too_much_is_reported_early_and_once() {
    let limits = Limits { spans: 4, connections: 6, threads: 3, ..Limits::default() };
    let mut host = Host::new(limits);
    for cookie in 1..=40 {
        let tid = 50 + cookie as u32 % 5;
        host.opens(cookie, (0, 0)).reads(tid, cookie, GET);
        let table_use = host.engine.table_use();
        for fill in [table_use.spans, table_use.connections, table_use.threads] {
            assert!(fill.entries <= fill.limit && fill.limit <= 6, "{table_use:?}");
        }
    }
    let begun = host.out.iter().filter(|output| matches!(output, Output::Begun(_))).count();
    assert_eq!((begun, host.finish().len()), (40, 40));
    let counters = host.engine.world.counters;
    assert!(counters.spans_evicted > 0 && counters.connections_evicted > 0 && counters.threads_refused > 0);
}

#[test]
fn connections_idle_longest_go_first_and_are_counted() {
    let mut host = Host::new(Limits { connections: 1000, ..Limits::default() });
    let ask = |host: &mut Host, cookie| {
        host.reads(50, cookie, GET).sends(50, cookie, OK);
    };
    for cookie in 1..=1000 {
        host.opens(cookie, (0, 0));
        ask(&mut host, cookie);
    }
    assert_eq!(host.engine.world.counters.connections_evicted, 0);
    // Every third connection stays active while twice as many new ones arrive as there is room for.
    for (round, cookie) in (1001..=3000).enumerate() {
        if round % 100 == 0 {
            (1..=1000).step_by(3).for_each(|busy| ask(&mut host, busy));
        }
        host.opens(cookie, (0, 0));
        ask(&mut host, cookie);
        assert!(host.engine.table_use().connections.entries <= 1000);
        assert_eq!(host.engine.table_use().connections.reached, host.engine.world.counters.connections_evicted);
    }
    let known = |cookie| host.engine.world.connections.contains_key(&cookie);
    assert_eq!((1..=1000).step_by(3).filter(|busy| known(*busy)).count(), 334, "those that speak stay");
    assert_eq!((2..=1000).filter(|idle| idle % 3 != 1 && known(*idle)).count(), 0, "those that do not go first");
    assert_eq!((2335..=3000).filter(|new| known(*new)).count(), 666, "and then those that came first");
    assert_eq!(host.engine.world.counters.connections_evicted, 2000);
}

#[test]
fn unfinished_heads_are_given_up_oldest_first_when_they_are_too_long_together() {
    let limits = Limits { head_bytes: 40 * 1024, ..Limits::default() };
    let mut host = Host::new(limits);
    let begin = "GET /slow HTTP/1.1\r\nX-Filler: ";
    for cookie in 1..=30 {
        host.opens(cookie, (0, 0)).reads(50, cookie, format!("{begin}{}", "x".repeat(4000)));
    }
    host.engine.expire(false, &mut host.out);
    let fill = host.engine.table_use().head_bytes;
    assert!(fill.entries <= fill.limit && fill.entries > 30 * 1024 && fill.reached > 15, "{fill:?}");
    assert!(host.engine.world.counters.gap_bytes >= fill.reached * 4000, "counted");
    // The youngest head is complete once its rest arrives.
    host.reads(50, 30, "\r\n\r\n").sends(50, 30, OK);
    // The oldest is not, and its reply is unpaired.
    host.reads(50, 1, "\r\n\r\n").sends(50, 1, OK);
    assert_eq!(host.engine.world.counters.unpaired, 1);
    let complete: Vec<u64> = host
        .finish()
        .iter()
        .filter(|(live, _)| live.outcome == Some(Outcome::Complete))
        .map(|(live, _)| live.cookie)
        .collect();
    assert_eq!(complete, [30]);
}

#[test]
fn connections_that_only_were_announced_are_forgotten_soon() {
    let mut host = Host::new(Limits::default());
    host.state(1, tcp_state::SYN_SENT).state(2, tcp_state::SYN_SENT).opens(2, (0, 0)).opens(3, (0, 0));
    let begun = host.engine.world.now;
    for (seconds, kept) in [(5, 3), (12, 2), (200, 2), (400, 0)] {
        host.engine.world.now = begun + seconds * 1_000_000_000;
        host.engine.expire(false, &mut host.out);
        assert_eq!(host.engine.table_use().connections.entries, kept, "after {seconds} s");
    }
}

#[test]
fn closed_connections_and_processes_are_bounded_too() {
    let limits = Limits { connections: 6, processes: 8, ..Limits::default() };
    let mut host = Host::new(limits);
    for cookie in 1..=40 {
        host.engine.process(100 + cookie as u32, ServiceId(1));
        host.opens(cookie, (0, 0)).reads(50, cookie, GET).sends(50, cookie, OK).state(cookie, tcp_state::CLOSE);
        let table_use = host.engine.table_use();
        for fill in [table_use.closing, table_use.processes] {
            assert!(fill.entries <= fill.limit, "{table_use:?}");
        }
    }
    let counters = host.engine.world.counters;
    assert!(counters.processes_forgotten > 0);
    assert_eq!(host.finish().len(), 40);
}

#[test]
fn costs_go_to_the_class_once() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 100);
    let Some(Output::Begun(slot)) = host.out.first() else { panic!("nothing begun") };
    host.engine.classify(*slot, ClassId(3), None);
    host.sends(5, 1, OK);
    let (classes, _) = host.engine.take_costs();
    assert_eq!(classes.iter().map(|(class, cost)| (*class, cost.cpu)).collect::<Vec<_>>(), [(3, 100)]);
    // Reported in the meantime: further costs still go to the class.
    let spans = host.finish();
    host.engine.settle(&spans[0].0, ClassId(3));
    assert!(host.engine.take_costs().0.is_empty());
}

/// Counterexamples found by the properties over simulated hosts (`simulation_tests.rs`).
mod found {
    use super::*;

    fn calls(spans: &[(Box<OpenSpan>, Verdicts)]) -> Vec<(Option<tracer_model::SpanId>, Grade)> {
        let calls = spans.iter().filter(|(live, _)| live.request.path.starts_with("/down"));
        calls.map(|(_, verdicts)| (verdicts.parent, verdicts.grade)).collect()
    }

    const DOWN: &str = "GET /down HTTP/1.1\r\n\r\n";

    #[test]
    fn a_thread_that_lost_an_answer_and_a_request_is_not_held_by_the_old_one() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (0, 0)).reads(5, 1, GET);
        host.recorded(0, |host| {
            host.sends(5, 1, OK).waits(5, false).reads(5, 2, GET);
        });
        // For the request on 2, whose record was lost.
        host.sends(5, 3, DOWN).waits(5, false).reads(5, 3, OK).sends(5, 2, OK);
        assert_ne!(calls(&host.finish())[0].1, Grade::Certain);
        assert!(host.engine.world.counters.threads_doubted > 0);
    }

    #[test]
    fn the_next_request_of_a_connection_whose_answer_was_lost_is_not_the_last_one() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).opens(3, (0, 0)).reads(5, 1, GET);
        host.recorded(0, |host| {
            host.sends(5, 1, OK).waits(5, false);
        });
        host.reads(5, 1, "GET /b HTTP/1.1\r\n\r\n").sends(5, 3, DOWN).waits(5, false).reads(5, 3, OK).sends(5, 1, OK);
        let spans = host.finish();
        let first = spans.iter().find(|(live, _)| &*live.request.path == "/a").expect("the first").0.id;
        let (parent, grade) = calls(&spans)[0];
        assert!(parent != Some(first) || grade == Grade::Ambiguous, "{grade:?}");
    }

    #[test]
    fn an_answer_after_a_gap_confirms_no_call() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(5, 1, GET);
        host.recorded(0, |host| {
            host.sends(5, 1, OK).waits(5, false).reads(5, 1, GET);
        });
        // Made for the second request, whose record was lost; its answer looks like the first one's.
        host.opens(3, (0, 0)).sends(5, 3, DOWN).waits(5, false).reads(5, 3, OK).sends(5, 1, OK);
        assert!(!matches!(calls(&host.finish())[0].1, Grade::Certain | Grade::Confirmed));
    }

    #[test]
    fn a_record_that_comes_twice_is_read_once() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).recorded(2, |host| {
            host.reads(5, 1, GET).works(5, 100).sends(5, 1, OK);
        });
        let spans = host.finish();
        assert_eq!(spans.len(), 1);
        assert_eq!((spans[0].0.outcome, spans[0].0.cost.cpu), (Some(Outcome::Complete), 100));
    }

    #[test]
    fn work_after_the_client_has_gone_belongs_to_no_other_request() {
        let mut host = Host::new(Limits::default());
        // A loop that has not yet shown that it is one.
        host.opens(1, (0, 0)).opens(2, (0, 0)).opens(3, (0, 0)).reads(9, 1, GET).waits(9, true);
        host.state(1, tcp_state::CLOSE);
        host.nanos += 100_000_000;
        host.reads(9, 2, "GET /b HTTP/1.1\r\n\r\n").waits(9, true);
        // For the first request, whose client has gone.
        host.sends(9, 3, DOWN).waits(9, true).reads(9, 3, OK).waits(9, true).sends(9, 2, OK);
        assert_ne!(calls(&host.finish())[0].1, Grade::Certain);
    }

    #[test]
    fn a_connection_met_again_has_other_ids() {
        let mut host = Host::new(Limits { connections: 1, ..Limits::default() });
        host.opens(1, (0, 0)).reads(5, 1, GET).sends(5, 1, OK);
        // Evicted, then seen again.
        host.opens(2, (0, 0)).reads(5, 2, GET).sends(5, 2, OK).reads(5, 1, GET).sends(5, 1, OK);
        let spans = host.finish();
        let ids: std::collections::HashSet<_> = spans.iter().map(|(live, _)| live.id).collect();
        assert_eq!((spans.len(), ids.len()), (3, 3));
    }

    #[test]
    fn a_connection_that_closes_again_and_again_waits_once() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(5, 1, GET);
        for _ in 0..1000 {
            host.state(1, tcp_state::CLOSE);
        }
        assert_eq!(host.engine.queued(), 1);
    }

    #[test]
    fn a_thread_that_ended_twice_is_charged_once() {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).reads(5, 1, GET).works(5, 10).sends(5, 1, OK).works(5, 40).ends(5).ends(5);
        assert_eq!(host.finish()[0].0.cost.cpu + host.overhead(), 50);
    }

    #[test]
    fn processes_without_end_are_forgotten_and_counted() {
        let mut host = Host::new(Limits { processes: 8, ..Limits::default() });
        for tgid in 10..100 {
            host.engine.process(tgid, ServiceId(1));
            host.moves(tgid, tgid, u64::from(tgid), false, 0, GET);
        }
        assert!(host.engine.world.counters.processes_forgotten > 0);
        assert!((10..100).filter(|tgid| host.engine.knows(*tgid)).count() <= 8);
        // It is no longer known whether this process serves requests: the call does not certainly begin a transaction.
        host.moves(99, 99, 1, true, 0, DOWN);
        assert_ne!(calls(&host.finish())[0], (None, Grade::Certain));
    }
}

mod allocations;
mod child_processes;
mod contexts;
mod event_loop;
mod forwarding;
mod goroutines;
mod inband_context;
mod jobs;
mod roots;
mod spawned;
mod streams;
mod thread_affinity;
mod thread_pool;
mod trace_ids;

mod exceptions;
mod log_lines;
mod messages;
mod network;
mod process_ends;
mod running;
mod workers;

/// An agent holds a hundred thousand of them: every added byte counts for each.
#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection>() <= 144, "{}", size_of::<Connection>());
}
