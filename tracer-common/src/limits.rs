//! Bounds both sides rely on.

/// Most bytes of payload one record can carry from the front of an operation. A power of two, so the verifier can
/// follow a mask.
pub const HEAD_MAX: usize = 8 * 1024;
/// Bytes of payload carried from the end of an operation whose front did not fit: enough for what follows a long body
/// in HTTP/2, such as gRPC's trailers once they are indexed, or a PING and a WINDOW_UPDATE.
pub const TAIL_MAX: usize = 64;
/// Most bytes of fragments behind a record, for frames that the operation's front does not hold whole, see
/// [`crate::event::Op::frames`]: heads whole, of bodies only the beginnings.
pub const FRAMES_BYTES: usize = 22 * 1024;
/// Payload carried by default where requests are expected.
pub const HEAD_REQUEST: u16 = 4096;
/// Payload carried by default where replies are expected.
pub const HEAD_REPLY: u16 = 1024;
/// Replies up to this many bytes are carried whole: a head longer than [`HEAD_REPLY`], mostly because of cookies, has a
/// short body or none (a redirect after a login), and the tracer must know where it ends.
pub const HEAD_REPLY_WHOLE: u16 = 2048;
/// What user space asks for instead of a number of bytes where messages may begin anywhere in an operation: its first
/// [`HEAD_MAX`] bytes, and those behind them in further records.
pub const HEAD_WHOLE: u16 = u16::MAX;
/// Payload carried in either direction until user space knows the protocol.
pub const HEAD_UNKNOWN: u16 = 4096;
/// Longest head of a message user space puts together from fragments.
pub const HEAD_COLLECTED: usize = 64 * 1024;
/// Most I/O vector elements read in one receive.
pub const IOVECS_MAX: usize = 16;
/// The same in one send: senders of frames use one element per part of a frame (gRPC one per header).
pub const IOVECS_SENT_MAX: usize = 64;
/// Most frames of one stack, user and kernel each (`perf_event_max_stack` of the kernel is 127).
pub const FRAMES_MAX: usize = 127;
/// Most stacks of threads that leave the CPU that one CPU takes in a time slice of 2^[`OFF_CPU_SLICE`] nanoseconds: some 1900 a
/// second, until the overhead budget has fewer chosen. Waits beyond that are reported without one.
pub const OFF_CPU_STACKS: u32 = 32;
/// See [`OFF_CPU_STACKS`].
pub const OFF_CPU_SLICE: u32 = 24;
/// Most stacks of calls that one CPU takes in such a slice.
pub const CALL_STACKS: u32 = 32;
/// Most stacks of exceptions likewise.
pub const EXCEPTION_STACKS: u32 = 32;
/// Most frames of a traceback of Python that are passed for the innermost ones.
pub const TRACEBACK_MAX: u32 = 1024;
/// Longest time that one sample may stand for, nanoseconds: more than two periods of the slowest clock is time in which the
/// CPU was not there.
pub const SAMPLE_TIME_MAX: u64 = 2_000_000_000;
/// A CPU that was idle for longer than this since its clock last ran may have had no clock meanwhile, nanoseconds.
pub const SAMPLE_IDLE: i64 = 100_000;
/// Bytes of the ring that wakes the reader.
pub const WAKE_RING_BYTES: usize = 4 << 10;
/// Bytes of the ring that carries stacks.
pub const SAMPLE_RING_BYTES: usize = 1 << 20;
/// Connections for which user space can have a [`crate::policy::CapturePolicy`] waiting.
pub const ASKS_MAX: u32 = 16 * 1024;
/// Connections whose packets can have another priority than their socket's ([`crate::policy::SendPriority`]).
pub const SEND_PRIORITIES_MAX: u32 = 8 * 1024;
/// Threads whose request's context other programs can read, and bytes of one: a trace id and a span id. The size that
/// OpenTelemetry's eBPF instrumentation and profiler agree on (`traces_ctx_v1`).
pub const TRACE_CONTEXTS_MAX: u32 = 16 * 1024;
/// See [`TRACE_CONTEXTS_MAX`].
pub const TRACE_CONTEXT_BYTES: usize = 24;
/// `io_uring` requests between submission and completion for which the kernel side keeps the buffer.
pub const URING_MAX: u32 = 16 * 1024;
/// Objects of TLS libraries whose socket the kernel side knows.
pub const TLS_OBJECTS_MAX: u32 = 16 * 1024;
/// First messages of TLS clients by which such an object's socket is found.
pub const TLS_HELLOS_MAX: u32 = 16 * 1024;
/// Processes in which the kernel side watches wake-ups between threads.
pub const HANDOVERS_MAX: u32 = 1024;
/// Wake-ups of request-holding threads that one thread reports between two of its operations.
pub const WAKES_MAX: u32 = 8;
/// Descriptors of Go programs with a request about to be sent.
pub const USES_MAX: u32 = 16 * 1024;
/// Known tokio tasks, where wake-ups between tasks are reported.
pub const WOKEN_MAX: u32 = 16 * 1024;
/// Processes whose runtime is known.
pub const RUNTIMES_MAX: u32 = 4096;
/// Beginnings of requests that the kernel side knows the class of ([`crate::exchange_counts::RequestPrefix`]).
pub const REQUEST_PREFIXES_MAX: u32 = 4096;
/// Classes of such requests, and of their exchanges by outcome ([`crate::exchange_counts::ExchangeSums`]).
pub const COUNTED_CLASSES_MAX: u32 = 512;
/// See [`COUNTED_CLASSES_MAX`].
pub const EXCHANGE_SUMS_MAX: u32 = 2048;
/// Processes with a policy of their own.
pub const PROCESSES_MAX: u32 = 16 * 1024;
/// A thread that used CPU reports it when it leaves the CPU at least this long after its last report, nanoseconds.
pub const THREAD_STATS_NANOS: u64 = 1_000_000_000;
/// A thread that used this much CPU since its last report reports when it leaves the CPU, nanoseconds.
pub const THREAD_STATS_CPU_NANOS: u64 = 50_000_000;

const _: () = assert!(HEAD_MAX.is_power_of_two());
const _: () = assert!(HEAD_REQUEST as usize <= HEAD_MAX && HEAD_UNKNOWN as usize <= HEAD_MAX);
const _: () = assert!(SAMPLE_RING_BYTES.is_power_of_two());
