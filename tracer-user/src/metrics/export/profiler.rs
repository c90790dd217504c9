//! The sampling rate, and what profiling costs.

use prometheus::{CounterVec, Gauge, Opts};

use super::super::families::{Families, vec};
use super::Seconds;

/// Its families.
#[derive(Debug)]
pub(super) struct ProfilerMetrics {
    pub(super) hertz: Gauge,
    pub(super) cost: Gauge,
    pub(super) budget: Gauge,
    pub(super) seconds: Seconds,
}

impl ProfilerMetrics {
    pub(super) fn new(r: &Families) -> Self {
        Self {
            hertz: vec(r, Gauge::new("tracer_sampling_hertz", "Stack samples per second and CPU that are taken.")),
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
            seconds: Seconds(vec(
                r,
                CounterVec::new(
                    Opts::new(
                        "tracer_profiler_cpu_seconds_total",
                        "CPU seconds that sampling stacks took: sample (the program at the clock), off_cpu (the program \
                         at context switches), interrupt and agent (estimates, see docs/profiling.md).",
                    ),
                    &["part"],
                ),
            )),
        }
    }
}
