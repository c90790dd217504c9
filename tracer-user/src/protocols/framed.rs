//! Protocols whose messages carry the number of the exchange they belong to: what each of them has to say of its frames.
//! What is done with it stands once, in `multiplex.rs`.

use std::fmt;
use std::ops::RangeInclusive;

use super::{Asked, Reply, Request, Settings};
use crate::model::Linked;

/// [`Reply::status`] of a protocol that has codes, while none was seen or where it could not be read.
pub const NO_STATUS: u16 = u16::MAX;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From whoever asks: the end that opened the connection.
    Request,
    /// From whoever answers.
    Reply,
}

/// Reads the frames of one connection. Total: any bytes, any cut.
pub trait Framed: Send + fmt::Debug {
    /// Reads the frame at the front of `bytes`. `cut`: what follows `bytes` was not captured, so make do. `asked` knows
    /// what the requests that are open noted for their replies, by key.
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        asked: &dyn Fn(u64) -> Option<Asked>,
        settings: &Settings,
    ) -> Front;
    /// Frames of a direction were not seen: what they may have said is not known from here on.
    fn lost(&mut self, way: Way);
    /// Where in `bytes` a frame begins, after some that were not seen; certain enough to go on with. `open` tells the
    /// keys of open requests.
    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize>;
    /// Whether `bytes`, a frame from the other end, answer a request that was not seen yet; `open` tells the keys of open
    /// ones.
    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let _ = (bytes, open);
        false
    }
    /// Whether either end may begin exchanges. A request then is what goes [`Way::Request`] from the end that opened the
    /// connection, or [`Way::Reply`] from the one that accepted it, and its reply goes the other way; keys tell the two
    /// apart.
    fn is_mutual(&self) -> bool {
        false
    }
    /// Body bytes of the frames of a long body, where none was seen that tells.
    fn usual(&self) -> u64 {
        16_384
    }
    /// Bytes of a frame before its body: what a frame of a body is expected to take beside it, where bodies come in
    /// many frames.
    fn overhead(&self) -> u64 {
        0
    }
    /// The frame that must stand next, though nothing of it was captured: of a message that goes on as its sender has cut it so
    /// far, with nothing in between. `None`: any may.
    fn goes_on(&mut self, way: Way) -> Option<Frame> {
        let _ = way;
        None
    }
    /// Whether the last `left` bytes of an operation, behind a frame and not captured, can only be what stands between frames.
    fn is_padding(&self, left: u64) -> bool {
        let _ = left;
        false
    }
    /// Whether a server works on several requests of one connection at a time.
    fn interleaves(&self) -> bool {
        true
    }
    /// Bytes wanted from the front of every operation; 0: as many as of other protocols.
    fn wants(&self) -> u16 {
        0
    }
    /// The request `key` was made in another way, before the protocol began.
    fn adopt(&mut self, key: u64) {
        let _ = key;
    }
    /// Nothing moves for a while: what it keeps is to take as little room as it can.
    fn rest(&mut self) {}
    /// Whether its frames begin as HTTP/2's do, which the kernel side can follow.
    fn is_walked(&self) -> bool {
        false
    }
    /// Bytes it keeps.
    fn kept_bytes(&self) -> usize {
        0
    }
}

/// What stands at the front of some bytes.
#[derive(Debug)]
pub enum Front {
    /// A frame.
    Frame(Frame),
    /// This many bytes are needed from its beginning on.
    Need(usize),
    /// The rest of a line is needed.
    Line,
    /// No frame.
    Invalid,
    /// The connection goes on in a way that cannot be read (TLS).
    Leave,
}

/// One frame, or several that belong together.
#[derive(Debug)]
pub struct Frame {
    /// Bytes of all of it.
    pub len: u64,
    /// Number of the exchange it belongs to; 0 none.
    pub key: u64,
    /// Bytes in it of a message's body.
    pub body: u64,
    /// What it says.
    pub says: Says,
    /// With its last byte this direction of the exchange is over.
    pub end: bool,
}

/// What a frame says.
#[derive(Debug)]
pub enum Says {
    /// Nothing that matters here.
    Nothing,
    /// Part of a message. Where either end may ask it is over when all of its body has come, if it said how long that is.
    Part,
    /// The same, and says how long the message's body is.
    Sized(u64),
    /// Part of a body that is made of messages, where one of this many bytes begins if none is under way; more may follow.
    Message(u64),
    /// A request begins.
    Begun {
        /// Its head.
        request: Box<Request>,
        /// What is spoken, where that is more than the frames' protocol.
        protocol: &'static str,
        /// Bytes its body has, where it says so.
        length: Option<u64>,
    },
    /// A reply begins.
    Replied {
        /// Its head.
        reply: Reply,
        /// Bytes its body has, where it says so.
        length: Option<u64>,
    },
    /// What the reply came to, said after its body.
    Judged {
        /// Its status.
        status: u16,
        /// The kind of failure.
        failure: Option<&'static str>,
    },
    /// All requests that are open with these keys are answered.
    Settled {
        /// Their keys.
        keys: RangeInclusive<u64>,
        /// Their status.
        status: u16,
        /// The kind of failure.
        failure: Option<&'static str>,
    },
    /// The exchange is broken off; what that means to whoever asked, when the server did it.
    Reset(Option<(u16, Option<&'static str>)>),
    /// The server will not answer requests above this key.
    Refused(u64),
    /// A request or reply begins that brings messages; what they carry.
    Bringing(Box<(Says, Linked)>),
}

impl Says {
    /// The same, of what brings messages.
    pub(super) fn with(self, linked: Linked) -> Self {
        if linked.is_empty() { self } else { Self::Bringing(Box::new((self, linked))) }
    }
}
