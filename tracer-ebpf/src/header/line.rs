//! The header line, byte by byte.

use aya_ebpf::bindings::sk_msg_md;
use tracer_common::header::{LEN, LOOK};

use crate::bound;

const NAME: &[u8; 16] = b"traceparent: 00-";

/// Sixteen hexadecimal digits of eight bytes, in memory order.
#[inline(always)]
fn digits(value: u64) -> [u64; 2] {
    [spread(value as u32), spread((value >> 32) as u32)]
}

/// Eight digits of four bytes.
#[inline(always)]
pub(super) fn spread(value: u32) -> u64 {
    let value = value as u64;
    // Each byte into two, the high half first.
    let pairs = (value & 0xff) | (value & 0xff00) << 8 | (value & 0xff_0000) << 16 | (value & 0xff00_0000) << 24;
    let nibbles = (pairs >> 4 & 0x000f_000f_000f_000f) | (pairs & 0x000f_000f_000f_000f) << 8;
    // Digits above nine: adding six sets a bit.
    let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    nibbles + 0x3030_3030_3030_3030 + letters * 39
}

/// Writes the line into [`LEN`] contiguous bytes of the message, from `at` on; returns false if the message is shorter.
#[inline(always)]
pub(super) fn write(msg: *mut sk_msg_md, at: u64, trace: [u64; 2], span: u64, flags: u32) -> bool {
    let [a, b] = digits(trace[0]);
    let [c, d] = digits(trace[1]);
    let [e, f] = digits(span);
    // Dashes precede the span and the flags, so everything after the first dash straddles words.
    let dash = b'-' as u64;
    let [head, name] = [first(NAME), second(NAME)];
    let flags = spread(flags & 0xff) & 0xffff;
    let end = u16::from_le_bytes(*b"\r\n") as u64;
    let words =
        [head, name, a, b, c, d, dash | e << 8, e >> 56 | f << 8, f >> 56 | dash << 8 | flags << 16 | end << 32];
    // SAFETY: members of the context.
    let (data, last) = unsafe { ((*msg).__bindgen_anon_1.data as usize, (*msg).__bindgen_anon_2.data_end as usize) };
    let place = data + bound::at_most::<{ LOOK as u64 }>(at) as usize;
    if place + LEN as usize > last {
        return false;
    }
    let place = place as *mut u8;
    // SAFETY: within the message, as just compared: eight words and six bytes.
    unsafe {
        for (i, word) in words.into_iter().enumerate().take(8) {
            place.add(8 * i).cast::<u64>().write_unaligned(word);
        }
        place.add(64).cast::<u32>().write_unaligned(words[8] as u32);
        place.add(68).cast::<u16>().write_unaligned((words[8] >> 32) as u16);
    }
    true
}

#[inline(always)]
const fn first(name: &[u8; 16]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *name;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

#[inline(always)]
const fn second(name: &[u8; 16]) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *name;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
