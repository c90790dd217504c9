//! The host: its processes, the services they form, and the resource usage it reports.

mod command_line;
pub mod container;
pub mod container_names;
pub mod containers;
pub mod file_system;
pub mod instance;
pub mod local_time;
pub mod process;
pub mod process_cpu;
pub mod services;
pub mod stat;
pub mod statics;
pub mod thread_state;
pub mod users;
