//! Occupancy of a BPF ring buffer, from its two positions in the pages shared with the kernel.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A ring's positions. The consumer's page comes first, then the producer's, then the data.
pub struct RingLevel {
    pages: NonNull<AtomicU64>,
    page: usize,
    most: u64,
}

// SAFETY: the pages are only read, by atomic loads.
unsafe impl Send for RingLevel {}

impl RingLevel {
    /// The gauge of the ring behind `fd`.
    pub(super) fn of(fd: RawFd) -> io::Result<Self> {
        // SAFETY: takes a constant and cannot fail for it.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a new read-only mapping of the two pages in front of the ring's data.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * page, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("a ring was mapped at 0"))?;
        Ok(Self { pages, page, most: 0 })
    }

    fn position(&self, offset: usize) -> u64 {
        // SAFETY: within the mapping, page-aligned; kernel and agent access it as one word.
        unsafe { self.pages.byte_add(offset).as_ref().load(Ordering::Acquire) }
    }

    /// Reads the number of unread bytes.
    pub fn look(&mut self) -> u64 {
        // The consumer's position first: it can only get closer to the producer's meanwhile.
        let consumed = self.position(0);
        let level = self.position(self.page).saturating_sub(consumed);
        self.most = self.most.max(level);
        level
    }

    /// Most unread bytes seen since the last call.
    pub fn take_most(&mut self) -> u64 {
        std::mem::take(&mut self.most)
    }
}

impl Drop for RingLevel {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` with this length.
        unsafe { libc::munmap(self.pages.as_ptr().cast(), 2 * self.page) };
    }
}
