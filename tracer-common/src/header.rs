//! `traceparent` written into HTTP/1.1 requests: what both sides agree on.

/// Bytes of the header line: `traceparent: 00-TRACE-SPAN-FLAGS` and its end (W3C Trace Context §3.2).
pub const LEN: u32 = 70;
/// Searches a request's head up to here; a longer head gets no header.
pub const LOOK: u32 = 4096;
/// Most connections that can get headers at a time.
pub const SOCKETS_MAX: u32 = 4096;
/// Most destinations, resolved addresses of names included.
pub const DESTINATIONS_MAX: u32 = 1024;
/// Bits of a destination's port, which stands before its address.
pub const PORT_BITS: u32 = 16;

/// A destination as the kernel side looks it up: the port in network order (0: any), the address (IPv4: mapped into
/// IPv6).
pub type Destination = [u8; 18];

/// Bit of `HEADER_CONTROL`: the start-up test runs, on sockets of its own; no record, no policy.
pub const TESTING: u32 = 1 << 0;
/// Bit of `HEADER_CONTROL`: leave blocking sockets alone.
pub const NO_BLOCKING: u32 = 1 << 1;

/// Bit of `HEADER_CONTROL`: release a connection once its first request is acknowledged.
pub const ONCE: u32 = 1 << 2;

/// What an [`Outcome`] is about: each subject has a metric family of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A connection joined or left: `tracer_inband_header_connections_total{event}`.
    Connection,
    /// A request on a joined connection: `tracer_inband_header_requests_total{outcome}`.
    Request,
    /// Why a connection is not touched, at all or from then on: `tracer_inband_header_left_alone_total{reason}`.
    LeftAlone,
}

/// What happened to connections to the destinations and to their requests; the index into `HEADER_COUNTS`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A connection joined the socket map.
    Joined = 0,
    /// A joined connection left: it ended, or gets no more headers.
    Left = 1,
    /// A request got a header.
    Injected = 2,
    /// The request had a header already.
    Present = 3,
    /// Earlier bytes were not acknowledged yet: the kernel could send the inserted bytes in part.
    Busy = 4,
    /// One send did not hold the whole head, or the head was longer than [`LOOK`]. After this outcome and every one
    /// below, the rest of the connection stays untouched.
    NotWhole = 5,
    /// Not an HTTP/1.1 request: TLS, another protocol, or bytes after an upgrade.
    NotHttp = 6,
    /// Servers may read this head differently.
    Malformed = 7,
    /// An upgrade to something other than HTTP/2, or `CONNECT`.
    Upgrade = 8,
    /// The body is chunked, so its end is unknown. The request itself got its header.
    Chunked = 9,
    /// A body may or may not follow (`Expect`). The request itself got its header.
    Expect = 10,
    /// The next request came in the same send as this one's end.
    Pipelined = 11,
    /// Bytes passed unseen, or the kernel did not take them.
    LostTrack = 12,
    /// The kernel did not insert the bytes.
    Refused = 13,
    /// A connection did not join: there were [`SOCKETS_MAX`] already.
    Full = 14,
    /// A connection did not join: the kernel refused, or bytes were under way already.
    NotTaken = 15,
    /// A connection did not join, or was left alone from then on: its reads block, which this kernel would disturb.
    Blocking = 16,
    /// The connection sent its first request; staying longer would disturb the reading of waiting bytes on this kernel.
    Once = 17,
    /// A connection did not join, or was left alone from then on: its owner sends from shared memory (`SO_ZEROCOPY`),
    /// and the kernel would report its completion wrongly.
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

    /// What it is about.
    pub fn subject(self) -> Subject {
        match self {
            Self::Joined | Self::Left => Subject::Connection,
            Self::Injected | Self::Present | Self::Busy => Subject::Request,
            _ => Subject::LeftAlone,
        }
    }

    /// Label value in the metric family of its subject.
    pub fn name(self) -> &'static str {
        match self {
            Self::Joined => "taken",
            Self::Left => "released",
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
    fn the_line_has_its_declared_length() {
        let line = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
        assert_eq!(line.len(), LEN as usize);
    }
}
