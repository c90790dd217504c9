//! A hash map for repeated look-ups of one key: an operation looks up its connection and thread a dozen times. The last
//! hit is tried first, which costs a comparison instead of a search.

use std::cell::Cell;
use std::hash::Hash;
use std::mem::size_of;

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::{self, ShrinkExcess};

/// Entries by key. Unbounded: callers check [`LastHitMap::len`] before they insert.
#[derive(Debug)]
pub(super) struct LastHitMap<K, V> {
    places: FxHashMap<K, u32>,
    entries: Vec<Option<(K, V)>>,
    /// Free indices of `entries`.
    free: Vec<u32>,
    /// Index of the last hit. The entry may have been replaced or removed since; its key shows that.
    last: Cell<u32>,
}

impl<K, V> Default for LastHitMap<K, V> {
    fn default() -> Self {
        Self { places: FxHashMap::default(), entries: Vec::new(), free: Vec::new(), last: Cell::new(0) }
    }
}

impl<K: Copy + Eq + Hash, V> LastHitMap<K, V> {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the last hit is the entry of `key`.
    #[inline]
    fn is_last(&self, key: &K) -> bool {
        matches!(self.entries.get(self.last.get() as usize), Some(Some((found, _))) if found == key)
    }

    #[cold]
    #[inline(never)]
    fn search(&self, key: &K) -> Option<u32> {
        let place = *self.places.get(key)?;
        self.last.set(place);
        Some(place)
    }

    #[inline]
    fn place(&self, key: &K) -> Option<u32> {
        if self.is_last(key) { Some(self.last.get()) } else { self.search(key) }
    }

    /// Whether `key` is in it.
    #[inline]
    pub(super) fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_some()
    }

    /// The value of `key`.
    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        if let Some(Some((found, value))) = self.entries.get(self.last.get() as usize)
            && found == key
        {
            return Some(value);
        }
        let place = self.search(key)?;
        self.entries.get(place as usize)?.as_ref().map(|(_, value)| value)
    }

    /// The value of `key`.
    #[inline]
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        if self.is_last(key) {
            // The checks are those of `is_last` once more, which the compiler sees.
            let last = self.last.get() as usize;
            return self.entries.get_mut(last)?.as_mut().map(|(_, value)| value);
        }
        let place = self.search(key)?;
        self.entries.get_mut(place as usize)?.as_mut().map(|(_, value)| value)
    }

    /// The value of `key`, inserting `made()` if there is none.
    pub(super) fn or_insert_with(&mut self, key: K, made: impl FnOnce() -> V) -> &mut V {
        let place = match self.place(&key) {
            Some(place) => place as usize,
            None => self.insert(key),
        };
        // Only an index that was just handed out is empty.
        &mut self.entries[place].get_or_insert_with(|| (key, made())).1
    }

    /// Reserves an empty index for a new key.
    fn insert(&mut self, key: K) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        self.places.insert(key, place);
        self.last.set(place);
        place as usize
    }

    /// Removes `key` and returns its value.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        self.free.push(place);
        self.entries.get_mut(place as usize)?.take().map(|(_, value)| value)
    }

    /// All entries, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().flatten().map(|(key, value)| (key, value))
    }

    /// All entries, in no particular order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.iter_mut().flatten().map(|(key, value)| (&*key, value))
    }
}

impl<K: Copy + Eq + Hash, V> ShrinkExcess for LastHitMap<K, V> {
    /// Compacts the entries, then releases the memory behind them.
    fn shrink_excess(&mut self) {
        if shrink::wanted(self.len(), self.entries.capacity(), size_of::<Option<(K, V)>>()).is_none() {
            return;
        }
        self.entries.retain(Option::is_some);
        self.entries.shrink_excess();
        self.free = Vec::new();
        self.places.shrink_excess();
        for (place, (key, _)) in self.entries.iter().flatten().enumerate() {
            self.places.insert(*key, place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_any_table_would(steps in proptest::collection::vec((0u8..6, 0u64..12, any::<u32>()), 0..400)) {
            let (mut near, mut plain) = (LastHitMap::default(), HashMap::new());
            for (what, key, value) in steps {
                match what {
                    0 | 1 => prop_assert_eq!(
                        near.or_insert_with(key, || value), plain.entry(key).or_insert(value)
                    ),
                    2 => prop_assert_eq!(near.remove(&key), plain.remove(&key)),
                    3 => prop_assert_eq!(near.get_mut(&key), plain.get_mut(&key)),
                    4 => prop_assert_eq!(near.contains_key(&key), plain.contains_key(&key)),
                    _ => prop_assert_eq!(near.get(&key), plain.get(&key)),
                }
                prop_assert_eq!(near.len(), plain.len());
            }
            let all: HashMap<u64, u32> = near.iter().map(|(key, value)| (*key, *value)).collect();
            prop_assert_eq!(all, plain);
        }
    }

    #[test]
    fn room_goes_and_entries_stay() {
        let mut near: LastHitMap<u64, [u64; 8]> = LastHitMap::default();
        for key in 0..100_000 {
            near.or_insert_with(key, || [key; 8]);
        }
        for key in 0..100_000 {
            if key % 1000 != 7 {
                near.remove(&key);
            }
        }
        near.shrink_excess();
        assert!(near.entries.capacity() < 1000 && near.places.capacity() < 1000 && near.len() == 100);
        assert!((0..100).all(|n| near.get(&(n * 1000 + 7)) == Some(&[n * 1000 + 7; 8])));
        near.or_insert_with(1, || [1; 8]);
        assert!(near.get(&1) == Some(&[1; 8]) && near.get(&7) == Some(&[7; 8]) && near.iter().count() == 101);
        assert!(near.iter_mut().all(|(key, value)| value[0] == *key));
    }
}
