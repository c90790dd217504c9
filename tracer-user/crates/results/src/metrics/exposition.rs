//! What `/metrics` answers: the families of the registry as Prometheus' text, as OpenMetrics with exemplars when the scraper
//! takes that, or as protobuf with native histograms when it prefers that.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus::proto::{LabelPair, MetricFamily, MetricType};
use prometheus::{Gauge, Registry, TextEncoder};

use super::foldable::key;
use super::histograms::{Exemplar, HistogramVec};
use super::protobuf;

/// Name of the gauge with the number of series of the scrape it stands in.
pub(super) const SERIES: &str = "tracer_series";

/// Formats of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
    /// Prometheus' protobuf, each message after its length.
    Protobuf,
}

impl Format {
    /// The format for a request with this `Accept`: protobuf where it is named and nothing is more wanted, which Prometheus does
    /// when it takes native histograms; then OpenMetrics where it is not less wanted than plain text.
    pub fn for_accept(accept: &str) -> Self {
        let (mut text, mut open, mut protobuf) = (0.0_f32, 0.0_f32, 0.0_f32);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let (mut quality, mut version, mut family, mut delimited) = (1.0_f32, None, true, true);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    "proto" => family = value.trim() == "io.prometheus.client.MetricFamily",
                    "encoding" => delimited = value.trim() == "delimited",
                    _ => {}
                }
            }
            if kind.eq_ignore_ascii_case("text/plain") {
                text = text.max(quality);
            } else if kind.eq_ignore_ascii_case("application/openmetrics-text")
                && matches!(version, None | Some("1.0.0" | "0.0.1"))
            {
                open = open.max(quality);
            } else if kind.eq_ignore_ascii_case("application/vnd.google.protobuf") && family && delimited {
                protobuf = protobuf.max(quality);
            }
        }
        if protobuf > 0.0 && protobuf >= open.max(text) {
            return Self::Protobuf;
        }
        if open > 0.0 && open >= text { Self::OpenMetrics } else { Self::Text }
    }

    /// `Content-Type` of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

/// Where `/metrics` gathers from; cheap to clone, usable from any thread.
#[derive(Clone, Debug)]
pub struct Exposition {
    pub(super) registry: Registry,
    pub(super) histograms: Arc<[HistogramVec]>,
    /// Not held while the pipeline hides or shows series.
    pub(super) gate: Arc<Mutex<()>>,
    /// Series of classes and services, and where the number of all others goes.
    pub(super) used: Arc<AtomicUsize>,
    pub(super) fixed: Arc<AtomicUsize>,
    /// How long the last scrape took.
    pub(super) seconds: Gauge,
}

impl Exposition {
    /// All metrics in this format.
    ///
    /// # Errors
    ///
    /// When a family is malformed.
    pub fn bytes(&self, format: Format) -> prometheus::Result<Vec<u8>> {
        let begun = Instant::now();
        let (families, exemplars, natives) = self.gather(format);
        let bytes = match format {
            Format::Text => clean(TextEncoder::new().encode_to_string(&families)?).into_bytes(),
            Format::OpenMetrics => clean(open_metrics(&families, &exemplars)).into_bytes(),
            Format::Protobuf => protobuf::encode(&families, &exemplars, &natives),
        };
        self.seconds.set(begun.elapsed().as_secs_f64());
        Ok(bytes)
    }

    /// All metrics as families.
    pub fn families(&self) -> Vec<MetricFamily> {
        self.gather(Format::Text).0
    }

    /// Families, and what the format shows beside them.
    fn gather(&self, format: Format) -> (Vec<MetricFamily>, Exemplars, protobuf::Natives) {
        let (mut families, exemplars, natives) = {
            let _held = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            let used = self.used.load(Ordering::Relaxed);
            let families = self.registry.gather();
            let total = families.iter().map(samples).sum::<usize>();
            self.fixed.store(total.saturating_sub(used), Ordering::Relaxed);
            let exemplars_of = |family: &HistogramVec| (family.name().to_owned(), family.exemplars());
            let exemplars = match format {
                Format::OpenMetrics | Format::Protobuf => self.histograms.iter().map(exemplars_of).collect(),
                Format::Text => HashMap::new(),
            };
            let natives_of = |family: &HistogramVec| (family.name().to_owned(), family.natives());
            let natives = match format {
                Format::Protobuf => self.histograms.iter().map(natives_of).collect(),
                Format::OpenMetrics | Format::Text => HashMap::new(),
            };
            (families, exemplars, natives)
        };
        let total = families.iter().map(samples).sum::<usize>();
        if let Some(family) = families.iter_mut().find(|family| family.name() == SERIES) {
            for metric in family.mut_metric() {
                let mut gauge = prometheus::proto::Gauge::default();
                gauge.set_value(total as f64);
                metric.set_gauge(gauge);
            }
        }
        (families, exemplars, natives)
    }
}

/// Series of a family.
fn samples(family: &MetricFamily) -> usize {
    match family.get_field_type() {
        // The bucket without bound, sum and count.
        MetricType::HISTOGRAM => {
            family.get_metric().iter().map(|metric| metric.get_histogram().get_bucket().len() + 3).sum()
        }
        _ => family.get_metric().len(),
    }
}

/// Label values come from outside: unsafe characters in them are escaped.
fn clean(text: String) -> String {
    let clean = text.bytes().all(|byte| byte == b'\n' || (byte >= b' ' && byte != 0x7f && byte < 0xc2));
    if clean || !text.chars().any(|c| c != '\n' && tracer_model::text::is_unsafe(c)) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_terminator('\n') {
        // A backslash in a label's value is written as two.
        out.push_str(&tracer_model::text::written_with("\\\\u", line));
        out.push('\n');
    }
    out
}

/// Exemplars by family, then by series, then by bucket.
pub(super) type Exemplars = HashMap<String, HashMap<String, Vec<Option<Exemplar>>>>;

fn open_metrics(families: &[MetricFamily], exemplars: &Exemplars) -> String {
    let mut out = String::with_capacity(64 << 10);
    let none = HashMap::new();
    for family in families {
        let counter = family.get_field_type() == MetricType::COUNTER;
        // Counters end in `_total`, and their family's name does not. A counter of another name has no type.
        let (name, kind) = match (family.get_field_type(), family.name().strip_suffix("_total")) {
            (MetricType::COUNTER, Some(name)) => (name, "counter"),
            (MetricType::GAUGE, _) => (family.name(), "gauge"),
            (MetricType::HISTOGRAM, _) => (family.name(), "histogram"),
            _ => (family.name(), "unknown"),
        };
        let _ = writeln!(out, "# HELP {name} {}", escaped(family.help()));
        let _ = writeln!(out, "# TYPE {name} {kind}");
        let kept = exemplars.get(family.name()).unwrap_or(&none);
        for metric in family.get_metric() {
            let labels = metric.get_label();
            if family.get_field_type() != MetricType::HISTOGRAM {
                let value = if counter { metric.get_counter().get_value() } else { metric.get_gauge().get_value() };
                sample(&mut out, family.name(), "", labels, None, value);
                out.push('\n');
                continue;
            }
            let histogram = metric.get_histogram();
            let kept = kept.get(&key(labels));
            let total = histogram.get_sample_count();
            let bounds = histogram.get_bucket().iter().map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
            for (index, (bound, count)) in bounds.chain([(f64::INFINITY, total)]).enumerate() {
                sample(&mut out, name, "_bucket", labels, Some(bound), count as f64);
                if let Some(Some(exemplar)) = kept.and_then(|kept| kept.get(index)) {
                    let Exemplar { trace, span, value, at } = exemplar;
                    let _ = write!(out, " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {value} {at:.3}");
                }
                out.push('\n');
            }
            for (suffix, value) in [("_sum", histogram.get_sample_sum()), ("_count", total as f64)] {
                sample(&mut out, name, suffix, labels, None, value);
                out.push('\n');
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

/// One sample, without the end of its line.
fn sample(out: &mut String, name: &str, suffix: &str, labels: &[LabelPair], bound: Option<f64>, value: f64) {
    out.push_str(name);
    out.push_str(suffix);
    if !labels.is_empty() || bound.is_some() {
        let mut before = '{';
        for label in labels {
            out.push(before);
            before = ',';
            let _ = write!(out, "{}=\"{}\"", label.name(), escaped(label.value()));
        }
        if let Some(bound) = bound {
            out.push(before);
            // A float has a point, as the format wants it.
            let _ = if bound.is_infinite() { write!(out, "le=\"+Inf\"") } else { write!(out, "le=\"{bound:?}\"") };
        }
        out.push('}');
    }
    let _ = match value {
        value if value == f64::INFINITY => write!(out, " +Inf"),
        value if value == f64::NEG_INFINITY => write!(out, " -Inf"),
        value => write!(out, " {value}"),
    };
}

/// A label value, or a help text, with backslashes, quotes and line ends escaped.
fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_what_the_scraper_wants() {
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=2.0.0", Format::Text),
            ("application/openmetrics-text;version=1.0.0;q=0", Format::Text),
            ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.9", Format::Text),
            // What Prometheus sends when it takes native histograms.
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                 application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::Protobuf,
            ),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", Format::Text),
            ("application/vnd.google.protobuf;q=0.1,text/plain;q=0.2", Format::Text),
            // What Prometheus 2 and 3 send.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                Format::OpenMetrics,
            ),
        ] {
            assert_eq!(Format::for_accept(accept), format, "{accept}");
        }
    }
}
