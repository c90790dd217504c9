//! The engine: records in, units of work out. Charging is in `charge.rs`, reporting in `report.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tracer_common::event::{OP_EOF, OP_TX, Op, Open, STATE_OWN, State, TICK_DEAD, Tick, tcp_state};
use tracer_common::policy::{Ask, VERDICT_IGNORE, VERDICT_NONE, VERDICT_TRACE};

use super::connection::Connection;
use super::ids;
use super::join::{Joins, Key};
use super::live::{Cause, Live, Slab, Slot, Vote};
use super::thread::{Entity, Group, Target, Thread};
use crate::decode::Record;
use crate::model::{Cost, Direction, Nanos, Outcome, ServiceId, Side, StackSample, TraceId};
use crate::protocols::{Chunk, Closed, Request, Said, Settings, Stamp, Verdict};

/// Bounds and times of the engine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a finished unit waits for later evidence, nanoseconds.
    pub grace: Nanos,
    /// A connection without operations for this long is finished with and forgotten, nanoseconds.
    pub idle: Nanos,
    /// Most connections.
    pub connections: usize,
    /// Most threads.
    pub threads: usize,
    /// Most live units.
    pub units: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { grace: 50_000_000, idle: 300_000_000_000, connections: 131_072, threads: 65_536, units: 131_072 }
    }
}

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
    /// Samples dropped because too many waited for an owner.
    pub samples_dropped: u64,
    /// Samples of a stretch too long ago to know its owner.
    pub samples_late: u64,
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
}

/// What is decided when a unit is reported.
#[derive(Clone, Copy, Debug)]
pub struct Verdicts {
    /// Its transaction.
    pub trace: TraceId,
    /// Its parent.
    pub parent: Option<crate::model::UnitId>,
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
    pub(super) connections: FxHashMap<u64, Connection>,
    pub(super) threads: FxHashMap<u32, Thread>,
    pub(super) services: FxHashMap<u32, ServiceId>,
    pub(super) units: Slab,
    pub(super) joins: Joins,
    /// Units waiting to be reported, by the time they may be.
    pub(super) waiting: VecDeque<(Nanos, Slot)>,
    /// Those that were put off.
    pub(super) deferred: VecDeque<(Nanos, Slot)>,
    /// CPU and waiting charged to classes and to services' overhead since last taken.
    pub(super) class_costs: Vec<Cost>,
    pub(super) overhead: Vec<Cost>,
    pub(super) asks: Vec<(u64, Ask)>,
    said: Vec<Said>,
    /// Processes that have read a request: entry ports. Others begin what they ask for.
    serving: FxHashSet<u32>,
    empty: Arc<str>,
    /// Time of the newest record.
    pub now: Nanos,
    /// What could not be done.
    pub counters: Counters,
}

impl Engine {
    /// An engine without memory.
    pub fn new(settings: Settings, limits: Limits, seed: u64) -> Self {
        Self {
            settings,
            limits,
            seed,
            connections: FxHashMap::default(),
            threads: FxHashMap::default(),
            services: FxHashMap::default(),
            units: Slab::default(),
            joins: Joins::default(),
            waiting: VecDeque::new(),
            deferred: VecDeque::new(),
            class_costs: Vec::new(),
            overhead: Vec::new(),
            asks: Vec::new(),
            said: Vec::new(),
            serving: FxHashSet::default(),
            empty: Arc::from(""),
            now: 0,
            counters: Counters::default(),
        }
    }

    /// The process belongs to this service.
    pub fn process(&mut self, tgid: u32, service: ServiceId) {
        self.services.insert(tgid, service);
    }

    /// Whether the service of the process is known.
    pub fn knows(&self, tgid: u32) -> bool {
        self.services.contains_key(&tgid)
    }

    /// The process is gone.
    pub fn forget_process(&mut self, tgid: u32) {
        self.services.remove(&tgid);
        self.serving.remove(&tgid);
    }

    /// Service of a process; the first one there is for a process never introduced.
    pub(super) fn service(&self, tgid: u32) -> ServiceId {
        self.services.get(&tgid).copied().unwrap_or(ServiceId(0))
    }

    /// The live unit in `slot`.
    pub fn unit(&self, slot: Slot) -> Option<&Live> {
        self.units.get(slot)
    }

    /// Live units, connections and threads: fill levels.
    pub fn levels(&self) -> (usize, usize, usize) {
        (self.units.len(), self.connections.len(), self.threads.len())
    }

    /// Wishes for the kernel since last taken.
    pub fn take_asks(&mut self) -> std::vec::Drain<'_, (u64, Ask)> {
        self.asks.drain(..)
    }

    /// Takes one record, in the order of the ring.
    pub fn record(&mut self, record: &Record<'_>, out: &mut Vec<Output>) {
        match record {
            Record::Op { op, head, tail } => self.op(op, head, tail, out),
            Record::Open(open) => self.open(open),
            Record::State(state) => self.state(state),
            Record::Tick(tick) => self.ticked(tick, out),
            Record::Sample { sample, user, kernel } => self.sample(sample, user, kernel, out),
            Record::Fork(_) | Record::Exec(_) => {}
        }
    }

    fn open(&mut self, open: &Open) {
        self.now = self.now.max(open.header.nanos);
        self.make_room();
        let empty = Arc::clone(&self.empty);
        let connection = self.connections.entry(open.cookie).or_insert_with(|| Connection::unknown(false, &empty));
        connection.opened(open, &empty);
    }

    /// Forgets a connection when there are too many: the one that was idle longest of a few looked at.
    fn make_room(&mut self) {
        if self.connections.len() < self.limits.connections {
            return;
        }
        let oldest = self.connections.iter().take(64).min_by_key(|(_, connection)| connection.last);
        if let Some(cookie) = oldest.map(|(cookie, _)| *cookie) {
            self.counters.connections_evicted += 1;
            self.close(cookie, Closed::Both, self.now, None);
            self.drop_connection(cookie);
        }
    }

    fn drop_connection(&mut self, cookie: u64) {
        self.connections.remove(&cookie);
    }

    pub(super) fn thread(&mut self, tid: u32, tgid: u32) -> Option<&mut Thread> {
        if !self.threads.contains_key(&tid) && self.threads.len() >= self.limits.threads {
            self.counters.threads_refused += 1;
            return None;
        }
        let thread = self.threads.entry(tid).or_insert_with(|| Thread::new(tgid));
        if thread.tgid != tgid {
            // The id was given to another thread.
            *thread = Thread::new(tgid);
        }
        Some(thread)
    }

    fn op(&mut self, op: &Op, head: &[u8], tail: &[u8], out: &mut Vec<Output>) {
        let header = &op.header;
        self.now = self.now.max(header.nanos);
        let dir = if header.flags & OP_TX != 0 { Direction::Tx } else { Direction::Rx };
        let at = Stamp { nanos: header.nanos, pid: header.tgid, tid: header.tid };
        let empty = Arc::clone(&self.empty);
        let mut said = std::mem::take(&mut self.said);
        let connection = self.connections.entry(op.cookie).or_insert_with(|| Connection::unknown(true, &empty));
        connection.last = header.nanos;
        connection.tgid = header.tgid;
        if op.seq != 0 {
            let base = Some(op.seq.wrapping_sub(op.pos as u32));
            match dir {
                Direction::Rx => connection.base.0 = base,
                Direction::Tx => connection.base.1 = base,
            }
        }
        let touched = if header.flags & OP_EOF != 0 {
            connection.conversation.closed(Closed::Remote, at, None, &mut said);
            None
        } else {
            let chunk = Chunk { dir, pos: op.pos, len: u64::from(op.bytes), head, tail, at, arrived: op.arrived };
            connection.conversation.bytes(&chunk, &self.settings, &mut said).exchange
        };
        let cookie = op.cookie;
        let group_before = self
            .threads
            .get(&header.tid)
            .map_or((None, None), |thread| (thread.group.current(&op.books), thread.holder()));
        // An exchange that ends with this operation is looked up before, one that begins with it after.
        let before = if header.flags & OP_EOF != 0 {
            // What was read last ends here, and what follows is its consequence.
            self.connections.get(&cookie).and_then(|connection| connection.newest)
        } else {
            self.unit_of(cookie, touched)
        };
        for word in said.drain(..) {
            self.heard(cookie, word, Some((op, group_before)), out);
        }
        self.said = said;
        let unit = before.or_else(|| self.unit_of(cookie, touched));
        self.charge_op(op, dir, unit, out);
        self.wish(cookie);
    }

    fn unit_of(&self, cookie: u64, exchange: Option<u64>) -> Option<Slot> {
        self.connections.get(&cookie)?.unit(exchange?)
    }

    /// Tells the kernel what is wanted of the connection when that changed.
    fn wish(&mut self, cookie: u64) {
        let Some(connection) = self.connections.get_mut(&cookie) else { return };
        let want = connection.conversation.want();
        let verdict = match want.verdict {
            Verdict::Unknown => VERDICT_NONE,
            Verdict::Trace => VERDICT_TRACE,
            Verdict::Ignore => VERDICT_IGNORE,
        };
        let heads = (want.head_rx, want.head_tx);
        let wish = (want.rx_skip, want.tx_skip, heads.0, heads.1, verdict);
        let (rx, tx, head_rx, head_tx, before) = connection.asked;
        let changed = (verdict == VERDICT_IGNORE && before != VERDICT_IGNORE)
            || want.rx_skip > rx
            || want.tx_skip > tx
            || (heads != (head_rx, head_tx) && heads != (0, 0));
        if changed {
            connection.asked = wish;
            let ask = Ask {
                rx_skip: want.rx_skip,
                tx_skip: want.tx_skip,
                head_rx: heads.0,
                head_tx: heads.1,
                verdict,
                reserved: [0; 3],
            };
            self.asks.push((cookie, ask));
        }
    }

    fn state(&mut self, state: &State) {
        self.now = self.now.max(state.header.nanos);
        match state.new {
            tcp_state::SYN_SENT => {
                if state.header.flags & STATE_OWN == 0 {
                    return;
                }
                let opener = self.threads.get(&state.header.tid).and_then(|thread| {
                    thread.holder().map(|slot| (slot, true)).or_else(|| {
                        let entity = thread.group.current(&state.books)?;
                        self.request_of(entity).map(|slot| (slot, false))
                    })
                });
                self.make_room();
                let empty = Arc::clone(&self.empty);
                let connection =
                    self.connections.entry(state.cookie).or_insert_with(|| Connection::unknown(false, &empty));
                connection.opener = opener;
                connection.tgid = state.header.tgid;
                connection.last = state.header.nanos;
            }
            tcp_state::FIN_WAIT1 | tcp_state::LAST_ACK => {
                self.close(state.cookie, Closed::Local, state.header.nanos, Some(state));
            }
            tcp_state::CLOSE => {
                self.close(state.cookie, Closed::Both, state.header.nanos, Some(state));
                self.drop_connection(state.cookie);
            }
            _ => {}
        }
    }

    /// The request an entity stands for.
    fn request_of(&self, entity: Entity) -> Option<Slot> {
        match entity {
            Entity::Request(slot) => Some(slot),
            Entity::Call(slot) => self.units.get(slot).and_then(|live| live.cause.candidate),
        }
    }

    /// The connection ended, one way or both.
    pub(super) fn close(&mut self, cookie: u64, how: Closed, nanos: Nanos, state: Option<&State>) {
        let mut said = std::mem::take(&mut self.said);
        let Some(connection) = self.connections.get_mut(&cookie) else {
            self.said = said;
            return;
        };
        let at = Stamp { nanos, pid: connection.tgid, tid: 0 };
        let totals = state.map(|state| crate::protocols::Totals {
            rx: state.rx,
            tx: state.tx,
            last_rx: state.last_rx,
            last_tx: state.last_tx,
        });
        connection.conversation.closed(how, at, totals, &mut said);
        let mut out = Vec::new();
        for word in said.drain(..) {
            self.heard(cookie, word, None, &mut out);
        }
        self.said = said;
    }

    /// What a connection's bytes said, with the operation that said it and the state of its thread before it.
    fn heard(
        &mut self,
        cookie: u64,
        word: Said,
        op: Option<(&Op, (Option<Entity>, Option<Slot>))>,
        out: &mut Vec<Output>,
    ) {
        match word {
            Said::Begun { exchange, request, first, arrived, head_at, pos, side } => {
                let begun = Begun { exchange, request, first, arrived, head_at, pos, side };
                self.begun(cookie, begun, op, out);
            }
            Said::RequestDone { .. } => {}
            Said::Replied { exchange, status, first } => self.replied(cookie, exchange, status, first, op),
            Said::Done { exchange, outcome, at, request_bytes, reply_bytes, reply_body_bytes } => {
                let Some(slot) = self.take_exchange(cookie, exchange) else { return };
                if let Some(live) = self.units.get_mut(slot) {
                    live.request_bytes = request_bytes;
                    live.reply_bytes = reply_bytes;
                    live.reply_body_bytes = reply_body_bytes;
                }
                self.ended(slot, outcome, at.nanos);
            }
            Said::Unpaired { .. } => self.counters.unpaired += 1,
            Said::Lost { bytes, .. } => self.counters.gap_bytes += bytes,
        }
    }

    fn take_exchange(&mut self, cookie: u64, exchange: u64) -> Option<Slot> {
        let connection = self.connections.get_mut(&cookie)?;
        let index = connection.units.iter().position(|(number, _)| *number == exchange)?;
        connection.units.remove(index).map(|(_, slot)| slot)
    }

    fn begun(
        &mut self,
        cookie: u64,
        begun: Begun,
        op: Option<(&Op, (Option<Entity>, Option<Slot>))>,
        out: &mut Vec<Output>,
    ) {
        if self.units.len() >= self.limits.units {
            self.evict_unit(out);
        }
        let Begun { exchange, request, first, arrived, head_at, pos, side } = begun;
        let service = self.service(head_at.pid);
        let Some(connection) = self.connections.get_mut(&cookie) else { return };
        let (trace, remote_parent) = match request.traceparent {
            Some(context) if side == Side::Server => (TraceId(context.trace_id), Some(context.parent_id)),
            _ => (ids::trace(self.seed, cookie, exchange), None),
        };
        let mut live = Live {
            id: ids::unit(self.seed, cookie, exchange, side),
            trace,
            remote_parent: remote_parent.map(crate::model::UnitId),
            caller: None,
            callee: None,
            side,
            protocol: connection.conversation.protocol().unwrap_or("unknown"),
            service,
            class: None,
            request,
            cookie,
            exchange,
            pid: head_at.pid,
            tid: head_at.tid,
            local_port: connection.local_port,
            peer: Arc::clone(&connection.peer),
            peer_port: connection.peer_port,
            arrived,
            start: first.nanos,
            first_reply: 0,
            end: 0,
            request_bytes: 0,
            reply_bytes: 0,
            reply_body_bytes: 0,
            status: None,
            outcome: None,
            cost: Cost::default(),
            posted: Cost::default(),
            samples: Vec::new(),
            calls: Vec::new(),
            cause: Cause { candidate: None, alone: false, vote: Vote::None, evidence: "no request held", kept: None },
            alone: true,
            deferred: 0,
        };
        let first_use = !std::mem::replace(&mut connection.used, true);
        let opener = connection.opener.filter(|_| first_use);
        let key = match connection.unix {
            Some((own, peer)) if side == Side::Client => Some(Key::Unix(own, peer, pos)),
            Some((own, peer)) => Some(Key::Unix(peer, own, pos)),
            None => {
                let dir = if side == Side::Client { Direction::Tx } else { Direction::Rx };
                // The accepting end is the server's, except for protocols that call back, of which there are none.
                let accepting = if side == Side::Client { connection.isn.1 } else { connection.isn.0 };
                connection.seq(dir, pos).map(|seq| Key::Tcp(seq, accepting))
            }
        };
        if side == Side::Client {
            live.cause = self.cause(opener, op);
        }
        let slot = self.units.insert(live);
        if let Some(connection) = self.connections.get_mut(&cookie) {
            connection.units.push_back((exchange, slot));
            connection.newest = Some(slot);
        }
        match side {
            Side::Server => {
                self.holds(slot, cookie, head_at.tid, head_at.pid);
                if let Some(call) = key.and_then(|key| self.joins.request(key, slot)) {
                    self.link(call, slot);
                }
            }
            Side::Client => {
                if let Some(request) = key.and_then(|key| self.joins.call(key, slot)) {
                    self.link(slot, request);
                }
            }
        }
        out.push(Output::Begun(slot));
    }

    /// The two ends of a request on this host.
    fn link(&mut self, call: Slot, request: Slot) {
        let Some(caller) = self.units.get_mut(call) else { return };
        caller.callee = Some(request);
        let id = caller.id;
        if let Some(live) = self.units.get_mut(request) {
            live.caller = Some((call, id));
        }
    }

    /// The thread read a request: it holds it; if it holds another connection's unanswered, it runs several at once.
    fn holds(&mut self, slot: Slot, cookie: u64, tid: u32, tgid: u32) {
        self.serving.insert(tgid);
        let units = &self.units;
        let Some(thread) = self.threads.get(&tid) else {
            if let Some(thread) = self.thread(tid, tgid) {
                thread.open.push(slot);
            }
            return;
        };
        let several = thread.open.iter().any(|other| units.get(*other).is_some_and(|live| live.cookie != cookie));
        let held: SmallVec<[Slot; 8]> =
            if several && !thread.multiplexer { thread.open.iter().copied().collect() } else { SmallVec::new() };
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if several {
            thread.multiplexer = true;
        }
        let multiplexer = thread.multiplexer;
        // A multiplexer's list is only for the test; it need not grow without bound.
        if thread.open.len() < 4096 {
            thread.open.push(slot);
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

    /// Who caused a call that is being sent.
    fn cause(&self, opener: Option<(Slot, bool)>, op: Option<(&Op, (Option<Entity>, Option<Slot>))>) -> Cause {
        let none = |evidence| Cause { candidate: None, alone: false, vote: Vote::None, evidence, kept: None };
        if let Some((op, _)) = op
            && !self.serving.contains(&op.header.tgid)
        {
            return Cause { alone: true, ..none("its process serves no requests: the transaction begins here") };
        }
        let Some((op, (group, holder))) = op else { return none("no operation") };
        let multiplexer = self.threads.get(&op.header.tid).is_some_and(|thread| thread.multiplexer);
        let (candidate, alone, evidence) = if let Some(slot) = holder {
            (Some(slot), true, "same thread, one request at a time")
        } else if let Some((slot, alone)) = opener {
            (Some(slot), alone && !multiplexer, "connection opened in its group")
        } else if multiplexer {
            match group.and_then(|entity| self.request_of(entity)) {
                Some(slot) => (Some(slot), false, "sent in its group"),
                None => return none("several requests on one thread, no read before the call"),
            }
        } else {
            return none("no request held");
        };
        let kept =
            candidate.and_then(|slot| self.units.get(slot)).map(|live| (live.id, live.trace, live.service, live.class));
        if kept.is_none() {
            return none("the request was over");
        }
        Cause { candidate, alone, vote: Vote::None, evidence, kept }
    }

    /// The first byte of a final reply moved.
    fn replied(
        &mut self,
        cookie: u64,
        exchange: u64,
        status: u16,
        first: Stamp,
        op: Option<(&Op, (Option<Entity>, Option<Slot>))>,
    ) {
        let Some(slot) = self.connections.get(&cookie).and_then(|connection| connection.unit(exchange)) else { return };
        let Some(live) = self.units.get_mut(slot) else { return };
        live.first_reply = first.nanos;
        live.status = Some(status);
        if live.side == Side::Client {
            return;
        }
        // The group that reads a call's reply writes the answer: evidence from the other side of the call.
        if let Some((_, (Some(Entity::Call(call)), _))) = op
            && let Some(call) = self.units.get_mut(call)
            && !call.cause.alone
        {
            call.cause.vote = match call.cause.vote {
                Vote::None => Vote::For(slot),
                Vote::For(other) if other == slot => Vote::For(slot),
                Vote::For(_) | Vote::Split => Vote::Split,
            };
        }
    }

    /// A unit is over; it waits for its report.
    pub(super) fn ended(&mut self, slot: Slot, outcome: Outcome, nanos: Nanos) {
        let Some(live) = self.units.get_mut(slot) else { return };
        live.end = nanos.max(live.start);
        live.outcome = Some(outcome);
        let (tid, start, end, side) = (live.tid, live.start, live.end, live.side);
        let parent = live.cause.candidate;
        match side {
            Side::Server => {
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.open.retain(|other| *other != slot);
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
        if dead {
            self.threads.remove(&tick.header.tid);
        }
    }

    /// About once a second, and at the end with `finish`: finishes what cannot end otherwise, forgets what is old.
    pub fn expire(&mut self, finish: bool, out: &mut Vec<Output>) {
        let now = self.now;
        let idle = if finish { 0 } else { self.limits.idle };
        let old: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| finish || now.saturating_sub(connection.last) > idle)
            .map(|(cookie, _)| *cookie)
            .collect();
        for cookie in old {
            let mut said = std::mem::take(&mut self.said);
            if let Some(connection) = self.connections.get_mut(&cookie) {
                connection.conversation.expire(now, idle, &mut said);
            }
            for word in said.drain(..) {
                self.heard(cookie, word, None, out);
            }
            self.said = said;
            let left: Vec<Slot> = self
                .connections
                .get(&cookie)
                .map(|c| c.units.iter().map(|(_, slot)| *slot).collect())
                .unwrap_or_default();
            for slot in left {
                self.ended(slot, Outcome::Unfinished, now);
            }
            self.drop_connection(cookie);
        }
        let units = &self.units;
        self.joins.sweep(|slot| units.get(slot).is_some());
        self.report(if finish { Nanos::MAX } else { now }, out);
    }

    fn evict_unit(&mut self, out: &mut Vec<Output>) {
        self.counters.units_evicted += 1;
        if let Some((_, slot)) = self.waiting.pop_front() {
            self.give_out(slot, out);
            return;
        }
        let oldest = self.units.slots().next();
        if let Some(slot) = oldest {
            if let Some(live) = self.units.get_mut(slot) {
                live.end = self.now;
                live.outcome = Some(Outcome::Unfinished);
                let (cookie, exchange) = (live.cookie, live.exchange);
                self.take_exchange(cookie, exchange);
            }
            self.give_out(slot, out);
        }
    }
}

/// A request's beginning, as the conversation said it.
struct Begun {
    exchange: u64,
    request: Box<Request>,
    first: Stamp,
    arrived: Nanos,
    head_at: Stamp,
    pos: u64,
    side: Side,
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
