//! The transactions file: one finished unit of work a line.

use std::fs::File;
use std::io;
use std::path::Path;

use super::Failure;
use crate::model::{Names, Unit};
use crate::pipeline::UnitWriter;
use crate::record::Whole;
use crate::store::show;

/// Lines gathered before they are written, bytes.
const GATHER: usize = 64 * 1024;

/// Writes units as JSON lines, as `/api/v1/transactions/{trace_id}` shows them.
///
/// The file holds whole lines whatever happens to the disk. When it cannot be written (a full disk) the units are counted, and writing goes on with the first one after there is room again.
pub(super) struct Lines {
    path: String,
    file: Whole<File>,
    /// Whole lines not yet written, and how many.
    lines: Vec<u8>,
    gathered: u64,
    wall_offset: i64,
    host: String,
    /// Nothing can be written now; tried again at the next flush.
    failing: bool,
    dropped: u64,
}

impl Lines {
    /// Creates (or empties) the file.
    pub(super) fn create(path: &Path, wall_offset: i64, host: &str) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| Failure::Running(format!("{name}: {error}")))?;
        Ok(Self {
            path: name,
            file: Whole::new(file),
            lines: Vec::new(),
            gathered: 0,
            wall_offset,
            host: host.into(),
            failing: false,
            dropped: 0,
        })
    }

    fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        match self.file.write(&self.lines) {
            Ok(()) => {
                if self.failing {
                    self.failing = false;
                    log::warn!("{}: units are written again; {} were not", self.path, self.dropped);
                }
            }
            Err(error) => self.fail(&error),
        }
        self.lines.clear();
        self.gathered = 0;
    }

    fn fail(&mut self, error: &io::Error) {
        self.dropped += self.gathered;
        if !self.failing {
            self.failing = true;
            log::error!("{}: {error}: units are not written until this passes, tracing goes on", self.path);
        }
    }
}

impl UnitWriter for Lines {
    fn unit(&mut self, names: &Names, unit: &Unit) {
        if self.failing && self.gathered > 0 {
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
        if self.lines.len() >= GATHER && !self.failing {
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
        self.dropped
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileTypeExt;

    #[test]
    fn a_full_disk_is_counted_and_said_once() {
        let full = Path::new("/dev/full");
        assert!(std::fs::metadata(full).unwrap().file_type().is_char_device());
        let file = File::options().write(true).open(full).unwrap();
        let mut lines = Lines::create(Path::new("/dev/null"), 0, "host").unwrap();
        lines.file = Whole::new(file);
        for turn in 1..=3u64 {
            lines.lines.extend_from_slice(b"{}\n");
            lines.gathered = 1;
            lines.flush();
            assert_eq!((lines.failing, lines.dropped()), (true, turn));
        }
    }
}
