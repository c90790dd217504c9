//! How full a ring is: its two positions, read from the pages the kernel shares.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// One ring's positions. The consumer's page comes first, then the producer's, then the data.
pub struct RingLevel {
    pages: NonNull<AtomicU64>,
    page: usize,
    most: u64,
}

// SAFETY: the pages are only read, by atomic loads.
unsafe impl Send for RingLevel {}

impl RingLevel {
    /// Of the ring behind `fd`.
    pub(super) fn of(fd: RawFd) -> io::Result<Self> {
        // SAFETY: takes a constant, cannot fail for this one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a fresh read-only mapping of the two pages every ring has in front of its data.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("a ring was mapped at 0"))?;
        Ok(Self { pages, page, most: 0 })
    }

    fn position(&self, offset: usize) -> u64 {
        // SAFETY: within the mapping, aligned to a page, written by the kernel and by us as one word.
        unsafe { self.pages.byte_add(offset).as_ref().load(Ordering::Acquire) }
    }

    /// Looks at it: bytes not yet taken.
    pub fn look(&mut self) -> u64 {
        // The consumer first: it can only come closer meanwhile.
        let consumed = self.position(0);
        let level = self.position(self.page).saturating_sub(consumed);
        self.most = self.most.max(level);
        level
    }

    /// Most seen since last asked.
    pub fn take_most(&mut self) -> u64 {
        std::mem::take(&mut self.most)
    }
}

impl Drop for RingLevel {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`, with this length.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), 2 * self.page) };
    }
}
