//! The kernel boundary: events come up ([`rings`]), policy goes down ([`policy`]). Behind both: the embedded object
//! ([`object`]), the running kernel's types ([`btf`], [`offsets`]), loading and attaching ([`loader`], [`probes`]), links
//! that any thread can release ([`attachments`]), the stack sampler ([`sampler`], [`clock_cost`]), its unwind tables ([`unwind`]) and
//! interpreters' frames ([`interpreter`]), probes in user programs ([`uprobes`], loaded by `user_programs` and attached by
//! `user_links`, never on a stack that threads share: `private_stack`; [`probe_cost`], [`declared_calls`]), the test at start ([`selftest`]), the resulting features ([`features`]), and the
//! capability that only some kernels ask for ([`admin_capability`]).
//!
//! Invariant: after start only [`policy`], and [`send_priority`] and [`trace_contexts`] on their own maps, write kernel maps. Only this layer may use `unsafe`.

pub mod admin_capability;
pub mod attachments;
mod bpf_call;
pub mod btf;
pub mod clock_cost;
pub mod declared_calls;
pub mod exchange_counts;
pub mod features;
pub mod header;
mod header_selftest;
pub mod inband;
pub mod interpreter;
mod load_retry;
pub mod loader;
mod loading;
pub mod log_lines;
pub mod object;
pub mod offsets;
pub mod policy;
mod private_stack;
pub mod probe_cost;
pub mod probes;
mod ring;
pub mod ring_occupancy;
pub mod rings;
pub mod sampler;
pub mod selftest;
pub mod send_priority;
pub mod skips;
pub mod trace_contexts;
pub mod unwind;
mod unwind_selftest;
pub mod uprobes;
pub mod usage;
mod usdt;
mod user_links;
mod user_programs;
