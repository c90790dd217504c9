//! How much is kept, and how full it is.

use tracer_host::guard::tables::{TableUse, scaled};

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Most different stacks; beyond it the oldest periods go, and samples of new stacks are refused where that is not
    /// enough.
    pub stacks: usize,
    /// Most pairs of owner and stack in all periods; beyond it the oldest period goes.
    pub pairs: usize,
    /// Most memory for debug information of a program with its libraries, by estimate; where it would take more it is not read.
    /// What it adds to the symbols are functions that were inlined, lines, and names of stripped programs.
    pub debug: usize,
    /// Most bytes of names that processes wrote into files themselves (`/tmp/perf-PID.map`), of all of them; one gets half.
    pub maps: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { stacks: 50_000, pairs: 500_000, debug: 64 << 20, maps: 32 << 20 }
    }
}

impl Bounds {
    /// Bounds for an agent that may take `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        let Self { stacks, pairs, debug, maps } = Self::default();
        let of = |most| scaled(most, memory);
        Self { stacks: of(stacks), pairs: of(pairs), debug: of(debug), maps: of(maps) }
    }

    /// Most samples of open requests, and as many of slow ones: they keep their stacks, of which others need some, too.
    pub(super) fn ad_hoc(self) -> usize {
        self.stacks / 4
    }

    /// Most stacks of calls that are open.
    pub(super) fn open_calls(self) -> usize {
        self.stacks / 4
    }

    /// Most stacks of exceptions whose requests have not ended.
    pub(super) fn open_exceptions(self) -> usize {
        self.stacks / 8
    }

    /// Most sums of samples that wait for an exporter: while there is no collector they must not take others' stacks.
    pub(super) fn unsent(self) -> usize {
        self.stacks / 4
    }

    /// One part of `part`.
    pub(super) fn part(self, part: usize) -> Self {
        let of = |most: usize| most.checked_div(part).unwrap_or(0);
        Self { stacks: of(self.stacks), pairs: of(self.pairs), ..self }
    }
}

/// How full it is.
#[derive(Clone, Copy, Debug)]
pub struct ProfileTables {
    /// Different stacks.
    pub stacks: TableUse,
    /// Pairs of owner and stack.
    pub pairs: TableUse,
    /// Samples of open requests, and of slow ones that are kept.
    pub ad_hoc: [TableUse; 2],
    /// Stacks of calls that have not ended.
    pub open_calls: TableUse,
    /// Stacks of exceptions whose requests have not ended.
    pub open_exceptions: TableUse,
    /// Sums of samples that wait for an exporter.
    pub unsent: TableUse,
    /// Stacks that wait for names.
    pub queue: TableUse,
    /// Shared names.
    pub names: TableUse,
    /// Processes whose symbol tables are open.
    pub processes: TableUse,
    /// Addresses whose names are known.
    pub addresses: TableUse,
    /// Bytes of names that processes wrote into files.
    pub maps: TableUse,
}
