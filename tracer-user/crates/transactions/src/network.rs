//! The network below a span: what TCP measured of its connection, and how that was opened.

use tracer_common::event::NetworkPath;
use tracer_model::{Nanos, Network, Opening};

/// What TCP measured while a span was open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkSoFar {
    /// Retransmits of the connection when the span began, if that was seen.
    before: Option<u32>,
    /// The same by now.
    retransmits: u32,
    /// The connection's round trip, microseconds; 0: nothing was measured yet.
    rtt_us: u32,
    /// The shortest one.
    rtt_min_us: u32,
}

impl NetworkSoFar {
    /// The network path at an operation on the span's connection, or at its end.
    pub(super) fn measured(&mut self, path: NetworkPath, begins: bool) {
        // A connection without a measured round trip is none of TCP, or has not been acknowledged anything.
        if path.rtt == 0 {
            return;
        }
        if begins {
            self.before = Some(path.retransmits);
        }
        (self.rtt_us, self.rtt_min_us, self.retransmits) = (path.rtt, path.rtt_min, path.retransmits);
    }

    /// The newest figures.
    pub fn latest(&self) -> Option<Network> {
        let retransmits = self.before.map(|before| self.retransmits.wrapping_sub(before));
        (self.rtt_us != 0).then_some(Network { rtt_us: self.rtt_us, rtt_min_us: self.rtt_min_us, retransmits })
    }
}

/// How a connection was opened, with its handshake of TLS; `None`: neither was seen.
pub(super) fn opening(connect: Nanos, established: Nanos, (hello, secured): (Nanos, Nanos)) -> Option<Box<Opening>> {
    let (connect, established) = if connect < established { (connect, established) } else { (0, 0) };
    let (hello, secured) = if hello != 0 && hello < secured { (hello, secured) } else { (0, 0) };
    (connect != 0 || hello != 0).then(|| Box::new(Opening { connect, established, hello, secured }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(rtt: u32, retransmits: u32) -> NetworkPath {
        NetworkPath { rtt, rtt_min: rtt / 2, retransmits, reserved: 0 }
    }

    #[test]
    fn retransmits_are_those_of_the_span() {
        let mut network = NetworkSoFar::default();
        network.measured(path(0, 0), true);
        assert_eq!(network.latest(), None, "nothing was measured yet");
        network.measured(path(800, 7), false);
        assert_eq!(network.latest().and_then(|network| network.retransmits), None, "its beginning was not seen");
        network.measured(path(800, u32::MAX), true);
        network.measured(path(900, 2), false);
        assert_eq!(network.latest(), Some(Network { rtt_us: 900, rtt_min_us: 450, retransmits: Some(3) }));
    }

    #[test]
    fn what_was_not_seen_of_an_opening_is_not_made_up() {
        assert_eq!(opening(0, 0, (0, 0)), None);
        assert_eq!(opening(5, 0, (0, 9)), None);
        assert_eq!(opening(0, 7, (7, 0)), None);
        let whole = opening(5, 7, (8, 11)).expect("an opening");
        assert_eq!((whole.connect_time(), whole.handshake_time()), (Some(2), Some(3)));
        assert_eq!(opening(5, 7, (8, 0)).expect("a connect").handshake_time(), None);
    }
}
