//! `--save-transactions DIR`: noteworthy transactions in files, bounded in size and age.
//!
//! A file is named after when it was begun and holds whole lines, one transaction each, in the form of
//! `/api/v1/transactions/{trace_id}`. A transaction of which more became known later has another line; the last one holds all.
//! Only files of that name are ever removed. All of it is done on a thread of its own.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tracer_host::files;
use tracer_results::record::{Behind, Sink, Waiting, Whole, Words};
use tracer_results::store::SpanView;

use super::Failure;
use super::dated_files::DatedFiles;
use crate::config::Transactions;
use crate::pipeline::Pipeline;

const FILES: DatedFiles = DatedFiles { prefix: "transactions-", suffix: ".jsonl" };
/// A file is one part of this many of what may lie there, in size and in time: what goes at once when the limit is reached.
const PARTS: u32 = 16;
/// Most transactions made lines of in one go: the pipeline waits for it. What is left goes with the next.
const ROUND: usize = 256;

/// What became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Written.
    pub(super) written: u64,
    /// Not written because the disk refused, or was too slow.
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
    files: Behind,
    /// Not handed over.
    failed: u64,
    /// Gone before they could be.
    missed: u64,
}

/// The directory.
struct Files {
    dir: PathBuf,
    max_size: u64,
    max_age: Duration,
    file: Option<Current>,
}

/// The file being written.
struct Current {
    out: Whole<File>,
    length: u64,
    begun: SystemTime,
}

#[derive(Serialize)]
struct Line<'a> {
    trace_id: String,
    spans: &'a [SpanView<'a>],
}

impl Saver {
    /// Makes the directory where it is missing, and checks that files can be written there.
    pub(super) fn new(dir: &Path, settings: &Transactions) -> Result<Self, Failure> {
        let refused = |error: io::Error| {
            Failure::Running(format!("{}: {error}: transactions cannot be saved there", dir.display()))
        };
        let files = Files::new(dir, settings).map_err(refused)?;
        let place = dir.display().to_string();
        let words = Words { place, what: "transactions", meaning: "are not saved until this passes", passes: true };
        Ok(Self { files: Behind::start(files, words).map_err(refused)?, failed: 0, missed: 0 })
    }

    /// Hands over what stands still by now.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        for _ in 0..ROUND {
            let Some(line) = self.next(pipeline, false) else { break };
            self.files.write(line, 1);
        }
        self.missed = pipeline.store.unsettled();
    }

    /// Writes all that is left: tracing is over.
    pub(super) fn finish(mut self, pipeline: &mut Pipeline) {
        while let Some(line) = self.next(pipeline, true) {
            self.files.write_in_time(line, 1);
        }
        self.files.finish();
    }

    /// The line of the next transaction.
    fn next(&mut self, pipeline: &mut Pipeline, over: bool) -> Option<Vec<u8>> {
        loop {
            let spans = pipeline.settled(over)?;
            let Some(first) = spans.first() else { continue };
            match serde_json::to_vec(&Line { trace_id: first.span.trace.to_string(), spans: &spans }) {
                Ok(mut line) => {
                    line.push(b'\n');
                    return Some(line);
                }
                // Memory does not refuse, and the form is our own.
                Err(_) => self.failed += 1,
            }
        }
    }

    /// What became of them so far.
    pub(super) fn counts(&self) -> Counts {
        let Self { files, failed, missed } = self;
        Counts { written: files.written(), failed: failed + files.dropped(), missed: *missed }
    }

    /// How much waits to be written.
    pub(super) fn waiting(&self) -> Waiting {
        self.files.waiting()
    }
}

impl Sink for Files {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.append(line, SystemTime::now())
    }

    fn rest(&mut self) {
        self.turn(SystemTime::now());
    }
}

impl Files {
    fn new(dir: &Path, settings: &Transactions) -> io::Result<Self> {
        // Paths of requests can be telling.
        files::directory(dir)?;
        let (max_size, max_age) = (settings.save_max_size, settings.save_max_age);
        let mut files = Self { dir: dir.to_owned(), max_size, max_age, file: None };
        files.begin(SystemTime::now())?;
        files.clean(SystemTime::now());
        Ok(files)
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
            let path = self.dir.join(FILES.name(now, nth));
            match files::create_new(&path) {
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
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| FILES.include(name)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &Path, max_size: u64) -> Files {
        Files::new(dir, &Transactions { save_max_size: max_size, ..Transactions::default() }).unwrap()
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
        let mut writer = writer(&dir, 16_000);
        std::fs::write(dir.join("transactions-mine.txt"), "x").unwrap();
        std::fs::write(dir.join("notes"), vec![0; 50_000]).unwrap();
        let line = [b'x'; 400];
        for _ in 0..400 {
            writer.append(&line, SystemTime::now()).unwrap();
        }
        let all = files(&dir);
        let ours: Vec<_> = all.iter().filter(|(name, _)| FILES.include(name)).collect();
        assert!(ours.iter().all(|(_, length)| *length <= 1200), "{ours:?}");
        let sum: u64 = ours.iter().map(|(_, length)| length).sum();
        assert!((14_000..=17_200).contains(&sum), "{sum}");
        assert_eq!(all.len() - ours.len(), 2, "others' files stay: {all:?}");
    }

    #[test]
    fn old_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 1 << 30);
        let begin = SystemTime::now();
        writer.append(b"a line\n", begin).unwrap();
        writer.turn(begin + Duration::from_secs(2 * 3600));
        assert!(writer.file.is_none(), "a file ends after a part of the time");
        writer.append(b"another\n", begin + Duration::from_secs(2 * 3600)).unwrap();
        assert_eq!(files(dir.path()).len(), 2);
        writer.clean(begin + Duration::from_secs(25 * 3600));
        assert_eq!(files(dir.path()).len(), 1, "but the newest stays");
    }

    #[test]
    fn names_sort_by_time() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        assert_eq!(FILES.name(at(1_795_282_501_123), 0), "transactions-20261121T173501.123Z.jsonl");
        assert_eq!(FILES.name(at(1_795_282_501_123), 2), "transactions-20261121T173501.123Z-2.jsonl");
        assert!(FILES.include(&FILES.name(at(0), 0)) && FILES.include(&FILES.name(at(0), 7)));
        for other in ["transactions-.jsonl", "transactions-latest-by-hand-now.jsonl", "x.jsonl"] {
            assert!(!FILES.include(other), "{other}");
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Saver::new(&file.path().join("below"), &Transactions::default()).err().unwrap();
        assert!(error.to_string().contains("transactions cannot be saved there"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/var", &link).unwrap();
        let error = Saver::new(&link, &Transactions::default()).err().unwrap();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}
