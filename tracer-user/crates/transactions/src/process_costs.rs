//! CPU by process: the same nanoseconds that are charged to classes and to services' overhead, by the process that used them.
//!
//! What the books of workloads and of subsystems are made from. The sum over all entries is the sum of all charges, whatever
//! later evidence moves from one request to another.

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::ClassId;

/// What a process worked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessWork {
    /// A request that it serves; the class, if it is known.
    Request(Option<ClassId>),
    /// Anything else.
    Other,
}

/// Limit of entries between two reads, which are a second apart.
const ENTRIES: usize = 65_536;
/// Process of what finds no room.
pub const UNKNOWN_PROCESS: u32 = 0;

/// CPU by process and work since last taken, nanoseconds.
#[derive(Debug, Default)]
pub(super) struct ProcessCosts {
    costs: FxHashMap<(u32, ProcessWork), u64>,
    /// Entries when last taken.
    taken: usize,
    refused: u64,
}

impl ProcessCosts {
    /// Process `tgid` used `cpu` nanoseconds for `work`.
    pub(super) fn add(&mut self, tgid: u32, work: ProcessWork, cpu: u64) {
        if cpu == 0 {
            return;
        }
        if let Some(sum) = self.costs.get_mut(&(tgid, work)) {
            *sum += cpu;
            return;
        }
        let key = if self.costs.len() < ENTRIES {
            (tgid, work)
        } else {
            self.refused += 1;
            (UNKNOWN_PROCESS, ProcessWork::Other)
        };
        *self.costs.entry(key).or_default() += cpu;
    }
}

impl ProcessCosts {
    /// Takes the CPU of processes since last taken: process, work, nanoseconds; in no order.
    pub(super) fn take(&mut self) -> Vec<(u32, ProcessWork, u64)> {
        self.taken = self.costs.len();
        let taken = self.costs.drain().map(|((tgid, work), cpu)| (tgid, work, cpu)).collect();
        // A host with many short processes for a while does not keep the room for them.
        self.costs.shrink_to(1024);
        taken
    }

    /// Use of the table: its entries when last taken.
    pub(super) fn table_use(&self) -> TableUse {
        let ProcessCosts { costs: _, taken, refused } = self;
        TableUse::new(*taken, ENTRIES + 1, *refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_still_counts() {
        let mut costs = ProcessCosts::default();
        for tgid in 1..=ENTRIES as u32 + 10 {
            costs.add(tgid, ProcessWork::Other, 2);
            costs.add(tgid, ProcessWork::Request(None), 0);
        }
        assert_eq!(costs.costs.values().sum::<u64>(), 2 * (ENTRIES as u64 + 10));
        assert_eq!((costs.costs.len(), costs.refused), (ENTRIES + 1, 10));
        assert_eq!(costs.costs[&(UNKNOWN_PROCESS, ProcessWork::Other)], 20);
        costs.add(7, ProcessWork::Other, 5);
        assert_eq!(costs.costs[&(7, ProcessWork::Other)], 7);
    }
}
