//! The duration histograms of one class in one family: a bounded number of series by what distinguishes its requests, and one
//! for the rest.

use super::foldable::Visibility;
use super::histograms::{Exemplar, Histogram, HistogramVec};
use super::series_budget::SeriesBudget;

/// Maximum number of series of one class in one family.
const SERIES: usize = 32;

/// The series that counted a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeriesSlot {
    /// One of the class.
    Own,
    /// The class's shared series: there are too many.
    Common,
    /// None: the budget has no room for another series, and the class has no shared one.
    Refused,
}

/// Where an observation goes, and what may be made for it.
#[derive(Debug)]
pub(super) struct Observation<'a> {
    /// Duration, seconds.
    pub(super) seconds: f64,
    /// How many requests took so long.
    pub(super) times: u64,
    /// The span it comes from.
    pub(super) exemplar: Option<Exemplar>,
    /// Of the class; without one, this is the series of everything that is folded: it has no keys and needs no budget.
    pub(super) visibility: Option<&'a Visibility>,
    /// Room for new series.
    pub(super) budget: &'a mut SeriesBudget,
    /// Samples of the class; grows with each new series.
    pub(super) size: &'a mut usize,
}

/// The series in use.
#[derive(Debug)]
pub(super) struct ClassHistograms<K> {
    series: Vec<(K, Histogram)>,
    common: Option<Histogram>,
}

impl<K> Default for ClassHistograms<K> {
    fn default() -> Self {
        Self { series: Vec::new(), common: None }
    }
}

impl<K: PartialEq> ClassHistograms<K> {
    /// Counts a request under `key`; `labels` gives the label values of a key's series, and without a key those of the shared
    /// one.
    pub(super) fn observe(
        &mut self,
        family: &HistogramVec,
        key: K,
        labels: impl Fn(Option<&K>) -> Vec<String>,
        observation: Observation<'_>,
    ) -> SeriesSlot {
        let Observation { seconds, times, exemplar, visibility, budget, size } = observation;
        if let Some((_, histogram)) = self.series.iter().find(|(known, _)| *known == key) {
            histogram.observe(seconds, times, exemplar);
            return SeriesSlot::Own;
        }
        let samples = family.samples();
        if visibility.is_some() && self.series.len() < SERIES && budget.take_histogram(samples) {
            *size += samples;
            let histogram = family.series(labels(Some(&key)), visibility);
            histogram.observe(seconds, times, exemplar);
            self.series.push((key, histogram));
            return SeriesSlot::Own;
        }
        if self.common.is_none() {
            if visibility.is_some() {
                if !budget.take_histogram(samples) {
                    return SeriesSlot::Refused;
                }
                *size += samples;
            }
            self.common = Some(family.series(labels(None), visibility));
        }
        if let Some(common) = &self.common {
            common.observe(seconds, times, exemplar);
        }
        SeriesSlot::Common
    }

    /// Forgets what only shown series need.
    pub(super) fn forget_exemplars(&self) {
        self.series.iter().map(|(_, histogram)| histogram).chain(&self.common).for_each(Histogram::forget_exemplars);
    }
}
