//! Contexts that travel in TCP options and headers.

mod inband;
mod inband_callers;
mod inband_header;
mod inband_kept;
mod inband_wire;
mod pair;
mod roots;
