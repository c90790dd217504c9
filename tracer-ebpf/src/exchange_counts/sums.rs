//! What was counted, by class and outcome.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::generated::bpf_get_smp_processor_id,
    macros::map,
    maps::{Array, HashMap},
};
use tracer_common::{
    event::{Header, Kind},
    exchange_counts::{
        ClassLimits, DURATION_STEPS, ExchangeSums, FirstSums, NoteworthyExchange, OUTCOME_NONE, SumsKey, duration_step,
    },
    limits::{COUNTED_CLASSES_MAX, EXCHANGE_SUMS_MAX},
    lost::Lost,
};

use crate::{
    bound, emit, ring,
    storage::{SOCK_PASSIVE, Sock},
};

/// Sums by class, of the first outcome that was counted: mostly that of nearly all.
#[map]
static FIRST_SUMS: Array<FirstSums> = Array::with_max_entries(COUNTED_CLASSES_MAX, 0);

/// Sums of others, by class and outcome.
#[map]
static EXCHANGE_SUMS: HashMap<SumsKey, ExchangeSums> = HashMap::with_max_entries(EXCHANGE_SUMS_MAX, 0);

/// Which of them are reported one by one, by class.
#[map]
static COUNTED_LIMITS: Array<ClassLimits> = Array::with_max_entries(COUNTED_CLASSES_MAX, 0);

/// Sums of nothing yet.
#[map]
static BLANK_SUMS: Array<ExchangeSums> = Array::with_max_entries(1, 0);

/// The sums of `class` and `outcome`; `None` if there is no room for them.
#[inline(always)]
fn of(class: u32, outcome: u64) -> Option<*mut ExchangeSums> {
    if let Some(first) = FIRST_SUMS.get_ptr_mut(class)
        && outcome != OUTCOME_NONE
    {
        // SAFETY: a word of the map's element.
        let mut found = unsafe { (&raw const (*first).outcome).read_volatile() };
        if found == OUTCOME_NONE {
            // SAFETY: as above.
            found = ring::swap(unsafe { &raw mut (*first).outcome }, OUTCOME_NONE, outcome);
        }
        if found == outcome || found == OUTCOME_NONE {
            // SAFETY: in the element.
            return Some(unsafe { &raw mut (*first).sums });
        }
    }
    let key = SumsKey { class, reserved: 0, outcome };
    if let Some(sums) = EXCHANGE_SUMS.get_ptr_mut(&key) {
        return Some(sums);
    }
    // Refused if another CPU was quicker, or if the table is full.
    let _ = EXCHANGE_SUMS.insert(&key, BLANK_SUMS.get(0)?, BPF_NOEXIST as u64);
    EXCHANGE_SUMS.get_ptr_mut(&key)
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
    let Some(sums) = of(class as u32, exchange.outcome) else {
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
pub(super) fn add_some(counter: *mut u64, more: u64) {
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
