//! How the exchanges of a connection are found: one way at a time.

use super::dns::Datagrams;
use super::multiplex::Multiplexed;
use super::round_trips::RoundTrips;
use super::session::Session;

/// How exchanges are found.
#[derive(Debug, Default)]
pub(super) enum Mode {
    /// Replies come in the order of requests; also as long as the protocol is unknown.
    #[default]
    Ordered,
    /// The protocol numbers them.
    Multiplexed(Box<Multiplexed>),
    /// The connection is one WebSocket session after its upgrade.
    Session(Box<Session>),
    /// They are round trips, whatever they say.
    RoundTrips(Box<RoundTrips>),
    /// They are questions and answers of a DNS socket.
    Datagrams(Box<Datagrams>),
}

impl Mode {
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self, Self::Ordered)
    }

    pub(super) fn multiplexed(&self) -> Option<&Multiplexed> {
        if let Self::Multiplexed(multiplexed) = self { Some(multiplexed) } else { None }
    }

    pub(super) fn multiplexed_mut(&mut self) -> Option<&mut Multiplexed> {
        if let Self::Multiplexed(multiplexed) = self { Some(multiplexed) } else { None }
    }

    pub(super) fn session_mut(&mut self) -> Option<&mut Session> {
        if let Self::Session(session) = self { Some(session) } else { None }
    }

    pub(super) fn round_trips(&self) -> Option<&RoundTrips> {
        if let Self::RoundTrips(round_trips) = self { Some(round_trips) } else { None }
    }

    pub(super) fn round_trips_mut(&mut self) -> Option<&mut RoundTrips> {
        if let Self::RoundTrips(round_trips) = self { Some(round_trips) } else { None }
    }

    pub(super) fn datagrams_mut(&mut self) -> Option<&mut Datagrams> {
        if let Self::Datagrams(datagrams) = self { Some(datagrams) } else { None }
    }
}
