//! Frames of interpreters in a stack, `CPython`'s, PHP's, V8's and HotSpot's: what the kernel side must know of a process to find
//! them, and what it reports.
//!
//! Frames of V8 and HotSpot are native ones, whose slots say which function they run: each stands in the place of that native frame.
//! Of the others an interpreter keeps a chain of frames per thread, innermost first. One run of its loop executes several of them (Python's
//! since 3.11); a *group* is the frames of one run, so each group stands in the place of one native frame of the loop.

use crate::wire::wire;

/// Most frames of one stack.
pub const INTERPRETED_FRAMES_MAX: usize = 128;
/// Processes whose interpreter is known.
pub const INTERPRETERS_MAX: u32 = 4096;
/// Bytes of a frame that are read, from its beginning.
pub const FRAME_BYTES: usize = 120;

wire! {
    /// Where an interpreter keeps what a walk needs; the value of a map by process id. Offsets in bytes. V8 has `code`, `names`,
    /// `position` and `flags` only, HotSpot `code` and `flags`.
    pub struct InterpreterLayout {
        /// Python: offset of the pointer to a thread's state, from the thread's own thread-local data. PHP: address of the pointer
        /// to the current frame.
        pub state: u64,
        /// In the state: the thread's id, by which it is checked. From here to `cframe` Python only.
        pub thread_id: u32,
        /// In the state: the current frame, or what points to it ([`Self::cframe`]).
        pub frame: u32,
        /// 3.11 and 3.12: 1 + offset of the current frame in the record of the loop's run, which the state points to; the
        /// next word there is the record of the run outside. 0: the state points to the frame.
        pub cframe: u32,
        /// In a frame: its code object, or function. V8: in a function, what it shares with its copies (`SharedFunctionInfo`).
        /// HotSpot: in a method, what does not change of it (`ConstMethod`).
        pub code: u32,
        /// In a frame: the frame that called it.
        pub previous: u32,
        /// In a frame: its position; PHP: its instruction, which has the line. V8: in the shared part, its script.
        pub position: u32,
        /// In a frame: whether it ends a group.
        pub owner: u32,
        /// The value of that byte, of the bits of `owner_mask`, that says so; [`OWNER_ANY`]: every frame is a group of its own.
        pub owner_entry: u32,
        /// In a code object: the four words that tell it from another one at the same address. PHP: the file's name, behind which
        /// stand the lines. V8: in the shared part, its name.
        pub names: u32,
        /// `FRAME_…`, `PYTHON_…` and the minor version, as in [`InterpretedFrame::flags`]; of all frames of the process.
        pub flags: u32,
        /// [`InterpreterOutcome`] of every walk where frames cannot be read; 0: they can.
        pub refused: u32,
        /// Bits that count of the byte at `owner`.
        pub owner_mask: u32,
    }
}

/// [`InterpreterLayout::owner_entry`]: every frame is one run of the loop (3.9, 3.10).
pub const OWNER_ANY: u32 = 256;

wire! {
    /// A frame.
    pub struct InterpretedFrame {
        /// Address of its code object; PHP: of its function; V8: of what the function shares with its copies, tagged;
        /// HotSpot: of the method.
        pub code: u64,
        /// [`fold`] of the words that identify it; HotSpot: the address of what does not change of the method.
        pub cookie: u64,
        /// Position: until 3.10 the index of the last instruction; later bytes from the code object to the instruction. PHP: the
        /// line. V8: none.
        pub at: u32,
        /// `FRAME_…`, `PYTHON_…`, and the minor version of the interpreter above 8 bits.
        pub flags: u32,
    }
}

/// [`InterpretedFrame::flags`]: the outermost frame of its group.
pub const FRAME_ENTRY: u32 = 1;
/// [`InterpretedFrame::flags`]: no function, only the end of its group (3.12 and later).
pub const FRAME_SHIM: u32 = 2;
/// [`InterpretedFrame::flags`]: the process has greenlets, whose native stacks go on where their Python stacks end.
pub const PYTHON_GREENLETS: u32 = 4;
/// [`InterpretedFrame::flags`]: the position is an index of an instruction, a signed number (until 3.10).
pub const PYTHON_INDEX: u32 = 8;
/// [`InterpretedFrame::flags`]: a frame of PHP 8.
pub const FRAME_PHP: u32 = 16;
/// [`InterpretedFrame::flags`]: a native frame that runs a function of JavaScript.
pub const FRAME_V8: u32 = 32;
/// [`InterpretedFrame::flags`]: a native frame that interprets a method of Java.
pub const FRAME_JAVA: u32 = 64;
/// [`InterpretedFrame::flags`]: V8's or HotSpot's native frame, counted from the innermost, this many bits above.
pub const FRAME_NATIVE_SHIFT: u32 = 24;
/// Kind of a function that is PHP's own (`ZEND_INTERNAL_FUNCTION`): it has no file.
pub const PHP_INTERNAL: u8 = 1;
/// [`InterpretedFrame::flags`]: the minor version is this many bits above.
pub const FRAME_VERSION_SHIFT: u32 = 8;

/// What an interpreter interprets.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Language {
    /// `CPython`.
    #[default]
    Python = 0,
    /// PHP.
    Php = 1,
    /// JavaScript, by V8.
    JavaScript = 2,
    /// Java, by HotSpot's interpreter.
    Java = 3,
}

impl Language {
    /// Every language.
    pub const ALL: [Self; 4] = [Self::Python, Self::Php, Self::JavaScript, Self::Java];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Php => "PHP",
            Self::JavaScript => "JavaScript",
            Self::Java => "Java",
        }
    }

    /// Whether its functions stand in the place of the native frames that run them.
    pub fn is_in_native_frames(self) -> bool {
        matches!(self, Self::JavaScript | Self::Java)
    }

    /// Whose frames have these flags.
    pub fn of_flags(flags: u32) -> Self {
        match flags & (FRAME_PHP | FRAME_V8 | FRAME_JAVA) {
            0 => Self::Python,
            FRAME_PHP => Self::Php,
            FRAME_V8 => Self::JavaScript,
            _ => Self::Java,
        }
    }
}

/// How a walk over the interpreter's frames ended. A record has the number of the [`Language`] [`LANGUAGE_SHIFT`] bits above.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InterpreterOutcome {
    /// There was none: no interpreter runs in the process, or none is known to.
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

impl InterpreterOutcome {
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

    /// The outcome a record names, and of which language; numbers without one name the first.
    pub fn of_record(number: u8) -> (Self, Language) {
        let language = Language::ALL.into_iter().find(|language| *language as u8 == number >> LANGUAGE_SHIFT);
        let outcome = number & ((1 << LANGUAGE_SHIFT) - 1);
        let outcome = Self::ALL.into_iter().find(|known| *known as u8 == outcome);
        (outcome.unwrap_or_default(), language.unwrap_or_default())
    }

    /// Label value of `tracer_python_stack_walks_total{outcome}` and those of other languages.
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

    /// Why functions are missing, for people; `None` when none are.
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

/// Bits of an outcome in a record; and how many numbers that are.
pub const LANGUAGE_SHIFT: u32 = 3;
/// Numbers of outcomes of one language.
pub const OUTCOMES: u32 = 1 << LANGUAGE_SHIFT;

/// One number for the words that identify a code object: pointers to its file's name, its own names and its line table. The
/// memory of a code object that was freed and used for another has other words. Of PHP's functions hashes of their names; of V8's the map, name and script.
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
        for (number, outcome) in InterpreterOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
            for language in Language::ALL {
                let record = number as u8 | (language as u8) << LANGUAGE_SHIFT;
                assert_eq!(InterpreterOutcome::of_record(record), (outcome, language));
            }
            let same = |other: &&InterpreterOutcome| other.name() == outcome.name();
            assert_eq!(InterpreterOutcome::ALL.iter().filter(same).count(), 1);
        }
        assert!(InterpreterOutcome::ALL.len() <= OUTCOMES as usize);
        assert_eq!(InterpreterOutcome::of_record(255), (InterpreterOutcome::Unsupported, Language::Python));
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
