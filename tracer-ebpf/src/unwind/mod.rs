//! Walks user stacks without frame pointers, by tables user space compiled; the step itself is `tracer_common::unwind`.
//!
//! What a walk has found so far lies in map memory: the verifier forgets what is stored there, so that every frame looks
//! alike to it. On the stack it would follow the count of frames through every iteration, past a million instructions.

mod mapping;
mod tables;

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    macros::map,
    maps::PerCpuArray,
};
use tracer_common::{
    limits::FRAMES_MAX,
    unwind::{
        ADDRESS_END, CFA_NONE, CFA_SENDER, FILE_FRAME_POINTERS, FILE_PENDING, FILE_TABLE, FileKey, Frame, JIT_CODE,
        Outcome, Stack, call, call_by_frame_pointer,
    },
};

use crate::{
    bound::masked,
    emit,
    kernel::{regs::Regs, task::Task},
    offsets::UNWIND,
    scratch::SAMPLE_SCRATCH,
};

/// Walks by [`Outcome`], summed over CPUs by user space.
#[map]
static WALKS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Outcome::ALL.len() as u32, 0);

/// The state of a mapping that no file is behind: generated code.
const NO_FILE: u64 = FILE_FRAME_POINTERS as u64;

/// A walk's state.
#[repr(C)]
pub(crate) struct Walk {
    frame: Frame,
    /// Frames found.
    pub(crate) n: u64,
    /// [`Outcome`]; only its end sets it.
    outcome: u64,
    /// The mapping of the last frame, and its file: `FILE_…`.
    start: u64,
    end: u64,
    state: u64,
    key: FileKey,
    /// Added to an address, gives its offset in what the table covers.
    shift: u64,
    directory: u64,
    pages: u64,
    /// Second of the clock, as [`tracer_common::unwind::FileEntry::used`] has it.
    second: u64,
    /// `mm_struct` of the process, and its number.
    mm: u64,
    tgid: u64,
    /// Whether it passed code that the process made, and user space was not yet asked about.
    unknown: u64,
    /// The descent through its tree of mappings.
    tree: mapping::Descent,
    /// The frame pointer of each frame that has one; 0 where a table led on. Of frames of Java's interpreter plus 1.
    pub(crate) frame_pointers: [u64; FRAMES_MAX + 1],
}

/// Counts how a walk ended.
#[inline(always)]
pub(crate) fn count(outcome: u64) {
    if let Some(counter) = WALKS.get_ptr_mut(outcome as u32) {
        // SAFETY: a per-CPU element. At once: the sampler interrupts walks at calls.
        unsafe { emit::increment(counter) };
    }
}

/// Whether this kernel has what a walk needs.
#[inline(always)]
pub(crate) fn possible() -> bool {
    UNWIND.load() != 0
}

/// The thread's memory.
struct User;

impl Stack for User {
    #[inline(always)]
    fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
        let mut pair = core::mem::MaybeUninit::<[u64; 2]>::uninit();
        // SAFETY: 16 bytes; the helper tolerates any address, and fills them with zeros where it fails.
        unsafe {
            let failed = bpf_probe_read_user(pair.as_mut_ptr().cast(), 16, at as *const c_void) != 0;
            if failed { None } else { Some(pair.assume_init()) }
        }
    }

    #[inline(always)]
    fn word(&mut self, at: u64) -> Option<u64> {
        let mut word = 0u64;
        // SAFETY: 8 bytes; the helper tolerates any address.
        let failed = unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, at as *const c_void) != 0 };
        if failed { None } else { Some(word) }
    }
}

/// Walks the user stack of `task`, which runs here, into the frames of scratch area `which`; gives their number and how the
/// walk ended.
#[inline(always)]
pub(crate) fn walk(task: Task, mut which: u32, now: u64) -> (u64, u64) {
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(which) else { return (0, Outcome::NoRegisters as u64) };
    let regs = Regs::of(task);
    let (pc, sp, fp) = regs.stack();
    // No reference to it: the step changes it behind the compiler's back, which would go on with what it wrote here. Word
    // by word: together, zeros become a call of `memset`.
    // SAFETY: a per-CPU area that only this program uses.
    unsafe {
        let walk = &raw mut (*scratch).walk;
        (&raw mut (*walk).frame.pc).write_volatile(pc);
        (&raw mut (*walk).frame.sp).write_volatile(sp);
        (&raw mut (*walk).frame.fp).write_volatile(fp);
        (&raw mut (*walk).frame.exact).write_volatile(1);
        (&raw mut (*walk).n).write_volatile(0);
        (&raw mut (*walk).outcome).write_volatile(Outcome::TooDeep as u64);
        // No mapping is at hand.
        (&raw mut (*walk).start).write_volatile(1);
        (&raw mut (*walk).end).write_volatile(0);
        (&raw mut (*walk).second).write_volatile((now >> 30) & 0xffff_ffff);
        let mm = task.mm();
        if mm == 0 {
            // It ends, and has no memory any more.
            return (0, Outcome::Complete as u64);
        }
        (&raw mut (*walk).mm).write_volatile(mm);
        (&raw mut (*walk).tgid).write_volatile(task.tgid() as u64);
        (&raw mut (*walk).unknown).write_volatile(0);
        if pc == 0 || pc >= ADDRESS_END {
            (&raw mut (*walk).outcome).write_volatile(Outcome::NoRegisters as u64);
        } else if regs.is_compat() {
            (&raw mut (*walk).outcome).write_volatile(Outcome::Compat as u64);
        } else {
            bpf_loop(FRAMES_MAX as u32, step as *mut c_void, (&raw mut which).cast(), 0);
        }
        let n = (&raw const (*walk).n).read_volatile();
        let outcome = (&raw const (*walk).outcome).read_volatile();
        if outcome == Outcome::TablePending as u64 {
            tables::ask(task.tgid(), walk);
        }
        // Of code that a process made, user space may know more than frame pointers say, or than its table does by now.
        if (&raw const (*walk).unknown).read_volatile() != 0 {
            tables::ask_for_jit_code(task.tgid());
        } else if outcome == Outcome::NoRule as u64 && (&raw const (*walk).key.device).read_volatile() == JIT_CODE {
            tables::request(&(&raw const (*walk).key).read_volatile(), 0, 0, task.tgid());
        }
        (n, outcome)
    }
}

/// Notes the frame pointer of frame `n`; 0: it has none.
#[inline(always)]
fn note(walk: &mut Walk, n: u64, fp: u64) {
    // SAFETY: the mask keeps it within the frames of one stack.
    unsafe {
        let all = (&raw mut walk.frame_pointers).cast::<u8>();
        all.add((masked::<{ FRAMES_MAX as i32 }>(n) << 3) as usize).cast::<u64>().write_volatile(fp);
    }
}

/// One frame: notes its address and goes to its caller; 1 ends the walk.
#[inline(never)]
extern "C" fn step(_: u32, which: *mut u32) -> i64 {
    // SAFETY: the index `walk` passed.
    let Some(scratch) = SAMPLE_SCRATCH.get_ptr_mut(unsafe { *which }) else { return 1 };
    // SAFETY: a per-CPU area that only this program uses.
    let walk = unsafe { &mut (*scratch).walk };
    let n = walk.n;
    // SAFETY: the mask keeps it within the frames of one stack.
    unsafe {
        let frames = (&raw mut (*scratch).frames).cast::<u8>();
        frames.add((masked::<{ FRAMES_MAX as i32 }>(n) << 3) as usize).cast::<u64>().write_volatile(walk.frame.pc);
    }
    walk.n = n + 1;
    note(walk, n, 0);
    let place = walk.frame.place();
    if place < walk.start || place >= walk.end {
        // SAFETY: the area looked up above.
        if !unsafe { mapping::find(scratch, which, place) } {
            // What is left there is not the mapping of the next frame.
            walk.end = 0;
            walk.outcome = Outcome::NoMapping as u64;
            return 1;
        }
    }
    let stepped = match walk.state as u32 {
        FILE_TABLE => match tables::rule(walk, place) {
            Some(rule) => {
                // Nothing is known of it, as of code that V8 has in its program.
                if rule.cfa == CFA_NONE {
                    note(walk, n, walk.frame.fp);
                } else if rule.cfa == CFA_SENDER {
                    note(walk, n, walk.frame.fp | 1);
                }
                call(&mut walk.frame, rule, &mut User)
            }
            None => Err(Outcome::TableMismatch),
        },
        FILE_FRAME_POINTERS => {
            note(walk, n, walk.frame.fp);
            call_by_frame_pointer(&mut walk.frame, &mut User)
        }
        FILE_PENDING => Err(Outcome::TablePending),
        _ => Err(Outcome::TableRefused),
    };
    match stepped {
        Ok(()) => 0,
        Err(outcome) => {
            walk.outcome = outcome as u64;
            1
        }
    }
}
