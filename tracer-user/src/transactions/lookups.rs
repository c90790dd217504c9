//! Joins the two ends of a lookup by UDP on one host.
//!
//! A server sees who asked when it answers: the datagram goes to the client's address and port, and the client's socket has
//! that port, and asked with the same number for the same. Datagrams can be asked again, lost, and read when nobody waits
//! for them any more, so that what is the same at both ends has to fit in time as well: the question was read after the
//! client's thread had done what it did before it asked, and before the client had its answer. Where more than one call
//! fits, or an address that would tell is not known, the two are not joined, and that is counted.

use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::begin::During;
use super::connection::{Connection, Place};
use super::engine::{Engine, Output};
use super::live::Slot;
use super::lookups_afar::Written;
use crate::guard::room::Room;
use crate::model::{Direction, Nanos, Side};
use crate::protocols::Stamp;

/// Most calls, and most answers, that wait for the other end.
pub(super) const LIMIT: usize = 16_384;
/// How long the record of one end can be later than that of the other: a thread can be held up between what it does and
/// the hook that tells. Nanoseconds.
const LATE: Nanos = 1_000_000_000;
/// How long a question of which a datagram may not have been read yet can be taken for a later one. Nanoseconds.
const LEFT: Nanos = 60_000_000_000;

/// What both ends know, whatever their addresses: the question, and the client's port.
type Key = (u64, u16);

/// A question somebody asked.
#[derive(Debug)]
struct Call {
    slot: Slot,
    /// What its thread did before.
    from: Nanos,
    /// When its answer was read, 0 not yet.
    end: Nanos,
    /// When it was asked last.
    last: Nanos,
    /// Datagrams sent, and those that were joined.
    sent: u32,
    served: u32,
    own: Place,
    to: (IpAddr, u16),
}

/// A question somebody answered.
#[derive(Debug)]
struct Answer {
    slot: Slot,
    read: Nanos,
    told: Nanos,
    own: Place,
    port: u16,
    to: IpAddr,
}

/// Whether an answer is to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    No,
    Perhaps,
    Yes,
}

/// What is said of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Of(Slot),
    /// Nobody here asked, as far as was told.
    Nobody,
    Unclear,
}

impl Call {
    fn fits(&self, answer: &Answer) -> Fit {
        let (to, port) = self.to;
        let apart = port != answer.port
            || self.own.address.is_some_and(|own| own != answer.to)
            || answer.own.address.is_some_and(|own| own != to)
            || (answer.to.is_loopback() && self.own.netns != answer.own.netns)
            || answer.read < self.from;
        let over = self.end != 0 && answer.read > self.end;
        if apart || (over && self.sent == 1) {
            return Fit::No;
        }
        let told = self.own.address.is_some()
            || answer.own.address.is_some()
            || answer.to == to
            || (answer.to.is_loopback() && to.is_loopback());
        if told && !over && self.served < self.sent { Fit::Yes } else { Fit::Perhaps }
    }

    /// Until when it is remembered.
    fn until(&self) -> Nanos {
        if self.end != 0 && self.sent == 1 { self.end + LATE } else { self.last.max(self.end) + LEFT }
    }
}

/// Whose question an answer is to.
fn judge(calls: &[Call], answer: &Answer) -> Verdict {
    let mut fitting = calls.iter().map(|call| (call, call.fits(answer))).filter(|(_, fit)| *fit != Fit::No);
    match (fitting.next(), fitting.next()) {
        (None, _) => Verdict::Nobody,
        (Some((call, Fit::Yes)), None) => Verdict::Of(call.slot),
        _ => Verdict::Unclear,
    }
}

/// Questions by UDP whose other end may be on this host.
#[derive(Debug, Default)]
pub struct Lookups {
    calls: FxHashMap<Key, SmallVec<[Call; 1]>>,
    answers: FxHashMap<Key, SmallVec<[Answer; 1]>>,
    /// How many of either there are.
    count: [usize; 2],
    /// Ends not remembered because there were too many.
    pub(super) refused: u64,
    /// Questions that were not joined because more than one call could be theirs, or none for certain.
    pub(super) unclear: u64,
}

impl Lookups {
    /// Ends that wait.
    pub(super) fn waiting(&self) -> usize {
        self.count.iter().sum()
    }

    /// A question was sent; gives the calls and requests that turn out to be two ends.
    fn asked(&mut self, key: Key, call: Call) -> SmallVec<[(Slot, Slot); 1]> {
        let mut joined = SmallVec::new();
        if let Some(known) =
            self.calls.get_mut(&key).and_then(|calls| calls.iter_mut().find(|known| known.slot == call.slot))
        {
            known.sent += 1;
            known.last = call.last;
        } else if self.count[0] >= LIMIT {
            self.refused += 1;
            return joined;
        } else {
            self.count[0] += 1;
            self.calls.entry(key).or_default().push(call);
        }
        let Some(answers) = self.answers.remove(&key) else { return joined };
        self.count[1] -= answers.len();
        for answer in answers {
            match self.judge(key, &answer) {
                Verdict::Of(call) => joined.push((call, answer.slot)),
                Verdict::Nobody => self.keep(key, answer),
                Verdict::Unclear => {}
            }
        }
        joined
    }

    /// A question was answered; gives the call that it turns out to be.
    fn answered(&mut self, key: Key, answer: Answer) -> Option<Slot> {
        match self.judge(key, &answer) {
            Verdict::Of(call) => return Some(call),
            Verdict::Nobody => self.keep(key, answer),
            Verdict::Unclear => {}
        }
        None
    }

    fn judge(&mut self, key: Key, answer: &Answer) -> Verdict {
        let Some(calls) = self.calls.get_mut(&key) else { return Verdict::Nobody };
        let verdict = judge(calls, answer);
        match verdict {
            Verdict::Of(slot) => {
                if let Some(call) = calls.iter_mut().find(|call| call.slot == slot) {
                    call.served += 1;
                }
            }
            Verdict::Nobody => {}
            Verdict::Unclear => self.unclear += 1,
        }
        verdict
    }

    fn keep(&mut self, key: Key, answer: Answer) {
        if self.count[1] >= LIMIT {
            self.refused += 1;
        } else {
            self.count[1] += 1;
            self.answers.entry(key).or_default().push(answer);
        }
    }

    /// A client read its answer.
    fn over(&mut self, key: Key, slot: Slot, at: Nanos) {
        let call = self.calls.get_mut(&key).and_then(|calls| calls.iter_mut().find(|call| call.slot == slot));
        if let Some(call) = call {
            call.end = at.max(1);
        }
    }

    /// Forgets what can have no other end any more.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.calls.retain(|_, calls| {
            calls.retain(|call| call.until() > now);
            !calls.is_empty()
        });
        self.answers.retain(|_, answers| {
            answers.retain(|answer| answer.told + LATE > now);
            !answers.is_empty()
        });
        let count = |lens: &mut dyn Iterator<Item = usize>| lens.sum();
        self.count =
            [count(&mut self.calls.values().map(SmallVec::len)), count(&mut self.answers.values().map(SmallVec::len))];
        self.calls.give_back();
        self.answers.give_back();
    }
}

impl Engine {
    /// A datagram of a lookup moved.
    pub(super) fn looked_up(
        &mut self,
        cookie: u64,
        (exchange, question): (u64, u64),
        (dir, at, sure): (Direction, Stamp, bool),
        op: Option<During<'_>>,
        out: &mut Vec<Output>,
    ) {
        let Some(connection) = self.connections.get(&cookie) else { return };
        let found = connection.unit(exchange).and_then(|slot| Some((slot, self.units.get_mut(slot)?)));
        let (Some((slot, live)), Some(During { op, .. })) = (found, op) else {
            // Somebody has been asked or answered, and whom is not known.
            return self.lookups_lost(Some(at.pid), at.nanos);
        };
        if live.side == Side::Client && dir == Direction::Rx {
            let asked = (question, connection.local_port);
            self.lookups.over(asked, slot, at.nanos);
            return self.read_from_afar(asked, slot, at.nanos, out);
        }
        let Some((to, port)) = connection.sent_to(op) else { return self.lookups_lost(Some(at.pid), at.nanos) };
        if connection.peer_port == 0 {
            // A socket without a peer has one for each datagram.
            (live.peer, live.peer_port) = (to.to_string().into(), port);
        }
        let Some(own) = connection.place() else { return };
        let side = live.side;
        match side {
            Side::Client => {
                let thread = self.threads.get(&at.tid);
                let from = thread.map_or(at.nanos, |thread| if thread.whole { thread.last_op } else { at.nanos });
                let call = Call { slot, from, end: 0, last: at.nanos, sent: 1, served: 0, own, to: (to, port) };
                let asked = (question, connection.local_port);
                for (call, request) in self.lookups.asked(asked, call) {
                    self.link(call, request);
                }
                self.asked_afar(asked, (slot, at), to, own);
            }
            Side::Server if sure => {
                let (read, port, key) = (live.start, connection.local_port, (question, port));
                let answer = Answer { slot, read, told: at.nanos, own, port, to };
                if let Some(call) = self.lookups.answered(key, answer) {
                    self.link(call, slot);
                }
                self.answered_for_afar(&Written { slot: Some(slot), question, to: (to, key.1), at });
            }
            // Which question of its socket it answers is not known.
            Side::Server => {
                self.lookups.unclear += 1;
                self.answered_for_afar(&Written { slot: None, question, to: (to, port), at });
            }
        }
    }

    /// An answer that is to no question that was seen: who has it asked for something.
    pub(super) fn unpaired_answer(&mut self, cookie: u64) {
        let answers =
            |connection: &&Connection| connection.place().is_some() && connection.side() == Some(Side::Server);
        if let Some(tgid) = self.connections.get(&cookie).map(|known| &**known).filter(answers).map(|known| known.tgid)
        {
            self.lookups_lost(Some(tgid), self.now);
        }
    }
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
