//! Trace ids with which spans were reported.

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::{TableUse, scaled};
use tracer_model::{ClassId, Cost, SpanId, TraceId};

use super::late_costs::LateCosts;
use super::slot::Slot;

/// Reported spans whose trace id is remembered, besides those that open spans refer to.
pub(super) const LIMIT: usize = 65_536;

/// Trace ids of reported spans in two generations: when the younger one is full, the older one is dropped except for
/// ids that open spans refer to.
#[derive(Debug)]
pub(super) struct ReportedTraces {
    pub(super) young: FxHashMap<Slot, (TraceId, SpanId)>,
    pub(super) old: FxHashMap<Slot, (TraceId, SpanId)>,
    pub(super) limit: usize,
    pub(super) forgotten: u64,
    /// What was charged to them since.
    pub(super) late: LateCosts,
}

impl ReportedTraces {
    pub(super) fn new(memory: u64) -> Self {
        let (young, old) = Default::default();
        Self { young, old, limit: scaled(LIMIT, memory), forgotten: 0, late: LateCosts::default() }
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.young.len() + self.old.len(), self.limit, self.forgotten)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<TraceId> {
        self.both(slot).map(|(trace, _)| trace)
    }

    /// A class is charged for this reported span.
    pub(super) fn charged(&mut self, slot: Slot, class: ClassId, cost: Cost) {
        let span = self.both(slot).map(|(_, span)| span);
        self.late.add(span, class, cost);
    }

    pub(super) fn both(&self, slot: Slot) -> Option<(TraceId, SpanId)> {
        self.young.get(&slot).or_else(|| self.old.get(&slot)).copied()
    }

    pub(super) fn is_full(&self) -> bool {
        self.young.len() >= self.limit / 2
    }

    /// Makes room; keeps the ids of `referred` spans.
    pub(super) fn age(&mut self, referred: impl Iterator<Item = Slot>) {
        std::mem::swap(&mut self.old, &mut self.young);
        // The memory of the older generation is that of the next.
        let older = &mut self.young;
        let kept: Vec<(Slot, (TraceId, SpanId))> =
            referred.filter_map(|slot| Some((slot, *older.get(&slot)?))).take(self.limit / 4).collect();
        let before = older.len();
        older.clear();
        older.extend(kept);
        self.forgotten += (before - older.len()) as u64;
    }
}

/// The trace id an open span's children were reported with.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub(super) trace: TraceId,
    /// The span generated the id itself: no other transaction has it.
    pub(super) own: bool,
}
