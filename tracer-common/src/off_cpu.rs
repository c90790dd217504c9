//! Why a thread was off the CPU, as far as the system call it was in and the file it used say.

/// Why a thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Runnable, but another thread ran.
    RunQueue,
    /// A futex: a lock, a condition, a semaphore, another thread's end.
    Futex,
    /// A socket: a peer, or room to send.
    Socket,
    /// A poller: one of several descriptors.
    Poll,
    /// A pipe.
    Pipe,
    /// A file system or a block device.
    Disk,
    /// A sleep.
    Sleep,
    /// Memory that was not present.
    PageFault,
    /// The end of another process.
    Child,
    /// Something else.
    Other,
}

impl Reason {
    /// The frame shown at the top of such a stack.
    pub fn frame(self) -> &'static str {
        match self {
            Self::RunQueue => "[off CPU: run queue]",
            Self::Futex => "[off CPU: futex]",
            Self::Socket => "[off CPU: socket]",
            Self::Poll => "[off CPU: poll]",
            Self::Pipe => "[off CPU: pipe]",
            Self::Disk => "[off CPU: disk]",
            Self::Sleep => "[off CPU: sleep]",
            Self::PageFault => "[off CPU: page fault]",
            Self::Child => "[off CPU: child process]",
            Self::Other => "[off CPU]",
        }
    }
}

/// No system call: the thread was interrupted, or its access to memory faulted. As a number in a record.
pub const NO_SYSTEM_CALL: u16 = u16::MAX;

/// Types of files as `i_mode` has them above 12 bits (`include/uapi/linux/stat.h`).
const FIFO: u8 = 1;
const CHARACTERS: u8 = 2;
/// A socket.
pub const SOCKET: u8 = 12;

/// What a system call waits for.
enum Call {
    For(Reason),
    /// What its first argument, a descriptor, is.
    File,
}

fn call_x86_64(nr: u16) -> Call {
    match nr {
        // read write pread64 pwrite64 readv writev sendfile preadv pwritev splice preadv2 pwritev2
        0 | 1 | 17 | 18 | 19 | 20 | 40 | 295 | 296 | 275 | 327 | 328 => Call::File,
        // poll select epoll_wait pselect6 ppoll epoll_pwait io_uring_enter epoll_pwait2
        7 | 23 | 232 | 270 | 271 | 281 | 426 | 441 => Call::For(Reason::Poll),
        // connect accept sendto recvfrom sendmsg recvmsg accept4 recvmmsg sendmmsg
        42 | 43 | 44 | 45 | 46 | 47 | 288 | 299 | 307 => Call::For(Reason::Socket),
        // nanosleep clock_nanosleep
        35 | 230 => Call::For(Reason::Sleep),
        // futex futex_waitv futex_wait
        202 | 449 | 455 => Call::For(Reason::Futex),
        // wait4 waitid
        61 | 247 => Call::For(Reason::Child),
        // fsync fdatasync sync sync_file_range syncfs io_getevents
        74 | 75 | 162 | 277 | 306 | 208 => Call::For(Reason::Disk),
        _ => Call::For(Reason::Other),
    }
}

fn call_aarch64(nr: u16) -> Call {
    match nr {
        63..=71 | 76 | 286 | 287 => Call::File,
        22 | 72 | 73 | 426 | 441 => Call::For(Reason::Poll),
        202 | 203 | 206 | 207 | 211 | 212 | 242 | 243 | 269 => Call::For(Reason::Socket),
        101 | 115 => Call::For(Reason::Sleep),
        98 | 449 | 455 => Call::For(Reason::Futex),
        95 | 260 => Call::For(Reason::Child),
        4 | 81 | 82 | 83 | 84 | 267 => Call::For(Reason::Disk),
        _ => Call::For(Reason::Other),
    }
}

/// Whether the file that its first argument names says what a thread in this system call waits for, on x86-64.
pub fn names_file_x86_64(nr: u16) -> bool {
    matches!(call_x86_64(nr), Call::File | Call::For(Reason::Socket))
}

/// The same on arm64.
pub fn names_file_aarch64(nr: u16) -> bool {
    matches!(call_aarch64(nr), Call::File | Call::For(Reason::Socket))
}

/// Why a thread in system call `nr` ([`NO_SYSTEM_CALL`]: none) slept. `file`: type of the file its first argument names, as
/// `i_mode` has it above 12 bits, 0 = unknown. `uninterruptible`: it slept so that signals do not wake it, as those do who
/// wait for a device.
pub fn reason(nr: u16, file: u8, uninterruptible: bool) -> Reason {
    if nr == NO_SYSTEM_CALL {
        return Reason::PageFault;
    }
    let call = if cfg!(target_arch = "aarch64") { call_aarch64(nr) } else { call_x86_64(nr) };
    match call {
        Call::File => match file {
            SOCKET => Reason::Socket,
            FIFO => Reason::Pipe,
            CHARACTERS => Reason::Other,
            _ => Reason::Disk,
        },
        // A call that waits for no file: opening one, mapping memory.
        Call::For(Reason::Other) if uninterruptible => Reason::Disk,
        Call::For(reason) => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_system_call_and_its_file_say_why() {
        for (nr, file, uninterruptible, expected) in [
            (202, 0, false, Reason::Futex),
            (230, 0, false, Reason::Sleep),
            (45, 12, false, Reason::Socket),
            (0, 12, false, Reason::Socket),
            (0, 1, false, Reason::Pipe),
            (0, 8, true, Reason::Disk),
            (74, 0, true, Reason::Disk),
            (2, 0, true, Reason::Disk),
            (34, 0, false, Reason::Other),
            (232, 0, false, Reason::Poll),
            (NO_SYSTEM_CALL, 0, true, Reason::PageFault),
        ] {
            assert_eq!(reason(nr, file, uninterruptible), expected, "{nr} {file}");
            // Where the file is not looked at, it makes no difference.
            let other = reason(nr, 0, uninterruptible);
            assert!(nr == NO_SYSTEM_CALL || names_file_x86_64(nr) || other == expected, "{nr}");
        }
    }
}
