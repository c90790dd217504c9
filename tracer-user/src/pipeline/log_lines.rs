//! Lines of logs: for which request each was written, and how many were.

use std::collections::HashMap;
use std::sync::Arc;

use tracer_common::log_write::{LogWrite, TYPE_DEVICE, TYPE_PIPE, TYPE_SOCKET};
use tracer_host::guard::tables::TableUse;
use tracer_model::{LogTextBudget, ServiceId};
use tracer_results::log_lines::{FoundLine, LogStreams, STREAMS};
use tracer_transactions::held_request::HeldRequest;

use super::{Introduce, Pipeline};

/// Lines of a service since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogCounts {
    /// For a request, for one of several, for none that is known.
    lines: [u64; 3],
    /// For a request that was reported before the line was read.
    late: u64,
    /// Writes that the kernel side did not report.
    lost: u64,
}

/// What is known of logs.
#[derive(Debug)]
pub(super) struct Logs {
    streams: LogStreams,
    /// Room for texts.
    texts: LogTextBudget,
    counts: HashMap<ServiceId, LogCounts>,
    /// Writes of each process that the kernel side had not reported as of its last one.
    missed: HashMap<u32, u64>,
    /// Lines whose text did not fit.
    without_text: u64,
}

impl Logs {
    /// With room for texts.
    pub(super) fn within(texts: LogTextBudget) -> Self {
        Self { streams: LogStreams::default(), texts, counts: HashMap::new(), missed: HashMap::new(), without_text: 0 }
    }

    /// The process is gone, or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        if !self.missed.is_empty() {
            self.streams.forget(tgid);
            self.missed.remove(&tgid);
        }
    }

    /// How full the tables are: logs, and bytes of texts.
    pub(super) fn table_use(&self) -> [TableUse; 2] {
        let (entries, limit) = self.texts.level();
        [self.streams.table_use(), TableUse { entries, limit, reached: self.without_text }]
    }
}

impl Pipeline {
    /// A thread wrote to a log.
    pub(super) fn log_written(&mut self, write: &LogWrite, text: &[u8], who: &mut dyn Introduce) {
        let tgid = write.header.tgid;
        let Some(service) = self.engine.service_of(tgid) else { return };
        let owner = self.engine.held_request(write);
        let logs = &mut self.logs;
        let file = || name(write, who);
        let found = logs.streams.lines(write, text, owner, &logs.texts, file);
        let counts = logs.counts.entry(service).or_default();
        if logs.missed.len() < STREAMS || logs.missed.contains_key(&tgid) {
            let before = logs.missed.insert(tgid, write.missed).unwrap_or(0);
            counts.lost += write.missed.saturating_sub(before);
        }
        for FoundLine { owner, line } in found {
            logs.without_text += u64::from(line.text.is_none());
            let count = match owner {
                HeldRequest::Request(slot) if self.engine.keep_log_line(slot, line) => &mut counts.lines[0],
                HeldRequest::Request(_) => &mut counts.late,
                HeldRequest::Ambiguous => &mut counts.lines[1],
                HeldRequest::NoRequest => &mut counts.lines[2],
            };
            *count += 1;
        }
    }

    pub(super) fn publish_logs(&self) {
        for (service, counts) in &self.logs.counts {
            let name = self.names.service(*service);
            let [request, ambiguous, none] = counts.lines;
            let lines = [("request", request), ("late", counts.late), ("ambiguous", ambiguous), ("no_request", none)];
            self.metrics.set_log_lines(&name, lines, counts.lost);
        }
    }
}

/// What was written to.
fn name(write: &LogWrite, who: &mut dyn Introduce) -> Arc<str> {
    let found = who.file_name(write.header.tgid, write.device, write.inode);
    found.map_or_else(|| unnamed(write.file_type), |name| Arc::from(&*name))
}

/// What is closed already, or of a process that is gone.
fn unnamed(file_type: u8) -> Arc<str> {
    Arc::from(match file_type {
        TYPE_PIPE => "pipe",
        TYPE_SOCKET => "journal",
        TYPE_DEVICE => "device",
        _ => "file",
    })
}
