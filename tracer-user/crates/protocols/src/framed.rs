//! Protocols whose messages carry the number of the exchange they belong to: how each of them reads its frames.
//! `multiplex.rs` does the rest for all of them.

use std::fmt;
use std::ops::RangeInclusive;

use tracer_model::{Linked, ProtocolId};

use super::{ExpectedReply, Reply, Request, Settings};

/// [`Reply::status`] of a protocol with status codes, while none was seen or if it could not be read.
pub const NO_STATUS: u16 = u16::MAX;

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the requesting end: the one that opened the connection.
    Request,
    /// From the answering end.
    Reply,
}

/// Reads the frames of one connection. Total: accepts any bytes, cut anywhere.
pub trait Framed: Send + fmt::Debug {
    /// Reads the frame at the front of `bytes`. `cut`: the bytes after `bytes` were not captured, so it makes do.
    /// `expected` returns what an open request says of its reply, by key.
    fn frame(
        &mut self,
        way: Way,
        bytes: &[u8],
        cut: bool,
        expected: &dyn Fn(u64) -> Option<ExpectedReply>,
        settings: &Settings,
    ) -> Front;
    /// Frames of a direction were missed: state they may have changed is unknown from here on.
    fn lost(&mut self, way: Way);
    /// Heads captured only in part since the last call: what later heads refer to may be among the missing bytes.
    fn take_cut(&mut self) -> u64 {
        0
    }
    /// Offset in `bytes` where a frame begins, after frames that were missed; certain enough to continue from. `open`
    /// tells whether a key belongs to an open request.
    fn find(&self, way: Way, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> Option<usize>;
    /// Whether `bytes`, a frame from the remote, answer a request not seen yet; `open` tells whether a key belongs to
    /// an open request.
    fn is_early(&self, bytes: &[u8], open: &dyn Fn(u64) -> bool) -> bool {
        let _ = (bytes, open);
        false
    }
    /// Whether what was read so far can be of no other protocol, whatever the other end answers.
    fn is_certain(&self) -> bool {
        false
    }
    /// Whether either end may begin exchanges. A request then goes [`Way::Request`] from the end that opened the
    /// connection, or [`Way::Reply`] from the one that accepted it, and its reply goes the other way; keys tell the two
    /// apart.
    fn is_mutual(&self) -> bool {
        false
    }
    /// Typical body bytes per frame of a long body, until frames on the connection show it.
    fn usual(&self) -> u64 {
        16_384
    }
    /// Bytes of a frame before its body, expected in every frame of a body that spans many.
    fn overhead(&self) -> u64 {
        0
    }
    /// The only frame that can come next, though none of it was captured: its sender has split the message so far
    /// without anything in between. `None`: any frame may come.
    fn goes_on(&mut self, way: Way) -> Option<Frame> {
        let _ = way;
        None
    }
    /// Whether the last `left` bytes of an operation, after a frame and not captured, can only be filler between
    /// frames.
    fn is_padding(&self, left: u64) -> bool {
        let _ = left;
        false
    }
    /// Whether a server works on several requests of one connection at a time.
    fn interleaves(&self) -> bool {
        true
    }
    /// Bytes wanted from the front of every operation; 0: the same as for other protocols.
    fn wants(&self) -> u16 {
        0
    }
    /// The request `key` was made outside this protocol, before it began.
    fn adopt(&mut self, key: u64) {
        let _ = key;
    }
    /// The connection goes idle: shrink kept state as far as possible.
    fn rest(&mut self) {}
    /// Whether its frames have HTTP/2's frame header, which the eBPF program can follow.
    fn is_walked(&self) -> bool {
        false
    }
    /// Bytes of kept state.
    fn kept_bytes(&self) -> usize {
        0
    }
}

/// What [`Framed::frame`] found at the front of some bytes.
#[derive(Debug)]
pub enum Front {
    /// A frame.
    Frame(Frame),
    /// More bytes are needed: this many from the frame's beginning.
    Need(usize),
    /// More bytes are needed: the rest of a line.
    Line,
    /// No frame.
    Invalid,
    /// The first message of TLS: the connection goes on encrypted.
    Tls,
}

/// One frame, or several that belong together.
#[derive(Debug)]
pub struct Frame {
    /// Total bytes.
    pub len: u64,
    /// Number of the exchange it belongs to; 0: none.
    pub key: u64,
    /// Body bytes in it.
    pub body: u64,
    /// Its meaning.
    pub meaning: FrameMeaning,
    /// Its last byte ends this direction of the exchange.
    pub end: bool,
}

/// The meaning of a frame.
#[derive(Debug)]
pub enum FrameMeaning {
    /// Nothing that matters here.
    Nothing,
    /// Part of a message. In a mutual protocol the message ends once its whole body has come, if its length is known.
    Part,
    /// The same, and gives the length of the message's body.
    Sized(u64),
    /// Part of a body that consists of messages: a message of this many bytes begins here unless one is under way; more
    /// may follow.
    Message(u64),
    /// A request begins.
    Begun {
        /// Its head.
        request: Box<Request>,
        /// Protocol name, if more specific than that of the frames.
        protocol: ProtocolId,
        /// Length of its body in bytes, if given.
        length: Option<u64>,
    },
    /// A reply begins.
    Replied {
        /// Its head.
        reply: Reply,
        /// Length of its body in bytes, if given.
        length: Option<u64>,
    },
    /// The outcome of the reply, given after its body.
    Judged {
        /// Its status.
        status: u16,
        /// The kind of failure.
        failure: Option<&'static str>,
        /// The exchange's protocol, if only this shows it.
        protocol: Option<ProtocolId>,
    },
    /// Answers all open requests with these keys.
    Settled {
        /// Their keys.
        keys: RangeInclusive<u64>,
        /// Their status.
        status: u16,
        /// The kind of failure.
        failure: Option<&'static str>,
    },
    /// The exchange is broken off; carries what that means to the client if the server did it.
    Reset(Option<(u16, Option<&'static str>)>),
    /// The server will not answer requests above this key.
    Refused(u64),
    /// A request or reply that transports messages begins; with the links those carry.
    Bringing(Box<(FrameMeaning, Linked)>),
}

impl FrameMeaning {
    /// The same, with the links of the messages it transports.
    pub(super) fn with(self, linked: Linked) -> Self {
        if linked.is_empty() { self } else { Self::Bringing(Box::new((self, linked))) }
    }
}
