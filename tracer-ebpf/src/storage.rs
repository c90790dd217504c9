//! State that lives with what it describes: per-thread and per-socket records that the kernel frees.
//!
//! aya-ebpf 0.2 has no type for task storage and its socket storage does not fit tracepoints; a map needs only the BTF
//! definition, and the loader allows map types it does not know.

use core::{ffi::c_void, ptr};

use aya_ebpf::{helpers::generated, macros::btf_map};
use tracer_common::{event::NetworkPath, exchange_counts::RequestPrefix};

use crate::ring::Parked;

macro_rules! local_storage {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $helper:ident, $object:ty) => {
        $(#[$meta])*
        #[repr(C)]
        pub(crate) struct $name<T> {
            r#type: *const [i32; $kind],
            key: *const i32,
            value: *const T,
            max_entries: *const [i32; 0],
            // BPF_F_NO_PREALLOC: required of local storage.
            map_flags: *const [i32; 1],
        }

        // SAFETY: the struct is a description for the loader; it holds no data of its own.
        unsafe impl<T> Sync for $name<T> {}

        impl<T> $name<T> {
            pub(crate) const fn new() -> Self {
                Self {
                    r#type: ptr::null(),
                    key: ptr::null(),
                    value: ptr::null(),
                    max_entries: ptr::null(),
                    map_flags: ptr::null(),
                }
            }

            /// The record of `object`, created if `create` and missing; null if there is none or the kernel refused it.
            #[inline(always)]
            pub(crate) fn get(&'static self, object: $object, create: bool) -> *mut T {
                let found = self.ask(object, create);
                // The loser of a creation race gets null; asking again finds the winner's record: a peer's send reports
                // arrived data on a UNIX socket while this end begins to receive.
                if create && found.is_null() { self.ask(object, create) } else { found }
            }

            #[inline(always)]
            fn ask(&'static self, object: $object, create: bool) -> *mut T {
                // SAFETY: the map definition is this static; the verifier checks that `object` is trusted.
                unsafe {
                    generated::$helper(
                        ptr::from_ref(self).cast_mut().cast(),
                        object.cast(),
                        ptr::null_mut(),
                        create as u64,
                    )
                    .cast()
                }
            }
        }
    };
}

local_storage!(
    /// `BPF_MAP_TYPE_TASK_STORAGE`.
    TaskStorage, 29, bpf_task_storage_get, *mut c_void
);
local_storage!(
    /// `BPF_MAP_TYPE_SK_STORAGE`.
    SkStorage, 24, bpf_sk_storage_get, *mut c_void
);

/// The record of a thread. Times in nanoseconds.
///
/// What every switch and wake-up of the thread needs comes first, and what every operation needs next. The kernel puts eight bytes of
/// its own before the record: cache lines end after 56, 120 and 184 bytes.
#[repr(C)]
pub(crate) struct Thread {
    /// When the thread left the CPU with a request, if that wait is reported (`off_cpu`); 0 = it runs, or its wait is not.
    pub(crate) left: u64,
    /// When it was last woken with a request or in such a wait since it ran; 0 = not yet. Before `left` where another CPU woke it
    /// while it was leaving this one.
    pub(crate) woken: u64,
    /// What the scheduler had charged the thread when it last left a CPU; 0 = never seen to.
    pub(crate) exec: u64,
    /// When the thread was first seen, and its CPU by then; 0 = not seen yet.
    pub(crate) base_at: u64,
    pub(crate) base_exec: u64,
    /// CPU and time of the last report.
    pub(crate) reported_cpu: u64,
    /// 1: the thread read from an accepted socket, and has not sent on one since: it holds a request.
    pub(crate) holds: u32,
    pub(crate) switches: u32,
    pub(crate) reported_at: u64,
    /// When the thread last fell asleep waiting for work.
    pub(crate) slept_at: u64,
    /// CPU since `base_at` when the last wait for work began; when that wait ended.
    pub(crate) idle_cpu: u64,
    pub(crate) idle_end: u64,
    /// Bytes without payload the thread sent and has not reported: by which socket (0 = none); see [`Thread::sent_pos`].
    pub(crate) sent_cookie: u64,
    pub(crate) idles: u32,
    pub(crate) polls: u32,
    /// The thread left the CPU to wait for work, and has not been seen since.
    pub(crate) waiting: u32,
    /// Cached policy of its process and the generation it was looked up in.
    pub(crate) policy: u32,
    pub(crate) generation: u32,
    /// Socket operations reported, or that should have been.
    pub(crate) ops: u32,
    /// Its time in run queues by `base_at`.
    pub(crate) base_runq: u64,
    pub(crate) reads: u32,
    /// The first of two programs on a hook has seen the operation under way: bit 0 for receives, bit 1 for sends.
    pub(crate) handled: u32,
    /// The runtime task that did the thread's last operation, as in a record.
    pub(crate) entity: u64,
    /// Task edges of its process reported when `entity` was read.
    pub(crate) edge_seq: u32,
    /// The kind of runtime of its process, as of `generation`; 0 = none.
    pub(crate) runtime: u32,
    /// Flags of the operation under way that are known before its payload is copied.
    pub(crate) early: u32,
    /// 1: an event loop of Node.js that received something since it last turned.
    pub(crate) received: u32,
    /// 1: the thread sent on a socket it connected while it held nothing, and has read no reply yet.
    pub(crate) asked: u32,
    /// 1: it has read the reply since.
    pub(crate) replied: u32,
    /// 1: the thread once made a call while it held nothing: it may be working for others.
    pub(crate) works: u32,
    /// Wake-ups it reported since its last operation or since it last left the CPU, and its switch count at that time.
    pub(crate) wakes: u32,
    pub(crate) wakes_at: u32,
    /// Which thread gave it work at `given_at`, and 1 until a wake-up by this thread was reported since.
    pub(crate) given_by: u32,
    pub(crate) given_new: u32,
    /// When a thread that held a request last woke this one by a futex.
    pub(crate) given_at: u64,
    /// What `sent_cookie` sent: from where to where, and when.
    pub(crate) sent_pos: u64,
    pub(crate) sent_end: u64,
    pub(crate) sent_at: u64,
    /// The array of the last `sendmmsg`/`recvmmsg`.
    pub(crate) mmsg: u64,
    /// Next message of the array in `mmsg`, and the length of the one before.
    pub(crate) mmsg_next: u32,
    pub(crate) mmsg_bytes: u32,
    /// The socket of its last operation on a traced stream (0: none since a call of a TLS library began), its address in
    /// the kernel and its flags.
    pub(crate) io_cookie: u64,
    pub(crate) io_sk: u64,
    pub(crate) io_flags: u64,
    /// What TCP had measured by the last operation on a traced stream, and that socket.
    pub(crate) io_path: NetworkPath,
    pub(crate) io_path_of: u64,
    /// 1: that operation sent; else it received.
    pub(crate) io_sent: u64,
    /// The connection of rustls that took text from what that operation received; 0: none yet.
    pub(crate) io_reader: u64,
    /// When it made the operation under way, if its stack may be taken for it (`call_stack.rs`); else 0.
    pub(crate) calls_at: u64,
    /// When it last threw an exception that was reported.
    pub(crate) thrown_at: u64,
    /// Text that it gave to rustls and that its next send has to carry.
    pub(crate) unsent: UnsentText,
    /// The call of a TLS library it is in.
    pub(crate) tls: TlsCall,
    /// The operation whose frames are being searched.
    pub(crate) walk: FrameWalk,
    /// What it used by its last operation or report, which class that operation was counted for (0: it was reported), and
    /// [`Thread::idles`] then.
    pub(crate) counted: CountedThread,
}

/// See [`Thread::counted`].
#[repr(C)]
pub(crate) struct CountedThread {
    pub(crate) cpu: u64,
    pub(crate) runq: u64,
    pub(crate) blocked: u64,
    pub(crate) class: u32,
    pub(crate) idles: u32,
    /// 1: operations were counted since the last one that was reported.
    pub(crate) unreported: u32,
    /// How far the operation under way has come: [`OperationStage`](crate::exchange_counts::OperationStage).
    pub(crate) stage: u32,
    /// The request that is looked up.
    pub(crate) key: RequestPrefix,
}

/// Text between the call of rustls that encrypts it and the send.
#[repr(C)]
pub(crate) struct UnsentText {
    /// Its length; 0: none.
    pub(crate) len: u64,
    /// How many pieces it is in, and where they are, as I/O vectors: the program's own list is gone when it is sent.
    pub(crate) count: u64,
    pub(crate) pieces: [[u64; 2]; PIECES],
}

/// Most pieces of a text: hyper writes as many at once.
pub(crate) const PIECES: usize = 16;

/// A call of a TLS library, between its entry and its return.
#[repr(C)]
pub(crate) struct TlsCall {
    /// The library's object of the connection; 0: no call.
    pub(crate) object: u64,
    /// The caller's buffer, and its length.
    pub(crate) buffer: u64,
    pub(crate) len: u64,
    /// Where the library stores how much it moved; 0: it returns that.
    pub(crate) count: u64,
    /// Position of the call's text, if it was reported when the call began; else [`NOT_REPORTED`].
    pub(crate) start: u64,
    /// Where its socket was when it began to write, if it is known; else 0.
    pub(crate) seq: u64,
    /// The object whose text is searched for frames.
    pub(crate) framed: u64,
}

/// [`TlsCall::start`]: nothing was reported yet.
pub(crate) const NOT_REPORTED: u64 = u64::MAX;

/// An operation whose record is written but not complete, and the progress of the walk over its frames. The walk reads
/// each field from memory at each use, so that every step looks the same to the verifier.
#[repr(C)]
pub(crate) struct FrameWalk {
    /// The slot of the record, and how many of its bytes are for frame starts.
    pub(crate) slot: Parked,
    pub(crate) room: u64,
    /// 1: the bytes behind the record are wanted, too, and not frame starts.
    pub(crate) whole: u64,
    pub(crate) first: [u64; 3],
    /// Where the operation's bytes are: an array of I/O vectors and its length; or a buffer, and 0.
    pub(crate) source: [u64; 2],
    /// The current element: address and length, and the byte of the operation it begins with.
    pub(crate) vector: [u64; 2],
    pub(crate) element: u64,
    /// The operation's next byte.
    pub(crate) cur: u64,
    /// Bytes still to copy of the current fragment.
    pub(crate) left: u64,
    /// Where the next bytes go, and where their fragment begins, from the first fragment on.
    pub(crate) out: u64,
    pub(crate) piece: u64,
    /// Byte of the operation with which the fragment begins.
    pub(crate) place: u64,
    /// Where the next frame begins, once this one's header was read.
    pub(crate) next: u64,
}

/// The record of a socket. Positions count bytes since the socket was first seen.
#[repr(C)]
pub(crate) struct Sock {
    pub(crate) cookie: u64,
    pub(crate) rx: u64,
    pub(crate) tx: u64,
    pub(crate) last_rx: u64,
    pub(crate) last_tx: u64,
    /// When the first unread byte arrived; 0 if everything was read.
    pub(crate) arrived: u64,
    pub(crate) established: u64,
    /// When it was accepted, if a hook shows that; else 0.
    pub(crate) accepted: u64,
    /// Operations that end before these positions need not be reported.
    pub(crate) rx_skip: u64,
    pub(crate) tx_skip: u64,
    pub(crate) ops: u32,
    /// Operations in the current direction since it reversed.
    pub(crate) run: u32,
    /// `copied_seq` after the last receive.
    pub(crate) rx_next: u32,
    /// `SOCK_…`.
    pub(crate) flags: u32,
    pub(crate) head_rx: u16,
    pub(crate) head_tx: u16,
    /// Bytes of operations that were carried whole before user space gave its verdict.
    pub(crate) carried: u32,
    /// [`Sock::run`] of the other direction when it reversed.
    pub(crate) run_before: u32,
    /// `write_seq` after the last send, and the thread that sent.
    pub(crate) tx_next: u32,
    pub(crate) tx_tid: u32,
    /// Bytes inserted (`header`) into sends since the last observed send, and where the last of them were inserted:
    /// sequence number of that request's first byte.
    pub(crate) grown: u32,
    pub(crate) grown_at: u32,
    /// Where frames begin, for receives and for sends.
    pub(crate) frames: [Frames; 2],
    /// The exchange under way, if it is counted.
    pub(crate) exchange: CountedExchange,
    /// The last request whose class was looked up.
    pub(crate) known: KnownRequest,
}

/// A request whose class was found.
#[repr(C)]
pub(crate) struct KnownRequest {
    pub(crate) prefix: RequestPrefix,
    pub(crate) class: u32,
    /// Found in this generation of the policies (`Control::generation`); 0: none was.
    pub(crate) generation: u32,
}

/// An exchange that is counted and not reported.
#[repr(C)]
pub(crate) struct CountedExchange {
    /// Its class; 0: none is under way.
    pub(crate) class: u64,
    /// When its request began, and how long its first byte had waited to be read.
    pub(crate) start: u64,
    pub(crate) queue: u64,
    /// The reply's outcome; 0: no reply yet.
    pub(crate) outcome: u64,
    /// Bytes of the connection before it: received and sent.
    pub(crate) rx: u64,
    pub(crate) tx: u64,
    /// Bytes received and sent when its reply had ended last.
    pub(crate) rx_end: u64,
    pub(crate) tx_end: u64,
    /// When its last byte was received, or sent.
    pub(crate) end: u64,
    /// Requests that came after its own before its reply began.
    pub(crate) further: u64,
    /// Exchanges counted since the connection's last record; not 0: some had further requests.
    pub(crate) unreported: u64,
    pub(crate) several: u64,
    /// When its reply began, which thread began it, and what that thread was charged for it.
    pub(crate) first_reply: u64,
    pub(crate) tgid: u32,
    pub(crate) tid: u32,
    pub(crate) cpu: u64,
    pub(crate) runq: u64,
    pub(crate) blocked: u64,
}

/// Where frames begin in one direction of a socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frames {
    /// Position of the next frame, while `known`; if `have`, of its first byte that has not moved yet.
    pub(crate) next: u64,
    /// The bytes of its header that have moved already.
    pub(crate) carry: u64,
    /// How many of them.
    pub(crate) have: u8,
    pub(crate) known: u8,
    /// Short operations of whole frames in a row.
    pub(crate) calm: u8,
    pub(crate) reserved: [u8; 5],
}

/// [`Sock::flags`]: its opening was reported.
pub(crate) const SOCK_OPENED: u32 = 1 << 0;
/// [`Sock::flags`]: report nothing more about it.
pub(crate) const SOCK_IGNORED: u32 = 1 << 1;
/// [`Sock::flags`]: this end connected.
pub(crate) const SOCK_ACTIVE: u32 = 1 << 2;
/// [`Sock::flags`]: this end accepted.
pub(crate) const SOCK_PASSIVE: u32 = 1 << 3;
/// [`Sock::flags`]: user space has given its verdict.
pub(crate) const SOCK_DECIDED: u32 = 1 << 4;
/// [`Sock::flags`]: the last operation was a send.
pub(crate) const SOCK_SENDING: u32 = 1 << 5;
/// [`Sock::flags`]: the end of what the peer sends was reported.
pub(crate) const SOCK_EOF: u32 = 1 << 6;

/// [`Sock::flags`]: its first bytes are those of a protocol with many messages in one operation.
pub(crate) const SOCK_FRAMES: u32 = 1 << 7;
/// [`Sock::flags`]: report only operations that reverse the direction.
pub(crate) const SOCK_ROUND_TRIPS: u32 = 1 << 8;
/// [`Sock::flags`]: a UDP socket without a peer of its own that sends to a name server port.
pub(crate) const SOCK_NAMES: u32 = 1 << 9;
/// [`Sock::flags`]: its first bytes arrived before it was accepted.
pub(crate) const SOCK_QUEUED: u32 = 1 << 10;

/// [`Sock::flags`]: its first bytes are those of a protocol whose long operations are bodies.
pub(crate) const SOCK_BODIES: u32 = 1 << 11;

/// The record of a connection that may carry in-band contexts. The programs at its segments run under the socket's
/// lock; those at system calls do not, and race with them on single words only.
#[repr(C)]
pub(crate) struct Carrier {
    pub(crate) cookie: u64,
    /// Sending: the context of the request that begins.
    pub(crate) trace: [u64; 2],
    pub(crate) span: u64,
    /// Sending: the transaction that opened the connection, until its first request.
    pub(crate) opener: [u64; 2],
    /// Receiving: the latest context.
    pub(crate) came: [u64; 2],
    pub(crate) came_span: u64,
    /// Sending: sequence number of that request's first byte. Receiving: that of the request with the latest context.
    pub(crate) start: u32,
    /// How far the other direction had come when the last request began: a request that begins later is another one.
    pub(crate) other: u32,
    /// A request began: `other` is valid.
    pub(crate) begun: u32,
    /// A context waits for its request's first segment.
    pub(crate) pending: u32,
    /// The current segment size leaves room for it.
    pub(crate) armed: u32,
    /// Whether the current segment has room for it (`inband::ROOM_…`).
    pub(crate) reserved: u32,
    /// `CARRIER_…`.
    pub(crate) role: u32,
    /// Trace flags of the context to send, and of the received one.
    pub(crate) flags: u32,
    pub(crate) came_flags: u32,
    /// [`Carrier::opener`] is valid, and its flags.
    pub(crate) opened: u32,
    pub(crate) opener_flags: u32,
    /// Sending: the transaction is that of a held request.
    pub(crate) held: u32,
    /// A context was received.
    pub(crate) has_come: u32,
    /// How far the scan of a request's head came (`header::came`).
    pub(crate) looked: u32,
}

/// [`Carrier::role`]: this end connected: it sends contexts. 0 = carries none.
pub(crate) const CARRIER_SENDS: u32 = 1;
/// [`Carrier::role`]: this end accepted: it receives them.
pub(crate) const CARRIER_RECEIVES: u32 = 2;

#[btf_map]
pub(crate) static CARRIERS: SkStorage<Carrier> = SkStorage::new();

/// The record of a connection to a destination whose requests get headers. The programs touch it under the socket's
/// lock.
#[repr(C)]
pub(crate) struct Heads {
    pub(crate) cookie: u64,
    /// The transaction that opened the connection, until its first request.
    pub(crate) opener: [u64; 2],
    /// Bytes of the current request still to be sent.
    pub(crate) rest: u64,
    /// `Content-Length` as far as it was read.
    pub(crate) length: u64,
    /// Position in the head, scan mode, and findings: `header::scan`.
    pub(crate) at: u32,
    pub(crate) mode: u32,
    pub(crate) found: u32,
    /// Bytes of the first line, and of the head.
    pub(crate) line: u32,
    pub(crate) end: u32,
    /// Sequence number of the next byte to be sent.
    pub(crate) next: u32,
    /// `HEADS_…`.
    pub(crate) state: u32,
    /// [`Heads::opener`] is valid, and its flags.
    pub(crate) opened: u32,
    pub(crate) opener_flags: u32,
    /// Bytes of the body in the last send.
    pub(crate) body: u32,
    /// The transaction of the request to be sent, trace flags and record flags: used while it is sent.
    pub(crate) chosen: [u64; 3],
}

/// [`Heads::state`]: nothing was sent yet.
pub(crate) const HEADS_FRESH: u32 = 0;
/// [`Heads::state`]: `rest` and `next` say where the next request begins.
pub(crate) const HEADS_FOLLOWED: u32 = 1;
/// [`Heads::state`]: insert nothing more; release the socket.
pub(crate) const HEADS_OVER: u32 = 2;
/// [`Heads::state`]: the socket was released.
pub(crate) const HEADS_GONE: u32 = 3;

#[btf_map]
pub(crate) static HEADS: SkStorage<Heads> = SkStorage::new();

#[btf_map]
pub(crate) static THREADS: TaskStorage<Thread> = TaskStorage::new();

#[btf_map]
pub(crate) static SOCKS: SkStorage<Sock> = SkStorage::new();
