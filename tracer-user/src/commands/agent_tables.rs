//! How full the tables, queues and buffers around the pipeline are.

use tracer_common::limits::{ASKS_MAX, PROCESSES_MAX, SAMPLE_RING_BYTES};
use tracer_common::lost::Lost;

use super::agent::Agent;
use crate::guard::tables::{AgentTables, TableUse};
use crate::kernel::header::Headers;
use crate::kernel::ring_occupancy::RingLevel;
use crate::kernel::trace_contexts::TraceContexts;

/// Ticks between two counts of what is in the kernel's maps.
const COUNT_EVERY: u64 = 16;
impl Agent {
    /// How full everything around the pipeline is.
    pub(super) fn table_use(&mut self) -> AgentTables {
        let samples = self.level.as_mut().map_or(0, RingLevel::take_most);
        let (events, event_bytes) = self.rings.event_level();
        if self.ticks % COUNT_EVERY == 1 {
            self.asks_waiting = self.kernel.policy.asks_waiting();
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
            kernel_asks: TableUse::new(self.asks_waiting, ASKS_MAX as usize, self.kernel.policy.asks_refused),
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
            otlp_queue: self.exports.table_use(),
            http_jobs: self.console.jobs(&self.jobs),
            http_connections: self.console.connections(),
            priority_threads: self.enforcing.table_use(),
            priority_connections: self.enforcing.connections(),
            ended_requests: self.enforcing.ended(),
            hotspots: self.processes.hotspots(),
            trace_contexts: self
                .kernel
                .trace_contexts
                .as_ref()
                .map_or_else(TableUse::default, TraceContexts::table_use),
        }
    }
}
