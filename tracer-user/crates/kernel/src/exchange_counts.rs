//! The maps of exchanges that the kernel side counts: beginnings of requests down, sums up.

use aya::maps::{Array, HashMap, Map, MapData};
use tracer_common::exchange_counts::{
    ClassCosts, ClassLimits, ExchangeSums, FirstSums, OUTCOME_NONE, RequestPrefix, SumsKey,
};

use super::loader::{LoadError, Pod, refused};

/// The maps.
pub struct KernelCounts {
    prefixes: HashMap<MapData, Pod<RequestPrefix>, u32>,
    first_sums: Array<MapData, Pod<FirstSums>>,
    sums: HashMap<MapData, Pod<SumsKey>, Pod<ExchangeSums>>,
    costs: Array<MapData, Pod<ClassCosts>>,
    limits: Array<MapData, Pod<ClassLimits>>,
    /// Beginnings that could not be written.
    pub refused: u64,
}

impl KernelCounts {
    pub(super) fn new(prefixes: Map, first_sums: Map, sums: Map, costs: Map, limits: Map) -> Result<Self, LoadError> {
        let bad = |name: &str, error: &dyn std::fmt::Display| refused(&format!("map {name}"), error);
        Ok(Self {
            prefixes: HashMap::try_from(prefixes).map_err(|error| bad("REQUEST_PREFIXES", &error))?,
            first_sums: Array::try_from(first_sums).map_err(|error| bad("FIRST_SUMS", &error))?,
            sums: HashMap::try_from(sums).map_err(|error| bad("EXCHANGE_SUMS", &error))?,
            costs: Array::try_from(costs).map_err(|error| bad("COUNTED_COSTS", &error))?,
            limits: Array::try_from(limits).map_err(|error| bad("COUNTED_LIMITS", &error))?,
            refused: 0,
        })
    }

    /// Requests that begin so are of this class.
    pub fn learn(&mut self, prefix: RequestPrefix, class: u32) {
        self.refused += u64::from(self.prefixes.insert(Pod(prefix), class, 0).is_err());
    }

    /// Requests that begin so are reported again.
    pub fn forget(&mut self, prefix: RequestPrefix) {
        // Fails if it was refused, which is fine.
        let _ = self.prefixes.remove(&Pod(prefix));
    }

    /// What was counted so far of these classes.
    pub fn sums(&self, classes: &[u32]) -> Vec<(SumsKey, ExchangeSums)> {
        let first = classes.iter().filter_map(|class| {
            let FirstSums { outcome, sums } = self.first_sums.get(class, 0).ok()?.0;
            (outcome != OUTCOME_NONE).then_some((SumsKey { class: *class, reserved: 0, outcome }, sums))
        });
        first.chain(self.sums.iter().flatten().map(|(key, sums)| (key.0, sums.0))).collect()
    }

    /// What exchanges of a class cost so far.
    pub fn costs(&self, class: u32) -> Option<ClassCosts> {
        self.costs.get(&class, 0).ok().map(|costs| costs.0)
    }

    /// Has such exchanges of a class reported one by one as well.
    pub fn limit(&mut self, class: u32, limits: ClassLimits) {
        // An element of an array is always there.
        let _ = self.limits.set(class, Pod(limits), 0);
    }

    /// Deletes what was counted of a class, whose number may become another's.
    pub fn clear(&mut self, class: u32) {
        let keys: Vec<_> = self.sums.keys().flatten().filter(|key| key.0.class == class).collect();
        for key in keys {
            // Nothing else deletes it.
            let _ = self.sums.remove(&key);
        }
        // Elements of an array are always there.
        let _ = self.first_sums.set(class, Pod(FirstSums { outcome: OUTCOME_NONE, sums: ExchangeSums::NONE }), 0);
        let _ = self.costs.set(class, Pod(ClassCosts::default()), 0);
        self.limit(class, ClassLimits::default());
    }
}
