//! When a span is reported, and what is decided at that time.

use std::sync::Arc;

use tracer_model::{ClassId, Grade, Linked, Nanos, Outcome, ProtocolId, Side};

use crate::cause::Cause;
use crate::charges::less;
use crate::engine::{Engine, verdicts};
use crate::evidence::{Doubt, Evidence, Reason};
use crate::open_span::OpenSpan;
use crate::output::{Output, Verdicts};
use crate::slot::Slot;
use crate::strategies::thread_pool::wakeup_candidates;
use crate::strategies::{after_reply, streams, tasks, thread_affinity, thread_pool};
use crate::world::World;

/// How long, and how many times, a report is deferred for a call whose parent has not begun its answer.
const DEFERRAL: Nanos = 250_000_000;
pub(super) const DEFERRALS: u8 = 40;
/// How long a request at most follows a call whose time to be reported has come.
const TURN: Nanos = 1_000_000_000;
/// Generations of parents followed to the start of a transaction.
pub(super) const DEPTH: u32 = 64;

/// Whether the call at the other end of a request is reported before it, in its turn, which comes soon: a second is more
/// than any turn is late.
fn is_preceded(world: &World, slot: Slot, now: Nanos) -> bool {
    let due = |call: &OpenSpan| call.end.saturating_add(world.limits.grace + TURN);
    call_before(world, slot).is_some_and(|call| call.deferred == 0 && now < due(call))
}

/// The call at the other end of a request, which has ended and is not reported.
fn call_before(world: &World, slot: Slot) -> Option<&OpenSpan> {
    let live = world.spans.get(slot).filter(|live| live.side == Side::Server && live.rare.remote_parent.is_none())?;
    world.spans.get(live.server.caller?.0).filter(|call| call.end != 0)
}

impl Engine {
    /// Reports the spans whose grace time ended by `now`.
    pub fn report(&mut self, now: Nanos, out: &mut Vec<Output>) {
        self.expire_closed(now, out);
        self.relay_sweep(out);
        self.declared.report_samples(&mut self.world, now, out);
        self.child_processes.decide_calls(&mut self.world, &mut self.tasks.table, now);
        while let Some(slot) = self.queue.pop_due(now, |slot| is_preceded(&self.world, slot, now)) {
            self.settle_due(slot, now);
            if now != Nanos::MAX && self.undecided(slot, now) {
                if let Some(live) = self.world.spans.get_mut(slot) {
                    live.deferred += 1;
                }
                self.queue.deferred.push_back((now + DEFERRAL, slot));
                continue;
            }
            if now != Nanos::MAX && self.follows_its_call(slot, now) {
                continue;
            }
            self.give_out(slot, out);
        }
    }

    /// Puts the report of a request off until its call on this host is reported, if that has ended: what is learned in
    /// the call's grace time can still give the call another transaction, and files and collectors take no corrections.
    fn follows_its_call(&mut self, slot: Slot, now: Nanos) -> bool {
        if is_preceded(&self.world, slot, now) {
            self.queue.followers.push_back(slot);
            return true;
        }
        let is_deferred = call_before(&self.world, slot).is_some();
        let Some(live) = self.world.spans.get_mut(slot).filter(|live| is_deferred && live.deferred < DEFERRALS) else {
            return false;
        };
        live.deferred += 1;
        self.queue.deferred.push_back((now + DEFERRAL, slot));
        true
    }

    /// Whether evidence can still change the span's place in its transaction or its cost: a call (or the request at the
    /// other end of one) whose supposed parent has not begun its answer, a span above it without a final parent, or a
    /// call it may have caused.
    fn undecided(&self, slot: Slot, now: Nanos) -> bool {
        let Some(live) = self.world.spans.get(slot) else { return false };
        if live.deferred >= DEFERRALS {
            return false;
        }
        if Self::may_be_ending(live)
            || tasks::may_be_tasked(&self.world, live, now)
            || thread_affinity::may_be_moved(&self.world, live)
            || after_reply::is_worked_for(&self.world, slot, now)
        {
            return true;
        }
        let is_open = |call: &Slot| self.world.spans.get(*call).is_some_and(|call| call.client.cause.is_open());
        if live.server.candidate_calls.iter().any(is_open) || self.awaits_word(live) || self.awaits_producer(live) {
            return true;
        }
        let above = |live: &OpenSpan| live.server.caller.and_then(|(call, _)| self.world.spans.get(call));
        let serves = live.side == Side::Server;
        let mut call = if serves { above(live) } else { Some(live) };
        if let Some((live, group_membership)) = call.and_then(|call| Some((call, call.rare.group_membership?)))
            && self.loops.waits(&self.world, live, group_membership)
        {
            return true;
        }
        if call.is_some_and(|call| verdicts::awaits_answer(&self.world, call)) {
            return true;
        }
        for level in 0..DEPTH {
            let Some(live) = call else { return false };
            // Spans below take their trace id from spans above: a request from the call that is its other end.
            if live.client.cause.is_open() || ((level > 0 || serves) && self.may_change(live)) {
                return true;
            }
            call = live.client.cause.request().and_then(|parent| self.world.spans.get(parent)).and_then(above);
        }
        false
    }

    /// Decides a call's parent once no more evidence is expected.
    fn settle_due(&mut self, slot: Slot, now: Nanos) {
        let is_open = self.world.spans.get(slot).is_some_and(|live| live.client.cause.awaits_others());
        if is_open
            && !self.thread_pools.has_undecided(&mut self.world, slot, now)
            && !self.tasks.still_waits(&mut self.world, slot, now)
            && !wakeup_candidates::has_wakeup_candidates(&mut self.world, slot, now)
        {
            thread_pool::dismiss(&mut self.world, slot);
        }
    }

    /// Reports a span, whatever is still missing.
    pub(super) fn give_out(&mut self, slot: Slot, out: &mut Vec<Output>) {
        self.settle_due(slot, Nanos::MAX);
        self.inherit(slot);
        self.link_job(slot);
        let Some(live) = self.world.spans.get(slot) else { return };
        let (moves, doubt) = (self.world.processes.affinity.moves(live.pid), self.doubt_by_now(live));
        if let Some(live) = self.world.spans.get_mut(slot) {
            if doubt.is_some() {
                live.client.cause.doubt = doubt;
            }
            live.alone &= !moves;
        }
        streams::judge(&mut self.world, slot);
        self.suspect(slot);
        let Some(live) = self.world.spans.get(slot) else { return };
        let (trace, parent) = (self.trace(live, DEPTH), self.verdict(live).sure());
        self.collect_calls(slot, out);
        let trace = self.relay_over(slot, trace);
        let (trace, is_parents) = self.leaves_with(slot, trace, out);
        if is_parents {
            self.bind_above(slot, trace);
        }
        let Some(live) = self.world.spans.get(slot) else { return };
        let mut verdicts = match live.side {
            Side::Server => {
                let parent = live.named_parent();
                let (grade, evidence) = if live.request.expected.timed {
                    (Grade::Ambiguous, Evidence::RoundTripCost)
                } else if live.shared {
                    (Grade::Ambiguous, Evidence::StreamShares)
                } else if live.batch {
                    (Grade::Confirmed, Evidence::BatchShares)
                } else if live.alone {
                    (Grade::Certain, Evidence::ThreadAlone)
                } else if live.protocol == ProtocolId::Job && live.request.expected.silent {
                    (Grade::Ambiguous, Evidence::JobHandedOver)
                } else if live.protocol == ProtocolId::Job {
                    (Grade::Ambiguous, Evidence::JobAmongOthers)
                } else {
                    (Grade::Confirmed, Evidence::Group)
                };
                Verdicts { trace, parent, grade, reason: Reason::For(evidence) }
            }
            Side::Client if live.rare.remote_parent.is_some() => {
                let reason = Reason::For(Evidence::Session);
                Verdicts { trace, parent: live.rare.remote_parent, grade: Grade::Certain, reason }
            }
            Side::Client => {
                let verdict = self.verdict(live);
                let parent = verdict.sure().and_then(|parent| self.id_of(parent, live));
                Verdicts { trace, parent, grade: verdict.grade, reason: verdict.reason }
            }
        };
        if !is_parents {
            verdicts.parent = None;
            // A call that lost its parent to a doubt keeps that reason.
            if live.side == Side::Client && parent.is_some() {
                (verdicts.grade, verdicts.reason) = (Grade::Ambiguous, Reason::Against(Doubt::FoundLate));
            }
        }
        self.reported_with(slot, trace);
        let Some(mut live) = self.world.spans.remove(slot) else { return };
        self.inband.reported(&live, verdicts.parent, verdicts.trace);
        if let Some(group_membership) = live.rare.group_membership {
            self.loops.untie(group_membership);
        }
        live.trace = trace;
        self.upgrade_reported(&live, trace);
        self.producer_reported(slot, &live, trace);
        after_reply::reported(&mut self.world, live.tid, slot, live.kept());
        self.child_processes.reported(slot, &live);
        self.leave(slot, &mut live, parent, out);
        // The other end can outlive it and must find the transaction.
        if let Some(callee) = live.client.callee.and_then(|callee| self.world.spans.get_mut(callee))
            && callee.rare.remote_parent.is_none()
        {
            callee.trace = trace;
        }
        self.forwarding.reported(slot, &live);
        if live.end == 0 {
            live.end = self.world.now;
        }
        out.push(Output::Finished(live, verdicts));
    }

    /// Adds links from a span's request or reply; a messaging span has them in only one of the two.
    pub(super) fn linked(&mut self, cookie: u64, exchange: u64, linked: Box<Linked>) {
        self.world.counters.messages_unread += u64::from(linked.unread);
        self.world.counters.links_dropped += u64::from(linked.dropped);
        let slot = self.world.connections.get(&cookie).and_then(|connection| connection.span(exchange));
        if let Some(live) = slot.and_then(|slot| self.world.spans.get_mut(slot)) {
            live.rare.linked = Some(linked);
        }
    }

    /// Sets the class of an open span, and the service class of its rule; its cost so far counts for that class from
    /// now on.
    pub fn classify(&mut self, slot: Slot, class: ClassId, service_class: Option<&Arc<str>>) {
        if let Some(live) = self.world.spans.get_mut(slot) {
            live.class = Some(class);
            if let Some(service_class) = service_class {
                live.set_service_class(service_class);
            }
        }
    }

    /// An exchange was none: its span ends unreported.
    pub(super) fn withdrawn(&mut self, cookie: u64, exchange: u64) {
        let Some(slot) = self.take_exchange(cookie, exchange) else { return };
        if let Some(live) = self.world.spans.get_mut(slot) {
            live.rare.withdrawn = true;
        }
        // Spans below it would name a parent that is never reported. This looks at all spans, once for a connection that was
        // taken for another protocol's.
        let is_below = |live: &OpenSpan| {
            live.client.cause.request() == Some(slot) || live.server.caller.is_some_and(|(call, _)| call == slot)
        };
        let below: Vec<Slot> =
            self.world.spans.slots().filter(|slot| self.world.spans.get(*slot).is_some_and(is_below)).collect();
        for span in below {
            let Some(live) = self.world.spans.get_mut(span) else { continue };
            if live.client.cause.request() == Some(slot) {
                live.client.cause = Cause::none(Evidence::WasNoRequest);
            }
            if let Some(server) = live.server.get_mut() {
                server.caller = server.caller.filter(|(call, _)| *call != slot);
            }
        }
        self.ended(slot, Outcome::Unfinished, self.world.now);
    }

    /// A finished span was passed on: others may have its memory.
    pub fn give_back(&mut self, live: Box<OpenSpan>) {
        self.world.spans.give_back(live);
    }

    /// What a withdrawn span cost is its service's overhead.
    pub fn disown(&mut self, live: &OpenSpan) {
        self.charges.charge_overhead(live.service, less(live.cost, live.rare.posted));
    }

    /// Posts the unposted cost of a finished span to its final class.
    pub fn settle(&mut self, live: &OpenSpan, class: ClassId) {
        let rest = less(live.cost, live.rare.posted);
        self.charges.charge_class(class, rest);
    }
}
