//! Frames of one name and file share their text: stacks have the same functions by the thousand.

use std::collections::HashSet;
use std::sync::Arc;

use blazesym::symbolize::CodeInfo;
use tracer_common::interpreter::Language;
use tracer_model::text;

use super::frame::{Frame, Source};
use super::interpreted::{self, Function};

/// Frame names kept; beyond it they are not shared any more.
pub(super) const NAMES: usize = 200_000;
/// Paths of files with code that are shared between names.
const FILES: usize = 20_000;

/// Frames that are shared, and the paths in them.
#[derive(Debug, Default)]
pub(super) struct SharedNames {
    frames: HashSet<Frame>,
    files: HashSet<Arc<str>>,
    /// Names and paths that found no room.
    pub(super) refused: u64,
}

impl SharedNames {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        (self.frames, self.files) = Default::default();
    }

    /// Forgets those that nobody has.
    pub(super) fn forget_unused(&mut self) {
        self.frames.retain(|name| name.shared_by() > 1);
        self.files.retain(|file| Arc::strong_count(file) > 1);
    }

    /// A frame without a file.
    pub(super) fn plain(&mut self, name: &str) -> Frame {
        self.in_file(name, None)
    }

    /// A frame of code from `file`.
    pub(super) fn in_file(&mut self, name: &str, file: Option<&str>) -> Frame {
        self.at(name, file, None)
    }

    /// The same with its line, where that is known.
    pub(super) fn at(&mut self, name: &str, file: Option<&str>, code: Option<&CodeInfo<'_>>) -> Frame {
        let file = file.map(|path| self.file(path));
        // Names of functions are what a file or a process says they are.
        let name = text::printable(name);
        let source = code.and_then(|code| {
            let path = self.file(&code.to_path().to_string_lossy());
            Some(Source { path, line: code.line? })
        });
        let frame = match source {
            Some(source) => {
                let path = Arc::clone(&source.path);
                Frame::at(&name, file, source, interpreted::short(&path))
            }
            None => Frame::of(&name, file),
        };
        self.share(frame)
    }

    /// An interpreted function.
    pub(super) fn interpreted(&mut self, function: &Function, language: Language) -> Frame {
        let file = function.file.as_deref().map(|path| self.file(path));
        self.share(Frame::interpreted(&text::printable(&function.name), file, language))
    }

    /// The frame that is equal to it, if there is one.
    fn share(&mut self, frame: Frame) -> Frame {
        if let Some(known) = self.frames.get(&frame) {
            return known.clone();
        }
        if self.frames.len() < NAMES {
            self.frames.insert(frame.clone());
        } else {
            self.refused += 1;
        }
        frame
    }

    fn file(&mut self, path: &str) -> Arc<str> {
        let path = &*text::printable(path);
        if let Some(known) = self.files.get(path) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = Arc::from(path);
        // Each is of at least one name, but many names may be gone.
        if self.files.len() < FILES {
            self.files.insert(Arc::clone(&shared));
        } else {
            self.refused += 1;
        }
        shared
    }
}
