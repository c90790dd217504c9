//! Threads that end another's wait on a futex.

use super::{regs::Regs, task::Task};
use crate::arch;

/// Operations of futex(2) that wait (`include/uapi/linux/futex.h`), without its flags.
const OPERATION: u64 = 0x7f;
const WAIT: u64 = 0;
const LOCK_PI: u64 = 6;
const WAIT_BITSET: u64 = 9;
const WAIT_REQUEUE_PI: u64 = 11;
const LOCK_PI2: u64 = 13;

/// The address of the futex that `wakee` waits for, if `waker`, which runs here, wakes it by one of that address.
#[inline(always)]
pub(crate) fn woken_from(waker: Task, wakee: Task) -> Option<u64> {
    let regs = Regs::of(waker);
    if !arch::is_futex(regs.nr()) {
        return None;
    }
    // The waker is itself in a futex wait: it was interrupted, and this wake-up is not its own.
    if matches!(regs.arg1() & OPERATION, WAIT | LOCK_PI | WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2) {
        return None;
    }
    let other = Regs::of(wakee);
    let address = regs.arg0();
    (arch::is_futex(other.nr()) && other.arg0() == address).then_some(address)
}
