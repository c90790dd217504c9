//! The verdict on a call's parent: what the strategies' evidence and doubts come to by now.

use tracer_model::{Grade, SpanId};

use crate::combine::{Verdict, combine};
use crate::engine::Engine;
use crate::engine::report::DEFERRALS;
use crate::evidence::{Doubt, Reason};
use crate::open_span::{OpenSpan, is_stream};
use crate::slot::{Slot, SpanRef};
use crate::strategies::{streams, tasks, thread_affinity};
use crate::world::World;

/// The request to charge the call's work to at once, because no later evidence can change its parent.
pub(super) fn charged_at_once(world: &World, call: &OpenSpan) -> Option<Slot> {
    let parent = call.client.cause.request().filter(|_| call.client.cause.is_certain() && !is_stream(call))?;
    let may_change = tasks::may_be_tasked(world, call, world.now) || thread_affinity::may_be_moved(world, call);
    (world.spans.get(parent).is_some() && !may_change && thread_affinity::doubt(world, call).is_none())
        .then_some(parent)
}

/// Whether the answer of a call's supposed parent, which may confirm it, is still to come.
pub(super) fn awaits_answer(world: &World, call: &OpenSpan) -> bool {
    let parent = call.client.cause.request().and_then(|parent| world.spans.get(parent));
    // Answers of other requests do not settle this earlier.
    !call.client.cause.is_certain() && parent.is_some_and(|parent| parent.end == 0 && parent.first_reply == 0)
}

impl Engine {
    /// The verdict on a call's parent by the evidence so far.
    pub(super) fn verdict(&self, live: &OpenSpan) -> Verdict {
        let verdict = live.rare.group_membership.map_or_else(
            || combine(&live.client.cause.proposal()),
            |group_membership| self.loops.verdict(&self.world, live, group_membership),
        );
        if verdict.grade != Grade::Confirmed {
            return verdict;
        }
        match self.forwarding.doubt(&self.world, live) {
            Some(doubt) => Verdict { grade: Grade::Ambiguous, reason: Reason::Against(doubt), ..verdict },
            None => verdict,
        }
    }

    /// What makes a call's evidence void by what is known of its process and threads by now. Where several doubts hold, the
    /// first is told: it says most about the process.
    pub(super) fn doubt_by_now(&self, live: &OpenSpan) -> Option<Doubt> {
        streams::doubt(&self.world, live)
            .or_else(|| thread_affinity::doubt(&self.world, live))
            .or_else(|| tasks::doubt(&self.world, live))
            .or_else(|| self.thread_pools.doubt(&self.world, live))
    }

    /// What remains of that parent once it is reported.
    pub(super) fn kept(&self, live: &OpenSpan) -> Option<SpanRef> {
        live.rare.group_membership.and_then(|group_membership| self.loops.kept(group_membership)).or(live
            .client
            .cause
            .candidate
            .map(|candidate| candidate.kept))
    }

    pub(super) fn id_of(&self, parent: Slot, call: &OpenSpan) -> Option<SpanId> {
        self.world.spans.get(parent).map(|parent| parent.id).or_else(|| {
            let kept = self.kept(call).filter(|_| self.verdict(call).sure() == Some(parent));
            kept.map(|(id, _, _, _)| id)
        })
    }

    /// The call's parent, if current evidence makes it more than a guess.
    pub(super) fn sure_parent(&self, call: &OpenSpan) -> Option<Slot> {
        self.verdict(call).sure().filter(|_| self.doubt_by_now(call).is_none())
    }

    /// Whether a call's parent may still change.
    pub(super) fn may_change(&self, call: &OpenSpan) -> bool {
        !self.world.finishing
            && call.deferred < DEFERRALS
            && (call.client.cause.is_open()
                || tasks::may_be_tasked(&self.world, call, self.world.now)
                || thread_affinity::may_be_moved(&self.world, call)
                || call.rare.group_membership.map_or_else(
                    || awaits_answer(&self.world, call),
                    |group_membership| self.loops.waits(&self.world, call, group_membership),
                ))
    }
}
