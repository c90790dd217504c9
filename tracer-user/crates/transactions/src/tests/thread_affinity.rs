//! Requests that stay on the thread that read them, and requests that move between threads.

use tracer_model::SpanId;

use super::super::evidence::{Doubt, Evidence, Reason};
use super::*;

const DOWN: &str = "GET /down HTTP/1.1\r\n\r\n";
/// Runs one request after the other: threads that hold requests, and one that reads for others.
const FIRST: u32 = 5;
const SECOND: u32 = 6;
const THIRD: u32 = 7;

/// Grade, parent and evidence of the calls, in order of their start, with the ids of the requests by connection.
type Calls = (Vec<(Grade, Option<SpanId>, Reason)>, HashMap<u64, SpanId>);

fn judged(spans: &[(Box<OpenSpan>, Verdicts)]) -> Calls {
    let mut calls: Vec<_> = spans.iter().filter(|(live, _)| live.side == Side::Client).collect();
    calls.sort_by_key(|(live, _)| live.start);
    let requests = spans.iter().filter(|(live, _)| live.side == Side::Server);
    (
        calls.iter().map(|(_, verdicts)| (verdicts.grade, verdicts.parent, verdicts.reason)).collect(),
        requests.map(|(live, _)| (live.cookie, live.id)).collect(),
    )
}

fn host(connections: u64) -> Host {
    let mut host = Host::new(Limits::default());
    for cookie in 1..=connections {
        host.opens(cookie, (0, 0));
    }
    host
}

/// Two threads, each with a request of its own at the same time, make a call each.
fn two_at_once(host: &mut Host) {
    host.reads(FIRST, 1, GET).reads(SECOND, 2, GET).sends(FIRST, 3, DOWN).sends(SECOND, 4, DOWN);
    host.reads(FIRST, 3, OK).reads(SECOND, 4, OK).sends(FIRST, 1, OK).sends(SECOND, 2, OK);
}

#[test]
fn a_thread_for_each_request_is_certain_from_the_first_request_on() {
    let mut host = host(4);
    two_at_once(&mut host);
    let (calls, requests) = judged(&host.finish());
    let expected = [1, 2].map(|cookie| (Grade::Certain, Some(requests[&cookie]), Reason::For(Evidence::OneRequest)));
    assert_eq!(calls, expected);
}

#[test]
fn the_first_calls_of_threads_that_hold_requests_at_once_wait_until_their_process_is_known() {
    let mut host = host(4);
    // Detection of its runtime is over.
    host.reads(FIRST, 1, GET).sends(FIRST, 1, OK).nanos += 1_000_000_000;
    let mut waits = Vec::new();
    for _ in 0..12 {
        two_at_once(&mut host);
        host.nanos += 60_000_000;
        host.engine.world.now = host.nanos;
        host.engine.report(host.nanos, &mut host.out);
        let finished = host.out.drain(..).filter(|output| matches!(output, Output::Finished(..))).count();
        waits.push(finished < 4);
    }
    assert!(waits[..3].iter().all(|waits| *waits) && waits[9..].iter().all(|waits| !waits), "{waits:?}");
}

#[test]
fn a_request_that_another_thread_answers_makes_no_call_certain() {
    let mut host = host(4);
    // The second thread's request goes on on the first one, which holds a request, and is answered by a third.
    host.reads(FIRST, 1, GET).reads(SECOND, 2, GET).sends(FIRST, 3, DOWN);
    host.reads(THIRD, 3, OK).sends(THIRD, 2, OK).sends(SECOND, 1, OK);
    let (calls, _) = judged(&host.finish());
    assert_eq!(calls, [(Grade::Ambiguous, None, Reason::Against(Doubt::Moves))]);
}

#[test]
fn a_process_whose_requests_move_stays_so() {
    let mut host = host(6);
    host.reads(FIRST, 1, GET).sends(FIRST, 3, DOWN).reads(FIRST, 3, OK).sends(SECOND, 1, OK);
    for _ in 0..20 {
        host.waits(FIRST, true).reads(FIRST, 2, GET).waits(FIRST, true).sends(FIRST, 4, DOWN);
        host.waits(FIRST, true).reads(FIRST, 4, OK).waits(FIRST, true).sends(FIRST, 2, OK);
    }
    let spans = host.finish();
    assert_eq!(spans.len(), 42);
    assert!(spans.iter().all(|(_, verdicts)| verdicts.grade != Grade::Certain && verdicts.parent.is_none()));
}

/// The request of another connection seems to be answered by another thread, because records are missing.
fn seems_to_move(host: &mut Host) {
    host.reads(FIRST, 1, GET).sends(FIRST, 3, DOWN).reads(FIRST, 3, OK).sends(SECOND, 1, OK);
}

/// Whether the last of `times` calls, each made while another thread holds a request, has its request for certain.
fn last_is_certain(mut host: Host, times: usize) -> bool {
    for _ in 0..times {
        two_at_once(&mut host);
    }
    let (calls, _) = judged(&host.finish());
    calls.last().is_some_and(|(grade, parent, _)| *grade == Grade::Certain && parent.is_some())
}

#[test]
fn a_process_that_seemed_to_move_while_records_were_missing_is_judged_again() {
    for noticed_before in [true, false] {
        // Until nothing is missing any more, and behind it.
        let seemed_to_move = |aftermath: Nanos| {
            let mut host = host(4);
            two_at_once(&mut host);
            let before = host.nanos;
            if noticed_before {
                host.engine.lost(before, before + 1_000_000);
            }
            host.nanos += 500;
            seems_to_move(&mut host);
            if !noticed_before {
                host.engine.world.now = host.nanos;
                host.engine.lost(before, before + 1_000_000);
            }
            host.nanos += aftermath;
            host
        };
        assert!(!last_is_certain(seemed_to_move(0), 400), "still missing, noticed before: {noticed_before}");
        assert!(!last_is_certain(seemed_to_move(2_000_000), 100), "too few, noticed before: {noticed_before}");
        assert!(last_is_certain(seemed_to_move(2_000_000), 400), "noticed before: {noticed_before}");
    }
}

#[test]
fn a_loss_long_before_leaves_a_verdict() {
    let mut host = host(4);
    host.engine.lost(1, 2);
    seems_to_move(&mut host);
    assert!(!last_is_certain(host, 400));
}

#[test]
fn a_reactor_that_reads_for_a_pool_leaves_its_threads_certain() {
    let mut host = host(5);
    for _ in 0..12 {
        two_at_once(&mut host);
        // A kept connection's next request, read by the reactor and answered by a thread of the pool.
        host.reads(THIRD, 5, GET).sends(FIRST, 5, OK);
    }
    let (calls, _) = judged(&host.finish());
    assert!(calls.iter().all(|(grade, parent, _)| *grade == Grade::Certain && parent.is_some()), "{calls:?}");
}

#[test]
fn a_thread_that_only_reads_replies_leaves_others_certain() {
    let mut host = host(4);
    host.reads(FIRST, 1, GET).reads(SECOND, 2, GET).sends(FIRST, 3, DOWN).sends(SECOND, 4, DOWN);
    host.reads(THIRD, 3, OK).reads(THIRD, 4, OK).sends(FIRST, 1, OK).sends(SECOND, 2, OK);
    let (calls, requests) = judged(&host.finish());
    assert_eq!(calls.iter().map(|call| call.1).collect::<Vec<_>>(), [1, 2].map(|cookie| Some(requests[&cookie])));
}

/// A call, and a span below it in process 3 that is reported before it.
fn reported_below_first(host: &mut Host) {
    host.opens(1, (0, 0)).opens(4, (600, 700)).opens(5, (700, 600)).reads(5, 1, GET).sends(5, 1, OK);
    host.nanos += 1_000_000_000;
    host.reads(5, 1, GET).moves(1, 5, 4, true, 601, GET).moves(3, 8, 5, false, 601, GET).moves(3, 8, 5, true, 701, OK);
}

/// Trace ids of the last request, of its call and of the span below; grade and evidence of the call.
fn chain(mut host: Host, below: Option<tracer_model::TraceId>) -> ([tracer_model::TraceId; 3], Grade, Reason) {
    host.moves(1, 5, 4, false, 701, OK).sends(5, 1, OK);
    let spans = host.finish();
    let last = |cookie: u64| spans.iter().rfind(|(live, _)| live.cookie == cookie).map(|(_, verdicts)| *verdicts);
    let (request, call) = (last(1).unwrap(), last(4).unwrap());
    let below = below.unwrap_or_else(|| last(5).unwrap().trace);
    assert!(call.parent.is_none());
    ([request.trace, call.trace, below], call.grade, call.reason)
}

#[test]
fn a_call_in_doubt_passes_no_trace_id_on() {
    let mut host = Host::new(Limits::default());
    reported_below_first(&mut host);
    host.engine.moves_requests(1);
    let ([request, call, below], grade, evidence) = chain(host, None);
    assert_eq!((grade, evidence), (Grade::Ambiguous, Reason::Against(Doubt::Moves)));
    assert!(below == call && call != request);
}

#[test]
fn a_doubt_that_comes_after_spans_below_were_reported_is_the_reason_shown() {
    let mut host = Host::new(Limits::default());
    reported_below_first(&mut host);
    host.nanos += 400_000_000;
    host.engine.world.now = host.nanos;
    host.engine.report(host.nanos, &mut host.out);
    let below = host.out.iter().find_map(|output| match output {
        Output::Finished(live, verdicts) if live.cookie == 5 => Some(verdicts.trace),
        _ => None,
    });
    assert!(below.is_some(), "it is reported before the call above it");
    host.engine.moves_requests(1);
    let ([_, call, below], grade, evidence) = chain(host, below);
    assert_eq!((grade, evidence), (Grade::Ambiguous, Reason::Against(Doubt::Moves)));
    assert_eq!(call, below, "they stay one transaction");
}
