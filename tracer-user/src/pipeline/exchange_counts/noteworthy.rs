//! Counted exchanges that are reported one by one as well, the slow and the failed ones: which of a class are, and the spans
//! that they become.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_common::exchange_counts::{
    ClassLimits, DURATION_STEPS, ExchangeSums, NoteworthyExchange, OUTCOME_NONE, USUAL_OUTCOMES,
};
use tracer_model::{Accepted, Cost, Grade, Names, Side, Span};
use tracer_results::history::duration_counts::lower_bound_s;
use tracer_transactions::evidence::{Doubt, Reason};

use super::counted_spans::{decode, is_failure};
use super::{CountedClass, CountingOrder, ExchangeCounts};
use crate::pipeline::Pipeline;
use crate::pipeline::finished::is_error;

/// About how many of the slowest exchanges of a class are reported a second.
const SLOWEST: u64 = 20;
/// Most exchanges of a class that are reported a second, slow or failed.
const MOST: u64 = 50;

/// Exchanges of a second by duration.
type Steps = [u64; DURATION_STEPS];

/// What was counted of each class since the last reading, by the kernel's numbers.
#[derive(Debug, Default)]
pub(super) struct LastSecondDurations(FxHashMap<u32, Steps>);

impl LastSecondDurations {
    pub(super) fn add(&mut self, class: u32, sums: &ExchangeSums) {
        let steps = self.0.entry(class).or_insert([0; DURATION_STEPS]);
        for (step, more) in steps.iter_mut().zip(&sums.steps) {
            *step += more;
        }
    }
}

/// From what duration on an exchange is one of the slowest, if the next second is like this one; nanoseconds.
fn slow_from(steps: &Steps) -> u64 {
    let mut slower = 0;
    for (step, count) in steps.iter().enumerate().rev() {
        slower += count;
        if slower > SLOWEST {
            return (lower_bound_s(step + 1) * 1e9) as u64;
        }
    }
    // All of so few.
    0
}

/// The most frequent outcomes of a class that are no failures.
fn usual(class: &CountedClass) -> [u64; USUAL_OUTCOMES] {
    let fine = |outcome: u64| outcome != OUTCOME_NONE && !is_failure(&class.example, outcome);
    let mut known: Vec<(u64, u64)> = class
        .sums
        .iter()
        .map(|(outcome, sums)| (sums.count(), *outcome))
        .filter(|(_, outcome)| fine(*outcome))
        .collect();
    known.sort_unstable_by(|a, b| b.cmp(a));
    let mut usual = [OUTCOME_NONE; USUAL_OUTCOMES];
    for (slot, (_, outcome)) in usual.iter_mut().zip(known) {
        *slot = outcome;
    }
    usual
}

impl ExchangeCounts {
    /// A second has passed: decides which exchanges of each class are reported in the next one.
    pub(super) fn limit(&mut self, last: &LastSecondDurations) {
        for (number, steps) in &last.0 {
            let Some(class) = self.classes.get(*number as usize).and_then(Option::as_ref) else { continue };
            // Written each second: how many are left is known to the kernel side alone.
            let limits = ClassLimits { slow_from: slow_from(steps), usual: usual(class), left: MOST };
            self.orders.push(CountingOrder::Limit(*number, limits));
        }
    }

    /// A request like those of a class, if the exchange is of it: its number may have become another's.
    fn example(&self, exchange: &NoteworthyExchange) -> Option<Span> {
        let class = self.classes.get(exchange.class as usize)?.as_ref()?;
        (class.key.pid == exchange.header.tgid).then(|| class.example.clone())
    }
}

/// The span of an exchange like `example`.
fn span(example: Span, exchange: &NoteworthyExchange, names: &Names) -> Span {
    let (status, failure, outcome) = decode(example.protocol, exchange.outcome);
    let start = exchange.start;
    Span {
        tid: exchange.header.tid,
        cookie: exchange.cookie,
        // Requests of a class begin with several paths: which one this had was not kept.
        path: names
            .class(example.class)
            .filter(|class| !class.route.is_empty())
            .map_or_else(|| Arc::clone(&example.path), |class| Arc::clone(&class.route)),
        arrived: if exchange.queue == 0 { 0 } else { start.saturating_sub(exchange.queue) },
        accepted: Accepted::Before,
        after_reply: None,
        start,
        first_reply: exchange.first_reply,
        end: exchange.header.nanos.max(start),
        request_bytes: exchange.request_bytes,
        reply_bytes: exchange.reply_bytes,
        reply_body_bytes: None,
        status: status.filter(|status| *status != 0),
        failure,
        error: is_error(example.protocol, example.side, status, failure, outcome),
        outcome,
        cost: Cost { cpu: exchange.cpu, runq: exchange.runq, blocked: exchange.blocked, switches: 0 },
        downstream: 0,
        calls: 0,
        grade: Grade::Ambiguous,
        evidence: Reason::Against(Doubt::CountedOnly).text(),
        network: None,
        ..example
    }
}

impl Pipeline {
    /// A counted exchange is worth a look: its span is kept, and exported. It is in the sums, and not counted again.
    pub(in crate::pipeline) fn noteworthy_exchange(&mut self, exchange: &NoteworthyExchange) {
        let Some(example) = self.exchange_counts.example(exchange) else { return };
        let mut span = span(example, exchange, &self.names);
        self.engine.identify_noteworthy(&mut span);
        self.export(&span, span.side == Side::Server);
        self.store.take(span);
    }
}

#[cfg(test)]
mod tests {
    use tracer_common::event::Header;
    use tracer_common::exchange_counts::duration_step;

    use super::*;
    use tracer_model::{Outcome, ProtocolId, sample_span};

    #[test]
    fn the_slowest_of_a_second_are_those_behind_a_step() {
        let mut steps = [0; DURATION_STEPS];
        steps[duration_step(1_000_000)] = 10_000;
        // Twice the usual duration.
        steps[duration_step(2_000_000)] = 15;
        steps[duration_step(90_000_000)] = 5;
        let from = slow_from(&steps);
        assert!((1_000_000..=2_000_000).contains(&from), "{from}");
        steps[duration_step(2_000_000)] = 16;
        assert!(slow_from(&steps) > 2_000_000);
        assert_eq!(slow_from(&[0; DURATION_STEPS]), 0);
    }

    #[test]
    fn a_counted_exchange_becomes_a_span_of_its_own() {
        let example = Span { protocol: ProtocolId::Http, ..sample_span::span(1, 5, 10, false) };
        let exchange = NoteworthyExchange {
            header: Header { nanos: 9_000, tid: 77, tgid: example.pid, ..Header::default() },
            cookie: 4,
            outcome: u64::from(u32::from_ne_bytes(*b"503\0")),
            start: 5_000,
            first_reply: 8_000,
            queue: 100,
            cpu: 700,
            ..NoteworthyExchange::default()
        };
        let span = span(example, &exchange, &Names::default());
        assert_eq!((span.arrived, span.start, span.first_reply, span.end), (4_900, 5_000, 8_000, 9_000));
        assert_eq!((span.status, span.error, span.outcome), (Some(503), true, Outcome::Complete));
        assert_eq!((span.tid, span.cookie, span.cost.cpu, span.grade), (77, 4, 700, Grade::Ambiguous));
    }
}
