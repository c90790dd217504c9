//! Processes that requests fork, scripted: which of their calls belong to the request.

use tracer_common::event::{ENTITY_BITS, Exec, Fork};
use tracer_common::runtime::KIND_GO;

use super::*;

/// A child, and a child of it.
const CHILD: u32 = 2;
const GRANDCHILD: u32 = 3;
const CALL: &str = "GET /b HTTP/1.1\r\n\r\n";

impl Host {
    fn of(&self, kind: Kind, tgid: u32, tid: u32) -> Header {
        Header { kind: kind as u8, nanos: self.nanos, tgid, tid, ..Header::default() }
    }

    fn forks(&mut self, (tgid, tid): (u32, u32), child: u32) -> &mut Self {
        let header = self.of(Kind::Fork, tgid, tid);
        let (entity, edge_seq) = (self.entity, self.edge_seq);
        let fork = Fork { header, child_tgid: child, child_tid: child, entity, edge_seq, ..Fork::default() };
        self.engine.record(&Record::Fork(fork), &mut self.out);
        self.nanos += 10;
        self
    }

    fn executes(&mut self, tgid: u32) -> &mut Self {
        let header = self.of(Kind::Exec, tgid, tgid);
        self.engine.forget_process(tgid);
        self.engine.process(tgid, ServiceId(tgid));
        self.engine.record(&Record::Exec(Exec { header, ..Exec::default() }), &mut self.out);
        self.nanos += 10;
        self
    }

    /// A process makes a call and reads the answer.
    fn calls_by(&mut self, tgid: u32, cookie: u64) -> &mut Self {
        self.moves(tgid, tgid, cookie, true, 0, CALL).moves(tgid, tgid, cookie, false, 0, OK)
    }

    fn exits(&mut self, tgid: u32) -> &mut Self {
        let header = Header { flags: THREAD_STATS_DEAD, ..self.of(Kind::ThreadStats, tgid, tgid) };
        let counters = *self.counters.entry(tgid).or_default();
        let stats = ThreadStats { header, counters, ..ThreadStats::default() };
        self.engine.record(&Record::ThreadStats(stats), &mut self.out);
        self.nanos += 10;
        self
    }

    /// Time passes, and what is due is reported.
    fn passes(&mut self, nanos: Nanos) -> &mut Self {
        for _ in 0..nanos / 10_000_000 {
            self.nanos += 10_000_000;
            self.engine.world.now = self.nanos;
            self.engine.report(self.nanos, &mut self.out);
        }
        self
    }

    /// Grade and evidence of every call, and the cookie of its parent's connection.
    fn judged(&mut self) -> Vec<(u64, Grade, Option<u64>)> {
        let spans = self.finish();
        let of = |id| spans.iter().find(|(live, _)| Some(live.id) == id).map(|(live, _)| live.cookie);
        let calls = spans.iter().filter(|(live, _)| live.side == Side::Client);
        calls.map(|(live, verdicts)| (live.cookie, verdicts.grade, of(verdicts.parent))).collect()
    }
}

/// Thread 5 of process 1 has served a request before.
fn host() -> Host {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).reads(5, 1, GET).sends(5, 1, OK).waits(5, false);
    host
}

#[test]
fn a_process_that_ends_before_the_answer_worked_for_its_request() {
    for executes in [false, true] {
        let mut host = host();
        host.opens(1, (0, 0)).reads(5, 1, GET).forks((1, 5), CHILD);
        if executes {
            host.executes(CHILD);
        }
        host.calls_by(CHILD, 10).exits(CHILD).passes(50_000_000).sends(5, 1, OK);
        let spans = host.finish();
        let call = spans.iter().find(|(live, _)| live.cookie == 10).unwrap();
        let request = spans.iter().rfind(|(live, _)| live.cookie == 1).unwrap();
        assert_eq!((call.1.grade, call.1.parent), (Grade::Certain, Some(request.0.id)), "{}", call.1.reason.text());
        assert_eq!(call.1.trace, request.1.trace);
    }
}

#[test]
fn children_of_children_belong_to_the_request() {
    let mut host = host();
    // sh -c 'curl ...'
    host.reads(5, 1, GET).forks((1, 5), CHILD).executes(CHILD).forks((CHILD, CHILD), GRANDCHILD).executes(GRANDCHILD);
    host.calls_by(GRANDCHILD, 10).exits(GRANDCHILD).exits(CHILD).sends(5, 1, OK);
    assert_eq!(host.judged(), [(10, Grade::Certain, Some(1))]);
}

#[test]
fn a_process_that_ends_soon_after_the_answer_worked_for_its_request() {
    let mut host = host();
    host.reads(5, 1, GET).forks((1, 5), CHILD).executes(CHILD).sends(5, 1, OK);
    // The request was reported before the call is made.
    host.passes(200_000_000).calls_by(CHILD, 10).passes(300_000_000).exits(CHILD).passes(300_000_000);
    assert_eq!(host.judged(), [(10, Grade::Confirmed, Some(1))]);
}

#[test]
fn a_pools_worker_belongs_to_no_request() {
    let mut host = host();
    // The request forks a worker, which works for others afterwards, or at once.
    host.reads(5, 1, GET).forks((1, 5), CHILD).calls_by(CHILD, 10).sends(5, 1, OK);
    host.passes(3_000_000_000).calls_by(CHILD, 11).passes(3_000_000_000).exits(CHILD);
    assert_eq!(host.judged(), [(10, Grade::Ambiguous, None), (11, Grade::Orphan, None)]);
}

#[test]
fn a_program_that_lives_long_is_a_service_of_its_own() {
    let mut host = host();
    host.reads(5, 1, GET).forks((1, 5), CHILD).executes(CHILD).sends(5, 1, OK);
    host.passes(3_000_000_000).calls_by(CHILD, 10);
    host.nanos += 61_000_000_000;
    host.calls_by(CHILD, 11);
    assert_eq!(host.judged(), [(10, Grade::Orphan, None), (11, Grade::Certain, None)]);
}

#[test]
fn a_child_that_serves_requests_has_its_own() {
    let mut host = host();
    // A worker that the request forked reads a request.
    host.reads(5, 1, GET).forks((1, 5), CHILD).moves(CHILD, CHILD, 2, false, 0, GET).calls_by(CHILD, 10);
    host.moves(CHILD, CHILD, 2, true, 0, OK).exits(CHILD).sends(5, 1, OK);
    assert_eq!(host.judged(), [(10, Grade::Certain, Some(2))]);
    // It shows only afterwards that it does.
    let mut host = self::host();
    host.reads(5, 1, GET).forks((1, 5), CHILD).calls_by(CHILD, 10).moves(CHILD, CHILD, 2, false, 0, GET);
    host.moves(CHILD, CHILD, 2, true, 0, OK).exits(CHILD).sends(5, 1, OK);
    assert_eq!(host.judged(), [(10, Grade::Ambiguous, None)]);
}

#[test]
fn where_the_request_is_not_known_nothing_is_certain() {
    // A thread that holds none, one that holds two, and one whose request another thread answers.
    let mut none = host();
    none.forks((1, 5), CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD);
    assert_eq!(none.judged(), [(10, Grade::Orphan, None)]);
    let mut two = host();
    two.reads(5, 1, GET).reads(5, 2, GET).forks((1, 5), CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD);
    two.sends(5, 1, OK).sends(5, 2, OK);
    assert_eq!(two.judged(), [(10, Grade::Orphan, None)]);
    let mut other = host();
    other.reads(5, 1, GET).forks((1, 5), CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD).sends(6, 1, OK);
    assert_eq!(other.judged(), [(10, Grade::Ambiguous, None)]);
    // Records of the thread are lost: it may have read another request.
    let mut lost = host();
    lost.reads(5, 1, GET).recorded(0, |host| {
        host.sends(5, 1, OK).reads(5, 2, GET);
    });
    lost.forks((1, 5), CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD).sends(5, 2, OK);
    assert!(lost.judged().iter().all(|(_, grade, parent)| *grade != Grade::Certain && parent.is_none()));
}

#[test]
fn a_prefork_server_and_programs_of_no_server_begin_their_transactions() {
    let mut host = Host::new(Limits::default());
    // A shell runs a program.
    host.forks((1, 1), CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD);
    assert_eq!(host.judged(), [(10, Grade::Certain, None)]);
    // The parent serves nothing; its worker does.
    let mut host = Host::new(Limits::default());
    host.forks((1, 1), CHILD)
        .moves(CHILD, CHILD, 2, false, 0, GET)
        .calls_by(CHILD, 10)
        .moves(CHILD, CHILD, 2, true, 0, OK);
    assert_eq!(host.judged(), [(10, Grade::Certain, Some(2))]);
}

#[test]
fn ended_processes_are_forgotten() {
    let mut host = host();
    host.reads(5, 1, GET).forks((1, 5), CHILD).exits(CHILD).sends(5, 1, OK);
    assert_eq!(host.engine.table_use().child_processes.entries, 1);
    host.engine.world.now += 20_000_000_000;
    host.engine.expire(false, &mut host.out);
    assert_eq!(host.engine.table_use().child_processes.entries, 0);
}

/// The goroutine with this number.
fn goroutine(number: u64) -> u64 {
    u64::from(KIND_GO) << ENTITY_BITS | number
}

#[test]
fn a_child_of_a_task_belongs_to_the_request_that_the_task_answers() {
    // The goroutine that forks, the one that answers, and whether the child ends before that.
    for (forks, answers, ends, expected) in [
        (7, 7, true, (Grade::Confirmed, Some(1))),
        (7, 7, false, (Grade::Ambiguous, None)),
        (8, 7, true, (Grade::Orphan, None)),
    ] {
        let mut host = Host::new(Limits::default());
        host.opens(1, (0, 0)).entity = goroutine(7);
        host.reads(5, 1, GET).entity = goroutine(forks);
        // Goroutines go on with any thread.
        host.forks((1, 6), CHILD).executes(CHILD).entity = 0;
        host.calls_by(CHILD, 10);
        if ends {
            host.exits(CHILD);
        }
        host.passes(50_000_000).entity = goroutine(answers);
        host.sends(6, 1, OK).passes(3_000_000_000);
        let (grade, parent) = expected;
        assert_eq!(host.judged(), [(10, grade, parent)], "{forks} {answers} {ends}");
    }
}

#[test]
fn children_forked_before_tracing_began_begin_no_transactions() {
    let mut host = host();
    host.engine.was_forked(CHILD, 1);
    host.calls_by(CHILD, 10);
    assert_eq!(host.judged(), [(10, Grade::Orphan, None)]);
}

/// A command of Redis with one argument.
fn command(name: &str) -> String {
    format!("*2\r\n${}\r\n{name}\r\n$1\r\nq\r\n", name.len())
}

#[test]
fn calls_of_a_job_and_of_its_child_belong_to_it() {
    let mut host = Host::new(Limits::default());
    // Before its first job a worker makes calls of its own.
    host.calls_by(CHILD, 10);
    host.moves(CHILD, CHILD, 11, true, 0, command("BRPOP")).moves(CHILD, CHILD, 11, false, 0, "*-1\r\n");
    host.moves(CHILD, CHILD, 11, true, 0, command("BRPOP"));
    host.moves(CHILD, CHILD, 11, false, 0, "*2\r\n$1\r\nq\r\n$3\r\njob\r\n").calls_by(CHILD, 12);
    // A process forked for a job, as RQ has it; and the next wait, whose cause is the worker itself.
    host.forks((CHILD, CHILD), GRANDCHILD).calls_by(GRANDCHILD, 13).exits(GRANDCHILD);
    host.moves(CHILD, CHILD, 11, true, 0, command("BRPOP")).moves(CHILD, CHILD, 11, false, 0, "*-1\r\n");
    let parents = [(10, None), (11, None), (11, None), (12, Some(11)), (13, Some(11)), (11, None)];
    assert_eq!(host.judged(), parents.map(|(cookie, parent)| (cookie, Grade::Certain, parent)));
}

#[test]
fn calls_for_an_unknown_job_do_not_certainly_begin_a_transaction() {
    let mut host = Host::new(Limits::default());
    // What it takes from a sorted set is not read.
    host.calls_by(CHILD, 10).moves(CHILD, CHILD, 11, true, 0, command("BZPOPMIN"));
    host.moves(CHILD, CHILD, 11, false, 0, "*3\r\n$1\r\nq\r\n$3\r\njob\r\n$1\r\n0\r\n").calls_by(CHILD, 12);
    host.forks((CHILD, CHILD), GRANDCHILD).calls_by(GRANDCHILD, 13).exits(GRANDCHILD);
    let grades = [(10, Grade::Certain), (11, Grade::Certain), (12, Grade::Orphan), (13, Grade::Orphan)];
    assert_eq!(host.judged(), grades.map(|(cookie, grade)| (cookie, grade, None)));
}

#[test]
fn a_fork_proves_nothing_where_requests_move_between_threads() {
    let mut host = host();
    host.reads(5, 1, GET).forks((1, 5), CHILD).calls_by(CHILD, 7).exits(CHILD);
    host.engine.moves_requests(1);
    host.sends(5, 1, OK).passes(3_000_000_000);
    let judged = host.judged();
    assert!(matches!(judged.as_slice(), [(7, Grade::Ambiguous | Grade::Orphan, None)]), "{judged:?}");
}

#[test]
fn a_fork_for_another_threads_request_is_not_certain() {
    let mut host = host();
    // Thread 5 reads one request and thread 6 another; thread 5 goes on with the other one, and forks for it.
    host.reads(5, 1, GET).reads(6, 2, GET).forks((1, 5), CHILD).calls_by(CHILD, 10).exits(CHILD);
    host.passes(50_000_000).sends(5, 2, OK).sends(5, 1, OK).passes(3_000_000_000);
    let judged = host.judged();
    assert!(matches!(judged.as_slice(), [(10, Grade::Ambiguous | Grade::Orphan, None)]), "{judged:?}");
}

#[test]
fn a_thread_that_executes_ends_no_process() {
    let mut host = host();
    host.reads(5, 1, GET).forks((1, 5), CHILD);
    // The first thread ends before the one that executes takes its place.
    host.exits(CHILD).executes(CHILD).calls_by(CHILD, 10).exits(CHILD).passes(50_000_000).sends(5, 1, OK);
    assert_eq!(host.judged(), [(10, Grade::Certain, Some(1))]);
}
