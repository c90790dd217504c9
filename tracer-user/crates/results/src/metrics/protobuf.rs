//! Prometheus' exposition format in protobuf: the one that has native histograms. The messages are those of
//! `io.prometheus.client` with their field numbers; fields this agent never writes are omitted.

use std::collections::HashMap;

use prometheus::proto::{self, MetricType};
use prost::Message;

use super::exposition::Exemplars;
use super::foldable::key;
use super::histograms;
use super::native::{NativeCounts, SCHEMA, ZERO};

/// `MetricFamily`.
#[derive(Clone, PartialEq, Message)]
struct Family {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    /// `MetricType`.
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

/// `MetricType`'s values.
const COUNTER: i32 = 0;
const GAUGE: i32 = 1;
const HISTOGRAM: i32 = 4;

/// `Metric`.
#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

/// `LabelPair`.
#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `Gauge` and `Counter`.
#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, tag = "1")]
    value: f64,
}

/// `Histogram`, classic and native at once: the server takes which it wants.
#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, tag = "1")]
    sample_count: u64,
    #[prost(double, tag = "2")]
    sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<Span>,
    #[prost(sint64, repeated, tag = "13")]
    positive_delta: Vec<i64>,
}

/// `Bucket`.
#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative_count: u64,
    #[prost(double, tag = "2")]
    upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

/// `BucketSpan`.
#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

/// `Exemplar`.
#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(double, tag = "2")]
    value: f64,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Native counts by family, then by series.
pub(super) type Natives = HashMap<String, HashMap<String, NativeCounts>>;

/// The families, each with its length before it.
pub(super) fn encode(families: &[proto::MetricFamily], exemplars: &Exemplars, natives: &Natives) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 << 10);
    for family in families {
        let kind = family.get_field_type();
        let (exemplars, natives) = (exemplars.get(family.name()), natives.get(family.name()));
        let metric = family.get_metric().iter().map(|metric| {
            let place = key(metric.get_label());
            let label = metric.get_label().iter().map(|label| Label::new(label.name(), label.value())).collect();
            let mut made = Metric { label, ..Metric::default() };
            match kind {
                MetricType::HISTOGRAM => {
                    let exemplars = exemplars.and_then(|of| of.get(&place)).map_or(&[][..], Vec::as_slice);
                    let native = natives.and_then(|of| of.get(&place));
                    made.histogram = Some(histogram(metric.get_histogram(), exemplars, native));
                }
                MetricType::COUNTER => made.counter = Some(Number { value: metric.get_counter().get_value() }),
                _ => made.gauge = Some(Number { value: metric.get_gauge().get_value() }),
            }
            made
        });
        let kind = match kind {
            MetricType::HISTOGRAM => HISTOGRAM,
            MetricType::COUNTER => COUNTER,
            _ => GAUGE,
        };
        let made = Family { name: family.name().into(), help: family.help().into(), kind, metric: metric.collect() };
        // A vector grows as needed.
        let _ = made.encode_length_delimited(&mut out);
    }
    out
}

impl Label {
    /// Label values come from outside: unsafe characters in them are escaped, as in the text formats.
    fn new(name: &str, value: &str) -> Self {
        Self { name: name.into(), value: tracer_model::text::printable(value).into_owned() }
    }
}

fn histogram(
    classic: &proto::Histogram,
    exemplars: &[Option<histograms::Exemplar>],
    native: Option<&NativeCounts>,
) -> Histogram {
    let total = classic.get_sample_count();
    let bounds = classic.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
    let bucket = bounds.chain([(f64::INFINITY, total)]).enumerate().map(|(index, (upper_bound, cumulative_count))| {
        let exemplar = exemplars.get(index).copied().flatten().map(exemplar);
        Bucket { cumulative_count, upper_bound, exemplar }
    });
    let mut made = Histogram {
        sample_count: total,
        sample_sum: classic.get_sample_sum(),
        bucket: bucket.collect(),
        ..Histogram::default()
    };
    if let Some(native) = native {
        let (spans, deltas) = native.spans();
        made.schema = SCHEMA;
        made.zero_threshold = ZERO;
        made.zero_count = native.zero;
        made.positive_span = spans.into_iter().map(|(offset, length)| Span { offset, length }).collect();
        made.positive_delta = deltas;
        // A server refuses a native histogram whose buckets are not its count, and the two were not read at one moment.
        made.sample_count = native.total();
    }
    made
}

fn exemplar(from: histograms::Exemplar) -> Exemplar {
    let label = vec![
        Label { name: "trace_id".into(), value: from.trace.to_string() },
        Label { name: "span_id".into(), value: from.span.to_string() },
    ];
    let seconds = from.at.floor();
    let timestamp = Timestamp { seconds: seconds as i64, nanos: ((from.at - seconds) * 1e9) as i32 };
    Exemplar { label, value: from.value, timestamp: Some(timestamp) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_model::{SpanId, TraceId};

    #[test]
    fn both_kinds_of_buckets_and_exemplars() {
        let mut classic = proto::Histogram::default();
        classic.set_sample_count(3);
        classic.set_sample_sum(2.5);
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(1.0);
        bucket.set_cumulative_count(2);
        classic.set_bucket(vec![bucket]);
        let exemplar = histograms::Exemplar { trace: TraceId(5), span: SpanId(6), value: 0.5, at: 12.25 };
        let native = super::super::native::NativeBuckets::default();
        for seconds in [0.5, 0.5, 1.5] {
            native.observe(seconds, 1);
        }
        let made = histogram(&classic, &[Some(exemplar)], Some(&native.counts()));
        assert_eq!((made.sample_count, made.schema, made.zero_count), (3, 3, 0));
        // 0.5 is the bucket -8, 1.5 is within the bucket 5: twelve between.
        assert_eq!(made.positive_span, [Span { offset: -8, length: 1 }, Span { offset: 12, length: 1 }]);
        assert_eq!(made.positive_delta, [2, -1]);
        let counts: Vec<_> = made.bucket.iter().map(|bucket| (bucket.upper_bound, bucket.cumulative_count)).collect();
        assert_eq!(counts, [(1.0, 2), (f64::INFINITY, 3)]);
        let found = made.bucket[0].exemplar.as_ref().unwrap();
        assert_eq!(found.label[0].value, format!("{:032x}", 5));
        assert_eq!(found.timestamp, Some(Timestamp { seconds: 12, nanos: 250_000_000 }));
        // Without native buckets nothing says that it were native.
        let made = histogram(&classic, &[], None);
        assert_eq!((made.schema, made.zero_threshold.to_bits(), made.positive_span.len()), (0, 0, 0));
    }
}
