//! Figures that others count and the exporter only shows.

use super::{Metrics, raise};
use crate::guard::fill::Fill;
use crate::guard::shed::{Ceilings, Level};
use crate::kernel::usage::Usage;
use crate::model::HostBooks;

impl Metrics {
    /// Losses by reason, absolute.
    pub fn set_lost(&self, reason: &str, total: u64) {
        self.lost.set(reason, total);
    }

    /// Records by kind, absolute.
    pub fn set_events(&self, kind: &str, total: u64) {
        self.events.set(kind, total);
    }

    /// Classes and merges of a service.
    pub fn set_classes(&self, service: &str, classes: usize, merged: u64) {
        if classes > 0 {
            self.classes.with_label_values(&[service]).set(classes as f64);
            self.merged.set(service, merged);
        }
    }

    /// Sampling rate in force.
    pub fn set_hertz(&self, hertz: u32) {
        self.hertz.set(f64::from(hertz));
    }

    /// How full the table of duration histograms is.
    pub fn series(&self) -> Fill {
        Fill::new(self.series, self.series_most, self.folded_series.get())
    }

    /// How full everything is.
    pub fn set_fills(&self, fills: &[(&'static str, Fill)]) {
        for (what, fill) in fills {
            self.own.fill(what, *fill);
        }
    }

    /// Detail given up now.
    pub fn set_shed_level(&self, level: Level) {
        self.own.level(level);
    }

    /// Counts a level that was taken.
    pub fn shed(&self, taken: Level) {
        self.own.shed(taken);
    }

    /// What the agent takes of what it may: bytes, cores' worth.
    pub fn set_usage(&self, ceilings: &Ceilings, memory: u64, cpu: f64) {
        self.own.usage(ceilings, memory, cpu);
    }

    /// What the watchdog says its reason by.
    pub fn on_detached(&self) -> impl Fn(&'static str) + Send + use<> {
        let detached = self.own.detached();
        move |reason| detached.with_label_values(&[reason]).set(1.0)
    }

    /// What became of units of work that were to be sent as spans, by outcome, and requests that were sent again.
    pub fn set_export(&self, spans: &[(&str, u64)], retries: u64) {
        self.own.export(spans, retries);
    }

    /// What became of contexts between hosts, by outcome.
    pub fn set_relay(&self, outcomes: &[(&str, u64)]) {
        self.own.relay(outcomes);
    }

    /// What became of contexts in band, by outcome, absolute.
    pub fn set_inband(&self, outcomes: &[(&str, u64)]) {
        self.own.inband(outcomes);
    }

    /// What became of connections and requests that were to get headers, absolute.
    pub fn set_headers(&self, outcomes: &[(&str, u64)]) {
        self.own.headers(outcomes);
    }

    /// Messages that link nothing though they may say who produced them, by reason, absolute.
    pub fn set_unlinked(&self, reasons: &[(&str, u64)]) {
        self.own.unlinked(reasons);
    }

    /// A request learned of its caller on another host so long after its first byte was read, nanoseconds.
    pub fn relay_delay(&self, nanos: u64) {
        self.own.relay_delay(nanos);
    }

    /// What became of noteworthy transactions that were to be saved, by outcome.
    pub fn set_saved(&self, counts: &[(&str, u64)]) {
        self.own.saved(counts);
    }

    /// What a BPF program has cost.
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

    /// The host's books.
    pub fn set_host(&self, books: &HostBooks) {
        for (kind, seconds) in
            [("requests", books.requests), ("overhead", books.overhead), ("kernel", books.kernel), ("idle", books.idle)]
        {
            self.host_cpu.set(kind, seconds);
        }
        raise(&self.host_busy, books.system_busy);
        self.host_unreported.set(books.unreported);
        if let Some(ratio) = books.capture_ratio() {
            self.capture.set(ratio);
        }
    }
}
