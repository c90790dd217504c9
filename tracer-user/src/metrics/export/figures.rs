//! Figures that other modules count and the exporter only shows.

use super::{Metrics, raise};
use crate::guard::shed::{Ceilings, Level};
use crate::guard::tables::TableUse;
use crate::kernel::usage::Usage;
use crate::model::{HostCpu, ServiceId};

impl Metrics {
    /// Losses and gaps by reason, absolute.
    pub fn set_lost(&self, reason: &str, total: u64) {
        self.lost.set(reason, total);
    }

    /// Lost events by reason, without zeros: the values of `tracer_events_lost_total`.
    pub fn events_lost(&self) -> Vec<(String, u64)> {
        self.lost.events()
    }

    /// Records by kind, absolute.
    pub fn set_events(&self, kind: &str, total: u64) {
        self.events.set(kind, total);
    }

    /// Classes and merges of every service.
    pub fn set_classes(&mut self, services: impl Iterator<Item = (ServiceId, usize, u64)>) {
        self.classes.set_classes(services);
    }

    /// Sampling rate in force, what sampling costs now and may cost as shares of the host's CPU, and what its parts took so
    /// far, nanoseconds.
    pub fn set_profiler(&self, hertz: u32, (cost, budget): (f64, f64), parts: &[(&str, f64)]) {
        self.profiler.hertz.set(f64::from(hertz));
        self.profiler.cost.set(cost);
        self.profiler.budget.set(budget);
        for (part, nanos) in parts {
            self.profiler.seconds.set(part, nanos / 1e9);
        }
    }

    /// Slow requests with samples of their own, absolute: how many, their samples by kind, samples that were not kept by reason,
    /// and what became of clocks for their threads.
    pub fn set_ad_hoc(&self, requests: u64, [samples, dropped, clocks]: [&[(&str, u64)]; 3]) {
        let profiler = &self.profiler;
        profiler.ad_hoc_requests.inc_by(requests.saturating_sub(profiler.ad_hoc_requests.get()));
        for (totals, counts) in [
            (&profiler.ad_hoc_samples, samples),
            (&profiler.ad_hoc_dropped, dropped),
            (&profiler.ad_hoc_clocks, clocks),
        ] {
            for (label, count) in counts {
                totals.set(label, *count);
            }
        }
    }

    /// How full the table of duration histograms is.
    pub fn series(&self) -> TableUse {
        let (histograms, limit) = self.classes.budget.histograms();
        TableUse::new(histograms, limit, self.folded_series.get())
    }

    /// Entries, limits and evictions of every table.
    pub fn set_table_use(&self, table_use: &[(&'static str, TableUse)]) {
        for (what, fill) in table_use {
            self.own.fill(what, *fill);
        }
    }

    /// The load shedding level in force.
    pub fn set_shed_level(&self, level: Level) {
        self.own.level(level);
    }

    /// Counts an entry into a load shedding level.
    pub fn shed(&self, taken: Level) {
        self.own.shed(taken);
    }

    /// The agent's limits and its usage: memory in bytes, CPU in cores.
    pub fn set_usage(&self, ceilings: &Ceilings, memory: u64, cpu: f64) {
        self.own.usage(ceilings, memory, cpu);
    }

    /// A callback by which the watchdog reports why it detached.
    pub fn on_detached(&self) -> impl Fn(&'static str) + Send + use<> {
        let detached = self.own.detached();
        move |reason| detached.with_label_values(&[reason]).set(1.0)
    }

    /// Exported spans by outcome, and export requests that were sent again; absolute.
    pub fn set_export(&self, spans: &[(&str, u64)], retries: u64) {
        self.own.export(spans, retries);
    }

    /// Contexts exchanged between hosts by outcome, absolute.
    pub fn set_relay(&self, outcomes: &[(&str, u64)]) {
        self.own.relay(outcomes);
    }

    /// In-band contexts by outcome, absolute.
    pub fn set_inband(&self, outcomes: &[(&str, u64)]) {
        self.own.inband(outcomes);
    }

    /// Connections and requests selected for header injection, by outcome, absolute.
    pub fn set_headers(&self, outcomes: &[(&str, u64)]) {
        self.own.headers(outcomes);
    }

    /// User stacks that were walked, by outcome, absolute.
    pub fn set_walks(&self, outcomes: impl Iterator<Item = (&'static str, u64)>) {
        for (outcome, count) in outcomes {
            self.own.walks(outcome, count);
        }
    }

    /// Walks over Python's frames by outcome, and functions that were named and could not be, absolute.
    pub fn set_python(&self, walks: impl Iterator<Item = (&'static str, u64)>, (named, unnamed): (u64, u64)) {
        for (outcome, count) in walks {
            self.own.python_walks(outcome, count);
        }
        self.own.python_functions("named", named);
        self.own.python_functions("unnamed", unnamed);
    }

    /// Messages that link nothing though they may say who produced them, by reason, absolute.
    pub fn set_unlinked(&self, reasons: &[(&str, u64)]) {
        self.own.unlinked(reasons);
    }

    /// Observes how long after a request's first byte its caller on another host became known, nanoseconds.
    pub fn relay_delay(&self, nanos: u64) {
        self.own.relay_delay(nanos);
    }

    /// Findings so far by kind, absolute.
    pub fn set_findings(&self, counts: &[(&str, u64)]) {
        self.own.findings(counts);
    }

    /// Findings posted to the webhook by outcome, absolute.
    pub fn set_notifications(&self, outcomes: &[(&str, u64)]) {
        self.own.notifications(outcomes);
    }

    /// Noteworthy transactions by outcome of saving them, absolute.
    pub fn set_saved(&self, counts: &[(&str, u64)]) {
        self.own.saved(counts);
    }

    /// Windows and files of the history by outcome, absolute.
    pub fn set_history(&self, windows: &[(&str, u64)], files: &[(&str, u64)]) {
        self.own.history(windows, files);
    }

    /// Run time, runs and missed runs of a BPF program, absolute.
    pub fn set_bpf(&self, program: &str, usage: Usage) {
        self.bpf_seconds.set(program, usage.nanos as f64 / 1e9);
        self.bpf_runs.set(program, usage.runs);
        self.bpf_missed.set(program, usage.missed);
    }

    /// CPU seconds and resident bytes of the agent itself.
    pub fn set_own(&self, cpu_s: f64, rss: u64) {
        raise(&self.own_cpu, cpu_s);
        self.own_rss.set(rss as f64);
    }

    /// CPU of the host.
    pub fn set_host(&self, host_cpu: &HostCpu) {
        for (kind, seconds) in [
            ("requests", host_cpu.requests),
            ("overhead", host_cpu.overhead),
            ("kernel", host_cpu.kernel),
            ("idle", host_cpu.idle),
        ] {
            self.host_cpu.set(kind, seconds);
        }
        raise(&self.host_busy, host_cpu.system_busy);
        self.host_unreported.set(host_cpu.unreported);
        if let Some(ratio) = host_cpu.capture_ratio() {
            self.capture.set(ratio);
        }
    }
}
