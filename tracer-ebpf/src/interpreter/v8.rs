//! Functions of JavaScript in native frames, as V8 runs them: bytecode, baseline and optimised code keep frame pointers, and the
//! slots below say which function a frame runs.
//!
//! Noted is not the function, which the garbage collector moves while it is young, but what it shares with its
//! copies, which seldom moves.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use tracer_common::interpreter::{InterpreterOutcome, fold};

use super::{area, at, native_frames, word};

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

/// Native frame `index`; 1 ends the walk.
#[inline(never)]
pub(super) extern "C" fn step(index: u32, which: *mut u32) -> i64 {
    // SAFETY: the index that the walk passed.
    let Some(walk) = (unsafe { area(which) }) else { return 1 };
    // SAFETY: as above.
    let Some(fp) = native_frames::frame_pointer(index, unsafe { *which }) else { return 1 };
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
    native_frames::found(walk, index, shared, cookie)
}
