//! Who calls whom: edges between services and classes, as the kept transactions show them.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_model::{ClassId, ServiceId, Side, Span, SpanId};

use super::{Store, StoredTransaction, seconds};

/// Most edges of one answer.
const EDGES: usize = 2000;
/// Most spans examined for one answer: the work happens between two drains of the rings.
const EXAMINED: usize = 30_000;

/// The other end of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A request that this agent saw served.
    Served(ServiceId, ClassId),
    /// Only its address and port are known.
    Address(Arc<str>, u16),
}

/// Where an edge leads from and to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EdgeKey {
    /// The calling service.
    pub caller: ServiceId,
    /// Class of the request that made the call, if its parent is known.
    pub cause: Option<ClassId>,
    /// Class of the call on the caller's side.
    pub call: ClassId,
    /// The other end.
    pub callee: Callee,
}

/// Calls along one edge, among the newest transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EdgeSample {
    /// Number of calls; 0 if only older transactions have one.
    pub calls: u64,
    /// Failed calls.
    pub errors: u64,
    /// Sum of durations, as the caller saw them, seconds.
    pub duration_s: f64,
}

impl Store {
    /// Edges between classes. Numbers count the newest transactions only: the others are kept because they are unusual.
    pub fn edges(&self) -> Vec<(EdgeKey, EdgeSample)> {
        let mut found: FxHashMap<EdgeKey, EdgeSample> = FxHashMap::default();
        let mut left = EXAMINED;
        // The newest first, so that a bound on work costs old ones.
        let newest = self.recent.iter().rev().filter_map(|trace| self.traces.get(trace));
        let others = self.traces.values().filter(|kept| !kept.recent);
        for kept in newest.chain(others) {
            left = left.saturating_sub(kept.spans.len().max(1));
            if left == 0 {
                break;
            }
            of_transaction(kept, &mut found);
        }
        found.into_iter().collect()
    }
}

fn of_transaction(kept: &StoredTransaction, found: &mut FxHashMap<EdgeKey, EdgeSample>) {
    let calls = kept.spans.iter().filter(|span| span.side == Side::Client);
    let served = || kept.spans.iter().filter(|span| span.side == Side::Server);
    // Transactions have up to hundreds of spans: an index beats a search for each call.
    let by_id: FxHashMap<SpanId, &Span> = served().map(|span| (span.id, span)).collect();
    let by_parent: FxHashMap<SpanId, &Span> =
        served().filter_map(|span| span.parent.map(|parent| (parent, span))).collect();
    for call in calls {
        let callee = match by_parent.get(&call.id) {
            Some(served) => Callee::Served(served.service, served.class),
            None => Callee::Address(Arc::clone(&call.peer), call.peer_port),
        };
        let cause = call.parent.and_then(|parent| by_id.get(&parent)).map(|span| span.class);
        let key = EdgeKey { caller: call.service, cause, call: call.class, callee };
        if found.len() >= EDGES && !found.contains_key(&key) {
            continue;
        }
        let sample = found.entry(key).or_default();
        if kept.recent {
            sample.calls += 1;
            sample.errors += u64::from(call.error);
            sample.duration_s += seconds(call.duration());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::sample_span::span;

    #[test]
    fn an_edge_joins_the_two_ends_of_a_call() {
        let mut store = Store::new(0, "h", 100);
        for (trace, error) in [(1, false), (2, true)] {
            let request =
                Span { id: SpanId(1), service: ServiceId(0), class: ClassId(0), ..span(trace, 5, 9_000_000, false) };
            let call = Span {
                id: SpanId(2),
                parent: Some(SpanId(1)),
                side: Side::Client,
                service: ServiceId(0),
                class: ClassId(1),
                ..span(trace, 6, 3_000_000, error)
            };
            let answered = Span {
                id: SpanId(3),
                parent: Some(SpanId(2)),
                service: ServiceId(1),
                class: ClassId(2),
                ..span(trace, 7, 2_000_000, false)
            };
            let outside = Span { id: SpanId(4), peer: Arc::from("10.0.0.9"), peer_port: 443, ..call.clone() };
            for span in [answered, call, outside, request] {
                store.take(span);
            }
        }
        let mut edges = store.edges();
        edges.sort_by_key(|(key, _)| matches!(key.callee, Callee::Address(..)));
        let [(inside, sample), (outside, _)] = edges.try_into().expect("two edges");
        assert_eq!((inside.caller, inside.cause, inside.call), (ServiceId(0), Some(ClassId(0)), ClassId(1)));
        assert_eq!(inside.callee, Callee::Served(ServiceId(1), ClassId(2)));
        assert_eq!((sample.calls, sample.errors), (2, 1));
        assert!((sample.duration_s - 0.006).abs() < 1e-9, "{sample:?}");
        assert_eq!(outside.callee, Callee::Address(Arc::from("10.0.0.9"), 443));
    }
}
