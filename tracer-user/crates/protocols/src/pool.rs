//! Shares values that many connections keep: statements that every client of a server prepares, names that every client
//! of a host looks up, paths requested recently.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{Hash, Hasher as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::http1::text;

/// Most values in the set. Beyond it the set starts afresh: kept values stay, but are no longer found for sharing.
const LIMIT: usize = 4096;

/// Pool of equal values of one type.
#[derive(Debug)]
pub(super) struct Pool<T: 'static>(LazyLock<Mutex<HashSet<Arc<T>>>>);

impl<T: Eq + Hash> Pool<T> {
    /// An empty pool.
    pub(super) const fn new() -> Self {
        Self(LazyLock::new(Mutex::default))
    }

    /// The value, or an equal one already in the pool.
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

/// Number of texts that [`recent`] remembers, a power of two.
const RECENT: usize = 256;

thread_local! {
    static LATELY: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// `bytes` as [`text`]; the same string as for equal bytes recently, unless another took its slot: repeated values are
/// not checked, allocated and freed each time.
pub(super) fn recent(bytes: &[u8]) -> Arc<str> {
    let mut hasher = rustc_hash::FxHasher::default();
    hasher.write(bytes);
    // The upper bits of this hash are the best.
    let place = (hasher.finish() >> 32) as usize % RECENT;
    LATELY.with_borrow_mut(|lately| {
        if lately.is_empty() {
            lately.resize(RECENT, Arc::from(""));
        }
        match lately.get_mut(place) {
            Some(same) if same.as_bytes() == bytes => Arc::clone(same),
            Some(other) => {
                *other = text(bytes);
                Arc::clone(other)
            }
            None => text(bytes),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_lately_is_the_same_text() {
        let first = recent(b"/orders");
        assert!(Arc::ptr_eq(&first, &recent(b"/orders")) && &*first == "/orders");
        for n in 0..10 * RECENT {
            let path = format!("/orders/{n}");
            assert_eq!(&*recent(path.as_bytes()), path);
        }
        assert!(!Arc::ptr_eq(&first, &recent(b"/orders")), "it is not remembered for ever");
        assert_eq!((&*recent(b"\xff"), &*recent("\u{fffd}".as_bytes()), &*recent(b"")), ("\u{fffd}", "\u{fffd}", ""));
    }

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
