//! Clamps the verifier can follow.

/// Hides a value's history from the compiler, so that a comparison just before a use is not folded into an earlier
/// one the verifier has forgotten ("R2 min value is negative" on 6.1, "unbounded memory access" on 6.12).
#[inline(always)]
fn barrier(mut value: u64) -> u64 {
    // A real instruction: line information of an empty one repeats an offset, which 6.18 refuses ("Invalid
    // line_info").
    // SAFETY: moves a register onto itself.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// `value`, at most `MAX`; emitted where it is called.
#[inline(always)]
pub(crate) fn at_most<const MAX: u64>(value: u64) -> u64 {
    let value = barrier(value);
    if value > MAX { MAX } else { value }
}
