//! Connections: first sight, connect, accept, arrival of data, half close, close.

use aya_ebpf::{
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use aya_log_ebpf::debug;
use tracer_common::{
    event::{
        Header, Kind, OPEN_MIDSTREAM, OPEN_QUEUED, Open, ROLE_ACTIVE, ROLE_PASSIVE, ROLE_UNKNOWN, STATE_EXITING,
        STATE_OWN, State, ThreadCounters, tcp_state,
    },
    lost::Lost,
    policy::Control,
};

use super::{names, sent};
use crate::{
    emit, exchange_counts,
    kernel::{
        mptcp::Mptcp,
        sock::{SockPtr, Tcp, What},
        task::Task,
    },
    policy,
    sched::counters,
    storage::{SOCK_ACTIVE, SOCK_IGNORED, SOCK_OPENED, SOCK_PASSIVE, SOCK_QUEUED, SOCKS, Sock, THREADS},
};

const TCP_SYN_RECV: i32 = 3;
const TCP_LISTEN: i32 = 10;

/// Reports a socket at its first operation, which moved `bytes`; returns false if the socket is not to be traced.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined; a struct would only be spilled to the stack")]
pub(super) fn open(
    sk: SockPtr,
    what: What,
    control: &Control,
    sock: &mut Sock,
    now: u64,
    task: Task,
    tgid: u32,
    tx: bool,
    bytes: u32,
) -> bool {
    let (local_port, remote_port) = if what == What::UnixStream { (0, 0) } else { (sk.local_port(), sk.remote_port()) };
    // A socket without a peer is judged by the destination of its first send.
    let far_port = if what == What::Udp && tx && remote_port == 0 { names::destination() } else { remote_port };
    if !policy::ports_traced(control, local_port, far_port) {
        sock.flags |= SOCK_IGNORED;
        return false;
    }
    sock.flags |= SOCK_OPENED;
    sock.cookie = sk.cookie();
    let mut record = Open {
        header: Header {
            kind: Kind::Open as u8,
            flags: if sock.flags & SOCK_QUEUED != 0 { OPEN_QUEUED } else { 0 },
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<Open>() as u32,
            nanos: now,
            tgid,
            tid: task.tid(),
        },
        cookie: sock.cookie,
        established: sock.established,
        accepted: sock.accepted,
        sk: sk.0 as u64,
        peer: 0,
        rx_before: 0,
        tx_before: 0,
        local: [0; 16],
        remote: [0; 16],
        isn_local: 0,
        isn_remote: 0,
        netns: sk.netns(),
        family: sk.family(),
        local_port,
        remote_port,
        role: if sock.flags & SOCK_PASSIVE != 0 {
            ROLE_PASSIVE
        } else if sock.flags & SOCK_ACTIVE != 0 {
            ROLE_ACTIVE
        } else {
            ROLE_UNKNOWN
        },
        state: sk.state(),
        reserved: 0,
    };
    match what {
        What::UnixStream => record.peer = sk.unix_peer(),
        What::Tcp => {
            if let Some(tcp) = sk.tcp() {
                let acked = tcp.bytes_acked();
                let received = tcp.bytes_received();
                record.isn_local = tcp.snd_una().wrapping_sub(acked as u32);
                record.isn_remote = tcp.rcv_nxt().wrapping_sub(received as u32);
                if tx {
                    // A receive has set it already.
                    sock.rx_next = tcp.copied_seq();
                } else {
                    // The thread that receives first is likely to answer.
                    sock.tx_next = tcp.write_seq();
                    sock.grown = 0;
                    sock.tx_tid = task.tid();
                }
                // Bytes received, less those still unread and those this operation took.
                let waiting = tcp.rcv_nxt().wrapping_sub(tcp.copied_seq());
                let taken = if tx { 0 } else { bytes };
                record.rx_before = received.saturating_sub(waiting as u64).saturating_sub(taken as u64);
                record.tx_before = acked;
                if sock.established == 0 && (record.rx_before > 1 || (acked > 1 && !tx)) {
                    record.header.flags |= OPEN_MIDSTREAM;
                }
            } else if let Some(mptcp) = Mptcp::of(sk.0 as u64) {
                (record.isn_local, record.isn_remote) = mptcp.initial();
                if Mptcp::counts() {
                    let moved = |own: bool| if own { bytes as u64 } else { 0 };
                    record.rx_before = mptcp.taken().saturating_sub(moved(!tx));
                    record.tx_before = mptcp.written().saturating_sub(moved(tx));
                    if tx {
                        sock.rx_next = mptcp.read_seq().0;
                    } else {
                        sock.tx_next = mptcp.write_seq();
                        sock.grown = 0;
                        sock.tx_tid = task.tid();
                    }
                }
                if sock.established == 0 && (!Mptcp::counts() || record.rx_before > 0 || record.tx_before > 0) {
                    record.header.flags |= OPEN_MIDSTREAM;
                }
            }
        }
        What::Udp | What::Other => {}
    }
    sk.addresses(&mut record.local, &mut record.remote);
    emit::event(&record, Lost::RingConnection);
    true
}

/// hook: tp_btf inet_sock_set_state(sk, oldstate, newstate). First seen: 5.10. Emits [`State`].
#[btf_tracepoint(function = "inet_sock_set_state")]
pub(crate) fn state(ctx: BtfTracePointContext) -> i32 {
    let (sk, old, new) = (SockPtr(ctx.arg(0)), ctx.arg(1), ctx.arg(2));
    changed(sk, old, new);
    debug!(&ctx, "socket {} from state {} to {}", sk.cookie(), old, new);
    0
}

#[inline(always)]
fn changed(sk: SockPtr, old: i32, new: i32) {
    const SYN_SENT: i32 = tcp_state::SYN_SENT as i32;
    const ESTABLISHED: i32 = tcp_state::ESTABLISHED as i32;
    const FIN_WAIT1: i32 = tcp_state::FIN_WAIT1 as i32;
    const LAST_ACK: i32 = tcp_state::LAST_ACK as i32;
    const CLOSE_WAIT: i32 = tcp_state::CLOSE_WAIT as i32;
    const CLOSE: i32 = tcp_state::CLOSE as i32;

    let Some(control) = policy::control() else { return };
    // A MPTCP socket that is accepted is a copy of its listener until it is established.
    let is_copy = old == TCP_LISTEN && new == ESTABLISHED;
    if (old == TCP_LISTEN && !is_copy) || new == TCP_LISTEN || sk.what() != What::Tcp {
        return;
    }
    let begins = new == SYN_SENT || new == ESTABLISHED;
    let sock = SOCKS.get(sk.0, begins);
    if sock.is_null() {
        if begins {
            emit::count(Lost::SocketStorage);
        }
        return;
    }
    // SAFETY: not null; whoever changes a socket's state holds its lock.
    let sock = unsafe { &mut *sock };
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    match new {
        SYN_SENT => {
            sock.flags |= SOCK_ACTIVE;
            sock.cookie = sk.cookie();
        }
        ESTABLISHED => {
            sock.established = now;
            sock.flags |= if old == TCP_SYN_RECV || is_copy { SOCK_PASSIVE } else { SOCK_ACTIVE };
            return;
        }
        // What was never connected has no opening: its end says why.
        CLOSE if old == SYN_SENT => {}
        FIN_WAIT1 | LAST_ACK | CLOSE_WAIT | CLOSE => {
            if sock.flags & (SOCK_OPENED | SOCK_IGNORED) != SOCK_OPENED {
                return;
            }
        }
        _ => return,
    }
    // A half-closed connection's last exchange may go on.
    if new != CLOSE_WAIT || sock.exchange.outcome != 0 {
        exchange_counts::end(sock);
        exchange_counts::catch_up(None, 0, false, sock, now);
    }
    let mut record = State {
        header: Header {
            kind: Kind::State as u8,
            flags: 0,
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<State>() as u32,
            nanos: now,
            tgid: 0,
            tid: 0,
        },
        cookie: sock.cookie,
        rx: sock.rx,
        tx: sock.tx,
        last_rx: sock.last_rx,
        last_tx: sock.last_tx,
        old: old as u8,
        new: new as u8,
        error: sk.error(),
        remote_port: sk.remote_port(),
        exit_status: 0,
        path: sk.tcp().map_or(super::NO_PATH, Tcp::path),
        counters: ThreadCounters {
            cpu: 0,
            runq: 0,
            blocked: 0,
            idle_cpu: 0,
            idle_end: 0,
            switches: 0,
            idles: 0,
            polls: 0,
            reads: 0,
        },
    };
    // The thread that connects or closes enters these states itself; a packet enters the others, in any context.
    if matches!(new, SYN_SENT | FIN_WAIT1 | LAST_ACK) {
        let task = Task::current();
        let thread = THREADS.get(task.0, true);
        if thread.is_null() {
            emit::count(Lost::ThreadStorage);
        } else {
            // SAFETY: not null; the current thread's own record.
            let thread = unsafe { &mut *thread };
            // This record has the position and the time.
            sent::forget_sent(thread, sock.cookie);
            let tgid = task.tgid();
            if new == SYN_SENT && !policy::process_traced(control, thread, tgid) {
                return;
            }
            record.header.flags = STATE_OWN;
            record.header.tgid = tgid;
            record.header.tid = task.tid();
            record.counters = counters(task, thread, now);
        }
    }
    // A process that ends closes its sockets itself. A connection with unread bytes is gone at once (`tcp_close`), which a packet
    // can cause as well, in any thread's time.
    if matches!(new, FIN_WAIT1 | LAST_ACK) || (new == CLOSE && sk.is_locked()) {
        let task = Task::current();
        if let Some(status) = task.exit_status() {
            record.header.flags |= STATE_EXITING;
            record.header.tgid = task.tgid();
            record.header.tid = task.tid();
            record.exit_status = status;
        }
    }
    emit::event(&record, Lost::RingConnection);
}

/// hook: tp_btf sk_data_ready(sk). First seen: 6.12. Emits nothing: stores when the first unread byte arrived. Creates
/// the socket's record, or a connection's first request would have no arrival time.
#[btf_tracepoint(function = "sk_data_ready")]
pub(crate) fn arrived(ctx: BtfTracePointContext) -> i32 {
    readable(SockPtr(ctx.arg(0)));
    0
}

/// Bytes arrived on `sk`, or a connection waits to be accepted.
#[inline(always)]
pub(super) fn readable(sk: SockPtr) {
    // The record nearly always exists, and then nothing else needs checking.
    let mut sock = SOCKS.get(sk.0, false);
    if sock.is_null() {
        if policy::control().is_none() || !matches!(sk.what(), What::Tcp | What::UnixStream) || sk.is_listening() {
            return;
        }
        sock = SOCKS.get(sk.0, true);
        if sock.is_null() {
            emit::count(Lost::SocketStorage);
            return;
        }
    }
    // SAFETY: not null; a race with the reader costs one arrival time.
    let sock = unsafe { &mut *sock };
    if sock.arrived == 0 && sock.flags & SOCK_IGNORED == 0 {
        // SAFETY: no argument.
        sock.arrived = unsafe { bpf_ktime_get_ns() };
        if sock.flags & SOCK_OPENED == 0 && sk.is_unowned() {
            sock.flags |= SOCK_QUEUED;
        }
    }
}

/// `sk` was accepted. Only a connection with a record can have had bytes waiting.
#[inline(always)]
pub(super) fn taken(sk: SockPtr) {
    let sock = SOCKS.get(sk.0, false);
    if !sock.is_null() {
        // SAFETY: not null; no process has its descriptor yet.
        let sock = unsafe { &mut *sock };
        // SAFETY: no argument.
        sock.accepted = unsafe { bpf_ktime_get_ns() };
    }
}
