//! In-band contexts: `traceparent` inserted into HTTP/1.1 requests to chosen destinations. Loaded only if configured.
//!
//! Only sockets that connect to such a destination join the map whose sends the kernel shows (`MEMBERS`), and the
//! program follows every byte they send from the first on: a request begins only where the one before ends by its own
//! head. Where the program loses certainty, it stops for that connection: it inserts nothing more, and the next
//! acknowledgement releases the socket.

pub(crate) mod came;
mod line;
mod scan;

use core::{arch::asm, ffi::c_void, ptr};

use aya_ebpf::{
    bindings::{
        BPF_NOEXIST, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RETRANS_CB,
        BPF_SOCK_OPS_RETRANS_CB_FLAG, BPF_SOCK_OPS_RTT_CB, BPF_SOCK_OPS_RTT_CB_FLAG, BPF_SOCK_OPS_STATE_CB,
        BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, bpf_sock_ops, sk_action, sk_msg_md,
    },
    helpers::generated::{
        bpf_get_socket_cookie, bpf_map_delete_elem, bpf_msg_pop_data, bpf_msg_pull_data, bpf_msg_push_data,
        bpf_sock_hash_update,
    },
    macros::{map, sk_msg, sock_ops},
    maps::{Array, LpmTrie, SockHash, lpm_trie::Key},
    programs::{SkMsgContext, SockOpsContext},
};
use tracer_common::{
    event::{FAMILY_INET, FAMILY_INET6, INBAND_HELD, INBAND_REFUSED, INBAND_TX, InbandContext},
    header::{DESTINATIONS_MAX, Destination, LEN, LOOK, NO_BLOCKING, ONCE, Outcome, PORT_BITS, SOCKETS_MAX, TESTING},
    inband_context::DRAWN,
    lost::Lost,
};

use crate::{
    emit,
    inband::{held, listen, own_namespace, put, random, random_trace, socket},
    kernel::{
        sock::{SockPtr, Tcp},
        task::Task,
    },
    policy, ring,
    storage::{
        CARRIER_RECEIVES, CARRIERS, HEADS, HEADS_FOLLOWED, HEADS_FRESH, HEADS_GONE, HEADS_OVER, Heads, SOCK_IGNORED,
        SOCKS,
    },
};

/// Sockets whose requests get headers, by their cookie. The loader sizes it only if headers are configured.
#[map]
static MEMBERS: SockHash<u64> = SockHash::with_max_entries(SOCKETS_MAX, 0);

/// Where requests get headers. Sized like [`MEMBERS`].
#[map]
static DESTINATIONS: LpmTrie<Destination, u32> = LpmTrie::with_max_entries(DESTINATIONS_MAX, 0);

/// The result of the start-up test, and whether it is running.
#[map]
static HEADER_CONTROL: Array<u32> = Array::with_max_entries(1, 0);

/// Counters by [`Outcome`].
#[map]
static HEADER_COUNTS: Array<u64> = Array::with_max_entries(Outcome::ALL.len() as u32, 0);

/// Most bytes a TCP connection has acknowledged before its first data: the SYN.
const SYN: u64 = 1;
const TCP_CLOSE: u32 = 7;

fn count(outcome: Outcome) {
    if let Some(counter) = HEADER_COUNTS.get_ptr_mut(outcome as u32) {
        // SAFETY: an aligned element of the map. Atomic, because differences between counters say how many connections
        // are joined.
        unsafe {
            asm!("lock *(u64 *)({at} + 0) += {one}", at = in(reg) counter, one = in(reg) 1u64, options(nostack));
        }
    }
}

#[inline(always)]
fn control() -> u32 {
    HEADER_CONTROL.get(0).copied().unwrap_or(0)
}

/// hook: sk_msg, of the sockets in [`MEMBERS`]. First seen: 5.10. Emits [`InbandContext`].
#[sk_msg]
pub(crate) fn header(ctx: SkMsgContext) -> u32 {
    // SAFETY: a member of the context.
    let sk: *mut c_void = unsafe { (*ctx.msg).__bindgen_anon_3.sk.cast() };
    if sk.is_null() {
        return sk_action::SK_PASS;
    }
    let heads = HEADS.get(sk, true);
    if heads.is_null() {
        emit::count(Lost::SocketStorage);
        return sk_action::SK_PASS;
    }
    // SAFETY: not null; a sender holds the socket's lock.
    let heads = unsafe { &mut *heads };
    let Some(tcp) = SockPtr(sk).tcp() else { return sk_action::SK_PASS };
    if tcp.lends() {
        // The kernel reports each piece's completion separately, but the owner counts sends.
        // SAFETY: the context is the helper's, and this a member of it. Without room for one contiguous piece, the
        // message goes as it is.
        unsafe { bpf_msg_pull_data(ctx.msg, 0, (*ctx.msg).size, 0) };
        if heads.state < HEADS_OVER {
            heads.state = HEADS_OVER;
            count(Outcome::ZeroCopy);
        }
        return sk_action::SK_PASS;
    }
    if heads.state >= HEADS_OVER {
        return sk_action::SK_PASS;
    }
    match follow(ctx.msg, sk, tcp, heads) {
        Ok(()) => sk_action::SK_PASS,
        Err(Stop::Over(why)) => {
            heads.state = HEADS_OVER;
            count(why);
            sk_action::SK_PASS
        }
        Err(Stop::Drop) => {
            heads.state = HEADS_OVER;
            count(Outcome::Refused);
            sk_action::SK_DROP
        }
    }
}

/// Why the program stops following a connection.
enum Stop {
    Over(Outcome),
    /// The message holds meaningless bytes that cannot be removed.
    Drop,
}

impl From<Outcome> for Stop {
    fn from(why: Outcome) -> Self {
        Self::Over(why)
    }
}

/// Follows one send.
#[inline(always)]
fn follow(msg: *mut sk_msg_md, sk: *mut c_void, tcp: Tcp, heads: &mut Heads) -> Result<(), Stop> {
    // SAFETY: a member of the context.
    let size = unsafe { (*msg).size };
    let start = tcp.write_seq();
    if heads.state == HEADS_FOLLOWED {
        let untaken = heads.next.wrapping_sub(start);
        if untaken != 0 {
            // Without room the kernel took less than it showed, and does not show the rest again: by sequence numbers
            // the request still ends in the same place.
            if untaken <= heads.body {
                heads.rest += untaken as u64;
            } else {
                let unseen = untaken.wrapping_neg() as u64;
                heads.rest = heads.rest.checked_sub(unseen).ok_or(Outcome::LostTrack)?;
            }
        }
        if heads.rest != 0 {
            heads.rest = heads.rest.checked_sub(size as u64).ok_or(Outcome::Pipelined)?;
            heads.body = size;
            heads.next = start.wrapping_add(size);
            return Ok(());
        }
    }
    let look = if size < LOOK { size } else { LOOK };
    // Cheap if the head is contiguous already.
    // SAFETY: the context is the helper's.
    if unsafe { bpf_msg_pull_data(msg, 0, look, 0) } != 0 {
        return Err(Outcome::Refused.into());
    }
    if !scan::byte(msg, 0).is_some_and(|first| first.is_ascii_uppercase()) {
        return Err(Outcome::NotHttp.into());
    }
    scan::head(msg, heads);
    // Read through memory: the verifier need not know what the loop did.
    // SAFETY: the record's own.
    let (found, line, end, length) = unsafe {
        (
            (&raw const heads.found).read_volatile(),
            (&raw const heads.line).read_volatile() as u64,
            (&raw const heads.end).read_volatile() as u64,
            (&raw const heads.length).read_volatile(),
        )
    };
    if line != 0 && !is_request(msg, line) {
        return Err(Outcome::NotHttp.into());
    }
    if found & scan::BAD != 0 {
        return Err(Outcome::Malformed.into());
    }
    if found & scan::WHOLE == 0 {
        // Without a line feed the protocol is unknown.
        return Err(if line != 0 { Outcome::NotWhole } else { Outcome::NotHttp }.into());
    }
    if found & scan::UPGRADE != 0 || scan::word(msg, 0) == Some(u64::from_le_bytes(*b"CONNECT ")) {
        return Err(Outcome::Upgrade.into());
    }
    let grown = if found & scan::PRESENT != 0 {
        count(Outcome::Present);
        0
    } else {
        insert(msg, sk, tcp, heads, start, line as u32)?
    };
    heads.state = HEADS_FOLLOWED;
    heads.opened = 0;
    heads.next = start.wrapping_add(size).wrapping_add(grown);
    if found & scan::CHUNKED != 0 {
        return Err(Outcome::Chunked.into());
    }
    if found & scan::EXPECT != 0 {
        return Err(Outcome::Expect.into());
    }
    if control() & ONCE != 0 {
        return Err(Outcome::Once.into());
    }
    heads.rest = (end + length).checked_sub(size as u64).ok_or(Outcome::Pipelined)?;
    heads.body = (size as u64).saturating_sub(end) as u32;
    Ok(())
}

/// Whether the first `line` bytes are an HTTP/1.1 or 1.0 request line (RFC 9112 §3).
#[inline(always)]
fn is_request(msg: *mut sk_msg_md, line: u64) -> bool {
    const VERSION: u64 = u64::from_le_bytes(*b"HTTP/1.\0");
    // The shortest is `A / HTTP/1.1`.
    if line < 14 {
        return false;
    }
    let Some(version) = scan::word(msg, line - 10) else { return false };
    version & 0x00ff_ffff_ffff_ffff == VERSION
        && matches!((version >> 56) as u8, b'0' | b'1')
        && scan::byte(msg, line - 11) == Some(b' ')
}

/// Sets [`Heads::chosen`] for a request on a connection `established` then. A function of its own, and through memory:
/// otherwise the compiler keeps so many values that the verifier never sees the same state twice in the loops before.
#[inline(never)]
fn choose(heads: &mut Heads, established: u64) {
    let task = Task::current();
    let (trace, flags, held) = if heads.opened != 0 {
        (heads.opener, heads.opener_flags, INBAND_HELD)
    } else if let Some(held) = held(task, Some(established)) {
        (held.trace, held.flags, INBAND_HELD)
    } else {
        (random_trace(), DRAWN as u32, 0)
    };
    heads.chosen = [trace[0], trace[1], (flags as u64) << 8 | held as u64];
}

/// Inserts the header behind the first line, unless the kernel could send it in part; returns how many bytes it added.
#[inline(always)]
fn insert(
    msg: *mut sk_msg_md,
    sk: *mut c_void,
    tcp: Tcp,
    heads: &mut Heads,
    start: u32,
    line: u32,
) -> Result<u32, Stop> {
    if control() & TESTING != 0 {
        grow(msg, line, heads.end, random_trace(), random(), DRAWN as u32)?;
        count(Outcome::Injected);
        return Ok(LEN);
    }
    let Some(policy) = policy::control() else { return Ok(0) };
    let task = Task::current();
    let sock = SOCKS.get(sk, false);
    if sock.is_null() || !policy::traced(policy, task.tgid()) {
        return Ok(0);
    }
    // SAFETY: not null; a sender holds the socket's lock, and other hooks look at it later.
    let sock = unsafe { &mut *sock };
    if sock.flags & SOCK_IGNORED != 0 {
        return Ok(0);
    }
    if control() & NO_BLOCKING != 0 && tcp.blocks() {
        return Err(Outcome::Blocking.into());
    }
    // With nothing under way the window has room for the whole head: the kernel sends it whole.
    if start != tcp.snd_una() {
        count(Outcome::Busy);
        return Ok(0);
    }
    choose(heads, sock.established);
    let [first, second, rest] = heads.chosen;
    let (trace, flags, held) = ([first, second], (rest >> 8) as u32, rest as u8);
    let span = random();
    // Reserve the record first: user space could not match a context it never learns of to a call.
    let Some(slot) = ring::reserve(size_of::<InbandContext>() as u64, Lost::RingTag) else { return Ok(0) };
    let done = grow(msg, line, heads.end, trace, span, flags);
    put(
        slot,
        if done.is_ok() { INBAND_TX | held } else { INBAND_TX | INBAND_REFUSED },
        heads.cookie,
        trace,
        span,
        start,
        flags,
    );
    done?;
    sock.grown = sock.grown.wrapping_add(LEN);
    sock.grown_at = start;
    count(Outcome::Injected);
    Ok(LEN)
}

/// Inserts the line into a head of `end` bytes.
#[inline(always)]
fn grow(msg: *mut sk_msg_md, at: u32, end: u32, trace: [u64; 2], span: u64, flags: u32) -> Result<(), Stop> {
    // SAFETY: the context is the helper's.
    if unsafe { bpf_msg_push_data(msg, at, LEN, 0) } != 0 {
        return Err(Outcome::Refused.into());
    }
    // Pull the whole head, so that it is contiguous: the kernel sends a piece whole or not at all.
    // SAFETY: as above.
    let pulled = unsafe { bpf_msg_pull_data(msg, 0, end + LEN, 0) } == 0;
    if pulled && line::write(msg, at as u64, trace, span, flags) {
        return Ok(());
    }
    // SAFETY: as above.
    if unsafe { bpf_msg_pop_data(msg, at, LEN, 0) } != 0 {
        return Err(Stop::Drop);
    }
    Err(Outcome::Refused.into())
}

/// hook: cgroup sock_ops, of the root. First seen: 5.15. Emits nothing.
#[sock_ops]
pub(crate) fn header_sockets(ctx: SockOpsContext) -> u32 {
    let ops = ctx.ops;
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => connects(ops),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => connected(ops),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => accepted(ops),
        BPF_SOCK_OPS_RTT_CB | BPF_SOCK_OPS_RETRANS_CB => acknowledged(ops),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == TCP_CLOSE => closed(ops),
        _ => {}
    }
    1
}

/// Whether a callback's connection goes to one of the destinations.
#[inline(always)]
fn chosen(ops: *mut bpf_sock_ops) -> bool {
    let mut key = Key::new(0, [0u8; 18]);
    // SAFETY: members of the context.
    let (family, port) = unsafe { ((*ops).family as u16, u32::from_be((*ops).remote_port) as u16) };
    // Load all of them in either case: the compiler merges two loads in two branches into one at an offset the verifier
    // does not know.
    // SAFETY: members of the context.
    let (short, long) = unsafe {
        let ip6 = &raw const (*ops).remote_ip6;
        let at = |i: usize| ip6.cast::<u32>().add(i).read_volatile();
        ((&raw const (*ops).remote_ip4).read_volatile(), [at(0), at(1), at(2), at(3)])
    };
    let address = match family {
        FAMILY_INET => [0, 0, 0xffffu32.to_be(), short],
        FAMILY_INET6 => long,
        _ => return false,
    };
    let [high, low] = port.to_be_bytes();
    key.data[0] = high;
    key.data[1] = low;
    for (i, word) in address.into_iter().enumerate() {
        let [a, b, c, d] = word.to_ne_bytes();
        key.data[2 + 4 * i] = a;
        key.data[3 + 4 * i] = b;
        key.data[4 + 4 * i] = c;
        key.data[5 + 4 * i] = d;
    }
    key.prefix_len = PORT_BITS + 128;
    if DESTINATIONS.get(&key).is_some() {
        return true;
    }
    key.data[0] = 0;
    key.data[1] = 0;
    DESTINATIONS.get(&key).is_some()
}

/// The current thread called `connect`.
#[inline(always)]
fn connects(ops: *mut bpf_sock_ops) {
    let Some(policy) = policy::control() else { return };
    // SAFETY: members of the context.
    let (local, remote) = unsafe { ((*ops).local_port, u32::from_be((*ops).remote_port)) };
    let sk = socket(ops);
    if sk.is_null() || !policy::ports_traced(policy, local as u16, remote as u16) || !own_namespace(ops) || !chosen(ops)
    {
        return;
    }
    let task = Task::current();
    if !policy::traced(policy, task.tgid()) {
        return;
    }
    let heads = HEADS.get(sk, true);
    if heads.is_null() {
        return emit::count(Lost::SocketStorage);
    }
    // SAFETY: not null; the socket is locked.
    let heads = unsafe { &mut *heads };
    // SAFETY: the context is one the helper takes.
    heads.cookie = unsafe { bpf_get_socket_cookie(ops.cast()) };
    if let Some(held) = held(task, None) {
        heads.opener = held.trace;
        heads.opener_flags = held.flags;
        heads.opened = 1;
    }
}

/// The record of a callback's connection, if it goes to a destination.
#[inline(always)]
fn known(ops: *mut bpf_sock_ops) -> Option<&'static mut Heads> {
    let sk = socket(ops);
    if sk.is_null() {
        return None;
    }
    let heads = HEADS.get(sk, false);
    // SAFETY: null or the record; the socket is locked.
    unsafe { heads.as_mut() }
}

#[inline(always)]
fn connected(ops: *mut bpf_sock_ops) {
    let Some(heads) = known(ops) else { return };
    if heads.state != HEADS_FRESH {
        return;
    }
    heads.state = HEADS_GONE;
    let sk = socket(ops);
    if sk.is_null() {
        return;
    }
    let Some(tcp) = SockPtr(sk).tcp() else { return };
    if control() & NO_BLOCKING != 0 && tcp.blocks() {
        return count(Outcome::Blocking);
    }
    if tcp.lends() {
        return count(Outcome::ZeroCopy);
    }
    // Bytes in the SYN itself have passed unseen.
    if tcp.bytes_acked() > SYN || tcp.write_seq() != tcp.snd_una() {
        return count(Outcome::NotTaken);
    }
    let mut key = heads.cookie;
    // SAFETY: the context and the map are what the helper takes.
    let refused = unsafe {
        bpf_sock_hash_update(ops, ptr::from_ref(&MEMBERS).cast_mut().cast(), (&raw mut key).cast(), BPF_NOEXIST as u64)
    };
    const E2BIG: i64 = -7;
    if refused != 0 {
        return count(if refused as i64 == E2BIG { Outcome::Full } else { Outcome::NotTaken });
    }
    heads.state = HEADS_FRESH;
    count(Outcome::Joined);
    listen(ops, BPF_SOCK_OPS_RTT_CB_FLAG | BPF_SOCK_OPS_RETRANS_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/// The peer acknowledged what was sent: releases a socket that gets no more headers, before its owner can read what
/// came with the acknowledgement. A retransmission may be acknowledged without a callback, so a retransmission releases
/// too.
#[inline(always)]
fn acknowledged(ops: *mut bpf_sock_ops) {
    let Some(heads) = known(ops) else { return };
    if heads.state != HEADS_OVER {
        return;
    }
    heads.state = HEADS_GONE;
    count(Outcome::Left);
    let key = heads.cookie;
    // SAFETY: the map and a key of it. A missing key needs no deletion.
    unsafe { bpf_map_delete_elem(ptr::from_ref(&MEMBERS).cast_mut().cast(), (&raw const key).cast()) };
}

/// The connection closed: the kernel removes it from the map by itself.
#[inline(always)]
fn closed(ops: *mut bpf_sock_ops) {
    let Some(heads) = known(ops) else { return };
    if heads.state != HEADS_GONE {
        heads.state = HEADS_GONE;
        count(Outcome::Left);
    }
}

/// A connection was accepted: the calls its requests cause carry the requests' transaction.
#[inline(always)]
fn accepted(ops: *mut bpf_sock_ops) {
    let Some(policy) = policy::control() else { return };
    // SAFETY: members of the context.
    let (local, remote) = unsafe { ((*ops).local_port, u32::from_be((*ops).remote_port)) };
    let sk = socket(ops);
    if sk.is_null() || !policy::ports_traced(policy, local as u16, remote as u16) || !own_namespace(ops) {
        return;
    }
    let carrier = CARRIERS.get(sk, true);
    if carrier.is_null() {
        return emit::count(Lost::SocketStorage);
    }
    // SAFETY: not null; the socket is locked.
    let carrier = unsafe { &mut *carrier };
    carrier.role = CARRIER_RECEIVES;
    // SAFETY: the context is one the helper takes.
    carrier.cookie = unsafe { bpf_get_socket_cookie(ops.cast()) };
}
