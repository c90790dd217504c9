//! What the agent tells the engine about processes: their services, their runtimes, their end.

use tracer_model::{Nanos, ServiceId};

use crate::engine::Engine;
use crate::strategies::thread_affinity;

impl Engine {
    /// Sets the service of a process.
    pub fn process(&mut self, tgid: u32, service: ServiceId) {
        if self.world.processes.services.len() >= self.world.limits.processes
            && !self.world.processes.services.contains_key(&tgid)
        {
            // Unseen exits leave stale entries; running processes are introduced again by their next record.
            self.world.counters.processes_forgotten += 1;
            self.world.processes.services.clear();
        }
        self.world.processes.services.insert(tgid, service);
    }

    /// Whether the service of the process is known.
    pub fn knows(&self, tgid: u32) -> bool {
        self.world.processes.services.contains_key(&tgid)
    }

    /// The service of a process, if known.
    pub fn service_of(&self, tgid: u32) -> Option<ServiceId> {
        self.world.processes.services.get(&tgid).copied()
    }

    /// The process has exited.
    pub fn forget_process(&mut self, tgid: u32) {
        self.world.processes.forget(tgid);
        self.thread_pools.forget(tgid);
        self.workers_ended(tgid);
        self.encryption.forget(tgid);
        self.declared.forget(tgid);
        self.tasks.forget(tgid);
        self.loops.forget(tgid);
        self.forwarding.forget(tgid);
    }

    /// A process that is met for the first time runs the program of its parent: it was forked, perhaps before tracing began.
    pub fn was_forked(&mut self, child: u32, parent: u32) {
        self.child_processes.was_forked(&self.world, child, parent);
    }

    /// The process runs loops or tasks that interleave requests: one callback may serve several.
    pub fn has_loops(&mut self, tgid: u32) {
        self.world.interleaves(tgid);
    }

    /// Requests of the process move between threads.
    pub fn moves_requests(&mut self, tgid: u32) {
        thread_affinity::requests_move(&mut self.world, tgid);
    }

    /// From now on each wake-up between tasks of a process is seen.
    pub fn wakes_are_watched(&mut self, tgid: u32, now: Nanos) {
        self.tasks.wakers.whole(tgid, now);
    }

    /// Wake-ups between tasks of the process are not watched any more.
    pub fn stop_watching_wakes(&mut self, tgid: u32) {
        self.tasks.wakers.forget(tgid);
    }
}
