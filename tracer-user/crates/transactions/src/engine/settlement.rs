//! What a call adds to the request that caused it: the time it was open, CPU and stacks. Only a sure parent gets them.
//!
//! A call with an ambiguous parent is charged to no request: its CPU is overhead of its service, its time is no
//! request's downstream time, and it has a transaction of its own. Evidence often comes after the call, so the call
//! keeps its cost until it, or its request, is reported. What its thread did right before a send is charged to a call because
//! the call's parent is the best evidence for it; without a parent, the request of the thread's last operation gets it.

use tracer_model::{ClassId, Cost, Owner, ServiceId, Side, SpanId, StackSample};

use crate::charges::{least, less};
use crate::engine::Engine;
use crate::engine::charge::SPAN_SAMPLES;
use crate::open_span::{CallTime, OpenSpan};
use crate::output::Output;
use crate::slot::Slot;
use crate::thread::Target;

impl Engine {
    /// A request is reported: takes the cost of its calls, and drops the times of calls that may belong to another
    /// request.
    pub(super) fn collect_calls(&mut self, slot: Slot, out: &mut Vec<Output>) {
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| live.side == Side::Server) else { return };
        let mut calls = live.server.take(|server| &mut server.calls);
        calls.retain(|time| {
            // A reported call has settled this itself.
            let Some(call) = time.call.and_then(|call| self.world.spans.get(call)) else { return true };
            self.sure_parent(call) == Some(slot)
        });
        for call in calls.iter().filter_map(|time| time.call) {
            let Some(call) = self.world.spans.get_mut(call) else { continue };
            let (cost, samples) = (std::mem::take(&mut call.cost), call.rare.take(|rare| &mut rare.samples));
            self.take_over(slot, cost, samples, out);
        }
        if let Some(live) = self.world.spans.get_mut(slot).filter(|_| !calls.is_empty()) {
            live.server.calls = calls;
        }
    }

    /// A call is reported: its sure parent gets its time and cost; without one, they are unattributed.
    pub(super) fn leave(&mut self, slot: Slot, live: &mut OpenSpan, parent: Option<Slot>, out: &mut Vec<Output>) {
        if live.side != Side::Client {
            return;
        }
        if let Some(other) = live.client.cause.request().filter(|other| Some(*other) != parent)
            && let Some(other) = self.world.spans.get_mut(other).and_then(|other| other.server.get_mut())
        {
            other.calls.retain(|time| time.call != Some(slot));
        }
        if let Some(request) = parent.and_then(|parent| self.world.spans.get_mut(parent))
            && live.end != 0
            && !request.server.calls.iter().any(|time| time.call == Some(slot))
        {
            request.add_call(CallTime { call: Some(slot), start: live.start, end: live.end });
        }
        if live.cost == Cost::default() && live.rare.samples.is_empty() {
            return;
        }
        let mut rest = less(std::mem::take(&mut live.cost), live.rare.take(|rare| &mut rare.posted));
        let mut samples = live.rare.take(|rare| &mut rare.samples);
        if let Some(parent) = parent.filter(|parent| self.world.spans.get(*parent).is_some()) {
            self.take_over(parent, rest, samples, out);
            return;
        }
        let reported = parent.and_then(|_| self.kept(live));
        let class = reported.and_then(|(.., class)| class);
        if parent.is_none()
            && let Some((Target::Span { slot, class, .. }, cost)) = live.client.before_send.take()
        {
            let cost = least(cost, rest);
            rest = less(rest, cost);
            let (before, after) = samples.into_iter().partition(|sample| sample.nanos <= live.start);
            samples = after;
            if self.world.spans.get(slot).is_some() {
                self.take_over(slot, cost, before, out);
            } else {
                let late = self.reported.both(slot).map(|(_, span)| span);
                self.charge_reported((late, class), live.service, cost, before, out);
            }
        }
        self.charge_reported((reported.map(|(span, ..)| span), class), live.service, rest, samples, out);
    }

    /// Charges a request that is reported, of which its class remains; without a class its service.
    fn charge_reported(
        &mut self,
        (span, class): (Option<SpanId>, Option<ClassId>),
        service: ServiceId,
        cost: Cost,
        samples: Vec<StackSample>,
        out: &mut Vec<Output>,
    ) {
        match class {
            Some(class) => {
                self.charges.charge_class(class, cost);
                self.reported.late.add(span, class, cost);
            }
            None => self.charges.charge_overhead(service, cost),
        }
        let owner = class.map_or(Owner::Overhead(service), Owner::Class);
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
            (sample.span, sample.dimensions) = (Some(request.id), request.rare.dimensions);
            if let Some(class) = request.class {
                sample.owner = Owner::Class(class);
                out.push(Output::Sample(sample));
            } else if request.rare.samples.len() < SPAN_SAMPLES {
                request.rare.samples.push(sample);
            } else {
                self.world.counters.samples_dropped += 1;
            }
        }
    }
}
