//! Functions of JavaScript in native frames, as V8 runs them: bytecode, baseline and optimised code keep frame pointers, and the
//! slots below say which function a frame runs.
//!
//! The walk over native frames comes first: it knows the frame pointer of each, also of those outside of functions in C++ that have
//! none themselves. Noted is not the function, which the garbage collector moves while it is young, but what it shares with its
//! copies, which seldom moves.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use tracer_common::{
    interpreter::{FRAME_NATIVE_SHIFT, INTERPRETED_FRAMES_MAX, InterpreterLayout, InterpreterOutcome, fold},
    limits::FRAMES_MAX,
};

use super::{INTERPRETER_SCRATCH, Walk, at, set, word};
use crate::{bound::masked, policy, scratch::SAMPLE_SCRATCH};

/// Bytes of slots below the frame pointer that are read: function, context.
const SLOTS: u64 = 16;
const CONTEXT: u64 = 8;
/// Bytes of what a function shares with its copies.
const SHARED: u32 = 48;

/// Whether a word points to an object: it is one byte beyond. Small numbers have their lowest bit clear, weak pointers have the second
/// one set.
#[inline(always)]
fn is_object(word: u64) -> bool {
    word & 3 == 1
}

/// Looks at the native frames that were walked just now.
///
/// # Safety
/// `walk` is this CPU's area.
#[inline(always)]
pub(super) unsafe fn begin(layout: &InterpreterLayout, walk: *mut Walk) -> (u64, u64) {
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
        let mut nothing = 0u32;
        bpf_loop(FRAMES_MAX as u32, step as *mut c_void, (&raw mut nothing).cast(), 0);
        let n = (&raw const (*walk).n).read_volatile();
        let outcome = (&raw const (*walk).outcome).read_volatile();
        // A thread without any runs no JavaScript at the moment.
        let none = n == 0 && outcome == InterpreterOutcome::Complete as u64;
        (n, if none { InterpreterOutcome::NoState as u64 } else { outcome })
    }
}

/// Native frame `index`; 1 ends the walk.
#[inline(never)]
extern "C" fn step(index: u32, _: *mut u32) -> i64 {
    let Some(walk) = INTERPRETER_SCRATCH.get_ptr_mut(0) else { return 1 };
    let Some(native) = SAMPLE_SCRATCH.get_ptr(0) else { return 1 };
    // SAFETY: per-CPU areas that only this program uses; the mask keeps the index within the frames.
    let (walk, fp) = unsafe {
        if index as u64 >= (&raw const (*native).walk.n).read_volatile() {
            return 1;
        }
        let fps = (&raw const (*native).walk.frame_pointers).cast::<u8>();
        let at = masked::<{ FRAMES_MAX as i32 }>(index as u64) << 3;
        (&mut *walk, fps.add(at as usize).cast::<u64>().read_volatile())
    };
    if fp == 0 {
        return 0;
    }
    // SAFETY: 16 bytes; the helper tolerates any address.
    let failed = unsafe {
        bpf_probe_read_user((&raw mut walk.bytes).cast(), SLOTS as u32, fp.wrapping_sub(SLOTS) as *const c_void) != 0
    };
    if failed {
        walk.outcome = InterpreterOutcome::Unreadable as u64;
        return 0;
    }
    let (function, context) = (at(walk, 0), at(walk, CONTEXT));
    if !is_object(context) || !is_object(function) {
        // Of V8's own functions and of what leads from C++ to JavaScript: the kind of frame stands in the place of the context.
        return 0;
    }
    let shared = word(function.wrapping_add(walk.code).wrapping_sub(1));
    if !is_object(shared) {
        return 0;
    }
    // SAFETY: 48 bytes; the helper tolerates any address.
    let failed = unsafe {
        bpf_probe_read_user((&raw mut walk.bytes).cast(), SHARED, shared.wrapping_sub(1) as *const c_void) != 0
    };
    if failed {
        walk.outcome = InterpreterOutcome::Unreadable as u64;
        return 0;
    }
    let cookie = fold(&[at(walk, 0), at(walk, walk.names), at(walk, walk.position), 0]);
    let flags = walk.flags | (index as u64) << FRAME_NATIVE_SHIFT;
    let n = walk.n;
    if n >= INTERPRETED_FRAMES_MAX as u64 {
        return 1;
    }
    set(walk, n, shared, cookie, flags << 32);
    walk.n = n + 1;
    0
}
