//! Processes, as far as attribution needs to know them.

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_model::{Nanos, ServiceId};

use super::queue_workers::QueueWorkers;
use super::thread_affinity::ThreadAffinity;

/// Processes, as far as attribution needs to know them.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Their services.
    pub(super) services: FxHashMap<u32, ServiceId>,
    /// Those that read requests, each with the time of the first (entry ports). Calls of others begin transactions.
    pub(super) serving: FxHashMap<u32, Nanos>,
    /// There were too many of them: any process may serve requests.
    pub(super) serving_all: bool,
    /// Serving processes not yet taken by [`super::engine::Engine::take_serving`].
    pub(super) served: Vec<u32>,
    /// Those known to run tasks or event loops: one callback may serve several requests.
    pub(super) interleaving: FxHashSet<u32>,
    /// Those that take jobs from queues.
    pub(super) queue_workers: QueueWorkers,
    /// Whether requests stay on the threads that read them.
    pub(super) affinity: ThreadAffinity,
}

impl Processes {
    /// The process has exited or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.services.remove(&tgid);
        self.serving.remove(&tgid);
        self.interleaving.remove(&tgid);
        self.queue_workers.forget(tgid);
        self.affinity.forget(tgid);
    }

    /// Service of a process; the first service for a process that was never introduced.
    pub(super) fn service(&self, tgid: u32) -> ServiceId {
        self.services.get(&tgid).copied().unwrap_or(ServiceId(0))
    }
}
