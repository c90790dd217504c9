//! The state file: which threads have a changed priority. It is written before the change, so that the next start can
//! undo what a killed agent left.
//!
//! A file of lines of one length: a head that names the boot, then one line a thread, blank when it is free. A start
//! makes a new file beside the old one and renames it; from then on one line is overwritten at a time, which takes
//! microseconds and which a kill does not tear (a line never crosses a page). A lock file beside it keeps two agents
//! apart. Files are for the agent's user alone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tracer_host::files;

use super::decision::THREADS_MAX;

/// Bytes of a line. A divisor of the page size.
const LINE: usize = 128;
/// Longest file, bytes.
const FILE: u64 = (LINE * (THREADS_MAX + 1)) as u64;
/// Name of the state file, of its successor while it is made, and of the lock.
const NAME: &str = "priorities";
const NEXT: &str = "priorities.new";
const LOCK: &str = "priorities.lock";
/// First words of the file.
const MAGIC: &str = "tracer-priorities 1";

/// A thread with a changed priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedThread {
    /// Thread.
    pub tid: u32,
    /// Its process.
    pub tgid: u32,
    /// When it started, clock ticks since boot.
    pub start: u64,
    /// Its own nice value, to be restored.
    pub base: i8,
    /// Its nice value before the latest change.
    pub before: i8,
    /// Its nice value after it.
    pub set: i8,
    /// When it was changed first, clock ticks since boot: threads that started later may have inherited a value.
    pub since: u64,
}

impl ChangedThread {
    fn line(&self) -> String {
        let Self { tid, tgid, start, base, before, set, since } = self;
        format!("{tid} {tgid} {start} {base} {before} {set} {since}")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let entry = Self {
            tid: words.next()?.parse().ok()?,
            tgid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            base: words.next()?.parse().ok()?,
            before: words.next()?.parse().ok()?,
            set: words.next()?.parse().ok()?,
            since: words.next()?.parse().ok()?,
        };
        let bounds = [entry.base, entry.before, entry.set].iter().all(|nice| (-20..=19).contains(nice));
        (words.next().is_none() && bounds && entry.tid > 1 && entry.tgid > 1).then_some(entry)
    }
}

/// The lock of a state directory.
#[derive(Debug)]
pub struct Lock {
    directory: PathBuf,
    _file: File,
}

/// The state file of the agent that holds the lock.
#[derive(Debug)]
pub struct Journal {
    file: File,
    lock: Lock,
}

/// What a state file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SavedThreads {
    /// Threads of this boot.
    pub entries: Vec<ChangedThread>,
    /// Lines that say nothing valid.
    pub damaged: usize,
}

/// Names this boot.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Whether there is a state file in `directory`.
pub fn exists(directory: &Path) -> bool {
    fs::symlink_metadata(directory.join(NAME)).is_ok()
}

impl Lock {
    /// Takes the lock of `directory`, which is made if it is missing. Errors: the directory is not safely the agent's
    /// own; another agent holds the lock (`WouldBlock`).
    pub fn take(directory: &Path) -> io::Result<Self> {
        files::directory(directory)?;
        let path = directory.join(LOCK);
        let file = match files::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => files::open_own(&path)?,
            made => made?,
        };
        // SAFETY: a plain system call on a descriptor that is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { directory: directory.to_owned(), _file: file })
    }

    /// Reads what an earlier agent left. A file of an earlier boot says nothing: its threads are gone.
    pub fn left(&self) -> io::Result<SavedThreads> {
        let path = self.directory.join(NAME);
        let text = match files::read_secret(&path, FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SavedThreads::default()),
            read => read?,
        };
        Ok(read(&text, &boot()?))
    }

    /// Removes the state file: nothing is left to restore.
    pub fn clear(&self) -> io::Result<()> {
        match fs::remove_file(self.directory.join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Begins a new state file in place of the old one.
    pub fn begin(self) -> io::Result<Journal> {
        let (next, path) = (self.directory.join(NEXT), self.directory.join(NAME));
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = files::create_new(&next)?;
        file.write_all(padded(&format!("{MAGIC} {}", boot()?)).as_bytes())?;
        fs::rename(&next, &path)?;
        Ok(Journal { file, lock: self })
    }
}

fn padded(text: &str) -> String {
    format!("{text:<width$}\n", width = LINE - 1)
}

fn read(text: &str, boot: &str) -> SavedThreads {
    let mut left = SavedThreads::default();
    // Lines that were never written before others are zeros.
    let is_blank = |letter: char| letter == '\0' || letter.is_whitespace();
    let mut lines = text.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line));
    if lines.next().is_none_or(|head| head.trim_matches(is_blank) != format!("{MAGIC} {boot}")) {
        return left;
    }
    for line in lines {
        let line = line.trim_matches(is_blank);
        match ChangedThread::parse(line) {
            _ if line.is_empty() => {}
            Some(entry) => left.entries.push(entry),
            None => left.damaged += 1,
        }
    }
    left
}

impl Journal {
    /// Writes the line of `slot`, 0 to [`THREADS_MAX`] - 1; `None` frees it.
    pub fn write(&self, slot: usize, entry: Option<&ChangedThread>) -> io::Result<()> {
        let text = padded(&entry.map(ChangedThread::line).unwrap_or_default());
        self.file.write_all_at(text.as_bytes(), ((slot + 1) * LINE) as u64)
    }

    /// Removes the file: nothing is left to restore.
    pub fn end(self) -> io::Result<()> {
        self.lock.clear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENTRY: ChangedThread =
        ChangedThread { tid: 70, tgid: 7, start: 123_456, base: 0, before: 11, set: -11, since: 123_400 };

    #[test]
    fn what_is_written_is_read_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let lock = Lock::take(&path).unwrap();
        assert_eq!(lock.left().unwrap(), SavedThreads::default());
        let journal = lock.begin().unwrap();
        let other = ChangedThread { tid: 71, ..ENTRY };
        journal.write(0, Some(&ENTRY)).unwrap();
        // A slot in between was never used.
        journal.write(5, Some(&other)).unwrap();
        assert_eq!(Lock::take(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(journal);
        let lock = Lock::take(&path).unwrap();
        assert_eq!(lock.left().unwrap(), SavedThreads { entries: vec![ENTRY, other], damaged: 0 });
        let journal = lock.begin().unwrap();
        journal.write(0, Some(&ENTRY)).unwrap();
        journal.write(0, None).unwrap();
        drop(journal);
        let lock = Lock::take(&path).unwrap();
        assert_eq!(lock.left().unwrap(), SavedThreads::default());
        assert!(exists(&path));
        lock.clear().unwrap();
        lock.clear().unwrap();
        assert!(!exists(&path));
    }

    #[test]
    fn other_boots_and_damage_restore_nothing() {
        let file = |boot: &str, lines: &[&str]| {
            let head = format!("{MAGIC} {boot}");
            std::iter::once(head.as_str()).chain(lines.iter().copied()).map(padded).collect::<String>()
        };
        let line = ENTRY.line();
        assert_eq!(read(&file("a", &[&line]), "a").entries, [ENTRY]);
        assert_eq!(read(&file("b", &[&line]), "a"), SavedThreads::default());
        assert_eq!(read("", "a"), SavedThreads::default());
        let damaged = ["70 7 1 0 0 99 0", "1 1 1 0 0 0 0", "70 7", "x", "70 7 1 0 0 0 0 0"];
        assert_eq!(read(&file("a", &damaged), "a"), SavedThreads { entries: vec![], damaged: damaged.len() });
    }

    #[test]
    fn files_of_others_are_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        drop(Lock::take(&path).unwrap());
        fs::write(path.join(NAME), "").unwrap();
        fs::set_permissions(path.join(NAME), fs::Permissions::from_mode(0o666)).unwrap();
        assert!(Lock::take(&path).unwrap().left().is_err());
        fs::remove_file(path.join(LOCK)).unwrap();
        symlink("elsewhere", path.join(LOCK)).unwrap();
        assert!(Lock::take(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Lock::take(&path).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[ 0-9a-z\n-]{0,300}") {
            let _ = read(&text, "a");
            let _ = read(&format!("{MAGIC} a\n{text}"), "a");
        }
    }
}
