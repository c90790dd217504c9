//! The policy user space sets for the kernel side: the one path from user space to the kernel.

use crate::wire::wire;

/// [`CapturePolicy::verdict`]: nothing decided yet.
pub const VERDICT_NONE: u8 = 0;
/// [`CapturePolicy::verdict`]: the protocol is decoded; use the `head_…` limits given.
pub const VERDICT_TRACE: u8 = 1;
/// [`CapturePolicy::verdict`]: count this connection's bytes and report nothing more about it.
pub const VERDICT_IGNORE: u8 = 2;
/// [`CapturePolicy::verdict`]: report only operations that reverse the direction, and the connection's end.
pub const VERDICT_ROUND_TRIPS: u8 = 3;

/// [`Control::flags`]: report every UDP socket (only the self-test uses it), not only those of [`Control::names`].
pub const CONTROL_UDP: u32 = 1 << 0;
/// [`Control::flags`]: processes without a policy of their own are not traced.
pub const CONTROL_DEFAULT_IGNORE: u32 = 1 << 1;
/// [`Control::flags`]: only sockets with a port in the port map are traced.
pub const CONTROL_PORTS: u32 = 1 << 2;
/// [`Control::flags`]: the agent's own sockets are traced (only while the self-test runs).
pub const CONTROL_OWN: u32 = 1 << 3;
/// [`Control::flags`]: socket I/O is reported at all.
pub const CONTROL_SOCKETS: u32 = 1 << 4;

/// [`Control::flags`]: stacks are walked by unwind tables; without, frame pointers are followed.
pub const CONTROL_UNWIND: u32 = 1 << 5;

/// [`Control::flags`]: there are processes whose threads work for each other, so wake-ups between threads are looked at.
pub const CONTROL_HANDOVERS: u32 = 1 << 6;
/// [`Control::flags`]: samples ask for the unwind tables of what runs, and are not reported.
pub const CONTROL_TABLES_FIRST: u32 = 1 << 7;
/// [`Control::flags`]: exchanges of some process may be counted ([`crate::exchange_counts`]), or could be once.
pub const CONTROL_COUNTING: u32 = 1 << 8;

/// Process policy, lowest byte: trace it. The bytes above say how its exchanges are counted in the kernel
/// ([`crate::exchange_counts::CountingRule`]); zero = not at all.
pub const PROCESS_TRACE: u32 = 1;
/// Process policy: its sockets are left alone.
pub const PROCESS_IGNORE: u32 = 2;

wire! {
    /// What user space wants to see of one connection. The kernel reads it while the connection has no verdict, and on
    /// long runs.
    pub struct CapturePolicy {
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
        /// Which end connected, if the kernel side did not see that: `event::ROLE_…`.
        pub role: u8,
        /// 1: the connection is HTTP/2: carry frame headers wherever they lie.
        pub frames: u8,
        /// Encrypted connections: KiB to carry from the front of a text; 0: the default; [`TEXT_UNWANTED`].
        pub text: u8,
    }
}

wire! {
    /// The priority of what one socket sends; an element of a map by socket cookie.
    pub struct SendPriority {
        /// `CLOCK_MONOTONIC` nanoseconds until which it counts: without user space it ends by itself.
        pub until: u64,
        /// Of its packets (`skb->priority`).
        pub priority: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// [`CapturePolicy::text`]: nothing can be made of the text, so it need not be reported.
pub const TEXT_UNWANTED: u8 = u8::MAX;

wire! {
    /// Where the static data of a process's program lies, and that of its interpreter or virtual machine: a futex in
    /// there is a lock of the program's own (Python's global one), which does not show which request work is for. Empty
    /// ranges are 0 to 0.
    pub struct Statics {
        /// Address of the first range.
        pub first: u64,
        /// End of the first range, exclusive.
        pub first_end: u64,
        /// Address of the second range.
        pub second: u64,
        /// End of the second range, exclusive.
        pub second_end: u64,
        /// Address of the third range.
        pub third: u64,
        /// End of the third range, exclusive.
        pub third_end: u64,
    }
}

wire! {
    /// Switches that may change while running; the single element of an array map.
    pub struct Control {
        /// `CONTROL_…`.
        pub flags: u32,
        /// Changes with every change of process policies, so that threads look theirs up again, and when beginnings of requests were
        /// forgotten.
        pub generation: u32,
        /// Period of the stack sampler, nanoseconds; 0 = no stacks are taken.
        pub sample_period: u64,
        /// Time off the CPU, nanoseconds, from which on it is reported of threads that hold a request; 0 = not at all.
        pub off_cpu: u64,
        /// Most payload to carry from the front of an operation, bytes, whatever the capture policy says.
        pub head_max: u32,
        /// Report UDP sockets with this port at one end: those that resolve names. 0 = none.
        pub names: u16,
        /// Another such port. 0 = none.
        pub names_too: u16,
        /// Of 2^32 threads that leave the CPU with a request, how many have their stack taken: chosen at random, whatever
        /// their waits will take.
        pub off_cpu_share: u32,
        /// Of 2^32 calls that threads make, of how many the stack is taken, chosen at random; 0 = of none.
        pub call_share: u32,
        /// Of 2^32 exchanges that could be counted in the kernel ([`crate::exchange_counts`]), how many are reported
        /// operation by operation all the same; [`u32::MAX`] = all of them, until a ring fills up.
        pub detail: u32,
        /// Zero.
        pub reserved: u32,
    }
}

wire! {
    /// What profiling has cost on one CPU since tracing began; an element of a per-CPU array map. The programs measure
    /// themselves: the kernel's own statistics would slow down every program of the host.
    pub struct ProfilerCost {
        /// When the sampling clock last ran, `CLOCK_MONOTONIC` nanoseconds; 0 = never.
        pub last: u64,
        /// [`CpuBooks::idle`] then.
        pub idle: i64,
        /// Runs of the sampling clock, those of an idle CPU included.
        pub ticks: u64,
        /// Run time of the sampling program, nanoseconds.
        pub nanos: u64,
        /// Run time of the program for time off the CPU where it took or reported a stack, nanoseconds.
        pub off_cpu_nanos: u64,
        /// Stacks that it took.
        pub off_cpu_stacks: u64,
        /// Its run time where it took one, nanoseconds.
        pub off_cpu_stack_nanos: u64,
        /// Runs of the sampling program by the clocks of single threads.
        pub ad_hoc_ticks: u64,
        /// Their run time, nanoseconds.
        pub ad_hoc_nanos: u64,
        /// Stacks that were taken of calls.
        pub call_stacks: u64,
        /// Run time of the program that takes them, nanoseconds.
        pub call_nanos: u64,
    }
}

/// Unknown what runs on a CPU.
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
    /// A running thread is charged what the scheduler charges it (`sum_exec_runtime`, the source of `getrusage` and
    /// cgroups), which is more than the time between two switches: the scheduler charges the end of an interrupt that
    /// wakes a thread to that thread. Idle time is the rest, so that the sum equals the elapsed time.
    pub struct CpuBooks {
        /// When the running thread was switched in. Set once by user space, so that the first slice counts.
        pub switch_in: u64,
        /// Kernel address of the running task, to detect an unseen switch.
        pub task: u64,
        /// What the scheduler had charged the task until then.
        pub exec_in: u64,
        /// What runs: [`RUNS_UNKNOWN`] until the first switch, then one of the constants beside it.
        pub runs: u64,
        /// User-space threads.
        pub user: u64,
        /// Kernel threads.
        pub kernel: u64,
        /// Idle; includes steal time (what a virtual machine's host took). Can be below zero for a moment.
        pub idle: i64,
        /// Context switches.
        pub switches: u64,
        /// Switches away from another thread than the one last seen to switch in: a switch was missed.
        pub unreported: u64,
    }
}
