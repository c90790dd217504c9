//! The transactions file: one finished span a line.

use std::io;
use std::path::Path;

use tracer_host::files::{self, Output};
use tracer_model::{Names, Span};
use tracer_results::record::{Behind, Rotating, Sink, Stream, Waiting, Whole, Words};
use tracer_results::store::SpanView;

use super::Failure;
use crate::pipeline::SpanWriter;

/// Bytes of lines collected before they go to the writer.
const GATHER: usize = 64 * 1024;

/// Writes spans as JSON lines, as `/api/v1/transactions/{trace_id}` shows them.
///
/// The file contains only complete lines whatever happens to the disk. When writing fails (a full disk) or is slower
/// than spans arrive, it drops and counts spans, and continues with the first span after there is room again.
pub(super) struct Lines {
    file: Behind,
    /// Complete lines not yet passed to the writer, and their number.
    lines: Vec<u8>,
    gathered: u64,
    wall_offset: i64,
    host: String,
    /// Whether the source of the spans can wait for the disk.
    has_time: bool,
    /// Spans not passed to the writer.
    dropped: u64,
}

impl Lines {
    /// Creates (or empties) the file, for spans that come from the kernel: they do not wait. It and the one before it take
    /// at most `most` bytes.
    pub(super) fn create(path: &Path, most: u64, wall_offset: i64, host: &str) -> Result<Self, Failure> {
        let file = |file| Box::new(Rotating::new(path, file, most)) as Box<dyn Sink>;
        Self::open(path, file, wall_offset, host)
    }

    /// The same for spans that come from a recording: all of them are written, to one file. There are no more than the
    /// recording gives.
    pub(super) fn create_whole(path: &Path, wall_offset: i64, host: &str) -> Result<Self, Failure> {
        let mut lines = Self::open(path, |file| Box::new(Whole::new(file)), wall_offset, host)?;
        lines.has_time = true;
        Ok(lines)
    }

    fn open(
        path: &Path,
        whole: impl FnOnce(std::fs::File) -> Box<dyn Sink>,
        wall_offset: i64,
        host: &str,
    ) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let refused = |error: io::Error| Failure::Running(format!("{name}: {error}"));
        let sink = match files::output(path).map_err(refused)? {
            Output::File(file) => whole(file),
            Output::Stream(stream) => Box::new(Stream::new(stream)),
        };
        Self::of(sink, &name, wall_offset, host).map_err(refused)
    }

    fn of(sink: impl Sink, name: &str, wall_offset: i64, host: &str) -> io::Result<Self> {
        let (place, meaning) = (name.into(), "are not written until this passes");
        let words = Words { place, what: "spans", meaning, passes: true };
        let file = Behind::start(sink, words)?;
        let (lines, host) = (Vec::new(), host.into());
        Ok(Self { file, lines, gathered: 0, wall_offset, host, has_time: false, dropped: 0 })
    }

    /// How much waits to be written.
    pub(super) fn waiting(&self) -> Waiting {
        self.file.waiting()
    }

    fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let (lines, gathered) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.gathered));
        if self.has_time {
            self.file.write_in_time(lines, gathered);
        } else {
            self.file.write(lines, gathered);
        }
    }
}

impl SpanWriter for Lines {
    fn span(&mut self, names: &Names, span: &Span) {
        let failing = self.file.is_failing();
        if failing && self.gathered > 0 {
            // One line is enough to detect that there is room again.
            self.dropped += 1;
            return;
        }
        let before = self.lines.len();
        let view = SpanView::of(names, span, self.wall_offset, &self.host);
        if serde_json::to_writer(&mut self.lines, &view).is_err() {
            // Memory does not refuse, and the form is our own.
            self.lines.truncate(before);
            self.dropped += 1;
            return;
        }
        self.lines.push(b'\n');
        self.gathered += 1;
        if self.lines.len() >= GATHER && !failing {
            self.write();
        }
    }

    fn flush(&mut self) {
        self.write();
    }

    fn clock(&mut self, wall_offset: i64) {
        self.wall_offset = wall_offset;
    }

    fn dropped(&self) -> u64 {
        self.dropped + self.file.dropped()
    }

    fn finish(&mut self) {
        self.write();
        self.file.finish();
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // Whatever ended it all.
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileTypeExt;

    #[test]
    fn a_full_disk_is_counted() {
        let full = Path::new("/dev/full");
        assert!(std::fs::metadata(full).unwrap().file_type().is_char_device());
        let file = File::options().write(true).open(full).unwrap();
        let mut lines = Lines::of(Whole::new(file), "full", 0, "host").unwrap();
        for turn in 1..=3u64 {
            lines.lines.extend_from_slice(b"{}\n");
            lines.gathered = 1;
            lines.flush();
            while lines.dropped() < turn {
                std::thread::yield_now();
            }
            assert_eq!((lines.file.is_failing(), lines.dropped()), (true, turn));
        }
        lines.finish();
        assert_eq!(lines.dropped(), 3);
    }
}
