//! What becomes of spans: metrics, history, profiles, stored transactions, and what their changes mean.

pub mod analysis;
pub mod history;
pub mod log_lines;
pub mod metrics;
pub mod profiles;
pub mod record;
pub mod store;
pub mod subsystems;
pub mod workloads;
