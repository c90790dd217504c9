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
    fleet_looks: Totals,
    fleet_version: IntGauge,
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
        let looks = "Times the agent looked for policies of its fleet, by outcome: same, newer (they were taken), failed (the place \
                     cannot be read, or what is there is not properly signed, older, or wrong).";
        let version = "Number of the fleet's policies that are kept; 0 without any.";
        Self {
            reloads,
            successful,
            fleet_looks: Totals::new(r, "tracer_fleet_policies_looks_total", looks, "outcome"),
            fleet_version: vec(r, IntGauge::with_opts(Opts::new("tracer_fleet_policies_version", version))),
        }
    }
}

impl Metrics {
    /// How often the configuration was read again since the start, and whether the last time it was taken up.
    pub fn set_reloads(&self, applied: u64, refused: u64, is_taken_up: bool) {
        self.configuration.reloads.set("applied", applied);
        self.configuration.reloads.set("refused", refused);
        self.configuration.successful.set(i64::from(is_taken_up));
    }

    /// Number of the fleet's policies, and how often the agent looked for newer ones, by outcome.
    pub fn set_fleet_policies(&self, version: u64, looks: &[(&'static str, u64)]) {
        self.configuration.fleet_version.set(i64::try_from(version).unwrap_or(i64::MAX));
        for (outcome, count) in looks {
            self.configuration.fleet_looks.set(outcome, *count);
        }
    }
}
