//! Tracebacks of `CPython`: the frames that an exception has left, from the one that catches it to the one that threw it.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use tracer_common::{
    interpreter::{
        FRAME_ENTRY, FRAME_VERSION_SHIFT, INTERPRETED_FRAMES_MAX, InterpreterOutcome, LANGUAGE_SHIFT, Language,
        PYTHON_INDEX, fold,
    },
    limits::TRACEBACK_MAX,
};

use super::{INTERPRETER_SCRATCH, area, set, word};

/// In a traceback: the next one, further in; its frame; the last instruction there, in bytes of code.
const NEXT: u64 = 16;
const FRAME: u64 = 24;
const LAST: u64 = 32;
/// First version in which a frame's code is in an object of its own.
const SPLIT: u64 = 11;
/// In a frame: that object; before, the code.
const INNER: u64 = 24;
const CODE: u64 = 32;
/// In that object: the code, in the first such version only; later it comes first.
const INNER_CODE: u64 = 32;
/// In code: the words that tell it from another, until 3.10 and later; and the first instruction in [`SPLIT`], each version up to
/// the last that moved it eight bytes further.
const NAMES: u64 = 104;
const SPLIT_NAMES: u64 = 112;
const BODY: u64 = 184;
const MOVED: u64 = 14;

/// Walks the traceback at `first` of Python 3.`minor` into area `which`, the innermost frame first: their number in the low half, and
/// how that ended in the high one. Of very deep ones the innermost. A function of its own, as the other walk.
#[inline(never)]
pub(crate) fn walk_traceback(mut which: u32, first: u64, minor: u64) -> u64 {
    let Some(walk) = INTERPRETER_SCRATCH.get_ptr_mut(which) else { return 0 };
    // Through pointers, word by word: the steps change it behind the compiler's back.
    // SAFETY: a per-CPU area that only this program uses.
    unsafe {
        (&raw mut (*walk).frame).write_volatile(first);
        (&raw mut (*walk).n).write_volatile(0);
        (&raw mut (*walk).outcome).write_volatile(InterpreterOutcome::TooDeep as u64);
        bpf_loop(TRACEBACK_MAX, count as *mut c_void, (&raw mut which).cast(), 0);
        let all = (&raw const (*walk).n).read_volatile();
        let most = INTERPRETED_FRAMES_MAX as u64;
        let kept = if all < most { all } else { most };
        let mut flags = minor << FRAME_VERSION_SHIFT;
        if minor < SPLIT {
            flags |= PYTHON_INDEX as u64;
        }
        (&raw mut (*walk).frame).write_volatile(first);
        // What is passed over, and where the next frame goes: behind those further in.
        (&raw mut (*walk).outer).write_volatile(all - kept);
        (&raw mut (*walk).n).write_volatile(kept);
        (&raw mut (*walk).names).write_volatile(minor);
        // All are one group, which the outermost ends.
        (&raw mut (*walk).flags).write_volatile(flags | FRAME_ENTRY as u64);
        bpf_loop(TRACEBACK_MAX, step as *mut c_void, (&raw mut which).cast(), 0);
        let outcome = (&raw const (*walk).outcome).read_volatile() | (Language::Python as u64) << LANGUAGE_SHIFT;
        kept | outcome << 32
    }
}

/// Counts one frame; 1 ends the walk.
#[inline(never)]
extern "C" fn count(_: u32, which: *mut u32) -> i64 {
    // SAFETY: the index that the walk passed.
    let Some(walk) = (unsafe { area(which) }) else { return 1 };
    if walk.frame == 0 {
        walk.outcome = InterpreterOutcome::Complete as u64;
        return 1;
    }
    walk.n += 1;
    walk.frame = word(walk.frame.wrapping_add(NEXT));
    0
}

/// Notes one frame; 1 ends the walk.
#[inline(never)]
extern "C" fn step(_: u32, which: *mut u32) -> i64 {
    // SAFETY: as above.
    let Some(walk) = (unsafe { area(which) }) else { return 1 };
    let (at, minor, flags) = (walk.frame, walk.names, walk.flags);
    if at == 0 || walk.n == 0 {
        return 1;
    }
    walk.frame = word(at.wrapping_add(NEXT));
    if walk.outer != 0 {
        walk.outer -= 1;
        return 0;
    }
    let frame = word(at.wrapping_add(FRAME));
    let last = word(at.wrapping_add(LAST)) & 0xffff_ffff;
    let (code, names, position) = if minor < SPLIT {
        // 3.10 counts in units of two bytes.
        (word(frame.wrapping_add(CODE)), NAMES, last >> (minor & 1 ^ 1))
    } else {
        let place = if minor == SPLIT { INNER_CODE } else { 0 };
        let inner = word(frame.wrapping_add(INNER));
        let moves = if minor < MOVED { minor } else { MOVED } - SPLIT;
        // 3.14 tags references in the lowest two bits.
        (word(inner.wrapping_add(place)) & !3, SPLIT_NAMES, last + BODY + 8 * moves)
    };
    // SAFETY: 32 bytes; the helper tolerates any address, and fills them with zeros where it fails.
    unsafe { bpf_probe_read_user((&raw mut walk.words).cast(), 32, code.wrapping_add(names) as *const c_void) };
    let n = walk.n - 1;
    set(walk, n, code, fold(&walk.words), position & 0xffff_ffff | flags << 32);
    walk.n = n;
    walk.flags = flags & !(FRAME_ENTRY as u64);
    0
}
