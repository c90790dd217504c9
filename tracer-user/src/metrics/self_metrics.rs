//! Metrics of the agent itself: table use, load shedding, limits, export and relay.

use prometheus::{Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts};
use tracer_common::header;

use super::export::Totals;
use super::families::{Families, vec};
use super::header_injection::HeaderFamilies;
use super::table_use::TableFamilies;
use crate::guard::shed::{Ceilings, Level};
use crate::guard::tables::TableUse;

/// Reasons for which the watchdog detaches.
const REASONS: [&str; 4] = ["standstill", "ending", "memory", "cpu"];

/// Histogram bounds of `tracer_relay_match_delay_seconds`.
const DELAYS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0];

/// The families.
#[derive(Debug)]
pub(super) struct Own {
    tables: TableFamilies,
    level: Gauge,
    shed: Vec<(Level, IntCounter)>,
    memory_limit: Gauge,
    cpu_limit: Gauge,
    limit_used: GaugeVec,
    detached: GaugeVec,
    spans: Totals,
    saved: Totals,
    history_windows: Totals,
    history_files: Totals,
    findings: Totals,
    notifications: Totals,
    span_retries: Totals,
    relay: Totals,
    relay_delay: Histogram,
    inband: Totals,
    headers: HeaderFamilies,
    unlinked: Totals,
    walks: Totals,
    python_walks: Totals,
    python_functions: Totals,
}

impl Own {
    pub(super) fn new(r: &Families) -> Self {
        let gauge = |name: &str, help: &str, label: &str| GaugeVec::new(Opts::new(name, help), &[label]);
        let times = "Times the agent entered a load shedding level to stay within its own limits.";
        let shed = vec(r, IntCounterVec::new(Opts::new("tracer_load_shedding_total", times), &["level"]));
        let detached = vec(
            r,
            gauge(
                "tracer_watchdog_detached",
                "1 when the watchdog has detached every program for this reason; the agent then ends.",
                "reason",
            ),
        );
        for reason in REASONS {
            detached.with_label_values(&[reason]).set(0.0);
        }
        let outcomes = "Spans to export by outcome: sent, queue_full, rejected (by the collector), failed (the \
                        collector was unreachable for too long).";
        let spans = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_otlp_spans_total", outcomes), &["outcome"])));
        let outcomes = "Noteworthy transactions by outcome: written, failed (the disk refused), missed (evicted from \
                        memory before they were complete).";
        let saved =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_saved_transactions_total", outcomes), &["outcome"])));
        let outcomes = "Windows of the history by outcome: written, recovered (left by a run that was killed), lost_queue \
                        (the disk was too slow), lost_disk (it refused), lost_torn (killed while writing it).";
        let history_windows =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_history_windows_total", outcomes), &["outcome"])));
        let outcomes = "Parquet files of the history by outcome: written (replacements included), failed (tried again; \
                        the windows stay in the journal), recycled (too old, or no room), ignored (not the history's, \
                        damaged, or of a newer version; left alone).";
        let history_files =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_history_files_total", outcomes), &["outcome"])));
        let kinds = "Findings so far by kind: anomaly, application_change, workload_change, environment.";
        let findings = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_findings", kinds), &["kind"])));
        let outcomes = "Findings posted to the webhook by outcome: sent, queue_full (offered again a second later), rejected \
                        (the receiver refused it), failed (the receiver was unreachable for too long).";
        let notifications =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_webhook_notifications_total", outcomes), &["outcome"])));
        let again = "Export requests that were sent again.";
        let span_retries =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_otlp_retries_total", again), &["signal"])));
        let outcomes = "Contexts exchanged between hosts by outcome: sent, received; of the received ones matched, \
                        late (their request was already reported), unmatched (the agent did not see their request), \
                        elsewhere (unmatched, but sent to several agents), settled (fixed the transaction of a request \
                        already matched), duplicate, refused, dropped. Also answer_late: answers of the other end that \
                        came after their call was reported; they are no contexts.";
        let relay = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_relay_total", outcomes), &["outcome"])));
        let outcomes = "In-band contexts by outcome: sent, received; matched (named the parent of the request they \
                        came with), header (the request named its parent in a header), unmatched (no request begins at \
                        that position), contradicted (another carrier named another parent), renamed (sent with \
                        another transaction's name than the call turned out to have), refused, dropped.";
        let inband = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_inband_total", outcomes), &["outcome"])));
        let headers = HeaderFamilies::new(r);
        let reasons = "Messages in batches that got no link to their producer although they may name one, by reason: \
                       unread (compressed or not captured, as far as their number is known), limit (their span has too \
                       many links).";
        let reasons = Opts::new("tracer_messages_unlinked_total", reasons);
        let unlinked = Totals(vec(r, IntCounterVec::new(reasons, &["reason"])));
        let outcomes = "User stacks sampled, by how the walk ended: complete and frame_pointer_end came to the outermost frame, \
                        frame_pointers followed frame pointers only and cannot know; every other outcome is an incomplete stack.";
        let walks = Totals(vec(r, IntCounterVec::new(Opts::new("tracer_stack_walks_total", outcomes), &["outcome"])));
        let outcomes = "Walks over the frames of Python in sampled stacks, by how they ended: complete came to the outermost \
                        frame, no_thread_state is a thread that runs no Python; every other outcome is a stack that lacks \
                        Python functions.";
        let python_walks =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_python_stack_walks_total", outcomes), &["outcome"])));
        let outcomes = "Python functions seen in stacks, once a process, by outcome: named, unnamed (freed before it was \
                        read).";
        let python_functions =
            Totals(vec(r, IntCounterVec::new(Opts::new("tracer_python_functions_total", outcomes), &["outcome"])));
        let delay = "From the first byte of a request read to its caller on another host known, seconds.";
        let delay = HistogramOpts::new("tracer_relay_match_delay_seconds", delay).buckets(DELAYS.to_vec());
        let relay_delay = vec(r, Histogram::with_opts(delay));
        Self {
            tables: TableFamilies::new(r),
            level: vec(
                r,
                Gauge::new(
                    "tracer_load_shedding_level",
                    "Load shedding level: 0 none, 1 payload, 2 sampling, 3 classes, 4 history; each includes the \
                     levels before it.",
                ),
            ),
            shed: Level::ALL
                .into_iter()
                .filter(|level| *level > Level::Full)
                .map(|level| (level, shed.with_label_values(&[level.name()])))
                .collect(),
            memory_limit: vec(
                r,
                Gauge::new(
                    "tracer_memory_limit_bytes",
                    "Memory that the agent may use, without pages of mapped files, in bytes.",
                ),
            ),
            cpu_limit: vec(r, Gauge::new("tracer_cpu_limit_cores", "CPU that the agent may use, in cores.")),
            limit_used: vec(
                r,
                gauge(
                    "tracer_limit_used_ratio",
                    "Usage of the agent divided by its limit: memory (without pages of mapped files), CPU over the \
                     last seconds.",
                    "resource",
                ),
            ),
            detached,
            spans,
            saved,
            history_windows,
            history_files,
            findings,
            notifications,
            span_retries,
            relay,
            relay_delay,
            inband,
            headers,
            unlinked,
            walks,
            python_walks,
            python_functions,
        }
    }

    pub(super) fn table(&self, table: &str, table_use: TableUse) {
        self.tables.set(table, table_use);
    }

    pub(super) fn level(&self, level: Level) {
        self.level.set(f64::from(level as u8));
    }

    pub(super) fn shed(&self, taken: Level) {
        if let Some((_, counter)) = self.shed.iter().find(|(level, _)| *level == taken) {
            counter.inc();
        }
    }

    pub(super) fn usage(&self, ceilings: &Ceilings, memory: u64, cpu: f64) {
        self.memory_limit.set(ceilings.memory as f64);
        self.cpu_limit.set(ceilings.cpu);
        for (resource, used, limit) in [("memory", memory as f64, ceilings.memory as f64), ("cpu", cpu, ceilings.cpu)] {
            self.limit_used.with_label_values(&[resource]).set(used / limit.max(f64::MIN_POSITIVE));
        }
    }

    pub(super) fn export(&self, spans: &[(&str, u64)], retries: u64) {
        for (outcome, count) in spans {
            self.spans.set(outcome, *count);
        }
        self.span_retries.set("traces", retries);
    }

    pub(super) fn relay(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.relay.set(outcome, *count);
        }
    }

    pub(super) fn walks(&self, outcome: &str, count: u64) {
        self.walks.set(outcome, count);
    }

    pub(super) fn python_walks(&self, outcome: &str, count: u64) {
        self.python_walks.set(outcome, count);
    }

    pub(super) fn python_functions(&self, outcome: &str, count: u64) {
        self.python_functions.set(outcome, count);
    }

    pub(super) fn headers(&self, outcomes: impl Iterator<Item = (header::Outcome, u64)>) {
        for (outcome, count) in outcomes {
            self.headers.set(outcome, count);
        }
    }

    pub(super) fn inband(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.inband.set(outcome, *count);
        }
    }

    pub(super) fn unlinked(&self, reasons: &[(&str, u64)]) {
        for (reason, count) in reasons {
            self.unlinked.set(reason, *count);
        }
    }

    pub(super) fn relay_delay(&self, nanos: u64) {
        self.relay_delay.observe(nanos as f64 / 1e9);
    }

    pub(super) fn notifications(&self, outcomes: &[(&str, u64)]) {
        for (outcome, count) in outcomes {
            self.notifications.set(outcome, *count);
        }
    }

    pub(super) fn findings(&self, counts: &[(&str, u64)]) {
        for (kind, count) in counts {
            self.findings.set(kind, *count);
        }
    }

    pub(super) fn saved(&self, counts: &[(&str, u64)]) {
        for (outcome, count) in counts {
            self.saved.set(outcome, *count);
        }
    }

    pub(super) fn history(&self, windows: &[(&str, u64)], files: &[(&str, u64)]) {
        for (family, counts) in [(&self.history_windows, windows), (&self.history_files, files)] {
            for (outcome, count) in counts {
                family.set(outcome, *count);
            }
        }
    }

    pub(super) fn detached(&self) -> GaugeVec {
        self.detached.clone()
    }
}
