//! Metrics of the metrics: series, what is folded, and how long a scrape takes.

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec, Opts};

use super::class_series::{Classes, Folded};
use super::exposition::SERIES;
use super::families::{Families, vec};

/// The families.
#[derive(Debug)]
pub(super) struct SeriesMetrics {
    limit: IntGauge,
    folded: IntGaugeVec,
    expired: IntCounter,
    /// Set by scrapes.
    pub(super) seconds: Gauge,
}

impl SeriesMetrics {
    pub(super) fn new(r: &Families) -> Self {
        let folded = "Request classes and services (kind) without series of their own, by reason: limit (max_series \
                      leaves no room), idle (no requests for too long), no_requests (a service that never had one). \
                      What they count is in shared series.";
        // Each scrape writes its own number into it.
        vec(r, IntGauge::new(SERIES, "Series of this scrape."));
        Self {
            limit: vec(r, IntGauge::new("tracer_series_limit", "Maximum number of series of a scrape: max_series.")),
            folded: vec(r, IntGaugeVec::new(Opts::new("tracer_series_folded", folded), &["kind", "reason"])),
            expired: vec(
                r,
                IntCounter::new(
                    "tracer_series_expired_total",
                    "Request classes and services whose series left because they were idle or there were too many.",
                ),
            ),
            seconds: vec(
                r,
                Gauge::new(
                    "tracer_scrape_duration_seconds",
                    "Seconds that gathering and writing the previous scrape took, without compression.",
                ),
            ),
        }
    }

    /// Sets them from what is.
    pub(super) fn set(&self, classes: &Classes) {
        self.limit.set(classes.budget.limits().max_series as i64);
        self.expired.inc_by(classes.expired.saturating_sub(self.expired.get()));
        let Folded { classes_limit, classes_idle, services_limit, services_idle, services_no_requests } =
            classes.folded();
        for (kind, reason, count) in [
            ("class", "limit", classes_limit),
            ("class", "idle", classes_idle),
            ("service", "limit", services_limit),
            ("service", "idle", services_idle),
            ("service", "no_requests", services_no_requests),
        ] {
            self.folded.with_label_values(&[kind, reason]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
