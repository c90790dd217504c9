//! The agent's limits, load shedding near them, and the watchdog that detaches above them.

use std::collections::BTreeMap;

use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts};
use tracer_host::guard::shed::{Ceilings, Level};

use super::Metrics;
use crate::metrics::families::{Families, vec};

/// Reasons for which the watchdog detaches.
const REASONS: [&str; 4] = ["standstill", "ending", "memory", "cpu"];

/// The families.
#[derive(Debug)]
pub(super) struct OwnLimits {
    memory: Gauge,
    cpu: Gauge,
    used: GaugeVec,
    level: Gauge,
    shed: Vec<(Level, IntCounter)>,
    detached: GaugeVec,
    detailed: Gauge,
    counted: IntCounter,
    counting: GaugeVec,
}

impl OwnLimits {
    pub(super) fn new(r: &Families) -> Self {
        let times = "Times the agent entered a load shedding level to stay within its own limits.";
        let shed = vec(r, IntCounterVec::new(Opts::new("tracer_load_shedding_total", times), &["level"]));
        let level = "Load shedding level: 0 none, 1 payload, 2 sampling, 3 classes, 4 history; each includes the levels \
                     before it.";
        let detached = "1 when the watchdog has detached every program for this reason; the agent then ends.";
        let detached = vec(r, GaugeVec::new(Opts::new("tracer_watchdog_detached", detached), &["reason"]));
        for reason in REASONS {
            detached.with_label_values(&[reason]).set(0.0);
        }
        let detailed = "Of the requests and calls that ended in the last second, the share that was seen whole; the others were \
                        only counted, by class, outcome, duration and cost.";
        let counted = "Requests and calls that were not seen whole, only counted by the kernel side.";
        let counting = "Processes by whether the kernel side may count their requests and calls instead of reporting them: \
                        counted, too_few_seen so far, or why not (protocol, serves_and_calls, tls, makes_calls, has_parents, \
                        connection_changes, pipelines).";
        let memory = "Memory that the agent may use, without pages of mapped files, in bytes.";
        let used = "Usage of the agent divided by its limit: memory (without pages of mapped files), CPU over the last \
                    seconds.";
        Self {
            memory: vec(r, Gauge::new("tracer_memory_limit_bytes", memory)),
            cpu: vec(r, Gauge::new("tracer_cpu_limit_cores", "CPU that the agent may use, in cores.")),
            used: vec(r, GaugeVec::new(Opts::new("tracer_limit_used_ratio", used), &["resource"])),
            level: vec(r, Gauge::new("tracer_load_shedding_level", level)),
            shed: Level::ALL
                .into_iter()
                .filter(|level| *level > Level::Full)
                .map(|level| (level, shed.with_label_values(&[level.name()])))
                .collect(),
            detached,
            detailed: vec(r, Gauge::new("tracer_requests_detailed_ratio", detailed)),
            counted: vec(r, IntCounter::new("tracer_requests_counted_only_total", counted)),
            counting: vec(r, GaugeVec::new(Opts::new("tracer_counting_processes", counting), &["state"])),
        }
    }
}

impl Metrics {
    /// The share of requests and calls that were seen whole in the last second, and how many were not since the start.
    /// `states`: processes by whether theirs may be counted unseen.
    pub fn set_detailed(&self, (ratio, counted): (f64, u64), states: &BTreeMap<&'static str, u64>) {
        self.own_limits.detailed.set(ratio);
        self.own_limits.counted.inc_by(counted.saturating_sub(self.own_limits.counted.get()));
        for (state, processes) in states {
            self.own_limits.counting.with_label_values(&[state]).set(*processes as f64);
        }
    }

    /// The agent's limits and its usage: memory in bytes, CPU in cores.
    pub fn set_usage(&self, ceilings: &Ceilings, memory: u64, cpu: f64) {
        let limits = &self.own_limits;
        limits.memory.set(ceilings.memory as f64);
        limits.cpu.set(ceilings.cpu);
        for (resource, used, limit) in [("memory", memory as f64, ceilings.memory as f64), ("cpu", cpu, ceilings.cpu)] {
            limits.used.with_label_values(&[resource]).set(used / limit.max(f64::MIN_POSITIVE));
        }
    }

    /// The load shedding level in force.
    pub fn set_shed_level(&self, level: Level) {
        self.own_limits.level.set(f64::from(level as u8));
    }

    /// Counts an entry into a load shedding level.
    pub fn shed(&self, taken: Level) {
        if let Some((_, counter)) = self.own_limits.shed.iter().find(|(level, _)| *level == taken) {
            counter.inc();
        }
    }

    /// A callback by which the watchdog reports why it detached.
    pub fn on_detached(&self) -> impl Fn(&'static str) + Send + use<> {
        let detached = self.own_limits.detached.clone();
        move |reason| detached.with_label_values(&[reason]).set(1.0)
    }
}
