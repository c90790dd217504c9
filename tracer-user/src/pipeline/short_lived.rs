//! Processes that end before they can be inspected: which service they belong to.
//!
//! A process that only forked runs its parent's program and belongs to its parent's service. One that executed another
//! program is named by the record of that execution. Its cgroup and `OTEL_SERVICE_NAME` are taken from its ancestors,
//! because processes inherit both: a `curl` of a unit's script gets the same service however briefly it runs.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_host::process::ProcessFacts;
use tracer_host::services::identify;
use tracer_model::ServiceId;

use super::{LEAVING, Pipeline};

/// What processes inherit.
#[derive(Debug, Default)]
struct Inherited {
    cgroup: String,
    otel_service: Option<String>,
}

/// Processes that have not been inspected, and what they would inherit.
#[derive(Debug, Default)]
pub(super) struct ShortLived {
    /// Forked processes that have not executed another program, with their parent and its service.
    forked: FxHashMap<u32, (u32, ServiceId)>,
    /// The name of the program that a process executed (`comm`).
    executed: FxHashMap<u32, Box<str>>,
    inherited: FxHashMap<u32, Arc<Inherited>>,
    forked_refused: u64,
    executed_refused: u64,
}

impl ShortLived {
    /// Whether the process was forked or executed a program while it was traced, and has not been inspected since.
    fn knows(&self, tgid: u32) -> bool {
        self.forked.contains_key(&tgid) || self.executed.contains_key(&tgid)
    }

    /// `parent` forked `child`. `service`: that of `parent`, if known.
    fn fork(&mut self, parent: u32, child: u32, service: Option<ServiceId>) {
        self.forget(child);
        if let Some(inherited) = self.inherited.get(&parent).cloned() {
            self.inherit(child, inherited);
        }
        if let Some(service) = service.or_else(|| self.forked.get(&parent).map(|(_, service)| *service)) {
            if self.forked.len() >= LEAVING {
                // Most of them were inspected long ago, or their exits were not seen.
                self.forked_refused += 1;
                self.forked.clear();
            }
            self.forked.insert(child, (parent, service));
        } else if let Some(program) = self.executed.get(&parent).cloned() {
            self.run(child, program);
        }
    }

    /// The process executed a program.
    fn exec(&mut self, tgid: u32, comm: &str) {
        self.forked.remove(&tgid);
        self.executed.remove(&tgid);
        if !comm.is_empty() {
            self.run(tgid, comm.into());
        }
    }

    fn run(&mut self, tgid: u32, program: Box<str>) {
        if self.executed.len() >= LEAVING {
            self.executed_refused += 1;
            self.executed.clear();
        }
        self.executed.insert(tgid, program);
    }

    /// The process was inspected. Returns its parent if it has run no program but its parent's.
    fn inspected(&mut self, tgid: u32, facts: &ProcessFacts) -> Option<u32> {
        self.executed.remove(&tgid);
        let (cgroup, otel_service) = (facts.cgroup.clone(), facts.otel_service.clone());
        self.inherit(tgid, Arc::new(Inherited { cgroup, otel_service }));
        self.forked.remove(&tgid).map(|(parent, _)| parent)
    }

    fn inherit(&mut self, tgid: u32, inherited: Arc<Inherited>) {
        if self.inherited.len() >= LEAVING && !self.inherited.contains_key(&tgid) {
            self.executed_refused += 1;
            self.inherited.clear();
        }
        self.inherited.insert(tgid, inherited);
    }

    /// The process is gone.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.forked.remove(&tgid);
        self.executed.remove(&tgid);
        self.inherited.remove(&tgid);
    }

    pub(super) fn shrink_excess(&mut self) {
        self.forked.shrink_excess();
        self.executed.shrink_excess();
        self.inherited.shrink_excess();
    }

    /// Use of the tables: forked processes; programs and what processes inherit, whichever is more.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        let executed = self.executed.len().max(self.inherited.len());
        [
            TableUse::new(self.forked.len(), LEAVING, self.forked_refused),
            TableUse::new(executed, LEAVING, self.executed_refused),
        ]
    }
}

impl Pipeline {
    /// A process forked another; `comm` of the parent is not known.
    pub(super) fn forked(&mut self, parent: u32, child: u32, who: &mut dyn super::Introduce) {
        // A process that ran before tracing began is inspected once: its children may end before they can be.
        if !self.engine.knows(parent) && !self.short_lived.knows(parent) {
            self.introduce(parent, None, who);
        }
        let service = self.engine.service_of(parent);
        self.short_lived.fork(parent, child, service);
    }

    /// A process executed a program.
    pub(super) fn executed(&mut self, tgid: u32, comm: &str) {
        self.short_lived.exec(tgid, comm);
    }

    /// Takes the facts of a process.
    pub fn process(&mut self, tgid: u32, facts: &ProcessFacts) {
        // A process that is ending has no program and no arguments any more.
        if facts.is_ending() && self.short_lived.knows(tgid) {
            self.stand_in(tgid, Some(&facts.comm));
            return;
        }
        if facts.forked {
            self.engine.was_forked(tgid, facts.parent);
        }
        let parent = self.short_lived.inspected(tgid, facts);
        self.process_of(tgid, facts, parent);
    }

    /// Assigns a service to a process that can no longer be inspected: that of the forking process if it executed no
    /// other program, else one named after the program, or after the process's thread.
    pub(super) fn stand_in(&mut self, tgid: u32, comm: Option<&str>) {
        let executed = self.short_lived.executed.get(&tgid);
        let comm = executed.map(|program| Cow::Owned(program.to_string())).or_else(|| comm.map(Cow::Borrowed));
        if let Some(comm) = &comm {
            self.workloads.runs(tgid, comm);
        }
        let service = if let Some((_, service)) = self.short_lived.forked.get(&tgid) {
            *service
        } else {
            let inherited = self.short_lived.inherited.get(&tgid);
            let facts = ProcessFacts {
                pid: tgid,
                comm: comm.unwrap_or_default().into_owned(),
                cgroup: inherited.map_or_else(String::new, |inherited| inherited.cgroup.clone()),
                otel_service: inherited.and_then(|inherited| inherited.otel_service.clone()),
                ..ProcessFacts::default()
            };
            let name = identify(&facts, &self.rules).name;
            self.service(&name)
        };
        self.engine.process(tgid, service);
    }
}
