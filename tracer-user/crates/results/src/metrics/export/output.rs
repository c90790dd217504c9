//! What becomes of spans, saved transactions, the history and findings.

use prometheus::{Gauge, GaugeVec, Opts};

use super::Metrics;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct Output {
    decided_spans: Totals,
    decided_transactions: Totals,
    share: GaugeVec,
    spans: Totals,
    retries: Totals,
    points: Totals,
    log_records: Totals,
    profile_samples: Totals,
    saved: Totals,
    hindsight: Totals,
    hindsight_seconds: Gauge,
    history_windows: Totals,
    history_files: Totals,
    history_uploads: Totals,
    history_waiting: Gauge,
    history_waiting_bytes: Gauge,
    findings: Totals,
    notifications: Totals,
    debug_files: Totals,
    debug_files_bytes: Gauge,
}

impl Output {
    pub(super) fn new(r: &Families) -> Self {
        let outcomes = |name: &str, help: &str| Totals::new(r, name, help, "outcome");
        Self {
            decided_spans: Totals::new(
                r,
                "tracer_export_spans_total",
                "Spans by the decision about their transaction, where not all are exported: kept because it is failed, slow, rare \
                 or of a class with a finding; in the share; dropped.",
                "decision",
            ),
            decided_transactions: Totals::new(
                r,
                "tracer_export_transactions_total",
                "Transactions on this host by the decision about them; see tracer_export_spans_total. Spans that come after one \
                 was dropped are another.",
                "decision",
            ),
            share: vec(
                r,
                GaugeVec::new(
                    Opts::new(
                        "tracer_export_share_ratio",
                        "Share of transactions that is exported now: of those with a reason (with_reason), and of the others.",
                    ),
                    &["of"],
                ),
            ),
            spans: outcomes(
                "tracer_otlp_spans_total",
                "Spans to export by outcome: sent, queue_full, rejected (by the collector), failed (the collector was \
                 unreachable for too long).",
            ),
            retries: Totals::new(r, "tracer_otlp_retries_total", "Export requests that were sent again.", "signal"),
            points: outcomes(
                "tracer_otlp_points_total",
                "Data points of metrics to export by outcome: sent, rejected (by the collector), failed (it was unreachable; \
                 the next export has the same sums).",
            ),
            log_records: outcomes(
                "tracer_otlp_log_records_total",
                "Findings to export as log records by outcome: sent, queue_full (offered again a second later), rejected (by \
                 the collector), failed (the collector was unreachable for too long).",
            ),
            profile_samples: outcomes(
                "tracer_otlp_profile_samples_total",
                "Stack samples to export as profiles by outcome: sent, queue_full (the collector was too slow, or there were \
                 too many different stacks), rejected (the collector refused them or part of their request), failed (the \
                 collector was unreachable for too long).",
            ),
            saved: outcomes(
                "tracer_saved_transactions_total",
                "Noteworthy transactions by outcome: written, failed (the disk refused), missed (evicted from memory \
                 before they were complete).",
            ),
            hindsight: outcomes(
                "tracer_hindsight_recordings_total",
                "Recordings of the last seconds by outcome: written, failed (the disk refused), queue_full (the disk was too slow).",
            ),
            hindsight_seconds: vec(
                r,
                Gauge::new(
                    "tracer_hindsight_seconds",
                    "How much of the past is kept for a recording, seconds: less than asked for where memory does not suffice.",
                ),
            ),
            history_windows: outcomes(
                "tracer_history_windows_total",
                "Windows of the history by outcome: written, recovered (left by a run that was killed), lost_queue (the \
                 disk was too slow), lost_disk (it refused), lost_torn (killed while writing it).",
            ),
            history_files: outcomes(
                "tracer_history_files_total",
                "Parquet files of the history by outcome: written (replacements included), failed (tried again; the \
                 windows stay in the journal), recycled (too old, or no room), ignored (not the history's, damaged, or \
                 of a newer version; left alone).",
            ),
            history_uploads: outcomes(
                "tracer_history_uploads_total",
                "Files of the history by outcome of uploading them to the bucket: taken (replacements included), failed (an \
                 attempt; the file waits in the directory), given_up (removed there, too old or for room, before the bucket \
                 took it).",
            ),
            history_waiting: vec(
                r,
                Gauge::new("tracer_history_waiting_files", "Files of the history that wait for the bucket."),
            ),
            history_waiting_bytes: vec(
                r,
                Gauge::new("tracer_history_waiting_bytes", "Bytes of the history's files that wait for the bucket."),
            ),
            findings: Totals::new(
                r,
                "tracer_findings_total",
                "Findings so far by kind: anomaly, application_change, workload_change, environment.",
                "kind",
            ),
            debug_files: outcomes(
                "tracer_debuginfod_requests_total",
                "Debug files asked for by outcome: fetched, cached (there already), missing (no server has it, as far as was \
                 known), failed (a server could not be reached, or took too long), refused (too large, or not that file), \
                 queue_full (asked for again later).",
            ),
            debug_files_bytes: vec(
                r,
                Gauge::new("tracer_debuginfod_cache_bytes", "Bytes of debug files from debuginfod servers."),
            ),
            notifications: outcomes(
                "tracer_webhook_notifications_total",
                "Findings posted to the webhook by outcome: sent, queue_full (offered again a second later), rejected (the \
                 receiver refused it), failed (the receiver was unreachable for too long).",
            ),
        }
    }
}

impl Metrics {
    /// Exported spans by outcome, and export requests that were sent again; absolute.
    pub fn set_export(&self, spans: &[(&str, u64)], retries: u64) {
        self.output.spans.set_all(spans.iter().copied());
        self.output.retries.set("traces", retries);
    }

    /// Spans and transactions by the decision to export them, absolute, and the shares now.
    pub fn set_export_decisions(&self, spans: &[(&str, u64)], transactions: &[(&str, u64)], shares: &[(&str, f64)]) {
        self.output.decided_spans.set_all(spans.iter().copied());
        self.output.decided_transactions.set_all(transactions.iter().copied());
        for (of, share) in shares {
            self.output.share.with_label_values(&[*of]).set(*share);
        }
    }

    /// Exported data points of metrics by outcome, absolute.
    pub fn set_metric_export(&self, points: &[(&str, u64)]) {
        self.output.points.set_all(points.iter().copied());
    }

    /// Exported findings by outcome, and export requests that were sent again; absolute.
    pub fn set_finding_export(&self, records: &[(&str, u64)], retries: u64) {
        self.output.log_records.set_all(records.iter().copied());
        self.output.retries.set("logs", retries);
    }

    /// Exported stack samples by outcome, and export requests that were sent again; absolute.
    pub fn set_profile_export(&self, samples: &[(&str, u64)], retries: u64) {
        self.output.profile_samples.set_all(samples.iter().copied());
        self.output.retries.set("profiles", retries);
    }

    /// Noteworthy transactions by outcome of saving them, absolute.
    pub fn set_saved(&self, counts: &[(&str, u64)]) {
        self.output.saved.set_all(counts.iter().copied());
    }

    /// Recordings of the last seconds by outcome, absolute, and how many seconds are kept.
    pub fn set_hindsight(&self, counts: &[(&str, u64)], seconds: f64) {
        self.output.hindsight.set_all(counts.iter().copied());
        self.output.hindsight_seconds.set(seconds);
    }

    /// Windows and files of the history by outcome, absolute.
    pub fn set_history(&self, windows: &[(&str, u64)], files: &[(&str, u64)]) {
        self.output.history_windows.set_all(windows.iter().copied());
        self.output.history_files.set_all(files.iter().copied());
    }

    /// Uploads of the history's files by outcome, absolute; files that wait, and their bytes.
    pub fn set_uploads(&self, outcomes: &[(&str, u64)], waiting: (u64, u64)) {
        self.output.history_uploads.set_all(outcomes.iter().copied());
        self.output.history_waiting.set(waiting.0 as f64);
        self.output.history_waiting_bytes.set(waiting.1 as f64);
    }

    /// Findings so far by kind, absolute.
    pub fn set_findings(&self, counts: &[(&str, u64)]) {
        self.output.findings.set_all(counts.iter().copied());
    }

    /// Debug files asked for by outcome, absolute, and bytes that are kept.
    pub fn set_debuginfod(&self, outcomes: &[(&str, u64)], bytes: u64) {
        self.output.debug_files.set_all(outcomes.iter().copied());
        self.output.debug_files_bytes.set(bytes as f64);
    }

    /// Findings posted to the webhook by outcome, absolute.
    pub fn set_notifications(&self, outcomes: &[(&str, u64)]) {
        self.output.notifications.set_all(outcomes.iter().copied());
    }
}
