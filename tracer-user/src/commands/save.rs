//! `--save-transactions DIR`: noteworthy transactions in files, bounded in size and age.
//!
//! A file is named after when it was begun and holds whole lines, one transaction each, in the form of
//! `/api/v1/transactions/{trace_id}`. A transaction of which more became known later has another line; the last one holds all.
//! Only files of that name are ever removed.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::Failure;
use crate::config::Transactions;
use crate::pipeline::Pipeline;
use crate::record::Whole;
use crate::store::UnitView;

const PREFIX: &str = "transactions-";
const SUFFIX: &str = ".jsonl";
/// A file is one part of this many of what may lie there, in size and in time: what goes at once when the limit is reached.
const PARTS: u32 = 16;
/// Most transactions written in one go: the pipeline waits for it. What is left is written with the next.
const ROUND: usize = 256;

/// What became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Written.
    pub(super) written: u64,
    /// Not written because the disk refused.
    pub(super) failed: u64,
    /// Gone from memory before they could be written.
    pub(super) missed: u64,
}

impl Counts {
    /// With the label values of `tracer_saved_transactions_total{outcome}`.
    pub(super) fn by_outcome(self) -> [(&'static str, u64); 3] {
        [("written", self.written), ("failed", self.failed), ("missed", self.missed)]
    }
}

/// Writes them.
pub(super) struct Saver {
    dir: PathBuf,
    max_size: u64,
    max_age: Duration,
    file: Option<Current>,
    /// The last write failed: said once.
    failing: bool,
    counts: Counts,
}

/// The file being written.
struct Current {
    out: Whole<File>,
    length: u64,
    begun: SystemTime,
}

#[derive(Serialize)]
struct Line<'a> {
    trace_id: &'a str,
    units: &'a [UnitView],
}

impl Saver {
    /// Makes the directory where it is missing, and checks that files can be written there.
    pub(super) fn new(dir: &Path, settings: &Transactions) -> Result<Self, Failure> {
        let refused = |error: io::Error| {
            Failure::Running(format!("{}: {error}: transactions cannot be saved there", dir.display()))
        };
        // Paths of requests can be telling.
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(refused)?;
        let mut saver = Self {
            dir: dir.to_owned(),
            max_size: settings.save_max_size,
            max_age: settings.save_max_age,
            file: None,
            failing: false,
            counts: Counts::default(),
        };
        saver.begin(SystemTime::now()).map_err(refused)?;
        saver.clean(SystemTime::now());
        Ok(saver)
    }

    /// Writes what stands still by now, and removes what is too old or too much.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        self.turn(SystemTime::now());
        self.write(pipeline, false, ROUND);
    }

    /// Writes all that is left: tracing is over.
    pub(super) fn finish(mut self, pipeline: &mut Pipeline) {
        self.write(pipeline, true, usize::MAX);
    }

    fn write(&mut self, pipeline: &mut Pipeline, over: bool, most: usize) {
        let now = SystemTime::now();
        for _ in 0..most {
            let Some(units) = pipeline.settled(over) else { break };
            let Some(first) = units.first() else { continue };
            let line = Line { trace_id: &first.trace_id, units: &units };
            let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut line| {
                line.push(b'\n');
                self.append(&line, now)
            });
            match written {
                Ok(()) => {
                    self.counts.written += 1;
                    if std::mem::take(&mut self.failing) {
                        log::warn!("{}: transactions are saved again", self.dir.display());
                    }
                }
                Err(error) => {
                    self.counts.failed += 1;
                    if !std::mem::replace(&mut self.failing, true) {
                        log::error!("{}: {error}: transactions are not saved, tracing goes on", self.dir.display());
                    }
                }
            }
        }
        self.counts.missed = pipeline.store.unsettled();
    }

    /// What became of them so far.
    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    fn append(&mut self, line: &[u8], now: SystemTime) -> io::Result<()> {
        if self.file.is_none() {
            self.begin(now)?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.out.write(line)?;
        file.length += line.len() as u64;
        if file.length >= self.max_size / u64::from(PARTS) {
            self.file = None;
            self.clean(now);
        }
        Ok(())
    }

    /// Ends a file whose time is over.
    fn turn(&mut self, now: SystemTime) {
        let age = |file: &Current| now.duration_since(file.begun).unwrap_or_default();
        if self.file.as_ref().is_some_and(|file| age(file) >= self.max_age / PARTS) {
            self.file = None;
            self.clean(now);
        }
    }

    fn begin(&mut self, now: SystemTime) -> io::Result<()> {
        // Two can begin within a millisecond, or after the clock was set back.
        for nth in 0..1000u32 {
            let path = self.dir.join(name(now, nth));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
                Ok(file) => {
                    self.file = Some(Current { out: Whole::new(file), length: 0, begun: now });
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    /// Removes own files that are too old, then the oldest while there is too much. Empty ones of earlier runs go too.
    fn clean(&self, now: SystemTime) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        let mut files: Vec<(SystemTime, PathBuf, u64)> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(is_ours))
            .filter_map(|entry| {
                let facts = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
                Some((facts.modified().ok()?, entry.path(), facts.len()))
            })
            .collect();
        files.sort();
        let mut size: u64 = files.iter().map(|(.., length)| length).sum();
        // The newest is the one being written, or the last one that was.
        files.pop();
        for (modified, path, length) in files {
            let old = now.duration_since(modified).is_ok_and(|age| age > self.max_age);
            if old || length == 0 || size > self.max_size {
                if let Err(error) = std::fs::remove_file(&path) {
                    log::warn!("{}: {error}: it should have been removed", path.display());
                    continue;
                }
                size -= length;
            }
        }
    }
}

/// `transactions-20261121T174501.123Z.jsonl`, with a number where that exists.
fn name(now: SystemTime, nth: u32) -> String {
    let when = jiff::Timestamp::try_from(now).unwrap_or_default().strftime("%Y%m%dT%H%M%S%.3fZ").to_string();
    if nth == 0 { format!("{PREFIX}{when}{SUFFIX}") } else { format!("{PREFIX}{when}-{nth}{SUFFIX}") }
}

/// Whether a file has a name as given by [`name`].
fn is_ours(file: &str) -> bool {
    let middle = file.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    middle.is_some_and(|when| {
        when.len() >= 20
            && when.starts_with(|c: char| c.is_ascii_digit())
            && when.bytes().all(|byte| byte.is_ascii_digit() || b"TZ.-".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saver(dir: &Path, max_size: u64) -> Saver {
        Saver::new(dir, &Transactions { save_max_size: max_size, ..Transactions::default() }).unwrap()
    }

    fn files(dir: &Path) -> Vec<(String, u64)> {
        let mut all: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .flatten()
            .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn the_directory_stays_within_its_size() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("a/b");
        let mut saver = saver(&dir, 16_000);
        std::fs::write(dir.join("transactions-mine.txt"), "x").unwrap();
        std::fs::write(dir.join("notes"), vec![0; 50_000]).unwrap();
        let line = [b'x'; 400];
        for _ in 0..400 {
            saver.append(&line, SystemTime::now()).unwrap();
        }
        let all = files(&dir);
        let ours: Vec<_> = all.iter().filter(|(name, _)| is_ours(name)).collect();
        assert!(ours.iter().all(|(_, length)| *length <= 1200), "{ours:?}");
        let sum: u64 = ours.iter().map(|(_, length)| length).sum();
        assert!((14_000..=17_200).contains(&sum), "{sum}");
        assert_eq!(all.len() - ours.len(), 2, "others' files stay: {all:?}");
    }

    #[test]
    fn old_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut saver = saver(dir.path(), 1 << 30);
        let begin = SystemTime::now();
        saver.append(b"a line\n", begin).unwrap();
        saver.turn(begin + Duration::from_secs(2 * 3600));
        assert!(saver.file.is_none(), "a file ends after a part of the time");
        saver.append(b"another\n", begin + Duration::from_secs(2 * 3600)).unwrap();
        assert_eq!(files(dir.path()).len(), 2);
        saver.clean(begin + Duration::from_secs(25 * 3600));
        assert_eq!(files(dir.path()).len(), 1, "but the newest stays");
    }

    #[test]
    fn names_sort_by_time() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(name(at(1_795_282_501_123), 0), "transactions-20261121T173501.123Z.jsonl");
        assert_eq!(name(at(1_795_282_501_123), 2), "transactions-20261121T173501.123Z-2.jsonl");
        assert!(is_ours(&name(at(0), 0)) && is_ours(&name(at(0), 7)));
        for other in ["transactions-.jsonl", "transactions-latest-by-hand-now.jsonl", "x.jsonl"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Saver::new(&file.path().join("below"), &Transactions::default()).err().unwrap();
        assert!(error.to_string().contains("transactions cannot be saved there"), "{error}");
    }
}
