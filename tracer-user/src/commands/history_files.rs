//! Keeps the history: files in a directory, and the task that uploads them where a bucket is wanted.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracer_results::analysis::detector::Settings;
use tracer_results::analysis::finding::Finding;
use tracer_results::history::directory::Options;
use tracer_results::history::place::HistoryPlace;
use tracer_results::history::rows::WindowRows;
use tracer_results::history::writer::Writer;
use tracer_results::metrics::Metrics;

use super::Failure;
use super::verdicts::judge;
use crate::bucket::Bucket;
use crate::bucket::source::{HistorySource, Listing};
use crate::bucket::upload::Uploader;
use crate::config::History;

/// What keeps it.
#[derive(Debug)]
pub(super) struct HistoryFiles {
    writer: Writer,
    uploader: Option<Uploader>,
    /// What earlier runs found, once.
    past: Receiver<VecDeque<Finding>>,
}

/// Hours of earlier runs whose findings are shown again.
const PAST: Duration = Duration::from_secs(24 * 3600);

impl HistoryFiles {
    /// Starts, if the history is to be kept. Must run inside a tokio runtime. A bucket is not connected to: tracing starts
    /// whether it is there or not.
    pub(super) fn start(settings: &History, analysis: &Settings, host: &str) -> Result<Option<Self>, Failure> {
        let (dir, bucket): (&Path, _) = match &settings.place {
            None => return Ok(None),
            Some(HistoryPlace::Directory(dir)) => (dir, None),
            Some(HistoryPlace::Bucket(url)) => {
                let bucket = Bucket::open(url, 0).map_err(|error| Failure::Running(format!("--history: {error}")))?;
                (&settings.spool, Some(bucket))
            }
        };
        let History { max_size, max_age, hourly_max_age, daily_max_age, .. } = *settings;
        let (host, upload) = (host.to_owned(), bucket.is_some());
        let past = (dir.to_owned(), Listing::host_part(&host));
        let options = Options { dir: dir.to_owned(), host, max_size, max_age, hourly_max_age, daily_max_age, upload };
        let writer = Writer::start(options)
            .map_err(|error| Failure::Running(format!("{}: {error}: no history can be kept there", dir.display())))?;
        let uploader = bucket.zip(writer.uploads()).map(|(bucket, uploads)| Uploader::start(bucket, uploads));
        // After the journal of the last run has become files.
        Ok(Some(Self { writer, uploader, past: find_again(past, analysis.clone()) }))
    }

    /// Findings of earlier runs, when they are known: once.
    pub(super) fn past_findings(&self) -> Option<VecDeque<Finding>> {
        self.past.try_recv().ok()
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

/// Judges the windows of the last day again, on a thread of its own: findings survive the agent, as their windows do.
fn find_again((dir, host): (PathBuf, String), settings: Settings) -> Receiver<VecDeque<Finding>> {
    let (found, past) = sync_channel(1);
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let from_s = i64::try_from(began.saturating_sub(PAST).as_secs()).unwrap_or(i64::MAX);
    let find = move || -> Result<VecDeque<Finding>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|error| error.to_string())?;
        let source = HistorySource::Directory(dir);
        let judged = runtime.block_on(async {
            let listing = source.list(from_s).await?;
            let hours = listing.hosts.get(&host).into_iter().flat_map(|hours| hours.values());
            judge(&source, &host, hours, Some(&settings)).await
        });
        Ok(judged.map_err(|error| error.to_string())?.runs.into_findings())
    };
    let thread = std::thread::Builder::new().name("past-findings".to_owned()).spawn(move || match find() {
        // The agent may have ended.
        Ok(all) => drop(found.send(all)),
        Err(error) => log::warn!("history: {error}: findings of earlier runs are not shown"),
    });
    if let Err(error) = thread {
        log::warn!("history: no thread: {error}: findings of earlier runs are not shown");
    }
    past
}
