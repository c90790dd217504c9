//! What happened over time: windows of cost per request class, and the recent ones in memory.
//!
//! The [`collector::Collector`] adds up spans and costs on the pipeline's thread. Every window becomes one row per
//! class in [`recent::Recent`], which the API reads, and one [`Window`](crate::analysis::window::Window) for the
//! verdicts. With a directory it also becomes [`rows`], which [`writer`] turns into Parquet files there.

pub mod collector;
pub mod directory;
pub mod duration_counts;
mod durations;
pub mod identity;
mod journal;
pub mod layout;
pub mod parquet_file;
pub mod place;
pub mod recent;
pub mod rows;
pub mod status;
pub mod summary;
pub mod uploads;
pub mod windows;
pub mod writer;
