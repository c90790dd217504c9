//! Metrics of uprobes and of runtime detection.

use std::collections::BTreeSet;

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts};
use tracer_kernel::uprobes::Attempts;
use tracer_runtimes::DetectionState;
use tracer_runtimes::status_view::WakesSeen;

use super::export::Metrics;
use super::families::{Families, vec};
use super::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct Tasks {
    hits: Totals,
    attempts: Totals,
    processes: IntGaugeVec,
    wakes: IntGaugeVec,
    waiting: IntGauge,
    looks: IntCounter,
    tls_files: IntGaugeVec,
    /// Label pairs set so far, to reset those that no longer apply.
    shown: BTreeSet<(&'static str, &'static str)>,
}

impl Tasks {
    pub(super) fn new(r: &Families) -> Self {
        let processes = "Processes that serve requests, by runtime and by whether the agent tells its tasks apart \
                         (known) or why not.";
        let processes = Opts::new("tracer_runtime_processes", processes);
        let looks = "Times the agent inspected a process that began to serve requests, to detect its runtime.";
        let waiting = "Processes that began to serve requests and whose runtime the agent has not detected yet: it \
                       does not tell their tasks apart until then.";
        let wakes = "Processes by whether the agent sees which task wakes which: watched (configured, or calls had no parent \
                     without, or CPU was no request's), too_costly (they have none, and it would cost too much of the process's CPU).";
        let wakes = Opts::new("tracer_runtime_wakes_processes", wakes);
        let tls_files = "Files with TLS libraries by state: traced (what they read and write is seen), refused (this \
                         version is not known, it lacks functions, or there are too many). See docs/tls.md.";
        let tls_files = Opts::new("tracer_tls_files", tls_files);
        Self {
            hits: Totals::new(r, "tracer_uprobe_hits_total", "Hits of each uprobe.", "probe"),
            attempts: Totals::new(
                r,
                "tracer_uprobe_attachments_total",
                "Uprobes by outcome: attached, refused.",
                "outcome",
            ),
            processes: vec(r, IntGaugeVec::new(processes, &["runtime", "state"])),
            wakes: vec(r, IntGaugeVec::new(wakes, &["state"])),
            waiting: vec(r, IntGauge::new("tracer_runtime_processes_waiting", waiting)),
            looks: vec(r, IntCounter::new("tracer_runtime_detections_total", looks)),
            tls_files: vec(r, IntGaugeVec::new(tls_files, &["state"])),
            shown: BTreeSet::new(),
        }
    }
}

impl Metrics {
    /// Hits of uprobes, and uprobes attached and refused; absolute.
    pub fn set_probes(&self, hits: &[(&'static str, u64)], attempts: Attempts) {
        for (probe, count) in hits {
            self.tasks.hits.set(probe, *count);
        }
        self.tasks.attempts.set("attached", attempts.attached);
        self.tasks.attempts.set("refused", attempts.refused);
    }

    /// Files with TLS libraries that are traced, and those that are not.
    pub fn set_tls_files(&self, traced: u64, refused: u64) {
        for (state, count) in [("traced", traced), ("refused", refused)] {
            self.tasks.tls_files.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Processes whose runtime detection is pending or running, and detections so far.
    pub fn set_looks(&self, waiting: u64, looked: u64) {
        self.tasks.looks.inc_by(looked.saturating_sub(self.tasks.looks.get()));
        self.tasks.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Current processes by whether wake-ups between tasks are watched.
    pub fn set_wakes(&self, counts: &[(WakesSeen, u64)]) {
        for (seen, count) in counts {
            self.tasks.wakes.with_label_values(&[seen.name()]).set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Current processes by runtime and state.
    pub fn set_runtimes(&mut self, counts: &[(&'static str, DetectionState, u64)]) {
        let now: BTreeSet<_> = counts.iter().map(|(runtime, state, _)| (*runtime, state.name())).collect();
        for (runtime, state) in self.tasks.shown.difference(&now) {
            self.tasks.processes.with_label_values(&[*runtime, *state]).set(0);
        }
        for (runtime, state, count) in counts {
            let gauge = self.tasks.processes.with_label_values(&[*runtime, state.name()]);
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        self.tasks.shown.extend(now);
    }
}
