//! The rings that carry records up: their layout in memory shared by the kernel side and user space.
//!
//! A ring is an element of an array map that user space maps. It belongs to one CPU (to several where there are more
//! CPUs than [`RINGS_MAX`]), so that writers never wait for a lock; an interrupt on the same CPU can come in between,
//! which is why writers reserve space by compare-and-swap.
//!
//! - At [`RESERVED`], a `u64`: bytes ever reserved. Written by the kernel side.
//! - At [`CONSUMED`], a `u64`: bytes ever given back. Written by user space.
//! - At [`ASLEEP`], a `u64`: not 0 while user space sleeps until there is a record. Set by user space; the kernel side
//!   sets it to 0 and wakes user space.
//! - From [`DATA`] on, slots: at position `p` (modulo the ring's size) a word, then a record. The word is zero until
//!   the record is complete; then its low half is the slot's length, word and padding included (a multiple of 8), and
//!   its high half the record's. A writer may give back the end of a slot that it did not need, as long as nothing was
//!   reserved behind it. User space zeroes a slot before it gives it back, so no stale word is left. A slot
//!   that begins near the end continues past it ([`SLACK`]); the part of the ring's beginning that it covers stays
//!   unused, so that every record is contiguous.

use crate::event::Op;
use crate::limits::{FRAMES_BYTES, HEAD_MAX, TAIL_MAX};

/// Offset of the bytes reserved.
pub const RESERVED: usize = 0;
/// Offset of the bytes given back: on its own cache line, so that reading it costs the kernel side nothing while it
/// does not change.
pub const CONSUMED: usize = 64;
/// Offset of whether user space sleeps until there is a record: beside [`CONSUMED`], which the kernel side reads anyway.
pub const ASLEEP: usize = 72;
/// Offset of the first slot.
pub const DATA: usize = 128;
/// Bytes of a slot before its record.
pub const WORD: usize = 8;
/// Bytes behind a record that a writer may have written to without keeping them; it zeroes them before it gives back the
/// unused end of a slot.
pub const CLEARED: usize = 256;
/// Most bytes of frame starts in a record, and of the header that is read last.
pub const FRAMES_ROOM: usize = FRAMES_BYTES + CLEARED;
/// Bytes behind the ring's end. Bytes gathered from fragments count twice, because the verifier takes offset and length
/// each at their own maximum.
pub const SLACK: usize =
    (WORD + size_of::<Op>() + 2 * HEAD_MAX + TAIL_MAX + FRAMES_ROOM + FRAMES_BYTES + CLEARED).next_multiple_of(8);
/// Most rings; a power of two.
pub const RINGS_MAX: u32 = 64;
/// Most bytes of one ring. Where bodies are read at 2 GB/s, 1 KiB of each operation, it holds some 30 ms of a CPU.
pub const BYTES_MAX: u32 = 4 << 20;
/// Fewest bytes of one ring.
const BYTES_MIN: u32 = 512 << 10;
/// Target for the bytes of all rings together.
const BYTES_ALL: u32 = 32 << 20;

/// How many rings there are, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rings, a power of two; a CPU uses the one with its number, modulo this.
    pub rings: u32,
    /// Bytes of each, a power of two.
    pub bytes: u32,
}

impl Shape {
    /// For a host that can have `cpus` CPUs.
    pub const fn of(cpus: u32) -> Self {
        let cpus = if cpus < 1 { 1 } else { cpus };
        let rings = if cpus < RINGS_MAX { cpus.next_power_of_two() } else { RINGS_MAX };
        let each = BYTES_ALL / rings;
        let bytes = if each > BYTES_MAX {
            BYTES_MAX
        } else if each < BYTES_MIN {
            BYTES_MIN
        } else {
            each
        };
        Self { rings, bytes }
    }

    /// Bytes of an element of the map.
    pub const fn element(self) -> usize {
        (DATA + self.bytes as usize + SLACK).next_multiple_of(8)
    }
}

/// Bytes a record of `len` bytes takes in a ring.
pub const fn slot(len: u64) -> u64 {
    (WORD as u64 + len + 7) & !7
}

/// The word of a complete slot of `slot` bytes with a record of `len`.
pub const fn word(slot: u64, len: u64) -> u64 {
    slot | len << 32
}

const _: () = assert!(RINGS_MAX.is_power_of_two() && BYTES_MAX.is_power_of_two() && BYTES_MIN.is_power_of_two());
const _: () = assert!(SLACK < BYTES_MIN as usize / 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_powers_of_two_and_bounded_for_any_host() {
        for cpus in 0..5000 {
            let shape = Shape::of(cpus);
            assert!(shape.rings.is_power_of_two() && shape.bytes.is_power_of_two());
            assert!(shape.rings >= cpus.min(RINGS_MAX) && shape.rings <= RINGS_MAX);
            assert!((BYTES_MIN..=BYTES_MAX).contains(&shape.bytes));
            // A tenth of it is room behind the rings for the longest record.
            assert!(shape.rings as usize * shape.element() <= 36 << 20, "{shape:?}");
        }
        assert_eq!(Shape::of(2), Shape { rings: 2, bytes: 4 << 20 });
        assert_eq!(Shape::of(256), Shape { rings: 64, bytes: 512 << 10 });
    }

    #[test]
    fn a_slot_holds_its_word_and_its_record() {
        assert_eq!((slot(0), slot(1), slot(8), slot(9)), (8, 16, 16, 24));
        assert_eq!(word(24, 9), 24 + (9 << 32));
    }
}
