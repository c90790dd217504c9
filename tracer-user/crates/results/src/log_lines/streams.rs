//! The logs that processes write to, and the lines in what they write.
//!
//! The thread that writes a line did not always make it: a buffer that several threads share is written by the thread that fills it,
//! with lines of other requests in it. Loggers that lock, and those without a buffer, write each record when it is
//! made. The writes distinguish both: one that has a second record of the same shape, or that fills whole pages and ends within a
//! line, comes from a buffer, and from then on all lines of that log are ambiguous. A record of several lines (a stack trace) has
//! none of its own shape in it.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::log_write::{LogWrite, NO_POSITION};
use tracer_host::guard::tables::TableUse;
use tracer_model::{LogLine, LogTextBudget};
use tracer_transactions::held_request::HeldRequest;

use super::redaction::redacted;

/// Most logs of processes that are followed.
pub const STREAMS: usize = 4096;
/// Most bytes of a line that was begun and not ended.
const UNENDED: usize = 1024;
/// Buffers of standard libraries have a multiple of this size.
const PAGE: u64 = 4096;
/// Signs by which the shapes of two lines are compared.
const SHAPE: usize = 4;

/// A log of a process: process, device, inode.
type StreamKey = (u32, u32, u64);

/// A line, and the request that it belongs to.
#[derive(Clone, Debug)]
pub struct FoundLine {
    /// The request.
    pub owner: HeldRequest,
    /// The line.
    pub line: LogLine,
}

/// A line that was begun and not ended.
#[derive(Debug)]
struct Begun {
    tid: u32,
    owner: HeldRequest,
    offset: Option<u64>,
    text: Vec<u8>,
}

#[derive(Debug)]
struct Stream {
    file: Arc<str>,
    /// Threads share a buffer.
    is_shared: bool,
    begun: Option<Begun>,
}

/// The logs that processes write to.
#[derive(Debug, Default)]
pub struct LogStreams {
    streams: FxHashMap<StreamKey, Stream>,
    refused: u64,
}

impl LogStreams {
    /// The lines that a write ended. `file` says what it was written to; `texts` has room for them.
    pub fn lines(
        &mut self,
        write: &LogWrite,
        text: &[u8],
        owner: HeldRequest,
        texts: &LogTextBudget,
        file: impl FnOnce() -> Arc<str>,
    ) -> SmallVec<[FoundLine; 2]> {
        let key = (write.header.tgid, write.device, write.inode);
        if self.streams.len() >= STREAMS && !self.streams.contains_key(&key) {
            self.refused += 1;
            return SmallVec::new();
        }
        let stream = self.streams.entry(key).or_insert_with(|| Stream { file: file(), is_shared: false, begun: None });
        stream.lines(write, text, owner, texts)
    }

    /// The process is gone, or runs another program.
    pub fn forget(&mut self, tgid: u32) {
        self.streams.retain(|(of, ..), _| *of != tgid);
    }

    /// How full the table is.
    pub fn table_use(&self) -> TableUse {
        TableUse::new(self.streams.len(), STREAMS, self.refused)
    }
}

impl Stream {
    fn lines(
        &mut self,
        write: &LogWrite,
        text: &[u8],
        owner: HeldRequest,
        texts: &LogTextBudget,
    ) -> SmallVec<[FoundLine; 2]> {
        let mut found = SmallVec::new();
        let begin = (write.end != NO_POSITION).then(|| write.end.wrapping_sub(write.bytes));
        let (is_whole, is_ended) = (text.len() as u64 == write.bytes, write.last == b'\n');
        self.is_shared |= has_further_record(text) || (!is_ended && write.bytes.is_multiple_of(PAGE));
        let (mut owner, mut offset, mut front) = (owner, begin, Vec::new());
        if let Some(begun) = self.begun.take() {
            if begun.tid == write.header.tid {
                if begun.owner != owner {
                    owner = HeldRequest::Ambiguous;
                }
                (offset, front) = (begun.offset, begun.text);
            } else {
                // Two threads at one line: from here on their parts cannot be distinguished.
                let line = self.line(write, begun.offset, (&begun.text, begun.text.len() as u64), false, texts);
                found.push(FoundLine { owner: HeldRequest::Ambiguous, line });
                owner = HeldRequest::Ambiguous;
            }
        }
        if self.is_shared && owner != HeldRequest::NoRequest {
            owner = HeldRequest::Ambiguous;
        }
        if text.is_empty() {
            // Only its place is known.
            let line = self.line(write, offset, (&[], write.bytes), true, texts);
            found.push(FoundLine { owner, line });
            return found;
        }
        let mut at = 0;
        for part in text.split_inclusive(|byte| *byte == b'\n') {
            let is_last = at + part.len() == text.len();
            let is_first = at == 0;
            let from = if is_first { offset } else { begin.map(|begin| begin + at as u64) };
            at += part.len();
            let mut whole = std::mem::take(&mut front);
            whole.extend_from_slice(part);
            if is_last && is_whole && !is_ended {
                whole.truncate(UNENDED);
                self.begun = Some(Begun { tid: write.header.tid, owner, offset: from, text: whole });
                break;
            }
            // What lies behind the part that was read belongs to its last line, or to further ones.
            let is_cut = is_last && !is_whole;
            let bytes = whole.len() as u64 + if is_cut { write.bytes - text.len() as u64 } else { 0 };
            if whole.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line = self.line(write, from, (&whole, bytes), is_cut, texts);
            found.push(FoundLine { owner, line });
        }
        found
    }

    fn line(
        &self,
        write: &LogWrite,
        offset: Option<u64>,
        (text, bytes): (&[u8], u64),
        is_cut: bool,
        texts: &LogTextBudget,
    ) -> LogLine {
        let (shown, is_longer) = redacted(text);
        let text = if shown.is_empty() { None } else { texts.keep(&shown) };
        LogLine {
            nanos: write.header.nanos,
            file: Arc::clone(&self.file),
            offset,
            bytes,
            text,
            cut: is_cut || is_longer,
        }
    }
}

/// Whether a text has two records: a line that begins as the first one does.
fn has_further_record(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let Some(first) = lines.next().map(shape) else { return false };
    let begins = |line: &[u8]| line.first().is_some_and(|byte| !byte.is_ascii_whitespace());
    lines.filter(|line| begins(line)).any(|line| shape(line) == first)
}

/// How a line begins: which kinds of characters follow one another.
fn shape(line: &[u8]) -> [u8; SHAPE] {
    let mut signs = [0; SHAPE];
    let mut at = 0;
    for byte in line {
        let sign = match byte {
            b'0'..=b'9' => b'0',
            b'a'..=b'z' | 128.. => b'a',
            b'A'..=b'Z' => b'A',
            other => *other,
        };
        if at > 0 && signs.get(at - 1) == Some(&sign) {
            continue;
        }
        let Some(place) = signs.get_mut(at) else { break };
        *place = sign;
        at += 1;
    }
    signs
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_common::event::Header;
    use tracer_transactions::slot::Slot;

    struct Log {
        streams: LogStreams,
        texts: LogTextBudget,
        end: u64,
    }

    impl Log {
        fn new() -> Self {
            Self { streams: LogStreams::default(), texts: LogTextBudget::new(1 << 20), end: 0 }
        }

        /// A thread writes for the request of its number; each line as `number:text`, `-:text` if it belongs to none.
        fn writes(&mut self, tid: u32, text: &str) -> Vec<String> {
            self.end += text.len() as u64;
            let front = &text.as_bytes()[..text.len().min(1024)];
            let header = Header { tgid: 1, tid, ..Header::default() };
            let last = *text.as_bytes().last().expect("a byte");
            let (bytes, end) = (text.len() as u64, self.end);
            let write = LogWrite { header, bytes, end, inode: 5, last, ..LogWrite::default() };
            let owner = HeldRequest::Request(Slot::numbered(tid));
            let found = self.streams.lines(&write, front, owner, &self.texts, || "f".into());
            let one = |found: &FoundLine| {
                let of = match found.owner {
                    HeldRequest::Request(slot) if slot == Slot::numbered(tid) => tid.to_string(),
                    _ => "-".to_owned(),
                };
                let text = found.line.text.as_ref().map_or("", |text| text.as_str());
                format!(
                    "{of}:{}+{}:{text}{}",
                    found.line.offset.unwrap(),
                    found.line.bytes,
                    if found.line.cut { "…" } else { "" }
                )
            };
            found.iter().map(one).collect()
        }
    }

    #[test]
    fn a_write_is_a_record_of_one_line_or_more() {
        let mut log = Log::new();
        assert_eq!(log.writes(1, "one\n"), ["1:0+4:one"]);
        let trace = "2026-11-30 ERROR no\nTraceback (most recent call last):\n  File \"x\", line 1\nValueError: no\n";
        let lines = log.writes(2, trace);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("2:")) && lines[3].ends_with(":ValueError: no"), "{lines:?}");
        assert_eq!(log.writes(1, "\n\n"), Vec::<String>::new());
    }

    #[test]
    fn parts_of_one_thread_are_one_line() {
        let mut log = Log::new();
        assert_eq!(log.writes(1, "begun, "), Vec::<String>::new());
        assert_eq!(log.writes(1, "pass"), Vec::<String>::new());
        assert_eq!(log.writes(1, "word=x\n"), ["1:0+18:begun, password=…"]);
        // Another thread in between.
        assert_eq!(log.writes(1, "half "), Vec::<String>::new());
        assert_eq!(log.writes(2, "other\n"), ["-:18+5:half", "-:23+6:other"]);
        assert_eq!(log.writes(2, "next\n"), ["2:29+5:next"]);
    }

    #[test]
    fn lines_of_a_shared_buffer_are_nobodys() {
        let mut log = Log::new();
        assert_eq!(log.writes(1, "req 7 done\n"), ["1:0+11:req 7 done"]);
        assert_eq!(log.writes(1, "req 8 done\nreq 19 done\n"), ["-:11+11:req 8 done", "-:22+12:req 19 done"]);
        assert_eq!(log.writes(2, "req 20 done\n"), ["-:34+12:req 20 done"]);
        // A page of it, within a line.
        let mut log = Log::new();
        let page = format!("first\n{}", "x".repeat(4090));
        assert!(log.writes(1, &page).iter().all(|line| line.starts_with('-')));
        assert_eq!(log.writes(1, "y\n").len(), 1);
    }

    #[test]
    fn a_megabyte_is_cut_and_says_so() {
        let mut log = Log::new();
        let long = format!("{}\n", "z".repeat(1 << 20));
        let lines = log.writes(3, &long);
        let [line] = &*lines else { panic!("{} lines", lines.len()) };
        assert!(line.starts_with("3:0+1048577:zzz") && line.ends_with('…') && line.len() < 600, "{line}");
        // A text that does not fit leaves its place.
        log.texts = LogTextBudget::new(10);
        assert_eq!(log.writes(3, "a line\n"), ["3:1048577+7:"]);
    }

    #[test]
    fn logs_are_bounded_and_forgotten() {
        let mut log = Log::new();
        let owner = HeldRequest::NoRequest;
        for inode in 0..2 * STREAMS as u64 {
            let header = Header { tgid: 1 + (inode & 1) as u32, ..Header::default() };
            let write = LogWrite { header, inode, bytes: 2, last: b'\n', ..LogWrite::default() };
            log.streams.lines(&write, b"x\n", owner, &log.texts, || "f".into());
        }
        let table = log.streams.table_use();
        assert_eq!((table.entries, table.reached), (STREAMS as u64, STREAMS as u64));
        log.streams.forget(1);
        assert_eq!(log.streams.table_use().entries, STREAMS as u64 / 2);
    }
}
