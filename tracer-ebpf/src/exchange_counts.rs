//! Exchanges that are counted here, by class and outcome, instead of reported operation by operation: when a ring fills up
//! because user space cannot keep up, or when it asked for less detail. See [`tracer_common::exchange_counts`].
//!
//! Only in processes with a [`CountingRule`], on TCP connections whose side is known. A request whose beginning user space
//! has not named is reported as always, so new classes are learnt. The choice falls by the request's TCP sequence
//! number, which both ends of a connection see.
//!
//! What a thread used is charged like user space does it (`transactions/engine/charge.rs`): up to its last wait to the
//! class of the operation before, from then on to that of the operation after. What is charged here is taken out of the
//! thread's counters, so that the next record does not show it again.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_NOEXIST,
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::{btf_tracepoint, map},
    maps::{Array, HashMap, ProgramArray},
    programs::BtfTracePointContext,
};
use tracer_common::{
    arch::Shape,
    event::{Header, Kind, ThreadCounters},
    exchange_counts::{
        COUNTED_SEVERAL, ClassCosts, ClassLimits, CountedExchanges, CountingRule, DURATION_STEPS, ExchangeSums,
        NoteworthyExchange, OUTCOME_NONE, OUTCOME_UNREAD, RequestPrefix, SumsKey, WINDOW_MAX, duration_step,
    },
    limits::{COUNTED_CLASSES_MAX, EXCHANGE_SUMS_MAX, REQUEST_PREFIXES_MAX},
    lost::Lost,
    policy::Control,
};

use crate::{
    arch, bound, emit,
    kernel::{
        regs::Regs,
        sock::{SockPtr, What},
        task::Task,
    },
    policy, ring, runtime,
    sched::counters,
    socket::{sequence, user},
    storage::{
        SOCK_ACTIVE, SOCK_IGNORED, SOCK_OPENED, SOCK_PASSIVE, SOCK_ROUND_TRIPS, SOCK_SENDING, SOCKS, Sock, THREADS,
        Thread,
    },
    thread_pool,
};

/// Classes by how requests begin; only user space writes it.
#[map]
static REQUEST_PREFIXES: HashMap<RequestPrefix, u32> = HashMap::with_max_entries(REQUEST_PREFIXES_MAX, 0);

/// Sums by class and outcome.
#[map]
static EXCHANGE_SUMS: HashMap<SumsKey, ExchangeSums> = HashMap::with_max_entries(EXCHANGE_SUMS_MAX, 0);

/// Costs by class.
#[map]
static COUNTED_COSTS: Array<ClassCosts> = Array::with_max_entries(COUNTED_CLASSES_MAX, 0);

/// Which of them are reported one by one, by class.
#[map]
static COUNTED_LIMITS: Array<ClassLimits> = Array::with_max_entries(COUNTED_CLASSES_MAX, 0);

/// Sums of nothing yet.
#[map]
static BLANK_SUMS: Array<ExchangeSums> = Array::with_max_entries(1, 0);

/// Of 2^32 exchanges, how many are reported while this CPU's ring is more than half full.
const DETAIL_CROWDED: u32 = u32::MAX / 64;

/// Tail-called before an operation is reported, where it may be counted instead.
#[map]
static COUNT_TX: ProgramArray = ProgramArray::with_max_entries(1, 0);
#[map]
static COUNT_RX: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// Tail-called by those programs when it is not.
#[map]
static REPORT_TX: ProgramArray = ProgramArray::with_max_entries(1, 0);
#[map]
static REPORT_RX: ProgramArray = ProgramArray::with_max_entries(1, 0);

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

/// Whether operations of the thread and socket are counted now, or were since the last record.
#[inline(always)]
fn concerns(control: &Control, thread: &Thread, sock: &Sock) -> bool {
    if sock.exchange.class | sock.exchange.unreported | thread.counted.unreported as u64 != 0 {
        return true;
    }
    let Some(rule) = CountingRule::of(thread.policy) else { return false };
    rule.reported != 0 || control.detail != u32::MAX || ring::is_crowded()
}

/// Hands the operation under way to the program that counts it, if it may be counted; returns if there is none.
#[inline(always)]
pub(crate) fn go_on<const TX: bool>(ctx: &impl EbpfContext, control: &Control, thread: &mut Thread, sock: &Sock) {
    if thread.counted.passed != 0 {
        thread.counted.passed = 0;
    } else if concerns(control, thread, sock) {
        let array = if TX { &COUNT_TX } else { &COUNT_RX };
        // SAFETY: the array holds only programs of this hook.
        unsafe { array.tail_call(ctx, 0) };
    }
}

/// hook: tp_btf sock_send_length(sk, ret, flags), tail-called by the programs there. Counts the operation, or has it
/// reported.
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn count_tx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    if !count::<true>(SockPtr(ctx.arg(0)), ret as u32) {
        // SAFETY: the array holds only programs of this hook.
        unsafe { REPORT_TX.tail_call(&ctx, 0) };
    }
    0
}

/// hook: tp_btf sock_recv_length(sk, ret, flags); as [`count_tx`].
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn count_rx(ctx: BtfTracePointContext) -> i32 {
    let ret: i32 = ctx.arg(1);
    if !count::<false>(SockPtr(ctx.arg(0)), ret as u32) {
        // SAFETY: the array holds only programs of this hook.
        unsafe { REPORT_RX.tail_call(&ctx, 0) };
    }
    0
}

/// An operation moved `bytes` bytes. Returns false if it is to be reported.
#[inline(always)]
fn count<const TX: bool>(sk: SockPtr, bytes: u32) -> bool {
    let task = Task::current();
    let (Some(control), thread, sock) = (policy::control(), THREADS.get(task.0, false), SOCKS.get(sk.0, false)) else {
        return true;
    };
    if thread.is_null() || sock.is_null() {
        // They were there when this program was called.
        return true;
    }
    // SAFETY: not null; the current thread's own record, and words of the socket's that other threads may change.
    let (thread, sock) = unsafe { (&mut *thread, &mut *sock) };
    // SAFETY: no argument.
    let now = unsafe { bpf_ktime_get_ns() };
    if bytes == 0 || !is_counted::<TX>(control, task, thread, sk, sock, now, bytes) {
        // Its reply may still come.
        if bytes == 0 && sock.exchange.outcome != OUTCOME_NONE {
            end(sock);
        }
        let unreported = thread.counted.unreported != 0;
        catch_up(Some(task), thread.ops, unreported, sock, now);
        (thread.counted.unreported, thread.counted.passed) = (0, 1);
        if !TX {
            // The program that reports it adds it again.
            thread.reads = thread.reads.wrapping_sub(1);
        }
        return false;
    }
    // From here on as it would be reported, without a record.
    thread_pool::noted::<TX>(thread, sock.flags);
    runtime::counted(thread, task.tgid());
    let _ = sequence::<TX>(sk, What::Tcp, sock, &mut thread.io_path, task, bytes);
    thread.io_path_of = sock.cookie;
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
        charge::<TX>(task, thread, sock, now);
    }
    true
}

/// Whether the operation belongs to an exchange that is counted; begins one, and ends the one before.
#[inline(always)]
fn is_counted<const TX: bool>(
    control: &Control,
    task: Task,
    thread: &mut Thread,
    sk: SockPtr,
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
    let is_tcp = sk.what() == What::Tcp && sock.flags & (SOCK_PASSIVE | SOCK_ACTIVE) != 0;
    if !is_tcp || sock.flags & (SOCK_OPENED | SOCK_IGNORED | SOCK_ROUND_TRIPS) != SOCK_OPENED || sock.grown != 0 {
        return false;
    }
    let Some(tcp) = sk.tcp() else { return false };
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
    let class = class(task, thread, rule, bytes as u64);
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

/// The class of the request of `bytes` bytes that the current operation carries; 0 if it is not known.
#[inline(always)]
fn class(task: Task, thread: &mut Thread, rule: CountingRule, bytes: u64) -> u32 {
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
    // SAFETY: copied at once.
    unsafe { REQUEST_PREFIXES.get(&*key) }.copied().unwrap_or(0)
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

/// Counts the connection's exchange, if one is under way.
#[inline(always)]
pub(crate) fn end(sock: &mut Sock) {
    let exchange = &mut sock.exchange;
    let class = exchange.class;
    // A packet may end the connection while its process reads: only one of both counts.
    if class == 0 || ring::swap(&raw mut exchange.class, class, 0) != class {
        return;
    }
    let key = SumsKey { class: class as u32, reserved: 0, outcome: exchange.outcome };
    let mut sums = EXCHANGE_SUMS.get_ptr_mut(&key);
    if sums.is_none() {
        if let Some(blank) = BLANK_SUMS.get(0) {
            // Refused if another CPU was quicker, or if the table is full.
            let _ = EXCHANGE_SUMS.insert(&key, blank, BPF_NOEXIST as u64);
        }
        sums = EXCHANGE_SUMS.get_ptr_mut(&key);
    }
    let Some(sums) = sums else {
        emit::count(Lost::ExchangeSums);
        return;
    };
    let nanos = exchange.end.saturating_sub(exchange.start);
    let received = exchange.rx_end.saturating_sub(exchange.rx);
    let sent = exchange.tx_end.saturating_sub(exchange.tx);
    let is_server = sock.flags & SOCK_PASSIVE != 0;
    let (request, reply) = if is_server { (received, sent) } else { (sent, received) };
    let step = bound::masked::<{ DURATION_STEPS as i32 - 1 }>(duration_step(nanos) as u64);
    // Several that were sent at once count alike: user space will have the process reported whole.
    let count = exchange.further + 1;
    exchange.several |= exchange.further;
    // SAFETY: an element of the map.
    unsafe {
        emit::add(&raw mut (*sums).duration, nanos.wrapping_mul(count));
        add_some(&raw mut (*sums).queue, exchange.queue);
        emit::add(&raw mut (*sums).request_bytes, request);
        emit::add(&raw mut (*sums).reply_bytes, reply);
        emit::add((&raw mut (*sums).steps).cast::<u64>().add(step as usize), count);
    }
    let Some(limits) = COUNTED_LIMITS.get_ptr_mut(class as u32) else { return };
    // SAFETY: an element of the map.
    let limits = unsafe { &mut *limits };
    if limits.exceeded(nanos, exchange.outcome) && (limits.left as i64) > 0 {
        // SAFETY: as above.
        unsafe { emit::add(&raw mut limits.left, u64::MAX) };
        report(sock, class as u32, request, reply);
    }
}

/// Adds to a word of map memory what is mostly zero: an addition that other CPUs must see costs more than the question.
#[inline(always)]
fn add_some(counter: *mut u64, more: u64) {
    if more != 0 {
        // SAFETY: the callers' word of map memory.
        unsafe { emit::add(counter, more) };
    }
}

/// Reports the exchange of `class` that ended on `sock`. Operations have the ring's second half to themselves.
#[inline(always)]
fn report(sock: &Sock, class: u32, request_bytes: u64, reply_bytes: u64) {
    const LEN: u64 = size_of::<NoteworthyExchange>() as u64;
    let Some(slot) = ring::reserve_of::<1, false>(LEN, Some(Lost::RingNoteworthyExchange)) else { return };
    let exchange = &sock.exchange;
    // SAFETY: in the slot, which has the room.
    unsafe {
        *slot.record.cast::<NoteworthyExchange>() = NoteworthyExchange {
            header: Header {
                kind: Kind::NoteworthyExchange as u8,
                flags: 0,
                cpu: bpf_get_smp_processor_id() as u16,
                len: LEN as u32,
                nanos: exchange.end,
                tgid: exchange.tgid,
                tid: exchange.tid,
            },
            cookie: sock.cookie,
            outcome: exchange.outcome,
            start: exchange.start,
            first_reply: exchange.first_reply,
            queue: exchange.queue,
            request_bytes,
            reply_bytes,
            cpu: exchange.cpu,
            runq: exchange.runq,
            blocked: exchange.blocked,
            class,
            reserved: 0,
        };
    }
    slot.complete(LEN);
}

/// Charges what the thread used since its last operation.
#[inline(always)]
fn charge<const TX: bool>(task: Task, thread: &mut Thread, sock: &mut Sock, now: u64) {
    let used = counters(task, thread, now);
    let exchange = &mut sock.exchange;
    let class = exchange.class as u32;
    let (last, waited) = (thread.counted.class, thread.idles != thread.counted.idles);
    let cpu = used.cpu.saturating_sub(thread.counted.cpu);
    let before = if waited {
        let until_wait = used.idle_cpu.saturating_sub(thread.counted.cpu);
        if until_wait < cpu { until_wait } else { cpu }
    } else if TX {
        0
    } else {
        cpu
    };
    let mut taken = cpu - before;
    let (mut runq, mut blocked) = (0, 0);
    if last != 0 {
        taken += before;
        (runq, blocked) =
            (used.runq.saturating_sub(thread.counted.runq), used.blocked.saturating_sub(thread.counted.blocked));
        if last != class {
            add(last, before, 0, 0);
        }
    }
    let own = TX && !waited && last == class;
    let own_cpu = if last == class { cpu } else { cpu - before };
    let (own_runq, own_blocked) = if own { (runq, blocked) } else { (0, 0) };
    add(class, own_cpu, own_runq, own_blocked);
    // What was used before the request was read is the one's before it.
    exchange.cpu += if TX { own_cpu } else { cpu - before };
    exchange.runq += own_runq;
    exchange.blocked += own_blocked;
    // Out of the counters: they count from `base_…` on.
    thread.base_exec += taken;
    thread.base_runq += runq;
    thread.base_at += taken + runq + blocked;
    thread.counted.cpu = used.cpu - taken;
    thread.counted.runq = used.runq - runq;
    thread.counted.blocked = used.blocked - blocked;
    if thread.idle_cpu > thread.counted.cpu {
        thread.idle_cpu = thread.counted.cpu;
    }
    thread.counted.class = class;
    thread.counted.idles = thread.idles;
}

/// Adds to the costs of `class`.
#[inline(always)]
fn add(class: u32, cpu: u64, runq: u64, blocked: u64) {
    let Some(costs) = COUNTED_COSTS.get_ptr_mut(class) else { return };
    // SAFETY: an element of the map.
    let (cpus, runqs, blocks) = unsafe { (&raw mut (*costs).cpu, &raw mut (*costs).runq, &raw mut (*costs).blocked) };
    add_some(cpus, cpu);
    add_some(runqs, runq);
    add_some(blocks, blocked);
}

/// A record showed these counters of the thread.
#[inline(always)]
pub(crate) fn reported(thread: &mut Thread, counters: &ThreadCounters) {
    thread.counted.cpu = counters.cpu;
    thread.counted.runq = counters.runq;
    thread.counted.blocked = counters.blocked;
    thread.counted.idles = thread.idles;
    thread.counted.class = 0;
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
