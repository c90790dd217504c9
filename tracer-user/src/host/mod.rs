//! Who runs on this host: processes, the services they form, and what the system says was used.

pub mod process;
pub mod services;
pub mod stat;
pub mod statics;
