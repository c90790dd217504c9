//! Event loops whose callbacks are told apart (Node.js): which request their calls were made for.
//!
//! After a read everything is of that read's callback until the next read, or until the loop runs its timers, its
//! immediates or what other threads sent it, which the kernel side tells (a [`Kin`] of relation
//! [`tracer_common::event::KIN_TURNED`]). A callback ties together what it read with what it sends: the reply of one call with the next
//! call, or with the answer of a request ([`super::knots`]). The first bytes of a new connection are of the callback that
//! connected. In timers and immediates the loop's own *async ids* stand in: their counter only grows, so an id was made in
//! the callback during which the counter passed it, and the operation was caused by that one.
//!
//! What ends one request's call can set another going that waited for it (a bounded pool of connections, a lock). Where
//! both are seen it is ambiguous; and of a process that does so, only what was sent in the callback that read the request
//! is believed.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tracer_common::event::{ENTITY_BITS, Kin, Op};
use tracer_common::runtime::{KIND_NODE, NODE_ID_BITS, NODE_SURE};

use super::begin::During;
use super::engine::Engine;
use super::knots::{Asker, Whose};
use super::live::{Cause, Kept, Live, Slot, Tie};
use super::streams::is_stream;
use super::thread::{Entity, Group, Thread};
use crate::guard::fill::Fill;
use crate::model::{Direction, Grade, Nanos, Side};
use crate::protocols::Said;

/// Most callbacks of a loop whose ids are remembered: those that were made in older ones are of nobody.
pub(super) const STRETCHES: usize = 16_384;
/// Requests with calls a process must have answered before ties are believed.
const SEEN: u32 = 8;
/// Of so many requests with calls at most one may meet another for ties to be believed.
const MEETINGS: u32 = 500;
/// Requests counted of a process before the counts are halved.
const COUNTED: u32 = 8192;
/// Times a call is waited for that is tied to something that goes on.
const PATIENCE: u8 = 8;

/// Ids that were made since the counter stood at `from`, up to the next stretch: in the callback of whom.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u64,
    of: Option<Slot>,
}

/// What a thread that runs such a loop is at.
#[derive(Debug, Default)]
pub struct Loop {
    stretches: VecDeque<Stretch>,
    /// The thread's count of reads at the last that was told.
    reads: u32,
    /// Records of turns of its process, as of the last that was told.
    kins: u32,
    /// Stretches that went because there were too many, since last asked.
    forgotten: u64,
}

impl Loop {
    /// Something of the thread was not seen: ids made since its last read may be of other callbacks.
    pub fn lose(&mut self) {
        if let Some(last) = self.stretches.iter_mut().rev().take(2).find(|stretch| stretch.of.is_some()) {
            last.of = None;
        }
    }

    /// Whether the id was made before the callback that is under way.
    fn is_old(&self, low: u64) -> bool {
        self.id(low).zip(self.stretches.back()).is_some_and(|(id, newest)| id <= newest.from)
    }

    fn begin(&mut self, from: u64, of: Option<Slot>) {
        // 0: the counter is not read.
        if from == 0 {
            self.stretches.clear();
            return;
        }
        if self.stretches.back().is_some_and(|last| last.from > from) {
            // It only grows: this is another's.
            self.stretches.clear();
        }
        if self.stretches.len() >= STRETCHES {
            self.stretches.pop_front();
            self.forgotten += 1;
        }
        self.stretches.push_back(Stretch { from, of });
    }

    /// Compares the counts an operation came with: of reads, which are `ahead` of the last that were told when none is
    /// missing, and of turns.
    fn counted(&mut self, op: &Op, ahead: u32) {
        if op.books.reads != self.reads.wrapping_add(ahead) || op.kins != self.kins {
            self.lose();
        }
        (self.reads, self.kins) = (op.books.reads, op.kins);
    }

    /// The id of which `low` are the lowest bits; `None`: none, or none that can be told.
    fn id(&self, low: u64) -> Option<u64> {
        let newest = self.stretches.back()?.from;
        if low == 0 {
            return None;
        }
        let span = 1u64 << NODE_ID_BITS;
        let near = (newest & !(span - 1)) | low;
        // The one that is nearest to the counter.
        if near > newest + span / 2 {
            near.checked_sub(span)
        } else if near + span / 2 < newest {
            Some(near + span)
        } else {
            Some(near)
        }
    }

    /// In whose callback the id was made of which `low` are the lowest bits.
    fn of(&self, low: u64) -> Option<Slot> {
        let id = self.id(low)?;
        let after = self.stretches.partition_point(|stretch| stretch.from < id);
        self.stretches.get(after.checked_sub(1)?)?.of
    }
}

/// What the requests of a process were seen to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meetings {
    /// Requests that were answered after calls, and those of them that met another.
    requests: u32,
    met: u32,
}

impl Meetings {
    fn count(&mut self, met: bool) {
        if self.requests >= COUNTED {
            (self.requests, self.met) = (self.requests / 2, self.met / 2);
        }
        self.requests += 1;
        self.met += u32::from(met);
    }

    /// Why ties of the process say nothing.
    fn doubt(self) -> Option<&'static str> {
        if self.met > 0 && self.met.saturating_mul(MEETINGS) > self.requests {
            return Some("requests of its process wait for each other's calls");
        }
        (self.requests < SEEN).then_some("too little was seen of its process")
    }
}

/// What a receive said.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// Units it said something of.
    units: SmallVec<[Slot; 4]>,
    /// Requests that begin with it.
    begun: usize,
}

/// The counter of async ids in what is told of a loop when it receives or turns; 0: not read.
fn counter(entity: u64) -> u64 {
    entity & (NODE_SURE - 1)
}

/// Whether the operation is of a loop whose callbacks are told apart.
pub(super) fn is_looped(op: &Op) -> bool {
    op.entity >> ENTITY_BITS == u64::from(KIND_NODE)
}

impl Engine {
    /// An operation begins: if it is of such a loop, so is its thread.
    pub(super) fn looped(&mut self, op: &Op, dir: Direction) {
        if !is_looped(op) {
            return;
        }
        let Some(thread) = self.thread(op.header.tid, op.header.tgid, op.header.nanos) else { return };
        thread.multiplexer = true;
        // A receive that was not told (of a connection nobody cares for) had a callback, too.
        thread.lap.get_or_insert_default().counted(op, u32::from(dir == Direction::Rx));
    }

    /// The unit in whose callback a send was done; for the first bytes of a connection, that of whoever connected.
    pub(super) fn callback(&self, op: &Op, group: Option<Entity>) -> Option<Slot> {
        if !is_looped(op) {
            return None;
        }
        let connection = self.connections.get(&op.cookie);
        let asks = connection.is_some_and(|connection| connection.side() == Some(Side::Client));
        let opener = connection
            .filter(|connection| !connection.used && op.pos == 0 && asks)
            .map(|connection| connection.opener().map(|(slot, _)| slot));
        let lap = self.threads.get(&op.header.tid)?.lap.as_ref()?;
        let known = |slot: &Slot| self.units.get(*slot).is_some_and(|live| live.tie.is_some());
        let mask = (1u64 << NODE_ID_BITS) - 1;
        let (execution, trigger) = ((op.entity >> NODE_ID_BITS) & mask, op.entity & mask);
        let told = match (opener, group) {
            (Some(opener), _) => opener,
            (None, Some(Entity::Request(slot))) => return Some(slot).filter(known),
            // What answers is the request; whether the call that ended is its own, nothing else has told yet.
            (None, Some(Entity::Call(slot))) if !asks && self.is_nobody_s(slot) => return Some(slot).filter(known),
            (None, Some(Entity::Call(slot))) => {
                // A call's end lets another go that was asked for earlier, and waited for the connection. The callback's own
                // call has such an id, too: then both are of one request, or nothing says of which.
                return match lap.of(trigger).filter(known) {
                    Some(earlier) if lap.is_old(trigger) => {
                        Some(if self.is_tied(slot, earlier) { slot } else { earlier })
                    }
                    None if lap.is_old(trigger) => None,
                    _ => Some(slot).filter(known),
                };
            }
            (None, None) => None,
        };
        told.filter(known).or_else(|| lap.of(execution).filter(known)).or_else(|| lap.of(trigger).filter(known))
    }

    /// Who caused a call that is being sent by a loop, as far as that is known yet.
    pub(super) fn loop_cause(&self, own: Option<Slot>) -> Cause {
        let Some(live) = own.and_then(|slot| self.units.get(slot)) else {
            return Cause::none("sent in no callback that could be told");
        };
        let whose = live.tie.map_or(Whose::Nobody, |tie| self.knots.whose(tie.knot));
        let (candidate, kept) = match (whose, live.side) {
            (Whose::One(asker), _) => (Some(asker.slot), Some(asker.kept)),
            (Whose::Several, Side::Server) => (own, Some(live.kept())),
            (Whose::Several, Side::Client) => (live.cause.candidate, live.cause.kept),
            (Whose::Nobody, _) => (None, None),
        };
        Cause { candidate, kept, ..Cause::none("sent in no callback of a request") }
    }

    /// A unit of a loop begins: it is tied to that of its callback.
    pub(super) fn tie(&mut self, slot: Slot, during: Option<During<'_>>, tid: u32) {
        let Some(live) = self.units.get(slot) else { return };
        let side = live.side;
        let asker = Asker { slot, since: live.start, kept: live.kept() };
        let sure = match during {
            Some(during) if is_looped(during.op) => during.op.entity & NODE_SURE != 0,
            _ if self.threads.get(&tid).is_some_and(|thread| thread.lap.is_some()) => true,
            _ => return,
        };
        let own = during.filter(|_| side == Side::Client).and_then(|during| during.own);
        let asked = during.and_then(|during| during.group) == own.map(Entity::Request);
        let direct = asked && own.is_some();
        let knot = self.knots.tie(if side == Side::Server { Whose::One(asker) } else { Whose::Nobody });
        if let Some(live) = self.units.get_mut(slot) {
            live.tie = Some(Tie { knot, direct, sure });
        }
        if let Some(own) = own {
            self.join(slot, own);
        }
    }

    /// Two units were of one callback.
    pub(super) fn join(&mut self, one: Slot, other: Slot) {
        let tie = |slot| self.units.get(slot).and_then(|live| live.tie);
        let (Some(one), Some(other)) = (tie(one), tie(other)) else { return };
        self.knots.join(one.knot, other.knot);
    }

    /// Whether a call is tied to no request yet.
    fn is_nobody_s(&self, call: Slot) -> bool {
        let tie = self.units.get(call).and_then(|live| live.tie);
        tie.is_none_or(|tie| matches!(self.knots.whose(tie.knot), Whose::Nobody))
    }

    /// Whether two units are tied together.
    fn is_tied(&self, one: Slot, other: Slot) -> bool {
        let tie = |slot| self.units.get(slot).and_then(|live| live.tie);
        tie(one).zip(tie(other)).is_some_and(|(one, other)| self.knots.are_tied(one.knot, other.knot))
    }

    /// The answer of a request was begun in the callback of `own`.
    pub(super) fn answered_in(&mut self, request: Slot, own: Option<Slot>) {
        let Some(live) = self.units.get(request) else { return };
        let (Some(tie), kept, tgid) = (live.tie, live.kept(), live.pid) else { return };
        self.knots.keep(tie.knot, request, kept);
        let Some(own) = own.filter(|own| *own != request) else { return };
        self.join(request, own);
        let met = matches!(self.knots.whose(tie.knot), Whose::Several);
        if self.meetings.len() < self.limits.processes || self.meetings.contains_key(&tgid) {
            self.meetings.entry(tgid).or_default().count(met);
        }
        // What is still to be done for the call is done for the request.
        if let Some(call) = self.units.get_mut(own)
            && call.side == Side::Client
            && call.cause.candidate.is_none()
            && !met
        {
            (call.cause.candidate, call.cause.kept) = (Some(request), Some(kept));
        }
    }

    /// What a receive of a loop says, before it is heard.
    pub(super) fn spoken_of(&self, op: &Op, said: &[Said]) -> Spoken {
        let Some(connection) = self.connections.get(&op.cookie).filter(|_| is_looped(op)) else {
            return Spoken::default();
        };
        let begun = said.iter().filter(|word| matches!(word, Said::Begun { side: Side::Server, .. })).count();
        let exchanges = said.iter().filter_map(|word| match word {
            Said::Replied { exchange, .. } | Said::Done { exchange, .. } => Some(*exchange),
            _ => None,
        });
        let mut units: SmallVec<[Slot; 4]> = exchanges.filter_map(|exchange| connection.unit(exchange)).collect();
        units.dedup();
        Spoken { units, begun }
    }

    /// A receive of a loop began a callback: it ties together all it received.
    pub(super) fn received(&mut self, op: &Op, Spoken { units: spoken, begun }: Spoken) {
        if !is_looped(op) {
            return;
        }
        for pair in spoken.windows(2) {
            if let [one, other] = pair {
                self.join(*one, *other);
            }
        }
        let nothing = spoken.is_empty() && begun == 0;
        let Some(thread) = self.threads.get_mut(&op.header.tid) else { return };
        // The end of what is sent, of which nothing follows, is of no call; and of several requests that were read at once
        // the callback is nobody's.
        if begun > 1 || (op.bytes == 0 && nothing) {
            thread.group = Group::default();
        }
        let of = thread.group.current(&op.books).map(|(Entity::Request(slot) | Entity::Call(slot))| slot);
        if let Some(lap) = &mut thread.lap {
            lap.begin(counter(op.entity), of);
        }
    }

    /// A loop turned to something else: timers, immediates, what other threads sent it.
    pub(super) fn turned(&mut self, kin: &Kin) {
        self.now = self.now.max(kin.header.nanos);
        let Some(thread) = self.threads.get_mut(&kin.header.tid) else { return };
        thread.group = Group::default();
        if let Some(lap) = &mut thread.lap {
            lap.kins = kin.nth;
            lap.begin(counter(kin.child), None);
        }
    }

    /// The request of a loop's call, how sure that is, and why.
    pub(super) fn loop_grade(&self, live: &Live, tie: Tie) -> (Option<Slot>, Grade, &'static str) {
        let since = |slot: Slot, otherwise: Nanos| self.units.get(slot).map_or(otherwise, |live| live.start);
        match self.knots.whose(tie.knot) {
            Whose::Nobody if live.cause.alone => (None, Grade::Certain, live.cause.evidence),
            Whose::Nobody => (None, Grade::Orphan, "nothing ties it to a request"),
            Whose::Several => (live.cause.candidate, Grade::Ambiguous, "several requests meet in its callbacks"),
            Whose::One(Asker { slot, since: read, .. }) => {
                let doubt = if !tie.sure {
                    Some("it is not seen where callbacks of its process end")
                } else if live.start < since(slot, read) {
                    Some("sent before the only request it is tied to was read")
                } else if is_stream(live) {
                    Some("its connection carries several at once, and callbacks send each other's calls")
                } else if tie.direct {
                    None
                } else {
                    self.meetings.get(&live.pid).copied().unwrap_or_default().doubt()
                };
                match doubt {
                    Some(doubt) => (Some(slot), Grade::Ambiguous, doubt),
                    None if tie.direct => (Some(slot), Grade::Confirmed, "sent in the callback that read the request"),
                    None => (Some(slot), Grade::Confirmed, "its callbacks belong to one request"),
                }
            }
        }
    }

    /// Forgets the oldest callbacks of loops where all of them together are too many.
    pub(super) fn trim_loops(&mut self) {
        let laps = || self.threads.iter().filter_map(|(_, thread)| thread.lap.as_ref());
        let (count, sum) = laps().fold((0, 0), |(count, sum), lap| (count + 1, sum + lap.stretches.len()));
        let most = if sum > self.limits.tasks { self.limits.tasks / count } else { STRETCHES };
        let mut reached = self.callbacks.reached;
        let mut kept = 0;
        for lap in self.threads.iter_mut().filter_map(|(_, thread)| thread.lap.as_mut()) {
            let over = lap.stretches.len().saturating_sub(most);
            lap.stretches.drain(..over);
            reached += over as u64 + std::mem::take(&mut lap.forgotten);
            kept += lap.stretches.len();
        }
        self.callbacks = Fill::new(kept, self.limits.tasks, reached);
    }

    /// What is remembered of the one request a loop's call is tied to.
    pub(super) fn loop_kept(&self, tie: Tie) -> Option<Kept> {
        match self.knots.whose(tie.knot) {
            Whose::One(asker) => Some(asker.kept),
            Whose::Nobody | Whose::Several => None,
        }
    }

    /// Whether what a loop's call is tied to may still become a request's, or another's.
    pub(super) fn loop_waits(&self, live: &Live, tie: Tie) -> bool {
        // What goes on may meet a request yet, or another one.
        let goes_on = live.deferred < PATIENCE && self.knots.is_open(tie.knot);
        match self.knots.whose(tie.knot) {
            Whose::Several => false,
            Whose::Nobody => goes_on && !live.cause.alone,
            Whose::One(asker) => {
                let request = self.units.get(asker.slot);
                goes_on || request.is_some_and(|request| request.end == 0 && request.first_reply == 0)
            }
        }
    }
}

impl Thread {
    /// Forgets what its loop was at: something of it was not seen.
    pub(super) fn lose_loop(&mut self) {
        if let Some(lap) = &mut self.lap {
            lap.lose();
        }
    }
}
