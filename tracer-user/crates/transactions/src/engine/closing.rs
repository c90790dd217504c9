//! Connection state changes and the end of connections.

use tracer_common::event::{OP_TX, STATE_OWN, State, THREAD_STATS_DEAD, ThreadStats, tcp_state};
use tracer_model::{Nanos, Outcome, Side};
use tracer_protocols::{Closed, Stamp, Totals};

use crate::closed_by::ClosedBy;
use crate::engine::{Engine, LINGER};
use crate::open_span::{CallTime, OpenSpan};
use crate::operation_context::OperationContext;
use crate::output::Output;
use crate::slot::Slot;
use crate::strategies::after_reply;
use crate::thread::IntervalOwner;

impl Engine {
    /// A span has ended; it waits for its report.
    pub(super) fn ended(&mut self, slot: Slot, outcome: Outcome, nanos: Nanos) {
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        live.end = nanos.max(live.start);
        live.outcome = Some(outcome);
        if let Some(group_membership) = live.rare.group_membership {
            self.loops.over(group_membership);
        }
        let (tid, start, end, side) = (live.tid, live.start, live.end, live.side);
        let parent = live.client.cause.request().filter(|_| !live.rare.withdrawn);
        match side {
            Side::Server => {
                self.answer_later(slot);
                if let Some(thread) = self.world.threads.get_mut(&tid) {
                    thread.over(slot, matches!(outcome, Outcome::Complete | Outcome::Upgraded));
                }
            }
            Side::Client => {
                let during = |parent: &&mut OpenSpan| parent.end == 0 || start < parent.end;
                if let Some(parent) = parent.and_then(|parent| self.world.spans.get_mut(parent)).filter(during) {
                    parent.add_call(CallTime { call: Some(slot), start, end });
                }
            }
        }
        self.queue.waiting.push_back((self.world.now + self.world.limits.grace, slot));
    }

    /// A thread reported its counters.
    pub(super) fn on_thread_stats(&mut self, stats: &ThreadStats, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(stats.header.nanos);
        self.world.caught_up = self.world.caught_up.max(stats.header.nanos);
        let dead = stats.header.flags & THREAD_STATS_DEAD != 0;
        self.charge_thread_stats(stats, dead, out);
        let (tid, died) = (stats.header.tid, stats.header.nanos.max(1));
        if dead {
            self.thread_pools.decide(&mut self.world, tid);
            self.declared.forget_thread(stats.header.tgid, tid);
            self.worker_ended(tid, died);
            self.child_processes.process_ended(stats);
        }
        if dead
            && let Some(thread) = self.world.threads.get_mut(&tid)
            && thread.died == 0
        {
            // A late record must not revive the thread.
            thread.died = died;
            self.exited_threads.push_back((self.world.now + LINGER, tid, died));
        }
    }
    pub(super) fn unit_of(&self, cookie: u64, exchange: Option<u64>) -> Option<Slot> {
        self.world.connections.get(&cookie)?.span(exchange?)
    }

    /// The span of an unanswered message that began and ended with one operation.
    pub(super) fn over_at_once(&self, cookie: u64, exchange: Option<u64>) -> Option<Slot> {
        let newest = self.world.connections.get(&cookie)?.newest()?;
        let live = self.world.spans.get(newest)?;
        let is_it = live.multiplexed && live.cookie == cookie && Some(live.exchange) == exchange;
        is_it.then_some(newest)
    }

    /// The exchange of a span is done.
    pub(super) fn exchange_done(
        &mut self,
        slot: Slot,
        (outcome, nanos): (Outcome, Nanos),
        (request_bytes, reply_bytes, reply_body_bytes): (u64, u64, Option<u64>),
        op: Option<OperationContext<'_>>,
    ) {
        if let Some(live) = self.world.spans.get_mut(slot) {
            (live.request_bytes, live.reply_bytes) = (request_bytes, reply_bytes);
            live.has_reply_body(reply_body_bytes);
            if let Some(OperationContext { op, .. }) = op {
                live.goes_on(op.path);
            }
        }
        let by = op.filter(|during| outcome == Outcome::Complete && during.op.header.flags & OP_TX != 0);
        let after = by.and_then(|during| after_reply::goes_on_after(&self.world, slot, during.op));
        if outcome == Outcome::Aborted {
            self.note_who_closed(slot);
        }
        self.ended(slot, outcome, nanos);
        if let (Some(after), Some(OperationContext { op, .. })) = (after, by)
            && let Some(thread) = self.world.threads.get_mut(&op.header.tid)
        {
            thread.after_reply = Some(after);
        }
    }

    pub(super) fn state(&mut self, state: &State, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(state.header.nanos);
        self.network.note_network(&mut self.world, state);
        match state.new {
            tcp_state::SYN_SENT => {
                if state.header.flags & STATE_OWN == 0 {
                    return;
                }
                let after = after_reply::connects_after(&mut self.world, state);
                let opener = self.world.threads.get(&state.header.tid).and_then(|thread| {
                    let (tid, polls) = (state.header.tid, state.counters.polls);
                    thread.holder().or(after).map(|slot| (slot, self.opens_for(slot, tid, polls))).or_else(|| {
                        let entity = thread.group.current(&state.counters)?;
                        if thread.lap.is_some() {
                            let (IntervalOwner::Request(slot) | IntervalOwner::Call(slot)) = entity;
                            return Some((slot, None));
                        }
                        self.world.request_of(entity).map(|slot| (slot, None))
                    })
                });
                let connection = self.connection(state.cookie, out);
                connection.announced = connection.last == 0;
                connection.set_opener(opener);
                connection.tgid = state.header.tgid;
                connection.last = connection.last.max(state.header.nanos);
                connection.connects(state.header.nanos);
            }
            tcp_state::FIN_WAIT1 | tcp_state::LAST_ACK => {
                let closed_by = ClosedBy::of(state);
                if let (Some(who), Some(connection)) = (closed_by, self.world.connections.get_mut(&state.cookie)) {
                    connection.close_by(who);
                }
                self.close(state.cookie, Closed::Local, state.header.nanos, Some(totals(state)), out);
                if let Some(connection) = self.world.connections.get_mut(&state.cookie) {
                    connection.shut = true;
                }
                // Nobody reads the replies to its calls.
                if closed_by.is_some_and(|who| who.end.is_some()) {
                    self.closes_soon(state, out);
                }
            }
            tcp_state::CLOSE => {
                if let (Some(who), Some(connection)) =
                    (ClosedBy::of(state), self.world.connections.get_mut(&state.cookie))
                {
                    connection.close_by(who);
                }
                self.closes_soon(state, out);
            }
            _ => {}
        }
    }

    /// Ends connections and threads whose linger time has passed: no late record of theirs is expected any more.
    pub(super) fn expire_closed(&mut self, now: Nanos, out: &mut Vec<Output>) {
        while let Some((due, state)) = self.closing.front().copied()
            && (due <= now || self.closing.len() > self.world.limits.connections)
        {
            self.closing.pop_front();
            self.close(state.cookie, Closed::Both, state.header.nanos, Some(totals(&state)), out);
            self.drop_connection(state.cookie, state.header.nanos);
        }
        while let Some((due, tid, died)) = self.exited_threads.front().copied()
            && (due <= now || self.exited_threads.len() > self.world.limits.threads)
        {
            self.exited_threads.pop_front();
            if self.world.threads.get(&tid).is_some_and(|thread| thread.died == died) {
                self.world.threads.remove(&tid);
            }
        }
    }

    /// Ends one or both directions of a connection. `totals`: final stream positions, if known.
    pub(super) fn close(
        &mut self,
        cookie: u64,
        how: Closed,
        nanos: Nanos,
        totals: Option<Totals>,
        out: &mut Vec<Output>,
    ) {
        self.give_up_text(cookie, out);
        let mut events = std::mem::take(&mut self.events);
        let Some(connection) = self.world.connections.get_mut(&cookie) else {
            self.events = events;
            return;
        };
        let at = Stamp { nanos, pid: connection.tgid, ..Stamp::default() };
        // Positions of text are others than the socket's.
        let totals = totals.filter(|_| connection.plain.is_none());
        if how == Closed::Local && connection.closed_by().is_some_and(ClosedBy::is_killed) {
            connection.talk.awake().killed(totals, &mut events);
        }
        connection.talk.awake().closed(how, at, totals, &self.world.settings, &mut events);
        for word in events.drain(..) {
            self.on_exchange_event(cookie, word, None, out);
        }
        self.events = events;
    }

    /// The server's end of a UNIX socket, if it serves this call.
    pub(super) fn behind(&self, cookie: u64, call: Option<Slot>) -> Option<u64> {
        self.world.connections.get(&cookie).filter(|connection| connection.unix().is_some())?;
        let request = self.world.spans.get(call?)?.client.callee?;
        self.world.spans.get(request).map(|live| live.cookie)
    }

    /// Forgets a connection; its open spans end as unfinished.
    pub(super) fn drop_connection(&mut self, cookie: u64, nanos: Nanos) {
        self.end_spans(cookie, nanos);
        self.world.connections.remove(&cookie);
    }

    pub(super) fn end_spans(&mut self, cookie: u64, nanos: Nanos) {
        while let Some(slot) = self.world.connections.get_mut(&cookie).and_then(|known| known.pop_unit()) {
            self.ended(slot, Outcome::Unfinished, nanos);
        }
    }
}

/// Final stream positions.
fn totals(state: &State) -> Totals {
    Totals { rx: state.rx, tx: state.tx, last_rx: state.last_rx, last_tx: state.last_tx }
}
