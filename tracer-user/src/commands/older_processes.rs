//! Processes that ran before the agent, as they were when it started: one that is quiet until a request ends it may be gone before
//! the record of that request is read, and is called by its name all the same.

use rustc_hash::FxHashMap;
use tracer_host::process::{self, ProcessFacts};
use tracer_policies::service_classes::thread_priority;

/// Most processes remembered: some 0.1 ms and a kilobyte each. The others are called as before, by what is left of them.
const LIMIT: usize = 4096;

/// Facts by process id, until the process reports for the first time, ends or runs another program.
#[derive(Debug, Default)]
pub(super) struct OlderProcesses(FxHashMap<u32, ProcessFacts>);

impl OlderProcesses {
    /// Reads every process of the host. Kernel threads and processes that are ending have no program.
    pub(super) fn read() -> Self {
        let processes = thread_priority::processes().into_iter();
        let facts = processes.filter_map(process::read).filter(|facts| !facts.is_ending()).take(LIMIT);
        Self(facts.map(|facts| (facts.pid, facts)).collect())
    }

    /// The facts of a process: as they are, or as they were if it is gone or ending. `now`: what the host says of it.
    pub(super) fn facts(&mut self, pid: u32, now: Option<ProcessFacts>) -> Option<ProcessFacts> {
        let older = self.0.remove(&pid);
        match now {
            Some(now) if !now.is_ending() => Some(now),
            Some(now) => {
                let is_same = |older: &ProcessFacts| older.start_time == now.start_time && older.comm == now.comm;
                Some(older.filter(is_same).unwrap_or(now))
            }
            None => older,
        }
    }

    /// The id is another process's, or its process runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(start_time: u64, comm: &str, exe: &str) -> ProcessFacts {
        ProcessFacts { pid: 7, start_time, comm: comm.into(), exe: exe.into(), ..ProcessFacts::default() }
    }

    #[test]
    fn a_process_that_is_gone_is_what_it_was() {
        let was = || facts(5, "shop", "/bin/shop");
        for (now, expected) in [
            (None, was()),
            (Some(facts(5, "shop", "")), was()),
            // Runs another program; of which another is known by now; another of the same id.
            (Some(facts(5, "curl", "")), facts(5, "curl", "")),
            (Some(facts(5, "curl", "/bin/curl")), facts(5, "curl", "/bin/curl")),
            (Some(facts(6, "shop", "")), facts(6, "shop", "")),
        ] {
            let mut older = OlderProcesses(FxHashMap::from_iter([(7, was())]));
            assert_eq!(older.facts(7, now.clone()), Some(expected), "{now:?}");
            assert_eq!(older.facts(7, None), None);
        }
        let mut older = OlderProcesses(FxHashMap::from_iter([(7, was())]));
        older.forget(7);
        assert_eq!(older.facts(7, None), None);
    }

    #[test]
    fn what_runs_is_read() {
        let own = std::process::id();
        assert_eq!(OlderProcesses::read().facts(own, None).map(|facts| facts.pid), Some(own));
    }
}
