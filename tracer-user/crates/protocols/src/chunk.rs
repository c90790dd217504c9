//! One operation on a socket as parsers see it: its bytes, and the captured part of them.

use tracer_model::{Direction, Nanos};

/// When an operation was made, and by which thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When.
    pub nanos: Nanos,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Socket reads the thread had made by then, including this one.
    pub reads: u32,
}

/// Last bytes of an operation used to recognise an end without knowing the beginning: with more bytes, some would match
/// by chance.
const LAST: usize = 8;

/// One operation on a socket, reduced to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Direction.
    pub dir: Direction,
    /// Position of the first byte in this direction's stream.
    pub pos: u64,
    /// Bytes moved; often far more than captured.
    pub len: u64,
    /// Captured front.
    pub head: &'a [u8],
    /// The last bytes, when `head` does not cover everything.
    pub tail: &'a [u8],
    /// Beginnings of frames outside `head`: fragments in the format of [`tracer_common::event::Op::frames`].
    pub fragments: &'a [u8],
    /// Time and thread.
    pub at: Stamp,
    /// Receives: when the first unread byte arrived; 0: unknown.
    pub arrived: Nanos,
}

impl<'a> Chunk<'a> {
    /// Position after its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.pos.saturating_add(self.len)
    }

    /// The captured bytes from its byte `at` on, up to the first gap.
    pub(super) fn captured(&self, at: u64) -> &'a [u8] {
        let front = usize::try_from(at).ok().and_then(|at| self.head.get(at..)).unwrap_or_default();
        let missing = (self.len.saturating_sub(at)) as usize;
        let last = self.tail.len().checked_sub(missing).and_then(|from| self.tail.get(from..)).unwrap_or_default();
        if self.fragments.is_empty() {
            return if front.is_empty() { last } else { front };
        }
        let piece = fragments(self.fragments).find(|(place, bytes)| *place <= at && at < place + bytes.len() as u64);
        let piece = piece.and_then(|(place, bytes)| bytes.get((at - place) as usize..)).unwrap_or_default();
        let longer = if piece.len() > front.len() { piece } else { front };
        if last.len() > longer.len() { last } else { longer }
    }

    /// Whether a fragment begins with its byte `at`.
    pub(super) fn has_fragment(&self, at: u64) -> bool {
        fragments(self.fragments).any(|(place, bytes)| place == at && !bytes.is_empty())
    }

    /// The captured front from its byte `at` on, with the captured end if nothing lies between them.
    pub(super) fn front(&self, at: u64) -> &'a [u8] {
        let Ok(at) = usize::try_from(at) else { return &[] };
        match at.checked_sub(self.head.len()) {
            Some(from) if (self.head.len() + self.tail.len()) as u64 == self.len => {
                self.tail.get(from..).unwrap_or_default()
            }
            _ => self.head.get(at..).unwrap_or_default(),
        }
    }

    /// Its last bytes, if captured separately: enough to recognise `\r\n0\r\n\r\n`.
    pub(super) fn last(&self) -> &'a [u8] {
        self.tail.get(self.tail.len().saturating_sub(LAST)..).unwrap_or_default()
    }

    /// The part of it beyond `pos`, up to which the stream is known: a record can come twice, or after its bytes were
    /// taken or given up. `None` if nothing lies beyond.
    pub(super) fn beyond(self, pos: u64) -> Option<Self> {
        let known = pos.saturating_sub(self.pos);
        if known == 0 {
            return Some(self);
        }
        let len = self.len.checked_sub(known).filter(|len| *len > 0)?;
        let head: &'a [u8] = self.head.get(known as usize..).unwrap_or_default();
        let tail = if self.tail.len() as u64 <= len { self.tail } else { &[] };
        // Fragment offsets count from the operation's first byte.
        Some(Self { pos, len, head, tail, fragments: &[], ..self })
    }
}

/// Fragments, each with its offset in the operation; leaves out incomplete ones.
fn fragments(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (word, rest) = bytes.split_first_chunk()?;
        let word = u64::from_ne_bytes(*word);
        let (place, len) = (word & 0xffff_ffff, (word >> 32) as usize);
        let piece = rest.get(..len)?;
        bytes = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        Some((place, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_captured_between_front_and_end_is_found_at_its_place() {
        let mut fragments = Vec::new();
        for (place, bytes) in [(6u64, &b"ghijk"[..]), (20, b"uvwxyz{|}"), (40, b"")] {
            fragments.extend_from_slice(&(place | (bytes.len() as u64) << 32).to_ne_bytes());
            fragments.extend_from_slice(bytes);
            fragments.resize(fragments.len().next_multiple_of(8), 0);
        }
        let (head, tail) = (&b"abcdefgh"[..], &b"yz{|}~"[..]);
        let at = Stamp::default();
        let chunk = Chunk { dir: Direction::Rx, pos: 100, len: 30, head, tail, fragments: &fragments, at, arrived: 0 };
        assert_eq!(chunk.captured(0), b"abcdefgh");
        assert_eq!(chunk.captured(6), b"ghijk", "more than the front has");
        assert_eq!(chunk.captured(10), b"k");
        assert_eq!(chunk.captured(11), b"");
        assert_eq!(chunk.captured(20), b"uvwxyz{|}");
        assert_eq!(chunk.captured(25), b"z{|}~", "more than the piece has");
        assert_eq!(chunk.captured(40), b"");
        assert_eq!(chunk.beyond(104).unwrap().captured(16), b"", "places count from the operation's beginning");
        // Arbitrary bytes.
        for cut in 0..fragments.len() {
            for at in 0..64 {
                let chunk = Chunk { fragments: &fragments[cut..], ..chunk };
                assert!(chunk.captured(at).len() <= 64);
            }
        }
        let huge = (u64::from(u32::MAX) << 32).to_ne_bytes();
        assert_eq!(Chunk { fragments: &huge, ..chunk }.captured(9), b"");
    }
}
