//! CPU and waiting time per thread, idle and kernel time per CPU.

use core::ptr;

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{btf_tracepoint, map},
    maps::PerCpuArray,
    programs::BtfTracePointContext,
};
use tracer_common::{
    arch::Wait,
    event::{Books, Header, Kind, TICK_DEAD, TICK_RUNNING, Tick},
    limits::{TICK_CPU_NANOS, TICK_NANOS},
    lost::Lost,
    policy::CpuBooks,
};

use crate::{
    arch, emit,
    kernel::{
        regs::Regs,
        task::{TASK_DEAD, Task},
    },
    storage::{OFF_BLOCKED, OFF_IDLE, OFF_PREEMPTED, THREADS, Thread},
};

/// Per CPU: when the running thread was switched in, and where the time went. User space seeds `switch_in`.
#[map]
static CPUS: PerCpuArray<CpuBooks> = PerCpuArray::with_max_entries(1, 0);

/// Nanoseconds of the running slice so far.
#[inline(always)]
fn slice(now: u64) -> u64 {
    // SAFETY: this CPU's element.
    let since = CPUS.get_ptr(0).map_or(0, |cpu| unsafe { (*cpu).switch_in });
    if since == 0 { 0 } else { now.saturating_sub(since) }
}

/// The running thread's books at `now`, its running slice included.
#[inline(always)]
pub(crate) fn books(thread: &Thread, now: u64) -> Books {
    Books { cpu: thread.cpu + slice(now), ..stored(thread) }
}

#[inline(always)]
fn stored(thread: &Thread) -> Books {
    Books {
        cpu: thread.cpu,
        runq: thread.runq,
        blocked: thread.blocked,
        idle_cpu: thread.idle_cpu,
        idle_end: thread.idle_end,
        switches: thread.switches,
        idles: thread.idles,
        polls: thread.polls,
        reads: thread.reads,
    }
}

/// hook: tp_btf sched_switch(preempt, prev, next, prev_state). First seen with prev_state: 6.1. Emits [`Tick`] now
/// and then.
#[btf_tracepoint(function = "sched_switch")]
pub(crate) fn switch(ctx: BtfTracePointContext) -> i32 {
    let preempt: u8 = ctx.arg(0);
    let state: u32 = ctx.arg(3);
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(cpu) = CPUS.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's element; interrupts are off in the scheduler.
    let cpu = unsafe { &mut *cpu };
    let ran = if cpu.switch_in == 0 { 0 } else { now.saturating_sub(cpu.switch_in) };
    cpu.switch_in = now;
    cpu.switches += 1;

    let prev = Task(ctx.arg(1));
    if prev.tid() == 0 {
        cpu.idle += ran;
    } else if prev.is_kernel() {
        cpu.kernel += ran;
    } else {
        cpu.user += ran;
        leave(prev, ran, now, preempt & 1 != 0, state);
    }
    let next = THREADS.get(Task(ctx.arg(2)).0, false);
    if !next.is_null() {
        // SAFETY: not null; `next` is about to run here and nowhere else.
        enter(unsafe { &mut *next }, now);
    }
    0
}

#[inline(always)]
fn leave(prev: Task, ran: u64, now: u64, preempt: bool, state: u32) {
    let thread = THREADS.get(prev.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return;
    }
    // SAFETY: not null; `prev` is leaving this CPU and runs nowhere else.
    let thread = unsafe { &mut *thread };
    thread.cpu += ran;
    thread.switches += 1;
    thread.off = now;
    thread.woken = 0;
    thread.off_kind = if preempt || state == 0 {
        OFF_PREEMPTED
    } else {
        match arch::wait(Regs::of(prev).nr()) {
            Wait::Poll => {
                thread.idle_cpu = thread.cpu;
                thread.idles += 1;
                thread.polls += 1;
                OFF_IDLE
            }
            Wait::Work => {
                thread.idle_cpu = thread.cpu;
                thread.idles += 1;
                OFF_IDLE
            }
            Wait::Other => OFF_BLOCKED,
        }
    };
    let dead = state & TASK_DEAD != 0;
    if dead || due(thread, thread.cpu, now) {
        tick(prev, thread, stored(thread), now, if dead { TICK_DEAD } else { 0 });
    }
}

#[inline(always)]
fn enter(thread: &mut Thread, now: u64) {
    if thread.off == 0 {
        return;
    }
    if thread.off_kind == OFF_PREEMPTED {
        thread.runq += now.saturating_sub(thread.off);
    } else {
        let woken = if thread.woken == 0 { now } else { thread.woken };
        thread.blocked += woken.saturating_sub(thread.off);
        thread.runq += now.saturating_sub(woken);
        if thread.off_kind == OFF_IDLE {
            thread.idle_end = now;
        }
    }
    thread.off = 0;
    thread.woken = 0;
}

/// hook: tp_btf sched_waking(task). First seen: 5.10. Emits nothing: remembers when a sleeper became runnable.
#[btf_tracepoint(function = "sched_waking")]
pub(crate) fn waking(ctx: BtfTracePointContext) -> i32 {
    let thread = THREADS.get(Task(ctx.arg(0)).0, false);
    if thread.is_null() {
        return 0;
    }
    // SAFETY: not null; a race with the thread's own switch costs at most one split of waiting time.
    let thread = unsafe { &mut *thread };
    if thread.off != 0 && thread.woken == 0 && thread.off_kind != OFF_PREEMPTED {
        // SAFETY: no argument.
        thread.woken = unsafe { bpf_ktime_get_ns() };
    }
    0
}

/// Whether the thread has something to report and has not for long enough.
#[inline(always)]
fn due(thread: &Thread, cpu: u64, now: u64) -> bool {
    let unreported = cpu.saturating_sub(thread.reported_cpu);
    unreported > TICK_CPU_NANOS || (unreported > 0 && now.saturating_sub(thread.reported_at) > TICK_NANOS)
}

/// Reports a thread that never leaves the CPU; called by the sampler.
#[inline(always)]
pub(crate) fn running(task: Task, thread: &mut Thread, now: u64) -> Books {
    let books = books(thread, now);
    if due(thread, books.cpu, now) {
        tick(task, thread, books, now, TICK_RUNNING);
    }
    books
}

#[inline(always)]
fn tick(task: Task, thread: &mut Thread, books: Books, now: u64, flags: u8) {
    thread.reported_cpu = books.cpu;
    thread.reported_at = now;
    let record = Tick {
        header: Header {
            kind: Kind::Tick as u8,
            flags,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Tick>() as u32,
            nanos: now,
            tgid: task.tgid(),
            tid: task.tid(),
        },
        comm: task.comm(),
        books,
    };
    emit::event(ptr::from_ref(&record).cast(), size_of::<Tick>() as u64, Lost::RingThread);
}
