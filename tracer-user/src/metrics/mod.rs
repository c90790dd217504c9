//! Numbers about classes: for Prometheus ([`Metrics`]) and for the API and the console ([`ClassStats`]).

mod calls;
mod durations;
mod export;
mod messages;
mod operations;
mod own;
mod process;
mod quantile;
#[cfg(test)]
mod samples;
mod simple;
mod stats;
mod tasks;

pub use export::{Metrics, text};
pub use quantile::Quantiles;
pub use stats::{ClassFigures, ClassStats, ServiceFigures};
