//! What the kernel side and the user side of tracer agree on.
//!
//! Lives here: the records that cross the boundary ([`event`]), what user space tells the kernel ([`policy`]), the list of
//! kernel struct members both need ([`members`]), the ways data can be lost ([`lost`]), the rings' layout ([`ring`]), what
//! runtimes there are ([`runtime`]), the TCP option that carries a context ([`inband_context`]), the header that does
//! ([`header`]), exchanges that the kernel side counts itself ([`exchange_counts`]), how stacks are walked ([`unwind`]), interpreters' frames in them ([`interpreter`]), what threads write to logs ([`log_write`]), limits ([`limits`]) and
//! the numbers of one processor architecture ([`arch`]).
//!
//! Invariant: nothing here calls the kernel, allocates or depends on another crate, so all of it is tested on the
//! development machine.
#![no_std]
#![forbid(unsafe_code)]

pub mod arch;
mod declared_call;
pub mod event;
pub mod exchange_counts;
pub mod header;
pub mod inband_context;
pub mod interpreter;
pub mod limits;
pub mod log_write;
pub mod lost;
pub mod members;
pub mod off_cpu;
pub mod policy;
pub mod ring;
pub mod runtime;
pub mod unwind;
mod wire;
