//! Records into this CPU's ring, in place: no lock, no helper, no second copy. Its layout is `tracer_common::ring`.

use core::arch::asm;

use aya_ebpf::{
    Global, bindings::BPF_F_MMAPABLE, helpers::generated::bpf_get_smp_processor_id, macros::map, maps::Array,
};
use tracer_common::{
    event::Op,
    limits::{FRAMES_BYTES, HEAD_MAX, TAIL_MAX},
    lost::Lost,
    ring::{ASLEEP, BYTES_MAX, CLEARED, CONSUMED, DATA, RESERVED, SLACK, WORD, slot, word},
};

use crate::{bound, emit};

/// An element at its maximum size; the loader sets the actual size and the number of elements.
#[repr(C)]
struct Ring([u64; (DATA + BYTES_MAX as usize + SLACK) / 8]);

#[map]
static RINGS: Array<Ring> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Bytes of a ring, less eight: positions are multiples of it.
#[unsafe(no_mangle)]
static RING_MASK: Global<u64> = Global::new(0);
/// Rings, less one.
#[unsafe(no_mangle)]
static RING_LAST: Global<u32> = Global::new(0);

/// Attempts to reserve space, because an interrupt took some in between, before the record is given up.
const TRIES: u32 = 4;

/// A slot that another program completes.
#[repr(C)]
pub(crate) struct Parked {
    /// Which ring, and where in it.
    ring: u64,
    at: u64,
    bytes: u64,
}

/// Reserved space.
pub(crate) struct Slot {
    /// Which ring, and where in it.
    ring: u32,
    at: u64,
    /// Where the record goes.
    pub(crate) record: *mut u8,
    /// Bytes of the slot.
    bytes: u64,
}

/// Reserves space for a record of at most `len` bytes (the verifier assumes any length that [`SLACK`] has room for);
/// counts `lost` if there is none.
#[inline(always)]
pub(crate) fn reserve(len: u64, lost: Lost) -> Option<Slot> {
    reserve_of::<0, true>(len, Some(lost))
}

/// As [`reserve`], for a record that need not wake a reader that sleeps until there is one.
#[inline(always)]
pub(crate) fn reserve_quietly(len: u64, lost: Lost) -> Option<Slot> {
    reserve_of::<0, false>(len, Some(lost))
}

/// As [`reserve`], of a ring that it does not fill to more than a 2^`PART`th; `WAKES` whether it wakes a reader that sleeps
/// until there is a record.
#[inline(always)]
pub(crate) fn reserve_of<const PART: u32, const WAKES: bool>(len: u64, lost: Option<Lost>) -> Option<Slot> {
    // SAFETY: no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get_ptr_mut(cpu & RING_LAST.load())?.cast::<u8>();
    let mask = RING_MASK.load();
    let bytes = slot(len);
    // SAFETY: two words at the ring's beginning.
    let (reserved, consumed) = unsafe { (ring.add(RESERVED).cast::<u64>(), ring.add(CONSUMED).cast::<u64>()) };
    // SAFETY: as above.
    let mut at = unsafe { reserved.read_volatile() };
    for _ in 0..TRIES {
        // SAFETY: as above.
        let full = at.wrapping_add(bytes).wrapping_sub(unsafe { consumed.read_volatile() });
        if full > mask >> PART {
            break;
        }
        let found = swap(reserved, at, at.wrapping_add(bytes));
        if found != at {
            at = found;
            continue;
        }
        // Wake the reader at a quarter full, and then at every further sixteenth; and where it sleeps until there is a record. It said
        // so before it looked at what is reserved, which was reserved before this looks: one of both sees the other.
        let part = (mask + WORD as u64) >> 4;
        let crossed = full > mask >> 2 && (at ^ at.wrapping_add(bytes)) & part != 0;
        // SAFETY: a word at the ring's beginning.
        let asleep = unsafe { ring.add(ASLEEP).cast::<u64>() };
        // SAFETY: as above.
        if crossed || (WAKES && unsafe { asleep.read_volatile() } != 0) {
            // One record wakes it, and not those behind.
            // SAFETY: as above.
            unsafe { asleep.write_volatile(0) };
            emit::wake();
        }
        // SAFETY: the position is within the ring, and what is behind its end has room for the largest record.
        let record = unsafe { ring.add(DATA).add((at & mask) as usize).add(WORD) };
        return Some(Slot { ring: cpu & RING_LAST.load(), at, record, bytes });
    }
    if let Some(lost) = lost {
        emit::count(lost);
    }
    None
}

/// Whether this CPU's ring is more than half full.
#[inline(always)]
pub(crate) fn is_crowded() -> bool {
    // SAFETY: no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(ring) = RINGS.get_ptr_mut(cpu & RING_LAST.load()) else { return true };
    let ring = ring.cast::<u8>();
    // SAFETY: two words at the ring's beginning.
    let (reserved, consumed) =
        unsafe { (ring.add(RESERVED).cast::<u64>().read_volatile(), ring.add(CONSUMED).cast::<u64>().read_volatile()) };
    reserved.wrapping_sub(consumed) > RING_MASK.load() >> 1
}

impl Slot {
    /// What [`Slot::unpark`] needs.
    #[inline(always)]
    pub(crate) fn park(&self) -> Parked {
        Parked { ring: self.ring as u64, at: self.at, bytes: self.bytes }
    }

    /// Restores a parked slot.
    #[inline(always)]
    pub(crate) fn unpark(parked: &Parked) -> Option<Self> {
        let ring = RINGS.get_ptr_mut(parked.ring as u32 & RING_LAST.load())?.cast::<u8>();
        // SAFETY: the position is within the ring, and what is behind its end has room for the largest record.
        let record = unsafe { ring.add(DATA).add((parked.at & RING_MASK.load()) as usize).add(WORD) };
        Some(Self { ring: parked.ring as u32, at: parked.at, record, bytes: parked.bytes })
    }

    /// Completes the record of `len` bytes, and gives back the rest of the slot if nothing was reserved behind it meanwhile.
    /// Of that rest, only the first [`CLEARED`] bytes may have been written to.
    #[inline(always)]
    pub(crate) fn complete_short(self, len: u64) {
        const LONGEST: u64 = (size_of::<Op>() + HEAD_MAX + TAIL_MAX + FRAMES_BYTES + 8) as u64;
        let used = slot(len);
        let mut kept = self.bytes;
        if used + CLEARED as u64 <= self.bytes
            && let Some(ring) = RINGS.get_ptr_mut(self.ring & RING_LAST.load())
        {
            let end = bound::at_most::<LONGEST>(used - WORD as u64) as usize;
            for at in 0..CLEARED / 8 {
                // SAFETY: within the slot, as compared above.
                unsafe { self.record.add(end).cast::<u64>().add(at).write_volatile(0) };
            }
            // SAFETY: a word at the ring's beginning.
            let reserved = unsafe { ring.cast::<u8>().add(RESERVED).cast::<u64>() };
            let (behind, shorter) = (self.at.wrapping_add(self.bytes), self.at.wrapping_add(used));
            if swap(reserved, behind, shorter) == behind {
                kept = used;
            }
        }
        // SAFETY: the word before the record.
        publish(unsafe { self.record.sub(WORD).cast() }, word(kept, len));
    }

    /// Completes the record of `len` bytes: the reader may take it.
    #[inline(always)]
    pub(crate) fn complete(self, len: u64) {
        // SAFETY: the word before the record.
        publish(unsafe { self.record.sub(WORD).cast() }, word(self.bytes, len));
    }
}

/// If `*at` is `old`, sets it to `new`; returns the previous value.
#[inline(always)]
pub(crate) fn swap(at: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: one word of map memory.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({at} + 0, r0, {new})",
            at = in(reg) at,
            new = in(reg) new,
            inlateout("r0") old => found,
            options(nostack)
        );
    }
    found
}

/// Writes `value` after everything written before it.
#[inline(always)]
fn publish(at: *mut u64, value: u64) {
    if cfg!(bpf_target_arch = "aarch64") {
        // A plain store does not order on arm64; the exchange does.
        // SAFETY: one word of map memory.
        unsafe {
            asm!("{value} = xchg_64({at} + 0, {value})", at = in(reg) at, value = inout(reg) value => _, options(nostack));
        }
    } else {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Release);
        // SAFETY: one word of map memory. Stores become visible in order on this processor.
        unsafe { at.write_volatile(value) };
    }
}
