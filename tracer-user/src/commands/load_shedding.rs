//! Gives up detail while the agent takes more than it may.

use tracer_host::guard::self_process;
use tracer_host::guard::shed::Level;
use tracer_results::record::FrameKind;

use super::agent::Agent;
use crate::pipeline::Pipeline;

impl Agent {
    /// Gives up as much detail as the watchdog found necessary, or takes it back.
    pub(super) fn shed(&mut self, pipeline: &mut Pipeline) {
        let (before, level) = (self.health.level, self.status.level());
        if level == before {
            return;
        }
        let (memory, cpu) = self.status.usage();
        let usage = format!("memory {} MB, CPU {:.0} % of a core", memory >> 20, cpu * 100.0);
        // Each level once, in order: one may have come and stayed between two ticks with the next.
        for taken in Level::ALL.into_iter().filter(|taken| *taken > before && *taken <= level) {
            log::warn!("load is shed ({usage}): {}", taken.what());
        }
        if level < before {
            log::warn!("load is shed less ({usage}): {}", level.what());
        }
        self.health.level = level;
        self.files.recorders.frame(FrameKind::Shed, &[level as u8]);
        pipeline.shed(level);
        self.limit_detail(level);
        let limits = level.detail_limits();
        if let Err(error) = self.kernel.policy.head_max(limits.head_max) {
            log::warn!("{error}");
        }
        if let Err(error) = self.limit_sampling() {
            log::warn!("{error}");
        }
        self_process::release_memory();
    }
}
