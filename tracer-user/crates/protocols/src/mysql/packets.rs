//! Packets: three bytes of length, a sequence number, then the payload.

/// Bytes of a packet before its payload.
pub(super) const HEADER: usize = 4;
/// A packet of this length continues in the next one.
pub(super) const FULL: u64 = 0xff_ffff;

/// The front of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// Its sequence number; 0 begins an exchange.
    pub(super) number: u8,
    /// Length of the payload.
    pub(super) length: u64,
    /// The captured part of the payload.
    pub(super) payload: &'a [u8],
}

impl Packet<'_> {
    pub(super) fn is_whole(&self) -> bool {
        self.payload.len() as u64 == self.length
    }

    /// Its bytes that are there, including the header, and the number still missing.
    pub(super) fn split(&self) -> (usize, u64) {
        (HEADER + self.payload.len(), self.length - self.payload.len() as u64)
    }
}

/// Reads the front of a packet; `None`: its header is incomplete.
pub(super) fn packet(bytes: &[u8]) -> Option<Packet<'_>> {
    let [a, b, c, number, payload @ ..] = bytes else { return None };
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, 0]));
    let there = payload.len().min(length as usize);
    Some(Packet { number: *number, length, payload: payload.get(..there).unwrap_or_default() })
}

/// A 16-bit number.
pub(super) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at.checked_add(2)?)?;
    two.try_into().ok().map(u16::from_le_bytes)
}

/// A 32-bit number.
pub(super) fn long(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    four.try_into().ok().map(u32::from_le_bytes)
}

/// A length-encoded integer, and the offset after it.
pub(super) fn integer(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    let size = match first {
        0..=0xfa => return Some((u64::from(first), at + 1)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let mut value = [0; 8];
    value.get_mut(..size)?.copy_from_slice(bytes.get(at + 1..at + 1 + size)?);
    Some((u64::from_le_bytes(value), at + 1 + size))
}
