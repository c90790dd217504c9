//! Metrics of the configuration that is in force.

use prometheus::{IntGauge, Opts};

use super::export::Metrics;
use super::families::{Families, vec};
use super::totals::Totals;

/// The families.
#[derive(Debug)]
pub(super) struct ConfigurationFamilies {
    reloads: Totals,
    successful: IntGauge,
}

impl ConfigurationFamilies {
    pub(super) fn new(r: &Families) -> Self {
        let reloads = "Times the configuration file was read again, by outcome: applied, refused (it has a mistake, and the \
                       one before stays in force).";
        let successful = "1 if the configuration file was taken up when it was last read, 0 if it was refused.";
        let successful = vec(r, IntGauge::with_opts(Opts::new("tracer_config_last_reload_successful", successful)));
        // What the agent started with was in order.
        successful.set(1);
        let reloads = Totals::new(r, "tracer_config_reloads_total", reloads, "outcome");
        for outcome in ["applied", "refused"] {
            reloads.set(outcome, 0);
        }
        Self { reloads, successful }
    }
}

impl Metrics {
    /// How often the configuration was read again since the start, and whether the last time it was taken up.
    pub fn set_reloads(&self, applied: u64, refused: u64, is_taken_up: bool) {
        self.configuration.reloads.set("applied", applied);
        self.configuration.reloads.set("refused", refused);
        self.configuration.successful.set(i64::from(is_taken_up));
    }
}
