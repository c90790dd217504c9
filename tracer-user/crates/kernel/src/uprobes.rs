//! Probes in user programs: each is limited to one process, which it can slow down by a microsecond per hit and no
//! more.
//!
//! They are attached only to processes that serve requests and whose runtime cannot be traced more cheaply. They are
//! counted, and detached when the process is gone or runs another program, or the agent ends.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracer_common::runtime::UserProbe;
use tracer_host::guard::tables::TableUse;

use super::attachments::{Attachments, Visit};
use super::loader::Kernel;
use super::usdt::OperandMap;
use super::user_links::{self, Place};
use super::user_programs::UserPrograms;

/// Most probes at once: each needs a descriptor.
pub const PLACES: usize = 1024;
/// The process id under which probes of all processes are kept; no process has it.
pub const EVERY_PROCESS: u32 = 0;

/// Outcomes of attaching probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Attached, including those detached since.
    pub attached: u64,
    /// Refused by the kernel, or because there are too many.
    pub refused: u64,
}

/// Attaches probes in its own thread: the kernel takes up to some 30 milliseconds for one, in which the rings would
/// overflow.
pub struct Prober {
    pub(super) programs: Arc<UserPrograms>,
    pub(super) attachments: Attachments,
    attempts: Arc<Counts>,
    pub(super) operands: Arc<Mutex<OperandMap>>,
}

/// [`Attempts`], counted in one thread and read in another.
#[derive(Debug, Default)]
pub(super) struct Counts {
    attached: AtomicU64,
    refused: AtomicU64,
}

impl Prober {
    /// Attaches a probe's program at `offset` of `file`, in the process of this visit only. The error says why it
    /// failed.
    pub fn attach(&mut self, probe: UserProbe, visit: Visit, file: &Path, offset: u64) -> Result<(), String> {
        let done = self.try_attach(probe, visit, file, offset);
        self.count(done.is_ok());
        done
    }

    pub(super) fn count(&self, is_attached: bool) {
        let count = if is_attached { &self.attempts.attached } else { &self.attempts.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn try_attach(&mut self, probe: UserProbe, visit: Visit, file: &Path, offset: u64) -> Result<(), String> {
        // The kernel takes 0 for every process.
        let process = Some(visit.0).filter(|pid| *pid != EVERY_PROCESS);
        process.ok_or("no such process")?;
        self.place(probe, visit, Place { file, offset, semaphore: None, process, cookie: 0 })
    }

    /// Attaches a probe's program and keeps the link.
    pub(super) fn place(&mut self, probe: UserProbe, visit: Visit, place: Place<'_>) -> Result<(), String> {
        if self.attachments.users() >= PLACES {
            return Err(format!("{PLACES} places in programs are watched already"));
        }
        let link = self.programs.attach(probe.name(), place)?;
        self.attachments.user(visit, link);
        Ok(())
    }
}

impl Prober {
    /// Attaches a probe's program at `offset` of `file` in every process that has it mapped, now or later. The program
    /// reads `cookie`; `visit` is the number under which [`Self::detach_file`] finds it.
    pub fn attach_file(
        &mut self,
        probe: UserProbe,
        visit: u64,
        (file, offset): (&Path, u64),
        cookie: u64,
    ) -> Result<(), String> {
        self.attach_with_semaphore(probe, visit, (file, offset, None), cookie)
    }

    /// As [`Self::attach_file`] at several places, each an offset and a cookie: all or none.
    pub fn attach_file_at(
        &mut self,
        probe: UserProbe,
        visit: u64,
        file: &Path,
        places: &[(u64, u64)],
    ) -> Result<(), String> {
        let done = if self.attachments.users() + places.len() > PLACES {
            Err(format!("{PLACES} places in programs are watched already"))
        } else {
            self.programs.attach_all(probe.name(), file, places)
        };
        for _ in places {
            self.count(done.is_ok());
        }
        for link in done? {
            self.attachments.user((EVERY_PROCESS, visit), link);
        }
        Ok(())
    }

    /// As [`Self::attach_file`], and the kernel raises the probe's semaphore.
    pub(super) fn attach_with_semaphore(
        &mut self,
        probe: UserProbe,
        visit: u64,
        (file, offset, semaphore): (&Path, u64, Option<u64>),
        cookie: u64,
    ) -> Result<(), String> {
        let place = Place { file, offset, semaphore, process: None, cookie };
        let done = self.place(probe, (EVERY_PROCESS, visit), place);
        self.count(done.is_ok());
        done
    }

    /// Detaches the probes of a visit; waits until no thread is inside one.
    pub fn detach_file(&mut self, visit: u64) {
        user_links::detach(self.attachments.take_user(EVERY_PROCESS, Some(visit)));
        self.operands.lock().unwrap_or_else(PoisonError::into_inner).free(visit);
    }
}

impl Kernel {
    /// Creates a prober, for a thread of its own.
    pub fn prober(&self) -> Prober {
        Prober {
            programs: Arc::clone(&self.user_programs),
            attachments: self.attachments(),
            attempts: Arc::clone(&self.attempts),
            operands: Arc::clone(&self.operands),
        }
    }

    /// Detaches the probes in a process: those of one visit, or all.
    pub fn detach_user(&mut self, pid: u32, visit: Option<u64>) {
        let links = self.attachments().take_user(pid, visit);
        if links.is_empty() {
            return;
        }
        // The kernel waits until no thread is inside a probe: do that in a thread that may wait.
        let dropped = std::thread::Builder::new().name("tracer-detach".into()).spawn(move || user_links::detach(links));
        if let Err(error) = dropped {
            log::warn!("no thread to detach in, so it was done at once: {error}");
        }
    }

    /// Hits of each probe so far.
    pub fn hits(&self) -> Vec<(&'static str, u64)> {
        let of = |probe: UserProbe| self.hits.get(&(probe as u32), 0).map_or(0, |cpus| cpus.iter().sum());
        UserProbe::ALL.into_iter().map(|probe| (probe.name(), of(probe))).collect()
    }

    /// Outcomes of attaching probes.
    pub fn attempts(&self) -> Attempts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Attempts { attached: read(&self.attempts.attached), refused: read(&self.attempts.refused) }
    }

    /// Table use of the probes.
    pub fn user_fill(&self) -> TableUse {
        TableUse::new(self.attachments().users(), PLACES, self.attempts().refused)
    }
}
