//! `traceparent` written into HTTP/1.1 requests: what both sides agree on.

/// Bytes of the header line: `traceparent: 00-TRACE-SPAN-FLAGS` and its end (W3C Trace Context §3.2).
pub const LEN: u32 = 70;
/// A request's head is looked at up to here; a longer one gets no header.
pub const LOOK: u32 = 4096;
/// Most connections that can get headers at a time.
pub const SOCKETS_MAX: u32 = 4096;
/// Most destinations, addresses that names stand for included.
pub const DESTINATIONS_MAX: u32 = 1024;
/// Bits of a destination's port, which stands before its address.
pub const PORT_BITS: u32 = 16;

/// A destination as the kernel side looks it up: the port in network order (0: any), the address (IPv4: mapped into IPv6).
pub type Destination = [u8; 18];

/// Bit of `HEADER_CONTROL`: the test at start is running, on sockets of its own; no record, no policy.
pub const TESTING: u32 = 1 << 0;
/// Bit of `HEADER_CONTROL`: sockets that block are left alone.
pub const NO_BLOCKING: u32 = 1 << 1;

/// Bit of `HEADER_CONTROL`: a connection is let go of once its first request is acknowledged.
pub const ONCE: u32 = 1 << 2;

/// What became of connections to the destinations and of their requests; the index into `HEADER_COUNTS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A connection was taken in.
    Joined = 0,
    /// A connection that had been taken in is not any more: it ended, or gets no more headers.
    Left = 1,
    /// A request got a header.
    Injected = 2,
    /// It had one already.
    Present = 3,
    /// Something sent before was not acknowledged: what is put in could be sent in part.
    Busy = 4,
    /// The head was not whole in what was sent at once, or longer than [`LOOK`]. As with all that follow, nothing more of that
    /// connection is touched.
    NotWhole = 5,
    /// What was sent is no HTTP/1.1 request: TLS, another protocol, what follows an upgrade.
    NotHttp = 6,
    /// The head is not one that servers must read alike.
    Malformed = 7,
    /// An upgrade to something else than HTTP/2, or `CONNECT`.
    Upgrade = 8,
    /// The body is chunked: where it ends is not known. The request itself got its header.
    Chunked = 9,
    /// A body may or may not follow (`Expect`). The request itself got its header.
    Expect = 10,
    /// The next request was sent together with this one's end.
    Pipelined = 11,
    /// Bytes passed that were not seen, or were not taken by the kernel.
    LostTrack = 12,
    /// The kernel did not put the bytes in.
    Refused = 13,
    /// A connection was not taken in: there were [`SOCKETS_MAX`].
    Full = 14,
    /// A connection was not taken in: the kernel refused, or bytes were under way already.
    NotTaken = 15,
    /// A connection was not taken in, or left alone from then on: its reads block, which this kernel would disturb.
    Blocking = 16,
    /// Its first request was sent, and this kernel would disturb the reading of what waits at longer.
    Once = 17,
    /// A connection was not taken in, or left alone from then on: its owner lends the kernel memory to send from (`SO_ZEROCOPY`),
    /// of which it would be told wrongly when it gets it back.
    ZeroCopy = 18,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 19] = [
        Self::Joined,
        Self::Left,
        Self::Injected,
        Self::Present,
        Self::Busy,
        Self::NotWhole,
        Self::NotHttp,
        Self::Malformed,
        Self::Upgrade,
        Self::Chunked,
        Self::Expect,
        Self::Pipelined,
        Self::LostTrack,
        Self::Refused,
        Self::Full,
        Self::NotTaken,
        Self::Blocking,
        Self::Once,
        Self::ZeroCopy,
    ];

    /// Label value of `tracer_inband_header_total{outcome}`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Joined => "connections_taken",
            Self::Left => "connections_left",
            Self::Injected => "injected",
            Self::Present => "present",
            Self::Busy => "busy",
            Self::NotWhole => "head_not_whole",
            Self::NotHttp => "not_http",
            Self::Malformed => "malformed",
            Self::Upgrade => "upgrade",
            Self::Chunked => "chunked",
            Self::Expect => "expect",
            Self::Pipelined => "pipelined",
            Self::LostTrack => "lost_track",
            Self::Refused => "refused",
            Self::Full => "full",
            Self::NotTaken => "not_taken",
            Self::Blocking => "blocking",
            Self::Once => "once",
            Self::ZeroCopy => "zerocopy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_follow_the_list() {
        for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, i);
        }
    }

    #[test]
    fn the_line_is_as_long_as_it_is_said_to_be() {
        let line = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        assert_eq!(line.len(), LEN as usize);
    }
}
