//! Methods that HotSpot interprets: its interpreter keeps frame pointers, and a slot below says which method a frame runs
//! (`src/hotspot/cpu/x86/frame_x86.hpp` of OpenJDK).

use super::{area, native_frames, word};

/// How far below the frame pointer the method stands, bytes (`interpreter_frame_method_offset`).
const METHOD: u64 = 24;

/// Native frame `index`; 1 ends the walk.
#[inline(never)]
pub(super) extern "C" fn step(index: u32, which: *mut u32) -> i64 {
    // SAFETY: the index that the walk passed.
    let Some(walk) = (unsafe { area(which) }) else { return 1 };
    // SAFETY: as above.
    let Some(fp) = native_frames::frame_pointer(index, unsafe { *which }) else { return 1 };
    // The walk over native frames marked the interpreter's.
    if fp & 1 == 0 {
        return 0;
    }
    let method = word((fp & !1).wrapping_sub(METHOD));
    let fixed = word(method.wrapping_add(walk.code));
    if method == 0 || fixed == 0 {
        return 0;
    }
    native_frames::found(walk, index, method, fixed)
}
