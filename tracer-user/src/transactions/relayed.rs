//! Parents on other hosts: what other agents say of the requests read here, and what they should know of the calls made
//! here.
//!
//! A request waits for word of its call where an agent may know it, a bounded time; who hears of it later than that is
//! given the transaction's name by the store. A call's transaction may not be known yet when it is sent, because that of
//! the request above it is not: it is told again as soon as it is.

use std::collections::VecDeque;
use std::net::IpAddr;

use rustc_hash::FxHashMap;

use super::engine::{Engine, Output};
use super::live::{Live, Slot, grade};
use super::lookups_afar::Asked;
use super::report::DEPTH;
use crate::guard::fill::{Fill, scaled};
use crate::guard::room::Room;
use crate::model::{Nanos, Side, TraceId, UnitId};
use crate::relay::bounds::Bounds;
use crate::relay::calls::{self, Calls};
use crate::relay::clocks::{Clock, Clocks, Pair};
use crate::relay::event::{Event, Mode};
use crate::relay::key::Key;
use crate::relay::lookups::{self, Contacts, Lookup, Lookups};
use crate::relay::matches::{self, Effect, Given, KEEP, Matches};
use crate::relay::message::{Context, Message, Summary};
use crate::relay::{Agent, Outcomes};

/// How long a request waits for word of its caller, from its beginning; nanoseconds.
pub(super) const WAIT: Nanos = 1_000_000_000;
/// The same on a connection another agent has spoken of: word is certain to come, unless that agent is lost.
const KNOWN_WAIT: Nanos = 5_000_000_000;
/// How long it waits for the transaction's name where the caller does not know it yet, nanoseconds.
const SETTLES: Nanos = 10_000_000_000;
/// Times the report of a call is put off for word of its other end; and on a connection another agent has spoken of.
const PATIENCE: u8 = 4;
const KNOWN_PATIENCE: u8 = 20;

/// Whether another agent speaks of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contact {
    /// Not known yet.
    #[default]
    Unknown,
    /// It has.
    Yes,
    /// It was waited for in vain.
    No,
}

/// What a unit has to do with another host.
#[derive(Debug)]
pub struct Relayed {
    /// Its name between hosts.
    pub key: Key,
    /// The connection's remote address.
    pub far: IpAddr,
    /// Server side: word is waited for until then, 0 not at all.
    pub until: Nanos,
    /// Server side: what was said of its call.
    pub given: Option<Given>,
    /// From its beginning until that was said, nanoseconds.
    pub delay: Nanos,
    /// Server side: the caller's agent was told how it ended.
    pub answered: bool,
    /// Client side: the transaction its other end was told, and whether for good.
    pub sent: Option<(TraceId, bool)>,
    /// Client side: what its other end said, and where that is.
    pub summary: Option<(Summary, Agent)>,
    /// What is told of a lookup by UDP; of the server side whom it answered, and when.
    pub lookup: Option<Lookup>,
}

impl Relayed {
    fn new(key: Key, far: IpAddr, until: Nanos, lookup: Option<Lookup>) -> Self {
        let nothing = (None, None, None);
        let (given, sent, summary) = nothing;
        Self { key, far, until, given, delay: 0, answered: false, sent, summary, lookup }
    }

    /// Of a lookup by UDP.
    pub(super) fn of_lookup(key: Key, far: IpAddr, until: Nanos, lookup: Lookup) -> Self {
        Self::new(key, far, until, Some(lookup))
    }
}

/// What a request is remembered by after its report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    pub(super) slot: Slot,
    pub(super) cookie: u64,
    pub(super) id: UnitId,
    /// The name its transaction had before anybody said another.
    pub(super) trace: TraceId,
    /// The connection's remote address; of a lookup the client's.
    pub(super) far: IpAddr,
}

/// The engine's part of the relay.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) mode: Mode,
    bounds: Bounds,
    matches: Matches<Served>,
    /// Lookups by UDP: those asked here, and those answered here.
    pub(super) asked: Asked,
    pub(super) lookups: Lookups<Served>,
    /// Whether agents at an address speak of them.
    pub(super) contacts: Contacts,
    calls: Calls<Slot>,
    /// Sockets of calls by their connection (`Key::connection`): word that comes after a call's report is still the
    /// connection's.
    callers: FxHashMap<u64, u64>,
    /// Calls that were sent before their transaction was known.
    unsettled: VecDeque<Slot>,
    /// Requests that ended, whose callers are to be told.
    answers: VecDeque<Slot>,
    /// Transactions that have another name now, for a while.
    renamed: FxHashMap<TraceId, TraceId>,
    renames: VecDeque<(Nanos, TraceId)>,
    late_answers: u64,
    clocks: Clocks,
}

impl Relays {
    pub(super) fn new(memory: u64) -> Self {
        Self {
            mode: Mode::Off,
            bounds: Bounds::default(),
            matches: Matches::new(scaled(matches::LIMIT, memory)),
            asked: Asked::new(scaled(lookups::LIMIT, memory)),
            lookups: Lookups::new(scaled(lookups::LIMIT, memory)),
            contacts: Contacts::default(),
            calls: Calls::new(scaled(calls::LIMIT, memory)),
            callers: FxHashMap::default(),
            unsettled: VecDeque::new(),
            answers: VecDeque::new(),
            renamed: FxHashMap::default(),
            renames: VecDeque::new(),
            late_answers: 0,
            clocks: Clocks::default(),
        }
    }

    /// The name a transaction has now.
    fn name(&self, mut trace: TraceId) -> TraceId {
        // Names come from several hosts; in a circle they would for ever.
        for _ in 0..4 {
            match self.renamed.get(&trace) {
                Some(now) => trace = *now,
                None => break,
            }
        }
        trace
    }

    fn rename(&mut self, now: Nanos, was: TraceId, is: TraceId) {
        if was == is {
            return;
        }
        if self.renames.len() >= self.matches.limit()
            && let Some((_, oldest)) = self.renames.pop_front()
        {
            self.renamed.remove(&oldest);
        }
        self.renamed.insert(was, is);
        self.renames.push_back((now + KEEP, was));
    }

    fn expire(&mut self, now: Nanos, open: impl Fn(Slot) -> bool) {
        self.matches.expire(now, |served| open(served.slot));
        self.asked.sweep(now);
        self.lookups.expire(now);
        while let Some((due, was)) = self.renames.front().copied()
            && due <= now
        {
            self.renames.pop_front();
            self.renamed.remove(&was);
        }
    }

    pub(super) fn give_back(&mut self) {
        self.matches.give_back();
        self.lookups.give_back();
        self.calls.give_back();
        self.callers.give_back();
        self.unsettled.give_back();
        self.answers.give_back();
        self.renamed.give_back();
        self.renames.give_back();
    }

    /// Requests and contexts that wait for each other; calls that wait for word of their other end; lookups by UDP.
    pub(super) fn fills(&self) -> [Fill; 3] {
        [
            Fill::new(self.matches.len(), self.matches.limit(), self.matches.evicted + self.matches.outcomes.dropped),
            Fill::new(self.calls.len(), self.calls.limit(), self.calls.refused),
            Fill::new(
                self.asked.len() + self.lookups.len(),
                self.asked.limit() + self.lookups.limit(),
                self.asked.refused + self.lookups.refused,
            ),
        ]
    }
}

/// Times the report of a call is put off.
fn patience(contact: Contact) -> u8 {
    if contact == Contact::Yes { KNOWN_PATIENCE } else { PATIENCE }
}

/// A call's context, but for the names of its class.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The request.
    pub key: Key,
    /// The connection's remote address.
    pub far: IpAddr,
    /// Its transaction.
    pub trace: TraceId,
    /// Whether that is known for good.
    pub settled: bool,
    /// Where it is a lookup by UDP.
    pub lookup: Option<Lookup>,
}

impl Engine {
    /// Where the wall clock of an agent's host is, measured from this host's `CLOCK_MONOTONIC`.
    pub fn clock_of(&self, agent: u64) -> Option<Clock> {
        self.relays.clocks.of(agent)
    }

    /// What became of other agents' contexts.
    pub fn relay_outcomes(&self) -> Outcomes {
        let of_lookups = Outcomes { answer_late: self.relays.late_answers, ..self.relays.lookups.outcomes };
        self.relays.matches.outcomes.with(of_lookups)
    }

    /// Another agent said something, or time passed.
    pub fn relayed(&mut self, now: Nanos, event: Event, out: &mut Vec<Output>) {
        self.now = self.now.max(now);
        match event {
            Event::Mode(mode) => {
                let was = std::mem::replace(&mut self.relays.mode, mode);
                if was == Mode::Off {
                    self.lookups_lost(None, self.now);
                }
            }
            Event::Said(from, Message::Context(context)) if context.lookup.is_some() => {
                let client = context.lookup.and_then(|lookup| lookup.client());
                if client.is_some_and(|client| !self.relays.bounds.may(now, from.number, client)) {
                    self.relays.matches.outcomes.refused += 1;
                    return;
                }
                for found in self.relays.lookups.word(self.now, Given { context, from }) {
                    self.found_lookup(&found, out);
                }
            }
            Event::Said(from, Message::Context(context)) => {
                let Relays { bounds, matches, .. } = &mut self.relays;
                let may = |served: Served, given: &Given| bounds.may(now, given.from.number, served.far);
                match matches.context(self.now, Given { context: context.clone(), from: from.clone() }, may) {
                    Effect::Met(served) | Effect::More(served) => self.adopt(served.slot, Given { context, from }),
                    Effect::Late(served) => {
                        self.late(&served, &context, out);
                        if let Some(connection) = self.connections.get_mut(&served.cookie) {
                            // Later requests of it wait again.
                            connection.contact = Contact::Yes;
                        }
                    }
                    Effect::Waits | Effect::Nothing => {}
                }
            }
            Event::Said(from, Message::Summary(summary)) => self.answered_afar(summary, &from),
            Event::Policy(policy) => self.relays.bounds = Bounds::new(policy),
            Event::Stand(stand) => self.relays.bounds.hear(now, &stand),
            Event::Time | Event::Said(_, Message::Hello(_) | Message::Alive | Message::Forwards) => {}
        }
        self.decide_lookups(out);
    }

    /// Whose a request is that was reported.
    pub(super) fn late(&mut self, served: &Served, context: &Context, out: &mut Vec<Output>) {
        let trace = context.trace;
        let was = self.relays.name(served.trace);
        self.relays.rename(self.now, served.trace, trace);
        self.relays.rename(self.now, was, trace);
        out.push(Output::Late { unit: served.id, was, parent: context.parent, trace });
    }

    /// A request or call of a connection to another host begins.
    pub(super) fn relay(&mut self, slot: Slot, key: Option<(Key, IpAddr)>) {
        let Some((key, far)) = key.filter(|_| self.relays.mode != Mode::Off) else { return };
        let now = self.now;
        let Some(live) = self.units.get_mut(slot) else { return };
        let contact = self.connections.get(&live.cookie).map_or(Contact::No, |connection| connection.contact);
        let waits = live.side == Side::Server
            && self.relays.mode == Mode::Waits
            && contact != Contact::No
            && live.remote_parent.is_none();
        let wait = if contact == Contact::Yes { KNOWN_WAIT } else { WAIT };
        let until = if waits { now + wait } else { 0 };
        live.relay = Some(Box::new(Relayed::new(key, far, until, None)));
        if live.side == Side::Server {
            let served = Served { slot, cookie: live.cookie, id: live.id, trace: live.trace, far };
            let Relays { bounds, matches, .. } = &mut self.relays;
            let may = |given: &Given| bounds.may(now, given.from.number, far);
            if let Some(given) = matches.unit(now, key, served, may).cloned() {
                self.adopt(slot, given);
            }
        }
    }

    /// A request's call is known.
    pub(super) fn adopt(&mut self, slot: Slot, given: Given) {
        let now = self.now;
        let Some(live) = self.units.get_mut(slot) else { return };
        let Some(relay) = &mut live.relay else { return };
        if relay.given.is_none() {
            relay.delay = now.saturating_sub(live.start);
        }
        relay.until = now + SETTLES;
        let (trace, is_lookup) = (given.context.trace, relay.lookup.is_some());
        relay.given = Some(given);
        let (cookie, ended, answered) = (live.cookie, live.end != 0, relay.answered);
        if live.remote_parent.is_none() && live.caller.is_none() {
            let was = std::mem::replace(&mut live.trace, trace);
            self.relays.rename(now, was, trace);
        }
        if !is_lookup && let Some(connection) = self.connections.get_mut(&cookie) {
            connection.contact = Contact::Yes;
        }
        self.inherit(slot);
        if ended && !answered {
            self.answer_later(slot);
        }
    }

    /// The other end of a call told how it went there.
    fn answered_afar(&mut self, summary: Summary, from: &Agent) {
        let Some(slot) = self.relays.calls.of(summary.key) else {
            self.relays.late_answers += 1;
            let cookie = self.relays.callers.get(&summary.key.connection());
            let far = cookie.and_then(|cookie| self.connections.get(cookie)).and_then(|connection| connection.far());
            let cookie = cookie.filter(|_| far.is_some_and(|far| self.relays.bounds.may(self.now, from.number, far)));
            if let Some(connection) = cookie.and_then(|cookie| self.connections.get_mut(cookie)) {
                // Later calls of it wait again.
                connection.contact = Contact::Yes;
            }
            return;
        };
        let Some(live) = self.units.get_mut(slot) else { return };
        if live.relay.as_ref().is_some_and(|relay| !self.relays.bounds.may(self.now, from.number, relay.far)) {
            self.relays.matches.outcomes.refused += 1;
            return;
        }
        self.relays.calls.answered(summary.key);
        if let Some(relay) = &mut live.relay {
            relay.summary = Some((summary, from.clone()));
            if relay.lookup.is_some() {
                return self.relays.contacts.learn(self.now, relay.far, true);
            }
        }
        if let Some(connection) = self.connections.get_mut(&live.cookie) {
            connection.contact = Contact::Yes;
        }
    }

    /// A request ended whose caller may be told.
    pub(super) fn answer_later(&mut self, slot: Slot) {
        let known =
            self.units.get(slot).and_then(|live| live.relay.as_ref()).is_some_and(|relay| relay.given.is_some());
        if known && self.relays.answers.len() < self.limits.units {
            self.relays.answers.push_back(slot);
        }
    }

    /// What became known since last asked: transactions of calls, ends of requests.
    pub fn relay_sweep(&mut self, out: &mut Vec<Output>) {
        self.decide_lookups(out);
        out.extend(self.relays.answers.drain(..).map(Output::Answered));
        for _ in 0..self.relays.unsettled.len() {
            let Some(slot) = self.relays.unsettled.pop_front() else { break };
            let Some(live) = self.units.get(slot) else { continue };
            if self.settled(live, DEPTH) {
                out.push(Output::Settled(slot));
            } else {
                self.relays.unsettled.push_back(slot);
            }
        }
    }

    /// Whether the transaction of a unit is known for good.
    fn settled(&self, live: &Live, depth: u32) -> bool {
        if depth == 0 {
            return true;
        }
        let above = |slot| self.units.get(slot).is_none_or(|above| self.settled(above, depth - 1));
        match live.side {
            Side::Server if live.remote_parent.is_some() => true,
            Side::Server => match (live.caller, &live.relay) {
                (Some((call, _)), _) => above(call),
                (None, Some(relay)) => {
                    relay.given.as_ref().is_some_and(|given| given.context.settled) || self.now >= relay.until
                }
                (None, None) => !self.may_be_told_of(live),
            },
            Side::Client => !live.cause.open && grade(&live.cause).0.is_none_or(above),
        }
    }

    /// Whether a question by UDP that is not answered yet may turn out to be another host's: whose it is is only said after
    /// its answer.
    fn may_be_told_of(&self, live: &Live) -> bool {
        self.relays.mode == Mode::Waits
            && (live.first_reply, live.end) == (0, 0)
            && self.now < live.start.saturating_add(WAIT)
            && self.connections.get(&live.cookie).is_some_and(|connection| connection.place().is_some())
    }

    /// Whether word of another host can still come that a unit's report should have.
    pub(super) fn awaits_word(&self, live: &Live) -> bool {
        if self.relays.mode == Mode::Off {
            return false;
        }
        if !self.settled(live, DEPTH) {
            return true;
        }
        let Some(relay) = live.relay.as_ref().filter(|_| live.side == Side::Client && live.callee.is_none()) else {
            return false;
        };
        let contact = self.contact(live);
        relay.sent.is_some()
            && relay.summary.is_none()
            && self.relays.mode == Mode::Waits
            && contact != Contact::No
            && live.deferred < patience(contact)
    }

    /// Whether another agent speaks of a unit's connection; of lookups, of any with the same host.
    fn contact(&self, live: &Live) -> Contact {
        match live.relay.as_ref().filter(|relay| relay.lookup.is_some()) {
            // Not of each of them, so that none waits for longer.
            Some(relay) if self.relays.contacts.of(self.now, relay.far) == Some(false) => Contact::No,
            Some(_) => Contact::Unknown,
            None => self.connections.get(&live.cookie).map_or(Contact::No, |connection| connection.contact),
        }
    }

    /// A unit is reported; gives the name its transaction has now.
    pub(super) fn relay_over(&mut self, slot: Slot, trace: TraceId) -> TraceId {
        let Some(live) = self.units.get(slot) else { return trace };
        if let Some(relay) = &live.relay {
            let (cookie, key, side) = (live.cookie, relay.key, live.side);
            let lookup = relay.lookup.map(|_| relay.far);
            let contact = self.contact(live);
            let in_vain = match side {
                Side::Server => {
                    if lookup.is_none() {
                        self.relays.matches.reported(key);
                    }
                    relay.given.is_none() && relay.until != 0 && self.now >= relay.until
                }
                Side::Client => {
                    if let Some((summary, agent)) = relay.summary.as_ref().filter(|(summary, _)| summary.start != 0) {
                        let far = |since: u64| summary.start.saturating_add(i64::try_from(since).unwrap_or(i64::MAX));
                        let queue = i64::try_from(summary.queue).unwrap_or(i64::MAX);
                        let (sent, replied) = (live.start as i64, live.end as i64);
                        let arrived = summary.start.saturating_sub(queue);
                        let pair = Pair { sent, replied, arrived, answered: far(summary.duration) };
                        // Of a lookup that was asked again the two may be of different questions.
                        if live.end != 0 && lookup.is_none() {
                            self.relays.clocks.hear(self.now, agent.number, pair);
                        }
                    }
                    let in_vain = relay.sent.is_some() && relay.summary.is_none() && live.deferred >= patience(contact);
                    self.relays.calls.over(key);
                    in_vain
                }
            };
            if let Some(far) = lookup {
                self.lookup_over(slot, side, (key, far), in_vain);
            } else if in_vain && let Some(connection) = self.connections.get_mut(&cookie) {
                connection.contact = Contact::No;
            }
        }
        if self.relays.renamed.is_empty() { trace } else { self.relays.name(trace) }
    }

    /// About once a second.
    pub(super) fn relay_expire(&mut self) {
        let units = &self.units;
        self.relays.expire(self.now, |slot| units.get(slot).is_some());
        self.relays.give_back();
    }

    /// What the other end of a call should know now, unless it was told.
    pub fn context(&mut self, slot: Slot) -> Option<Told> {
        let live = self.units.get(slot)?;
        let relay = live.relay.as_ref().filter(|_| live.side == Side::Client && live.callee.is_none())?;
        let (key, far, sent, lookup) = (relay.key, relay.far, relay.sent, relay.lookup);
        let trace = self.relays.name(self.trace(live, DEPTH));
        let (settled, cookie) = (self.settled(live, DEPTH), live.cookie);
        if sent == Some((trace, settled)) {
            return None;
        }
        if sent.is_none() {
            self.relays.calls.sent(key, slot);
            if self.relays.callers.len() >= self.relays.calls.limit() {
                // Those in use come again with their next call.
                self.relays.callers.clear();
            }
            if lookup.is_none() {
                self.relays.callers.insert(key.connection(), cookie);
            }
        }
        if !settled && self.relays.unsettled.len() < self.limits.units {
            self.relays.unsettled.push_back(slot);
        }
        if let Some(relay) = self.units.get_mut(slot).and_then(|live| live.relay.as_mut()) {
            relay.sent = Some((trace, settled));
        }
        Some(Told { key, far, trace, settled, lookup })
    }

    /// The request whose caller is to be told how it ended, once.
    pub fn answer(&mut self, slot: Slot) -> Option<&Live> {
        let live = self.units.get_mut(slot)?;
        let relay = live.relay.as_mut().filter(|relay| !relay.answered)?;
        relay.answered = true;
        Some(live)
    }
}
