//! Work that threads do for each other: a worker makes a call, and a thread that holds a request waits for its result.

use tracer_common::event::{WAKE_RESULT, Wake};
use tracer_model::Side;

use super::*;

const FIRST: u32 = 5;
const SECOND: u32 = 6;
const WORKER: u32 = 7;
/// Long before and long after everything else.
const EARLY: Nanos = 1;
const LATE: Nanos = 1_000_000_000;

impl Host {
    /// Thread `tid` wakes `wakee`, which slept since `slept_at`; `given`: when and by which thread `tid` was last given
    /// work.
    fn wakes(&mut self, tid: u32, wakee: u32, slept_at: Nanos, given: (Nanos, u32)) -> &mut Self {
        self.wakes_at(u64::from(wakee), tid, wakee, slept_at, given)
    }

    /// The same at futex `address`.
    fn wakes_at(&mut self, address: u64, tid: u32, wakee: u32, slept_at: Nanos, given: (Nanos, u32)) -> &mut Self {
        let nth = self.numbers.entry(tid).or_default();
        *nth += 1;
        let nth = *nth;
        self.nanos += 10;
        let kind = Kind::Wake as u8;
        let header = Header { kind, flags: WAKE_RESULT, nanos: self.nanos, tgid: 1, tid, ..Header::default() };
        let (given_at, given_by) = given;
        let counters = self.counters.get(&tid).copied().unwrap_or_default();
        let wake = Wake { header, wakee, nth, address, slept_at, given_at, given_by, counters, ..Wake::default() };
        for _ in 0..self.times {
            self.engine.record(&Record::Wake(wake), &mut self.out);
        }
        self
    }

    /// The worker makes call `path` on a connection of its own and reads the reply.
    fn calls(&mut self, path: &str) -> &mut Self {
        self.works(WORKER, 100).sends(WORKER, 70, format!("GET {path} HTTP/1.1\r\n\r\n"));
        self.waits(WORKER, false).reads(WORKER, 70, OK).works(WORKER, 30)
    }

    /// Two threads read a request each.
    fn two(&mut self) -> &mut Self {
        self.opens(1, (0, 0)).opens(2, (0, 0)).opens(70, (0, 0));
        self.reads(FIRST, 1, "GET /1 HTTP/1.1\r\n\r\n").reads(SECOND, 2, "GET /2 HTTP/1.1\r\n\r\n")
    }

    /// Both threads answer.
    fn both_answer(&mut self) -> &mut Self {
        self.works(FIRST, 1).sends(FIRST, 1, OK).works(SECOND, 1).sends(SECOND, 2, OK)
    }

    /// Final grade and parent path of the call `path`.
    fn verdict(&mut self, path: &str) -> (Grade, Option<String>) {
        let spans = self.finish();
        let (_, verdicts) = spans.iter().find(|(live, _)| &*live.request.path == path).expect("the call");
        let parent = spans.iter().find(|(live, _)| Some(live.id) == verdicts.parent);
        (verdicts.grade, parent.map(|(live, _)| live.request.path.to_string()))
    }
}

fn host() -> Host {
    let mut host = Host::new(Limits::default());
    host.two();
    host
}

fn sure(path: &str) -> (Grade, Option<String>) {
    (Grade::Confirmed, Some(path.into()))
}

#[test]
fn a_call_belongs_to_who_waited_for_its_result() {
    let mut host = host();
    host.calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).both_answer();
    assert_eq!(host.verdict("/c"), sure("/2"));
}

#[test]
fn what_a_worker_used_is_charged_to_whom_it_worked_for() {
    let mut host = host();
    host.waits(WORKER, false).works(WORKER, 0);
    host.calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).both_answer().works(WORKER, 5).ends(WORKER);
    let spans = host.finish();
    let cost = |path: &str, side| {
        let found = spans.iter().find(|(live, _)| &*live.request.path == path && live.side == side);
        found.map(|(live, _)| (live.cost.cpu, live.server.calls.len()))
    };
    assert_eq!(cost("/c", Side::Client), Some((0, 0)));
    // Its own nanosecond, and the worker's 100 before the call and 30 after it; the 5 after the hand-back are overhead.
    assert_eq!(cost("/2", Side::Server), Some((1 + 100 + 30, 1)));
    assert_eq!(cost("/1", Side::Server), Some((1, 0)));
    assert_eq!(host.overhead(), 5);
}

#[test]
fn a_job_without_a_call_is_charged_to_who_gave_it_and_waited() {
    for (given_by, wanted) in [(FIRST, 70), (SECOND, 0)] {
        let mut host = host();
        host.waits(WORKER, false).calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).waits(WORKER, false);
        let given = host.nanos;
        host.works(WORKER, 70).wakes(WORKER, FIRST, given + 1, (given, given_by)).works(WORKER, 3);
        host.both_answer().ends(WORKER);
        let spans = host.finish();
        let found = spans.iter().find(|(live, _)| &*live.request.path == "/1" && live.side == Side::Server);
        assert_eq!(found.map(|(live, _)| live.cost.cpu), Some(1 + wanted), "given by {given_by}");
        assert_eq!(host.overhead(), 73 - wanted);
    }
}

#[test]
fn a_job_without_a_waiter_is_an_orphan() {
    let mut host = host();
    host.calls("/c").both_answer().ends(WORKER);
    assert_eq!(host.verdict("/c"), (Grade::Orphan, None));
    assert_eq!(host.overhead(), 130);
}

#[test]
fn two_that_waited_are_ambiguous_but_not_one_that_came_later() {
    let mut both = host();
    both.calls("/c").wakes(WORKER, FIRST, EARLY, (0, 0)).wakes(WORKER, SECOND, EARLY, (0, 0)).both_answer();
    assert_eq!(both.verdict("/c").0, Grade::Ambiguous);
    for lock_first in [true, false] {
        let mut host = host();
        host.calls("/c");
        for locked in [lock_first, !lock_first] {
            let (who, slept) = if locked { (FIRST, LATE) } else { (SECOND, EARLY) };
            host.wakes(WORKER, who, slept, (0, 0));
        }
        host.both_answer();
        assert_eq!(host.verdict("/c"), sure("/2"), "{lock_first}");
    }
    let mut host = host();
    host.calls("/c").wakes(WORKER, FIRST, LATE, (0, 0)).both_answer();
    assert_eq!(host.verdict("/c").0, Grade::Ambiguous, "perhaps only a lock");
}

#[test]
fn who_gave_the_work_and_waited_is_sure_even_when_it_fell_asleep_late() {
    let mut host = host();
    let given = (host.nanos, SECOND);
    host.calls("/c").wakes(WORKER, SECOND, LATE, given).both_answer();
    assert_eq!(host.verdict("/c"), sure("/2"));
}

#[test]
fn a_request_that_another_thread_answers_confirms_no_call() {
    let mut host = host();
    host.calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).sends(FIRST, 1, OK).sends(8, 2, OK);
    assert_eq!(host.verdict("/c").0, Grade::Ambiguous);
}

#[test]
fn a_request_that_was_read_after_the_call_did_not_cause_it() {
    let mut host = Host::new(Limits::default());
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(70, (0, 0)).reads(FIRST, 1, GET).calls("/c");
    host.reads(SECOND, 2, "GET /2 HTTP/1.1\r\n\r\n").wakes(WORKER, SECOND, EARLY, (0, 0)).both_answer();
    assert_eq!(host.verdict("/c"), (Grade::Orphan, None));
}

#[test]
fn of_several_calls_the_last_is_sure_and_the_others_where_both_sides_say_so() {
    for (paired, first) in [(false, Grade::Ambiguous), (true, Grade::Confirmed)] {
        let mut host = host();
        let given = if paired { (host.nanos, SECOND) } else { (0, 0) };
        host.calls("/c").calls("/d").wakes(WORKER, SECOND, EARLY, given).both_answer();
        let spans = host.finish();
        let grade = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).map(|(_, v)| v.grade);
        assert_eq!((grade("/c"), grade("/d")), (Some(first), Some(Grade::Confirmed)));
    }
}

#[test]
fn the_worker_that_answers_made_its_call_for_that() {
    let mut host = host();
    host.calls("/c").sends(WORKER, 2, OK).sends(FIRST, 1, OK);
    assert_eq!(host.verdict("/c"), sure("/2"));
}

#[test]
fn whom_a_worker_wakes_between_two_calls_for_its_own_answer_did_not_cause_the_first() {
    let mut host = host();
    host.calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).calls("/d").sends(WORKER, 1, OK).sends(SECOND, 2, OK);
    let spans = host.finish();
    let grade = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).map(|(_, v)| v.grade);
    assert_eq!((grade("/c"), grade("/d")), (Some(Grade::Ambiguous), Some(Grade::Confirmed)));
}

#[test]
fn work_that_was_given_later_ends_what_was_before() {
    let mut host = host();
    host.calls("/c");
    let given = (host.nanos, SECOND);
    host.calls("/d").wakes(WORKER, SECOND, EARLY, given).both_answer();
    let spans = host.finish();
    let grade = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).map(|(_, v)| v.grade);
    assert_eq!((grade("/c"), grade("/d")), (Some(Grade::Orphan), Some(Grade::Confirmed)));
}

#[test]
fn where_jobs_differ_one_side_is_not_enough() {
    let mut host = host();
    // A fire-and-forget job with a call, and an awaited job without one.
    host.calls("/c");
    let given = (host.nanos, SECOND);
    host.wakes(WORKER, SECOND, LATE, given).calls("/d").wakes(WORKER, FIRST, EARLY, given).both_answer();
    assert_eq!(host.verdict("/d").0, Grade::Ambiguous);
}

#[test]
fn a_lost_wake_up_confirms_no_call() {
    let mut host = host();
    host.calls("/c").recorded(0, |host| {
        host.wakes(WORKER, SECOND, EARLY, (0, 0));
    });
    host.wakes(WORKER, FIRST, EARLY, (0, 0)).both_answer();
    assert_ne!(host.verdict("/c").0, Grade::Confirmed);
}

#[test]
fn a_call_and_who_may_have_caused_it_wait_for_each_other() {
    let mut host = host();
    host.calls("/c").wakes(WORKER, SECOND, EARLY, (0, 0)).both_answer();
    let reported = |host: &mut Host, after: Nanos| {
        let mut out = Vec::new();
        host.engine.report(host.nanos + after, &mut out);
        out.iter().filter(|output| matches!(output, Output::Finished(..))).count()
    };
    assert_eq!(reported(&mut host, 900_000_000), 1, "only the request without candidate calls");
    assert_eq!(reported(&mut host, 1_600_000_000), 2);
}

#[test]
fn a_job_waited_until_its_thread_had_done_the_one_before_or_was_woken_for_it() {
    // Waits of the worker between the two jobs, and whether the requester ended the last of them.
    for (waits, gives, certain) in [(0, false, true), (1, true, true), (1, false, false), (2, true, false)] {
        let mut host = host();
        host.calls("/c").wakes(WORKER, FIRST, EARLY, (0, 0));
        let mut begins = host.nanos;
        let slept_at = begins - 100;
        let mut given = (0, 0);
        for _ in 0..waits {
            given = if gives { (host.nanos + 500, SECOND) } else { (0, 0) };
            host.waits(WORKER, false);
            begins = host.nanos;
        }
        host.calls("/d").wakes(WORKER, SECOND, slept_at, given).both_answer();
        let spans = host.finish();
        let found = |path: &str| spans.iter().find(|(live, _)| &*live.request.path == path).map(|(live, _)| live);
        let pool_queue = found("/2").and_then(|live| live.server.pool_queue.sum());
        assert_eq!(pool_queue, certain.then_some(begins - slept_at), "{waits} waits, given {gives}");
        assert_eq!(found("/1").and_then(|live| live.server.pool_queue.sum()), None, "what was before it is not known");
    }
}

#[test]
fn who_waits_where_others_wait_at_the_same_time_is_handed_nothing() {
    let mut host = host();
    host.two().calls("/b");
    let slept_at = host.nanos - 1;
    // It seems to take the result; but then another thread is woken there that slept there as well.
    host.wakes_at(9, WORKER, FIRST, 1, (0, 0)).calls("/c").wakes_at(9, WORKER, SECOND, slept_at, (0, 0)).both_answer();
    let (grade, _) = host.verdict("/b");
    assert!(!matches!(grade, Grade::Certain | Grade::Confirmed), "{grade:?}");
}

#[test]
fn of_two_that_waited_the_first_took_the_result_where_the_other_was_woken_again() {
    // The other thread waits for its own result and gets it; or it answers at once, which leaves the result ambiguous.
    for (again, expected) in [(true, Grade::Confirmed), (false, Grade::Ambiguous)] {
        let mut host = host();
        host.calls("/c").wakes(WORKER, FIRST, EARLY, (0, 0)).wakes(WORKER, SECOND, EARLY, (0, 0));
        host.sends(FIRST, 1, OK);
        if again {
            // Woken by another worker, which has made a call.
            host.opens(71, (0, 0)).sends(8, 71, "GET /d HTTP/1.1\r\n\r\n").reads(8, 71, OK);
            host.wakes(8, SECOND, EARLY, (0, 0));
        }
        host.sends(SECOND, 2, OK);
        let (grade, path) = host.verdict("/c");
        assert_eq!((grade, path.as_deref()), (expected, again.then_some("/1")), "{again}");
    }
    // The thread woken first goes on with something else, so it was woken for that.
    let mut host = host();
    host.calls("/c").wakes(WORKER, FIRST, EARLY, (0, 0)).wakes(WORKER, SECOND, EARLY, (0, 0)).sends(SECOND, 2, OK);
    host.opens(72, (0, 0)).sends(FIRST, 72, "GET /e HTTP/1.1\r\n\r\n").reads(FIRST, 72, OK).sends(FIRST, 1, OK);
    assert_eq!(host.verdict("/c").0, Grade::Ambiguous);
}

#[test]
fn threads_that_only_read_requests_do_not_share_them_with_those_that_answer() {
    // One thread reads all requests; each of two others makes a call and answers.
    for replied in [true, false] {
        let mut host = Host::new(Limits::default());
        let workers = [(WORKER, 70), (8, 71)];
        for (_, socket) in workers {
            host.opens(socket, (0, 0));
        }
        for round in 0..10 {
            let [one, two] = [100 + 2 * round, 101 + 2 * round];
            host.opens(one, (0, 0)).opens(two, (0, 0));
            host.reads(FIRST, one, format!("GET /{one} HTTP/1.1\r\n\r\n"));
            host.reads(FIRST, two, format!("GET /{two} HTTP/1.1\r\n\r\n"));
            for ((worker, socket), request) in workers.iter().zip([one, two]) {
                host.sends(*worker, *socket, format!("GET /c{request} HTTP/1.1\r\n\r\n"));
                if replied {
                    host.reads(*worker, *socket, OK);
                }
                host.sends(*worker, request, OK);
                if !replied {
                    // The reply comes only after the answer: the worker answered for another call.
                    host.reads(*worker, *socket, OK);
                }
            }
        }
        let expected = if replied { sure("/101") } else { (Grade::Ambiguous, None) };
        assert_eq!(host.verdict("/c101"), expected, "replied: {replied}");
    }
}
