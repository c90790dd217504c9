//! The bytes of an operation, from the user buffer that its system call still names in the saved registers.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
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
const TAIL_PIECES: usize = 8;

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
    let source = &raw mut thread.walk.source;
    match shape {
        // SAFETY: behind `op` there is room for a head and a tail.
        Shape::Buffer => unsafe { one(op, source, regs.arg1(), bytes, cap) },
        // SAFETY: as above.
        Shape::Vectors => unsafe { vectors(op, source, regs.arg1(), regs.arg2(), bytes, cap, tx) },
        Shape::Message => {
            let [vec, count] = user::<[u64; 2]>(regs.arg1() + MSG_IOV);
            // SAFETY: as above.
            unsafe { vectors(op, source, vec, count, bytes, cap, tx) }
        }
        Shape::Messages => {
            let message = regs.arg1() + message_index(regs, thread, bytes) * MMSGHDR;
            let [vec, count] = user::<[u64; 2]>(message + MSG_IOV);
            // SAFETY: as above.
            unsafe { vectors(op, source, vec, count, bytes, cap, tx) }
        }
        Shape::Pages => Found { missing: true, ..Found::default() },
        Shape::Other => match uring::take(sk, tx) {
            // SAFETY: as above.
            Some((buffer, 0)) => unsafe { one(op, source, buffer, bytes, cap) },
            // SAFETY: as above.
            Some((vec, count)) => unsafe { vectors(op, source, vec, count, bytes, cap, tx) },
            None => Found { missing: true, ..Found::default() },
        },
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

/// An array of `count` I/O vectors at user address `vec`: gathers the front, and the tail if the last few elements hold
/// it.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn vectors(op: *mut Op, source: *mut [u64; 2], vec: u64, count: u64, bytes: u32, cap: u32, tx: bool) -> Found {
    if vec == 0 {
        return Found { missing: true, ..Found::default() };
    }
    let walk = op.cast::<Walk>();
    // SAFETY: behind the record.
    let payload = unsafe { op.add(1).cast::<u8>() };
    let get = |field: *mut u64| {
        // SAFETY: a field of `walk`.
        unsafe { field.read_volatile() }
    };
    let set = |field: *mut u64, value: u64| {
        // SAFETY: a field of `walk`.
        unsafe { field.write_volatile(value) }
    };
    // SAFETY: fields of the caller's area.
    let (head_at, left_at, last_at, used_at, due_at, base_at, len_at) = unsafe {
        (
            &raw mut (*walk).head,
            &raw mut (*walk).left,
            &raw mut (*walk).last,
            &raw mut (*walk).used,
            &raw mut (*walk).due,
            &raw mut (*walk).vector[0],
            &raw mut (*walk).vector[1],
        )
    };
    // SAFETY: the thread's record.
    unsafe { source.write_volatile([vec, count]) };
    set(head_at, 0);
    set(left_at, bytes as u64);
    let cap = bound::at_most::<{ HEAD_MAX as u64 }>(cap as u64);
    let most = if tx { IOVECS_SENT_MAX } else { IOVECS_MAX } as u64;
    for i in 0..most {
        let left = get(left_at);
        if i >= count || left == 0 {
            break;
        }
        // SAFETY: 16 bytes of the caller's area; the helper tolerates any user address.
        unsafe { bpf_probe_read_user(base_at.cast(), 16, (vec + i * 16) as *const c_void) };
        let base = get(base_at);
        let len = get(len_at);
        let len = if len < left { len } else { left };
        let head = get(head_at);
        if head < cap {
            let room = cap - head;
            let n = bound::at_most::<{ HEAD_MAX as u64 }>(if len < room { len } else { room });
            let at = bound::at_most::<{ HEAD_MAX as u64 }>(head);
            // SAFETY: both are at most HEAD_MAX; the area holds their sum.
            if unsafe { bpf_probe_read_user(payload.add(at as usize).cast(), n as u32, base as *const c_void) } != 0 {
                return Found { head: at as u32, fault: true, ..Found::default() };
            }
            set(head_at, at + n);
        }
        set(left_at, left - len);
        set(last_at, vec + i * 16);
        set(used_at, len);
    }
    let head = bound::at_most::<{ HEAD_MAX as u64 }>(get(head_at)) as u32;
    let rest = bytes - head;
    if get(left_at) != 0 || rest == 0 {
        return Found { head, ..Found::default() };
    }
    // From the ends of the last elements: they hold fragments of a few bytes.
    let tail = bound::at_most::<{ TAIL_MAX as u64 }>(rest as u64);
    set(due_at, tail);
    for _ in 0..TAIL_PIECES {
        let last = get(last_at);
        // SAFETY: as above; the walk never goes before the first element, because the elements from there on hold all
        // bytes.
        unsafe { bpf_probe_read_user(base_at.cast(), 8, last as *const c_void) };
        let used = get(used_at);
        let due = get(due_at);
        let n = bound::at_most::<{ TAIL_MAX as u64 }>(if used < due { used } else { due });
        let at = bound::at_most::<{ HEAD_MAX as u64 }>(head as u64) + bound::at_most::<{ TAIL_MAX as u64 }>(due - n);
        let from = get(base_at) + used - n;
        // SAFETY: the area holds a head and twice a tail.
        if unsafe { bpf_probe_read_user(payload.add(at as usize).cast(), n as u32, from as *const c_void) } != 0 {
            break;
        }
        set(due_at, due - n);
        if due == n {
            return Found { head, tail: tail as u32, ..Found::default() };
        }
        // The elements before it were used whole.
        set(last_at, last - 16);
        set(used_at, user(last - 16 + 8));
    }
    Found { head, ..Found::default() }
}
