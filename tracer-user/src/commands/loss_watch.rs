//! Operations that were lost: when the pipeline learns of them, and what is logged.

use std::collections::BTreeMap;
use std::time::Instant;

use tracer_host::guard::loss_log::LossLog;
use tracer_kernel::loader::monotonic;
use tracer_kernel::skips::Skips;
use tracer_kernel::usage::Usage;
use tracer_results::record::FrameKind;
use tracer_transactions::losses;

use super::agent::Agent;
use crate::pipeline::Pipeline;

/// Between two looks whether operations were lost: much less than records wait, nanoseconds.
const LOSSES_EVERY: u64 = 50_000_000;
/// How long before it is known that operations were lost they can have been: skipped programs are counted by the second,
/// nanoseconds.
const KNOWN_LATE: u64 = 2_000_000_000;

/// Operations known to be lost, and when that was looked at.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The pipeline knows of them.
    seen: u64,
    /// Of those, the ones a program was skipped for, which is only known by the second.
    skipped: u64,
    at: u64,
    skips: Skips,
    log: LossLog,
}

impl Losses {
    /// Operations that no program saw, by the programs' usage so far; `seconds`: second programs are attached.
    pub(super) fn count_skipped(&mut self, usage: &BTreeMap<String, Usage>, seconds: bool) -> u64 {
        self.skipped = self.skips.lost(usage, seconds);
        self.skipped
    }
}

impl Agent {
    /// Looks whether operations were lost, now and then.
    pub(super) fn notice_losses(&mut self, pipeline: &mut Pipeline) {
        let now = monotonic();
        if now.saturating_sub(self.losses.at) < LOSSES_EVERY {
            return;
        }
        let seen = self.kernel.lost_operations() + self.losses.skipped;
        if seen != self.losses.seen {
            // 0 stands for the beginning of tracing.
            let since = self.losses.at.saturating_sub(KNOWN_LATE).max(1);
            self.lost(pipeline, since, now.saturating_add(losses::SUSPECT));
        }
        if self.losses.at == 0 {
            // What was read before tracing began is as good as lost.
            self.lost(pipeline, 0, now.saturating_add(losses::BEGINNING));
        }
        (self.losses.seen, self.losses.at) = (seen, now);
    }

    /// Tells the pipeline, and the recording, that operations were lost.
    fn lost(&mut self, pipeline: &mut Pipeline, since: u64, until: u64) {
        let times: Vec<u8> = [since, until].iter().flat_map(|time| time.to_ne_bytes()).collect();
        self.files.recorders.frame(FrameKind::Lost, &times);
        pipeline.lost(since, until);
    }

    /// Takes the account of losses, which everything shows, and says on stderr that something is lost.
    pub(super) fn account_losses(&mut self, pipeline: &Pipeline) {
        self.health.lost = pipeline.metrics.events_lost();
        let total = self.health.events_lost();
        if let Some(more) = self.losses.log.due(Instant::now(), total) {
            let reasons: Vec<String> = self.health.lost.iter().map(|(why, count)| format!("{why} {count}")).collect();
            log::warn!("{more} events were lost; since the start: {}", reasons.join(", "));
        }
    }
}
