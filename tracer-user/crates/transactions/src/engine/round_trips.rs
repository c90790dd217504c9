//! Round trips on connections of unknown protocol: the parser reports them when they end, so their cause is noted when
//! they begin.

use tracer_common::event::Open;
use tracer_model::Side;

use crate::engine::Engine;
use crate::evidence::Evidence;
use crate::operation_context::OperationContext;

impl Engine {
    /// Whether the configuration asks for round trips on this connection, whatever the protocol.
    pub(super) fn is_timed(&self, open: &Open) -> bool {
        let ports = [open.local_port, open.remote_port];
        ports.iter().any(|port| *port != 0 && self.world.settings.timed_ports.contains(port))
    }

    /// If this operation begins a round trip on `cookie`: notes its cause.
    pub(super) fn turn_begins(&mut self, cookie: u64, during: OperationContext<'_>) {
        let Some(connection) =
            self.world.connections.get_mut(&cookie).filter(|connection| connection.talk.round_trip_began())
        else {
            return;
        };
        if connection.side() != Some(Side::Client) {
            connection.take_round_trip();
            return;
        }
        let opener = connection.opener().filter(|_| !connection.used);
        let mut cause = self.cause(opener, Some(during));
        // The meaning of a round trip is unknown, and whether other threads contribute to it.
        if cause.candidate.is_some() && cause.is_certain() {
            cause.evidence = Evidence::RoundTrip;
        }
        if let Some(connection) = self.world.connections.get_mut(&cookie) {
            connection.set_turn(cause);
        }
    }
}
