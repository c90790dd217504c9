//! The two arrows across the kernel boundary: events up ([`rings`]), policy down ([`policy`]); and what makes them
//! possible: the embedded object ([`object`]), the running kernel's types ([`btf`], [`offsets`]), loading and
//! attaching ([`load`], [`probes`]), what can be let go of from any thread ([`attachments`]), the stack sampler
//! ([`sampler`]), programs at places in programs ([`uprobes`]), the test at start ([`selftest`]) and what follows from all of these for the user ([`features`]).
//!
//! Invariant: after start only [`policy`] writes kernel maps. The one layer that may use `unsafe`.

mod again;
pub mod attachments;
pub mod btf;
pub mod features;
pub mod header;
mod header_selftest;
pub mod inband;
pub mod level;
pub mod load;
mod loading;
pub mod object;
pub mod offsets;
pub mod policy;
pub mod probes;
mod ring;
pub mod rings;
pub mod sampler;
pub mod selftest;
pub mod skips;
pub mod uprobes;
pub mod usage;
