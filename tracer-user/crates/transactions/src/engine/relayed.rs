//! Parents on other hosts: what other agents report about the requests read here, and what they should know about the
//! calls made here.
//!
//! If an agent may know its call, a request waits for that context, for a bounded time; a context that comes later
//! updates the trace id in the store. A call's transaction may still be unknown when it is sent, because that of the
//! request above it is: the context is sent again as soon as it is known.

use std::net::IpAddr;

use tracer_model::{Nanos, Side, TraceId};
use tracer_relay::bounds::Bounds;
use tracer_relay::clocks::{Clock, Pair};
use tracer_relay::event::{Event, Mode};
use tracer_relay::key::RequestKey;
use tracer_relay::matches::{Effect, Given};
use tracer_relay::message::{Context, Message, Summary};
use tracer_relay::{Agent, Outcomes};

use crate::engine::Engine;
use crate::engine::report::DEPTH;
use crate::open_span::OpenSpan;
use crate::output::Output;
use crate::relayed::{CallContext, Contact, KNOWN_WAIT, Relayed, Relays, SETTLES, Served, WAIT, patience};
use crate::slot::Slot;

impl Engine {
    /// Offset of the wall clock of an agent's host from this host's `CLOCK_MONOTONIC`.
    pub fn clock_of(&self, agent: u64) -> Option<Clock> {
        self.relays.clocks.of(agent)
    }

    /// Outcomes of other agents' contexts.
    pub fn relay_outcomes(&self) -> Outcomes {
        Outcomes { answer_late: self.relays.late_answers, ..self.relays.matches.outcomes }
    }

    /// Handles a message of another agent, or the passage of time.
    pub fn relayed(&mut self, now: Nanos, event: Event, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(now);
        match event {
            Event::Mode(mode) => self.relays.mode = mode,
            Event::Message(from, Message::Context(context)) => {
                let Relays { bounds, matches, .. } = &mut self.relays;
                let may = |served: Served, given: &Given| bounds.may(now, given.from.number, served.remote);
                match matches.context(self.world.now, Given { context: context.clone(), from: from.clone() }, may) {
                    Effect::Met(served) | Effect::More(served) => {
                        self.adopt(served.slot, Given { context, from });
                        out.push(Output::Settled(served.slot));
                    }
                    Effect::Late(served) => {
                        self.late(&served, &context, out);
                        if let Some(connection) = self.world.connections.get_mut(&served.cookie) {
                            // Later requests on it wait again.
                            connection.contact = Contact::Yes;
                        }
                    }
                    Effect::Waits | Effect::Nothing => {}
                }
            }
            Event::Message(from, Message::Summary(summary)) => self.answered_afar(summary, &from),
            Event::Policy(policy) => self.relays.bounds = Bounds::new(policy),
            Event::Session(session) => self.relays.bounds.learn(now, &session),
            Event::Time | Event::Message(_, Message::Hello(_) | Message::Alive | Message::Forwards) => {}
        }
    }

    /// A reported request turns out to have a parent on another host.
    pub(super) fn late(&mut self, served: &Served, context: &Context, out: &mut Vec<Output>) {
        let trace = context.trace;
        let was = self.relays.name(served.trace);
        self.relays.rename(self.world.now, served.trace, trace);
        self.relays.rename(self.world.now, was, trace);
        out.push(Output::Late { span: served.id, was, parent: context.parent, trace });
    }

    /// A request or call begins on a connection to another host.
    pub(super) fn relay(&mut self, slot: Slot, key: Option<(RequestKey, IpAddr)>) {
        let Some((key, remote)) = key.filter(|_| self.relays.mode != Mode::Off) else { return };
        let now = self.world.now;
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        let contact = self.world.connections.get(&live.cookie).map_or(Contact::No, |connection| connection.contact);
        let waits = live.side == Side::Server
            && self.relays.mode == Mode::Waits
            && contact != Contact::No
            && live.rare.remote_parent.is_none();
        let wait = if contact == Contact::Yes { KNOWN_WAIT } else { WAIT };
        let until = if waits { now + wait } else { 0 };
        live.rare.relay = Some(Box::new(Relayed::new(key, remote, until)));
        if live.side == Side::Server {
            let served = Served { slot, cookie: live.cookie, id: live.id, trace: live.trace, remote };
            let Relays { bounds, matches, .. } = &mut self.relays;
            let may = |given: &Given| bounds.may(now, given.from.number, remote);
            if let Some(given) = matches.span(now, key, served, may).cloned() {
                self.adopt(slot, given);
            }
        }
    }

    /// The context of a request's call arrived.
    pub(super) fn adopt(&mut self, slot: Slot, given: Given) {
        let now = self.world.now;
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        let Some(relay) = live.rare.get_mut().and_then(|rare| rare.relay.as_mut()) else { return };
        if relay.given.is_none() {
            relay.delay = now.saturating_sub(live.start);
        }
        relay.until = now + SETTLES;
        let trace = given.context.trace;
        relay.given = Some(given);
        let (cookie, ended, answered) = (live.cookie, live.end != 0, relay.answered);
        if live.rare.remote_parent.is_none() && live.server.caller.is_none() {
            let was = std::mem::replace(&mut live.trace, trace);
            self.relays.rename(now, was, trace);
        }
        if let Some(connection) = self.world.connections.get_mut(&cookie) {
            connection.contact = Contact::Yes;
        }
        self.inherit(slot);
        if ended && !answered {
            self.answer_later(slot);
        }
    }

    /// The other end of a call sent its summary.
    fn answered_afar(&mut self, summary: Summary, from: &Agent) {
        let Some(slot) = self.relays.calls.of(summary.key) else {
            self.relays.late_answers += 1;
            let cookie = self.relays.callers.get(&summary.key.connection());
            let remote = cookie
                .and_then(|cookie| self.world.connections.get(cookie))
                .and_then(|connection| connection.remote_address());
            let cookie = cookie
                .filter(|_| remote.is_some_and(|remote| self.relays.bounds.may(self.world.now, from.number, remote)));
            if let Some(connection) = cookie.and_then(|cookie| self.world.connections.get_mut(cookie)) {
                // Later calls on it wait again.
                connection.contact = Contact::Yes;
            }
            return;
        };
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        if live
            .rare
            .relay
            .as_ref()
            .is_some_and(|relay| !self.relays.bounds.may(self.world.now, from.number, relay.remote))
        {
            self.relays.matches.outcomes.refused += 1;
            return;
        }
        self.relays.calls.answered(summary.key);
        if let Some(relay) = live.rare.get_mut().and_then(|rare| rare.relay.as_mut()) {
            relay.summary = Some((summary, from.clone()));
        }
        if let Some(connection) = self.world.connections.get_mut(&live.cookie) {
            connection.contact = Contact::Yes;
        }
    }

    /// A request ended: queues its summary if its caller is known.
    pub(super) fn answer_later(&mut self, slot: Slot) {
        let known = self
            .world
            .spans
            .get(slot)
            .and_then(|live| live.rare.relay.as_ref())
            .is_some_and(|relay| relay.given.is_some());
        if known && self.relays.answers.len() < self.world.limits.spans {
            self.relays.answers.push_back(slot);
        }
    }

    /// Outputs what became known since the last call: transactions of calls, ends of requests.
    pub fn relay_sweep(&mut self, out: &mut Vec<Output>) {
        out.extend(self.relays.answers.drain(..).map(Output::Answered));
        for _ in 0..self.relays.unsettled.len() {
            let Some(slot) = self.relays.unsettled.pop_front() else { break };
            let Some(live) = self.world.spans.get(slot) else { continue };
            if self.settled(live, DEPTH) {
                out.push(Output::Settled(slot));
            } else {
                self.relays.unsettled.push_back(slot);
            }
        }
    }

    /// Whether the trace id of a span is final.
    fn settled(&self, live: &OpenSpan, depth: u32) -> bool {
        if depth == 0 {
            return true;
        }
        let above = |slot| self.world.spans.get(slot).is_none_or(|above| self.settled(above, depth - 1));
        match live.side {
            Side::Server if live.rare.remote_parent.is_some() => true,
            Side::Server => match (live.server.caller, &live.rare.relay) {
                (Some((call, _)), _) => above(call),
                (None, Some(relay)) => {
                    relay.given.as_ref().is_some_and(|given| given.context.settled) || self.world.now >= relay.until
                }
                (None, None) => true,
            },
            Side::Client => !self.may_change(live) && self.verdict(live).sure().is_none_or(above),
        }
    }

    /// Whether another host can still send something the span's report needs.
    pub(super) fn awaits_word(&self, live: &OpenSpan) -> bool {
        if self.relays.mode == Mode::Off {
            return false;
        }
        if !self.settled(live, DEPTH) {
            return true;
        }
        let Some(relay) =
            live.rare.relay.as_ref().filter(|_| live.side == Side::Client && live.client.callee.is_none())
        else {
            return false;
        };
        let contact = self.contact(live);
        relay.sent.is_some()
            && relay.summary.is_none()
            && self.relays.mode == Mode::Waits
            && contact != Contact::No
            && live.deferred < patience(contact)
    }

    /// Whether another agent reports on the span's connection.
    pub(super) fn contact(&self, live: &OpenSpan) -> Contact {
        self.world.connections.get(&live.cookie).map_or(Contact::No, |connection| connection.contact)
    }

    /// A span is reported: returns the current trace id of its transaction.
    pub(super) fn relay_over(&mut self, slot: Slot, trace: TraceId) -> TraceId {
        let Some(live) = self.world.spans.get(slot) else { return trace };
        if let Some(relay) = &live.rare.relay {
            let (cookie, key, side) = (live.cookie, relay.key, live.side);
            let contact = self.contact(live);
            let in_vain = match side {
                Side::Server => {
                    self.relays.matches.reported(key);
                    relay.given.is_none() && relay.until != 0 && self.world.now >= relay.until
                }
                Side::Client => {
                    if let Some((summary, agent)) = relay.summary.as_ref().filter(|(summary, _)| summary.start != 0) {
                        let there = |since: u64| summary.start.saturating_add(i64::try_from(since).unwrap_or(i64::MAX));
                        let queue = i64::try_from(summary.queue).unwrap_or(i64::MAX);
                        let (sent, replied) = (live.start as i64, live.end as i64);
                        let arrived = summary.start.saturating_sub(queue);
                        let pair = Pair { sent, replied, arrived, answered: there(summary.duration) };
                        if live.end != 0 {
                            self.relays.clocks.learn(self.world.now, agent.number, pair);
                        }
                    }
                    let in_vain = relay.sent.is_some() && relay.summary.is_none() && live.deferred >= patience(contact);
                    self.relays.calls.over(key);
                    in_vain
                }
            };
            if in_vain && let Some(connection) = self.world.connections.get_mut(&cookie) {
                connection.contact = Contact::No;
            }
        }
        if self.relays.renamed.is_empty() { trace } else { self.relays.name(trace) }
    }

    /// About once a second.
    pub(super) fn relay_expire(&mut self) {
        let spans = &self.world.spans;
        self.relays.expire(self.world.now, |slot| spans.get(slot).is_some());
        self.relays.shrink_excess();
    }

    /// The context to send to a call's other end, unless it was sent already.
    pub fn context(&mut self, slot: Slot) -> Option<CallContext> {
        let live = self.world.spans.get(slot)?;
        let relay = live.rare.relay.as_ref().filter(|_| live.side == Side::Client && live.client.callee.is_none())?;
        let (key, remote, sent) = (relay.key, relay.remote, relay.sent);
        let trace = self.relays.name(self.trace_so_far(live));
        let (settled, cookie) = (self.settled(live, DEPTH), live.cookie);
        if sent == Some((trace, settled)) {
            return None;
        }
        if sent.is_none() {
            self.relays.calls.sent(key, slot);
            if self.relays.callers.len() >= self.relays.calls.limit() {
                // Connections in use are inserted again by their next call.
                self.relays.callers.clear();
            }
            self.relays.callers.insert(key.connection(), cookie);
        }
        if !settled && self.relays.unsettled.len() < self.world.limits.spans {
            self.relays.unsettled.push_back(slot);
        }
        let rare = self.world.spans.get_mut(slot).and_then(|live| live.rare.get_mut());
        if let Some(relay) = rare.and_then(|rare| rare.relay.as_mut()) {
            relay.sent = Some((trace, settled));
        }
        Some(CallContext { key, remote, trace, settled })
    }

    /// Returns an ended request whose summary is due, once.
    pub fn answer(&mut self, slot: Slot) -> Option<&OpenSpan> {
        let live = self.world.spans.get_mut(slot)?;
        let relay = live.rare.get_mut()?.relay.as_mut().filter(|relay| !relay.answered)?;
        relay.answered = true;
        Some(live)
    }
}
