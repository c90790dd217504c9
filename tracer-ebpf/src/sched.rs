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
    policy::{CpuBooks, RUNS_IDLE, RUNS_KERNEL, RUNS_USER},
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

/// The running thread's books at `now`, its running slice included as far as it was seen: the scheduler's own figure
/// is added when the slice ends.
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
    cpu.switches += 1;

    let prev = Task(ctx.arg(1));
    // Otherwise it runs since before tracing began, or since a switch that was not reported: some kernels do not report
    // those of some tasks. Then it is charged what was seen, and the rest when it is seen next.
    let known = cpu.task == prev.0 as u64;
    match if known { cpu.runs } else { kind(prev) } {
        RUNS_IDLE => cpu.idle += ran as i64,
        RUNS_KERNEL => {
            let used = if known { prev.exec().saturating_sub(cpu.exec_in) } else { ran };
            cpu.kernel += used;
            cpu.idle += ran.wrapping_sub(used) as i64;
        }
        _ => {
            let exec = prev.exec();
            let used =
                leave(prev, exec, if known { cpu.exec_in } else { exec.saturating_sub(ran) }, now, preempt, state);
            cpu.user += used;
            cpu.idle += ran.wrapping_sub(used) as i64;
        }
    }

    let next = Task(ctx.arg(2));
    cpu.switch_in = now;
    cpu.task = next.0 as u64;
    cpu.runs = kind(next);
    if cpu.runs == RUNS_IDLE {
        return 0;
    }
    cpu.exec_in = next.exec();
    if cpu.runs == RUNS_USER {
        let missed = enter(next, cpu.exec_in, now);
        cpu.user += missed;
        cpu.idle -= missed as i64;
    }
    0
}

#[inline(always)]
fn kind(task: Task) -> u64 {
    if task.tid() == 0 {
        RUNS_IDLE
    } else if task.is_kernel() {
        RUNS_KERNEL
    } else {
        RUNS_USER
    }
}

/// `prev` ends a slice; `exec` is what the scheduler charged it so far, and `since` what it had when it was seen last, if
/// it is new here. Returns what it used, nanoseconds.
#[inline(always)]
fn leave(prev: Task, exec: u64, since: u64, now: u64, preempt: u8, state: u32) -> u64 {
    let thread = THREADS.get(prev.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return exec.saturating_sub(since);
    }
    // SAFETY: not null; `prev` is leaving this CPU and runs nowhere else.
    let thread = unsafe { &mut *thread };
    let used = exec.saturating_sub(if thread.exec == 0 { since } else { thread.exec });
    thread.exec = exec;
    thread.cpu += used;
    thread.switches += 1;
    thread.off = now;
    thread.woken = 0;
    thread.off_kind = if preempt & 1 != 0 || state == 0 {
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
    used
}

/// `next` begins a slice. Returns what it used where its switch was not seen, nanoseconds.
#[inline(always)]
fn enter(next: Task, exec: u64, now: u64) -> u64 {
    let thread = THREADS.get(next.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return 0;
    }
    // SAFETY: not null; `next` is about to run here and nowhere else.
    let thread = unsafe { &mut *thread };
    let missed = if thread.exec == 0 { 0 } else { exec.saturating_sub(thread.exec) };
    // A thread that never ran has used nothing; zero means that it was not seen.
    thread.exec = if exec == 0 { 1 } else { exec };
    thread.cpu += missed;
    waited(thread, now);
    missed
}

/// Where the thread was since it was switched out.
#[inline(always)]
fn waited(thread: &mut Thread, now: u64) {
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
