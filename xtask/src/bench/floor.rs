//! The floor: empty programs on the agent's hooks. No tracer on these hooks costs less.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::bpf::{self, Place, UprobeLink, Usage};
use super::btf;
use crate::shell;

/// The agent's hooks, looked up once.
#[derive(Clone)]
pub(super) struct Hooks {
    programs: Vec<(Place, u32)>,
    /// Those in programs under load.
    probes: Vec<UprobeLink>,
    /// Whether the agent samples stacks.
    samples: bool,
}

/// The agent's default rate.
const HERTZ: u32 = 99;

impl Hooks {
    /// Asks the agent which hooks it attaches at start: hooks that attach on demand or by a setting are not attached in
    /// the measured runs.
    pub(super) fn of(tracer: &Path) -> Result<Self> {
        let text = shell::output(Command::new(tracer).args(["doctor", "--json"]))?;
        let hooks = attached(&text).context("`tracer doctor --json` names no programs")?;
        let kernel = fs::read("/sys/kernel/btf/vmlinux").context("cannot read the kernel's types")?;
        let ids = btf::hooks(&kernel).context("the kernel's types are no BTF")?;
        let mut found = Self { programs: Vec::new(), probes: Vec::new(), samples: false };
        for (program, hook) in hooks {
            if hook.starts_with("perf_event") {
                found.samples = true;
            } else if let Some(id) = ids.get(&(true, hook.as_bytes())) {
                found.programs.push((Place::Tracepoint, *id));
            } else if let Some(id) = ids.get(&(false, hook.as_bytes())) {
                let place = if program.ends_with("_entry") { Place::Entry } else { Place::Exit };
                found.programs.push((place, *id));
            } else {
                bail!("the kernel's types have no hook {hook}, on which the agent's program {program} hangs");
            }
        }
        Ok(found)
    }

    /// These, and the probes in programs and libraries that a running agent has attached.
    pub(super) fn with_probes_of(&self, agent: i32) -> Result<Self> {
        Ok(Self { probes: UprobeLink::held_by(agent)?, ..self.clone() })
    }

    /// Number of programs.
    pub(super) fn count(&self) -> usize {
        self.programs.len() + usize::from(self.samples)
    }
}

/// Programs and hooks in the output of `tracer doctor --json` that attach at start.
fn attached(text: &str) -> Option<Vec<(String, String)>> {
    let report: serde_json::Value = serde_json::from_str(text).ok()?;
    let mut hooks = Vec::new();
    for program in report["programs"].as_array()? {
        if program["attached"].as_bool()? && program["when"].as_str()? == "start" {
            hooks.push((program["program"].as_str()?.to_owned(), program["hook"].as_str()?.to_owned()));
        }
    }
    (!hooks.is_empty()).then_some(hooks)
}

/// Empty programs, attached as long as this lives.
pub(super) struct Floor {
    programs: Vec<[OwnedFd; 2]>,
    _samplers: Vec<OwnedFd>,
}

impl Floor {
    /// Attaches one empty program for each of the agent's.
    pub(super) fn attach(hooks: &Hooks) -> Result<Self> {
        let programs = hooks.programs.iter().map(|(place, id)| bpf::attach_empty(*place, *id));
        let programs: Result<_> = programs.chain(hooks.probes.iter().map(UprobeLink::attach_empty)).collect();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let samplers = if hooks.samples { bpf::sample_empty(HERTZ, cpus)? } else { Vec::new() };
        Ok(Self { programs: programs?, _samplers: samplers })
    }

    /// What they cost so far, except for the sampler: its time is the cold start of an interrupt.
    pub(super) fn usage(&self) -> Result<Vec<Usage>> {
        self.programs.iter().map(|[program, _]| bpf::usage(program)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_those_that_are_attached() {
        let text = r#"{"kernel":"6","programs":[{"program":"tx","hook":"sock_send_length","when":"start","attached":true},
            {"program":"rx","hook":"gone","when":"start","attached":false},
            {"program":"header","hook":"sk_msg","when":"asked","attached":true},
            {"program":"sample","hook":"perf_event cpu-clock","when":"start","attached":true}]}"#;
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let wanted = vec![pair("tx", "sock_send_length"), pair("sample", "perf_event cpu-clock")];
        assert_eq!(attached(text), Some(wanted));
        assert_eq!(attached(r#"{"programs":[]}"#), None);
        assert_eq!(attached("no JSON"), None);
    }
}
