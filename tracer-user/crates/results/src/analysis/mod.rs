//! Verdicts: windows of measured cost in, findings out. Pure: no clock, no I/O.
//!
//! The statistic is the ratio of observed to expected cost, where the expectation is a class's own reference demand
//! times the requests that came: load and mix are in the denominator, so a workload change moves the expectation only.
//! `series` learns references and tests one cost of one class; `diagnosis` decides from all classes together what a
//! deviation means; `detector` keeps the findings. `regression` finds demands as if they were not measured, and
//! `cross_check` compares; `signature` is service time free of load; `evidence` is what a finding rests on.
//! `docs/verdicts.md` explains how to read them.

#![expect(clippy::many_single_char_names, clippy::needless_range_loop, reason = "the formulas' own names and indices")]

pub mod activity;
pub mod announced;
mod cross_check;
pub mod detector;
mod diagnosis;
pub mod evidence;
pub mod finding;
pub mod queueing;
pub mod regression;
pub mod runs;
mod series;
pub mod signature;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vector_tests;
pub mod window;
mod workload;
