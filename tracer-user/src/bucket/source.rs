//! Reads the history of all hosts: from a directory, or from a bucket. Hour by hour, so that what is in memory does not grow
//! with the history.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tracer_results::history::layout;
use tracer_results::history::parquet_file::read;
use tracer_results::history::place::HistoryPlace;
use tracer_results::history::rows::{ClassRow, EdgeRow, HistoryRow, HostRow, ServiceRow, VERDICT_KINDS};
use tracer_results::history::uploads::FILE_MAX;
use tracer_results::history::windows::{ReadWindow, windows};

use super::{Bucket, BucketError};

/// Most files that are looked at: a year of eight hosts.
const FILES: usize = 200_000;
/// Files left alone that are named in the log; the others are only counted.
const NAMED: u64 = 5;

/// Where the history is read from.
#[derive(Clone, Debug)]
pub enum HistorySource {
    /// A directory.
    Directory(PathBuf),
    /// A bucket.
    Bucket(Bucket),
}

/// A Parquet file of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryFile {
    /// Its table.
    pub kind: &'static str,
    /// Its host, as file names have it.
    pub host: String,
    /// Time of its first window, seconds since the epoch.
    pub start_s: i64,
    /// Below the directory or the prefix.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// When it was written last, nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// What a history holds.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Its files, by host and then by hour since the epoch.
    pub hosts: BTreeMap<String, BTreeMap<i64, Vec<HistoryFile>>>,
    /// Whether there were more than are looked at.
    pub truncated: bool,
}

impl Listing {
    /// A host's name as file names have it.
    pub fn host_part(name: &str) -> String {
        layout::host_part(name)
    }
}

/// Windows of a host in an hour, and files that could not be read.
#[derive(Clone, Debug, Default)]
pub struct Hour {
    /// The host's own name.
    pub host: Option<String>,
    /// By time.
    pub windows: Vec<ReadWindow>,
    /// Rows of its classes.
    pub classes: Vec<ClassRow>,
    /// Rows of edges, if these were listed.
    pub edges: Vec<EdgeRow>,
    /// The newest row of the host.
    pub newest: Option<HostRow>,
    /// Torn, foreign, or of a newer version.
    pub ignored: u64,
}

impl HistorySource {
    /// Opens it; connects to nothing.
    pub fn open(place: &HistoryPlace) -> Result<Self, BucketError> {
        Ok(match place {
            HistoryPlace::Directory(path) => Self::Directory(path.clone()),
            HistoryPlace::Bucket(url) => Self::Bucket(Bucket::open(url, 3)?),
        })
    }

    /// Files of windows since `from_s`, seconds since the epoch, as far as verdicts are made from them. A file of the hour before
    /// may have some.
    pub async fn list(&self, from_s: i64) -> Result<Listing, BucketError> {
        self.list_tables(from_s, &VERDICT_KINDS).await
    }

    /// The same with callers and callees.
    pub async fn list_with_edges(&self, from_s: i64) -> Result<Listing, BucketError> {
        let [classes, hosts, services] = VERDICT_KINDS;
        self.list_tables(from_s, &[classes, hosts, services, EdgeRow::KIND]).await
    }

    async fn list_tables(&self, from_s: i64, kinds: &[&'static str]) -> Result<Listing, BucketError> {
        let first = layout::date(from_s.saturating_sub(3600));
        let mut listing = Listing::default();
        let mut room = FILES;
        for kind in kinds.iter().copied() {
            let table = format!("kind={kind}");
            for date in self.names(&table).await? {
                // Text compares as time does.
                if !date.starts_with("date=") || date.as_str() < first.as_str() {
                    continue;
                }
                let (found, more) = self.below(&format!("{table}/{date}"), room).await?;
                room -= found.len().min(room);
                listing.truncated |= more;
                for (path, size, modified_ns) in found {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    let stem = name.strip_suffix(layout::PARQUET).and_then(layout::parse_stem);
                    let Some((host, start_s)) = stem.filter(|(_, start_s)| start_s.saturating_add(3600) > from_s)
                    else {
                        continue;
                    };
                    let hours = listing.hosts.entry(host.to_owned()).or_default();
                    let host = host.to_owned();
                    let file = HistoryFile { kind, host, start_s, path: path.clone(), size, modified_ns };
                    hours.entry(start_s.div_euclid(3600)).or_default().push(file);
                }
            }
        }
        Ok(listing)
    }

    async fn names(&self, below: &str) -> Result<Vec<String>, BucketError> {
        match self {
            Self::Bucket(bucket) => bucket.names(below).await,
            Self::Directory(root) => {
                let found = std::fs::read_dir(root.join(below));
                let found = match found {
                    Ok(found) => found,
                    // An empty history, or one of an earlier version, has not every table.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound && root.is_dir() => {
                        return Ok(Vec::new());
                    }
                    Err(error) => return Err(BucketError::Failed(error.to_string())),
                };
                let names = found.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                Ok(names.take(FILES).collect())
            }
        }
    }

    /// Files below a path, at most so many; and whether there are more.
    async fn below(&self, below: &str, most: usize) -> Result<(Vec<(String, u64, i64)>, bool), BucketError> {
        match self {
            Self::Bucket(bucket) => {
                let (listed, more) = bucket.list(below, most).await?;
                let file = |object: super::ListedObject| (object.path, object.size, object.modified_ns);
                Ok((listed.into_iter().map(file).collect(), more))
            }
            Self::Directory(root) => {
                let mut found = Vec::new();
                let more = collect(root, &root.join(below), 2, most, &mut found);
                Ok((found, more))
            }
        }
    }

    async fn bytes(&self, file: &HistoryFile) -> Result<Bytes, BucketError> {
        match self {
            Self::Bucket(bucket) => bucket.get(&file.path, FILE_MAX).await,
            Self::Directory(root) => {
                if file.size > FILE_MAX {
                    return Err(BucketError::TooLarge(FILE_MAX));
                }
                let read = std::fs::read(root.join(&file.path));
                read.map(Bytes::from).map_err(|error| BucketError::Failed(error.to_string()))
            }
        }
    }

    /// What the files of an hour say. Files that cannot be read are counted and left alone; an error means that the bucket
    /// does not answer.
    pub async fn hour(&self, files: &[HistoryFile], ignored_before: u64) -> Result<Hour, BucketError> {
        let mut hour = Hour::default();
        let (mut hosts, mut services) = (Vec::new(), Vec::new());
        let mut files: Vec<&HistoryFile> = files.iter().collect();
        files.sort_by_key(|file| (file.start_s, file.path.clone()));
        for file in files {
            let bytes = match self.bytes(file).await {
                Ok(bytes) => bytes,
                // Recycled since it was listed.
                Err(BucketError::NotFound) => continue,
                Err(error @ BucketError::TooLarge(_)) => {
                    ignore(&mut hour, ignored_before, file, &error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let kept = match file.kind {
                HostRow::KIND => read(bytes).map(|rows: Vec<HostRow>| hosts.extend(rows)),
                ServiceRow::KIND => read(bytes).map(|rows: Vec<ServiceRow>| services.extend(rows)),
                EdgeRow::KIND => read(bytes).map(|rows: Vec<EdgeRow>| hour.edges.extend(rows)),
                _ => read(bytes).map(|rows: Vec<ClassRow>| hour.classes.extend(rows)),
            };
            if let Err(error) = kept {
                ignore(&mut hour, ignored_before, file, &error.to_string());
            }
        }
        hour.newest = hosts.iter().max_by_key(|row| row.start_ns).cloned();
        hour.host = hour.newest.as_ref().map(|row| row.host.to_string());
        hour.windows = windows(hosts, services, &hour.classes);
        Ok(hour)
    }
}

fn ignore(hour: &mut Hour, before: u64, file: &HistoryFile, reason: &str) {
    hour.ignored += 1;
    if before + hour.ignored <= NAMED {
        log::warn!("history: {} is left alone: {reason}", file.path);
    }
}

/// Regular files so many directories deep; links are not followed. Returns whether there are more than `most`.
fn collect(root: &Path, dir: &Path, depth: u32, most: usize, found: &mut Vec<(String, u64, i64)>) -> bool {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if kind.is_dir() && depth > 0 {
            if collect(root, &path, depth - 1, most, found) {
                return true;
            }
        } else if kind.is_file() {
            if found.len() >= most {
                return true;
            }
            let (Ok(metadata), Ok(relative)) = (entry.metadata(), path.strip_prefix(root)) else { continue };
            let modified = metadata.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
            let modified = modified.map_or(0, |at| i64::try_from(at.as_nanos()).unwrap_or(i64::MAX));
            if let Some(relative) = relative.to_str() {
                found.push((relative.to_owned(), metadata.len(), modified));
            }
        }
    }
    false
}
