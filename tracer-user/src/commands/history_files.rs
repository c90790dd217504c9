//! Keeps the history: files in a directory, and the task that uploads them where a bucket is wanted.

use std::path::Path;
use std::time::Instant;

use super::Failure;
use crate::bucket::Bucket;
use crate::bucket::upload::Uploader;
use crate::config::History;
use crate::history::directory::Options;
use crate::history::place::Place;
use crate::history::rows::WindowRows;
use crate::history::writer::Writer;
use crate::metrics::Metrics;

/// What keeps it.
#[derive(Debug)]
pub(super) struct HistoryFiles {
    writer: Writer,
    uploader: Option<Uploader>,
}

impl HistoryFiles {
    /// Starts, if the history is to be kept. Must run inside a tokio runtime. A bucket is not connected to: tracing starts
    /// whether it is there or not.
    pub(super) fn start(settings: &History, host: &str) -> Result<Option<Self>, Failure> {
        let (dir, bucket): (&Path, _) = match &settings.place {
            None => return Ok(None),
            Some(Place::Directory(dir)) => (dir, None),
            Some(Place::Bucket(url)) => {
                let bucket = Bucket::open(url, 0).map_err(|error| Failure::Running(format!("--history: {error}")))?;
                (&settings.spool, Some(bucket))
            }
        };
        let History { max_size, max_age, .. } = *settings;
        let (host, upload) = (host.to_owned(), bucket.is_some());
        let writer = Writer::start(Options { dir: dir.to_owned(), host, max_size, max_age, upload })
            .map_err(|error| Failure::Running(format!("{}: {error}: no history can be kept there", dir.display())))?;
        let uploader = bucket.zip(writer.uploads()).map(|(bucket, uploads)| Uploader::start(bucket, uploads));
        Ok(Some(Self { writer, uploader }))
    }

    /// Hands a window over; never waits.
    pub(super) fn window(&self, window: WindowRows) {
        self.writer.window(window);
    }

    /// Publishes what became of windows, files and uploads.
    pub(super) fn publish(&self, metrics: &Metrics) {
        let status = self.writer.status();
        metrics.set_history(&status.windows(), &status.files());
        if self.uploader.is_some() {
            let waiting = (status.upload_waiting.get(), status.upload_waiting_bytes.get());
            metrics.set_uploads(&status.uploads(), waiting);
        }
    }

    /// Ends writing by `deadline`. What is left to upload is the uploader's.
    pub(super) fn finish(self, deadline: Instant) -> Option<Uploader> {
        self.writer.finish(deadline.saturating_duration_since(Instant::now()));
        self.uploader
    }
}
