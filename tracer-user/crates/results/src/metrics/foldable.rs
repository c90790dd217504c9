//! Counters and gauges by service and class whose series can leave `/metrics` without their values leaving the sums.
//!
//! A series belongs to a [`Visibility`]: all series of one class share one, so a class leaves and returns as a whole. What
//! hidden counters hold is shown as one series of the family with `service_name="_expired-TIME"`. TIME changes with every
//! change of that sum: Prometheus takes no increase from the first sample of a new series, so `rate` stays right, and the
//! plain sum over a family stays exact.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::Opts;
use prometheus::core::{Collector, Desc, Describer};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// Labels of a series that say whose it is.
pub(super) const NAMING: [&str; 2] = ["service_name", "request_class"];

/// Whether the series of one class or service are shown. Written by the pipeline, read by scrapes.
#[derive(Clone, Debug)]
pub(super) struct Visibility {
    shown: Arc<AtomicBool>,
    stamp: Arc<AtomicU64>,
}

impl Visibility {
    /// Shown until hidden; `stamp` is the time of the last change of what is hidden, seconds since the epoch, shared by all.
    pub(super) fn new(stamp: &Arc<AtomicU64>) -> Self {
        Self { shown: Arc::new(AtomicBool::new(true)), stamp: Arc::clone(stamp) }
    }

    pub(super) fn shown(&self) -> bool {
        self.shown.load(Ordering::Relaxed)
    }

    pub(super) fn show(&self, shown: bool) {
        self.shown.store(shown, Ordering::Relaxed);
    }

    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shown, &other.shown)
    }
}

/// Where a series stands: what every kind of series of these families has.
#[derive(Debug)]
pub(super) struct Place {
    labels: Vec<LabelPair>,
    visibility: Option<Visibility>,
    /// Two classes share this series, so it is always shown.
    pinned: AtomicBool,
}

impl Place {
    pub(super) fn new(names: &[String], values: &[String], visibility: Option<Visibility>) -> Self {
        Self { labels: pairs(names, values), visibility, pinned: AtomicBool::new(false) }
    }

    /// A series that stays: of no class in particular.
    pub(super) fn shown(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) || self.visibility.as_ref().is_none_or(Visibility::shown)
    }

    /// Time of the last change of what is hidden.
    pub(super) fn stamp(&self) -> u64 {
        self.visibility.as_ref().map_or(0, |visibility| visibility.stamp.load(Ordering::Relaxed))
    }

    pub(super) fn labels(&self) -> &[LabelPair] {
        &self.labels
    }

    /// Another user of the series.
    pub(super) fn share(&self, visibility: Option<&Visibility>) {
        let same = match (&self.visibility, visibility) {
            (Some(mine), Some(other)) => mine.same(other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            if !self.shown()
                && let Some(visibility) = &self.visibility
            {
                // It leaves the sum of what is hidden.
                visibility.stamp.fetch_add(1, Ordering::Relaxed);
            }
            self.pinned.store(true, Ordering::Relaxed);
        }
    }
}

/// Label pairs in the order of names, as the exposition wants them.
pub(super) fn pairs(names: &[String], values: &[String]) -> Vec<LabelPair> {
    let mut pairs: Vec<LabelPair> = names
        .iter()
        .zip(values)
        .map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.clone());
            pair
        })
        .collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    pairs
}

/// The labels of the series that stands for hidden ones with these labels. `others` replaces the values of the labels that
/// name neither service nor class; they stay without.
pub(super) fn expired(labels: &[LabelPair], stamp: u64, others: Option<&str>) -> Vec<LabelPair> {
    let mut labels = labels.to_vec();
    for label in &mut labels {
        if NAMING.contains(&label.name()) {
            label.set_value(format!("_expired-{stamp}"));
        } else if let Some(others) = others {
            label.set_value(others.to_owned());
        }
    }
    labels
}

/// Adds to a counter that one thread writes and others read: without the cost of locking the memory bus.
pub(super) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// A number that one thread adds to and others read.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Adds to it; what is negative or no number changes nothing.
    pub(super) fn add(&self, more: f64) {
        if more > 0.0 && more.is_finite() {
            // Only one thread writes, so no other's addition can be lost between the two.
            self.set(self.get() + more);
        }
    }
}

#[derive(Debug)]
struct Child {
    place: Place,
    value: Number,
}

/// One series; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Series(Arc<Child>);

impl Series {
    /// Adds; what is negative or no number changes nothing.
    pub(super) fn inc_by(&self, more: f64) {
        self.0.value.add(more);
    }

    /// Sets a gauge.
    pub(super) fn set(&self, value: f64) {
        self.0.value.set(value);
    }
}

#[derive(Debug)]
struct Family {
    desc: Desc,
    gauge: bool,
    /// In order: sums over the same series must be the same number, to the last bit, or a counter seems to fall.
    series: Mutex<BTreeMap<Vec<String>, Series>>,
}

/// A family of such counters or gauges; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SeriesVec(Arc<Family>);

impl SeriesVec {
    fn new(name: &str, help: &str, labels: &[&str], gauge: bool) -> prometheus::Result<Self> {
        let opts = Opts::new(name, help).variable_labels(labels.iter().map(|label| (*label).to_owned()).collect());
        let desc = opts.describe()?;
        Ok(Self(Arc::new(Family { desc, gauge, series: Mutex::default() })))
    }

    /// A family of counters.
    pub(super) fn counters(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        Self::new(name, help, labels, false)
    }

    /// A family of gauges: hidden ones are not summed up.
    pub(super) fn gauges(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self> {
        Self::new(name, help, labels, true)
    }

    /// The series with these label values, in the order of the family's labels; without a visibility it stays.
    pub(super) fn series(&self, values: &[&str], visibility: Option<&Visibility>) -> Series {
        let values: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
        let mut series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = series.get(&values) {
            known.0.place.share(visibility);
            return known.clone();
        }
        let place = Place::new(&self.0.desc.variable_labels, &values, visibility.cloned());
        let made = Series(Arc::new(Child { place, value: Number::default() }));
        series.insert(values, made.clone());
        made
    }

    fn metric(&self, labels: Vec<LabelPair>, value: f64) -> Metric {
        let mut metric = Metric::from_label(labels);
        if self.0.gauge {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        } else {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        metric
    }
}

impl Collector for SeriesVec {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The pipeline may want a new series: the lock is held for a copy of handles only.
        let all: Vec<Series> = {
            let series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
            series.values().cloned().collect()
        };
        let mut metrics = Vec::with_capacity(all.len());
        let mut hidden: BTreeMap<String, (Vec<LabelPair>, f64)> = BTreeMap::new();
        for series in &all {
            let Child { place, value } = &*series.0;
            if place.shown() {
                metrics.push(self.metric(place.labels().to_vec(), value.get()));
            } else if !self.0.gauge {
                let labels = expired(place.labels(), place.stamp(), None);
                hidden.entry(key(&labels)).or_insert((labels, 0.0)).1 += value.get();
            }
        }
        metrics.extend(hidden.into_values().map(|(labels, sum)| self.metric(labels, sum)));
        let mut family = MetricFamily::default();
        family.set_name(self.0.desc.fq_name.clone());
        family.set_help(self.0.desc.help.clone());
        family.set_field_type(if self.0.gauge { MetricType::GAUGE } else { MetricType::COUNTER });
        family.set_metric(metrics);
        vec![family]
    }
}

/// The label values of a series in one text.
pub(super) fn key(labels: &[LabelPair]) -> String {
    labels.iter().map(LabelPair::value).collect::<Vec<_>>().join("\u{1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(family: &SeriesVec) -> Vec<(String, f64)> {
        let families = family.collect();
        let metrics = families[0].get_metric();
        let mut values: Vec<_> =
            metrics.iter().map(|metric| (key(metric.get_label()), metric.get_counter().get_value())).collect();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        values
    }

    #[test]
    fn hidden_series_stay_in_the_sum_and_continue() {
        let family = SeriesVec::counters("a_total", "Help.", &["service_name", "kind"]).unwrap();
        let stamp = Arc::new(AtomicU64::new(7));
        let (a, b) = (Visibility::new(&stamp), Visibility::new(&stamp));
        let first = family.series(&["a", "x"], Some(&a));
        first.inc_by(3.0);
        family.series(&["b", "x"], Some(&b)).inc_by(4.0);
        family.series(&["b", "y"], Some(&b)).inc_by(1.0);
        family.series(&["_other", "x"], None).inc_by(1.0);
        a.show(false);
        b.show(false);
        let of = |key: &str, value: f64| (key.to_owned(), value);
        // By the labels that are not names, in the order of label names.
        let expected = [of("x\u{1}_expired-7", 7.0), of("x\u{1}_other", 1.0), of("y\u{1}_expired-7", 1.0)];
        assert_eq!(values(&family), expected);
        a.show(true);
        first.inc_by(1.0);
        stamp.store(8, Ordering::Relaxed);
        let expected =
            [of("x\u{1}_expired-8", 4.0), of("x\u{1}_other", 1.0), of("x\u{1}a", 4.0), of("y\u{1}_expired-8", 1.0)];
        assert_eq!(values(&family), expected);
    }

    #[test]
    fn a_series_of_two_classes_is_always_shown() {
        let family = SeriesVec::counters("a_total", "Help.", &["service_name"]).unwrap();
        let stamp = Arc::new(AtomicU64::new(7));
        let (a, b) = (Visibility::new(&stamp), Visibility::new(&stamp));
        family.series(&["a"], Some(&a)).inc_by(1.0);
        family.series(&["a"], Some(&b)).inc_by(1.0);
        a.show(false);
        assert_eq!(values(&family), [("a".to_owned(), 2.0)]);
    }

    #[test]
    fn counters_never_fall() {
        let family = SeriesVec::counters("a_total", "Help.", &["service_name"]).unwrap();
        let series = family.series(&["a"], None);
        series.inc_by(2.0);
        for more in [-1.0, f64::NAN, f64::INFINITY] {
            series.inc_by(more);
        }
        assert_eq!(values(&family), [("a".to_owned(), 2.0)]);
    }
}
