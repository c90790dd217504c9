//! The maps of interpreters' frames: layouts by process, and how walks ended.

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use tracer_common::interpreter::{InterpreterLayout, InterpreterOutcome, LANGUAGE_SHIFT, Language};

use super::loader::{LoadError, Pod, chain, refused, take};

/// Where the interpreters of processes keep their frames.
pub struct InterpreterMap(HashMap<MapData, u32, Pod<InterpreterLayout>>);

/// Walks over interpreters' frames counted so far.
pub struct InterpreterWalks(PerCpuArray<MapData, u64>);

/// Takes the maps out of the loaded object.
pub(super) fn maps(ebpf: &mut Ebpf) -> Result<(InterpreterMap, InterpreterWalks), LoadError> {
    let layouts = HashMap::try_from(take(ebpf, "INTERPRETERS")?);
    let layouts = layouts.map_err(|error| refused("map INTERPRETERS", &chain(&error)))?;
    let walks = PerCpuArray::try_from(take(ebpf, "INTERPRETER_WALKS")?);
    let walks = walks.map_err(|error| refused("map INTERPRETER_WALKS", &chain(&error)))?;
    Ok((InterpreterMap(layouts), InterpreterWalks(walks)))
}

impl InterpreterMap {
    /// Says where a process keeps its frames; an error where there is no room.
    pub fn set(&mut self, pid: u32, layout: InterpreterLayout) -> Result<(), String> {
        self.0.insert(pid, Pod(layout), 0).map_err(|error| chain(&error))
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        // Not there is what is wanted.
        let _ = self.0.remove(&pid);
    }
}

impl InterpreterWalks {
    /// Walks of a language by outcome; processes without it are not walked.
    pub fn counts(&self, language: Language) -> impl Iterator<Item = (InterpreterOutcome, u64)> {
        let number = move |outcome| outcome as u32 | (language as u32) << LANGUAGE_SHIFT;
        let count = move |outcome| self.0.get(&number(outcome), 0).map_or(0, |cpus| cpus.iter().sum());
        InterpreterOutcome::ALL.into_iter().skip(1).map(move |outcome| (outcome, count(outcome)))
    }
}
