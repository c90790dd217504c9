//! Wakes the pipeline's thread where it sleeps long and another agent has said something: while there is little to do it looks
//! rarely, and a request would not know its caller until then.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The bell.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    /// Whether somebody wants to be woken.
    wanted: AtomicBool,
}

impl Bell {
    /// A bell nobody listens to.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, wanted: AtomicBool::new(false) })
    }

    /// From here on whoever [`Self::ring`]s is heard at [`Self::fd`]. Look whether there is something before you sleep.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// Awake: it is quiet again.
    pub fn quiet(&self) {
        self.wanted.store(false, Ordering::SeqCst);
        let mut count = [0u8; 8];
        // SAFETY: eight bytes, as an eventfd gives. It does not block; nothing to read is as good.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// There is something.
    pub fn ring(&self) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes, as an eventfd takes. It cannot be full: it is emptied before it is wanted again.
            unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// What is readable when it rang.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rang(bell: &Bell) -> bool {
        let mut poll = libc::pollfd { fd: bell.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn it_rings_once_and_only_where_it_is_wanted() {
        let bell = Bell::new().unwrap();
        bell.ring();
        assert!(!rang(&bell), "nobody sleeps");
        for _ in 0..3 {
            bell.want();
            assert!(!rang(&bell));
            bell.ring();
            bell.ring();
            assert!(rang(&bell));
            bell.quiet();
            assert!(!rang(&bell));
            bell.want();
            bell.quiet();
            bell.ring();
            assert!(!rang(&bell), "awake before");
        }
    }
}
