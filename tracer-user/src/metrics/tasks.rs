//! What is attached to processes, and how well the tasks of their runtimes are told apart.

use std::collections::BTreeSet;

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::export::{Metrics, Totals, vec};
use crate::kernel::uprobes::Attempts;
use crate::runtimes::State;

/// The families.
#[derive(Debug)]
pub(super) struct Tasks {
    hits: Totals,
    attempts: Totals,
    processes: IntGaugeVec,
    waiting: IntGauge,
    looks: IntCounter,
    /// Labels that were set last.
    told: BTreeSet<(&'static str, &'static str)>,
}

impl Tasks {
    pub(super) fn new(r: &Registry) -> Self {
        let total =
            |name: &str, help: &str, label: &str| Totals(vec(r, IntCounterVec::new(Opts::new(name, help), &[label])));
        let processes = "Processes that serve requests by the runtime they run and whether its tasks are told apart (known) \
                         or why not.";
        let processes = Opts::new("tracer_runtime_processes", processes);
        let looks = "Times a process that began to serve was looked at for its runtime.";
        let waiting =
            "Processes that began to serve and whose runtime is being found out: their tasks are not told apart yet.";
        Self {
            hits: total("tracer_uprobe_hits_total", "Hits of each probe in user space.", "probe"),
            attempts: total(
                "tracer_uprobe_attachments_total",
                "Probes in user space by what became of them.",
                "outcome",
            ),
            processes: vec(r, IntGaugeVec::new(processes, &["runtime", "state"])),
            waiting: vec(r, IntGauge::new("tracer_runtime_processes_waiting", waiting)),
            looks: vec(r, IntCounter::new("tracer_runtime_looks_total", looks)),
            told: BTreeSet::new(),
        }
    }
}

impl Metrics {
    /// Hits of probes in user space, and what became of them; absolute.
    pub fn set_probes(&self, hits: &[(&'static str, u64)], attempts: Attempts) {
        for (probe, count) in hits {
            self.tasks.hits.set(probe, *count);
        }
        self.tasks.attempts.set("attached", attempts.attached);
        self.tasks.attempts.set("refused", attempts.refused);
    }

    /// Processes that are yet to be looked at, or are being looked at, and looks at others so far.
    pub fn set_looks(&self, waiting: u64, looked: u64) {
        self.tasks.looks.inc_by(looked.saturating_sub(self.tasks.looks.get()));
        self.tasks.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Processes by runtime and state, now.
    pub fn set_runtimes(&mut self, counts: &[(&'static str, State, u64)]) {
        let now: BTreeSet<_> = counts.iter().map(|(runtime, state, _)| (*runtime, state.name())).collect();
        for (runtime, state) in self.tasks.told.difference(&now) {
            self.tasks.processes.with_label_values(&[*runtime, *state]).set(0);
        }
        for (runtime, state, count) in counts {
            let gauge = self.tasks.processes.with_label_values(&[*runtime, state.name()]);
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
        self.tasks.told.extend(now);
    }
}
