//! The sampling rate, and what profiling costs.

use prometheus::{Gauge, IntCounter};

use crate::metrics::families::{Families, vec};
use crate::metrics::totals::{Seconds, Totals};

/// Its families.
#[derive(Debug)]
pub(super) struct ProfilerMetrics {
    pub(super) hertz: Gauge,
    pub(super) off_cpu_share: Gauge,
    pub(super) call_share: Gauge,
    pub(super) call_stacks: Totals,
    pub(super) cost: Gauge,
    pub(super) budget: Gauge,
    pub(super) seconds: Seconds,
    pub(super) ad_hoc_samples: Totals,
    pub(super) ad_hoc_dropped: Totals,
    pub(super) ad_hoc_requests: IntCounter,
    pub(super) ad_hoc_clocks: Totals,
}

impl ProfilerMetrics {
    pub(super) fn new(r: &Families) -> Self {
        let totals = |name: &str, help: &str, label: &str| Totals::new(r, name, help, label);
        Self {
            hertz: vec(r, Gauge::new("tracer_sampling_hertz", "Stack samples per second and CPU that are taken.")),
            off_cpu_share: vec(
                r,
                Gauge::new(
                    "tracer_off_cpu_stacks_ratio",
                    "Stacks that are taken of threads which leave the CPU with a request, divided by such threads.",
                ),
            ),
            call_share: vec(
                r,
                Gauge::new("tracer_call_stacks_ratio", "Stacks that are taken of calls, divided by calls."),
            ),
            call_stacks: totals(
                "tracer_call_stacks_total",
                "Stacks of sends, by what became of them: joined (to the call that began with the send), unused (no call began \
                 with it, or too many were open; a TLS handshake is no call), refused (too many different stacks).",
                "outcome",
            ),
            cost: vec(
                r,
                Gauge::new(
                    "tracer_profiler_cost_ratio",
                    "CPU that sampling stacks took over the last seconds, divided by the CPU of the host.",
                ),
            ),
            budget: vec(
                r,
                Gauge::new(
                    "tracer_overhead_budget_ratio",
                    "CPU that sampling stacks may take, divided by the CPU of the host.",
                ),
            ),
            seconds: Seconds::new(
                r,
                "tracer_profiler_cpu_seconds_total",
                "CPU seconds that sampling stacks took: sample (the program at the clock), off_cpu (the program at context \
                 switches), calls (the program at sends), ad_hoc (at the clocks of single threads), interrupt and agent (estimates, see docs/profiling.md).",
                "part",
            ),
            ad_hoc_requests: vec(
                r,
                IntCounter::new(
                    "tracer_ad_hoc_requests_total",
                    "Slow requests whose own samples were kept, those that made room for later ones included.",
                ),
            ),
            ad_hoc_samples: totals(
                "tracer_ad_hoc_samples_total",
                "Samples kept with slow requests, by how they were taken: clock (of a CPU), thread_clock, off_cpu.",
                "kind",
            ),
            ad_hoc_dropped: totals(
                "tracer_ad_hoc_dropped_total",
                "Samples of single requests that were not kept, by reason: request_full (too many different stacks), \
                 open_full (of all open requests), replaced (the oldest slow request made room), unfinished (the \
                 request's end was not seen). Samples of requests that were not slow are not counted.",
                "reason",
            ),
            ad_hoc_clocks: totals(
                "tracer_ad_hoc_clocks_total",
                "Threads that worked for a slow request, by whether they were sampled by a clock of their own: opened, \
                 over_budget, too_many, refused (by the kernel).",
                "outcome",
            ),
        }
    }
}
