//! A span is reported with its parent's trace id, whichever of the two is reported first.

use tracer_model::{SpanId, TraceId};

use super::*;

/// Longer than a span waits for its report.
const LATER: Nanos = 250_000_000;

/// Reported spans: socket, trace id and parent, with renames applied.
type Reported = HashMap<SpanId, (u64, TraceId, Option<SpanId>)>;

impl Host {
    /// Reports whatever is due a while later.
    fn later(&mut self, reported: &mut Reported) -> usize {
        self.nanos += LATER;
        self.engine.world.now = self.nanos;
        self.engine.report(self.nanos, &mut self.out);
        self.collect(reported)
    }

    fn over(&mut self, reported: &mut Reported) {
        self.engine.expire(true, &mut self.out);
        self.collect(reported);
    }

    fn collect(&mut self, reported: &mut Reported) -> usize {
        for output in self.out.drain(..) {
            match output {
                Output::Finished(live, verdicts) => {
                    reported.insert(live.id, (live.cookie, verdicts.trace, verdicts.parent));
                }
                Output::Renamed { was, trace } => {
                    reported.values_mut().filter(|known| known.1 == was).for_each(|known| known.1 = trace);
                }
                _ => {}
            }
        }
        reported.len()
    }

    /// Process 2 makes a call on socket 4. Thread 8 of process 3 reads it from socket 5 and makes a call for it on
    /// socket 6. All but the first have ended.
    fn chain_below(&mut self) -> &mut Self {
        self.opens(5, (700, 600)).opens(6, (800, 900));
        self.moves(3, 8, 5, false, 601, GET).moves(3, 8, 6, true, 801, GET).moves(3, 8, 6, false, 901, OK);
        self.moves(3, 8, 5, true, 701, OK)
    }
}

fn agree(reported: &Reported) {
    for (cookie, trace, parent) in reported.values() {
        let above = parent.and_then(|parent| reported.get(&parent));
        assert!(above.is_none_or(|above| above.1 == *trace), "socket {cookie} of {above:?}");
    }
}

#[test]
fn a_call_that_outlives_its_request_has_the_trace_id_that_was_reported_with() {
    let (mut host, mut reported) = (Host::new(Limits::default()), Reported::new());
    host.opens(1, (600, 700)).opens(2, (700, 600)).opens(3, (800, 900));
    host.moves(2, 9, 1, true, 601, GET).moves(1, 5, 2, false, 601, GET).moves(1, 5, 3, true, 801, GET);
    host.moves(1, 5, 2, true, 701, OK).moves(2, 9, 1, false, 701, OK);
    while host.later(&mut reported) < 2 {}
    host.moves(1, 5, 3, false, 901, OK).over(&mut reported);
    assert_eq!(reported.len(), 3);
    assert!(reported.values().any(|(cookie, _, parent)| *cookie == 3 && parent.is_some()));
    agree(&reported);
    let first = reported.values().next().expect("a span").1;
    assert!(reported.values().all(|(_, trace, _)| *trace == first), "{reported:?}");
}

#[test]
fn what_is_below_a_call_without_a_parent_follows_when_it_gets_one() {
    let (mut host, mut reported) = (Host::new(Limits::default()), Reported::new());
    host.opens(1, (0, 0)).opens(2, (0, 0)).opens(4, (600, 700)).reads(5, 1, GET).reads(5, 2, GET);
    // Sent in no request's callback.
    host.waits(5, true).moves(1, 5, 4, true, 601, GET).chain_below();
    while host.later(&mut reported) < 2 {}
    // The callback that reads the reply writes an answer.
    host.waits(5, true)
        .moves(1, 5, 4, false, 701, OK)
        .sends(5, 1, OK)
        .waits(5, true)
        .sends(5, 2, OK)
        .over(&mut reported);
    assert_eq!(reported.len(), 5);
    agree(&reported);
}

#[test]
fn what_is_below_a_call_that_may_get_another_parent_waits_and_follows() {
    for patient in [true, false] {
        let (mut host, mut reported) = (Host::new(Limits::default()), Reported::new());
        host.opens(1, (0, 0)).opens(2, (0, 0)).opens(4, (600, 700)).reads(5, 1, GET).reads(5, 2, GET);
        // Sent in the callback that read the second request, which may or may not turn out to be its parent.
        host.moves(1, 5, 4, true, 601, GET).chain_below().waits(5, true).moves(1, 5, 4, false, 701, OK);
        assert_eq!((0..8).map(|_| host.later(&mut reported)).max(), Some(0), "they wait for what is above");
        if !patient {
            // The wait is bounded.
            while host.later(&mut reported) < 2 {}
            agree(&reported);
        }
        host.sends(5, 2, OK).waits(5, true).sends(5, 1, OK).over(&mut reported);
        assert_eq!(reported.len(), 5);
        agree(&reported);
        let trace = |socket: u64| reported.values().find(|known| known.0 == socket).map(|known| known.1);
        assert!([5, 6].into_iter().all(|socket| trace(socket) == trace(4)) && trace(2) != trace(1), "{reported:?}");
        // A call reported as ambiguous before its evidence came stays without a parent.
        assert_eq!(trace(4) == trace(2), patient, "{reported:?}");
    }
}

#[test]
fn what_is_remembered_of_reported_spans_is_bounded_and_keeps_what_is_referred_to() {
    let (mut host, mut reported) = (Host::new(Limits::for_memory(0)), Reported::new());
    host.opens(1, (600, 700)).opens(2, (700, 600)).opens(3, (800, 900));
    host.moves(2, 9, 1, true, 601, GET).moves(1, 5, 2, false, 601, GET).moves(1, 5, 3, true, 801, GET);
    host.moves(1, 5, 2, true, 701, OK).moves(2, 9, 1, false, 701, OK);
    while host.later(&mut reported) < 2 {}
    let mut fill = host.engine.table_use().reported_traces;
    for _ in 0..3 * fill.limit {
        host.sends(7, 9, GET).reads(7, 9, OK).nanos += 1_000_000;
        host.engine.report(host.nanos, &mut host.out);
        host.out.retain(|output| matches!(output, Output::Finished(live, _) if live.cookie != 9));
        fill = host.engine.table_use().reported_traces;
        assert!(fill.entries <= fill.limit, "{fill:?}");
    }
    assert!(fill.reached > 0, "{fill:?}");
    host.moves(1, 5, 3, false, 901, OK).over(&mut reported);
    assert!(reported.values().any(|(cookie, _, parent)| *cookie == 3 && parent.is_some()));
    agree(&reported);
}

#[test]
fn what_is_below_a_call_of_a_process_that_just_began_to_serve_waits_as_the_call_does() {
    let (mut host, mut reported) = (Host::new(Limits::default()), Reported::new());
    host.opens(1, (0, 0)).opens(4, (600, 700)).opens(5, (700, 600)).reads(5, 1, GET);
    host.moves(1, 5, 4, true, 601, GET).moves(3, 8, 5, false, 601, GET).moves(3, 8, 5, true, 701, OK);
    host.moves(1, 5, 4, false, 701, OK).sends(5, 1, OK);
    let grace = host.engine.world.limits.grace;
    assert!(grace < LATER, "reported before it is known whether the process runs tasks");
    host.nanos += grace + 1_000_000;
    host.engine.world.now = host.nanos;
    host.engine.report(host.nanos, &mut host.out);
    assert_eq!(host.collect(&mut reported), 0);
    host.over(&mut reported);
    assert_eq!(reported.len(), 3);
    agree(&reported);
}
