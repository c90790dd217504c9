//! Figures that other modules count and the exporter only shows.

use tracer_host::guard::tables::TableUse;
use tracer_model::ServiceId;

use super::Metrics;

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

    /// Sampling rate in force, shares of waits and of calls whose stack is taken, what sampling costs now and may cost as shares of the
    /// host's CPU, and what its parts took so far, nanoseconds.
    pub fn set_profiler(
        &self,
        hertz: u32,
        (off_cpu_share, call_share): (f64, f64),
        (cost, budget): (f64, f64),
        parts: &[(&str, f64)],
    ) {
        self.profiler.hertz.set(f64::from(hertz));
        self.profiler.off_cpu_share.set(off_cpu_share);
        self.profiler.call_share.set(call_share);
        self.profiler.cost.set(cost);
        self.profiler.budget.set(budget);
        for (part, nanos) in parts {
            self.profiler.seconds.set(part, nanos / 1e9);
        }
    }

    /// Stacks of calls by what became of them, absolute.
    pub fn set_call_stacks(&self, counts: &[(&str, u64)]) {
        for (outcome, count) in counts {
            self.profiler.call_stacks.set(outcome, *count);
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
}
