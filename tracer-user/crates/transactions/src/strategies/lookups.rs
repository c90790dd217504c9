//! Joins the two ends of a UDP look-up on one host.
//!
//! A server knows its client only when it answers: the datagram goes to the client's address and port, and the client's
//! socket has that port and sent the same question with the same id. Datagrams can be resent, lost, or read after the
//! client stopped waiting, so the times must fit as well: the server read the question after the client thread's
//! previous operation and before the client had its answer. If more than one call fits, or an address that would decide
//! is unknown, the two ends are not joined, and that is counted.

use std::net::IpAddr;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{Direction, Nanos, Side};
use tracer_protocols::Stamp;

use crate::connection::Place;
use crate::endpoints::Endpoints;
use crate::operation_context::OperationContext;
use crate::slot::Slot;
use crate::world::World;

/// Limit of unmatched calls, and of unmatched answers.
pub(crate) const LIMIT: usize = 16_384;
/// How much later the record of one end can be than that of the other, nanoseconds: a thread can be delayed between its
/// operation and the hook that reports it.
const LATE: Nanos = 1_000_000_000;
/// How long a resent question can be mistaken for a later one because one of its datagrams may be unread, nanoseconds.
const LEFT: Nanos = 60_000_000_000;

/// What both ends know, whatever their addresses: the question and the client's port.
type QuestionKey = (u64, u16);

/// A question that was sent.
#[derive(Debug)]
struct Call {
    slot: Slot,
    /// The previous operation of its thread.
    from: Nanos,
    /// When its answer was read; 0: not yet.
    end: Nanos,
    /// When it was last sent.
    last: Nanos,
    /// Datagrams sent, and how many of them were joined.
    sent: u32,
    served: u32,
    own: Place,
    to: (IpAddr, u16),
}

/// A question that was answered.
#[derive(Debug)]
struct AnsweredQuestion {
    slot: Slot,
    read: Nanos,
    reported: Nanos,
    own: Place,
    port: u16,
    to: IpAddr,
}

/// Whether an answer fits a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    No,
    Perhaps,
    Yes,
}

/// The result of matching an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Of(Slot),
    /// No known call on this host fits.
    NoMatch,
    Unclear,
}

impl Call {
    fn fits(&self, answer: &AnsweredQuestion) -> Fit {
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
        let addressed = self.own.address.is_some()
            || answer.own.address.is_some()
            || answer.to == to
            || (answer.to.is_loopback() && to.is_loopback());
        if addressed && !over && self.served < self.sent { Fit::Yes } else { Fit::Perhaps }
    }

    /// How long the call is remembered.
    fn until(&self) -> Nanos {
        if self.end != 0 && self.sent == 1 { self.end + LATE } else { self.last.max(self.end) + LEFT }
    }
}

/// Finds the call an answer belongs to.
fn judge(calls: &[Call], answer: &AnsweredQuestion) -> Verdict {
    let mut fitting = calls.iter().map(|call| (call, call.fits(answer))).filter(|(_, fit)| *fit != Fit::No);
    match (fitting.next(), fitting.next()) {
        (None, _) => Verdict::NoMatch,
        (Some((call, Fit::Yes)), None) => Verdict::Of(call.slot),
        _ => Verdict::Unclear,
    }
}

/// UDP questions whose other end may be on this host.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    calls: FxHashMap<QuestionKey, SmallVec<[Call; 1]>>,
    answers: FxHashMap<QuestionKey, SmallVec<[AnsweredQuestion; 1]>>,
    /// Number of calls and of answers.
    count: [usize; 2],
    /// Ends not remembered because the table was full.
    pub(crate) refused: u64,
    /// Questions not joined because several calls fit, or none for certain.
    pub(crate) unclear: u64,
}

impl Lookups {
    /// Number of unmatched ends.
    pub(crate) fn waiting(&self) -> usize {
        self.count.iter().sum()
    }

    /// A question was sent; returns newly joined pairs of call and request.
    fn asked(&mut self, key: QuestionKey, call: Call) -> SmallVec<[(Slot, Slot); 1]> {
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
                Verdict::NoMatch => self.keep(key, answer),
                Verdict::Unclear => {}
            }
        }
        joined
    }

    /// A question was answered; returns the matching call.
    fn answered(&mut self, key: QuestionKey, answer: AnsweredQuestion) -> Option<Slot> {
        match self.judge(key, &answer) {
            Verdict::Of(call) => return Some(call),
            Verdict::NoMatch => self.keep(key, answer),
            Verdict::Unclear => {}
        }
        None
    }

    fn judge(&mut self, key: QuestionKey, answer: &AnsweredQuestion) -> Verdict {
        let Some(calls) = self.calls.get_mut(&key) else { return Verdict::NoMatch };
        let verdict = judge(calls, answer);
        match verdict {
            Verdict::Of(slot) => {
                if let Some(call) = calls.iter_mut().find(|call| call.slot == slot) {
                    call.served += 1;
                }
            }
            Verdict::NoMatch => {}
            Verdict::Unclear => self.unclear += 1,
        }
        verdict
    }

    fn keep(&mut self, key: QuestionKey, answer: AnsweredQuestion) {
        if self.count[1] >= LIMIT {
            self.refused += 1;
        } else {
            self.count[1] += 1;
            self.answers.entry(key).or_default().push(answer);
        }
    }

    /// A client read its answer.
    fn over(&mut self, key: QuestionKey, slot: Slot, at: Nanos) {
        let call = self.calls.get_mut(&key).and_then(|calls| calls.iter_mut().find(|call| call.slot == slot));
        if let Some(call) = call {
            call.end = at.max(1);
        }
    }

    /// Forgets ends that can no longer be matched.
    pub(crate) fn sweep(&mut self, now: Nanos) {
        self.calls.retain(|_, calls| {
            calls.retain(|call| call.until() > now);
            !calls.is_empty()
        });
        self.answers.retain(|_, answers| {
            answers.retain(|answer| answer.reported + LATE > now);
            !answers.is_empty()
        });
        let count = |lens: &mut dyn Iterator<Item = usize>| lens.sum();
        self.count =
            [count(&mut self.calls.values().map(SmallVec::len)), count(&mut self.answers.values().map(SmallVec::len))];
        self.calls.shrink_excess();
        self.answers.shrink_excess();
    }
}

impl Lookups {
    /// A datagram of a look-up was sent or received.
    pub(crate) fn looked_up(
        &mut self,
        world: &mut World,
        cookie: u64,
        (exchange, question): (u64, u64),
        (dir, at, sure): (Direction, Stamp, bool),
        op: Option<OperationContext<'_>>,
    ) {
        let Some(connection) = world.connections.get(&cookie) else { return };
        let found = connection.span(exchange).and_then(|slot| Some((slot, world.spans.get_mut(slot)?)));
        let (Some((slot, live)), Some(OperationContext { op, .. })) = (found, op) else {
            return;
        };
        if live.side == Side::Client && dir == Direction::Rx {
            return self.over((question, connection.local_port), slot, at.nanos);
        }
        let Some((to, port)) = connection.sent_to(op) else { return };
        if connection.peer_port == 0 {
            // An unconnected socket has a peer per datagram.
            let its = Endpoints { peer: to.to_string().into(), peer_port: port, ..Endpoints::clone(&live.endpoints) };
            live.endpoints = Arc::new(its);
        }
        let Some(own) = connection.place() else { return };
        let side = live.side;
        match side {
            Side::Client => {
                let thread = world.threads.get(&at.tid);
                let from = thread.map_or(at.nanos, |thread| if thread.whole { thread.last_op } else { at.nanos });
                let call = Call { slot, from, end: 0, last: at.nanos, sent: 1, served: 0, own, to: (to, port) };
                let asked = (question, connection.local_port);
                for (call, request) in self.asked(asked, call) {
                    world.link(call, request);
                }
            }
            Side::Server if sure => {
                let (read, port, key) = (live.start, connection.local_port, (question, port));
                let answer = AnsweredQuestion { slot, read, reported: at.nanos, own, port, to };
                if let Some(call) = self.answered(key, answer) {
                    world.link(call, slot);
                }
            }
            // It is unknown which question of its socket this answers.
            Side::Server => self.unclear += 1,
        }
    }
}

#[cfg(test)]
mod tests;
