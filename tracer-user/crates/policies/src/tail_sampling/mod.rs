//! Which transactions are exported, decided when they are over: those with a reason, and a share of all others.
//!
//! Spans of a transaction are held until its first span on this host has ended, or for a bounded time, and then exported
//! together or not at all. The share is drawn from the randomness of the trace id, so agents of several hosts choose alike without
//! telling each other. A reason is looked for in every transaction, in the share or not, and independently of its randomness:
//! so the share of all with a reason (normally 1) is the probability of each of them, as the specification of consistent sampling asks,
//! and sums of adjusted counts are unbiased. Pure.

mod held_transactions;
mod reasons;
mod shares;
mod trace_state;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use held_transactions::HeldTransactions;
use reasons::Reasons;
use rustc_hash::FxHashMap;
use shares::Shares;
pub use trace_state::{randomness, with_threshold};
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{ClassId, KeepReason, Nanos, SamplingDecision, Span, SpanId, Threshold, TraceId};

/// Most spans that are held, and most decisions that are remembered, at the default memory limit.
const HELD: usize = 32_768;
const DECISIONS: usize = 65_536;
/// How long a decision to export is remembered, nanoseconds: spans that come later are judged anew.
const REMEMBERED: Nanos = 60_000_000_000;

/// What is exported.
#[derive(Clone, Debug, PartialEq)]
pub struct TailSamplingSettings {
    /// Share of transactions without a reason, 0 to 1.
    pub share: f64,
    /// Reasons that keep a transaction.
    pub keep: Vec<KeepReason>,
    /// A class with fewer requests a minute is rare.
    pub rare_per_minute: u32,
    /// Most exported spans a second.
    pub spans_per_second: Option<u32>,
    /// How long a span waits for its transaction to end.
    pub wait: Duration,
}

impl Default for TailSamplingSettings {
    fn default() -> Self {
        Self {
            share: 1.0,
            keep: vec![KeepReason::Failed, KeepReason::Slow, KeepReason::Rare],
            rare_per_minute: 10,
            spans_per_second: None,
            wait: Duration::from_secs(10),
        }
    }
}

/// What became of transactions, and of their spans: by reason, in the share of the others, and not exported.
pub const DECISION_NAMES: [&str; 6] = ["failed", "slow", "rare", "finding", "share", "dropped"];

/// Numbers by [`DECISION_NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Transactions; what comes after a decision not to export one is another.
    pub transactions: [u64; DECISION_NAMES.len()],
    /// Spans.
    pub spans: [u64; DECISION_NAMES.len()],
}

fn index(kept: Option<SamplingDecision>) -> usize {
    match kept {
        Some(SamplingDecision { because: Some(reason), .. }) => reason as usize,
        Some(SamplingDecision { because: None, .. }) => 4,
        None => 5,
    }
}

/// Holds spans, and decides.
#[derive(Debug)]
pub struct TailSampling {
    reasons: Reasons,
    shares: Shares,
    held: HeldTransactions,
    /// Exported transactions, for spans that come later; oldest last.
    decisions: FxHashMap<TraceId, SamplingDecision>,
    remembered: VecDeque<(Nanos, TraceId)>,
    decisions_most: usize,
    /// Decisions that were forgotten early.
    forgotten: u64,
    decided: DecisionCounts,
}

impl TailSampling {
    /// Within a memory limit of `memory` bytes; `None` if the settings export everything.
    pub fn new(settings: &TailSamplingSettings, memory: u64) -> Option<Self> {
        if settings.share >= 1.0 && settings.spans_per_second.is_none() {
            return None;
        }
        Some(Self {
            reasons: Reasons::new(settings),
            shares: Shares::new(settings.share, settings.spans_per_second),
            held: HeldTransactions::new(settings.wait.as_nanos() as u64, scaled(HELD, memory)),
            decisions: FxHashMap::default(),
            remembered: VecDeque::new(),
            decisions_most: scaled(DECISIONS, memory),
            forgotten: 0,
            decided: DecisionCounts::default(),
        })
    }

    /// The reason that a span gives to keep its transaction; see [`Self::offer`]. `tail`: requests of a class lately, and
    /// their 99th percentile.
    pub fn reason(
        &mut self,
        span: &Span,
        is_top: bool,
        now: Nanos,
        tail: impl FnOnce(ClassId) -> (u64, Nanos),
    ) -> Option<KeepReason> {
        self.reasons.of(span, is_top, now, tail)
    }

    /// A span has finished. The answer is the decision, if that was made before; else the span is held, and [`Self::due`] gives
    /// it back. `is_top`: it is the first of its transaction on this host.
    pub fn offer(
        &mut self,
        span: &Span,
        is_top: bool,
        reason: Option<KeepReason>,
        now: Nanos,
    ) -> Option<SamplingDecision> {
        let Some(kept) = self.decisions.get_mut(&span.trace) else {
            self.held.add(span.clone(), is_top, reason, now);
            return None;
        };
        // It would be exported for this reason whether in the share or not, so it does not stand for others.
        if kept.because.is_none() && reason.is_some() {
            *kept = SamplingDecision { because: reason, threshold: self.shares.reasons.min(kept.threshold) };
        }
        let kept = *kept;
        self.shares.seen(kept.because.is_some(), 1);
        self.decided.spans[index(Some(kept))] += 1;
        Some(kept)
    }

    /// The spans of the next transaction that is to be exported, each with the decision; `None` if none is due. With `over`, none
    /// has to wait.
    pub fn due(&mut self, now: Nanos, over: bool) -> Option<Vec<Span>> {
        self.shares.tick(now);
        self.forget(now);
        while let Some((trace, transaction)) = self.held.due(now, over) {
            let has_reason = transaction.reason.is_some();
            self.shares.seen(has_reason, transaction.spans.len());
            let threshold = if has_reason { self.shares.reasons } else { self.shares.others };
            let kept = SamplingDecision { because: transaction.reason, threshold };
            let kept = threshold.keeps(transaction.randomness(trace)).then_some(kept);
            let index = index(kept);
            self.decided.transactions[index] += 1;
            self.decided.spans[index] += transaction.spans.len() as u64;
            if let Some(kept) = kept {
                self.remember(trace, kept, now);
                let mut spans = transaction.spans;
                for span in &mut spans {
                    span.kept = Some(kept);
                }
                return Some(spans);
            }
        }
        None
    }

    fn remember(&mut self, trace: TraceId, kept: SamplingDecision, now: Nanos) {
        if self.decisions.insert(trace, kept).is_none() {
            self.remembered.push_back((now, trace));
        }
    }

    fn forget(&mut self, now: Nanos) {
        while let Some((at, trace)) = self.remembered.front().copied() {
            let is_old = now.saturating_sub(at) >= REMEMBERED;
            if !is_old && self.remembered.len() <= self.decisions_most {
                return;
            }
            self.forgotten += u64::from(!is_old);
            self.remembered.pop_front();
            self.decisions.remove(&trace);
        }
    }

    /// What is held of transaction `was` belongs to `trace`.
    pub fn rename(&mut self, was: TraceId, trace: TraceId) {
        self.held.rename(was, trace);
    }

    /// `span` was reported in transaction `was` without a parent, which is `parent` in `trace`.
    pub fn adopt(&mut self, span: SpanId, was: TraceId, parent: SpanId, trace: TraceId) {
        self.held.adopt(span, was, parent);
        self.held.rename(was, trace);
    }

    /// Whether open findings keep transactions.
    pub fn wants_findings(&self) -> bool {
        self.reasons.wants(KeepReason::Finding)
    }

    /// Classes with open findings.
    pub fn set_findings(&mut self, classes: HashSet<ClassId>) {
        self.reasons.set_findings(classes);
    }

    /// What became of transactions so far.
    pub fn decided(&self) -> DecisionCounts {
        self.decided
    }

    /// Shares that are exported now: of transactions with a reason, and of the others.
    pub fn shares(&self) -> [(&'static str, f64); 2] {
        [("with_reason", self.shares.reasons.share()), ("others", self.shares.others.share())]
    }

    /// Use of the tables of held spans and of decisions.
    pub fn table_use(&self) -> [TableUse; 2] {
        [self.held.table_use(), TableUse::new(self.decisions.len(), self.decisions_most, self.forgotten)]
    }
}

/// The threshold of a span after a downstream share: no stage can lower what an earlier one raised.
pub fn combined(kept: Option<SamplingDecision>, share: Threshold) -> Option<Threshold> {
    let before = kept.map(|kept| kept.threshold);
    if share == Threshold::ALL { before } else { before.max(Some(share)) }
}

#[cfg(test)]
mod tests;
