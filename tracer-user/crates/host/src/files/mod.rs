//! Files that users name. Reading is bounded and never waits; writing never waits, and touches no file of another user.

mod input;
mod output;
mod trust;

pub use input::{check_roots, open_recording, read, read_secret};
pub use output::{Output, create_new, directory, open_own, output};

/// The agent's own user.
fn own_user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}
