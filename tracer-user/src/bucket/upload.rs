//! Uploads files of the history: one after the other, each until the bucket has it. A bucket that is slow, full or gone
//! only makes files wait in the directory.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use tracer_results::history::uploads::{FILE_MAX, Upload, Uploads, Version};

use super::{Bucket, BucketError};

/// Pauses after failures: the first, and the longest. Each is made shorter by up to a half, so that the agents of a fleet do
/// not come back at one time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The agent's handle.
#[derive(Debug)]
pub struct Uploader {
    uploads: Arc<Uploads>,
    done: oneshot::Receiver<()>,
}

impl Uploader {
    /// Starts to upload. Must run inside a tokio runtime.
    pub fn start(bucket: Bucket, uploads: &Arc<Uploads>) -> Self {
        let (end, done) = oneshot::channel();
        let waiting = Arc::clone(uploads);
        tokio::spawn(async move {
            work(&bucket, &waiting, FIRST_PAUSE).await;
            let _ = end.send(());
        });
        Self { uploads: Arc::clone(uploads), done }
    }

    /// Uploads what waits, until `deadline`. What is left waits for the next start.
    pub async fn finish(self, deadline: Instant) {
        self.uploads.close();
        let _ = tokio::time::timeout_at(deadline.into(), self.done).await;
        let waiting = self.uploads.waiting();
        if waiting > 0 {
            log::warn!("history: {waiting} files wait in {} for the bucket", self.uploads.root().display());
        }
    }
}

/// Why a file was not uploaded.
#[derive(Debug)]
enum Failure {
    /// The file: there is nothing to upload.
    File(io::Error),
    /// The bucket.
    Bucket(String),
}

/// Uploads until the end, with pauses after failures.
async fn work(bucket: &Bucket, uploads: &Uploads, first_pause: Duration) {
    let (mut failures, mut after) = (0, None::<String>);
    loop {
        let Some(upload) = uploads.next(after.as_deref()) else {
            if uploads.is_closed() {
                return;
            }
            uploads.changed.notified().await;
            continue;
        };
        match one(bucket, uploads.root(), &upload).await {
            Ok(version) => {
                uploads.taken(&upload, version);
                if failures > 0 {
                    log::info!("history: {} takes files again; {} wait", bucket.place(), uploads.waiting());
                }
                (failures, after) = (0, None);
            }
            Err(Failure::File(error)) => {
                // Recycled meanwhile, for one.
                log::debug!("history: {}: {error}", upload.path);
                uploads.given_up(&upload);
            }
            Err(Failure::Bucket(why)) => {
                uploads.failed();
                if failures == 0 {
                    log::warn!("history: {}: {}: {why}: files wait in the directory", bucket.place(), upload.path);
                }
                if uploads.is_closed() {
                    return;
                }
                failures += 1;
                after = Some(upload.path);
                let until = tokio::time::Instant::now() + pause(first_pause, failures);
                while tokio::time::Instant::now() < until && !uploads.is_closed() {
                    let _ = tokio::time::timeout_at(until, uploads.changed.notified()).await;
                }
            }
        }
    }
}

/// The pause after that many failures in a row.
fn pause(first: Duration, failures: u32) -> Duration {
    let whole = first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
    let random = RandomState::new().hash_one(failures) % 1000;
    whole.mul_f64(1.0 - random as f64 / 2000.0)
}

/// Uploads one file, and looks whether the bucket has it.
async fn one(bucket: &Bucket, root: &Path, upload: &Upload) -> Result<Version, Failure> {
    let path = root.join(&upload.path);
    // A disk may stand still.
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    let (version, bytes) = read.map_err(|error| Failure::File(io::Error::other(error)))?.map_err(Failure::File)?;
    let failed = |error: BucketError| Failure::Bucket(error.to_string());
    bucket.put(&upload.path, bytes).await.map_err(failed)?;
    let kept = bucket.size(&upload.path).await.map_err(failed)?;
    if kept != version.size {
        return Err(Failure::Bucket(format!("the store keeps {kept} of {} bytes", version.size)));
    }
    Ok(version)
}

fn read(path: &PathBuf) -> io::Result<(Version, Bytes)> {
    let file = File::open(path)?;
    let version = Version::of(&file.metadata()?);
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes)? as u64;
    if read != version.size || read > FILE_MAX {
        return Err(io::Error::other(format!("{read} bytes read of {}", version.size)));
    }
    Ok((version, bytes.into()))
}

#[cfg(test)]
mod tests;
