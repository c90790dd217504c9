//! Lines that were written to logs for a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Nanos;

/// Most lines kept of a request: its first, and its last.
const LINES: usize = 100;
/// Of these, its first.
const FIRST: usize = 20;

/// How many bytes of text there may be, and how many there are.
#[derive(Clone, Debug)]
pub struct LogTextBudget(Arc<Bytes>);

#[derive(Debug)]
struct Bytes {
    most: u64,
    used: AtomicU64,
}

impl LogTextBudget {
    /// At most this many bytes.
    pub fn new(most: u64) -> Self {
        Self(Arc::new(Bytes { most, used: AtomicU64::new(0) }))
    }

    /// Bytes there are, and may be.
    pub fn level(&self) -> (u64, u64) {
        (self.0.used.load(Ordering::Relaxed), self.0.most)
    }

    /// Keeps a text as long as it is used; `None`: it does not fit.
    pub fn keep(&self, text: &str) -> Option<Arc<LogText>> {
        let bytes = text.len() as u64 + size_of::<LogText>() as u64;
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Dropping it gives the bytes back.
        let kept = LogText { text: text.into(), bytes, of: self.clone() };
        (used <= self.0.most).then(|| Arc::new(kept))
    }
}

/// The text of a line, within a budget.
#[derive(Debug)]
pub struct LogText {
    text: Box<str>,
    bytes: u64,
    of: LogTextBudget,
}

impl LogText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Drop for LogText {
    fn drop(&mut self) {
        self.of.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// When it was written.
    pub nanos: Nanos,
    /// Where to: the path of a file as its process sees it, or what a pipe, a socket or a terminal is called.
    pub file: Arc<str>,
    /// Where in the file it begins; `None`: what has no positions.
    pub offset: Option<u64>,
    /// Its length, as far as it is known.
    pub bytes: u64,
    /// What of it is shown: its beginning, without what looks like a secret. `None`: not kept, or not read.
    pub text: Option<Arc<LogText>>,
    /// It is longer than `text`, or there were more lines behind it that were not read.
    pub cut: bool,
}

/// The lines of a request, in the order in which they were written.
#[derive(Clone, Debug, Default)]
pub struct LogLines {
    /// Those that are kept.
    pub lines: Vec<LogLine>,
    /// Those between the first and the last that are not.
    pub dropped: u64,
}

impl LogLines {
    /// Adds the newest line. If there are too many, the oldest but the first few makes room.
    pub fn add(&mut self, line: LogLine) {
        if self.lines.len() >= LINES {
            self.lines.remove(FIRST);
            self.dropped += 1;
        }
        self.lines.push(line);
    }

    /// The same without texts: where to find them.
    #[must_use]
    pub fn without_texts(&self) -> Self {
        let bare = |line: &LogLine| LogLine { text: None, ..line.clone() };
        Self { lines: self.lines.iter().map(bare).collect(), dropped: self.dropped }
    }

    /// Whether a line has its text.
    pub fn has_texts(&self) -> bool {
        self.lines.iter().any(|line| line.text.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_and_give_back_their_room() {
        let budget = LogTextBudget::new(200);
        let kept: Vec<_> = (0..10).map(|_| budget.keep("0123456789")).collect();
        let fitting = kept.iter().flatten().count() as u64;
        assert!((1..10).contains(&fitting), "{fitting}");
        let (used, most) = budget.level();
        assert_eq!((used, most), (fitting * (10 + size_of::<LogText>() as u64), 200));
        drop(kept);
        assert_eq!(budget.level().0, 0);
    }

    #[test]
    fn the_first_and_the_last_lines_stay() {
        let mut lines = LogLines::default();
        for nanos in 0..1000 {
            lines.add(LogLine { nanos, file: "f".into(), offset: None, bytes: 1, text: None, cut: false });
        }
        let kept: Vec<Nanos> = lines.lines.iter().map(|line| line.nanos).collect();
        assert_eq!(kept, (0..20).chain(920..1000).collect::<Vec<_>>());
        assert_eq!((lines.dropped, lines.has_texts()), (900, false));
    }
}
