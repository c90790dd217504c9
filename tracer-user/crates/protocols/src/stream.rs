//! One direction of a connection: its position within the current message.

use tracer_model::Nanos;

use super::elements::Elements;
use super::pieces::Pieces;
use super::{Body, Chunk, Stamp};

/// Reading state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// A message begins, or its head is being collected.
    Start,
    /// This many bytes of a body are left.
    Body(u64),
    /// In a chunked body.
    Chunked(Chunked),
    /// In a chunked body whose framing was lost: its end shows in the last bytes of an operation.
    ChunkedLost,
    /// In a self-delimiting value.
    Elements(Elements),
    /// In a body the parser follows; it need not see the next so many bytes.
    Own(u64),
    /// Skips this many bytes of a head, which continues after them.
    Part(u64),
    /// Skips this many bytes that belong to no message.
    Pass(u64),
    /// In a reply whose end alone can be found, in the last bytes of an operation.
    Trailing,
    /// Until the sender closes.
    UntilClose,
    /// Until the other direction speaks.
    UntilTurn,
    /// As [`StreamState::UntilTurn`], outside any known message.
    Lost,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunked {
    /// In the line with a chunk's size: the size so far, and whether its digits have ended.
    Size(u64, bool),
    /// In a chunk's data and the line end after it.
    Data(u64),
    /// In the trailer section; whether the current line is empty so far.
    Trailer(bool),
}

/// Result of feeding bytes to a self-delimiting body.
pub(super) enum Fed<S> {
    /// Took all bytes; the new state.
    More(S),
    /// The body ended after this many bytes.
    End(usize),
    /// Not such a body.
    Invalid,
}

impl Chunked {
    /// The state at the beginning of a chunked body.
    pub(super) const BEGIN: Self = Self::Size(0, false);

    /// Takes captured bytes.
    pub(super) fn feed(mut self, bytes: &[u8]) -> Fed<Self> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match self {
                Self::Data(left) => {
                    let take = left.min((bytes.len() - at) as u64);
                    at += take as usize;
                    self = if left == take { Self::BEGIN } else { Self::Data(left - take) };
                    continue;
                }
                Self::Size(size, over) => match byte {
                    b'\n' if size == 0 => self = Self::Trailer(true),
                    // The line end after the data counts as data.
                    b'\n' => self = Self::Data(size.saturating_add(2)),
                    _ if over => {}
                    b'\r' | b';' | b' ' | b'\t' => self = Self::Size(size, true),
                    _ => match (*byte as char).to_digit(16) {
                        Some(digit) if size < 1 << 56 => self = Self::Size(size << 4 | u64::from(digit), false),
                        _ => return Fed::Invalid,
                    },
                },
                Self::Trailer(empty) => match byte {
                    b'\n' if empty => return Fed::End(at + 1),
                    b'\n' => self = Self::Trailer(true),
                    b'\r' => {}
                    _ => self = Self::Trailer(false),
                },
            }
            at += 1;
        }
        Fed::More(self)
    }
}

/// One direction.
#[derive(Debug)]
pub(super) struct Stream {
    /// Position of the next byte.
    pub(super) pos: u64,
    pub(super) state: StreamState,
    /// Head collected so far; empty while none is.
    pub(super) buffer: Vec<u8>,
    /// The protocol is unknown, and more of what came in this direction passed than was collected.
    pub(super) begins_cut: bool,
    /// First byte of the current message: operation, arrival, position.
    pub(super) start: Option<(Stamp, Nanos, u64)>,
    /// Last operation.
    pub(super) last: Stamp,
    /// Bytes of the current message, and of its head.
    pub(super) bytes: u64,
    pub(super) head_bytes: u64,
    /// The head was longer than its captured part: the body's beginning is unknown.
    pub(super) head_cut: bool,
    /// In [`StreamState::UntilTurn`]: the operation with the last of this many bytes ends the message, too; 0: unknown.
    pub(super) ends_within: u64,
    /// Bytes to request from the front of operations; 0: the default suffices.
    pub(super) head_wanted: u16,
    /// Whether all of an operation is worth carrying, where messages may begin anywhere in one.
    pub(super) pieces: Pieces,
    /// The bytes so far may be the header of a proxy.
    pub(super) introducing: bool,
    /// The body so far ends with the sentinel after which clients of event streams stop reading.
    pub(super) has_sentinel: bool,
}

/// The last event of a stream, as OpenAI's interface has it: its clients close the connection without reading on.
const SENTINEL: &[u8] = b"data: [DONE]";

impl Stream {
    pub(super) fn new() -> Self {
        Self {
            pos: 0,
            state: StreamState::Start,
            buffer: Vec::new(),
            begins_cut: false,
            start: None,
            last: Stamp::default(),
            bytes: 0,
            head_bytes: 0,
            head_cut: false,
            ends_within: 0,
            head_wanted: 0,
            pieces: Pieces::default(),
            introducing: false,
            has_sentinel: false,
        }
    }

    /// The next byte begins a message.
    pub(super) fn restart(&mut self) {
        self.state = StreamState::Start;
        self.buffer = Vec::new();
        self.begins_cut = false;
        self.start = None;
        self.bytes = 0;
        self.head_bytes = 0;
        self.head_cut = false;
        self.ends_within = 0;
        self.has_sentinel = false;
    }

    /// Looks at the end of an operation of a body for the sentinel.
    pub(super) fn note_sentinel(&mut self, chunk: &Chunk<'_>) {
        let in_body = matches!(
            self.state,
            StreamState::Body(_) | StreamState::Chunked(_) | StreamState::ChunkedLost | StreamState::UntilClose
        );
        let last = if chunk.head.len() as u64 == chunk.len { chunk.head } else { chunk.tail };
        let last = last.trim_ascii_end();
        // The line end of a chunk may come by itself.
        if !last.is_empty() {
            self.has_sentinel = in_body && last.ends_with(SENTINEL);
        }
    }

    /// Notes the operation that carries a message's first byte.
    pub(super) fn begin(&mut self, chunk: &Chunk<'_>, offset: u64) {
        if self.start.is_none() {
            self.start = Some((chunk.at, chunk.arrived, chunk.pos + offset));
        }
    }

    /// Enters the state that reads such a body.
    pub(super) fn enter(&mut self, body: Body) {
        self.head_cut = matches!(body, Body::UntilTurn | Body::Beyond(_));
        self.state = match body {
            Body::Length(n) => StreamState::Body(n),
            Body::Chunked => StreamState::Chunked(Chunked::BEGIN),
            Body::Elements(elements) => StreamState::Elements(elements),
            Body::Own(unread) => StreamState::Own(unread),
            Body::UntilClose => StreamState::UntilClose,
            Body::UntilTurn | Body::Beyond(_) | Body::Switch => StreamState::UntilTurn,
        };
    }

    /// Skips at most `bytes` bytes that need not be read; returns how many it skipped.
    pub(super) fn pass(&mut self, bytes: u64) -> u64 {
        let (left, part) = match self.state {
            StreamState::Part(left) => (left, true),
            StreamState::Pass(left) => (left, false),
            _ => return 0,
        };
        let taken = left.min(bytes);
        self.bytes += if part { taken } else { 0 };
        self.state = match left - taken {
            0 => StreamState::Start,
            left if part => StreamState::Part(left),
            left => StreamState::Pass(left),
        };
        taken
    }

    /// Position before which operations tell nothing new; given for long bodies only.
    pub(super) fn skip(&self) -> u64 {
        match self.state {
            // The server may refuse a body none of which was sent: then something else follows.
            StreamState::Body(_) if self.bytes == self.head_bytes => 0,
            StreamState::Body(left) | StreamState::Own(left) | StreamState::Part(left) | StreamState::Pass(left)
                if left >= 64 * 1024 =>
            {
                self.pos.saturating_add(left)
            }
            StreamState::UntilClose => u64::MAX,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(bytes: &[u8], cuts: &[usize]) -> Option<usize> {
        let mut state = Chunked::BEGIN;
        let mut from = 0;
        for to in cuts.iter().copied().chain([bytes.len()]) {
            match state.feed(&bytes[from..to]) {
                Fed::More(next) => state = next,
                Fed::End(at) => return Some(from + at),
                Fed::Invalid => return None,
            }
            from = to;
        }
        None
    }

    #[test]
    fn chunks_end_where_they_say_for_every_cut() {
        for body in [
            &b"0\r\n\r\n"[..],
            b"5\r\nhello\r\n0\r\n\r\n",
            b"5;name=value\r\nhello\r\nA\r\n0123456789\r\n0\r\nX-Trailer: 1\r\nY: 2\r\n\r\n",
            b"5\nhello\r\n0\n\n",
        ] {
            let mut whole = body.to_vec();
            whole.extend_from_slice(b"HTTP/1.1 200 OK");
            for first in 0..body.len() {
                for second in first..body.len() {
                    assert_eq!(end_of(&whole, &[first, second]), Some(body.len()), "{first} {second}");
                }
            }
        }
        assert_eq!(end_of(b"xyz\r\n", &[]), None);
    }
}
