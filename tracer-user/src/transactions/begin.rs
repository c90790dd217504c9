//! A request begins: who holds it, who caused it, and its other end on this host.

use smallvec::SmallVec;
use tracer_common::event::Op;

use super::engine::{Engine, Output};
use super::entities::is_unique;
use super::ids;
use super::join::Key;
use super::live::{Cause, Live, PoolQueue, Slot, Vote};
use super::loops::is_looped;
use super::losses::BEGINS;
use super::pools::End;
use super::thread::{Entity, Thread};
use super::turns::UNKNOWN;
use crate::model::{Cost, Direction, Nanos, Side, TraceId};
use crate::protocols::framed::NO_STATUS;
use crate::protocols::{Conventions, NOWHERE, Request, Stamp, conventions};
use crate::relay;

/// The operation that said something, and what its thread was at before it.
#[derive(Clone, Copy)]
pub(super) struct During<'a> {
    /// The operation.
    pub(super) op: &'a Op,
    /// What the thread's callback stands for.
    pub(super) group: Option<Entity>,
    /// The only request the thread holds.
    pub(super) holder: Option<Slot>,
    /// A send of an event loop: the unit in whose callback it was done.
    pub(super) own: Option<Slot>,
}

/// A request's beginning, as the conversation said it.
pub(super) struct Begun {
    pub(super) exchange: u64,
    pub(super) request: Box<Request>,
    pub(super) first: Stamp,
    pub(super) arrived: Nanos,
    pub(super) head_at: Stamp,
    pub(super) pos: u64,
    pub(super) side: Side,
    pub(super) protocol: &'static str,
}

impl Engine {
    pub(super) fn begun(&mut self, cookie: u64, begun: Begun, op: Option<During<'_>>, out: &mut Vec<Output>) {
        if self.units.len() >= self.limits.units {
            self.evict_unit(out);
        }
        let Begun { exchange, request, first, arrived, head_at, pos, side, protocol } = begun;
        let service = self.service(head_at.pid);
        let Some(connection) = self.connections.get_mut(&cookie) else { return };
        let multiplexed = connection.talk.interleaves();
        let (trace, remote_parent) = match request.traceparent {
            // A message's context is its producer's: a link, no parent.
            Some(context) if side == Side::Server && conventions(protocol) != Conventions::Messaging => {
                (TraceId(context.trace_id), Some(context.parent_id))
            }
            _ => (ids::trace(self.seed, cookie, exchange, first.nanos), None),
        };
        let mut live = Box::new(Live {
            id: ids::unit(self.seed, cookie, exchange, first.nanos, side),
            trace,
            remote_parent: remote_parent.map(crate::model::UnitId),
            caller: None,
            callee: None,
            side,
            protocol,
            service,
            class: None,
            request,
            cookie,
            exchange,
            pid: head_at.pid,
            tid: head_at.tid,
            local_port: connection.local_port,
            peer: connection.peer(&self.empty),
            peer_port: connection.peer_port,
            arrived,
            accepted: connection.accepted(arrived),
            pool_queue: PoolQueue::default(),
            start: first.nanos,
            first_reply: 0,
            end: 0,
            request_bytes: 0,
            reply_bytes: 0,
            reply_body_bytes: Some(0),
            status: None,
            failure: None,
            linked: None,
            outcome: None,
            cost: Cost::default(),
            posted: Cost::default(),
            samples: Vec::new(),
            calls: Vec::new(),
            cause: Cause::none("no request held"),
            lent: None,
            passed_on: false,
            read_as: op.map_or(0, |during| during.op.entity),
            tie: None,
            helped: SmallVec::new(),
            sole: false,
            rivals: None,
            stirs: 0,
            answered_after: None,
            answered_by: 0,
            alone: true,
            batch: false,
            shared: false,
            multiplexed,
            turns: Vec::new(),
            deferred: 0,
            relay: None,
            tag: None,
            sampled: None,
            passed: None,
        });
        let timed = live.request.asked.timed;
        live.alone &= !timed;
        let turn = if timed { connection.take_turn() } else { None };
        let first_use = !std::mem::replace(&mut connection.used, true);
        // Only the first bytes of a connection are known to be of its opener's making.
        let opener = connection.opener().filter(|_| first_use && pos == 0);
        let role = connection.side();
        let dir = if side == Side::Client { Direction::Tx } else { Direction::Rx };
        let seq = if pos == NOWHERE { None } else { connection.seq(dir, pos) };
        let key = match connection.unix() {
            _ if pos == NOWHERE => None,
            Some((own, peer)) if side == Side::Client => Some(Key::Unix(own, peer, pos)),
            Some((own, peer)) => Some(Key::Unix(peer, own, pos)),
            None => {
                // The accepting end is the server's, whichever end of the connection asks.
                let accepting = if role.unwrap_or(side) == Side::Client { connection.isn.1 } else { connection.isn.0 };
                seq.map(|seq| Key::Tcp(seq, accepting))
            }
        };
        let between_hosts = match key {
            Some(Key::Tcp(seq, _)) => connection.far().and_then(|far| {
                let (local, remote) = connection.isn;
                let opened = role.unwrap_or(side) == Side::Client;
                Some((relay::key::Key::new(local, remote, opened, seq)?, far))
            }),
            _ => None,
        };
        if side == Side::Client {
            live.cause = match turn {
                _ if role == Some(Side::Server) => Cause::delivered(),
                Some(cause) if timed => *cause,
                None if timed => Cause::none(UNKNOWN),
                _ => self.cause_of(opener, op),
            };
        }
        // A message's context is its producer's: that one is in the message.
        if conventions(protocol) != Conventions::Messaging {
            self.tagged(&mut live, dir, seq);
        }
        live.begin_passing();
        let slot = self.units.insert(live);
        // A delivery is of nobody's callback.
        if !timed && (side == Side::Server || role != Some(Side::Server)) {
            self.tie(slot, op, head_at.tid);
        }
        if let Some(connection) = self.connections.get_mut(&cookie) {
            connection.add_unit(exchange, slot, !timed);
        }
        self.relay(slot, between_hosts);
        match side {
            Side::Server => {
                if timed {
                    self.serves(head_at.pid, head_at.nanos);
                } else {
                    self.holds(slot, cookie, head_at);
                    if let Some(During { op, .. }) = op {
                        self.read_by_task(cookie, op);
                    }
                }
                if let Some(call) = key.and_then(|key| self.joins.request(key, slot)) {
                    self.link(call, slot);
                }
            }
            Side::Client => {
                self.acts(head_at.tid);
                self.asks_by_stream(slot, head_at.tid);
                if let Some(holder) = op.and_then(|during| during.holder) {
                    self.stirred(holder);
                }
                // A task that was made by another is told of by that one, whatever thread it runs on.
                let made = op.is_some_and(|during| self.sent_by_task(slot, during.op));
                if let Some(During { op, .. }) = op {
                    self.passed_on(cookie, slot, op.entity);
                }
                // A thread that wakes another does so for whatever goroutines or tasks are there to run.
                if let Some(During { op, .. }) = op
                    && !made
                    && !is_unique(op.entity)
                    && self.units.get(slot).is_some_and(|live| live.cause.candidate.is_none() && !live.cause.alone)
                {
                    self.errand(slot, op);
                }
                if let Some(request) = key.and_then(|key| self.joins.call(key, slot)) {
                    self.link(slot, request);
                }
            }
        }
        out.push(Output::Begun(slot));
    }

    /// The two ends of a request on this host.
    pub(super) fn link(&mut self, call: Slot, request: Slot) {
        let Some(caller) = self.units.get_mut(call) else { return };
        caller.callee = Some(request);
        let id = caller.id;
        if let Some(live) = self.units.get_mut(request) {
            live.caller = Some((call, id));
        }
    }

    /// The process has read a request, at that time.
    pub(super) fn serves(&mut self, tgid: u32, nanos: Nanos) {
        if self.serving.len() < self.limits.processes || self.serving.contains_key(&tgid) {
            let first = !self.serving.contains_key(&tgid);
            let since = self.serving.entry(tgid).or_insert(nanos);
            // Records of two CPUs can come in another order.
            *since = nanos.min(*since);
            if first && self.served.len() < self.limits.processes {
                self.served.push(tgid);
            }
        } else {
            self.serving_all = true;
        }
    }

    /// The thread read a request: it holds it; if it holds another connection's unanswered, it runs several at once.
    fn holds(&mut self, slot: Slot, cookie: u64, at: Stamp) {
        let (tid, tgid) = (at.tid, at.pid);
        // Who reads a request has done with what it did for others.
        self.decide(tid);
        self.serves(tgid, at.nanos);
        if !self.threads.contains_key(&tid) {
            if let Some(thread) = self.thread(tid, tgid, at.nanos) {
                thread.open.push(slot);
            }
            return;
        }
        self.lets_go(tid, cookie);
        let units = &self.units;
        let Some(thread) = self.threads.get(&tid) else { return };
        // Streams of one connection are no queue: any of them may be worked for.
        let several = !thread.multiplexer
            && thread
                .open
                .iter()
                .any(|other| units.get(*other).is_some_and(|live| live.multiplexed || live.cookie != cookie));
        let held: SmallVec<[Slot; 8]> =
            if several && !thread.several() { thread.open.iter().copied().collect() } else { SmallVec::new() };
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if several {
            thread.multiplexer = true;
        }
        let multiplexer = thread.several();
        // A multiplexer's list is only for the test; it need not grow without bound.
        if thread.open.len() < 4096 {
            thread.open.push(slot);
        }
        let shared = thread.shares();
        if let Some(pools) = self.pools.get_mut(&tgid) {
            pools.read(shared);
        }
        for other in held {
            if let Some(live) = self.units.get_mut(other) {
                live.alone = false;
            }
        }
        if multiplexer && let Some(live) = self.units.get_mut(slot) {
            live.alone = false;
        }
    }

    /// A request whose client has gone may be over for its thread, unseen, or not: the thread is in doubt, but not yet
    /// one that runs several.
    fn lets_go(&mut self, tid: u32, cookie: u64) {
        let Some(thread) = self.threads.get(&tid).filter(|thread| !thread.multiplexer) else { return };
        let gone = |other: &Slot| {
            let other = self.units.get(*other).filter(|live| live.cookie != cookie);
            other.and_then(|live| self.connections.get(&live.cookie)).is_some_and(|connection| connection.closing)
        };
        if !thread.open.iter().any(gone) {
            return;
        }
        let (left, kept): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) = thread.open.iter().copied().partition(gone);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.lose();
        thread.open.clone_from(&kept);
        for slot in left.into_iter().chain(kept) {
            if let Some(live) = self.units.get_mut(slot) {
                live.alone = false;
            }
        }
    }

    /// Who caused a call that is being sent, as far as its thread tells.
    pub(super) fn cause(&self, opener: Option<(Slot, Option<u32>)>, op: Option<During<'_>>) -> Cause {
        let none = Cause::none;
        if let Some(during) = op
            && !self.serving_all
            && !self.serving.contains_key(&during.op.header.tgid)
        {
            return Cause { alone: true, ..none(BEGINS) };
        }
        let Some(During { op, group, holder, own }) = op else { return none("no operation") };
        let thread = self.threads.get(&op.header.tid);
        if is_looped(op) {
            return self.loop_cause(own);
        }
        let multiplexer = thread.is_some_and(Thread::several);
        let (candidate, alone, evidence) = if let Some(slot) = holder {
            match thread.map_or(0, |thread| thread.open.len()) {
                // Who reads a connection of many streams often hands them to others, and asks for another's sake.
                0 | 1 if self.units.get(slot).is_some_and(|live| live.multiplexed) => {
                    (Some(slot), false, "same thread, a stream among possible others")
                }
                0 | 1 => (Some(slot), true, "same thread, one request at a time"),
                _ => (Some(slot), false, "same thread, more than one request of a connection"),
            }
        } else if let Some((slot, alone)) = opener.filter(|(_, alone)| multiplexer || alone.is_some()) {
            (Some(slot), alone == Some(op.header.tid) && !multiplexer, "connection opened in its group")
        } else if multiplexer {
            match group.and_then(|entity| self.request_of(entity)) {
                Some(slot) => (Some(slot), false, "sent in its group"),
                None => return none("several requests on one thread, no read before the call"),
            }
        } else if let Some(slot) =
            group.and_then(|entity| self.request_of(entity)).filter(|slot| self.is_unanswered(*slot))
        {
            (Some(slot), false, "sent in the group of a message that nothing answers")
        } else {
            return none("no request held");
        };
        let kept = candidate.and_then(|slot| self.units.get(slot)).map(Live::kept);
        if kept.is_none() {
            return none("the request was over");
        }
        Cause { candidate, alone, kept, ..none(evidence) }
    }

    /// The thread made a call, or answered a request.
    fn acts(&mut self, tid: u32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.kind.acts |= thread.multiplexer;
        }
    }

    /// Whether nothing answers a request, so that its thread does not hold it although it works for it.
    fn is_unanswered(&self, slot: Slot) -> bool {
        self.units.get(slot).is_some_and(|live| live.request.asked.silent)
    }

    /// The first byte of a final reply moved.
    pub(super) fn replied(
        &mut self,
        cookie: u64,
        exchange: u64,
        (status, failure): (u16, Option<&'static str>),
        first: Stamp,
        op: Option<During<'_>>,
    ) {
        let Some(slot) = self.connections.get(&cookie).and_then(|connection| connection.unit(exchange)) else { return };
        let Some(live) = self.units.get_mut(slot) else { return };
        live.first_reply = first.nanos;
        live.status = (status != NO_STATUS).then_some(status);
        live.failure = failure;
        if live.side == Side::Client {
            let asker = live.tid;
            // Who asks and leaves the reply to another does other things meanwhile.
            if first.tid != asker
                && let Some(thread) = self.threads.get_mut(&asker)
            {
                thread.kind.juggles = true;
            }
            self.replied_by_stream(slot);
            return;
        }
        let (reader, tgid, calls) = (live.tid, live.pid, live.calls.len());
        if live.tie.is_some() {
            self.answered_in(slot, op.and_then(|during| during.own));
            return;
        }
        self.acts(first.tid);
        if op.is_some() {
            self.confirm(slot, first.tid);
        }
        if op.is_some() && first.tid != reader {
            self.answered(first.tid, slot);
        } else if calls > 0
            && self.threads.get(&reader).is_some_and(|thread| thread.holder() == Some(slot))
            && let Some(pools) = self.pools.get_mut(&tgid)
        {
            pools.returned(End::Answered, calls);
        }
        if let Some(During { op, .. }) = op {
            self.answered_by_task(slot, op);
        }
        // The group that reads a call's reply writes the answer: evidence from the other side of the call.
        if let Some(During { group: Some(Entity::Call(call)), .. }) = op
            && let Some(call) = self.units.get_mut(call)
            && !call.cause.alone
            && (!call.cause.tasked || (call.cause.grouped && !call.cause.told))
        {
            call.cause.vote = match call.cause.vote {
                Vote::None => Vote::For(slot),
                Vote::For(other) if other == slot => Vote::For(slot),
                Vote::For(_) | Vote::Split => Vote::Split,
            };
        }
    }
}
