//! Which processes are traced, and who they are.

use std::collections::HashSet;

use tracer_host::process::{self, ProcessFacts};
use tracer_host::services::{NamingRules, identify};
use tracer_kernel::policy::Scope;
use tracer_results::record::FrameKind;
use tracer_runtimes::process_memory::MemoryFile;

use super::Failure;
use super::agent::Agent;
use super::agent_files::Recorders;
use super::log_files;
use super::older_processes::OlderProcesses;
use crate::pipeline::Introduce;

/// Reads who a process is, and writes it down when recording.
pub(super) struct Introducer<'a> {
    pub(super) recorders: &'a mut Recorders,
    /// Services that are traced, when only some are; and what was found out.
    pub(super) only: &'a [String],
    pub(super) rules: &'a NamingRules,
    pub(super) allowed: &'a mut Vec<u32>,
    pub(super) asked: &'a mut HashSet<u32>,
    pub(super) older: &'a mut OlderProcesses,
}

impl Introduce for Introducer<'_> {
    fn introduce(&mut self, tgid: u32) -> Option<ProcessFacts> {
        let facts = self.older.facts(tgid, process::read(tgid))?;
        if self.recorders.is_any()
            && let Ok(bytes) = serde_json::to_vec(&facts)
        {
            self.recorders.frame(FrameKind::Process, &bytes);
        }
        if !self.only.is_empty() && self.asked.insert(tgid) && is_wanted(&facts, self.rules, self.only) {
            self.allowed.push(tgid);
        }
        Some(facts)
    }

    fn memory(&mut self, tgid: u32) -> Option<MemoryFile> {
        // It may be gone.
        MemoryFile::open(tgid).ok()
    }

    fn file_name(&mut self, tgid: u32, device: u32, inode: u64) -> Option<String> {
        log_files::name_of(tgid, device, inode)
    }

    fn forget(&mut self, tgid: u32) {
        self.older.forget(tgid);
    }
}

/// Whether a process is of one of these services.
fn is_wanted(facts: &ProcessFacts, rules: &NamingRules, services: &[String]) -> bool {
    let identity = identify(facts, rules);
    services.iter().any(|wanted| identity.is_called(wanted))
}

/// Services that were asked for and that no process is of.
fn unmatched<'a>(wanted: &'a [String], found: &HashSet<String>) -> Vec<&'a str> {
    wanted.iter().filter(|name| !found.contains(*name)).map(String::as_str).collect()
}

impl Agent {
    /// Lets the kernel report what the configuration asks for.
    pub(super) fn open_up(&mut self) -> Result<(), Failure> {
        let policy = &mut self.kernel.policy;
        policy.only_ports(&self.config.agent.only_ports)?;
        policy.names(&self.config.protocols.dns_ports)?;
        self.start_sampling()?;
        let policy = &mut self.kernel.policy;
        for pid in &self.config.agent.only_pids {
            policy.process(*pid, true)?;
        }
        if !self.config.agent.only_services.is_empty() {
            // Those that run now; later ones when they are first heard of.
            let mut found = HashSet::new();
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Some(facts) = process::read(pid) else { continue };
                let identity = identify(&facts, &self.config.services);
                let wanted = self.config.agent.only_services.iter().filter(|wanted| identity.is_called(wanted));
                let mut is_wanted = false;
                for name in wanted {
                    is_wanted = true;
                    found.insert(name.clone());
                }
                if is_wanted {
                    policy.process(pid, true)?;
                }
            }
            for name in unmatched(&self.config.agent.only_services, &found) {
                log::warn!(
                    "no process is of service '{name}' so far: nothing of it is traced until one is (the console shows \
                     the names of services when all are traced)"
                );
            }
        }
        let listed = !self.config.agent.only_pids.is_empty() || !self.config.agent.only_services.is_empty();
        policy.scope(if listed { Scope::Listed } else { Scope::Everything })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_match_nothing_are_named() {
        let wanted = ["shop".to_owned(), "shpo".to_owned()];
        assert_eq!(unmatched(&wanted, &HashSet::from(["shop".to_owned()])), ["shpo"]);
        assert!(unmatched(&wanted, &HashSet::from(wanted.clone())).is_empty());
    }
}
