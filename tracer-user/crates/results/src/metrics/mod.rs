//! Statistics of request classes: for Prometheus ([`Metrics`]), and for the API and the console ([`ClassStats`]).

mod attainment;
mod calls;
mod certificates;
mod class_histograms;
mod class_series;
mod configuration;
mod declared;
mod duration_families;
mod durations;
mod exceptions;
mod export;
mod exposition;
mod families;
mod foldable;
mod goal_windows;
mod histograms;
mod instrumentation;
mod lateness;
mod log_lines;
mod loss_account;
mod low_cardinality;
mod messages;
mod native;
mod network;
mod operations;
mod process;
mod protobuf;
mod quantile;
#[cfg(test)]
mod reference;
mod request_time;
mod series_budget;
mod series_metrics;
#[cfg(test)]
mod series_tests;
mod service_classes;
mod stats;
mod tasks;
mod totals;
mod workloads;

pub use attainment::{Attainment, AttainmentRow};
pub use declared::{DeclaredReports, DeclaredRow, DeclaredSums, MetricSums};
pub use export::Metrics;
pub use exposition::{Exposition, Format};
pub use goal_windows::{GoalKey, GoalSums};
pub use lateness::{Taker, TimeShares, Trend, WaitsFor};
pub use quantile::Quantiles;
pub use series_budget::SeriesLimits;
pub use stats::{ClassFigures, ClassStats, ServiceFigures};
