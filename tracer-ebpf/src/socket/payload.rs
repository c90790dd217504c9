//! The bytes of an operation, from the user buffer that its system call still names in the saved registers.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_kernel, bpf_probe_read_user};
use tracer_common::{
    arch::Shape,
    event::Op,
    limits::{HEAD_MAX, IOVECS_MAX, IOVECS_SENT_MAX, TAIL_MAX},
};

use super::uring;
use crate::{
    bound,
    kernel::{regs::Regs, sock::SockPtr},
    scratch::Walk,
    storage::Thread,
};

/// Offset of `msg_iov` and `msg_iovlen` in the user's `struct msghdr` (64-bit).
const MSG_IOV: u64 = 16;
/// Size of `struct mmsghdr` (64-bit).
pub(super) const MMSGHDR: u64 = 64;
/// Offset of `msg_len` in it.
const MMSG_LEN: u64 = 56;

/// Elements of an array of I/O vectors from which the tail is gathered.
const TAIL_PIECES: u32 = 8;
/// Instead of an array's length: there is no array but one buffer.
const BUFFER: u64 = u64::MAX;
/// Bit of an array's length: the array is in the thread's own record, not in user memory.
pub(super) const OWN: u64 = 1 << 32;

/// Which of an operation's payload was copied behind its record.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    /// There is no user buffer, or its address is unknown.
    pub(crate) missing: bool,
    /// User memory was not present.
    pub(crate) fault: bool,
}

/// A value in user memory; zero if it cannot be read.
#[inline(always)]
pub(crate) fn user<T: Copy>(at: u64) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the helper tolerates any address and zeroes what it could not read, so the value is always written.
    unsafe {
        bpf_probe_read_user(value.as_mut_ptr().cast(), size_of::<T>() as u32, at as *const c_void);
        value.assume_init()
    }
}

/// Copies up to `cap` bytes from the front of the operation's buffer behind `op`, and its last bytes after them if the
/// front does not cover everything.
///
/// # Safety
/// `op` is the place of a record, with room behind it for two heads and a tail.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "one call, inlined: a struct would only be spilled to the stack")]
pub(super) unsafe fn copy(
    op: *mut Op,
    sk: SockPtr,
    shape: Shape,
    regs: Regs,
    thread: &mut Thread,
    bytes: u32,
    cap: u32,
    tx: bool,
) -> Found {
    if bytes == 0 {
        return Found::default();
    }
    // First where the bytes are, then one copy for all shapes: the verifier would walk one per shape.
    let found = match shape {
        Shape::Buffer => [regs.arg1(), BUFFER],
        Shape::Vectors => [regs.arg1(), regs.arg2()],
        Shape::Message => user(regs.arg1() + MSG_IOV),
        Shape::Messages => user(regs.arg1() + message_index(regs, thread, bytes) * MMSGHDR + MSG_IOV),
        Shape::Other => match uring::take(sk, tx) {
            Some((buffer, 0)) => [buffer, BUFFER],
            Some((vec, count)) => [vec, count],
            None => [0, 0],
        },
        Shape::Pages => [0, 0],
    };
    let source = &raw mut thread.walk.source;
    // SAFETY: the thread's record. Through memory, so that nothing distinguishes the shapes for the verifier.
    let [at, count] = unsafe {
        source.write_volatile(found);
        source.read_volatile()
    };
    if at == 0 {
        Found { missing: true, ..Found::default() }
    } else if count == BUFFER {
        // SAFETY: behind `op` there is room for a head and a tail.
        unsafe { one(op, source, at, bytes, cap) }
    } else {
        let count = count & (OWN - 1);
        // SAFETY: as above.
        unsafe {
            source.write_volatile([at, count]);
            vectors(op, at, count, bytes, cap, tx)
        }
    }
}

/// Which message of a `sendmmsg`/`recvmmsg` array this is. The hook fires once per message while the registers name
/// only the array; the kernel has written the length of each finished message back before the next one starts, so
/// the same array whose previous element carries the previous length is the same call going on.
#[inline(always)]
fn message_index(regs: Regs, thread: &mut Thread, bytes: u32) -> u64 {
    let array = regs.arg1();
    let mut index = 0u32;
    let next = thread.mmsg_next;
    if thread.mmsg == array && next != 0 && (next as u64) < (regs.arg2() & 0xffff_ffff) && next < 1024 {
        let before: u32 = user(array + (next as u64 - 1) * MMSGHDR + MMSG_LEN);
        if before == thread.mmsg_bytes {
            index = next;
        }
    }
    thread.mmsg = array;
    thread.mmsg_next = index + 1;
    thread.mmsg_bytes = bytes;
    index as u64
}

/// One buffer.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn one(op: *mut Op, source: *mut [u64; 2], buffer: u64, bytes: u32, cap: u32) -> Found {
    if buffer == 0 {
        return Found { missing: true, ..Found::default() };
    }
    // SAFETY: the thread's record; the payload lies behind the operation's record.
    let payload = unsafe {
        source.write_volatile([buffer, 0]);
        op.add(1).cast::<u8>()
    };
    let want = if bytes < cap { bytes } else { cap };
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(want as u64) as u32;
    // SAFETY: `head` is at most HEAD_MAX, which fits.
    let refused = unsafe { bpf_probe_read_user(payload.cast(), head, buffer as *const c_void) };
    if refused != 0 {
        return Found { fault: true, ..Found::default() };
    }
    // SAFETY: behind the head there is room for a tail.
    unsafe { with_tail(payload, head, buffer + bytes as u64, bytes) }
}

/// An array of I/O vectors in the thread's own record.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn own(op: *mut Op, thread: &mut Thread, bytes: u32, cap: u32) -> Found {
    let (vec, count) = ((&raw const thread.unsent.pieces) as u64, thread.unsent.count | OWN);
    // SAFETY: the thread's record; behind `op` there is room for a head and a tail.
    unsafe {
        (&raw mut thread.walk.source).write_volatile([vec, count]);
        vectors(op, vec, count, bytes, cap, true)
    }
}

/// Reads a piece's address and length.
#[inline(always)]
pub(super) fn element(to: *mut [u64; 2], at: u64, is_own: bool) {
    // SAFETY: 16 bytes of the caller's; the helpers tolerate any address.
    unsafe {
        if is_own {
            bpf_probe_read_kernel(to.cast(), 16, at as *const c_void);
        } else {
            bpf_probe_read_user(to.cast(), 16, at as *const c_void);
        }
    }
}

/// Adds the last bytes before user address `end` if `head` bytes do not cover all `bytes`.
///
/// # Safety
/// `payload` has room for [`HEAD_MAX`] and [`TAIL_MAX`] bytes.
#[inline(always)]
unsafe fn with_tail(payload: *mut u8, head: u32, end: u64, bytes: u32) -> Found {
    let rest = bytes - head;
    if rest == 0 {
        return Found { head, ..Found::default() };
    }
    let tail = bound::at_most::<{ TAIL_MAX as u64 }>(rest as u64) as u32;
    let at = bound::at_most::<{ HEAD_MAX as u64 }>(head as u64) as usize;
    // SAFETY: `at` and `tail` are bounded; the area has room for both.
    let refused = unsafe { bpf_probe_read_user(payload.add(at).cast(), tail, (end - tail as u64) as *const c_void) };
    Found { head, tail: if refused == 0 { tail } else { 0 }, ..Found::default() }
}

/// What a step over an array of I/O vectors works on. All that changes is in map memory ([`Walk`]).
struct Gathering {
    op: *mut Op,
    vec: u64,
    count: u64,
    /// The array is in the thread's own record.
    is_own: bool,
    /// Bytes of the head at most.
    cap: u64,
    /// Bytes of the finished head: the tail goes behind it.
    head: u64,
}

/// An array of `count` I/O vectors at `vec`, which may be [`OWN`]: gathers the front, and the tail if the last few elements hold
/// it.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn vectors(op: *mut Op, vec: u64, count: u64, bytes: u32, cap: u32, tx: bool) -> Found {
    let walk = op.cast::<Walk>();
    set!(walk, 0, head);
    set!(walk, bytes as u64, left);
    set!(walk, 0, fault);
    let (is_own, count) = (count & OWN != 0, count & (OWN - 1));
    let mut gathering = Gathering { op, vec, count, is_own, cap: cap as u64, head: 0 };
    let most = if tx { IOVECS_SENT_MAX } else { IOVECS_MAX } as u32;
    // SAFETY: `gather` takes such an argument.
    unsafe { bpf_loop(most, gather as *mut c_void, (&raw mut gathering).cast(), 0) };
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(get!(walk, head)) as u32;
    if get!(walk, fault) != 0 {
        return Found { head, fault: true, ..Found::default() };
    }
    let rest = bytes - head;
    if get!(walk, left) != 0 || rest == 0 {
        return Found { head, ..Found::default() };
    }
    // From the ends of the last elements: they hold fragments of a few bytes.
    let tail = bound::at_most::<{ TAIL_MAX as u64 }>(rest as u64);
    set!(walk, tail, due);
    gathering.head = head as u64;
    // SAFETY: `gather_tail` takes such an argument.
    unsafe { bpf_loop(TAIL_PIECES, gather_tail as *mut c_void, (&raw mut gathering).cast(), 0) };
    Found { head, tail: if get!(walk, due) == 0 { tail as u32 } else { 0 }, ..Found::default() }
}

/// Adds what the array's next element has of the head; 1 if the walk is over.
#[inline(never)]
extern "C" fn gather(i: u32, gathering: *mut Gathering) -> i64 {
    // SAFETY: the argument `vectors` passed.
    let (op, vec, count, cap) = unsafe { ((*gathering).op, (*gathering).vec, (*gathering).count, (*gathering).cap) };
    let walk = op.cast::<Walk>();
    let left = get!(walk, left);
    if i as u64 >= count || left == 0 {
        return 1;
    }
    let place = vec + i as u64 * 16;
    // SAFETY: the caller's area, and the argument `vectors` passed.
    unsafe { element(&raw mut (*walk).vector, place, (*gathering).is_own) };
    let (base, len) = (get!(walk, vector[0]), get!(walk, vector[1]));
    let len = if len < left { len } else { left };
    let head = get!(walk, head);
    if head < cap {
        let room = cap - head;
        let n = bound::at_most::<{ HEAD_MAX as u64 }>(if len < room { len } else { room });
        let at = bound::at_most::<{ HEAD_MAX as u64 }>(head);
        // SAFETY: both are at most HEAD_MAX; the area behind the record holds their sum.
        let refused = unsafe {
            let payload = op.add(1).cast::<u8>();
            bpf_probe_read_user(payload.add(at as usize).cast(), n as u32, base as *const c_void)
        };
        if refused != 0 {
            set!(walk, 1, fault);
            return 1;
        }
        set!(walk, at + n, head);
    }
    set!(walk, left - len, left);
    set!(walk, place, last);
    set!(walk, len, used);
    0
}

/// Adds what the last element that is left has of the tail; 1 if the walk is over.
#[inline(never)]
extern "C" fn gather_tail(_: u32, gathering: *mut Gathering) -> i64 {
    // SAFETY: the argument `vectors` passed.
    let (op, head, is_own) = unsafe { ((*gathering).op, (*gathering).head, (*gathering).is_own) };
    let walk = op.cast::<Walk>();
    let (last, used, due) = (get!(walk, last), get!(walk, used), get!(walk, due));
    // SAFETY: as above; the walk never goes before the first element, because the elements from there on hold all bytes.
    unsafe { element(&raw mut (*walk).vector, last, is_own) };
    let n = bound::at_most::<{ TAIL_MAX as u64 }>(if used < due { used } else { due });
    let at = bound::at_most::<{ HEAD_MAX as u64 }>(head) + bound::at_most::<{ TAIL_MAX as u64 }>(due - n);
    let from = get!(walk, vector[0]) + used - n;
    // SAFETY: the area holds a head and twice a tail.
    let refused = unsafe {
        let payload = op.add(1).cast::<u8>();
        bpf_probe_read_user(payload.add(at as usize).cast(), n as u32, from as *const c_void)
    };
    if refused != 0 {
        return 1;
    }
    set!(walk, due - n, due);
    if due == n {
        return 1;
    }
    // The elements before it were used whole.
    set!(walk, last - 16, last);
    // SAFETY: as above.
    unsafe { element(&raw mut (*walk).vector, last - 16, is_own) };
    set!(walk, get!(walk, vector[1]), used);
    0
}
