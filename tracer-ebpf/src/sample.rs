//! Stacks, sampled by a per-CPU clock.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_USER_STACK,
    helpers::generated::{bpf_get_smp_processor_id, bpf_get_stack, bpf_ktime_get_ns},
    macros::perf_event,
    programs::PerfEventContext,
};
use tracer_common::{
    event::{Header, Kind, Sample},
    limits::FRAMES_MAX,
    lost::Lost,
};

use crate::{bound, emit, kernel::task::Task, policy, sched, scratch::SAMPLE_SCRATCH, storage::THREADS};

const STACK_BYTES: u64 = (FRAMES_MAX * 8) as u64;

/// hook: perf_event cpu-clock. First seen: 5.10. Emits [`Sample`], and the books of threads that never switch.
#[perf_event]
pub(crate) fn sample(ctx: PerfEventContext) -> u32 {
    let task = Task::current();
    let tid = task.tid();
    if tid == 0 {
        return 0;
    }
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let kernel_thread = task.is_kernel();
    let mut cpu_nanos = 0;
    if !kernel_thread {
        let thread = THREADS.get(task.0, true);
        if thread.is_null() {
            emit::count(Lost::ThreadStorage);
        } else {
            // SAFETY: not null; it runs on this CPU, interrupted.
            cpu_nanos = sched::running(task, unsafe { &mut *thread }, now).cpu;
        }
    }
    let period = policy::sample_period();
    if period == 0 {
        return 0;
    }
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: a per-CPU area of this program with room for both stacks.
    unsafe {
        let frames = (&raw mut (*scratch).frames).cast::<u8>();
        let mut user = 0;
        if !kernel_thread {
            let got = bpf_get_stack(ctx.as_ptr(), frames.cast(), STACK_BYTES as u32, BPF_F_USER_STACK as u64);
            if got < 0 {
                emit::count(Lost::Stack);
            } else {
                user = bound::at_most::<STACK_BYTES>(got as u64);
            }
        }
        let at = bound::at_most::<STACK_BYTES>(user);
        let got = bpf_get_stack(ctx.as_ptr(), frames.add(at as usize).cast(), STACK_BYTES as u32, 0);
        let kernel = if got < 0 { 0 } else { bound::at_most::<STACK_BYTES>(got as u64) };
        let len = size_of::<Sample>() as u64 + bound::at_most::<{ 2 * STACK_BYTES }>(at + kernel);
        (*scratch).sample = Sample {
            header: Header {
                kind: Kind::Sample as u8,
                flags: kernel_thread as u8,
                cpu: bpf_get_smp_processor_id() as u16,
                len: len as u32,
                nanos: now,
                tgid: task.tgid(),
                tid,
            },
            cpu_nanos,
            period,
            user: (user / 8) as u16,
            kernel: (kernel / 8) as u16,
            reserved: 0,
        };
        emit::sample(ptr::from_ref(&*scratch).cast(), len);
    }
    0
}
