//! Scans what a system call sends for the head of an HTTP/1.1 request: where its first line and the head end, and which
//! headers determine where the request ends.
//!
//! Anything that servers could read in two ways is [`BAD`]. Findings stay in the socket's record, so that the verifier
//! sees no difference between rounds of the loop.

use aya_ebpf::bindings::sk_msg_md;
use tracer_common::header::LOOK;

use crate::{bound, storage::Heads};

/// [`Heads::found`]: the head ends here.
pub(super) const WHOLE: u32 = 1 << 0;
/// [`Heads::found`]: the head is unreliable.
pub(super) const BAD: u32 = 1 << 1;
/// [`Heads::found`]: there is a `traceparent`.
pub(super) const PRESENT: u32 = 1 << 2;
/// [`Heads::found`]: `Transfer-Encoding`.
pub(super) const CHUNKED: u32 = 1 << 3;
/// [`Heads::found`]: `Expect`.
pub(super) const EXPECT: u32 = 1 << 4;
/// [`Heads::found`]: an upgrade to something other than HTTP/2.
pub(super) const UPGRADE: u32 = 1 << 5;
/// [`Heads::found`]: `Content-Length`.
const LENGTH: u32 = 1 << 6;
/// [`Heads::found`]: its value has begun.
const DIGITS: u32 = 1 << 7;

/// [`Heads::mode`]: search the end of the line.
const SEEK: u32 = 0;
/// [`Heads::mode`]: at the start of a line.
const LINE: u32 = 1;
/// [`Heads::mode`]: read the value of `Content-Length`.
const VALUE: u32 = 2;
/// [`Heads::mode`]: read the value of `Upgrade`.
const PROTOCOL: u32 = 3;

/// Rounds of the loop: one for two words of the head, and two more for each of some fifty lines; with more lines than
/// that the verifier would walk more than half of its limit. A longer head gets no header.
const ROUNDS: u32 = LOOK / 16 + 96;
/// Longest body the scan follows: 10^15 bytes.
const LENGTH_MAX: u64 = 1_000_000_000_000_000;

/// Sets the lower-case bit of letters; `-` and `:` keep their values.
const LOWER: u64 = 0x2020_2020_2020_2020;

/// Eight bytes at `at`, unless the head's visible part ends before.
#[inline(always)]
pub(super) fn word(msg: *mut sk_msg_md, at: u64) -> Option<u64> {
    // SAFETY: members of the context.
    let (data, end) = unsafe { ((*msg).__bindgen_anon_1.data as usize, (*msg).__bindgen_anon_2.data_end as usize) };
    let place = data + bound::at_most::<{ LOOK as u64 }>(at) as usize;
    if place + 8 > end {
        return None;
    }
    // SAFETY: within the message, as just compared.
    Some(unsafe { (place as *const u64).read_unaligned() })
}

/// The byte at `at`.
#[inline(always)]
pub(super) fn byte(msg: *mut sk_msg_md, at: u64) -> Option<u8> {
    // SAFETY: members of the context.
    let (data, end) = unsafe { ((*msg).__bindgen_anon_1.data as usize, (*msg).__bindgen_anon_2.data_end as usize) };
    let place = data + bound::at_most::<{ LOOK as u64 }>(at) as usize;
    if place + 1 > end {
        return None;
    }
    // SAFETY: within the message, as just compared.
    Some(unsafe { (place as *const u8).read_volatile() })
}

/// The first line feed in eight bytes.
#[inline(always)]
pub(super) fn line_feed(word: u64) -> Option<u64> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zero = word ^ 0x0a0a_0a0a_0a0a_0a0a;
    // The lowest set bit marks the first line feed; higher bits can be false.
    let hits = zero.wrapping_sub(ONES) & !zero & 0x8080_8080_8080_8080;
    if hits == 0 {
        return None;
    }
    let first = (hits & hits.wrapping_neg()) >> 7;
    Some(first.wrapping_mul(0x0001_0203_0405_0607) >> 56)
}

/// Scans the head of the message.
#[inline(always)]
pub(super) fn head(msg: *mut sk_msg_md, heads: &mut Heads) {
    let heads: *mut Heads = heads;
    // SAFETY: fields of the record.
    let (at_of, mode_of, found_of, line_of, end_of, length_of) = unsafe {
        (
            &raw mut (*heads).at,
            &raw mut (*heads).mode,
            &raw mut (*heads).found,
            &raw mut (*heads).line,
            &raw mut (*heads).end,
            &raw mut (*heads).length,
        )
    };
    let get = |field: *mut u32| {
        // SAFETY: a field of the record.
        unsafe { field.read_volatile() }
    };
    let set = |field: *mut u32, value: u32| {
        // SAFETY: a field of the record.
        unsafe { field.write_volatile(value) }
    };
    for field in [at_of, mode_of, found_of, line_of, end_of] {
        set(field, 0);
    }
    // SAFETY: a field of the record.
    unsafe { length_of.write_volatile(0) };
    for _ in 0..ROUNDS {
        let at = get(at_of) as u64;
        let mode = get(mode_of);
        if mode == SEEK {
            let feed = if let Some(eight) = word(msg, at) {
                if let Some(index) = line_feed(eight) {
                    at + index
                } else {
                    let more = match word(msg, at + 8) {
                        Some(eight) => line_feed(eight),
                        None => Some(8),
                    };
                    // Skip two words without a line feed; else the next round looks at the second one.
                    set(at_of, at as u32 + if more.is_none() { 16 } else { 8 });
                    continue;
                }
            } else {
                let Some(one) = byte(msg, at) else { return };
                if one != b'\n' {
                    set(at_of, at as u32 + 1);
                    continue;
                }
                at
            };
            if feed == 0 || byte(msg, feed - 1) != Some(b'\r') {
                set(found_of, BAD);
                return;
            }
            if get(line_of) == 0 {
                set(line_of, feed as u32 + 1);
            }
            set(at_of, feed as u32 + 1);
            set(mode_of, LINE);
            continue;
        }
        if mode == LINE {
            set(mode_of, SEEK);
            let Some(first) = byte(msg, at) else { return };
            if first == b'\r' {
                if byte(msg, at + 1) != Some(b'\n') {
                    return;
                }
                set(end_of, at as u32 + 2);
                set(found_of, get(found_of) | WHOLE);
                return;
            }
            if first == b' ' || first == b'\t' || first == b'\n' {
                set(found_of, BAD);
                return;
            }
            // No relevant name is as short as what is left.
            let Some(front) = word(msg, at) else { continue };
            let front = front | LOWER;
            if front == u64::from_le_bytes(*b"upgrade:") {
                set(at_of, at as u32 + 8);
                set(mode_of, PROTOCOL);
                continue;
            }
            if front & 0x00ff_ffff_ffff_ffff == u64::from_le_bytes(*b"expect:\0") {
                set(found_of, get(found_of) | EXPECT);
                continue;
            }
            let Some(back) = word(msg, at + 8) else { continue };
            let back = back | LOWER;
            if front == u64::from_le_bytes(*b"tracepar") && back as u32 == u32::from_le_bytes(*b"ent:") {
                set(found_of, get(found_of) | PRESENT);
            } else if front == u64::from_le_bytes(*b"transfer") && back == u64::from_le_bytes(*b"-encodin") {
                set(found_of, get(found_of) | CHUNKED);
            } else if front == u64::from_le_bytes(*b"content-")
                && back & 0x0000_ffff_ffff_ffff == u64::from_le_bytes(*b"length\0\0")
            {
                let found = get(found_of);
                if found & LENGTH != 0 || (back >> 48) as u8 != b':' {
                    set(found_of, BAD);
                    return;
                }
                set(found_of, found | LENGTH);
                set(at_of, at as u32 + 15);
                set(mode_of, VALUE);
            }
            continue;
        }
        let Some(one) = byte(msg, at) else { return };
        if one == b' ' && (mode == PROTOCOL || get(found_of) & DIGITS == 0) {
            set(at_of, at as u32 + 1);
            continue;
        }
        if mode == VALUE {
            if one == b'\r' && get(found_of) & DIGITS != 0 {
                set(mode_of, SEEK);
                continue;
            }
            // SAFETY: a field of the record.
            let length = unsafe { length_of.read_volatile() };
            if !one.is_ascii_digit() || length > LENGTH_MAX {
                set(found_of, BAD);
                return;
            }
            // SAFETY: a field of the record.
            unsafe { length_of.write_volatile(length * 10 + (one - b'0') as u64) };
            set(found_of, get(found_of) | DIGITS);
            set(at_of, at as u32 + 1);
            continue;
        }
        // A protocol agreed on by `h2c` begins with a line of its own (RFC 9113 §3.4), which no request line matches.
        set(mode_of, SEEK);
        if one | 0x20 != b'h'
            || byte(msg, at + 1) != Some(b'2')
            || !matches!(byte(msg, at + 2), Some(b'c' | b'C'))
            || byte(msg, at + 3) != Some(b'\r')
        {
            set(found_of, get(found_of) | UPGRADE);
        }
    }
}
