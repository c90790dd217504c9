//! The network below a span: what TCP measured of its connection, how that was opened, and connections that were never made.

use std::collections::BTreeMap;

use tracer_common::event::{NetworkPath, State, tcp_state};

use super::world::World;
use crate::guard::tables::TableUse;
use crate::model::{FailedConnect, Nanos, Network, Opening};

/// Most services, ports and errors of failed connects counted separately within about a second.
const FAILED_CONNECTS: usize = 256;

/// What TCP measured while a span was open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkSoFar {
    /// Retransmits of the connection when the span began, if that was seen.
    before: Option<u32>,
    latest: Option<Network>,
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
        let retransmits = self.before.map(|before| path.retransmits.wrapping_sub(before));
        self.latest = Some(Network { rtt_us: path.rtt, rtt_min_us: path.rtt_min, retransmits });
    }

    /// The newest figures.
    pub fn latest(&self) -> Option<Network> {
        self.latest
    }
}

/// Connections that were not made, by service, port and error.
#[derive(Debug, Default)]
pub(super) struct FailedConnects {
    counts: BTreeMap<FailedConnect, u64>,
    /// Connects whose port was given up because there were too many kinds at once.
    without_port: u64,
}

impl FailedConnects {
    /// Those since last taken.
    pub(super) fn take(&mut self) -> BTreeMap<FailedConnect, u64> {
        std::mem::take(&mut self.counts)
    }

    pub(super) fn table_use(&self) -> TableUse {
        TableUse::new(self.counts.len(), FAILED_CONNECTS, self.without_port)
    }

    /// A connect failed.
    fn add(&mut self, failed: FailedConnect) {
        let has_room = self.counts.len() < FAILED_CONNECTS || self.counts.contains_key(&failed);
        self.without_port += u64::from(!has_room);
        // Which port matters less than that it failed.
        let key = if has_room { failed } else { FailedConnect { port: 0, ..failed } };
        *self.counts.entry(key).or_default() += 1;
    }

    /// A socket changed state: its open spans take over the network path. One that was never connected is counted.
    pub(super) fn note_network(&mut self, world: &mut World, state: &State) {
        let Some(connection) = world.connections.get_mut(&state.cookie) else { return };
        if state.new == tcp_state::SYN_SENT {
            return;
        }
        let open: Vec<_> = connection.spans().collect();
        for slot in open {
            if let Some(live) = world.spans.get_mut(slot) {
                live.goes_on(state.path);
            }
        }
        if state.old == tcp_state::SYN_SENT && state.new == tcp_state::CLOSE {
            let tgid = connection.tgid;
            let service = world.processes.service(tgid);
            self.add(FailedConnect { service, port: state.remote_port, error: state.error });
        }
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
    use crate::model::ServiceId;

    fn path(rtt: u32, retransmits: u32) -> NetworkPath {
        NetworkPath { rtt, rtt_min: rtt / 2, retransmits, reserved: 0 }
    }

    #[test]
    fn ports_of_failed_connects_that_find_no_room_are_counted() {
        let mut failed = FailedConnects::default();
        let of = |port| FailedConnect { service: ServiceId(1), port, error: 111 };
        for port in 1..=FAILED_CONNECTS as u16 + 10 {
            failed.add(of(port));
        }
        failed.add(of(1));
        assert_eq!(failed.table_use(), TableUse::new(FAILED_CONNECTS + 1, FAILED_CONNECTS, 10));
        let all = failed.take();
        assert_eq!((all.get(&of(0)), all.get(&of(1))), (Some(&10), Some(&2)));
        assert_eq!((failed.table_use().entries, failed.table_use().reached), (0, 10));
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
