//! Limits of the engine, its table use, and eviction of buffered heads.

use tracer_host::guard::tables::TableUse;
use tracer_model::Nanos;
use tracer_protocols::ExchangeEvent;

use crate::engine::Engine;
use crate::join;
use crate::limits::Limits;
use crate::output::Output;
use crate::strategies::lookups;

/// A reply that lasts longer than this is reported as it stands, nanoseconds.
const LONGEST_REPLY: Nanos = 600_000_000_000;
/// A connection idle for this long is compacted, nanoseconds.
const RESTS_AFTER: Nanos = 2_000_000_000;

/// Table use of the engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineTables {
    /// Connections.
    pub connections: TableUse,
    /// Closed connections in their linger time.
    pub closing: TableUse,
    /// Threads.
    pub threads: TableUse,
    /// Open spans.
    pub spans: TableUse,
    /// Unmatched ends of requests.
    pub joins: TableUse,
    /// Calls of declared functions that have not returned.
    pub declared_calls: TableUse,
    /// Processes with a known service.
    pub processes: TableUse,
    /// Buffered bytes of heads and replies, as of the last tick.
    pub head_bytes: TableUse,
    /// Tasks of runtimes.
    pub tasks: TableUse,
    /// Callbacks of event loops whose async ids are remembered, as of the last tick.
    pub callbacks: TableUse,
    /// Intervals of tasks.
    pub intervals: TableUse,
    /// Tasks whose wake-ups are followed.
    pub wakers: TableUse,
    /// Requests, and the contexts other agents sent for them.
    pub relay_requests: TableUse,
    /// Calls that wait for a summary of their other end.
    pub relay_calls: TableUse,
    /// In-band contexts that wait for their span.
    pub inband: TableUse,
    /// Trace ids of reported spans.
    pub reported_traces: TableUse,
    /// Processes that take jobs from queues.
    pub queue_workers: TableUse,
    /// Threads and tasks that take jobs.
    pub job_workers: TableUse,
    /// Elements of queues that wait to be taken.
    pub jobs_waiting: TableUse,
    /// Processes of which it is remembered whether their requests stay on the threads that read them.
    pub thread_affinity: TableUse,
    /// Forked processes that may work for a request.
    pub child_processes: TableUse,
    /// Tasks with an exception whose request is not known.
    pub task_exceptions: TableUse,
    /// CPU by process and class, of one second.
    pub process_costs: TableUse,
    /// Kinds of failed connects since they were last taken; reached: those without their port.
    pub failed_connects: TableUse,
}

impl Engine {
    /// Use of every table. The pattern lists every limit, so a new one cannot be forgotten here.
    pub fn table_use(&self) -> EngineTables {
        let Limits {
            grace: _,
            handover: _,
            idle: _,
            connections,
            threads,
            spans,
            processes,
            head_bytes,
            tasks,
            relay_memory: _,
        } = self.world.limits;
        let (named, intervals) = self.tasks.table.len();
        let counters = &self.world.counters;
        let [relay_requests, relay_calls] = self.relays.table_use();
        let [job_workers, jobs_waiting] = self.jobs.table_use(threads);
        EngineTables {
            connections: TableUse::new(self.world.connections.len(), connections, counters.connections_evicted),
            closing: TableUse::new(self.closing.len(), connections, counters.closing_early),
            declared_calls: self.declared.table_use(),
            threads: TableUse::new(self.world.threads.len(), threads, counters.threads_refused),
            spans: TableUse::new(self.world.spans.len(), spans, counters.spans_evicted),
            joins: TableUse::new(
                self.joins.waiting() + self.lookups.waiting(),
                2 * (join::LIMIT + lookups::LIMIT),
                self.joins.refused + self.lookups.refused,
            ),
            processes: TableUse::new(self.world.processes.services.len(), processes, counters.processes_forgotten),
            head_bytes: TableUse::new(self.head_bytes, head_bytes, counters.heads_given_up),
            tasks: TableUse::new(named, tasks, self.tasks.table.tasks_reached),
            callbacks: self.loops.callbacks,
            intervals: TableUse::new(intervals, tasks, self.tasks.table.intervals_reached),
            wakers: TableUse::new(self.tasks.wakers.tasks(), tasks, self.tasks.wakers.reached),
            relay_requests,
            relay_calls,
            inband: self.inband.table_use(),
            reported_traces: self.reported.table_use(),
            task_exceptions: self.task_exceptions.table_use(),
            queue_workers: self.world.processes.queue_workers.table_use(processes),
            job_workers,
            jobs_waiting,
            thread_affinity: self.world.processes.affinity.table_use(processes),
            child_processes: self.child_processes.table_use(processes),
            process_costs: self.charges.processes.table_use(),
            failed_connects: self.network.table_use(),
        }
    }

    /// Heads longer than this are no longer reassembled, bytes.
    pub fn set_head_limit(&mut self, bytes: usize) {
        self.world.settings.head_limit = bytes;
    }

    /// Reports replies that have lasted too long as they stand: a stream of hours shows up before it ends.
    pub(super) fn report_long(&mut self, out: &mut Vec<Output>) {
        let now = self.world.now;
        let long = |since: Nanos| now.saturating_sub(since) > LONGEST_REPLY;
        let connections = self.world.connections.iter();
        let found = connections.filter(|(_, connection)| connection.talk.replying_since().is_some_and(long));
        let found: Vec<u64> = found.map(|(cookie, _)| *cookie).collect();
        for cookie in found {
            let mut events = std::mem::take(&mut self.events);
            if let Some(connection) = self.world.connections.get_mut(&cookie) {
                connection.talk.awake().report_so_far(now, &mut events);
            }
            for word in events.drain(..) {
                self.on_exchange_event(cookie, word, None, out);
            }
            self.events = events;
        }
    }

    /// Compacts idle connections.
    pub(super) fn let_rest(&mut self) {
        let now = self.world.now;
        for (_, connection) in self.world.connections.iter_mut() {
            if connection.talk.if_awake().is_some() && now.saturating_sub(connection.last) > RESTS_AFTER {
                connection.rest();
            }
        }
    }

    /// Drops buffered heads and replies of the connections idle longest until the rest fits the limit.
    pub(super) fn trim_heads(&mut self) {
        if self.head_bytes <= self.world.limits.head_bytes {
            return;
        }
        let mut holding: Vec<(Nanos, u64, usize)> = self
            .world
            .connections
            .iter()
            .map(|(cookie, connection)| (connection.last, *cookie, connection.talk.kept_bytes()))
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        holding.sort_unstable();
        for (_, cookie, bytes) in holding {
            if self.head_bytes <= self.world.limits.head_bytes {
                break;
            }
            let Some(connection) = self.world.connections.get_mut(&cookie) else { continue };
            connection.talk.awake().give_up_kept(&mut self.events);
            self.head_bytes -= bytes;
            self.world.counters.heads_given_up += 1;
            for word in self.events.drain(..) {
                if let ExchangeEvent::Lost { bytes, .. } = word {
                    self.world.counters.gap_bytes += bytes;
                }
            }
        }
    }
}
