//! How full the tables, queues and buffers around the pipeline are.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracer_common::limits::{ASKS_MAX, PROCESSES_MAX, SAMPLE_RING_BYTES};
use tracer_common::lost::Lost;
use tracer_host::guard::tables::{AgentTables, TableUse};
use tracer_http::{Console, Job};
use tracer_kernel::header::Headers;
use tracer_kernel::log_lines::LogLines;
use tracer_kernel::ring_occupancy::RingLevel;
use tracer_kernel::trace_contexts::TraceContexts;

use super::agent::Agent;

/// Ticks between two counts of what is in the kernel's maps.
const COUNT_EVERY: u64 = 16;

/// What shows how full queues are that are not the agent's own.
pub(super) struct Gauges {
    console: Arc<Console>,
    jobs: mpsc::Sender<Job>,
    /// Wishes in the kernel as counted last: counting them takes milliseconds.
    asks_waiting: usize,
}

impl Gauges {
    /// Those of the HTTP server: its load, and its end of the queue of jobs.
    pub(super) fn new(console: Arc<Console>, jobs: mpsc::Sender<Job>) -> Self {
        Self { console, jobs, asks_waiting: 0 }
    }
}

impl Agent {
    /// How full everything around the pipeline is.
    pub(super) fn table_use(&mut self) -> AgentTables {
        let samples = self.intake.level.as_mut().map_or(0, RingLevel::take_most);
        let (events, event_bytes) = self.intake.rings.event_level();
        if self.clock.ticks % COUNT_EVERY == 1 {
            self.gauges.asks_waiting = self.kernel.policy.asks_waiting();
        }
        let lost = self.kernel.lost();
        let of = |reasons: &[Lost]| reasons.iter().filter_map(|reason| lost.get(*reason as usize)).sum();
        let unwind = self.profiling.unwind_tables();
        let ring = |entries, bytes, reached| TableUse { entries, limit: bytes as u64, reached };
        AgentTables {
            ring_event_bytes: ring(
                events,
                event_bytes as usize,
                of(&[Lost::RingOp, Lost::RingConnection, Lost::RingThread]),
            ),
            ring_sample_bytes: ring(samples, SAMPLE_RING_BYTES, of(&[Lost::RingSample])),
            kernel_asks: TableUse::new(self.gauges.asks_waiting, ASKS_MAX as usize, self.kernel.policy.asks_refused),
            kernel_processes: TableUse::new(
                self.kernel.policy.listed(),
                PROCESSES_MAX as usize,
                self.kernel.policy.processes_refused,
            ),
            runtimes: self.processes.runtimes(),
            user_probes: self.kernel.user_fill(),
            header_connections: self.kernel.headers.as_ref().map_or_else(TableUse::default, Headers::table_use),
            unwind_table_bytes: unwind.bytes,
            unwind_files: unwind.files,
            unwind_rules: unwind.rules,
            interpreter_processes: self.profiling.interpreter_processes(),
            file_bytes: self.files.table_use(),
            hindsight_bytes: self
                .files
                .recorders
                .hindsight
                .as_ref()
                .map_or_else(TableUse::default, |hindsight| hindsight.ring.table_use()),
            otlp_queue: self.exports.table_use(),
            http_jobs: self.gauges.console.jobs(&self.gauges.jobs),
            http_connections: self.gauges.console.connections(),
            priority_threads: self.enforcing.table_use(),
            priority_connections: self.enforcing.connections(),
            ended_requests: self.enforcing.ended(),
            hotspots: self.processes.hotspots(),
            log_processes: self.kernel.log_lines.as_ref().map_or_else(TableUse::default, LogLines::table_use),
            trace_contexts: self
                .kernel
                .trace_contexts
                .as_ref()
                .map_or_else(TableUse::default, TraceContexts::table_use),
        }
    }
}
