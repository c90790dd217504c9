//! Costs charged to spans that are reported already.

use rustc_hash::FxHashMap;
use tracer_model::{ClassId, Cost, SpanId};

/// Most requests with late charges between two reads, which are a second apart.
pub(super) const LATE: usize = 65_536;

/// Charges of reported requests since last taken.
#[derive(Debug, Default)]
pub(super) struct LateCosts {
    pub(super) costs: FxHashMap<(Option<SpanId>, ClassId), Cost>,
}

impl LateCosts {
    /// The class was charged for this request, if it is remembered.
    pub(super) fn add(&mut self, span: Option<SpanId>, class: ClassId, cost: Cost) {
        let span = span.filter(|_| self.costs.len() < LATE);
        self.costs.entry((span, class)).or_default().add(cost);
    }
}
