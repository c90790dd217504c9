//! Recent transactions in bounded memory: the slowest, the failed and a fair sample of every class, and the newest.
//!
//! Units of a transaction finish at different times, and only the last one may show that it is worth keeping. So every
//! transaction is kept for a while (the newest [`RECENT`]); what a class wants kept stays longer. Units that finished
//! more than that many transactions before the first noteworthy one of theirs are gone.

mod class;
mod settle;
mod view;

use std::cmp::Reverse;
use std::collections::VecDeque;

use rustc_hash::FxHashMap;

pub use view::{Summary, UnitView, attributes, show};

use crate::guard::fill::Fill;
use crate::model::{ClassId, Names, Nanos, ServiceId, Side, TraceId, Unit, UnitId};
use class::{Class, QUOTA, Seen};
use settle::Settling;
use view::seconds;

/// Units kept of one transaction.
const UNITS: usize = 256;
/// Most transactions' room that is kept for others: the allocator hands out what it got back long ago, not just now.
const SPARE: usize = 64;
/// The newest transactions, kept whatever they are.
pub const RECENT: usize = 4096;
/// Memory of a kept unit, bytes, about: its path and other text are its own.
const UNIT_BYTES: u64 = 1024;
/// The store takes at most one part of this many of the agent's memory.
const MEMORY_PART: u64 = 8;
/// Units kept for each transaction there is room for, on average. With [`UNITS`] each, the store would have no bound
/// worth the name.
const UNITS_EACH: usize = 8;
/// Old entries are looked for this often, nanoseconds.
const SWEEP: Nanos = 60 * 1_000_000_000;

/// Which statuses are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Those that did not fail.
    Ok,
    /// Those that failed.
    Error,
    /// Codes of one hundred: `5` for 500 to 599.
    Hundred(u16),
    /// One code.
    Code(u16),
}

impl Status {
    /// Reads `ok`, `error`, `5xx` or a code.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        match text {
            "ok" => Some(Self::Ok),
            "error" => Some(Self::Error),
            _ => match text.strip_suffix("xx") {
                Some(digit) if digit.len() == 1 => number(digit).map(Self::Hundred),
                None if text.len() == 3 => number(text).map(Self::Code),
                _ => None,
            },
        }
    }

    fn fits(self, unit: &Unit) -> bool {
        match self {
            Self::Ok => !unit.error,
            Self::Error => unit.error,
            Self::Hundred(hundred) => unit.status.is_some_and(|status| status / 100 == hundred),
            Self::Code(code) => unit.status == Some(code),
        }
    }
}

/// Order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Newest first.
    #[default]
    Newest,
    /// Longest first.
    Slowest,
}

/// Which transactions are wanted: those with one unit that fits all of it.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Service of the unit.
    pub service: Option<String>,
    /// Request class of the unit.
    pub class: Option<String>,
    /// At least this long, milliseconds.
    pub min_ms: Option<f64>,
    /// How it ended.
    pub status: Option<Status>,
    /// At most this many.
    pub limit: usize,
    /// Which come first.
    pub order: Order,
}

/// One transaction.
#[derive(Debug, Default)]
struct Kept {
    units: Vec<Unit>,
    /// Entries of classes' lists that name it.
    wanted: u32,
    /// Whether it is among the newest.
    recent: bool,
    /// Whether it waits to be handed out; see [`Store::settled`].
    settling: bool,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    traces: FxHashMap<TraceId, Kept>,
    /// Oldest first, each once.
    recent: VecDeque<TraceId>,
    classes: FxHashMap<ClassId, Class>,
    /// Bound on `entries`, and so on transactions kept beside the newest.
    keep: usize,
    /// Most units that fit the agent's memory.
    fits: usize,
    /// One part of this many of what may be kept is; 0 = nothing.
    part: usize,
    /// Entries in the lists of all classes.
    entries: usize,
    /// Units in `traces`.
    units: usize,
    /// Room of transactions that were let go, for those that come.
    spare: Vec<Vec<Unit>>,
    wall_offset: i64,
    host: String,
    /// State of the sampler's generator (xorshift): fairness, not secrecy.
    random: u64,
    now: Nanos,
    swept: Nanos,
    settling: Settling,
    /// Units not kept because their transaction, or the store, had too many.
    pub units_dropped: u64,
    /// Units that their class wanted kept while the store was full of others' wishes.
    pub refused: u64,
    /// Transactions let go to make room: in the end, every one.
    pub evicted: u64,
}

impl Store {
    /// The wall clock was set: wall clock minus monotonic clock from now on, nanoseconds. What was kept before is shown by
    /// it too: it is the better one.
    pub fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
    }

    /// An empty store for `keep` noteworthy transactions beside the newest [`RECENT`]; `wall_offset` is wall clock
    /// minus monotonic, nanoseconds.
    pub fn new(wall_offset: i64, host: &str, keep: usize) -> Self {
        Self {
            traces: FxHashMap::default(),
            recent: VecDeque::new(),
            classes: FxHashMap::default(),
            keep,
            fits: usize::MAX,
            part: 1,
            entries: 0,
            units: 0,
            spare: Vec::new(),
            wall_offset,
            host: host.into(),
            random: 0x9e37_79b9_7f4a_7c15,
            now: 0,
            swept: 0,
            settling: Settling::default(),
            units_dropped: 0,
            refused: 0,
            evicted: 0,
        }
    }

    /// The same for an agent that may take `memory` bytes.
    #[must_use]
    pub fn for_memory(self, memory: u64) -> Self {
        Self { fits: (memory / MEMORY_PART / UNIT_BYTES) as usize, ..self }
    }

    /// Transactions kept.
    pub fn len(&self) -> usize {
        self.traces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// Units kept, of all transactions.
    pub fn units(&self) -> usize {
        self.units
    }

    fn units_most(&self) -> usize {
        let fits = self.fits.checked_div(self.part).unwrap_or(0);
        (UNITS_EACH * (self.keep_most() + self.recent_most())).min(fits)
    }

    fn keep_most(&self) -> usize {
        self.keep.checked_div(self.part).unwrap_or(0)
    }

    fn recent_most(&self) -> usize {
        RECENT.checked_div(self.part).unwrap_or(0)
    }

    /// How full it is: units, and entries of classes' lists.
    pub fn fills(&self) -> (Fill, Fill) {
        let units = Fill::new(self.units, self.units_most(), self.units_dropped);
        (units, Fill::new(self.entries, self.keep_most(), self.refused))
    }

    /// Keeps one part of this many of what it may from now on; 0 keeps nothing. What is too much goes at once, the
    /// oldest first.
    pub fn keep_part(&mut self, part: usize) {
        if self.part == part {
            return;
        }
        self.part = part;
        if self.entries > self.keep_most() {
            let (quota, now) = (self.quota(), self.now);
            let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(now, quota)).collect();
            self.release(released);
        }
        if self.entries > self.keep_most() {
            // More classes than places.
            let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(Nanos::MAX, 0)).collect();
            self.release(released);
            self.classes.clear();
        }
        while (self.recent.len() > self.recent_most() || self.units > self.units_most()) && self.evict() {}
        self.traces.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    /// Forgets a transaction that nothing holds any more.
    fn forget_unheld(&mut self, trace: TraceId) {
        if self.traces.get(&trace).is_some_and(|kept| !kept.recent && kept.wanted == 0)
            && let Some(mut kept) = self.traces.remove(&trace)
        {
            self.units -= kept.units.len();
            self.evicted += 1;
            if self.spare.len() < SPARE && kept.units.capacity() <= 2 {
                kept.units.clear();
                self.spare.push(kept.units);
            }
        }
    }

    fn release(&mut self, released: impl IntoIterator<Item = TraceId>) {
        for trace in released {
            self.entries -= 1;
            if let Some(kept) = self.traces.get_mut(&trace) {
                kept.wanted = kept.wanted.saturating_sub(1);
            }
            self.forget_unheld(trace);
        }
    }

    /// Lets the oldest of the newest go, unless a class wants it. `false` when there are none.
    fn evict(&mut self) -> bool {
        let Some(oldest) = self.recent.pop_front() else { return false };
        if let Some(kept) = self.traces.get_mut(&oldest) {
            kept.recent = false;
        }
        self.forget_unheld(oldest);
        true
    }

    /// Length of a class's list: all of them together must fit.
    fn quota(&self) -> usize {
        (self.keep_most() / (3 * self.classes.len().max(1))).clamp(1, QUOTA)
    }

    fn rank(&mut self, unit: &Seen) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (quota, room) = (self.quota(), self.keep_most().saturating_sub(self.entries));
        let change = self.classes.entry(unit.class).or_default().consider(unit, quota, room, self.random);
        self.refused += u64::from(change.refused > 0);
        self.entries += change.taken as usize;
        if let Some(kept) = self.traces.get_mut(&unit.trace) {
            kept.wanted += change.taken;
        }
        self.release(change.released);
    }

    /// Transactions that fit.
    pub fn transactions(&self, names: &Names, filter: &Filter) -> Vec<Summary> {
        let service = match &filter.service {
            None => None,
            Some(want) => match names.services.iter().position(|name| **name == **want) {
                Some(index) => Some(ServiceId(index as u32)),
                None => return Vec::new(),
            },
        };
        let fits = |unit: &Unit| {
            service.is_none_or(|want| unit.service == want)
                && filter.min_ms.is_none_or(|min| unit.duration() as f64 / 1e6 >= min)
                && filter.status.is_none_or(|status| status.fits(unit))
                && filter.class.as_ref().is_none_or(|want| names.class(unit.class).is_some_and(|c| *c.name == **want))
        };
        let mut found: Vec<(&Unit, &[Unit])> = self
            .traces
            .values()
            .filter_map(|kept| {
                // The request a user made, before the calls it caused.
                let order = |unit: &&Unit| (unit.side == Side::Client, unit.parent.is_some(), unit.start);
                let unit = kept.units.iter().filter(|unit| fits(unit)).min_by_key(order)?;
                Some((unit, kept.units.as_slice()))
            })
            .collect();
        match filter.order {
            Order::Newest => found.sort_unstable_by_key(|(unit, _)| Reverse((unit.start, unit.id.0))),
            Order::Slowest => found.sort_unstable_by_key(|(unit, _)| Reverse((unit.duration(), unit.id.0))),
        }
        found.truncate(filter.limit);
        found
            .into_iter()
            .map(|(unit, units)| Summary {
                trace_id: unit.trace.to_string(),
                service_name: names.service(unit.service).to_string(),
                request_class: names.class(unit.class).map(|class| class.name.to_string()).unwrap_or_default(),
                start_ns: (unit.start as i64).saturating_add(self.wall_offset),
                duration_s: seconds(unit.duration()),
                status: unit.status,
                failure: unit.failure,
                error: unit.error,
                units: units.len(),
                failed_units: units.iter().filter(|unit| unit.error).count(),
            })
            .collect()
    }

    /// The units of a transaction by start; `None` when it is not kept.
    pub fn transaction(&self, names: &Names, trace: TraceId) -> Option<Vec<UnitView>> {
        let kept = self.traces.get(&trace)?;
        let mut units: Vec<&Unit> = kept.units.iter().collect();
        units.sort_by_key(|unit| (unit.start, unit.side == Side::Client));
        Some(units.into_iter().map(|unit| show(names, unit, self.wall_offset, &self.host)).collect())
    }
}

/// Transactions that turn out to be part of others.
impl Store {
    /// `unit` was reported as of transaction `was`, without a parent: all that is kept of that belongs to `trace`.
    pub fn adopt(&mut self, unit: UnitId, was: TraceId, parent: UnitId, trace: TraceId) {
        let Some(kept) = self.traces.get_mut(&was) else { return };
        if let Some(unit) = kept.units.iter_mut().find(|known| known.id == unit && known.side == Side::Server) {
            unit.parent.get_or_insert(parent);
            unit.carrier = "relay";
        }
        if was == trace {
            return;
        }
        let moved = std::mem::take(&mut kept.units);
        // What classes wanted of the old name is let go with it.
        self.units -= moved.len();
        for mut unit in moved {
            unit.trace = trace;
            self.keep(unit);
        }
    }

    fn keep(&mut self, unit: Unit) {
        let seen = Seen::of(&unit);
        let kept = self.traces.entry(unit.trace).or_default();
        if !kept.recent && kept.wanted == 0 {
            kept.recent = true;
            self.recent.push_back(unit.trace);
        }
        if kept.units.len() < UNITS {
            if kept.units.capacity() == 0
                && let Some(spare) = self.spare.pop()
            {
                kept.units = spare;
            }
            if kept.units.len() == kept.units.capacity() {
                // A unit is large and most transactions have few: no spare room for them, but for the one that caused it,
                // which is over later.
                let more =
                    if kept.units.is_empty() { 1 + usize::from(unit.parent.is_some()) } else { kept.units.len() };
                kept.units.reserve_exact(more);
            }
            kept.units.push(unit);
            self.units += 1;
            self.rank(&seen);
            self.settle(seen.trace);
        } else {
            self.units_dropped += 1;
        }
    }
}

impl Store {
    /// A unit of work is finished.
    pub fn take(&mut self, unit: Unit) {
        self.now = self.now.max(unit.end);
        if self.part == 0 {
            self.units_dropped += 1;
            return;
        }
        while self.units >= self.units_most() && self.evict() {}
        if self.units >= self.units_most() {
            self.units_dropped += 1;
            return;
        }
        self.keep(unit);
        while self.recent.len() > self.recent_most() && self.evict() {}
    }

    /// About once a second: what is too old goes.
    pub fn tick(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        if self.now.saturating_sub(self.swept) < SWEEP {
            return;
        }
        self.swept = self.now;
        let (quota, now) = (self.quota(), self.now);
        let released: Vec<TraceId> = self.classes.values_mut().flat_map(|class| class.age(now, quota)).collect();
        self.release(released);
        self.classes.retain(|_, class| class.len() > 0);
    }
}

/// What every class wants kept, handed out once it stands still.
impl Store {
    /// From now on noteworthy transactions are to be had from [`Self::settled`].
    pub fn hand_out(&mut self) {
        self.settling.on = true;
    }

    /// Transactions that were noteworthy and are gone, or found no room, before they stood still.
    pub fn unsettled(&self) -> u64 {
        self.settling.missed
    }

    fn settle(&mut self, trace: TraceId) {
        let most = self.keep_most();
        if let Some(kept) = self.traces.get_mut(&trace)
            && kept.wanted > 0
            && !kept.settling
        {
            kept.settling = self.settling.push(self.now, trace, most);
        }
    }

    /// The units of a transaction its class wants kept and of which nothing more was reported for a while; the next one
    /// that is due, `None` when there is none. It comes again when more of it is reported later. When everything is `over`
    /// none has to wait.
    pub fn settled(&mut self, names: &Names, over: bool) -> Option<Vec<UnitView>> {
        while let Some(trace) = self.settling.due(self.now, over) {
            let Some(kept) = self.traces.get_mut(&trace) else {
                self.settling.missed += 1;
                continue;
            };
            kept.settling = false;
            if kept.wanted > 0 {
                return self.transaction(names, trace);
            }
            self.settling.missed += 1;
        }
        None
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(crate) mod tests;
