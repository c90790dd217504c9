//! The agent's own limits and how it keeps them: ceilings, load shedding, the watchdog.
//!
//! [`shed`] decides from memory and CPU usage how much detail to give up ([`shed::Level`], in this order: payload size,
//! sampling rate, classes, history); it is pure. [`watchdog`] is a separate thread that measures usage, applies
//! [`shed`], and detaches every program when the pipeline's thread stalls or the ceilings do not hold. [`self_process`]
//! [`overhead_budget`] sets the sampling rate such that profiling stays within its share of the host's CPU; it is pure.
//! [`self_process`] reads the process's usage and sets its priority. [`tables`] names everything that is bounded; [`shrink`] returns
//! memory that tables no longer use.

pub mod loss_log;
pub mod overhead_budget;
pub mod self_process;
pub mod service_manager;
pub mod shed;
pub mod shrink;
pub mod status;
pub mod tables;
pub mod wakeup_fd;
pub mod watchdog;
