//! The tracer agent: from socket bytes to request classes, their CPU and their flame graphs.
//!
//! Read [`pipeline`] first: it is the only file that joins the stages. A module may use those above it in this list
//! and none below it; the modules of one line never meet (`cargo xtask tidy` enforces both).

// Layer 0: words every layer shares.
pub mod files;
pub mod model;
pub mod quantity;
pub mod text;
// Layer 1: who runs on this host; what the agent itself may take.
pub mod guard;
pub mod host;
// Layer 2: what runs in the processes that serve requests.
pub mod runtimes;
// Layer 3: bytes from the kernel to events.
pub mod decode;
// Layer 4: loading, attaching, rings up, policy down.
pub mod kernel;
// Layer 5: bytes of connections to messages; what agents of several hosts tell each other; unwind tables.
pub mod protocols;
pub mod relay;
pub mod unwind;
// Layer 6: messages to spans, their causes and their cost.
pub mod transactions;
// Layer 7: spans to request classes.
pub mod classes;
// Layer 8: what changes of cost mean; by what requests are divided, and to which first request they belong; which transactions are exported; which hotspots are traced; what lines of logs say, and whose they are; which policy a request gets; whose CPU processes use.
pub mod analysis;
pub mod dimensions;
pub mod instrumentation;
pub mod log_lines;
pub mod roots;
pub mod service_classes;
pub mod subsystems;
pub mod tail_sampling;
pub mod workloads;
// Layer 9: places results go; siblings.
pub mod history;
pub mod metrics;
pub mod profiles;
pub mod record;
pub mod store;
// Layer 10: questions of AI agents.
pub mod mcp;
// Layer 11: what users see.
pub mod http;
// Joins everything; may see everything.
pub mod bucket;
pub mod cli;
pub mod commands;
pub mod config;
pub mod debuginfod;
pub mod otlp;
pub mod pipeline;
pub mod webhook;
