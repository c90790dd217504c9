//! Reads windows of earlier runs from the history's files, for the activity profiles: on a thread of its own, the newest first, and
//! no more than a bounded number.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tracer_results::history::parquet_file;
use tracer_results::history::rows::{ClassRow, HistoryRow};

/// Days, files and rows read at most: four weeks of fifty classes are twelve million rows, and hours of the newest weeks say enough.
const DAYS: usize = 28;
const FILES: usize = 1_000;
const ROWS: usize = 2_000_000;
/// Longest file read, bytes.
const BYTES: u64 = 64 << 20;
/// Rows handed over at once, so that the pipeline is not kept.
const BATCH: usize = 5_000;

/// Rows that are being read.
#[derive(Debug)]
pub(super) struct PastWindows(Receiver<Vec<ClassRow>>);

impl PastWindows {
    /// Begins to read the rows of `host` in a local history; what is written from now on is not among them.
    pub(super) fn start(dir: &Path, host: &str) -> io::Result<Self> {
        let (rows, taken) = sync_channel(1);
        let files = files(dir);
        let host = host.to_owned();
        std::thread::Builder::new().name("tracer-past".into()).spawn(move || read(files, &host, &rows))?;
        Ok(Self(taken))
    }

    /// The next rows, if some were read.
    pub(super) fn take(&self) -> Option<Vec<ClassRow>> {
        self.0.try_recv().ok()
    }
}

/// Files of classes, the newest first.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for date in newest(&dir.join(format!("kind={}", ClassRow::KIND))).into_iter().take(DAYS) {
        for hour in newest(&date) {
            let files = newest(&hour);
            found.extend(files.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "parquet")));
            if found.len() >= FILES {
                found.truncate(FILES);
                return found;
            }
        }
    }
    found
}

/// Entries of a directory, the last by name first.
fn newest(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_unstable_by(|a, b| b.cmp(a));
    paths
}

fn read(files: Vec<PathBuf>, host: &str, rows: &SyncSender<Vec<ClassRow>>) {
    let mut left = ROWS;
    for path in files {
        // A link could lead anywhere, and a FIFO would hold the thread up.
        let is_file = std::fs::symlink_metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= BYTES);
        let Some(file) = File::open(&path).ok().filter(|_| is_file) else { continue };
        let mut found: Vec<ClassRow> = match parquet_file::read(file) {
            Ok(found) => found,
            Err(error) => {
                log::debug!("{}: {error}: not part of the activity profiles", path.display());
                continue;
            }
        };
        found.retain(|row: &ClassRow| *row.host == *host);
        found.truncate(left);
        left -= found.len();
        while !found.is_empty() {
            let rest = found.split_off(found.len().min(BATCH));
            if rows.send(std::mem::replace(&mut found, rest)).is_err() {
                // The agent ends.
                return;
            }
        }
        if left == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_results::history::parquet_file::Builder;

    fn write(dir: &Path, part: &str, host: &str, starts: std::ops::Range<u64>) {
        let hour = dir.join("kind=classes").join(part);
        std::fs::create_dir_all(&hour).unwrap();
        let mut file: Builder<ClassRow> = Builder::new().unwrap();
        for start_ns in starts {
            file.push(&ClassRow { start_ns, host: host.into(), count: 1, length_s: 1.0, ..ClassRow::default() })
                .unwrap();
        }
        std::fs::write(hour.join(format!("{host}-20261124T000000Z.parquet")), file.finish().unwrap()).unwrap();
    }

    #[test]
    fn the_newest_rows_of_this_host_come_first() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "date=2026-11-23/hour=07", "a", 0..10);
        write(dir.path(), "date=2026-11-24/hour=06", "a", 100..110);
        write(dir.path(), "date=2026-11-24/hour=06", "b", 200..300);
        let torn = dir.path().join("kind=classes/date=2026-11-24/hour=06/a-20261124T000001Z.parquet");
        std::fs::write(&torn, b"PAR1 torn").unwrap();
        std::os::unix::fs::symlink("/dev/zero", torn.with_file_name("a-link.parquet")).unwrap();
        let past = PastWindows::start(dir.path(), "a").unwrap();
        let mut starts = Vec::new();
        while let Ok(rows) = past.0.recv() {
            starts.extend(rows.iter().map(|row| row.start_ns));
        }
        assert_eq!(starts, (100..110).chain(0..10).collect::<Vec<u64>>());
        assert!(PastWindows::start(Path::new("/nowhere"), "a").unwrap().0.recv().is_err());
    }
}
