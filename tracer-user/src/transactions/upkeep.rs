//! What the engine does about once a second: finishes what cannot end otherwise, forgets what is old, gives room back.

use super::engine::{Engine, Output};
use crate::guard::room::Room;
use crate::model::{Nanos, Outcome};
use crate::protocols::Closed;

/// How long a connection is kept of which nothing is told but that it is being opened: it may fail, be none that is
/// traced, or never carry anything, and its end is not reported then. A socket that asked for a name and was answered is
/// kept as long: nobody tells its end either. Nanoseconds.
const ANNOUNCED: Nanos = 10_000_000_000;

impl Engine {
    /// About once a second, and at the end with `finish`: finishes what cannot end otherwise, forgets what is old.
    pub fn expire(&mut self, finish: bool, out: &mut Vec<Output>) {
        let now = self.now;
        self.bury(if finish { Nanos::MAX } else { now }, out);
        let idle = if finish { 0 } else { self.limits.idle };
        let mut head_bytes = 0;
        if !finish {
            self.overdue(out);
        }
        let old: Vec<u64> = self
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
        self.entities.tick(now);
        self.wakers.tick(now);
        self.report_long(out);
        self.let_rest();
        self.trim_loops();
        for cookie in old {
            let mut said = std::mem::take(&mut self.said);
            if let Some(connection) = self.connections.get_mut(&cookie) {
                connection.talk.awake().expire(now, idle, &mut said);
            }
            for word in said.drain(..) {
                self.heard(cookie, word, None, out);
            }
            self.said = said;
            self.drop_connection(cookie, now);
        }
        let units = &self.units;
        self.joins.sweep(|slot| units.get(slot).is_some());
        self.lookups.sweep(now);
        self.relay_expire();
        self.tags_expire();
        self.report(if finish { Nanos::MAX } else { now }, out);
        self.give_back();
    }

    /// Forgets a connection when there are too many for a new one: the one that was idle longest.
    pub(super) fn make_room_for(&mut self, cookie: u64, out: &mut Vec<Output>) {
        if self.connections.len() < self.limits.connections || self.connections.contains_key(&cookie) {
            return;
        }
        if let Some(cookie) = self.idlest() {
            self.counters.connections_evicted += 1;
            self.close(cookie, Closed::Both, self.now, None, out);
            self.drop_connection(cookie, self.now);
        }
    }

    /// The connection that was idle longest. All are looked at once for as many that go as a sixteenth of them is: a list in
    /// order would cost something with every operation of every connection, also where there are never too many.
    fn idlest(&mut self) -> Option<u64> {
        loop {
            while let Some((last, cookie)) = self.idlest.pop() {
                if self.connections.get(&cookie).is_some_and(|connection| connection.last == last) {
                    return Some(cookie);
                }
            }
            let mut all: Vec<_> = self.connections.iter().map(|(cookie, known)| (known.last, *cookie)).collect();
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

    /// Gives back the room of tables that are mostly empty.
    fn give_back(&mut self) {
        self.connections.give_back();
        self.threads.give_back();
        self.services.give_back();
        self.serving.give_back();
        self.pools.give_back();
        self.meetings.give_back();
        self.knots.give_back();
        self.wanted.give_back();
        self.served.give_back();
        self.loops.give_back();
        self.joins.give_back();
        self.waiting.give_back();
        self.deferred.give_back();
        if self.connections.len() < self.limits.connections {
            self.idlest = Vec::new();
        }
        self.closing.give_back();
        self.graves.give_back();
        self.asks.give_back();
        self.said.give_back();
    }

    /// Requests of connections that live which are open too long.
    fn overdue(&mut self, out: &mut Vec<Output>) {
        let (now, idle) = (self.now, self.limits.idle);
        let mut said = std::mem::take(&mut self.said);
        let mut words = Vec::new();
        let settings = &self.settings;
        for (cookie, connection) in self.connections.iter_mut() {
            let Some(conversation) = connection.talk.if_awake().filter(|known| known.is_multiplexed()) else {
                continue;
            };
            conversation.overdue(now, idle, settings, &mut said);
            words.extend(said.drain(..).map(|word| (*cookie, word)));
        }
        self.said = said;
        for (cookie, word) in words {
            self.heard(cookie, word, None, out);
        }
    }

    pub(super) fn evict_unit(&mut self, out: &mut Vec<Output>) {
        self.counters.units_evicted += 1;
        while let Some((_, slot)) = self.waiting.pop_front().or_else(|| self.deferred.pop_front()) {
            if self.units.get(slot).is_some() {
                self.give_out(slot, out);
                return;
            }
        }
        // None that is finished is left.
        let oldest = self.units.slots().next();
        if let Some(slot) = oldest {
            if let Some(live) = self.units.get_mut(slot) {
                live.end = self.now;
                live.outcome = Some(Outcome::Unfinished);
                let (cookie, exchange, tid) = (live.cookie, live.exchange, live.tid);
                self.take_exchange(cookie, exchange);
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.over(slot, false);
                }
            }
            self.give_out(slot, out);
        }
    }
}
