//! Clamps the verifier can follow.

/// `value`, at most `MAX`; compared and replaced in one register, where it is called.
///
/// In assembly, because a compiler may compare one copy of a value and use another: one it spilled before, of which 6.1
/// knows no bound ("R2 min value is negative"), or fold the comparison into an earlier one that 6.12 has forgotten
/// ("unbounded memory access").
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
