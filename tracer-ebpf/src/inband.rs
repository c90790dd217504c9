//! In-band contexts: a TCP option with the first segment of a request, written at the end that connected and read at
//! the end that accepted. Loaded only if configured.
//!
//! A request begins where bytes are sent after a read (as a message does, `ARCHITECTURE.md`). At that moment, in the
//! system call that sends, the program draws its ids; they go out with the segment that holds its first byte, and up
//! with a [`InbandContext`], so that the request's span in user space has the ids that its other end received.

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
    inband_context::{KIND, LEN, LEN_FLAGS, ROOM, SAMPLED, THREADS_MAX},
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
    policy, ring,
    storage::{CARRIER_RECEIVES, CARRIER_SENDS, CARRIERS, Carrier, HEADS, SOCK_IGNORED, SOCKS},
};

/// The transaction of the request a thread read last and has not answered yet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) trace: [u64; 2],
    /// The connection the request came by.
    cookie: u64,
    pub(crate) flags: u64,
}

/// By thread. The loader sizes it only if contexts are propagated.
#[map]
pub(crate) static HELD: LruHashMap<u32, Held> = LruHashMap::with_max_entries(THREADS_MAX, 0);

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

/// Whether the agent may see the connection's ends and they are on different hosts: ends on one host are joined without
/// this.
#[inline(always)]
fn wanted(ops: *mut bpf_sock_ops) -> bool {
    let Some(control) = policy::control() else { return false };
    // SAFETY: members of the context.
    let (family, remote, local_port, remote_port) =
        unsafe { ((*ops).family, (*ops).remote_ip4, (*ops).local_port, u32::from_be((*ops).remote_port)) };
    let loopback = match family as u16 {
        FAMILY_INET => remote.to_ne_bytes()[0] == 127,
        // SAFETY: members of the context.
        FAMILY_INET6 => unsafe {
            let (a, b) = ((*ops).remote_ip6[0], (*ops).remote_ip6[1]);
            let (c, d) = ((*ops).remote_ip6[2], (*ops).remote_ip6[3]);
            a | b == 0 && (c == 0 && d == 1u32.to_be() || c == 0xffffu32.to_be() && d.to_ne_bytes()[0] == 127)
        },
        _ => true,
    };
    if loopback || !policy::ports_traced(control, local_port as u16, remote_port as u16) {
        return false;
    }
    own_namespace(ops)
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
    // SAFETY: copied out at once.
    if let Some(held) = unsafe { HELD.get(task.tid()) } {
        carrier.opener = held.trace;
        carrier.opener_flags = held.flags as u32;
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
    // SAFETY: copied out at once.
    } else if let Some(held) = unsafe { HELD.get(Task::current().tid()) } {
        carrier.trace = held.trace;
        carrier.flags = held.flags as u32;
    } else {
        carrier.held = 0;
        carrier.trace = [random(), random()];
        carrier.flags = SAMPLED as u32;
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

/// Length of the option for a context with these flags.
#[inline(always)]
fn length(flags: u32) -> u32 {
    if flags & SAMPLED as u32 != 0 { LEN as u32 } else { LEN_FLAGS as u32 }
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
    carrier.reserved = 0;
    // SAFETY: members of the context.
    let (len, next, most) = unsafe { ((*ops).skb_len, (*ops).snd_nxt, (*ops).mss_cache) };
    if len == 0 || carrier.pending == 0 {
        return;
    }
    if next != carrier.start {
        // Its first byte went out already.
        carrier.pending = 0;
        return;
    }
    // A segment too long for its path would be fragmented, or lost again and again.
    // SAFETY: the context is the helper's.
    let fits = carrier.armed != 0 || len + ROOM <= most;
    if !fits || unsafe { bpf_reserve_hdr_opt(ops, length(carrier.flags), 0) } != 0 {
        carrier.pending = 0;
        emit::count(Lost::TagRoom);
        return;
    }
    carrier.reserved = 1;
}

/// The kernel sends the segment with a request's first byte.
#[inline(always)]
fn write(ops: *mut bpf_sock_ops) {
    let Some(carrier) = carrier(ops, false) else { return };
    if carrier.reserved == 0 {
        return;
    }
    carrier.reserved = 0;
    carrier.pending = 0;
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

/// Takes the context from the received segment, if it has one.
#[inline(always)]
fn came(ops: *mut bpf_sock_ops, carrier: &mut Carrier) {
    let mut words = [0u64; 4];
    let option = words.as_mut_ptr().cast::<u8>();
    // SAFETY: in the buffer.
    unsafe { option.write(KIND) };
    // SAFETY: the context is the helper's; the buffer has the bytes.
    let len = unsafe { bpf_load_hdr_opt(ops, option.cast(), ROOM, 0) };
    if len != LEN as i64 && len != LEN_FLAGS as i64 {
        return;
    }
    // SAFETY: in the buffer.
    let (trace, span, flags) = unsafe {
        (
            [option.add(2).cast::<u64>().read_unaligned(), option.add(10).cast::<u64>().read_unaligned()],
            option.add(18).cast::<u64>().read_unaligned(),
            if len == LEN as i64 { SAMPLED } else { option.add(26).read() },
        )
    };
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

/// The current thread read from a connection: if a request begins, the thread holds it from now on.
#[inline(always)]
fn holds(sk: SockPtr, bytes: u32) {
    let Some(carrier) = of_socket(sk) else { return };
    if carrier.role != CARRIER_RECEIVES {
        return;
    }
    let sock = SOCKS.get(sk.0, false);
    // SAFETY: not null.
    if !sock.is_null() && unsafe { (*sock).flags } & SOCK_IGNORED != 0 {
        return;
    }
    let Some(tcp) = sk.tcp() else { return };
    let written = tcp.write_seq();
    if carrier.begun != 0 && carrier.other == written {
        return;
    }
    carrier.begun = 1;
    carrier.other = written;
    let copied = tcp.copied_seq();
    // The FIN takes a sequence number and was consumed with the bytes.
    let end = if sk.receive_shut() && copied == tcp.rcv_nxt() { copied.wrapping_sub(1) } else { copied };
    let start = end.wrapping_sub(bytes);
    let task = Task::current();
    let mut held = Held { trace: carrier.came, cookie: carrier.cookie, flags: carrier.came_flags as u64 };
    let header = if INBAND_HEADER.load() != 0 { came::context(task, carrier, bytes) } else { None };
    if let Some((trace, flags)) = header {
        held.trace = trace;
        held.flags = flags as u64;
    } else if carrier.has_come == 0 || carrier.start != start {
        // The request came without a context: name its transaction anyway, for its calls and for user space.
        held.trace = [random(), random()];
        held.flags = SAMPLED as u64;
        let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) else { return };
        put(slot, INBAND_NAMED, carrier.cookie, held.trace, 0, start, SAMPLED as u32);
    }
    // A full map evicts the least recently used thread.
    let _ = HELD.insert(task.tid(), held, 0);
}

/// The current thread sent on a connection: a reply, or a request whose context must be out by now.
#[inline(always)]
fn sent(sk: SockPtr) {
    let Some(carrier) = of_socket(sk) else { return };
    if carrier.role == CARRIER_SENDS {
        if carrier.pending != 0 {
            // User space could not match a context reported after the operation to a span.
            carrier.pending = 0;
            emit::count(Lost::TagLate);
        }
        return;
    }
    let tid = Task::current().tid();
    // SAFETY: only compared.
    if unsafe { HELD.get(tid) }.is_some_and(|held| held.cookie == carrier.cookie) {
        // May be gone already.
        let _ = HELD.remove(tid);
    }
}
