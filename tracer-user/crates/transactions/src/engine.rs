//! The engine: records in, spans out. Charging is in `charge.rs`, reporting in `report.rs`.

mod begin;
mod capture_policy;
mod charge;
mod closing;
mod counted;
mod declared;
mod exceptions;
pub mod held;
pub mod jobs;
pub mod limits;
mod log_lines;
pub mod losses;
mod operation;
mod plaintext;
mod process_ends;
mod process_notices;
mod propagation;
mod readouts;
pub mod relayed;
mod report;
pub mod roots;
mod round_trips;
pub mod running;
mod settlement;
pub mod trace_ids;
mod upkeep;
mod verdicts;

use std::collections::VecDeque;

use tracer_common::event::{Fork, OPEN_MIDSTREAM, Open, State, TASK_EDGE_TURNED, TASK_EDGE_WOKE, WAKE_TASK, Wake};
use tracer_common::policy::CapturePolicy;

use super::charges::Charges;
use super::connection::Connection;
use super::encryption::Encryption;
use super::failed_connects::FailedConnects;
use super::jobs::Jobs;
use super::join::Joins;
pub use super::limits::Limits;
use tracer_model::Nanos;
use tracer_model::decode::Record;
use tracer_protocols::{ExchangeEvent, Settings};
use tracer_runtimes::exceptions::ThrowingRuntime;

use super::open_span::OpenSpan;
use super::output::Output;
use super::relayed::Relays;
use super::report_queue::ReportQueue;
use super::request_prefixes::RequestPrefixes;
use super::slot::Slot;
use super::strategies::child_processes::ChildProcesses;
use super::strategies::declared::DeclaredCalls;
use super::strategies::event_loop::EventLoops;
use super::strategies::forwarding::Forwarding;
use super::strategies::inband_context::InbandContexts;
use super::strategies::lookups::Lookups;
use super::strategies::tasks::Tasks;
use super::strategies::thread_pool::ThreadPools;
use super::strategies::{event_loop, thread_affinity};
use super::thrown::TaskExceptions;
use super::trace_ids::ReportedTraces;
use super::world::World;

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
    /// Event loops whose callbacks are told apart.
    pub(super) loops: EventLoops,
    /// Requests that proxies forward.
    pub(super) forwarding: Forwarding,
    /// Ended spans, until they are reported.
    pub(super) queue: ReportQueue,
    /// What was charged and not taken yet.
    pub(super) charges: Charges,
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
    pub(super) tasks: Tasks,
    /// Pools of threads.
    pub(super) thread_pools: ThreadPools,
    /// Forked processes that may work for a request.
    pub(super) child_processes: ChildProcesses,
    /// Jobs that they work on, and those that wait.
    pub(super) jobs: Jobs,
    /// Processes that use TLS.
    pub(super) encryption: Encryption,
    /// Connections that were not made.
    pub(super) network: FailedConnects,
    /// How requests begin that the kernel side can count itself.
    pub(super) prefixes: RequestPrefixes,
    /// Exceptions of tasks whose request is not known yet.
    pub(super) task_exceptions: TaskExceptions,
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
        let tasks = Tasks::within(limits.tasks);
        Self {
            world: World::new(settings, limits, seed),
            joins: Joins::default(),
            lookups: Lookups::default(),
            relays,
            inband,
            declared: DeclaredCalls::default(),
            reported,
            loops: EventLoops::default(),
            forwarding: Forwarding::default(),
            queue: ReportQueue::default(),
            charges: Charges::default(),
            policies: Vec::new(),
            idlest: Vec::new(),
            closing: VecDeque::new(),
            head_bytes: 0,
            events: Vec::new(),
            exited_threads: VecDeque::new(),
            tasks,
            thread_pools: ThreadPools::default(),
            child_processes: ChildProcesses::default(),
            jobs,
            encryption: Encryption::default(),
            network: FailedConnects::default(),
            prefixes: RequestPrefixes::default(),
            task_exceptions: TaskExceptions::default(),
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

    /// The open span in `slot`.
    pub fn span(&self, slot: Slot) -> Option<&OpenSpan> {
        self.world.spans.get(slot)
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
                self.declared.sampled(sample, (user, kernel, interpreted));
                self.sample(sample, (user, kernel, interpreted), out);
            }
            Record::OffCpu { wait, user, interpreted } => self.off_cpu(wait, user, interpreted, out),
            Record::WaitEnd { end, user, interpreted } => self.wait_end(end, user, interpreted),
            // The pipeline passes them to the profiles and the store, and asks whose log lines are.
            Record::CallStack { .. } | Record::NoteworthyExchange(_) | Record::LogWrite { .. } => {}
            Record::CountedExchanges(counted) => self.counted(counted, out),
            Record::Wake(wake) => self.woken(wake, out),
            Record::TaskEdge(task_edge) if task_edge.relation == TASK_EDGE_TURNED => {
                event_loop::turned(&mut self.world, task_edge);
            }
            Record::TaskEdge(task_edge) if task_edge.relation == TASK_EDGE_WOKE => {
                self.tasks.woken(&mut self.world, task_edge);
            }
            Record::TaskEdge(task_edge) => self.tasks.task_edge(&mut self.world, task_edge),
            Record::InbandContext(inband) => self.inband.received(&mut self.world, inband),
            // The pipeline passes them on with their types.
            Record::DeclaredCall { call, .. } if ThrowingRuntime::of(call.declared).is_some() => {}
            Record::DeclaredCall { call, values } => {
                self.declared.called(&mut self.world, call, values.as_ref(), out);
            }
            Record::Fork(fork) => self.forked(fork),
            Record::ProcessEnd(ended) => self.process_ended(ended, out),
            Record::Exec(exec) => self.child_processes.executed(&mut self.world, exec),
        }
    }

    /// A thread woke another.
    fn woken(&mut self, wake: &Wake, out: &mut Vec<Output>) {
        self.world.advance(wake.header.nanos);
        if wake.header.flags & WAKE_TASK != 0 {
            self.tasks.closure_ended(&mut self.world, wake);
            if let Some(owner) = self.tasks.worked_for(&mut self.world, wake) {
                self.charge_wake(wake, owner, out);
            }
            return;
        }
        self.follow(&wake.header, wake.nth);
        if let Some(owner) = self.thread_pools.woken(&mut self.world, wake) {
            self.charge_wake(wake, owner, out);
        }
    }

    /// A process was forked.
    fn forked(&mut self, fork: &Fork) {
        let Fork { header, child_tgid, .. } = fork;
        let by_thread = self.child_processes.forked(&mut self.world, &mut self.tasks.table, fork);
        if by_thread && thread_affinity::forked(&mut self.world, header.tid, header.tgid) {
            self.child_processes.others_are_open(*child_tgid);
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
}
