//! The only file that touches the rings and the loss counters.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{bpf_ringbuf_output, bpf_ringbuf_query},
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use tracer_common::{
    limits::{EVENT_RING_BYTES, RING_WAKE_BYTES, SAMPLE_RING_BYTES},
    lost::Lost,
};

#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(EVENT_RING_BYTES as u32, 0);

#[map]
static SAMPLES: RingBuf = RingBuf::with_byte_size(SAMPLE_RING_BYTES as u32, 0);

/// Counters by [`Lost`], summed over CPUs by user space.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(Lost::ALL.len() as u32, 0);

/// Records since the fill level was last looked at.
#[map]
static SINCE_QUERY: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// Counts one loss.
#[inline(always)]
pub(crate) fn count(lost: Lost) {
    if let Some(counter) = LOST.get_ptr_mut(lost as u32) {
        // SAFETY: a per-CPU element; an interrupt that adds in between can lose a count of a loss, no more.
        unsafe { *counter += 1 };
    }
}

/// Wakes the reader only when the ring fills up: it drains by itself every few milliseconds, and a wake-up costs
/// fifty times the record. The level is asked for every 32 records.
#[inline(always)]
fn wake_flags() -> u64 {
    let Some(since) = SINCE_QUERY.get_ptr_mut(0) else { return BPF_RB_NO_WAKEUP as u64 };
    // SAFETY: a per-CPU element; a lost increment only delays the question.
    unsafe {
        *since += 1;
        if *since < 32 {
            return BPF_RB_NO_WAKEUP as u64;
        }
        *since = 0;
        let fill = bpf_ringbuf_query(ptr::from_ref(&EVENTS).cast_mut().cast(), BPF_RB_AVAIL_DATA as u64);
        if fill > RING_WAKE_BYTES { BPF_RB_FORCE_WAKEUP as u64 } else { BPF_RB_NO_WAKEUP as u64 }
    }
}

/// Appends `len` bytes at `record` to the event ring, or counts `lost`; whether it is there.
#[inline(always)]
pub(crate) fn event(record: *const c_void, len: u64, lost: Lost) -> bool {
    // SAFETY: the verifier checks that `record` has `len` bytes.
    let refused =
        unsafe { bpf_ringbuf_output(ptr::from_ref(&EVENTS).cast_mut().cast(), record.cast_mut(), len, wake_flags()) };
    if refused != 0 {
        count(lost);
    }
    refused == 0
}

/// Appends `len` bytes at `record` to the sample ring, or counts the loss.
#[inline(always)]
pub(crate) fn sample(record: *const c_void, len: u64) {
    // SAFETY: the verifier checks that `record` has `len` bytes.
    let refused = unsafe {
        bpf_ringbuf_output(ptr::from_ref(&SAMPLES).cast_mut().cast(), record.cast_mut(), len, BPF_RB_NO_WAKEUP as u64)
    };
    if refused != 0 {
        count(Lost::RingSample);
    }
}
