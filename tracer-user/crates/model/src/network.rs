//! What TCP measured of a connection, how one was opened, and connects that failed.

use super::{Nanos, ServiceId};

/// What TCP measured of a span's connection, as of its last operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// The shortest round trip of late, microseconds.
    pub rtt_min_us: u32,
    /// Segments that this end sent again while the span was open; `None`: its beginning was not seen.
    pub retransmits: Option<u32>,
}

/// How the connection of a call was opened, if the call is the first on it. 0: not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// `connect` was called.
    pub connect: Nanos,
    /// The other end answered.
    pub established: Nanos,
    /// The first byte of the TLS handshake was sent.
    pub hello: Nanos,
    /// What the other end last sent of the handshake was read.
    pub secured: Nanos,
}

impl Opening {
    /// How long the connect took, nanoseconds.
    pub fn connect_time(&self) -> Option<u64> {
        (self.connect != 0).then(|| self.established.saturating_sub(self.connect))
    }

    /// How long the TLS handshake took, nanoseconds.
    pub fn handshake_time(&self) -> Option<u64> {
        (self.hello != 0).then(|| self.secured.saturating_sub(self.hello))
    }
}

/// A connect that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FailedConnect {
    /// The service that connected.
    pub service: ServiceId,
    /// The port that it connected to.
    pub port: u16,
    /// Why, as a number of `errno.h`; 0: its program gave up.
    pub error: u16,
}
