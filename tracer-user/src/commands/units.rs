//! The transactions file: one finished unit of work a line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::Failure;
use crate::model::{Names, Unit};
use crate::pipeline::UnitWriter;
use crate::store::show;

/// Writes units as JSON lines, as `/api/v1/transactions/{trace_id}` shows them.
pub(super) struct Lines {
    path: String,
    out: BufWriter<File>,
    wall_offset: i64,
    host: String,
    failed: bool,
}

impl Lines {
    /// Creates (or empties) the file.
    pub(super) fn create(path: &Path, wall_offset: i64, host: &str) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| Failure::Running(format!("{name}: {error}")))?;
        Ok(Self { path: name, out: BufWriter::new(file), wall_offset, host: host.into(), failed: false })
    }
}

impl UnitWriter for Lines {
    fn unit(&mut self, names: &Names, unit: &Unit) {
        if self.failed {
            return;
        }
        let line = serde_json::to_string(&show(names, unit, self.wall_offset, &self.host)).unwrap_or_default();
        if let Err(error) = writeln!(self.out, "{line}") {
            self.fail(&error);
        }
    }

    fn flush(&mut self) {
        if !self.failed
            && let Err(error) = self.out.flush()
        {
            self.fail(&error);
        }
    }
}

impl Lines {
    fn fail(&mut self, error: &std::io::Error) {
        self.failed = true;
        log::error!("{}: {error}: no more units are written, tracing goes on", self.path);
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.flush();
    }
}
