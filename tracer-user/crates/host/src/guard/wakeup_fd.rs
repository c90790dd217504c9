//! Wakes the pipeline's thread when somebody has something for it: messages of other agents, questions of the console, the end. An
//! idle pipeline polls rarely.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that is written only while the pipeline has armed it.
#[derive(Debug)]
pub struct WakeupFd {
    fd: OwnedFd,
    /// Whether the pipeline waits for it.
    armed: AtomicBool,
}

impl WakeupFd {
    /// An unarmed one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is new.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, armed: AtomicBool::new(false) })
    }

    /// From here on [`Self::wake`] makes [`Self::fd`] readable. Look for what there is to do before sleeping.
    pub fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// The pipeline is awake: stop writing and clear the descriptor.
    pub fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
        let mut count = [0u8; 8];
        // SAFETY: an eventfd reads eight bytes into a buffer of eight. It does not block; an empty one is fine.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// Wakes the pipeline if it waits.
    pub fn wake(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: an eventfd takes eight bytes. It cannot be full: the pipeline empties it before it arms it
            // again.
            unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Readable after it was written.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(wakeup: &WakeupFd) -> bool {
        let mut poll = libc::pollfd { fd: wakeup.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn it_rings_once_and_only_where_it_is_wanted() {
        let wakeup = WakeupFd::new().unwrap();
        wakeup.wake();
        assert!(!is_readable(&wakeup), "no thread sleeps");
        for _ in 0..3 {
            wakeup.arm();
            assert!(!is_readable(&wakeup));
            wakeup.wake();
            wakeup.wake();
            assert!(is_readable(&wakeup));
            wakeup.disarm();
            assert!(!is_readable(&wakeup));
            wakeup.arm();
            wakeup.disarm();
            wakeup.wake();
            assert!(!is_readable(&wakeup), "awake before");
        }
    }
}
