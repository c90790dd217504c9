//! The maps of Python's frames: layouts by process, and how walks ended.

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use tracer_common::python::{PythonLayout, PythonOutcome};

use super::loader::{LoadError, Pod, chain, refused, take};

/// Where the interpreters of processes keep their frames.
pub struct Pythons(HashMap<MapData, u32, Pod<PythonLayout>>);

/// Walks over Python's frames counted so far.
pub struct PythonWalks(PerCpuArray<MapData, u64>);

/// Takes the maps out of the loaded object.
pub(super) fn maps(ebpf: &mut Ebpf) -> Result<(Pythons, PythonWalks), LoadError> {
    let layouts = HashMap::try_from(take(ebpf, "PYTHONS")?);
    let layouts = layouts.map_err(|error| refused("map PYTHONS", &chain(&error)))?;
    let walks = PerCpuArray::try_from(take(ebpf, "PYTHON_WALKS")?);
    let walks = walks.map_err(|error| refused("map PYTHON_WALKS", &chain(&error)))?;
    Ok((Pythons(layouts), PythonWalks(walks)))
}

impl Pythons {
    /// Says where a process keeps its frames; an error where there is no room.
    pub fn set(&mut self, pid: u32, layout: PythonLayout) -> Result<(), String> {
        self.0.insert(pid, Pod(layout), 0).map_err(|error| chain(&error))
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        // Not there is what is wanted.
        let _ = self.0.remove(&pid);
    }
}

impl PythonWalks {
    /// Walks by outcome; processes without Python are not walked.
    pub fn counts(&self) -> impl Iterator<Item = (PythonOutcome, u64)> {
        let count = |outcome| self.0.get(&(outcome as u32), 0).map_or(0, |cpus| cpus.iter().sum());
        PythonOutcome::ALL.into_iter().skip(1).map(move |outcome| (outcome, count(outcome)))
    }
}
