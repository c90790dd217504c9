//! Runtimes that run many requests on few threads: what the kernel side must know about a process to identify its
//! running task, and the user-space probes that show where a task comes from.

use crate::wire::wire;

/// [`Runtime::kind`]: `CPython`; a task is a context (`contextvars`).
pub const KIND_PYTHON: u32 = 1;
/// [`Runtime::kind`]: Go; a task is a goroutine.
pub const KIND_GO: u32 = 2;
/// [`Runtime::kind`]: Node.js; a task is an execution or trigger id.
pub const KIND_NODE: u32 = 3;
/// [`Runtime::kind`]: tokio (Rust); a task is a tokio task.
pub const KIND_TOKIO: u32 = 4;
/// [`Runtime::kind`]: `CPython` with greenlets (gevent); a task is a greenlet.
pub const KIND_GREENLET: u32 = 5;

/// [`Runtime::kind`]: Java (`HotSpot`, from 24 on); a task is a virtual thread.
pub const KIND_JAVA: u32 = 6;

/// tokio, second of [`Runtime::at`]: wake-ups between tasks are reported, always; or some of the time.
pub const TOKIO_WATCHED: u64 = 1;
/// They are reported some of the time.
pub const TOKIO_WATCHABLE: u64 = 2;

/// Where tokio keeps a task's number, behind its header: by the last three words of the task's table of functions
/// (`runtime::task::raw::Vtable`, since 1.24), which say where the trailer, the scheduler and the number are. Closures of
/// `spawn_blocking` have a scheduler of another size than tasks, by version and features. `None`: these words say something else.
#[inline(always)]
pub const fn tokio_number_at([trailer, scheduler, number]: [u64; 3]) -> Option<u64> {
    // The header has four words or five; what a task computes with may be aligned to a cache line or two.
    let fits = scheduler >= 0x20 && scheduler <= 0x80 && number >= scheduler && number - scheduler <= 0x40;
    if fits && number % 8 == 0 && trailer > number && trailer < 1 << 32 { Some(number) } else { None }
}

/// Node.js: bits of each of the two async ids in the name of a sending entity: execution, then trigger.
pub const NODE_ID_BITS: u32 = 27;
/// Node.js: bit of an entity's name: the probes see every end of a callback. The bits below are ids for a send, the id
/// counter for a receive or a turn of the loop.
pub const NODE_SURE: u64 = 1 << 55;

/// First of [`Runtime::at`]: tasks cannot be distinguished (an unknown version); only that the process's threads may share
/// requests is known.
pub const AT_UNKNOWN: u64 = 0;

/// Numbers a runtime's reader in the kernel may need; the reader of each runtime defines their meaning.
pub const NUMBERS: usize = 8;

wire! {
    /// What runs in a process; the value of a map by process id.
    pub struct Runtime {
        /// `KIND_…`.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
        /// Records of kind `event::TaskEdge` of the process so far; the kernel side counts them.
        pub edge_seq: u64,
        /// Offsets and addresses, by `kind`. The first is [`AT_UNKNOWN`] if tasks cannot be distinguished.
        pub at: [u64; NUMBERS],
    }
}

/// A user-space probe: names its program in the object, and its index among the hit counters.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserProbe {
    /// The end of `PyContext_CopyCurrent` (`CPython`): one context was copied from another.
    PythonContext = 0,
    /// Where `runtime.newproc` (Go) queues a new goroutine.
    GoCreated = 1,
    /// `net/http.(*persistConn).roundTrip` (Go): which goroutine sends a request by a connection that another goroutine
    /// writes to.
    GoRoundTrip = 2,
    /// Node.js runs its timers.
    NodeTimers = 3,
    /// Node.js runs its immediates.
    NodeImmediates = 4,
    /// Node.js takes messages and results from its other threads.
    NodeMessages = 5,
    /// Node.js accepts connections.
    NodeAccepts = 6,
    /// Node.js finished a TCP connect.
    NodeConnects = 7,
    /// Node.js finished a connect to a UNIX socket.
    NodePipes = 8,
    /// tokio registers a newly spawned task.
    TokioSpawned = 9,
    /// Where greenlet (`CPython`) makes a greenlet.
    PythonGreenlet = 10,
    /// `PySet_Add` (`CPython`): uvloop sets a stream aside to write to it at the end of a turn.
    PythonWrites = 11,
    /// tokio wakes a task. Only if configured: ten hits per request.
    TokioWoken = 12,
    /// `runtime.ready` (Go): a waiting goroutine continues. Only if configured, for the same reason.
    GoReady = 13,
    /// A declared function's entry, or one of its return instructions.
    DeclaredPlace = 14,
    /// The return of a declared function.
    DeclaredReturn = 15,
    /// The entry of a TLS library's function that reads, writes or shakes hands.
    TlsEnter = 16,
    /// The return of one.
    TlsReturn = 17,
    /// A TLS library forgets a connection.
    TlsFree = 18,
    /// `crypto/tls.(*Conn).Write` (Go).
    TlsGoWrite = 19,
    /// Where `crypto/tls.(*Conn).Read` (Go) copies text to its caller.
    TlsGoRead = 20,
    /// Where OpenSSL copies text to its reader.
    TlsCopy = 21,
    /// Where OpenSSL writes a record.
    TlsRecord = 22,
    /// A USDT probe of a declared transaction whose arguments are wanted.
    DeclaredArguments = 23,
    /// Where rustls encrypts text.
    TlsRustlsWrite = 24,
    /// Where rustls keeps decrypted text for its reader.
    TlsRustlsRead = 25,
    /// tokio queues a closure of `spawn_blocking`. Where wake-ups are watched.
    TokioClosure = 26,
    /// Where the loop of `CPython` calls `PyErr_GivenExceptionMatches`: an `except` clause is compared with what was thrown.
    PythonExcept = 27,
}

impl UserProbe {
    /// Every probe.
    pub const ALL: [Self; 28] = [
        Self::PythonContext,
        Self::GoCreated,
        Self::GoRoundTrip,
        Self::NodeTimers,
        Self::NodeImmediates,
        Self::NodeMessages,
        Self::NodeAccepts,
        Self::NodeConnects,
        Self::NodePipes,
        Self::TokioSpawned,
        Self::PythonGreenlet,
        Self::PythonWrites,
        Self::TokioWoken,
        Self::GoReady,
        Self::DeclaredPlace,
        Self::DeclaredReturn,
        Self::TlsEnter,
        Self::TlsReturn,
        Self::TlsFree,
        Self::TlsGoWrite,
        Self::TlsGoRead,
        Self::TlsCopy,
        Self::TlsRecord,
        Self::DeclaredArguments,
        Self::TlsRustlsWrite,
        Self::TlsRustlsRead,
        Self::TokioClosure,
        Self::PythonExcept,
    ];

    /// The program's name in the object, also the label of its metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::PythonContext => "python_context",
            Self::GoCreated => "go_created",
            Self::GoRoundTrip => "go_round_trip",
            Self::NodeTimers => "node_timers",
            Self::NodeImmediates => "node_immediates",
            Self::NodeMessages => "node_messages",
            Self::NodeAccepts => "node_accepts",
            Self::NodeConnects => "node_connects",
            Self::NodePipes => "node_pipes",
            Self::TokioSpawned => "tokio_spawned",
            Self::PythonGreenlet => "python_greenlet",
            Self::PythonWrites => "python_writes",
            Self::TokioWoken => "tokio_woken",
            Self::GoReady => "go_ready",
            Self::DeclaredPlace => "declared_place",
            Self::DeclaredReturn => "declared_return",
            Self::TlsEnter => "tls_enter",
            Self::TlsReturn => "tls_return",
            Self::TlsFree => "tls_free",
            Self::TlsGoWrite => "tls_go_write",
            Self::TlsGoRead => "tls_go_read",
            Self::TlsCopy => "tls_copy",
            Self::TlsRecord => "tls_record",
            Self::DeclaredArguments => "declared_arguments",
            Self::TlsRustlsWrite => "tls_rustls_write",
            Self::TlsRustlsRead => "tls_rustls_read",
            Self::TokioClosure => "tokio_closure",
            Self::PythonExcept => "python_except",
        }
    }

    /// Where it attaches, for people.
    pub fn place(self) -> &'static str {
        match self {
            Self::PythonContext => "uretprobe PyContext_CopyCurrent",
            Self::GoCreated => "uprobe in runtime.newproc",
            Self::GoRoundTrip => "uprobe net/http.(*persistConn).roundTrip",
            Self::NodeTimers => "uprobe node::Environment::RunTimers",
            Self::NodeImmediates => "uprobe node::Environment::CheckImmediate",
            Self::NodeMessages => "uprobe uv__async_io",
            Self::NodeAccepts => "uprobe uv__server_io",
            Self::NodeConnects => "uprobe node::ConnectionWrap<TCPWrap>::AfterConnect",
            Self::NodePipes => "uprobe node::ConnectionWrap<PipeWrap>::AfterConnect",
            Self::TokioSpawned => "uprobe tokio::runtime::task::list::OwnedTasks::bind_inner",
            Self::PythonGreenlet => "uprobe greenlet::UserGreenlet::UserGreenlet",
            Self::PythonWrites => "uprobe PySet_Add",
            Self::TokioWoken => "uprobes tokio::runtime::task::waker::{wake_by_val, wake_by_ref}",
            Self::GoReady => "uprobe runtime.ready",
            Self::DeclaredPlace => "uprobes of declared functions",
            Self::DeclaredReturn => "uretprobes of declared functions",
            Self::TlsEnter => "uprobes SSL_read, SSL_write, SSL_do_handshake",
            Self::TlsReturn => "uretprobes SSL_read, SSL_write, SSL_do_handshake",
            Self::TlsFree => "uprobes SSL_free, SSL_clear",
            Self::TlsGoWrite => "uprobe crypto/tls.(*Conn).Write",
            Self::TlsGoRead => "uprobe in crypto/tls.(*Conn).Read",
            Self::TlsCopy => "uprobe in ssl3_read_bytes",
            Self::TlsRecord => "uprobe in ssl3_write_bytes",
            Self::DeclaredArguments => "uprobes of declared USDT probes",
            Self::TlsRustlsWrite => "uprobe rustls::common_state::CommonState::buffer_plaintext",
            Self::TlsRustlsRead => "uprobe rustls::common_state::CommonState::take_received_plaintext",
            Self::TokioClosure => "uprobe tokio::runtime::blocking::pool::Spawner::spawn_task",
            Self::PythonExcept => "uprobes at calls of PyErr_GivenExceptionMatches",
        }
    }

    /// What is lost without it.
    pub fn without(self) -> &'static str {
        match self {
            Self::PythonContext => "calls of Python's event loops are orphans",
            Self::PythonGreenlet => "calls of greenlets are orphans",
            Self::PythonWrites => "calls of uvloop's tasks are orphans",
            Self::GoCreated => "calls of goroutines that requests start are orphans",
            Self::TokioSpawned => "calls of tasks that requests spawn are ambiguous or orphans",
            Self::TokioWoken => {
                "`[runtimes] tokio_wakers` does nothing: calls by hyper's client are ambiguous or orphans"
            }
            Self::TokioClosure => "calls of `spawn_blocking` are orphans",
            Self::GoReady => "`[runtimes] go_ready` does nothing: calls of goroutines that wait for work are orphans",
            Self::DeclaredPlace | Self::DeclaredReturn => "`[[transaction]]` does nothing",
            Self::DeclaredArguments => "users and metrics of transactions by USDT probes cannot be read",
            Self::TlsEnter | Self::TlsReturn | Self::TlsFree | Self::TlsCopy | Self::TlsRecord => {
                "connections encrypted by OpenSSL show round trips only"
            }
            Self::TlsGoWrite | Self::TlsGoRead => "connections encrypted by Go show round trips only",
            Self::PythonExcept => "exceptions of Python are not seen",
            Self::TlsRustlsWrite | Self::TlsRustlsRead => "connections encrypted by rustls show round trips only",
            Self::GoRoundTrip => "calls of net/http's client are orphans",
            Self::NodeTimers
            | Self::NodeImmediates
            | Self::NodeMessages
            | Self::NodeAccepts
            | Self::NodeConnects
            | Self::NodePipes => "calls of Node.js are ambiguous",
        }
    }
}

/// Cookie of a probe of a declared transaction: its index in the configuration is in the low bits.
pub mod declared {
    /// The bits of the index.
    pub const INDEX: u64 = 0xff;
    /// The index that no transaction has: the agent measures what a probe costs, and wants no record.
    pub const CALIBRATION: u64 = INDEX;
    /// The number, from 1, of the register that points to the text which names the user; 0: none.
    pub const FIRST: u32 = 8;
    /// Likewise for the text that is a metric.
    pub const SECOND: u32 = 12;
    /// The bits of either number.
    pub const REGISTER: u64 = 0xf;
    /// The first text's length is in the next register; without, a zero byte ends it.
    pub const FIRST_PAIR: u64 = 1 << 16;
    /// Likewise for the second.
    pub const SECOND_PAIR: u64 = 1 << 17;
    /// The probe is where a call ends.
    pub const RETURN: u64 = 1 << 32;
    /// The function is Go's: it runs on a goroutine's stack.
    pub const GO: u64 = 1 << 33;
    /// Values are to be reported.
    pub const VALUES: u64 = 1 << 34;
    /// The place is also reached in other ways.
    pub const SHARED: u64 = 1 << 35;
    /// The place is where exceptions are thrown, and the index is that of exceptions: its number is [`EXCEPTIONS`] above it.
    pub const EXCEPTION: u64 = 1 << EXCEPTION_BIT;
    /// See [`EXCEPTION`].
    pub const EXCEPTION_BIT: u32 = 36;
    /// The first number of probes for exceptions; those of transactions are below.
    pub const EXCEPTIONS: u64 = INDEX + 1;
    /// Numbers of probes: of transactions, and of exceptions.
    pub const NUMBERS: u32 = 2 * EXCEPTIONS as u32;
    /// From here up, signed: by how many bytes the stack pointer is above what it was at entry.
    pub const STACK: u32 = 40;
    /// From here up, of `UserProbe::DeclaredArguments`: the number of its [`super::Operands`]; of `UserProbe::PythonExcept` the minor
    /// version.
    pub const OPERANDS: u32 = STACK;
}

/// [`Operand::kind`]: not wanted.
pub const OPERAND_NONE: u8 = 0;
/// [`Operand::kind`]: the displacement is the value.
pub const OPERAND_CONSTANT: u8 = 1;
/// [`Operand::kind`]: a register has the value.
pub const OPERAND_REGISTER: u8 = 2;
/// [`Operand::kind`]: memory has the value, at the sum of a register, a scaled index and the displacement.
pub const OPERAND_MEMORY: u8 = 3;
/// [`Operand::base`] and [`Operand::index`]: no register.
pub const NO_REGISTER: u8 = 0xff;

wire! {
    /// Where an argument of a USDT probe is.
    pub struct Operand {
        /// The constant, or what is added to the address.
        pub displacement: i64,
        /// `OPERAND_…`.
        pub kind: u8,
        /// The register, as its offset in the kernel's `pt_regs`; or [`NO_REGISTER`].
        pub base: u8,
        /// Likewise the index of an address.
        pub index: u8,
        /// The index is shifted left by so many bits.
        pub scale: u8,
        /// 64 less the bits of the value.
        pub unused_bits: u8,
        /// 1: the value is signed.
        pub is_signed: u8,
        /// 1: the value of the argument before it is added to the address, or to what a register has.
        pub adds_previous: u8,
        /// Zero.
        pub reserved: u8,
    }
}

/// Most USDT probes with wanted arguments.
pub const OPERANDS_MAX: u32 = 256;

/// The arguments of a USDT probe; the value of a map by the number in the probe's cookie.
pub type Operands = [Operand; crate::event::DECLARED_REGISTERS];

pub mod tls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tasks_table_says_where_its_number_is() {
        // tokio 1.54: a closure, a task, the worker of a runtime.
        for (words, number) in [([0x58, 0x20, 0x30], 0x30), ([0x140, 0x20, 0x28], 0x28), ([0x68, 0x20, 0x30], 0x30)] {
            assert_eq!(tokio_number_at(words), Some(number));
        }
        // A scheduler without a field; a closure that is aligned to two cache lines.
        assert_eq!(tokio_number_at([0x40, 0x20, 0x20]), Some(0x20));
        assert_eq!(tokio_number_at([0x200, 0x80, 0x90]), Some(0x90));
        // No memory there; functions; another order; text.
        let code = 0x5581_4a60_2ca0;
        let others =
            [[0; 3], [code; 3], [0x58, 0x30, 0x20], [0x28, 0x20, 0x58], [0x58, 0x20, 0x29], [u64::MAX, 0x20, 0x28]];
        for words in others {
            assert_eq!(tokio_number_at(words), None, "{words:x?}");
        }
    }

    #[test]
    fn locations_are_read_as_written() {
        use tls::{ASKED, LOCATION, Location, OBJECT, PEEK, location, register, stack};
        for bytes in [0, 4, 0x27, 510] {
            let cookie = register(13) << OBJECT | stack(bytes).expect("near") << PEEK;
            assert_eq!(location(cookie, OBJECT), Location::Register(13));
            assert_eq!(location(cookie, PEEK), Location::Stack(u64::from(bytes)));
            assert_eq!(location(cookie, ASKED), Location::Nowhere);
        }
        assert_eq!(stack(511), None);
        assert!(register(15) <= LOCATION);
    }

    #[test]
    fn a_records_own_bytes_are_no_other_text() {
        for overhead in [21, 22, 29, 5 + 96] {
            assert!(!tls::wrote_unseen(16_384, 16_384 + overhead));
            // An alert follows.
            assert!(!tls::wrote_unseen(16_384, 16_384 + overhead + 31));
        }
        assert!(tls::wrote_unseen(100, 100 + 4 * 1024));
        assert!(!tls::wrote_unseen(u32::MAX, 5));
    }

    #[test]
    fn a_record_is_placed_when_all_before_it_has_left() {
        let mut wrote = tls::UnsentRecords::NOTHING;
        assert!(wrote.is_placed(100, 1000), "nothing was written before");
        assert!(wrote.is_placed(50, 1122), "100 bytes and 22 have left");
        assert!(!wrote.is_placed(30, 1122), "50 bytes have not");
        assert!(!wrote.is_placed(20, 1122));
        assert!(wrote.is_placed(10, 1122 + 100 + 3 * 22), "all three have left");
        // One record is always behind: the socket moves by as much as is written.
        assert!(!wrote.is_placed(10, 1288));
        for n in 1..50 {
            assert!(!wrote.is_placed(10, 1288 + n * 32));
        }
        assert!(wrote.is_placed(10, 1288 + 51 * 32));
        // A record that was not seen.
        assert!(!wrote.is_placed(10, 2920 + 32 + 61));
        assert!(!wrote.is_placed(10, 2920 + 2 * 32 + 61));
    }

    #[test]
    fn text_follows_what_else_a_call_wrote() {
        for (bytes, records) in [(1, 1), (16_384, 1), (16_385, 2), (300_000, 19)] {
            for added in [21, 22, 29] {
                assert_eq!(tls::text_begins(bytes, bytes + records * added, 0x303, true), Some(0), "{bytes} {added}");
            }
            // The end of a resumed session's handshake, as Node.js 26 sends it with its first request: to change, 6 bytes; to
            // finish, 16; and what GCM and ChaCha20 add to that.
            let ends = [(29, 6 + 16 + 29), (21, 6 + 16 + 21)];
            // Of many records, what other ciphers add may be as much.
            for (added, before) in ends.into_iter().filter(|_| records < 5) {
                let written = before + bytes + records * added;
                assert_eq!(tls::text_begins(bytes, written, 0x303, true), Some(before), "{bytes} {added}");
                assert_eq!(tls::text_begins(bytes, written, 0x303, false), None, "that comes first");
                assert_eq!(tls::text_begins(bytes, written + 1, 0x303, true), None);
            }
            // That of another one.
            let written = bytes + records * 22 + 180;
            assert_eq!(tls::text_begins(bytes, written, 0x303, true), None);
            assert_eq!(tls::text_begins(bytes, written, 0x304, true), Some(180));
            assert_eq!(tls::text_begins(bytes, bytes - 1, 0x304, true), None);
        }
    }

    #[test]
    fn long_text_needs_several_records() {
        let mut wrote = tls::UnsentRecords::NOTHING;
        assert!(wrote.is_placed(40_000, 0));
        assert!(!wrote.is_placed(16_384, 16_384 + 22), "three records, of which one has left");
        assert!(wrote.is_placed(1, 40_000 + 16_384 + 4 * 22));
        assert_eq!((wrote.records, wrote.overhead), (1, 22));
    }

    #[test]
    fn what_encryption_adds_is_learnt_from_several_records() {
        let mut wrote = tls::UnsentRecords::NOTHING;
        assert!(wrote.is_placed(100, u32::MAX - 10));
        assert!(!wrote.is_placed(7, u32::MAX - 10));
        assert!(!wrote.is_placed(1, (u32::MAX - 10).wrapping_add(122)), "the second has not left");
        assert!(wrote.is_placed(1, (u32::MAX - 10).wrapping_add(108 + 3 * 29)));
        assert_eq!(wrote.overhead, 29);
    }

    #[test]
    fn indices_follow_the_list() {
        for (i, probe) in UserProbe::ALL.into_iter().enumerate() {
            assert_eq!(probe as usize, i);
            assert!(UserProbe::ALL[..i].iter().all(|other| other.name() != probe.name()));
        }
    }

    #[test]
    fn text_is_in_what_was_sent_if_the_sizes_fit() {
        let sent = |len: u32, each: u32| len + (len.saturating_sub(1) / tls::LONGEST + 1) * each;
        for each in [22, 29, 21] {
            for len in [1, 100, tls::LONGEST, tls::LONGEST + 1, 65_536] {
                assert_eq!(tls::text_in(sent(len, each), len, 0), Some((len, each)));
                assert_eq!(tls::text_in(sent(len, each), len, each), Some((len, each)));
                // More or less than that, as another connection's would be.
                assert_eq!(tls::text_in(sent(len, each) + 11, len, 0), None);
            }
            // There was room for four records.
            assert_eq!(tls::text_in(sent(65_536, each), 300_000, 0), Some((65_536, each)));
            assert_eq!(tls::text_in(sent(65_536, each) - 10, 300_000, 0), None);
        }
        assert_eq!(tls::text_in(122, 100, 29), None);
        for sent in [0, 21, u32::MAX] {
            assert_eq!(tls::text_in(sent, u32::MAX, 0), None);
        }
    }
}
