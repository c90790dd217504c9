//! Where in its program a call was made, or an exception thrown.

use std::sync::{Arc, OnceLock};

/// Where in a program calls are made or exceptions thrown: known as soon as their stack has names, which is after the first of them.
#[derive(Debug, Default)]
pub struct CallSite(OnceLock<(Option<CodePlace>, Box<[CodePlace]>)>);

impl CallSite {
    /// The place; `None`: it is not known yet, or no function of the application is in the stack.
    pub fn place(&self) -> Option<&CodePlace> {
        self.0.get().and_then(|(place, _)| place.as_ref())
    }

    /// Of exceptions: the whole stack, innermost first; empty: it is not known yet.
    pub fn stack(&self) -> &[CodePlace] {
        self.0.get().map_or(&[], |(_, stack)| stack)
    }

    /// The stack has names. Said once: what is said later does not count.
    pub fn settle(&self, place: Option<CodePlace>, stack: Box<[CodePlace]>) {
        let _ = self.0.set((place, stack));
    }
}

/// A place in source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodePlace {
    /// The function.
    pub function: Arc<str>,
    /// The file it is from: of its source, if that is known, else of its code.
    pub file: Option<Arc<str>>,
    /// The line that made the call, or that of the function's definition where only that can be read; 0: not known.
    pub line: u32,
}
