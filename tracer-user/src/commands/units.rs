//! The transactions file: one finished unit of work a line.

use std::fs::File;
use std::io;
use std::path::Path;

use super::Failure;
use crate::model::{Names, Unit};
use crate::pipeline::UnitWriter;
use crate::record::{Behind, Waiting, Whole, Words};
use crate::store::show;

/// Lines gathered before they are handed over, bytes.
const GATHER: usize = 64 * 1024;

/// Writes units as JSON lines, as `/api/v1/transactions/{trace_id}` shows them.
///
/// The file holds whole lines whatever happens to the disk. When it cannot be written (a full disk), or not as fast as units
/// come, those are counted, and writing goes on with the first one after there is room again.
pub(super) struct Lines {
    file: Behind,
    /// Whole lines not yet handed over, and how many.
    lines: Vec<u8>,
    gathered: u64,
    wall_offset: i64,
    host: String,
    /// Whoever makes units can wait for the disk.
    has_time: bool,
    /// Units not handed over.
    dropped: u64,
}

impl Lines {
    /// Creates (or empties) the file, for units that come from the kernel: they do not wait.
    pub(super) fn create(path: &Path, wall_offset: i64, host: &str) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let refused = |error: io::Error| Failure::Running(format!("{name}: {error}"));
        let file = Whole::new(File::create(path).map_err(refused)?);
        Self::of(file, &name, wall_offset, host).map_err(refused)
    }

    /// The same for units that come from a recording: all of them are written.
    pub(super) fn in_time(mut self) -> Self {
        self.has_time = true;
        self
    }

    fn of(file: Whole<File>, name: &str, wall_offset: i64, host: &str) -> io::Result<Self> {
        let (place, meaning) = (name.into(), "are not written until this passes");
        let words = Words { place, what: "units", meaning, passes: true };
        let file = Behind::start(file, words)?;
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

impl UnitWriter for Lines {
    fn unit(&mut self, names: &Names, unit: &Unit) {
        let failing = self.file.is_failing();
        if failing && self.gathered > 0 {
            // One is enough to find out whether there is room again.
            self.dropped += 1;
            return;
        }
        let before = self.lines.len();
        let view = show(names, unit, self.wall_offset, &self.host);
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
