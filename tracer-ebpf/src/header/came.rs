//! Reads the context in the head of a received request, where headers propagate contexts: the calls a request causes
//! carry its transaction's name.
//!
//! User space reads the header itself and decides on the parent. The context found here only names what is sent
//! meanwhile; user space counts where it finds another (`renamed`).

use tracer_common::{arch::Shape, header::LOOK};

use super::{line::spread, scan::line_feed};
use crate::{
    arch,
    kernel::{regs::Regs, task::Task},
    socket::user,
    storage::Carrier,
};

/// Offset of `msg_iov` in the user's `struct msghdr` (64-bit).
const MSG_IOV: u64 = 16;
/// Rounds of the loop: one per word of the head, and one more per line.
const ROUNDS: u32 = LOOK / 16;
/// Sets the lower-case bit of letters; `:` keeps its value.
const LOWER: u64 = 0x2020_2020_2020_2020;

/// Transaction and trace flags in the `traceparent` of the `bytes` that the thread's system call has just read, if
/// their first buffer begins with a head that has one (W3C Trace Context §3.2).
#[inline(always)]
pub(crate) fn context(task: Task, carrier: &mut Carrier, bytes: u32) -> Option<([u64; 2], u32)> {
    let regs = Regs::of(task);
    let vector = match arch::shape(regs.nr()) {
        Shape::Buffer => [regs.arg1(), bytes as u64],
        Shape::Vectors => user(regs.arg1()),
        Shape::Message => user(user::<u64>(regs.arg1() + MSG_IOV)),
        _ => return None,
    };
    let [base, len] = vector;
    let len = if len < bytes as u64 { len } else { bytes as u64 };
    let at_of = &raw mut carrier.looked;
    // SAFETY: a field of the record; through memory, so that the verifier sees no difference between rounds.
    unsafe { at_of.write_volatile(0) };
    for _ in 0..ROUNDS {
        // SAFETY: as above.
        let at = unsafe { at_of.read_volatile() } as u64;
        if at + 8 > len {
            return None;
        }
        let Some(index) = line_feed(user(base + at)) else {
            // SAFETY: as above.
            unsafe { at_of.write_volatile(at as u32 + 8) };
            continue;
        };
        let at = at + index + 1;
        // SAFETY: as above.
        unsafe { at_of.write_volatile(at as u32) };
        let [front, back]: [u64; 2] = user(base + at);
        if front as u16 == u16::from_le_bytes(*b"\r\n") {
            return None;
        }
        if front | LOWER == u64::from_le_bytes(*b"tracepar")
            && back as u32 | LOWER as u32 == u32::from_le_bytes(*b"ent:")
        {
            let value = base + at + if (back >> 32) as u8 == b' ' { 13 } else { 12 };
            return parse(value);
        }
    }
    None
}

/// Parses the header's value.
#[inline(always)]
fn parse(at: u64) -> Option<([u64; 2], u32)> {
    let [version, a, b, c, d, rest]: [u64; 6] =
        [user(at), user(at + 3), user(at + 11), user(at + 19), user(at + 27), user(at + 35)];
    let flags: u32 = user(at + 52);
    if version as u32 & 0xff_ffff != u32::from_le_bytes(*b"00-\0") || rest as u8 != b'-' || flags as u8 != b'-' {
        return None;
    }
    let first = bytes(a)? as u64 | (bytes(b)? as u64) << 32;
    let second = bytes(c)? as u64 | (bytes(d)? as u64) << 32;
    if first | second == 0 {
        return None;
    }
    // Two digits, padded to eight.
    let flags = bytes((flags as u64 >> 8 & 0xffff) | 0x3030_3030_3030_0000)?;
    Some(([first, second], flags & 0xff))
}

/// Four bytes from eight lower-case digits, in memory order.
#[inline(always)]
fn bytes(digits: u64) -> Option<u32> {
    const HALVES: u64 = 0x000f_000f_000f_000f;
    let nibbles = (digits & 0x0f0f_0f0f_0f0f_0f0f) + (digits >> 6 & 0x0101_0101_0101_0101) * 9;
    let pairs = (nibbles & HALVES) << 4 | nibbles >> 8 & HALVES;
    let pairs = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    let value = (pairs | pairs >> 16) as u32;
    (spread(value) == digits).then_some(value)
}
