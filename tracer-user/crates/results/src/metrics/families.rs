//! The registry of metric families. In tests it also lists them: `docs/metrics.md` is generated from that list.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use prometheus::Registry;
use prometheus::core::Collector;

use super::histograms::HistogramVec;

/// The registry.
#[derive(Default)]
pub(super) struct Families {
    registry: Registry,
    histograms: RefCell<Vec<HistogramVec>>,
    #[cfg(test)]
    listed: RefCell<Vec<super::reference::Family>>,
}

impl Families {
    /// What `/metrics` gathers from.
    pub(super) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// The families of histograms that have exemplars.
    pub(super) fn histograms(&self) -> Arc<[HistogramVec]> {
        self.histograms.borrow().clone().into()
    }

    /// Every family registered so far.
    #[cfg(test)]
    pub(super) fn listed(&self) -> Vec<super::reference::Family> {
        self.listed.borrow().clone()
    }
}

/// Registers a collector and returns it.
pub(super) fn vec<T: Collector + Clone + 'static>(families: &Families, made: prometheus::Result<T>) -> T {
    match made {
        Ok(collector) => {
            #[cfg(test)]
            families.listed.borrow_mut().extend(super::reference::Family::of(&collector));
            if let Some(histograms) = (&collector as &dyn Any).downcast_ref::<HistogramVec>() {
                families.histograms.borrow_mut().push(histograms.clone());
            }
            if let Err(error) = families.registry.register(Box::new(collector.clone())) {
                log::error!("a metric family was refused: {error}");
            }
            collector
        }
        // Names and labels are constants, and a test creates all families.
        Err(error) => unreachable!("a metric family is malformed: {error}"),
    }
}
