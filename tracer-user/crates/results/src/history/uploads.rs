//! Which files wait for the bucket. The directory is the spool: a file that is there and was not taken in this state
//! waits, also after a restart.
//!
//! The directory's thread adds and removes; the task of [`crate::history`]'s user uploads. What was taken stands in
//! `_journal/HOST.uploaded`, a line per file: size, time of modification, path. Losing a line only means that a file is
//! uploaded again.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracer_host::files;

use super::status::Status;

/// End of the name of the list of what was taken.
const TAKEN: &str = ".uploaded";
/// Largest such list that is read: 90 days of a file an hour and table take half a megabyte.
const TAKEN_MAX: u64 = 16 << 20;
/// Largest file that is uploaded. The history's own have a hundredth of it.
pub const FILE_MAX: u64 = 64 << 20;

/// The state of a file: what is taken is known by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since the epoch.
    pub modified: i128,
}

impl Version {
    /// Of an open file, or of one that is looked at.
    pub fn of(metadata: &fs::Metadata) -> Self {
        let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Self { size: metadata.len(), modified }
    }
}

/// A file to upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Below the directory; the same below the bucket's prefix.
    pub path: String,
    /// Counts the file's states: one that was replaced meanwhile waits again.
    state: u64,
}

#[derive(Debug)]
struct Waiting {
    state: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct UploadState {
    waiting: BTreeMap<String, Waiting>,
    taken: HashMap<String, Version>,
    /// No file follows.
    closed: bool,
    states: u64,
}

/// What waits. Shared by the thread that writes files and the task that uploads them.
#[derive(Debug)]
pub struct Uploads {
    root: PathBuf,
    /// The list of what was taken.
    list: PathBuf,
    status: Arc<Status>,
    state: Mutex<UploadState>,
    /// Something was added, or nothing follows.
    pub changed: Notify,
}

impl Uploads {
    /// Reads what was taken earlier. `host_part`: the host's name as file names have it.
    pub(super) fn open(root: &Path, host_part: &str, status: Arc<Status>) -> io::Result<Self> {
        let list = root.join(super::layout::JOURNALS).join(format!("{host_part}{TAKEN}"));
        let mut state = UploadState::default();
        match fs::symlink_metadata(&list) {
            Ok(metadata) if metadata.is_file() && metadata.len() <= TAKEN_MAX => {
                state.taken = parse(&String::from_utf8_lossy(&fs::read(&list)?));
            }
            Ok(_) => log::warn!("history: {}: no list of uploaded files: all are uploaded again", list.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self { root: root.to_owned(), list, status, state: Mutex::new(state), changed: Notify::new() })
    }

    /// The directory whose files these are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn state(&self) -> MutexGuard<'_, UploadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn relative(&self, path: &Path) -> Option<String> {
        path.strip_prefix(&self.root).ok()?.to_str().map(str::to_owned)
    }

    /// A file that was there at the start: it waits, unless it was taken as it is.
    pub(super) fn found(&self, path: &Path, version: Version) {
        let Some(relative) = self.relative(path) else { return };
        let mut state = self.state();
        if state.taken.get(&relative) != Some(&version) {
            self.add(&mut state, relative, version.size);
        }
    }

    /// A file was written, or replaced.
    pub(super) fn written(&self, path: &Path, bytes: u64) {
        let Some(relative) = self.relative(path) else { return };
        self.add(&mut self.state(), relative, bytes);
        self.changed.notify_one();
    }

    fn add(&self, state: &mut UploadState, relative: String, bytes: u64) {
        state.states += 1;
        let waiting = Waiting { state: state.states, bytes };
        state.waiting.insert(relative, waiting);
        self.publish(state);
    }

    /// A file was removed for its age or for room. One that waited is given up.
    pub(super) fn removed(&self, path: &Path) {
        let Some(relative) = self.relative(path) else { return };
        let mut state = self.state();
        state.taken.remove(&relative);
        if state.waiting.remove(&relative).is_some() {
            self.status.uploads_given_up.add(1);
            self.publish(&state);
        }
    }

    fn publish(&self, state: &UploadState) {
        self.status.upload_waiting.set(state.waiting.len() as u64);
        self.status.upload_waiting_bytes.set(state.waiting.values().map(|waiting| waiting.bytes).sum());
    }

    /// The list of what was taken begins anew with the files that are there: without it, it grew for ever.
    pub(super) fn rewrite(&self) -> io::Result<()> {
        let state = self.state();
        let mut text = String::new();
        for (path, Version { size, modified }) in &state.taken {
            let _ = writeln!(text, "{size} {modified} {path}");
        }
        let temporary = self.list.with_extension("uploaded.tmp");
        let _ = fs::remove_file(&temporary);
        let mut file = files::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, &self.list)
    }

    /// Forgets what was taken of files that are not there any more; `found` has seen the others.
    pub(super) fn keep_only(&self, there: &dyn Fn(&Path) -> bool) {
        self.state().taken.retain(|path, _| there(&self.root.join(path)));
    }

    /// The next file: the first that waits after `after` in the order of names, or the first of all. One that fails does
    /// not hold up the others.
    pub fn next(&self, after: Option<&str>) -> Option<Upload> {
        let state = self.state();
        let following = after.and_then(|after| {
            use std::ops::Bound::{Excluded, Unbounded};
            state.waiting.range::<str, _>((Excluded(after), Unbounded)).next()
        });
        let (path, waiting) = following.or_else(|| state.waiting.first_key_value())?;
        Some(Upload { path: path.clone(), state: waiting.state })
    }

    /// The bucket has that version of it.
    pub fn taken(&self, upload: &Upload, version: Version) {
        self.status.uploads_done.add(1);
        let mut state = self.state();
        if state.waiting.get(&upload.path).is_some_and(|waiting| waiting.state == upload.state) {
            state.waiting.remove(&upload.path);
            self.publish(&state);
        }
        state.taken.insert(upload.path.clone(), version);
        drop(state);
        let line = format!("{} {} {}\n", version.size, version.modified, upload.path);
        let appended =
            File::options().append(true).open(&self.list).and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = appended {
            log::debug!("history: {}: {error}: {} will be uploaded again", self.list.display(), upload.path);
        }
    }

    /// It is no longer there, or cannot be read: nothing can be uploaded.
    pub fn given_up(&self, upload: &Upload) {
        let mut state = self.state();
        if state.waiting.get(&upload.path).is_some_and(|waiting| waiting.state == upload.state) {
            state.waiting.remove(&upload.path);
            self.status.uploads_given_up.add(1);
            self.publish(&state);
        }
    }

    /// An attempt failed; the file waits.
    pub fn failed(&self) {
        self.status.uploads_failed.add(1);
    }

    /// Files that wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// No file follows: what waits is tried once more.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_one();
    }

    /// See [`Uploads::close`].
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }
}

/// Lines of the list; those that are none are passed over.
fn parse(text: &str) -> HashMap<String, Version> {
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let (size, modified) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((parts.next()?.to_owned(), Version { size, modified }))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uploads(root: &Path) -> (Uploads, Arc<Status>) {
        fs::create_dir_all(root.join("_journal")).unwrap();
        let status = Arc::new(Status::default());
        let uploads = Uploads::open(root, "web-1", Arc::clone(&status)).unwrap();
        uploads.rewrite().unwrap();
        (uploads, status)
    }

    const VERSION: Version = Version { size: 5, modified: 7 };

    #[test]
    fn what_was_taken_does_not_wait_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        let path = |name: &str| root.join(name);
        let (first, status) = uploads(root);
        first.written(&path("a b"), 5);
        first.written(&path("c"), 6);
        assert_eq!((status.upload_waiting.get(), status.upload_waiting_bytes.get()), (2, 11));
        let a = first.next(None).unwrap();
        assert_eq!(a.path, "a b");
        first.taken(&a, VERSION);
        assert_eq!(first.waiting(), 1);

        let (second, _) = uploads(root);
        for (name, version) in [("a b", VERSION), ("c", VERSION)] {
            second.found(&path(name), version);
        }
        assert_eq!(second.next(None).unwrap().path, "c");
        assert_eq!(second.waiting(), 1);
        // Replaced while the agent was away.
        second.found(&path("a b"), Version { modified: 8, ..VERSION });
        assert_eq!(second.waiting(), 2);
        // Nothing is kept of files that are gone.
        second.keep_only(&|_| false);
        second.rewrite().unwrap();
        let (third, _) = uploads(root);
        third.found(&path("a b"), VERSION);
        assert_eq!(third.waiting(), 1);
    }

    #[test]
    fn a_file_replaced_while_it_is_uploaded_waits_again() {
        let temp = tempfile::tempdir().unwrap();
        let (uploads, status) = uploads(temp.path());
        let path = temp.path().join("a");
        uploads.written(&path, 5);
        let upload = uploads.next(None).unwrap();
        uploads.written(&path, 9);
        uploads.taken(&upload, VERSION);
        assert_eq!(uploads.waiting(), 1);
        let upload = uploads.next(None).unwrap();
        uploads.taken(&upload, VERSION);
        assert_eq!((uploads.waiting(), status.uploads_done.get()), (0, 2));
    }

    #[test]
    fn one_that_fails_does_not_hold_up_the_others_and_recycled_ones_are_given_up() {
        let temp = tempfile::tempdir().unwrap();
        let (uploads, status) = uploads(temp.path());
        for name in ["a", "b", "c"] {
            uploads.written(&temp.path().join(name), 1);
        }
        let mut order = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..4 {
            let next = uploads.next(after.as_deref()).unwrap();
            uploads.failed();
            order.push(next.path.clone());
            after = Some(next.path);
        }
        assert_eq!(order, ["a", "b", "c", "a"]);
        uploads.removed(&temp.path().join("b"));
        uploads.removed(&temp.path().join("unknown"));
        assert_eq!((uploads.waiting(), status.uploads_given_up.get(), status.uploads_failed.get()), (2, 1, 4));
    }

    #[test]
    fn never_panics_on_arbitrary_input() {
        let taken = parse("5 7 a b\n\n1\nx 2 c\n99999999999999999999999 1 d\n1 2 \n-1 2 e\n3 -4 f");
        assert_eq!(taken.len(), 3);
        assert_eq!(taken["a b"], VERSION);
        assert_eq!(taken["f"], Version { size: 3, modified: -4 });
    }
}
