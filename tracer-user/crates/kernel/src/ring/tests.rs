//! The reader against a writer that follows the kernel side's rules, in this process's memory.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tracer_common::ring::{Shape, slot, word};

use super::*;

const SHAPE: Shape = Shape { rings: 2, bytes: 512 << 10 };

/// Rings in a memory file, and the writer's view of them.
struct Both {
    events: Events,
    writer: Writer,
}

/// Plays the kernel side.
struct Writer {
    base: NonNull<u8>,
}

// SAFETY: as for `Events`; both sides access the memory atomically.
unsafe impl Send for Writer {}

fn both() -> Both {
    // SAFETY: a name and no flags.
    let fd = unsafe { libc::memfd_create(c"rings".as_ptr(), 0) };
    assert!(fd >= 0);
    let len = (SHAPE.element() * SHAPE.rings as usize).next_multiple_of(65536) as i64;
    // SAFETY: a descriptor this function owns.
    assert_eq!(unsafe { libc::ftruncate(fd, len) }, 0);
    let events = Events::map(fd, SHAPE).expect("mapped");
    // SAFETY: as above; the mapping remains.
    unsafe { libc::close(fd) };
    let base = events.base;
    Both { events, writer: Writer { base } }
}

impl Writer {
    fn word(&self, ring: usize, offset: usize) -> &AtomicU64 {
        // SAFETY: within the mapping, aligned.
        unsafe { self.base.byte_add(ring * SHAPE.element() + offset).cast::<AtomicU64>().as_ref() }
    }

    /// Reserves `len` bytes; `None` if the ring is full.
    fn reserve(&self, ring: usize, len: u64) -> Option<u64> {
        let at = self.word(ring, RESERVED).load(Ordering::Relaxed);
        let full = at + slot(len) - self.word(ring, CONSUMED).load(Ordering::Acquire);
        if full > SHAPE.bytes as u64 - 8 {
            return None;
        }
        self.word(ring, RESERVED).store(at + slot(len), Ordering::Release);
        Some(at)
    }

    /// Completes the record reserved at `at`: a time, then a pattern.
    fn complete(&self, ring: usize, at: u64, len: u64, nanos: u64) {
        let offset = DATA + (at & (SHAPE.bytes as u64 - 1)) as usize;
        assert_eq!(self.word(ring, offset).load(Ordering::Acquire), 0, "the slot was not clean");
        for i in (0..len as usize).step_by(8) {
            let value = if i == NANOS { nanos } else { nanos ^ i as u64 };
            self.word(ring, offset + WORD + i).store(value, Ordering::Relaxed);
        }
        self.word(ring, offset).store(word(slot(len), len), Ordering::Release);
    }

    fn write(&self, ring: usize, len: u64, nanos: u64) -> bool {
        let at = self.reserve(ring, len);
        at.inspect(|at| self.complete(ring, *at, len, nanos)).is_some()
    }
}

fn time(record: &[u8]) -> u64 {
    let word = |at: usize| u64::from_ne_bytes(record[at..at + 8].try_into().expect("eight"));
    let nanos = word(NANOS);
    for i in (0..record.len()).step_by(8).filter(|i| *i != NANOS) {
        assert_eq!(word(i), nanos ^ i as u64, "byte {i} of {}", record.len());
    }
    nanos
}

fn drain(events: &mut Events, now: u64, limit: usize) -> Vec<u64> {
    let mut seen = Vec::new();
    let n = events.drain(now, limit, &mut |record| seen.push(time(record)));
    assert_eq!(n, seen.len());
    seen
}

#[test]
fn records_of_all_cpus_come_in_the_order_of_time() {
    let Both { mut events, writer } = both();
    for (ring, nanos) in [(0, 1), (0, 4), (1, 2), (1, 3), (0, 5), (1, 9)] {
        assert!(writer.write(ring, 32, nanos));
    }
    assert_eq!(drain(&mut events, 6, 2), [1, 2], "the limit");
    assert_eq!(drain(&mut events, 6, 100), [3, 4, 5], "nothing newer than the look");
    assert_eq!(drain(&mut events, 9, 100), [9]);
    assert_eq!(events.take_most(), 3 * slot(32));
}

#[test]
fn a_record_that_is_not_complete_holds_up_what_came_after_it_and_not_for_ever() {
    let Both { mut events, writer } = both();
    assert!(writer.write(0, 16, 1));
    let open = writer.reserve(0, 16).expect("room");
    assert!(writer.write(0, 16, 3) && writer.write(1, 16, 4) && writer.write(1, 16, 1));
    assert_eq!(drain(&mut events, 10, 100), [1], "of ring 0; ring 1 begins with 4");
    assert!(drain(&mut events, 11, 100).is_empty());
    writer.complete(0, open, 16, 2);
    assert_eq!(drain(&mut events, 12, 100), [2, 3, 4, 1], "a ring's own order is kept");

    let _never = writer.reserve(0, 16).expect("room");
    assert!(writer.write(1, 16, 20));
    assert!(drain(&mut events, 30, 100).is_empty());
    assert_eq!(drain(&mut events, 31 + HELD_LONGEST, 100), [20], "the other CPU goes on");
}

#[test]
fn a_clock_that_stands_still_does_not_fill_the_rings() {
    let Both { mut events, writer } = both();
    let mut written = 0;
    while writer.write(0, 4096, 1000 + written) {
        written += 1;
    }
    assert_eq!(drain(&mut events, 500, usize::MAX).len() as u64, 0, "a little ahead is not far");
    assert_eq!(drain(&mut events, 1100, usize::MAX).len() as u64, 101, "nothing newer than the look, full or not");
    assert_eq!(drain(&mut events, 9000, usize::MAX).len() as u64, written - 101);
    let mut ahead = 0;
    while writer.write(0, 4096, 5 * CLOCKS_APART + ahead) {
        ahead += 1;
    }
    assert_eq!(drain(&mut events, 9000, usize::MAX).len() as u64, ahead, "this clock is not that of the records");
}

#[test]
fn it_does_not_sleep_over_what_is_reserved() {
    let Both { mut events, writer } = both();
    let asleep = |writer: &Writer| [0, 1].map(|ring| writer.word(ring, ASLEEP).load(Ordering::Relaxed));
    assert!(events.fall_asleep());
    assert_eq!(asleep(&writer), [1, 1]);
    events.wake_up();
    assert_eq!(asleep(&writer), [0, 0]);
    // Reserved and not complete: nothing wakes it once it is.
    let at = writer.reserve(1, 64).expect("room");
    assert_eq!(drain(&mut events, 9, usize::MAX), Vec::<u64>::new());
    assert!(!events.fall_asleep());
    writer.complete(1, at, 64, 5);
    assert!(!events.fall_asleep());
    assert_eq!(drain(&mut events, 9, usize::MAX), [5]);
    assert!(events.fall_asleep());
}

#[test]
fn two_threads_for_long_lose_nothing_and_mix_nothing_up() {
    let Both { mut events, writer } = both();
    let stop = Arc::new(AtomicBool::new(false));
    let ended = stop.clone();
    let made = std::thread::spawn(move || {
        let (mut nanos, mut refused) = (0u64, 0u64);
        while nanos < 300_000 {
            // Varying lengths, and now and then the longest.
            let len = if nanos.is_multiple_of(97) { SLACK as u64 - 16 } else { 16 + nanos % 61 * 8 };
            if writer.write((nanos % 2) as usize, len, nanos + 1) {
                nanos += 1;
            } else {
                refused += 1;
                std::thread::yield_now();
            }
        }
        ended.store(true, Ordering::Release);
        refused
    });
    let mut last = [0u64; 2];
    let mut seen = 0u64;
    loop {
        let ending = stop.load(Ordering::Acquire);
        let n = events.drain(u64::MAX - 1, 1000, &mut |record| {
            let nanos = time(record);
            let ring = ((nanos - 1) % 2) as usize;
            assert!(nanos > last[ring], "{nanos} after {}", last[ring]);
            last[ring] = nanos;
            seen += 1;
        });
        if n == 0 && ending {
            break;
        }
    }
    made.join().expect("the writer");
    assert_eq!(seen, 300_000);
}

proptest! {
    /// With arbitrary memory, draining terminates, stays within the rings, and hands out at most what was reserved.
    #[test]
    fn never_panics_on_arbitrary_input(words in prop::collection::vec(any::<u64>(), 64), ends in any::<[u64; 2]>()) {
        let Both { mut events, writer } = both();
        for (i, value) in words.iter().enumerate() {
            writer.word(i % 2, DATA + i / 2 * 8).store(*value, Ordering::Relaxed);
        }
        for (ring, end) in ends.iter().enumerate() {
            writer.word(ring, RESERVED).store(end % (2 * SHAPE.bytes as u64), Ordering::Relaxed);
        }
        let mut bytes = 0;
        events.drain(u64::MAX, 1 << 20, &mut |record| bytes += record.len());
        prop_assert!(bytes <= 4 * SHAPE.bytes as usize);
    }
}
