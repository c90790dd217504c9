//! Calls of the functions that the configuration declares as transactions: entry and return, as they happen. User space
//! pairs them.

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_attach_cookie, bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    event::{DECLARED_RETURN, DeclaredCall, Header, Kind},
    lost::Lost,
    runtime::{UserProbe, declared},
};

use crate::{emit, kernel::task::Task, runtime, sched, socket::user, storage::THREADS};

/// In `runtime.g`: the upper end of its stack.
const STACK_END: u64 = 8;

/// The registers of a probe that matter here.
struct Registers {
    sp: u64,
    value: u64,
    /// Go's current goroutine.
    goroutine: u64,
}

/// hook: uprobes at the entry and, in Go programs, at the return instructions of declared functions. Emits
/// [`DeclaredCall`].
#[uprobe]
pub(crate) fn declared_place(ctx: ProbeContext) -> u32 {
    runtime::hit(UserProbe::DeclaredPlace);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    report(cookie, registers(&ctx));
    0
}

/// hook: uretprobes of declared functions. Emits [`DeclaredCall`].
#[uretprobe]
pub(crate) fn declared_return(ctx: RetProbeContext) -> u32 {
    runtime::hit(UserProbe::DeclaredReturn);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let mut registers = returned(&ctx);
    // The return address was taken off the stack.
    registers.sp = registers.sp.wrapping_sub(RETURN_ADDRESS);
    report(cookie | declared::RETURN, registers);
    0
}

#[inline(always)]
fn report(cookie: u64, registers: Registers) {
    let task = Task::current();
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return;
    }
    let tgid = task.tgid();
    let is_return = cookie & declared::RETURN != 0;
    let (goroutine, depth, entity) = if cookie & declared::GO != 0 {
        let end: u64 = user(registers.goroutine + STACK_END);
        (registers.goroutine, end.wrapping_sub(registers.sp), runtime::goroutine(tgid, registers.goroutine))
    } else {
        (0, !registers.sp, 0)
    };
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let record = DeclaredCall {
        header: Header {
            kind: Kind::DeclaredCall as u8,
            flags: is_return as u8 * DECLARED_RETURN,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<DeclaredCall>() as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        declared: cookie & declared::INDEX,
        task: goroutine,
        depth,
        value: if is_return { registers.value } else { 0 },
        entity,
        // SAFETY: not null; the current thread's own record.
        counters: sched::counters(task, unsafe { &mut *thread }, now),
    };
    emit::event(&record, Lost::RingDeclared);
}

/// Bytes that a return takes off the stack.
#[cfg(not(bpf_target_arch = "aarch64"))]
const RETURN_ADDRESS: u64 = 8;
#[cfg(bpf_target_arch = "aarch64")]
const RETURN_ADDRESS: u64 = 0;

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn registers(ctx: &ProbeContext) -> Registers {
    // SAFETY: the registers a probe is given.
    unsafe { Registers { sp: (*ctx.regs).rsp, value: (*ctx.regs).rax, goroutine: (*ctx.regs).r14 } }
}

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn returned(ctx: &RetProbeContext) -> Registers {
    // SAFETY: the registers a probe is given.
    unsafe { Registers { sp: (*ctx.regs).rsp, value: (*ctx.regs).rax, goroutine: 0 } }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn registers(ctx: &ProbeContext) -> Registers {
    // SAFETY: the registers a probe is given.
    unsafe { Registers { sp: (*ctx.regs).sp, value: (*ctx.regs).regs[0], goroutine: 0 } }
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn returned(ctx: &RetProbeContext) -> Registers {
    // SAFETY: the registers a probe is given.
    unsafe { Registers { sp: (*ctx.regs).sp, value: (*ctx.regs).regs[0], goroutine: 0 } }
}
