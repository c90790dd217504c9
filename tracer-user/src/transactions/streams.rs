//! Calls on HTTP/2 connections, which many threads or callbacks share: the sender of a call need not be its maker.
//!
//! gRPC's C library lets whichever thread is active send what others left in its queue, so a thread that holds one
//! request sends another one's call: of 1797 calls of Python's grpcio at concurrency 64 that were attributed by thread,
//! 261 belonged to another request. Node sends accumulated data from a callback of its own. So the sending thread is
//! evidence only if no other thread ever made a call on the connection, and the sending callback never is. Tasks
//! identified by their runtime are not affected.

use super::connection::SEVERAL;
use super::engine::Engine;
use super::open_span::{Handed, OpenSpan, Slot, Vote};
use crate::model::Side;
use crate::protocols::Conventions;

/// Why such a call is ambiguous.
pub(super) const SHARED: &str = "several threads make their calls by its connection, and may send each other's";

/// Whether the call's connection multiplexes calls of its process over HTTP/2.
pub(super) fn is_stream(live: &OpenSpan) -> bool {
    let by_http = matches!(live.protocol.conventions(), Conventions::Http | Conventions::Rpc);
    live.side == Side::Client && live.multiplexed && by_http
}

impl Engine {
    /// Thread `tid` sent the call.
    pub(super) fn asks_by_stream(&mut self, slot: Slot, tid: u32) {
        let Some(live) = self.spans.get(slot).filter(|live| is_stream(live)) else { return };
        if let Some(connection) = self.connections.get_mut(&live.cookie)
            && connection.asker != tid
        {
            connection.asker = if connection.asker == 0 { tid } else { SEVERAL };
        }
    }

    /// The call's reply came: records whether one thread made all calls on its connection until then.
    pub(super) fn replied_by_stream(&mut self, slot: Slot) {
        let Some(live) = self.spans.get_mut(slot).filter(|live| is_stream(live)) else { return };
        live.sole = self.connections.get(&live.cookie).is_some_and(|connection| connection.asker == live.tid);
    }

    /// Whether only the sending thread links the call to a request while others send on its connection, too.
    pub(super) fn is_shared_stream(&self, live: &OpenSpan) -> bool {
        if !is_stream(live) || live.cause.decided_by_task || live.cause.candidate.is_none() {
            return false;
        }
        !self.connections.get(&live.cookie).map_or(live.sole, |connection| connection.asker == live.tid)
    }

    /// Final verdict on such a call if its thread is the only evidence.
    pub(super) fn judge_stream(&mut self, slot: Slot) {
        let Some(live) = self.spans.get(slot).filter(|live| is_stream(live)) else { return };
        if live.cause.decided_by_task || live.cause.candidate.is_none() {
            return;
        }
        let shared = self.is_shared_stream(live);
        let Some(live) = self.spans.get_mut(slot) else { return };
        if shared {
            live.cause.handed = Some(Handed { doubt: Some(SHARED), futex: 0, calls: 1 });
        } else if live.cause.alone {
            live.cause.alone = false;
            live.cause.handed = Some(Handed { doubt: None, futex: 0, calls: 1 });
            live.cause.vote = live.cause.candidate.map_or(Vote::None, Vote::For);
            live.cause.evidence = "same thread, one request at a time, and no other makes calls by its connection";
        }
    }
}
