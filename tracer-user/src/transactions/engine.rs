//! The engine: records in, spans out. Charging is in `charge.rs`, reporting in `report.rs`.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};
use tracer_common::event::{
    OP_DATAGRAM, OP_EOF, OP_TX, OP_UNSEEN, OPEN_MIDSTREAM, Op, Open, State, TASK_EDGE_TURNED, TASK_EDGE_WOKE,
    THREAD_STATS_DEAD, ThreadCounters, ThreadStats,
};
use tracer_common::policy::CapturePolicy;

use super::begin::{Begun, During};
use super::callback_groups::CallbackGroups;
use super::child_processes::ChildProcesses;
use super::connection::Connection;
use super::counters::Counters;
use super::declared::DeclaredCalls;
use super::event_loop::Meetings;
use super::forwarding::Forwarding;
use super::inband_context::InbandContexts;
use super::jobs::Jobs;
use super::join::Joins;
pub use super::limits::Limits;
use super::lookups::Lookups;
use super::open_span::{CallTime, OpenSpan, Slot};
use super::output::Output;
use super::pools::Pools;
use super::process_costs::ProcessCosts;
use super::queue_workers::QueueWorkers;
use super::relayed::Relays;
use super::task_table::TaskTable;
use super::thread::Thread;
use super::thread_affinity::ThreadAffinity;
use super::trace_ids::ReportedTraces;
use super::wakers::Wakers;
use super::world::World;
use crate::decode::Record;
use crate::guard::tables::TableUse;
use crate::model::{Cost, Direction, FailedConnect, Nanos, Outcome, ServiceId, Side};
use crate::protocols::{Chunk, Closed, ExchangeEvent, Settings, Stamp, Totals};

/// How long a closed connection is kept, nanoseconds: a reset can overtake the record of the operation it interrupts;
/// on loopback even that of the operation that provoked it.
pub(super) const LINGER: Nanos = 20_000_000;

/// The correlation core.
#[derive(Debug)]
pub struct Engine {
    /// What all strategies share.
    pub(super) world: World,
    pub(super) joins: Joins,
    pub(super) lookups: Lookups,
    pub(super) relays: Relays,
    pub(super) inband: InbandContexts,
    /// Open calls of declared functions.
    pub(super) declared: DeclaredCalls,
    pub(super) reported: ReportedTraces,
    /// Spans tied by event-loop callbacks, and how often requests of a process met in one callback.
    pub(super) callback_groups: CallbackGroups,
    pub(super) meetings: FxHashMap<u32, Meetings>,
    /// Requests that proxies forward.
    pub(super) forwarding: Forwarding,
    /// Table use of remembered event-loop callbacks.
    pub(super) callbacks: TableUse,
    /// Ended spans in their grace time, by due time.
    pub(super) waiting: VecDeque<(Nanos, Slot)>,
    /// Of the spans whose turn it was: requests to report after their calls.
    pub(super) followers: VecDeque<Slot>,
    /// Spans whose report was deferred, by due time.
    pub(super) deferred: VecDeque<(Nanos, Slot)>,
    /// CPU and waiting charged to classes and to services' overhead since last taken.
    pub(super) class_costs: Vec<Cost>,
    pub(super) overhead: Vec<Cost>,
    /// The same CPU by process.
    pub(super) process_costs: ProcessCosts,
    pub(super) policies: Vec<(u64, CapturePolicy)>,
    /// Eviction candidates: the connections idle longest when last searched, the oldest last, each with its last use.
    pub(super) idlest: Vec<(Nanos, u64)>,
    /// Closed connections by the time they are forgotten; at most one entry per connection.
    pub(super) closing: VecDeque<(Nanos, State)>,
    /// Exited threads by the time they are forgotten, with their exit time.
    pub(super) exited_threads: VecDeque<(Nanos, u32, Nanos)>,
    /// Buffered bytes of heads and replies, as of the last tick.
    pub(super) head_bytes: usize,
    pub(super) events: Vec<ExchangeEvent>,
    /// Tasks of runtimes.
    pub(super) task_table: TaskTable,
    /// Wake-ups between tasks, in processes where they are traced.
    pub(super) wakers: Wakers,
    /// Statistics of the jobs of processes whose threads make calls while they hold no request.
    pub(super) pools: FxHashMap<u32, Pools>,
    /// Forked processes that may work for a request.
    pub(super) child_processes: ChildProcesses,
    /// Processes that take jobs from queues.
    pub(super) queue_workers: QueueWorkers,
    /// Jobs that they work on, and those that wait.
    pub(super) jobs: Jobs,
    /// Whether requests stay on the threads that read them, by process.
    pub(super) affinity: ThreadAffinity,
    /// Processes not yet returned by [`Engine::take_wanted`].
    pub(super) wanted: Vec<u32>,
    /// When each process that encrypts was last handed out, and those not yet returned by [`Engine::take_encrypted`].
    pub(super) encrypting: FxHashMap<u32, Nanos>,
    pub(super) encrypted: Vec<u32>,
    /// Certificates that handshakes showed since they were last taken ([`Engine::take_certificates`]).
    pub(super) certificates: BTreeMap<Box<str>, i64>,
    /// Connects that failed since they were last taken ([`Engine::take_failed_connects`]).
    pub(super) failed_connects: BTreeMap<FailedConnect, u64>,
    /// Processes of which text was seen.
    pub(super) texting: FxHashSet<u32>,
}

impl Engine {
    /// What parsers keep of requests.
    pub fn settings(&self) -> &Settings {
        &self.world.settings
    }

    /// Parsers keep something else of requests from now on.
    pub fn set_settings(&mut self, settings: Settings) {
        self.world.settings = settings;
    }

    /// An empty engine.
    pub fn new(settings: Settings, limits: Limits, seed: u64) -> Self {
        let relays = Relays::new(limits.relay_memory);
        let inband = InbandContexts::new(limits.relay_memory);
        let reported = ReportedTraces::new(limits.relay_memory);
        let jobs = Jobs::new(limits.relay_memory);
        let task_table = TaskTable::within(limits.tasks);
        let wakers = Wakers::within(limits.tasks);
        Self {
            world: World::new(settings, limits, seed),
            joins: Joins::default(),
            lookups: Lookups::default(),
            relays,
            inband,
            declared: DeclaredCalls::default(),
            reported,
            callback_groups: CallbackGroups::default(),
            meetings: FxHashMap::default(),
            forwarding: Forwarding::default(),
            callbacks: TableUse::default(),
            waiting: VecDeque::new(),
            followers: VecDeque::new(),
            deferred: VecDeque::new(),
            class_costs: Vec::new(),
            overhead: Vec::new(),
            process_costs: ProcessCosts::default(),
            policies: Vec::new(),
            idlest: Vec::new(),
            closing: VecDeque::new(),
            head_bytes: 0,
            events: Vec::new(),
            exited_threads: VecDeque::new(),
            task_table,
            wakers,
            pools: FxHashMap::default(),
            child_processes: ChildProcesses::default(),
            queue_workers: QueueWorkers::default(),
            jobs,
            affinity: ThreadAffinity::default(),
            wanted: Vec::new(),
            encrypting: FxHashMap::default(),
            encrypted: Vec::new(),
            certificates: BTreeMap::new(),
            failed_connects: BTreeMap::new(),
            texting: FxHashSet::default(),
        }
    }

    /// Time of the newest record.
    pub fn now(&self) -> Nanos {
        self.world.now
    }

    /// It is `now`, if that is later than the newest record.
    pub fn advance(&mut self, now: Nanos) {
        self.world.advance(now);
    }

    /// Losses and limits.
    pub fn counters(&self) -> Counters {
        self.world.counters
    }

    /// Whether bytes left a socket since last asked by a path that no attached hook covers.
    pub fn take_unseen(&mut self) -> bool {
        std::mem::take(&mut self.world.unseen)
    }

    /// Sets the service of a process.
    pub fn process(&mut self, tgid: u32, service: ServiceId) {
        if self.world.processes.services.len() >= self.world.limits.processes && !self.world.processes.services.contains_key(&tgid) {
            // Unseen exits leave stale entries; running processes are introduced again by their next record.
            self.world.counters.processes_forgotten += 1;
            self.world.processes.services.clear();
        }
        self.world.processes.services.insert(tgid, service);
    }

    /// Whether the service of the process is known.
    pub fn knows(&self, tgid: u32) -> bool {
        self.world.processes.services.contains_key(&tgid)
    }

    /// The service of a process, if known.
    pub fn service_of(&self, tgid: u32) -> Option<ServiceId> {
        self.world.processes.services.get(&tgid).copied()
    }

    /// The process has exited.
    pub fn forget_process(&mut self, tgid: u32) {
        self.world.processes.forget(tgid);
        self.pools.remove(&tgid);
        self.queue_workers.forget(tgid);
        self.workers_ended(tgid);
        self.affinity.forget(tgid);
        self.encrypting.remove(&tgid);
        self.texting.remove(&tgid);
        self.task_table.forget(tgid);
        self.declared.forget(tgid);
        self.wakers.forget(tgid);
        self.meetings.remove(&tgid);
        self.forwarding.forget(tgid);
    }

    /// The open span in `slot`.
    pub fn span(&self, slot: Slot) -> Option<&OpenSpan> {
        self.world.spans.get(slot)
    }

    /// Threads (tid, tgid) silent since `before`, and every process as (tgid, tgid): their exit record may have been
    /// lost.
    pub fn silent(&self, before: Nanos) -> Vec<(u32, u32)> {
        let silent = self.world.threads.iter().filter(|(_, thread)| thread.charged_at.max(thread.last_op) < before);
        let threads = silent.map(|(tid, thread)| (*tid, thread.tgid));
        threads.chain(self.world.processes.services.keys().map(|tgid| (*tgid, *tgid))).collect()
    }

    /// The counters up to which a thread was charged, and the time of its last record; `None` if the thread is not
    /// tracked or its id was reused.
    pub fn followed(&self, tid: u32, tgid: u32) -> Option<(ThreadCounters, Nanos)> {
        let thread = self.world.threads.get(&tid).filter(|thread| thread.tgid == tgid)?;
        Some((thread.counters, thread.charged_at.max(thread.last_op)))
    }

    /// Number of queued entries: closed connections, exited threads, spans waiting for their report.
    pub fn queued(&self) -> usize {
        self.closing.len() + self.exited_threads.len() + self.waiting.len() + self.followers.len() + self.deferred.len()
    }

    /// Processes whose thread wake-ups should be traced, since last taken.
    pub fn take_wanted(&mut self) -> std::vec::Drain<'_, u32> {
        self.wanted.drain(..)
    }

    /// Capture policies for the kernel since last taken.
    pub fn take_policies(&mut self) -> std::vec::Drain<'_, (u64, CapturePolicy)> {
        self.policies.drain(..)
    }

    /// Records of sockets and threads up to `until` were all processed: samples of that time can be charged even if no
    /// operation follows them.
    pub fn catch_up(&mut self, until: Nanos) {
        self.world.caught_up = self.world.caught_up.max(until);
    }

    /// Processes one record, in ring order.
    pub fn record(&mut self, record: &Record<'_>, out: &mut Vec<Output>) {
        self.expire_closed(self.world.now, out);
        match record {
            Record::Op { op, head, tail, fragments } => self.op(op, (head, tail, fragments), out),
            Record::Text { op, head, tail, fragments } => self.text(op, (head, tail, fragments), out),
            Record::Open(open) => self.open(open, out),
            Record::State(state) => self.state(state, out),
            Record::ThreadStats(stats) => self.on_thread_stats(stats, out),
            Record::Sample { sample, user, kernel, interpreted } => {
                self.sampled_in_declared(sample, (user, kernel, interpreted));
                self.sample(sample, (user, kernel, interpreted), out);
            }
            Record::OffCpu { wait, user, interpreted } => self.off_cpu(wait, user, interpreted, out),
            Record::WaitEnd { end, user, interpreted } => self.wait_end(end, user, interpreted),
            Record::Wake(wake) => self.woken(wake, out),
            Record::TaskEdge(task_edge) if task_edge.relation == TASK_EDGE_TURNED => self.turned(task_edge),
            Record::TaskEdge(task_edge) if task_edge.relation == TASK_EDGE_WOKE => self.woken_task(task_edge),
            Record::TaskEdge(task_edge) => self.task_edge(task_edge),
            Record::InbandContext(inband) => self.inband(inband),
            Record::DeclaredCall { call, values } => self.declared_call(call, values.as_ref(), out),
            Record::Fork(fork) => self.forked(fork),
            Record::Exec(exec) => self.executed(exec),
        }
    }

    fn open(&mut self, open: &Open, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(open.header.nanos);
        if open.header.flags & OPEN_MIDSTREAM != 0 {
            // The kernel forgot the socket: its stream positions start over, and so does the engine.
            self.end_spans(open.cookie, open.header.nanos);
        }
        let timed = self.is_timed(open);
        self.connection(open.cookie, out).opened(open, timed);
    }

    /// The connection, created if unknown.
    pub(super) fn connection(&mut self, cookie: u64, out: &mut Vec<Output>) -> &mut Connection {
        self.make_room_for(cookie, out);
        self.world.connections.or_insert_with(cookie, || Connection::unknown(false))
    }

    fn op(&mut self, op: &Op, carried: (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
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
            self.note_task(op);
            self.note_moving(op);
            self.on_io(op, carried, out);
            self.watch_encrypted(op, carried.0);
        }
        if let Some(thread) = self.world.threads.get_mut(&op.header.tid) {
            thread.note_received(op);
        }
    }

    /// Bytes were sent or received.
    pub(super) fn on_io(&mut self, op: &Op, (head, tail, fragments): (&[u8], &[u8], &[u8]), out: &mut Vec<Output>) {
        let header = &op.header;
        self.world.now = self.world.now.max(header.nanos);
        self.world.caught_up = self.world.caught_up.max(header.nanos);
        self.world.unseen |= header.flags & OP_UNSEEN != 0;
        let dir = if header.flags & OP_TX != 0 { Direction::Tx } else { Direction::Rx };
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
        let shut = connection.shut && dir == Direction::Rx && header.flags & OP_EOF == 0;
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
        let touched = if header.flags & OP_EOF != 0 {
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
        let cookie = op.cookie;
        // Look up an exchange that this operation ends before, one that it begins after the parser's events.
        let before = if header.flags & OP_EOF != 0 {
            // End of stream: attribute it, and what follows, to the newest span.
            self.world.connections.get(&cookie).and_then(|connection| connection.newest())
        } else {
            self.unit_of(cookie, touched)
        };
        if dir == Direction::Rx && header.flags & OP_EOF == 0 {
            self.reads_for(header, before);
        }
        self.looped(op, dir);
        if header.flags & OP_EOF == 0 {
            self.reads_in_job(op, dir, last);
        }
        let together = if dir == Direction::Tx { self.together(cookie) } else { Vec::new() };
        let thread = self.world.threads.get(&header.tid);
        let group = thread.and_then(|thread| thread.group.current(&op.counters));
        let holder = thread.and_then(Thread::holder);
        let own = if dir == Direction::Tx { self.callback(op, group) } else { None };
        let after = self.still_after(op, dir, before, continues);
        let one_pending_read = self.one_pending_read(op, dir, before.is_some(), &events);
        let during = During { op, group, holder, own, after, one_pending_read };
        let spoken = self.spoken_of(op, &events);
        let batch = if together.is_empty() { self.batch(cookie, &events) } else { Vec::new() };
        let behind = if header.flags & OP_EOF != 0 { self.behind(cookie, before) } else { None };
        for word in events.drain(..) {
            self.on_exchange_event(cookie, word, Some(during), out);
        }
        self.events = events;
        if let Some(behind) = behind {
            // No hook reports the close of a UNIX socket, but the peer's end of stream shows it, along with when the
            // last byte before it was read. The policy may have suppressed the server's own sends.
            let totals = Totals { tx: op.pos, last_tx: op.arrived, ..Totals::default() };
            self.close(behind, Closed::Local, header.nanos, Some(totals), out);
        }
        if dir == Direction::Rx
            && let Some(connection) = self.world.connections.get_mut(&cookie)
        {
            connection.receives_on(op.path);
        }
        self.turn_begins(cookie, during);
        let span = before.or_else(|| self.unit_of(cookie, touched)).or_else(|| self.over_at_once(cookie, touched));
        let (job, ends_job) = self.jobs.take_touched();
        let span = job.or(span).or(together.first().copied());
        let had = together.first().and_then(|slot| self.world.spans.get(*slot)).map(|live| live.cost);
        // The request that this operation answered: its thread held it until now.
        let answered = ends_job || (dir == Direction::Tx && holder.is_some() && holder == before);
        self.charge_op(op, (dir, span), (after.is_some(), answered), out);
        if dir == Direction::Rx {
            self.received(op, spoken);
        }
        self.spread(&together, had);
        self.share(&batch);
        self.update_policy(cookie);
    }

    /// Handles one event of a connection's parser. `op`: the operation that produced it and the state of its thread
    /// before it.
    pub(super) fn on_exchange_event(
        &mut self,
        cookie: u64,
        word: ExchangeEvent,
        op: Option<During<'_>>,
        out: &mut Vec<Output>,
    ) {
        match word {
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
                self.looked_up(cookie, (exchange, question), (dir, at, sure), op);
            }
            ExchangeEvent::Unpaired { .. } => self.world.counters.unpaired += 1,
            ExchangeEvent::Lost { bytes, .. } => self.world.counters.gap_bytes += bytes,
            ExchangeEvent::Unnamed => self.world.counters.unnamed += 1,
            ExchangeEvent::Forgotten { names } => self.world.counters.statements_refused += names,
            ExchangeEvent::HeadsCut { heads } => self.world.counters.heads_cut += heads,
            ExchangeEvent::Crowded => self.world.counters.streams_given_up += 1,
            ExchangeEvent::Certificate { name, expires } => self.certified(name, expires),
        }
    }

    /// Drops `op` if the event stems from an earlier operation that the parser had buffered.
    fn own<'a>(&self, cookie: u64, op: Option<During<'a>>, at: Stamp) -> Option<During<'a>> {
        let multiplexed = self.world.connections.get(&cookie).is_some_and(|known| known.talk.is_multiplexed());
        op.filter(|during| !multiplexed || (during.op.header.tid == at.tid && during.op.header.nanos == at.nanos))
    }

    pub(super) fn take_exchange(&mut self, cookie: u64, exchange: u64) -> Option<Slot> {
        self.world.connections.get_mut(&cookie)?.take_unit(exchange)
    }

    /// A span has ended; it waits for its report.
    pub(super) fn ended(&mut self, slot: Slot, outcome: Outcome, nanos: Nanos) {
        let Some(live) = self.world.spans.get_mut(slot) else { return };
        live.end = nanos.max(live.start);
        live.outcome = Some(outcome);
        if let Some(group_membership) = live.group_membership {
            self.callback_groups.over(group_membership.callback_group);
        }
        let (tid, start, end, side) = (live.tid, live.start, live.end, live.side);
        let parent = live.cause.request().filter(|_| !live.withdrawn);
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
        self.waiting.push_back((self.world.now + self.world.limits.grace, slot));
    }

    /// A thread reported its counters.
    fn on_thread_stats(&mut self, stats: &ThreadStats, out: &mut Vec<Output>) {
        self.world.now = self.world.now.max(stats.header.nanos);
        self.world.caught_up = self.world.caught_up.max(stats.header.nanos);
        let dead = stats.header.flags & THREAD_STATS_DEAD != 0;
        self.charge_thread_stats(stats, dead, out);
        let (tid, died) = (stats.header.tid, stats.header.nanos.max(1));
        if dead {
            self.decide(tid);
            self.declared.forget_thread(stats.header.tgid, tid);
            self.worker_ended(tid, died);
            self.process_ended(stats);
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
}
