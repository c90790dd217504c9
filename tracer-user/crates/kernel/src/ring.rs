//! Reads the event rings, merging the records of all CPUs in time order.
//!
//! `tracer_common::ring` has the layout. The records of a thread come in program order, whichever CPUs it ran on: a
//! drain reads the time first and the rings' ends second, and hands out nothing newer than that time. A record that was
//! missing then is newer than that time, and so is everything its thread did afterwards.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use tracer_common::ring::{ASLEEP, CONSUMED, DATA, RESERVED, SLACK, Shape, WORD};

/// How long an incomplete record may hold up later ones, nanoseconds. A program that writes a record cannot wait, but
/// its CPU can be taken from a virtual machine: an emulator runs each CPU for a tenth of a second in turn.
const HELD_LONGEST: u64 = 2_000_000_000;
/// The same while a ring is more than half full.
const HELD_WHEN_FULL: u64 = 100_000_000;
/// How far ahead of the clock records may be before the clock is distrusted, nanoseconds.
const CLOCKS_APART: u64 = 1_000_000_000;

/// Offset of the time in a record header.
const NANOS: usize = 8;

/// One ring.
#[derive(Debug)]
struct Ring {
    /// Start of the ring's memory.
    at: NonNull<u8>,
    /// Bytes consumed.
    taken: u64,
    /// Consumed bytes already reported to the kernel side.
    given: u64,
    /// Where this drain stops.
    end: u64,
    /// Time of the last consumed record.
    last: u64,
    /// When the record at `taken` was first seen incomplete; 0 if it is not.
    held: u64,
}

/// All rings, mapped into memory.
#[derive(Debug)]
pub(super) struct Events {
    base: NonNull<u8>,
    len: usize,
    bytes: u64,
    rings: Vec<Ring>,
    /// Most bytes found in one ring by the last drain.
    seen: u64,
    /// The same since [`Events::take_most`] was last called.
    most: u64,
}

// SAFETY: only this value accesses the mapping in user space; the other side is the kernel.
unsafe impl Send for Events {}

impl Events {
    /// Maps the array behind `fd`, which was created with `shape`.
    pub(super) fn map(fd: RawFd, shape: Shape) -> io::Result<Self> {
        // SAFETY: takes a constant and cannot fail for it.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let len = (shape.element() * shape.rings as usize).next_multiple_of(page);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the map's memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast::<u8>()).ok_or_else(|| io::Error::other("the rings were mapped at 0"))?;
        let ring = |index: usize| Ring {
            // SAFETY: an element within the mapping.
            at: unsafe { base.byte_add(index * shape.element()) },
            taken: 0,
            given: 0,
            end: 0,
            last: 0,
            held: 0,
        };
        let rings = (0..shape.rings as usize).map(ring).collect();
        Ok(Self { base, len, bytes: shape.bytes as u64, rings, seen: 0, most: 0 })
    }

    /// Size of one ring, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes the last drain found in one ring.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Most unread bytes seen in one ring since the last call.
    pub(super) fn take_most(&mut self) -> u64 {
        std::mem::take(&mut self.most)
    }

    /// Has the next record that is worth it wake the reader. `false`: there are records already, and it must not sleep.
    pub(super) fn fall_asleep(&self) -> bool {
        self.rings.iter().for_each(|ring| ring.word(ASLEEP).store(1, Ordering::Relaxed));
        // What was not reserved when this looks is reserved by a writer that sees the word above.
        fence(Ordering::SeqCst);
        self.rings.iter().all(|ring| ring.reserved() == ring.taken)
    }

    /// The reader is awake: no record need wake it.
    pub(super) fn wake_up(&self) {
        self.rings.iter().for_each(|ring| ring.word(ASLEEP).store(0, Ordering::Relaxed));
    }

    /// Hands at most `limit` records to `take`; returns how many. `now` must have been read before, from the records'
    /// clock.
    pub(super) fn drain(&mut self, now: u64, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        self.seen = 0;
        for ring in &mut self.rings {
            ring.end = ring.reserved();
            self.seen = self.seen.max(ring.end.saturating_sub(ring.taken));
        }
        self.most = self.most.max(self.seen);
        let bytes = self.bytes;
        let mut full = self.rings.iter().filter(|ring| ring.end.saturating_sub(ring.taken) > bytes / 2).peekable();
        // Losing records is worse than losing their order.
        let patience = if full.peek().is_some() { HELD_WHEN_FULL } else { HELD_LONGEST };
        // Two clocks that disagree must not stall everything: a ring fills up, and all its records are in the future.
        let apart = full.any(|ring| ring.front(bytes).is_some_and(|nanos| nanos > now.saturating_add(CLOCKS_APART)));
        let mut until = if apart { u64::MAX } else { now };
        let mut n = 0;
        while n < limit {
            // Find the ring with the oldest record, and until when it stays the oldest.
            let mut oldest: Option<(u64, usize)> = None;
            let mut next = u64::MAX;
            for (index, ring) in self.rings.iter_mut().enumerate() {
                let Some(nanos) = ring.front(self.bytes) else {
                    until = until.min(ring.bound(now, patience));
                    continue;
                };
                ring.held = 0;
                match oldest {
                    Some((least, _)) if least <= nanos => next = next.min(nanos),
                    _ => {
                        next = oldest.map_or(u64::MAX, |(least, _)| least);
                        oldest = Some((nanos, index));
                    }
                }
            }
            let Some((nanos, index)) = oldest.filter(|(nanos, _)| *nanos <= until) else { break };
            let Some(ring) = self.rings.get_mut(index) else { break };
            let mut front = Some(nanos);
            while let Some(nanos) = front
                && nanos <= next.min(until)
                && n < limit
            {
                ring.take(self.bytes, nanos, take);
                n += 1;
                front = ring.front(self.bytes);
            }
        }
        for ring in &mut self.rings {
            ring.give(0);
        }
        n
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the ring, which both sides access atomically.
        unsafe { self.at.byte_add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn reserved(&self) -> u64 {
        self.word(RESERVED).load(Ordering::Acquire)
    }

    /// Offset of the front slot.
    fn offset(&self, bytes: u64) -> usize {
        DATA + (self.taken & (bytes - 1)) as usize
    }

    /// Lengths of the front slot and of its record, if the record is complete. The kernel side writes them; they are
    /// checked because a wrong length would read out of bounds.
    fn slot(&self, bytes: u64) -> Option<(usize, usize)> {
        if self.taken >= self.end {
            return None;
        }
        let word = self.word(self.offset(bytes)).load(Ordering::Acquire);
        let (slot, record) = (word as u32 as usize, (word >> 32) as usize);
        let fits = slot as u64 <= self.end - self.taken && slot <= SLACK && slot.is_multiple_of(8);
        (fits && slot > 0 && slot >= WORD + record).then_some((slot, record))
    }

    /// Time of the front record.
    fn front(&self, bytes: u64) -> Option<u64> {
        let (_, record) = self.slot(bytes)?;
        if record < NANOS + 8 {
            return Some(0);
        }
        Some(self.word(self.offset(bytes) + WORD + NANOS).load(Ordering::Relaxed))
    }

    /// Until which time other rings may be read, given that this one has no complete front record.
    fn bound(&mut self, now: u64, patience: u64) -> u64 {
        if self.taken >= self.end {
            self.held = 0;
            return u64::MAX;
        }
        // An incomplete record holds up the records behind it, and later records of their threads in other rings.
        if self.held == 0 {
            self.held = now;
        }
        if now.saturating_sub(self.held) > patience { u64::MAX } else { self.last }
    }

    /// Hands out the front record and frees its slot.
    fn take(&mut self, bytes: u64, nanos: u64, take: &mut impl FnMut(&[u8])) {
        let Some((slot, record)) = self.slot(bytes) else { return };
        let offset = self.offset(bytes);
        // SAFETY: the record is complete, so the kernel side is done with it, and it ends within the element.
        take(unsafe { std::slice::from_raw_parts(self.at.byte_add(offset + WORD).as_ptr(), record) });
        // Zero the slot before freeing it: a non-zero word means a record.
        // SAFETY: nothing else uses the slot now.
        unsafe { self.at.byte_add(offset).write_bytes(0, slot) };
        self.taken += slot as u64;
        self.last = nanos;
        self.give(bytes / 16);
    }

    /// Reports free space to the kernel side once it exceeds `more` bytes.
    fn give(&mut self, more: u64) {
        if self.taken - self.given > more {
            self.given = self.taken;
            self.word(CONSUMED).store(self.taken, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;
