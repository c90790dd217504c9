//! Weights, whole transactions, bounds.

use std::sync::Arc;

use tracer_model::PropagatedContext;
use tracer_model::sample_span::span;

use super::*;

const SECOND: Nanos = 1_000_000_000;

fn sampling(share: f64, memory: u64) -> TailSampling {
    TailSampling::new(&TailSamplingSettings { share, ..TailSamplingSettings::default() }, memory).expect("a choice")
}

/// A generator of random trace ids (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn trace(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

fn all_due(sampling: &mut TailSampling, now: Nanos, over: bool) -> Vec<Span> {
    std::iter::from_fn(|| sampling.due(now, over)).flatten().collect()
}

#[test]
fn nothing_is_chosen_where_everything_is_wanted() {
    assert!(TailSampling::new(&TailSamplingSettings::default(), 1 << 29).is_none());
    let bounded = TailSamplingSettings { spans_per_second: Some(5), ..TailSamplingSettings::default() };
    assert!(TailSampling::new(&bounded, 1 << 29).is_some());
}

/// Sums of adjusted counts are the numbers of spans, of those with a reason and of the others.
#[test]
fn adjusted_counts_add_up_to_what_there_was() {
    const TRACES: usize = 100_000;
    let (mut sampling, mut random) = (sampling(0.1, 1 << 29), Random(7));
    let mut exported: Vec<Span> = Vec::new();
    let mut truth = [0u64; 2];
    for turn in 0..TRACES as u64 {
        let (trace, now) = (random.trace(), turn * 1_000_000);
        let failed = random.next() % 20 == 0;
        truth[usize::from(failed)] += 2;
        // The call is reported before its request, and which of the two failed differs.
        let (call_failed, reason) = (failed && turn % 2 == 0, failed.then_some(KeepReason::Failed));
        let given = |is_it: bool| reason.filter(|_| is_it);
        assert_eq!(sampling.offer(&span(trace, now, 1, call_failed), false, given(call_failed), now), None);
        let is_request = failed && !call_failed;
        assert_eq!(sampling.offer(&span(trace, now, 2, is_request), true, given(is_request), now), None);
        exported.extend(all_due(&mut sampling, now, false));
    }
    exported.extend(all_due(&mut sampling, u64::MAX, true));
    let kept = |span: &Span| span.kept.expect("a decision");
    let (failed, others): (Vec<&Span>, Vec<&Span>) = exported.iter().partition(|span| kept(span).because.is_some());
    let sum = |spans: &[&Span]| spans.iter().map(|span| kept(span).threshold.adjusted_count()).sum::<f64>();
    assert_eq!((failed.len() as u64, sum(&failed)), (truth[1], truth[1] as f64));
    // Two spans of each trace come together: the variance of 2/p for each trace that is drawn.
    let (p, traces) = (Threshold::of_share(0.1).share(), truth[0] as f64 / 2.0);
    let sigma = 2.0 / p * (traces * p * (1.0 - p)).sqrt();
    let off = sum(&others) - truth[0] as f64;
    assert!(off.abs() < 3.0 * sigma, "{off} with sigma {sigma}");
    let decided = sampling.decided();
    assert_eq!(decided.transactions.iter().sum::<u64>(), TRACES as u64);
    assert_eq!(decided.spans[index(None)], 2 * TRACES as u64 - exported.len() as u64);
    // All spans of a trace, or none.
    let mut spans: FxHashMap<TraceId, usize> = FxHashMap::default();
    for span in exported {
        *spans.entry(span.trace).or_default() += 1;
    }
    assert!(spans.values().all(|count| *count == 2));
}

#[test]
fn a_second_host_chooses_the_same_traces() {
    let chosen = |share| {
        let (mut sampling, mut random) = (sampling(share, 1 << 29), Random(3));
        for turn in 0..2000 {
            sampling.offer(&span(random.trace(), turn, 1, false), true, None, turn);
        }
        all_due(&mut sampling, 0, true).iter().map(|span| span.trace.0).collect::<HashSet<u128>>()
    };
    let (tenth, other, half) = (chosen(0.1), chosen(0.1), chosen(0.5));
    assert!(tenth == other && tenth.is_subset(&half) && (120..280).contains(&tenth.len()), "{}", tenth.len());
}

#[test]
fn spans_wait_for_their_transaction_and_not_for_longer() {
    let mut sampling = sampling(0.0, 1 << 29);
    let failed = Some(KeepReason::Failed);
    // Its first span ends: half a second later it is decided, with what came until then.
    sampling.offer(&span(1, 0, 1, true), false, failed, 0);
    sampling.offer(&span(1, 1, 1, false), true, None, SECOND);
    assert!(all_due(&mut sampling, SECOND + SECOND / 4, false).is_empty());
    sampling.offer(&span(1, 2, 1, false), false, None, SECOND + SECOND / 4);
    let kept = Some(SamplingDecision { because: failed, threshold: Threshold::ALL });
    let spans = all_due(&mut sampling, SECOND + SECOND / 2, false);
    assert_eq!(spans.iter().map(|span| span.kept).collect::<Vec<_>>(), [kept; 3]);
    // What comes later follows, as long as the decision is remembered.
    assert_eq!(sampling.offer(&span(1, 3, 1, false), false, None, 2 * SECOND), kept);
    all_due(&mut sampling, 62 * SECOND, false);
    assert_eq!(sampling.offer(&span(1, 4, 1, false), false, None, 62 * SECOND), None);
    // Its first span does not end: it has waited for long enough.
    sampling.offer(&span(2, 0, 1, true), false, failed, 62 * SECOND);
    assert!(all_due(&mut sampling, 72 * SECOND - 1, false).is_empty());
    assert_eq!(all_due(&mut sampling, 72 * SECOND, false).len(), 1);
    // Dropped, and then it fails: what comes from then on is kept.
    sampling.offer(&span(3, 0, 1, false), true, None, 80 * SECOND);
    assert!(all_due(&mut sampling, 81 * SECOND, false).is_empty());
    assert_eq!(sampling.offer(&span(3, 1, 1, true), false, failed, 82 * SECOND), None);
    assert_eq!(all_due(&mut sampling, 92 * SECOND, false).len(), 1);
    assert_eq!(sampling.table_use()[0].entries, 0);
}

/// A transaction in the share fails late: had it not been in the share, that would have been kept all the same, so its weight
/// is 1.
#[test]
fn a_late_reason_changes_the_weight_of_what_comes() {
    let (mut sampling, trace) = (sampling(0.1, 1 << 29), (1 << 56) - 1);
    sampling.offer(&span(trace, 0, 1, false), true, None, 0);
    let first = all_due(&mut sampling, SECOND, false);
    let share = Some(SamplingDecision { because: None, threshold: Threshold::of_share(0.1) });
    assert_eq!(first[0].kept, share);
    assert_eq!(sampling.offer(&span(trace, 1, 1, false), false, None, SECOND), share);
    let failed = Some(SamplingDecision { because: Some(KeepReason::Failed), threshold: Threshold::ALL });
    for reason in [Some(KeepReason::Failed), None] {
        assert_eq!(sampling.offer(&span(trace, 2, 1, false), false, reason, SECOND), failed);
    }
    assert_eq!((sampling.decided().spans[index(share)], sampling.decided().spans[index(failed)]), (2, 2));
}

#[test]
fn tables_are_bounded() {
    let (mut sampling, mut random) = (sampling(0.5, 0), Random(1));
    let [held, decisions] = sampling.table_use().map(|table| table.limit);
    for turn in 0..20 * held {
        // None of their first spans ends.
        sampling.offer(&span(random.trace(), turn, 1, false), false, None, turn);
        all_due(&mut sampling, turn, false);
        let [now_held, now_decided] = sampling.table_use();
        assert!(now_held.entries <= held && now_decided.entries <= decisions + 1);
    }
    let [early, forgotten] = sampling.table_use().map(|table| table.reached);
    assert_eq!(early, 19 * held);
    assert!(forgotten > 0);
    all_due(&mut sampling, 20 * held, true);
    assert_eq!(sampling.held.table_use().entries, 0);
    // Ended transactions leave entries of the other queue behind, which go.
    for turn in 0..20 * held {
        sampling.offer(&span(random.trace(), turn, 1, false), true, None, turn * SECOND / 1000);
        all_due(&mut sampling, turn * SECOND / 1000, false);
    }
    assert!(sampling.held.queues() < 4 * 1024 + 8 * 500, "{}", sampling.held.queues());
}

#[test]
fn what_is_found_to_belong_together_is_decided_together() {
    let mut sampling = sampling(0.0, 1 << 29);
    sampling.offer(&span(1, 0, 1, false), true, None, 0);
    sampling.offer(&span(2, 10, 1, true), false, Some(KeepReason::Failed), 1);
    sampling.rename(TraceId(1), TraceId(2));
    // The other way round, into one that holds nothing yet.
    sampling.offer(&span(3, 20, 1, false), true, None, 2);
    sampling.adopt(SpanId(21), TraceId(3), SpanId(5), TraceId(4));
    sampling.offer(&span(4, 30, 1, true), false, Some(KeepReason::Failed), 3);
    let mut spans = all_due(&mut sampling, 20 * SECOND, false);
    spans.sort_by_key(|span| span.start);
    let found: Vec<_> = spans.iter().map(|span| (span.trace.0, span.parent)).collect();
    assert_eq!(found, [(2, None), (2, None), (4, Some(SpanId(5))), (4, None)]);
}

#[test]
fn randomness_that_the_caller_gave_decides() {
    let mut sampling = sampling(0.1, 1 << 29);
    for (trace, randomness) in [(1, "ffffffffffffff"), ((1 << 56) - 2, "00000000000000")] {
        let state = format!("ot=rv:{randomness}").into();
        let carried = Some(Arc::new(PropagatedContext { state, ..Default::default() }));
        sampling.offer(&Span { carried, ..span(trace, 0, 1, false) }, true, None, 0);
    }
    let traces: Vec<u128> = all_due(&mut sampling, 0, true).iter().map(|span| span.trace.0).collect();
    assert_eq!(traces, [1]);
}

#[test]
fn no_later_stage_lowers_a_threshold() {
    let (tenth, half) = (Threshold::of_share(0.1), Threshold::of_share(0.5));
    let kept = |threshold| Some(SamplingDecision { because: None, threshold });
    assert_eq!(combined(None, Threshold::ALL), None);
    assert_eq!(combined(None, half), Some(half));
    assert_eq!(combined(kept(tenth), half), Some(tenth));
    assert_eq!(combined(kept(Threshold::ALL), half), Some(half));
    assert_eq!(combined(kept(tenth), Threshold::ALL), Some(tenth));
}
