//! Java's virtual machine HotSpot: where its compiled code is, how large its frames are, and which methods it is of.
//!
//! Every build exports `gHotSpotVMStructs`, a description of its structures for debuggers (`src/hotspot/share/runtime/vmStructs.hpp`
//! of OpenJDK): members are looked up by name, so that versions need not be known. All of it is read from the memory of a
//! process that may say anything: every length, and every number of reads, is bounded.

pub mod code_cache;
mod inlined_methods;
pub mod layout;
mod method_names;
pub mod virtual_threads;

use code_cache::CodeCache;
use layout::{HotspotLayout, SYMBOLS};
use tracer_common::interpreter::{FRAME_JAVA, InterpretedFrame, InterpreterLayout};

use super::elf::Program;
use super::maps::Maps;
use super::process_memory::{MemoryFile, word};
use super::python_frames::Look;

/// Its library.
const LIBRARY: &str = "libjvm.so";

/// Looks at a process, for the walk over the frames of the interpreter.
pub fn look(maps: &Maps) -> Look {
    if !cfg!(target_arch = "x86_64") || maps.named(|name| name == LIBRARY).is_none() {
        return Look::Nothing;
    }
    // Not by library: what a process has in its memory counts for no other one.
    let machine = Hotspot::in_maps(maps.pid(), maps);
    let code = machine.and_then(|machine| u32::try_from(machine.layout.method_const).ok());
    // Another machine, an old one, or one that has only begun: looked at again.
    let Some(code) = code else { return Look::Nothing };
    Look::Known(InterpreterLayout { code, flags: FRAME_JAVA, ..InterpreterLayout::default() })
}

/// The library in a process: addresses of its symbols there.
struct LocatedLibrary {
    program: Program,
    bias: u64,
}

impl LocatedLibrary {
    fn address(&self, name: &str) -> Option<u64> {
        self.program.address(name).map(|at| self.bias.wrapping_add(at))
    }
}

fn located(maps: &Maps, symbols: &[&str]) -> Option<LocatedLibrary> {
    let library = maps.named(|name| name == LIBRARY)?;
    // The one it runs, after an upgrade, too.
    let file = if library.deleted { maps.mapped(library) } else { maps.open_by(&library.path) };
    let program = Program::read(&file, symbols)?;
    let bias = program.bias(maps.of(&library.path))?;
    Some(LocatedLibrary { program, bias })
}

/// The virtual machine of a process.
#[derive(Debug)]
pub struct Hotspot {
    memory: MemoryFile,
    layout: HotspotLayout,
}

impl Hotspot {
    /// Looks at a process; `None` where it runs no such machine, one that is not known (before Java 9), or is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::in_maps(pid, &Maps::read(pid)?)
    }

    fn in_maps(pid: u32, maps: &Maps) -> Option<Self> {
        let library = located(maps, &SYMBOLS)?;
        let mut memory = MemoryFile::open(pid).ok()?;
        let layout = HotspotLayout::read(&mut memory, |name| library.address(name))?;
        Some(Self { memory, layout })
    }

    /// Class and name of the method of an interpreted frame; `None` if what stands there now is another one, or none.
    pub fn interpreted(&mut self, frame: &InterpretedFrame) -> Option<String> {
        let Self { memory, layout } = self;
        let fixed = word(memory, frame.code.checked_add(layout.method_const)?)?;
        (fixed == frame.cookie).then(|| method_names::name(memory, layout, frame.code))?
    }

    /// Its memory, and where its code is now; `None` before it has any, or once it is gone.
    pub fn code(&mut self) -> Option<(&mut MemoryFile, CodeCache<'_>)> {
        let cache = CodeCache::read(&mut self.memory, &self.layout)?;
        Some((&mut self.memory, cache))
    }

    /// What the code at each of these addresses is called, with the methods inlined there, outermost first; nothing where it is no
    /// code of the machine.
    pub fn names(&mut self, addresses: &[u64]) -> Vec<Vec<String>> {
        let Some((memory, cache)) = self.code() else { return vec![Vec::new(); addresses.len()] };
        addresses.iter().map(|address| cache.names(memory, *address)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_have_none() {
        assert!(Hotspot::of(std::process::id()).is_none());
        assert!(Hotspot::of(u32::MAX).is_none());
    }
}
