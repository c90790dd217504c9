//! Wakes the pipeline's thread when relay messages arrive: an idle pipeline polls rarely, and a request would not learn
//! its caller until the next poll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that rings only while the pipeline wants it to.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    /// Whether the pipeline wants to be woken.
    wanted: AtomicBool,
}

impl Bell {
    /// A bell that is not wanted yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is new.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, wanted: AtomicBool::new(false) })
    }

    /// From here on [`Self::ring`] makes [`Self::fd`] readable. Check for messages before sleeping.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }

    /// The pipeline is awake: stop ringing and clear the descriptor.
    pub fn quiet(&self) {
        self.wanted.store(false, Ordering::SeqCst);
        let mut count = [0u8; 8];
        // SAFETY: an eventfd reads eight bytes into a buffer of eight. It does not block; an empty one is fine.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Wakes the pipeline if it wants to be woken.
    pub fn ring(&self) {
        if self.wanted.swap(false, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: an eventfd takes eight bytes. It cannot be full: the pipeline empties it before it wants it
            // again.
            unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Readable after the bell rang.
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
        assert!(!rang(&bell), "no thread sleeps");
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
