//! In-band contexts: a TCP option with the first segment of a request, written at the end that connected and read at
//! the end that accepted. Loaded only if configured.
//!
//! A request begins where bytes are sent after a read (as a message does, `ARCHITECTURE.md`). At that moment, in the
//! system call that sends, the program draws its ids; they go out with the segment that holds its first byte, and up
//! with an [`InbandContext`], so that the request's span in user space has the ids that its other end received.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_HDR_OPT_LEN_CB, BPF_SOCK_OPS_PARSE_HDR_OPT_CB,
        BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_TCP_CONNECT_CB,
        BPF_SOCK_OPS_WRITE_HDR_OPT_CB, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, bpf_sock_ops,
    },
    helpers::generated::{
        bpf_get_netns_cookie, bpf_get_prandom_u32, bpf_get_smp_processor_id, bpf_get_socket_cookie, bpf_ktime_get_ns,
        bpf_load_hdr_opt, bpf_reserve_hdr_opt, bpf_sock_ops_cb_flags_set, bpf_store_hdr_opt,
    },
    macros::{btf_tracepoint, fexit, map, sock_ops},
    maps::LruHashMap,
    programs::{BtfTracePointContext, FExitContext, SockOpsContext},
};
use tracer_common::{
    event::{
        FAMILY_INET, FAMILY_INET6, Header, INBAND_HELD, INBAND_NAMED, INBAND_REFUSED, INBAND_TX, InbandContext, Kind,
    },
    inband_context::{DRAWN, KIND, LEN, LEN_FLAGS, ROOM, SAMPLED, THREADS_MAX},
    lost::Lost,
};

use crate::{
    emit,
    header::came,
    kernel::{
        sock::{SockPtr, What},
        task::Task,
    },
    offsets::{INBAND_HEADER, INBAND_NETNS},
    policy, ring, runtime,
    storage::{CARRIER_RECEIVES, CARRIER_SENDS, CARRIERS, Carrier, HEADS, SOCK_IGNORED, SOCK_PASSIVE, SOCKS},
};

/// The transaction of the request that a thread or task read last.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HeldTransaction {
    /// Zeros: a request whose transaction is not known here.
    pub(crate) trace: [u64; 2],
    /// The socket it came by; 0: it was answered.
    request: u64,
    pub(crate) flags: u32,
    /// `HELD_…`.
    state: u32,
}

/// The thread made a call or opened a connection since.
const HELD_USED: u32 = 1;
/// The thread had two requests at once.
const HELD_MANY: u32 = 2;
/// It read a second request before it did anything for the first: the order of its reads says nothing.
const HELD_BATCH: u32 = 4;
/// It received something else since.
const HELD_STALE: u32 = 8;

/// A thread, or a task where tasks share threads.
#[repr(C)]
#[derive(Clone, Copy)]
struct Holder {
    process: u64,
    task: u64,
}

/// Requests by who works for them. The loader sizes it only if contexts are propagated.
///
/// A call gets a request's transaction only where no other request can have caused it: the task that read the request
/// makes the call; or the thread does, if it has no other request. A thread with several passes on only what it read
/// with its last receive, and nothing once it was seen to read requests in batches. Other calls get an id of their own.
#[map]
static HELD: LruHashMap<Holder, HeldTransaction> = LruHashMap::with_max_entries(THREADS_MAX, 0);

/// [`Carrier::reserved`]: the segment has room for the context; it has none.
const ROOM_RESERVED: u32 = 1;
const ROOM_REFUSED: u32 = 2;
const MSG_PEEK: i32 = 2;
/// First argument of a room callback: the kernel asks for the segment size (`include/uapi/linux/bpf.h`).
const BPF_WRITE_HDR_TCP_CURRENT_MSS: u32 = 1;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;

/// hook: cgroup sock_ops, of the root. First seen: 5.15. Emits [`InbandContext`].
#[sock_ops]
pub(crate) fn inband(ctx: SockOpsContext) -> u32 {
    let ops = ctx.ops;
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => connects(ops),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => connected(ops),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => accepted(ops),
        BPF_SOCK_OPS_HDR_OPT_LEN_CB => room(ops, ctx.arg(0)),
        BPF_SOCK_OPS_WRITE_HDR_OPT_CB => write(ops),
        BPF_SOCK_OPS_PARSE_HDR_OPT_CB => read(ops),
        _ => {}
    }
    1
}

/// The socket of a callback.
#[inline(always)]
pub(crate) fn socket(ops: *mut bpf_sock_ops) -> *mut c_void {
    // SAFETY: a member of the context.
    unsafe { (*ops).__bindgen_anon_2.sk.cast() }
}

/// The record of a callback's connection.
#[inline(always)]
fn carrier(ops: *mut bpf_sock_ops, create: bool) -> Option<&'static mut Carrier> {
    let sk = socket(ops);
    if sk.is_null() {
        return None;
    }
    let carrier = CARRIERS.get(sk, create);
    if carrier.is_null() {
        if create {
            emit::count(Lost::SocketStorage);
        }
        return None;
    }
    // SAFETY: not null; see [`Carrier`] for who writes to it.
    Some(unsafe { &mut *carrier })
}

/// Whether the agent may see the connection's ends. Ends on one host are joined without this, but what the further one
/// sends to other hosts must carry the same transaction.
#[inline(always)]
fn wanted(ops: *mut bpf_sock_ops) -> bool {
    let Some(control) = policy::control() else { return false };
    // SAFETY: members of the context.
    let (family, local_port, remote_port) =
        unsafe { ((*ops).family, (*ops).local_port, u32::from_be((*ops).remote_port)) };
    (family as u16 == FAMILY_INET || family as u16 == FAMILY_INET6)
        && policy::ports_traced(control, local_port as u16, remote_port as u16)
        && own_namespace(ops)
}

/// Whether a callback's connection is in a traced network namespace.
#[inline(always)]
pub(crate) fn own_namespace(ops: *mut bpf_sock_ops) -> bool {
    let own = INBAND_NETNS.load();
    // SAFETY: the context is one the helper takes.
    own == 0 || unsafe { bpf_get_netns_cookie(ops.cast()) } == own
}

/// The current thread called `connect`.
#[inline(always)]
fn connects(ops: *mut bpf_sock_ops) {
    if !wanted(ops) {
        return;
    }
    let Some(control) = policy::control() else { return };
    let task = Task::current();
    if !policy::traced(control, task.tgid()) {
        return;
    }
    let sk = socket(ops);
    // The socket's requests get headers; one request needs only one context.
    if sk.is_null() || !HEADS.get(sk, false).is_null() {
        return;
    }
    let Some(carrier) = carrier(ops, true) else { return };
    carrier.role = CARRIER_SENDS;
    // SAFETY: the context is one the helper takes.
    carrier.cookie = unsafe { bpf_get_socket_cookie(ops.cast()) };
    if let Some(held) = held(task, None) {
        carrier.opener = held.trace;
        carrier.opener_flags = held.flags;
        carrier.opened = 1;
    }
}

/// Enables a further callback for the program.
#[inline(always)]
pub(crate) fn listen(ops: *mut bpf_sock_ops, flag: u32) {
    // SAFETY: the context's own member.
    unsafe { bpf_sock_ops_cb_flags_set(ops, ((*ops).bpf_sock_ops_cb_flags | flag) as i32) };
}

#[inline(always)]
fn connected(ops: *mut bpf_sock_ops) {
    if carrier(ops, false).is_some_and(|carrier| carrier.role == CARRIER_SENDS) {
        listen(ops, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
    }
}

#[inline(always)]
fn accepted(ops: *mut bpf_sock_ops) {
    if !wanted(ops) {
        return;
    }
    let Some(carrier) = carrier(ops, true) else { return };
    carrier.role = CARRIER_RECEIVES;
    // SAFETY: the context is one the helper takes.
    carrier.cookie = unsafe { bpf_get_socket_cookie(ops.cast()) };
    listen(ops, BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG);
    // The segment that completes the handshake can hold the first request.
    came(ops, carrier);
}

/// Whether a request begins: this is the system call that sends its first bytes. Draws its ids.
///
/// Everything sent before is acknowledged and nothing waits, so only a sending thread asks for the segment size: no
/// timer, no received segment.
#[inline(always)]
fn begins(ops: *mut bpf_sock_ops, carrier: &mut Carrier) -> bool {
    let sk = socket(ops);
    if sk.is_null() {
        return false;
    }
    let Some(tcp) = SockPtr(sk).tcp() else { return false };
    // SAFETY: members of the context.
    let (next, acknowledged) = unsafe { ((*ops).snd_nxt, (*ops).snd_una) };
    let read = tcp.copied_seq();
    if next != acknowledged || tcp.write_seq() != next || (carrier.begun != 0 && carrier.other == read) {
        return false;
    }
    let sock = SOCKS.get(sk, false);
    // SAFETY: not null.
    if !sock.is_null() && unsafe { (*sock).flags } & SOCK_IGNORED != 0 {
        return false;
    }
    let first = carrier.begun == 0;
    carrier.held = 1;
    carrier.begun = 1;
    carrier.other = read;
    carrier.start = next;
    carrier.span = random();
    if first && carrier.opened != 0 {
        carrier.trace = carrier.opener;
        carrier.flags = carrier.opener_flags;
    // SAFETY: read at once, if there is one.
    } else if let Some(held) =
        held(Task::current(), Some(if sock.is_null() { 0 } else { unsafe { (*sock).established } }))
    {
        carrier.trace = held.trace;
        carrier.flags = held.flags;
    } else {
        carrier.held = 0;
        carrier.trace = random_trace();
        carrier.flags = DRAWN as u32;
    }
    carrier.pending = 1;
    true
}

/// An id, never zero.
#[inline(always)]
pub(crate) fn random() -> u64 {
    // SAFETY: no argument.
    unsafe { ((bpf_get_prandom_u32() as u64) << 32) | (bpf_get_prandom_u32() as u64) | 1 << 63 }
}

/// A trace id: all bits of its right-most seven bytes are random.
#[inline(always)]
pub(crate) fn random_trace() -> [u64; 2] {
    // SAFETY: no argument.
    [random(), unsafe { ((bpf_get_prandom_u32() as u64) << 32) | (bpf_get_prandom_u32() as u64) }]
}

/// Length of the option for a context with these flags.
#[inline(always)]
fn length(flags: u32) -> u32 {
    if flags == SAMPLED as u32 { LEN as u32 } else { LEN_FLAGS as u32 }
}

/// The kernel asks how much room the option needs: for the segment size, which must leave it, or in one segment.
#[inline(always)]
fn room(ops: *mut bpf_sock_ops, what: u32) {
    let Some(carrier) = carrier(ops, false) else { return };
    if carrier.role != CARRIER_SENDS {
        return;
    }
    if what == BPF_WRITE_HDR_TCP_CURRENT_MSS {
        carrier.armed = 0;
        if carrier.pending == 0 && !begins(ops, carrier) {
            return;
        }
        // SAFETY: the context is the helper's.
        if unsafe { bpf_reserve_hdr_opt(ops, length(carrier.flags), 0) } == 0 {
            carrier.armed = 1;
        }
        return;
    }
    let refused = carrier.reserved == ROOM_REFUSED;
    carrier.reserved = 0;
    // SAFETY: members of the context.
    let (len, next, most) = unsafe { ((*ops).skb_len, (*ops).snd_nxt, (*ops).mss_cache) };
    if len == 0 || carrier.pending == 0 {
        return;
    }
    if next != carrier.start {
        // Its first byte went out already.
        carrier.pending = 0;
        if refused {
            emit::count(Lost::TagRoom);
        }
        return;
    }
    // A segment too long for its path would be fragmented, or lost again and again.
    // SAFETY: the context is the helper's.
    let fits = carrier.armed != 0 || len + ROOM <= most;
    if !fits || unsafe { bpf_reserve_hdr_opt(ops, length(carrier.flags), 0) } != 0 {
        // If another agent's program has the room, its context stands for both: see `write`.
        carrier.reserved = ROOM_REFUSED;
        return;
    }
    carrier.reserved = ROOM_RESERVED;
}

/// The kernel sends the segment with a request's first byte.
#[inline(always)]
fn write(ops: *mut bpf_sock_ops) {
    let Some(carrier) = carrier(ops, false) else { return };
    let reserved = carrier.reserved;
    if reserved == 0 {
        return;
    }
    carrier.reserved = 0;
    carrier.pending = 0;
    if reserved == ROOM_REFUSED {
        // The other end learns another agent's ids: the call takes them, so that its request has a parent there.
        let Some((trace, span, flags)) = option(ops) else { return emit::count(Lost::TagRoom) };
        if let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) {
            put(slot, INBAND_TX, carrier.cookie, trace, span, carrier.start, flags as u32);
        }
        return;
    }
    // Reserve the record first: user space could not match a context it never learns of to a call.
    let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) else { return };
    let len = length(carrier.flags);
    let mut words = [0u64; 4];
    let option = words.as_mut_ptr().cast::<u8>();
    // SAFETY: 27 bytes of 32.
    unsafe {
        option.write(KIND);
        option.add(1).write(len as u8);
        option.add(2).cast::<u64>().write_unaligned(carrier.trace[0]);
        option.add(10).cast::<u64>().write_unaligned(carrier.trace[1]);
        option.add(18).cast::<u64>().write_unaligned(carrier.span);
        option.add(26).write(carrier.flags as u8);
    }
    // SAFETY: the context is the helper's; the buffer has the bytes.
    let refused = unsafe { bpf_store_hdr_opt(ops, option.cast(), len, 0) } != 0;
    let held = if carrier.held != 0 { INBAND_HELD } else { 0 };
    let flags = if refused { INBAND_TX | INBAND_REFUSED } else { INBAND_TX | held };
    put(slot, flags, carrier.cookie, carrier.trace, carrier.span, carrier.start, carrier.flags);
}

/// A segment with an option unknown to the kernel arrived.
#[inline(always)]
fn read(ops: *mut bpf_sock_ops) {
    let Some(carrier) = carrier(ops, false) else { return };
    if carrier.role == CARRIER_RECEIVES {
        came(ops, carrier);
    }
}

/// The context in a segment's option, received or already written: transaction, call, trace flags.
#[inline(always)]
fn option(ops: *mut bpf_sock_ops) -> Option<([u64; 2], u64, u8)> {
    let mut words = [0u64; 4];
    let option = words.as_mut_ptr().cast::<u8>();
    // SAFETY: in the buffer.
    unsafe { option.write(KIND) };
    // SAFETY: the context is the helper's; the buffer has the bytes.
    let len = unsafe { bpf_load_hdr_opt(ops, option.cast(), ROOM, 0) };
    if len != LEN as i64 && len != LEN_FLAGS as i64 {
        return None;
    }
    // SAFETY: in the buffer.
    unsafe {
        Some((
            [option.add(2).cast::<u64>().read_unaligned(), option.add(10).cast::<u64>().read_unaligned()],
            option.add(18).cast::<u64>().read_unaligned(),
            if len == LEN as i64 { SAMPLED } else { option.add(26).read() },
        ))
    }
}

/// Takes the context from the received segment, if it has one.
#[inline(always)]
fn came(ops: *mut bpf_sock_ops, carrier: &mut Carrier) {
    let Some((trace, span, flags)) = option(ops) else { return };
    // A further segment of a long request, or a retransmission.
    if carrier.has_come != 0 && carrier.came_span == span && carrier.came[0] == trace[0] && carrier.came[1] == trace[1]
    {
        return;
    }
    // SAFETY: members of the context.
    let (data, end) = unsafe { ((*ops).__bindgen_anon_3.skb_data, (*ops).__bindgen_anon_4.skb_data_end) };
    if data as usize + TCP_HEADER > end as usize {
        return;
    }
    // SAFETY: within the header, as just compared.
    let seq = u32::from_be(unsafe { data.add(4).cast::<u32>().read_volatile() });
    // Report a context without an id, so that it is counted, but do not use it.
    if trace[0] | trace[1] != 0 && span != 0 {
        carrier.has_come = 1;
        carrier.came = trace;
        carrier.came_span = span;
        carrier.came_flags = flags as u32;
        carrier.start = seq;
    }
    let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) else { return };
    put(slot, 0, carrier.cookie, trace, span, seq, flags as u32);
}

#[inline(always)]
pub(crate) fn put(slot: ring::Slot, tag: u8, cookie: u64, trace: [u64; 2], span: u64, seq: u32, flags: u32) {
    let [first, second] = trace;
    let record = slot.record.cast::<InbandContext>();
    // SAFETY: at the beginning of the slot, which has the room.
    unsafe {
        (&raw mut (*record).header).write(Header {
            kind: Kind::InbandContext as u8,
            flags: tag,
            cpu: bpf_get_smp_processor_id() as u16,
            len: size_of::<InbandContext>() as u32,
            nanos: bpf_ktime_get_ns(),
            tgid: 0,
            tid: 0,
        });
        (*record).cookie = cookie;
        let halves = (&raw mut (*record).trace).cast::<u64>();
        halves.write(first);
        halves.add(1).write(second);
        (&raw mut (*record).span).cast::<u64>().write(span);
        (*record).seq = seq;
        (&raw mut (*record).flags).cast::<u32>().write(flags & 0xff);
    }
    slot.complete(size_of::<InbandContext>() as u64);
}

/// hook: tp_btf sock_recv_length(sk, ret, flags), before `rx`. First seen: 6.12. Emits [`InbandContext`].
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn inband_read(ctx: BtfTracePointContext) -> i32 {
    let (ret, flags): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    if ret > 0 && flags & MSG_PEEK == 0 {
        holds(SockPtr(ctx.arg(0)), ret as u32);
    }
    0
}

/// hook: tp_btf sock_send_length(sk, ret, flags). First seen: 6.12. Emits nothing.
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn inband_sent(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    if ret > 0 {
        sent(SockPtr(ctx.arg(0)));
    }
    0
}

macro_rules! exits {
    ($($read:ident $receive:literal, $sent:ident $send:literal);+) => { $(
        /// hook: fexit (socket, msg, size, flags) → int, where there is no `sock_recv_length`. Emits [`InbandContext`].
        #[fexit(function = $receive)]
        pub(crate) fn $read(ctx: FExitContext) -> i32 {
            let (flags, ret): (i32, i32) = (ctx.arg(3), ctx.arg(4));
            if ret > 0
                && flags & MSG_PEEK == 0
                && let Some(sk) = SockPtr::of_socket(ctx.arg(0))
            {
                holds(sk, ret as u32);
            }
            0
        }

        /// hook: fexit (socket, msg, size) → int, where there is no `sock_send_length`. Emits nothing.
        #[fexit(function = $send)]
        pub(crate) fn $sent(ctx: FExitContext) -> i32 {
            if ctx.arg::<i32>(3) > 0
                && let Some(sk) = SockPtr::of_socket(ctx.arg(0))
            {
                sent(sk);
            }
            0
        }
    )+ };
}
exits!(
    inband_read4 "inet_recvmsg", inband_sent4 "inet_sendmsg";
    inband_read6 "inet6_recvmsg", inband_sent6 "inet6_sendmsg"
);

/// The connection behind a socket, if it carries contexts.
#[inline(always)]
fn of_socket(sk: SockPtr) -> Option<&'static mut Carrier> {
    if sk.what() != What::Tcp {
        return None;
    }
    let carrier = CARRIERS.get(sk.0, false);
    if carrier.is_null() {
        return None;
    }
    // SAFETY: not null; see [`Carrier`] for who writes to it.
    Some(unsafe { &mut *carrier })
}

/// Who works on the current thread, if that is certain.
#[inline(always)]
fn holder(task: Task) -> Option<Holder> {
    let tgid = task.tgid();
    let entity = runtime::holder(task, tgid)?;
    Some(of(task, tgid, entity))
}

#[inline(always)]
fn of(task: Task, tgid: u32, entity: u64) -> Holder {
    if entity == 0 {
        return Holder { process: task.tid() as u64, task: 0 };
    }
    Holder { process: 1 << 32 | tgid as u64, task: entity }
}

/// The request that a call belongs to which the current thread sends now, on a connection `established` then, or that
/// opens a connection; `None` if it may be another's.
#[inline(always)]
pub(crate) fn held(task: Task, established: Option<u64>) -> Option<HeldTransaction> {
    let tgid = task.tgid();
    let mut entity = runtime::holder(task, tgid)?;
    if let Some(established) = established {
        entity = runtime::sender(task, tgid, entity, established);
    }
    let held = HELD.get_ptr_mut(of(task, tgid, entity))?;
    // SAFETY: one thread works for a holder at a time; an evicted element stays memory of the map.
    let held = unsafe { &mut *held };
    let state = held.state;
    held.state = state | HELD_USED;
    let is_stale = state & (HELD_MANY | HELD_STALE) == HELD_MANY | HELD_STALE;
    if held.request == 0 || held.trace[0] | held.trace[1] == 0 || state & HELD_BATCH != 0 || is_stale {
        return None;
    }
    Some(*held)
}

/// A request begins on the socket `request`, in a transaction (zeros: not known).
#[inline(always)]
fn take(holder: Holder, request: u64, trace: [u64; 2], flags: u32) {
    let mut state = 0;
    // SAFETY: copied out at once.
    if let Some(old) = unsafe { HELD.get(holder) } {
        state = old.state & (HELD_MANY | HELD_BATCH);
        if old.request != 0 && old.request != request {
            state |= HELD_MANY | if old.state & HELD_USED == 0 { HELD_BATCH } else { 0 };
        }
    }
    // A full map evicts the least recently used holder.
    let _ = HELD.insert(holder, HeldTransaction { trace, request, flags, state }, 0);
}

/// More bytes of a request, or of anything that begins none.
#[inline(always)]
fn more(holder: Holder, request: u64) {
    let Some(held) = HELD.get_ptr_mut(holder) else { return };
    // SAFETY: as in `held`.
    let held = unsafe { &mut *held };
    if held.request == request {
        held.state &= !HELD_STALE;
    } else {
        held.state |= HELD_STALE;
    }
}

/// The current thread read from a connection: if a request begins, it holds the request from now on.
#[inline(always)]
fn holds(sk: SockPtr, bytes: u32) {
    let task = Task::current();
    let Some(holder) = holder(task) else { return };
    let request = sk.0 as u64;
    let sock = SOCKS.get(sk.0, false);
    // SAFETY: not null.
    let flags = if sock.is_null() { 0 } else { unsafe { (*sock).flags } };
    let Some(carrier) = of_socket(sk).filter(|carrier| carrier.role == CARRIER_RECEIVES) else {
        if flags & SOCK_PASSIVE == 0 {
            return more(holder, request);
        }
        // A request by a UNIX socket, or by a connection that was there before the agent.
        // SAFETY: read at once.
        if unsafe { HELD.get(holder) }.is_none_or(|held| held.request != request) {
            take(holder, request, [0, 0], 0);
        }
        return;
    };
    if flags & SOCK_IGNORED != 0 {
        return more(holder, request);
    }
    let Some(tcp) = sk.tcp() else { return };
    let written = tcp.write_seq();
    if carrier.begun != 0 && carrier.other == written {
        return more(holder, request);
    }
    carrier.begun = 1;
    carrier.other = written;
    let copied = tcp.copied_seq();
    // The FIN takes a sequence number and was consumed with the bytes.
    let end = if sk.receive_shut() && copied == tcp.rcv_nxt() { copied.wrapping_sub(1) } else { copied };
    let start = end.wrapping_sub(bytes);
    let (mut trace, mut trace_flags) = (carrier.came, carrier.came_flags);
    let header = if INBAND_HEADER.load() != 0 { came::context(task, carrier, bytes) } else { None };
    if let Some((named, flags)) = header {
        trace = named;
        trace_flags = flags;
    } else if carrier.has_come == 0 || carrier.start != start {
        // The request came without a context: name its transaction anyway, for its calls and for user space.
        trace = random_trace();
        trace_flags = DRAWN as u32;
        let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) else { return };
        put(slot, INBAND_NAMED, carrier.cookie, trace, 0, start, DRAWN as u32);
    }
    take(holder, request, trace, trace_flags);
}

/// The current thread sent on a connection: a reply, or a request whose context must be out by now.
#[inline(always)]
fn sent(sk: SockPtr) {
    if let Some(carrier) = of_socket(sk)
        && carrier.role == CARRIER_SENDS
    {
        if carrier.pending != 0 {
            // User space could not match a context reported after the operation to a span.
            carrier.pending = 0;
            emit::count(if carrier.reserved == ROOM_REFUSED { Lost::TagRoom } else { Lost::TagLate });
            carrier.reserved = 0;
        }
        return;
    }
    let sock = SOCKS.get(sk.0, false);
    // SAFETY: not null.
    if sock.is_null() || unsafe { (*sock).flags } & SOCK_PASSIVE == 0 {
        return;
    }
    let Some(holder) = holder(Task::current()) else { return };
    let Some(held) = HELD.get_ptr_mut(holder) else { return };
    // SAFETY: as in `held`.
    let held = unsafe { &mut *held };
    if held.request == sk.0 as u64 {
        held.request = 0;
    } else if held.request != 0 {
        // It answers an earlier request than the one it read last.
        held.state |= HELD_MANY | HELD_STALE;
    }
}
