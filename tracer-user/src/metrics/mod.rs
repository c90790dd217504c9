//! Numbers about classes: for Prometheus ([`Metrics`]) and for the API and the console ([`ClassStats`]).

mod export;
mod quantile;
mod stats;

pub use export::{Metrics, text};
pub use quantile::Quantiles;
pub use stats::{ClassFigures, ClassStats};
