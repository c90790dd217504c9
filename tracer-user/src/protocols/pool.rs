//! Values that many connections keep, kept once: statements that every client of a server prepares, names that every client
//! of a host asks for.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Most that are looked for. Of more the set begins anew: what is kept stays, and is no longer found to be shared.
const LIMIT: usize = 4096;

/// Equal values of a kind.
#[derive(Debug)]
pub(super) struct Pool<T: 'static>(LazyLock<Mutex<HashSet<Arc<T>>>>);

impl<T: Eq + Hash> Pool<T> {
    /// Without any.
    pub(super) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The value, or one that is equal and kept already.
    pub(super) fn share(&self, value: T) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known.get(&value) {
            return Arc::clone(same);
        }
        if known.len() >= LIMIT {
            known.retain(|value| Arc::strong_count(value) > 1);
            if known.len() > LIMIT / 2 {
                known.clear();
            }
        }
        let made = Arc::new(value);
        known.insert(Arc::clone(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_kept_once_and_not_all_for_ever() {
        let pool: Pool<u32> = Pool::new();
        let kept = pool.share(7);
        assert!(Arc::ptr_eq(&kept, &pool.share(7)));
        for other in 0..100_000 {
            pool.share(other);
        }
        assert!(Arc::ptr_eq(&kept, &pool.share(7)), "it is in use");
        let all: Vec<Arc<u32>> = (0..10_000).map(|value| pool.share(value)).collect();
        assert!(pool.0.lock().unwrap().len() <= LIMIT && all.len() == 10_000);
    }
}
