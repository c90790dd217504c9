//! How V8 of a process lays functions out, for the walk in the kernel: Node.js, the program or its library.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Mutex;

use tracer_common::interpreter::{FRAME_V8, InterpreterLayout, InterpreterOutcome};

use super::maps::{Maps, name};
use super::node::is_node;
use super::python_frames::{Look, refused};
use super::v8_constants::{ConstantsError, V8Constants, constants};

/// Where the last word begins that the walk reads of what a function shares with its copies.
const SHARED: u16 = 40;

/// The mapped file that contains V8.
fn program(maps: &Maps) -> Option<&str> {
    match maps.named(|name| name.starts_with("libnode.so")) {
        Some(mapping) => Some(mapping.path.as_str()),
        None => is_node(name(&maps.exe)).then_some(maps.exe.as_str()),
    }
}

/// Opens a mapped file; does not wait if its path has become a FIFO.
fn open(maps: &Maps, path: &str) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(maps.open_by(path)).ok()
}

/// A file, by file system, number, size and time of the last change.
type FileId = (u64, u64, u64, i64, i64);
/// The constants of a program.
type Read = Result<V8Constants, ConstantsError>;
/// Programs that were read: all processes of a host run a few of them, and each is looked at again and again.
static KNOWN: Mutex<Vec<(FileId, Read)>> = Mutex::new(Vec::new());
/// Most of them.
const PROGRAMS: usize = 64;

/// The constants of a file, read once.
fn known(file: &File) -> Read {
    let Ok(about) = file.metadata() else { return Err(ConstantsError::Missing) };
    let id = (about.dev(), about.ino(), about.len(), about.mtime(), about.mtime_nsec());
    let found = KNOWN.lock().ok().and_then(|all| all.iter().find(|(known, _)| *known == id).map(|(_, read)| *read));
    found.unwrap_or_else(|| {
        let read = constants(file);
        if let Ok(mut all) = KNOWN.lock() {
            if all.len() >= PROGRAMS {
                all.clear();
            }
            all.push((id, read));
        }
        read
    })
}

/// The constants of the V8 that a process runs; `None` if it runs none, or it cannot be read.
pub fn of_process(pid: u32) -> Option<V8Constants> {
    let maps = Maps::read(pid)?;
    known(&open(&maps, program(&maps)?)?).ok()
}

/// Looks at a process.
pub fn look(maps: &Maps) -> Look {
    let Some(path) = program(maps) else { return Look::Nothing };
    let no = |outcome| Look::Known(refused(outcome, FRAME_V8));
    if !cfg!(target_arch = "x86_64") {
        return no(InterpreterOutcome::Unsupported);
    }
    let Some(file) = open(maps, path) else { return no(InterpreterOutcome::Unsupported) };
    match known(&file) {
        // The walk reads them together.
        Ok(found) if [found.shared_name, found.shared_script].iter().any(|at| at % 8 != 0 || *at > SHARED) => {
            no(InterpreterOutcome::UnknownVersion)
        }
        Ok(found) => Look::Known(InterpreterLayout {
            code: found.function_shared.into(),
            names: found.shared_name.into(),
            position: found.shared_script.into(),
            flags: FRAME_V8,
            ..InterpreterLayout::default()
        }),
        Err(ConstantsError::Missing) => no(InterpreterOutcome::Unsupported),
        Err(ConstantsError::Unknown) => no(InterpreterOutcome::UnknownVersion),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_programs_have_none() {
        let maps = Maps::read(std::process::id()).expect("this process");
        assert_eq!(look(&maps), Look::Nothing);
        assert_eq!(of_process(std::process::id()), None);
    }
}
