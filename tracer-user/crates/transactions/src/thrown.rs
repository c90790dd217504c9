//! Exceptions that were thrown for requests, and those of tasks whose request shows only when they answer it.

use rustc_hash::FxHashMap;
use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;
use tracer_runtimes::exceptions::RawTypeName;

/// Most tasks with an exception whose request is not known.
const TASKS: usize = 4096;

/// An exception that was thrown for a request.
#[derive(Debug)]
pub struct ThrownException {
    /// Its type; `None`: it could not be read.
    pub kind: Option<RawTypeName>,
    /// The thread that threw it.
    pub tid: u32,
    /// When.
    pub at: Nanos,
}

/// The last exception of each task that answers a request later, or none.
#[derive(Debug, Default)]
pub(crate) struct TaskExceptions {
    /// By process and task.
    thrown: FxHashMap<(u32, u64), ThrownException>,
    /// Those that made room.
    dropped: u64,
}

impl TaskExceptions {
    /// A task threw one.
    pub(crate) fn add(&mut self, task: (u32, u64), thrown: ThrownException) {
        if self.thrown.len() >= TASKS && !self.thrown.contains_key(&task) {
            self.dropped += self.thrown.len() as u64;
            self.thrown.clear();
        }
        self.thrown.insert(task, thrown);
    }

    /// A task answers a request that began at `since`: what it threw for that.
    pub(crate) fn take(&mut self, task: (u32, u64), since: Nanos) -> Option<ThrownException> {
        self.thrown.remove(&task).filter(|thrown| thrown.at >= since)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.thrown.is_empty()
    }

    pub(crate) fn table_use(&self) -> TableUse {
        TableUse::new(self.thrown.len(), TASKS, self.dropped)
    }
}
