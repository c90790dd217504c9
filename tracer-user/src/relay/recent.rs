//! Contexts of one session whose transaction was not known for good: the message that settles one names it by how many came
//! after it, in the place of saying everything again. Both ends keep the same ones.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::key::Key;
use super::message::Context;

/// Most that are kept; one that is settled later than so many others is said in full.
const LIMIT: usize = 512;

/// Those the sending end remembers.
#[derive(Debug, Default)]
pub(super) struct Sent {
    count: u64,
    known: FxHashMap<Key, (u64, Context)>,
    order: VecDeque<Key>,
}

impl Sent {
    /// A context that is not settled was sent in full.
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

    /// How many were put after the one that `context` settles, where all else of it is the same.
    pub(super) fn back(&self, context: &Context) -> Option<u64> {
        let (number, known) = self.known.get(&context.key)?;
        let same = Context { trace: context.trace, settled: true, ..known.clone() } == *context;
        let back = self.count - number - 1;
        (same && back < LIMIT as u64).then_some(back)
    }
}

/// Those the receiving end remembers.
#[derive(Debug, Default)]
pub(super) struct Heard(VecDeque<Context>);

impl Heard {
    /// A context that is not settled came in full.
    pub(super) fn put(&mut self, context: &Context) {
        if self.0.len() >= LIMIT {
            self.0.pop_front();
        }
        self.0.push_back(context.clone());
    }

    /// The one after which `back` came.
    pub(super) fn of(&self, back: u64) -> Option<&Context> {
        let at = (self.0.len() as u64).checked_sub(1)?.checked_sub(back)?;
        self.0.get(at as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TraceId, UnitId};

    fn context(seq: u32) -> Context {
        Context {
            key: Key { opener: 1, accepting: 2, seq },
            trace: TraceId(1),
            parent: UnitId(1),
            settled: false,
            broadcast: false,
            sampled: None,
            service: "shop".into(),
            class: "".into(),
            carried: None,
            lookup: None,
        }
    }

    #[test]
    fn both_ends_count_alike() {
        let (mut sent, mut heard) = (Sent::default(), Heard::default());
        for seq in 0..3 * LIMIT as u32 {
            // Some are of the same call: only the last counts.
            let context = context(seq / 3 * 2);
            sent.put(&context);
            heard.put(&context);
            assert!(sent.known.len() <= LIMIT && sent.order.len() <= LIMIT && heard.0.len() <= LIMIT);
        }
        let mut found = 0;
        for seq in 0..3 * LIMIT as u32 {
            let settled = Context { trace: TraceId(9), settled: true, ..context(seq) };
            let Some(back) = sent.back(&settled) else { continue };
            assert_eq!(heard.of(back).unwrap().key.seq, seq);
            found += 1;
        }
        assert!(found >= LIMIT / 3, "{found}");
        let last = context(2 * LIMIT as u32 - 2);
        assert_eq!(sent.back(&Context { settled: true, ..last.clone() }), Some(0));
        assert_eq!(sent.back(&Context { settled: true, parent: UnitId(2), ..last }), None, "another call");
        assert_eq!((heard.of(LIMIT as u64), heard.of(u64::MAX)), (None, None));
    }
}
