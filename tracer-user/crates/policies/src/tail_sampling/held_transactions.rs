//! Spans that wait for the decision about their transaction.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::{KeepReason, Nanos, Span, SpanId, TraceId};

use super::trace_state::{explicit_randomness, randomness};

/// How long the others of a transaction are waited for once its first span has been reported, nanoseconds: reports of calls can
/// be deferred twice by then.
const SETTLE: Nanos = 500_000_000;
/// Entries of a queue that may be void before they are removed, besides as many as there are transactions.
const SLACK: usize = 1024;

/// What is held of a transaction.
#[derive(Debug)]
pub(super) struct HeldTransaction {
    pub(super) spans: Vec<Span>,
    /// The strongest reason so far.
    pub(super) reason: Option<KeepReason>,
    /// When the first of the spans came, and that which is the first on this host.
    since: Nanos,
    top: Option<Nanos>,
}

impl HeldTransaction {
    fn add_reason(&mut self, reason: Option<KeepReason>) {
        self.reason = match (self.reason, reason) {
            (Some(known), Some(reason)) => Some(known.min(reason)),
            (known, reason) => known.or(reason),
        };
    }

    /// What the decision is drawn from.
    pub(super) fn randomness(&self, trace: TraceId) -> u64 {
        let states = self.spans.iter().filter_map(|span| span.carried.as_deref());
        let explicit = states.map(|carried| &*carried.state).find_map(explicit_randomness);
        explicit.unwrap_or_else(|| randomness(trace, ""))
    }
}

/// Puts an entry where its time belongs.
fn insert(queue: &mut VecDeque<(Nanos, TraceId)>, at: Nanos, trace: TraceId) {
    let place = queue.partition_point(|(other, _)| *other <= at);
    queue.insert(place, (at, trace));
}

/// HeldTransactions transactions.
#[derive(Debug)]
pub(super) struct HeldTransactions {
    transactions: FxHashMap<TraceId, HeldTransaction>,
    /// By the time since when they are held, and by that of their first span. An entry is void if its transaction has another time.
    waiting: VecDeque<(Nanos, TraceId)>,
    settling: VecDeque<(Nanos, TraceId)>,
    wait: Nanos,
    spans: usize,
    spans_most: usize,
    /// Transactions that were decided early, for room.
    early: u64,
}

impl HeldTransactions {
    pub(super) fn new(wait: Nanos, spans_most: usize) -> Self {
        Self {
            transactions: FxHashMap::default(),
            waiting: VecDeque::new(),
            settling: VecDeque::new(),
            wait,
            spans: 0,
            spans_most,
            early: 0,
        }
    }

    pub(super) fn add(&mut self, span: Span, is_top: bool, reason: Option<KeepReason>, now: Nanos) {
        let trace = span.trace;
        let held = self.transactions.entry(trace).or_insert_with(|| {
            self.waiting.push_back((now, trace));
            HeldTransaction { spans: Vec::new(), reason: None, since: now, top: None }
        });
        held.add_reason(reason);
        if is_top && held.top.is_none() {
            held.top = Some(now);
            self.settling.push_back((now, trace));
        }
        if held.spans.capacity() == 0 {
            // A span is large, and many transactions have one.
            held.spans.reserve_exact(1);
        }
        held.spans.push(span);
        self.spans += 1;
        self.drop_void();
    }

    /// Removes void entries of the queues where they are many.
    fn drop_void(&mut self) {
        let most = 2 * self.transactions.len() + SLACK;
        if self.waiting.len() > most {
            let since = |trace: &TraceId| self.transactions.get(trace).map(|held| held.since);
            self.waiting.retain(|(at, trace)| since(trace) == Some(*at));
        }
        if self.settling.len() > most {
            let top = |trace: &TraceId| self.transactions.get(trace).and_then(|held| held.top);
            self.settling.retain(|(at, trace)| top(trace) == Some(*at));
        }
    }

    /// The next transaction to decide about: its first span was reported a moment ago, its spans have waited for long enough, or
    /// there is no room for more.
    pub(super) fn due(&mut self, now: Nanos, over: bool) -> Option<(TraceId, HeldTransaction)> {
        while let Some((at, trace)) = self.settling.front().copied() {
            let is_void = self.transactions.get(&trace).and_then(|held| held.top) != Some(at);
            if !is_void && !over && now.saturating_sub(at) < SETTLE {
                break;
            }
            self.settling.pop_front();
            if !is_void && let Some(held) = self.take(trace) {
                return Some((trace, held));
            }
        }
        while let Some((at, trace)) = self.waiting.front().copied() {
            let is_void = self.transactions.get(&trace).map(|held| held.since) != Some(at);
            let (is_due, is_full) = (over || now.saturating_sub(at) >= self.wait, self.spans > self.spans_most);
            if !is_void && !is_due && !is_full {
                break;
            }
            self.waiting.pop_front();
            if !is_void && let Some(held) = self.take(trace) {
                self.early += u64::from(!is_due);
                return Some((trace, held));
            }
        }
        None
    }

    fn take(&mut self, trace: TraceId) -> Option<HeldTransaction> {
        let held = self.transactions.remove(&trace)?;
        self.spans -= held.spans.len();
        Some(held)
    }

    pub(super) fn rename(&mut self, was: TraceId, trace: TraceId) {
        if was == trace {
            return;
        }
        let Some(mut moved) = self.transactions.remove(&was) else { return };
        for span in &mut moved.spans {
            span.trace = trace;
        }
        if let Some(held) = self.transactions.get_mut(&trace) {
            held.add_reason(moved.reason);
            held.spans.append(&mut moved.spans);
            return;
        }
        insert(&mut self.waiting, moved.since, trace);
        if let Some(top) = moved.top {
            insert(&mut self.settling, top, trace);
        }
        self.transactions.insert(trace, moved);
    }

    pub(super) fn adopt(&mut self, span: SpanId, was: TraceId, parent: SpanId) {
        let held = self.transactions.get_mut(&was);
        if let Some(span) = held.and_then(|held| held.spans.iter_mut().find(|known| known.id == span)) {
            span.parent.get_or_insert(parent);
            span.carrier = "relay";
        }
    }

    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        self.waiting.len() + self.settling.len()
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.spans, self.spans_most, self.early)
    }
}
