//! The files that the agent writes while it traces: finished spans, noteworthy transactions, windows of cost, the recording.

use std::path::Path;
use std::time::Instant;

use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;
use tracer_results::history::place::HistoryPlace;
use tracer_results::metrics::Metrics;
use tracer_results::record::{FrameKind, Origin, Waiting, Writer};

use super::Failure;
use super::hindsight::HindsightRecorder;
use super::history_files::HistoryFiles;
use super::past_windows::PastWindows;
use super::save::Saver;
use super::transactions_file::Lines;
use crate::bucket::upload::Uploader;
use crate::config::{Config, History};
use crate::pipeline::Pipeline;

/// What keeps everything the pipeline is given; `None`: not asked for.
#[derive(Default)]
pub(super) struct Recorders {
    /// All of it in a file.
    pub(super) file: Option<Writer>,
    /// The last seconds in memory.
    pub(super) hindsight: Option<HindsightRecorder>,
}

impl Recorders {
    /// Whether anything is kept.
    pub(super) fn is_any(&self) -> bool {
        self.file.is_some() || self.hindsight.is_some()
    }

    /// Takes a frame.
    pub(super) fn frame(&mut self, kind: FrameKind, bytes: &[u8]) {
        if let Some(file) = &mut self.file {
            file.frame(kind, bytes);
        }
        if let Some(hindsight) = &mut self.hindsight {
            hindsight.ring.frame(kind, bytes);
        }
    }
}

/// The files; `None`: not asked for.
#[derive(Default)]
pub(super) struct AgentFiles {
    pub(super) recorders: Recorders,
    saver: Option<Saver>,
    /// Of windows of cost.
    history: Option<HistoryFiles>,
    /// Windows of earlier runs that are being read.
    past: Option<PastWindows>,
    /// What waits for a disk, of each file.
    waiting: Vec<Waiting>,
}

impl AgentFiles {
    /// Creates the file of finished spans, if there is to be one.
    pub(super) fn write_spans(
        &mut self,
        path: Option<&Path>,
        config: &Config,
        origin: &Origin,
        pipeline: &mut Pipeline,
    ) -> Result<(), Failure> {
        if let Some(path) = path {
            let lines = Lines::create(path, config.transactions.max_size, origin.wall_offset, &origin.host)?;
            self.waiting.push(lines.waiting());
            pipeline.write_spans(Box::new(lines));
        }
        Ok(())
    }

    /// Opens the others; `record` is where everything is recorded. Must run inside a tokio runtime.
    pub(super) fn open(
        &mut self,
        record: Option<&Path>,
        config: &Config,
        origin: &Origin,
        pipeline: &mut Pipeline,
    ) -> Result<(), Failure> {
        let transactions = &config.transactions;
        self.saver = transactions.save.as_ref().map(|dir| Saver::new(dir, transactions)).transpose()?;
        if self.saver.is_some() {
            pipeline.store.hand_out();
        }
        // Before this run writes any.
        self.past = past_windows(&config.history, &origin.host);
        self.history = HistoryFiles::start(&config.history, &config.analysis.detector, &origin.host)?;
        if self.history.is_some() {
            pipeline.collect_rows(&origin.host);
        }
        // Last: a recording is never overwritten, so the next attempt after a mistake elsewhere would be refused.
        self.recorders.hindsight = HindsightRecorder::start(&config.hindsight, origin)?;
        self.recorders.file =
            record.map(|path| Writer::create(path, origin, config.limits.max_recording)).transpose()?;
        self.waiting.extend(self.saver.as_ref().map(Saver::waiting));
        self.waiting.extend(self.recorders.file.as_ref().map(Writer::waiting));
        Ok(())
    }

    /// Writes to the recordings that the pipeline ticks, and the one in a file to it.
    pub(super) fn record_tick(&mut self, now: Nanos, metrics: &Metrics) {
        self.recorders.frame(FrameKind::Tick, &now.to_ne_bytes());
        if let Some(recorder) = &mut self.recorders.file {
            recorder.flush();
            metrics.set_lost("records_not_written", recorder.dropped());
        }
    }

    /// Passes windows of earlier runs on, as far as they were read.
    pub(super) fn read_past(&self, pipeline: &mut Pipeline) {
        for row in self.past.as_ref().and_then(PastWindows::take).into_iter().flatten() {
            pipeline.learn_past_activity(&row);
        }
    }

    /// Hands over what there is to write, and counts what became of it.
    pub(super) fn tick(&mut self, pipeline: &mut Pipeline) {
        if let Some(hindsight) = &mut self.recorders.hindsight {
            hindsight.tick(pipeline);
        }
        if let Some(saver) = &mut self.saver {
            saver.tick(pipeline);
            pipeline.metrics.set_saved(&saver.counts().by_outcome());
        }
        if let Some(history) = &self.history {
            if let Some(window) = pipeline.history.take_rows() {
                history.window(window);
            }
            history.publish(&pipeline.metrics);
            if let Some(past) = history.past_findings() {
                pipeline.detector.remember(past);
            }
        }
    }

    /// Bytes that wait for disks.
    pub(super) fn table_use(&self) -> TableUse {
        let sum = |sum: TableUse, waiting: &Waiting| {
            let TableUse { entries, limit, reached } = waiting.table_use();
            TableUse { entries: sum.entries + entries, limit: sum.limit + limit, reached: sum.reached + reached }
        };
        self.waiting.iter().fold(TableUse::default(), sum)
    }

    /// Tracing is over: finishes the pipeline, whose last spans the files get, and writes what is left by `deadline`. What
    /// remains is for the caller to finish: the upload waits for the network, and the recording is closed when all else is done.
    pub(super) fn finish(self, pipeline: &mut Pipeline, deadline: Instant) -> (Option<Uploader>, Option<Writer>) {
        for waiting in &self.waiting {
            waiting.end_by(deadline);
        }
        pipeline.finish();
        if let Some(saver) = self.saver {
            saver.finish(pipeline);
        }
        (self.history.and_then(|history| history.finish(deadline)), self.recorders.file)
    }
}

/// Has windows of earlier runs read, if they are kept.
fn past_windows(settings: &History, host: &str) -> Option<PastWindows> {
    let dir = match settings.place.as_ref()? {
        HistoryPlace::Directory(dir) => dir,
        HistoryPlace::Bucket(_) => &settings.spool,
    };
    let past = PastWindows::start(dir, host);
    past.inspect_err(|error| log::warn!("no thread for the windows of earlier runs: {error}")).ok()
}
