//! Bytes that leave a TCP socket without passing `sock_recv_length`: splice.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{Header, Kind, OP_NO_PAYLOAD, Op},
    lost::Lost,
};

use super::{ALONE, Seen, seen};
use crate::{
    arch, emit,
    kernel::{
        regs::Regs,
        sock::{SockPtr, What},
        task::Task,
    },
    sched::counters,
    storage::{SOCK_OPENED, SOCK_SENDING},
};

/// hook: tp_btf tcp_rcv_space_adjust(sk). First seen: 5.10. Emits [`Op`] without payload, for splice only:
/// `sock_recv_length` sees every other consumer, and `copied_seq` at the next operation reveals what neither shows.
#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub(crate) fn consumed(ctx: BtfTracePointContext) -> i32 {
    let nr = Regs::of(Task::current()).nr();
    if arch::is_splice(nr) {
        spliced(SockPtr(ctx.arg(0)));
    }
    0
}

#[inline(always)]
fn spliced(sk: SockPtr) {
    let Some(Seen { task, tgid, thread, sock, what, .. }) = seen::<false, ALONE>(sk) else { return };
    if what != What::Tcp {
        return;
    }
    let Some(tcp) = sk.tcp() else { return };
    let copied = tcp.copied_seq();
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    if sock.flags & SOCK_OPENED == 0 {
        // First seen here: the bytes this call took precede the beginning, which the next operation reports. Not here, where
        // 6.1 finds no stack for one more record.
        sock.rx_next = copied;
        return;
    }
    let bytes = copied.wrapping_sub(sock.rx_next);
    if bytes == 0 || bytes >= 1 << 31 {
        return;
    }
    let seq = sock.rx_next;
    sock.rx_next = copied;
    sock.run = if sock.flags & SOCK_SENDING != 0 { 0 } else { sock.run + 1 };
    sock.flags &= !SOCK_SENDING;
    sock.ops += 1;
    let pos = sock.rx;
    sock.rx += bytes as u64;
    sock.last_rx = now;
    let arrived = sock.arrived;
    sock.arrived = 0;
    if sock.rx < sock.rx_skip {
        return;
    }
    thread.ops = thread.ops.wrapping_add(1);
    let op = Op {
        header: Header {
            kind: Kind::Op as u8,
            flags: OP_NO_PAYLOAD,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Op>() as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        cookie: sock.cookie,
        pos,
        arrived,
        bytes,
        seq,
        head: 0,
        tail: 0,
        nth: thread.ops,
        sent_cookie: thread.sent_cookie,
        sent_pos: thread.sent_pos,
        sent_end: thread.sent_end,
        sent_at: thread.sent_at,
        entity: 0,
        edge_seq: 0,
        frames: 0,
        path: tcp.path(),
        counters: counters(task, thread, now),
    };
    if emit::event(&op, Lost::RingOp) {
        thread.sent_cookie = 0;
    }
}
