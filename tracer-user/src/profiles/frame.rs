//! A frame of a stack: what its function is called, and the file its code is from.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    name: Box<str>,
    file: Option<Arc<str>>,
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
        Self(Arc::new(Named { name: name.into(), file }))
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
