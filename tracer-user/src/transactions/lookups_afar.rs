//! Lookups by UDP whose other end is on another host: which calls are told, and when; see `relay/lookups.rs` for why.

use std::net::IpAddr;

use rustc_hash::FxHashMap;

use super::connection::Place;
use super::engine::{Engine, Output};
use super::live::Slot;
use super::relayed::{Relayed, Served, WAIT};
use crate::guard::room::Room;
use crate::model::{Nanos, Side};
use crate::protocols::Stamp;
use crate::relay::event::Mode;
use crate::relay::key::Key;
use crate::relay::lookups::{Answer, Asker, Found, Lookup, WINDOW, names_a_host};

/// How long a question that was asked once and answered is remembered: longer than its answer can be taken for another's, by
/// what a datagram that was doubled on its way may be late. Nanoseconds.
const ASKED: Nanos = 2 * WINDOW;
/// How long the datagrams of a call may be on their way that was not answered, or asked again. Nanoseconds.
const LEFT: Nanos = 60_000_000_000;
/// Most processes that lost records.
const PROCESSES: usize = 1024;

/// The question, and the port of whoever asks.
type Question = (u64, u16);

/// A question that was asked of another host.
#[derive(Debug)]
struct Call {
    /// `None`: several calls, or perhaps others, go by one name.
    slot: Option<Slot>,
    sent: u32,
    to: IpAddr,
    own: Place,
    until: Nanos,
}

/// Questions asked of other hosts, until none of their datagrams can be taken for another's.
#[derive(Debug)]
pub(super) struct Asked {
    calls: FxHashMap<Question, Call>,
    limit: usize,
    /// Until when others may have asked unseen: anybody, and processes.
    blind: Nanos,
    blind_by: FxHashMap<u32, Nanos>,
    /// Calls not remembered because there were too many.
    pub(super) refused: u64,
    /// Calls not told because another may go by the same name.
    pub(super) unclear: u64,
}

impl Asked {
    pub(super) fn new(limit: usize) -> Self {
        let (calls, blind_by) = Default::default();
        Self { calls, limit, blind: 0, blind_by, refused: 0, unclear: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Not all that was asked before `now` was seen: of all processes, or of one.
    pub(super) fn lose(&mut self, now: Nanos, tgid: Option<u32>) {
        let until = now.saturating_add(ASKED);
        match tgid {
            Some(tgid) if self.blind_by.len() < PROCESSES || self.blind_by.contains_key(&tgid) => {
                self.blind_by.insert(tgid, until);
            }
            _ => self.blind = self.blind.max(until),
        }
    }

    /// A datagram of a call went `to` another host.
    fn asked(&mut self, question: Question, (slot, tgid): (Slot, u32), at: Nanos, (to, own): (IpAddr, Place)) {
        let until = at.saturating_add(LEFT);
        if let Some(call) = self.calls.get_mut(&question).filter(|call| call.until > at) {
            if call.slot == Some(slot) {
                call.sent += 1;
                (call.to, call.own) = (to, own);
            } else {
                call.slot = None;
            }
            call.until = until;
            return;
        }
        if self.calls.len() >= self.limit {
            self.refused += 1;
            self.blind = self.blind.max(until);
            return;
        }
        let seen = self.blind <= at && self.blind_by.get(&tgid).is_none_or(|until| *until <= at);
        self.calls.insert(question, Call { slot: seen.then_some(slot), sent: 1, to, own, until });
    }

    /// A call's answer was read: how often it was asked, and of whom, where it can be told apart.
    fn answered(&mut self, question: Question, slot: Slot, at: Nanos) -> Option<(u8, IpAddr, Place)> {
        let call = self.calls.get_mut(&question)?;
        if call.slot != Some(slot) {
            self.unclear += 1;
            return None;
        }
        if call.sent == 1 {
            call.until = at.saturating_add(ASKED);
        }
        Some((u8::try_from(call.sent).unwrap_or(u8::MAX), call.to, call.own))
    }

    pub(super) fn sweep(&mut self, now: Nanos) {
        self.calls.retain(|_, call| call.until > now);
        self.blind_by.retain(|_, until| *until > now);
        self.calls.give_back();
    }
}

/// An answer that was written.
pub(super) struct Written {
    /// The request it is to, where that is known.
    pub(super) slot: Option<Slot>,
    pub(super) question: u64,
    /// Whom it went to.
    pub(super) to: (IpAddr, u16),
    pub(super) at: Stamp,
}

impl Engine {
    /// Records of a process, or of all, were lost: what is told of lookups around that is not sure.
    pub(super) fn lookups_lost(&mut self, tgid: Option<u32>, now: Nanos) {
        if self.relays.mode != Mode::Off {
            self.relays.asked.lose(now, tgid);
            self.relays.lookups.lose(now, tgid);
        }
    }

    /// A datagram of a call went to another host, or to this one by an address others could have.
    pub(super) fn asked_afar(&mut self, question: Question, (slot, at): (Slot, Stamp), to: IpAddr, own: Place) {
        if self.relays.mode != Mode::Off && names_a_host(to) {
            self.relays.asked.asked(question, (slot, at.pid), at.nanos, (to, own));
        }
    }

    /// The answer to a call was read: its other end may be told.
    pub(super) fn read_from_afar(&mut self, question: Question, slot: Slot, at: Nanos, out: &mut Vec<Output>) {
        if self.relays.mode == Mode::Off || self.units.get(slot).is_none_or(|live| live.callee.is_some()) {
            return;
        }
        let Some((sent, far, own)) = self.relays.asked.answered(question, slot, at) else { return };
        let asker = match own.address {
            Some(address) if names_a_host(address) => Asker::Known(address),
            Some(_) => return,
            None => Asker::In(own.netns),
        };
        let (key, lookup) = (Key::of_lookup(question.0, question.1), Lookup { asker, told: at, sent });
        if let Some(live) = self.units.get_mut(slot) {
            live.relay = Some(Box::new(Relayed::of_lookup(key, far, 0, lookup)));
            out.push(Output::Settled(slot));
        }
    }

    /// An answer was written: its caller may be on another host.
    pub(super) fn answered_for_afar(&mut self, written: &Written) {
        let Written { slot, question, to: (to, port), at } = *written;
        if self.relays.mode == Mode::Off || !names_a_host(to) {
            return;
        }
        let now = self.now;
        let waits = self.relays.mode == Mode::Waits && self.relays.contacts.of(now, to) != Some(false);
        let key = Key::of_lookup(question, port);
        let live = slot.and_then(|slot| Some((slot, self.units.get_mut(slot)?)));
        let (unit, read) = match live {
            Some((slot, live)) => {
                let here = live.caller.is_some() || live.remote_parent.is_some();
                let until = if waits && !here { now.saturating_add(WAIT) } else { 0 };
                let lookup = Lookup { asker: Asker::Known(to), told: at.nanos, sent: 0 };
                live.relay = Some(Box::new(Relayed::of_lookup(key, to, until, lookup)));
                (Some(Served { slot, cookie: live.cookie, id: live.id, trace: live.trace, far: to }), live.start)
            }
            None => (None, 0),
        };
        self.relays.lookups.answered(now, to, key, Answer { unit, tgid: at.pid, read, told: at.nanos });
    }

    /// Decides which lookups of other hosts are whose.
    pub(super) fn decide_lookups(&mut self, out: &mut Vec<Output>) {
        let mut found = Vec::new();
        self.relays.lookups.decide(self.now, &mut found);
        for found in found {
            self.found_lookup(&found, out);
        }
    }

    /// Whose a lookup of another host is was said.
    pub(super) fn found_lookup(&mut self, found: &Found<Served>, out: &mut Vec<Output>) {
        let (Found::Met(served, given) | Found::More(served, given) | Found::Late(served, given)) = found;
        let Some(Lookup { asker: Asker::Known(client), .. }) = given.context.lookup else { return };
        self.relays.contacts.learn(self.now, client, true);
        if matches!(found, Found::Late(..)) {
            self.late(served, &given.context, out);
        } else {
            self.adopt(served.slot, given.clone());
        }
    }

    /// A lookup is reported; `in_vain`: nobody spoke of it although that was waited for.
    pub(super) fn lookup_over(&mut self, slot: Slot, side: Side, (key, far): (Key, IpAddr), in_vain: bool) {
        if side == Side::Server {
            self.relays.lookups.reported(far, key, |served| served.slot == slot);
        }
        // Those that do speak do not of every lookup: of some it is not clear whose they are.
        if in_vain && self.relays.contacts.of(self.now, far) != Some(true) {
            self.relays.contacts.learn(self.now, far, false);
        }
    }
}

#[cfg(test)]
#[path = "lookups_afar_tests.rs"]
mod tests;
