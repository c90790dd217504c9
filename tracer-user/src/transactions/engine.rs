//! The engine: records in, units of work out. Charging is in `charge.rs`, reporting in `report.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_common::event::{
    Books, KIN_TURNED, KIN_WOKE, OP_DATAGRAM, OP_EOF, OP_TX, OP_UNSEEN, OPEN_MIDSTREAM, Op, Open, ROLE_ACTIVE,
    ROLE_PASSIVE, ROLE_UNKNOWN, State, TICK_DEAD, Tick,
};
use tracer_common::policy::{Ask, VERDICT_IGNORE, VERDICT_NONE, VERDICT_TRACE, VERDICT_TURNS};

use super::begin::{Begun, During};
use super::connection::Connection;
use super::entities::Entities;
use super::join::Joins;
use super::knots::Knots;
pub use super::limits::Limits;
use super::live::{Live, Slab, Slot};
use super::lookups::Lookups;
use super::loops::Meetings;
use super::losses::Losses;
use super::near::Near;
use super::pools::Pools;
use super::relayed::Relays;
use super::tags::Tags;
use super::thread::{Entity, Group, Target, Thread};
use super::wakers::Wakers;
use crate::decode::Record;
use crate::guard::fill::Fill;
use crate::model::{Cost, Direction, Linked, Nanos, Outcome, ServiceId, Side, StackSample, TraceId, UnitId};
use crate::protocols::{Chunk, Closed, Said, Settings, Stamp, Totals, Verdict};

/// How long a connection that closed is kept: a reset can overtake the record of the operation it interrupts, on
/// loopback even that of the operation that provoked it. Nanoseconds.
pub(super) const LINGER: Nanos = 20_000_000;

/// What the engine could not do, by reason; counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes a parser needed and did not get.
    pub gap_bytes: u64,
    /// Replies whose request was not seen.
    pub unpaired: u64,
    /// Connections forgotten because there were too many.
    pub connections_evicted: u64,
    /// Threads not followed because there were too many.
    pub threads_refused: u64,
    /// Units reported early because there were too many.
    pub units_evicted: u64,
    /// Times the services of all processes were forgotten because there were too many.
    pub processes_forgotten: u64,
    /// Operations of threads of which others before were lost: their requests are not sure to be their only ones.
    pub threads_doubted: u64,
    /// Samples dropped because too many waited for an owner.
    pub samples_dropped: u64,
    /// Samples of a stretch too long ago to know its owner.
    pub samples_late: u64,
    /// Closed connections forgotten before their time because too many had closed.
    pub closing_early: u64,
    /// Connections whose unfinished heads were given up because all of them together were too long.
    pub heads_given_up: u64,
    /// Requests that could not be named: what names them was sent before tracing began, or in bytes that were lost.
    pub unnamed: u64,
    /// Requests given up because too many were open on one connection.
    pub streams_given_up: u64,
    /// Calls of threads without a request that are nobody's because too many waited for who would wait for them.
    pub errands_given_up: u64,
    /// Prepared statements not remembered because a connection had too many: what runs them is unnamed.
    pub statements_refused: u64,
    /// Messages that were moved by many and not looked into for links: compressed, or not captured.
    pub messages_unread: u64,
    /// Links not kept because a unit had too many.
    pub links_dropped: u64,
}

/// What comes out.
#[derive(Debug)]
pub enum Output {
    /// A request began; `Engine::classify` wants its class.
    Begun(Slot),
    /// A unit is finished; it is out of the engine.
    Finished(Box<Live>, Verdicts),
    /// A stack and its owner.
    Sample(StackSample),
    /// The transaction of a call to another host is known; [`Engine::context`] says it.
    Settled(Slot),
    /// A request from another host is over; [`Engine::answer`] gives it.
    Answered(Slot),
    /// A reported request has a parent on another host.
    Late {
        /// The request.
        unit: UnitId,
        /// Its transaction as reported.
        was: TraceId,
        /// Its parent.
        parent: UnitId,
        /// Its transaction.
        trace: TraceId,
    },
}

/// What is decided when a unit is reported.
#[derive(Clone, Copy, Debug)]
pub struct Verdicts {
    /// Its transaction.
    pub trace: TraceId,
    /// Its parent.
    pub parent: Option<UnitId>,
    /// How sure.
    pub grade: crate::model::Grade,
    /// Why.
    pub evidence: &'static str,
}

/// The correlation core.
#[derive(Debug)]
pub struct Engine {
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) seed: u64,
    pub(super) connections: Near<u64, Box<Connection>>,
    pub(super) threads: Near<u32, Thread>,
    pub(super) services: FxHashMap<u32, ServiceId>,
    pub(super) units: Slab,
    pub(super) joins: Joins,
    pub(super) lookups: Lookups,
    pub(super) losses: Losses,
    pub(super) relays: Relays,
    pub(super) tags: Tags,
    /// What callbacks of event loops tie together, and what was seen of their processes' requests.
    pub(super) knots: Knots,
    pub(super) meetings: FxHashMap<u32, Meetings>,
    /// Callbacks of loops that are remembered.
    pub(super) callbacks: Fill,
    /// Units waiting to be reported, by the time they may be.
    pub(super) waiting: VecDeque<(Nanos, Slot)>,
    /// Those that were put off.
    pub(super) deferred: VecDeque<(Nanos, Slot)>,
    /// CPU and waiting charged to classes and to services' overhead since last taken.
    pub(super) class_costs: Vec<Cost>,
    pub(super) overhead: Vec<Cost>,
    pub(super) asks: Vec<(u64, Ask)>,
    /// The connections that were idle longest when there were too many, the oldest last, and when they were used last.
    pub(super) idlest: Vec<(Nanos, u64)>,
    /// Connections that are closed, by the time they are forgotten; at most one entry for each.
    pub(super) closing: VecDeque<(Nanos, State)>,
    /// Threads that ended, by the time they are forgotten; with when they ended.
    pub(super) graves: VecDeque<(Nanos, u32, Nanos)>,
    /// Bytes of heads and replies that wait, as of the last tick.
    pub(super) head_bytes: usize,
    pub(super) said: Vec<Said>,
    /// Processes that have read a request, and when the first: entry ports. Others begin what they ask for.
    pub(super) serving: FxHashMap<u32, Nanos>,
    /// There were too many of them: any process may be one.
    pub(super) serving_all: bool,
    /// Those that were not told of yet.
    pub(super) served: Vec<u32>,
    /// Processes whose callbacks need not be one request's, as far as their facts say.
    pub(super) loops: FxHashSet<u32>,
    /// Tasks of runtimes.
    pub(super) entities: Entities,
    /// Who does what for whom among tasks, where that is asked for.
    pub(super) wakers: Wakers,
    /// Processes whose threads make calls while they hold no request, and what their jobs are like.
    pub(super) pools: FxHashMap<u32, Pools>,
    /// Those of them that were not asked for yet.
    pub(super) wanted: Vec<u32>,
    pub(super) empty: Arc<str>,
    /// Time of the newest record.
    pub now: Nanos,
    /// What could not be done.
    pub counters: Counters,
    /// Bytes left a socket by a way no attached hook shows; whoever acts on it clears it.
    pub unseen: bool,
}

impl Engine {
    /// An engine without memory.
    pub fn new(settings: Settings, limits: Limits, seed: u64) -> Self {
        let relays = Relays::new(limits.relay_memory);
        let tags = Tags::new(limits.relay_memory);
        let entities = Entities::within(limits.tasks);
        let wakers = Wakers::within(limits.tasks);
        Self {
            settings,
            limits,
            seed,
            connections: Near::default(),
            threads: Near::default(),
            services: FxHashMap::default(),
            units: Slab::default(),
            joins: Joins::default(),
            lookups: Lookups::default(),
            losses: Losses::default(),
            relays,
            tags,
            knots: Knots::default(),
            meetings: FxHashMap::default(),
            callbacks: Fill::default(),
            waiting: VecDeque::new(),
            deferred: VecDeque::new(),
            class_costs: Vec::new(),
            overhead: Vec::new(),
            asks: Vec::new(),
            idlest: Vec::new(),
            closing: VecDeque::new(),
            head_bytes: 0,
            said: Vec::new(),
            graves: VecDeque::new(),
            serving: FxHashMap::default(),
            serving_all: false,
            served: Vec::new(),
            loops: FxHashSet::default(),
            entities,
            wakers,
            pools: FxHashMap::default(),
            wanted: Vec::new(),
            empty: Arc::from(""),
            now: 0,
            counters: Counters::default(),
            unseen: false,
        }
    }

    /// The process belongs to this service.
    pub fn process(&mut self, tgid: u32, service: ServiceId) {
        if self.services.len() >= self.limits.processes && !self.services.contains_key(&tgid) {
            // Ends that were not seen leave processes behind; those that live are introduced by their next record.
            self.counters.processes_forgotten += 1;
            self.services.clear();
        }
        self.services.insert(tgid, service);
    }

    /// Whether the service of the process is known.
    pub fn knows(&self, tgid: u32) -> bool {
        self.services.contains_key(&tgid)
    }

    /// The service of a process, where that is known.
    pub fn service_of(&self, tgid: u32) -> Option<ServiceId> {
        self.services.get(&tgid).copied()
    }

    /// The process is gone.
    pub fn forget_process(&mut self, tgid: u32) {
        self.services.remove(&tgid);
        self.serving.remove(&tgid);
        self.pools.remove(&tgid);
        self.loops.remove(&tgid);
        self.entities.forget(tgid);
        self.wakers.forget(tgid);
        self.meetings.remove(&tgid);
    }

    /// Service of a process; the first one there is for a process never introduced.
    pub(super) fn service(&self, tgid: u32) -> ServiceId {
        self.services.get(&tgid).copied().unwrap_or(ServiceId(0))
    }

    /// The live unit in `slot`.
    pub fn unit(&self, slot: Slot) -> Option<&Live> {
        self.units.get(slot)
    }

    /// Threads (thread, process) that reported nothing since `before`, and every process as (process, process): those
    /// whose end may have been lost on its way.
    pub fn silent(&self, before: Nanos) -> Vec<(u32, u32)> {
        let silent = self.threads.iter().filter(|(_, thread)| thread.charged_at.max(thread.last_op) < before);
        let threads = silent.map(|(tid, thread)| (*tid, thread.tgid));
        threads.chain(self.services.keys().map(|tgid| (*tgid, *tgid))).collect()
    }

    /// Books up to which a thread was charged, and when it was last heard of; `None` when it is not followed, or another
    /// one has its id.
    pub fn followed(&self, tid: u32, tgid: u32) -> Option<(Books, Nanos)> {
        let thread = self.threads.get(&tid).filter(|thread| thread.tgid == tgid)?;
        Some((thread.books, thread.charged_at.max(thread.last_op)))
    }

    /// Entries of the queues: connections that closed, units that wait for their report.
    pub fn queued(&self) -> usize {
        self.closing.len() + self.graves.len() + self.waiting.len() + self.deferred.len()
    }

    /// Processes whose wake-ups between threads are wanted, since last taken.
    pub fn take_wanted(&mut self) -> std::vec::Drain<'_, u32> {
        self.wanted.drain(..)
    }

    /// Wishes for the kernel since last taken.
    pub fn take_asks(&mut self) -> std::vec::Drain<'_, (u64, Ask)> {
        self.asks.drain(..)
    }

    /// Takes one record, in the order of the ring.
    pub fn record(&mut self, record: &Record<'_>, out: &mut Vec<Output>) {
        self.bury(self.now, out);
        match record {
            Record::Op { op, head, tail, pieces } => self.op(op, (head, tail, pieces), out),
            Record::Open(open) => self.open(open, out),
            Record::State(state) => self.state(state, out),
            Record::Tick(tick) => self.ticked(tick, out),
            Record::Sample { sample, user, kernel } => self.sample(sample, user, kernel, out),
            Record::Wake(wake) => self.woken(wake, out),
            Record::Kin(kin) if kin.relation == KIN_TURNED => self.turned(kin),
            Record::Kin(kin) if kin.relation == KIN_WOKE => self.woken_task(kin),
            Record::Kin(kin) => self.kin(kin),
            Record::Tag(tag) => self.tag(tag),
            Record::Fork(_) | Record::Exec(_) => {}
        }
    }

    fn open(&mut self, open: &Open, out: &mut Vec<Output>) {
        self.now = self.now.max(open.header.nanos);
        if open.header.flags & OPEN_MIDSTREAM != 0 {
            // The kernel forgot what it knew of the socket: its stream begins anew, and so do we.
            self.end_units(open.cookie, open.header.nanos);
        }
        let timed = self.is_timed(open);
        self.connection(open.cookie, out).opened(open, timed);
    }

    /// The connection, made when it is not known.
    pub(super) fn connection(&mut self, cookie: u64, out: &mut Vec<Output>) -> &mut Connection {
        self.make_room_for(cookie, out);
        self.connections.or_insert_with(cookie, || Connection::unknown(false))
    }

    pub(super) fn thread(&mut self, tid: u32, tgid: u32, nanos: Nanos) -> Option<&mut Thread> {
        if !self.threads.contains_key(&tid) && self.threads.len() >= self.limits.threads {
            self.counters.threads_refused += 1;
            return None;
        }
        let thread = self.threads.or_insert_with(tid, || Thread::new(tgid));
        if thread.tgid != tgid || (thread.died != 0 && nanos > thread.died) {
            // The id was given to another thread.
            *thread = Thread::new(tgid);
        }
        Some(thread)
    }

    fn op(&mut self, op: &Op, carried: (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
        // The books stood still then: what the thread used since its last record is charged with this one.
        let books = self.threads.get(&op.header.tid).map_or(op.books, |thread| thread.books);
        if let Some(sent) = op.sent_before(books) {
            self.moved(&sent, (&[], &[], &[]), out);
        }
        self.follow(&op.header, op.nth);
        self.overtaken(op);
        self.note_task(op);
        self.moved(op, carried, out);
    }

    /// Bytes were sent or received.
    fn moved(&mut self, op: &Op, (head, tail, pieces): (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
        let header = &op.header;
        self.now = self.now.max(header.nanos);
        self.unseen |= header.flags & OP_UNSEEN != 0;
        let dir = if header.flags & OP_TX != 0 { Direction::Tx } else { Direction::Rx };
        let at = Stamp { nanos: header.nanos, pid: header.tgid, tid: header.tid, reads: op.books.reads };
        let mut said = std::mem::take(&mut self.said);
        self.make_room_for(op.cookie, out);
        let connection = self.connections.or_insert_with(op.cookie, || Connection::unknown(true));
        connection.announced = false;
        connection.last = connection.last.max(header.nanos);
        connection.tgid = header.tgid;
        // A request read after the record of its connection's end is not seen as one: its thread may hold it all the same.
        let unread = connection.shut && dir == Direction::Rx && connection.side() != Some(Side::Client);
        if op.seq != 0 {
            connection.set_base(dir, op.seq.wrapping_sub(op.pos as u32));
        }
        let touched = if header.flags & OP_EOF != 0 {
            // What was received before it may not have been reported, because nobody asked.
            let totals = Totals { rx: op.pos, tx: 0, last_rx: op.arrived, last_tx: 0 };
            connection.talk.awake().closed(Closed::Remote, at, Some(totals), &self.settings, &mut said);
            None
        } else {
            let chunk =
                Chunk { dir, pos: op.pos, len: u64::from(op.bytes), head, tail, pieces, at, arrived: op.arrived };
            let datagram = header.flags & OP_DATAGRAM != 0;
            connection.talk.awake().moved(datagram, &chunk, &self.settings, &mut said).exchange
        };
        if unread && let Some(doubted) = self.threads.get_mut(&header.tid).map(Thread::lose) {
            self.doubt(header.tid, doubted);
        }
        let cookie = op.cookie;
        // An exchange that ends with this operation is looked up before, one that begins with it after.
        let before = if header.flags & OP_EOF != 0 {
            // What was read last ends here, and what follows is its consequence.
            self.connections.get(&cookie).and_then(|connection| connection.newest())
        } else {
            self.unit_of(cookie, touched)
        };
        if dir == Direction::Rx && header.flags & OP_EOF == 0 {
            self.reads_for(header, before);
        }
        self.looped(op, dir);
        let together = if dir == Direction::Tx { self.together(cookie) } else { Vec::new() };
        let thread = self.threads.get(&header.tid);
        let group = thread.and_then(|thread| thread.group.current(&op.books));
        let holder = thread.and_then(Thread::holder);
        let own = if dir == Direction::Tx { self.callback(op, group) } else { None };
        let during = During { op, group, holder, own };
        let spoken = self.spoken_of(op, &said);
        let batch = if together.is_empty() { self.batch(cookie, &said) } else { Vec::new() };
        let behind = if header.flags & OP_EOF != 0 { self.behind(cookie, before) } else { None };
        for word in said.drain(..) {
            self.heard(cookie, word, Some(during), out);
        }
        self.said = said;
        if let Some(behind) = behind {
            // No hook tells that a UNIX socket was closed, but its other end has read that nothing more comes, and when the
            // last byte was read before that; the server's own sends may not have been reported, because nobody asked.
            let totals = Totals { tx: op.pos, last_tx: op.arrived, ..Totals::default() };
            self.close(behind, Closed::Local, header.nanos, Some(totals), out);
        }
        self.turn_begins(cookie, during);
        let unit = before.or_else(|| self.unit_of(cookie, touched)).or_else(|| self.over_at_once(cookie, touched));
        let unit = unit.or(together.first().copied());
        let had = together.first().and_then(|slot| self.units.get(*slot)).map(|live| live.cost);
        self.charge_op(op, dir, unit, out);
        if dir == Direction::Rx {
            self.received(op, spoken);
        }
        self.spread(&together, had);
        self.share(&batch);
        self.wish(cookie);
    }

    fn unit_of(&self, cookie: u64, exchange: Option<u64>) -> Option<Slot> {
        self.connections.get(&cookie)?.unit(exchange?)
    }

    /// A message that nothing answers, which began and ended with one operation.
    fn over_at_once(&self, cookie: u64, exchange: Option<u64>) -> Option<Slot> {
        let newest = self.connections.get(&cookie)?.newest()?;
        let live = self.units.get(newest)?;
        let is_it = live.multiplexed && live.cookie == cookie && Some(live.exchange) == exchange;
        is_it.then_some(newest)
    }

    /// Tells the kernel what is wanted of the connection when that changed.
    fn wish(&mut self, cookie: u64) {
        let Some(connection) = self.connections.get_mut(&cookie) else { return };
        let want = connection.talk.awake().want();
        let verdict = match want.verdict {
            Verdict::Unknown => VERDICT_NONE,
            Verdict::Trace => VERDICT_TRACE,
            Verdict::Turns => VERDICT_TURNS,
            Verdict::Ignore => VERDICT_IGNORE,
        };
        let heads = (want.head_rx, want.head_tx);
        let ((rx, tx), (head_rx, head_tx, before)) = (connection.skips(), connection.asked);
        // Of a connection that is used again it is worth a word that it needs no more than others do.
        let settled = verdict == VERDICT_TRACE && before == VERDICT_NONE && connection.talk.awake().is_used_again();
        let changed = settled
            || (matches!(verdict, VERDICT_IGNORE | VERDICT_TURNS) && before != verdict)
            || want.rx_skip > rx
            || want.tx_skip > tx
            || (heads != (head_rx, head_tx) && heads != (0, 0));
        if changed {
            connection.asked = (heads.0, heads.1, verdict);
            connection.set_skips((want.rx_skip, want.tx_skip));
            let ask = Ask {
                rx_skip: want.rx_skip,
                tx_skip: want.tx_skip,
                head_rx: heads.0,
                head_tx: heads.1,
                verdict,
                role: match connection.talk.side() {
                    Some(Side::Client) => ROLE_ACTIVE,
                    Some(Side::Server) => ROLE_PASSIVE,
                    None => ROLE_UNKNOWN,
                },
                frames: want.frames.into(),
                reserved: 0,
            };
            self.asks.push((cookie, ask));
        }
    }

    /// The request an entity stands for.
    pub(super) fn request_of(&self, entity: Entity) -> Option<Slot> {
        match entity {
            Entity::Request(slot) => Some(slot),
            Entity::Call(slot) => self.units.get(slot).and_then(|live| live.cause.candidate),
        }
    }

    /// What a connection's bytes said, with the operation that said it and the state of its thread before it.
    pub(super) fn heard(&mut self, cookie: u64, word: Said, op: Option<During<'_>>, out: &mut Vec<Output>) {
        match word {
            Said::Begun { exchange, request, first, arrived, head_at, pos, side, protocol } => {
                let op = self.own(cookie, op, head_at);
                let begun = Begun { exchange, request, first, arrived, head_at, pos, side, protocol };
                self.begun(cookie, begun, op, out);
            }
            Said::RequestDone { .. } => {}
            Said::Linked { exchange, linked } => self.linked(cookie, exchange, linked),
            Said::Judged { exchange, status, failure } => {
                let slot = self.connections.get(&cookie).and_then(|connection| connection.unit(exchange));
                if let Some(live) = slot.and_then(|slot| self.units.get_mut(slot)) {
                    live.status = Some(status);
                    live.failure = failure;
                }
            }
            Said::Replied { exchange, status, failure, first, sure } => {
                let op = self.own(cookie, op, first);
                // What may be another request's answer is no evidence.
                self.replied(cookie, exchange, (status, failure), first, op.filter(|_| sure));
            }
            Said::Done { exchange, outcome, at, request_bytes, reply_bytes, reply_body_bytes } => {
                let Some(slot) = self.take_exchange(cookie, exchange) else { return };
                if let Some(live) = self.units.get_mut(slot) {
                    live.request_bytes = request_bytes;
                    live.reply_bytes = reply_bytes;
                    live.reply_body_bytes = reply_body_bytes;
                }
                self.ended(slot, outcome, at.nanos);
            }
            Said::Datagram { exchange, question, dir, at, sure } => {
                self.looked_up(cookie, (exchange, question), (dir, at, sure), op, out);
            }
            Said::Unpaired { .. } => {
                self.counters.unpaired += 1;
                self.unpaired_answer(cookie);
            }
            Said::Lost { bytes, .. } => self.counters.gap_bytes += bytes,
            Said::Unnamed => self.counters.unnamed += 1,
            Said::Forgotten { names } => self.counters.statements_refused += names,
            Said::Crowded => self.counters.streams_given_up += 1,
        }
    }

    /// What a unit's request or reply brings carries links; a unit of messages has them in one of the two.
    fn linked(&mut self, cookie: u64, exchange: u64, linked: Box<Linked>) {
        self.counters.messages_unread += u64::from(linked.unread);
        self.counters.links_dropped += u64::from(linked.dropped);
        let slot = self.connections.get(&cookie).and_then(|connection| connection.unit(exchange));
        if let Some(live) = slot.and_then(|slot| self.units.get_mut(slot)) {
            live.linked = Some(linked);
        }
    }

    /// The operation, unless what it said is of another one, that was kept until this one came.
    fn own<'a>(&self, cookie: u64, op: Option<During<'a>>, at: Stamp) -> Option<During<'a>> {
        let multiplexed = self.connections.get(&cookie).is_some_and(|known| known.talk.is_multiplexed());
        op.filter(|during| !multiplexed || (during.op.header.tid == at.tid && during.op.header.nanos == at.nanos))
    }

    pub(super) fn take_exchange(&mut self, cookie: u64, exchange: u64) -> Option<Slot> {
        self.connections.get_mut(&cookie)?.take_unit(exchange)
    }

    /// A unit is over; it waits for its report.
    pub(super) fn ended(&mut self, slot: Slot, outcome: Outcome, nanos: Nanos) {
        let Some(live) = self.units.get_mut(slot) else { return };
        live.end = nanos.max(live.start);
        live.outcome = Some(outcome);
        if let Some(tie) = live.tie {
            self.knots.over(tie.knot);
        }
        let (tid, start, end, side) = (live.tid, live.start, live.end, live.side);
        let parent = live.cause.candidate;
        let turns = std::mem::take(&mut live.turns);
        match side {
            Side::Server => {
                self.turns_of(slot, &turns);
                self.answer_later(slot);
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.over(slot, matches!(outcome, Outcome::Complete | Outcome::Upgraded));
                }
            }
            Side::Client => {
                if let Some(parent) = parent.and_then(|parent| self.units.get_mut(parent)) {
                    // More calls than this count as one long one at worst.
                    if parent.calls.len() < 1024 {
                        parent.calls.push((start, end));
                    }
                }
            }
        }
        self.waiting.push_back((self.now + self.limits.grace, slot));
    }

    /// A thread reported its books.
    fn ticked(&mut self, tick: &Tick, out: &mut Vec<Output>) {
        self.now = self.now.max(tick.header.nanos);
        let dead = tick.header.flags & TICK_DEAD != 0;
        self.charge_tick(tick, dead, out);
        let (tid, died) = (tick.header.tid, tick.header.nanos.max(1));
        if dead {
            self.decide(tid);
        }
        if dead
            && let Some(thread) = self.threads.get_mut(&tid)
            && thread.died == 0
        {
            // A record of it may have been overtaken, and must not bring it back to life.
            thread.died = died;
            self.graves.push_back((self.now + LINGER, tid, died));
        }
    }
}

impl Target {
    /// `slot`'s unit as it is now.
    pub(super) fn of(units: &Slab, slot: Slot) -> Self {
        units.get(slot).map_or(Self::Nobody, |live| Self::Unit { slot, class: live.class, service: live.service })
    }
}

/// Starts the group of a read.
pub(super) fn read_group(op: &Op, side: Option<Side>, unit: Option<Slot>) -> Group {
    let entity = unit.map(|slot| if side == Some(Side::Client) { Entity::Call(slot) } else { Entity::Request(slot) });
    Group::begin(entity, &op.books)
}
