//! Calls on connections of HTTP/2, which many threads or callbacks share: who sends one need not be who made it.
//!
//! gRPC's C library lets whoever is at it send what others left in its queue, so that a thread that holds a request sends
//! another one's call: of 1797 calls of Python's grpcio at 64 at once that their thread stood for, 261 were another
//! request's. Node sends what piled up from a callback of its own. So who sends says something only where no other thread
//! ever made a call by that connection, and of a callback nothing. Tasks that are told by their runtime are another matter.

use super::connection::SEVERAL;
use super::engine::Engine;
use super::live::{Handed, Live, Slot, Vote};
use crate::model::Side;
use crate::protocols::{Conventions, conventions};

/// Why a call is not sure.
pub(super) const SHARED: &str = "several threads make their calls by its connection, and may send each other's";

/// Whether the call's connection carries several of its process at once, by HTTP/2.
pub(super) fn is_stream(live: &Live) -> bool {
    let by_http = matches!(conventions(live.protocol), Conventions::Http | Conventions::Rpc);
    live.side == Side::Client && live.multiplexed && by_http
}

impl Engine {
    /// Thread `tid` sent the call.
    pub(super) fn asks_by_stream(&mut self, slot: Slot, tid: u32) {
        let Some(live) = self.units.get(slot).filter(|live| is_stream(live)) else { return };
        if let Some(connection) = self.connections.get_mut(&live.cookie)
            && connection.asker != tid
        {
            connection.asker = if connection.asker == 0 { tid } else { SEVERAL };
        }
    }

    /// The reply of the call came: who made calls by its connection until then.
    pub(super) fn replied_by_stream(&mut self, slot: Slot) {
        let Some(live) = self.units.get_mut(slot).filter(|live| is_stream(live)) else { return };
        live.sole = self.connections.get(&live.cookie).is_some_and(|connection| connection.asker == live.tid);
    }

    /// What is said of such a call in the end, where nothing but its thread says for whom it is.
    pub(super) fn judge_stream(&mut self, slot: Slot) {
        let Some(live) = self.units.get(slot).filter(|live| is_stream(live)) else { return };
        if live.cause.told || live.cause.candidate.is_none() {
            return;
        }
        let one = self.connections.get(&live.cookie).map_or(live.sole, |connection| connection.asker == live.tid);
        let Some(live) = self.units.get_mut(slot) else { return };
        if !one {
            live.cause.handed = Some(Handed { doubt: Some(SHARED), futex: 0, calls: 1 });
        } else if live.cause.alone {
            live.cause.alone = false;
            live.cause.handed = Some(Handed { doubt: None, futex: 0, calls: 1 });
            live.cause.vote = live.cause.candidate.map_or(Vote::None, Vote::For);
            live.cause.evidence = "same thread, one request at a time, and no other makes calls by its connection";
        }
    }
}
