//! The directory of the history: windows go to a journal, and from there to Parquet files, which replace each other until
//! their hour is over.
//!
//! A Parquet file is written under another name, synced and renamed, so it is whole or not there. The journal is removed
//! only then; after a crash in between the same files are written again, under the same names. So an agent that is killed
//! loses no more than the window it was writing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracer_host::files;

use self::summaries::HourlySums;
use super::journal;
use super::layout;
use super::parquet_file::{self, Builder};
use super::rows::{ClassRow, EdgeRow, FindingRow, GoalRow, HistoryRow, HostRow, KINDS, ServiceRow, WindowRows};
use super::status::Status;
use super::summary::Sum;
use super::uploads::{Uploads, Version};

mod summaries;

/// Most rows of classes in a file: an hour of 50 classes every 10 s. Busier hosts have several files an hour.
const ROWS_MAX: usize = 20_000;
/// So many rows of edges, which have no histograms, take the room of one of a class.
const EDGES_A_CLASS: usize = 3;
/// Parquet files are renewed after 1, 2, 4, … windows and then after each of so many, so that readers need not wait for
/// the end of the hour.
const RENEW_WINDOWS: u64 = 32;
/// Journals that could not become Parquet files and wait for a disk that takes them.
const PENDING_MAX: usize = 64;
/// Most files removed for their age at a time. A clock that is wrong for an hour then costs a few files, not all.
const AGED_MAX: usize = 8;
/// Hours and days may take this part of the room.
const SUMMARIES_SHARE: u64 = 4;
/// Most entries of the directory looked at.
const ENTRIES_MAX: usize = 100_000;
/// Files left alone that are named in the log; the others are only counted.
const NAMED_MAX: u64 = 3;
/// Largest journal that is read.
const JOURNAL_MAX: u64 = 64 << 20;

/// Where the history is and how much of it is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory.
    pub dir: PathBuf,
    /// Name of this host.
    pub host: String,
    /// Parquet files of this host are removed beyond these bytes, oldest first.
    pub max_size: u64,
    /// Those of windows also when they are older than this, those of hours and of days when they are older than these.
    pub max_age: Duration,
    /// See `max_age`.
    pub hourly_max_age: Duration,
    /// See `max_age`.
    pub daily_max_age: Duration,
    /// Whether every file is also to be uploaded.
    pub upload: bool,
}

/// Writes bytes to files: a test's may fail.
pub trait Disk: Send {
    /// Writes all of them, to stable storage.
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
}

/// The disk itself.
#[derive(Debug)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_data()
    }
}

/// The journal that grows.
#[derive(Debug)]
struct Current {
    stem: String,
    file: File,
    /// Bytes of whole windows.
    length: u64,
    hour: u64,
    windows: u64,
    rows: usize,
    /// Windows since Parquet files were last written.
    unpublished: u64,
}

/// What a file is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Windows,
    Hours,
    Days,
}

impl Age {
    const ALL: [Self; 3] = [Self::Windows, Self::Hours, Self::Days];
}

/// A directory that this process alone writes this host's history to.
pub struct Directory {
    options: Options,
    host: String,
    status: Arc<Status>,
    disk: Box<dyn Disk>,
    /// Locked while it is open.
    _lock: File,
    current: Option<Current>,
    /// Stems of journals that are complete.
    pending: Vec<String>,
    /// This host's Parquet files and their sizes, by [`Age`] and time.
    stored: [BTreeMap<(i64, PathBuf), u64>; 3],
    /// Days whose hours changed since their summary was made, by their first second.
    changed_days: BTreeSet<i64>,
    /// Which of them wait for the bucket, if there is one.
    uploads: Option<Arc<Uploads>>,
}

impl Directory {
    /// Opens or makes it, and turns what an earlier run left into Parquet files.
    pub fn open(options: Options, status: Arc<Status>, disk: Box<dyn Disk>) -> io::Result<Self> {
        let host = layout::host_part(&options.host);
        let journals = options.dir.join(layout::JOURNALS);
        for dir in [&options.dir, &journals] {
            files::directory(dir).map_err(|error| about(error, "cannot use", dir))?;
        }
        let lock = lock(&journals.join(format!("{host}.lock")))?;
        let uploads = options.upload.then(|| Uploads::open(&options.dir, &host, Arc::clone(&status))).transpose()?;
        let mut directory = Self {
            uploads: uploads.map(Arc::new),
            options,
            host,
            status,
            disk,
            _lock: lock,
            current: None,
            pending: Vec::new(),
            stored: Default::default(),
            changed_days: BTreeSet::new(),
        };
        directory.scan();
        directory.find_changed_days();
        if let Some(uploads) = &directory.uploads {
            uploads.keep_only(&|path| fs::symlink_metadata(path).is_ok());
            uploads.rewrite()?;
        }
        directory.recover()?;
        Ok(directory)
    }

    /// Files that wait for the bucket, if there is one.
    pub fn uploads(&self) -> Option<Arc<Uploads>> {
        self.uploads.clone()
    }

    /// Adds a window. After an error it is not there, and everything before it is.
    pub fn append(&mut self, window: &WindowRows) -> io::Result<()> {
        let hour = window.host.start_ns / 3_600_000_000_000;
        let rows = rows_of(window);
        if self.current.as_ref().is_some_and(|current| current.hour != hour || current.rows + rows > ROWS_MAX) {
            self.finish();
            self.make_days(seconds(hour));
        }
        let written = self.write_window(window, hour);
        if written.is_err() {
            self.status.windows_lost_disk.add(1);
            return written;
        }
        self.status.windows_written.add(1);
        let windows = self.current.as_ref().map_or(0, |current| current.windows);
        if windows.is_power_of_two() || windows.is_multiple_of(RENEW_WINDOWS) {
            self.renew();
        }
        Ok(())
    }

    fn write_window(&mut self, window: &WindowRows, hour: u64) -> io::Result<()> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => self.new_journal(window, hour)?,
        };
        let mut bytes = if current.length == 0 { journal::HEADER.to_vec() } else { Vec::new() };
        bytes.extend(journal::encode(window));
        if let Err(error) = self.disk.write(&mut current.file, &bytes) {
            let error = about(error, "cannot write", &self.journal_path(&current.stem));
            // Half a window would hide those after it.
            let cut = current.file.set_len(current.length);
            if current.length == 0 {
                let _ = fs::remove_file(self.journal_path(&current.stem));
            } else if cut.is_ok() {
                self.current = Some(current);
            } else {
                self.pending.push(current.stem);
            }
            return Err(error);
        }
        current.length += bytes.len() as u64;
        current.windows += 1;
        current.unpublished += 1;
        current.rows += rows_of(window);
        self.current = Some(current);
        Ok(())
    }

    fn new_journal(&self, window: &WindowRows, hour: u64) -> io::Result<Current> {
        let start_s = (window.host.start_ns / 1_000_000_000) as i64;
        let taken = |stem: &String| {
            let exists = |path: PathBuf| fs::symlink_metadata(path).is_ok();
            exists(self.journal_path(stem))
                || KINDS.into_iter().any(|kind| exists(self.parquet_path(kind, stem, start_s)))
        };
        let stem = (0..10_000).map(|number| layout::stem(&self.host, start_s, number)).find(|stem| !taken(stem));
        let stem = stem.ok_or_else(|| io::Error::other("the clock stands still: too many files begin at one time"))?;
        let path = self.journal_path(&stem);
        drop(files::create_new(&path).map_err(|error| about(error, "cannot make", &path))?);
        // Appended to, wherever it is cut after a failed write.
        let file = File::options().append(true).open(&path).map_err(|error| about(error, "cannot open", &path))?;
        Ok(Current { stem, file, length: 0, hour, windows: 0, rows: 0, unpublished: 0 })
    }

    /// Writes the Parquet files of the windows so far.
    fn renew(&mut self) {
        let Some(stem) = self.current.as_ref().map(|current| current.stem.clone()) else { return };
        match self.publish(&stem, false) {
            Ok(_) => {
                if let Some(current) = &mut self.current {
                    current.unpublished = 0;
                }
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Ends the current journal: its windows are in Parquet files from now on, and old ones make room.
    pub fn finish(&mut self) {
        let Some(current) = self.current.take() else { return };
        self.pending.push(current.stem);
        for stem in std::mem::take(&mut self.pending) {
            match self.publish(&stem, true) {
                Ok(_) => drop(fs::remove_file(self.journal_path(&stem))),
                Err(error) => {
                    self.failed(&error);
                    self.pending.push(stem);
                }
            }
        }
        while self.pending.len() > PENDING_MAX {
            let oldest = self.pending.remove(0);
            let path = self.journal_path(&oldest);
            let lost = read_journal(&path).map_or(1, |bytes| journal::decode(&bytes).map_or(1, Iterator::count));
            self.status.windows_lost_disk.add(lost as u64);
            log::error!("history: {}: removed, as the disk takes no files: {lost} windows are lost", path.display());
            let _ = fs::remove_file(path);
        }
        self.make_days(seconds(current.hour));
        self.recycle(seconds(current.hour));
    }

    fn failed(&self, error: &io::Error) {
        self.status.files_failed.add(1);
        log::warn!("history: {error}: its windows stay in {} until this passes", layout::JOURNALS);
    }

    /// Writes the Parquet files of a journal, and adds it to the summaries if it is `complete`. Returns its windows, and
    /// whether one of them is torn.
    fn publish(&mut self, stem: &str, complete: bool) -> io::Result<(u64, bool)> {
        let path = self.journal_path(stem);
        let bytes = read_journal(&path).map_err(|error| about(error, "cannot read", &path))?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "no journal of this version of tracer");
        let mut windows = journal::decode(&bytes).ok_or_else(|| about(foreign(), "cannot read", &path))?;
        let mut hosts = builder::<HostRow>()?;
        let (mut classes, mut services) = (builder::<ClassRow>()?, builder::<ServiceRow>()?);
        let (mut edges, mut goals) = (builder::<EdgeRow>()?, builder::<GoalRow>()?);
        let mut findings = builder::<FindingRow>()?;
        let mut hours = complete.then(HourlySums::new);
        for window in windows.by_ref() {
            hosts.push(&window.host).map_err(io::Error::other)?;
            push_all(&mut classes, &window.classes)?;
            push_all(&mut services, &window.services)?;
            push_all(&mut edges, &window.edges)?;
            push_all(&mut goals, &window.goals)?;
            push_all(&mut findings, &window.findings)?;
            if let Some(hours) = &mut hours {
                hours.window(&window);
            }
        }
        let (count, torn) = (hosts.rows() as u64, windows.torn);
        self.store(classes, stem)?;
        self.store(services, stem)?;
        self.store(edges, stem)?;
        self.store(goals, stem)?;
        self.store(findings, stem)?;
        self.store(hosts, stem)?;
        if let Some(hours) = hours {
            self.add_hours(stem, &hours)?;
        }
        Ok((count, torn))
    }

    /// Puts the file of a journal's windows in its place, instead of one of an earlier state.
    fn store<R: HistoryRow>(&mut self, builder: Builder<R>, stem: &str) -> io::Result<()> {
        let Some((_, start_s)) = layout::parse_stem(stem).filter(|_| builder.rows() > 0) else { return Ok(()) };
        let bytes = builder.finish().map_err(io::Error::other)?;
        let path = self.parquet_path(R::KIND, stem, start_s);
        self.put(&path, &format!("{}-{stem}{}", R::KIND, layout::PARQUET), &bytes, (Age::Windows, start_s))
    }

    /// Writes a file under another `name`, and renames it.
    fn put(&mut self, path: &Path, name: &str, bytes: &[u8], (age, start_s): (Age, i64)) -> io::Result<()> {
        let partition = path.parent().unwrap_or(&self.options.dir);
        files::directory(partition).map_err(|error| about(error, "cannot make", partition))?;
        let name = name.strip_suffix(layout::PARQUET).unwrap_or(name);
        let temporary = self.options.dir.join(layout::JOURNALS).join(format!("{name}{}", layout::TEMPORARY));
        let _ = fs::remove_file(&temporary);
        let mut file = files::create_new(&temporary).map_err(|error| about(error, "cannot make", &temporary))?;
        let stored = self.disk.write(&mut file, bytes).and_then(|()| file.sync_all());
        let stored = stored.and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = stored {
            let _ = fs::remove_file(&temporary);
            return Err(about(error, "cannot write", path));
        }
        // The name too, before the journal goes.
        File::open(partition).and_then(|dir| dir.sync_all()).map_err(|error| about(error, "cannot sync", partition))?;
        if let Some(uploads) = &self.uploads {
            uploads.written(path, bytes.len() as u64);
        }
        self.stored[age as usize].insert((start_s, path.to_owned()), bytes.len() as u64);
        self.status.files_written.add(1);
        self.status.bytes.set(self.bytes());
        Ok(())
    }

    fn bytes(&self) -> u64 {
        Age::ALL.into_iter().map(|age| self.bytes_of(age)).sum()
    }

    fn bytes_of(&self, age: Age) -> u64 {
        self.stored[age as usize].values().sum()
    }

    /// Removes what is too old at `now_s`, and the oldest of what is too much: windows first, while hours and days take no
    /// more than their share.
    fn recycle(&mut self, now_s: i64) {
        let Options { max_age, hourly_max_age, daily_max_age, max_size, .. } = self.options;
        for (age, most) in Age::ALL.into_iter().zip([max_age, hourly_max_age, daily_max_age]) {
            let before = now_s.saturating_sub(i64::try_from(most.as_secs()).unwrap_or(i64::MAX));
            for _ in 0..AGED_MAX {
                let oldest = self.stored[age as usize].first_key_value();
                if oldest.is_none_or(|((start_s, _), _)| *start_s >= before) {
                    break;
                }
                self.remove_oldest(age);
            }
        }
        while self.bytes() > max_size {
            let summaries = self.bytes_of(Age::Hours) + self.bytes_of(Age::Days);
            let windows = !self.stored[Age::Windows as usize].is_empty();
            let age = match () {
                () if windows && summaries <= max_size / SUMMARIES_SHARE => Age::Windows,
                () if !self.stored[Age::Hours as usize].is_empty() => Age::Hours,
                () if !self.stored[Age::Days as usize].is_empty() => Age::Days,
                () => Age::Windows,
            };
            if !self.remove_oldest(age) {
                break;
            }
        }
        self.status.bytes.set(self.bytes());
    }

    /// Returns whether there was one.
    fn remove_oldest(&mut self, age: Age) -> bool {
        let Some(((_, path), _)) = self.stored[age as usize].pop_first() else { return false };
        match fs::remove_file(&path) {
            Ok(()) => {
                self.status.files_recycled.add(1);
                if let Some(uploads) = &self.uploads {
                    uploads.removed(&path);
                }
            }
            Err(error) => log::warn!("history: cannot remove {}: {error}: it no longer counts", path.display()),
        }
        // Hour and date, once they are empty.
        let partitions = if age == Age::Windows { 2 } else { 1 };
        let _ = path.ancestors().skip(1).take(partitions).try_for_each(fs::remove_dir);
        true
    }

    /// Finds this host's files. Those of other hosts are theirs; anything else is counted and left alone.
    fn scan(&mut self) {
        let mut budget = ENTRIES_MAX;
        for table in entries(&self.options.dir, &mut budget) {
            let name = file_name(&table);
            if name == layout::JOURNALS {
                continue;
            }
            let Some(age) = name.strip_prefix("kind=").and_then(age_of) else {
                self.ignore(&table, "its name is not one that the history uses");
                continue;
            };
            let mut partitions = entries(&table, &mut budget);
            if age == Age::Windows {
                partitions = partitions.into_iter().flat_map(|date| entries(&date, &mut budget)).collect();
            }
            for partition in partitions {
                for path in entries(&partition, &mut budget) {
                    self.found(path, age);
                }
            }
        }
        let ignored = self.status.files_ignored.get();
        if ignored > NAMED_MAX {
            log::warn!("history: {ignored} files in {} are left alone in all", self.options.dir.display());
        }
        if budget == 0 {
            log::warn!("history: more than {ENTRIES_MAX} entries in {}: others are kept", self.options.dir.display());
        }
        self.status.bytes.set(self.bytes());
    }

    fn found(&mut self, path: PathBuf, age: Age) {
        let name = file_name(&path);
        let Some((host, start_s)) = name.strip_suffix(layout::PARQUET).and_then(layout::parse_stem) else {
            return self.ignore(&path, "its name is not one that the history uses");
        };
        if host != self.host {
            return;
        }
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_file() => match parquet_file::check(&path) {
                Ok(()) => {
                    if let Some(uploads) = &self.uploads {
                        uploads.found(&path, Version::of(&metadata));
                    }
                    self.stored[age as usize].insert((start_s, path), metadata.len());
                }
                Err(error) => self.ignore(&path, &error.to_string()),
            },
            Ok(_) => self.ignore(&path, "expected a regular file"),
            Err(error) => self.ignore(&path, &error.to_string()),
        }
    }

    fn ignore(&self, path: &Path, reason: &str) {
        self.status.files_ignored.add(1);
        if self.status.files_ignored.get() <= NAMED_MAX {
            log::warn!("history: {} is left alone: {reason}", path.display());
        }
    }

    /// Journals of an earlier run become Parquet files; files it had not finished are removed.
    fn recover(&mut self) -> io::Result<()> {
        let journals = self.options.dir.join(layout::JOURNALS);
        let mut names: Vec<String> =
            entries(&journals, &mut { ENTRIES_MAX }).iter().map(|path| file_name(path)).collect();
        names.sort();
        let own = |stem: &str| layout::parse_stem(stem).is_some_and(|(host, _)| host == self.host);
        let temporary = |name: &String| {
            let stem = name.strip_suffix(layout::TEMPORARY).and_then(|name| name.split_once('-'));
            stem.is_some_and(|(_, stem)| own(stem))
        };
        for name in names.iter().filter(|name| temporary(name)) {
            let path = journals.join(name);
            fs::remove_file(&path).map_err(|error| about(error, "cannot remove", &path))?;
        }
        let stems = names.iter().filter_map(|name| name.strip_suffix(layout::JOURNAL)).filter(|stem| own(stem));
        for stem in stems.map(str::to_owned).collect::<Vec<_>>() {
            match self.publish(&stem, true) {
                Ok((windows, torn)) => {
                    self.status.windows_recovered.add(windows);
                    self.status.windows_lost_torn.add(u64::from(torn));
                    let _ = fs::remove_file(self.journal_path(&stem));
                }
                // A later version's, for one.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    self.ignore(&self.journal_path(&stem), &error.to_string());
                }
                Err(error) => {
                    self.failed(&error);
                    self.pending.push(stem);
                }
            }
        }
        Ok(())
    }

    fn journal_path(&self, stem: &str) -> PathBuf {
        self.options.dir.join(layout::JOURNALS).join(format!("{stem}{}", layout::JOURNAL))
    }

    fn parquet_path(&self, kind: &str, stem: &str, start_s: i64) -> PathBuf {
        layout::partition(&self.options.dir, kind, start_s).join(format!("{stem}{}", layout::PARQUET))
    }
}

/// What the files of a table are of. None: it is none of the history's.
fn age_of(kind: &str) -> Option<Age> {
    match kind {
        _ if KINDS.contains(&kind) => Some(Age::Windows),
        ClassRow::HOURLY | HostRow::HOURLY | EdgeRow::HOURLY | GoalRow::HOURLY => Some(Age::Hours),
        ClassRow::DAILY | HostRow::DAILY | EdgeRow::DAILY | GoalRow::DAILY => Some(Age::Days),
        _ => None,
    }
}

/// The first second of an hour since the epoch.
fn seconds(hour: u64) -> i64 {
    i64::try_from(hour.saturating_mul(3600)).unwrap_or(i64::MAX)
}

fn builder<R: HistoryRow>() -> io::Result<Builder<R>> {
    Builder::new().map_err(io::Error::other)
}

fn push_all<R: HistoryRow>(builder: &mut Builder<R>, rows: &[R]) -> io::Result<()> {
    rows.iter().try_for_each(|row| builder.push(row)).map_err(io::Error::other)
}

/// How many rows of classes a window counts for.
fn rows_of(window: &WindowRows) -> usize {
    window.classes.len().max(window.edges.len().div_ceil(EDGES_A_CLASS))
}

/// A journal as a whole; the rows are taken from it one by one.
fn read_journal(path: &Path) -> io::Result<Vec<u8>> {
    if fs::symlink_metadata(path)?.len() > JOURNAL_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than any journal of this version"));
    }
    fs::read(path)
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
fn about(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Entries of a directory that is no link; none if it cannot be read.
fn entries(dir: &Path, budget: &mut usize) -> Vec<PathBuf> {
    if !fs::symlink_metadata(dir).is_ok_and(|metadata| metadata.is_dir()) {
        return Vec::new();
    }
    let found: Vec<PathBuf> = match fs::read_dir(dir) {
        Ok(found) => found.filter_map(|entry| entry.ok().map(|entry| entry.path())).take(*budget).collect(),
        Err(error) => {
            log::warn!("history: cannot read {}: {error}", dir.display());
            Vec::new()
        }
    };
    *budget -= found.len();
    found
}

/// Two agents with one host's name would write the same files.
fn lock(path: &Path) -> io::Result<File> {
    let file = match files::create_new(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).open(path).map_err(|error| about(error, "cannot open", path))?
        }
        Err(error) => return Err(about(error, "cannot make", path)),
    };
    // SAFETY: a descriptor this function owns.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        let why = "another tracer writes the history of this host here: give each its own directory";
        let busy = error.kind() == io::ErrorKind::WouldBlock;
        return Err(if busy {
            io::Error::other(format!("{}: {why}", path.display()))
        } else {
            about(error, "cannot lock", path)
        });
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
