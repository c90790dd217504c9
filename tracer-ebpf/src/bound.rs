//! Clamps the verifier can follow.

/// `value`, at most `MAX`; compared and replaced in one register, at the call site.
///
/// In assembly, because a compiler may compare one copy of a value and use another: an earlier spilled copy, for which
/// 6.1 knows no bound ("R2 min value is negative"). Or it may fold the comparison into an earlier one that 6.12 has
/// forgotten ("unbounded memory access").
#[inline(always)]
pub(crate) fn at_most<const MAX: u64>(mut value: u64) -> u64 {
    const { assert!(MAX < 1 << 31) };
    // SAFETY: compares and sets one register; jumps nowhere else.
    unsafe {
        core::arch::asm!(
            "if {value} <= {max} goto +1",
            "{value} = {max}",
            value = inout(reg) value,
            max = const MAX,
            options(nomem, nostack)
        );
    }
    value
}

/// `value & MASK`, done where it is called: a compiler that knows more may drop the mask the verifier needs. The mask is
/// part of the assembly: two line infos would fall on one instruction of an empty one, which the kernel refuses.
#[inline(always)]
pub(crate) fn masked<const MASK: i32>(mut value: u64) -> u64 {
    // SAFETY: changes one register.
    unsafe {
        core::arch::asm!("{value} &= {mask}", value = inout(reg) value, mask = const MASK, options(pure, nomem, nostack));
    }
    value
}

/// 1 where `a < b`, else 0, for values below 2^63; without a jump, so that the verifier follows one path.
///
/// Not `if_less(a, b, 1)`: with a constant mask, new verifiers follow `s>>= 63; &=` once for either result, which after
/// twenty of them is a million paths.
#[inline(always)]
pub(crate) fn less(a: u64, b: u64) -> u64 {
    let mut out = a;
    // SAFETY: changes one register.
    unsafe {
        core::arch::asm!("{out} -= {b}", "{out} >>= 63", out = inout(reg) out, b = in(reg) b, options(pure, nomem, nostack));
    }
    out
}

/// `then` where `a < b`, else 0, for values below 2^63; without a jump.
#[inline(always)]
pub(crate) fn if_less(a: u64, b: u64, then: u64) -> u64 {
    let mut out = a;
    // SAFETY: changes one register.
    unsafe {
        core::arch::asm!(
            "{out} -= {b}",
            "{out} s>>= 63",
            "{out} &= {then}",
            out = inout(reg) out,
            b = in(reg) b,
            then = in(reg) then,
            options(pure, nomem, nostack)
        );
    }
    out
}
