//! Packets: three bytes of length, a number in the exchange, then what it says.

/// Bytes of a packet before what it says.
pub(super) const HEADER: usize = 4;
/// A packet of this length is followed by the rest of it.
pub(super) const FULL: u64 = 0xff_ffff;

/// The front of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// Its number in the exchange: 0 begins one.
    pub(super) number: u8,
    /// Bytes of what it says.
    pub(super) length: u64,
    /// What it says, as far as it is there.
    pub(super) payload: &'a [u8],
}

impl Packet<'_> {
    pub(super) fn is_whole(&self) -> bool {
        self.payload.len() as u64 == self.length
    }

    /// Bytes of it that are there, its header included, and that are not.
    pub(super) fn split(&self) -> (usize, u64) {
        (HEADER + self.payload.len(), self.length - self.payload.len() as u64)
    }
}

/// Reads the front of a packet; `None`: less than its header is there.
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

/// A number that says how long it is, and where it ends.
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
