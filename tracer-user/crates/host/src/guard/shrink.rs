//! Returns excess capacity of tables to the allocator: memory that a table took during a flood must not stay for the
//! weeks after it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::mem::size_of;

/// Tables smaller than this many bytes are left alone.
const SMALL: usize = 64 * 1024;

/// A container with more capacity than entries.
pub trait ShrinkExcess {
    /// Returns most of the capacity when less than a quarter is used. Keeps twice what is used, so that a table that
    /// grows and shrinks all the time is not moved each time.
    fn shrink_excess(&mut self);
}

/// The capacity to shrink to, in entries of `each` bytes; `None` when shrinking is not worthwhile.
pub fn wanted(len: usize, capacity: usize, each: usize) -> Option<usize> {
    (capacity.saturating_mul(each) > SMALL && capacity / 4 > len).then_some(2 * len)
}

impl<T> ShrinkExcess for Vec<T> {
    fn shrink_excess(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<T>()) {
            self.shrink_to(wanted);
        }
    }
}

impl<T> ShrinkExcess for VecDeque<T> {
    fn shrink_excess(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<T>()) {
            self.shrink_to(wanted);
        }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> ShrinkExcess for HashMap<K, V, S> {
    fn shrink_excess(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<(K, V)>() + 1) {
            self.shrink_to(wanted);
        }
    }
}

impl<K: Eq + Hash, S: BuildHasher> ShrinkExcess for HashSet<K, S> {
    fn shrink_excess(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<K>() + 1) {
            self.shrink_to(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hardly_used_goes_and_what_is_used_stays() {
        let mut table: HashMap<u64, u64> = (0..100_000).map(|n| (n, n)).collect();
        table.retain(|n, _| *n < 50_000);
        let half = table.capacity();
        table.shrink_excess();
        assert_eq!(table.capacity(), half, "half of it is used");
        table.retain(|n, _| *n < 100);
        table.shrink_excess();
        assert!((200..1000).contains(&table.capacity()) && table.len() == 100, "{}", table.capacity());
        table.clear();
        let small = table.capacity();
        table.shrink_excess();
        assert_eq!(table.capacity(), small, "too small to matter");

        let mut queue: VecDeque<[u64; 8]> = std::iter::repeat_n([1; 8], 5000).collect();
        queue.drain(..4990);
        queue.shrink_excess();
        assert!(queue.len() == 10 && queue.capacity() < 100, "{}", queue.capacity());
        let mut list: Vec<u64> = Vec::with_capacity(1 << 20);
        list.shrink_excess();
        assert_eq!(list.capacity(), 0);
        let mut set: HashSet<u64> = (0..100_000).collect();
        set.clear();
        set.shrink_excess();
        assert_eq!(set.capacity(), 0);
    }
}
