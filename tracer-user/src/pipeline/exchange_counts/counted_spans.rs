//! What the kernel side counted, as spans: each stands for the exchanges of one class, outcome and step of durations.

use std::collections::HashMap;

use tracer_common::exchange_counts::{DURATION_STEPS, ExchangeSums, OUTCOME_NONE, OUTCOME_UNREAD};
use tracer_common::limits::COUNTED_CLASSES_MAX;
use tracer_model::{ClassId, Cost, Nanos, Outcome, ProtocolId, Span};
use tracer_protocols::{memcached, redis};
use tracer_results::history::duration_counts::lower_bound_s;

use crate::pipeline::finished::is_error;

/// What was counted since `before`. Its words are read one by one while they grow: none is less than before.
pub(super) fn since(sums: &ExchangeSums, before: Option<&ExchangeSums>) -> ExchangeSums {
    let Some(before) = before else { return *sums };
    let mut steps = sums.steps;
    for (step, before) in steps.iter_mut().zip(&before.steps) {
        *step = step.saturating_sub(*before);
    }
    ExchangeSums {
        duration: sums.duration.saturating_sub(before.duration),
        queue: sums.queue.saturating_sub(before.queue),
        request_bytes: sums.request_bytes.saturating_sub(before.request_bytes),
        reply_bytes: sums.reply_bytes.saturating_sub(before.reply_bytes),
        steps,
    }
}

/// Spans like `example` for what was counted: one for each step of durations. Together they have these sums, as far as
/// whole numbers and the steps' bounds allow.
pub(super) fn spans(example: &Span, outcome: u64, sums: &ExchangeSums, now: Nanos, out: &mut Vec<(Span, u64)>) {
    let count = sums.count();
    let middle = |step: usize| (lower_bound_s(step) * lower_bound_s(step + 1)).sqrt() * 1e9;
    let guessed: f64 = (0..DURATION_STEPS).zip(&sums.steps).map(|(step, n)| middle(step) * *n as f64).sum();
    let correction = if guessed > 0.0 { sums.duration as f64 / guessed } else { 1.0 };
    let (status, failure, end) = decode(example.protocol, outcome);
    let error = is_error(example.protocol, example.side, status, failure, end);
    let each = |sum: u64| sum.checked_div(count).unwrap_or(0);
    for (step, n) in sums.steps.iter().enumerate().filter(|(_, n)| **n > 0) {
        let (least, most) = (lower_bound_s(step) * 1e9, lower_bound_s(step + 1) * 1e9);
        let nanos =
            if step == 0 { (middle(0) * correction).min(most) } else { (middle(step) * correction).clamp(least, most) };
        let start = now.saturating_sub(nanos as u64);
        let queue = each(sums.queue);
        let span = Span {
            arrived: if example.arrived == 0 { 0 } else { start.saturating_sub(queue) },
            start,
            first_reply: now,
            end: now,
            request_bytes: each(sums.request_bytes),
            reply_bytes: each(sums.reply_bytes),
            reply_body_bytes: None,
            status: status.filter(|status| *status != 0),
            failure,
            error,
            outcome: end,
            cost: Cost::default(),
            ..example.clone()
        };
        out.push((span, *n));
    }
}

/// What exchanges of a process and class used on average, for books that charge each span by itself: the kernel side knows their sum.
/// `waiting` holds what was used for exchanges of which none has ended yet.
pub(super) fn mean_costs(
    spans: &[(Span, u64)],
    costs: &[(u32, ClassId, Cost)],
    waiting: &mut HashMap<(u32, ClassId), Cost>,
) -> HashMap<(u32, ClassId), Cost> {
    if waiting.len() > COUNTED_CLASSES_MAX as usize {
        // Of processes that are gone.
        waiting.clear();
    }
    for (pid, class, cost) in costs {
        waiting.entry((*pid, *class)).or_default().add(*cost);
    }
    let mut counts: HashMap<(u32, ClassId), u64> = HashMap::new();
    for (span, count) in spans {
        *counts.entry((span.pid, span.class)).or_default() += count;
    }
    let mean = |(key, count): ((u32, ClassId), u64)| {
        let sum = waiting.remove(&key)?;
        let each = |sum: u64| sum.checked_div(count).unwrap_or(0);
        let mean = Cost { cpu: each(sum.cpu), runq: each(sum.runq), blocked: each(sum.blocked), switches: 0 };
        Some((key, mean))
    };
    counts.into_iter().filter_map(mean).collect()
}

/// Whether an exchange like `example` with this outcome failed.
pub(super) fn is_failure(example: &Span, outcome: u64) -> bool {
    let (status, failure, end) = decode(example.protocol, outcome);
    is_error(example.protocol, example.side, status, failure, end)
}

/// Status, failure and end of an exchange by what the kernel side kept of its reply.
pub(super) fn decode(protocol: ProtocolId, outcome: u64) -> (Option<u16>, Option<&'static str>, Outcome) {
    match outcome {
        OUTCOME_NONE => return (None, None, Outcome::Aborted),
        OUTCOME_UNREAD => return (None, None, Outcome::Unfinished),
        _ => {}
    }
    let bytes = outcome.to_ne_bytes();
    if protocol == ProtocolId::Redis {
        let failure = (bytes[0] == b'-').then(|| redis::failure_by_front(&bytes[1..]));
        return (Some(0), failure, Outcome::Complete);
    }
    if protocol == ProtocolId::Memcached {
        return (Some(0), memcached::failure_by_front(&bytes), Outcome::Complete);
    }
    let digits = bytes.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
    (digits.and_then(|digits| digits.parse().ok()), None, Outcome::Complete)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::sample_span;

    #[test]
    fn outcomes_are_statuses_and_errors() {
        let word = |bytes: &[u8]| {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(all)
        };
        assert_eq!(decode(ProtocolId::Http, word(b"404")), (Some(404), None, Outcome::Complete));
        assert_eq!(decode(ProtocolId::Http, OUTCOME_NONE), (None, None, Outcome::Aborted));
        assert_eq!(decode(ProtocolId::Redis, word(b"$")), (Some(0), None, Outcome::Complete));
        assert_eq!(decode(ProtocolId::Redis, word(b"-WRONGTY")), (Some(0), Some("WRONGTYPE"), Outcome::Complete));
        assert_eq!(decode(ProtocolId::Redis, word(b"-ERR unk")), (Some(0), Some("ERR"), Outcome::Complete));
        assert_eq!(decode(ProtocolId::Memcached, word(b"EN")), (Some(0), None, Outcome::Complete));
        assert_eq!(decode(ProtocolId::Memcached, word(b"SE")), (Some(0), Some("SERVER_ERROR"), Outcome::Complete));
        assert_eq!(decode(ProtocolId::Redis, OUTCOME_UNREAD), (None, None, Outcome::Unfinished));
    }

    #[test]
    fn what_exchanges_used_is_shared_among_those_that_ended() {
        let span = sample_span::span(1, 5, 10, false);
        let (key, used) = ((span.pid, span.class), Cost { cpu: 90, runq: 31, blocked: 3, switches: 0 });
        let costs = [(span.pid, span.class, used)];
        let mut waiting = HashMap::new();
        assert!(mean_costs(&[], &costs, &mut waiting).is_empty());
        let means = mean_costs(&[(span.clone(), 4), (span, 2)], &costs, &mut waiting);
        assert_eq!(means.get(&key), Some(&Cost { cpu: 30, runq: 10, blocked: 1, switches: 0 }));
        assert!(waiting.is_empty());
    }

    #[test]
    fn spans_have_their_sums_and_stay_in_their_steps() {
        let mut sums =
            ExchangeSums { duration: 0, queue: 500, request_bytes: 1000, reply_bytes: 20_000, steps: [0; 128] };
        for nanos in [20_000u64, 21_000, 22_000, 100_000, 110_000, 120_000, 500_000, 520_000, 2_000_000, 2_100_000] {
            sums.steps[tracer_common::exchange_counts::duration_step(nanos)] += 1;
            sums.duration += nanos;
        }
        let mut out = Vec::new();
        let example = Span { protocol: ProtocolId::Http, ..sample_span::span(1, 5, 10, false) };
        spans(&example, u64::from(u32::from_ne_bytes(*b"200\0")), &sums, 1 << 40, &mut out);
        let sum: u64 = out.iter().map(|(span, n)| span.duration() * n).sum();
        assert!(sum.abs_diff(sums.duration) * 20 < sums.duration, "{sum} of {}", sums.duration);
        assert_eq!(out.iter().map(|(_, n)| n).sum::<u64>(), 10);
        for (span, _) in &out {
            assert_eq!((span.status, span.error, span.request_bytes), (Some(200), false, 100));
            let step = tracer_common::exchange_counts::duration_step(span.duration());
            assert!((0..2).any(|off| sums.steps.get(step + off).is_some_and(|n| *n > 0)), "{}", span.duration());
        }
    }
}
