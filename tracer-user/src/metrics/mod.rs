//! Statistics of request classes: for Prometheus ([`Metrics`]), and for the API and the console ([`ClassStats`]).

mod attainment;
mod calls;
mod declared;
mod durations;
mod export;
mod families;
mod loss_account;
mod low_cardinality;
mod messages;
mod operations;
mod process;
mod quantile;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod samples;
mod service_classes;
mod stats;
mod tasks;
mod totals;

pub use attainment::{Attainment, Row as AttainmentRow};
pub use declared::{DeclaredReports, DeclaredRow, DeclaredSums, MetricSums};
pub use export::{Metrics, text};
pub use quantile::Quantiles;
pub use stats::{ClassFigures, ClassStats, ServiceFigures};
