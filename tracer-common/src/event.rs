//! The records that travel from the kernel to user space, one `repr(C)` struct each.
//!
//! A record is [`Header`], then the fields of its kind, then (for [`Op`], [`Sample`], [`OffCpu`], [`WaitEnd`] and [`CallStack`]) bytes of variable length.
//! All integers are in the byte order of the machine: records never leave the host, and a record file says its
//! byte order. Times are nanoseconds of `CLOCK_MONOTONIC` (`bpf_ktime_get_ns`).

pub use crate::declared_call::*;
use crate::exchange_counts::{CountedExchanges, NoteworthyExchange};
use crate::log_write::LogWrite;
use crate::wire::wire;

/// Declares [`Kind`]. A line a kind: its number (from 1, without gaps), its word in metrics and messages, and the struct that its
/// records begin with.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal, $begins_with:ident;)+) => {
        /// What a record is; the first byte of its header.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind = $number,)+
        }

        impl Kind {
            /// Every kind, in the order of their numbers.
            pub const ALL: [Self; [$($number),+].len()] = [$(Self::$kind),+];

            /// The kind a header's first byte names.
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($number => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// The word for this kind in metrics and messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            /// Bytes of the fixed part, header included.
            pub fn fixed_size(self) -> usize {
                match self {
                    $(Self::$kind => $begins_with::SIZE,)+
                }
            }
        }
    };
}

kinds! {
    /// Bytes were sent or received on a stream socket: [`Op`].
    Op = 1, "op", Op;
    /// A socket was seen for the first time: [`Open`]. Precedes its first [`Op`].
    Open = 2, "open", Open;
    /// A TCP socket changed state: [`State`].
    State = 3, "state", State;
    /// How much CPU and waiting a thread has had so far: [`ThreadStats`].
    ThreadStats = 4, "thread_stats", ThreadStats;
    /// A thread or process was created: [`Fork`].
    Fork = 5, "fork", Fork;
    /// A process replaced its program: [`Exec`].
    Exec = 6, "exec", Exec;
    /// A stack was sampled: [`Sample`].
    Sample = 7, "sample", Sample;
    /// A thread woke another that waited for it: [`Wake`].
    Wake = 8, "wake", Wake;
    /// How two tasks of a runtime are related: [`TaskEdge`].
    TaskEdge = 9, "task_edge", TaskEdge;
    /// A request's context was sent or received with its first segment: [`InbandContext`].
    InbandContext = 10, "inband_context", InbandContext;
    /// A declared function was entered or returned: [`DeclaredCall`].
    DeclaredCall = 11, "declared_call", DeclaredCall;
    /// A thread was off the CPU while it held a request: [`OffCpu`].
    OffCpu = 12, "off_cpu", OffCpu;
    /// A TLS library read or wrote text: [`Op`], see [`OP_JOINED`].
    Text = 13, "text", Op;
    /// A thread ended another's wait: [`WaitEnd`]. Precedes the wait's [`OffCpu`].
    WaitEnd = 14, "wait_end", WaitEnd;
    /// A thread began to send on a connection that it opened, as it does when it makes a call: [`CallStack`].
    CallStack = 15, "call_stack", CallStack;
    /// Operations before this thread's next one, and exchanges of that one's connection, were counted in the kernel and not
    /// reported: [`CountedExchanges`].
    CountedExchanges = 16, "counted_exchanges", CountedExchanges;
    /// A process ended: [`ProcessEnd`].
    ProcessEnd = 17, "process_end", ProcessEnd;
    /// A slow or failed exchange that was counted in the kernel: [`NoteworthyExchange`].
    NoteworthyExchange = 18, "noteworthy_exchange", NoteworthyExchange;
    /// A thread wrote to a log: [`LogWrite`].
    LogWrite = 19, "log_write", LogWrite;
}

/// [`Op`]: bytes were sent (set) or received (clear).
pub const OP_TX: u8 = 1 << 0;
/// [`Op`]: the bytes are not in user memory (sendfile, splice) or no address is known for them.
pub const OP_NO_PAYLOAD: u8 = 1 << 1;
/// [`Op`]: the user memory could not be read (not present).
pub const OP_FAULT: u8 = 1 << 2;
/// [`Op`]: a receive returned 0: the peer will send no more.
pub const OP_EOF: u8 = 1 << 3;
/// [`Op`]: receive: unread bytes were left in the socket.
pub const OP_MORE: u8 = 1 << 4;
/// [`Op`]: receive: earlier bytes left the socket in a way no attached hook sees (splice).
pub const OP_UNSEEN: u8 = 1 << 5;
/// [`Op`]: the operation reversed the direction on a socket that reports only such operations
/// ([`crate::policy::VERDICT_ROUND_TRIPS`]): its `sent_…` fields say how far the other direction came, and when, not what its
/// thread sent.
pub const OP_TURN: u8 = 1 << 6;
/// [`Op`]: a datagram.
pub const OP_DATAGRAM: u8 = 1 << 7;
/// [`Kind::Text`], an [`Op`] of text instead of a socket's bytes: text of the connection may have passed before. Its `pos`
/// counts the text that its library's object moved in this direction, `bytes` is the text's length, `arrived` the length of
/// the reader's buffer (0: unknown), and `seq` the sequence number at which the record with a written text's first byte
/// begins (0: unknown).
pub const OP_JOINED: u8 = 1 << 5;
/// [`Kind::Text`]: the library's object has a BIO that may hold more records than the one that this text is of.
pub const OP_AHEAD: u8 = 1 << 4;
/// [`Open`]: the socket existed before tracing began, or bytes had already passed.
pub const OPEN_MIDSTREAM: u8 = 1 << 0;
/// [`Open`]: its first bytes arrived before it was accepted: they waited in the listener's queue first.
pub const OPEN_QUEUED: u8 = 1 << 1;
/// [`ThreadStats`]: the thread is dead; these are its final counters.
pub const THREAD_STATS_DEAD: u8 = 1 << 0;
/// [`ThreadStats`]: a kernel thread.
pub const THREAD_STATS_KERNEL: u8 = 1 << 1;
/// [`ThreadStats`]: the thread was running when the record was made (taken by the sampler).
pub const THREAD_STATS_RUNNING: u8 = 1 << 2;
/// [`State`]: the header's thread itself caused the change (connect, close).
pub const STATE_OWN: u8 = 1 << 0;
/// [`State`]: the header's thread closed the socket because it exits: [`State::exit_status`].
pub const STATE_EXITING: u8 = 1 << 1;
/// [`Wake`]: since its last operation or wake-up the thread itself read a reply or was given work. Other wake-ups only
/// mark the end of one stretch of work.
pub const WAKE_RESULT: u8 = 1 << 0;
/// [`Wake`]: the thread, which runs no task of its runtime, woke the task that [`Wake::address`] names as in [`Op::entity`]. Of the rest
/// only the counters count; such records are not numbered.
pub const WAKE_TASK: u8 = 1 << 1;
/// [`InbandContext`]: sent (set) or received (clear).
pub const INBAND_TX: u8 = 1 << 0;
/// [`InbandContext`]: no context travels. The thread reads a request that came without a context; this names the
/// request's transaction in case the calls it causes carry one.
pub const INBAND_NAMED: u8 = 1 << 1;
/// [`InbandContext`]: the kernel did not take a context that was to be sent.
pub const INBAND_REFUSED: u8 = 1 << 2;
/// [`InbandContext`]: sent with the transaction of the request its thread held, as far as the kernel side knows;
/// otherwise with a transaction of its own.
pub const INBAND_HELD: u8 = 1 << 3;
/// [`OffCpu::flags`]: the thread slept so that signals do not wake it.
pub const OFF_CPU_UNINTERRUPTIBLE: u8 = 1 << 0;
/// [`OffCpu::flags`]: its stack was not taken, because the CPU had reached its limit of stacks a second.
pub const OFF_CPU_NO_STACK: u8 = 1 << 1;
/// [`TaskEdge::relation`]: `parent` made `child` (a context was copied, a goroutine started).
pub const TASK_EDGE_CREATED: u8 = 1;
/// [`TaskEdge::relation`]: `parent` woke `child`, or passed it something through a channel that `child` received from.
pub const TASK_EDGE_WOKE: u8 = 2;
/// [`TaskEdge`]: wake-ups between tasks of this process are reported.
pub const TASK_EDGE_WATCHED: u8 = 1;
/// [`TaskEdge::relation`]: the next send on the descriptor `child` is on behalf of `parent`.
pub const TASK_EDGE_USES: u8 = 3;
/// [`TaskEdge::relation`]: an event loop that received something moved on to something else; `child` has the meaning it
/// has for a receive.
pub const TASK_EDGE_TURNED: u8 = 4;
/// [`TaskEdge::relation`]: `parent` gave the closure `child` to a pool of threads, one of which runs it from beginning to end.
pub const TASK_EDGE_CLOSURE: u8 = 5;

/// Bits of an entity ([`Op::entity`]) that identify it; the bits above are its runtime's kind
/// (`crate::runtime::KIND_…`).
pub const ENTITY_BITS: u32 = 56;

/// [`Open::role`]: not known (older than the tracer, or not TCP).
pub const ROLE_UNKNOWN: u8 = 0;
/// [`Open::role`]: this end called `connect`.
pub const ROLE_ACTIVE: u8 = 1;
/// [`Open::role`]: this end accepted.
pub const ROLE_PASSIVE: u8 = 2;

/// `AF_UNIX`.
pub const FAMILY_UNIX: u16 = 1;
/// `AF_INET`.
pub const FAMILY_INET: u16 = 2;
/// `AF_INET6`.
pub const FAMILY_INET6: u16 = 10;

/// TCP states as the kernel numbers them (`include/net/tcp_states.h`), those that matter here.
pub mod tcp_state {
    /// Connected.
    pub const ESTABLISHED: u8 = 1;
    /// `connect` was called.
    pub const SYN_SENT: u8 = 2;
    /// This end closed first.
    pub const FIN_WAIT1: u8 = 4;
    /// Gone.
    pub const CLOSE: u8 = 7;
    /// The peer closed first.
    pub const CLOSE_WAIT: u8 = 8;
    /// The peer closed, then this end.
    pub const LAST_ACK: u8 = 9;
}

wire! {
    /// What every record starts with.
    pub struct Header {
        /// A [`Kind`] as a number.
        pub kind: u8,
        /// Flags, by kind of record: `OP_…`, `OPEN_…`, `THREAD_STATS_…`, `STATE_…`, `WAKE_…`, `DECLARED_…`.
        pub flags: u8,
        /// CPU the record was made on.
        pub cpu: u16,
        /// Whole length of the record in bytes, this header and the variable part included.
        pub len: u32,
        /// `CLOCK_MONOTONIC`, nanoseconds.
        pub nanos: u64,
        /// Process (thread group) it concerns.
        pub tgid: u32,
        /// Thread it concerns.
        pub tid: u32,
    }
}

wire! {
    /// What a thread has used up to this moment. All times in nanoseconds since the thread was first seen.
    pub struct ThreadCounters {
        /// CPU time, the running slice included.
        pub cpu: u64,
        /// Time spent runnable but not running.
        pub runq: u64,
        /// Time spent blocked (asleep), to the last wake-up.
        pub blocked: u64,
        /// Value of `cpu` when the thread last went into a wait for work (see `idles`).
        pub idle_cpu: u64,
        /// When the thread came back from that wait.
        pub idle_end: u64,
        /// Context switches away from the CPU.
        pub switches: u32,
        /// Blocking waits for work so far: pollers, accept, receive on a stream, futex, sleep.
        pub idles: u32,
        /// Idle waits in a poller or accept: epoll, poll, select, `io_uring_enter`, accept.
        pub polls: u32,
        /// Receives on stream sockets so far, untraced sockets included.
        pub reads: u32,
    }
}

wire! {
    /// What TCP has measured of a connection; all zero: not known.
    pub struct NetworkPath {
        /// Smoothed round-trip time, microseconds; 0: not measured yet.
        pub rtt: u32,
        /// The shortest round trip of late (`net.ipv4.tcp_min_rtt_wlen`, 5 minutes), microseconds.
        pub rtt_min: u32,
        /// Segments that this end sent again so far. Wraps.
        pub retransmits: u32,
        /// Zero.
        pub reserved: u32,
    }
}

wire! {
    /// One send or receive on a stream socket. Followed by `head` bytes from its front, `tail` bytes from its end and
    /// `frames` bytes of fragments in between.
    pub struct Op {
        /// Common part.
        pub header: Header,
        /// The socket (`bpf_get_socket_cookie`): unique for the life of the host.
        pub cookie: u64,
        /// Stream position of the first byte in this direction, counted since the socket was first seen.
        pub pos: u64,
        /// Receives: when the first of the unread bytes arrived, or 0 if unknown. With [`OP_EOF`]: when the last byte
        /// was received.
        pub arrived: u64,
        /// Bytes moved.
        pub bytes: u32,
        /// TCP sequence number of the first byte; 0 for other families.
        pub seq: u32,
        /// Bytes of payload from the front that follow the record.
        pub head: u16,
        /// Bytes of payload from the end that follow those; 0 when `head` covers everything.
        pub tail: u16,
        /// Number of this operation or [`Wake`] of its thread, from 1. Operations that could not be reported count too;
        /// those the policy excludes do not. Wraps.
        pub nth: u32,
        /// Bytes without payload (sendfile) that this thread sent on this socket before and has not reported yet; 0 =
        /// none. With [`OP_TURN`]: bytes that moved the other way. 0 for a sent datagram, whose other `sent_…` fields
        /// hold its destination ([`Op::remote`]); a later record reports what its thread sent before.
        pub sent_cookie: u64,
        /// Position of their first byte. Datagrams: the first half of the address. [`Kind::Text`]: the socket that `path` is of.
        pub sent_pos: u64,
        /// Position after their last byte. Datagrams: the second half of the address. [`Kind::Text`]: length of the text that
        /// this record is of.
        pub sent_end: u64,
        /// When the last of them was sent. Datagrams: the port, and above 16 bits the family. [`Kind::Text`]: offset in that text.
        pub sent_at: u64,
        /// Task of the runtime that did this: 0 = its process has no runtime with known tasks, or the thread is not one
        /// of the runtime's. Otherwise the runtime's kind above [`ENTITY_BITS`] bits that name the task, 0 = task
        /// unknown.
        pub entity: u64,
        /// Records of kind [`TaskEdge`] of its process so far, so a missing one shows. Wraps.
        pub edge_seq: u32,
        /// Bytes of fragments that follow the bytes from the end: the starts of frames that lie behind the front. A
        /// `u64` precedes each: its low half is the fragment's byte offset in the operation, its high half its length.
        /// Each is padded to a multiple of 8 bytes.
        pub frames: u32,
        /// What TCP had measured of the connection by then.
        pub path: NetworkPath,
        /// The thread's counters at this moment.
        pub counters: ThreadCounters,
    }
}

impl Op {
    /// A sent datagram's destination, when its system call named one: family, address (IPv4 in the first four bytes)
    /// and port.
    pub fn remote(&self) -> Option<(u16, [u8; 16], u16)> {
        let (family, port) = ((self.sent_at >> 16) as u16, self.sent_at as u16);
        let named = self.header.flags & (OP_DATAGRAM | OP_TX) == OP_DATAGRAM | OP_TX
            && self.sent_cookie == 0
            && self.sent_at >> 32 == 0
            && (family == FAMILY_INET || family == FAMILY_INET6);
        if !named {
            return None;
        }
        let mut address = [0; 16];
        let (low, high) = address.split_at_mut(8);
        low.copy_from_slice(&self.sent_pos.to_ne_bytes());
        high.copy_from_slice(&self.sent_end.to_ne_bytes());
        Some((family, address, port))
    }

    /// As one operation: what the thread had sent before without a record of its own, or what moved the other way
    /// before the direction reversed. Its counters are `counters`.
    pub fn sent_before(&self, counters: ThreadCounters) -> Option<Self> {
        if self.sent_cookie == 0 {
            return None;
        }
        let turned = self.header.flags & OP_TURN != 0;
        let flags = OP_NO_PAYLOAD | if turned { (self.header.flags & OP_TX) ^ OP_TX } else { OP_TX };
        Some(Self {
            header: Header { flags, nanos: self.sent_at, ..self.header },
            cookie: self.sent_cookie,
            pos: self.sent_pos,
            bytes: self.sent_end.saturating_sub(self.sent_pos).min(u32::MAX as u64) as u32,
            counters,
            ..Self::default()
        })
    }
}

wire! {
    /// A socket, when it is first seen.
    pub struct Open {
        /// Common part.
        pub header: Header,
        /// The socket.
        pub cookie: u64,
        /// When the connection was established, if the tracer saw it; else 0.
        pub established: u64,
        /// When it was accepted, where this kernel shows that; else 0.
        pub accepted: u64,
        /// Kernel address of the socket: only for matching against `peer` of another record while both live.
        pub sk: u64,
        /// UNIX sockets: kernel address of the other end, else 0.
        pub peer: u64,
        /// Bytes received before the first record, as far as TCP knows.
        pub rx_before: u64,
        /// Bytes sent and acknowledged before the first record, as far as TCP knows.
        pub tx_before: u64,
        /// Local address, IPv4 in the first four bytes.
        pub local: [u8; 16],
        /// Remote address, IPv4 in the first four bytes.
        pub remote: [u8; 16],
        /// Initial sequence number of this end (TCP), as seen through `snd_una - bytes_acked`.
        pub isn_local: u32,
        /// Initial sequence number of the remote end (TCP).
        pub isn_remote: u32,
        /// Network namespace (inode number).
        pub netns: u32,
        /// `AF_…`.
        pub family: u16,
        /// Local port, host byte order.
        pub local_port: u16,
        /// Remote port, host byte order.
        pub remote_port: u16,
        /// `ROLE_…`.
        pub role: u8,
        /// TCP state.
        pub state: u8,
        /// Zero.
        pub reserved: u32,
    }
}

wire! {
    /// A TCP socket changed state: connect, half close, close.
    pub struct State {
        /// Common part. The thread is meaningful only with [`STATE_OWN`] or [`STATE_EXITING`].
        pub header: Header,
        /// The socket.
        pub cookie: u64,
        /// Bytes received since first seen.
        pub rx: u64,
        /// Bytes sent since first seen.
        pub tx: u64,
        /// Time of the last receive, or 0.
        pub last_rx: u64,
        /// Time of the last send, or 0.
        pub last_tx: u64,
        /// State left, as TCP numbers it.
        pub old: u8,
        /// State entered.
        pub new: u8,
        /// The socket's error as a number of `errno.h`; 0: none.
        pub error: u16,
        /// Remote port, host byte order.
        pub remote_port: u16,
        /// With [`STATE_EXITING`]: how the process ends, as `wait` reports it (the exit code above 8 bits, else a signal in
        /// the lowest 7); else 0.
        pub exit_status: u16,
        /// What TCP had measured of the connection by then.
        pub path: NetworkPath,
        /// The thread's counters, with [`STATE_OWN`].
        pub counters: ThreadCounters,
    }
}

wire! {
    /// A thread's counters, sent when it stops running and has not reported for a while, and when it dies.
    pub struct ThreadStats {
        /// Common part: the thread the counters belong to.
        pub header: Header,
        /// Its name (`comm`), zero-terminated.
        pub comm: [u8; 16],
        /// The counters.
        pub counters: ThreadCounters,
    }
}

wire! {
    /// A thread was created.
    pub struct Fork {
        /// Common part: the creating thread.
        pub header: Header,
        /// Process of the new thread; differs from `header.tgid` for a new process.
        pub child_tgid: u32,
        /// The new thread.
        pub child_tid: u32,
        /// Of a new process: the task of a runtime that created it, as in [`Op::entity`]; 0: none, or not told apart.
        pub entity: u64,
        /// Its process's task edges so far, as in [`Op::edge_seq`].
        pub edge_seq: u32,
        /// Zero.
        pub reserved: u32,
    }
}

wire! {
    /// A process replaced its program.
    pub struct Exec {
        /// Common part.
        pub header: Header,
        /// New name (`comm`), zero-terminated.
        pub comm: [u8; 16],
    }
}

/// Flag of a [`Sample`]: a kernel thread ran.
pub const SAMPLE_KERNEL_THREAD: u8 = 1 << 0;
/// Flag of a [`Sample`]: taken by a clock of its thread alone, while the thread worked for a slow request. Its period is CPU time
/// of the thread, and the clock of the CPU samples the same time once more.
pub const SAMPLE_AD_HOC: u8 = 1 << 1;
/// Flag of a [`Sample`]: the thread's last operation was counted and not reported. `cpu_nanos` is the class that it was counted
/// for ([`crate::exchange_counts::SumsKey::class`]).
pub const SAMPLE_COUNTED: u8 = 1 << 2;

wire! {
    /// A process ended: its first thread is gone. Its descriptors may be closed before or after that.
    pub struct ProcessEnd {
        /// Common part: the first thread.
        pub header: Header,
        /// How, as in [`State::exit_status`].
        pub status: u16,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

wire! {
    /// A stack sample. Followed by `user` then `kernel` addresses of 8 bytes each, then `interpreted` frames
    /// ([`crate::interpreter::InterpretedFrame`]); all innermost first.
    pub struct Sample {
        /// Common part: the running thread.
        pub header: Header,
        /// Its CPU time at this moment; see also [`SAMPLE_COUNTED`].
        pub cpu_nanos: u64,
        /// Time that the sample stands for, nanoseconds: since the sampling clock of this CPU last ran. The rate may change
        /// at any time, so that is not what the rate in force says.
        pub period: u64,
        /// User-space frames that follow.
        pub user: u16,
        /// Kernel frames that follow those.
        pub kernel: u16,
        /// How the walk over the user frames ended: [`crate::unwind::Outcome`].
        pub outcome: u16,
        /// Interpreted frames that follow.
        pub interpreted: u8,
        /// How the walk over those ended: [`crate::interpreter::InterpreterOutcome`].
        pub interpreter_outcome: u8,
    }
}

wire! {
    /// A thread that held a request left the CPU and runs again. Followed by `user` frames of 8 bytes, then `interpreted` frames
    /// ([`crate::interpreter::InterpretedFrame`]).
    pub struct OffCpu {
        /// Common part: the thread; the time is that of its return.
        pub header: Header,
        /// How long it slept, nanoseconds.
        pub blocked: u64,
        /// How long it was runnable after that, nanoseconds.
        pub run_queue: u64,
        /// Cookie of the socket that the system call's first argument names; 0 = it names none, or it is unknown.
        pub socket: u64,
        /// User-space frames that follow.
        pub user: u16,
        /// Number of the system call it was in; [`crate::off_cpu::NO_SYSTEM_CALL`] = none.
        pub syscall: u16,
        /// How the walk over the user frames ended: [`crate::unwind::Outcome`].
        pub outcome: u16,
        /// Type of the file that the system call's first argument names, as `i_mode` has it above 12 bits; 0 = unknown.
        pub file: u8,
        /// `OFF_CPU_…`.
        pub flags: u8,
        /// Interpreted frames that follow.
        pub interpreted: u8,
        /// How the walk over those ended: [`crate::interpreter::InterpreterOutcome`].
        pub interpreter_outcome: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

wire! {
    /// A thread woke another that held a request and waited for a futex. Followed by `user` frames of 8 bytes, then `interpreted`
    /// frames ([`crate::interpreter::InterpretedFrame`]): its own, as it wakes the other.
    pub struct WaitEnd {
        /// Common part: the thread that wakes.
        pub header: Header,
        /// When the other left the CPU, which tells its waits apart.
        pub left: u64,
        /// The thread that it woke.
        pub wakee: u32,
        /// That thread's process.
        pub wakee_tgid: u32,
        /// User-space frames that follow.
        pub user: u16,
        /// Zero.
        pub reserved: u16,
        /// How the walk over the user frames ended: [`crate::unwind::Outcome`].
        pub outcome: u16,
        /// Interpreted frames that follow.
        pub interpreted: u8,
        /// How the walk over those ended: [`crate::interpreter::InterpreterOutcome`].
        pub interpreter_outcome: u8,
    }
}

wire! {
    /// Where a thread was in its program when it sent the first bytes of a call. Followed by `user` frames of 8 bytes, then
    /// `interpreted` frames ([`crate::interpreter::InterpretedFrame`]). Its time is that of the [`Op`] of the send.
    pub struct CallStack {
        /// Common part: the thread that sent.
        pub header: Header,
        /// The connection: [`Op::cookie`]. Or [`THROWN`].
        pub cookie: u64,
        /// User-space frames that follow.
        pub user: u16,
        /// Zero.
        pub reserved: u16,
        /// How the walk over the user frames ended: [`crate::unwind::Outcome`].
        pub outcome: u16,
        /// Interpreted frames that follow.
        pub interpreted: u8,
        /// How the walk over those ended: [`crate::interpreter::InterpreterOutcome`].
        pub interpreter_outcome: u8,
    }
}

/// [`CallStack::cookie`]: none of a connection. The thread threw an exception there, whose [`DeclaredCall`] has the same time.
pub const THROWN: u64 = 1 << 63;

wire! {
    /// A thread that has read no request (or has answered it) woke a thread of its process that holds one, both by a
    /// futex of the same address. The kernel only estimates which thread holds a request; user space knows better.
    pub struct Wake {
        /// Common part: the thread that wakes.
        pub header: Header,
        /// The thread that is woken.
        pub wakee: u32,
        /// Number of this record among its thread's, shared with [`Op::nth`].
        pub nth: u32,
        /// The futex; with [`WAKE_TASK`] the task.
        pub address: u64,
        /// When the woken thread fell asleep.
        pub slept_at: u64,
        /// When a thread that held a request last woke the waking thread by a futex; 0 = never.
        pub given_at: u64,
        /// That thread.
        pub given_by: u32,
        /// Zero.
        pub reserved: u32,
        /// The waking thread's counters.
        pub counters: ThreadCounters,
    }
}

wire! {
    /// How two tasks of a runtime are related: one goroutine or context made another, for example.
    pub struct TaskEdge {
        /// Common part: the thread it happened on.
        pub header: Header,
        /// The task this edge concerns, as [`Op::entity`]. A destroyed task may have had the same name before.
        pub child: u64,
        /// The related task, as [`Op::entity`]; without a name (0 in the low bits) it is unknown.
        pub parent: u64,
        /// Number of this record among its process's task edges, from 1. Wraps.
        pub nth: u32,
        /// `TASK_EDGE_…`.
        pub relation: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }
}

wire! {
    /// An in-band context: the TCP option with the first segment of a request (`inband_context::KIND`).
    pub struct InbandContext {
        /// Common part; `INBAND_…`. Its thread is meaningless.
        pub header: Header,
        /// The socket.
        pub cookie: u64,
        /// The transaction, as on the wire.
        pub trace: [u8; 16],
        /// The call, as on the wire; zero with [`INBAND_NAMED`].
        pub span: [u8; 8],
        /// TCP sequence number of the request's first byte.
        pub seq: u32,
        /// Trace flags (W3C Trace Context); the option without them means "sampled".
        pub flags: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codec_round_trips() {
        let op = Op {
            header: Header { kind: Kind::Op as u8, flags: OP_TX, cpu: 3, len: 9, nanos: 1 << 40, tgid: 7, tid: 8 },
            cookie: 0x0102_0304_0506_0708,
            bytes: 77,
            counters: ThreadCounters { cpu: 5, reads: 6, ..ThreadCounters::default() },
            ..Op::default()
        };
        let mut bytes = [0u8; Op::SIZE];
        op.encode(&mut bytes).unwrap();
        assert_eq!(Op::decode(&bytes), Some(op));
        assert_eq!(Op::decode(&bytes[1..]), None, "one byte short");
    }

    #[test]
    fn kinds_are_distinct_and_named() {
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, i + 1, "counters by kind rely on it");
            assert_eq!(Kind::from_byte(kind as u8), Some(kind));
            assert!(Kind::ALL[..i].iter().all(|other| other.name() != kind.name()));
            assert!(kind.fixed_size() >= Header::SIZE);
        }
        assert_eq!(Kind::from_byte(0), None);
        assert_eq!(Kind::from_byte(Kind::ALL.len() as u8 + 1), None);
    }
}
