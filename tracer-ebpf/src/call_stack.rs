//! Which line makes a call: the stack of the thread that sends a call's first bytes.
//!
//! The programs at sends only note that an operation may be one, and tail-call the program here, which decides by chance, walks the
//! stack and reports it: so neither the walk's code nor its stack count for them. Which operations really began a call, user space
//! knows, by their time and connection.
//!
//! The sampler interrupts this program, and so does the scheduler's; hence an area of its own for what is walked. A kernel that
//! can preempt the program could run it for another thread of the CPU meanwhile: that one goes without, and is counted.

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_USER_STACK,
    helpers::generated::{bpf_get_smp_processor_id, bpf_get_stack, bpf_ktime_get_ns, bpf_probe_read_kernel},
    macros::{btf_tracepoint, fexit, map},
    maps::{PerCpuArray, ProgramArray},
    programs::{BtfTracePointContext, FExitContext},
};
use tracer_common::{
    event::{CallStack, Header, Kind, Sample, THROWN},
    interpreter::{INTERPRETED_FRAMES_MAX, InterpretedFrame},
    limits::{CALL_STACKS, FRAMES_MAX},
    lost::Lost,
    unwind::Outcome,
};

use crate::{
    bound::{self, less},
    emit, interpreter,
    kernel::{sock::SockPtr, task::Task},
    own_stack, policy, profiler_cost, ring,
    scratch::{CALL, SAMPLE_SCRATCH},
    stack_rate::{self, StacksTaken},
    storage::{SOCK_ACTIVE, SOCK_FRAMES, SOCKS, Sock, THREADS, Thread},
    unwind,
};

const STACK_BYTES: u64 = (FRAMES_MAX * 8) as u64;
const INTERPRETED_BYTES: u64 = (INTERPRETED_FRAMES_MAX * size_of::<InterpretedFrame>()) as u64;
/// The record lies before the frames, where a sample would end.
const BEFORE: usize = size_of::<Sample>() - size_of::<CallStack>();

/// Tail-called after a send.
#[map]
static CALL_STACK: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// The same for UNIX sockets with a hook of their own.
#[map]
static CALL_STACK_UNIX: ProgramArray = ProgramArray::with_max_entries(1, 0);

#[map]
static CALL_STACKS_TAKEN: PerCpuArray<StacksTaken> = PerCpuArray::with_max_entries(1, 0);

/// 1: the CPU's area is in use.
#[map]
static CALL_STACK_BUSY: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Operations of a young connection, among which a second send in a row counts as one that may begin a call: behind the last
/// message of a TLS handshake comes the first request.
const YOUNG: u32 = 32;

/// Notes the send at `now` if stacks are wanted (`share`), this end connected, and the send is one of the first two in its
/// direction, or several calls are under way at once. Without jumps, so that the verifier follows one path.
#[inline(always)]
pub(crate) fn note(share: u32, thread: &mut Thread, sock: &Sock, now: u64) {
    let is = |flag: u32| (sock.flags / flag & 1) as u64;
    let is_early = less(sock.run as u64, 2) | is(SOCK_FRAMES);
    thread.calls_at = now * (less(0, share as u64) & is(SOCK_ACTIVE) & is_early);
}

/// Whether a noted send may begin a call.
#[inline(always)]
fn may_begin(sock: &Sock) -> bool {
    sock.run == 0 || sock.flags & SOCK_FRAMES != 0 || sock.ops < YOUNG
}

/// Hands the send under way to the program that takes its stack, if that was noted; returns if there is none.
#[inline(always)]
pub(crate) fn go_on<const UNIX: bool>(ctx: &impl EbpfContext, thread: *const Thread) {
    // SAFETY: the current thread's own record.
    if unsafe { (&raw const (*thread).calls_at).read_volatile() } != 0 {
        let array = if UNIX { &CALL_STACK_UNIX } else { &CALL_STACK };
        // SAFETY: the array holds only programs for this hook.
        unsafe { array.tail_call(ctx, 0) };
    }
}

/// As [`go_on`], from a program that was itself tail-called for the send.
#[inline(always)]
pub(crate) fn go_on_of_current<const UNIX: bool>(ctx: &impl EbpfContext) {
    let thread = THREADS.get(Task::current().0, false);
    if !thread.is_null() {
        go_on::<UNIX>(ctx, thread);
    }
}

/// hook: tp_btf sock_send_length(sk, ret, flags), tail-called by the programs at sends. Emits [`CallStack`].
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn call_stack(ctx: BtfTracePointContext) -> i32 {
    take(&ctx, &CALL_STACK, SockPtr(ctx.arg(0)));
    0
}

/// hook: fexit (socket, msg, size) → int. As [`call_stack`].
#[fexit(function = "inet_sendmsg")]
pub(crate) fn call_stack_sent(ctx: FExitContext) -> i32 {
    if let Some(sk) = SockPtr::of_socket(ctx.arg(0)) {
        take(&ctx, &CALL_STACK, sk);
    }
    0
}

/// hook: fexit (socket, msg, size) → int. As [`call_stack`].
#[fexit(function = "unix_stream_sendmsg")]
pub(crate) fn call_stack_unix_sent(ctx: FExitContext) -> i32 {
    if let Some(sk) = SockPtr::of_socket(ctx.arg(0)) {
        take(&ctx, &CALL_STACK_UNIX, sk);
    }
    0
}

/// Takes the stack of the running thread, which has sent on `sk`, if chance chooses it. `array`: where this program is called
/// from.
#[inline(always)]
fn take(ctx: &impl EbpfContext, array: &ProgramArray, sk: SockPtr) {
    own_stack::keep(ctx, array);
    let task = Task::current();
    let (thread, sock) = (THREADS.get(task.0, false), SOCKS.get(sk.0, false));
    if thread.is_null() || sock.is_null() {
        return;
    }
    // SAFETY: not null; the current thread's own record, and words of the socket's that other threads may change.
    let (at, cookie, may_begin) = unsafe { ((*thread).calls_at, (*sock).cookie, may_begin(&*sock)) };
    // SAFETY: as above.
    unsafe { (*thread).calls_at = 0 };
    if !may_begin {
        return;
    }
    // SAFETY: no argument.
    let begin = unsafe { bpf_ktime_get_ns() };
    if !stack_rate::is_chosen(&CALL_STACKS_TAKEN, policy::call_share(), CALL_STACKS, begin) {
        emit::count(Lost::CallStack);
        return;
    }
    let Some(area) = Area::take() else { return };
    stack(ctx, task, cookie, at);
    area.give_back();
    profiler_cost::call_stack(begin);
}

/// Takes the stack of `task`, which runs here and threw an exception at `at`; the program began at `begin`.
#[inline(always)]
pub(crate) fn take_thrown(ctx: &impl EbpfContext, task: Task, at: u64, begin: u64) {
    let Some(area) = Area::take() else { return };
    stack(ctx, task, THROWN, at);
    area.give_back();
    profiler_cost::call_stack(begin);
}

/// As [`take_thrown`], of the frames of a traceback of Python.
#[inline(always)]
pub(crate) fn take_traceback(task: Task, at: u64, begin: u64, traceback: u64, minor: u64) {
    let Some(area) = Area::take() else { return };
    let found = interpreter::walk_traceback(CALL, traceback, minor);
    if let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(CALL) {
        // SAFETY: this CPU's area, which this program holds.
        unsafe {
            let record = scratch.cast::<u8>().add(BEFORE).cast::<CallStack>();
            (*record).cookie = THROWN;
            (*record).outcome = Outcome::Complete as u16;
            (*record).interpreter_outcome = (found >> 32) as u8;
        }
        send(task, at, 0, found & 0xffff_ffff);
    }
    area.give_back();
    profiler_cost::call_stack(begin);
}

/// The CPU's area, which one program holds at a time.
struct Area(*mut u64);

impl Area {
    /// `None`, and counted: another thread's program holds it.
    #[inline(always)]
    fn take() -> Option<Self> {
        let busy = CALL_STACK_BUSY.get_ptr_mut(0)?;
        if ring::swap(busy, 0, 1) != 0 {
            emit::count(Lost::CallStack);
            return None;
        }
        Some(Self(busy))
    }

    #[inline(always)]
    fn give_back(self) {
        // SAFETY: this CPU's element, which this program holds.
        unsafe { self.0.write_volatile(0) };
    }
}

/// Walks the stack of `task`, which runs here, and reports it with the time of its send.
#[inline(always)]
fn stack(ctx: &impl EbpfContext, task: Task, cookie: u64, at: u64) {
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(CALL) else { return };
    let (frames, outcome) = if unwind::possible() && policy::unwind() {
        unwind::walk(task, CALL, at)
    } else {
        // SAFETY: the area has room for the stack.
        let got = unsafe {
            let frames = (&raw mut (*scratch).frames).cast();
            bpf_get_stack(ctx.as_ptr(), frames, STACK_BYTES as u32, BPF_F_USER_STACK as u64)
        };
        if got < 0 {
            emit::count(Lost::Stack);
        }
        (if got < 0 { 0 } else { got as u64 / 8 }, Outcome::FramePointers as u64)
    };
    unwind::count(outcome);
    let found = interpreter::walk(task, CALL);
    // SAFETY: this CPU's area, which this program holds.
    unsafe {
        let record = scratch.cast::<u8>().add(BEFORE).cast::<CallStack>();
        (*record).cookie = cookie;
        (*record).outcome = outcome as u16;
        (*record).interpreter_outcome = (found >> 32) as u8;
    }
    send(task, at, frames, found & 0xffff_ffff);
}

/// Completes the record in the area, with this many `frames` and `interpreted` ones, and emits it. A function of its own: its stack
/// does not count beside the walk's.
#[inline(never)]
fn send(task: Task, at: u64, frames: u64, interpreted: u64) -> u64 {
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(CALL) else { return 0 };
    let user = bound::at_most::<STACK_BYTES>(frames * 8);
    let interpreted = bound::at_most::<INTERPRETED_BYTES>(interpreted * size_of::<InterpretedFrame>() as u64);
    let len = size_of::<CallStack>() as u64 + bound::at_most::<{ STACK_BYTES + INTERPRETED_BYTES }>(user + interpreted);
    // SAFETY: as above, and what was found on this CPU just now.
    unsafe {
        if interpreted != 0
            && let Some(found) = interpreter::found(CALL)
        {
            let to = (&raw mut (*scratch).frames).cast::<u8>().add(user as usize);
            bpf_probe_read_kernel(to.cast(), interpreted as u32, found.cast());
        }
        let place = scratch.cast::<u8>().add(BEFORE);
        let record = &mut *place.cast::<CallStack>();
        record.header = Header {
            kind: Kind::CallStack as u8,
            flags: 0,
            cpu: bpf_get_smp_processor_id() as u16,
            len: len as u32,
            nanos: at,
            tgid: task.tgid(),
            tid: task.tid(),
        };
        record.user = (user / 8) as u16;
        record.interpreted = (interpreted / size_of::<InterpretedFrame>() as u64) as u8;
        record.reserved = 0;
        emit::sample(place.cast_const().cast(), len, Lost::RingCallStack);
    }
    len
}
