//! Exchanges that are counted here, by class and outcome, instead of reported operation by operation: when a ring fills up
//! because user space cannot keep up, or when it asked for less detail. See [`tracer_common::exchange_counts`].
//!
//! Only in processes with a [`CountingRule`], on TCP connections whose side is known. A request whose beginning user space
//! has not named is reported as always, so new classes are learnt. The choice falls by the request's TCP sequence
//! number, which both ends of a connection see.
//!
//! The hook's program counts, because that is what it mostly does where much happens, and tail-calls the one that reports.

mod costs;
mod sums;

pub(crate) use self::{costs::reported, sums::end};

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::map,
    maps::{HashMap, ProgramArray},
};
use tracer_common::{
    arch::Shape,
    event::{Header, Kind},
    exchange_counts::{
        COUNTED_SEVERAL, CountedExchanges, CountingRule, OUTCOME_NONE, OUTCOME_UNREAD, RequestPrefix, WINDOW_MAX,
    },
    limits::REQUEST_PREFIXES_MAX,
    lost::Lost,
    policy::{CONTROL_COUNTING, Control},
};

use crate::{
    arch, bound, emit,
    kernel::{
        regs::Regs,
        sock::{SockPtr, Tcp, What},
        task::Task,
    },
    policy, ring, runtime,
    socket::{sequence, user},
    storage::{
        KnownRequest, SOCK_ACTIVE, SOCK_IGNORED, SOCK_OPENED, SOCK_PASSIVE, SOCK_ROUND_TRIPS, SOCK_SENDING, SOCKS,
        Sock, THREADS, Thread,
    },
    thread_pool,
};

/// Classes by how requests begin; only user space writes it.
#[map]
static REQUEST_PREFIXES: HashMap<RequestPrefix, u32> = HashMap::with_max_entries(REQUEST_PREFIXES_MAX, 0);

/// Of 2^32 exchanges, how many are reported while this CPU's ring is more than half full.
const DETAIL_CROWDED: u32 = u32::MAX / 64;

/// Tail-called by the hook's programs to report an operation.
#[map]
static REPORT_TX: ProgramArray = ProgramArray::with_max_entries(1, 0);
#[map]
static REPORT_RX: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// Tail-called by those programs: the hook's own, where what it did not look at must be seen to.
#[map]
static COUNT_TX: ProgramArray = ProgramArray::with_max_entries(1, 0);
#[map]
static COUNT_RX: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// How far the operation under way has come ([`crate::storage::CountedThread::stage`]).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum OperationStage {
    /// No program has seen it.
    New = 0,
    /// The thread's record shows it.
    Noted = 1,
    /// The socket may have exchanges that are counted: look.
    Look = 2,
    /// It is to be reported, and its socket has none.
    Report = 3,
}

/// Whether an exchange that begins at sequence number `seq` is to be reported.
#[inline(always)]
fn is_chosen(control: &Control, rule: CountingRule, seq: u32) -> bool {
    let mut detail = u32::MAX >> (rule.reported & 15);
    if control.detail < detail {
        detail = control.detail;
    }
    if ring::is_crowded() && detail > DETAIL_CROWDED {
        detail = DETAIL_CROWDED;
    }
    // Multiplicative hashing (Knuth): near sequence numbers are not chosen together.
    seq.wrapping_mul(0x9e37_79b1) <= detail
}

/// Whether exchanges that begin now may be counted, or the thread's last operations were.
#[inline(always)]
fn may_count(control: &Control, thread: &Thread) -> bool {
    let Some(rule) = CountingRule::of(thread.policy) else { return thread.counted.unreported != 0 };
    rule.reported != 0 || control.detail != u32::MAX || thread.counted.unreported != 0 || ring::is_crowded()
}

/// The program at the hook: counts the operation, or has it reported.
#[inline(always)]
pub(crate) fn at_hook<const TX: bool>(ctx: &impl EbpfContext, sk: SockPtr, bytes: u32) {
    let Some(control) = policy::control() else { return };
    if control.flags & CONTROL_COUNTING != 0 && sk.what() == What::Tcp && is_done::<TX>(control, sk, bytes) {
        return;
    }
    go_on::<TX>(ctx);
}

/// Hands the operation to the program that reports it.
#[inline(always)]
pub(crate) fn go_on<const TX: bool>(ctx: &impl EbpfContext) {
    let array = if TX { &REPORT_TX } else { &REPORT_RX };
    // SAFETY: the array holds only programs of this hook.
    unsafe { array.tail_call(ctx, 0) };
    // Without that program, nothing is attached to the hook.
}

/// Hands the operation back to the program at the hook if exchanges may be counted that it has not seen to; returns if none can.
#[inline(always)]
pub(crate) fn go_back<const TX: bool>(ctx: &impl EbpfContext, stage: u32, thread: &mut Thread, sock: &Sock) {
    let may_have = sock.exchange.class | sock.exchange.unreported | thread.counted.unreported as u64 != 0;
    if may_have && stage != OperationStage::Report as u32 {
        thread.counted.stage = OperationStage::Look as u32;
        let array = if TX { &COUNT_TX } else { &COUNT_RX };
        // SAFETY: the array holds only programs of this hook.
        unsafe { array.tail_call(ctx, 0) };
        thread.counted.stage = OperationStage::New as u32;
    }
}

/// An operation on a TCP socket moved `bytes` bytes. Returns false if it is to be reported.
#[inline(always)]
fn is_done<const TX: bool>(control: &Control, sk: SockPtr, bytes: u32) -> bool {
    let task = Task::current();
    let thread = THREADS.get(task.0, true);
    if thread.is_null() {
        emit::count(Lost::ThreadStorage);
        return true;
    }
    // SAFETY: not null; the current thread's own record.
    let thread = unsafe { &mut *thread };
    if thread.counted.stage != OperationStage::Look as u32 {
        thread.handled |= 1 << TX as u32;
        if !TX {
            thread.reads += 1;
        }
        if !policy::process_traced(control, thread, task.tgid()) {
            return true;
        }
        if !may_count(control, thread) {
            thread.counted.stage = OperationStage::Noted as u32;
            return false;
        }
    }
    let sock = SOCKS.get(sk.0, false);
    if sock.is_null() {
        thread.counted.stage = OperationStage::Noted as u32;
        return false;
    }
    // SAFETY: not null; words of the socket's that other threads may change.
    let sock = unsafe { &mut *sock };
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    let tcp = sk.tcp();
    if bytes != 0
        && let Some(tcp) = tcp
        && is_counted::<TX>(control, task, thread, tcp, sock, now, bytes)
    {
        thread.counted.stage = OperationStage::New as u32;
        note::<TX>(task, thread, sk, tcp, sock, now, bytes);
        return true;
    }
    // Its reply may still come.
    if bytes == 0 && sock.exchange.outcome != OUTCOME_NONE {
        end(sock);
    }
    catch_up(Some(task), thread.ops, thread.counted.unreported != 0, sock, now);
    thread.counted.unreported = 0;
    thread.counted.stage = OperationStage::Report as u32;
    false
}

/// Changes the records of the thread and the socket as a report of the operation would.
#[inline(always)]
fn note<const TX: bool>(task: Task, thread: &mut Thread, sk: SockPtr, tcp: Tcp, sock: &mut Sock, now: u64, bytes: u32) {
    thread_pool::noted::<TX>(thread, sock.flags);
    runtime::counted(thread, task.tgid());
    let _ = sequence::<TX>(sk, Some(tcp), sock, task, bytes);
    if (sock.flags & SOCK_SENDING != 0) == TX {
        sock.run += 1;
    } else {
        (sock.run_before, sock.run) = (sock.run, 0);
    }
    sock.ops += 1;
    if TX {
        sock.flags |= SOCK_SENDING;
        sock.tx += bytes as u64;
        sock.last_tx = now;
    } else {
        sock.flags &= !SOCK_SENDING;
        sock.rx += bytes as u64;
        sock.last_rx = now;
        sock.arrived = 0;
    }
    thread.ops = thread.ops.wrapping_add(1);
    thread.counted.unreported = 1;
    let is_server = sock.flags & SOCK_PASSIVE != 0;
    if is_server == TX {
        (sock.exchange.rx_end, sock.exchange.tx_end) = (sock.rx, sock.tx);
        sock.exchange.end = now;
    }
    if is_server {
        costs::charge::<TX>(task, thread, sock, now);
    }
}

/// Whether the operation belongs to an exchange that is counted; begins one, and ends the one before.
#[inline(always)]
fn is_counted<const TX: bool>(
    control: &Control,
    task: Task,
    thread: &mut Thread,
    tcp: Tcp,
    sock: &mut Sock,
    now: u64,
    bytes: u32,
) -> bool {
    let is_server = sock.flags & SOCK_PASSIVE != 0;
    let is_request = is_server != TX;
    let turned = (sock.flags & SOCK_SENDING != 0) != TX || sock.rx | sock.tx == 0;
    if !is_request || !turned {
        if sock.exchange.class == 0 {
            return false;
        }
        if is_request && sock.exchange.outcome == OUTCOME_NONE {
            // Requests that are known come whole in one operation: this is another one, before the first is answered.
            sock.exchange.further += 1;
        }
        if !is_request && sock.exchange.outcome == OUTCOME_NONE {
            sock.exchange.first_reply = now;
            sock.exchange.outcome = match CountingRule::of(thread.policy) {
                Some(rule) => outcome(task, rule, bytes as u64),
                None => OUTCOME_UNREAD,
            };
        }
        return true;
    }
    end(sock);
    let Some(rule) = CountingRule::of(thread.policy) else { return false };
    let has_side = sock.flags & (SOCK_PASSIVE | SOCK_ACTIVE) != 0;
    if !has_side || sock.flags & (SOCK_OPENED | SOCK_IGNORED | SOCK_ROUND_TRIPS) != SOCK_OPENED || sock.grown != 0 {
        return false;
    }
    // Nothing was missed before it, and it is all that was to be read.
    let (first, is_whole) = if TX {
        let first = tcp.write_seq().wrapping_sub(bytes);
        (first, first == sock.tx_next || sock.tx_tid != task.tid())
    } else {
        let first = tcp.copied_seq().wrapping_sub(bytes);
        (first, first == sock.rx_next && tcp.copied_seq() == tcp.rcv_nxt())
    };
    if !is_whole || is_chosen(control, rule, first) {
        return false;
    }
    let class = class(task, control.generation, thread, &mut sock.known, rule, bytes as u64);
    if class == 0 {
        return false;
    }
    let exchange = &mut sock.exchange;
    exchange.class = class as u64;
    (exchange.start, exchange.end) = (now, now);
    exchange.queue = if TX || sock.arrived == 0 { 0 } else { now.saturating_sub(sock.arrived) };
    (exchange.tgid, exchange.tid, exchange.first_reply) = (task.tgid(), task.tid(), 0);
    (exchange.cpu, exchange.runq, exchange.blocked) = (0, 0, 0);
    exchange.outcome = OUTCOME_NONE;
    exchange.further = 0;
    (exchange.rx, exchange.tx) = (sock.rx, sock.tx);
    (exchange.rx_end, exchange.tx_end) = (sock.rx, sock.tx);
    exchange.unreported += 1;
    true
}

/// Address of the operation's first bytes and how many are there in a row; zero if they are not in user memory.
#[inline(always)]
fn first_bytes(task: Task) -> (u64, u64) {
    let regs = Regs::of(task);
    match arch::shape(regs.nr() as _) {
        Shape::Buffer => (regs.arg1(), u64::MAX),
        Shape::Vectors => {
            let [at, len] = user::<[u64; 2]>(regs.arg1());
            (at, len)
        }
        Shape::Message => {
            let vectors: u64 = user(regs.arg1() + MSG_IOV);
            let [at, len] = user::<[u64; 2]>(vectors);
            (at, len)
        }
        Shape::Messages | Shape::Pages | Shape::Other => (0, 0),
    }
}

/// Offset of `msg_iov` in the user's `struct msghdr` (64-bit).
const MSG_IOV: u64 = 16;

/// The class of the request of `bytes` bytes that the current operation carries; 0 if it is not known. `known` is what the
/// connection's last request was found to be: most begin alike, and comparing costs a tenth of a look-up.
#[inline(always)]
fn class(
    task: Task,
    generation: u32,
    thread: &mut Thread,
    known: &mut KnownRequest,
    rule: CountingRule,
    bytes: u64,
) -> u32 {
    let (at, row) = first_bytes(task);
    let window =
        bound::at_most::<{ WINDOW_MAX as u64 }>(if bytes < rule.window as u64 { bytes } else { rule.window as u64 });
    if at == 0 || row < window {
        return 0;
    }
    let key = &mut thread.counted.key;
    key.tgid = task.tgid();
    key.bytes = bytes as u32;
    key.head = [0; 8];
    // SAFETY: the window is at most the head's size.
    if unsafe { bpf_probe_read_user((&raw mut key.head).cast(), window as u32, at as *const c_void) } != 0 {
        return 0;
    }
    if known.generation == generation && is_same(&known.prefix, key) {
        return known.class;
    }
    // SAFETY: copied at once.
    let class = unsafe { REQUEST_PREFIXES.get(&*key) }.copied().unwrap_or(0);
    // What is not known yet may be learnt at any time. What is known is forgotten before the generation changes.
    if class != 0 {
        known.prefix = *key;
        (known.class, known.generation) = (class, generation);
    }
    class
}

/// Without branches, of which the verifier would follow each.
#[inline(always)]
fn is_same(a: &RequestPrefix, b: &RequestPrefix) -> bool {
    let mut different = (a.tgid ^ b.tgid) as u64 | (a.bytes ^ b.bytes) as u64;
    for i in 0..a.head.len() {
        different |= a.head[i] ^ b.head[i];
    }
    different == 0
}

/// The outcome that the first bytes of a reply show.
#[inline(always)]
fn outcome(task: Task, rule: CountingRule, bytes: u64) -> u64 {
    let (at, row) = first_bytes(task);
    let from = rule.outcome_at as u64;
    if at == 0 || bytes < from + rule.outcome_len as u64 || row < from + rule.outcome_len as u64 {
        return OUTCOME_UNREAD;
    }
    match rule.outcome(user(at + from)) {
        OUTCOME_NONE => OUTCOME_UNREAD,
        known => known,
    }
}

/// Reports where the connection stands if exchanges were counted since its last record, or operations of the thread were
/// (`thread_unreported`), the last of which had the number `nth`.
#[inline(always)]
pub(crate) fn catch_up(task: Option<Task>, nth: u32, thread_unreported: bool, sock: &mut Sock, now: u64) {
    if sock.exchange.unreported == 0 && !thread_unreported {
        return;
    }
    let record = CountedExchanges {
        header: Header {
            kind: Kind::CountedExchanges as u8,
            flags: if sock.exchange.several != 0 { COUNTED_SEVERAL } else { 0 },
            // SAFETY: no argument.
            cpu: unsafe { bpf_get_smp_processor_id() } as u16,
            len: size_of::<CountedExchanges>() as u32,
            nanos: now,
            tgid: task.map_or(0, Task::tgid),
            tid: task.map_or(0, Task::tid),
        },
        cookie: sock.cookie,
        rx: sock.rx,
        tx: sock.tx,
        exchanges: sock.exchange.unreported as u32,
        nth,
    };
    (sock.exchange.unreported, sock.exchange.several) = (0, 0);
    emit::event(&record, Lost::RingOp);
}
