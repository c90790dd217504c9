//! The programs that see what a few processes write to logs: loaded only if the configuration names services whose lines are kept.

use std::time::Instant;

use aya::Ebpf;
use aya::maps::{HashMap, MapData};
use aya::programs::Program;
use tracer_common::log_write::{LOGGING_MAX, LoggingProcess};
use tracer_host::guard::tables::TableUse;

use super::attachments::Attachments;
use super::features::{Feature, FeatureState};
use super::load_retry;
use super::loader::{Attached, Built, Pod, When, chain};
use super::loading::built_of;

/// Whether writes to logs are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLineMode {
    /// The programs are not loaded.
    #[default]
    Off,
    /// Load them without attaching them, to see whether this kernel accepts them.
    Tried,
    /// They are attached.
    On,
}

/// The programs, the functions at whose ends they are, and what is lost without them.
const PROGRAMS: [(&str, &str, &str); 2] = [
    (
        "log_written",
        "vfs_write",
        "the ends of all system calls are looked at instead, which costs each tens of nanoseconds",
    ),
    ("log_written_pieces", "vfs_writev", "lines that programs write by writev are not seen"),
];
/// The one that stands in where the kernel lets nothing hang on the end of a function.
const STAND_IN: (&str, &str, &str) = ("log_written_call", "sys_exit", "no lines of logs are seen");
/// Their map.
pub(super) const MAP: &str = "LOGGING";

/// Processes whose log lines are wanted.
#[derive(Debug)]
pub struct LogLines {
    map: HashMap<MapData, u32, Pod<LoggingProcess>>,
    listed: usize,
    refused: u64,
}

impl LogLines {
    /// Lines of this process are wanted from now on: `max_rate` writes a second at most, and what it writes to the socket
    /// `journal` (0: it has none). Whether that was new.
    pub fn add(&mut self, pid: u32, max_rate: u32, journal: u64) -> bool {
        if self.map.get(&pid, 0).is_ok() {
            return false;
        }
        let process = LoggingProcess { journal, max_rate: u64::from(max_rate), ..LoggingProcess::default() };
        let done = self.map.insert(pid, Pod(process), 0).is_ok();
        self.listed += usize::from(done);
        self.refused += u64::from(!done);
        done
    }

    /// The process is gone, or runs another program.
    pub fn remove(&mut self, pid: u32) {
        self.listed -= usize::from(self.listed > 0 && self.map.remove(&pid).is_ok());
    }

    /// How full the table is.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.listed, LOGGING_MAX as usize, self.refused)
    }
}

/// Whether lines of logs can be seen; `None` if nothing was tried.
pub(super) fn feature(attached: &[Attached]) -> Option<Feature> {
    const NAME: &str = "log lines";
    let [tried, pieces, stand_in] = [PROGRAMS[0], PROGRAMS[1], STAND_IN]
        .map(|(program, ..)| attached.iter().find(|one| one.program == program).map(|one| one.missing.clone()));
    let remedy = "a kernel that lets BPF hang on function exits";
    Some(match (tried?, pieces.flatten(), stand_in) {
        (None, None, _) => {
            Feature::full(NAME, "by the ends of vfs_write and vfs_writev, where [logs] names services".to_owned())
        }
        (None, Some(missing), _) => Feature::less(NAME, FeatureState::Degraded, missing, PROGRAMS[1].2, ""),
        (Some(missing), _, Some(None)) => {
            let consequence = "where [logs] names services, the end of every system call is looked at, which costs each tens of nanoseconds";
            Feature::less(NAME, FeatureState::Degraded, missing, consequence, remedy)
        }
        (Some(missing), ..) => Feature::less(NAME, FeatureState::Missing, missing, STAND_IN.2, remedy),
    })
}

/// Entries of the map.
pub(super) fn entries(mode: LogLineMode) -> u32 {
    if mode == LogLineMode::On { LOGGING_MAX } else { 1 }
}

/// Loads the programs, and attaches them if asked for; a missing one says why.
pub(super) fn load(
    ebpf: &mut Ebpf,
    btf: &aya::Btf,
    mode: LogLineMode,
    attachments: &Attachments,
) -> (Vec<Attached>, Option<LogLines>) {
    if mode == LogLineMode::Off {
        return (Vec::new(), None);
    }
    let mut attached = Vec::new();
    let mut try_one = |(program, hook, without)| {
        let mut built = Built::default();
        let missing = one(ebpf, btf, (program, hook), mode, attachments, &mut built).err();
        let is_missing = missing.is_some();
        attached.push(Attached { program, hook, when: When::Asked, built, missing, without });
        !is_missing
    };
    // With the stand-in beside them, writes would be seen twice.
    let [whole, pieces] = PROGRAMS;
    let is_at_ends = try_one(whole);
    if is_at_ends || mode == LogLineMode::Tried {
        try_one(pieces);
    }
    if !is_at_ends || mode == LogLineMode::Tried {
        try_one(STAND_IN);
    }
    let is_on = mode == LogLineMode::On && attached.iter().any(|one| one.missing.is_none());
    let map = if is_on { ebpf.take_map(MAP).and_then(|map| map.try_into().ok()) } else { None };
    (attached, map.map(|map| LogLines { map, listed: 0, refused: 0 }))
}

fn one(
    ebpf: &mut Ebpf,
    btf: &aya::Btf,
    (name, function): (&str, &str),
    mode: LogLineMode,
    attachments: &Attachments,
    built: &mut Built,
) -> Result<(), String> {
    macro_rules! attach {
        ($program:expr) => {{
            let program = $program;
            let begin = Instant::now();
            load_retry::load(|| program.load(function, btf)).map_err(|error| chain(&error))?;
            *built = built_of(program.fd(), begin.elapsed());
            if mode == LogLineMode::On {
                let link = program.attach().and_then(|id| program.take_link(id)).map_err(|error| chain(&error))?;
                attachments.link(link);
            }
        }};
    }
    match ebpf.program_mut(name) {
        Some(Program::FExit(program)) => attach!(program),
        Some(Program::BtfTracePoint(program)) => attach!(program),
        _ => return Err("the BPF object has no such program".into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(missing: &[&str]) -> Vec<Attached> {
        let of = |(program, hook, without): (&'static str, &'static str, &'static str)| {
            let missing = missing.contains(&program).then(|| format!("no {program}"));
            Attached { program, hook, when: When::Asked, built: Built::default(), missing, without }
        };
        PROGRAMS.into_iter().chain([STAND_IN]).map(of).collect()
    }

    #[test]
    fn what_stands_in_is_said() {
        let state = |missing: &[&str]| feature(&attached(missing)).map(|feature| (feature.state, feature.detail));
        assert!(matches!(state(&[]), Some((FeatureState::Full, _))));
        let exits = ["log_written", "log_written_pieces"];
        assert_eq!(state(&exits), Some((FeatureState::Degraded, "no log_written".into())));
        assert_eq!(state(&exits[1..]), Some((FeatureState::Degraded, "no log_written_pieces".into())));
        let all = ["log_written", "log_written_pieces", "log_written_call"];
        assert_eq!(state(&all), Some((FeatureState::Missing, "no log_written".into())));
        assert!(feature(&[]).is_none());
    }
}
