//! CPU of the host, and how much of it is attributed.

use prometheus::{Counter, Gauge};
use tracer_model::HostCpu;

use super::Metrics;
use crate::metrics::families::{Families, vec};
use crate::metrics::totals::{Seconds, raise};

/// The families.
#[derive(Debug)]
pub(super) struct HostCpuFamilies {
    charged: Seconds,
    busy: Counter,
    unreported: Gauge,
    capture_ratio: Gauge,
}

impl HostCpuFamilies {
    pub(super) fn new(r: &Families) -> Self {
        Self {
            charged: Seconds::new(
                r,
                "tracer_host_cpu_seconds_total",
                "CPU seconds of the host since tracing began, by what they were charged to.",
                "kind",
            ),
            busy: vec(
                r,
                Counter::new(
                    "tracer_host_cpu_busy_seconds_total",
                    "CPU seconds of the host since tracing began that the system reports as used.",
                ),
            ),
            unreported: vec(
                r,
                Gauge::new(
                    "tracer_host_cpu_unreported_seconds",
                    "CPU seconds that were counted but that their threads have not reported yet.",
                ),
            ),
            capture_ratio: vec(
                r,
                Gauge::new(
                    "tracer_capture_ratio",
                    "Attributed CPU divided by the CPU that the system reports as used.",
                ),
            ),
        }
    }
}

impl Metrics {
    /// CPU of the host.
    pub fn set_host(&self, host_cpu: &HostCpu) {
        let families = &self.host_cpu;
        for (kind, seconds) in [
            ("requests", host_cpu.requests),
            ("overhead", host_cpu.overhead),
            ("kernel", host_cpu.kernel),
            ("idle", host_cpu.idle),
        ] {
            families.charged.set(kind, seconds);
        }
        raise(&families.busy, host_cpu.system_busy);
        families.unreported.set(host_cpu.unreported);
        if let Some(ratio) = host_cpu.capture_ratio() {
            families.capture_ratio.set(ratio);
        }
    }
}
