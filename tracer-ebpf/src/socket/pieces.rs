//! Operations that one record does not hold, in several records: a pipeline sends thousands of requests at once, each of
//! which counts. The records look like operations that followed each other at once, which a stream allows.
//!
//! A separate program for the same reason as [`super::frames`], and the same program as that, because a socket needs one
//! or the other.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user},
};
use tracer_common::{
    event::{OP_DATAGRAM, OP_EOF, OP_FAULT, OP_NO_PAYLOAD, OP_UNSEEN, Op},
    limits::{HEAD_MAX, HEAD_WHOLE, TAIL_MAX},
    policy::Control,
};

use super::{
    frames::{self, field},
    payload::{OWN, element},
};
use crate::{
    bound,
    ring::{self, Slot},
    storage::{FrameWalk, SOCK_BODIES, SOCK_DECIDED, SOCK_FRAMES, Sock, Thread},
};

/// Steps of a walk: a record takes one, and an element of an array of I/O vectors another.
const STEPS: u32 = 192;
/// Bytes of a connection's operations that are carried whole until user space has said what it wants of it: a pipeline of
/// some twenty thousand commands. The same of a TLS library's text.
pub(crate) const UNDECIDED: u32 = 1 << 20;
/// First bytes of protocols whose long operations are bodies: what begins in them are no messages. A hint, until user
/// space has determined the protocol: HTTP's replies and methods, and FastCGI.
const BODIES: [[u8; 4]; 9] =
    [*b"HTTP", *b"GET ", *b"POST", *b"PUT ", *b"HEAD", *b"PATC", *b"DELE", *b"OPTI", [1, 1, 0, 1]];
/// How records of TLS begin: one of four types, which differ in two bits, and version 3.x, at most [`TLS_MINOR`].
const TLS: u32 = 0x0314;
const TLS_BITS: u32 = 0xfffc;
const TLS_MINOR: u32 = 4;

/// Whether a connection whose first bytes in a direction are `first` transfers bodies.
#[inline(always)]
pub(crate) fn are_bodies(first: u32) -> bool {
    // Without jumps, so that the verifier follows one path.
    let later = TLS_MINOR.wrapping_sub(first >> 16 & 0xff) >> 31;
    let mut others = differs(first & TLS_BITS, TLS) | later;
    for word in BODIES {
        others &= differs(first, u32::from_ne_bytes(word));
    }
    others == 0
}

/// 1 if `a` is not `b`, else 0.
#[inline(always)]
fn differs(a: u32, b: u32) -> u32 {
    let found = a ^ b;
    (found | found.wrapping_neg()) >> 31
}

/// Hands the operation, whose record is written, to the other program if its bytes beyond the record are wanted; returns
/// if they are not, or if there is no program.
#[inline(always)]
pub(super) fn go_on<const TX: bool, const WHICH: u8>(
    ctx: &impl EbpfContext,
    control: &Control,
    thread: &mut Thread,
    sock: &mut Sock,
    slot: &Slot,
) {
    // SAFETY: the record was written there.
    let op = unsafe { &*slot.record.cast::<Op>() };
    let asked = if TX { sock.head_tx } else { sock.head_rx };
    // What the first bytes look like is a guess, and user space knows better.
    let undecided = asked == 0 && sock.flags & (SOCK_DECIDED | SOCK_BODIES) == 0 && sock.carried < UNDECIDED;
    if op.header.flags & (OP_NO_PAYLOAD | OP_FAULT | OP_EOF | OP_DATAGRAM) != 0
        || sock.flags & SOCK_FRAMES != 0
        || !(undecided || asked == HEAD_WHOLE)
        || control.head_max < HEAD_MAX as u32
        || thread.unsent.len != 0
    {
        return;
    }
    if undecided {
        sock.carried += if op.bytes < UNDECIDED { op.bytes } else { UNDECIDED };
    }
    thread.walk.slot = slot.park();
    thread.walk.whole = 1;
    frames::call::<TX, WHICH>(ctx);
    thread.walk.whole = 0;
}

/// What a step of the walk works on; all that changes is in map memory, so that every step looks the same to the verifier.
struct Copying {
    walk: *mut FrameWalk,
    ops: *mut u32,
    /// The operation's first record.
    first: *mut u8,
}

/// Copies the bytes beyond the record of `slot` into records of their own, and completes that record last: so the reader
/// finds all of them, or none.
#[inline(always)]
pub(crate) fn copy(walk: *mut FrameWalk, ops: *mut u32, slot: Slot) {
    let first = slot.record;
    let (head, end) = (field!(first, head), field!(first, bytes));
    set!(walk, 0, element);
    set!(walk, head, cur);
    set!(walk, head, place);
    set!(walk, 0, out);
    // No record so far.
    set!(walk, 0, next);
    if get!(walk, source[1]) == 0 {
        set!(walk, get!(walk, source[0]), vector[0]);
        set!(walk, end, vector[1]);
    } else {
        set!(walk, 0, vector[1]);
    }
    let mut copying = Copying { walk, ops, first };
    // SAFETY: `step` takes such an argument.
    unsafe { bpf_loop(STEPS, step as *mut c_void, (&raw mut copying).cast(), 0) };
    // SAFETY: the walk has its own record.
    if get!(walk, next) != 0
        && let Some(last) = Slot::unpark(unsafe { &(*walk).slot })
    {
        finish(&copying, last, end);
        // SAFETY: the record is there.
        let op = unsafe { &mut *first.cast::<Op>() };
        op.bytes = head as u32;
        op.tail = 0;
        op.header.len = (size_of::<Op>() as u64 + head) as u32;
    }
    // SAFETY: the record is there.
    let len = unsafe { (&raw const (*first.cast::<Op>()).header.len).read_volatile() } as u64;
    slot.complete(len);
}

/// One step of the walk: the next element of an array, and what the record under way has room for of it; 1 ends the walk.
#[inline(never)]
extern "C" fn step(_: u32, copying: *mut Copying) -> i64 {
    // SAFETY: the argument `copy` passed.
    let copying = unsafe { &*copying };
    let (walk, first) = (copying.walk, copying.first);
    let (cur, end) = (get!(walk, cur), field!(first, bytes));
    if cur >= end {
        return 1;
    }
    let (begin, len) = (get!(walk, element), get!(walk, vector[1]));
    if cur >= begin + len {
        let count = get!(walk, source[1]);
        if count & (OWN - 1) == 0 {
            return 1;
        }
        set!(walk, count - 1, source[1]);
        let vec = get!(walk, source[0]);
        set!(walk, vec + 16, source[0]);
        set!(walk, begin + len, element);
        // SAFETY: a field of the thread's record.
        element(unsafe { &raw mut (*walk).vector }, vec, count & OWN != 0);
        return 0;
    }
    if get!(walk, next) == 0 || get!(walk, out) >= HEAD_MAX as u64 {
        let left = end - cur;
        let left = if left < HEAD_MAX as u64 { left } else { HEAD_MAX as u64 };
        let room = size_of::<Op>() as u64 + left + TAIL_MAX as u64;
        // Other records need the ring, too.
        let Some(slot) = ring::reserve_of::<1, true>(room, None) else { return 1 };
        if get!(walk, next) != 0
            // SAFETY: the walk has its own record.
            && let Some(full) = Slot::unpark(unsafe { &(*walk).slot })
        {
            finish(copying, full, cur);
        }
        set!(walk, 1, next);
        set!(walk, 0, out);
        set!(walk, cur, place);
        // SAFETY: as above.
        unsafe { (&raw mut (*walk).slot).write(slot.park()) };
    }
    // SAFETY: as above.
    let Some(slot) = Slot::unpark(unsafe { &(*walk).slot }) else { return 1 };
    let there = begin + len - cur;
    let there = if there < end - cur { there } else { end - cur };
    let out = bound::at_most::<{ HEAD_MAX as u64 }>(get!(walk, out));
    let room = HEAD_MAX as u64 - out;
    let n = bound::at_most::<{ HEAD_MAX as u64 }>(if there < room { there } else { room });
    let from = get!(walk, vector[0]) + (cur - begin);
    // SAFETY: what is reserved has room for what the operation has left, and `HEAD_MAX` at most.
    let refused = unsafe {
        let payload = slot.record.add(size_of::<Op>());
        bpf_probe_read_user(payload.add(out as usize).cast(), n as u32, from as *const c_void)
    };
    if refused != 0 {
        return 1;
    }
    set!(walk, out + n, out);
    set!(walk, cur + n, cur);
    0
}

/// Completes the record under way, which stands for the operation's bytes up to `end`.
#[inline(always)]
fn finish(copying: &Copying, slot: Slot, end: u64) {
    let (walk, first) = (copying.walk, copying.first);
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(get!(walk, out));
    let place = get!(walk, place);
    let bytes = end - place;
    let op = slot.record.cast::<Op>();
    let (before, last) = (field!(first, head), field!(first, tail));
    // SAFETY: both records are there, and behind this one is room for its payload and a tail.
    unsafe {
        bpf_probe_read_kernel(op.cast(), size_of::<Op>() as u32, first.cast());
        // What is left of the operation was not copied: its last bytes are behind the first record.
        let mut tail = 0;
        if head < bytes {
            let last = if last < bytes - head { last } else { 0 };
            tail = bound::at_most::<{ TAIL_MAX as u64 }>(last);
            let before = bound::at_most::<{ HEAD_MAX as u64 }>(before) as usize;
            let (from, to) = (first.add(size_of::<Op>()).add(before), slot.record.add(size_of::<Op>()));
            bpf_probe_read_kernel(to.add(head as usize).cast(), tail as u32, from.cast());
        }
        let ops = copying.ops.read_volatile().wrapping_add(1);
        copying.ops.write_volatile(ops);
        let op = &mut *op;
        op.pos += place;
        op.bytes = bytes as u32;
        // 0: it has none.
        if op.seq != 0 {
            op.seq = op.seq.wrapping_add(place as u32);
        }
        op.head = head as u16;
        op.tail = tail as u16;
        op.frames = 0;
        op.nth = ops;
        op.sent_cookie = 0;
        // Of a text: where in it this record begins.
        op.sent_at = place;
        op.header.flags &= !OP_UNSEEN;
        let len = size_of::<Op>() as u64 + head + tail;
        op.header.len = len as u32;
        slot.complete(len);
    }
}
