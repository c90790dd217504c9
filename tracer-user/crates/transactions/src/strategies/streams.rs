//! Calls on HTTP/2 connections, which many threads or callbacks share: the sender of a call need not be its maker.
//!
//! gRPC's C library lets whichever thread is active send what others left in its queue, so a thread that holds one
//! request sends another one's call: of 1797 calls of Python's grpcio at concurrency 64 that were attributed by thread,
//! 261 belonged to another request. Node sends accumulated data from a callback of its own. So the sending thread is
//! evidence only if no other thread ever made a call on the connection, and the sending callback never is. Tasks
//! identified by their runtime are not affected.

use crate::cause::CallState;
use crate::connection::SEVERAL;
use crate::evidence::{Doubt, Evidence};
use crate::open_span::{OpenSpan, is_stream};
use crate::slot::Slot;
use crate::world::World;

/// Thread `tid` sent the call.
pub(crate) fn asked(world: &mut World, slot: Slot, tid: u32) {
    let Some(live) = world.spans.get(slot).filter(|live| is_stream(live)) else { return };
    if let Some(connection) = world.connections.get_mut(&live.cookie)
        && connection.asker != tid
    {
        connection.asker = if connection.asker == 0 { tid } else { SEVERAL };
    }
}

/// The call's reply came: records whether one thread made all calls on its connection until then.
pub(crate) fn replied(world: &mut World, slot: Slot) {
    let Some(live) = world.spans.get_mut(slot).filter(|live| is_stream(live)) else { return };
    live.client.sole = world.connections.get(&live.cookie).is_some_and(|connection| connection.asker == live.tid);
}

/// Whether only the sending thread links the call to a request while others send on its connection, too.
fn is_shared_stream(world: &World, live: &OpenSpan) -> bool {
    if !is_stream(live) || live.client.cause.state == CallState::DecidedByTask || live.client.cause.candidate.is_none()
    {
        return false;
    }
    !world.connections.get(&live.cookie).map_or(live.client.sole, |connection| connection.asker == live.tid)
}

/// Why such a call is ambiguous, if it is.
pub(crate) fn doubt(world: &World, live: &OpenSpan) -> Option<Doubt> {
    is_shared_stream(world, live).then_some(Doubt::SharedStream)
}

/// Such a call is reported, and its thread is the only evidence: notes that no other thread could have sent it.
pub(crate) fn judge(world: &mut World, slot: Slot) {
    let Some(live) = world.spans.get_mut(slot).filter(|live| is_stream(live)) else { return };
    let by_thread = live.client.cause.candidate.is_some() && live.client.cause.is_certain();
    if by_thread && live.client.cause.doubt.is_none() && live.client.cause.state != CallState::DecidedByTask {
        live.client.cause.evidence = Evidence::OnlySender;
    }
}
