//! The directory of fetched files: by build id, bounded by size and age.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracer_host::files;
use tracer_results::profiles::{by_build_id, debug_file_id};

use super::Settings;

/// Name of the file that is being fetched.
const PART: &str = "part";
/// Most files that are looked at.
const FILES: usize = 65_536;

#[derive(Debug)]
struct CachedFile {
    path: PathBuf,
    bytes: u64,
    fetched: SystemTime,
}

/// The directory.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    max_size: u64,
    max_age: Duration,
    /// Oldest first.
    files: Vec<CachedFile>,
    part: Option<File>,
}

impl Cache {
    /// Makes the directory if it is missing, and lets go of what is too old or too much.
    pub(super) fn open(settings: &Settings) -> Result<Self, String> {
        let directory = settings.cache.clone();
        files::directory(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let (max_size, max_age) = (settings.max_size, settings.max_age);
        let mut cache = Self { directory, max_size, max_age, files: Vec::new(), part: None };
        cache.abandon();
        cache.find();
        cache.sweep();
        Ok(cache)
    }

    /// Finds what an earlier run left.
    fn find(&mut self) {
        let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let all = list(&self.directory.join(".build-id")).flat_map(|path| list(&path).collect::<Vec<_>>());
        for path in all.take(FILES) {
            let Ok(about) = fs::symlink_metadata(&path) else { continue };
            if about.is_file() {
                let fetched = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                self.files.push(CachedFile { path, bytes: about.len(), fetched });
            }
        }
        self.files.sort_by_key(|kept| kept.fetched);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|kept| kept.bytes).sum()
    }

    fn place(&self, build_id: &[u8]) -> Option<PathBuf> {
        by_build_id(build_id).map(|path| self.directory.join(path))
    }

    /// Whether the file is there.
    pub(super) fn has(&self, build_id: &[u8]) -> bool {
        self.place(build_id).is_some_and(|place| self.files.iter().any(|kept| kept.path == place))
    }

    /// Writes the next bytes of the file that is being fetched.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.part.is_none() {
            self.part = Some(files::create_new(&self.directory.join(PART))?);
        }
        self.part.as_mut().map_or(Ok(()), |part| part.write_all(bytes))
    }

    /// The file was fetched: puts it in its place if it is what was asked for.
    pub(super) fn keep(&mut self, build_id: &[u8]) -> Result<(), String> {
        let (part, place) = (self.directory.join(PART), self.place(build_id).ok_or("no build id")?);
        if self.part.take().is_none() || debug_file_id(&part).as_deref() != Some(build_id) {
            return Err("the answer is not the debug file of that build id".into());
        }
        let moved = || {
            files::directory(&self.directory.join(".build-id"))?;
            files::directory(place.parent().unwrap_or(&self.directory))?;
            let bytes = fs::metadata(&part)?.len();
            fs::rename(&part, &place)?;
            Ok::<_, io::Error>(bytes)
        };
        let bytes = moved().map_err(|error| format!("{}: {error}", place.display()))?;
        self.files.push(CachedFile { path: place, bytes, fetched: SystemTime::now() });
        self.sweep();
        Ok(())
    }

    /// Lets go of the file that is being fetched.
    pub(super) fn abandon(&mut self) {
        self.part = None;
        // Often there is none.
        let _ = fs::remove_file(self.directory.join(PART));
    }

    /// Removes files that are too old, and the oldest while there are too many.
    pub(super) fn sweep(&mut self) {
        let (now, mut bytes) = (SystemTime::now(), self.bytes());
        self.files.retain(|kept| {
            let is_old = now.duration_since(kept.fetched).is_ok_and(|age| age > self.max_age);
            if !is_old && bytes <= self.max_size {
                return true;
            }
            bytes -= kept.bytes;
            if let Err(error) = fs::remove_file(&kept.path)
                && error.kind() != io::ErrorKind::NotFound
            {
                log::warn!("{}: {error}", kept.path.display());
            }
            false
        });
    }
}
