//! What a call adds to the request that caused it: the time it was open, CPU and stacks. Only a sure parent gets them.
//!
//! A call with an ambiguous parent is charged to no request: its CPU is overhead of its service, its time is no
//! request's downstream time, and it has a transaction of its own. Evidence often comes after the call, so the call
//! keeps its cost until it, or its request, is reported.

use super::charge::{SPAN_SAMPLES, add, less};
use super::engine::Engine;
use super::output::Output;
use super::open_span::{CallTime, OpenSpan, Slot};
use super::streams::is_stream;
use crate::model::{Cost, Owner, Side, StackSample};

impl Engine {
    /// The call's parent, if current evidence makes it more than a guess.
    pub(super) fn sure_parent(&self, call: &OpenSpan) -> Option<Slot> {
        self.verdict(call).sure().filter(|_| self.doubt_by_now(call).is_none())
    }

    /// The request to charge the call's work to at once, because no later evidence can change its parent.
    pub(super) fn charged_at_once(&self, call: &OpenSpan) -> Option<Slot> {
        let parent = call.cause.request().filter(|_| call.cause.is_certain() && !is_stream(call))?;
        let may_change = self.may_be_tasked(call, self.world.now) || self.may_be_moved(call);
        (self.world.spans.get(parent).is_some() && !may_change && self.doubt_of_thread(call).is_none()).then_some(parent)
    }

    /// A request is reported: takes the cost of its calls, and drops the times of calls that may belong to another
    /// request.
    pub(super) fn collect_calls(&mut self, slot: Slot, out: &mut Vec<Output>) {
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.side == Side::Server) else { return };
        let mut calls = std::mem::take(&mut live.calls);
        calls.retain(|time| {
            // A reported call has settled this itself.
            let Some(call) = time.call.and_then(|call| self.world.spans.get(call)) else { return true };
            self.sure_parent(call) == Some(slot)
        });
        for call in calls.iter().filter_map(|time| time.call) {
            let Some(call) = self.world.spans.get_mut(call) else { continue };
            let (cost, samples) = (std::mem::take(&mut call.cost), std::mem::take(&mut call.samples));
            self.take_over(slot, cost, samples, out);
        }
        if let Some(live) = self.world.spans.get_mut(slot) {
            live.calls = calls;
        }
    }

    /// A call is reported: its sure parent gets its time and cost; without one, they are unattributed.
    pub(super) fn leave(&mut self, slot: Slot, live: &mut OpenSpan, parent: Option<Slot>, out: &mut Vec<Output>) {
        if live.side != Side::Client {
            return;
        }
        if let Some(other) = live.cause.request().filter(|other| Some(*other) != parent)
            && let Some(other) = self.world.spans.get_mut(other)
        {
            other.calls.retain(|time| time.call != Some(slot));
        }
        if let Some(request) = parent.and_then(|parent| self.world.spans.get_mut(parent))
            && live.end != 0
            && !request.calls.iter().any(|time| time.call == Some(slot))
        {
            request.add_call(CallTime { call: Some(slot), start: live.start, end: live.end });
        }
        if live.cost == Cost::default() && live.samples.is_empty() {
            return;
        }
        let rest = less(std::mem::take(&mut live.cost), std::mem::take(&mut live.posted));
        let samples = std::mem::take(&mut live.samples);
        if let Some(parent) = parent.filter(|parent| self.world.spans.get(*parent).is_some()) {
            self.take_over(parent, rest, samples, out);
            return;
        }
        let reported = parent.and_then(|_| self.kept(live));
        let class = reported.and_then(|(.., class)| class);
        match class {
            Some(class) => {
                add(&mut self.class_costs, class.0, rest);
                self.reported.late.add(reported.map(|(span, ..)| span), class, rest);
            }
            None => add(&mut self.overhead, live.service.0, rest),
        }
        let owner = class.map_or(Owner::Overhead(live.service), Owner::Class);
        for mut sample in samples {
            (sample.owner, sample.span) = (owner, None);
            out.push(Output::Sample(sample));
        }
    }

    /// Moves a call's cost to its request, which is not reported yet.
    fn take_over(&mut self, request: Slot, cost: Cost, samples: Vec<StackSample>, out: &mut Vec<Output>) {
        let Some(request) = self.world.spans.get_mut(request) else { return };
        request.cost.add(cost);
        for mut sample in samples {
            (sample.span, sample.dimensions) = (Some(request.id), request.dimensions);
            if let Some(class) = request.class {
                sample.owner = Owner::Class(class);
                out.push(Output::Sample(sample));
            } else if request.samples.len() < SPAN_SAMPLES {
                request.samples.push(sample);
            } else {
                self.world.counters.samples_dropped += 1;
            }
        }
    }
}
