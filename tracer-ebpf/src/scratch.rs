//! Per-CPU memory to build records in: the BPF stack has 512 bytes.
//!
//! One area per program: a program never runs twice at once on a CPU, but an interrupt may run another on top of it.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_common::{
    event::{Op, Sample},
    limits::{FRAMES_MAX, HEAD_MAX, TAIL_MAX},
};

/// A record of a socket operation with room for its payload. Twice the head, because the verifier takes offset and
/// length each at their own maximum when pieces are gathered; plus the tail.
#[repr(C)]
pub(crate) struct OpScratch {
    pub(crate) op: Op,
    pub(crate) payload: [u8; 2 * HEAD_MAX + TAIL_MAX],
    pub(crate) walk: Walk,
}

/// Progress of a walk over I/O vectors. In map memory and not in registers, so that the verifier forgets its ranges
/// between steps and finds every step alike: with them, sixteen steps exceed a million instructions on 6.18.
#[repr(C)]
pub(crate) struct Walk {
    /// The element looked at: address and length.
    pub(crate) vector: [u64; 2],
    /// Bytes copied so far.
    pub(crate) head: u64,
    /// Bytes of the operation not yet accounted for.
    pub(crate) left: u64,
    /// User address behind the last element used, and its length.
    pub(crate) end: u64,
    pub(crate) last: u64,
}

/// A stack sample with room for both stacks.
#[repr(C)]
pub(crate) struct SampleScratch {
    pub(crate) sample: Sample,
    pub(crate) frames: [u64; 2 * FRAMES_MAX + 2],
}

// A per-CPU value may have 32 KiB (PCPU_MIN_UNIT_SIZE) at most.
const _: () = assert!(size_of::<OpScratch>() <= 32 << 10);

#[map]
pub(crate) static TX_SCRATCH: PerCpuArray<OpScratch> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static RX_SCRATCH: PerCpuArray<OpScratch> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static SPLICE_SCRATCH: PerCpuArray<OpScratch> = PerCpuArray::with_max_entries(1, 0);
#[map]
pub(crate) static SAMPLE_SCRATCH: PerCpuArray<SampleScratch> = PerCpuArray::with_max_entries(1, 0);
