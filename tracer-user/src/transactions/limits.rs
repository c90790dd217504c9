//! Bounds of the engine, how full it is, and what goes when bytes of heads pile up.

use super::engine::{Engine, Output};
use super::{join, lookups};
use crate::guard::fill::{Fill, MEMORY, scaled};
use crate::model::Nanos;
use crate::protocols::Said;

/// A reply that lasts longer than this is reported as it stands, nanoseconds.
const LONGEST_REPLY: Nanos = 600_000_000_000;

/// A connection on which nothing moved for this long keeps no more than it must, nanoseconds.
const RESTS_AFTER: Nanos = 2_000_000_000;

/// Bounds and times of the engine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a finished unit waits for later evidence, nanoseconds.
    pub grace: Nanos,
    /// How long a call of a thread without a request waits for who takes its result, after the last that was heard of
    /// it, nanoseconds.
    pub handover: Nanos,
    /// A connection without operations for this long is finished with and forgotten, nanoseconds.
    pub idle: Nanos,
    /// Most connections; beyond it the one that was idle longest of a few is forgotten.
    pub connections: usize,
    /// Most threads; what others do is charged to nobody.
    pub threads: usize,
    /// Most live units; beyond it the oldest is reported early.
    pub units: usize,
    /// Most processes whose service is known; beyond it all are asked for anew.
    pub processes: usize,
    /// Most bytes of heads put together and of replies put aside, of all connections; beyond it those that were idle
    /// longest lose theirs.
    pub head_bytes: usize,
    /// Most tasks of runtimes, and most stretches of their time: beyond the first all are forgotten, beyond the second the
    /// oldest.
    pub tasks: usize,
    /// Memory the bounds of what agents tell each other follow, bytes.
    pub relay_memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            grace: 50_000_000,
            handover: 1_000_000_000,
            idle: 300_000_000_000,
            connections: 131_072,
            threads: 65_536,
            units: 65_536,
            processes: 65_536,
            head_bytes: 64 << 20,
            tasks: 65_536,
            relay_memory: MEMORY,
        }
    }
}

impl Limits {
    /// Bounds for an agent that may take `memory` bytes.
    pub fn for_memory(memory: u64) -> Self {
        let Self { grace, handover, idle, connections, threads, units, processes, head_bytes, tasks, relay_memory: _ } =
            Self::default();
        let scaled = |most| scaled(most, memory);
        Self {
            grace,
            handover,
            idle,
            connections: scaled(connections),
            threads: scaled(threads),
            units: scaled(units),
            processes: scaled(processes),
            head_bytes: scaled(head_bytes),
            tasks: scaled(tasks),
            relay_memory: memory,
        }
    }
}

/// How full the engine is.
#[derive(Clone, Copy, Debug)]
pub struct EngineFills {
    /// Connections.
    pub connections: Fill,
    /// Connections that closed and are kept for a moment.
    pub closing: Fill,
    /// Threads.
    pub threads: Fill,
    /// Live units.
    pub units: Fill,
    /// Ends of requests that wait for their other end.
    pub joins: Fill,
    /// Processes whose service is known.
    pub processes: Fill,
    /// Bytes of heads and of replies put aside, as of the last tick.
    pub head_bytes: Fill,
    /// Tasks of runtimes.
    pub tasks: Fill,
    /// Callbacks of event loops whose async ids are remembered, as of the last tick.
    pub callbacks: Fill,
    /// Stretches of their time.
    pub intervals: Fill,
    /// Tasks that others wake.
    pub wakers: Fill,
    /// Requests, and what other agents said of some.
    pub relay_requests: Fill,
    /// Calls whose other end may tell of them.
    pub relay_calls: Fill,
    /// Lookups by UDP whose other end may be on another host.
    pub relay_lookups: Fill,
    /// Contexts in band that wait for their request.
    pub tags: Fill,
}

impl Engine {
    /// How full everything is. A new bound has no way around this: the pattern names all of them.
    pub fn fills(&self) -> EngineFills {
        let Limits {
            grace: _,
            handover: _,
            idle: _,
            connections,
            threads,
            units,
            processes,
            head_bytes,
            tasks,
            relay_memory: _,
        } = self.limits;
        let (named, intervals) = self.entities.len();
        let counters = &self.counters;
        let [relay_requests, relay_calls, relay_lookups] = self.relays.fills();
        EngineFills {
            connections: Fill::new(self.connections.len(), connections, counters.connections_evicted),
            closing: Fill::new(self.closing.len(), connections, counters.closing_early),
            threads: Fill::new(self.threads.len(), threads, counters.threads_refused),
            units: Fill::new(self.units.len(), units, counters.units_evicted),
            joins: Fill::new(
                self.joins.waiting() + self.lookups.waiting(),
                2 * (join::LIMIT + lookups::LIMIT),
                self.joins.refused + self.lookups.refused,
            ),
            processes: Fill::new(self.services.len(), processes, counters.processes_forgotten),
            head_bytes: Fill::new(self.head_bytes, head_bytes, counters.heads_given_up),
            tasks: Fill::new(named, tasks, self.entities.tasks_reached),
            callbacks: self.callbacks,
            intervals: Fill::new(intervals, tasks, self.entities.intervals_reached),
            wakers: Fill::new(self.wakers.tasks(), tasks, self.wakers.reached),
            relay_requests,
            relay_calls,
            relay_lookups,
            tags: self.tags.fill(),
        }
    }

    /// Lookups by UDP whose two ends were not joined because more than one call could be the one that was answered.
    pub fn lookups_unclear(&self) -> u64 {
        self.lookups.unclear + self.relays.asked.unclear + self.relays.lookups.unclear
    }

    /// Heads longer than this are not put together from pieces any more, bytes.
    pub fn set_head_limit(&mut self, bytes: usize) {
        self.settings.head_limit = bytes;
    }

    /// Reports replies that have lasted too long as they stand: what streams for hours shows before it ends.
    pub(super) fn report_long(&mut self, out: &mut Vec<Output>) {
        let now = self.now;
        let long = |since: Nanos| now.saturating_sub(since) > LONGEST_REPLY;
        let connections = self.connections.iter();
        let found = connections.filter(|(_, connection)| connection.talk.replying_since().is_some_and(long));
        let found: Vec<u64> = found.map(|(cookie, _)| *cookie).collect();
        for cookie in found {
            let mut said = std::mem::take(&mut self.said);
            if let Some(connection) = self.connections.get_mut(&cookie) {
                connection.talk.awake().report_so_far(now, &mut said);
            }
            for word in said.drain(..) {
                self.heard(cookie, word, None, out);
            }
            self.said = said;
        }
    }

    /// What connections keep that have nothing to do is made small.
    pub(super) fn let_rest(&mut self) {
        let now = self.now;
        for (_, connection) in self.connections.iter_mut() {
            if connection.talk.if_awake().is_some() && now.saturating_sub(connection.last) > RESTS_AFTER {
                connection.rest();
            }
        }
    }

    /// Gives up heads and replies that wait, of the connections that were idle longest, until what is left fits.
    pub(super) fn trim_heads(&mut self) {
        if self.head_bytes <= self.limits.head_bytes {
            return;
        }
        let mut holding: Vec<(Nanos, u64, usize)> = self
            .connections
            .iter()
            .map(|(cookie, connection)| (connection.last, *cookie, connection.talk.kept_bytes()))
            .filter(|(_, _, bytes)| *bytes > 0)
            .collect();
        holding.sort_unstable();
        for (_, cookie, bytes) in holding {
            if self.head_bytes <= self.limits.head_bytes {
                break;
            }
            let Some(connection) = self.connections.get_mut(&cookie) else { continue };
            connection.talk.awake().give_up_kept(&mut self.said);
            self.head_bytes -= bytes;
            self.counters.heads_given_up += 1;
            for word in self.said.drain(..) {
                if let Said::Lost { bytes, .. } = word {
                    self.counters.gap_bytes += bytes;
                }
            }
        }
    }
}
