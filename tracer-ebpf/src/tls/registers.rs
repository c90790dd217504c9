//! What probes of TLS libraries read from registers and the stack, by processor.

use aya_ebpf::programs::ProbeContext;
#[cfg(not(bpf_target_arch = "aarch64"))]
use tracer_common::runtime::tls;

#[cfg(not(bpf_target_arch = "aarch64"))]
use crate::socket::user;

/// The first four arguments of a C function.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn arguments(ctx: &ProbeContext) -> [u64; 4] {
    // SAFETY: the registers a probe is given.
    unsafe { [(*ctx.regs).rdi, (*ctx.regs).rsi, (*ctx.regs).rdx, (*ctx.regs).rcx] }
}

/// The fifth.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn fifth(ctx: &ProbeContext) -> u64 {
    // SAFETY: a register a probe is given.
    unsafe { (*ctx.regs).r8 }
}

/// Reads a register now and not where its value is used: there its address may be computed, which the verifier refuses.
#[cfg(not(bpf_target_arch = "aarch64"))]
macro_rules! now {
    // SAFETY: a register of a probe's context.
    ($register:expr) => {
        unsafe { (&raw const $register).read_volatile() }
    };
}

/// What is at a location of a probe's cookie.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn at_location(ctx: &ProbeContext, cookie: u64, which: u32) -> u64 {
    let r = ctx.regs;
    match tls::location(cookie, which) {
        tls::Location::Nowhere => 0,
        tls::Location::Stack(bytes) => user(now!((*r).rsp) + bytes),
        tls::Location::Register(number) => {
            let (rbx, rbp, r12) = (now!((*r).rbx), now!((*r).rbp), now!((*r).r12));
            let (r13, r14, r15) = (now!((*r).r13), now!((*r).r14), now!((*r).r15));
            match number {
                3 => rbx,
                5 => rbp,
                12 => r12,
                13 => r13,
                14 => r14,
                15 => r15,
                _ => 0,
            }
        }
    }
}

/// The first three arguments of a Go function, and its frame pointer.
#[cfg(not(bpf_target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn go_registers(ctx: &ProbeContext) -> [u64; 4] {
    // SAFETY: the registers a probe is given.
    unsafe { [(*ctx.regs).rax, (*ctx.regs).rbx, (*ctx.regs).rcx, (*ctx.regs).rbp] }
}

/// As [`arguments`].
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn arguments(ctx: &ProbeContext) -> [u64; 4] {
    // SAFETY: the registers a probe is given.
    unsafe { [(*ctx.regs).regs[0], (*ctx.regs).regs[1], (*ctx.regs).regs[2], (*ctx.regs).regs[3]] }
}

/// Unknown on arm64, where these programs are not attached.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn fifth(_: &ProbeContext) -> u64 {
    0
}

/// As [`fifth`].
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn at_location(_: &ProbeContext, _: u64, _: u32) -> u64 {
    0
}

/// As [`fifth`].
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn go_registers(_: &ProbeContext) -> [u64; 4] {
    [0; 4]
}
