//! Frames of `CPython` in a stack: what the kernel side must know of a process to find them, and what it reports.
//!
//! The interpreter keeps a chain of frames per thread, innermost first. One run of its loop executes several of them since
//! 3.11; a *group* is the frames of one run, so each group stands in the place of one native frame of the loop.

use crate::wire::wire;

/// Most frames of one stack.
pub const PYTHON_FRAMES_MAX: usize = 128;
/// Processes whose interpreter is known.
pub const PYTHONS_MAX: u32 = 4096;
/// Bytes of a frame that are read, from its beginning.
pub const FRAME_BYTES: usize = 120;

wire! {
    /// Where an interpreter keeps what a walk needs; the value of a map by process id. Offsets in bytes.
    pub struct PythonLayout {
        /// Offset of the pointer to a thread's state, from the thread's own thread-local data.
        pub state: u64,
        /// In the state: the thread's id, by which it is checked.
        pub thread_id: u32,
        /// In the state: the current frame, or what points to it ([`Self::cframe`]).
        pub frame: u32,
        /// 3.11 and 3.12: 1 + offset of the current frame in the record of the loop's run, which the state points to; the
        /// next word there is the record of the run outside. 0: the state points to the frame.
        pub cframe: u32,
        /// In a frame: its code object.
        pub code: u32,
        /// In a frame: the frame that called it.
        pub previous: u32,
        /// In a frame: its position.
        pub position: u32,
        /// In a frame: whether it ends a group.
        pub owner: u32,
        /// The value of that byte that says so; [`OWNER_ANY`]: every frame is a group of its own.
        pub owner_entry: u32,
        /// In a code object: the four words that tell it from another one at the same address.
        pub names: u32,
        /// `PYTHON_…` and the minor version, as in [`PythonFrame::flags`]; of all frames of the process.
        pub flags: u32,
        /// [`PythonOutcome`] of every walk where frames cannot be read; 0: they can.
        pub refused: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// [`PythonLayout::owner_entry`]: every frame is one run of the loop (3.9, 3.10).
pub const OWNER_ANY: u32 = 256;

wire! {
    /// A frame.
    pub struct PythonFrame {
        /// Address of its code object.
        pub code: u64,
        /// [`fold`] of the words that identify the code object.
        pub cookie: u64,
        /// Position: until 3.10 the index of the last instruction; later bytes from the code object to the instruction.
        pub at: u32,
        /// `PYTHON_…`, and the minor version of the interpreter above 8 bits.
        pub flags: u32,
    }
}

/// [`PythonFrame::flags`]: the outermost frame of its group.
pub const PYTHON_ENTRY: u32 = 1;
/// [`PythonFrame::flags`]: no function, only the end of its group (3.12 and later).
pub const PYTHON_SHIM: u32 = 2;
/// [`PythonFrame::flags`]: the process has greenlets, whose native stacks go on where their Python stacks end.
pub const PYTHON_GREENLETS: u32 = 4;
/// [`PythonFrame::flags`]: the position is an index of an instruction, a signed number (until 3.10).
pub const PYTHON_INDEX: u32 = 8;
/// [`PythonFrame::flags`]: the minor version is this many bits above.
pub const PYTHON_VERSION_SHIFT: u32 = 8;

/// How a walk over the interpreter's frames ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PythonOutcome {
    /// There was none: no Python runs in the process, or none is known to.
    #[default]
    None = 0,
    /// At the outermost frame.
    Complete = 1,
    /// The thread is none of the interpreter's.
    NoState = 2,
    /// There are more frames than a record has room for.
    TooDeep = 3,
    /// Memory of a frame that is not present, or no frame.
    Unreadable = 4,
    /// The state found is not this thread's.
    WrongState = 5,
    /// Frames of this version cannot be read.
    UnknownVersion = 6,
    /// Frames of this build cannot be read: another C library, or no symbols.
    Unsupported = 7,
}

impl PythonOutcome {
    /// Every outcome.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Complete,
        Self::NoState,
        Self::TooDeep,
        Self::Unreadable,
        Self::WrongState,
        Self::UnknownVersion,
        Self::Unsupported,
    ];

    /// The outcome a record names; `None` for numbers without one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| *outcome as u8 == number)
    }

    /// Label value of `tracer_python_stack_walks_total{outcome}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Complete => "complete",
            Self::NoState => "no_thread_state",
            Self::TooDeep => "too_deep",
            Self::Unreadable => "unreadable",
            Self::WrongState => "wrong_thread_state",
            Self::UnknownVersion => "unknown_version",
            Self::Unsupported => "unsupported",
        }
    }

    /// Why Python functions are missing, for people; `None` when none are.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Complete | Self::NoState => None,
            Self::TooDeep => Some("too deep"),
            Self::Unreadable => Some("frames not readable"),
            Self::WrongState => Some("thread not recognised"),
            Self::UnknownVersion => Some("unknown version"),
            Self::Unsupported => Some("unsupported build"),
        }
    }
}

/// One number for the words that identify a code object: pointers to its file's name, its own names and its line table. The
/// memory of a code object that was freed and used for another has other words.
#[inline(always)]
pub fn fold(words: &[u64; 4]) -> u64 {
    // Rotations by numbers that have no small common multiple; pointers differ in their low 48 bits.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let [a, b, c, d] = *words;
    let sum = (a ^ b.rotate_left(17)).wrapping_mul(MIX);
    (sum ^ c.rotate_left(31) ^ d.rotate_left(47)).wrapping_mul(MIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_follow_their_numbers() {
        for (number, outcome) in PythonOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            assert_eq!(PythonOutcome::from_number(number as u8), Some(outcome));
            let same = |other: &&PythonOutcome| other.name() == outcome.name();
            assert_eq!(PythonOutcome::ALL.iter().filter(same).count(), 1);
        }
        assert_eq!(PythonOutcome::from_number(PythonOutcome::ALL.len() as u8), None);
    }

    #[test]
    fn every_word_of_a_code_object_counts() {
        let words = [0x7f00_1234_5670, 0x7f00_1234_56a0, 0x7f00_1234_56d0, 0x7f00_1234_5700];
        for place in 0..4 {
            for bit in 3..47 {
                let mut other = words;
                other[place] ^= 1 << bit;
                assert_ne!(fold(&words), fold(&other), "word {place}, bit {bit}");
            }
        }
        let [a, b, c, d] = words;
        assert_ne!(fold(&words), fold(&[b, a, c, d]));
        assert_ne!(fold(&words), fold(&[a, b, d, c]));
    }
}
