//! Messages to units of work: which request each belongs to, who caused it and what it cost.
//!
//! [`engine::Engine`] takes records in the order of the ring and gives finished units, charges and samples. Pure:
//! time comes with the records, ids from a seed, so a recorded file gives the same result as the live run.
//!
//! A thread that reads a request while another it read is unanswered is a *multiplexer*,
//! and its identity says nothing from then on; on such a thread a *callback group* runs from one read to the next
//! read or poll, and a call is linked only where both sides of it agree. Where the kernel side also
//! tells when a loop's callbacks end, units are tied together by them (`loops.rs`).

mod begin;
mod charge;
mod closing;
pub mod connection;
pub mod engine;
pub mod entities;
pub mod handover;
pub mod ids;
pub mod join;
pub mod knots;
pub mod limits;
pub mod live;
mod locks;
pub mod lookups;
mod lookups_afar;
pub mod loops;
pub mod losses;
mod near;
mod passed;
pub mod pools;
pub mod relayed;
mod report;
pub mod rivals;
mod streams;
pub mod tags;
mod tasks;
pub mod thread;
mod turns;
mod upkeep;
pub mod wakers;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
