//! Names found so far of the code of a process.

use std::time::Instant;

use rustc_hash::FxHashMap;
use tracer_runtimes::hotspot::Hotspot;

use super::debug_info::DebugFiles;
use super::interpreted::Functions;
use super::jit;
use super::naming::Frames;

/// What is known of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessNames {
    /// What it wrote of its own code, once that was needed.
    pub(super) jit: Option<jit::Names>,
    /// Java's virtual machine in it, and whether that was looked for.
    pub(super) java: Option<Hotspot>,
    pub(super) java_sought: bool,
    /// Names found, outermost first where functions were inlined: without the line that runs, and with it.
    pub(super) frames: [FxHashMap<u64, Frames>; 2],
    /// Functions of interpreted languages.
    pub(super) functions: Functions,
    /// Fingerprint of the files it maps, 0 before they were looked at; and their debug information, where all of it can be read
    /// and is root's or our own.
    pub(super) files: u64,
    pub(super) debug: Option<DebugFiles>,
    /// When it was first seen, and the turn at which a name of it was last asked for.
    pub(super) since: Option<Instant>,
    pub(super) used: u64,
}

impl ProcessNames {
    /// Addresses whose names are kept.
    pub(super) fn addresses(&self) -> usize {
        self.frames.iter().map(FxHashMap::len).sum::<usize>() + self.functions.len()
    }
}
