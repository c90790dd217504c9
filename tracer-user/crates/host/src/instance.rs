//! A process as one instance of its service, told from all others.

use std::sync::Arc;

use super::container::{self, Container};
use super::process::ProcessFacts;

/// A process that serves requests, makes calls or was sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Its id.
    pub pid: u32,
    /// Start time in clock ticks since boot; 0: not known.
    pub start_time: u64,
    /// Path of its program; empty: not known.
    pub exe: String,
    /// Its container.
    pub container: Option<Arc<Container>>,
}

impl Instance {
    /// By the facts of a process.
    pub fn new(pid: u32, facts: &ProcessFacts) -> Self {
        Self {
            pid,
            start_time: facts.start_time,
            exe: facts.exe.clone(),
            container: container::of_cgroup(&facts.cgroup).map(Arc::new),
        }
    }

    /// A process that could not be inspected.
    pub fn unknown(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }
}
