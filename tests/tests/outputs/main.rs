//! What leaves the agent: OTLP, history, findings.

mod findings;
mod findings_seeds;
mod fleet_policies;
mod fleet_spark;
mod history;
mod history_bucket;
mod history_engines;
mod otlp;
mod otlp_profiles;
mod tail_sampling;
