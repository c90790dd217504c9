//! What user space tells the kernel: the one arrow down.

use crate::wire::wire;

/// [`Ask::verdict`]: nothing decided yet.
pub const VERDICT_NONE: u8 = 0;
/// [`Ask::verdict`]: a protocol that is understood; use the `head_…` limits given.
pub const VERDICT_TRACE: u8 = 1;
/// [`Ask::verdict`]: count this connection's bytes and report nothing more of it.
pub const VERDICT_IGNORE: u8 = 2;
/// [`Ask::verdict`]: report only operations that turn the direction, and the ends.
pub const VERDICT_TURNS: u8 = 3;

/// [`Control::flags`]: report every UDP socket (the self-test's only use of it), not only those of [`Control::names`].
pub const CONTROL_UDP: u32 = 1 << 0;
/// [`Control::flags`]: processes without a policy of their own are not traced.
pub const CONTROL_DEFAULT_IGNORE: u32 = 1 << 1;
/// [`Control::flags`]: only sockets with a port in the port map are traced.
pub const CONTROL_PORTS: u32 = 1 << 2;
/// [`Control::flags`]: the agent's own sockets are traced (only while the self-test runs).
pub const CONTROL_OWN: u32 = 1 << 3;
/// [`Control::flags`]: socket I/O is reported at all.
pub const CONTROL_SOCKETS: u32 = 1 << 4;

/// Process policy: trace it.
pub const PROCESS_TRACE: u32 = 1;
/// Process policy: its sockets are left alone.
pub const PROCESS_IGNORE: u32 = 2;

wire! {
    /// What user space wants of one connection. Read by the kernel while it has no verdict, and on long runs.
    pub struct Ask {
        /// Receives that end at or before this stream position need not be reported.
        pub rx_skip: u64,
        /// Sends that end at or before this stream position need not be reported.
        pub tx_skip: u64,
        /// Payload to carry from the front of a receive, bytes.
        pub head_rx: u16,
        /// Payload to carry from the front of a send, bytes.
        pub head_tx: u16,
        /// `VERDICT_…`.
        pub verdict: u8,
        /// Which end connected, where the kernel side did not see it: `event::ROLE_…`.
        pub role: u8,
        /// 1: it is HTTP/2, of which headers of frames are wanted wherever they lie.
        pub frames: u8,
        /// Zero.
        pub reserved: u8,
    }
}

wire! {
    /// Where the static data of a process's program lies, and that of its interpreter or virtual machine: futexes in
    /// there are locks of its own (Python's global one), which say nothing of whom work is for. Empty ranges are 0 to 0.
    pub struct Statics {
        /// Address of the first range.
        pub first: u64,
        /// Behind it.
        pub first_end: u64,
        /// Address of the second range.
        pub second: u64,
        /// Behind it.
        pub second_end: u64,
        /// Address of the third range.
        pub third: u64,
        /// Behind it.
        pub third_end: u64,
    }
}

wire! {
    /// Switches that may change while running; the single element of an array map.
    pub struct Control {
        /// `CONTROL_…`.
        pub flags: u32,
        /// Changes with every change of process policies, so that threads look theirs up again.
        pub generation: u32,
        /// Period of the stack sampler, nanoseconds; repeated in every sample.
        pub sample_period: u64,
        /// Most payload to carry from the front of an operation, bytes, whatever was asked for.
        pub head_max: u32,
        /// UDP sockets with this port at one end are reported: those that resolve names. 0 = none.
        pub names: u16,
        /// Another such port. 0 = none.
        pub names_too: u16,
    }
}

/// What runs on a CPU is not known.
pub const RUNS_UNKNOWN: u64 = 0;
/// Nothing runs.
pub const RUNS_IDLE: u64 = 1;
/// A kernel thread runs.
pub const RUNS_KERNEL: u64 = 2;
/// A thread of user space runs.
pub const RUNS_USER: u64 = 3;

wire! {
    /// Where the time of one CPU went, nanoseconds since tracing began; an element of a per-CPU array map.
    ///
    /// What ran is charged what the scheduler charges it (`sum_exec_runtime`, the source of `getrusage` and cgroups),
    /// which is more than the time between two switches: the end of an interrupt that wakes a thread is that thread's.
    /// Idle time is what is left, so that the sum is the time that passed.
    pub struct CpuBooks {
        /// When the running thread was switched in. Set once by user space, so that the first slice counts.
        pub switch_in: u64,
        /// Kernel address of the running task: a switch that was not seen shows.
        pub task: u64,
        /// What the scheduler had charged it until then.
        pub exec_in: u64,
        /// What runs: [`RUNS_UNKNOWN`] until the first switch, then one of the constants beside it.
        pub runs: u64,
        /// User-space threads.
        pub user: u64,
        /// Kernel threads.
        pub kernel: u64,
        /// Idle; what a virtual machine's host took is counted here too. Can be below zero for a moment.
        pub idle: i64,
        /// Context switches.
        pub switches: u64,
        /// Those of them at which another thread left than the one that was seen to come: one that was not reported.
        pub unreported: u64,
    }
}
