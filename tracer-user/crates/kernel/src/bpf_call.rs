//! The system call bpf(2), where aya has no function for a command.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

// include/uapi/linux/bpf.h: enum bpf_cmd
pub(super) const MAP_UPDATE: libc::c_long = 2;
pub(super) const PROGRAM_LOAD: libc::c_long = 5;
pub(super) const OBJECT_INFO: libc::c_long = 15;
pub(super) const BTF_LOAD: libc::c_long = 18;
pub(super) const LINK_CREATE: libc::c_long = 28;

/// Has the kernel do `command`, and returns its answer.
///
/// # Safety
///
/// `attr` is what the command takes: a prefix of `union bpf_attr` whose pointers are valid for what the kernel reads and writes.
pub(super) unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads as many bytes as `attr` has; the caller vouches for its pointers.
    match unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attr, size_of::<T>()) } {
        answer if answer < 0 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

/// The same for a command whose answer is a new descriptor.
///
/// # Safety
///
/// As for [`bpf`], and the command is one of those.
pub(super) unsafe fn bpf_open<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the descriptor was just opened and is owned by nothing else.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd as i32)) }
}
