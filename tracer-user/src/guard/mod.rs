//! What the agent itself may take, and what happens when that is not enough: ceilings, shedding, the watchdog.
//!
//! [`shed`] decides, from memory and CPU used, how much detail is given up ([`shed::Level`], in this order: payload
//! size, sampling rate, classes, history); it is pure. [`watchdog`] is a thread of its own that measures, asks it, and
//! detaches every program when the pipeline's thread stands still or the ceilings do not hold. [`own`] reads what the
//! process uses and sets its priority. [`fill`] names everything that is bounded; [`room`] gives back what tables took
//! and no longer use.

pub mod fill;
pub mod own;
pub mod room;
pub mod shed;
pub mod status;
pub mod watchdog;
