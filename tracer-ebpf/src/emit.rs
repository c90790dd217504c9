//! The only file that touches the loss counters and the rings of stacks and of wake-ups.

use core::{arch::asm, ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_PROD_POS},
    helpers::generated::{bpf_ringbuf_output, bpf_ringbuf_query},
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use tracer_common::{
    limits::{SAMPLE_RING_BYTES, WAKE_RING_BYTES},
    lost::Lost,
};

use crate::ring;

#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(SAMPLE_RING_BYTES as u32, 0);

/// The ring the reader sleeps on; its content is meaningless.
#[map]
static WAKE: RingBuf = RingBuf::with_byte_size(WAKE_RING_BYTES as u32, 0);

/// Counters by [`Lost`], summed over CPUs by user space.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(Lost::ALL.len() as u32, 0);

/// Counts one loss.
#[inline(always)]
pub(crate) fn count(lost: Lost) {
    if let Some(counter) = LOST.get_ptr_mut(lost as u32) {
        // SAFETY: an element of the map.
        unsafe { increment(counter) };
    }
}

/// Adds one at once: a program that is preempted between reading and writing would undo what others of its CPU counted.
///
/// # Safety
/// `counter` is a word of map memory.
#[inline(always)]
pub(crate) unsafe fn increment(counter: *mut u64) {
    // SAFETY: the caller's promise.
    unsafe { add(counter, 1) };
}

/// As [`increment`], for any number.
///
/// # Safety
/// `counter` is a word of map memory.
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, more: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {more}", counter = in(reg) counter, more = in(reg) more, options(nostack));
    }
}

/// Wakes the reader at once; its own poll every few milliseconds would come too late.
#[inline(always)]
pub(crate) fn wake() {
    let mut word = 0u64;
    // SAFETY: eight bytes of the stack. Refused when it is full: then the reader is awake.
    unsafe {
        bpf_ringbuf_output(
            ptr::from_ref(&WAKE).cast_mut().cast(),
            (&raw mut word).cast(),
            8,
            BPF_RB_FORCE_WAKEUP as u64,
        );
    }
}

/// Appends `record` to the event ring, or counts `lost`; returns whether it appended.
#[inline(always)]
pub(crate) fn event<T>(record: &T, lost: Lost) -> bool {
    fill(ring::reserve(size_of::<T>() as u64, lost), record)
}

/// As [`event`], for a record that need not wake a reader that sleeps until there is one.
#[inline(always)]
pub(crate) fn quiet_event<T>(record: &T, lost: Lost) {
    fill(ring::reserve_quietly(size_of::<T>() as u64, lost), record);
}

/// Completes the slot, if there is one, with `record`.
#[inline(always)]
fn fill<T>(slot: Option<ring::Slot>, record: &T) -> bool {
    const { assert!(size_of::<T>().is_multiple_of(8) && size_of::<T>() <= 512) };
    let Some(slot) = slot else { return false };
    let (from, to) = (ptr::from_ref(record).cast::<u64>(), slot.record.cast::<u64>());
    for i in 0..size_of::<T>() / 8 {
        // SAFETY: within the record and the slot. Volatile, so that the compiler makes no call to `memcpy`.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
    slot.complete(size_of::<T>() as u64);
    true
}

/// Appends `len` bytes at `record` to the sample ring, or counts `lost`. Wakes the reader when the ring is a quarter full, and at
/// every further sixteenth: it may sleep for longer than a ring takes to fill up.
#[inline(always)]
pub(crate) fn sample(record: *const c_void, len: u64, lost: Lost) {
    // SAFETY: the verifier checks that `record` has `len` bytes.
    let refused = unsafe {
        bpf_ringbuf_output(ptr::from_ref(&SAMPLES).cast_mut().cast(), record.cast_mut(), len, BPF_RB_NO_WAKEUP as u64)
    };
    if refused != 0 {
        count(lost);
        return;
    }
    const PART: u64 = SAMPLE_RING_BYTES as u64 / 16;
    let samples = ptr::from_ref(&SAMPLES).cast_mut().cast();
    // SAFETY: a ring.
    let end = unsafe { bpf_ringbuf_query(samples, BPF_RB_PROD_POS as u64) };
    // SAFETY: as above.
    if (end ^ end.wrapping_sub(len + 8)) >= PART
        && unsafe { bpf_ringbuf_query(samples, BPF_RB_AVAIL_DATA as u64) } > 4 * PART
    {
        wake();
    }
}
