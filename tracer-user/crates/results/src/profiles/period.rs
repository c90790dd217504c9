//! What was counted in one period of time: by owner and stack, and of waits for futexes by the stack that ended them.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{ClassId, DimensionValues, Owner};

use super::Nanos;

/// A stack and what it was charged to: its owner, and the values of the declared dimensions.
pub(super) type OwnedStack = ((Owner, DimensionValues), u32);

/// Number and nanoseconds.
pub(super) type Counts = (u64, u64);

/// Counts of some time.
#[derive(Debug, Default)]
pub(super) struct Period {
    pub(super) start: Nanos,
    pub(super) end: Nanos,
    pub(super) counts: FxHashMap<OwnedStack, Counts>,
    /// Waits with a known waker, by the stack of that: a part of `counts`.
    pub(super) wakers: FxHashMap<(OwnedStack, u32), Counts>,
    /// Calls by class and the stack that made them.
    pub(super) calls: FxHashMap<(ClassId, u32), u64>,
}

fn add(sum: &mut Counts, (count, nanos): Counts) {
    *sum = (sum.0 + count, sum.1 + nanos);
}

impl Period {
    /// Rows in all tables.
    pub(super) fn rows(&self) -> usize {
        self.counts.len() + self.wakers.len() + self.calls.len()
    }

    /// Counts a sample that stands for `nanos`; `false`: there are `most` rows, and none for it.
    pub(super) fn add(&mut self, key: OwnedStack, nanos: u64, most: usize) -> bool {
        let has_room = self.rows() < most || self.counts.contains_key(&key);
        if has_room {
            add(self.counts.entry(key).or_default(), (1, nanos));
        }
        has_room
    }

    /// The same of a wait with a known waker.
    pub(super) fn add_waker(&mut self, key: OwnedStack, waker: u32, nanos: u64, most: usize) -> bool {
        let has_room = self.rows() < most || self.wakers.contains_key(&(key, waker));
        if has_room {
            add(self.wakers.entry((key, waker)).or_default(), (1, nanos));
        }
        has_room
    }

    /// The same of a call.
    pub(super) fn add_call(&mut self, class: ClassId, stack: u32, most: usize) -> bool {
        let has_room = self.rows() < most || self.calls.contains_key(&(class, stack));
        if has_room {
            *self.calls.entry((class, stack)).or_default() += 1;
        }
        has_room
    }

    /// Takes in what a later period has.
    pub(super) fn merge(&mut self, later: Self) {
        self.end = later.end;
        later.counts.into_iter().for_each(|(key, of)| add(self.counts.entry(key).or_default(), of));
        later.wakers.into_iter().for_each(|(key, of)| add(self.wakers.entry(key).or_default(), of));
        later.calls.into_iter().for_each(|(key, count)| *self.calls.entry(key).or_default() += count);
    }

    /// Adds the ids of all stacks that are needed.
    pub(super) fn used(&self, ids: &mut FxHashSet<u32>) {
        ids.extend(self.counts.keys().map(|(_, id)| *id));
        ids.extend(self.wakers.keys().map(|(_, waker)| *waker));
        ids.extend(self.calls.keys().map(|(_, id)| *id));
    }

    /// Stacks turned out to be others: the id of each, and that of the other.
    pub(super) fn same(&mut self, ids: &FxHashMap<u32, u32>) {
        self.same_calls(ids);
        let moved: Vec<OwnedStack> = self.counts.keys().filter(|(_, id)| ids.contains_key(id)).copied().collect();
        for (owner, id) in moved {
            if let (Some(of), Some(first)) = (self.counts.remove(&(owner, id)), ids.get(&id)) {
                add(self.counts.entry((owner, *first)).or_default(), of);
            }
        }
        let differs = |((_, id), waker): &(OwnedStack, u32)| ids.contains_key(id) || ids.contains_key(waker);
        let moved: Vec<(OwnedStack, u32)> = self.wakers.keys().copied().filter(differs).collect();
        for key in moved {
            let ((owner, id), waker) = key;
            if let Some(of) = self.wakers.remove(&key) {
                let now = |id: u32| ids.get(&id).copied().unwrap_or(id);
                add(self.wakers.entry(((owner, now(id)), now(waker))).or_default(), of);
            }
        }
    }

    /// [`Self::same`] of calls.
    fn same_calls(&mut self, ids: &FxHashMap<u32, u32>) {
        let moved: Vec<(ClassId, u32)> = self.calls.keys().filter(|(_, id)| ids.contains_key(id)).copied().collect();
        for (class, id) in moved {
            if let (Some(count), Some(first)) = (self.calls.remove(&(class, id)), ids.get(&id)) {
                *self.calls.entry((class, *first)).or_default() += count;
            }
        }
    }

    pub(super) fn shrink(&mut self) {
        self.calls.shrink_excess();
        self.counts.shrink_excess();
        self.wakers.shrink_excess();
    }
}

/// Puts periods together that end before `fine` and begin in the same `coarse` one; how many rows are fewer then.
pub(super) fn put_together(periods: &mut VecDeque<Period>, fine: Nanos, coarse: Nanos) -> usize {
    let (mut at, mut fewer) = (1, 0);
    while periods.get(at).is_some_and(|period| period.end <= fine) {
        let same = periods[at - 1].start / coarse == periods[at].start / coarse;
        let Some(later) = same.then(|| periods.remove(at)).flatten() else {
            at += 1;
            continue;
        };
        let earlier = &mut periods[at - 1];
        let before = earlier.rows() + later.rows();
        earlier.merge(later);
        fewer += before - earlier.rows();
    }
    fewer
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::ServiceId;

    #[test]
    fn wakers_follow_their_waits_and_stacks() {
        let owner = (Owner::Overhead(ServiceId(0)), DimensionValues::default());
        let period = |start, wait, waker| Period {
            start,
            end: start + 10,
            counts: [((owner, wait), (2, 20))].into_iter().collect(),
            wakers: [(((owner, wait), waker), (1, 10))].into_iter().collect(),
            calls: [((ClassId(3), wait), 1)].into_iter().collect(),
        };
        let mut periods: VecDeque<Period> = [period(0, 1, 8), period(10, 2, 9), period(60, 1, 8)].into();
        // The stacks of either wait are one, and those of either waker.
        for period in &mut periods {
            period.same(&[(2, 1), (9, 8)].into_iter().collect());
        }
        let fewer = put_together(&mut periods, 100, 60);
        let ends: Vec<Nanos> = periods.iter().map(|period| period.end).collect();
        assert_eq!((fewer, &*ends), (3, &[20, 70][..]));
        assert_eq!(periods[0].counts.get(&(owner, 1)), Some(&(4, 40)));
        assert_eq!(periods[0].wakers.get(&((owner, 1), 8)), Some(&(2, 20)));
        assert_eq!(periods[0].calls, [((ClassId(3), 1), 2)].into_iter().collect());
        let mut ids = FxHashSet::default();
        periods[1].used(&mut ids);
        assert_eq!(ids, [1, 8].into_iter().collect());
    }
}
