//! How a process ended, and what that is called.

use std::fmt;
use std::sync::LazyLock;

/// Names of signals 1 to 31, the same on x86-64 and arm64 (`include/uapi/asm-generic/signal.h`).
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];
/// All realtime signals: programs number them among themselves.
const REALTIME: &str = "SIGRT";

/// `exit_code_0` to `exit_code_255`.
static EXIT_CODES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=u8::MAX).map(|code| format!("exit_code_{code}")).collect());

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessEnd {
    /// A signal killed it.
    Signal(u8),
    /// It exited with this code.
    ExitCode(u8),
}

impl ProcessEnd {
    /// What `wait` reports: a signal in the lowest 7 bits, above them whether its memory was dumped, and the code above 8 bits.
    pub fn from_status(status: u16) -> Self {
        match status & 0x7f {
            0 => Self::ExitCode((status >> 8) as u8),
            signal => Self::Signal(signal as u8),
        }
    }

    /// The signal's name, if one killed it.
    pub fn signal(self) -> Option<&'static str> {
        let Self::Signal(number) = self else { return None };
        let known = usize::from(number).checked_sub(1).and_then(|index| SIGNALS.get(index));
        Some(known.copied().unwrap_or(REALTIME))
    }

    /// `error.type` of what it left undone: `SIGSEGV`, `exit_code_3`. One of 32 and 256 words.
    pub fn error_type(self) -> &'static str {
        match self {
            Self::ExitCode(code) => EXIT_CODES.get(usize::from(code)).map_or("exit_code", String::as_str),
            Self::Signal(_) => self.signal().unwrap_or(REALTIME),
        }
    }

    /// Whether the program may have closed its connections itself before it ended like this, as the runtimes of some languages
    /// do: with a code of failure, or by a signal that asks to end and that such a runtime passes on when it has cleaned up.
    pub fn may_follow_cleanup(self) -> bool {
        matches!(self, Self::ExitCode(1..) | Self::Signal(1 | 2 | 15))
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(_) => write!(f, "the process was killed by {}", self.error_type()),
            Self::ExitCode(code) => write!(f, "the process exited with code {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wait_reports_has_a_name() {
        let with_dump = |signal: u16| signal | 0x80;
        for (status, word, signal) in [
            (0, "exit_code_0", None),
            (3 << 8, "exit_code_3", None),
            (255 << 8, "exit_code_255", None),
            (1, "SIGHUP", Some("SIGHUP")),
            (9, "SIGKILL", Some("SIGKILL")),
            (11, "SIGSEGV", Some("SIGSEGV")),
            (with_dump(11), "SIGSEGV", Some("SIGSEGV")),
            (with_dump(6), "SIGABRT", Some("SIGABRT")),
            (15, "SIGTERM", Some("SIGTERM")),
            (31, "SIGSYS", Some("SIGSYS")),
            (34, "SIGRT", Some("SIGRT")),
            (64, "SIGRT", Some("SIGRT")),
        ] {
            let end = ProcessEnd::from_status(status);
            assert_eq!((end.error_type(), end.signal()), (word, signal), "{status:#x}");
        }
        // Whatever comes, the words are these.
        let words: std::collections::BTreeSet<_> =
            (0..=u16::MAX).map(|status| ProcessEnd::from_status(status).error_type()).collect();
        assert_eq!(words.len(), 31 + 1 + 256);
    }

    #[test]
    fn a_sentence_says_it() {
        assert_eq!(ProcessEnd::Signal(9).to_string(), "the process was killed by SIGKILL");
        assert_eq!(ProcessEnd::ExitCode(3).to_string(), "the process exited with code 3");
    }
}
