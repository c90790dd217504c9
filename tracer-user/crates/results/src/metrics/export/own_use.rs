//! What the agent itself uses: CPU, memory, and the time its BPF programs run.

use prometheus::{Counter, Gauge, GaugeVec, Opts};
use tracer_kernel::usage::Usage;

use super::Metrics;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::{Seconds, Totals, raise};

/// The families.
#[derive(Debug)]
pub(super) struct OwnUse {
    cpu: Counter,
    resident: Gauge,
    bpf_seconds: Seconds,
    bpf_runs: Totals,
    bpf_missed: Totals,
}

impl OwnUse {
    pub(super) fn new(r: &Families) -> Self {
        let build = "Version of the agent as a label; the value is always 1.";
        let build = vec(r, GaugeVec::new(Opts::new("tracer_build_info", build), &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            cpu: vec(r, Counter::new("process_cpu_seconds_total", "CPU seconds that the agent used.")),
            resident: vec(r, Gauge::new("process_resident_memory_bytes", "Resident memory of the agent in bytes.")),
            bpf_seconds: Seconds::new(
                r,
                "tracer_bpf_run_seconds_total",
                "Seconds that a BPF program ran (0 while kernel.bpf_stats_enabled is 0).",
                "program",
            ),
            bpf_runs: Totals::new(
                r,
                "tracer_bpf_runs_total",
                "Runs of a BPF program (counted while kernel.bpf_stats_enabled is 1).",
                "program",
            ),
            bpf_missed: Totals::new(
                r,
                "tracer_bpf_missed_total",
                "Runs of a BPF program that the kernel skipped because the program was already running on that CPU.",
                "program",
            ),
        }
    }
}

impl Metrics {
    /// CPU seconds and resident bytes of the agent itself.
    pub fn set_own(&self, cpu_s: f64, rss: u64) {
        raise(&self.own_use.cpu, cpu_s);
        self.own_use.resident.set(rss as f64);
    }

    /// Run time, runs and missed runs of a BPF program, absolute.
    pub fn set_bpf(&self, program: &str, usage: Usage) {
        self.own_use.bpf_seconds.set(program, usage.nanos as f64 / 1e9);
        self.own_use.bpf_runs.set(program, usage.runs);
        self.own_use.bpf_missed.set(program, usage.missed);
    }
}
