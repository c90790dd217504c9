//! Starts of threads and programs. The scheduler hook sees their end, and accounts their last slice.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{Exec, Fork, Header, Kind},
    lost::Lost,
};

use crate::{emit, kernel::task::Task, runtime};

#[inline(always)]
fn header(kind: Kind, len: usize, task: Task) -> Header {
    Header {
        kind: kind as u8,
        flags: 0,
        // SAFETY: no argument.
        cpu: unsafe { bpf_get_smp_processor_id() } as u16,
        len: len as u32,
        // SAFETY: no argument.
        nanos: unsafe { bpf_ktime_get_ns() },
        tgid: task.tgid(),
        tid: task.tid(),
    }
}

/// hook: tp_btf sched_process_fork(parent, child). First seen: 5.10. Emits [`Fork`].
#[btf_tracepoint(function = "sched_process_fork")]
pub(crate) fn fork(ctx: BtfTracePointContext) -> i32 {
    let parent = Task(ctx.arg(0));
    let child = Task(ctx.arg(1));
    if child.is_kernel() {
        return 0;
    }
    let (tgid, child_tgid) = (parent.tgid(), child.tgid());
    // Read before the time: no edge counted here is later than the fork.
    let (entity, edge_seq) = if child_tgid == tgid { (0, 0) } else { runtime::forking(parent, tgid) };
    let record = Fork {
        header: header(Kind::Fork, size_of::<Fork>(), parent),
        child_tgid,
        child_tid: child.tid(),
        entity,
        edge_seq,
        reserved: 0,
    };
    emit::event(&record, Lost::RingThread);
    0
}

/// hook: tp_btf sched_process_exec(task, old_pid, bprm). First seen: 5.10. Emits [`Exec`].
#[btf_tracepoint(function = "sched_process_exec")]
pub(crate) fn exec(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(0));
    let record = Exec { header: header(Kind::Exec, size_of::<Exec>(), task), comm: task.comm() };
    emit::event(&record, Lost::RingThread);
    0
}
