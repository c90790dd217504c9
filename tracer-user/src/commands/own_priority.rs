//! Priorities of the agent's own threads. A thread inherits the nice value of the one that starts it, so these two are called
//! between the starts of others.

use tracer_host::guard::self_process;

use crate::config::{Config, OOM_SCORE_ADJ};

/// Nice value of every thread but the pipeline's: reading symbols and drawing pages can wait.
const HELPERS_NICE: i32 = 10;

/// Makes the agent less important than what it traces; gives the nice value it was started with. The pipeline's thread
/// gets its own by [`prioritize_pipeline`] once the others were started.
pub(super) fn prioritize(config: &Config) -> i32 {
    let score =
        config.priority.oom_score_adj.unwrap_or_else(|| self_process::oom_score_adj().unwrap_or(0).max(OOM_SCORE_ADJ));
    if let Err(error) = self_process::set_oom_score_adj(score) {
        log::warn!("{error}: the agent is not ended before others when memory is short");
    }
    self_process::set_nice(config.priority.nice.max(HELPERS_NICE)).unwrap_or_else(|error| {
        log::warn!("{error}: the agent's helper threads run at the priority they were started with");
        0
    })
}

/// The pipeline's thread: threads it starts from here on get the same.
pub(super) fn prioritize_pipeline(config: &Config) {
    if let Err(error) = self_process::set_nice(config.priority.nice) {
        log::warn!("{error}: the pipeline runs at a lower priority and may lose events on a busy host");
    }
    if config.priority.nice != 0 {
        self_process::set_session_nice(config.priority.nice);
    }
}
