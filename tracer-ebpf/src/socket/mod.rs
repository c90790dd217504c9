//! Socket I/O: one pair of hooks covers every system call, sendfile, splice out and io_uring.

/// A field of a walk over user memory, read from map memory, where the verifier does not follow its value.
macro_rules! get {
    ($walk:expr, $($field:tt)+) => {
        // SAFETY: the walk is the current thread's own memory.
        unsafe { (&raw const (*$walk).$($field)+).read_volatile() }
    };
}

/// The same, written.
macro_rules! set {
    ($walk:expr, $value:expr, $($field:tt)+) => {{
        let value = $value;
        // SAFETY: the walk is the current thread's own memory.
        unsafe { (&raw mut (*$walk).$($field)+).write_volatile(value) }
    }};
}

mod connection;
mod consumed;
pub(crate) mod frames;
mod functions;
mod names;
pub(crate) mod payload;
pub(crate) mod pieces;
pub(crate) use payload::user;
pub(crate) mod sent;
mod uring;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use tracer_common::{
    arch::Shape,
    event::{
        Header, Kind, NetworkPath, OP_DATAGRAM, OP_EOF, OP_FAULT, OP_MORE, OP_NO_PAYLOAD, OP_TURN, OP_TX, OP_UNSEEN, Op,
    },
    header,
    limits::{HEAD_MAX, HEAD_REPLY, HEAD_REPLY_WHOLE, HEAD_REQUEST, HEAD_UNKNOWN, TAIL_MAX},
    lost::Lost,
    policy::Control,
    ring::FRAMES_ROOM,
};

use crate::{
    arch, bound, call_stack, emit,
    exchange_counts::{self, OperationStage},
    hello,
    kernel::{
        mptcp::Mptcp,
        regs::Regs,
        sock::{SockPtr, Tcp, What},
        task::Task,
    },
    policy, ring, runtime,
    sched::counters,
    storage::{
        SOCK_ACTIVE, SOCK_BODIES, SOCK_DECIDED, SOCK_EOF, SOCK_FRAMES, SOCK_IGNORED, SOCK_OPENED, SOCK_PASSIVE,
        SOCK_ROUND_TRIPS, SOCK_SENDING, SOCKS, Sock, THREADS, Thread,
    },
    thread_pool,
    tls::rustls,
    trace_context,
};

const MSG_PEEK: i32 = 2;

/// hook: tp_btf sock_send_length(sk, ret, flags). First seen: 6.12. Counts the operation, or has it reported.
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn tx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    if ret > 0 {
        exchange_counts::at_hook::<true>(&ctx, SockPtr(ctx.arg(0)), ret as u32);
    }
    0
}

/// hook: as [`tx`], after it. Where the kernel preempts a program, it skips that program for other tasks on that CPU
/// meanwhile; it does not skip this one, unless it was preempted here, too.
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn tx_again(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    if ret > 0 && is_unhandled::<true>(SockPtr(ctx.arg(0))) {
        exchange_counts::go_on::<true>(&ctx);
    }
    0
}

/// hook: tp_btf sock_send_length(sk, ret, flags), tail-called by the programs there. Emits [`Op`].
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn report_tx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    moved::<true, CALLED>(&ctx, SockPtr(ctx.arg(0)), ret as u32);
    0
}

/// hook: tp_btf sock_recv_length(sk, ret, flags). First seen: 6.12. Counts the operation, or has it reported.
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn rx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    let flags: i32 = ctx.arg(2);
    if ret >= 0 && flags & MSG_PEEK == 0 {
        exchange_counts::at_hook::<false>(&ctx, SockPtr(ctx.arg(0)), ret as u32);
    }
    0
}

/// hook: as [`rx`], after it; see [`tx_again`].
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn rx_again(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    let flags: i32 = ctx.arg(2);
    if ret >= 0 && flags & MSG_PEEK == 0 && is_unhandled::<false>(SockPtr(ctx.arg(0))) {
        exchange_counts::go_on::<false>(&ctx);
    }
    0
}

/// hook: tp_btf sock_recv_length(sk, ret, flags), tail-called by the programs there. Emits [`Op`].
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn report_rx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    moved::<false, CALLED>(&ctx, SockPtr(ctx.arg(0)), ret as u32);
    0
}

/// Which program this is: the only one on its hook.
const ALONE: u8 = 0;
/// The only one, for UNIX sockets: its tail call's target attaches to another function.
const ALONE_UNIX: u8 = 3;
/// The only one, for pages, which have no bytes in user memory.
const ALONE_PAGES: u8 = 4;
/// Tail-called by the programs on its hook.
const CALLED: u8 = 1;

/// The context of a socket operation worth following.
struct Seen {
    control: &'static Control,
    task: Task,
    tgid: u32,
    thread: &'static mut Thread,
    sock: &'static mut Sock,
    what: What,
    /// How far other programs have brought it: [`exchange_counts::OperationStage`].
    stage: u32,
}

/// Whether sockets of this kind are of interest, and which kind it is.
#[inline(always)]
fn kind<const TX: bool>(sk: SockPtr, control: &Control) -> Option<What> {
    let what = sk.what();
    match what {
        What::Other => sk.is_smc().then_some(what),
        What::Udp => names::wanted::<TX>(sk, control).then_some(what),
        What::Tcp | What::UnixStream => Some(what),
    }
}

/// Whether the hook's first program was skipped for the operation under way, which is then noted in the thread's record.
#[inline(always)]
fn is_unhandled<const TX: bool>(sk: SockPtr) -> bool {
    let Some(control) = policy::control() else { return false };
    if kind::<TX>(sk, control).is_none() {
        return false;
    }
    let thread = THREADS.get(Task::current().0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return false;
    }
    // SAFETY: not null, and only this thread's programs touch it while it runs.
    let thread = unsafe { &mut *thread };
    let bit = 1 << TX as u32;
    if thread.handled & bit != 0 {
        thread.handled &= !bit;
        return false;
    }
    if !TX {
        thread.reads += 1;
    }
    thread.counted.stage = OperationStage::Noted as u32;
    true
}

/// The socket's and the thread's records, if the operation is to be traced.
#[inline(always)]
fn seen<const TX: bool, const WHICH: u8>(sk: SockPtr) -> Option<Seen> {
    let control = policy::control()?;
    let what = kind::<TX>(sk, control)?;
    let task = Task::current();
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return None;
    }
    // SAFETY: not null, and only this thread's programs touch it while it runs.
    let thread = unsafe { &mut *thread };
    let stage = if WHICH == CALLED { thread.counted.stage } else { OperationStage::New as u32 };
    if WHICH == CALLED {
        thread.counted.stage = OperationStage::New as u32;
    }
    if stage == OperationStage::New as u32 {
        if WHICH == CALLED {
            thread.handled |= 1 << TX as u32;
        }
        if !TX {
            thread.reads += 1;
        }
    }
    let tgid = task.tgid();
    if what == What::Other {
        if policy::process_traced(control, thread, tgid) {
            emit::count(Lost::Smc);
        }
        return None;
    }
    if !policy::process_traced(control, thread, tgid) {
        return None;
    }
    let sock = SOCKS.get(sk.0, true);
    if sock.is_null() {
        emit::count(Lost::SocketStorage);
        // Count the lost operation, so that the gap shows.
        thread.ops = thread.ops.wrapping_add(1);
        return None;
    }
    // SAFETY: not null. Two threads on one socket race on counters; both hold a reference to it.
    let sock = unsafe { &mut *sock };
    if sock.flags & SOCK_IGNORED != 0 {
        return None;
    }
    Some(Seen { control, task, tgid, thread, sock, what, stage })
}

/// One operation moved `bytes` bytes.
#[inline(always)]
fn moved<const TX: bool, const WHICH: u8>(ctx: &impl EbpfContext, sk: SockPtr, bytes: u32) {
    let Some(seen) = seen::<TX, WHICH>(sk) else { return };
    if WHICH == CALLED {
        exchange_counts::go_back::<TX>(ctx, seen.stage, seen.thread, seen.sock);
    }
    let (unsent, thread) = (&raw const seen.thread.unsent.len, &raw const *seen.thread);
    report::<TX, WHICH>(ctx, sk, bytes, seen);
    // SAFETY: the current thread's own record.
    if TX && WHICH != ALONE_UNIX && WHICH != ALONE_PAGES && unsafe { unsent.read_volatile() } != 0 {
        rustls::carried(ctx);
    }
    if TX && WHICH == ALONE_UNIX {
        call_stack::go_on::<true>(ctx, thread);
    } else if TX && WHICH != ALONE_PAGES {
        call_stack::go_on::<false>(ctx, thread);
    }
}

/// Reports it, or decides not to.
#[inline(always)]
fn report<const TX: bool, const WHICH: u8>(ctx: &impl EbpfContext, sk: SockPtr, bytes: u32, seen: Seen) {
    let Seen { control, task, tgid, thread, sock, what, .. } = seen;
    if bytes == 0 {
        // End of stream: report once, and only for a socket with a reported opening.
        if what == What::Udp || sock.flags & (SOCK_OPENED | SOCK_EOF) != SOCK_OPENED {
            return;
        }
        sock.flags |= SOCK_EOF;
    }
    if what == What::UnixStream && sock.flags & SOCK_OPENED == 0 {
        let (accepted, connected) = sk.unix_ends();
        sock.flags |= accepted as u32 * SOCK_PASSIVE | connected as u32 * SOCK_ACTIVE;
    }
    thread_pool::noted::<TX>(thread, sock.flags);
    runtime::counted(thread, tgid);
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let tcp = if what == What::Tcp { sk.tcp() } else { None };
    thread.io_path = tcp.map_or(NO_PATH, Tcp::path);
    let (seq, unseen, more) =
        if what == What::Tcp { sequence::<TX>(sk, tcp, sock, task, bytes) } else { (0, 0, false) };
    if sock.flags & SOCK_OPENED == 0 && !connection::open(sk, what, control, sock, now, task, tgid, TX, bytes) {
        thread.ops = thread.ops.wrapping_add(1);
        return;
    }
    thread.io_path_of = sock.cookie;
    // What a call of a TLS library moves, it moves here.
    (thread.io_cookie, thread.io_sk, thread.io_flags) = (sock.cookie, sk.0 as u64, sock.flags as u64);
    (thread.io_sent, thread.io_reader) = (TX as u64, 0);
    let turned = (sock.flags & SOCK_SENDING != 0) != TX;
    if !TX {
        trace_context::received(sock, turned, tgid, task.tid());
    }
    if turned {
        sock.run_before = sock.run;
        sock.run = 0;
    } else {
        sock.run += 1;
    }
    sock.ops += 1;
    policy::refresh(sock);
    if TX && WHICH != ALONE_PAGES {
        call_stack::note(control.call_share, thread, sock, now);
    }
    // On such a connection, only the operation that reverses the direction reports how far the other direction came.
    let round_trips = sock.flags & SOCK_ROUND_TRIPS != 0;
    let (other_end, other_at) = if TX { (sock.rx, sock.last_rx) } else { (sock.tx, sock.last_tx) };
    let (pos, arrived, skip) = if TX {
        sock.flags |= SOCK_SENDING;
        let pos = sock.tx + unseen as u64;
        sock.tx = pos + bytes as u64;
        sock.last_tx = now;
        (pos, 0, sock.tx < sock.tx_skip)
    } else {
        sock.flags &= !SOCK_SENDING;
        let pos = sock.rx + unseen as u64;
        sock.rx = pos + bytes as u64;
        if bytes == 0 {
            // The end is never skipped; it reports when the last byte before it was received.
            (pos, sock.last_rx, false)
        } else {
            sock.last_rx = now;
            let arrived = sock.arrived;
            if !more {
                sock.arrived = 0;
            }
            (pos, arrived, sock.rx < sock.rx_skip)
        }
    };
    if skip || sock.flags & SOCK_IGNORED != 0 || (round_trips && !turned && bytes != 0) {
        return;
    }
    let early = if more { OP_MORE } else { 0 } | if !TX && unseen != 0 { OP_UNSEEN } else { 0 };
    // SAFETY: the current thread's own record.
    unsafe { (&raw mut thread.early).write_volatile(early as u32) };
    let regs = Regs::of(task);
    let nr = regs.nr();
    if TX && arch::shape(nr) == Shape::Pages && sent::remember(thread, sock, pos) {
        return;
    }
    thread.ops = thread.ops.wrapping_add(1);
    // SAFETY: the current thread's own record. Through memory, so that the verifier does not walk what follows once per
    // system call.
    unsafe { (&raw mut thread.walk.first[0]).write_volatile(nr as u64) };
    runtime::note::<TX>(task, thread, tgid, sock);
    // SAFETY: as above.
    let shape = arch::shape(unsafe { (&raw const thread.walk.first[0]).read_volatile() } as _);
    let (early, asked) = match what {
        What::Udp => (OP_DATAGRAM, names::HEAD),
        _ if round_trips && turned && other_at != 0 => (OP_TURN, head_cap::<TX>(sock, bytes)),
        _ => (0, head_cap::<TX>(sock, bytes)),
    };
    // Through memory for the same reason as the bytes to carry, below.
    // SAFETY: the current thread's own record.
    unsafe {
        let flags = &raw mut thread.early;
        flags.write_volatile(flags.read_volatile() | early as u32);
    }
    let least = if asked < control.head_max { asked } else { control.head_max };
    // The beginning of a connection may be followed by long bodies at once.
    // SAFETY: the current thread's own record.
    let room = unsafe {
        let room = &raw mut thread.walk.room;
        // Copy through memory, so that nothing distinguishes the paths for the verifier.
        let first = &raw mut thread.walk.first;
        first.write_volatile([pos, bytes as u64, least as u64]);
        let [pos, bytes, least] = first.read_volatile();
        room.write_volatile(0);
        if (&raw const sock.flags).read_volatile() & SOCK_FRAMES != 0 || pos == 0 && bytes > least {
            room.write_volatile(FRAMES_ROOM as u64);
        }
        // Pages have no bytes in user memory.
        let carried = if shape == Shape::Pages { 0 } else { bytes.min(least + TAIL_MAX as u64) };
        carried + bound::at_most::<{ FRAMES_ROOM as u64 }>(room.read_volatile())
    };
    let Some(slot) = ring::reserve(size_of::<Op>() as u64 + room, Lost::RingOp) else { return };
    let op = slot.record.cast::<Op>();
    // Through memory, so that the verifier forgets which value it holds: it would walk what follows once per value.
    // SAFETY: the record is written last; until then its place is free.
    let cap = unsafe {
        op.cast::<u64>().write_volatile(least as u64);
        bound::at_most::<{ HEAD_MAX as u64 }>(op.cast::<u64>().read_volatile()) as u32
    };
    // SAFETY: in the slot, which has the room.
    let found = unsafe { payload::copy(op, sk, shape, regs, thread, bytes, cap, TX) };
    if pos == 0 && found.head >= PREFACE.len() as u32 {
        // SAFETY: behind the record, which the slot has room for.
        let first = unsafe { op.add(1).cast::<u32>().read_volatile() };
        if first == u32::from_ne_bytes(PREFACE) {
            sock.flags |= SOCK_FRAMES;
        } else if pieces::are_bodies(first) {
            sock.flags |= SOCK_BODIES;
        }
    }
    // SAFETY: as above.
    let mut flags = unsafe { (&raw const thread.early).read_volatile() } as u8;
    if TX {
        flags |= OP_TX;
    }
    if bytes == 0 {
        flags |= OP_EOF;
    } else if found.missing {
        flags |= OP_NO_PAYLOAD;
        if shape != Shape::Pages {
            emit::count(Lost::PayloadUnknown);
        }
    }
    let (sent_cookie, sent_pos, sent_end, sent_at) = if flags & OP_TURN != 0 {
        sent::forget_sent(thread, sock.cookie);
        // A record's 32 bits are enough: user space knows the rest.
        (sock.cookie, other_end.saturating_sub(u32::MAX as u64), other_end, other_at)
    } else if TX && flags & OP_DATAGRAM != 0 {
        // What the thread sent before waits for its next record.
        let (low, high, ends) = names::remote(regs, thread);
        (0, low, high, ends)
    } else {
        let own = (thread.sent_cookie, thread.sent_pos, thread.sent_end, thread.sent_at);
        thread.sent_cookie = 0;
        own
    };
    if found.fault {
        flags |= OP_FAULT;
        emit::count(Lost::PayloadFault);
    }
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(found.head as u64);
    let tail = bound::at_most::<{ TAIL_MAX as u64 }>(found.tail as u64);
    let len = size_of::<Op>() as u64 + head + tail;
    // SAFETY: at the beginning of the slot.
    unsafe {
        *op = Op {
            header: Header {
                kind: Kind::Op as u8,
                flags,
                cpu: bpf_get_smp_processor_id() as u16,
                len: len as u32,
                nanos: now,
                tgid,
                tid: task.tid(),
            },
            cookie: sock.cookie,
            pos,
            arrived,
            bytes,
            seq,
            head: head as u16,
            tail: tail as u16,
            nth: thread.ops,
            sent_cookie,
            sent_pos,
            sent_end,
            sent_at,
            entity: thread.entity,
            edge_seq: thread.edge_seq,
            frames: 0,
            path: thread.io_path,
            counters: counters(task, thread, now),
        };
    }
    // SAFETY: the record, which is written.
    exchange_counts::reported(thread, unsafe { &(*op).counters });
    // Also on a connection whose protocol is known: TLS can begin behind an agreement, or in a proxy's tunnel.
    if head >= hello::HELLO as u64 {
        // SAFETY: behind the record, aligned as it is.
        unsafe { hello::note(op.add(1).cast(), tgid, sock, sk.0 as u64, if TX { seq } else { 0 }) };
    }
    // SAFETY: the current thread's own record.
    if WHICH != ALONE_PAGES
        && unsafe { (&raw const thread.walk.room).read_volatile() } != 0
        && sock.flags & SOCK_FRAMES != 0
    {
        frames::go_on::<TX, WHICH>(ctx, thread, &sock.frames[TX as usize], &slot);
    } else if WHICH != ALONE_PAGES && (bytes as u64) > head {
        pieces::go_on::<TX, WHICH>(ctx, control, thread, sock, &slot);
    }
    slot.complete_short(len);
}

/// Of a connection that TCP measures nothing of.
pub(crate) const NO_PATH: NetworkPath = NetworkPath { rtt: 0, rtt_min: 0, retransmits: 0, reserved: 0 };

/// Of a socket of [`What::Tcp`]: the sequence number of the first byte, the number of unseen bytes before it (splice, zero-copy
/// receive, an operation for which the kernel skipped the program), and whether unread bytes remain.
#[inline(always)]
pub(crate) fn sequence<const TX: bool>(
    sk: SockPtr,
    tcp: Option<Tcp>,
    sock: &mut Sock,
    task: Task,
    bytes: u32,
) -> (u32, u32, bool) {
    let mptcp = if tcp.is_none() && Mptcp::counts() { Mptcp::of(sk.0 as u64) } else { None };
    if TX {
        let Some(next) = tcp.map(Tcp::write_seq).or(mptcp.map(Mptcp::write_seq)) else { return (0, 0, false) };
        let mut start = next.wrapping_sub(bytes);
        let mut grown = sock.grown;
        if grown != 0 {
            // Bytes inserted behind the first line are not the operation's, and its first byte was sent before them.
            sock.grown = 0;
            if start.wrapping_sub(header::LEN) == sock.grown_at {
                start = sock.grown_at;
                grown -= header::LEN;
            }
        }
        let tid = task.tid();
        // Only if the same thread sent last: two threads that send at once see each other's bytes counted.
        let unseen = if sock.tx_tid == tid { start.wrapping_sub(sock.tx_next).wrapping_sub(grown) } else { 0 };
        sock.tx_next = next;
        sock.tx_tid = tid;
        return (start, if unseen < 1 << 31 { unseen } else { 0 }, false);
    }
    let numbers = tcp.map(|tcp| (tcp.copied_seq(), tcp.rcv_nxt())).or(mptcp.map(Mptcp::read_seq));
    let Some((copied, received)) = numbers else { return (0, 0, false) };
    let mut start = copied.wrapping_sub(bytes);
    let known = sock.flags & SOCK_OPENED != 0;
    // On a connection that nothing was read from before, nothing but these bytes can have come with the FIN.
    let is_next = if known { start == sock.rx_next.wrapping_add(1) } else { bytes != 0 };
    if is_next && tcp.is_some() && copied == received && sk.receive_shut() {
        // The FIN takes a sequence number and was consumed with the bytes; that of MPTCP is in neither count.
        start = start.wrapping_sub(1);
    }
    let unseen = if known { start.wrapping_sub(sock.rx_next) } else { 0 };
    sock.rx_next = start.wrapping_add(bytes);
    // A difference of more than half the space means the counter did not advance: another thread read meanwhile.
    (start, if unseen < 1 << 31 { unseen } else { 0 }, copied != received)
}

/// How HTTP/2 begins (RFC 9113 §3.4). A hint, so that its first operations are carried whole; user space determines the
/// protocol.
pub(crate) const PREFACE: [u8; 4] = *b"PRI ";

/// Operations of a connection that can pass before user space has set its policy: that takes up to 50 ms, in which a
/// fast client does this many, and the kernel side looks at each of the first eight and at every sixteenth.
const OPS_UNKNOWN: u32 = 256;

/// How much of an operation's front to carry.
#[inline(always)]
fn head_cap<const TX: bool>(sock: &Sock, bytes: u32) -> u32 {
    let asked = if TX { sock.head_tx } else { sock.head_rx };
    let cap = if asked != 0 {
        // What is behind it comes in further records ([`pieces`]).
        if asked < HEAD_MAX as u16 { asked } else { HEAD_MAX as u16 }
    } else if sock.run_before > 0 {
        // Several operations in the other direction may be several requests, and this one several replies.
        HEAD_MAX as u16
    } else if (sock.ops < OPS_UNKNOWN && sock.flags & (SOCK_DECIDED | SOCK_FRAMES) == SOCK_FRAMES)
        || sock.flags & (SOCK_PASSIVE | SOCK_ACTIVE) == 0
    {
        // User space has not had time to say whether one operation holds many frames.
        HEAD_UNKNOWN
    } else if (sock.flags & SOCK_PASSIVE != 0) == TX && bytes > HEAD_REPLY_WHOLE as u32 {
        HEAD_REPLY
    } else {
        HEAD_REQUEST
    };
    cap as u32
}
