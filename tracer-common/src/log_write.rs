//! What threads write to logs: the record, and which processes it is wanted of.

use crate::event::{Header, ThreadCounters};
use crate::wire::wire;

/// Most bytes from the front of a write that a record carries.
pub const LOG_TEXT: usize = 1024;
/// Most buffers of a write (`writev`) that are looked at.
pub const LOG_PIECES: usize = 8;
/// Most processes whose log lines are wanted.
pub const LOGGING_MAX: u32 = 1024;
/// [`LogWrite::end`]: what was written to has no positions (a pipe, a socket, a terminal).
pub const NO_POSITION: u64 = u64::MAX;
/// [`LogWrite::file_type`]: a pipe.
pub const TYPE_PIPE: u8 = 1;
/// [`LogWrite::file_type`]: a terminal, or another character device.
pub const TYPE_DEVICE: u8 = 2;
/// [`LogWrite::file_type`]: a regular file.
pub const TYPE_FILE: u8 = 8;
/// [`LogWrite::file_type`]: a socket.
pub const TYPE_SOCKET: u8 = 12;

wire! {
    /// A thread wrote to a file that is appended to, or to what its process has as standard output or error. Followed by
    /// `text` bytes from the front of what it wrote.
    pub struct LogWrite {
        /// Common part.
        pub header: Header,
        /// The task, as in [`crate::event::Op::entity`]; 0 if its process has no known runtime.
        pub entity: u64,
        /// Inode that was written to.
        pub inode: u64,
        /// Position after the write; [`NO_POSITION`].
        pub end: u64,
        /// Bytes written.
        pub bytes: u64,
        /// Writes of the process that were not reported so far: it wrote too often, or the ring was full.
        pub missed: u64,
        /// Device that the inode is on, as the kernel numbers it (`s_dev`).
        pub device: u32,
        /// Bytes that follow; 0: they could not be read.
        pub text: u16,
        /// `TYPE_…`: of `i_mode`, what is above 12 bits.
        pub file_type: u8,
        /// The last byte written.
        pub last: u8,
        /// The thread's counters at this moment.
        pub counters: ThreadCounters,
    }
}

wire! {
    /// A process whose log lines are wanted; an element of a map by process id.
    pub struct LoggingProcess {
        /// Inode of the socket to the journal that it has as standard output or error; 0: it has none.
        pub journal: u64,
        /// Most writes that are reported in a second.
        pub max_rate: u64,
        /// When the current second began, `CLOCK_MONOTONIC` nanoseconds. The kernel side's, as are those below.
        pub since: u64,
        /// Writes in it.
        pub writes: u64,
        /// Writes that were not reported so far.
        pub missed: u64,
    }
}
