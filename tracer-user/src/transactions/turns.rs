//! Turns of connections of which nothing else is known: they are told when they are over, so that what will be asked of
//! them then is noted when they begin, or when the request they were made for ends.

use tracer_common::event::Open;

use super::begin::During;
use super::engine::Engine;
use super::live::Slot;
use crate::model::Side;

/// Turns of one request that count as its calls while they last.
const TURNS: usize = 32;

/// Evidence for a turn whose beginning was not seen.
pub(super) const UNKNOWN: &str = "its beginning was not seen";

impl Engine {
    /// Whether turns of the connection are wanted whatever is spoken.
    pub(super) fn is_timed(&self, open: &Open) -> bool {
        let ports = [open.local_port, open.remote_port];
        ports.iter().any(|port| *port != 0 && self.settings.timed_ports.contains(port))
    }

    /// If a turn begins on `cookie` with this operation: notes who caused it.
    pub(super) fn turn_begins(&mut self, cookie: u64, during: During<'_>) {
        let Some(connection) = self.connections.get_mut(&cookie).filter(|connection| connection.talk.turn_began())
        else {
            return;
        };
        if connection.side() != Some(Side::Client) {
            connection.take_turn();
            return;
        }
        let opener = connection.opener().filter(|_| !connection.used);
        let mut cause = self.cause(opener, Some(during));
        // What a turn is about is not known, nor whether other threads have a part in it.
        cause.alone &= cause.candidate.is_none();
        cause.open = false;
        if let Some(parent) = cause.candidate.and_then(|slot| self.units.get_mut(slot))
            && parent.turns.len() < TURNS
        {
            parent.turns.push(cookie);
        }
        if let Some(connection) = self.connections.get_mut(&cookie) {
            connection.set_turn(cause);
        }
    }

    /// The request is over: it waited for the turns that were begun for it at least as long as their answers were seen
    /// to go on. They themselves are told later.
    pub(super) fn turns_of(&mut self, slot: Slot, turns: &[u64]) {
        for cookie in turns {
            let Some(connection) = self.connections.get(cookie) else { continue };
            let own = connection.turn().is_some_and(|cause| cause.candidate == Some(slot));
            let Some((start, last)) = connection.talk.turn_so_far().filter(|_| own) else { continue };
            if let Some(live) = self.units.get_mut(slot)
                && live.calls.len() < 1024
            {
                live.calls.push((start, last));
            }
        }
    }
}
