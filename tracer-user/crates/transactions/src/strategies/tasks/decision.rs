//! What the evidence of a task decides about a call.

use tracer_model::Side;

use crate::cause::{CallState, Candidate, Passed};
use crate::combine::Vote;
use crate::evidence::{Doubt, Evidence};
use crate::open_span::CallTime;
use crate::slot::Slot;
use crate::task_table::AnsweredRequest;
use crate::world::World;

/// The task's evidence: the call was made for the request of `answer`.
pub(crate) fn decide_by_task(world: &mut World, call: Slot, answer: &AnsweredRequest, doubt: Option<Doubt>) {
    let Some(live) = world.spans.get_mut(call).filter(|live| live.side == Side::Client) else { return };
    let is_decided = live.client.cause.state == CallState::DecidedByTask;
    let several = (live.client.cause.passed == Passed::ToSeveral).then_some(Doubt::SeveralTasks);
    let mut doubt = several.or(doubt);
    if doubt == Some(Doubt::SharedConnection) && !is_decided && !live.client.cause.is_certain() {
        if !live.client.passed_on {
            live.client.provisional_parent = Some(Box::new(*answer));
            live.client.cause.state = CallState::AwaitsTask;
            return;
        }
        doubt = None;
    }
    if is_decided {
        // Only a doubt can still change the decision.
        live.client.cause.doubt = doubt.or(live.client.cause.doubt);
        return;
    }
    if live.client.cause.is_certain() {
        // The thread's evidence stands unless the task's contradicts it.
        if live.client.cause.request() != Some(answer.request) {
            (live.client.cause.evidence, live.client.cause.vote) = (Evidence::Contradicted, Vote::Split);
        }
        return;
    }
    if live.start < answer.start {
        (live.client.cause.evidence, live.client.cause.state) = (Evidence::SentBeforeTask, CallState::Settled);
        return;
    }
    let is_passed = live.client.cause.passed != Passed::No;
    live.client.cause.state = CallState::DecidedByTask;
    live.client.cause.candidate = Some(Candidate { slot: answer.request, kept: answer.kept });
    live.client.cause.evidence = if is_passed { Evidence::TaskPassed } else { Evidence::TaskAnswered };
    (live.client.cause.doubt, live.client.cause.vote) = (doubt, Vote::For(answer.request));
    live.client.cause.taken = None;
    let time = CallTime { call: Some(call), start: live.start, end: live.end };
    if time.end != 0
        && let Some(request) = world.spans.get_mut(answer.request)
    {
        request.add_call(time);
    }
}
