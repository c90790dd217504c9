//! Looks for new policies of the fleet, on a thread of its own: what is newer and properly signed is kept, and the
//! configuration is read again. Where the place cannot be read, the agent goes on with what it has.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::{fs, io};

use tracer_results::history::place::HistoryPlace;

use super::reloading::ReloadRequests;
use crate::bucket::{Bucket, BucketError};
use crate::config::Config;
use crate::config::policies::{DOCUMENT, DOCUMENT_MAX, FleetSettings, Policies, SIGNATURE, SIGNATURE_LENGTH};

/// The thread that looks.
#[derive(Debug)]
pub(super) struct FleetPolicies {
    looks: Arc<Looks>,
    /// Dropped, it ends the thread.
    _alive: Sender<()>,
}

/// What came of looking.
#[derive(Debug, Default)]
struct Looks {
    /// Number of the document in the cache; 0: none.
    version: AtomicU64,
    same: AtomicU64,
    newer: AtomicU64,
    failed: AtomicU64,
}

impl FleetPolicies {
    /// Starts to look; `config` is the file of the host.
    pub(super) fn start(settings: &FleetSettings, config: &Path, requests: ReloadRequests) -> io::Result<Self> {
        let (alive, ended) = channel();
        let looks = Arc::new(Looks::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (settings, config, shared) = (settings.clone(), config.to_owned(), Arc::clone(&looks));
        std::thread::Builder::new().name("tracer-policies".into()).spawn(move || {
            let mut follower = Follower { settings, config, looks: shared, failure: None };
            loop {
                if follower.look(&runtime) {
                    requests.ask();
                }
                if ended.recv_timeout(follower.settings.poll) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { looks, _alive: alive })
    }

    /// Number of the newest document, 0 for none; and looks by outcome.
    pub(super) fn status(&self) -> (u64, [(&'static str, u64); 3]) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Looks { version, same, newer, failed } = &*self.looks;
        (of(version), [("same", of(same)), ("newer", of(newer)), ("failed", of(failed))])
    }
}

struct Follower {
    settings: FleetSettings,
    config: PathBuf,
    looks: Arc<Looks>,
    /// Reported last: the same is not reported again.
    failure: Option<String>,
}

impl Follower {
    /// Looks once; whether the configuration has to be read again.
    fn look(&mut self, runtime: &tokio::runtime::Runtime) -> bool {
        let found = runtime.block_on(fetch(&self.settings.place)).and_then(|found| self.take(found));
        let (newer, failure) = match found {
            Ok(newer) => (newer, None),
            Err(why) => (false, Some(why)),
        };
        match &failure {
            Some(_) => &self.looks.failed,
            None if newer => &self.looks.newer,
            None => &self.looks.same,
        }
        .fetch_add(1, Ordering::Relaxed);
        match &failure {
            Some(why) if failure != self.failure => {
                log::warn!("policies of {}: {why}; those before stay in force", self.settings.place);
            }
            None if self.failure.is_some() => log::info!("policies of {} are read again", self.settings.place),
            _ => {}
        }
        self.failure = failure;
        newer
    }

    /// Keeps a document that is newer than the one before; whether it was.
    fn take(&self, (document, signature): (Vec<u8>, Vec<u8>)) -> Result<bool, String> {
        let policies = Policies::verify(&self.settings, document, &signature).map_err(|error| error.to_string())?;
        // What cannot be read any more is replaced by whatever is signed.
        let kept = Policies::cached(&self.settings).ok().flatten();
        let before = kept.as_ref().map_or(0, |kept| kept.version);
        self.looks.version.store(before, Ordering::Relaxed);
        if kept.as_ref() == Some(&policies) {
            return Ok(false);
        }
        if kept.is_some() && policies.version <= before {
            return Err(format!(
                "version {} is not newer than version {before}, and another document",
                policies.version
            ));
        }
        let version = policies.version;
        Config::load_with(&self.config, Some(&policies)).map_err(|error| error.to_string())?;
        policies.keep(&self.settings).map_err(|error| error.to_string())?;
        self.looks.version.store(version, Ordering::Relaxed);
        log::info!("policies of {}: version {version} instead of {before}", self.settings.place);
        Ok(true)
    }
}

/// Document and signature.
async fn fetch(place: &HistoryPlace) -> Result<(Vec<u8>, Vec<u8>), String> {
    let limits = [(DOCUMENT, DOCUMENT_MAX), (SIGNATURE, SIGNATURE_LENGTH as u64)];
    let mut found = Vec::new();
    let bucket = match place {
        HistoryPlace::Directory(_) => None,
        HistoryPlace::Bucket(url) => Some(Bucket::open(url, 1).map_err(|error| error.to_string())?),
    };
    for (name, most) in limits {
        let bytes = match (place, &bucket) {
            (HistoryPlace::Directory(dir), _) => read(&dir.join(name), most).map_err(|error| error.to_string()),
            (_, Some(bucket)) => {
                bucket.get(name, most).await.map(Vec::from).map_err(|error: BucketError| error.to_string())
            }
            (_, None) => Ok(Vec::new()),
        };
        found.push(bytes.map_err(|error| format!("{name}: {error}"))?);
    }
    let signature = found.pop().unwrap_or_default();
    Ok((found.pop().unwrap_or_default(), signature))
}

/// A regular file of at most `most` bytes.
fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("expected a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(io::Error::other(format!("larger than {most} bytes"))) } else { Ok(bytes) }
}
