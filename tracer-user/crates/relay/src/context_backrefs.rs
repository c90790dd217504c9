//! Back references to unsettled contexts of one session: the message that settles a context names it by how many
//! contexts followed it, instead of repeating it. Both ends keep the same contexts.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::key::RequestKey;
use super::message::{Context, Garbage};

/// Most contexts kept; one that is settled after this many others is sent in full.
const LIMIT: usize = 512;

/// Contexts the sending end keeps.
#[derive(Debug, Default)]
pub(super) struct SentContexts {
    count: u64,
    known: FxHashMap<RequestKey, (u64, Context)>,
    order: VecDeque<RequestKey>,
}

impl SentContexts {
    /// Adds an unsettled context that was sent in full.
    pub(super) fn put(&mut self, context: &Context) {
        if self.order.len() >= LIMIT
            && let Some(oldest) = self.order.pop_front()
            && self.known.get(&oldest).is_some_and(|(number, _)| self.count - number >= LIMIT as u64)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(context.key, (self.count, context.clone()));
        self.order.push_back(context.key);
        self.count += 1;
    }

    /// How many contexts followed the one that `context` settles, if the two differ in nothing but the transaction.
    pub(super) fn back(&self, context: &Context) -> Option<u64> {
        let (number, known) = self.known.get(&context.key)?;
        let same = Context { trace: context.trace, settled: true, ..known.clone() } == *context;
        let back = self.count - number - 1;
        (same && back < LIMIT as u64).then_some(back)
    }
}

/// Contexts the receiving end keeps.
#[derive(Debug, Default)]
pub(super) struct ReceivedContexts(VecDeque<Option<Context>>);

impl ReceivedContexts {
    /// Adds an unsettled context that was received in full; `None` for an ignored one.
    pub(super) fn put(&mut self, context: Option<Context>) {
        if self.0.len() >= LIMIT {
            self.0.pop_front();
        }
        self.0.push_back(context);
    }

    /// The context that `back` others followed; `None` if it was ignored.
    pub(super) fn of(&self, back: u64) -> Result<Option<&Context>, Garbage> {
        let at = (self.0.len() as u64).checked_sub(1).and_then(|last| last.checked_sub(back));
        let found = at.and_then(|at| self.0.get(at as usize)).ok_or(Garbage::Name)?;
        Ok(found.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{SpanId, TraceId};

    fn context(seq: u32) -> Context {
        Context {
            key: RequestKey { opener: 1, accepting: 2, seq },
            trace: TraceId(1),
            parent: SpanId(1),
            settled: false,
            broadcast: false,
            trace_flags: None,
            service: "shop".into(),
            class: "".into(),
            carried: None,
            root: crate::message::ContextRoot::Unknown,
        }
    }

    #[test]
    fn both_ends_count_alike() {
        let (mut sent, mut received) = (SentContexts::default(), ReceivedContexts::default());
        for seq in 0..3 * LIMIT as u32 {
            // Some belong to the same call: only the last counts.
            let context = context(seq / 3 * 2);
            sent.put(&context);
            received.put(Some(context));
            assert!(sent.known.len() <= LIMIT && sent.order.len() <= LIMIT && received.0.len() <= LIMIT);
        }
        let mut found = 0;
        for seq in 0..3 * LIMIT as u32 {
            let settled = Context { trace: TraceId(9), settled: true, ..context(seq) };
            let Some(back) = sent.back(&settled) else { continue };
            assert_eq!(received.of(back).unwrap().unwrap().key.seq, seq);
            found += 1;
        }
        assert!(found >= LIMIT / 3, "{found}");
        let last = context(2 * LIMIT as u32 - 2);
        assert_eq!(sent.back(&Context { settled: true, ..last.clone() }), Some(0));
        assert_eq!(sent.back(&Context { settled: true, parent: SpanId(2), ..last }), None, "another call");
        assert!(received.of(LIMIT as u64).is_err() && received.of(u64::MAX).is_err());
    }
}
