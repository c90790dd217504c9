//! The tracer agent: from socket bytes to request classes, their CPU and their flame graphs.
//!
//! Read [`pipeline`] first: it is the only file that joins the stages, each of which is a crate beside this one.

pub mod bucket;
pub mod cli;
pub mod commands;
pub mod config;
pub mod debuginfod;
pub mod otlp;
pub mod pipeline;
pub mod webhook;
