//! Turns messages into spans: which request each belongs to, what caused it and what it cost.
//!
//! [`engine::Engine`] takes records in ring order and returns finished spans, charges and samples. It is pure: time
//! comes with the records and ids from a seed, so a recording replays to the result of the original run.
//!
//! [`classes`] then gives each span its request class, [`roots`] the class of the request that it goes back to.
//!
//! Three floors: the state that all share (the files beside this one; `world.rs` holds it), `strategies/`, each of which
//! knows one way to find the request of a call and no other strategy, and `engine/`, which asks them: `cause` when a call is
//! sent, `read`, `sent`, `answered` and `reported` as requests and calls go on, `doubt` when they are reported.
//!
//! A thread that reads a request while another one it read is unanswered is a *multiplexer*: its identity proves
//! nothing from then on. On such a thread a *callback group* runs from one read to the next read or poll, and a call is
//! linked only if both its sides agree. Where the kernel side also reports the ends of a loop's callbacks, these tie
//! spans together (`strategies/event_loop.rs`).

mod after_reply;
pub mod callback_groups;
pub mod cause;
mod charges;
pub mod classes;
mod closed_by;
pub mod combine;
pub mod connection;
pub mod counters;
mod detached_calls;
mod encryption;
mod endpoints;
pub mod engine;
pub mod event_loop;
pub mod evidence;
mod failed_connects;
pub mod finished_call;
pub mod held_request;
pub mod ids;
pub mod inband_context;
pub mod jobs;
pub mod join;
mod last_hit_map;
mod late_costs;
pub mod limits;
mod locks;
pub mod losses;
pub mod network;
pub mod open_span;
mod operation_context;
pub mod output;
pub mod pending_reads;
mod plaintext;
pub mod pools;
pub mod process_costs;
mod processes;
pub mod queue_workers;
pub mod relayed;
mod report_queue;
mod request_mobility;
pub mod request_prefixes;
pub mod roots;
pub mod slot;
mod strategies;
mod task_identity;
pub mod task_table;
pub mod thread;
pub mod thread_affinity;
pub mod thrown;
pub mod trace_ids;
pub mod wakeup_candidates;
mod world;

pub use strategies::declared::DeclaredLosses;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
