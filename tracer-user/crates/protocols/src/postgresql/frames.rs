//! Messages of protocol version 3: a type byte, a length, and fields.

use memchr::memchr;

/// Bytes of a message before its fields.
pub(super) const HEADER: usize = 5;
/// Longest message accepted: the server's own limit, 1 GiB.
const LIMIT: u64 = 1 << 30;

/// The front of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    /// Length in bytes, including the type byte.
    pub(super) total: u64,
    /// The captured part of the fields.
    pub(super) fields: &'a [u8],
}

/// Result of reading a message's beginning.
pub(super) enum Front<'a> {
    Frame(Frame<'a>),
    /// Less than its header.
    Short,
    Bad,
}

impl Frame<'_> {
    /// Whether all of it is there.
    pub(super) fn is_whole(&self) -> bool {
        (self.fields.len() + HEADER) as u64 == self.total
    }

    /// Its bytes that are there, and the number still missing.
    pub(super) fn split(&self) -> (usize, u64) {
        let there = self.fields.len() + HEADER;
        (there, self.total - there as u64)
    }
}

/// A 32-bit number.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    four.try_into().ok().map(u32::from_be_bytes)
}

/// Reads the front of a message whose kind is one of `kinds`.
pub(super) fn frame<'a>(bytes: &'a [u8], kinds: &[u8]) -> Front<'a> {
    let Some(kind) = bytes.first() else { return Front::Short };
    if memchr(*kind, kinds).is_none() {
        return Front::Bad;
    }
    let Some(length) = number(bytes, 1) else { return Front::Short };
    let total = u64::from(length) + 1;
    if length < 4 || total > LIMIT {
        return Front::Bad;
    }
    let end = bytes.len().min(usize::try_from(total).unwrap_or(usize::MAX));
    Front::Frame(Frame { kind: *kind, total, fields: bytes.get(HEADER..end).unwrap_or_default() })
}

/// Splits a name off the front of `bytes`; `None` if its end is missing.
pub(super) fn name(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(0, bytes)?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

/// The first field of an error whose type is one of `kinds`. `None` if there is none, or not yet.
pub(super) fn error_field<'a>(mut fields: &'a [u8], kinds: &[u8]) -> Option<&'a [u8]> {
    while let Some((kind, rest)) = fields.split_first() {
        let (value, rest) = name(rest)?;
        if kinds.contains(kind) {
            return Some(value);
        }
        fields = rest;
    }
    None
}

/// Whether the last bytes of a request are an Execute and a Sync.
pub(super) fn executes(last: &[u8]) -> bool {
    let Some(before) = last.strip_suffix(&[b'S', 0, 0, 0, 4]) else { return false };
    // A portal's name, and the maximum number of rows.
    let executes = |at: usize| {
        let Front::Frame(execute) = frame(before.get(at..).unwrap_or_default(), b"E") else { return false };
        let rest = name(execute.fields).map(|(_, rest)| rest.len());
        execute.total == (before.len() - at) as u64 && rest == Some(size_of::<u32>())
    };
    (0..before.len()).any(executes)
}
