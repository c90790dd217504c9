//! The start of a span: the thread that holds it, its cause, and its other end on this host.

use std::net::IpAddr;

use smallvec::SmallVec;
use tracer_common::runtime::KIND_TOKIO;
use tracer_model::{Direction, Nanos, Outcome, ProtocolId, Side, TraceFlags, TraceId};
use tracer_protocols::context::{Carrier, TraceParent};
use tracer_protocols::framed::NO_STATUS;
use tracer_protocols::{Conventions, NOWHERE, Request, Stamp};

use crate::cause::{CallState, Cause, ShownBy};
use crate::connection::Connection;
use crate::engine::Engine;
use crate::evidence::Evidence;
use crate::ids;
use crate::join::JoinKey;
use crate::open_span::{NewSpan, OpenSpan};
use crate::operation_context::OperationContext;
use crate::output::Output;
use crate::slot::Slot;
use crate::strategies::forwarding::fingerprint;
use crate::strategies::thread_pool::wakeup_candidates;
use crate::strategies::{after_reply, streams, tasks, thread_affinity, thread_pool};
use crate::task_identity::{is_looped, is_named, is_unique, kind};
use crate::thread::{IntervalOwner, Thread};

/// The start of a request as the connection parser reports it.
pub(super) struct Begun {
    pub(super) exchange: u64,
    pub(super) request: Box<Request>,
    pub(super) first: Stamp,
    pub(super) arrived: Nanos,
    pub(super) head_at: Stamp,
    pub(super) pos: u64,
    pub(super) side: Side,
    pub(super) protocol: ProtocolId,
}

impl Engine {
    pub(super) fn begun(&mut self, cookie: u64, begun: Begun, op: Option<OperationContext<'_>>, out: &mut Vec<Output>) {
        if self.world.spans.len() >= self.world.limits.spans {
            self.evict_unit(out);
        }
        let Begun { exchange, request, first, arrived, head_at, pos, side, protocol } = begun;
        let service = self.world.processes.service(head_at.pid);
        let mut request = request;
        let is_session = protocol == ProtocolId::WebSocket;
        if is_session {
            self.report_upgrade(cookie, &mut request, out);
        }
        let Some(connection) = self.world.connections.get_mut(&cookie) else { return };
        let (trace, remote_parent) = match request.traceparent {
            Some(upgrade) if is_session && upgrade.carrier == Carrier::Session => {
                (TraceId(upgrade.trace_id), Some(upgrade.parent_id))
            }
            // A message's context names its producer: a link, not a parent.
            Some(context) if side == Side::Server && protocol.conventions() != Conventions::Messaging => {
                (TraceId(context.trace_id), Some(context.parent_id))
            }
            _ => (ids::trace(self.world.seed, cookie, exchange, first.nanos), None),
        };
        let multiplexed = connection.talk.interleaves();
        let beginning = op.and_then(|during| self.prefixes.beginning(during.op, pos, side, protocol));
        let fingerprint = fingerprint(&request, protocol);
        let mut live = self.world.spans.begin(NewSpan {
            id: ids::span(self.world.seed, cookie, exchange, first.nanos, side),
            trace,
            remote_parent: remote_parent.map(tracer_model::SpanId),
            side,
            protocol,
            service,
            request,
            cookie,
            exchange,
            pid: head_at.pid,
            tid: head_at.tid,
            endpoints: connection.endpoints(&self.world.empty),
            encrypted: connection.plain.is_some(),
            arrived,
            start: first.nanos,
            fingerprint,
            read_as: op.map_or(0, |during| during.op.entity),
            multiplexed,
            beginning,
        });
        let timed = live.request.expected.timed;
        live.alone &= !timed;
        let round_trip = if timed { connection.take_round_trip() } else { None };
        let first_use = !std::mem::replace(&mut connection.used, true);
        // The opener caused only the first bytes of the connection.
        let opener = connection.opener().filter(|_| first_use && pos == 0);
        if first_use && side == Side::Client {
            live.client.opening = connection.opening();
        }
        let received = op.map(|during| during.op).filter(|op| op.header.nanos == first.nanos).map(|op| op.path);
        // The protocol of a call may be known by its reply only.
        let sent = connection.path_at(first.nanos);
        if let Some(path) = if side == Side::Client { sent } else { received } {
            live.begins_on(path);
        }
        let role = connection.side();
        let dir = if side == Side::Client { Direction::Tx } else { Direction::Rx };
        let seq = if pos == NOWHERE { None } else { connection.seq(dir, pos) };
        let (key, between_hosts) = keys(connection, side, (pos != NOWHERE).then_some(pos), seq);
        let asks_for_job = self.jobs.take_asking(cookie, exchange);
        if asks_for_job {
            Self::asking(&mut live);
        }
        let is_job = protocol == ProtocolId::Job;
        if side == Side::Client {
            live.client.cause = match round_trip {
                _ if asks_for_job => Cause::none(Evidence::AsksForJob),
                _ if role == Some(Side::Server) => Cause::none(Evidence::Delivery),
                Some(cause) if timed => *cause,
                None if timed => Cause::none(Evidence::RoundTripUnseen),
                // Its upgrade is its parent; it is over already.
                None if is_session => Cause::none(Evidence::Session),
                _ => self.cause_of(opener, op),
            };
            self.world.processes.queue_workers.note(&mut live, self.world.limits.processes);
            live.client.cause.one_pending_read.at_call = op.is_some_and(|during| during.one_pending_read);
        }
        // A message carries its producer's context itself.
        if protocol.conventions() != Conventions::Messaging {
            self.inband.begins(&mut live, dir, seq);
        }
        live.begin_passing();
        let slot = self.world.spans.insert(live);
        // A delivery belongs to no callback.
        if !timed && !is_session && (side == Side::Server || role != Some(Side::Server)) {
            self.loops.group_membership(&mut self.world, slot, op, head_at.tid);
        }
        // A job may outlive the connection that it was read from.
        if let Some(connection) = self.world.connections.get_mut(&cookie).filter(|_| !is_job) {
            connection.add_unit(exchange, slot, !timed);
        }
        self.relay(slot, between_hosts);
        match side {
            Side::Server if timed => self.world.serves(head_at.pid, head_at.nanos),
            Side::Server => self.request_begins(slot, (cookie, exchange), head_at, op, is_job),
            Side::Client if is_session => {}
            Side::Client => self.call_begins(slot, cookie, head_at.tid, op),
        }
        let other_end = key.and_then(|key| match side {
            Side::Server => self.joins.request(key, slot).map(|call| (call, slot)),
            Side::Client if is_session => None,
            Side::Client => self.joins.call(key, slot).map(|request| (slot, request)),
        });
        if let Some((call, request)) = other_end {
            self.world.link(call, request);
        }
        out.push(Output::Begun(slot));
    }

    /// A thread read a request: asks the strategies that remember it. `is_job`: it is a job of a queue.
    fn request_begins(
        &mut self,
        slot: Slot,
        (cookie, exchange): (u64, u64),
        head_at: Stamp,
        op: Option<OperationContext<'_>>,
        is_job: bool,
    ) {
        self.holds(slot, cookie, head_at);
        thread_affinity::read(&mut self.world, slot, head_at.pid);
        let Some(OperationContext { op, .. }) = op else { return };
        self.declared.read(op.header.tgid, op.entity, slot);
        if !is_job {
            after_reply::read(&mut self.world, op, exchange);
            self.forwarding.read(&mut self.world, slot, op);
        }
        self.tasks.read(&mut self.world, cookie, op);
    }

    /// A thread sent a call: asks the strategies that may tell for which request, in an order in which each knows what the
    /// ones before have decided.
    fn call_begins(&mut self, slot: Slot, cookie: u64, tid: u32, during: Option<OperationContext<'_>>) {
        self.acts(tid);
        streams::asked(&mut self.world, slot, tid);
        self.child_processes.sent(&mut self.world, slot);
        let Some(OperationContext { op, holder, .. }) = during else { return };
        if let Some(holder) = holder {
            wakeup_candidates::stirred(&mut self.world, holder);
        }
        // A task that another task spawned gets its parent from that task, whatever thread it runs on.
        let made = self.tasks.sent(&mut self.world, slot, op);
        thread_affinity::sent(&mut self.world, slot, op);
        self.forwarding.sent(&mut self.world, slot, op);
        tasks::passed_on(&mut self.world, cookie, slot, op.entity);
        // Wake-ups by a thread that runs goroutines or tasks prove nothing: it wakes threads to run whatever is queued.
        let is_open = |live: &OpenSpan| {
            live.client.cause.candidate.is_none()
                && !live.client.cause.is_certain()
                && live.client.cause.shown_by != ShownBy::Process
        };
        if !made && !is_unique(op.entity) && self.world.spans.get(slot).is_some_and(is_open) {
            self.thread_pools.sent(&mut self.world, slot, op);
        }
    }

    /// A session is over whose upgrade is not reported yet: reports that first, so that the session knows its parent.
    fn report_upgrade(&mut self, cookie: u64, request: &mut Request, out: &mut Vec<Output>) {
        if request.traceparent.is_some_and(|context| context.carrier == Carrier::Session) {
            return;
        }
        let is_upgrade = |slot: &Slot| {
            self.world
                .spans
                .get(*slot)
                .is_some_and(|live| live.cookie == cookie && live.outcome == Some(Outcome::Upgraded))
        };
        let Some(slot) = self.queue.slots().rfind(is_upgrade) else { return };
        let Some((parent_id, flags)) = self.world.spans.get(slot).map(|live| (live.id.0, session_flags(live))) else {
            return;
        };
        self.give_out(slot, out);
        if let Some(trace) = self.reported.get(slot) {
            request.traceparent = Some(TraceParent { trace_id: trace.0, parent_id, flags, carrier: Carrier::Session });
        }
    }

    /// The upgrade `live` is reported with `trace`: the session that it began takes both ids.
    pub(super) fn upgrade_reported(&mut self, live: &OpenSpan, trace: TraceId) {
        if live.outcome != Some(Outcome::Upgraded) || !live.request.expected.websocket {
            return;
        }
        if let Some(connection) = self.world.connections.get_mut(&live.cookie) {
            let (trace_id, parent_id, carrier) = (trace.0, live.id.0, Carrier::Session);
            let flags = session_flags(live);
            connection.talk.awake().began_with(TraceParent { trace_id, parent_id, flags, carrier });
        }
    }

    /// A reply gave its outcome after its body.
    pub(super) fn judged(
        &mut self,
        cookie: u64,
        exchange: u64,
        (status, failure, protocol): (u16, Option<&'static str>, Option<ProtocolId>),
    ) {
        let slot = self.world.connections.get(&cookie).and_then(|connection| connection.span(exchange));
        if let Some(live) = slot.and_then(|slot| self.world.spans.get_mut(slot)) {
            live.status = (status != NO_STATUS).then_some(status);
            live.fails_with(failure);
            live.protocol = protocol.unwrap_or(live.protocol);
        }
    }

    /// The thread read a request and holds it. If it also holds an unanswered request of another connection, it is a
    /// multiplexer.
    fn holds(&mut self, slot: Slot, cookie: u64, at: Stamp) {
        let (tid, tgid) = (at.tid, at.pid);
        // A thread that reads a request has finished its detached calls.
        self.thread_pools.decide(&mut self.world, tid);
        self.world.serves(tgid, at.nanos);
        if !self.world.threads.contains_key(&tid) {
            if let Some(thread) = self.world.thread(tid, tgid, at.nanos) {
                thread.open.push(slot);
            }
            return;
        }
        self.lets_go(tid, cookie);
        let spans = &self.world.spans;
        let Some(thread) = self.world.threads.get(&tid) else { return };
        // Streams of one connection are not a queue: the thread may work for any of them.
        let several = !thread.multiplexer
            && thread
                .open
                .iter()
                .any(|other| spans.get(*other).is_some_and(|live| live.multiplexed || live.cookie != cookie));
        let held: SmallVec<[Slot; 8]> =
            if several && !thread.several() { thread.open.iter().copied().collect() } else { SmallVec::new() };
        let Some(thread) = self.world.threads.get_mut(&tid) else { return };
        if several {
            thread.multiplexer = true;
        }
        let multiplexer = thread.several();
        // A multiplexer's list only serves the check for an empty list; bound it.
        if thread.open.len() < 4096 {
            thread.open.push(slot);
        }
        let shared = thread.shares();
        self.thread_pools.read(tgid, shared);
        for other in held {
            if let Some(live) = self.world.spans.get_mut(other) {
                live.alone = false;
            }
        }
        if multiplexer && let Some(live) = self.world.spans.get_mut(slot) {
            live.alone = false;
        }
    }

    /// The thread may or may not have dropped a request whose client is gone. Marks the thread as doubtful, but not yet
    /// as a multiplexer.
    fn lets_go(&mut self, tid: u32, cookie: u64) {
        let Some(thread) = self.world.threads.get(&tid).filter(|thread| !thread.multiplexer) else { return };
        let gone = |other: &Slot| {
            let other = self.world.spans.get(*other).filter(|live| live.cookie != cookie);
            other.and_then(|live| self.world.connections.get(&live.cookie)).is_some_and(|connection| connection.closing)
        };
        if !thread.open.iter().any(gone) {
            return;
        }
        let (left, kept): (SmallVec<[Slot; 2]>, SmallVec<[Slot; 2]>) = thread.open.iter().copied().partition(gone);
        let Some(thread) = self.world.threads.get_mut(&tid) else { return };
        thread.lose();
        thread.open.clone_from(&kept);
        for slot in left.into_iter().chain(kept) {
            if let Some(live) = self.world.spans.get_mut(slot) {
                live.alone = false;
            }
        }
    }

    /// Cause of a call that is being sent: what it was sent after, which process sent it, which task, which thread.
    pub(super) fn cause_of(&self, opener: Option<(Slot, Option<u32>)>, op: Option<OperationContext<'_>>) -> Cause {
        if let Some(cause) = op.and_then(|during| after_reply::cause(&self.world, during.op, during.after?)) {
            return cause;
        }
        if let Some(cause) = op.and_then(|during| self.child_processes.cause(&self.world, during.op)) {
            return cause;
        }
        let Some(during) = op.filter(|during| self.world.is_tasked(during.op)) else { return self.cause(opener, op) };
        if kind(during.op.entity) == KIND_TOKIO {
            let cause = self.cause(opener, op);
            let unknown = cause.candidate.is_none() && !cause.is_certain();
            let evidence = if unknown { Evidence::TaskUnknown } else { cause.evidence };
            return Cause { shown_by: ShownBy::TaskOrGroup, evidence, ..cause };
        }
        // A goroutine can continue on any thread; and a loop may run a task whose request was missed or not understood
        // while the only known request waits for its turn. The thread's evidence counts only for the task that read the
        // known request.
        let of_reader = |slot: Slot| self.world.spans.get(slot).is_some_and(|live| live.read_as == during.op.entity);
        let known = during.holder.or(opener.map(|(slot, _)| slot));
        let several = is_unique(during.op.entity)
            || (is_named(during.op.entity) && !known.is_none_or(of_reader))
            || self.world.threads.get(&during.op.header.tid).is_some_and(Thread::several);
        let cause = if several {
            // The thread's earlier work proves nothing.
            self.cause(None, Some(OperationContext { group: None, holder: None, ..during }))
        } else {
            self.cause(opener, op)
        };
        let evidence = if several && !cause.is_certain() { Evidence::TaskUnknown } else { cause.evidence };
        Cause { shown_by: ShownBy::Task, evidence, ..cause }
    }

    /// Cause of a call that is being sent, as far as its thread shows.
    pub(super) fn cause(&self, opener: Option<(Slot, Option<u32>)>, op: Option<OperationContext<'_>>) -> Cause {
        if let Some(during) = op
            && !self.world.processes.serving_all
            && !self.world.processes.serving.contains_key(&during.op.header.tgid)
        {
            return Cause::none(Evidence::Begins);
        }
        let Some(OperationContext { op, group, holder, own, .. }) = op else {
            return Cause::none(Evidence::NoOperation);
        };
        let thread = self.world.threads.get(&op.header.tid);
        if is_looped(op) {
            return self.loops.cause(&self.world, own);
        }
        let multiplexer = thread.is_some_and(Thread::several);
        let in_job = holder.and_then(|slot| Some((slot, self.cause_in_job(slot, op, opener)?)));
        let (candidate, evidence) = if let Some(in_job) = in_job {
            in_job
        } else if let Some(slot) = holder {
            match thread.map_or(0, |thread| thread.open.len()) {
                // A thread that reads a connection with many streams often hands them to others, and sends calls for
                // other requests.
                0 | 1 if self.world.spans.get(slot).is_some_and(|live| live.multiplexed) => (slot, Evidence::Stream),
                0 | 1 if thread.is_some_and(|thread| thread.polls_at_op != op.counters.polls) => {
                    (slot, if self.may_be_over(slot) { Evidence::MaybeOver } else { Evidence::AfterPoll })
                }
                0 | 1 => (slot, Evidence::OneRequest),
                _ => (slot, Evidence::SeveralOfConnection),
            }
        } else if let Some((slot, _)) = opener.filter(|(_, alone)| multiplexer || alone.is_some()) {
            // The thread has since answered that request, and may have opened the connection for another one if records
            // came early.
            (slot, Evidence::OpenedInGroup)
        } else if multiplexer {
            match group.and_then(|entity| self.world.request_of(entity)) {
                Some(slot) => (slot, Evidence::InGroup),
                None => return Cause::none(Evidence::NothingRead),
            }
        } else if let Some(slot) =
            group.and_then(|entity| self.world.request_of(entity)).filter(|slot| self.is_unanswered(*slot))
        {
            (slot, Evidence::InGroupOfMessage)
        } else {
            return Cause::none(Evidence::NoRequest);
        };
        match self.world.spans.get(candidate).map(OpenSpan::kept) {
            Some(kept) => Cause::of(candidate, kept, evidence),
            None => Cause::none(Evidence::RequestOver),
        }
    }

    /// Whether a thread may have finished an open request without a sign of it: its client is gone, or its answer has
    /// begun, whose end is not always seen. An event loop that then waits may go on with a timer of its own.
    fn may_be_over(&self, slot: Slot) -> bool {
        self.world.spans.get(slot).is_none_or(|live| {
            live.first_reply != 0
                || self.world.connections.get(&live.cookie).is_none_or(|connection| connection.closing)
        })
    }

    /// The thread sent a call or an answer.
    fn acts(&mut self, tid: u32) {
        if let Some(thread) = self.world.threads.get_mut(&tid) {
            thread.kind.acts |= thread.multiplexer;
        }
    }

    /// Whether the protocol sends no answer to this request: its thread works for it without holding it.
    fn is_unanswered(&self, slot: Slot) -> bool {
        self.world.spans.get(slot).is_some_and(|live| live.request.expected.silent)
    }

    /// The first byte of a final reply was sent or read.
    pub(super) fn replied(
        &mut self,
        cookie: u64,
        exchange: u64,
        (status, failure): (u16, Option<&'static str>),
        first: Stamp,
        op: Option<OperationContext<'_>>,
    ) {
        let Some(slot) = self.world.connections.get(&cookie).and_then(|connection| connection.span(exchange)) else {
            return;
        };
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        live.first_reply = first.nanos;
        live.status = (status != NO_STATUS).then_some(status);
        live.fails_with(failure);
        if live.side == Side::Client {
            let asker = live.tid;
            // A thread that sends a call and leaves the reply to another thread does other work meanwhile.
            if first.tid != asker
                && let Some(thread) = self.world.threads.get_mut(&asker)
            {
                thread.kind.juggles = true;
            }
            streams::replied(&mut self.world, slot);
            if let Some(OperationContext { op, .. }) = op {
                thread_affinity::collected(&mut self.world, slot, first.tid, op);
            }
            return;
        }
        let (reader, tgid, calls) = (live.tid, live.pid, live.server.calls.len());
        if live.rare.group_membership.is_some() {
            self.loops.answered_in(&mut self.world, slot, op.and_then(|during| during.own));
            return;
        }
        self.acts(first.tid);
        if let Some(OperationContext { op, .. }) = op {
            thread_affinity::answered(&mut self.world, slot, first.tid, op);
        }
        if op.is_some() {
            thread_pool::confirm(&mut self.world, slot, first.tid);
        }
        if op.is_some() && first.tid != reader {
            self.thread_pools.answered(&mut self.world, first.tid, slot);
        } else if calls > 0 && self.world.threads.get(&reader).is_some_and(|thread| thread.holder() == Some(slot)) {
            self.thread_pools.returned(tgid, calls);
        }
        if let Some(OperationContext { op, .. }) = op {
            self.tasks.answered(&mut self.world, slot, op);
            self.task_answers(slot, op);
        }
        // The group that reads a call's reply writes the answer: evidence from the other side of the call.
        if let Some(OperationContext { group: Some(IntervalOwner::Call(call)), one_pending_read, .. }) = op {
            self.forwarding.sides_met(&mut self.world, call, slot, one_pending_read);
        }
        if let Some(OperationContext { group: Some(IntervalOwner::Call(call)), .. }) = op
            && let Some(call) = self.world.spans.get_mut(call)
            && !call.client.cause.is_certain()
            && call.client.cause.forwarded.is_none()
            && (!call.client.cause.is_tasked()
                || (call.client.cause.shown_by == ShownBy::TaskOrGroup
                    && call.client.cause.state != CallState::DecidedByTask))
        {
            call.client.cause.vote = call.client.cause.vote.and(slot);
        }
        if op.is_some() {
            self.forwarding.answered(&mut self.world, slot);
        }
    }
}

/// The trace flags that an upgrade's session takes over.
fn session_flags(upgrade: &OpenSpan) -> u8 {
    upgrade.rare.trace_flags.unwrap_or(TraceFlags::DRAWN).bits()
}

/// What both ends of a request know of it: on this host, and, with the address of the other end, between hosts. `pos`: where in
/// its stream it begins; `seq`: the same as a sequence number of TCP.
fn keys(
    connection: &Connection,
    side: Side,
    pos: Option<u64>,
    seq: Option<u32>,
) -> (Option<JoinKey>, Option<(tracer_relay::key::RequestKey, IpAddr)>) {
    let Some(pos) = pos else { return (None, None) };
    let role = connection.side().unwrap_or(side);
    match connection.unix() {
        Some((own, peer)) if side == Side::Client => (Some(JoinKey::Unix(own, peer, pos)), None),
        Some((own, peer)) => (Some(JoinKey::Unix(peer, own, pos)), None),
        None => {
            let Some(seq) = seq else { return (None, None) };
            // The accepting end is the TCP server, whichever end sends requests.
            let (local, remote) = connection.isn;
            let accepting = if role == Side::Client { remote } else { local };
            let request = tracer_relay::key::RequestKey::new(local, remote, role == Side::Client, seq);
            (Some(JoinKey::Tcp(seq, accepting)), request.zip(connection.remote_address()))
        }
    }
}
