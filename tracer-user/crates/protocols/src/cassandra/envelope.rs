//! Envelopes (native protocol, §2), and the segments that version 5 wraps them in (version 5, §2.2).

/// Bytes of an envelope before its body.
pub(super) const HEADER: usize = 9;
/// Longest body (§2.4).
const BODY_LIMIT: i32 = 256 << 20;
/// Bytes of a segment before and after its payload; compressed ones give two lengths.
pub(super) const BEFORE: usize = 6;
const BEFORE_PACKED: usize = 8;
pub(super) const BEHIND: u64 = 4;

/// Envelope flags.
pub(super) const PACKED: u8 = 0x01;
pub(super) const TRACING: u8 = 0x02;
pub(super) const PAYLOAD: u8 = 0x04;
pub(super) const WARNING: u8 = 0x08;
const FLAGS: u8 = 0x1f;

/// An envelope's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) is_reply: bool,
    pub(super) version: u8,
    pub(super) flags: u8,
    /// Negative for unsolicited events from the server.
    pub(super) stream: i16,
    pub(super) kind: u8,
    /// Length in bytes, including the header.
    pub(super) len: u64,
}

impl Envelope {
    /// The header at the front of `bytes`; `None`: not a header, or incomplete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let ([version, flags, high, low, kind, len @ ..], _) = bytes.split_first_chunk::<HEADER>()?;
        let is_reply = version & 0x80 != 0;
        let len = i32::from_be_bytes(*len);
        let envelope = Self {
            is_reply,
            version: version & 0x7f,
            flags: *flags,
            stream: i16::from_be_bytes([*high, *low]),
            kind: *kind,
            len: u64::try_from(len).ok()? + HEADER as u64,
        };
        let kind = match kind {
            0x01 | 0x05 | 0x07 | 0x09..=0x0b | 0x0d | 0x0f => !is_reply,
            0x00 | 0x02 | 0x03 | 0x06 | 0x08 | 0x0c | 0x0e | 0x10 => is_reply,
            _ => false,
        };
        let stream = envelope.stream >= 0 || is_reply && envelope.stream == -1;
        let fits = (3..=5).contains(&envelope.version) && *flags & !FLAGS == 0 && len <= BODY_LIMIT;
        (kind && stream && fits).then_some(envelope)
    }
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Payload of this many bytes: whole envelopes, or a part of one.
    Plain { payload: u64, whole: bool },
    /// Compressed: total bytes.
    Packed(u64),
}

impl Segment {
    /// The header at the front of `bytes`, if its checksum is valid.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let number = |len: usize| -> Option<u64> {
            let bytes = bytes.get(..len)?;
            Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let fits = |len: usize| -> Option<u64> {
            let header = number(len)?;
            let sum = number(len + 3)? >> (len * 8);
            (crc24(header, len) == sum).then_some(header)
        };
        if let Some(header) = fits(3) {
            let plain = Self::Plain { payload: header & 0x1_ffff, whole: header >> 17 & 1 == 1 };
            return (header & 0x1_ffff > 0).then_some(plain);
        }
        let header = fits(5)?;
        let packed = header & 0x1_ffff;
        (packed > 0).then_some(Self::Packed(BEFORE_PACKED as u64 + packed + BEHIND))
    }
}

/// The checksum of segment headers (version 5, §2.2.1: "CRC24").
fn crc24(mut header: u64, len: usize) -> u64 {
    let mut crc = 0x87_5060;
    for _ in 0..len {
        crc ^= (header & 0xff) << 16;
        header >>= 8;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= 0x197_4f0b;
            }
        }
    }
    crc
}

/// A segment with this payload, for tests.
#[cfg(test)]
pub(super) fn segment(payload: &[u8], whole: bool) -> Vec<u8> {
    let header = payload.len() as u64 | u64::from(whole) << 17;
    let mut bytes = header.to_le_bytes()[..3].to_vec();
    bytes.extend_from_slice(&crc24(header, 3).to_le_bytes()[..3]);
    bytes.extend_from_slice(payload);
    // The trailing checksum is never read.
    bytes.extend_from_slice(&[0; BEHIND as usize]);
    bytes
}

/// A segment with `packed` bytes of compressed payload, for tests.
#[cfg(test)]
pub(super) fn packed_segment(packed: u64) -> Vec<u8> {
    let mut bytes = packed.to_le_bytes()[..5].to_vec();
    bytes.extend_from_slice(&crc24(packed, 5).to_le_bytes()[..3]);
    bytes.resize(BEFORE_PACKED + (packed + BEHIND) as usize, b'p');
    bytes
}
