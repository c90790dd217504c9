//! Which stacks are taken: by chance, as often as the overhead budget allows, and not too many at once.

use aya_ebpf::{helpers::generated::bpf_get_prandom_u32, maps::PerCpuArray};
use tracer_common::limits::OFF_CPU_SLICE;

/// How many stacks a CPU has been asked for in the current time slice.
#[repr(C)]
pub(crate) struct StacksTaken {
    slice: u64,
    stacks: u64,
}

/// Whether this CPU takes a stack at `now`: `share` of 2^32 times, and at most `most` times in a time slice.
#[inline(always)]
pub(crate) fn is_chosen(taken: &PerCpuArray<StacksTaken>, share: u32, most: u32, now: u64) -> bool {
    // SAFETY: no argument.
    if unsafe { bpf_get_prandom_u32() } > share {
        return false;
    }
    let Some(taken) = taken.get_ptr_mut(0) else { return false };
    // SAFETY: this CPU's element. A program of the same kind that interrupts this one makes the count wrong by one.
    let taken = unsafe { &mut *taken };
    if taken.slice != now >> OFF_CPU_SLICE {
        taken.slice = now >> OFF_CPU_SLICE;
        taken.stacks = 0;
    }
    taken.stacks += 1;
    taken.stacks <= most as u64
}
