//! Where threads that hold a request wait: the stack is walked when the thread leaves the CPU, and reported with the time
//! it took once the thread runs again, if that was long enough.
//!
//! Only the leaving thread's own memory can be read at a switch, so a stack cannot be taken when the wait is over.

pub(crate) mod waking;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_USER_STACK,
    helpers::generated::{bpf_get_smp_processor_id, bpf_get_stack, bpf_probe_read_kernel},
    macros::{btf_map, btf_tracepoint, map},
    maps::{PerCpuArray, ProgramArray},
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{Header, Kind, OFF_CPU_NO_STACK, OFF_CPU_UNINTERRUPTIBLE, OffCpu},
    interpreter::{INTERPRETED_FRAMES_MAX, InterpretedFrame},
    limits::{FRAMES_MAX, OFF_CPU_STACKS},
    lost::Lost,
    off_cpu::{NO_SYSTEM_CALL, SOCKET},
    unwind::Outcome,
};

use crate::{
    arch, bound, emit, interpreter,
    kernel::{
        regs::Regs,
        task::{Task, peek, socket_of_file, type_of_file},
    },
    offsets::OFF_SK_COOKIE,
    own_stack, policy, profiler_cost,
    scratch::{ATOMIC, SAMPLE_SCRATCH, SampleScratch},
    stack_rate::{self, StacksTaken},
    storage::{TaskStorage, Thread},
    unwind,
};

const STACK_BYTES: u64 = (FRAMES_MAX * 8) as u64;
/// `TASK_UNINTERRUPTIBLE` (`include/linux/sched.h`).
const UNINTERRUPTIBLE: u32 = 2;

/// A thread's current wait.
#[repr(C)]
pub(crate) struct Wait {
    /// Whether the thread sleeps; 0 = others run in its place.
    sleeps: u64,
    /// What becomes the record, except for the times.
    record: OffCpu,
    frames: [u64; FRAMES_MAX + 1],
}

#[btf_map]
static WAITS: TaskStorage<Wait> = TaskStorage::new();

const INTERPRETED_BYTES: u64 = (INTERPRETED_FRAMES_MAX * size_of::<InterpretedFrame>()) as u64;

/// Interpreted frames of a thread's current wait: only threads that have any need the room.
#[repr(C)]
pub(crate) struct InterpretedWait {
    frames: [InterpretedFrame; INTERPRETED_FRAMES_MAX],
}

#[btf_map]
static INTERPRETED_WAITS: TaskStorage<InterpretedWait> = TaskStorage::new();

/// Tail-called by the program at switches. Most switches need nothing of it, and a second program on that hook would cost each of
/// them its call, another reading of the clock and another look for the thread's record.
#[map]
static OFF_CPU: ProgramArray = ProgramArray::with_max_entries(1, 0);

#[map]
static OFF_CPU_TAKEN: PerCpuArray<StacksTaken> = PerCpuArray::with_max_entries(1, 0);

/// What the program at switches knows of the switch under way: what it looked up already is not looked up again.
#[repr(C)]
struct SwitchFacts {
    now: u64,
    /// Whether a wait of the thread that leaves begins.
    waits: u64,
    /// Whether the thread that comes has a wait to report, and its [`Thread::left`] and [`Thread::woken`].
    is_back: u64,
    left: u64,
    woken: u64,
}

#[map]
static SWITCH_FACTS: PerCpuArray<SwitchFacts> = PerCpuArray::with_max_entries(1, 0);

/// Whether the thread of this record, which is about to run, has a wait to report: one of `threshold` nanoseconds. Forgets a shorter
/// one.
#[inline(always)]
pub(crate) fn is_back(thread: &mut Thread, threshold: u64, now: u64) -> bool {
    let (left, woken) = (thread.left, thread.woken);
    if left | woken == 0 {
        return false;
    }
    thread.left = 0;
    thread.woken = 0;
    if left == 0 || now.saturating_sub(left) < threshold {
        return false;
    }
    let Some(facts) = SWITCH_FACTS.get_ptr_mut(0) else { return false };
    // SAFETY: this CPU's element; interrupts are off in the scheduler.
    unsafe {
        (*facts).left = left;
        (*facts).woken = woken;
    }
    true
}

/// Hands the switch under way at `now` to the program here; returns if there is none.
#[inline(always)]
pub(crate) fn go_on(ctx: &BtfTracePointContext, now: u64, waits: bool, is_back: bool) {
    let Some(facts) = SWITCH_FACTS.get_ptr_mut(0) else { return };
    // SAFETY: this CPU's element, as above; the array holds only programs for this hook.
    unsafe {
        (*facts).now = now;
        (*facts).waits = waits as u64;
        (*facts).is_back = is_back as u64;
        OFF_CPU.tail_call(ctx, 0);
    }
}

/// hook: tp_btf sched_switch(preempt, prev, next, prev_state), tail-called by [`crate::sched::switch`] if a wait of the thread that
/// leaves begins or the one that comes has a wait to report. Emits [`OffCpu`].
#[btf_tracepoint(function = "sched_switch")]
pub(crate) fn off_cpu(ctx: BtfTracePointContext) -> i32 {
    own_stack::keep(&ctx, &OFF_CPU);
    let Some(facts) = SWITCH_FACTS.get_ptr(0) else { return 0 };
    // SAFETY: this CPU's element, written just now.
    let facts = unsafe { &*facts };
    let now = facts.now;
    let reported = facts.is_back != 0 && came(Task(ctx.arg(2)), facts);
    let walked = facts.waits != 0 && went(&ctx, now);
    if reported || walked {
        profiler_cost::off_cpu(now, walked);
    }
    0
}

/// The running thread leaves the CPU, and a wait begins: notes it; whether its stack was taken.
#[inline(always)]
fn went(ctx: &BtfTracePointContext, now: u64) -> bool {
    let prev = Task(ctx.arg(1));
    let preempt: u8 = ctx.arg(0);
    let state: u32 = ctx.arg(3);
    let sleeps = preempt & 1 == 0 && state != 0;
    left(prev, sleeps, state).is_some_and(|wait| stack(ctx, prev, wait, now))
}

/// `prev` leaves the CPU: notes why.
#[inline(always)]
fn left(prev: Task, sleeps: bool, state: u32) -> Option<*mut Wait> {
    let wait = WAITS.get(prev.0, true);
    if wait.is_null() {
        emit::count(Lost::ThreadStorage);
        return None;
    }
    let regs = Regs::of(prev);
    let nr = regs.nr();
    let in_call = (nr as i64) >= 0 && nr < NO_SYSTEM_CALL as u64;
    // Only what moves bytes by a descriptor needs to know what that is: finding out takes longer than all the rest.
    let open = if sleeps && in_call && arch::names_file(nr as u16) { prev.file_of(regs.arg0() as u32) } else { 0 };
    let file = type_of_file(open);
    let socket = if file == SOCKET { peek(socket_of_file(open), OFF_SK_COOKIE.load()) } else { 0 };
    // SAFETY: not null; `prev` is leaving this CPU and runs nowhere else.
    unsafe {
        (*wait).sleeps = sleeps as u64;
        (*wait).record.syscall = if in_call { nr as u16 } else { NO_SYSTEM_CALL };
        (*wait).record.file = file;
        (*wait).record.socket = socket;
        (*wait).record.flags = if state & UNINTERRUPTIBLE != 0 { OFF_CPU_UNINTERRUPTIBLE } else { 0 };
        (*wait).record.user = 0;
        (*wait).record.interpreted = 0;
        (*wait).record.interpreter_outcome = 0;
        (*wait).record.outcome = Outcome::FramePointers as u16;
    }
    Some(wait)
}

/// Takes the stack of `prev`, if chance chooses it; whether it did.
#[inline(always)]
fn stack(ctx: &BtfTracePointContext, prev: Task, wait: *mut Wait, now: u64) -> bool {
    if !stack_rate::is_chosen(&OFF_CPU_TAKEN, policy::off_cpu_share(), OFF_CPU_STACKS, now) {
        // SAFETY: as in `left`.
        unsafe { (*wait).record.flags |= OFF_CPU_NO_STACK };
        return false;
    }
    // SAFETY: as in `left`; the scratch area is the sampler's, whose clock cannot interrupt here: interrupts are off.
    unsafe {
        let frames = (&raw mut (*wait).frames).cast::<u8>();
        let (mut bytes, mut outcome) = (0, Outcome::FramePointers as u64);
        if unwind::possible() && policy::unwind() {
            let (n, ended) = unwind::walk(prev, ATOMIC, now);
            outcome = ended;
            bytes = bound::at_most::<STACK_BYTES>(n * 8);
            if let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) {
                bpf_probe_read_kernel(frames.cast(), bytes as u32, (&raw const (*scratch).frames).cast());
            }
        } else {
            let got = bpf_get_stack(ctx.as_ptr(), frames.cast(), STACK_BYTES as u32, BPF_F_USER_STACK as u64);
            if got < 0 {
                emit::count(Lost::Stack);
            } else {
                bytes = bound::at_most::<STACK_BYTES>(got as u64);
            }
        }
        unwind::count(outcome);
        (*wait).record.user = (bytes / 8) as u16;
        (*wait).record.outcome = outcome as u16;
    }
    interpreted(prev, wait);
    true
}

/// Takes the interpreted frames of `prev`, if it has any.
#[inline(always)]
fn interpreted(prev: Task, wait: *mut Wait) {
    let walked = interpreter::walk(prev, ATOMIC);
    let bytes = bound::at_most::<INTERPRETED_BYTES>((walked & 0xffff_ffff) * size_of::<InterpretedFrame>() as u64);
    // SAFETY: as in `left`.
    unsafe { (*wait).record.interpreter_outcome = (walked >> 32) as u8 };
    if bytes == 0 {
        return;
    }
    let kept = INTERPRETED_WAITS.get(prev.0, true);
    if kept.is_null() {
        emit::count(Lost::ThreadStorage);
        return;
    }
    let Some(found) = interpreter::found(ATOMIC) else { return };
    // SAFETY: not null, and as in `left`; what was found on this CPU just now.
    unsafe {
        bpf_probe_read_kernel((&raw mut (*kept).frames).cast(), bytes as u32, found.cast());
        (*wait).record.interpreted = (bytes / size_of::<InterpretedFrame>() as u64) as u8;
    }
}

/// `next` runs again: reports its wait; whether it did.
#[inline(always)]
fn came(next: Task, facts: &SwitchFacts) -> bool {
    let wait = WAITS.get(next.0, false);
    if wait.is_null() {
        return false;
    }
    let (now, left, woken) = (facts.now, facts.left, facts.woken);
    // SAFETY: not null; `next` is about to run here and nowhere else.
    unsafe {
        let woken = match ((*wait).sleeps, woken) {
            (0, _) => left,
            (_, 0) => now,
            // It was woken while it was leaving.
            (_, woken) if woken < left => left,
            (_, woken) => woken,
        };
        let frames = bound::at_most::<{ FRAMES_MAX as u64 }>((*wait).record.user as u64);
        let own = size_of::<OffCpu>() as u64 + frames * 8;
        let interpreted = (*wait).record.interpreted as u64 * size_of::<InterpretedFrame>() as u64;
        let interpreted = bound::at_most::<INTERPRETED_BYTES>(interpreted);
        let len = own + interpreted;
        let record = &mut (*wait).record;
        if record.flags & OFF_CPU_NO_STACK != 0 {
            emit::count(Lost::OffCpuStack);
        }
        record.blocked = woken.saturating_sub(left);
        record.run_queue = now.saturating_sub(woken);
        record.header = Header {
            kind: Kind::OffCpu as u8,
            flags: 0,
            // SAFETY: no argument.
            cpu: bpf_get_smp_processor_id() as u16,
            len: len as u32,
            nanos: now,
            tgid: next.tgid(),
            tid: next.tid(),
        };
        if interpreted == 0 {
            emit::sample((&raw const (*wait).record).cast(), own, Lost::RingOffCpu);
        } else {
            together(next, wait, own, interpreted);
        }
    }
    true
}

/// Emits a wait of `own` bytes with `interpreted` bytes of interpreted frames behind it.
#[inline(never)]
fn together(next: Task, wait: *const Wait, own: u64, interpreted: u64) -> u64 {
    const OWN: u64 = (size_of::<OffCpu>() + FRAMES_MAX * 8) as u64;
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(ATOMIC) else { return 0 };
    let kept = INTERPRETED_WAITS.get(next.0, false);
    if kept.is_null() {
        return 0;
    }
    let (own, interpreted) = (bound::at_most::<OWN>(own), bound::at_most::<INTERPRETED_BYTES>(interpreted));
    let len = bound::at_most::<{ OWN + INTERPRETED_BYTES }>(own + interpreted);
    // SAFETY: a per-CPU area with room for both, whose users do not interrupt this; not null.
    unsafe {
        let to = scratch.cast::<u8>();
        bpf_probe_read_kernel(to.cast(), own as u32, (&raw const (*wait).record).cast());
        bpf_probe_read_kernel(to.add(own as usize).cast(), interpreted as u32, (&raw const (*kept).frames).cast());
        emit::sample(to.cast_const().cast(), len, Lost::RingOffCpu);
    }
    len
}

const _: () = assert!(size_of::<OffCpu>() + FRAMES_MAX * 8 + INTERPRETED_BYTES as usize <= size_of::<SampleScratch>());
