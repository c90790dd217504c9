//! Probes in user programs: each is limited to one process, which it can slow down by a microsecond per hit and no
//! more.
//!
//! They are attached only to processes that serve requests and whose runtime cannot be traced more cheaply. They are
//! counted, and detached when the process is gone or runs another program, or the agent ends.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope};
use aya::programs::{Program, UProbe};
use tracer_common::runtime::UserProbe;

use super::attachments::{Attachments, Visit};
use super::load_retry;
use super::loader::{Attached, Built, Kernel, When, chain};
use super::loading::{Calls, built};
use super::probes::FRAMES_TEXT;
use super::usdt::OperandMap;
use crate::guard::tables::TableUse;

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
    pub(super) programs: HashMap<UserProbe, UProbe>,
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
        if self.attachments.users() >= PLACES {
            return Err(format!("{PLACES} places in programs are watched already"));
        }
        let process = NonZeroU32::new(visit.0).ok_or("no such process")?;
        let program = self.programs.get_mut(&probe).ok_or("its program was refused when it was loaded")?;
        let at = UProbeAttachLocation::AbsoluteOffset(offset);
        let link = program
            .attach(at, file, UProbeScope::OneProcess(process))
            .and_then(|id| program.take_link(id))
            .map_err(|error| chain(&error))?;
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
        if self.attachments.users() >= PLACES {
            self.count(false);
            return Err(format!("{PLACES} places in programs are watched already"));
        }
        let program = self.programs.get_mut(&probe).ok_or("its program was refused when it was loaded")?;
        let at = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(offset), cookie: Some(cookie) };
        let link = program.attach(at, file, UProbeScope::AllProcesses).and_then(|id| program.take_link(id));
        self.count(link.is_ok());
        self.attachments.user((EVERY_PROCESS, visit), link.map_err(|error| chain(&error))?);
        Ok(())
    }

    /// Detaches the probes of a visit; waits until no thread is inside one.
    pub fn detach_file(&mut self, visit: u64) {
        drop(self.attachments.take_user(EVERY_PROCESS, Some(visit)));
        self.operands.lock().unwrap_or_else(PoisonError::into_inner).free(visit);
    }
}

impl Kernel {
    /// Creates a prober with its own handles of the loaded programs, for its own thread.
    pub fn prober(&self) -> Prober {
        let handle = |probe: UserProbe| {
            let Some(Program::UProbe(program)) = self.ebpf.program(probe.name()) else { return None };
            let info = program.info().ok()?;
            // SAFETY: the same program with the same kind.
            let program = unsafe { UProbe::from_program_info(info, probe.name().into(), program.kind()) };
            program.ok().map(|program| (probe, program))
        };
        Prober {
            programs: UserProbe::ALL.into_iter().filter_map(handle).collect(),
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
        let dropped = std::thread::Builder::new().name("tracer-detach".into()).spawn(move || drop(links));
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

/// Loads the program of each probe; missing ones say why.
pub(super) fn load(ebpf: &mut aya::Ebpf, calls: &mut Calls) -> Vec<Attached> {
    let probes = UserProbe::ALL.map(|probe| (probe.name(), probe.place(), When::Needed, probe.without()));
    let called = (FRAMES_TEXT, "called by probes of TLS libraries", When::Called, FRAMES_LOST);
    let each = |(program, hook, when, without)| {
        let mut entry = Attached { program, hook, when, built: Built::default(), missing: None, without };
        let begin = Instant::now();
        let loaded = ebpf.program_mut(program).and_then(|program| <&mut UProbe>::try_from(program).ok());
        match loaded.map(|program| load_retry::load(|| program.load()).map(|()| built(program.fd(), begin.elapsed()))) {
            Some(Ok(built)) => entry.built = built,
            Some(Err(error)) => entry.missing = Some(chain(&error)),
            None => entry.missing = Some("the BPF object has no such program".into()),
        }
        if when == When::Called && entry.missing.is_none() {
            entry.missing = calls.put(ebpf, program).err();
        }
        entry
    };
    probes.into_iter().chain([called]).map(each).collect()
}

/// What is lost without [`FRAMES_TEXT`].
const FRAMES_LOST: &str = "requests by HTTP/2 over TLS are missed where several frames are written at once";
