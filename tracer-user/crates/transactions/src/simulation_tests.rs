//! Properties of the engine over histories of a simulated host, whole and spoilt.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tracer_model::{Grade, Nanos, Outcome, ServiceId, Side, SpanId, TraceId};
use tracer_protocols::Settings;

use super::engine::{Engine, Limits};
use super::output::Output;
use super::simulation::{Choices, Host, Name, Sent, Truth};

/// What the engine made of a history.
#[derive(Debug, Default)]
struct Reported {
    /// Outcome, parent and grade by name.
    spans: HashMap<Name, (Option<Outcome>, Option<SpanId>, Grade)>,
    ids: HashMap<SpanId, Name>,
    /// Why each parent was named, by the span that has it.
    evidence: HashMap<Name, &'static str>,
    /// Trace id and parent by id; corrections included.
    traces: HashMap<SpanId, (TraceId, Option<SpanId>)>,
    /// Spans reported more than once, and ids given twice.
    twice: Vec<Name>,
    cpu: u64,
    /// Losses the engine counted.
    counted: u64,
}

fn replay(sent: &[Sent], limits: Limits) -> Result<Reported, TestCaseError> {
    let bound = limits.clone();
    let mut engine = Engine::new(Settings::default(), limits, 7);
    for tgid in 1..5 {
        engine.process(tgid, ServiceId(tgid));
    }
    let (mut out, mut reported) = (Vec::new(), Reported::default());
    let take = |out: &mut Vec<Output>, reported: &mut Reported| {
        for output in out.drain(..) {
            if let Output::Renamed { was, trace } = output {
                reported.traces.values_mut().filter(|(known, _)| *known == was).for_each(|(known, _)| *known = trace);
            }
            let Output::Finished(live, verdicts) = output else { continue };
            reported.traces.insert(live.id, (verdicts.trace, verdicts.parent));
            let name = (live.side, live.request.path.to_string());
            reported.cpu += live.cost.cpu;
            reported.evidence.insert(name.clone(), verdicts.reason.text());
            if reported.ids.insert(live.id, name.clone()).is_some() {
                reported.twice.push(name.clone());
            }
            if reported.spans.insert(name.clone(), (live.outcome, verdicts.parent, verdicts.grade)).is_some() {
                reported.twice.push(name);
            }
        }
    };
    for record in sent {
        match (record, record.record()) {
            (_, Some(record)) => engine.record(&record, &mut out),
            (Sent::Lost(at), _) => engine.lost(*at, Nanos::MAX),
            _ => {}
        }
        let now = engine.world.now;
        engine.report(now, &mut out);
        take(&mut out, &mut reported);
        let table_use = engine.table_use();
        let [spans, connections, threads] =
            [table_use.spans, table_use.connections, table_use.threads].map(|fill| fill.entries as usize);
        prop_assert!(spans <= bound.spans, "{spans} spans");
        prop_assert!(connections <= bound.connections, "{connections} connections");
        prop_assert!(threads <= bound.threads, "{threads} threads");
        let queued = engine.queued();
        // One more of each than there may be, until the next record.
        let most = bound.spans + bound.connections + bound.threads + 2;
        prop_assert!(queued <= most, "{queued} entries in queues, at most {most}");
    }
    engine.expire(true, &mut out);
    take(&mut out, &mut reported);
    prop_assert_eq!(engine.table_use().spans.entries, 0);
    let (classes, overhead) = engine.take_costs();
    reported.cpu += classes.iter().map(|(_, cost)| cost.cpu).sum::<u64>();
    reported.cpu += overhead.iter().map(|(_, cost)| cost.cpu).sum::<u64>();
    let c = engine.world.counters;
    reported.counted = c.gap_bytes + c.unpaired + c.connections_evicted + c.threads_refused + c.spans_evicted;
    Ok(reported)
}

/// No certain or confirmed edge is wrong, a span belongs to the transaction of its parent, nothing is reported twice, and no
/// CPU is made up.
fn sound(reported: &Reported, truth: &Truth, sent: &[Sent]) -> Result<(), TestCaseError> {
    prop_assert!(reported.twice.is_empty(), "reported twice: {:?}", reported.twice);
    prop_assert!(reported.cpu <= truth.cpu, "{} ns charged of {}", reported.cpu, truth.cpu);
    for (id, (trace, parent)) in &reported.traces {
        let above = parent.and_then(|parent| reported.traces.get(&parent));
        prop_assert!(
            above.is_none_or(|(above, _)| above == trace),
            "{:?} has another trace id than its parent {:?}:\n{}",
            reported.ids.get(id),
            parent.and_then(|parent| reported.ids.get(&parent)),
            sent.iter().map(Sent::line).collect::<String>()
        );
    }
    for (name, (_, parent, grade)) in &reported.spans {
        let Some(real) = truth.spans.get(name) else {
            return Err(TestCaseError::fail(format!("there was no {name:?}")));
        };
        let sure = matches!(grade, Grade::Certain | Grade::Confirmed);
        // The other end of a call is not graded: it is the same bytes, or no parent is named.
        let claims = sure || name.0 == Side::Server;
        prop_assert!(claims || parent.is_none(), "{name:?} shows a guess, {parent:?}");
        // "No parent, certain" is a claim, too.
        prop_assert!(
            parent.is_some() || *grade != Grade::Certain || name.0 == Side::Server || real.is_none(),
            "{name:?} is certain to have no parent, and was of {real:?}:\n{}",
            sent.iter().map(Sent::line).collect::<String>()
        );
        if let Some(parent) = parent.filter(|_| claims) {
            let found = reported.ids.get(&parent);
            prop_assert!(
                found.is_none() || found == real.as_ref(),
                "{name:?} is {grade:?} of {found:?} ({}), and was of {real:?}:\n{}",
                reported.evidence[name],
                sent.iter().map(Sent::line).collect::<String>()
            );
        }
    }
    Ok(())
}

fn history(bytes: &[u8], aborts: bool, timers: bool) -> (Vec<Sent>, Truth) {
    let mut choices = Choices::new(bytes);
    let (requests, lanes) = (1 + choices.below(24), choices.below(3));
    Host::new(choices, aborts, timers).run(requests, lanes)
}

/// A history of a service whose requests move between its threads.
fn moving_history(bytes: &[u8]) -> (Vec<Sent>, Truth) {
    let mut choices = Choices::new(bytes);
    let (requests, clients, threads) = (16 + choices.below(24), 2 + choices.below(7), 2 + choices.below(7) as u32);
    Host::new(choices, false, false).run_moving(requests, clients, threads)
}

/// Ways a history is spoilt: one byte says what happens at a place.
fn spoil(sent: Vec<Sent>, ways: &[u8], cut: usize, heads: bool) -> (Vec<Sent>, usize) {
    let (mut out, mut spoilt) = (Vec::new(), cut.min(sent.len()));
    if spoilt > 0 {
        out.push(Sent::Lost(0));
    }
    for (record, way) in sent.into_iter().skip(cut).zip(ways.iter().copied().chain(std::iter::repeat(0))) {
        // Most records stay as they are.
        match way {
            200..=219 => {
                spoilt += 1;
                out.push(Sent::Lost(record.nanos()));
            }
            220..=229 => {
                spoilt += 1;
                out.push(record.clone());
                out.push(record);
            }
            230..=239 if !out.is_empty() => {
                spoilt += 1;
                let at = out.len() - 1;
                out.insert(at, record);
            }
            240..=244 if out.len() > 7 => {
                // It may hide each of those that it overtakes.
                spoilt += 7;
                let at = out.len() - 7;
                out.insert(at, record);
            }
            245..=255 if heads => {
                if let Sent::Op(mut op, mut head) = record {
                    spoilt += 1;
                    head.truncate(32 + usize::from(way - 245));
                    op.head = head.len() as u16;
                    out.push(Sent::Op(op, head));
                } else {
                    out.push(record);
                }
            }
            _ => out.push(record),
        }
    }
    (out, spoilt)
}

fn small() -> Limits {
    Limits { spans: 6, connections: 5, threads: 4, ..Limits::default() }
}

/// The same histories in every run; others, and more of them, with `PROPTEST_CASES=100000`.
fn config() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let rng_seed = if asked.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) };
    let cases = asked.unwrap_or(2000);
    ProptestConfig { cases, rng_seed, max_shrink_iters: 1_500, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Nothing lost: every span is reported, those of threads with one request at a time with the right cause, and
    /// every nanosecond is charged.
    #[test]
    fn whole_histories_are_reported_as_they_were(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (sent, truth) = history(&bytes, false, true);
        let reported = replay(&sent, Limits::default())?;
        sound(&reported, &truth, &sent)?;
        prop_assert_eq!(reported.cpu, truth.cpu);
        prop_assert_eq!(reported.counted, 0);

        let missing: Vec<&Name> = truth.spans.keys().filter(|name| !reported.spans.contains_key(*name)).collect();
        prop_assert!(missing.is_empty(), "not reported: {missing:?}");
        for name in &truth.tasked {
            let (_, parent, grade) = reported.spans[name];
            prop_assert!(matches!(grade, Grade::Certain | Grade::Confirmed), "{:?} is {:?}", name, grade);
            prop_assert_eq!(parent.and_then(|id| reported.ids.get(&id)), truth.spans[name].as_ref(), "{:?}", name);
        }
        let serial: HashSet<&Name> = truth.serial.iter().collect();
        for (name, (outcome, parent, grade)) in &reported.spans {
            prop_assert_eq!(*outcome, Some(Outcome::Complete), "{:?}", name);
            if serial.contains(name) {
                prop_assert_eq!(*grade, Grade::Certain, "{:?}", name);
                prop_assert_eq!(parent.and_then(|id| reported.ids.get(&id)), truth.spans[name].as_ref(), "{:?}", name);
            }
        }
    }

    /// Clients that go away, of which nothing is lost either: nothing sure is wrong, and all CPU is charged.
    #[test]
    fn clients_that_go_away_make_no_wrong_parent_certain(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (sent, truth) = history(&bytes, true, true);
        let reported = replay(&sent, Limits::default())?;
        sound(&reported, &truth, &sent)?;
        prop_assert_eq!(reported.cpu, truth.cpu);
        let missing: Vec<&Name> = truth.spans.keys().filter(|name| !reported.spans.contains_key(*name)).collect();
        prop_assert!(missing.is_empty(), "not reported: {missing:?}");
    }

    /// Records lost, doubled and out of order: nothing sure is wrong.
    #[test]
    fn spoilt_histories_make_no_wrong_parent_certain(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ways in proptest::collection::vec(any::<u8>(), 0..400),
        cut in 0usize..20,
        timers in any::<bool>(),
    ) {
        let (sent, truth) = history(&bytes, true, timers);
        let (sent, spoilt) = spoil(sent, &ways, cut, false);
        let reported = replay(&sent, Limits::default())?;
        sound(&reported, &truth, &sent)?;
        // What is not reported is explained: no more is missing than records were spoilt.
        let missing = truth.spans.keys().filter(|name| !reported.spans.contains_key(*name)).count();
        prop_assert!(missing <= spoilt, "{missing} spans missing, {spoilt} records spoilt");
    }

    /// Requests that move between threads: nothing sure is wrong, and all CPU is charged.
    #[test]
    fn requests_that_move_between_threads_get_no_wrong_parent(bytes in proptest::collection::vec(any::<u8>(), 300..1500)) {
        let (sent, truth) = moving_history(&bytes);
        let reported = replay(&sent, Limits::default())?;
        sound(&reported, &truth, &sent)?;
        prop_assert_eq!(reported.cpu, truth.cpu);
        let missing: Vec<&Name> = truth.spans.keys().filter(|name| !reported.spans.contains_key(*name)).collect();
        prop_assert!(missing.is_empty(), "not reported: {missing:?}");
    }

    /// The same, where records are lost, doubled and out of order.
    #[test]
    fn requests_that_move_get_no_wrong_parent_where_records_are_lost(
        bytes in proptest::collection::vec(any::<u8>(), 300..1500),
        ways in proptest::collection::vec(any::<u8>(), 0..400),
        cut in 0usize..20,
    ) {
        let (sent, truth) = moving_history(&bytes);
        let (sent, _) = spoil(sent, &ways, cut, false);
        let reported = replay(&sent, Limits::default())?;
        sound(&reported, &truth, &sent)?;
    }

    /// Spoilt histories in tables far too small, with heads cut short.
    #[test]
    fn full_tables_are_counted_and_no_wrong_parent_is_certain(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ways in proptest::collection::vec(any::<u8>(), 0..400),
        cut in 0usize..20,
        timers in any::<bool>(),
    ) {
        let (sent, truth) = history(&bytes, true, timers);
        let (sent, spoilt) = spoil(sent, &ways, cut, true);
        let reported = replay(&sent, small())?;
        sound(&reported, &truth, &sent)?;
        let missing = truth.spans.keys().filter(|name| !reported.spans.contains_key(*name)).count() as u64;
        prop_assert!(missing <= spoilt as u64 + reported.counted, "{missing} missing, {spoilt} spoilt, {} counted", reported.counted);
    }
}

/// Histories that were reported wrong once: how they came about, how they were spoilt, and where they begin.
#[test]
fn histories_that_were_once_reported_wrong() {
    let once: [(&[u8], &[u8], usize); 9] = [
        // A thread that held a request whose client had left read the next of a connection on which another one's head was
        // cut and its answer lost: it was taken for the rest of that.
        (
            &[
                5, 164, 1, 4, 0, 9, 0, 0, 0, 0, 0, 4, 0, 153, 17, 96, 0, 0, 0, 0, 0, 12, 0, 199, 0, 25, 0, 0, 29, 59,
                47, 188, 46, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 20, 8, 0, 56, 0, 0, 0, 29, 0, 0, 180, 96, 0, 0, 0, 0, 0, 28,
                221, 108, 0, 0, 0, 0, 0, 60, 0, 28, 0, 0, 0, 69, 0, 15, 51, 4, 0, 0, 0, 0, 0, 9, 0,
            ],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 245, 200, 0, 0, 0, 0, 0, 0, 0],
            1,
        ),
        // The same, and the thread held nothing else then.
        (
            &[
                172, 53, 84, 2, 0, 190, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0, 143, 0, 0, 0, 0, 0, 0, 17, 0, 21, 0, 0, 0,
                113, 0, 45, 0, 0, 10, 20, 0, 198, 65, 9, 7, 188, 0, 0, 0, 0, 0, 2, 43, 0, 1, 44, 0, 77, 0, 2, 0, 29, 0,
                0, 0, 0, 0, 0, 53, 0, 0, 9, 83, 0, 0, 0, 0, 0, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            &[245, 0, 0, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            1,
        ),
        // And its process was not seen to serve anybody.
        (&[1, 65, 0, 1, 0, 96, 0, 0, 0, 0, 0, 84, 0, 80, 21, 4, 0, 0, 0], &[0, 245, 0, 230, 0, 0, 0, 0], 0),
        // Answers that came before what they answer: each further one was taken for that of the request before.
        (
            &[
                8, 64, 19, 48, 0, 67, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 94, 0, 0, 0, 0, 0, 0, 221, 0, 0, 0, 0, 3,
                0, 0, 0, 0, 0, 0, 5, 0, 0, 9, 0, 1, 30, 0, 0, 0, 0, 0, 74, 35, 0, 135, 14, 0, 134, 0, 0, 12, 84, 62,
                29, 199, 0, 0, 0, 0, 49, 0, 0, 0, 0, 162, 92, 0, 0, 0, 0, 0, 0, 4, 0, 104, 0, 0, 0, 60, 62, 3, 93, 0,
                0, 114, 0, 0, 0, 0, 0, 0, 0, 0, 0, 56, 21, 4, 0, 0, 0, 0, 0, 0, 13, 9, 59, 188, 0, 3, 0, 0, 0, 0, 0, 0,
                103, 15, 21, 0, 0, 0, 0, 88, 0, 30, 66, 187, 0, 0, 0, 0, 0, 0, 0, 227, 31, 0, 0, 0, 0, 0, 0, 0, 0, 10,
                0, 0,
            ],
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 230, 245, 230, 0, 0,
                0, 0, 0, 0, 0,
            ],
            18,
        ),
        // The same, of a request that another thread worked for, and the next was lost.
        (
            &[
                7, 80, 125, 15, 0, 11, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 84, 151, 0, 15, 0, 0, 0, 0, 0, 4, 0, 10, 84, 0, 0,
                0, 0, 36, 63, 188, 0, 0, 91, 0, 204, 99, 87, 0, 0, 0, 0, 68, 0, 170, 63, 77, 0, 0, 0, 0, 0, 29, 0, 0,
                78, 4, 0, 0, 44, 0, 29, 0, 0, 0, 0, 0, 0, 0, 0, 140, 0, 0, 0, 0, 0, 108, 73, 14, 0, 0, 30, 0, 10, 36,
                0, 67, 0, 0, 0, 0, 32, 0, 16, 0, 0, 0, 0, 0, 0, 74, 0, 0, 4, 71, 0, 0, 158, 0, 0, 0, 87, 49, 0, 0, 44,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 11, 21, 0, 0, 0, 0, 0, 0, 0, 23, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 220, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 30, 12, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            &[
                0, 0, 0, 0, 0, 0, 0, 230, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
            2,
        ),
        // An answer without end, and the next request was lost.
        (
            &[
                1, 1, 0, 11, 0, 9, 0, 0, 0, 0, 0, 0, 0, 56, 9, 7, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0,
            ],
            &[0, 0, 245, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            0,
        ),
        // A request whose bytes had been passed over, read by a thread that held one whose client had left.
        (
            &[
                5, 115, 56, 56, 0, 222, 0, 0, 0, 54, 0, 0, 88, 0, 7, 80, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 91, 9, 163,
                0, 0, 0, 0, 0, 171, 0, 0, 0, 31, 19, 0, 24, 50, 0, 0, 0, 0, 91, 0, 0, 0, 0, 191, 43, 32, 223, 0, 0, 9,
                0, 13, 0, 0, 0, 69, 0, 109, 152, 0, 0, 0, 126, 0, 0, 84, 0, 151, 9, 199, 0, 0, 0, 0, 0, 0, 9, 0, 44, 0,
                0, 0, 0, 11, 0, 0, 0, 0, 108, 0, 127, 3,
            ],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 240],
            5,
        ),
        // A task of a thread there was no room for, of which an operation was lost.
        (
            &[
                4, 2, 7, 7, 0, 135, 0, 0, 0, 0, 10, 56, 0, 184, 9, 1, 0, 0, 0, 10, 0, 170, 0, 0, 0, 0, 31, 0, 0, 0, 0,
                0, 0, 68, 0, 7, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 12, 11, 24, 0, 198, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 73, 0,
                0, 0, 0, 0, 0, 103,
            ],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 245, 200, 0, 240, 0, 0, 0],
            2,
        ),
        // A request that came after the next one of its connection, which another process read.
        (&[1, 67, 12, 104, 0, 28, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 223, 14], &[0, 0, 230, 230, 0, 0, 0, 0, 0, 0, 240], 0),
    ];
    for (bytes, ways, cut) in once {
        let (sent, truth) = history(bytes, true, false);
        let (sent, _) = spoil(sent, ways, cut, true);
        for limits in [small(), Limits::default()] {
            let reported = replay(&sent, limits).unwrap();
            sound(&reported, &truth, &sent).unwrap();
        }
    }
}
