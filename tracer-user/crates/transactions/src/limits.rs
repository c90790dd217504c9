//! Limits and time-outs of the engine.

use tracer_host::guard::tables::{MEMORY, scaled};
use tracer_model::Nanos;

/// Limits and time-outs of the engine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long an ended span waits for later evidence, nanoseconds.
    pub grace: Nanos,
    /// How long a detached call waits, after its last event, for the thread that takes its result, nanoseconds.
    pub handover: Nanos,
    /// A connection without operations for this long is closed and forgotten, nanoseconds.
    pub idle: Nanos,
    /// Limit of connections; beyond it the one idle longest is forgotten.
    pub connections: usize,
    /// Limit of threads; work of further threads is unattributed.
    pub threads: usize,
    /// Limit of open spans; beyond it the oldest is reported early.
    pub spans: usize,
    /// Limit of processes with a known service; beyond it all are forgotten and introduced again.
    pub processes: usize,
    /// Limit of buffered bytes of heads and replies over all connections; beyond it the connections idle longest lose
    /// theirs.
    pub head_bytes: usize,
    /// Limit of runtime tasks, and of their intervals: beyond the first all tasks are forgotten, beyond the second the
    /// oldest intervals.
    pub tasks: usize,
    /// Memory that the limits of the relay between agents scale with, bytes.
    pub relay_memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            grace: 50_000_000,
            handover: 1_000_000_000,
            idle: 300_000_000_000,
            connections: 131_072,
            threads: 65_536,
            spans: 65_536,
            processes: 65_536,
            head_bytes: 64 << 20,
            tasks: 65_536,
            relay_memory: MEMORY,
        }
    }
}

impl Limits {
    /// Limits for an agent that may use `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        let Self { grace, handover, idle, connections, threads, spans, processes, head_bytes, tasks, relay_memory: _ } =
            Self::default();
        let scaled = |most| scaled(most, memory);
        Self {
            grace,
            handover,
            idle,
            connections: scaled(connections),
            threads: scaled(threads),
            spans: scaled(spans),
            processes: scaled(processes),
            head_bytes: scaled(head_bytes),
            tasks: scaled(tasks),
            relay_memory: memory,
        }
    }
}
