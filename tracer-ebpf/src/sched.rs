//! CPU and waiting time per thread, idle and kernel time per CPU.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{btf_tracepoint, map},
    maps::PerCpuArray,
    programs::BtfTracePointContext,
};
use tracer_common::{
    arch::Wait,
    event::{Header, Kind, ProcessEnd, THREAD_STATS_DEAD, THREAD_STATS_RUNNING, ThreadCounters, ThreadStats},
    limits::{THREAD_STATS_CPU_NANOS, THREAD_STATS_NANOS},
    lost::Lost,
    policy::{CpuBooks, RUNS_IDLE, RUNS_KERNEL, RUNS_USER},
};

use crate::{
    arch, emit, exchange_counts,
    kernel::{
        regs::Regs,
        task::{TASK_DEAD, Task},
    },
    off_cpu,
    offsets::AGENT_TGID,
    policy,
    socket::sent,
    storage::{THREADS, Thread},
    thread_pool,
};

/// Per CPU: when the running thread was switched in, and where the time went. User space seeds `switch_in`.
#[map]
static CPUS: PerCpuArray<CpuBooks> = PerCpuArray::with_max_entries(1, 0);

/// Longest time between two ticks of a busy CPU, nanoseconds: the scheduler updates its figure at each.
const STALE: u64 = 10_000_000;

/// What `task`, the current task, has used by `now`, nanoseconds since it was created: the scheduler's figure at its
/// switch-in, plus its slice since. The scheduler may not charge interrupts within the slice to the task, so this can
/// run ahead of it, but only by what it has not counted yet.
#[inline(always)]
pub(crate) fn used(task: Task, now: u64) -> u64 {
    let counted = task.exec();
    // SAFETY: this CPU's element.
    let seen = CPUS.get_ptr(0).map_or((0, 0, 0), |cpu| unsafe { ((*cpu).task, (*cpu).exec_in, (*cpu).switch_in) });
    // Otherwise the task's switch was not reported.
    let slice = if seen.0 == task.0 as u64 { seen.1 + now.saturating_sub(seen.2) } else { counted };
    slice.min(counted + STALE)
}

/// How long this CPU has been idle since tracing began, nanoseconds, up to its latest switch.
#[inline(always)]
pub(crate) fn idle() -> i64 {
    // SAFETY: this CPU's element.
    CPUS.get_ptr(0).map_or(0, |cpu| unsafe { (*cpu).idle })
}

/// When `task`, the current task, was switched in; `now` if that was not seen.
#[inline(always)]
fn since(task: Task, now: u64) -> u64 {
    // SAFETY: this CPU's element.
    let seen = CPUS.get_ptr(0).map_or((0, 0), |cpu| unsafe { ((*cpu).task, (*cpu).switch_in) });
    if seen.0 == task.0 as u64 { seen.1 } else { now }
}

/// The counters of `task`, the current task, at `now`, its running slice included as far as it was seen: the
/// scheduler's own figure is added when the slice ends.
#[inline(always)]
pub(crate) fn counters(task: Task, thread: &mut Thread, now: u64) -> ThreadCounters {
    let exec = used(task, now);
    if thread.base_at == 0 {
        first_seen(task, thread, since(task, now), exec.saturating_sub(now.saturating_sub(since(task, now))));
    }
    counters_of_seen(task, thread, exec, now)
}

/// The same of a task that was seen before, and has used `exec` ([`used`]).
#[inline(always)]
pub(crate) fn counters_of_seen(task: Task, thread: &mut Thread, exec: u64, now: u64) -> ThreadCounters {
    if thread.waiting != 0 {
        thread.waiting = 0;
        thread.idle_end = since(task, now);
    }
    stored(task, thread, exec, now)
}

/// Starts the thread's counters at `at`, when it had used `exec`.
#[inline(always)]
fn first_seen(task: Task, thread: &mut Thread, at: u64, exec: u64) {
    thread.base_at = at;
    thread.base_exec = exec;
    thread.base_runq = task.run_delay();
}

/// The counters at `now`, when `exec` was used. The kernel itself counts how long a task waits for a CPU; the rest that
/// is neither that nor CPU was blocked.
#[inline(always)]
fn stored(task: Task, thread: &Thread, exec: u64, now: u64) -> ThreadCounters {
    let cpu = exec.saturating_sub(thread.base_exec);
    let runq = task.run_delay().saturating_sub(thread.base_runq);
    ThreadCounters {
        cpu,
        runq,
        blocked: now.saturating_sub(thread.base_at).saturating_sub(cpu).saturating_sub(runq),
        idle_cpu: thread.idle_cpu,
        idle_end: thread.idle_end,
        switches: thread.switches,
        idles: thread.idles,
        polls: thread.polls,
        reads: thread.reads,
    }
}

/// hook: tp_btf sched_switch(preempt, prev, next, prev_state). First seen with prev_state: 6.1. Emits [`ThreadStats`]
/// now and then.
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
    // Otherwise the task has run since before tracing began, or since an unreported switch: some kernels do not report
    // those of some tasks. Charge what was seen; charge the rest when the task is seen next.
    let known = cpu.task == prev.0 as u64;
    cpu.unreported += (!known && cpu.task != 0) as u64;
    let threshold = policy::off_cpu();
    let mut waits = false;
    match if known { cpu.runs } else { kind(prev) } {
        RUNS_IDLE => cpu.idle += ran as i64,
        RUNS_KERNEL => {
            let exec = prev.exec();
            let before = if known { cpu.exec_in } else { exec.saturating_sub(ran) };
            // Relative to when the thread was seen last: after an unreported switch, not all of the elapsed time is its
            // own.
            let used = used_since_seen(prev, exec, before);
            cpu.kernel += used;
            cpu.idle += ran.wrapping_sub(used) as i64;
        }
        _ => {
            let exec = prev.exec();
            let before = if known { cpu.exec_in } else { exec.saturating_sub(ran) };
            let used;
            (used, waits) = leave(prev, exec, before, now.saturating_sub(ran), now, threshold, preempt, state);
            cpu.user += used;
            cpu.idle += ran.wrapping_sub(used) as i64;
        }
    }

    let next = Task(ctx.arg(2));
    cpu.switch_in = now;
    cpu.task = next.0 as u64;
    cpu.runs = kind(next);
    if cpu.runs != RUNS_IDLE {
        cpu.exec_in = next.exec();
    }
    // A thread whose leaving is never reported is found when it comes; skip the search where every switch is reported.
    let search = cpu.unreported != 0;
    let mut is_back = false;
    if cpu.runs == RUNS_USER && (search || threshold != 0) {
        let thread = THREADS.get(next.0, search);
        if thread.is_null() {
            // Without a search, most likely it has no record yet.
            if search {
                emit::count(Lost::ThreadStorage);
            }
        } else {
            // SAFETY: not null; `next` is about to run here and nowhere else.
            let thread = unsafe { &mut *thread };
            if search {
                let missed = enter(next, thread, cpu.exec_in, now);
                cpu.user += missed;
                cpu.idle -= missed as i64;
            }
            is_back = threshold != 0 && off_cpu::is_back(thread, threshold, now);
        }
    }
    if waits || is_back {
        off_cpu::go_on(&ctx, now, waits, is_back);
    }
    0
}

/// `next`, whose record is `thread`, begins a slice. Returns what it used in unreported slices since it was last seen, nanoseconds.
#[inline(always)]
fn enter(next: Task, thread: &mut Thread, exec: u64, now: u64) -> u64 {
    if thread.base_at == 0 {
        first_seen(next, thread, now, exec);
    }
    let missed = if thread.exec == 0 { 0 } else { exec.saturating_sub(thread.exec) };
    // Zero means not seen.
    thread.exec = if exec == 0 { 1 } else { exec };
    missed
}

/// What kernel thread `prev` used since it was last seen, nanoseconds; if never seen, since it had used `before`.
#[inline(always)]
fn used_since_seen(prev: Task, exec: u64, before: u64) -> u64 {
    let thread = THREADS.get(prev.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return exec.saturating_sub(before);
    }
    // SAFETY: not null; `prev` is leaving this CPU and runs nowhere else.
    let thread = unsafe { &mut *thread };
    let used = exec.saturating_sub(if thread.exec == 0 { before } else { thread.exec });
    // Zero means not seen.
    thread.exec = if exec == 0 { 1 } else { exec };
    used
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

/// `prev` ends a slice that began at `since`; `exec` is what the scheduler charged it so far, and `before` what it had
/// then. Returns what it used since it was last seen, unreported slices included, nanoseconds; and whether a wait of it begins that
/// is reported from `threshold` nanoseconds on (0 = none is).
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one caller")]
fn leave(
    prev: Task,
    exec: u64,
    before: u64,
    since: u64,
    now: u64,
    threshold: u64,
    preempt: u8,
    state: u32,
) -> (u64, bool) {
    let thread = THREADS.get(prev.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return (exec.saturating_sub(before), false);
    }
    // SAFETY: not null; `prev` is leaving this CPU and runs nowhere else.
    let thread = unsafe { &mut *thread };
    if thread.base_at == 0 {
        first_seen(prev, thread, since, before);
    }
    let used = exec.saturating_sub(if thread.exec == 0 { before } else { thread.exec });
    // Zero means never seen to leave.
    thread.exec = if exec == 0 { 1 } else { exec };
    thread.switches += 1;
    if thread.waiting != 0 {
        thread.waiting = 0;
        thread.idle_end = since;
    }
    if preempt & 1 == 0 && state != 0 {
        let regs = Regs::of(prev);
        let wait = arch::wait(regs.nr());
        if wait != Wait::Other && !thread_pool::is_lock(prev, thread, regs) {
            thread.idle_cpu = exec.saturating_sub(thread.base_exec);
            thread.slept_at = now;
            thread.idles += 1;
            thread.polls += (wait == Wait::Poll) as u32;
            thread.waiting = 1;
        }
    }
    let dead = state & TASK_DEAD != 0;
    let cpu = exec.saturating_sub(thread.base_exec);
    if thread.sent_cookie != 0 || dead || due(thread, cpu, now) {
        report(prev, thread, exec, now, dead as u64);
    }
    let waits = threshold != 0 && thread.holds != 0 && !dead && prev.tgid() != AGENT_TGID.load();
    if waits {
        thread.left = now;
    }
    (used, waits)
}

/// Reports what a thread that leaves the CPU has kept, and its counters if it ends, or if they are due. A function of its own, because
/// most switches do not need its code.
#[inline(never)]
fn report(prev: Task, thread: &mut Thread, exec: u64, now: u64, dead: u64) -> u64 {
    let counters = stored(prev, thread, exec, now);
    if thread.sent_cookie != 0 {
        sent::flush(prev, thread, counters);
    }
    if dead != 0 || due(thread, counters.cpu, now) {
        tick(prev, thread, counters, now, if dead != 0 { THREAD_STATS_DEAD } else { 0 });
    }
    if dead != 0 && prev.tid() == prev.tgid() {
        ended(prev, now);
    }
    0
}

/// Reports the end of a process.
#[inline(always)]
fn ended(task: Task, now: u64) {
    let Some(status) = task.exit_status() else { return };
    let record = ProcessEnd {
        header: Header {
            kind: Kind::ProcessEnd as u8,
            flags: 0,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<ProcessEnd>() as u32,
            nanos: now,
            tgid: task.tgid(),
            tid: task.tid(),
        },
        status,
        reserved: [0; 6],
    };
    emit::event(&record, Lost::RingThread);
}

/// Whether the thread has something to report and last reported long enough ago.
#[inline(always)]
fn due(thread: &Thread, cpu: u64, now: u64) -> bool {
    let unreported = cpu.saturating_sub(thread.reported_cpu);
    unreported > THREAD_STATS_CPU_NANOS
        || (unreported > 0 && now.saturating_sub(thread.reported_at) > THREAD_STATS_NANOS)
}

/// Reports a thread that never leaves the CPU; called by the sampler.
#[inline(always)]
pub(crate) fn running(task: Task, thread: &mut Thread, now: u64) -> ThreadCounters {
    let counters = counters(task, thread, now);
    if due(thread, counters.cpu, now) {
        tick(task, thread, counters, now, THREAD_STATS_RUNNING);
    }
    counters
}

#[inline(always)]
fn tick(task: Task, thread: &mut Thread, counters: ThreadCounters, now: u64, flags: u8) {
    thread.reported_cpu = counters.cpu;
    thread.reported_at = now;
    exchange_counts::reported(thread, &counters);
    let record = ThreadStats {
        header: Header {
            kind: Kind::ThreadStats as u8,
            flags,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<ThreadStats>() as u32,
            nanos: now,
            tgid: task.tgid(),
            tid: task.tid(),
        },
        comm: task.comm(),
        counters,
    };
    // Sums: whoever shows them reads the rings first.
    emit::quiet_event(&record, Lost::RingThread);
}
