//! Walking user stacks without frame pointers: the tables both sides share, and the step from a frame to its caller.
//!
//! User space compiles `.eh_frame` of every file into *rows* of four bytes: the low half of a row is the number of a
//! [`Rule`], the high half the low bits of the place from which on the rule holds. Rows are grouped by [pages](PAGE_SHIFT)
//! of the file; a *directory* has one 8-byte entry per page: index of its first row, and how many there are. Every page
//! begins with a row for its first byte, so a search never leaves it.
//!
//! Rows and directories lie in the *arena*: [`CHUNKS`] chunks of 1 MiB. An index counts words of four bytes; nothing
//! crosses a chunk.
//!
//! The step ([`call`], [`call_by_frame_pointer`]) is pure: what it reads of the stack comes through [`Stack`].

use crate::wire::wire;

/// Words of one chunk of the arena, four bytes each.
pub const CHUNK_WORDS: u32 = 1 << 18;
/// Most chunks.
pub const CHUNKS: u32 = 256;
/// Bytes of a file per page of rows, as a power of two.
pub const PAGE_SHIFT: u32 = 12;
/// Most rules.
pub const RULES: u32 = 32 * 1024;
/// Most files whose tables the kernel side can look up.
pub const FILES: u32 = 8192;
/// Bytes of the ring by which the kernel side asks for tables.
pub const REQUEST_RING_BYTES: u32 = 64 << 10;
/// A frame pointer further than this above the stack pointer is a general register.
pub const FRAME_BYTES_MAX: u64 = 8 << 20;
/// User addresses are below this.
pub const ADDRESS_END: u64 = 1 << 47;

/// How the caller's registers follow from a frame's. The return address stands at CFA - 8.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Where the canonical frame address (CFA) comes from: `CFA_…`.
    pub cfa: u8,
    /// Where the caller's frame pointer comes from: `FP_…`.
    pub fp: u8,
    /// `CFA_AT_…`: what is added after reading. `CFA_PLT`: from which byte of its 16 on an entry has pushed something.
    /// `CFA_OTHER_STACK`: 1 = what it calls there has no callers. `CFA_NONE`: 1 = frame pointers lead nowhere.
    pub extra: u8,
    /// Zero.
    pub reserved: u8,
    /// Offset from the register.
    pub cfa_offset: i32,
    /// Offset from the CFA (`FP_AT_CFA`) or the frame pointer (`FP_AT_FP`).
    pub fp_offset: i32,
    /// Zero.
    pub reserved_too: u32,
}

/// [`Rule::cfa`]: stack pointer + offset.
pub const CFA_SP: u8 = 1;
/// [`Rule::cfa`]: frame pointer + offset.
pub const CFA_FP: u8 = 2;
/// [`Rule::cfa`]: what stands at stack pointer + offset, + extra.
pub const CFA_AT_SP: u8 = 3;
/// [`Rule::cfa`]: what stands at frame pointer + offset, + extra: the frame realigned its stack.
pub const CFA_AT_FP: u8 = 4;
/// [`Rule::cfa`]: an entry of the procedure linkage table: stack pointer + 8, + 8 once it has pushed something.
pub const CFA_PLT: u8 = 5;
/// [`Rule::cfa`]: the frame the kernel made for a signal handler.
pub const CFA_SIGNAL: u8 = 6;
/// [`Rule::cfa`]: the outermost frame.
pub const CFA_END: u8 = 7;
/// [`Rule::cfa`]: no function is known here.
pub const CFA_NONE: u8 = 8;
/// [`Rule::cfa`]: the function has unwind information that this table cannot express.
pub const CFA_UNSUPPORTED: u8 = 9;

/// [`Rule::cfa`]: the function went to another stack (Go), and the frame pointer leads back.
pub const CFA_OTHER_STACK: u8 = 10;

/// [`Rule::cfa`]: a frame of Java's interpreter: the frame pointer leads to its caller's and the return address, and the caller's
/// stack pointer stands below them, because arguments may stand in between.
pub const CFA_SENDER: u8 = 11;

/// [`Rule::fp`]: the frame does not change it.
pub const FP_SAME: u8 = 0;
/// [`Rule::fp`]: saved at CFA + offset.
pub const FP_AT_CFA: u8 = 1;
/// [`Rule::fp`]: saved at frame pointer + offset.
pub const FP_AT_FP: u8 = 2;

// arch/x86/include/uapi/asm/sigcontext.h: the registers a signal frame has, from its stack pointer on.
const SIGNAL_SP_AND_PC: u64 = 160;
const SIGNAL_FP: u64 = 120;

wire! {
    /// A file as the kernel side knows it. Inode numbers are reused, so its generation and its size belong to it. All
    /// zero: the vdso, which has no file.
    pub struct FileKey {
        /// `s_dev` of its file system.
        pub device: u32,
        /// `i_generation`.
        pub generation: u32,
        /// `i_ino`.
        pub inode: u64,
        /// `i_size`.
        pub size: u64,
    }
}

/// [`FileKey::device`] of code that a process made while running: no file system has this number. Its inode is the process.
pub const JIT_CODE: u32 = u32::MAX;

impl FileKey {
    /// The code that a process made while running. Its table covers addresses instead of offsets of a file.
    pub const fn jit_code(tgid: u32) -> Self {
        Self { device: JIT_CODE, generation: 0, inode: tgid as u64, size: 0 }
    }
}

wire! {
    /// What is known of a file.
    pub struct FileEntry {
        /// `FILE_…`.
        pub state: u32,
        /// Index of its directory.
        pub directory: u32,
        /// Pages it has.
        pub pages: u32,
        /// Second of `CLOCK_MONOTONIC` it was used in last; the kernel side writes it.
        pub used: u32,
        /// Offset in the file where the first page begins.
        pub from: u64,
        /// Walks that ended at the file since its table was asked for; the kernel side counts them.
        pub waiting: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// [`FileEntry::state`]: user space was asked for its table.
pub const FILE_PENDING: u32 = 0;
/// [`FileEntry::state`]: it has a table.
pub const FILE_TABLE: u32 = 1;
/// [`FileEntry::state`]: it has no unwind information; frame pointers lead on.
pub const FILE_FRAME_POINTERS: u32 = 2;
/// [`FileEntry::state`]: its table could not be made: no room, no permission, or it is corrupt.
pub const FILE_REFUSED: u32 = 3;

wire! {
    /// The kernel side asks for the table of a file.
    pub struct TableRequest {
        /// The file.
        pub key: FileKey,
        /// Where the process that runs it has it mapped: `/proc/TGID/map_files/START-END`.
        pub start: u64,
        /// End of the mapping.
        pub end: u64,
        /// The process.
        pub tgid: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// How a walk ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The kernel's own helper followed frame pointers; whether it came to the end is unknown.
    #[default]
    FramePointers = 0,
    /// At the outermost frame: its return address is undefined.
    Complete = 1,
    /// At the end of a chain of frame pointers.
    ChainEnd = 2,
    /// There are more frames than a record has room for.
    TooDeep = 3,
    /// An address at which nothing is mapped.
    NoMapping = 4,
    /// Code that no unwind information covers, and no frame pointer leads on.
    NoRule = 5,
    /// Unwind information that the tables cannot express.
    Unsupported = 6,
    /// Memory of the stack that is not present.
    StackUnreadable = 7,
    /// A file whose table is being made.
    TablePending = 8,
    /// A file whose table was refused.
    TableRefused = 9,
    /// A table that does not cover the address.
    TableMismatch = 10,
    /// The caller's frame would not be above its callee's.
    BadStackPointer = 11,
    /// Generated code, or a file without unwind information, uses the frame pointer for something else.
    BadFramePointer = 12,
    /// The thread's user registers are not known.
    NoRegisters = 13,
    /// 32-bit code.
    Compat = 14,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 15] = [
        Self::FramePointers,
        Self::Complete,
        Self::ChainEnd,
        Self::TooDeep,
        Self::NoMapping,
        Self::NoRule,
        Self::Unsupported,
        Self::StackUnreadable,
        Self::TablePending,
        Self::TableRefused,
        Self::TableMismatch,
        Self::BadStackPointer,
        Self::BadFramePointer,
        Self::NoRegisters,
        Self::Compat,
    ];

    /// The outcome a record names; `None` for numbers without one.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| *outcome as u32 == number)
    }

    /// Label value of `tracer_stack_walks_total{outcome}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::FramePointers => "frame_pointers",
            Self::Complete => "complete",
            Self::ChainEnd => "frame_pointer_end",
            Self::TooDeep => "too_deep",
            Self::NoMapping => "no_mapping",
            Self::NoRule => "no_rule",
            Self::Unsupported => "unsupported_rule",
            Self::StackUnreadable => "stack_unreadable",
            Self::TablePending => "table_pending",
            Self::TableRefused => "table_refused",
            Self::TableMismatch => "table_mismatch",
            Self::BadStackPointer => "bad_stack_pointer",
            Self::BadFramePointer => "bad_frame_pointer",
            Self::NoRegisters => "no_registers",
            Self::Compat => "32_bit_code",
        }
    }

    /// Why the outermost frame is missing, for people; `None` when it is there, or when that is unknown.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::FramePointers | Self::Complete | Self::ChainEnd => None,
            Self::TooDeep => Some("too deep"),
            Self::NoMapping => Some("nothing mapped"),
            Self::NoRule => Some("no unwind information"),
            Self::Unsupported => Some("unsupported unwind information"),
            Self::StackUnreadable => Some("stack not in memory"),
            Self::TablePending => Some("unwind table not ready"),
            Self::TableRefused => Some("unwind table refused"),
            Self::TableMismatch => Some("unwind table does not fit"),
            Self::BadStackPointer => Some("bad stack pointer"),
            Self::BadFramePointer => Some("no frame pointers"),
            Self::NoRegisters => Some("registers unknown"),
            Self::Compat => Some("32-bit code"),
        }
    }
}

/// A frame.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Address of the instruction: the next one to run, or that behind the call.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer, or whatever the register holds.
    pub fp: u64,
    /// 1 where `pc` is the next instruction to run, 0 where it is a return address.
    pub exact: u64,
}

impl Frame {
    /// An address inside the instruction the frame is at.
    #[inline(always)]
    pub fn place(&self) -> u64 {
        self.pc.wrapping_sub(1).wrapping_add(self.exact)
    }
}

/// Memory of the thread.
pub trait Stack {
    /// The two words at `at`.
    fn pair(&mut self, at: u64) -> Option<[u64; 2]>;
    /// The word at `at`.
    fn word(&mut self, at: u64) -> Option<u64>;
}

/// Goes from a frame to its caller by `rule`, which holds at the frame's place; or says how the walk ends.
#[inline(always)]
pub fn call(frame: &mut Frame, rule: &Rule, stack: &mut impl Stack) -> Result<(), Outcome> {
    let offset = rule.cfa_offset as i64 as u64;
    let cfa = match rule.cfa {
        CFA_SP => frame.sp.wrapping_add(offset),
        CFA_FP => frame.fp.wrapping_add(offset),
        CFA_AT_SP | CFA_AT_FP => {
            let base = if rule.cfa == CFA_AT_SP { frame.sp } else { frame.fp };
            let Some(at) = stack.word(base.wrapping_add(offset)) else { return Err(Outcome::StackUnreadable) };
            at.wrapping_add(rule.extra as u64)
        }
        CFA_PLT => frame.sp.wrapping_add(if frame.place() & 15 >= rule.extra as u64 { 16 } else { 8 }),
        CFA_SIGNAL => {
            let Some([sp, pc]) = stack.pair(frame.sp.wrapping_add(SIGNAL_SP_AND_PC)) else {
                return Err(Outcome::StackUnreadable);
            };
            let Some(fp) = stack.word(frame.sp.wrapping_add(SIGNAL_FP)) else { return Err(Outcome::StackUnreadable) };
            *frame = Frame { pc, sp, fp, exact: 1 };
            return Ok(());
        }
        CFA_END => return Err(Outcome::Complete),
        CFA_OTHER_STACK => {
            if rule.extra != 0 && frame.exact == 0 {
                return Err(Outcome::Complete);
            }
            return by_frame_pointer(frame, stack);
        }
        CFA_SENDER => {
            let Some(sp) = stack.word(frame.fp.wrapping_sub(8)) else { return Err(Outcome::StackUnreadable) };
            let before = frame.sp;
            call_by_frame_pointer(frame, stack)?;
            if sp <= before || sp.wrapping_sub(before) > FRAME_BYTES_MAX {
                return Err(Outcome::BadStackPointer);
            }
            frame.sp = sp;
            return Ok(());
        }
        CFA_NONE => {
            if rule.extra != 0 {
                return Err(Outcome::NoRule);
            }
            // Code written by hand may keep frame pointers; if it does not, the walk ends.
            return match call_by_frame_pointer(frame, stack) {
                Err(Outcome::ChainEnd | Outcome::BadFramePointer) => Err(Outcome::NoRule),
                other => other,
            };
        }
        _ => return Err(Outcome::Unsupported),
    };
    if cfa <= frame.sp {
        return Err(Outcome::BadStackPointer);
    }
    let pc;
    if rule.fp == FP_AT_CFA && rule.fp_offset == -16 {
        // Most frames: both stand together.
        let Some(pair) = stack.pair(cfa.wrapping_sub(16)) else { return Err(Outcome::StackUnreadable) };
        frame.fp = pair[0];
        pc = pair[1];
    } else {
        let Some(word) = stack.word(cfa.wrapping_sub(8)) else { return Err(Outcome::StackUnreadable) };
        pc = word;
        if rule.fp != FP_SAME {
            let base = if rule.fp == FP_AT_FP { frame.fp } else { cfa };
            let Some(fp) = stack.word(base.wrapping_add(rule.fp_offset as i64 as u64)) else {
                return Err(Outcome::StackUnreadable);
            };
            frame.fp = fp;
        }
    }
    frame.pc = pc;
    frame.sp = cfa;
    frame.exact = 0;
    if pc == 0 { Err(Outcome::Complete) } else { Ok(()) }
}

/// Goes from a frame to its caller by the frame pointer, which points to the caller's and the return address.
#[inline(always)]
pub fn call_by_frame_pointer(frame: &mut Frame, stack: &mut impl Stack) -> Result<(), Outcome> {
    let fp = frame.fp;
    if fp != 0 && (fp < frame.sp || fp.wrapping_sub(frame.sp) > FRAME_BYTES_MAX) {
        return Err(Outcome::BadFramePointer);
    }
    by_frame_pointer(frame, stack)
}

/// The same, to whichever stack it leads.
#[inline(always)]
fn by_frame_pointer(frame: &mut Frame, stack: &mut impl Stack) -> Result<(), Outcome> {
    let fp = frame.fp;
    if fp == 0 {
        return Err(Outcome::ChainEnd);
    }
    if fp & 7 != 0 {
        return Err(Outcome::BadFramePointer);
    }
    let Some([caller, pc]) = stack.pair(fp) else { return Err(Outcome::StackUnreadable) };
    if pc == 0 {
        return Err(Outcome::ChainEnd);
    }
    *frame = Frame { pc, sp: fp.wrapping_add(16), fp: caller, exact: 0 };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words from an address on.
    struct Words(u64, &'static [u64]);

    impl Stack for Words {
        fn pair(&mut self, at: u64) -> Option<[u64; 2]> {
            Some([self.word(at)?, self.word(at.checked_add(8)?)?])
        }

        fn word(&mut self, at: u64) -> Option<u64> {
            let at = at.checked_sub(self.0)?;
            if at % 8 == 0 { self.1.get(usize::try_from(at / 8).ok()?).copied() } else { None }
        }
    }

    const SP: u64 = 0x7000;

    fn frame() -> Frame {
        Frame { pc: 0x1005, sp: SP, fp: SP + 0x20, exact: 1 }
    }

    fn after(rule: Rule, words: &'static [u64]) -> Result<Frame, Outcome> {
        let mut frame = frame();
        call(&mut frame, &rule, &mut Words(SP, words)).map(|()| frame)
    }

    #[test]
    fn outcomes_follow_their_numbers() {
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            assert_eq!(Outcome::from_number(number as u32), Some(outcome));
        }
        assert_eq!(Outcome::from_number(Outcome::ALL.len() as u32), None);
    }

    #[test]
    fn the_frame_grows_from_the_stack_pointer() {
        let rule = Rule { cfa: CFA_SP, cfa_offset: 24, ..Rule::default() };
        assert_eq!(after(rule, &[1, 2, 0x2000]), Ok(Frame { pc: 0x2000, sp: SP + 24, fp: SP + 0x20, exact: 0 }));
        // The whole of it must be there.
        assert_eq!(after(rule, &[1, 2]), Err(Outcome::StackUnreadable));
        assert_eq!(after(Rule { cfa_offset: 0, ..rule }, &[1, 2, 3]), Err(Outcome::BadStackPointer));
        assert_eq!(after(Rule { cfa_offset: -8, ..rule }, &[1, 2, 3]), Err(Outcome::BadStackPointer));
    }

    #[test]
    fn where_frame_pointers_lead_nowhere_none_is_followed() {
        let words = &[1, 2, 3, 4, SP + 0x40, 0x2000];
        let rule = Rule { cfa: CFA_NONE, ..Rule::default() };
        assert_eq!(after(rule, words).map(|frame| frame.pc), Ok(0x2000));
        assert_eq!(after(Rule { extra: 1, ..rule }, words), Err(Outcome::NoRule));
    }

    #[test]
    fn a_frame_of_javas_interpreter_knows_its_callers_stack_pointer() {
        let rule = Rule { cfa: CFA_SENDER, ..Rule::default() };
        // The frame pointer is at the fifth word: above the return address stand arguments.
        let words = &[1, 2, 3, SP + 0x48, 0x7abc, 0x2000, 7, 8];
        assert_eq!(after(rule, words), Ok(Frame { pc: 0x2000, sp: SP + 0x48, fp: 0x7abc, exact: 0 }));
        assert_eq!(after(rule, &[1, 2, 3, SP, 0x7abc, 0x2000]), Err(Outcome::BadStackPointer));
        assert_eq!(after(rule, &[1, 2, 3, SP + (9 << 20), 0x7abc, 0x2000]), Err(Outcome::BadStackPointer));
        assert_eq!(after(rule, &[1, 2, 3]), Err(Outcome::StackUnreadable));
    }

    #[test]
    fn a_saved_frame_pointer_comes_back() {
        let beside = Rule { cfa: CFA_FP, cfa_offset: 16, fp: FP_AT_CFA, fp_offset: -16, ..Rule::default() };
        let words = &[1, 2, 3, 4, 0x7abc, 0x2000];
        assert_eq!(after(beside, words), Ok(Frame { pc: 0x2000, sp: SP + 0x30, fp: 0x7abc, exact: 0 }));
        let apart = Rule { fp_offset: -32, ..beside };
        assert_eq!(after(apart, words).map(|frame| frame.fp), Ok(3));
        let from_fp = Rule { fp: FP_AT_FP, fp_offset: -24, ..beside };
        assert_eq!(after(from_fp, words).map(|frame| frame.fp), Ok(2));
    }

    #[test]
    fn a_realigned_frame_keeps_its_address_in_memory() {
        let rule = Rule { cfa: CFA_AT_FP, cfa_offset: -16, extra: 8, ..Rule::default() };
        // At fp - 16 stands the address, less 8, of the frame's end.
        assert_eq!(
            after(rule, &[1, 2, SP + 0x18, 0x2000, 5]).map(|frame| (frame.pc, frame.sp)),
            Ok((0x2000, SP + 0x20))
        );
        let rule = Rule { cfa: CFA_AT_SP, cfa_offset: 8, ..Rule::default() };
        assert_eq!(after(rule, &[1, SP + 0x20, 3, 0x2000]).map(|frame| frame.sp), Ok(SP + 0x20));
    }

    #[test]
    fn a_plt_entry_has_pushed_one_word_or_none() {
        let rule = Rule { cfa: CFA_PLT, extra: 6, ..Rule::default() };
        assert_eq!(after(rule, &[0x2000, 0x3000]).map(|frame| frame.pc), Ok(0x2000));
        assert_eq!(after(Rule { extra: 5, ..rule }, &[0x2000, 0x3000]).map(|frame| frame.pc), Ok(0x3000));
    }

    #[test]
    fn a_signal_interrupts_at_an_exact_place() {
        static WORDS: [u64; 22] = {
            let mut words = [0; 22];
            words[15] = 0x66;
            words[20] = 0x77;
            words[21] = 0x88;
            words
        };
        let rule = Rule { cfa: CFA_SIGNAL, ..Rule::default() };
        assert_eq!(after(rule, &WORDS), Ok(Frame { pc: 0x88, sp: 0x77, fp: 0x66, exact: 1 }));
        assert_eq!(after(rule, &WORDS[..21]), Err(Outcome::StackUnreadable));
    }

    #[test]
    fn walks_end_for_a_reason() {
        assert_eq!(after(Rule { cfa: CFA_END, ..Rule::default() }, &[]), Err(Outcome::Complete));
        assert_eq!(after(Rule { cfa: CFA_SP, cfa_offset: 8, ..Rule::default() }, &[0]), Err(Outcome::Complete));
        assert_eq!(after(Rule { cfa: CFA_UNSUPPORTED, ..Rule::default() }, &[]), Err(Outcome::Unsupported));
        assert_eq!(after(Rule { cfa: 255, ..Rule::default() }, &[]), Err(Outcome::Unsupported));
        let none = Rule { cfa: CFA_NONE, ..Rule::default() };
        assert_eq!(after(none, &[1, 2, 3, 4, 5, 6]).map(|frame| (frame.pc, frame.fp)), Ok((6, 5)));
        let mut lost = Frame { fp: 3, ..frame() };
        assert_eq!(call(&mut lost, &none, &mut Words(SP, &[])), Err(Outcome::NoRule));
    }

    #[test]
    fn a_function_that_went_to_another_stack_is_left_by_its_frame_pointer() {
        let rule = Rule { cfa: CFA_OTHER_STACK, ..Rule::default() };
        let mut frame = Frame { pc: 0x1005, sp: 0x90_0000_0000, fp: SP, exact: 0 };
        let words = &[SP + 64, 0x2000];
        assert_eq!(call(&mut frame.clone(), &Rule { extra: 1, ..rule }, &mut Words(SP, words)), Err(Outcome::Complete));
        assert_eq!(call(&mut frame, &rule, &mut Words(SP, words)), Ok(()));
        assert_eq!(frame, Frame { pc: 0x2000, sp: SP + 16, fp: SP + 64, exact: 0 });
        // Where it is interrupted itself, it may not have gone there yet.
        let mut innermost = Frame { fp: SP, exact: 1, ..frame };
        assert_eq!(call(&mut innermost, &Rule { extra: 1, ..rule }, &mut Words(SP, words)), Ok(()));
        let mut odd = Frame { fp: SP + 4, ..frame };
        assert_eq!(call(&mut odd, &rule, &mut Words(SP, words)), Err(Outcome::BadFramePointer));
        let mut none = Frame { fp: 0, ..frame };
        assert_eq!(call(&mut none, &rule, &mut Words(SP, words)), Err(Outcome::ChainEnd));
    }

    #[test]
    fn a_frame_pointer_must_look_like_one() {
        let step = |fp, words| {
            let mut frame = Frame { fp, ..frame() };
            call_by_frame_pointer(&mut frame, &mut Words(SP, words)).map(|()| frame)
        };
        assert_eq!(step(SP, &[SP + 64, 0x2000]), Ok(Frame { pc: 0x2000, sp: SP + 16, fp: SP + 64, exact: 0 }));
        assert_eq!(step(0, &[]), Err(Outcome::ChainEnd));
        assert_eq!(step(SP, &[1, 0]), Err(Outcome::ChainEnd));
        for fp in [SP - 8, SP + 4, SP + FRAME_BYTES_MAX + 8, u64::MAX - 7, 1] {
            assert_eq!(step(fp, &[1, 2]), Err(Outcome::BadFramePointer), "{fp:#x}");
        }
        assert_eq!(step(SP + 8, &[1, 2]), Err(Outcome::StackUnreadable));
    }
}
