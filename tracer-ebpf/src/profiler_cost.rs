//! What sampling costs, measured by the programs themselves, and how much time a sample stands for.

use aya_ebpf::{helpers::generated::bpf_ktime_get_ns, macros::map, maps::PerCpuArray};
use tracer_common::{
    limits::{SAMPLE_IDLE, SAMPLE_TIME_MAX},
    policy::ProfilerCost,
};

use crate::{emit, sched};

#[map]
static PROFILER_COST: PerCpuArray<ProfilerCost> = PerCpuArray::with_max_entries(1, 0);

#[inline(always)]
fn cost() -> Option<&'static mut ProfilerCost> {
    // SAFETY: this CPU's element. The clock interrupts nothing that uses it: interrupts are off in the scheduler.
    PROFILER_COST.get_ptr_mut(0).map(|cost| unsafe { &mut *cost })
}

/// The sampling clock runs at `now`: the time since it last ran on this CPU, nanoseconds; `period` the first time.
///
/// Some kernels run no clock on an idle CPU. The time since it last ran is then mostly idle, and what runs now must not be
/// charged it: a clock that only runs while something does stands for its period.
#[inline(always)]
pub(crate) fn tick(now: u64, period: u64) -> u64 {
    let Some(cost) = cost() else { return period };
    let idle = sched::idle();
    let since = if cost.last == 0 { period } else { now.saturating_sub(cost.last) };
    let idled = idle.wrapping_sub(cost.idle) > SAMPLE_IDLE;
    cost.last = now;
    cost.idle = idle;
    cost.ticks += 1;
    let most = if idled && period != 0 { period } else { SAMPLE_TIME_MAX };
    if since > most { most } else { since }
}

/// The sampling program ends, having begun at `begin`.
#[inline(always)]
pub(crate) fn sampled(begin: u64) {
    if let Some(cost) = cost() {
        // SAFETY: no argument.
        cost.nanos += unsafe { bpf_ktime_get_ns() }.saturating_sub(begin);
    }
}

/// The sampling program, run by the clock of a single thread, ends, having begun at `begin`.
#[inline(always)]
pub(crate) fn ad_hoc(begin: u64) {
    if let Some(cost) = cost() {
        cost.ad_hoc_ticks += 1;
        // SAFETY: no argument.
        cost.ad_hoc_nanos += unsafe { bpf_ktime_get_ns() }.saturating_sub(begin);
    }
}

/// The program for time off the CPU ends, having begun at `begin` and reported a wait, or taken a stack: `walked`.
#[inline(always)]
pub(crate) fn off_cpu(begin: u64, walked: bool) {
    if let Some(cost) = cost() {
        // SAFETY: no argument.
        let nanos = unsafe { bpf_ktime_get_ns() }.saturating_sub(begin);
        cost.off_cpu_nanos += nanos;
        if walked {
            cost.off_cpu_stacks += 1;
            cost.off_cpu_stack_nanos += nanos;
        }
    }
}

/// The stack of a thread that ended another's wait was taken from `begin` to now: part of what the wait's stack costs.
#[inline(always)]
pub(crate) fn off_cpu_waker(begin: u64) {
    if let Some(cost) = cost() {
        // SAFETY: no argument.
        let nanos = unsafe { bpf_ktime_get_ns() }.saturating_sub(begin);
        cost.off_cpu_nanos += nanos;
        cost.off_cpu_stack_nanos += nanos;
    }
}

/// The program for stacks of calls ends, having begun at `begin` and taken one. The other programs interrupt this one, and it may
/// be preempted: whole words at once.
#[inline(always)]
pub(crate) fn call_stack(begin: u64) {
    if let Some(cost) = PROFILER_COST.get_ptr_mut(0) {
        // SAFETY: words of this CPU's element.
        unsafe {
            emit::increment(&raw mut (*cost).call_stacks);
            emit::add(&raw mut (*cost).call_nanos, bpf_ktime_get_ns().saturating_sub(begin));
        }
    }
}
