//! Requests beyond the limits of their classes: decided with every drain, ended or counted.

use tracer_policies::service_classes::Mode;
use tracer_policies::service_classes::limits::{LimitDecision, OpenRequest, RequestToEnd};
use tracer_policies::service_classes::reset::{EndActions, Resetter, endable};

use super::{NAMES, Numbers};
use crate::commands::Failure;
use crate::config::Config;

/// Ends requests beyond the limits of their classes.
pub(super) struct Ending {
    pub(super) decision: LimitDecision,
    /// Resets connections; `None` unless the mode is `on` and a class had limits at the start.
    pub(super) resetter: Option<Resetter>,
    pub(super) open: Vec<OpenRequest>,
    /// Of a dry run, by number of the class.
    dry: Vec<EndActions>,
}

impl Ending {
    /// Starts what resets connections, if requests are to be ended.
    pub(super) fn start(config: &Config) -> Result<Self, Failure> {
        let resetter = if config.enforcement.mode == Mode::On && config.service_classes.ends_requests() {
            let failed = |why| {
                Failure::SelfTest(format!(
                    "--enforce on: a service class ends requests, and connections cannot be reset: {why}; see \
                     docs/service-classes.md"
                ))
            };
            Some(Resetter::start(NAMES).map_err(failed)?)
        } else {
            None
        };
        let dry = vec![EndActions::default(); NAMES];
        Ok(Self { decision: Self::decision(config), resetter, open: Vec::new(), dry })
    }

    /// Decides by the limits of these classes.
    pub(super) fn decision(config: &Config) -> LimitDecision {
        LimitDecision::new(config.service_classes.classes.iter().map(|class| class.limits).collect())
    }

    /// Decides about the requests that are open, at `now` of `CLOCK_MONOTONIC`, and has it done or counted.
    pub(super) fn decide(&mut self, now: u64, numbers: &Numbers) {
        for end in self.decision.decide(now, &self.open) {
            let end = RequestToEnd { class: numbers.number_of(end.class), ..end };
            let Some(resetter) = &self.resetter else {
                let Some(actions) = self.dry.get_mut(end.class) else { continue };
                match endable(&end) {
                    Ok(()) => actions.would_end[end.reason as usize] += 1,
                    Err(why) => *actions.refused.entry(why.name()).or_default() += 1,
                }
                continue;
            };
            resetter.end(end);
        }
    }

    /// What was done, by number of the class.
    pub(super) fn actions(&self) -> Vec<EndActions> {
        self.resetter.as_ref().map_or_else(|| self.dry.clone(), Resetter::actions)
    }
}
