//! The host: its processes, the services they form, the resource usage it reports, what the agent itself may take of it
//! ([`guard`]), and files that are read and written with care ([`files`]).

mod command_line;
pub mod container;
pub mod container_names;
pub mod containers;
pub mod file_system;
pub mod files;
pub mod guard;
pub mod instance;
pub mod local_time;
pub mod process;
pub mod process_cpu;
pub mod services;
pub mod stat;
pub mod statics;
pub mod thread_state;
pub mod users;
