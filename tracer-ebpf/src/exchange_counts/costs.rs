//! What the threads of a server used, by class.
//!
//! It is charged like user space does it (`transactions/engine/charge.rs`): up to a thread's last wait to the
//! class of the operation before, from then on to that of the operation after. What is charged here is taken out of the
//! thread's counters, so that the next record does not show it again.

use aya_ebpf::{macros::map, maps::Array};
use tracer_common::{event::ThreadCounters, exchange_counts::ClassCosts, limits::COUNTED_CLASSES_MAX};

use super::sums::add_some;
use crate::{
    kernel::task::Task,
    sched::counters,
    storage::{Sock, Thread},
};

/// Costs by class.
#[map]
static COUNTED_COSTS: Array<ClassCosts> = Array::with_max_entries(COUNTED_CLASSES_MAX, 0);

/// Charges what the thread used since its last operation.
#[inline(always)]
pub(super) fn charge<const TX: bool>(task: Task, thread: &mut Thread, sock: &mut Sock, now: u64) {
    let used = counters(task, thread, now);
    let exchange = &mut sock.exchange;
    let class = exchange.class as u32;
    let (last, waited) = (thread.counted.class, thread.idles != thread.counted.idles);
    let cpu = used.cpu.saturating_sub(thread.counted.cpu);
    let before = if waited {
        let until_wait = used.idle_cpu.saturating_sub(thread.counted.cpu);
        if until_wait < cpu { until_wait } else { cpu }
    } else if TX {
        0
    } else {
        cpu
    };
    let mut taken = cpu - before;
    let (mut runq, mut blocked) = (0, 0);
    if last != 0 {
        taken += before;
        (runq, blocked) =
            (used.runq.saturating_sub(thread.counted.runq), used.blocked.saturating_sub(thread.counted.blocked));
        if last != class {
            add(last, before, 0, 0);
        }
    }
    let own = TX && !waited && last == class;
    let own_cpu = if last == class { cpu } else { cpu - before };
    let (own_runq, own_blocked) = if own { (runq, blocked) } else { (0, 0) };
    add(class, own_cpu, own_runq, own_blocked);
    // What was used before the request was read is the one's before it.
    exchange.cpu += if TX { own_cpu } else { cpu - before };
    exchange.runq += own_runq;
    exchange.blocked += own_blocked;
    // Out of the counters: they count from `base_…` on.
    thread.base_exec += taken;
    thread.base_runq += runq;
    thread.base_at += taken + runq + blocked;
    thread.counted.cpu = used.cpu - taken;
    thread.counted.runq = used.runq - runq;
    thread.counted.blocked = used.blocked - blocked;
    if thread.idle_cpu > thread.counted.cpu {
        thread.idle_cpu = thread.counted.cpu;
    }
    thread.counted.class = class;
    thread.counted.idles = thread.idles;
}

/// Adds to the costs of `class`.
#[inline(always)]
fn add(class: u32, cpu: u64, runq: u64, blocked: u64) {
    let Some(costs) = COUNTED_COSTS.get_ptr_mut(class) else { return };
    // SAFETY: an element of the map.
    let (cpus, runqs, blocks) = unsafe { (&raw mut (*costs).cpu, &raw mut (*costs).runq, &raw mut (*costs).blocked) };
    add_some(cpus, cpu);
    add_some(runqs, runq);
    add_some(blocks, blocked);
}

/// A record showed these counters of the thread.
#[inline(always)]
pub(crate) fn reported(thread: &mut Thread, counters: &ThreadCounters) {
    thread.counted.cpu = counters.cpu;
    thread.counted.runq = counters.runq;
    thread.counted.blocked = counters.blocked;
    thread.counted.idles = thread.idles;
    thread.counted.class = 0;
}
