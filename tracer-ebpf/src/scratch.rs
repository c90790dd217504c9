//! Memory for records too large for the BPF stack (512 bytes).

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_common::{
    event::{Op, Sample},
    interpreter::{INTERPRETED_FRAMES_MAX, InterpretedFrame},
    limits::FRAMES_MAX,
};

/// Progress of a walk over I/O vectors, in the place of the record to come. In map memory and not in registers, so that
/// the verifier forgets its ranges between steps and every step looks the same.
#[repr(C)]
pub(crate) struct Walk {
    /// The current element: address and length.
    pub(crate) vector: [u64; 2],
    /// Bytes copied so far.
    pub(crate) head: u64,
    /// Bytes of the operation not yet accounted for.
    pub(crate) left: u64,
    /// The last element used, and how much of it.
    pub(crate) last: u64,
    pub(crate) used: u64,
    /// Bytes of the tail still to copy.
    pub(crate) due: u64,
    /// 1 if user memory was not present.
    pub(crate) fault: u64,
}

/// A stack sample with room for both stacks and Interpreted frames.
#[repr(C)]
pub(crate) struct SampleScratch {
    pub(crate) sample: Sample,
    pub(crate) frames: [u64; 2 * FRAMES_MAX + 2],
    /// The frames above go on here.
    pub(crate) interpreted: [InterpretedFrame; INTERPRETED_FRAMES_MAX],
    /// The walk over the user stack.
    pub(crate) walk: crate::unwind::Walk,
}

const _: () = assert!(size_of::<Walk>() <= size_of::<Op>());

/// The area of programs that run with interrupts off, which none of them interrupts: the sampler, and those in the scheduler.
pub(crate) const ATOMIC: u32 = 0;
/// The area of the program at calls, which those interrupt (`call_stack.rs`).
pub(crate) const CALL: u32 = 1;
/// How many there are.
pub(crate) const AREAS: u32 = 2;

/// Where stacks are walked into: [`ATOMIC`] or [`CALL`].
#[map]
pub(crate) static SAMPLE_SCRATCH: PerCpuArray<SampleScratch> = PerCpuArray::with_max_entries(AREAS, 0);
