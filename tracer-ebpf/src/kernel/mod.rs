//! Typed reads of kernel structs through resolved offsets, one file each.

pub(crate) mod futex;
pub(crate) mod mptcp;
pub(crate) mod regs;
pub(crate) mod sock;
pub(crate) mod task;

use core::ffi::c_void;

/// Reads a member of a kernel object the verifier trusts: a direct load, fault-safe, about a nanosecond.
///
/// # Safety
/// `object` is a BTF pointer to a struct that has a `T` at `offset` (which user space took from BTF).
#[inline(always)]
unsafe fn load<T: Copy>(object: *const c_void, offset: u64) -> T {
    // SAFETY: the caller's promise; volatile keeps the load whole and in place.
    unsafe { object.byte_add(offset as usize).cast::<T>().read_volatile() }
}
