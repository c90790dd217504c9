//! The strategies of attribution: each knows one way to tell which request a call was made for, and why that may be wrong.
//!
//! A strategy owns its tables, or works on what the [`super::world::World`] holds. It knows no other strategy.

pub(crate) mod after_reply;
pub(crate) mod child_processes;
pub(crate) mod declared;
pub(crate) mod event_loop;
pub(crate) mod forwarding;
pub(crate) mod inband_context;
pub(crate) mod lookups;
pub(crate) mod pending_reads;
pub(crate) mod streams;
pub(crate) mod tasks;
pub(crate) mod thread_affinity;
pub(crate) mod thread_pool;
