//! An operation on a socket: bytes were sent or received. [`Engine::on_io`] lists what is done, and why in that order.

use tracer_common::event::{OP_DATAGRAM, OP_EOF, OP_TX, OP_UNSEEN, Op};
use tracer_model::{Direction, Nanos, Side};
use tracer_protocols::{Chunk, Closed, ExchangeEvent, Stamp, Totals};

use crate::closed_by::ClosedBy;
use crate::connection::Connection;
use crate::engine::Engine;
use crate::engine::begin::Begun;
use crate::event_loop::Spoken;
use crate::operation_context::OperationContext;
use crate::output::Output;
use crate::slot::Slot;
use crate::strategies::{after_reply, event_loop, pending_reads, tasks, thread_affinity};
use crate::thread::Thread;

/// The bytes that the kernel side carries of an operation: its first, its last, and those of fragments between them.
type Carried<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// What the connection's parser made of an operation.
struct Parsed {
    dir: Direction,
    /// The stream has ended.
    is_end: bool,
    /// The exchange that the bytes belong to, if they do not begin it.
    touched: Option<u64>,
    /// They are the rest of a request that is known.
    continues: bool,
    /// When the connection was used before.
    last: Nanos,
    events: Vec<ExchangeEvent>,
}

/// The state of an operation's thread and connection before its events change it.
struct Before<'a> {
    during: OperationContext<'a>,
    /// The span that the bytes belong to, if they do not begin it.
    span: Option<Slot>,
    /// Requests that one send answers in several streams.
    together: Vec<Slot>,
    /// Requests that are answered at once.
    batch: Vec<Slot>,
    /// What a receive of an event loop contains.
    spoken: Spoken,
    /// The other end of a UNIX socket whose stream has ended.
    behind: Option<u64>,
}

impl Engine {
    /// An operation on a socket.
    pub(super) fn op(&mut self, op: &Op, carried: (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
        // The implied earlier transfer has no counters of its own: this operation is charged with everything since the
        // last record.
        let counters = self.world.threads.get(&op.header.tid).map_or(op.counters, |thread| thread.counters);
        if let Some(sent) = op.sent_before(counters)
            && !self.ciphertext(&sent, &[])
        {
            self.on_io(&sent, (&[], &[], &[]), out);
        }
        self.follow(&op.header, op.nth);
        self.overtaken(op);
        self.miss_text(op);
        if !self.ciphertext(op, carried.0) {
            tasks::note(&mut self.world, op);
            thread_affinity::note(&mut self.world, op);
            self.on_io(op, carried, out);
            self.watch_encrypted(op, carried.0);
        }
        if let Some(thread) = self.world.threads.get_mut(&op.header.tid) {
            thread.note_received(op);
        }
    }

    /// Bytes were sent or received. The phases, in the order in which each needs what the one before found:
    ///
    /// 1. The parser: which exchange the bytes belong to is what all others ask.
    /// 2. The thread and the connection as they were: what an event means depends on what the thread held until now.
    /// 3. The events, in the order of the bytes: spans begin, are answered and end, and calls get their causes.
    /// 4. The end of the other end, where only this end shows it: its events must not come before those of this one.
    /// 5. A turn of a connection that is only timed: the events may have ended the turn before.
    /// 6. The charge: the time until now belongs to what the thread held before the events, what follows to what they began.
    /// 7. What the thread has read now, for its next operation.
    /// 8. The capture policy: it depends on the state of the parser after all that.
    pub(super) fn on_io(&mut self, op: &Op, carried: Carried<'_>, out: &mut Vec<Output>) {
        let cookie = op.cookie;
        self.world.advance(op.header.nanos);
        self.world.caught_up = self.world.caught_up.max(op.header.nanos);
        self.world.unseen |= op.header.flags & OP_UNSEEN != 0;
        let mut parsed = self.parse(op, carried, out);
        self.prefixes.note(op, carried.0);
        let before = self.before_events(op, &parsed);
        for event in parsed.events.drain(..) {
            self.on_exchange_event(cookie, event, Some(before.during), out);
        }
        self.events = std::mem::take(&mut parsed.events);
        if let Some(behind) = before.behind {
            // No hook reports the close of a UNIX socket, but the peer's end of stream shows it, along with when the
            // last byte before it was read. The policy may have suppressed the server's own sends.
            let totals = Totals { tx: op.pos, last_tx: op.arrived, ..Totals::default() };
            if let Some(connection) = self.world.connections.get_mut(&behind) {
                connection.close_by(ClosedBy { tgid: connection.tgid, end: None });
            }
            self.close(behind, Closed::Local, op.header.nanos, Some(totals), out);
        }
        if parsed.dir == Direction::Rx
            && let Some(connection) = self.world.connections.get_mut(&cookie)
        {
            connection.receives_on(op.path);
        }
        self.turn_begins(cookie, before.during);
        self.charge_operation(op, &parsed, &before, out);
        if parsed.dir == Direction::Rx {
            self.loops.received(&mut self.world, op, before.spoken);
        }
        self.update_policy(cookie);
    }

    /// Has the connection's parser read the bytes.
    fn parse(&mut self, op: &Op, (head, tail, fragments): Carried<'_>, out: &mut Vec<Output>) -> Parsed {
        let header = &op.header;
        let dir = if header.flags & OP_TX != 0 { Direction::Tx } else { Direction::Rx };
        let is_end = header.flags & OP_EOF != 0;
        let at = Stamp { nanos: header.nanos, pid: header.tgid, tid: header.tid, reads: op.counters.reads };
        let mut events = std::mem::take(&mut self.events);
        self.make_room_for(op.cookie, out);
        let connection = self.world.connections.or_insert_with(op.cookie, || Connection::unknown(true));
        connection.announced = false;
        let last = connection.last;
        connection.last = last.max(header.nanos);
        connection.tgid = header.tgid;
        // Does not parse bytes below the position that the connection's end has already accounted for: their request is
        // over, yet the thread may still hold it. Bytes beyond it are parsed, such as the rest of a request that was
        // answered before it was read completely.
        let shut = connection.shut && dir == Direction::Rx && !is_end;
        let unparsed = shut
            && connection.side() != Some(Side::Client)
            && connection.talk.awake().read_up_to().is_none_or(|known| op.pos < known);
        if op.seq != 0 {
            connection.set_base(dir, op.seq.wrapping_sub(op.pos as u32));
        }
        if dir == Direction::Tx {
            connection.sends_on(header.nanos, op.pos, op.path);
        }
        let continues = dir == Direction::Rx && connection.talk.awake().is_inside_request();
        let touched = if is_end {
            // The kernel may have suppressed the receives before it, because the policy did not ask for them.
            // Positions of text are others than the socket's.
            let totals = Totals { rx: op.pos, tx: 0, last_rx: op.arrived, last_tx: 0 };
            let totals = connection.plain.is_none().then_some(totals);
            connection.talk.awake().closed(Closed::Remote, at, totals, &self.world.settings, &mut events);
            None
        } else {
            let chunk =
                Chunk { dir, pos: op.pos, len: u64::from(op.bytes), head, tail, fragments, at, arrived: op.arrived };
            let datagram = header.flags & OP_DATAGRAM != 0;
            connection.talk.awake().on_io(datagram, &chunk, &self.world.settings, &mut events).exchange
        };
        if unparsed && let Some(doubted) = self.world.threads.get_mut(&header.tid).map(Thread::lose) {
            self.doubt(header.tid, doubted);
        }
        Parsed { dir, is_end, touched, continues, last, events }
    }

    /// The thread and the connection before the events.
    fn before_events<'a>(&mut self, op: &'a Op, parsed: &Parsed) -> Before<'a> {
        let Parsed { dir, is_end, touched, continues, last, events } = parsed;
        let (cookie, dir) = (op.cookie, *dir);
        // An exchange that this operation ends is known only now, one that it begins only after the events.
        let span = if *is_end {
            // End of stream: attribute it, and what follows, to the newest span.
            self.world.connections.get(&cookie).and_then(|connection| connection.newest())
        } else {
            self.unit_of(cookie, *touched)
        };
        if dir == Direction::Rx && !is_end {
            self.reads_for(&op.header, span);
        }
        event_loop::looped(&mut self.world, op, dir);
        if !is_end {
            self.reads_in_job(op, dir, *last);
        }
        let together = if dir == Direction::Tx { self.together(cookie) } else { Vec::new() };
        let thread = self.world.threads.get(&op.header.tid);
        let group = thread.and_then(|thread| thread.group.current(&op.counters));
        let holder = thread.and_then(Thread::holder);
        let own = if dir == Direction::Tx { self.loops.callback(&self.world, op, group) } else { None };
        let after = after_reply::still_after(&mut self.world, op, dir, span, *continues);
        let one_pending_read = pending_reads::one_pending_read(&mut self.world, op, dir, span.is_some(), events);
        let during = OperationContext { op, group, holder, own, after, one_pending_read };
        let spoken = event_loop::spoken_of(&self.world, op, events);
        let batch = if together.is_empty() { self.batch(cookie, events) } else { Vec::new() };
        let behind = if *is_end { self.behind(cookie, span) } else { None };
        Before { during, span, together, batch, spoken, behind }
    }

    /// Charges the work that ends with the operation, after its events.
    fn charge_operation(&mut self, op: &Op, parsed: &Parsed, before: &Before<'_>, out: &mut Vec<Output>) {
        let Parsed { dir, touched, .. } = *parsed;
        let (cookie, together) = (op.cookie, &before.together);
        let span = before.span.or_else(|| self.unit_of(cookie, touched)).or_else(|| self.over_at_once(cookie, touched));
        let (job, ends_job) = self.jobs.take_touched();
        let span = job.or(span).or(together.first().copied());
        let had = together.first().and_then(|slot| self.world.spans.get(*slot)).map(|live| live.cost);
        let OperationContext { holder, after, .. } = before.during;
        // The request that this operation answered: its thread held it until now.
        let answered = ends_job || (dir == Direction::Tx && holder.is_some() && holder == before.span);
        self.charge_op(op, (dir, span), (after.is_some(), answered), out);
        self.spread(together, had);
        self.share(&before.batch);
    }

    /// Handles one event of a connection's parser. `op`: the operation that produced it and the state of its thread
    /// before it.
    pub(super) fn on_exchange_event(
        &mut self,
        cookie: u64,
        event: ExchangeEvent,
        op: Option<OperationContext<'_>>,
        out: &mut Vec<Output>,
    ) {
        match event {
            ExchangeEvent::Begun { exchange, request, first, arrived, head_at, pos, side, protocol } => {
                let op = self.own(cookie, op, head_at);
                let begun = Begun { exchange, request, first, arrived, head_at, pos, side, protocol };
                self.begun(cookie, begun, op, out);
            }
            ExchangeEvent::Linked { exchange, linked } => self.linked(cookie, exchange, linked),
            ExchangeEvent::Job { exchange, job } => self.on_job((cookie, exchange), job, op, out),
            ExchangeEvent::Judged { exchange, status, failure, protocol } => {
                self.judged(cookie, exchange, (status, failure, protocol));
            }
            ExchangeEvent::Replied { exchange, status, failure, first, sure } => {
                let op = self.own(cookie, op, first);
                // A reply that may belong to another request is no evidence.
                self.replied(cookie, exchange, (status, failure), first, op.filter(|_| sure));
            }
            ExchangeEvent::Done { exchange, outcome, at, request_bytes, reply_bytes, reply_body_bytes } => {
                let Some(slot) = self.take_exchange(cookie, exchange) else { return };
                self.exchange_done(slot, (outcome, at.nanos), (request_bytes, reply_bytes, reply_body_bytes), op);
            }
            ExchangeEvent::Withdrawn { exchange } => self.withdrawn(cookie, exchange),
            ExchangeEvent::Datagram { exchange, question, dir, at, sure } => {
                self.lookups.looked_up(&mut self.world, cookie, (exchange, question), (dir, at, sure), op);
            }
            ExchangeEvent::Unpaired { .. } => self.world.counters.unpaired += 1,
            ExchangeEvent::Lost { bytes, .. } => self.world.counters.gap_bytes += bytes,
            ExchangeEvent::Unnamed => self.world.counters.unnamed += 1,
            ExchangeEvent::Forgotten { names } => self.world.counters.statements_refused += names,
            ExchangeEvent::HeadsCut { heads } => self.world.counters.heads_cut += heads,
            ExchangeEvent::Crowded => self.world.counters.streams_given_up += 1,
            ExchangeEvent::Certificate { name, expires } => self.encryption.certified(name, expires),
        }
    }

    /// Drops `op` if the event stems from an earlier operation that the parser had buffered.
    fn own<'a>(&self, cookie: u64, op: Option<OperationContext<'a>>, at: Stamp) -> Option<OperationContext<'a>> {
        let multiplexed = self.world.connections.get(&cookie).is_some_and(|known| known.talk.is_multiplexed());
        op.filter(|during| !multiplexed || (during.op.header.tid == at.tid && during.op.header.nanos == at.nanos))
    }

    pub(super) fn take_exchange(&mut self, cookie: u64, exchange: u64) -> Option<Slot> {
        self.world.connections.get_mut(&cookie)?.take_unit(exchange)
    }
}
