//! Lines of logs, by service.

use prometheus::{IntCounterVec, Opts};

use super::export::Metrics;
use super::families::{Families, vec};

/// The families.
#[derive(Debug)]
pub(super) struct LogFamilies {
    lines: IntCounterVec,
    lost: IntCounterVec,
}

impl LogFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let lines = "Lines that processes of the services in [logs] wrote to logs, by whether it is known for which request: it is \
                     (request); it is, but the request was reported before (late); its thread had several (ambiguous); none is \
                     known (no_request).";
        let lost = "Writes to logs that were not looked at: their process wrote more often than [logs] max_rate, or the event ring \
                    was half full.";
        Self {
            lines: vec(
                r,
                IntCounterVec::new(Opts::new("tracer_log_lines_total", lines), &["service_name", "written_for"]),
            ),
            lost: vec(r, IntCounterVec::new(Opts::new("tracer_log_writes_lost_total", lost), &["service_name"])),
        }
    }
}

impl Metrics {
    /// Lines of a service since the start, by what they belong to; and writes that were not looked at.
    pub fn set_log_lines<'a>(&self, service: &str, lines: impl IntoIterator<Item = (&'a str, u64)>, lost: u64) {
        for (written_for, total) in lines {
            let counter = self.logs.lines.with_label_values(&[service, written_for]);
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        let counter = self.logs.lost.with_label_values(&[service]);
        counter.inc_by(lost.saturating_sub(counter.get()));
    }
}
