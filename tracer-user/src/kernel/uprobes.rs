//! Programs at places in programs: each in one process, which it can slow down by a microsecond a hit and no more.
//!
//! They are attached only to processes that serve requests and whose runtime nothing cheaper tells of, are counted, and
//! are let go of when the process is gone, runs another program, or the agent ends.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Instant;

use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeScope};
use tracer_common::runtime::UserProbe;

use super::load::{Attached, Built, Kernel, built, chain};
use crate::guard::fill::Fill;

/// Most places at once: each needs a descriptor.
pub const PLACES: usize = 256;

/// What became of probes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Attached, those that were let go of since included.
    pub attached: u64,
    /// Refused by the kernel, or because there are too many.
    pub refused: u64,
}

impl Kernel {
    /// Attaches a probe's program to `offset` of `file`, in the process `pid` only. Does nothing where it is attached
    /// already. Errors say why not.
    pub fn attach_user(&mut self, probe: UserProbe, pid: u32, file: &Path, offset: u64) -> Result<(), String> {
        if self.attachments().has_user(pid, probe) {
            return Ok(());
        }
        let done = self.try_attach(probe, pid, file, offset);
        *(if done.is_ok() { &mut self.attempts.attached } else { &mut self.attempts.refused }) += 1;
        done
    }

    fn try_attach(&mut self, probe: UserProbe, pid: u32, file: &Path, offset: u64) -> Result<(), String> {
        if self.attachments().users() >= PLACES {
            return Err(format!("{PLACES} places in programs are watched already"));
        }
        let process = NonZeroU32::new(pid).ok_or("no such process")?;
        let program: &mut UProbe = self
            .ebpf
            .program_mut(probe.name())
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| format!("the BPF object has no program {}", probe.name()))?;
        let at = UProbeAttachLocation::AbsoluteOffset(offset);
        let link = program
            .attach(at, file, UProbeScope::OneProcess(process))
            .and_then(|id| program.take_link(id))
            .map_err(|error| chain(&error))?;
        self.attachments().user(pid, probe, link);
        Ok(())
    }

    /// Lets go of every place in a process.
    pub fn detach_user(&mut self, pid: u32) {
        let links = self.attachments().take_user(pid);
        if links.is_empty() {
            return;
        }
        // The kernel waits until nobody is inside: elsewhere, where nobody waits for that.
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

    /// What became of probes.
    pub fn attempts(&self) -> Attempts {
        self.attempts
    }

    /// Places in use.
    pub fn user_fill(&self) -> Fill {
        Fill::new(self.attachments().users(), PLACES, self.attempts.refused)
    }
}

/// Loads the program of each probe; what is missing says why.
pub(super) fn load(ebpf: &mut aya::Ebpf) -> Vec<Attached> {
    let each = |probe: UserProbe| {
        let mut entry = Attached {
            program: probe.name(),
            hook: probe.place(),
            built: Built::default(),
            missing: None,
            without: probe.without(),
        };
        let begin = Instant::now();
        let program = ebpf.program_mut(probe.name()).and_then(|program| <&mut UProbe>::try_from(program).ok());
        match program.map(|program| program.load().map(|()| built(program.fd(), begin.elapsed()))) {
            Some(Ok(built)) => entry.built = built,
            Some(Err(error)) => entry.missing = Some(chain(&error)),
            None => entry.missing = Some("the BPF object has no such program".into()),
        }
        entry
    };
    UserProbe::ALL.into_iter().map(each).collect()
}
