//! Event loops whose callbacks are distinguishable (Node.js): finds the request each call was made for.
//!
//! Everything after a read belongs to that read's callback until the next read, or until the loop runs timers,
//! immediates or messages of other threads, which the kernel side reports (a [`TaskEdge`] of relation
//! [`tracer_common::event::TASK_EDGE_TURNED`]). A callback ties what it read to what it sends: the reply of one call to
//! the next call, or to the answer of a request ([`crate::callback_groups`]). The first bytes of a new connection
//! belong to the callback that connected. In timers and immediates the loop's *async ids* serve instead: the id counter
//! only grows, so an id was created in the callback during which the counter passed it, and that callback caused the
//! operation.
//!
//! The end of one request's call can release another call that waited for it (a bounded connection pool, a lock). If
//! both are seen, the result is ambiguous; in a process where this happens, only calls sent in the callback that read
//! the request are trusted.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tracer_common::event::{Kind, Op, TaskEdge};
use tracer_common::runtime::{NODE_ID_BITS, NODE_SURE};
use tracer_host::guard::shrink::ShrinkExcess;
use tracer_host::guard::tables::TableUse;
use tracer_model::{Direction, Nanos, Side};
use tracer_protocols::ExchangeEvent;

use crate::callback_groups::{Asker, CallbackGroups, GroupOwner};
use crate::cause::{Candidate, Cause};
use crate::combine::{Proposal, Verdict, combine};
use crate::event_loop::{STRETCHES, Spoken};
use crate::evidence::{Doubt, Evidence};
use crate::open_span::{GroupMembership, OpenSpan, is_stream};
use crate::operation_context::OperationContext;
use crate::slot::{Slot, SpanRef};
use crate::task_identity::is_looped;
use crate::thread::{IntervalOwner, ReadInterval, Thread};
use crate::world::World;

/// Answered requests with calls a process needs before its ties are trusted.
const SEEN: u32 = 8;
/// Ties are trusted while at most one in this many requests with calls meets another request.
const MEETINGS: u32 = 500;
/// Requests counted per process before the counts are halved.
const COUNTED: u32 = 8192;
/// Times the report of a call is deferred while spans tied to it are still open.
const PATIENCE: u8 = 8;

/// How often requests of a process met another request in a callback.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meetings {
    /// Requests answered after calls, and how many of those met another request.
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

    /// Why ties of this process are not trusted.
    fn doubt(self) -> Option<Doubt> {
        if self.met > 0 && self.met.saturating_mul(MEETINGS) > self.requests {
            return Some(Doubt::RequestsMeet);
        }
        (self.requests < SEEN).then_some(Doubt::FewRequests)
    }
}

/// The async id counter in an entity reported for a receive or a turn; 0: could not be read.
fn counter(entity: u64) -> u64 {
    entity & (NODE_SURE - 1)
}

/// What is known of all event loops with distinguishable callbacks.
#[derive(Debug, Default)]
pub(crate) struct EventLoops {
    /// Spans tied by callbacks.
    groups: CallbackGroups,
    /// How often requests of a process met in one callback.
    meetings: FxHashMap<u32, Meetings>,
    /// Table use of remembered callbacks.
    pub(crate) callbacks: TableUse,
}

impl EventLoops {
    /// The process has exited.
    pub(crate) fn forget(&mut self, tgid: u32) {
        self.meetings.remove(&tgid);
    }

    /// A span has ended.
    pub(crate) fn over(&mut self, membership: GroupMembership) {
        self.groups.over(membership.callback_group);
    }

    /// A span is reported.
    pub(crate) fn untie(&mut self, membership: GroupMembership) {
        self.groups.untie(membership.callback_group);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.meetings.is_empty()
    }

    /// Releases the memory of tables that are mostly empty.
    pub(crate) fn shrink(&mut self) {
        self.meetings.shrink_excess();
        self.groups.shrink_excess();
    }

    /// A receive of encrypted bytes began a callback that belongs to no span until text is read in it.
    pub(crate) fn received_encrypted(&mut self, world: &mut World, op: &Op) {
        looped(world, op, Direction::Rx);
        self.received(world, op, Spoken::default());
    }

    /// The span in whose callback a send happened; for the first bytes of a connection, the span whose callback
    /// connected.
    pub(crate) fn callback(&self, world: &World, op: &Op, group: Option<IntervalOwner>) -> Option<Slot> {
        if !is_looped(op) {
            return None;
        }
        let connection = world.connections.get(&op.cookie);
        let asks = connection.is_some_and(|connection| connection.side() == Some(Side::Client));
        let opener = connection
            .filter(|connection| !connection.used && op.pos == 0 && asks)
            .map(|connection| connection.opener().map(|(slot, _)| slot));
        let lap = world.threads.get(&op.header.tid)?.lap.as_ref()?;
        let known = |slot: &Slot| world.spans.get(*slot).is_some_and(|live| live.rare.group_membership.is_some());
        let mask = (1u64 << NODE_ID_BITS) - 1;
        let (execution, trigger) = ((op.entity >> NODE_ID_BITS) & mask, op.entity & mask);
        let tied = match (opener, group) {
            (Some(opener), _) => opener,
            (None, Some(IntervalOwner::Request(slot))) => return Some(slot).filter(known),
            // An answer belongs to a request; nothing has shown yet whether the call that ended belongs to the same
            // one.
            (None, Some(IntervalOwner::Call(slot))) if !asks && self.is_untied(world, slot) => {
                return Some(slot).filter(known);
            }
            (None, Some(IntervalOwner::Call(slot))) => {
                // The end of a call can release an earlier call that waited for the connection. The callback's own
                // calls carry such ids, too: either both belong to one request, or the owner is unknown.
                return match lap.of(trigger).filter(known) {
                    Some(earlier) if lap.is_old(trigger) => {
                        Some(if self.is_tied(world, slot, earlier) { slot } else { earlier })
                    }
                    None if lap.is_old(trigger) => None,
                    _ => Some(slot).filter(known),
                };
            }
            (None, None) => None,
        };
        tied.filter(known).or_else(|| lap.of(execution).filter(known)).or_else(|| lap.of(trigger).filter(known))
    }

    /// Cause of a call that an event loop sends, as far as known yet.
    pub(crate) fn cause(&self, world: &World, own: Option<Slot>) -> Cause {
        let Some(live) = own.and_then(|slot| world.spans.get(slot)) else {
            return Cause::none(Evidence::CallbackUnknown);
        };
        let whose = live
            .rare
            .group_membership
            .map_or(GroupOwner::Untied, |group_membership| self.groups.whose(group_membership.callback_group));
        let candidate = match (whose, live.side) {
            (GroupOwner::One(asker), _) => Some(Candidate { slot: asker.slot, kept: asker.kept }),
            (GroupOwner::Several, Side::Server) => own.map(|slot| Candidate { slot, kept: live.kept() }),
            (GroupOwner::Several, Side::Client) => live.client.cause.candidate,
            (GroupOwner::Untied, _) => None,
        };
        Cause { candidate, ..Cause::none(Evidence::NoCallback) }
    }

    /// A span of an event loop begins: ties it to the span of its callback.
    pub(crate) fn group_membership(
        &mut self,
        world: &mut World,
        slot: Slot,
        during: Option<OperationContext<'_>>,
        tid: u32,
    ) {
        let Some(live) = world.spans.get(slot) else { return };
        let side = live.side;
        let asker = Asker { slot, since: live.start, kept: live.kept() };
        let sure = match during {
            Some(during) if is_looped(during.op) => during.op.entity & NODE_SURE != 0,
            _ if world.threads.get(&tid).is_some_and(|thread| thread.lap.is_some()) => true,
            _ => return,
        };
        let own = during.filter(|_| side == Side::Client).and_then(|during| during.own);
        let asked = during.and_then(|during| during.group) == own.map(IntervalOwner::Request);
        let direct = asked && own.is_some();
        let callback_group = self.groups.group_membership(if side == Side::Server {
            GroupOwner::One(asker)
        } else {
            GroupOwner::Untied
        });
        if let Some(live) = world.spans.get_mut(slot) {
            live.rare.group_membership = Some(GroupMembership { callback_group, direct, sure });
        }
        if let Some(own) = own {
            self.join(world, slot, own);
        }
    }

    /// Ties two spans of one callback together.
    pub(crate) fn join(&mut self, world: &mut World, one: Slot, other: Slot) {
        let group_membership = |slot| world.spans.get(slot).and_then(|live| live.rare.group_membership);
        let (Some(one), Some(other)) = (group_membership(one), group_membership(other)) else { return };
        self.groups.join(one.callback_group, other.callback_group);
    }

    /// Whether the call is not tied to any request yet.
    fn is_untied(&self, world: &World, call: Slot) -> bool {
        let group_membership = world.spans.get(call).and_then(|live| live.rare.group_membership);
        group_membership.is_none_or(|group_membership| {
            matches!(self.groups.whose(group_membership.callback_group), GroupOwner::Untied)
        })
    }

    /// Whether two spans are tied together.
    fn is_tied(&self, world: &World, one: Slot, other: Slot) -> bool {
        let group_membership = |slot| world.spans.get(slot).and_then(|live| live.rare.group_membership);
        group_membership(one)
            .zip(group_membership(other))
            .is_some_and(|(one, other)| self.groups.are_tied(one.callback_group, other.callback_group))
    }

    /// The answer of `request` began in the callback of `own`.
    pub(crate) fn answered_in(&mut self, world: &mut World, request: Slot, own: Option<Slot>) {
        let Some(live) = world.spans.get(request) else { return };
        let (Some(group_membership), kept, tgid) = (live.rare.group_membership, live.kept(), live.pid) else { return };
        self.groups.keep(group_membership.callback_group, request, kept);
        let Some(own) = own.filter(|own| *own != request) else { return };
        self.join(world, request, own);
        let met = matches!(self.groups.whose(group_membership.callback_group), GroupOwner::Several);
        if self.meetings.len() < world.limits.processes || self.meetings.contains_key(&tgid) {
            self.meetings.entry(tgid).or_default().count(met);
        }
        // Work still to be done for the call belongs to the request.
        if let Some(call) = world.spans.get_mut(own)
            && call.side == Side::Client
            && call.client.cause.candidate.is_none()
            && !met
        {
            call.client.cause.candidate = Some(Candidate { slot: request, kept });
        }
    }

    /// A receive began a callback: ties together everything it received.
    pub(crate) fn received(&mut self, world: &mut World, op: &Op, spoken: Spoken) {
        if !is_looped(op) {
            return;
        }
        let thread = world.threads.get_mut(&op.header.tid);
        let further = thread.as_ref().is_some_and(|thread| thread.is_further_piece(op));
        let Spoken { spans: spoken, begun } = match thread.and_then(|thread| thread.lap.as_mut()) {
            Some(lap) if further => std::mem::take(&mut lap.spoken).and(spoken),
            _ => spoken,
        };
        for pair in spoken.windows(2) {
            if let [one, other] = pair {
                self.join(world, *one, *other);
            }
        }
        let nothing = spoken.is_empty() && begun == 0;
        let Some(thread) = world.threads.get_mut(&op.header.tid) else { return };
        // An end of stream that completes nothing belongs to no call; a callback that read several requests at once has
        // no single owner.
        if begun > 1 || (op.bytes == 0 && nothing) {
            thread.group = ReadInterval::default();
        }
        let of =
            thread.group.current(&op.counters).map(|(IntervalOwner::Request(slot) | IntervalOwner::Call(slot))| slot);
        if let Some(lap) = &mut thread.lap {
            if further {
                lap.stretches.pop_back();
            }
            lap.begin(counter(op.entity), of);
            lap.spoken = Spoken { spans: spoken.last().copied().into_iter().collect(), begun };
        }
    }

    /// The verdict on an event loop's call.
    pub(crate) fn verdict(&self, world: &World, live: &OpenSpan, group_membership: GroupMembership) -> Verdict {
        let since = |slot: Slot, otherwise: Nanos| world.spans.get(slot).map_or(otherwise, |live| live.start);
        combine(&match self.groups.whose(group_membership.callback_group) {
            GroupOwner::Untied if live.client.cause.is_certain() => Proposal::none(live.client.cause.evidence),
            GroupOwner::Untied => Proposal::none(Evidence::Untied),
            GroupOwner::Several => Proposal {
                parent: live.client.cause.request(),
                ..Proposal::none(Evidence::NoCallback).doubted(Some(Doubt::CallbacksMeet))
            },
            GroupOwner::One(Asker { slot, since: read, .. }) => {
                let doubt = if !group_membership.sure {
                    Some(Doubt::EndsUnseen)
                } else if live.start < since(slot, read) {
                    Some(Doubt::SentBeforeRead)
                } else if is_stream(live) {
                    Some(Doubt::CallbackStream)
                } else if group_membership.direct {
                    None
                } else {
                    self.meetings.get(&live.pid).copied().unwrap_or_default().doubt()
                };
                let direct = group_membership.direct;
                let evidence = if direct { Evidence::ReadingCallback } else { Evidence::OneRequestsCallbacks };
                Proposal::of(slot, evidence).doubted(doubt)
            }
        })
    }

    /// Evicts the oldest callbacks of event loops when all loops together have too many.
    pub(crate) fn trim(&mut self, world: &mut World) {
        let laps = || world.threads.iter().filter_map(|(_, thread)| thread.lap.as_ref());
        let (count, sum) = laps().fold((0, 0), |(count, sum), lap| (count + 1, sum + lap.stretches.len()));
        let most = if sum > world.limits.tasks { world.limits.tasks / count } else { STRETCHES };
        let mut reached = self.callbacks.reached;
        let mut kept = 0;
        for lap in world.threads.iter_mut().filter_map(|(_, thread)| thread.lap.as_mut()) {
            let over = lap.stretches.len().saturating_sub(most);
            lap.stretches.drain(..over);
            reached += over as u64 + std::mem::take(&mut lap.forgotten);
            kept += lap.stretches.len();
        }
        self.callbacks = TableUse::new(kept, world.limits.tasks, reached);
    }

    /// What remains of the one request a loop's call is tied to.
    pub(crate) fn kept(&self, group_membership: GroupMembership) -> Option<SpanRef> {
        match self.groups.whose(group_membership.callback_group) {
            GroupOwner::One(asker) => Some(asker.kept),
            GroupOwner::Untied | GroupOwner::Several => None,
        }
    }

    /// Whether spans tied to the call may still change its parent.
    pub(crate) fn waits(&self, world: &World, live: &OpenSpan, group_membership: GroupMembership) -> bool {
        // An open span may still become tied to a request, or to another one.
        let goes_on = live.deferred < PATIENCE && self.groups.is_open(group_membership.callback_group);
        match self.groups.whose(group_membership.callback_group) {
            GroupOwner::Several => false,
            GroupOwner::Untied => goes_on && !live.client.cause.is_certain(),
            GroupOwner::One(asker) => {
                let request = world.spans.get(asker.slot);
                goes_on || request.is_some_and(|request| request.end == 0 && request.first_reply == 0)
            }
        }
    }
}

impl Thread {
    /// Forgets the current callback: records of the thread are missing.
    pub(crate) fn lose_loop(&mut self) {
        if let Some(lap) = &mut self.lap {
            lap.lose();
        }
    }
}

/// Before an operation is handled: marks the thread as an event loop if the operation comes from one.
pub(crate) fn looped(world: &mut World, op: &Op, dir: Direction) {
    if !is_looped(op) {
        return;
    }
    let Some(thread) = world.thread(op.header.tid, op.header.tgid, op.header.nanos) else { return };
    thread.multiplexer = true;
    if thread.is_further_piece(op) {
        return;
    }
    // An unreported receive (of an untraced connection) ran a callback, too.
    let ahead = match dir {
        Direction::Tx => 0..=0,
        // One receive brings several texts, or none; of clients it is not always reported.
        Direction::Rx if op.header.kind == Kind::Text as u8 => 0..=1,
        Direction::Rx => 1..=1,
    };
    thread.lap.get_or_insert_default().counted(op, ahead);
}

/// What a receive of an event loop contains, computed before its exchange events are handled.
pub(crate) fn spoken_of(world: &World, op: &Op, events: &[ExchangeEvent]) -> Spoken {
    let Some(connection) = world.connections.get(&op.cookie).filter(|_| is_looped(op)) else {
        return Spoken::default();
    };
    let begun = events.iter().filter(|word| matches!(word, ExchangeEvent::Begun { side: Side::Server, .. })).count();
    let exchanges = events.iter().filter_map(|word| match word {
        ExchangeEvent::Replied { exchange, .. } | ExchangeEvent::Done { exchange, .. } => Some(*exchange),
        _ => None,
    });
    let mut spans: SmallVec<[Slot; 4]> = exchanges.filter_map(|exchange| connection.span(exchange)).collect();
    spans.dedup();
    Spoken { spans, begun }
}

/// The loop turned to timers, immediates or messages of other threads.
pub(crate) fn turned(world: &mut World, task_edge: &TaskEdge) {
    world.now = world.now.max(task_edge.header.nanos);
    let Some(thread) = world.threads.get_mut(&task_edge.header.tid) else { return };
    thread.group = ReadInterval::default();
    if let Some(lap) = &mut thread.lap {
        lap.edge_seq = task_edge.nth;
        lap.begin(counter(task_edge.child), None);
    }
}
