//! Walks the frames of `CPython`, PHP, V8 and HotSpot, by a layout that user space wrote for the process: the interpreter does not take part.
//!
//! The running thread reads its own memory, so nothing changes it meanwhile, and pages that are not present end the walk.
//! The state of a walk lies in map memory, for the reason `unwind` has.

mod java;
mod native_frames;
mod traceback;
mod v8;

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    macros::map,
    maps::{HashMap, PerCpuArray},
};
use tracer_common::interpreter::{
    FRAME_BYTES, FRAME_ENTRY, FRAME_JAVA, FRAME_PHP, FRAME_SHIM, FRAME_V8, INTERPRETED_FRAMES_MAX, INTERPRETERS_MAX,
    InterpretedFrame, InterpreterLayout, InterpreterOutcome, LANGUAGE_SHIFT, Language, OUTCOMES, OWNER_ANY,
    PHP_INTERNAL, PYTHON_INDEX, fold,
};

pub(crate) use traceback::walk_traceback;

use crate::{bound::masked, emit, kernel::task::Task, scratch::AREAS, unwind};

/// Owner of a frame on the C stack that only ends a run of the loop (`FRAME_OWNED_BY_CSTACK`, since 3.12; 3.14 calls it
/// `FRAME_OWNED_BY_INTERPRETER`).
const SHIM: u64 = 3;

/// Kind, name and class in the head of a function of PHP; the hash in a string; the line in an instruction.
const PHP_FUNCTION: u32 = 24;
const PHP_HASH: u64 = 8;
const PHP_LINE: u64 = 24;

/// Interpreters by process id.
#[map]
static INTERPRETERS: HashMap<u32, InterpreterLayout> = HashMap::with_max_entries(INTERPRETERS_MAX, 0);

/// Walks by [`InterpreterOutcome`] and [`Language`] as a record has them, summed over CPUs by user space.
#[map]
static INTERPRETER_WALKS: PerCpuArray<u64> = PerCpuArray::with_max_entries(OUTCOMES * Language::ALL.len() as u32, 0);

/// A walk's state, and what it found.
#[repr(C)]
pub(crate) struct Walk {
    pub(crate) frames: [InterpretedFrame; INTERPRETED_FRAMES_MAX],
    /// The frame that is read next; 0 = there is none.
    frame: u64,
    /// Where the walk starts over if the first group does not lead there.
    outer: u64,
    /// Whether that was seen to.
    checked: u64,
    /// Frames found.
    n: u64,
    /// [`InterpreterOutcome`]; only its end sets it.
    outcome: u64,
    // The layout.
    code: u64,
    previous: u64,
    position: u64,
    owner: u64,
    owner_mask: u64,
    owner_entry: u64,
    names: u64,
    flags: u64,
    /// The words of a code object.
    words: [u64; 4],
    bytes: [u64; FRAME_BYTES / 8 + 2],
}

/// Areas as for the walk over native frames (`scratch.rs`).
#[map]
static INTERPRETER_SCRATCH: PerCpuArray<Walk> = PerCpuArray::with_max_entries(AREAS, 0);

/// The area with the index that `bpf_loop` passes to a step.
///
/// # Safety
/// `which` points to an index.
#[inline(always)]
unsafe fn area(which: *mut u32) -> Option<&'static mut Walk> {
    // SAFETY: the caller's promise; a per-CPU area that only one program uses at a time.
    unsafe { INTERPRETER_SCRATCH.get_ptr_mut(*which).map(|walk| &mut *walk) }
}

/// What the last walk on this CPU into area `which` found.
#[inline(always)]
pub(crate) fn found(which: u32) -> Option<*const InterpretedFrame> {
    let walk = INTERPRETER_SCRATCH.get_ptr(which)?;
    // SAFETY: a place in the area, nothing is read.
    Some(unsafe { (&raw const (*walk).frames).cast() })
}

/// Counts how a walk ended.
#[inline(always)]
fn count(outcome: u64) {
    if let Some(counter) = INTERPRETER_WALKS.get_ptr_mut(outcome as u32) {
        // SAFETY: a per-CPU element. At once: the sampler interrupts walks at calls.
        unsafe { emit::increment(counter) };
    }
}

/// A word of the thread's memory; 0 where it cannot be read.
#[inline(always)]
fn word(at: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: 8 bytes; the helper tolerates any address.
    unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, at as *const c_void) };
    word
}

/// Walks the interpreted frames of `task`, which runs here and whose native frames were walked into area `which` just now, if its
/// process has any: their number in the low half, how it ended and of which language in the high one. A function of its own: its stack does not count beside that of the other walk.
#[inline(never)]
pub(crate) fn walk(task: Task, mut which: u32) -> u64 {
    if !unwind::possible() {
        return 0;
    }
    // SAFETY: user space replaces it as a whole.
    let Some(layout) = INTERPRETERS.get_ptr(task.tgid()) else { return 0 };
    // SAFETY: an element of the map.
    let layout = unsafe { &*layout };
    let Some(walk) = INTERPRETER_SCRATCH.get_ptr_mut(which) else { return 0 };
    // SAFETY: a per-CPU area that only this program uses.
    let (n, outcome) = unsafe { begin(task, layout, walk, &raw mut which) };
    let language = Language::of_flags(layout.flags);
    let outcome = outcome | (language as u64) << LANGUAGE_SHIFT;
    count(outcome);
    n | outcome << 32
}

/// # Safety
/// `walk` is this CPU's area with the index `*which`.
#[inline(always)]
unsafe fn begin(task: Task, layout: &InterpreterLayout, walk: *mut Walk, which: *mut u32) -> (u64, u64) {
    if layout.refused != 0 {
        return (0, layout.refused as u64);
    }
    if layout.flags & FRAME_V8 != 0 {
        // SAFETY: the caller's promise.
        return unsafe { native_frames::walk(layout, walk, which, v8::step) };
    }
    if layout.flags & FRAME_JAVA != 0 {
        // SAFETY: the caller's promise.
        return unsafe { native_frames::walk(layout, walk, which, java::step) };
    }
    let (mut frame, mut outer, mut checked) = (0, 0, 1);
    if layout.flags & FRAME_PHP != 0 {
        // One interpreter in the process, which its first thread runs.
        if task.tid() == task.tgid() {
            frame = word(layout.state);
        }
        if frame == 0 {
            return (0, InterpreterOutcome::NoState as u64);
        }
    } else {
        let own = task.fsbase();
        let state = word(own.wrapping_add(layout.state));
        if own == 0 || state == 0 {
            return (0, InterpreterOutcome::NoState as u64);
        }
        if word(state.wrapping_add(layout.thread_id as u64)) != own {
            return (0, InterpreterOutcome::WrongState as u64);
        }
        frame = word(state.wrapping_add(layout.frame as u64));
    }
    if layout.cframe != 0 {
        // The record of the loop's run: its current frame, then the record of the run outside.
        let record = frame.wrapping_add(layout.cframe as u64 - 1);
        frame = word(record);
        let outside = word(record.wrapping_add(8));
        if outside != 0 {
            outer = word(outside.wrapping_add(layout.cframe as u64 - 1));
        }
        checked = 0;
    }
    // Through pointers, word by word: the steps change it behind the compiler's back.
    // SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*walk).frame).write_volatile(frame);
        (&raw mut (*walk).outer).write_volatile(outer);
        (&raw mut (*walk).checked).write_volatile(checked);
        (&raw mut (*walk).n).write_volatile(0);
        (&raw mut (*walk).outcome).write_volatile(InterpreterOutcome::TooDeep as u64);
        (&raw mut (*walk).code).write_volatile(layout.code as u64);
        (&raw mut (*walk).previous).write_volatile(layout.previous as u64);
        (&raw mut (*walk).position).write_volatile(layout.position as u64);
        (&raw mut (*walk).owner).write_volatile(layout.owner as u64);
        (&raw mut (*walk).owner_mask).write_volatile(layout.owner_mask as u64);
        (&raw mut (*walk).owner_entry).write_volatile(layout.owner_entry as u64);
        (&raw mut (*walk).names).write_volatile(layout.names as u64);
        (&raw mut (*walk).flags).write_volatile(layout.flags as u64);
        // One turn more, to see that there is no further frame; one more where it starts over.
        bpf_loop(INTERPRETED_FRAMES_MAX as u32 + 2, step as *mut c_void, which.cast(), 0);
        ((&raw const (*walk).n).read_volatile(), (&raw const (*walk).outcome).read_volatile())
    }
}

/// One frame: notes it and goes to the one that called it; 1 ends the walk.
#[inline(never)]
extern "C" fn step(_: u32, which: *mut u32) -> i64 {
    // SAFETY: the index that `walk` passed.
    let Some(walk) = (unsafe { area(which) }) else { return 1 };
    if walk.frame == 0 {
        walk.outcome = InterpreterOutcome::Complete as u64;
        return 1;
    }
    let n = walk.n;
    if n >= INTERPRETED_FRAMES_MAX as u64 {
        return 1;
    }
    // SAFETY: 120 bytes; the helper tolerates any address.
    let failed = unsafe {
        bpf_probe_read_user((&raw mut walk.bytes).cast(), FRAME_BYTES as u32, walk.frame as *const c_void) != 0
    };
    if failed {
        if walk.checked != 0 {
            walk.outcome = InterpreterOutcome::Unreadable as u64;
            return 1;
        }
        again(walk);
        return 0;
    }
    // CPython 3.14 tags references in the lowest two bits; functions lie at multiples of eight.
    let code = at(walk, walk.code) & !3;
    let position = at(walk, walk.position);
    let previous = at(walk, walk.previous);
    let mut flags = walk.flags;
    if walk.owner_entry == OWNER_ANY as u64 {
        flags |= FRAME_ENTRY as u64;
    } else {
        // SAFETY: the mask keeps it within the bytes.
        let owner = unsafe {
            (&raw const walk.bytes).cast::<u8>().add(masked::<127>(walk.owner) as usize).read_volatile() as u64
        };
        if owner & walk.owner_mask == walk.owner_entry {
            flags |= FRAME_ENTRY as u64;
            if owner == SHIM {
                flags |= FRAME_SHIM as u64;
            }
        }
    }
    if flags & FRAME_PHP as u64 != 0 {
        walk.frame = previous;
        // Without a function it stands for a generator that another one runs.
        if code != 0 {
            let (cookie, line) = function_of_php(walk, code, position);
            set(walk, n, code, cookie, line | flags << 32);
            walk.n = n + 1;
        }
        return 0;
    }
    let mut cookie = 0;
    if flags & FRAME_SHIM as u64 == 0 {
        // SAFETY: 32 bytes; the helper tolerates any address, and fills them with zeros where it fails.
        unsafe {
            bpf_probe_read_user((&raw mut walk.words).cast(), 32, code.wrapping_add(walk.names) as *const c_void);
        }
        cookie = fold(&walk.words);
    }
    let index = flags & PYTHON_INDEX as u64 != 0;
    let distance = if index { position } else { position.wrapping_sub(code) };
    // Before the code: the function has not begun.
    let distance = if !index && distance >> 31 != 0 { 0 } else { distance };
    set(walk, n, code, cookie, distance | flags << 32);
    walk.n = n + 1;
    walk.frame = previous;
    if walk.checked == 0 && (flags & FRAME_ENTRY as u64 != 0 || previous == 0) {
        walk.checked = 1;
        // A run of the loop that has begun and not entered its frame: its record still has another call's.
        if previous != walk.outer {
            again(walk);
        }
    }
    0
}

/// What tells a function of PHP from others, and the line it is at. Hashes of names rather than their places: functions are freed
/// with each request, and those of the next one stand at the same places.
#[inline(always)]
fn function_of_php(walk: &mut Walk, code: u64, instruction: u64) -> (u64, u64) {
    // SAFETY: 24 bytes; the helper tolerates any address, and fills them with zeros where it fails.
    unsafe { bpf_probe_read_user((&raw mut walk.words).cast(), PHP_FUNCTION, code as *const c_void) };
    let [kind, name, scope, _] = walk.words;
    let hash = |string: u64| if string == 0 { 0 } else { word(string.wrapping_add(PHP_HASH)) };
    let (mut file, mut lines, mut line) = (0, 0, 0);
    if kind & 0xff != PHP_INTERNAL as u64 {
        file = hash(word(code.wrapping_add(walk.names)));
        lines = word(code.wrapping_add(walk.names + 8));
        line = word(instruction.wrapping_add(PHP_LINE)) & 0xffff_ffff;
    }
    (fold(&[hash(name), scope, file, lines]), line)
}

/// Starts over outside the innermost run of the loop, which has no frame yet: only its place is noted.
#[inline(always)]
fn again(walk: &mut Walk) {
    walk.checked = 1;
    let flags = walk.flags | (FRAME_ENTRY | FRAME_SHIM) as u64;
    set(walk, 0, 0, 0, flags << 32);
    walk.n = 1;
    walk.frame = walk.outer;
}

/// The word at `offset` of the frame that was read.
#[inline(always)]
fn at(walk: &Walk, offset: u64) -> u64 {
    // SAFETY: the mask keeps it within the bytes.
    unsafe { (&raw const walk.bytes).cast::<u8>().add(masked::<0x78>(offset) as usize).cast::<u64>().read_volatile() }
}

/// Notes frame `n`; `rest`: its position, and its flags above.
#[inline(always)]
fn set(walk: &mut Walk, n: u64, code: u64, cookie: u64, rest: u64) {
    const MASK: i32 = INTERPRETED_FRAMES_MAX as i32 - 1;
    // SAFETY: the mask keeps it within the frames.
    unsafe {
        let frame = (&raw mut walk.frames).cast::<u8>().add(masked::<MASK>(n) as usize * size_of::<InterpretedFrame>());
        let words = frame.cast::<u64>();
        words.write_volatile(code);
        words.add(1).write_volatile(cookie);
        // Little-endian: the position is the first half.
        words.add(2).write_volatile(rest);
    }
}

const _: () = assert!(INTERPRETED_FRAMES_MAX.is_power_of_two() && cfg!(target_endian = "little"));
