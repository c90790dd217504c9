//! Interpreted functions in native frames, whose slots say which function they run.
//!
//! The walk over native frames comes first: it knows the frame pointer of each, also of those outside of functions in C++ that have
//! none themselves.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use tracer_common::{
    interpreter::{FRAME_NATIVE_SHIFT, INTERPRETED_FRAMES_MAX, InterpreterLayout, InterpreterOutcome},
    limits::FRAMES_MAX,
};

use super::{Walk, set};
use crate::{bound::masked, policy, scratch::SAMPLE_SCRATCH};

/// Looks at the native frames that were walked just now, each by `step`: the number of functions found, and how it ended.
///
/// # Safety
/// `walk` is this CPU's area with the index `*which`.
#[inline(always)]
pub(super) unsafe fn walk(
    layout: &InterpreterLayout,
    walk: *mut Walk,
    which: *mut u32,
    step: extern "C" fn(u32, *mut u32) -> i64,
) -> (u64, u64) {
    if !policy::unwind() {
        return (0, InterpreterOutcome::NoState as u64);
    }
    // Word by word, and read back: the steps change it behind the compiler's back.
    // SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*walk).n).write_volatile(0);
        (&raw mut (*walk).outcome).write_volatile(InterpreterOutcome::Complete as u64);
        (&raw mut (*walk).code).write_volatile(layout.code as u64);
        (&raw mut (*walk).position).write_volatile(layout.position as u64);
        (&raw mut (*walk).names).write_volatile(layout.names as u64);
        (&raw mut (*walk).flags).write_volatile(layout.flags as u64);
        bpf_loop(FRAMES_MAX as u32, step as *mut c_void, which.cast(), 0);
        let n = (&raw const (*walk).n).read_volatile();
        let outcome = (&raw const (*walk).outcome).read_volatile();
        // A thread without any runs no such function at the moment.
        let none = n == 0 && outcome == InterpreterOutcome::Complete as u64;
        (n, if none { InterpreterOutcome::NoState as u64 } else { outcome })
    }
}

/// The frame pointer of native frame `index` in area `which`, 0 where it has none; `None` beyond the last frame.
#[inline(always)]
pub(super) fn frame_pointer(index: u32, which: u32) -> Option<u64> {
    let native = SAMPLE_SCRATCH.get_ptr(which)?;
    // SAFETY: a per-CPU area that only this program uses; the mask keeps the index within the frames.
    unsafe {
        if index as u64 >= (&raw const (*native).walk.n).read_volatile() {
            return None;
        }
        let all = (&raw const (*native).walk.frame_pointers).cast::<u8>();
        let at = masked::<{ FRAMES_MAX as i32 }>(index as u64) << 3;
        Some(all.add(at as usize).cast::<u64>().read_volatile())
    }
}

/// Notes that native frame `index` runs the function `code`; 1 where there is no room for another one.
#[inline(always)]
pub(super) fn found(walk: &mut Walk, index: u32, code: u64, cookie: u64) -> i64 {
    let n = walk.n;
    if n >= INTERPRETED_FRAMES_MAX as u64 {
        return 1;
    }
    let flags = walk.flags | (index as u64) << FRAME_NATIVE_SHIFT;
    set(walk, n, code, cookie, flags << 32);
    walk.n = n + 1;
    0
}
