//! Calls whose context was sent to the other end's agent, which may answer with a summary.

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;

use super::key::RequestKey;

/// Most calls that wait for a summary.
pub const LIMIT: usize = 65_536;

/// Calls by key. `U` identifies a call in the engine.
#[derive(Debug)]
pub struct Calls<U> {
    calls: FxHashMap<u64, (RequestKey, U)>,
    limit: usize,
    /// Calls not remembered because the table was full.
    pub refused: u64,
}

impl<U: Copy> Calls<U> {
    /// An empty table for `limit` calls.
    pub fn new(limit: usize) -> Self {
        Self { calls: FxHashMap::default(), limit, refused: 0 }
    }

    /// Number of calls remembered.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The table's limit.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Remembers a call whose context was sent.
    pub fn sent(&mut self, key: RequestKey, call: U) {
        if self.calls.len() < self.limit || self.calls.contains_key(&key.place()) {
            self.calls.insert(key.place(), (key, call));
        } else {
            self.refused += 1;
        }
    }

    /// The call, if it is still remembered.
    pub fn of(&self, key: RequestKey) -> Option<U> {
        self.calls.get(&key.place()).filter(|(known, _)| known.fits(key)).map(|(_, call)| *call)
    }

    /// Takes the call that the other end answered, if it is still remembered. Each call is returned once.
    pub fn answered(&mut self, key: RequestKey) -> Option<U> {
        let call = self.of(key);
        if call.is_some() {
            self.calls.remove(&key.place());
        }
        call
    }

    /// Forgets a call that was reported.
    pub fn over(&mut self, key: RequestKey) {
        if self.calls.get(&key.place()).is_some_and(|(known, _)| *known == key) {
            self.calls.remove(&key.place());
        }
    }

    /// Frees memory of a table that is mostly empty.
    pub fn shrink_excess(&mut self) {
        self.calls.shrink_excess();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_call_once() {
        let key = |seq| RequestKey { opener: 5, accepting: 6, seq };
        let mut calls = Calls::new(2);
        calls.sent(key(1), 'a');
        calls.sent(key(2), 'b');
        calls.sent(key(3), 'c');
        assert_eq!((calls.len(), calls.refused), (2, 1));
        assert_eq!(calls.answered(RequestKey { opener: 6, ..key(1) }), Some('a'), "a FIN came before");
        assert_eq!(calls.answered(key(1)), None);
        assert_eq!(calls.answered(RequestKey { opener: 9, ..key(2) }), None, "another connection");
        calls.over(key(2));
        assert!(calls.is_empty());
    }
}
