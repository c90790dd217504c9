//! Starts of HTTP/2 frames that begin behind the front of an operation. Frame headers hold the lengths, so user space
//! can follow bodies longer than the carried payload.
//!
//! The position of the next frame carries over from one operation to the next while operations are long; a long
//! operation of unknown position is assumed to begin with a frame, as most do. A wrong assumption costs only the bytes
//! carried here: user space looks only where it expects a frame.
//!
//! A separate program, which the others tail-call if there are frames to follow: inside theirs the verifier would walk
//! every step once per path.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_loop, bpf_probe_read_user},
    macros::{btf_tracepoint, map},
    maps::ProgramArray,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{OP_EOF, OP_FAULT, OP_NO_PAYLOAD, Op},
    limits::{FRAMES_BYTES, HEAD_MAX, TAIL_MAX},
    ring::CLEARED,
};

use super::{
    ALONE_UNIX,
    payload::{OWN, element},
    pieces,
};
use crate::{
    bound, call_stack,
    kernel::{sock::SockPtr, task::Task},
    own_stack,
    ring::Slot,
    storage::{FrameWalk, Frames, SOCKS, THREADS, Thread},
};

/// Steps of a walk: a frame takes two or three, an element of an array of I/O vectors one.
const STEPS: u32 = 192;
/// Bytes of a frame's header (RFC 9113 §4.1).
const HEADER: u64 = 9;
/// Bytes of a client's preface (§3.4).
const PREFACE: u64 = 24;
/// Payload bytes carried of a DATA frame: its padding length, or the prefix of a gRPC message.
const DATA_CARRIED: u64 = 7;
/// Longest plausible frame.
const LONGEST: u64 = 1 << 20;
/// Highest known type.
const TYPES: u64 = 9;
/// Bytes before a fragment: its offset in the operation, and above 32 bits its length.
const PREFIX: u64 = 8;
/// Most bytes of fragments kept: behind them is room for the header that is read last.
const KEPT: u64 = FRAMES_BYTES as u64 - 64;
/// Of these, kept free by long fragments for the beginnings of the frames behind them.
const KEPT_FREE: u64 = 1024;
/// Longest fragment that may use them.
const SHORT: u64 = 256;
/// Frames of a short operation whose headers are looked at before a walk begins.
const LOOKED_AT: usize = 4;
/// Consecutive short operations of whole frames after which the walk stops tracking where frames begin.
const CALM: u8 = 16;
/// Marks a fragment not to keep.
const NONE: u64 = u64::MAX;

/// Tail-called after a send.
#[map]
pub(crate) static FRAMES_TX: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// Tail-called after a receive.
#[map]
pub(super) static FRAMES_RX: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// The same for UNIX sockets with hooks of their own: a program can tail-call only programs of the same hook.
#[map]
pub(super) static FRAMES_TX_UNIX: ProgramArray = ProgramArray::with_max_entries(1, 0);
#[map]
pub(super) static FRAMES_RX_UNIX: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// A field of a record that the verifier must not follow: position, bytes and front of the operation.
macro_rules! field {
    ($record:expr, $name:ident) => {
        // SAFETY: a field of the record, which is there.
        unsafe { (&raw const (*$record.cast::<Op>()).$name).read_volatile() as u64 }
    };
}

pub(super) use field;

/// Called by [`super::tx`] and [`super::tx_again`].
#[btf_tracepoint(function = "sock_send_length")]
pub(crate) fn frames_tx(ctx: BtfTracePointContext) -> i32 {
    follow::<true>(&ctx, &FRAMES_TX, SockPtr(ctx.arg(0)));
    call_stack::go_on_of_current::<false>(&ctx);
    0
}

/// Called by [`super::rx`] and [`super::rx_again`].
#[btf_tracepoint(function = "sock_recv_length")]
pub(crate) fn frames_rx(ctx: BtfTracePointContext) -> i32 {
    follow::<false>(&ctx, &FRAMES_RX, SockPtr(ctx.arg(0)));
    0
}

/// Hands the operation, whose record is written, to the other program if there are frames to follow; returns if there
/// are none, or no program.
#[inline(always)]
pub(super) fn go_on<const TX: bool, const WHICH: u8>(
    ctx: &impl EbpfContext,
    thread: &mut Thread,
    frames: &Frames,
    slot: &Slot,
) {
    // SAFETY: the record was written there.
    let op = unsafe { &*slot.record.cast::<Op>() };
    if op.header.flags & (OP_NO_PAYLOAD | OP_FAULT | OP_EOF) != 0 {
        return;
    }
    let known = frames.known != 0 && frames.next >= op.pos;
    let inside = known && frames.have == 0 && frames.next >= op.pos + op.bytes as u64;
    if inside || !known && op.bytes <= op.head as u32 && ends_with_frame(slot.record) {
        return;
    }
    thread.walk.slot = slot.park();
    call::<TX, WHICH>(ctx);
}

/// Calls the other program, for the record whose slot is parked; returns if there is none.
#[inline(always)]
pub(super) fn call<const TX: bool, const WHICH: u8>(ctx: &impl EbpfContext) {
    let array = match (TX, WHICH) {
        (true, ALONE_UNIX) => &FRAMES_TX_UNIX,
        (false, ALONE_UNIX) => &FRAMES_RX_UNIX,
        (true, _) => &FRAMES_TX,
        (false, _) => &FRAMES_RX,
    };
    // SAFETY: the array holds only programs for this hook.
    unsafe { array.tail_call(ctx, 0) };
}

/// Whether an operation that its record's front holds whole consists of whole frames, a few at most: then the next
/// operation begins with a frame.
#[inline(always)]
fn ends_with_frame(record: *mut u8) -> bool {
    let (pos, bytes) = (field!(record, pos), field!(record, bytes));
    // SAFETY: behind the record is its payload.
    let payload = unsafe { record.add(size_of::<Op>()) };
    // SAFETY: as above.
    let is_preface = pos == 0 && unsafe { payload.cast::<u32>().read_volatile() } == u32::from_ne_bytes(super::PREFACE);
    let mut at = if is_preface { PREFACE } else { 0 };
    for _ in 0..LOOKED_AT {
        if at >= bytes {
            break;
        }
        let here = bound::at_most::<{ HEAD_MAX as u64 }>(at) as usize;
        // SAFETY: within the room for a head and a tail.
        let byte = |n: usize| unsafe { payload.add(here + n).read_volatile() } as u64;
        at += HEADER + (byte(0) << 16 | byte(1) << 8 | byte(2));
    }
    at == bytes
}

/// Copies behind the record the starts of frames that the operation's front does not hold whole, and completes the
/// record. `array`: where this program is called from.
#[inline(always)]
pub(super) fn follow<const TX: bool>(ctx: &impl EbpfContext, array: &ProgramArray, sk: SockPtr) {
    own_stack::keep(ctx, array);
    let thread = THREADS.get(Task::current().0, false);
    if thread.is_null() {
        return;
    }
    // SAFETY: not null, and only this thread's programs touch it while it runs.
    let walk = unsafe { &raw mut (*thread).walk };
    // SAFETY: as above.
    let Some(slot) = Slot::unpark(unsafe { &(*walk).slot }) else { return };
    if get!(walk, whole) != 0 {
        set!(walk, 0, whole);
        // SAFETY: as above.
        return pieces::copy(walk, unsafe { &raw mut (*thread).ops }, slot);
    }
    let sock = SOCKS.get(sk.0, false);
    let mut fragments = 0;
    set!(walk, 0, piece);
    set!(walk, 0, out);
    if !sock.is_null() {
        // SAFETY: not null. Two threads on one socket race; user space reads from elsewhere.
        let frames = unsafe { &mut (*sock).frames[TX as usize] };
        // SAFETY: the slot has the room.
        fragments = unsafe { pieces_of(walk, slot.record, frames) };
    }
    complete(walk, slot, fragments);
}

/// Completes the record of `slot`, behind which are `fragments` bytes of fragments.
#[inline(always)]
pub(crate) fn complete(walk: *mut FrameWalk, slot: Slot, fragments: u64) {
    let fragments = bound::at_most::<{ FRAMES_BYTES as u64 }>(fragments);
    // SAFETY: the record is there.
    let op = unsafe { &mut *slot.record.cast::<Op>() };
    if fragments != 0 {
        op.frames = fragments as u32;
        op.header.len = (size_of::<Op>() as u64 + aligned(slot.record) + fragments) as u32;
    }
    let len = op.header.len as u64;
    // A fragment under way when the walk ended was written to, but not kept.
    if get!(walk, out).wrapping_sub(get!(walk, piece)) <= CLEARED as u64 / 2 {
        slot.complete_short(len);
    } else {
        slot.complete(len);
    }
}

/// Bytes behind the record before its fragments: a multiple of eight, because fragments contain words.
#[inline(always)]
fn aligned(record: *mut u8) -> u64 {
    // SAFETY: the record is there.
    let (head, tail) = unsafe {
        let op = record.cast::<Op>();
        ((&raw const (*op).head).read_volatile(), (&raw const (*op).tail).read_volatile())
    };
    bound::at_most::<{ (HEAD_MAX + TAIL_MAX) as u64 }>(head as u64 + tail as u64 + 7 & !7)
}

/// What a step of the walk works on; all that changes is in map memory, so that every step looks the same to the verifier.
struct Following {
    walk: *mut FrameWalk,
    record: *mut u8,
    frames: *mut Frames,
}

/// Where fragments go: behind the record and its payload.
#[inline(always)]
fn area(record: *mut u8) -> *mut u8 {
    // SAFETY: behind the record.
    unsafe { record.add(size_of::<Op>()).add(aligned(record) as usize) }
}

/// Copies the fragments; returns how many bytes they take.
///
/// # Safety
/// Behind the record and its payload is room for [`FRAMES_BYTES`].
#[inline(always)]
pub(crate) unsafe fn pieces_of(walk: *mut FrameWalk, record: *mut u8, frames: &mut Frames) -> u64 {
    let (pos, end) = (field!(record, pos), field!(record, bytes));
    if frames.known == 0 || frames.next < pos {
        frames.have = 0;
        // SAFETY: the operation's front: the walk excludes operations without payload.
        let preface = pos == 0
            && unsafe { record.cast::<Op>().add(1).cast::<u32>().read_volatile() }
                == u32::from_ne_bytes(super::PREFACE);
        frames.next = if preface { pos + PREFACE } else { pos };
    }
    let have = bound::at_most::<8>(frames.have as u64);
    let first = frames.next - pos;
    let calm = have == 0 && first == 0 && end <= field!(record, head);
    set!(walk, 0, element);
    set!(walk, first, cur);
    set!(walk, 0, piece);
    set!(walk, if have == 0 { first } else { NONE }, place);
    set!(walk, PREFIX + have, out);
    set!(walk, HEADER - have, left);
    // No frame payload is being copied.
    set!(walk, 0, next);
    if get!(walk, source[1]) == 0 {
        set!(walk, get!(walk, source[0]), vector[0]);
        set!(walk, end, vector[1]);
    } else {
        set!(walk, 0, vector[1]);
    }
    // The first bytes of a header that came with the operation before.
    // SAFETY: the first fragment's bytes.
    unsafe { area(record).add(PREFIX as usize).cast::<u64>().write(frames.carry) };
    frames.known = 0;
    let mut following = Following { walk, record, frames: &raw mut *frames };
    // SAFETY: `step` takes such an argument.
    unsafe { bpf_loop(STEPS, step as *mut c_void, (&raw mut following).cast(), 0) };
    // SAFETY: `step` has changed it through its address.
    let known = unsafe { (&raw const frames.known).read_volatile() };
    if known != 0 {
        let (pos, end, cur, next) = (field!(record, pos), field!(record, bytes), get!(walk, cur), get!(walk, next));
        let have = HEADER - bound::at_most::<HEADER>(get!(walk, left));
        frames.have = 0;
        frames.calm = if calm && cur == end { frames.calm + 1 } else { 0 };
        if next != 0 {
            // The last frame's payload continues in the next operation, whose front has it.
            frames.next = pos + next;
        } else {
            frames.next = pos + cur;
            if have != 0 {
                let piece = bound::at_most::<{ FRAMES_BYTES as u64 }>(get!(walk, piece));
                frames.have = have as u8;
                // SAFETY: the fragment's bytes.
                frames.carry = unsafe { area(record).add((piece + PREFIX) as usize).cast::<u64>().read() };
            }
        }
        if have != 0 || next != 0 {
            close(walk, area(record), field!(record, head));
        }
        if frames.calm >= CALM {
            (frames.known, frames.calm) = (0, 0);
        }
    }
    get!(walk, piece)
}

/// One step of the walk: the next element of an array, a frame's header, or the payload carried of it; 1 ends the walk.
#[inline(never)]
extern "C" fn step(_: u32, following: *mut Following) -> i64 {
    // SAFETY: the argument `pieces_of` passed.
    let (walk, record, frames) = unsafe { ((*following).walk, (*following).record, (*following).frames) };
    let (cur, left, end) = (get!(walk, cur), get!(walk, left), field!(record, bytes));
    if cur >= end {
        // SAFETY: the socket's or the connection's record.
        unsafe { (&raw mut (*frames).known).write_volatile(1) };
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
    let there = begin + len - cur;
    let there = if there < end - cur { there } else { end - cur };
    let n = bound::at_most::<{ FRAMES_BYTES as u64 }>(if left < there { left } else { there });
    let out = bound::at_most::<{ FRAMES_BYTES as u64 }>(get!(walk, out));
    let from = get!(walk, vector[0]) + (cur - begin);
    // SAFETY: fragments end before `KEPT`, and a header fits behind it.
    if unsafe { bpf_probe_read_user(area(record).add(out as usize).cast(), n as u32, from as *const c_void) } != 0 {
        return 1;
    }
    set!(walk, out + n, out);
    set!(walk, cur + n, cur);
    set!(walk, left - n, left);
    if left != n {
        return 0;
    }
    let mut next = get!(walk, next);
    if next == 0 {
        let piece = bound::at_most::<{ FRAMES_BYTES as u64 }>(get!(walk, piece));
        // SAFETY: the first eight bytes of the header, just read.
        let header = unsafe { area(record).add((piece + PREFIX) as usize).cast::<u64>().read() }.to_be();
        let (len, kind) = (header >> 40, header >> 32 & 0xff);
        // All zeros are no frame, but common in bodies.
        if len > LONGEST || kind > TYPES || header == 0 {
            return 1;
        }
        let carried = if kind == 0 && len > DATA_CARRIED { DATA_CARRIED } else { len };
        let (place, used) = (get!(walk, place), piece + PREFIX + HEADER);
        let kept = if carried > SHORT { KEPT - KEPT_FREE } else { KEPT };
        let room = if used < kept { kept - used } else { 0 };
        let carried = if carried < room { carried } else { room };
        // The front may hold it already. What the operation does not hold is not copied, so it does not count: `close` judges
        // alike, and what is given back of the slot was not written to.
        let reached = place.wrapping_add(HEADER + carried);
        let reached = if reached < end { reached } else { end };
        let is_kept = place != NONE && reached > field!(record, head);
        let carried = if is_kept { carried } else { 0 };
        next = cur + n + len;
        if carried != 0 {
            set!(walk, carried, left);
            set!(walk, next, next);
            return 0;
        }
    }
    close(walk, area(record), field!(record, head));
    set!(walk, next, cur);
    set!(walk, next, place);
    set!(walk, HEADER, left);
    set!(walk, 0, next);
    0
}

/// Keeps the copied fragment, if the operation's front does not hold it whole and there is room for another one.
#[inline(always)]
fn close(walk: *mut FrameWalk, area: *mut u8, front: u64) {
    let (out, place) = (get!(walk, out), get!(walk, place));
    let piece = bound::at_most::<{ FRAMES_BYTES as u64 }>(get!(walk, piece));
    let len = out - piece - PREFIX;
    let mut next = piece;
    if place != NONE && place + len > front && out <= KEPT {
        // SAFETY: before the fragment's bytes.
        unsafe { area.add(piece as usize).cast::<u64>().write(place | len << 32) };
        next = out + 7 & !7;
    }
    set!(walk, next, piece);
    set!(walk, next + PREFIX, out);
}
