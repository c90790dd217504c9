//! Calls of the functions that the configuration declares as transactions: entry and return, as they happen; and hits of
//! declared USDT probes. User space pairs them.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{
        bpf_get_attach_cookie, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_user,
        bpf_probe_read_user_str,
    },
    macros::{map, uprobe, uretprobe},
    maps::{Array, PerCpuArray},
    programs::{ProbeContext, RetProbeContext},
};
use tracer_common::{
    event::{
        DECLARED_REGISTERS, DECLARED_RETURN, DECLARED_SHARED, DECLARED_TEXT, DECLARED_VALUES, DeclaredCall,
        DeclaredValues, Header, Kind, TEXT_NONE, TEXT_UNREAD,
    },
    lost::Lost,
    runtime::{
        NO_REGISTER, OPERAND_CONSTANT, OPERAND_MEMORY, OPERAND_NONE, OPERANDS_MAX, Operand, Operands, UserProbe,
        declared,
    },
};

use crate::{bound, emit, exceptions, kernel::task::Task, ring, runtime, sched, socket::user, storage::THREADS};

/// Where the arguments of USDT probes are.
#[map]
static DECLARED_OPERANDS: Array<Operands> = Array::with_max_entries(OPERANDS_MAX, 0);

/// Calls that began, by the number of their transaction: what the agent compares with a limit sooner than it reads records.
#[map]
static DECLARED_CALLS: PerCpuArray<u64> = PerCpuArray::with_max_entries(declared::NUMBERS, 0);

/// In `runtime.g`: the upper end of its stack.
const STACK_END: u64 = 8;

/// The registers of a probe that matter here.
struct Registers {
    sp: u64,
    value: u64,
    /// Go's current goroutine.
    goroutine: u64,
    /// The task of another runtime, where that is known.
    entity: u64,
}

/// The registers of arguments or results, in order.
pub(crate) type RegisterValues = [u64; DECLARED_REGISTERS];

/// The same registers in the order of each convention.
struct Values {
    /// Arguments of C.
    arguments: RegisterValues,
    /// Arguments and results of Go (its ABIInternal).
    go: RegisterValues,
    /// Results of C.
    results: RegisterValues,
}

/// hook: uprobes where a declared transaction begins and, except for whole functions that are not Go's, where it ends.
/// Emits [`DeclaredCall`].
#[uprobe]
pub(crate) fn declared_place(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::DeclaredPlace);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let (mut at, all) = registers(&ctx);
    at.sp = at.sp.wrapping_sub(((cookie as i64) >> declared::STACK) as u64);
    if cookie & declared::VALUES == 0 {
        report::<false>(cookie, at, None);
    } else if cookie & declared::GO != 0 {
        report::<false>(cookie, at, Some(&all.go));
    } else if cookie & declared::RETURN != 0 {
        report::<false>(cookie, at, Some(&all.results));
    } else {
        report::<false>(cookie, at, Some(&all.arguments));
    }
    0
}

/// hook: uretprobes of declared functions. Emits [`DeclaredCall`].
#[uretprobe]
pub(crate) fn declared_return(ctx: RetProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::DeclaredReturn);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } | declared::RETURN;
    // The same registers as a probe has.
    let ctx = ProbeContext::new(ctx.as_ptr());
    let (mut at, all) = registers(&ctx);
    // The return address was taken off the stack.
    at.sp = at.sp.wrapping_sub(RETURN_ADDRESS);
    at.goroutine = 0;
    if cookie & declared::VALUES == 0 {
        report::<false>(cookie, at, None);
    } else {
        report::<false>(cookie, at, Some(&all.results));
    }
    0
}

/// hook: USDT probes of declared transactions whose arguments are wanted. Emits [`DeclaredCall`]; without values if one of
/// them cannot be read. And functions that throw exceptions: what cannot be read of those is zero.
#[uprobe]
pub(crate) fn declared_arguments(ctx: ProbeContext) -> u32 {
    runtime::hit(&ctx, UserProbe::DeclaredArguments);
    // SAFETY: the context of this program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let (at, _) = registers(&ctx);
    let Some(operands) = DECLARED_OPERANDS.get_ptr((cookie >> declared::OPERANDS) as u32) else {
        report::<true>(cookie, at, None);
        return 0;
    };
    let (mut values, mut unread): (RegisterValues, u64) = ([0; DECLARED_REGISTERS], 0);
    let (mut i, mut previous) = (0, 0);
    while i < DECLARED_REGISTERS {
        // SAFETY: an element of the map, which stays.
        previous = unsafe { argument(&ctx, (&raw const (*operands)[i]).cast(), previous, &mut unread) };
        values[i] = previous;
        i += 1;
    }
    if unread == 0 || cookie & declared::EXCEPTION != 0 {
        report::<true>(cookie, at, Some(&values))
    } else {
        report::<true>(cookie, at, None)
    }
    if cookie & declared::EXCEPTION != 0 {
        exceptions::go_on(&ctx);
    }
    0
}

/// Reports an exception that `entity` threw, the task of its runtime.
#[inline(always)]
pub(crate) fn report_exception(ctx: &ProbeContext, cookie: u64, values: &RegisterValues, entity: u64) {
    let (at, _) = registers(ctx);
    report::<true>(cookie, Registers { entity, ..at }, Some(values));
}

/// The first two arguments of a function of C.
#[inline(always)]
pub(crate) fn arguments_of_c(ctx: &ProbeContext) -> [u64; 2] {
    let (_, all) = registers(ctx);
    [all.arguments[0], all.arguments[1]]
}

/// The number of a probe, by its cookie.
#[inline(always)]
fn number(cookie: u64) -> u64 {
    let of_exceptions =
        (cookie & declared::EXCEPTION) >> declared::EXCEPTION_BIT << declared::EXCEPTIONS.trailing_zeros();
    cookie & declared::INDEX | of_exceptions
}

/// Counts a call for the limit of calls a second.
#[inline(always)]
pub(crate) fn count_call(cookie: u64) {
    if let Some(calls) = DECLARED_CALLS.get_ptr_mut(number(cookie) as u32) {
        // SAFETY: an element of the map.
        unsafe { emit::increment(calls) };
    }
}

/// The value of an argument, `previous` being that of the one before it. If its memory cannot be read, bits of `unread` are set:
/// no branch, so that the verifier follows one path from here.
///
/// # Safety
/// `operand` is an element of the map.
#[inline(always)]
unsafe fn argument(ctx: &ProbeContext, operand: *const Operand, previous: u64, unread: &mut u64) -> u64 {
    // SAFETY: as promised. User space writes an element before it attaches a probe that names it.
    let Operand { displacement, kind, base, index, scale, unused_bits, is_signed, adds_previous, .. } =
        unsafe { operand.read_volatile() };
    let mut value = displacement as u64;
    // No branch here either.
    value = value.wrapping_add(previous & (adds_previous as u64 & 1).wrapping_neg());
    if kind == OPERAND_NONE || kind == OPERAND_CONSTANT {
        return value;
    }
    if base != NO_REGISTER {
        value = value.wrapping_add(register(ctx, base));
    }
    if kind == OPERAND_MEMORY {
        if index != NO_REGISTER {
            value = value.wrapping_add(register(ctx, index) << (scale & 3));
        }
        let (mut read, bytes) = (0u64, bound::at_most::<8>(8 - (unused_bits as u64 & 63) / 8));
        // SAFETY: the helper tolerates any address.
        let failed = unsafe { bpf_probe_read_user((&raw mut read).cast(), bytes as u32, value as *const c_void) };
        *unread |= failed as u64;
        value = read;
    }
    let unused = unused_bits & 63;
    let left = value << unused;
    if is_signed == 0 { left >> unused } else { ((left as i64) >> unused) as u64 }
}

/// The register at this offset in `pt_regs`, whose size it is within.
#[inline(always)]
fn register(ctx: &ProbeContext, offset: u8) -> u64 {
    let mut value = 0u64;
    // SAFETY: the helper tolerates any address. It reads the registers as memory: as a context, an offset that is not a
    // constant is refused.
    unsafe {
        let at = ctx.as_ptr().cast::<u8>().wrapping_add(offset as usize);
        bpf_probe_read_kernel((&raw mut value).cast(), 8, at.cast());
    }
    value
}

/// Reports a call; `THROWS`: it may be one of a function that throws.
#[inline(always)]
fn report<const THROWS: bool>(cookie: u64, registers: Registers, values: Option<&RegisterValues>) {
    let task = Task::current();
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return;
    }
    let tgid = task.tgid();
    let (number, is_return) = (number(cookie), cookie & declared::RETURN != 0);
    if !is_return {
        count_call(cookie);
    }
    let (goroutine, depth, entity) = if cookie & declared::GO != 0 {
        let end: u64 = user(registers.goroutine + STACK_END);
        (registers.goroutine, end.wrapping_sub(registers.sp), runtime::goroutine(tgid, registers.goroutine))
    } else {
        (0, !registers.sp, registers.entity)
    };
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    if THROWS && cookie & declared::EXCEPTION != 0 {
        // SAFETY: not null; the current thread's own record.
        unsafe { (*thread).thrown_at = now };
    }
    let len = size_of::<DeclaredCall>() + if values.is_some() { size_of::<DeclaredValues>() } else { 0 };
    let shared = if cookie & declared::SHARED != 0 { DECLARED_SHARED } else { 0 };
    let record = DeclaredCall {
        header: Header {
            kind: Kind::DeclaredCall as u8,
            flags: is_return as u8 * DECLARED_RETURN | values.is_some() as u8 * DECLARED_VALUES | shared,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: len as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        declared: number,
        task: goroutine,
        depth,
        value: if is_return { registers.value } else { 0 },
        entity,
        // SAFETY: not null; the current thread's own record.
        counters: sched::counters(task, unsafe { &mut *thread }, now),
    };
    if number == declared::CALIBRATION {
        return;
    }
    let Some(values) = values else {
        emit::event(&record, Lost::RingDeclared);
        return;
    };
    let Some(slot) = ring::reserve(len as u64, Lost::RingDeclared) else { return };
    let (from, to) = (ptr::from_ref(&record).cast::<u64>(), slot.record.cast::<u64>());
    for i in 0..size_of::<DeclaredCall>() / 8 {
        // SAFETY: within the record and the slot. Volatile, so that the compiler makes no call to `memcpy`.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
    // SAFETY: the slot has room for both.
    unsafe { put(slot.record.add(size_of::<DeclaredCall>()).cast(), cookie, values) };
    slot.complete(len as u64);
}

/// Writes the values behind a record.
///
/// # Safety
/// `to` has room for them.
#[inline(always)]
unsafe fn put(to: *mut DeclaredValues, cookie: u64, values: &RegisterValues) {
    // SAFETY: as promised; volatile for the same reason as above.
    unsafe {
        let registers = (&raw mut (*to).registers).cast::<u64>();
        let mut i = 0;
        while i < DECLARED_REGISTERS {
            registers.add(i).write_volatile(values[i]);
            i += 1;
        }
        let first = cookie >> declared::FIRST & declared::REGISTER;
        let pair = cookie & (declared::GO | declared::FIRST_PAIR) != 0;
        let len = text(registers, first, pair, (&raw mut (*to).first).cast());
        (&raw mut (*to).first_len).write_volatile(len);
        let second = cookie >> declared::SECOND & declared::REGISTER;
        let pair = cookie & (declared::GO | declared::SECOND_PAIR) != 0;
        let len = text(registers, second, pair, (&raw mut (*to).second).cast());
        (&raw mut (*to).second_len).write_volatile(len);
    }
}

/// Copies the text that register `number` (from 1) points to; its length, or `TEXT_…`. Bytes behind it are undefined.
///
/// # Safety
/// `registers` are those of a record, and `to` has room for a text.
#[inline(always)]
unsafe fn text(registers: *const u64, number: u64, pair: bool, to: *mut u8) -> u32 {
    if number == 0 {
        return TEXT_NONE;
    }
    let index = bound::at_most::<{ DECLARED_REGISTERS as u64 - 2 }>(number - 1);
    // SAFETY: a register of the record.
    let at = unsafe { registers.add(index as usize).read_volatile() } as *const c_void;
    if !pair {
        // SAFETY: the helper tolerates any address.
        let got = unsafe { bpf_probe_read_user_str(to.cast(), DECLARED_TEXT as u32, at) };
        return if got <= 0 { TEXT_UNREAD } else { got as u32 - 1 };
    }
    // SAFETY: the register behind it.
    let len = unsafe { registers.add(index as usize + 1).read_volatile() };
    if len == 0 {
        return 0;
    }
    let len = bound::at_most::<{ DECLARED_TEXT as u64 }>(len);
    // SAFETY: the helper tolerates any address.
    let failed = unsafe { bpf_probe_read_user(to.cast(), len as u32, at) };
    if failed == 0 { len as u32 } else { TEXT_UNREAD }
}

/// Bytes that a return takes off the stack.
#[cfg(not(bpf_target_arch = "aarch64"))]
const RETURN_ADDRESS: u64 = 8;
#[cfg(bpf_target_arch = "aarch64")]
const RETURN_ADDRESS: u64 = 0;

/// Reads a register now and not where its value is used: there its address may be computed, which the verifier refuses.
macro_rules! now {
    // SAFETY: what it is given are registers of a probe's context.
    ($($register:expr),+) => { ($(unsafe { (&raw const $register).read_volatile() },)+) };
}

#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
fn registers(ctx: &ProbeContext) -> (Registers, Values) {
    let r = ctx.regs;
    let (rsp, rax, rbx, rcx, rdx) = now!((*r).rsp, (*r).rax, (*r).rbx, (*r).rcx, (*r).rdx);
    let (rdi, rsi, r8, r9, r10, r11, r14) = now!((*r).rdi, (*r).rsi, (*r).r8, (*r).r9, (*r).r10, (*r).r11, (*r).r14);
    let values = Values {
        arguments: [rdi, rsi, rdx, rcx, r8, r9, 0, 0, 0],
        go: [rax, rbx, rcx, rdi, rsi, r8, r9, r10, r11],
        results: [rax, rdx, 0, 0, 0, 0, 0, 0, 0],
    };
    (Registers { sp: rsp, value: rax, goroutine: r14, entity: 0 }, values)
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn registers(ctx: &ProbeContext) -> (Registers, Values) {
    let r = ctx.regs;
    let (sp, a, b, c, d) = now!((*r).sp, (*r).regs[0], (*r).regs[1], (*r).regs[2], (*r).regs[3]);
    let (e, f, g, h) = now!((*r).regs[4], (*r).regs[5], (*r).regs[6], (*r).regs[7]);
    let arguments = [a, b, c, d, e, f, g, h, 0];
    // Go functions are not declared on this processor.
    let values = Values { arguments, go: arguments, results: [a, b, 0, 0, 0, 0, 0, 0, 0] };
    (Registers { sp, value: a, goroutine: 0, entity: 0 }, values)
}
