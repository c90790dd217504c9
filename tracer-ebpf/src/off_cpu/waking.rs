//! When a wait ended, and the code that ended it: the stack of the thread that wakes another from a futex, as it does when
//! it releases a lock.
//!
//! The stack is taken of the waits that have one of their own and were long enough to be reported; it reaches user space
//! before them.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel},
    macros::{btf_tracepoint, map},
    maps::ProgramArray,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{Header, Kind, OFF_CPU_NO_STACK, Sample, WaitEnd},
    interpreter::{INTERPRETED_FRAMES_MAX, InterpretedFrame},
    limits::FRAMES_MAX,
    lost::Lost,
};

use super::WAITS;
use crate::{
    bound, emit, interpreter,
    kernel::task::Task,
    own_stack, policy, profiler_cost,
    scratch::{ATOMIC, SAMPLE_SCRATCH},
    storage::THREADS,
    unwind,
};

const STACK_BYTES: u64 = (FRAMES_MAX * 8) as u64;
const INTERPRETED_BYTES: u64 = (INTERPRETED_FRAMES_MAX * size_of::<InterpretedFrame>()) as u64;

// The record takes the place of the sample in the scratch area, and its frames those of the sample.
const _: () = assert!(size_of::<WaitEnd>() == size_of::<Sample>());

/// Tail-called by the program at wake-ups.
#[map]
static OFF_CPU_WAKING: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Notes that `wakee`, which is about to run but does not yet, is woken; whether the waker's stack is wanted if it wakes it by a futex.
#[inline(always)]
pub(crate) fn note(wakee: Task) -> bool {
    let threshold = policy::off_cpu();
    if threshold == 0 {
        return false;
    }
    let thread = THREADS.get(wakee.0, false);
    if thread.is_null() {
        return false;
    }
    // SAFETY: not null; the thread is about to run, but does not yet.
    let thread = unsafe { &mut *thread };
    // One that holds a request may be leaving the CPU of another thread right now.
    if thread.left == 0 && thread.holds == 0 {
        return false;
    }
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    thread.woken = now;
    if thread.left == 0 || now.saturating_sub(thread.left) < threshold || !unwind::possible() || !policy::unwind() {
        return false;
    }
    let wait = WAITS.get(wakee.0, false);
    // SAFETY: looked at only if not null.
    !wait.is_null() && unsafe { (*wait).record.flags } & OFF_CPU_NO_STACK == 0
}

/// Hands the wake-up under way to the program here; returns if there is none.
#[inline(always)]
pub(crate) fn go_on(ctx: &BtfTracePointContext) {
    // SAFETY: the array holds only programs for this hook.
    unsafe { OFF_CPU_WAKING.tail_call(ctx, 0) };
}

/// hook: tp_btf sched_waking(p), tail-called by [`crate::thread_pool::waking`] once [`note`] wanted it. Emits [`WaitEnd`].
#[btf_tracepoint(function = "sched_waking")]
pub(crate) fn off_cpu_waking(ctx: BtfTracePointContext) -> i32 {
    own_stack::keep(&ctx, &OFF_CPU_WAKING);
    let wakee = Task(ctx.arg(0));
    let thread = THREADS.get(wakee.0, false);
    if thread.is_null() || !unwind::possible() {
        return 0;
    }
    // SAFETY: not null; `note` wrote it just now.
    let (left, now) = unsafe { ((*thread).left, (*thread).woken) };
    stack(Task::current(), wakee, left, now);
    0
}

/// Takes the stack of `waker`, which runs here and ends the wait of `wakee` since `left`.
#[inline(always)]
fn stack(waker: Task, wakee: Task, left: u64, now: u64) {
    let (frames, outcome) = unwind::walk(waker, ATOMIC, now);
    unwind::count(outcome);
    let found = interpreter::walk(waker, ATOMIC);
    if let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) {
        // SAFETY: the users of this per-CPU area do not interrupt it: interrupts are off while a thread is woken.
        let record = unsafe { &mut *(&raw mut (*scratch).sample).cast::<WaitEnd>() };
        record.left = left;
        record.wakee = wakee.tid();
        record.wakee_tgid = wakee.tgid();
        record.outcome = outcome as u16;
        record.interpreter_outcome = (found >> 32) as u8;
    }
    send(waker, now, frames, found & 0xffff_ffff);
    profiler_cost::off_cpu_waker(now);
}

/// Completes the record in the scratch area, with this many `frames` and `interpreted` ones, and emits it.
#[inline(never)]
fn send(waker: Task, now: u64, frames: u64, interpreted: u64) -> u64 {
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) else { return 0 };
    let user = bound::at_most::<STACK_BYTES>(frames * 8);
    let interpreted = bound::at_most::<INTERPRETED_BYTES>(interpreted * size_of::<InterpretedFrame>() as u64);
    let len = size_of::<WaitEnd>() as u64 + bound::at_most::<{ STACK_BYTES + INTERPRETED_BYTES }>(user + interpreted);
    // SAFETY: as above, and what was found on this CPU just now.
    unsafe {
        if interpreted != 0
            && let Some(found) = interpreter::found(ATOMIC)
        {
            let to = (&raw mut (*scratch).frames).cast::<u8>().add(user as usize);
            bpf_probe_read_kernel(to.cast(), interpreted as u32, found.cast());
        }
        let record = &mut *(&raw mut (*scratch).sample).cast::<WaitEnd>();
        record.header = Header {
            kind: Kind::WaitEnd as u8,
            flags: 0,
            cpu: bpf_get_smp_processor_id() as u16,
            len: len as u32,
            nanos: now,
            tgid: waker.tgid(),
            tid: waker.tid(),
        };
        record.user = (user / 8) as u16;
        record.interpreted = (interpreted / size_of::<InterpretedFrame>() as u64) as u8;
        record.reserved = 0;
        emit::sample(scratch.cast::<c_void>().cast_const(), len, Lost::RingOffCpu);
    }
    len
}
