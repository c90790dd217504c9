//! Duration histograms by service and class: like [`foldable`](super::foldable)'s counters, with an exemplar for each
//! bucket. The crate `prometheus` has neither.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::HistogramOpts;
use prometheus::core::{Collector, Desc, Describer};
use prometheus::proto::{self, Bucket, LabelPair, Metric, MetricFamily, MetricType};
use tracer_model::{SpanId, TraceId};

use super::durations::OTHER;
use super::foldable::{Number, Place, Visibility, add, expired, key};
use super::native::{NativeBuckets, NativeCounts};

/// A span that stands for a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exemplar {
    /// Its transaction.
    pub(super) trace: TraceId,
    /// Itself.
    pub(super) span: SpanId,
    /// Its duration, seconds.
    pub(super) value: f64,
    /// Its end, seconds since the epoch.
    pub(super) at: f64,
}

#[derive(Debug)]
struct Child {
    place: Place,
    bounds: Arc<[f64]>,
    /// Observations by bucket, not cumulative; the last one has no bound.
    counts: Box<[AtomicU64]>,
    /// The same observations, for those who take native histograms.
    native: NativeBuckets,
    sum: Number,
    /// By bucket; empty until the first. The pipeline skips one rather than wait for a scrape.
    exemplars: Mutex<Vec<Option<Exemplar>>>,
}

/// One series; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Histogram(Arc<Child>);

impl Histogram {
    /// Counts an observation that was made so many times; the exemplar of its bucket is replaced.
    pub(super) fn observe(&self, seconds: f64, times: u64, exemplar: Option<Exemplar>) {
        let child = &*self.0;
        let bucket = child.bounds.partition_point(|bound| *bound < seconds);
        let Some(count) = child.counts.get(bucket) else { return };
        add(count, times);
        child.native.observe(seconds, times);
        child.sum.add(seconds * times as f64);
        if let (Some(exemplar), Ok(mut kept)) = (exemplar, child.exemplars.try_lock()) {
            if kept.is_empty() {
                kept.resize(child.counts.len(), None);
            }
            if let Some(slot) = kept.get_mut(bucket) {
                *slot = Some(exemplar);
            }
        }
    }

    /// Forgets the exemplars: the series is not shown.
    pub(super) fn forget_exemplars(&self) {
        if let Ok(mut kept) = self.0.exemplars.try_lock() {
            *kept = Vec::new();
        }
    }
}

/// Sums of one series or of several.
struct Sums {
    counts: Vec<u64>,
    sum: f64,
}

impl Sums {
    fn of(child: &Child) -> Self {
        let counts = child.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        Self { counts, sum: child.sum.get() }
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, more)| *sum += more);
        self.sum += other.sum;
    }

    fn metric(&self, labels: Vec<LabelPair>, bounds: &[f64]) -> Metric {
        let mut total = 0;
        let mut buckets = Vec::with_capacity(bounds.len());
        for (bound, count) in bounds.iter().zip(&self.counts) {
            total += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(total);
            buckets.push(bucket);
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(self.counts.iter().sum());
        histogram.set_sample_sum(self.sum);
        histogram.set_bucket(buckets);
        let mut metric = Metric::from_label(labels);
        metric.set_histogram(histogram);
        metric
    }
}

#[derive(Debug)]
struct Family {
    desc: Desc,
    bounds: Arc<[f64]>,
    /// In order: sums over the same series must be the same number, to the last bit, or a counter seems to fall.
    series: Mutex<BTreeMap<Vec<String>, Histogram>>,
}

/// A family of duration histograms; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct HistogramVec(Arc<Family>);

impl HistogramVec {
    /// A family with the bounds of `opts`, which rise.
    pub(super) fn new(opts: HistogramOpts, labels: &[&str]) -> prometheus::Result<Self> {
        let bounds = opts.buckets.clone().into();
        let opts = opts.variable_labels(labels.iter().map(|label| (*label).to_owned()).collect());
        let desc = opts.describe()?;
        Ok(Self(Arc::new(Family { desc, bounds, series: Mutex::default() })))
    }

    /// Name of the family.
    pub(super) fn name(&self) -> &str {
        &self.0.desc.fq_name
    }

    /// Samples of one series: its buckets, sum and count.
    pub(super) fn samples(&self) -> usize {
        self.0.bounds.len() + 3
    }

    /// The series with these label values, in the order of the family's labels; without a visibility it stays.
    pub(super) fn series(&self, values: Vec<String>, visibility: Option<&Visibility>) -> Histogram {
        let mut series = self.0.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = series.get(&values) {
            known.0.place.share(visibility);
            return known.clone();
        }
        let made = Histogram(Arc::new(Child {
            place: Place::new(&self.0.desc.variable_labels, &values, visibility.cloned()),
            bounds: Arc::clone(&self.0.bounds),
            counts: (0..=self.0.bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            native: NativeBuckets::default(),
            sum: Number::default(),
            exemplars: Mutex::default(),
        }));
        series.insert(values, made.clone());
        made
    }

    /// A copy of the handles: the pipeline, which may want a new series, waits for no more than that.
    fn all(&self) -> Vec<Histogram> {
        self.0.series.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Native buckets under each series' [`key`], of hidden ones under that of their sum.
    pub(super) fn natives(&self) -> HashMap<String, NativeCounts> {
        let mut found: HashMap<String, NativeCounts> = HashMap::new();
        for series in &self.all() {
            let place = &series.0.place;
            let under = if place.shown() {
                key(place.labels())
            } else {
                key(&expired(place.labels(), place.stamp(), Some(OTHER)))
            };
            found.entry(under).or_default().add(&series.0.native.counts());
        }
        found
    }

    /// The exemplars of shown series by bucket, under the series' [`key`].
    pub(super) fn exemplars(&self) -> HashMap<String, Vec<Option<Exemplar>>> {
        let mut found = HashMap::new();
        for series in self.all().iter().filter(|series| series.0.place.shown()) {
            let kept = series.0.exemplars.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if !kept.is_empty() {
                found.insert(key(series.0.place.labels()), kept);
            }
        }
        found
    }
}

impl Collector for HistogramVec {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all = self.all();
        let mut metrics = Vec::with_capacity(all.len());
        let mut hidden: BTreeMap<String, (Vec<LabelPair>, Sums)> = BTreeMap::new();
        for series in &all {
            let sums = Sums::of(&series.0);
            let place = &series.0.place;
            if place.shown() {
                metrics.push(sums.metric(place.labels().to_vec(), &self.0.bounds));
                continue;
            }
            let labels = expired(place.labels(), place.stamp(), Some(OTHER));
            match hidden.entry(key(&labels)) {
                std::collections::btree_map::Entry::Occupied(mut known) => known.get_mut().1.add(&sums),
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert((labels, sums));
                }
            }
        }
        metrics.extend(hidden.into_values().map(|(labels, sums)| sums.metric(labels, &self.0.bounds)));
        let mut family = MetricFamily::default();
        family.set_name(self.0.desc.fq_name.clone());
        family.set_help(self.0.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(metrics);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family() -> HistogramVec {
        let opts = HistogramOpts::new("a_seconds", "Help.").buckets(vec![0.1, 1.0]);
        HistogramVec::new(opts, &["service_name", "status"]).unwrap()
    }

    #[test]
    fn observations_go_to_the_bucket_whose_bound_they_do_not_exceed() {
        let family = family();
        let series = family.series(vec!["a".into(), "200".into()], None);
        for seconds in [0.05, 0.1, 0.100_001, 1.0, 7.0] {
            series.observe(seconds, 1, None);
        }
        let families = family.collect();
        let histogram = families[0].get_metric()[0].get_histogram();
        let buckets: Vec<u64> = histogram.get_bucket().iter().map(Bucket::cumulative_count).collect();
        assert_eq!((buckets, histogram.get_sample_count()), (vec![2, 4], 5));
        assert!((histogram.get_sample_sum() - 8.250_001).abs() < 1e-9);
    }

    #[test]
    fn hidden_histograms_are_one_with_all_their_observations() {
        let family = family();
        let stamp = Arc::new(AtomicU64::new(5));
        let visibility = Visibility::new(&stamp);
        for (status, seconds) in [("200", 0.05), ("200", 0.5), ("500", 5.0)] {
            family.series(vec!["a".into(), status.into()], Some(&visibility)).observe(seconds, 1, None);
        }
        visibility.show(false);
        let families = family.collect();
        let [metric] = families[0].get_metric() else { panic!("one series") };
        assert_eq!(key(metric.get_label()), "_expired-5\u{1}_other");
        assert_eq!(metric.get_histogram().get_sample_count(), 3);
        assert_eq!(metric.get_histogram().get_bucket()[1].cumulative_count(), 2);
        let natives = family.natives();
        assert_eq!((natives.len(), natives["_expired-5\u{1}_other"].total()), (1, 3));
    }

    #[test]
    fn the_last_span_of_a_bucket_is_its_exemplar() {
        let family = family();
        let series = family.series(vec!["a".into(), "200".into()], None);
        let of = |trace, value| Exemplar { trace: TraceId(trace), span: SpanId(1), value, at: 2.0 };
        for exemplar in [of(1, 0.05), of(2, 0.06), of(3, 3.0)] {
            series.observe(exemplar.value, 1, Some(exemplar));
        }
        let found = family.exemplars();
        assert_eq!(found.get("a\u{1}200"), Some(&vec![Some(of(2, 0.06)), None, Some(of(3, 3.0))]));
        series.forget_exemplars();
        assert!(family.exemplars().is_empty());
    }
}
