//! One operation on a socket as parsers take it: which bytes, and what of them was captured.

use crate::model::{Direction, Nanos};

/// When and by whom an operation was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// When.
    pub nanos: Nanos,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Reads of sockets the thread had made by then, this one included.
    pub reads: u32,
}

/// Bytes at an operation's end by which what ends there is told, where nothing says where it begins: of more of them some
/// would look like an end by chance.
const LAST: usize = 8;

/// One operation on a socket, as far as bytes go.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Which way.
    pub dir: Direction,
    /// Position of the first byte in this direction's stream.
    pub pos: u64,
    /// Bytes moved; far more than captured, often.
    pub len: u64,
    /// Captured front.
    pub head: &'a [u8],
    /// The last bytes, when `head` does not cover everything.
    pub tail: &'a [u8],
    /// When and by whom.
    pub at: Stamp,
    /// Receives: when the first unread byte had arrived; 0 unknown.
    pub arrived: Nanos,
}

impl<'a> Chunk<'a> {
    /// Position after its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.pos.saturating_add(self.len)
    }

    /// What was captured of it from its byte `at` on, as far as it goes without a gap.
    pub(super) fn captured(&self, at: u64) -> &'a [u8] {
        let front = usize::try_from(at).ok().and_then(|at| self.head.get(at..)).unwrap_or_default();
        let missing = (self.len.saturating_sub(at)) as usize;
        match self.tail.len().checked_sub(missing).and_then(|from| self.tail.get(from..)) {
            Some(last) if front.is_empty() => last,
            _ => front,
        }
    }

    /// Its last bytes, where they were captured apart: enough to see `\r\n0\r\n\r\n`.
    pub(super) fn last(&self) -> &'a [u8] {
        self.tail.get(self.tail.len().saturating_sub(LAST)..).unwrap_or_default()
    }

    /// What of it lies beyond `pos`, up to which the stream is known: a record can come twice, or late, when what was
    /// in it is already taken or given up. `None` when that is all of it.
    pub(super) fn beyond(self, pos: u64) -> Option<Self> {
        let known = pos.saturating_sub(self.pos);
        if known == 0 {
            return Some(self);
        }
        let len = self.len.checked_sub(known).filter(|len| *len > 0)?;
        let head: &'a [u8] = self.head.get(known as usize..).unwrap_or_default();
        let tail = if self.tail.len() as u64 <= len { self.tail } else { &[] };
        Some(Self { pos, len, head, tail, ..self })
    }
}
