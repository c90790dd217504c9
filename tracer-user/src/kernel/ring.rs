//! Reads the event rings: the records of all CPUs, in the order of time.
//!
//! The layout is `tracer_common::ring`. What one thread did comes in the order in which it did it, whatever CPUs it ran
//! on: a look takes the time first and then the rings' ends, and hands out nothing newer. A record that was not there
//! yet was made after that time, and so was everything its thread did afterwards.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use tracer_common::ring::{CONSUMED, DATA, RESERVED, SLACK, Shape, WORD};

/// How long a record that was begun may hold up what came after it, nanoseconds. A program that makes one cannot wait,
/// but its CPU can be taken away from a virtual machine: an emulator gives each CPU a tenth of a second in turn.
const HELD_LONGEST: u64 = 2_000_000_000;
/// The same when a ring is half full.
const HELD_WHEN_FULL: u64 = 100_000_000;
/// How far records can be ahead of the clock before it is not believed, nanoseconds.
const CLOCKS_APART: u64 = 1_000_000_000;

/// Where a header keeps its time.
const NANOS: usize = 8;

/// One ring.
#[derive(Debug)]
struct Ring {
    /// Where it begins.
    at: NonNull<u8>,
    /// Bytes taken.
    taken: u64,
    /// Bytes given back: as told to the kernel side.
    given: u64,
    /// Up to where this look goes.
    end: u64,
    /// Time of the last record taken.
    last: u64,
    /// Since when the record at `taken` is not complete; 0 when it is.
    held: u64,
}

/// All of them, mapped.
#[derive(Debug)]
pub(super) struct Events {
    base: NonNull<u8>,
    len: usize,
    bytes: u64,
    rings: Vec<Ring>,
    /// Most bytes seen in one by the last look.
    seen: u64,
    /// The same since last asked.
    most: u64,
}

// SAFETY: the mapping is reached through this value alone, on this side; the other is the kernel's.
unsafe impl Send for Events {}

impl Events {
    /// Maps the array behind `fd`, made with `shape`.
    pub(super) fn map(fd: RawFd, shape: Shape) -> io::Result<Self> {
        // SAFETY: takes a constant, cannot fail for this one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let len = (shape.element() * shape.rings as usize).next_multiple_of(page);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the map's memory.
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

    /// Bytes of one ring.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most bytes that the last look found in one ring.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Most bytes not yet taken that were seen in one ring since last asked.
    pub(super) fn take_most(&mut self) -> u64 {
        std::mem::take(&mut self.most)
    }

    /// Hands at most `limit` records to `take`; returns how many. `now` is the clock of the records, read before.
    pub(super) fn drain(&mut self, now: u64, limit: usize, take: &mut impl FnMut(&[u8])) -> usize {
        self.seen = 0;
        for ring in &mut self.rings {
            ring.end = ring.reserved();
            self.seen = self.seen.max(ring.end.saturating_sub(ring.taken));
        }
        self.most = self.most.max(self.seen);
        let bytes = self.bytes;
        let mut full = self.rings.iter().filter(|ring| ring.end.saturating_sub(ring.taken) > bytes / 2).peekable();
        // Order is worth less than what would be lost.
        let patience = if full.peek().is_some() { HELD_WHEN_FULL } else { HELD_LONGEST };
        // Two clocks that disagree must not stop everything: a ring fills up, and all of it is of the future.
        let apart = full.any(|ring| ring.front(bytes).is_some_and(|nanos| nanos > now.saturating_add(CLOCKS_APART)));
        let mut until = if apart { u64::MAX } else { now };
        let mut n = 0;
        while n < limit {
            // The ring with the oldest record, and how long it stays that.
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
        // SAFETY: mapped by `map`, with this length.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Ring {
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: a word of the ring, aligned; both sides use it as one.
        unsafe { self.at.byte_add(offset).cast::<AtomicU64>().as_ref() }
    }

    fn reserved(&self) -> u64 {
        self.word(RESERVED).load(Ordering::Acquire)
    }

    /// Where the slot at the front begins.
    fn offset(&self, bytes: u64) -> usize {
        DATA + (self.taken & (bytes - 1)) as usize
    }

    /// Lengths of the slot at the front and of its record, when that is there and complete. They are the kernel side's
    /// own, checked because what lies beyond them would be read.
    fn slot(&self, bytes: u64) -> Option<(usize, usize)> {
        if self.taken >= self.end {
            return None;
        }
        let word = self.word(self.offset(bytes)).load(Ordering::Acquire);
        let (slot, record) = (word as u32 as usize, (word >> 32) as usize);
        let fits = slot as u64 <= self.end - self.taken && slot <= SLACK && slot.is_multiple_of(8);
        (fits && slot > 0 && slot >= WORD + record).then_some((slot, record))
    }

    /// Time of the record at the front.
    fn front(&self, bytes: u64) -> Option<u64> {
        let (_, record) = self.slot(bytes)?;
        if record < NANOS + 8 {
            return Some(0);
        }
        Some(self.word(self.offset(bytes) + WORD + NANOS).load(Ordering::Relaxed))
    }

    /// The time up to which other rings may be read because of this one, at whose front there is nothing to take.
    fn bound(&mut self, now: u64, patience: u64) -> u64 {
        if self.taken >= self.end {
            self.held = 0;
            return u64::MAX;
        }
        // Begun and not complete: what lies behind it is held up, and so is what their threads did elsewhere.
        if self.held == 0 {
            self.held = now;
        }
        if now.saturating_sub(self.held) > patience { u64::MAX } else { self.last }
    }

    /// Hands the record at the front out and frees its slot.
    fn take(&mut self, bytes: u64, nanos: u64, take: &mut impl FnMut(&[u8])) {
        let Some((slot, record)) = self.slot(bytes) else { return };
        let offset = self.offset(bytes);
        // SAFETY: a complete record: the kernel side has done with it, and it ends within the element.
        take(unsafe { std::slice::from_raw_parts(self.at.byte_add(offset + WORD).as_ptr(), record) });
        // Zeroed before it is given back: a word that is not zero is a record's.
        // SAFETY: the slot, which nobody else uses now.
        unsafe { self.at.byte_add(offset).write_bytes(0, slot) };
        self.taken += slot as u64;
        self.last = nanos;
        self.give(bytes / 16);
    }

    /// Tells the kernel side what is free again, when it is more than `more` bytes.
    fn give(&mut self, more: u64) {
        if self.taken - self.given > more {
            self.given = self.taken;
            self.word(CONSUMED).store(self.taken, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
