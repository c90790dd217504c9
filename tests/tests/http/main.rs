//! HTTP, and the basis of every protocol.

mod access_log;
mod edges;
mod events;
mod exceptions;
mod exchange_counts;
mod harness;
mod http2;
mod http2_bodies;
mod log_lines;
mod matrix;
mod names;
mod narrow;
mod network;
mod process_ends;
mod proxy;
mod request_limits;
mod running;
mod websocket;
