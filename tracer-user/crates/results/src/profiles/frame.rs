//! A frame of a stack: what its function is called, and the file its code is from.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use tracer_common::interpreter::Language;

use super::interpreted::short;

/// What stands between a function and its place in the source.
const SOURCE: &str = " (";
/// What names of the kernel's functions end with.
pub(super) const KERNEL: &str = "_[k]";

#[derive(Debug, PartialEq, Eq, Hash)]
struct Named {
    name: Box<str>,
    file: Option<Arc<str>>,
    source: Option<Source>,
    language: Option<Language>,
}

/// Where in its source a function was, where debug information has that and it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Source {
    /// Path, as the compiler noted it.
    pub(super) path: Arc<str>,
    /// Line.
    pub(super) line: u32,
}

/// Where the code of a frame is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameOrigin {
    /// The kernel.
    Kernel,
    /// A mapped file.
    Mapped,
    /// Source that an interpreter runs.
    Interpreted(Language),
    /// Code made while running, or no code: a word about the stack.
    Other,
}

/// A frame, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameParts<'a> {
    /// Its function.
    pub function: &'a str,
    /// Where its code is from.
    pub origin: FrameOrigin,
    /// The mapped file.
    pub mapped: Option<&'a str>,
    /// Source file and line; 0: the line is not known. Of interpreted functions the line is that of the definition, or the one that
    /// runs, as they are shown.
    pub source: Option<(&'a str, u32)>,
}

/// A frame; frames of one name and file share their text. Reads as its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame(Arc<Named>);

impl Frame {
    /// A frame without a file: the kernel's, code made while running, and words about the stack itself.
    pub fn plain(name: &str) -> Self {
        Self::of(name, None)
    }

    /// A frame of a function in `file`.
    pub fn of(name: &str, file: Option<Arc<str>>) -> Self {
        Self(Arc::new(Named { name: name.into(), file, source: None, language: None }))
    }

    /// An interpreted function, by its name with its place, from a source file.
    pub fn interpreted(name: &str, file: Option<Arc<str>>, language: Language) -> Self {
        Self(Arc::new(Named { name: name.into(), file, source: None, language: Some(language) }))
    }

    /// A frame of a function in `file` at a line of its source. `shown` is the end of the path that tells files apart.
    pub(super) fn at(function: &str, file: Option<Arc<str>>, source: Source, shown: &str) -> Self {
        let name = format!("{function}{SOURCE}{shown}:{})", source.line).into();
        Self(Arc::new(Named { name, file, source: Some(source), language: None }))
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

    /// What it is, taken apart.
    pub fn parts(&self) -> FrameParts<'_> {
        let Named { name, file, source, language } = &*self.0;
        let file = file.as_deref();
        if let Some(function) = name.strip_suffix(KERNEL) {
            return FrameParts { function, origin: FrameOrigin::Kernel, mapped: None, source: None };
        }
        if let Some(language) = language {
            let origin = FrameOrigin::Interpreted(*language);
            // The name ends with the place.
            let place = |file| {
                let name = name.strip_suffix(')')?;
                if let Some(function) = name.strip_suffix(short(file)).and_then(|head| head.strip_suffix(SOURCE)) {
                    return Some((function, (file, 0)));
                }
                let (head, line) = name.rsplit_once(':')?;
                let function = head.strip_suffix(short(file))?.strip_suffix(SOURCE)?;
                Some((function, (file, line.parse().ok()?)))
            };
            return match file.and_then(place) {
                Some((function, source)) => FrameParts { function, origin, mapped: None, source: Some(source) },
                None => FrameParts { function: name, origin, mapped: None, source: file.map(|file| (file, 0)) },
            };
        }
        let origin = if file.is_some() { FrameOrigin::Mapped } else { FrameOrigin::Other };
        let source = source.as_ref().map(|source| (&*source.path, source.line));
        FrameParts { function: self.function(), origin, mapped: file, source }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_apart() {
        let file = |path: &str| Some(Arc::from(path));
        let python = |name: &str, path| Frame::interpreted(name, file(path), Language::Python);
        let interpreted = FrameOrigin::Interpreted(Language::Python);
        let line =
            Frame::at("work", file("/bin/work"), Source { path: Arc::from("/src/a/work.c"), line: 3 }, "a/work.c");
        for (frame, function, origin, mapped, source) in [
            (Frame::plain("futex_[k]"), "futex", FrameOrigin::Kernel, None, None),
            (Frame::of("deflate", file("/lib/libz.so")), "deflate", FrameOrigin::Mapped, Some("/lib/libz.so"), None),
            (line, "work", FrameOrigin::Mapped, Some("/bin/work"), Some(("/src/a/work.c", 3))),
            (python("f (app/x.py:12)", "/srv/app/x.py"), "f", interpreted, None, Some(("/srv/app/x.py", 12))),
            (python("f (a (b)/x.py:7)", "/srv/a (b)/x.py"), "f", interpreted, None, Some(("/srv/a (b)/x.py", 7))),
            (
                python("f (app/x.py:?)", "/srv/app/x.py"),
                "f (app/x.py:?)",
                interpreted,
                None,
                Some(("/srv/app/x.py", 0)),
            ),
            (
                Frame::interpreted("f (app/x.js)", file("/srv/app/x.js"), Language::JavaScript),
                "f",
                FrameOrigin::Interpreted(Language::JavaScript),
                None,
                Some(("/srv/app/x.js", 0)),
            ),
            (
                Frame::interpreted("usort (PHP)", None, Language::Php),
                "usort (PHP)",
                FrameOrigin::Interpreted(Language::Php),
                None,
                None,
            ),
            (Frame::plain("[off CPU: futex]"), "[off CPU: futex]", FrameOrigin::Other, None, None),
        ] {
            assert_eq!(frame.parts(), FrameParts { function, origin, mapped, source });
        }
    }
}
