//! Periodic work, about once a second: ends spans that cannot end otherwise, evicts old entries, releases memory.

use tracer_host::guard::shrink::ShrinkExcess;
use tracer_model::{Nanos, Outcome};
use tracer_protocols::Closed;

use crate::engine::Engine;
use crate::output::Output;

/// How long a connection is kept of which only the opening was reported, nanoseconds: it may fail, be of an untraced
/// kind or never carry data, and its end is not reported then. A socket whose look-up was answered is kept as long: its
/// end is not reported either.
const ANNOUNCED: Nanos = 10_000_000_000;

impl Engine {
    /// Runs about once a second, and at the end with `finish`: ends spans that cannot end otherwise, evicts old
    /// entries.
    pub fn expire(&mut self, finish: bool, out: &mut Vec<Output>) {
        let now = self.world.now;
        self.world.finishing = finish;
        self.expire_closed(if finish { Nanos::MAX } else { now }, out);
        let idle = if finish { 0 } else { self.world.limits.idle };
        let mut head_bytes = 0;
        if finish {
            self.end_jobs();
        } else {
            self.expire_jobs();
            self.overdue(out);
        }
        let old: Vec<u64> = self
            .world
            .connections
            .iter()
            .inspect(|(_, connection)| head_bytes += connection.talk.kept_bytes())
            .filter(|(_, connection)| {
                let brief = connection.announced || connection.talk.is_spent();
                let longest = if brief { ANNOUNCED.min(idle) } else { idle };
                finish || now.saturating_sub(connection.last) > longest
            })
            .map(|(cookie, _)| *cookie)
            .collect();
        self.head_bytes = head_bytes;
        self.trim_heads();
        self.tasks.table.tick(now);
        self.tasks.wakers.tick(now);
        self.child_processes.tick(now);
        self.report_long(out);
        self.let_rest();
        self.loops.trim(&mut self.world);
        for cookie in old {
            let mut events = std::mem::take(&mut self.events);
            if let Some(connection) = self.world.connections.get_mut(&cookie) {
                connection.talk.awake().expire(now, idle, &mut events);
            }
            for word in events.drain(..) {
                self.on_exchange_event(cookie, word, None, out);
            }
            self.events = events;
            self.drop_connection(cookie, now);
        }
        let spans = &self.world.spans;
        self.joins.sweep(|slot| spans.get(slot).is_some());
        self.lookups.sweep(now);
        self.relay_expire();
        self.inband.sweep(&mut self.world);
        self.report(if finish { Nanos::MAX } else { now }, out);
        self.shrink_excess();
    }

    /// Evicts the connection idle longest if there is no room for a new one.
    pub(super) fn make_room_for(&mut self, cookie: u64, out: &mut Vec<Output>) {
        if self.world.connections.len() < self.world.limits.connections || self.world.connections.contains_key(&cookie)
        {
            return;
        }
        if let Some(cookie) = self.idlest() {
            self.world.counters.connections_evicted += 1;
            self.close(cookie, Closed::Both, self.world.now, None, out);
            self.drop_connection(cookie, self.world.now);
        }
    }

    /// The connection idle longest. Scans all connections once per sixteenth of them evicted: an ordered list would add
    /// a cost to every operation of every connection, even if there are never too many.
    fn idlest(&mut self) -> Option<u64> {
        loop {
            while let Some((last, cookie)) = self.idlest.pop() {
                if self.world.connections.get(&cookie).is_some_and(|connection| connection.last == last) {
                    return Some(cookie);
                }
            }
            let mut all: Vec<_> = self.world.connections.iter().map(|(cookie, known)| (known.last, *cookie)).collect();
            let few = all.len().div_ceil(16);
            if all.is_empty() {
                return None;
            }
            all.select_nth_unstable(few - 1);
            all.truncate(few);
            all.shrink_to_fit();
            all.sort_unstable_by(|one, other| other.cmp(one));
            self.idlest = all;
        }
    }

    /// Releases the memory of tables that are mostly empty.
    fn shrink_excess(&mut self) {
        self.world.connections.shrink_excess();
        self.world.threads.shrink_excess();
        self.world.spans.shrink();
        self.world.processes.services.shrink_excess();
        self.world.processes.serving.shrink_excess();
        self.thread_pools.shrink();
        self.forwarding.shrink();
        self.world.processes.affinity.shrink();
        self.jobs.shrink();
        self.loops.shrink();
        self.world.processes.served.shrink_excess();
        self.world.processes.interleaving.shrink_excess();
        self.joins.shrink_excess();
        self.queue.shrink();
        if self.world.connections.len() < self.world.limits.connections {
            self.idlest = Vec::new();
        }
        self.closing.shrink_excess();
        self.exited_threads.shrink_excess();
        self.policies.shrink_excess();
        self.events.shrink_excess();
    }

    /// Ends requests that are open too long on multiplexed connections in use.
    fn overdue(&mut self, out: &mut Vec<Output>) {
        let (now, idle) = (self.world.now, self.world.limits.idle);
        let mut events = std::mem::take(&mut self.events);
        let mut words = Vec::new();
        let settings = &self.world.settings;
        for (cookie, connection) in self.world.connections.iter_mut() {
            let Some(conversation) = connection.talk.if_awake().filter(|known| known.is_multiplexed()) else {
                continue;
            };
            conversation.overdue(now, idle, settings, &mut events);
            words.extend(events.drain(..).map(|word| (*cookie, word)));
        }
        self.events = events;
        for (cookie, word) in words {
            self.on_exchange_event(cookie, word, None, out);
        }
    }

    pub(super) fn evict_unit(&mut self, out: &mut Vec<Output>) {
        self.world.counters.spans_evicted += 1;
        while let Some(slot) = self.queue.pop_early() {
            if self.world.spans.get(slot).is_some() {
                self.give_out(slot, out);
                return;
            }
        }
        // No ended span is left: evict an open one.
        let oldest = self.world.spans.slots().next();
        if let Some(slot) = oldest {
            if let Some(live) = self.world.spans.get_mut(slot) {
                live.end = self.world.now;
                live.outcome = Some(Outcome::Unfinished);
                let (cookie, exchange, tid) = (live.cookie, live.exchange, live.tid);
                self.take_exchange(cookie, exchange);
                if let Some(thread) = self.world.threads.get_mut(&tid) {
                    thread.over(slot, false);
                }
            }
            self.give_out(slot, out);
        }
    }
}
