//! Room that tables took when they were full and hardly use any more goes back to the allocator: what grew in a flood must
//! not stay for the weeks after it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::mem::size_of;

/// Tables smaller than this are left alone, bytes.
const SMALL: usize = 64 * 1024;

/// Something that keeps room for more than it holds.
pub trait Room {
    /// Gives back most of the room when not even a quarter of it is used; twice what is used stays, so that a table
    /// that grows and shrinks all the time is not moved each time.
    fn give_back(&mut self);
}

/// Entries (of `each` bytes) to keep room for; `None` when there is nothing worth giving back.
pub fn wanted(len: usize, capacity: usize, each: usize) -> Option<usize> {
    (capacity.saturating_mul(each) > SMALL && capacity / 4 > len).then_some(2 * len)
}

impl<T> Room for Vec<T> {
    fn give_back(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<T>()) {
            self.shrink_to(wanted);
        }
    }
}

impl<T> Room for VecDeque<T> {
    fn give_back(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<T>()) {
            self.shrink_to(wanted);
        }
    }
}

impl<K: Eq + Hash, V, S: BuildHasher> Room for HashMap<K, V, S> {
    fn give_back(&mut self) {
        if let Some(wanted) = wanted(self.len(), self.capacity(), size_of::<(K, V)>() + 1) {
            self.shrink_to(wanted);
        }
    }
}

impl<K: Eq + Hash, S: BuildHasher> Room for HashSet<K, S> {
    fn give_back(&mut self) {
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
        table.give_back();
        assert_eq!(table.capacity(), half, "half of it is used");
        table.retain(|n, _| *n < 100);
        table.give_back();
        assert!((200..1000).contains(&table.capacity()) && table.len() == 100, "{}", table.capacity());
        table.clear();
        let small = table.capacity();
        table.give_back();
        assert_eq!(table.capacity(), small, "too small to matter");

        let mut queue: VecDeque<[u64; 8]> = std::iter::repeat_n([1; 8], 5000).collect();
        queue.drain(..4990);
        queue.give_back();
        assert!(queue.len() == 10 && queue.capacity() < 100, "{}", queue.capacity());
        let mut list: Vec<u64> = Vec::with_capacity(1 << 20);
        list.give_back();
        assert_eq!(list.capacity(), 0);
        let mut set: HashSet<u64> = (0..100_000).collect();
        set.clear();
        set.give_back();
        assert_eq!(set.capacity(), 0);
    }
}
