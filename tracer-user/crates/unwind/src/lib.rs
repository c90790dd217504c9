//! Unwind tables for the kernel side: what `.eh_frame` of a file says ([`image`], [`compile`]), where it lies in the arena
//! (`space`, `store`), and the thread that makes a table when a walk met a file without one (`worker`).
//!
//! Where several are wanted, the one that most walks wait for comes first, by the work that it takes (`request_queue`);
//! a large one is made on a thread of its own, so that others do not wait for it (`large_table`).
//! Tables are made on demand and shared by every process that maps the same file; the kernel side finds the mapping of an
//! address by itself, so nothing is kept per process. Memory is bounded: what was not used for longest goes first.
//!
//! Code that Java's virtual machine compiles while it runs changes, so its tables are of a process, and made again (`java`,
//! `java_code`).
//!
//! Where interpreters keep their frames is found per process, on a thread of its own (`interpreters`).

mod bounded_file;
pub mod compile;
pub mod image;
mod interpreters;
mod java;
mod java_code;
mod large_table;
mod request_queue;
mod space;
mod store;
mod worker;

pub use bounded_file::BoundedFile;
pub use interpreters::{Interpreters, Layouts, WantedLanguages};
pub use store::Bounds;
pub use worker::{Figures, Unwinder};
