//! Work that one thread does for another's request: which thread wakes which with a result.
//!
//! A wake-up alone proves nothing: mostly it means that a queue has an item for the first thread to come. But a thread
//! that holds a request and waits, and is woken by one that has read a reply, mostly waited for just that. Only such
//! wake-ups are reported, at most one or two per call; the thread's record keeps those in the other direction.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{btf_tracepoint, map},
    maps::HashMap,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{Header, Kind, WAKE_RESULT, Wake},
    limits::{HANDOVERS_MAX, WAKES_MAX},
    lost::Lost,
    policy::Statics,
};

use crate::{
    arch, emit,
    kernel::{futex, regs::Regs, task::Task},
    off_cpu, policy,
    sched::counters,
    storage::{SOCK_ACTIVE, SOCK_PASSIVE, THREADS, Thread},
};

/// Processes whose threads work for each other, by process id.
#[map]
static HANDOVERS: HashMap<u32, Statics> = HashMap::with_max_entries(HANDOVERS_MAX, 0);

/// Updates what a thread holds after an operation on a socket with these flags. Without branches: this is part of the
/// largest programs, and the verifier walks what follows once per path.
#[inline(always)]
pub(crate) fn noted<const TX: bool>(thread: &mut Thread, flags: u32) {
    let passive = (flags & SOCK_PASSIVE) / SOCK_PASSIVE;
    let active = (flags & SOCK_ACTIVE) / SOCK_ACTIVE;
    if TX {
        thread.holds &= passive ^ 1;
        let asks = active & (thread.holds ^ 1);
        thread.asked |= asks;
        thread.works |= asks;
        thread.replied &= asks ^ 1;
    } else {
        thread.holds |= passive;
        thread.replied = (thread.replied | (thread.asked & active)) & (passive ^ 1);
        thread.asked &= (passive | active) ^ 1;
    }
    thread.wakes = 0;
}

/// hook: tp_btf sched_waking(p). First seen: 5.10. Emits [`Wake`], and notes when waits end.
///
/// Not `sched_wakeup`, which mostly runs where the woken thread will: here the waker is still the running thread.
#[btf_tracepoint(function = "sched_waking")]
pub(crate) fn waking(ctx: BtfTracePointContext) -> i32 {
    let (waker, wakee) = (Task::current(), Task(ctx.arg(0)));
    let is_stack_wanted = off_cpu::waking::note(wakee);
    if !is_stack_wanted && !policy::handovers() {
        return 0;
    }
    let Some(address) = futex::woken_from(waker, wakee) else { return 0 };
    let tgid = waker.tgid();
    if wakee.tgid() == tgid && policy::handovers() {
        woken(waker, wakee, tgid, address);
    }
    if is_stack_wanted {
        off_cpu::waking::go_on(&ctx);
    }
    0
}

#[inline(always)]
fn holds(statics: &Statics, address: u64) -> bool {
    let within = |from: u64, end: u64| address >= from && address < end;
    within(statics.first, statics.first_end)
        || within(statics.second, statics.second_end)
        || within(statics.third, statics.third_end)
}

/// Whether `task`, which falls asleep with these registers, waits for a lock of its interpreter and not for work. Only
/// known of threads that others give work to.
#[inline(always)]
pub(crate) fn is_lock(task: Task, thread: &Thread, regs: Regs) -> bool {
    if thread.given_at == 0 || !arch::is_futex(regs.nr()) {
        return false;
    }
    // SAFETY: only read, and replaced as a whole.
    unsafe { HANDOVERS.get(task.tgid()) }.is_some_and(|statics| holds(statics, regs.arg0()))
}

/// `waker` wakes `wakee`, a thread of the same process, by the futex at `address`. A function of its own, because most wake-ups are
/// none of these.
#[inline(never)]
fn woken(waker: Task, wakee: Task, tgid: u32, address: u64) -> u64 {
    given(waker, wakee, tgid, address);
    0
}

#[inline(always)]
fn given(waker: Task, wakee: Task, tgid: u32, address: u64) {
    // SAFETY: only read, and replaced as a whole.
    let Some(statics) = (unsafe { HANDOVERS.get(tgid) }) else { return };
    if holds(statics, address) {
        return;
    }
    let (from, to) = (THREADS.get(waker.0, false), THREADS.get(wakee.0, false));
    if from.is_null() || to.is_null() {
        return;
    }
    // SAFETY: not null. One is the current thread's own; the other thread sleeps, so its own programs do not run.
    let (from, to) = unsafe { (&mut *from, &mut *to) };
    if from.holds != 0 {
        if to.holds == 0 {
            // SAFETY: no argument.
            to.given_at = unsafe { bpf_ktime_get_ns() };
            to.given_by = waker.tid();
            to.given_new = 1;
        }
        return;
    }
    if to.holds == 0 || (from.works | from.given_new) == 0 {
        return;
    }
    if from.wakes_at != from.switches {
        from.wakes_at = from.switches;
        from.wakes = 0;
    }
    if from.wakes >= WAKES_MAX {
        emit::count(Lost::Wakes);
        return;
    }
    let result = from.replied | from.given_new;
    from.wakes += 1;
    from.given_new = 0;
    from.ops = from.ops.wrapping_add(1);
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let record = Wake {
        header: Header {
            kind: Kind::Wake as u8,
            flags: if result != 0 { WAKE_RESULT } else { 0 },
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Wake>() as u32,
            nanos: now,
            tgid,
            tid: waker.tid(),
        },
        wakee: wakee.tid(),
        nth: from.ops,
        address,
        slept_at: to.slept_at,
        given_at: from.given_at,
        given_by: from.given_by,
        reserved: 0,
        counters: counters(waker, from, now),
    };
    emit::event(&record, Lost::RingThread);
}
