//! Classes that are lowered so that more important ones reach their goals.

use std::sync::Arc;

use tracer_policies::service_classes::feedback::{Feedback, FeedbackActions, FeedbackDecision, LevelChange};
use tracer_policies::service_classes::{Mode, ServiceClass};

use super::{NAMES, Numbers};
use crate::config::Config;

/// Lowers classes so that more important ones reach their goals.
pub(super) struct FeedbackLoop {
    pub(super) controller: Feedback,
    /// The last slice that it has seen.
    pub(super) slice: u64,
    /// By number of the class.
    pub(super) counts: Vec<FeedbackActions>,
}

impl FeedbackLoop {
    /// By the goals of these classes.
    pub(super) fn new(config: &Config) -> Self {
        let controller = Feedback::new(&config.service_classes.classes, config.enforcement.mode == Mode::On);
        Self { controller, slice: 0, counts: vec![FeedbackActions::default(); NAMES] }
    }

    /// Counts a change, and writes it to the log; `now`: wall clock.
    pub(super) fn record(&mut self, change: &LevelChange, classes: &[ServiceClass], numbers: &Numbers, now: u64) {
        let name = |class: usize| classes.get(class).map(|class| Arc::clone(&class.name));
        let Some(counts) = self.counts.get_mut(numbers.number_of(change.class)) else { return };
        if let Some(count) = counts.counts.get_mut(change.action as usize) {
            *count += 1;
        }
        let cause = change.cause.and_then(name);
        let of = name(change.class).unwrap_or_default();
        let (action, nice, ratio) = (change.action.name(), change.nice, change.ratio);
        match &cause {
            Some(cause) => {
                log::info!("service class {of}: {action} to nice {nice:+} for {cause}, at {ratio:.2} of its goal");
            }
            None => log::info!("service class {of}: {action} to nice {nice:+}"),
        }
        counts.last = Some(FeedbackDecision { action: change.action, at: now, cause, ratio });
    }
}
