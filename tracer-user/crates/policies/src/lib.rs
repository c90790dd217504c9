//! What is done for a class of requests: which service class it has and what that may use, whose hotspots are traced, and
//! which of its transactions are exported.

pub mod instrumentation;
pub mod service_classes;
pub mod tail_sampling;
