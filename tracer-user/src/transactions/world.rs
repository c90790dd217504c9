//! What all strategies of attribution share: open spans, threads, connections, processes, the clock, settings, limits and
//! counters. It decides nothing.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::connection::Connection;
use super::counters::Counters;
use super::last_hit_map::LastHitMap;
use super::limits::Limits;
use super::losses::Losses;
use super::open_span::{OpenSpan, Slab, Slot};
use super::thread::{IntervalOwner, Thread};
use crate::model::{Nanos, ServiceId};
use crate::protocols::Settings;

/// Processes, as far as attribution needs to know them.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Their services.
    pub(super) services: FxHashMap<u32, ServiceId>,
    /// Those that read requests, each with the time of the first (entry ports). Calls of others begin transactions.
    pub(super) serving: FxHashMap<u32, Nanos>,
    /// There were too many of them: any process may serve requests.
    pub(super) serving_all: bool,
    /// Serving processes not yet taken by [`super::engine::Engine::take_serving`].
    pub(super) served: Vec<u32>,
    /// Those known to run tasks or event loops: one callback may serve several requests.
    pub(super) interleaving: FxHashSet<u32>,
}

impl Processes {
    /// The process has exited or runs another program.
    pub(super) fn forget(&mut self, tgid: u32) {
        self.services.remove(&tgid);
        self.serving.remove(&tgid);
        self.interleaving.remove(&tgid);
    }

    /// Service of a process; the first service for a process that was never introduced.
    pub(super) fn service(&self, tgid: u32) -> ServiceId {
        self.services.get(&tgid).copied().unwrap_or(ServiceId(0))
    }
}

/// The state that strategies share.
#[derive(Debug)]
pub(super) struct World {
    /// What parsers keep of requests.
    pub(super) settings: Settings,
    /// Limits and time-outs.
    pub(super) limits: Limits,
    /// Where ids come from.
    pub(super) seed: u64,
    /// Connections by the cookie of their socket.
    pub(super) connections: LastHitMap<u64, Box<Connection>>,
    /// Threads by their id.
    pub(super) threads: LastHitMap<u32, Thread>,
    /// Processes.
    pub(super) processes: Processes,
    /// Spans that are not reported yet.
    pub(super) spans: Slab,
    /// When records were lost.
    pub(super) losses: Losses,
    /// Time of the newest record.
    pub(super) now: Nanos,
    /// All records of sockets and threads up to this time were processed. Samples may be ahead of it: they come through a
    /// ring of their own, which is read first.
    pub(super) caught_up: Nanos,
    /// Final reporting is under way: no evidence can come any more.
    pub(super) finishing: bool,
    /// Losses and limits.
    pub(super) counters: Counters,
    /// Bytes left a socket by a path that no attached hook covers; the consumer clears it.
    pub(super) unseen: bool,
    /// The empty text, shared.
    pub(super) empty: Arc<str>,
}

impl World {
    /// An empty world.
    pub(super) fn new(settings: Settings, limits: Limits, seed: u64) -> Self {
        Self {
            settings,
            limits,
            seed,
            connections: LastHitMap::default(),
            threads: LastHitMap::default(),
            processes: Processes::default(),
            spans: Slab::default(),
            losses: Losses::default(),
            now: 0,
            caught_up: 0,
            finishing: false,
            counters: Counters::default(),
            unseen: false,
            empty: Arc::from(""),
        }
    }

    /// The clock never goes back, though records of different CPUs may be out of order.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// The thread, followed from now on unless there are too many.
    pub(super) fn thread(&mut self, tid: u32, tgid: u32, nanos: Nanos) -> Option<&mut Thread> {
        if !self.threads.contains_key(&tid) && self.threads.len() >= self.limits.threads {
            self.counters.threads_refused += 1;
            return None;
        }
        let thread = self.threads.or_insert_with(tid, || Thread::new(tgid));
        if thread.tgid != tgid || (thread.died != 0 && nanos > thread.died) {
            // The id was reused by another thread.
            *thread = Thread::new(tgid);
        }
        Some(thread)
    }

    /// The request that owns a callback group.
    pub(super) fn request_of(&self, entity: IntervalOwner) -> Option<Slot> {
        match entity {
            IntervalOwner::Request(slot) => Some(slot),
            IntervalOwner::Call(slot) => self.spans.get(slot).and_then(|live| live.cause.request()),
        }
    }

    /// Whether a span has ended, or was reported.
    pub(super) fn is_over(&self, slot: Slot) -> bool {
        self.spans.get(slot).is_none_or(|live: &OpenSpan| live.end != 0)
    }
}
