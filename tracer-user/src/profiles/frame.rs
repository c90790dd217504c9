//! A frame of a stack: what its function is called, and the file its code is from.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// What stands between a function and its place in the source.
const SOURCE: &str = " (";

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    name: Box<str>,
    file: Option<Arc<str>>,
    source: Option<Source>,
}

/// Where in its source a function was, where debug information has that and it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// Path, as the compiler noted it.
    pub(super) path: Arc<str>,
    /// Line.
    pub(super) line: u32,
}

/// A frame; frames of one name and file share their text. Reads as its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Arc<Named>);

impl Frame {
    /// A frame without a file: the kernel's, code made while running, and words about the stack itself.
    pub(super) fn plain(name: &str) -> Self {
        Self::of(name, None)
    }

    /// A frame of a function in `file`.
    pub(super) fn of(name: &str, file: Option<Arc<str>>) -> Self {
        Self(Arc::new(Named { name: name.into(), file, source: None }))
    }

    /// A frame of a function in `file` at a line of its source. `shown` is the end of the path that tells files apart.
    pub(super) fn at(function: &str, file: Option<Arc<str>>, source: Source, shown: &str) -> Self {
        let name = format!("{function}{SOURCE}{shown}:{})", source.line).into();
        Self(Arc::new(Named { name, file, source: Some(source) }))
    }

    /// Its function, without the line.
    pub(super) fn function(&self) -> &str {
        match self.0.source {
            Some(_) => self.0.name.rsplit_once(SOURCE).map_or(&*self.0.name, |(function, _)| function),
            None => &self.0.name,
        }
    }

    /// Where in its source it was.
    pub(super) fn source(&self) -> Option<&Source> {
        self.0.source.as_ref()
    }

    /// The mapped file its code is from, or the source file of a Python function, as the process names it.
    pub fn file(&self) -> Option<&Arc<str>> {
        self.0.file.as_ref()
    }

    /// The order of two by name, and by file where that is the same.
    pub(super) fn cmp_name(&self, other: &Self) -> std::cmp::Ordering {
        (&self.0.name, &self.0.file).cmp(&(&other.0.name, &other.0.file))
    }

    /// What distinguishes shared frames.
    pub(super) fn address(&self) -> *const u8 {
        Arc::as_ptr(&self.0).cast()
    }

    /// How many share it.
    pub(super) fn shared_by(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

impl Deref for Frame {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0.name
    }
}

impl Hash for Frame {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
