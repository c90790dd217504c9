//! Declared transactions by number. Probes, records and sums name a transaction by its number, so a number stays with its
//! transaction when the configuration is read again, and the number of a removed one is not given to another soon:
//! records of its last calls may still be on the way.

use std::collections::VecDeque;
use std::sync::Arc;

use tracer_common::runtime::declared as cookie;

use super::{CallPairing, Declared};

/// Numbers that a probe can carry. At most a third as many transactions are traced at once, so there are always free ones
/// for those of the next configuration.
const NUMBERS: usize = cookie::CALIBRATION as usize;

/// The transactions, by number.
#[derive(Clone, Debug, Default)]
pub struct DeclaredTable {
    by_number: Vec<Option<Arc<Declared>>>,
    /// Numbers of removed transactions, the oldest first.
    free: VecDeque<usize>,
}

/// What another configuration changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredChanges {
    /// Numbers of those that are not declared any more.
    pub removed: Vec<usize>,
    /// Numbers of new ones. One that was changed is removed and new.
    pub added: Vec<usize>,
    /// How many stayed as they were.
    pub kept: usize,
}

impl DeclaredTable {
    /// The transactions of the first configuration.
    pub fn new(declared: &[Declared]) -> Self {
        let mut table = Self::default();
        table.replace(declared);
        table
    }

    /// The transaction of a number.
    pub fn get(&self, number: usize) -> Option<&Declared> {
        self.by_number.get(number)?.as_deref()
    }

    /// Every transaction with its number.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Arc<Declared>)> {
        self.by_number.iter().enumerate().filter_map(|(number, one)| Some((number, one.as_ref()?)))
    }

    /// Whether none is declared.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// How the end of a call is found, by number, from 0 to the highest that ever was; `None`: not in use.
    pub fn pairings(&self) -> Vec<Option<CallPairing>> {
        self.by_number.iter().map(|one| Some(one.as_ref()?.target.pairing())).collect()
    }

    /// Puts the transactions of another configuration in the place of these. Those that are the same keep their number.
    pub fn replace(&mut self, declared: &[Declared]) -> DeclaredChanges {
        let mut changes = DeclaredChanges::default();
        let mut new: Vec<&Declared> = declared.iter().collect();
        for (number, place) in self.by_number.iter_mut().enumerate() {
            let Some(old) = place else { continue };
            if let Some(at) = new.iter().position(|one| one.is_same(old)) {
                // It may be at another line of the file.
                *old = Arc::new(new.swap_remove(at).clone());
                changes.kept += 1;
            } else {
                *place = None;
                changes.removed.push(number);
            }
        }
        // In the order of the file.
        new.sort_by_key(|one| declared.iter().position(|other| other.name == one.name));
        for one in new {
            let number = if self.by_number.len() < NUMBERS {
                self.by_number.push(None);
                self.by_number.len() - 1
            } else if let Some(number) = self.free.pop_front() {
                number
            } else {
                log::error!("{}: transaction '{}' is not traced: every number is taken", one.place, one.name);
                continue;
            };
            if let Some(place) = self.by_number.get_mut(number) {
                *place = Some(Arc::new(one.clone()));
                changes.added.push(number);
            }
        }
        self.free.extend(&changes.removed);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::super::Target;
    use super::*;
    use proptest::prelude::*;

    fn declared(name: &str, function: &str, line: usize) -> Declared {
        Declared {
            name: name.into(),
            program: "/x".into(),
            target: Target::Function(function.into()),
            fail: None,
            user: None,
            metrics: Vec::new(),
            max_rate: None,
            place: format!("t:{line}").into(),
        }
    }

    #[test]
    fn what_stays_keeps_its_number() {
        let mut table = DeclaredTable::new(&[declared("a", "f", 1), declared("b", "g", 5)]);
        // `b` moved to another line, `a` is another function, `c` is new.
        let changes = table.replace(&[declared("b", "g", 1), declared("a", "h", 5), declared("c", "i", 9)]);
        assert_eq!(changes, DeclaredChanges { removed: vec![0], added: vec![2, 3], kept: 1 });
        let names: Vec<(usize, &str, &str)> = table.iter().map(|(n, one)| (n, &*one.name, &*one.place)).collect();
        assert_eq!(names, [(1, "b", "t:1"), (2, "a", "t:5"), (3, "c", "t:9")]);
        assert!(
            table.get(0).is_none()
                && table.pairings()
                    == [None, Some(CallPairing::Depth), Some(CallPairing::Depth), Some(CallPairing::Depth)]
        );
        assert_eq!(table.replace(&[]).removed, [1, 2, 3]);
        assert!(table.is_empty());
    }

    proptest! {
        /// However often the configuration is read again: numbers fit into a cookie, what is declared has one, and a number
        /// that was removed is free for at least the next time.
        #[test]
        fn numbers_do_not_run_out(times in proptest::collection::vec((0usize..1000, 0usize..=64), 1..60)) {
            let mut table = DeclaredTable::default();
            let mut removed = Vec::new();
            for (from, count) in times {
                let all: Vec<Declared> = (from..from + count).map(|n| declared(&n.to_string(), &n.to_string(), n)).collect();
                let changes = table.replace(&all);
                prop_assert_eq!(table.iter().count(), count);
                prop_assert_eq!(changes.kept + changes.added.len(), count);
                prop_assert!(changes.added.iter().all(|number| *number < NUMBERS && !removed.contains(number)));
                removed = changes.removed;
            }
        }
    }
}
