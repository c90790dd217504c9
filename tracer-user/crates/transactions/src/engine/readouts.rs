//! What the agent reads from the engine besides spans: counts, and what piled up since it last asked.

use std::collections::BTreeMap;

use tracer_common::event::ThreadCounters;
use tracer_common::policy::CapturePolicy;
use tracer_model::{FailedConnect, Nanos};

use crate::counters::Counters;
use crate::engine::Engine;
use crate::inband_context::Outcomes;
use crate::process_costs::ProcessWork;

impl Engine {
    /// UDP look-ups whose ends were not joined because more than one call matched the answer.
    pub fn lookups_unclear(&self) -> u64 {
        self.lookups.unclear
    }

    /// Processes whose thread wake-ups should be traced, since last taken.
    pub fn take_wanted(&mut self) -> std::vec::Drain<'_, u32> {
        self.thread_pools.wanted.drain(..)
    }

    /// Capture policies for the kernel since last taken.
    pub fn take_policies(&mut self) -> std::vec::Drain<'_, (u64, CapturePolicy)> {
        self.policies.drain(..)
    }

    /// Number of queued entries: closed connections, exited threads, spans waiting for their report.
    pub fn queued(&self) -> usize {
        self.closing.len() + self.exited_threads.len() + self.queue.len()
    }

    /// Threads (tid, tgid) silent since `before`, and every process as (tgid, tgid): their exit record may have been
    /// lost.
    pub fn silent(&self, before: Nanos) -> Vec<(u32, u32)> {
        let silent = self.world.threads.iter().filter(|(_, thread)| thread.charged_at.max(thread.last_op) < before);
        let threads = silent.map(|(tid, thread)| (*tid, thread.tgid));
        threads.chain(self.world.processes.services.keys().map(|tgid| (*tgid, *tgid))).collect()
    }

    /// The counters up to which a thread was charged, and the time of its last record; `None` if the thread is not
    /// tracked or its id was reused.
    pub fn followed(&self, tid: u32, tgid: u32) -> Option<(ThreadCounters, Nanos)> {
        let thread = self.world.threads.get(&tid).filter(|thread| thread.tgid == tgid)?;
        Some((thread.counters, thread.charged_at.max(thread.last_op)))
    }

    /// Whether bytes left a socket since last asked by a path that no attached hook covers.
    pub fn take_unseen(&mut self) -> bool {
        std::mem::take(&mut self.world.unseen)
    }

    /// Losses and limits.
    pub fn counters(&self) -> Counters {
        self.world.counters
    }

    /// Outcomes of in-band contexts.
    pub fn inband_outcomes(&self) -> Outcomes {
        self.inband.outcomes
    }

    /// Number of missing task edges.
    pub fn kins_lost(&self) -> u64 {
        self.tasks.table.lost
    }

    /// Processes that began to serve requests since last taken.
    pub fn take_serving(&mut self) -> std::vec::Drain<'_, u32> {
        self.world.processes.served.drain(..)
    }

    /// Takes the CPU of processes since last taken: process, work, nanoseconds; in no order.
    pub fn take_process_costs(&mut self) -> Vec<(u32, ProcessWork, u64)> {
        self.charges.processes.take()
    }

    /// Takes the connects that failed since last taken.
    pub fn take_failed_connects(&mut self) -> BTreeMap<FailedConnect, u64> {
        self.network.take()
    }

    /// Processes that began to use TLS on a connection, since last taken.
    pub fn take_encrypted(&mut self) -> std::vec::Drain<'_, u32> {
        self.encryption.take_begun()
    }

    /// Certificates that handshakes showed since last taken: the server's name and when they expire, seconds since 1970.
    pub fn take_certificates(&mut self) -> BTreeMap<Box<str>, i64> {
        self.encryption.take_certificates()
    }
}
