//! What happened over time: windows of cost per request class, and the recent ones in memory.
//!
//! The [`collector::Collector`] adds up spans and costs on the pipeline's thread. Every window becomes one row per
//! class in [`recent::Recent`], which the API reads, and one [`Window`](crate::analysis::window::Window) for the
//! verdicts.

pub mod collector;
mod durations;
pub mod identity;
pub mod recent;
