//! Stacks, sampled by a clock of each CPU, and by clocks of single threads that work for slow requests.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_USER_STACK,
    helpers::generated::{
        bpf_get_attach_cookie, bpf_get_smp_processor_id, bpf_get_stack, bpf_ktime_get_ns, bpf_probe_read_kernel,
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use tracer_common::{
    event::{Header, Kind, SAMPLE_AD_HOC, SAMPLE_COUNTED, SAMPLE_KERNEL_THREAD, Sample},
    interpreter::{INTERPRETED_FRAMES_MAX, InterpretedFrame},
    limits::FRAMES_MAX,
    lost::Lost,
    unwind::Outcome,
};

use crate::{
    bound, emit, interpreter,
    kernel::task::Task,
    policy, profiler_cost, sched,
    scratch::{ATOMIC, SAMPLE_SCRATCH},
    storage::THREADS,
    unwind,
};

const STACK_BYTES: u64 = (FRAMES_MAX * 8) as u64;
const INTERPRETED_BYTES: u64 = (INTERPRETED_FRAMES_MAX * size_of::<InterpretedFrame>()) as u64;

/// hook: perf_event cpu-clock. First seen: 5.10. Emits [`Sample`], and the counters of threads that never switch.
#[perf_event]
pub(crate) fn sample(ctx: PerfEventContext) -> u32 {
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let period = policy::sample_period();
    // The clock of a single thread has its period as its cookie; that of a CPU has none. The time that a CPU's clock measures is
    // its own.
    // SAFETY: the context of a perf event.
    let of_thread = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let since = if of_thread == 0 { profiler_cost::tick(now, period) } else { of_thread };
    let task = Task::current();
    let tid = task.tid();
    if tid == 0 {
        return 0;
    }
    let kernel_thread = task.is_kernel();
    let cpu_nanos = if kernel_thread { 0 } else { charge(task, now) };
    if period == 0 {
        return 0;
    }
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) else { return 0 };
    // SAFETY: a per-CPU area of this program with room for both stacks.
    unsafe {
        (*scratch).sample.period = since;
        (*scratch).sample.header.flags = (if of_thread == 0 { 0 } else { SAMPLE_AD_HOC })
            | (if kernel_thread { SAMPLE_KERNEL_THREAD } else { 0 })
            | (if cpu_nanos & COUNTED != 0 { SAMPLE_COUNTED } else { 0 });
        let frames = (&raw mut (*scratch).frames).cast::<u8>();
        let (mut user, mut outcome) = (0, Outcome::FramePointers as u64);
        if !kernel_thread {
            if unwind::possible() && policy::unwind() {
                let (n, ended) = unwind::walk(task, ATOMIC, now);
                (user, outcome) = (bound::at_most::<STACK_BYTES>(n * 8), ended);
            } else {
                let got = bpf_get_stack(ctx.as_ptr(), frames.cast(), STACK_BYTES as u32, BPF_F_USER_STACK as u64);
                if got < 0 {
                    emit::count(Lost::Stack);
                } else {
                    user = bound::at_most::<STACK_BYTES>(got as u64);
                }
            }
        }
        if policy::tables_first() {
            // The walk asked for what it lacks, and that is all it was for.
            profiler_cost::sampled(now);
            return 0;
        }
        if !kernel_thread {
            unwind::count(outcome);
        }
        let at = bound::at_most::<STACK_BYTES>(user);
        let got = bpf_get_stack(ctx.as_ptr(), frames.add(at as usize).cast(), STACK_BYTES as u32, 0);
        let kernel = if got < 0 { 0 } else { bound::at_most::<STACK_BYTES>(got as u64) };
        (*scratch).sample.cpu_nanos = cpu_nanos & !COUNTED;
        (*scratch).sample.outcome = outcome as u16;
        let found = if kernel_thread { 0 } else { interpreter::walk(task, ATOMIC) };
        (*scratch).sample.interpreter_outcome = (found >> 32) as u8;
        send(task, now, at, kernel, found & 0xffff_ffff);
        // Read back: what is kept over the walk takes room on the stack.
        if (*scratch).sample.header.flags & SAMPLE_AD_HOC == 0 {
            profiler_cost::sampled(now);
        } else {
            profiler_cost::ad_hoc(now);
        }
    }
    0
}

/// See [`charge`].
const COUNTED: u64 = 1 << 63;

/// Charges the running thread up to `now`; its CPU so far, nanoseconds, or [`COUNTED`] and the class that its last operation
/// was counted for instead of reported. A function of its own, as [`send`] is: what either
/// keeps on the stack must not count beside the walk's, and kernels before 6.13 allow 512 bytes for all that call each other.
#[inline(never)]
fn charge(task: Task, now: u64) -> u64 {
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return 0;
    }
    // SAFETY: not null; it runs on this CPU, interrupted.
    let thread = unsafe { &mut *thread };
    let cpu = sched::running(task, thread, now).cpu;
    if thread.counted.unreported != 0 && thread.counted.class != 0 {
        COUNTED | thread.counted.class as u64
    } else {
        cpu
    }
}

/// Completes the sample in the scratch area, which has `user` and `kernel` bytes of stack, with the `interpreted` frames that were
/// found, and emits it.
#[inline(never)]
fn send(task: Task, now: u64, user: u64, kernel: u64, interpreted: u64) -> u64 {
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) else { return 0 };
    let (user, kernel) = (bound::at_most::<STACK_BYTES>(user), bound::at_most::<STACK_BYTES>(kernel));
    let stacks = bound::at_most::<{ 2 * STACK_BYTES }>(user + kernel);
    let interpreted = bound::at_most::<INTERPRETED_BYTES>(interpreted * size_of::<InterpretedFrame>() as u64);
    let len =
        size_of::<Sample>() as u64 + bound::at_most::<{ 2 * STACK_BYTES + INTERPRETED_BYTES }>(stacks + interpreted);
    // SAFETY: a per-CPU area of this program, and what was found on this CPU just now.
    unsafe {
        if interpreted != 0
            && let Some(found) = interpreter::found(ATOMIC)
        {
            let to = (&raw mut (*scratch).frames).cast::<u8>().add(stacks as usize);
            bpf_probe_read_kernel(to.cast(), interpreted as u32, found.cast());
        }
        let sample = &mut (*scratch).sample;
        sample.header = Header {
            kind: Kind::Sample as u8,
            flags: sample.header.flags,
            cpu: bpf_get_smp_processor_id() as u16,
            len: len as u32,
            nanos: now,
            tgid: task.tgid(),
            tid: task.tid(),
        };
        sample.user = (user / 8) as u16;
        sample.kernel = (kernel / 8) as u16;
        sample.interpreted = (interpreted / size_of::<InterpretedFrame>() as u64) as u8;
        emit::sample(ptr::from_ref(&*scratch).cast(), len, Lost::RingSample);
    }
    len
}
