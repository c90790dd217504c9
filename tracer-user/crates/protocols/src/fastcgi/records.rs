//! FastCGI records: headers, the end of a message, and name-value pairs.

use crate::Walked;

pub(super) const BEGIN: u8 = 1;
pub(super) const ABORT: u8 = 2;
pub(super) const END: u8 = 3;
pub(super) const PARAMS: u8 = 4;
pub(super) const STDIN: u8 = 5;
pub(super) const STDOUT: u8 = 6;
pub(super) const STDERR: u8 = 7;
const DATA: u8 = 8;
pub(super) const QUESTION: u8 = 9;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FastcgiHeader {
    pub(super) kind: u8,
    /// Request id; 0: the connection itself.
    pub(super) id: u16,
    /// Bytes of content.
    pub(super) len: usize,
    /// Padding bytes after the content.
    pub(super) padding: usize,
}

impl FastcgiHeader {
    /// Length of a header in bytes.
    pub(super) const LEN: usize = 8;

    /// Reads a header; `None` if bytes are missing or it is not one.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [1, kind, id_high, id_low, len_high, len_low, padding, _, ..] = *bytes else { return None };
        let (id, len) = (u16::from_be_bytes([id_high, id_low]), u16::from_be_bytes([len_high, len_low]));
        Some(Self { kind, id, len: len.into(), padding: padding.into() })
    }

    /// Bytes from the header's first to the next header.
    pub(super) fn end(&self) -> usize {
        Self::LEN + self.len + self.padding
    }
}

/// Position in the records of one message.
#[derive(Debug, Default)]
pub(super) struct Walk {
    id: u16,
    /// The record type whose empty record ends a request; 0 in replies, which END ends.
    ends: u8,
    header: [u8; FastcgiHeader::LEN],
    /// Bytes of the header so far.
    have: usize,
    /// Bytes left of the current record.
    left: usize,
    /// This record is the message's last.
    last: bool,
}

impl Walk {
    /// The rest of a request; a filter's request ends with its second stream.
    pub(super) fn request(id: u16, filter: bool) -> Self {
        Self { id, ends: if filter { DATA } else { STDIN }, ..Self::default() }
    }

    /// A reply.
    pub(super) fn reply(id: u16) -> Self {
        Self { id, ..Self::default() }
    }

    /// Takes captured bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Walked {
        let mut at = 0;
        loop {
            let take = self.left.min(bytes.len() - at);
            at += take;
            self.left -= take;
            if self.left > 0 {
                // Wait for the end itself.
                let unread = if self.last { 0 } else { std::mem::take(&mut self.left) };
                return Walked::More(unread as u64);
            }
            if self.last {
                return Walked::End(at);
            }
            let Some(fresh) = bytes.get(at..).filter(|fresh| !fresh.is_empty()) else { return Walked::More(0) };
            let take = fresh.len().min(FastcgiHeader::LEN - self.have);
            for (place, byte) in self.header.iter_mut().skip(self.have).zip(fresh.iter().take(take)) {
                *place = *byte;
            }
            self.have += take;
            at += take;
            if self.have < FastcgiHeader::LEN {
                return Walked::More(0);
            }
            self.have = 0;
            let Some(header) = FastcgiHeader::read(&self.header) else { return Walked::Lost };
            let own = match header.kind {
                PARAMS | STDIN | DATA | ABORT => self.ends != 0,
                STDOUT | STDERR | END => self.ends == 0,
                _ => false,
            };
            if header.id != 0 && (header.id != self.id || !own) {
                return Walked::Lost;
            }
            self.left = header.len + header.padding;
            self.last = match header.kind {
                _ if header.id == 0 => false,
                END | ABORT => true,
                kind => kind == self.ends && header.len == 0,
            };
        }
    }

    /// Whether `len` bytes, of which only `last` were captured, end the message.
    pub(super) fn ends_unseen(&self, len: u64, last: &[u8]) -> bool {
        if self.last {
            return len == self.left as u64;
        }
        let Some(last) = last.last_chunk::<{ FastcgiHeader::LEN }>().filter(|_| self.have == 0) else { return false };
        if self.ends == 0 {
            // Only the last record has this length here, and it tells how the request ended.
            return len == 2 * FastcgiHeader::LEN as u64 && matches!(last, [_, _, _, _, 0..=3, 0, 0, 0]);
        }
        len >= FastcgiHeader::LEN as u64
            && matches!(FastcgiHeader::read(last), Some(FastcgiHeader { kind, id, len: 0, padding: 0 }) if kind == self.ends && id == self.id)
    }
}

/// Calls `pair` for each available name-value pair.
pub(super) fn pairs<'a>(bytes: &'a [u8], mut pair: impl FnMut(&'a [u8], &'a [u8])) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((name, after)) = length(rest) else { return };
        let Some((value, after)) = length(after) else { return };
        let Some((name, after)) = after.split_at_checked(name) else { return };
        let Some((value, after)) = after.split_at_checked(value) else { return };
        pair(name, value);
        rest = after;
    }
}

/// A length: one byte, or four if the first one's highest bit is set.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match *bytes {
        [short @ 0..=127, ref rest @ ..] => Some((short.into(), rest)),
        [a, b, c, d, ref rest @ ..] => Some((u32::from_be_bytes([a & 127, b, c, d]) as usize, rest)),
        _ => None,
    }
}
