//! Several threads with requests were woken by one that had read a reply: finds the one that took the result.
//!
//! A thread that waits for room in a bounded queue, or for a lock, is woken as well; it goes on and then waits for its
//! own result or makes a call. The thread that got the result has what it waited for and answers. So if the first woken
//! thread answers without another wake-up, and every other one was woken again or made a call, the first took the
//! result.

use tracer_model::Nanos;

use crate::evidence::Doubt;
use crate::open_span::OpenSpan;
use crate::slot::Slot;
use crate::world::World;

/// What is known of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taker {
    /// The first took the result.
    First,
    /// It may become known.
    Later,
    /// It will not become known.
    Never,
}

/// Another thread woke the thread of `request`, or that thread made a call: counts it and returns the count.
pub(crate) fn stirred(world: &mut World, request: Slot) -> u32 {
    let Some(live) = world.spans.get_mut(request) else { return 0 };
    live.server.wakeups_or_calls = live.server.wakeups_or_calls.saturating_add(1);
    live.server.wakeups_or_calls
}

/// Checks whether it is known which thread took the result of `call`; returns whether it may become known later.
pub(crate) fn has_wakeup_candidates(world: &mut World, call: Slot, now: Nanos) -> bool {
    let known = known(world, call);
    let Some(live) = world.spans.get_mut(call) else { return false };
    if known == Taker::Later && now != Nanos::MAX {
        return true;
    }
    live.client.wakeup_candidates = None;
    if known == Taker::First && live.client.cause.doubt == Some(Doubt::SeveralWoken) {
        live.client.cause.doubt = None;
    }
    false
}

fn known(world: &World, call: Slot) -> Taker {
    let Some(live) = world.spans.get(call) else { return Taker::Never };
    let Some(wakeup_candidates) = live.client.wakeup_candidates.as_deref() else { return Taker::Never };
    let first = live.client.cause.request().and_then(|slot| world.spans.get(slot));
    match first.map(OpenSpan::answered_after) {
        Some(Some(wakeups_or_calls)) if wakeups_or_calls == wakeup_candidates.own => {}
        Some(None) => return Taker::Later,
        _ => return Taker::Never,
    }
    let mut known = Taker::First;
    for (slot, wakeups_or_calls) in &wakeup_candidates.others {
        match world.spans.get(*slot) {
            Some(other) if other.server.wakeups_or_calls > *wakeups_or_calls => {}
            Some(other) if other.answered_after().is_none() => known = Taker::Later,
            _ => return Taker::Never,
        }
    }
    known
}
