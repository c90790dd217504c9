//! Where the interpreter of a process keeps its frames, for the walk in the kernel.
//!
//! Everything but the version and one number (the key of the thread-local value) comes from a table per version; the walk
//! checks for each thread that what it found is that thread's state.

use tracer_common::interpreter::{
    FRAME_VERSION_SHIFT, InterpreterLayout, InterpreterOutcome, OWNER_ANY, PYTHON_GREENLETS, PYTHON_INDEX,
};

use super::elf::Program;
use super::maps::{Maps, name};
use super::python::{KEYS, RUNTIME, STATE, minor, program};

/// Version of the library or program, `0x030b02f0` (since 3.11).
const VERSION: &str = "Py_Version";

/// Offsets of one minor version, from its headers; see [`InterpreterLayout`].
struct Offsets {
    minor: u8,
    frame: u32,
    cframe: u32,
    code: u32,
    previous: u32,
    position: u32,
    owner: u32,
    owner_entry: u32,
    names: u32,
}

/// Of a frame on the C stack, which ends a group (since 3.12); since 3.14 it belongs to the interpreter.
const SHIM: u32 = 3;

const OFFSETS: &[Offsets] = &[
    Offsets {
        minor: 9,
        frame: 24,
        cframe: 0,
        code: 32,
        previous: 24,
        position: 104,
        owner: 0,
        owner_entry: OWNER_ANY,
        names: 104,
    },
    Offsets {
        minor: 10,
        frame: 24,
        cframe: 0,
        code: 32,
        previous: 24,
        position: 96,
        owner: 0,
        owner_entry: OWNER_ANY,
        names: 104,
    },
    Offsets {
        minor: 11,
        frame: 56,
        cframe: 1 + 8,
        code: 32,
        previous: 48,
        position: 56,
        owner: 68,
        owner_entry: 1,
        names: 112,
    },
    Offsets {
        minor: 12,
        frame: 56,
        cframe: 1,
        code: 0,
        previous: 8,
        position: 56,
        owner: 70,
        owner_entry: SHIM,
        names: 112,
    },
    Offsets {
        minor: 13,
        frame: 72,
        cframe: 0,
        code: 0,
        previous: 8,
        position: 56,
        owner: 70,
        owner_entry: SHIM,
        names: 112,
    },
    Offsets {
        minor: 14,
        frame: 72,
        cframe: 0,
        code: 0,
        previous: 8,
        position: 56,
        owner: 74,
        owner_entry: SHIM,
        names: 112,
    },
    Offsets {
        minor: 15,
        frame: 72,
        cframe: 0,
        code: 0,
        previous: 8,
        position: 56,
        owner: 74,
        owner_entry: SHIM,
        names: 112,
    },
];

/// First version whose `_PyRuntime` begins with these words: a mark, the version, and whether it is free-threaded.
const DEBUG_OFFSETS: u8 = 13;
const MARK: &[u8; 8] = b"xdebugpy";

/// What a look at a process found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// No interpreter.
    Nothing,
    /// One that has not begun yet, or whose memory does not look as its version says.
    NotYet,
    /// One; [`InterpreterLayout::refused`] says if its frames cannot be read.
    Known(InterpreterLayout),
}

/// A layout by which nothing is read.
pub fn refused(outcome: InterpreterOutcome, flags: u32) -> InterpreterLayout {
    InterpreterLayout { refused: outcome as u32, flags, ..InterpreterLayout::default() }
}

/// Looks at a process.
pub fn look(maps: &Maps) -> Look {
    let Some(path) = program(maps) else { return Look::Nothing };
    if !cfg!(target_arch = "x86_64") || maps.named(|name| name.starts_with("ld-musl")).is_some() {
        return Look::Known(refused(InterpreterOutcome::Unsupported, 0));
    }
    let Some(program) = Program::read(&maps.open_by(path), &[RUNTIME, VERSION, STATE]) else {
        return Look::Known(refused(InterpreterOutcome::Unsupported, 0));
    };
    let (Some(runtime), Some(bias)) = (program.address(RUNTIME), program.bias(maps.of(path))) else {
        return Look::Known(refused(InterpreterOutcome::Unsupported, 0));
    };
    // A name with a version may say that it is another build, too; one without may be anybody's.
    let named = |name: &str| name.contains("python3.");
    let minor = if named(name(path)) || named(name(&maps.exe)) {
        minor(name(path)).or_else(|| minor(name(&maps.exe)))
    } else {
        let version = program.address(VERSION).and_then(|at| maps.memory::<4>(bias.wrapping_add(at)));
        version.map(u32::from_ne_bytes).filter(|version| version >> 24 == 3).map(|version| (version >> 16) as u8)
    };
    let known = minor.and_then(|minor| OFFSETS.iter().zip(KEYS).find(|(offsets, _)| offsets.minor == minor));
    let Some((offsets, keys)) = known else { return Look::Known(refused(InterpreterOutcome::UnknownVersion, 0)) };
    if offsets.minor >= DEBUG_OFFSETS {
        let Some(words) = maps.memory::<24>(bias.wrapping_add(runtime)) else { return Look::NotYet };
        if !words.starts_with(MARK) {
            return Look::NotYet;
        }
        if words.get(16..) != Some(&[0; 8]) {
            // Free-threaded.
            return Look::Known(refused(InterpreterOutcome::Unsupported, 0));
        }
    }
    let Some(state) = keys.state_pointer(maps, &program, bias, runtime) else {
        let never = Look::Known(refused(InterpreterOutcome::Unsupported, 0));
        return if keys.is_variable() { never } else { Look::NotYet };
    };
    let mut flags = u32::from(offsets.minor) << FRAME_VERSION_SHIFT;
    if offsets.owner_entry == OWNER_ANY {
        flags |= PYTHON_INDEX;
    }
    if maps.named(|name| name.starts_with("_greenlet.")).is_some() {
        flags |= PYTHON_GREENLETS;
    }
    Look::Known(InterpreterLayout {
        state,
        thread_id: keys.thread_id as u32,
        frame: offsets.frame,
        cframe: offsets.cframe,
        code: offsets.code,
        previous: offsets.previous,
        position: offsets.position,
        owner: offsets.owner,
        owner_mask: 0xff,
        owner_entry: offsets.owner_entry,
        names: offsets.names,
        flags,
        refused: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_that_tasks_are_known_of() {
        let frames: Vec<u8> = OFFSETS.iter().map(|offsets| offsets.minor).collect();
        let keys: Vec<u8> = KEYS.iter().map(|keys| keys.minor).collect();
        assert_eq!(frames, keys, "both tables are read side by side");
    }

    #[test]
    fn what_is_read_lies_within_a_frame() {
        for offsets in OFFSETS {
            let words = [offsets.code, offsets.previous, offsets.position];
            assert!(words.iter().all(|at| at % 8 == 0 && at + 8 <= tracer_common::interpreter::FRAME_BYTES as u32));
            assert!((offsets.owner as usize) < tracer_common::interpreter::FRAME_BYTES);
        }
    }

    #[test]
    fn this_program_is_no_python() {
        let maps = Maps::read(std::process::id()).expect("this process");
        assert_eq!(look(&maps), Look::Nothing);
    }
}
